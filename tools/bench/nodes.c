/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores over several nodes, which are agents of this machine with as many
 * ranks each: ranks take what the other nodes' memory has through sockets,
 * beside the same bytes passed by the comm alone; and what passed is counted.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "nodes.h"
#include "state.h"

#define WAIT_MS 120000

static const struct nodes_kind *current;	/* inherited by the ranks */
static struct nodes_count *counts;	/* per rank, in memory that all share */

struct seat {
	struct bench node;	/* as the ranks of a node have it */
	struct rank_state s;
	struct sk_comm comm;
};

static void place(struct bench *b, int node)
{
	if (!node)
		return;
	(void)snprintf(b->socket, sizeof(b->socket), "%s/agent-%d.sock",
		       b->dir, node);
	(void)snprintf(b->store, sizeof(b->store), "%s/store-%d", b->dir,
		       node);
}

/* Ranks stand one after the other, those of a node together. */
static int node_of(const struct bench *b, int rank, int moved)
{
	return (rank / (b->o.ranks / b->o.nodes) + moved) % b->o.nodes;
}

static int take_seat(struct bench *b, int rank, enum cut cut, int moved,
		     struct seat *ret)
{
	char at[PATH_MAX + 16], dir[PATH_MAX];
	struct sk_meeting meeting = { .at = at, .rank = rank,
				      .world = b->o.ranks,
				      .timeout_ms = WAIT_MS };

	ret->node = *b;
	place(&ret->node, node_of(b, rank, moved));
	/* Ranks meet at a path from the root; ours may be from here. */
	if (!realpath(b->dir, dir))
		return fail(b, rank, "%s: %s", b->dir, strerror(errno));
	(void)snprintf(at, sizeof(at), "%s/meeting", dir);
	if (state_begin(&ret->node, rank, b->o.ranks, "nodes",
			b->o.bytes * (uint64_t)b->o.ranks, b->o.tensors, cut,
			&ret->s))
		return -1;
	if (sk_comm_meet(ret->s.sk, &meeting, &ret->comm))
		return fail(b, rank, "meeting: %s", sk_error());
	return 0;
}

static void leave_seat(struct seat *seat)
{
	sk_comm_meet_free(&seat->comm);
	state_close(&seat->s);
}

/* ---- what is restored ---- */

static int rank_save(struct bench *b, int rank)
{
	struct seat seat;

	meet(b);
	if (take_seat(b, rank, CUT_ROWS, 0, &seat))
		return -1;
	/* There is nothing yet, and the ranks are one run from here on. */
	if (sk_restore(seat.s.state, SK_LATEST, &seat.comm, NULL, NULL) !=
	    -ENOENT)
		return fail(b, rank, "a first restore: %s", sk_error());
	state_fill(&seat.s, rank, 1);
	if (sk_snapshot(seat.s.state, 1, NULL) ||
	    sk_wait(seat.s.state, 1, SK_SEALED, WAIT_MS))
		return fail(b, rank, "snapshot: %s", sk_error());
	meet(b);
	leave_seat(&seat);
	return 0;
}

static void lead_save(struct bench *b, int ranks)
{
	(void)ranks;
	meet(b);
	meet(b);
}

/* ---- the ceiling: as many bytes, by the comm alone ---- */

/* What @to received in the restore comes from the ranks of all other nodes
 * alike: the part of the k-th of them. */
static uint64_t part_of(const struct bench *b, int to, int k)
{
	uint64_t n = (uint64_t)(b->o.ranks - b->o.ranks / b->o.nodes);
	uint64_t all = counts[to].received;

	return all * (uint64_t)(k + 1) / n - all * (uint64_t)k / n;
}

/* Which of those @rank is, to a rank of that node. */
static int number_of(const struct bench *b, int rank, int node)
{
	int per = b->o.ranks / b->o.nodes;

	return rank < node * per ? rank : rank - per;
}

static uint64_t sent_by(const struct bench *b, int rank)
{
	uint64_t sum = 0;

	for (int i = 0; i < b->o.ranks; i++) {
		int node = node_of(b, i, 0);

		if (node != node_of(b, rank, 0))
			sum += part_of(b, i, number_of(b, rank, node));
	}
	return sum;
}

struct passing {
	struct sk_comm_part sends[BENCH_RANKS_MAX], receives[BENCH_RANKS_MAX];
	size_t n_sends, n_receives;
};

/* Returns where the next one lies. */
static char *add_part(struct sk_comm_part *parts, size_t *n, int32_t rank,
		      char *data, uint64_t bytes)
{
	if (bytes)
		parts[(*n)++] = (struct sk_comm_part){
			.rank = rank, .data = data, .bytes = bytes };
	return data + bytes;
}

static void plan_passing(const struct bench *b, int rank, char *from,
			 char *to, struct passing *p)
{
	int mine = node_of(b, rank, 0);

	*p = (struct passing){ .n_sends = 0 };
	for (int i = 0; i < b->o.ranks; i++) {
		int node = node_of(b, i, 0);

		if (node == mine)
			continue;
		from = add_part(p->sends, &p->n_sends, i, from,
				part_of(b, i, number_of(b, rank, node)));
		to = add_part(p->receives, &p->n_receives, i, to,
			      part_of(b, rank, number_of(b, i, mine)));
	}
}

/* As many as the restore took, into the tensors, or beside them where this rank
 * fetched for others of its node. */
static int exchange(struct bench *b, int rank, struct seat *seat)
{
	uint64_t sent = sent_by(b, rank), received = counts[rank].received;
	bool beside = received > seat->s.bytes;
	char *from = warm_memory(sent + 1);
	char *to = beside ? warm_memory(received) : seat->s.data;
	struct passing p;
	int r = 0;

	plan_passing(b, rank, from, to, &p);
	meet(b);
	mark_start(b, rank);
	if (p.n_sends || p.n_receives)
		r = seat->comm.exchange(seat->comm.ctx, p.sends, p.n_sends,
					p.receives, p.n_receives, WAIT_MS);
	mark_end(b, rank);
	munmap(from, sent + 1);
	if (beside)
		munmap(to, received);
	return r ? fail(b, rank, "exchange: %d", r) : 0;
}

/* ---- restores ---- */

static int rank_restore(struct bench *b, int rank)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MEMORY_ONLY,
					.timeout_ms = WAIT_MS };
	struct sk_report report = { 0 };
	struct seat seat;

	meet(b);
	if (take_seat(b, rank, current->cut, current->moved, &seat))
		return -1;
	meet(b);
	mark_start(b, rank);
	if (sk_restore(seat.s.state, SK_LATEST, &seat.comm, &o, &report))
		return fail(b, rank, "restore: %s", sk_error());
	mark_end(b, rank);
	counts[rank] = (struct nodes_count){
		.received = report.bytes_received, .sent = report.bytes_sent,
		.passed = report.bytes_passed,
		.verified = report.bytes_verified,
		.rows = seat.s.rows, .columns = seat.s.columns };
	meet(b);
	meet(b);
	if (exchange(b, rank, &seat))
		return -1;
	meet(b);
	leave_seat(&seat);
	return 0;
}

static void lead_restore(struct bench *b, int ranks)
{
	meet(b);
	meet(b);
	meet(b);
	series_add(&b->series[current->phase], marked(b, ranks));
	nodes_add(b, current, counts);
	meet(b);
	meet(b);
	meet(b);
	series_add(&b->series[current->ceiling], marked(b, ranks));
}

static int rounds(struct bench *b)
{
	int r = run_ranks(b, b->o.ranks, rank_save, lead_save);

	for (int i = 0; i < b->o.rounds; i++)
		for (int k = 0; !r && (current = nodes_kind(b, k)); k++) {
			note("restore over %d nodes, %s, round %d of %d",
			     b->o.nodes, current->what, i + 1, b->o.rounds);
			r = run_ranks(b, b->o.ranks, rank_restore,
				      lead_restore);
		}
	return r;
}

int phase_nodes(struct bench *b)
{
	static struct bench others[BENCH_RANKS_MAX];
	int r = 0, n = 1;

	if (b->o.ranks % b->o.nodes) {
		note("%d ranks are not on %d nodes alike: nothing is restored "
		     "over nodes", b->o.ranks, b->o.nodes);
		return 0;
	}
	counts = share(BENCH_RANKS_MAX * sizeof(*counts));
	if (!counts)
		return -ENOMEM;
	for (; n < b->o.nodes && !r; n++) {
		others[n] = *b;
		others[n].agent = 0;
		place(&others[n], n);
		r = agent_start(&others[n]);
	}
	if (!r)
		r = rounds(b);
	while (--n > 0)
		if (agent_stop(&others[n]) && !r)
			r = -EIO;
	return r;
}
