/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only hardware can tell: rates, and answers that we do not rely on but
 * would choose by. One fact is one line of JSON, {"fact": ..., ...}, taken by
 * a process of its own, which an alarm ends; on the simulation the figures
 * mean nothing, and that it runs does. What cannot be taken is a failure, but
 * where it is the answer: a call that does not return while the device works.
 * Arguments: MiB of the largest memory (1024), names of facts (all).
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/hash.h"
#include "facts.h"
#include "items.h"
#include "trainer.h"

#define BOUND_S 30		/* of one fact */
#define MIB ((size_t)1 << 20)
#define ROUNDS 5

static size_t largest;		/* bytes; set once */

static double now(void)
{
	return fact_now();
}

static void *shared_pages(size_t bytes)
{
	return fact_pages(bytes, 0);
}

static sk_cu_stream stream(const struct trainer_cuda *t)
{
	return fact_stream(t);
}

/* ---- rates ---- */

enum way { D2D, D2H, H2D };

static const char *const ways[] = { "d2d", "d2h", "h2d" };

static void copy(const struct trainer_cuda *t, enum way way, sk_cu_ptr a,
		 sk_cu_ptr b, void *host, size_t bytes, sk_cu_stream s)
{
	if (way == D2D)
		IS(0, t->driver.cuMemcpyDtoDAsync(a, b, bytes, s));
	else if (way == D2H)
		IS(0, t->driver.cuMemcpyDtoHAsync(host, a, bytes, s));
	else
		IS(0, t->driver.cuMemcpyHtoDAsync(a, host, bytes, s));
}

/* The best of some rounds, of memory files that are locked, or not. */
static void rates_of(const struct trainer_cuda *t, bool lock)
{
	sk_cu_ptr a = trainer_cuda_alloc(t, largest);
	sk_cu_ptr b = trainer_cuda_alloc(t, largest);
	char *host = shared_pages(largest);
	sk_cu_stream s = stream(t);

	if (lock)
		IS(0, t->driver.cuMemHostRegister(host, largest, 1));
	for (int way = lock ? D2D : D2H; way <= H2D; way++)
		for (size_t bytes = MIB; bytes <= largest; bytes *= 8) {
			double best = 1e9;

			for (int i = 0; i < ROUNDS; i++) {
				double from = now();

				copy(t, (enum way)way, a, b, host, bytes, s);
				IS(0, t->driver.cuStreamSynchronize(s));
				if (now() - from < best)
					best = now() - from;
			}
			printf("{\"fact\": \"rate\", \"way\": \"%s\", "
			       "\"locked\": %s, \"mib\": %zu, "
			       "\"gb_per_s\": %.3f}\n", ways[way],
			       lock ? "true" : "false", bytes / MIB,
			       (double)bytes / best / 1e9);
		}
}

static void rates(void)
{
	struct trainer_cuda t;

	trainer_cuda_begin(&t, 0);
	rates_of(&t, true);
}

static void rates_pageable(void)
{
	struct trainer_cuda t;

	trainer_cuda_begin(&t, 0);
	rates_of(&t, false);
}

static void locking(void)
{
	struct trainer_cuda t;
	char *host;

	trainer_cuda_begin(&t, 0);
	host = shared_pages(largest);
	for (size_t piece = largest / 4; piece <= largest; piece *= 2) {
		double from = now(), locked;

		for (size_t at = 0; at < largest; at += piece)
			IS(0, t.driver.cuMemHostRegister(host + at, piece, 1));
		locked = now();
		for (size_t at = 0; at < largest; at += piece)
			IS(0, t.driver.cuMemHostUnregister(host + at));
		printf("{\"fact\": \"locking\", \"piece_mib\": %zu, "
		       "\"s_per_gib\": %.4f, \"unlock_s_per_gib\": %.4f}\n",
		       piece / MIB,
		       (locked - from) * 1024 / (double)(largest / MIB),
		       (now() - locked) * 1024 / (double)(largest / MIB));
	}
}

/* ---- what blocks: the device cannot go on before the call is back ---- */

enum call { CALL_2D, CALL_D2H, CALL_LOCK, CALL_ALLOC };

static void make_call(const struct trainer_cuda *t, enum call call,
		      char *host, sk_cu_ptr p, sk_cu_stream s)
{
	const sk_cu_memcpy2d rows = {
		.src_type = SK_CU_MEMORY_DEVICE, .src_device = p,
		.src_pitch = 512, .dst_type = SK_CU_MEMORY_HOST,
		.dst_host = host, .dst_pitch = 256, .width = 256,
		.height = 1024 };
	sk_cu_ptr more;

	switch (call) {
	case CALL_2D: IS(0, t->driver.cuMemcpy2DAsync(&rows, s)); break;
	case CALL_D2H:
		IS(0, t->driver.cuMemcpyDtoHAsync(host, p, MIB / 2, s));
		break;
	case CALL_LOCK:
		IS(0, t->driver.cuMemHostRegister(host + MIB, MIB, 1));
		break;
	case CALL_ALLOC: IS(0, t->driver.cuMemAlloc(&more, MIB)); break;
	}
}

static void is_back(enum call call)
{
	struct trainer_gate gate;
	struct trainer_cuda t;
	sk_cu_stream s;
	sk_cu_ptr p;
	char *host;

	trainer_cuda_begin(&t, 0);
	s = stream(&t);
	p = trainer_cuda_alloc(&t, MIB);
	host = shared_pages(2 * MIB);
	IS(0, t.driver.cuMemHostRegister(host, MIB, 1));
	trainer_gate_init(&gate);
	trainer_gate_hold(&t, &gate, s);
	(void)alarm(5);		/* it would wait for itself */
	make_call(&t, call, host, p, s);
	(void)alarm(BOUND_S);
	trainer_gate_open(&gate);
	IS(0, t.driver.cuStreamSynchronize(s));
}

static void rows_are_back(void)
{
	is_back(CALL_2D);
}

static void copy_is_back(void)
{
	is_back(CALL_D2H);
}

static void locking_is_back(void)
{
	is_back(CALL_LOCK);
}

static void allocation_is_back(void)
{
	is_back(CALL_ALLOC);
}

/* ---- contexts ---- */

/* Of a primary context, by what another process sees is left. */
static void context_cost(void)
{
	size_t before, after, all;
	struct trainer_cuda t;
	int ends[2], back[2];
	char byte = 0;
	pid_t pid;

	CHECK(!pipe(ends) && !pipe(back));
	pid = fork();		/* before there is a driver here */
	if (!pid) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(read(back[0], &byte, 1) == 1);
		trainer_cuda_begin(&t, 0);
		CHECK(write(ends[1], &byte, 1) == 1);
		for (;;)
			pause();
	}
	trainer_cuda_begin(&t, 0);
	IS(0, t.driver.cuMemGetInfo(&before, &all));
	CHECK(write(back[1], &byte, 1) == 1 && read(ends[0], &byte, 1) == 1);
	IS(0, t.driver.cuMemGetInfo(&after, &all));
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
	printf("{\"fact\": \"context\", \"mib\": %.1f, \"device_mib\": %zu}\n",
	       ((double)before - (double)after) / (double)MIB, all / MIB);
}

/* ---- checksums on the device ---- */

static double hash_once(struct sk_cuda_hash *hash, struct sk_cuda_lane *lane,
			const struct sk_cuda_span *spans, size_t n)
{
	static uint64_t sums[SK_CUDA_SPANS_MAX];
	double from = now();

	CHECK(!sk_cuda_hash_run(hash, lane, spans, n, sums, NULL));
	return now() - from;
}

/* What the driver takes to compile our code, and then each MiB, of few and of
 * many side by side. */
static void checksums(void)
{
	static struct sk_cuda_span spans[SK_CUDA_SPANS_MAX];
	size_t most = largest / MIB < SK_CUDA_SPANS_MAX ? largest / MIB :
							  SK_CUDA_SPANS_MAX;
	struct sk_cuda_device *device;
	struct sk_cuda_hash *hash;
	struct sk_cuda_lane *lane;
	struct trainer_cuda t;
	struct sk_cuda *cuda;
	double from;
	sk_cu_ptr a;

	trainer_cuda_begin(&t, 0);
	CHECK(!sk_cuda_new(sk_os_linux(), &cuda, NULL));
	CHECK(!sk_cuda_device(cuda, 0, &device, NULL));
	CHECK(!sk_cuda_lane_new(device, &lane, NULL));
	from = now();
	CHECK(!sk_cuda_hash_new(device, &hash, NULL));
	printf("{\"fact\": \"kernels\", \"load_ms\": %.3f}\n",
	       (now() - from) * 1e3);
	a = trainer_cuda_alloc(&t, most * MIB);
	for (size_t i = 0; i < most; i++)
		spans[i] = (struct sk_cuda_span){ a + i * MIB, MIB };
	for (size_t n = 1; n <= most; n *= 8) {
		double best = 1e9;

		for (int i = 0; i < ROUNDS; i++) {
			double took = hash_once(hash, lane, spans, n);

			best = took < best ? took : best;
		}
		printf("{\"fact\": \"checksums\", \"mib\": %zu, "
		       "\"ms\": %.3f, \"gb_per_s\": %.3f}\n", n, best * 1e3,
		       (double)(n * MIB) / best / 1e9);
	}
}

/* ---- all of them ---- */

static const struct {
	const char *name;
	void (*take)(void);
	bool may_wait;		/* whether it does is what is asked */
} facts[] = {
	{ "answers", fact_answers },
	{ "what pointers are", fact_pointers },
	{ "a primary context", context_cost },
	{ "a killed process with an heir", fact_heir },
	{ "rates", rates },
	{ "rates, not locked", rates_pageable },
	{ "long copies in pieces", fact_pace },
	{ "page-locking", locking },
	{ "small copies", fact_small },
	{ "memory of a node of the host", fact_node },
	{ "checksums on the device", checksums },
	{ "kernels beside copies", fact_beside },
	{ "page-locking of other pages", fact_locking },
	{ "copies by flag", fact_flags },
	{ "memory that is shared", fact_shared },
	{ "rows return at once", rows_are_back, true },
	{ "a copy returns at once", copy_is_back, true },
	{ "page-locking beside work returns", locking_is_back, true },
	{ "calls beside page-locking", fact_stalls },
	{ "the first kernel beside work returns", fact_first_kernel, true },
	{ "an allocation beside work returns", allocation_is_back, true },
};

/* As of waitpid(). */
static int take(void (*fact)(void))
{
	int status = -1;
	pid_t pid = fork();

	if (!pid) {
		(void)prctl(PR_SET_DUMPABLE, 0);
		(void)alarm(BOUND_S);
		fact();
		fflush(stdout);
		_exit(0);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

static bool has_waited(int status)
{
	return status > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
}

static bool is_named(const char *name, int argc, char **argv)
{
	for (int i = 2; i < argc; i++)
		if (strcmp(argv[i], name) == 0)
			return true;
	return argc < 3;
}

int main(int argc, char **argv)
{
	size_t mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 1024;
	struct trainer_cuda t;
	struct sk_err err = { "" };
	int failed = 0;

	/* One that is ended leaves what it has found so far. */
	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	if (trainer_cuda_open(&t, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		return 77;
	}
	largest = fact_largest = (mib < 4 ? 4 : mib) * MIB;
	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
		int status;

		if (!is_named(facts[i].name, argc, argv))
			continue;
		status = take(facts[i].take);
		failed += status && !(facts[i].may_wait && has_waited(status));
		printf("{\"fact\": \"taken\", \"what\": \"%s\", \"ok\": %s}\n",
		       facts[i].name, status ? "false" : "true");
	}
	return failed != 0;
}
