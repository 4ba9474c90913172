/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores over two nodes, which are two agents of this machine: ranks take
 * what the other node's memory has through sockets, beside the same bytes
 * passed by the comm alone.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "state.h"

#define WAIT_MS 120000

static const struct kind {
	enum phase phase, ceiling;
	enum cut cut;
	int moved;		/* nodes that a rank comes back further on */
	const char *what;
} kinds[] = {
	{ PHASE_NODES_COLUMNS, PHASE_NODES_COLUMNS_COMM, CUT_COLUMNS, 0,
	  "columns for rows" },
	{ PHASE_NODES_MOVED, PHASE_NODES_MOVED_COMM, CUT_ROWS, 1,
	  "each rank on the other node" },
};
static const struct kind *current;	/* inherited by the forked ranks */

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

static int take_seat(struct bench *b, int rank, enum cut cut, int moved,
		     struct seat *ret)
{
	char at[PATH_MAX + 16], dir[PATH_MAX];
	struct sk_meeting meeting = { .at = at, .rank = rank,
				      .world = b->o.ranks,
				      .timeout_ms = WAIT_MS };

	ret->node = *b;
	place(&ret->node, (rank + moved) % 2);
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

/* ---- restores ---- */

/* As many bytes as the restore took from elsewhere, to and from one rank. */
static int exchange(struct bench *b, int rank, struct seat *seat,
		    uint64_t bytes)
{
	char *from = warm_memory(bytes);
	struct sk_comm_part send = { .rank = rank ^ 1, .data = from,
				     .bytes = bytes };
	struct sk_comm_part receive = { .rank = rank ^ 1,
					.data = seat->s.data,
					.bytes = bytes };
	int r;

	meet(b);
	mark_start(b, rank);
	r = seat->comm.exchange(seat->comm.ctx, &send, 1, &receive, 1,
				WAIT_MS);
	mark_end(b, rank);
	munmap(from, bytes);
	return r ? fail(b, rank, "exchange: %d", r) : 0;
}

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
	if (!report.bytes_remote)
		return fail(b, rank, "nothing came from the other node");
	meet(b);
	meet(b);
	if (exchange(b, rank, &seat, report.bytes_remote))
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
	meet(b);
	meet(b);
	meet(b);
	series_add(&b->series[current->ceiling], marked(b, ranks));
}

static int rounds(struct bench *b)
{
	int r = run_ranks(b, b->o.ranks, rank_save, lead_save);

	for (int i = 0; i < b->o.rounds; i++)
		for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds) && !r;
		     k++) {
			current = &kinds[k];
			note("restore over two nodes, %s, round %d of %d",
			     current->what, i + 1, b->o.rounds);
			r = run_ranks(b, b->o.ranks, rank_restore,
				      lead_restore);
		}
	return r;
}

int phase_nodes(struct bench *b)
{
	struct bench other = *b;
	int r, stopped;

	if (b->o.ranks % 2) {
		note("%d ranks are not on two nodes alike: nothing is "
		     "restored over nodes", b->o.ranks);
		return 0;
	}
	place(&other, 1);
	r = agent_start(&other);
	if (r)
		return r;
	r = rounds(b);
	stopped = agent_stop(&other);
	return r ? r : stopped;
}
