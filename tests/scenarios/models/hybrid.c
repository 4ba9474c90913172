/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hybrid sharding: replicas of an FSDP of two, on a mesh without names. A
 * snapshot does not change with later training, what is replicated lies on
 * disk once, and it comes back to all replicas or to FSDP over all four.
 */
#include "scenarios/models/common.h"

#include <stdio.h>
#include <string.h>

#define N 4

struct model {
	const char *job;
	struct param params[N];
};

static const struct model even = { "even", {
	{ "net1.weight", 8, 6, { SK_REPLICATE, SK_SHARD(0) } },
	{ "net2.weight", 16, 4, { SK_REPLICATE, SK_SHARD(0) } },
	{ "net3.weight", 12, 3, { SK_REPLICATE, SK_SHARD(0) } },
	{ "net3.bias", 4, 0, { SK_REPLICATE, SK_SHARD(0) } },
} };

static const struct model uneven = { "uneven", {
	{ "net1.weight", 10, 5, { SK_REPLICATE, SK_SHARD(0) } },
	{ "net2.weight", 15, 10, { SK_REPLICATE, SK_SHARD(0) } },
	{ "net3.weight", 30, 15, { SK_REPLICATE, SK_SHARD(0) } },
	{ "net4.weight", 5, 30, { SK_REPLICATE, SK_SHARD(0) } },
} };

static void describe(struct rank *rank, const struct sk_mesh *mesh,
		     struct sk_placement first, struct sk_placement second)
{
	const struct model *model = rank->arg;

	for (int i = 0; i < N; i++) {
		struct param p = model->params[i];

		p.placements[0] = first;
		p.placements[1] = second;
		rank_param(rank, &p, mesh, 0xee);
	}
}

static void describe_hybrid(struct rank *rank)
{
	struct sk_mesh *mesh = mesh_of(2, 2, NULL, NULL);

	describe(rank, mesh, SK_REPLICATE, SK_SHARD(0));
	sk_mesh_release(mesh);
}

static void describe_fsdp(struct rank *rank)
{
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);

	describe(rank, mesh, SK_SHARD(0), SK_REPLICATE);
	sk_mesh_release(mesh);
}

static void check_restored(struct rank *rank, int64_t step, uint32_t flags)
{
	struct sk_report report;

	CHECK(rank_wrong(rank, 1, rank->rank));
	CHECK(!rank_restore(rank, step, flags, &report), "%s", sk_error());
	CHECK(report.tensors == rank->state->n_locals);
	CHECK(!report.missing && !report.extra);
	CHECK(!rank_wrong(rank, 1, rank->rank));
}

/* H1: the tensors go on changing from the fence on, also before the image is
 * sealed and written. */
static void save(struct rank *rank)
{
	describe_hybrid(rank);
	rank_write(rank, 1);
	CHECK(!sk_snapshot(rank->state, 1, NULL), "%s", sk_error());
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	rank_write(rank, 2);
	CHECK(!sk_wait(rank->state, 1, SK_COMPLETE, 60000), "%s", sk_error());
	rank_write(rank, 3);
	CHECK(!sk_flush(rank->state, 1), "%s", sk_error());
	CHECK(!sk_wait(rank->state, 1, SK_DURABLE, 60000), "%s", sk_error());
	CHECK(!rank_wrong(rank, 3, rank->rank));
	check_restored(rank, 1, SK_RESTORE_MEMORY_ONLY);
	rank_write(rank, 4);
	check_restored(rank, 1, SK_RESTORE_DISK_ONLY);
}

/* H2: every replica gets the same back. */
static void restore_hybrid(struct rank *rank)
{
	describe_hybrid(rank);
	check_restored(rank, SK_LATEST, SK_RESTORE_MEMORY_ONLY);
	rank_write(rank, 4);
	check_restored(rank, SK_LATEST, SK_RESTORE_DISK_ONLY);
}

/* H3, H4: another mesh and other placements, other values before, the same
 * ones after; saved again, it is stored as what it now is. */
static void restore_fsdp(struct rank *rank)
{
	const struct model *model = rank->arg;

	describe_fsdp(rank);
	for (int i = 0; i < N; i++) {
		const struct sk_local *l = &rank->state->locals[3 * i];
		int64_t rows = chunk_of(model->params[i].rows, rank->world,
					rank->rank);

		CHECK(l->item.n_boxes == 1 && l->parts->box.size[0] == rows);
		CHECK(!rows || rank_wrong_in(rank, 1, model->params[i].name));
	}
	check_restored(rank, SK_LATEST, 0);
	rank_snapshot(rank, 1 + rank->world, SK_DURABLE);
}

/* Gathered, it is what it was: whole on every rank. */
static void restore_gathered(struct rank *rank)
{
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);

	describe(rank, mesh, SK_REPLICATE, SK_REPLICATE);
	check_restored(rank, 1, 0);
	CHECK(!sk_state_clear(rank->state));
	describe(rank, mesh, SK_REPLICATE, SK_REPLICATE);
	check_restored(rank, 5, 0);
	sk_mesh_release(mesh);
}

/* ---- what is stored ---- */

/* H2: stored once, and each of two replicas keeps about half of what both
 * have. */
static void check_shares(const struct stored *s, const struct model *model)
{
	uint64_t bytes = 0, all = 0;

	stored_check_once(s);
	for (int r = 0; r < 4; r++) {
		uint64_t mine = stored_bytes(s, r);
		uint64_t twin = stored_bytes(s, (r + 2) % 4);

		bytes += mine;
		CHECK(mine > (mine + twin) / 4, "rank %d keeps %d of %d", r,
		      (int)mine, (int)(mine + twin));
	}
	for (int i = 0; i < N; i++) {
		int64_t columns = model->params[i].columns;

		all += (uint64_t)(2 * model->params[i].rows *
				  (columns ? columns : 1) + 1) * sizeof(float);
	}
	CHECK(bytes == all, "%d bytes of %d", (int)bytes, (int)all);
}

/* H2, H3: names are the same before and after, meshes and placements not. */
static void check_stored(const struct scene *scene, const struct model *model)
{
	struct sk_mesh *two = mesh_of(2, 2, NULL, NULL);
	struct sk_mesh *one = mesh_of(4, 0, NULL, NULL);
	struct stored hybrid, fsdp;

	stored_open(scene, model->job, 1, 4, &hybrid);
	stored_open(scene, model->job, 5, 4, &fsdp);
	check_shares(&hybrid, model);
	stored_check_once(&fsdp);
	for (uint32_t i = 0; i < 3 * N; i++) {
		const struct sk_spec *a = &hybrid.layouts[3]->items[i].spec;
		const struct sk_spec *b = &fsdp.layouts[3]->items[i].spec;

		CHECK(!strcmp(a->name, b->name));
		CHECK(sk_mesh_equal(a->mesh, two) &&
		      sk_mesh_equal(b->mesh, one));
		CHECK(a->placements[0].kind == SK_PLACEMENT_REPLICATE);
		CHECK(i % 3 == 2 ||
		      (a->placements[1].kind == SK_PLACEMENT_SHARD &&
		       b->placements[0].kind == SK_PLACEMENT_SHARD));
		CHECK(!sk_spec_same_layout(a, b));
	}
	stored_close(&hybrid);
	stored_close(&fsdp);
	sk_mesh_release(two);
	sk_mesh_release(one);
}

int main(int argc, char **argv)
{
	static const struct model *const models[] = { &even, &uneven };
	struct scene scene;

	scene_open(&scene, argc, argv);
	for (size_t i = 0; i < SK_ARRAY_SIZE(models); i++) {
		const struct model *m = models[i];

		scene_ranks(&scene, m->job, 4, save, m);
		scene_ranks(&scene, m->job, 4, restore_hybrid, m);
		scene_ranks(&scene, m->job, 4, restore_fsdp, m);
		check_stored(&scene, m);
		scene_ranks(&scene, m->job, 4, restore_gathered, m);
		scene_ranks(&scene, m->job, 3, restore_fsdp, m);
	}
	scene_close(&scene);
	return 0;
}
