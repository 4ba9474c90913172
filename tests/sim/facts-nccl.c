/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only hardware can tell of NCCL, between two processes: what beginning
 * takes, what the link between them carries, and how long a peer that was
 * killed is waited for. As facts.c; on the simulation the figures mean nothing.
 * Argument: MiB that are sent at once (256).
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "facts.h"
#include "items.h"
#include "nccl-side.h"

#define MIB ((size_t)1 << 20)
#define ROUNDS 5
#define TOLD_S 5.0		/* as long NCCL may say that a peer is dead */

static size_t largest;		/* bytes; set once */

static void begin(struct side *s)
{
	*s = (struct side){ .bytes = largest };
	side_begin(s, false, NULL);
}

/* ---- sending ---- */

/* Both ways at once, as ranks that change places. */
static void swap(struct side *s, size_t bytes)
{
	IS(0, s->n.lib.ncclGroupStart());
	side_begun(side_put(s, s->a, bytes));
	side_begun(side_get(s, s->b, bytes));
	side_launch(s);
	IS(0, s->t.driver.cuEventSynchronize(s->done));
}

static void rate(struct side *s, size_t bytes)
{
	double best = 1e9;

	for (int i = 0; i < ROUNDS; i++) {
		double from = fact_now();

		swap(s, bytes);
		best = fact_now() - from < best ? fact_now() - from : best;
	}
	if (!s->rank)
		printf("{\"fact\": \"nccl\", \"kib\": %zu, "
		       "\"ms_each\": %.3f, \"gb_per_s_each_way\": %.3f}\n",
		       bytes >> 10, best * 1e3, (double)bytes / best / 1e9);
}

static void rates(void)
{
	double from, began;
	struct side s;

	begin(&s);
	from = fact_now();
	side_init(&s);
	IS(0, side_settled(&s));
	began = fact_now();
	swap(&s, 4096);		/* which connects them */
	if (!s.rank)
		printf("{\"fact\": \"nccl\", \"version\": %d, "
		       "\"begin_ms\": %.3f, \"first_ms\": %.3f}\n",
		       s.n.lib.version, (began - from) * 1e3,
		       (fact_now() - began) * 1e3);
	for (size_t bytes = 64 << 10; bytes <= largest; bytes *= 8)
		rate(&s, bytes);
	from = fact_now();
	side_end_comm(&s);
	if (!s.rank)
		printf("{\"fact\": \"nccl\", \"end_ms\": %.3f}\n",
		       (fact_now() - from) * 1e3);
	side_end(&s);
}

/* ---- a peer that is killed ---- */

/* Seconds until NCCL says so itself; less than 0: not in time. */
static double told(struct side *s)
{
	const struct timespec t = { 0, 1000000 };
	double from = fact_now();
	sk_nccl_result r;

	while (fact_now() - from < TOLD_S) {
		IS(0, s->n.lib.ncclCommGetAsyncError(s->comm, &r));
		if (r && r != SK_NCCL_IN_PROGRESS)
			return fact_now() - from;
		(void)nanosleep(&t, NULL);
	}
	return -1;
}

/* It wants bytes of the dead, and has a kernel waiting for them. */
static void want(struct side *s)
{
	IS(0, s->n.lib.ncclGroupStart());
	side_begun(side_get(s, s->b, largest));
	side_begun(s->n.lib.ncclGroupEnd());
	(void)side_settled(s);
	IS(0, s->t.driver.cuEventRecord(s->done, s->stream));
}

static void killed(void)
{
	double from, said, aborted;
	struct side s;

	begin(&s);
	side_init(&s);
	IS(0, side_settled(&s));
	swap(&s, 4096);
	if (s.rank)
		for (;;)
			pause();
	want(&s);
	CHECK(!kill(s.child, SIGKILL) &&
	      waitpid(s.child, NULL, 0) == s.child);
	said = told(&s);
	from = fact_now();
	IS(0, s.n.lib.ncclCommAbort(s.comm));
	aborted = fact_now();
	IS(0, s.t.driver.cuEventSynchronize(s.done));
	printf("{\"fact\": \"nccl of a killed peer\", \"told_after_ms\": %.3f, "
	       "\"abort_ms\": %.3f, \"stream_free_ms\": %.3f}\n",
	       said < 0 ? -1 : said * 1e3, (aborted - from) * 1e3,
	       (fact_now() - aborted) * 1e3);
}

/* Two ranks that say they are of one host, on one GPU. */
static void refused(void)
{
	const char *why = "";
	sk_nccl_result r;
	struct side s;

	s = (struct side){ .bytes = 4096 };
	(void)setenv("NCCL_HOSTID", "one", 1);
	side_begin(&s, true, NULL);
	side_init(&s);
	r = side_settled(&s);
	if (s.n.lib.ncclGetLastError)
		why = s.n.lib.ncclGetLastError(s.comm);
	if (!s.rank)
		printf("{\"fact\": \"nccl\", \"two ranks of one GPU\": %u, "
		       "\"why\": \"%.*s\"}\n", r, (int)strcspn(why, "\"\\\n"),
		       why);
	IS(0, s.n.lib.ncclCommAbort(s.comm));
	side_end(&s);
}

static const struct item facts[] = {
	{ "rates", rates, ITEM_ANY },
	{ "a peer that is killed", killed, ITEM_ANY },
	{ "two ranks on one GPU", refused, ITEM_ANY },
};

int main(int argc, char **argv)
{
	size_t mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 256;
	bool simulated = false;
	int r = side_look(&simulated);

	if (r)
		return r;
	/* Each is a process that ends without looking back. */
	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	largest = (mib < 1 ? 1 : mib) * MIB;
	return items_run(facts, sizeof(facts) / sizeof(facts[0]), simulated);
}
