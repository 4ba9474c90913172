/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FSDP2 over tensor parallelism: tensor parallelism cuts first, then FSDP
 * what that left. Local shapes are computed here as trainers get them, and
 * checked by the library; sizes for which DTensor's own metadata differs from
 * its data come back whole, on the same mesh and on others.
 */
#include "scenarios/models/common.h"

#include <stdio.h>
#include <string.h>

#define COLUMNS 3

struct test {
	const char *job;
	int dp, tp;
	int n_sizes;
	int64_t sizes[8];
};

/* F7, and the sizes that DTensor loses rows of: row 8, 16, 6. */
static const struct test tests[] = {
	{ "small", 2, 2, 4, { 2, 3, 4, 5 } },
	{ "nine", 4, 2, 4, { 9, 17, 8, 16 } },
	{ "seven", 3, 2, 3, { 7, 13, 12 } },
};

static const char *const names[] = { "dp", "tp" };

/* Column-wise: tensor parallelism has cut the rows that FSDP cuts. */
static struct param column_wise(int64_t n, int64_t tp, char name[32])
{
	(void)snprintf(name, 32, "column%d", (int)n);
	return (struct param){ name, n, COLUMNS,
			       { SK_STRIDED_SHARD(0, tp), SK_SHARD(0) } };
}

static struct param row_wise(int64_t n, char name[32])
{
	(void)snprintf(name, 32, "row%d", (int)n);
	return (struct param){ name, n, n, { SK_SHARD(0), SK_SHARD(1) } };
}

static void describe_local(struct rank *rank, const struct param *p,
			   const struct sk_mesh *mesh, int64_t rows,
			   int64_t columns)
{
	const int64_t local[2] = { rows, columns };
	struct sk_tensor t = tensor_of(p, mesh);

	t.local_shape = local;
	rank_tensor(rank, &t, 0xee);
}

static void describe(struct rank *rank, int dp, int tp)
{
	struct sk_mesh *mesh = mesh_of(dp, tp, NULL, names);
	const struct test *test = rank->arg;
	int i = rank->rank / tp, k = rank->rank % tp;

	for (int s = 0; s < test->n_sizes; s++) {
		int64_t n = test->sizes[s], of_tp = chunk_of(n, tp, k);
		char name[32];
		struct param p = column_wise(n, tp, name);

		describe_local(rank, &p, mesh, chunk_of(of_tp, dp, i),
			       COLUMNS);
		p = row_wise(n, name);
		describe_local(rank, &p, mesh, chunk_of(n, dp, i), of_tp);
	}
	sk_mesh_release(mesh);
}

static void save(struct rank *rank)
{
	const struct test *test = rank->arg;

	describe(rank, test->dp, test->tp);
	rank_write(rank, 1);
	rank_snapshot(rank, 1, SK_DURABLE);
}

static void check_restored(struct rank *rank, uint32_t flags)
{
	struct sk_report report;

	CHECK(!rank_restore(rank, 1, flags, &report), "%s", sk_error());
	CHECK(report.tensors == rank->state->n_locals && !report.missing);
	CHECK(!rank_wrong(rank, 1, rank->rank));
}

static void load(struct rank *rank)
{
	const struct test *test = rank->arg;

	describe(rank, test->dp, test->tp);
	check_restored(rank, SK_RESTORE_MEMORY_ONLY);
	rank_write(rank, 2);
	check_restored(rank, SK_RESTORE_DISK_ONLY);
}

/* The dimensions change places, then FSDP alone. */
static void load_turned(struct rank *rank)
{
	const struct test *test = rank->arg;

	describe(rank, test->tp, test->dp);
	check_restored(rank, 0);
	CHECK(!sk_state_clear(rank->state));
	describe(rank, rank->world, 1);
	check_restored(rank, 0);
}

static void load_whole(struct rank *rank)
{
	describe(rank, 1, 1);
	check_restored(rank, 0);
}

/* A row more than the placements give, with memory for it. */
static void refuse_wrong_shape(struct rank *rank)
{
	struct sk_mesh *mesh = mesh_of(2, 2, NULL, names);
	char name[32], data[256], words[96];
	struct param p = column_wise(5, 2, name);
	struct sk_tensor t = tensor_of(&p, mesh);
	int64_t of_tp = chunk_of(5, 2, rank->rank % 2);
	int64_t rows = chunk_of(of_tp, 2, rank->rank / 2);
	int64_t wrong[2] = { rows + 1, COLUMNS };

	t.data = data;
	t.local_shape = wrong;
	CHECK(sk_state_tensor(rank->state, &t) == -EINVAL);
	(void)snprintf(words, sizeof(words), "\"column5\": rank %d has (%d, "
		       "3), its placements give (%d, 3)", rank->rank,
		       (int)rows + 1, (int)rows);
	CHECK(strstr(sk_error(), words), "%s", sk_error());
	CHECK(!rank->state->n_locals);
	sk_mesh_release(mesh);
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	for (size_t i = 0; i < SK_ARRAY_SIZE(tests); i++) {
		const struct test *t = &tests[i];
		struct stored stored;
		int world = t->dp * t->tp;

		scene_ranks(&scene, t->job, world, save, t);
		stored_open(&scene, t->job, 1, world, &stored);
		stored_check_once(&stored);
		stored_close(&stored);
		scene_ranks(&scene, t->job, world, load, t);
		scene_ranks(&scene, t->job, world, load_turned, t);
		scene_ranks(&scene, t->job, 1, load_whole, t);
	}
	scene_ranks(&scene, "refused", 4, refuse_wrong_shape, NULL);
	scene_close(&scene);
	return 0;
}
