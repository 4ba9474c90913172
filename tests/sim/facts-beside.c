/* SPDX-License-Identifier: Apache-2.0 */
#include "facts.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/hash.h"
#include "items.h"

#define MIB ((size_t)1 << 20)
#define WHILE_S 0.3

/* ---- kernels, and copies beside them ---- */

/* A kernel of ours that reads @bytes, as long as it is to work. */
struct work {
	struct sk_cuda_hash *hash;
	struct sk_cuda_lane *lane;
	struct sk_cuda_span *spans;
	uint64_t *sums;
	size_t n;
};

static void begin_work(struct work *w, const struct trainer_cuda *t)
{
	size_t n = fact_largest / MIB;
	struct sk_cuda_device *device;
	struct sk_cuda *cuda;
	sk_cu_ptr a;

	w->n = n < SK_CUDA_SPANS_MAX ? n : SK_CUDA_SPANS_MAX;
	w->spans = calloc(w->n, sizeof(*w->spans));
	w->sums = calloc(w->n, sizeof(*w->sums));
	CHECK(w->spans && w->sums);
	CHECK(!sk_cuda_new(sk_os_linux(), &cuda, NULL));
	CHECK(!sk_cuda_device(cuda, 0, &device, NULL));
	CHECK(!sk_cuda_lane_new(device, &w->lane, NULL));
	CHECK(!sk_cuda_hash_new(device, &w->hash, NULL));
	a = trainer_cuda_alloc(t, w->n * MIB);
	for (size_t i = 0; i < w->n; i++)
		w->spans[i] = (struct sk_cuda_span){ a + i * MIB, MIB };
}

/* GB/s that it reads meanwhile. */
static double work_on(struct work *w, double seconds)
{
	double from = fact_now(), bytes = 0;

	do {
		CHECK(!sk_cuda_hash_run(w->hash, w->lane, w->spans, w->n,
					w->sums, NULL));
		bytes += (double)(w->n * MIB);
	} while (fact_now() - from < seconds);
	return bytes / (fact_now() - from) / 1e9;
}

/* Copies to the host until there is nobody to tell; GB/s, each second. */
static void copy_on(int fd)
{
	struct trainer_cuda t;
	sk_cu_stream s;
	sk_cu_ptr a;
	void *host;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	trainer_cuda_begin(&t, 0);
	s = fact_stream(&t);
	a = trainer_cuda_alloc(&t, fact_largest);
	host = fact_pages(fact_largest, 0);
	IS(0, t.driver.cuMemHostRegister(host, fact_largest, 1));
	for (;;) {
		double from = fact_now(), rate;

		IS(0, t.driver.cuMemcpyDtoHAsync(host, a, fact_largest, s));
		IS(0, t.driver.cuStreamSynchronize(s));
		rate = (double)fact_largest / (fact_now() - from) / 1e9;
		if (write(fd, &rate, sizeof(rate)) != sizeof(rate))
			_exit(0);
	}
}

static double last_rate(int fd)
{
	double rate = 0, v[64];
	ssize_t n;

	while ((n = read(fd, v, sizeof(v))) > 0)
		rate = v[n / (ssize_t)sizeof(*v) - 1];
	return rate;
}

/* As a snapshot copies. */
static void beside_own(const struct trainer_cuda *t, struct work *w)
{
	sk_cu_ptr a = trainer_cuda_alloc(t, fact_largest);
	char *host = fact_pages(fact_largest, 0);
	struct sk_cuda_device *device;
	struct sk_cuda_lock *lock;
	struct sk_cuda_lane *lane;
	double from, kernels, took;
	struct sk_copy copy = {
		.dst = host, .src = (char *)(uintptr_t)a,
		.run = fact_largest, .bytes = fact_largest };
	struct sk_cuda *cuda;

	CHECK(!sk_cuda_new(sk_os_linux(), &cuda, NULL));
	CHECK(!sk_cuda_device(cuda, 0, &device, NULL));
	CHECK(!sk_cuda_lane_new(device, &lane, NULL));
	CHECK(!sk_cuda_lock(device, host, fact_largest, SK_CUDA_PIECE, &lock,
			    NULL));
	from = fact_now();
	CHECK(!sk_cuda_lane_out(lane, &copy, 0, fact_largest, lock, NULL));
	kernels = work_on(w, 0.01);
	CHECK(!sk_cuda_lane_finish(lane, NULL));
	took = fact_now() - from;
	printf("{\"fact\": \"beside\", \"copies_of\": \"this process\", "
	       "\"kernels_gb_per_s\": %.3f, \"copies_gb_per_s\": %.3f}\n",
	       kernels, (double)fact_largest / took / 1e9);
}

void fact_beside(void)
{
	struct trainer_cuda t;
	double alone, kernels;
	struct work w;
	int ends[2];
	pid_t pid;

	CHECK(!pipe(ends));
	pid = fork();		/* before there is a driver here */
	CHECK(pid >= 0);
	if (!pid) {
		CHECK(!kill(getpid(), SIGSTOP));
		copy_on(ends[1]);
	}
	close(ends[1]);
	trainer_cuda_begin(&t, 0);
	begin_work(&w, &t);
	alone = work_on(&w, WHILE_S);
	beside_own(&t, &w);
	CHECK(!kill(pid, SIGCONT));
	CHECK(read(ends[0], &(double){ 0 }, sizeof(double)) > 0);
	kernels = work_on(&w, WHILE_S);
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
	printf("{\"fact\": \"beside\", \"copies_of\": \"another process\", "
	       "\"kernels_gb_per_s\": %.3f, \"copies_gb_per_s\": %.3f, "
	       "\"kernels_alone_gb_per_s\": %.3f}\n", kernels,
	       last_rate(ends[0]), alone);
}

/* ---- page-locking ---- */

static void lock_once(const struct trainer_cuda *t, const char *what,
		      void *host)
{
	double from = fact_now(), locked;

	if (!host) {
		printf("{\"fact\": \"locking\", \"of\": \"%s\", "
		       "\"there\": false}\n", what);
		return;
	}
	IS(0, t->driver.cuMemHostRegister(host, fact_largest, 1));
	locked = fact_now() - from;
	IS(0, t->driver.cuMemHostUnregister(host));
	printf("{\"fact\": \"locking\", \"of\": \"%s\", "
	       "\"s_per_gib\": %.4f}\n", what,
	       locked * 1024 / (double)(fact_largest / MIB));
}

/* By a process that has them mapped as well. */
static void lock_again(void *host, const char *what)
{
	struct trainer_cuda t;

	trainer_cuda_begin(&t, 0);
	lock_once(&t, what, host);
	fflush(stdout);
}

void fact_locking(void)
{
	void *pages = fact_pages(fact_largest, 0);
	void *advised = fact_pages(fact_largest, 0);
	struct trainer_cuda t;
	int ends[2], status;
	char byte = 0;
	pid_t pid;

	(void)madvise(advised, fact_largest, MADV_HUGEPAGE);
	CHECK(!pipe(ends));
	pid = fork();		/* before there is a driver here */
	CHECK(pid >= 0);
	if (!pid) {
		close(ends[1]);
		CHECK(read(ends[0], &byte, 1) == 1);
		lock_again(pages, "pages that another process has locked");
		_exit(0);
	}
	trainer_cuda_begin(&t, 0);
	IS(0, t.driver.cuMemHostRegister(pages, fact_largest, 1));
	CHECK(write(ends[1], &byte, 1) == 1);
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	lock_once(&t, "pages that may be huge", advised);
	lock_once(&t, "huge pages", fact_largest % (2 * MIB) ? NULL :
		  fact_pages(fact_largest, MFD_HUGETLB));
}

/* ---- within the device ---- */

void fact_flags(void)
{
	struct trainer_cuda t;
	sk_cu_ptr a, b;
	sk_cu_stream s;

	trainer_cuda_begin(&t, 0);
	if (!t.driver.cuMemcpyBatchAsync)
		return;
	a = trainer_cuda_alloc(&t, fact_largest);
	b = trainer_cuda_alloc(&t, fact_largest);
	s = fact_stream(&t);
	for (unsigned flags = 0; flags < 2; flags++) {
		sk_cu_copy_attributes how = {
			.source_order = SK_CU_SOURCE_IN_STREAM_ORDER,
			.flags = flags };
		double best = 1e9;

		for (int i = 0; i < 5; i++) {
			double from = fact_now();
			size_t first = 0, bytes = fact_largest;

			IS(0, t.driver.cuMemcpyBatchAsync(
				   &a, &b, &bytes, 1, &how, &first, 1, s));
			IS(0, t.driver.cuStreamSynchronize(s));
			best = fact_now() - from < best ? fact_now() - from :
							  best;
		}
		printf("{\"fact\": \"d2d by flag\", \"overlap\": %s, "
		       "\"mib\": %zu, \"gb_per_s\": %.3f}\n",
		       flags ? "true" : "false", fact_largest / MIB,
		       (double)fact_largest / best / 1e9);
	}
}

/* ---- memory that is shared ---- */

static const sk_cu_allocation of_device = {
	.type = SK_CU_ALLOCATION_PINNED,
	.handles = SK_CU_HANDLE_POSIX_FD,
	.location = { SK_CU_LOCATION_DEVICE, 0 },
};

static void make_shared(const struct trainer_cuda *t, size_t bytes)
{
	const sk_cu_access access = { { SK_CU_LOCATION_DEVICE, 0 },
				      SK_CU_ACCESS_READ_WRITE };
	sk_cu_handle handle, again;
	double from = fact_now(), made, shared;
	sk_cu_ptr ptr;
	int fd = -1;

	IS(0, t->driver.cuMemCreate(&handle, bytes, &of_device, 0));
	made = fact_now();
	IS(0, t->driver.cuMemExportToShareableHandle(
		   &fd, handle, SK_CU_HANDLE_POSIX_FD, 0));
	IS(0, t->driver.cuMemImportFromShareableHandle(
		   &again, (void *)(intptr_t)fd, SK_CU_HANDLE_POSIX_FD));
	shared = fact_now();
	IS(0, t->driver.cuMemAddressReserve(&ptr, bytes, 0, 0, 0));
	IS(0, t->driver.cuMemMap(ptr, bytes, 0, again, 0));
	IS(0, t->driver.cuMemSetAccess(ptr, bytes, &access, 1));
	printf("{\"fact\": \"shared\", \"mib\": %zu, \"make_ms\": %.3f, "
	       "\"pass_on_ms\": %.3f, \"map_ms\": %.3f}\n", bytes / MIB,
	       (made - from) * 1e3, (shared - made) * 1e3,
	       (fact_now() - shared) * 1e3);
	IS(0, t->driver.cuMemUnmap(ptr, bytes));
	IS(0, t->driver.cuMemAddressFree(ptr, bytes));
	IS(0, t->driver.cuMemRelease(again));
	IS(0, t->driver.cuMemRelease(handle));
	close(fd);
}

/* And of sixteen times as much, where the device has it. */
void fact_shared(void)
{
	size_t bytes = fact_largest / (2 * MIB) * (2 * MIB), left, all;
	struct trainer_cuda t;

	trainer_cuda_begin(&t, 0);
	if (!t.driver.cuMemCreate)
		return;
	make_shared(&t, bytes);
	IS(0, t.driver.cuMemGetInfo(&left, &all));
	if (left / 16 > bytes)
		make_shared(&t, 16 * bytes);
}
