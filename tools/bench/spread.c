/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One node has a model, and others that have nothing want all of it: agents of
 * this machine, a rank each, that are joined by sockets. What counts is what
 * each of them sends, for all share the CPUs.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "state.h"

#define WAIT_MS 120000
#define STEP 1

struct sent {
	uint64_t sent, passed, received, cpu_ns, staging;
};

static struct sent *sent;	/* per rank, in memory that all share */

static uint64_t process_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void place(struct bench *b, int node)
{
	(void)snprintf(b->socket, sizeof(b->socket), "%.200s/agent-%d.sock",
		       b->dir, node);
	(void)snprintf(b->store, sizeof(b->store), "%.200s/store-%d", b->dir,
		       node);
}

/* All of it, on every rank. */
static int describe(struct bench *b, int rank, int ranks,
		    struct rank_state *s)
{
	struct bench node = *b;

	place(&node, rank);
	return state_begin(&node, rank, ranks, "spread", b->o.bytes,
			   b->o.tensors, CUT_NONE, s);
}

static int rank_save(struct bench *b, int rank)
{
	struct rank_state s;

	meet(b);
	if (describe(b, rank, 1, &s))
		return -1;
	state_fill(&s, rank, STEP);
	if (sk_snapshot(s.state, STEP, NULL) ||
	    sk_wait(s.state, STEP, SK_SEALED, WAIT_MS))
		return fail(b, rank, "snapshot: %s", sk_error());
	meet(b);
	state_close(&s);
	return 0;
}

static void lead_save(struct bench *b, int ranks)
{
	(void)ranks;
	meet(b);
	meet(b);
}

static int join(struct bench *b, int rank, struct sk_comm *ret)
{
	char at[PATH_MAX + 16], dir[PATH_MAX];
	struct sk_meeting meeting = { .at = at, .rank = rank,
				      .world = b->o.spread,
				      .timeout_ms = WAIT_MS };

	if (!realpath(b->dir, dir))
		return fail(b, rank, "%s is gone", b->dir);
	(void)snprintf(at, sizeof(at), "%s/meeting", dir);
	if (sk_comm_meet(NULL, &meeting, ret))
		return fail(b, rank, "meeting: %s", sk_error());
	return 0;
}

static int rank_restore(struct bench *b, int rank)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MEMORY_ONLY,
					.timeout_ms = WAIT_MS };
	struct sk_report report = { 0 };
	struct rank_state s;
	struct sk_comm comm;
	uint64_t cpu;

	meet(b);
	if (describe(b, rank, b->o.spread, &s) || join(b, rank, &comm))
		return -1;
	meet(b);
	mark_start(b, rank);
	cpu = process_ns();
	if (sk_restore(s.state, SK_LATEST, &comm, &o, &report))
		return fail(b, rank, "restore: %s", sk_error());
	mark_end(b, rank);
	sent[rank] = (struct sent){ report.bytes_sent, report.bytes_passed,
				    report.bytes_received,
				    process_ns() - cpu, report.staging_bytes };
	meet(b);
	sk_comm_meet_free(&comm);
	state_close(&s);
	return 0;
}

static void print_json(const struct bench *b, double ns)
{
	printf("{\"ns\": %.0f, \"ranks\": [", ns);
	for (int i = 0; i < b->o.spread; i++)
		printf("%s{\"sent\": %llu, \"passed\": %llu, "
		       "\"received\": %llu, \"staging\": %llu, "
		       "\"cpu_ns\": %llu}", i ? ", " : "",
		       (unsigned long long)sent[i].sent,
		       (unsigned long long)sent[i].passed,
		       (unsigned long long)sent[i].received,
		       (unsigned long long)sent[i].staging,
		       (unsigned long long)sent[i].cpu_ns);
	puts("]}");
}

static void print_table(const struct bench *b, double ns)
{
	printf("%.0f ms\n%4s %12s %12s %12s %12s %8s\n", ns / 1e6, "rank",
	       "sent", "passed on", "received", "staging", "CPU ms");
	for (int i = 0; i < b->o.spread; i++)
		printf("%4d %12llu %12llu %12llu %12llu %8.1f\n", i,
		       (unsigned long long)sent[i].sent,
		       (unsigned long long)sent[i].passed,
		       (unsigned long long)sent[i].received,
		       (unsigned long long)sent[i].staging,
		       (double)sent[i].cpu_ns / 1e6);
}

static void lead_restore(struct bench *b, int ranks)
{
	meet(b);
	meet(b);
	meet(b);
	if (b->o.json)
		print_json(b, marked(b, ranks));
	else
		print_table(b, marked(b, ranks));
}

/* Fresh ones in each round, but for the one that has it. */
static int round_of(struct bench *b, struct bench *nodes)
{
	int r = 0;

	for (int i = 1; i < b->o.spread && !r; i++)
		r = agent_start(&nodes[i]);
	if (!r)
		r = run_ranks(b, b->o.spread, rank_restore, lead_restore);
	for (int i = 1; i < b->o.spread; i++)
		r |= agent_stop(&nodes[i]);
	return r;
}

int phase_spread(struct bench *b)
{
	static struct bench nodes[BENCH_RANKS_MAX];
	int r;

	sent = share(BENCH_RANKS_MAX * sizeof(*sent));
	if (!sent)
		return -1;
	for (int i = 0; i < b->o.spread; i++) {
		nodes[i] = *b;
		place(&nodes[i], i);
	}
	r = agent_start(&nodes[0]);
	if (!r)
		r = run_ranks(b, 1, rank_save, lead_save);
	for (int i = 0; i < b->o.rounds && !r; i++) {
		note("round %d of %d", i + 1, b->o.rounds);
		r = round_of(b, nodes);
	}
	return agent_stop(&nodes[0]) ? -1 : r;
}
