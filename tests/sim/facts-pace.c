/* SPDX-License-Identifier: Apache-2.0 */
/* What a long copy over the link costs others that come meanwhile, by how it is
 * asked for: a copy engine takes what it is asked for in turn. */
#include "facts.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cuda/cuda.h"
#include "items.h"

#define MIB ((size_t)1 << 20)
#define LATER_MS 2		/* when the others come */
#define MOST 2u			/* pieces asked for before one is done */

enum how { AT_ONCE, IN_TURN, TWO_AT_ONCE, HOWS };

static const char *const hows[HOWS] = {
	[AT_ONCE] = "all at once", [IN_TURN] = "two streams in turn",
	[TWO_AT_ONCE] = "two pieces at once" };

enum other { OTHER_SAME_WAY, OTHER_WORD, OTHER_BACK, OTHERS };

static const char *const others[OTHERS] = {
	[OTHER_SAME_WAY] = "1 MiB to the host",
	[OTHER_WORD] = "4 bytes to memory that is not locked",
	[OTHER_BACK] = "1 MiB to the device" };

struct pace {
	const struct trainer_cuda *t;
	enum how how;
	size_t piece;
	sk_cu_ptr from;
	char *to;
	sk_cu_stream s[MOST];
	sk_cu_event done[MOST];
};

static void ask(const struct pace *p, size_t i)
{
	const struct sk_cuda_driver *d = &p->t->driver;
	size_t at = i * p->piece, left = fact_largest - at;
	unsigned k = i % MOST;
	sk_cu_stream s = p->s[p->how == IN_TURN ? k : 0];

	if (i >= MOST && p->how == TWO_AT_ONCE)
		IS(0, d->cuEventSynchronize(p->done[k]));
	if (i && p->how == IN_TURN)
		IS(0, d->cuStreamWaitEvent(s, p->done[(i - 1) % MOST], 0));
	IS(0, d->cuMemcpyDtoHAsync(p->to + at, p->from + at,
				   left < p->piece ? left : p->piece, s));
	if (p->how != AT_ONCE)
		IS(0, d->cuEventRecord(p->done[k], s));
}

static void *ask_all(void *data)
{
	const struct pace *p = data;
	struct trainer_cuda t;

	trainer_cuda_begin(&t, 0);
	for (size_t i = 0; i * p->piece < fact_largest; i++)
		ask(p, i);
	return NULL;
}

/* Seconds that the other waits. */
static double other_waits(const struct trainer_cuda *t, enum other other,
			  sk_cu_stream s, sk_cu_ptr there, char *here)
{
	double from = fact_now();
	int word = 0;

	if (other == OTHER_WORD)
		IS(0, t->driver.cuMemcpyDtoHAsync(&word, there, sizeof(word),
						  s));
	else if (other == OTHER_BACK)
		IS(0, t->driver.cuMemcpyHtoDAsync(there, here, MIB, s));
	else
		IS(0, t->driver.cuMemcpyDtoHAsync(here, there, MIB, s));
	IS(0, t->driver.cuStreamSynchronize(s));
	return fact_now() - from;
}

static void pace_of(struct pace *p, sk_cu_ptr there)
{
	sk_cu_stream s = fact_stream(p->t);
	double from, waited[OTHERS], all;

	for (int other = 0; other < OTHERS; other++) {
		pthread_t thread;

		from = fact_now();
		CHECK(!pthread_create(&thread, NULL, ask_all, p));
		(void)nanosleep(&(struct timespec){ 0, LATER_MS * 1000000 },
				NULL);
		waited[other] = other_waits(p->t, (enum other)other, s, there,
					    p->to + fact_largest);
		CHECK(!pthread_join(thread, NULL));
		for (unsigned k = 0; k < MOST; k++)
			IS(0, p->t->driver.cuStreamSynchronize(p->s[k]));
		all = fact_now() - from;
	}
	printf("{\"fact\": \"pace\", \"by\": \"%s\", \"mib\": %zu, "
	       "\"piece_mib\": %zu, \"gb_per_s\": %.3f", hows[p->how],
	       fact_largest / MIB, p->piece / MIB,
	       (double)fact_largest / all / 1e9);
	for (int other = 0; other < OTHERS; other++)
		printf(", \"%s waits ms\": %.3f", others[other],
		       waited[other] * 1e3);
	puts("}");
}

void fact_pace(void)
{
	static const size_t pieces[] = { SK_CUDA_CHUNK, SK_CUDA_CHUNK / 4 };
	struct trainer_cuda t;
	struct pace p = { .t = &t };
	sk_cu_ptr there;

	trainer_cuda_begin(&t, 0);
	p.from = trainer_cuda_alloc(&t, fact_largest);
	there = trainer_cuda_alloc(&t, MIB);
	p.to = fact_pages(fact_largest + MIB, 0);
	IS(0, t.driver.cuMemHostRegister(p.to, fact_largest + MIB, 1));
	for (unsigned k = 0; k < MOST; k++) {
		p.s[k] = fact_stream(&t);
		IS(0, t.driver.cuEventCreate(
			   &p.done[k], SK_CU_EVENT_BLOCKING_SYNC |
			   SK_CU_EVENT_DISABLE_TIMING));
	}
	for (int how = 0; how < HOWS; how++)
		for (size_t i = 0; i < 2; i++) {
			p.how = (enum how)how;
			p.piece = pieces[i];
			pace_of(&p, there);
		}
}
