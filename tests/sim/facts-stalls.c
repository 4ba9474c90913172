/* SPDX-License-Identifier: Apache-2.0 */
/* How long what we do beside the trainer holds up a call of its own. */
#include "facts.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "cuda/hash.h"
#include "items.h"

#define MIB ((size_t)1 << 20)
#define LEAST_PIECE ((size_t)64 * MIB)

/* ---- page-locking ---- */

struct locker {
	const struct trainer_cuda *t;
	sk_cu_context context;
	char *host;
	size_t piece;
	double seconds;
	bool done;		/* atomic */
};

static void *lock_all(void *data)
{
	struct locker *l = data;
	double from;

	IS(0, l->t->cuCtxSetCurrent(l->context));
	from = fact_now();
	for (size_t at = 0; at < fact_largest; at += l->piece)
		IS(0, l->t->driver.cuMemHostRegister(l->host + at, l->piece,
						     1));
	l->seconds = fact_now() - from;
	__atomic_store_n(&l->done, true, __ATOMIC_RELEASE);
	return NULL;
}

/* The longest of small calls that another thread makes meanwhile. */
static void stalls_of(const struct trainer_cuda *t, size_t piece)
{
	struct locker l = { .t = t, .piece = piece,
			    .host = fact_pages(fact_largest, 0) };
	sk_cu_stream s = fact_stream(t);
	sk_cu_ptr p = trainer_cuda_alloc(t, MIB);
	double most = 0;
	pthread_t thread;
	unsigned n = 0;

	IS(0, t->cuCtxGetCurrent(&l.context));
	CHECK(!pthread_create(&thread, NULL, lock_all, &l));
	for (; !__atomic_load_n(&l.done, __ATOMIC_ACQUIRE); n++) {
		double from = fact_now(), took;

		IS(0, t->cuMemsetD8Async(p, 1, 4096, s));
		took = fact_now() - from;
		most = took > most ? took : most;
		(void)usleep(100);
	}
	CHECK(!pthread_join(thread, NULL));
	IS(0, t->driver.cuStreamSynchronize(s));
	for (size_t at = 0; at < fact_largest; at += piece)
		IS(0, t->driver.cuMemHostUnregister(l.host + at));
	printf("{\"fact\": \"calls beside page-locking\", \"piece_mib\": %zu, "
	       "\"calls\": %u, \"most_ms\": %.3f, \"s_per_gib\": %.4f}\n",
	       piece / MIB, n, most * 1e3,
	       l.seconds * 1024 / (double)(fact_largest / MIB));
}

void fact_stalls(void)
{
	size_t piece = fact_largest < LEAST_PIECE ? fact_largest : LEAST_PIECE;
	struct trainer_cuda t;

	trainer_cuda_begin(&t, 0);
	for (; piece <= fact_largest; piece *= 4)
		if (fact_largest % piece == 0)
			stalls_of(&t, piece);
}

/* ---- the first kernel ---- */

/* Whether it is loaded and runs beside a stream that cannot go on: the driver
 * may wait for the whole context first. */
void fact_first_kernel(void)
{
	struct sk_cuda_device *device;
	struct sk_cuda_hash *hash;
	struct sk_cuda_lane *lane;
	struct sk_cuda_span span;
	struct trainer_gate gate;
	struct trainer_cuda t;
	struct sk_cuda *cuda;
	sk_cu_stream s;
	uint64_t sum;
	double from;

	trainer_cuda_begin(&t, 0);
	s = fact_stream(&t);
	span = (struct sk_cuda_span){ trainer_cuda_alloc(&t, MIB), MIB };
	CHECK(!sk_cuda_new(sk_os_linux(), &cuda, NULL));
	CHECK(!sk_cuda_device(cuda, 0, &device, NULL));
	CHECK(!sk_cuda_lane_new(device, &lane, NULL));
	trainer_gate_init(&gate);
	trainer_gate_hold(&t, &gate, s);
	from = fact_now();
	(void)alarm(10);	/* it would wait for itself */
	CHECK(!sk_cuda_hash_new(device, &hash, NULL));
	CHECK(!sk_cuda_hash_run(hash, lane, &span, 1, &sum, NULL));
	printf("{\"fact\": \"the first kernel beside work\", \"ms\": %.3f}\n",
	       (fact_now() - from) * 1e3);
	trainer_gate_open(&gate);
	IS(0, t.driver.cuStreamSynchronize(s));
}
