/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the host that the driver makes, on one of its nodes: processes
 * share it by a descriptor, and none has to lock it. Would it be better than
 * memory files that each process locks?
 */
#include "facts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "items.h"

#define MIB ((size_t)1 << 20)

static int node_of(const struct trainer_cuda *t)
{
	int node = -1;

	(void)t->driver.cuDeviceGetAttribute(&node, SK_CU_DEVICE_HOST_NUMA_ID,
					     0);
	return node < 0 ? 0 : node;
}

static void answer(const char *what, sk_cu_result result)
{
	printf("{\"fact\": \"memory of a node\", \"to\": \"%s\", "
	       "\"result\": %u}\n", what, result);
}

/* For the device and for the host. */
static sk_cu_result permit(const struct trainer_cuda *t, sk_cu_ptr ptr,
			   size_t bytes, sk_cu_location node)
{
	const sk_cu_access access[] = {
		{ { SK_CU_LOCATION_DEVICE, 0 }, SK_CU_ACCESS_READ_WRITE },
		{ node, SK_CU_ACCESS_READ_WRITE } };

	return t->driver.cuMemSetAccess(ptr, bytes, access, 2);
}

static double rate_of(const struct trainer_cuda *t, void *host, size_t bytes)
{
	sk_cu_ptr a = trainer_cuda_alloc(t, bytes);
	sk_cu_stream s = fact_stream(t);
	double best = 1e9;

	for (int i = 0; i < 5; i++) {
		double from = fact_now();

		IS(0, t->driver.cuMemcpyDtoHAsync(host, a, bytes, s));
		IS(0, t->driver.cuStreamSynchronize(s));
		best = fact_now() - from < best ? fact_now() - from : best;
	}
	return (double)bytes / best / 1e9;
}

/* Past the page cache, as the agent writes; 0, or an errno. */
static int write_past_cache(const void *host)
{
	int fd = open(".", O_TMPFILE | O_WRONLY | O_DIRECT | O_CLOEXEC, 0600);
	int e = 0;

	if (fd < 0 || pwrite(fd, host, MIB, 0) != (ssize_t)MIB)
		e = errno;
	if (fd >= 0)
		close(fd);
	return e;
}

static void use(const struct trainer_cuda *t, sk_cu_ptr ptr, size_t bytes)
{
	char *host = (char *)(uintptr_t)ptr, *file = fact_pages(bytes, 0);
	double from = fact_now(), touched;

	memset(host, 1, bytes);
	touched = fact_now() - from;
	IS(0, t->driver.cuMemHostRegister(file, bytes, 1));
	printf("{\"fact\": \"memory of a node\", \"mib\": %zu, "
	       "\"touch_ms\": %.3f, \"d2h_gb_per_s\": %.3f, "
	       "\"of_locked_files\": %.3f, \"direct_write_errno\": %d}\n",
	       bytes / MIB, touched * 1e3, rate_of(t, host, bytes),
	       rate_of(t, file, bytes), write_past_cache(host));
}

/* What another process would do to have it; in this one. */
static sk_cu_result take_over(const struct trainer_cuda *t, int fd,
			      size_t bytes, sk_cu_location node,
			      sk_cu_ptr *ret_ptr)
{
	sk_cu_handle handle;
	sk_cu_result r = t->driver.cuMemImportFromShareableHandle(
		&handle, (void *)(intptr_t)fd, SK_CU_HANDLE_POSIX_FD);

	if (!r)
		r = t->driver.cuMemAddressReserve(ret_ptr, bytes, 0, 0, 0);
	if (!r)
		r = t->driver.cuMemMap(*ret_ptr, bytes, 0, handle, 0);
	return r ? r : permit(t, *ret_ptr, bytes, node);
}

void fact_node(void)
{
	size_t bytes = fact_largest / (2 * MIB) * (2 * MIB);
	sk_cu_allocation what = {
		.type = SK_CU_ALLOCATION_PINNED,
		.handles = SK_CU_HANDLE_POSIX_FD,
		.location = { SK_CU_LOCATION_HOST_NUMA, 0 } };
	double from, made, shared;
	struct trainer_cuda t;
	sk_cu_handle handle;
	sk_cu_ptr ptr = 0;
	sk_cu_result r;
	int fd = -1;

	trainer_cuda_begin(&t, 0);
	if (!t.driver.cuMemCreate)
		return;
	what.location.id = node_of(&t);
	from = fact_now();
	r = t.driver.cuMemCreate(&handle, bytes, &what, 0);
	made = fact_now() - from;
	answer("make", r);
	if (r)
		return;
	r = t.driver.cuMemExportToShareableHandle(&fd, handle,
						  SK_CU_HANDLE_POSIX_FD, 0);
	answer("export", r);
	from = fact_now();
	if (!r)
		r = take_over(&t, fd, bytes, what.location, &ptr);
	shared = fact_now() - from;
	answer("take over", r);
	printf("{\"fact\": \"memory of a node\", \"make_s_per_gib\": %.4f, "
	       "\"take_over_s_per_gib\": %.4f}\n",
	       made * 1024 / (double)(bytes / MIB),
	       shared * 1024 / (double)(bytes / MIB));
	if (!r)
		use(&t, ptr, bytes);
}
