/* SPDX-License-Identifier: Apache-2.0 */
#include "state.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define COLUMNS 4096

/* Rows of one of the matrices: all together hold total_bytes. Multiples of
 * 12 so that 1, 2, 3 and 4 ranks cut them evenly. */
static int64_t rows_of(uint64_t total_bytes, int tensors, int64_t columns)
{
	uint64_t rows = total_bytes / (uint64_t)tensors /
			(uint64_t)(columns * 4);

	rows = rows / 12 * 12;
	return rows ? (int64_t)rows : 12;
}

/* By how many ranks, or groups of them, each of the two is cut. */
struct cuts {
	int rows, columns;
};

static struct cuts cuts_of(const struct bench *b, int ranks, enum cut cut)
{
	switch (cut) {
	case CUT_ROWS:
		return (struct cuts){ ranks, 1 };
	case CUT_COLUMNS:
		return (struct cuts){ 1, ranks };
	case CUT_WITHIN:
		return (struct cuts){ ranks / b->o.nodes, 1 };
	case CUT_ACROSS:
		return (struct cuts){ 1, b->o.nodes };
	default:
		return (struct cuts){ 1, 1 };
	}
}

/* What the rank with most has of them. */
static int64_t most_of(int64_t n, int parts)
{
	return (n + parts - 1) / parts;
}

static uint64_t part_of(int64_t rows, int64_t columns, struct cuts cuts)
{
	return (uint64_t)(most_of(rows, cuts.rows) *
			  most_of(columns, cuts.columns)) * 4;
}

/* Many small tensors are narrow, so that they can be small at all. */
static int64_t columns_of(uint64_t total_bytes, int tensors)
{
	return total_bytes / (uint64_t)tensors >= (4u << 20) ? COLUMNS : 240;
}

static int make_mesh(const struct bench *b, int ranks, enum cut cut,
		     struct sk_mesh **ret)
{
	if (cut == CUT_WITHIN || cut == CUT_ACROSS)
		return sk_mesh_create(2, (int64_t[]){ b->o.nodes,
						      ranks / b->o.nodes },
				      NULL, NULL, ret);
	return sk_mesh_create(1, &(int64_t){ ranks }, NULL, NULL, ret);
}

static void place(struct sk_tensor *t, enum cut cut)
{
	const struct sk_placement placements[][2] = {
		[CUT_ROWS] = { SK_SHARD(0) },
		[CUT_COLUMNS] = { SK_SHARD(1) },
		[CUT_NONE] = { SK_REPLICATE },
		[CUT_WITHIN] = { SK_REPLICATE, SK_SHARD(0) },
		[CUT_ACROSS] = { SK_SHARD(1), SK_REPLICATE },
	};

	memcpy(t->placements, placements[cut], sizeof(placements[cut]));
}

static int describe(struct rank_state *s, int tensors, enum cut cut)
{
	struct sk_tensor t = {
		.dtype = SK_F32, .ndim = 2, .shape = { s->rows, s->columns },
		.mesh = s->mesh,
	};
	uint64_t each = s->bytes / (uint64_t)tensors;
	char name[64];
	int r = 0;

	place(&t, cut);
	t.name = name;
	for (int i = 0; i < tensors && !r; i++) {
		(void)snprintf(name, sizeof(name), "layers.%d.weight", i);
		t.data = s->data + (uint64_t)i * each;
		r = sk_state_tensor(s->state, &t);
	}
	return r;
}

int state_begin(struct bench *b, int rank, int ranks, const char *job,
		uint64_t total_bytes, int tensors, enum cut cut,
		struct rank_state *ret)
{
	int64_t columns = columns_of(total_bytes, tensors);
	int64_t rows = rows_of(total_bytes, tensors, columns);
	struct rank_state s = {
		.rows = rows, .columns = columns,
		.bytes = part_of(rows, columns, cuts_of(b, ranks, cut)) *
			 (uint64_t)tensors,
	};
	struct sk_options o = { .socket = b->socket,
				.threads = b->o.threads,
				.timeout_ms = 120000 };
	struct sk_job j = { .name = job, .rank = rank, .world = ranks,
			    .flush_every = SK_FLUSH_NEVER };

	s.data = warm_memory(s.bytes);
	if (sk_open(&o, &s.sk) ||
	    make_mesh(b, ranks, cut, &s.mesh) ||
	    sk_state_create(s.sk, &j, &s.state) ||
	    describe(&s, tensors, cut))
		return fail(b, rank, "%s", sk_error());
	*ret = s;
	return 0;
}

int state_open(struct bench *b, int rank, int ranks, const char *job,
	       uint64_t total_bytes, int tensors, enum cut cut,
	       struct rank_state *ret)
{
	int r = state_begin(b, rank, ranks, job, total_bytes, tensors, cut,
			    ret);

	if (!r && sk_prepare(ret->state, 120000))
		return fail(b, rank, "%s", sk_error());
	return r;
}

void state_close(struct rank_state *s)
{
	sk_state_free(s->state);
	sk_mesh_release(s->mesh);
	sk_close(s->sk);
	munmap(s->data, s->bytes);
}

void state_fill(struct rank_state *s, int rank, uint64_t step)
{
	uint64_t x = step * 0x9e3779b97f4a7c15u + (uint64_t)rank;
	uint64_t *p = (uint64_t *)s->data;

	for (uint64_t i = 0; i < s->bytes / 8; i++)
		p[i] = x + i * 0xbf58476d1ce4e5b9u;
}
