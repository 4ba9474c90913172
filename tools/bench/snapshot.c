/* SPDX-License-Identifier: Apache-2.0 */
/* First and warm snapshots, durable, and many small tensors. */
#include <stdio.h>
#include <sys/mman.h>

#include "state.h"

#define WAIT_MS 300000

/* One timed section of all ranks; the parent reads the marks between. */
#define SECTION(b, rank, ...) do {		\
		meet(b);			\
		mark_start(b, rank);		\
		__VA_ARGS__;			\
		mark_end(b, rank);		\
		meet(b);			\
	} while (0)

static void take(struct bench *b, int ranks, enum phase phase)
{
	meet(b);
	meet(b);
	series_add(&b->series[phase], marked(b, ranks));
	meet(b);	/* the marks were read */
}

static int snapshot_once(struct bench *b, int rank, struct rank_state *s,
			 int64_t step, bool flush)
{
	struct sk_snapshot_options o = {
		.flags = flush ? SK_SNAPSHOT_FLUSH : SK_SNAPSHOT_NO_FLUSH,
		.wait_ms = WAIT_MS,
	};
	int r;

	state_fill(s, rank, (uint64_t)step);
	/* The call alone, then the fence, then the seal: three marks. */
	meet(b);
	mark_start(b, rank);
	r = sk_snapshot(s->state, step, &o);
	mark_end(b, rank);
	if (r)
		return fail(b, rank, "snapshot: %s", sk_error());
	if (sk_fence(s->state))
		return fail(b, rank, "fence: %s", sk_error());
	return 0;
}

/* Publishes what sk_status() measured as marks. */
static void publish(struct bench *b, int rank, uint64_t start, uint64_t ns)
{
	meet(b);
	b->shared->mark[rank].start = start;
	b->shared->mark[rank].end = start + ns;
	meet(b);
	meet(b);
}

static int one_snapshot(struct bench *b, int rank, struct rank_state *s,
			int64_t step, bool flush)
{
	struct sk_status st;
	uint64_t start, sealed;

	if (snapshot_once(b, rank, s, step, flush))
		return -1;
	start = b->shared->mark[rank].start;
	if (sk_wait(s->state, step, SK_COMPLETE, WAIT_MS))
		return fail(b, rank, "complete: %s", sk_error());
	sealed = now_ns();
	if (sk_status(s->state, &st))
		return fail(b, rank, "status: %s", sk_error());
	publish(b, rank, start, st.returned_ns);
	publish(b, rank, start, st.copied_ns);
	publish(b, rank, start, st.sealed_ns);
	if (!flush)
		return 0;
	if (sk_wait(s->state, step, SK_DURABLE, WAIT_MS))
		return fail(b, rank, "durable: %s", sk_error());
	publish(b, rank, start, now_ns() - start);
	publish(b, rank, sealed, now_ns() - sealed);
	return 0;
}

static void lead_snapshot(struct bench *b, int ranks, bool first, bool flush)
{
	meet(b);
	take(b, ranks, first ? PHASE_FIRST_CALL : PHASE_CALL);
	take(b, ranks, first ? PHASE_FIRST_SAFE : PHASE_SAFE);
	take(b, ranks, PHASE_SEALED);
	if (first)	/* seals are reported of warm ones */
		b->series[PHASE_SEALED].n--;
	if (!flush)
		return;
	take(b, ranks, PHASE_DURABLE);
	take(b, ranks, PHASE_FLUSH);
}

static void file_name(struct bench *b, int rank, char *path, size_t size)
{
	(void)snprintf(path, size, "%s/ceiling-%d", b->dir, rank);
}

static int write_once(struct bench *b, int rank, void *buf, uint64_t bytes)
{
	char path[400];
	int r;

	file_name(b, rank, path, sizeof(path));
	SECTION(b, rank, r = file_pass(path, buf, bytes, true,
				       b->write_block, b->write_depth));
	meet(b);
	(void)remove(path);
	return r ? fail(b, rank, "writing %s: error %d", path, r) : 0;
}

static int rank_snapshot(struct bench *b, int rank)
{
	struct rank_state s;
	uint64_t bytes, total = b->o.bytes * (uint64_t)b->o.ranks;
	char *fd_memory, *other;

	if (state_open(b, rank, b->o.ranks, "bench", total, b->o.tensors,
		       CUT_ROWS, &s))
		return -1;
	bytes = s.bytes & ~(uint64_t)4095;
	fd_memory = warm_memfd(bytes);
	other = fd_memory;
	for (int i = 0; i < b->o.rounds; i++) {
		SECTION(b, rank, copy_parallel(fd_memory, s.data, bytes,
					       b->o.threads));
		meet(b);
		SECTION(b, rank, hash_parallel(fd_memory, bytes,
					       b->o.threads));
		meet(b);
		if (one_snapshot(b, rank, &s, 2 * i + 1, false) ||
		    write_once(b, rank, other, bytes) ||
		    one_snapshot(b, rank, &s, 2 * i + 2, true))
			return -1;
	}
	munmap(fd_memory, bytes);
	meet(b);
	measure_memory(b, rank, s.bytes);
	meet(b);
	state_close(&s);
	return 0;
}

static void lead_rounds(struct bench *b, int ranks)
{
	for (int i = 0; i < b->o.rounds; i++) {
		note("snapshots, round %d of %d", i + 1, b->o.rounds);
		take(b, ranks, PHASE_COPY_IN);
		take(b, ranks, PHASE_HASH);
		lead_snapshot(b, ranks, i == 0, false);
		take(b, ranks, PHASE_WRITE);
		lead_snapshot(b, ranks, false, true);
	}
	meet(b);
	meet(b);
	b->beyond = agent_extra(b, NULL);
	for (int r = 0; r < ranks; r++) {
		b->beyond += b->shared->extra[r];
		b->slots += b->shared->slot_bytes[r];
	}
}

int phase_snapshot(struct bench *b)
{
	return run_ranks(b, b->o.ranks, rank_snapshot, lead_rounds);
}

/* 10,000 x 64 KiB beside one tensor of the same bytes. */
#define MANY 10000
#define SMALL 65536u

static int many_rounds(struct bench *b, int rank, struct rank_state *s)
{
	for (int i = 0; i < b->o.rounds; i++)
		if (one_snapshot(b, rank, s, i + 1, false))
			return -1;
	state_close(s);
	return 0;
}

static int rank_many(struct bench *b, int rank)
{
	uint64_t total = (uint64_t)MANY * SMALL;
	struct rank_state s;

	/* Together the ranks hold 10,000 shards of 64 KiB each. */
	if (state_open(b, rank, b->o.ranks, "bench-many", total,
		       MANY / b->o.ranks, CUT_ROWS, &s) ||
	    many_rounds(b, rank, &s))
		return -1;
	if (state_open(b, rank, b->o.ranks, "bench-one", total, 1, CUT_ROWS,
		       &s))
		return -1;
	return many_rounds(b, rank, &s);
}

static void lead_many(struct bench *b, int ranks)
{
	struct series sealed = b->series[PHASE_SEALED];
	struct series unused = { 0 };

	for (int i = 0; i < 2 * b->o.rounds; i++) {
		bool many = i < b->o.rounds;

		if (i % b->o.rounds == 0)
			note("%s", many ? "many small tensors" :
					  "one large tensor");
		meet(b);
		take(b, ranks, many ? PHASE_MANY_CALL : PHASE_ROUND_TRIP);
		take(b, ranks, many ? PHASE_MANY_SAFE : PHASE_ONE_SAFE);
		take(b, ranks, PHASE_SEALED);
	}
	b->series[PHASE_SEALED] = sealed;
	b->series[PHASE_ROUND_TRIP] = unused;
}

int phase_many(struct bench *b)
{
	return run_ranks(b, b->o.ranks, rank_many, lead_many);
}
