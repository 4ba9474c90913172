/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FSDP and tensor parallelism on a named two-dimensional mesh, cut left to
 * right: what is stored says so, the whole comes back when it is restored
 * replicated, and on the same mesh every rank gets just its own part.
 */
#include "scenarios/models/common.h"

#include <stdio.h>
#include <string.h>

#define N 5

static const char *const names[] = { "dp", "tp" };

struct model {
	const char *job;
	struct param params[N];
};

/* Column-wise, row-wise, not parallel; the order is that of the model. */
static const struct model even = { "even", {
	{ "net1.weight", 16, 8, { SK_SHARD(0), SK_SHARD(0) } },
	{ "net1.bias", 16, 0, { SK_SHARD(0), SK_SHARD(0) } },
	{ "net2.weight", 8, 16, { SK_SHARD(0), SK_SHARD(1) } },
	{ "net2.bias", 8, 0, { SK_SHARD(0), SK_REPLICATE } },
	{ "a.norm.weight", 4, 0, { SK_SHARD(0), SK_REPLICATE } },
} };

/* Short pieces, and ranks that hold nothing. */
static const struct model uneven = { "uneven", {
	{ "net1.weight", 7, 5, { SK_SHARD(0), SK_SHARD(0) } },
	{ "net1.bias", 7, 0, { SK_SHARD(0), SK_SHARD(0) } },
	{ "net2.weight", 5, 7, { SK_SHARD(0), SK_SHARD(1) } },
	{ "net2.bias", 1, 0, { SK_SHARD(0), SK_REPLICATE } },
	{ "a.norm.weight", 3, 1, { SK_SHARD(0), SK_SHARD(1) } },
} };

static struct sk_mesh *grid(void)
{
	return mesh_of(2, 2, NULL, names);
}

static void describe(struct rank *rank, const struct sk_mesh *mesh,
		     bool replicated)
{
	const struct model *model = rank->arg;

	for (int i = 0; i < N; i++) {
		struct param p = model->params[i];

		for (int m = 0; replicated && m < 2; m++)
			p.placements[m] = SK_REPLICATE;
		rank_param(rank, &p, mesh, 0xee);
	}
}

/* All steps have the values of the first: nobody trained in between. */
static void check_restored(struct rank *rank, int64_t step)
{
	struct sk_report report;

	CHECK(rank_wrong(rank, 1, rank->rank));
	CHECK(!rank_restore(rank, step, 0, &report), "%s", sk_error());
	CHECK(report.tensors == rank->state->n_locals);
	CHECK(!rank_wrong(rank, 1, rank->rank));
}

static void save(struct rank *rank)
{
	struct sk_mesh *mesh = grid();

	describe(rank, mesh, false);
	rank_write(rank, 1);
	rank_snapshot(rank, 1, SK_DURABLE);
	sk_mesh_release(mesh);
}

/* T6: what redistributing to (Replicate, Replicate) gives is the tensor as
 * no parallelism has it. */
static void restore_whole(struct rank *rank)
{
	struct sk_mesh *mesh = grid();

	describe(rank, mesh, true);
	check_restored(rank, 1);
	CHECK(!sk_state_clear(rank->state));
	describe(rank, NULL, true);
	check_restored(rank, 1);
	sk_mesh_release(mesh);
}

/* T7: the same mesh, the same values; saved again it is the same. */
static void restore_same(struct rank *rank)
{
	struct sk_mesh *mesh = grid();

	describe(rank, mesh, false);
	check_restored(rank, 1);
	rank_snapshot(rank, 2, SK_DURABLE);
	sk_mesh_release(mesh);
}

static void restore_on_another_grid(struct rank *rank)
{
	struct sk_mesh *mesh = mesh_of(1, 3, (int32_t[]){ 2, 0, 1 }, names);

	describe(rank, mesh, false);
	check_restored(rank, 2);
	sk_mesh_release(mesh);
}

/* ---- what is stored ---- */

static void check_placements(const struct sk_spec *s, const struct param *p)
{
	for (int m = 0; m < 2; m++)
		CHECK(s->placements[m].kind == p->placements[m].kind &&
		      s->placements[m].dim == p->placements[m].dim,
		      "%s, mesh dimension %d", s->name, m);
	CHECK(s->shape[0] == p->rows && s->shape[1] == p->columns);
}

/* T4, T5: all have the named mesh and two placements, in the model's
 * order. */
static void check_stored(const struct scene *scene, const struct model *model,
			 int64_t step)
{
	struct sk_mesh *mesh = grid(), *bare = mesh_of(2, 2, NULL, NULL);
	struct stored stored;

	stored_open(scene, model->job, step, 4, &stored);
	stored_check_once(&stored);
	for (int r = 0; r < 4; r++) {
		const struct sk_layout *l = stored.layouts[r];

		CHECK(l->n_items == 3 * N);
		for (int i = 0; i < N; i++) {
			const struct sk_spec *s = &l->items[3 * i].spec;

			CHECK(!strcmp(s->name, model->params[i].name));
			CHECK(sk_mesh_equal(s->mesh, mesh) &&
			      !sk_mesh_equal(s->mesh, bare));
			check_placements(s, &model->params[i]);
		}
	}
	stored_close(&stored);
	sk_mesh_release(mesh);
	sk_mesh_release(bare);
}

/* One line of a tensor, as operators see it. */
static void expect_line(char *text, const char *name, const char *a,
			const char *b)
{
	char *line = strstr(text, name), *end, was;

	CHECK(line, "%s is not in\n%s", name, text);
	end = line + strcspn(line, "\n");
	was = *end;
	*end = 0;
	CHECK(strstr(line, a) && strstr(line, b), "%s", line);
	*end = was;
}

static void check_shown(const struct scene *scene)
{
	static char text[16384];

	cachectl(scene, "show", "even/2", text, sizeof(text));
	expect_line(text, "net1.weight", "dp 2 x tp 2", "S(0) S(0)");
	expect_line(text, "net2.weight", "[8, 16]", "S(0) S(1)");
	expect_line(text, "net2.bias", "dp 2 x tp 2", "S(0) R");
	expect_line(text, "optim.state.net2.weight.exp_avg", "dp 2 x tp 2",
		    "S(0) S(1)");
	cachectl(scene, "list", "uneven", text, sizeof(text));
	CHECK(strstr(text, "uneven"), "%s", text);
}

int main(int argc, char **argv)
{
	static const struct model *const models[] = { &even, &uneven };
	struct scene scene;

	scene_open(&scene, argc, argv);
	for (size_t i = 0; i < SK_ARRAY_SIZE(models); i++) {
		const struct model *m = models[i];

		scene_ranks(&scene, m->job, 4, save, m);
		check_stored(&scene, m, 1);
		scene_ranks(&scene, m->job, 4, restore_whole, m);
		scene_ranks(&scene, m->job, 4, restore_same, m);
		check_stored(&scene, m, 2);
		scene_ranks(&scene, m->job, 3, restore_on_another_grid, m);
	}
	check_shown(&scene);
	scene_close(&scene);
	return 0;
}
