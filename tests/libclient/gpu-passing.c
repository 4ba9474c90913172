/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/gpu-passing.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "libclient/restore/common.h"
#include "restore/passing.h"
#include "sim/facts.h"

#define CHUNK ((size_t)1 << 20)
#define THREADS_MOST 16u
#define ROUNDS 3

/* Each takes every n-th chunk, to one of its buffers after the other. */
struct passer {
	const char *image;
	char *ring;
	size_t bytes, ring_bytes, piece;
	unsigned first, n;
	pthread_barrier_t *start;
};

static void pass(const struct passer *p, size_t at, size_t *turn)
{
	for (size_t k = 0; k < CHUNK; k += p->piece) {
		char *to = p->ring + *turn % p->ring_bytes;

		(void)sk_passing_gather_hashed(to, p->image + at + k,
					       p->piece);
		*turn += p->piece;
	}
}

static void *run(void *arg)
{
	const struct passer *p = arg;
	size_t turn = 0;

	(void)pthread_barrier_wait(p->start);
	for (size_t at = p->first * CHUNK; at + CHUNK <= p->bytes;
	     at += p->n * CHUNK)
		pass(p, at, &turn);
	(void)pthread_barrier_wait(p->start);
	return NULL;
}

/* Bytes a second. */
static double pass_by(unsigned n, const char *image, size_t bytes,
		      size_t ring_bytes, size_t piece)
{
	struct passer passers[THREADS_MOST];
	pthread_t threads[THREADS_MOST];
	pthread_barrier_t start;
	double from;

	CHECK(!pthread_barrier_init(&start, NULL, n + 1));
	for (unsigned i = 0; i < n; i++) {
		passers[i] = (struct passer){
			image, malloc(ring_bytes), bytes, ring_bytes, piece,
			i, n, &start };
		CHECK(passers[i].ring);
		memset(passers[i].ring, 1, ring_bytes);
		CHECK(!pthread_create(&threads[i], NULL, run, &passers[i]));
	}
	from = fact_now();	/* before any of them can be at work */
	(void)pthread_barrier_wait(&start);
	(void)pthread_barrier_wait(&start);
	from = fact_now() - from;
	for (unsigned i = 0; i < n; i++) {
		CHECK(!pthread_join(threads[i], NULL));
		free(passers[i].ring);
	}
	(void)pthread_barrier_destroy(&start);
	return (double)(bytes / CHUNK * CHUNK) / from;
}

static void say(unsigned n, const char *image, size_t bytes,
		size_t ring_bytes, size_t piece)
{
	double best = 0, rate;

	for (int i = 0; i < ROUNDS; i++) {
		rate = pass_by(n, image, bytes, ring_bytes, piece);
		best = rate > best ? rate : best;
	}
	printf("{\"fact\": \"passing by the CPU alone\", \"threads\": %u, "
	       "\"buffers_kib\": %zu, \"at_once_kib\": %zu, "
	       "\"gb_per_s\": %.3f}\n", n, ring_bytes >> 10, piece >> 10,
	       best / 1e9);
}

void gpu_passing_facts(size_t bytes)
{
	/* As a restore has them, and such as the caches of a core hold. */
	static const struct { size_t ring, piece; } as[] = {
		{ 3 * CHUNK, CHUNK }, { CHUNK, CHUNK },
		{ 3 * CHUNK / 4, CHUNK / 4 } };
	char *image = fact_pages(bytes, 0);

	for (unsigned n = 1; n <= THREADS_MOST; n *= 2)
		for (size_t i = 0; i < sizeof(as) / sizeof(*as); i++)
			say(n, image, bytes, as[i].ring, as[i].piece);
	CHECK(!munmap(image, bytes));
}
