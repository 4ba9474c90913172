/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums taken in step with the copy and after it: both seal images that
 * the agent and any restore verify, whichever a rank chose, and ranks may
 * choose differently. Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <stdio.h>

#include "snapshot/copying.h"

#define WORLD 2

static const struct {
	unsigned cpus[WORLD];
	bool is_free[WORLD];
} machines[] = {
	{ .cpus = { 1, 1 } },			/* in step */
	{ .cpus = { 64, 64 } },			/* after the copy */
	{ .cpus = { 1, 64 } },
	{ .cpus = { 64, 64 }, .is_free = { true, true } },
	{ .cpus = { 64, 1 }, .is_free = { true, false } },
};

struct life {
	size_t machine;
	int64_t step;
};

/* Large, and in one unit with what is contiguous. */
static void describe_strided(struct rank *rank, struct sk_mesh *mesh)
{
	static const int64_t rows[] = { 6000, 30 };
	char name[32];

	for (size_t i = 0; i < SK_ARRAY_SIZE(rows); i++) {
		(void)snprintf(name, sizeof(name), "strided.%zu", i);
		rank_tensor(rank, &(struct sk_tensor){
			.name = name, .dtype = SK_F32, .ndim = 2,
			.shape = { rows[i], 300 },
			.strides = { 1, rows[i] / WORLD }, .mesh = mesh,
			.placements = { SK_SHARD(0) } }, 0xee);
	}
}

/* Of many units, of one, of parts of one, and empty. */
static void describe(struct rank *rank)
{
	static const int64_t rows[] = { 5000, 37, 4, 1 };
	struct sk_mesh *mesh = mesh_of(WORLD, 0, NULL, NULL);
	char name[32];

	for (size_t i = 0; i < SK_ARRAY_SIZE(rows); i++) {
		(void)snprintf(name, sizeof(name), "rows.%zu", i);
		rank_tensor(rank, &(struct sk_tensor){
			.name = name, .dtype = SK_F32, .ndim = 2,
			.shape = { rows[i], 333 }, .mesh = mesh,
			.placements = { SK_SHARD(0) } }, 0xee);
	}
	rank_tensor(rank, &(struct sk_tensor){
		.name = "everywhere", .dtype = SK_I64, .ndim = 1,
		.shape = { 100000 } }, 0xee);
	describe_strided(rank, mesh);
	sk_mesh_release(mesh);
}

/* Whose sums were taken how: the first one's after the copy, for nobody knows
 * yet whether somebody will wait; but in step where that costs nothing. */
static void check_mode(const struct rank *rank, unsigned snapshots)
{
	bool scarce = sk_hash_in_step(rank->sk->cpus, WORLD);

	unsigned want = rank->sk->hash_is_free ? snapshots :
			scarce ? snapshots - 1 : 0;

	CHECK(rank->state->in_step == want,
	      "%u of %u in step", rank->state->in_step, snapshots);
}

/* As a trainer that computes meanwhile: nobody waits for the copy. */
static void take(struct rank *rank, int64_t step, int until)
{
	CHECK(sk_snapshot(rank->state, step,
			  &(struct sk_snapshot_options){
				  .wait_ms = 60000,
				  .flags = SK_SNAPSHOT_FLUSH }) == 0,
	      "%s", sk_error());
	CHECK(sk_wait(rank->state, step, until, 60000) == 0, "%s",
	      sk_error());
}

/* Where it is free, of what is contiguous; where CPUs are scarce, of all. */
static void check_ops(struct rank *rank)
{
	static const enum sk_sums when[] = {
		SK_SUMS_AFTER, SK_SUMS_WHERE_FREE, SK_SUMS_IN_STEP };
	uint32_t in_step[SK_ARRAY_SIZE(when)] = { 0 };
	const struct sk_work *w;

	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	w = rank->state->work;
	for (size_t i = 0; i < SK_ARRAY_SIZE(when); i++) {
		struct sk_copying *c = sk_copying_new(rank->state, 1, 0,
						      false, when[i]);

		for (uint32_t k = 0; k < w->n_ops; k++)
			in_step[i] += sk_copying_in_step(c, &w->ops[k]);
		sk_copying_free(c);
	}
	CHECK(w->n_strided && w->n_ops > w->n_strided);
	CHECK(!in_step[0] && in_step[1] == w->n_ops - w->n_strided &&
	      in_step[2] == w->n_ops, "%u, %u and %u of %u", in_step[0],
	      in_step[1], in_step[2], w->n_ops);
}

static void save(struct rank *rank)
{
	const struct life *l = rank->arg;

	describe(rank);
	check_ops(rank);
	rank->sk->cpus = machines[l->machine].cpus[rank->rank];
	rank->sk->hash_is_free = machines[l->machine].is_free[rank->rank];
	rank_write(rank, l->step);
	take(rank, l->step, SK_COMPLETE);
	/* The slot of the one before is taken again, with other bytes. */
	rank_write(rank, l->step + 1);
	take(rank, l->step + 1, SK_DURABLE);
	check_mode(rank, 2);
}

static void restore(struct rank *rank)
{
	const struct life *l = rank->arg;
	static const uint32_t flags[] = { SK_RESTORE_MEMORY_ONLY,
					  SK_RESTORE_DISK_ONLY };

	describe(rank);
	for (size_t i = 0; i < SK_ARRAY_SIZE(flags); i++) {
		struct sk_report report;

		rank_write(rank, 0);
		CHECK(rank_restore(rank, l->step + 1, flags[i], &report) == 0,
		      "%s", sk_error());
		CHECK(report.bytes_verified && !report.damaged);
		CHECK(rank_wrong(rank, l->step + 1, -1) == 0);
	}
}

static void begin(struct sk_fences *f, struct sk_pending *p)
{
	p->refs = 1;
	sk_fences_lock(f);
	sk_fences_begin(f, p);
	sk_fences_unlock(f);
}

static void finish(struct sk_fences *f, struct sk_pending *p)
{
	sk_fences_lock(f);
	p->refs++;
	p->units_left = 0;
	sk_fences_finish(f, p, 0);
	sk_fences_unlock(f);
}

static void release(struct sk_pending *p)
{
	p->finished = false;
}

/* Who had to wait once is not made to wait longer. */
static void test_hurry(void)
{
	struct sk_pending p[2] = { { .release = release },
				   { .release = release } };
	struct sk_fences f;

	sk_fences_init(&f, sk_os_linux());
	CHECK(!sk_fences_calm(&f), "nobody knows yet");
	begin(&f, &p[0]);
	CHECK(sk_fence_wait(&f, SK_FENCE_ALL, SK_FOREVER, NULL) == 0);
	CHECK(sk_fences_calm(&f), "there was nothing to wait for");
	p[0].units_left = 1;
	CHECK(sk_fence_wait(&f, SK_FENCE_ALL, 0, NULL) == -ETIMEDOUT);
	finish(&f, &p[0]);
	for (int i = 1; i <= SK_FENCE_HURRY; i++) {
		CHECK(!sk_fences_calm(&f), "%d after it", i);
		begin(&f, &p[i % 2]);
		finish(&f, &p[i % 2]);
	}
	CHECK(sk_fences_calm(&f));
	sk_fences_drop(&f);
	sk_fences_destroy(&f);
}

int main(int argc, char **argv)
{
	struct scene scene;

	CHECK(sk_hash_in_step(1, WORLD) && sk_hash_in_step(3, WORLD));
	CHECK(!sk_hash_in_step(4, WORLD) && !sk_hash_in_step(64, WORLD));
	CHECK(sk_hash_in_step(1, 0) && !sk_hash_in_step(2, 0));
	test_hurry();
	scene_open(&scene, argc, argv);
	for (size_t i = 0; i < SK_ARRAY_SIZE(machines); i++) {
		struct life life = { i, 10 * (int64_t)(i + 1) };

		scene_ranks(&scene, "in-step", WORLD, save, &life);
		scene_ranks(&scene, "in-step", WORLD, restore, &life);
	}
	scene_close(&scene);
	return 0;
}
