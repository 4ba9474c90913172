/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ways in which training frameworks lay out their tensors, saved by one
 * set of processes and restored by another: fully sharded, hybrid, tensor
 * parallel in two dimensions, experts that only some ranks have, sizes that
 * do not divide, the whole on one rank, a part of the names.
 */
#include "libclient/restore/common.h"

#include <stdio.h>
#include <string.h>

#define STEP 3

/* A mesh of a x b ranks from 0 on and placements; a 0: no mesh. */
struct layout_of {
	int world;
	int64_t a, b;
	bool named;
	struct sk_placement placements[2];
};

struct conversion {
	const char *what;
	struct layout_of from, to;
};

static const int64_t sizes[] = { 2, 3, 4, 5, 7, 9, 10, 13, 15, 17, 30 };

#define FSDP(n) { .world = (n), .a = (n), .placements = { SK_SHARD(0) } }
#define WHOLE(n) { .world = (n) }
#define MESH(x, y, name, p, q)						\
	{ .world = (x) * (y), .a = (x), .b = (y), .named = (name),	\
	  .placements = { p, q } }

static const struct conversion conversions[] = {
	{ "fully sharded, ranks without any", FSDP(4), FSDP(4) },
	{ "fully sharded, fewer ranks", FSDP(4), FSDP(3) },
	{ "fully sharded, more ranks", FSDP(2), FSDP(4) },
	{ "one rank to many", FSDP(1), FSDP(4) },
	{ "hybrid, back to itself",
	  MESH(2, 2, false, SK_REPLICATE, SK_SHARD(0)),
	  MESH(2, 2, false, SK_REPLICATE, SK_SHARD(0)) },
	{ "hybrid to fully sharded",
	  MESH(2, 2, false, SK_REPLICATE, SK_SHARD(0)), FSDP(4) },
	{ "two dimensions, left to right, back to itself",
	  MESH(2, 2, true, SK_SHARD(0), SK_SHARD(0)),
	  MESH(2, 2, true, SK_SHARD(0), SK_SHARD(0)) },
	{ "two dimensions, rows and columns, back to itself",
	  MESH(2, 2, true, SK_SHARD(0), SK_SHARD(1)),
	  MESH(2, 2, true, SK_SHARD(0), SK_SHARD(1)) },
	{ "two dimensions, replicated over the second",
	  MESH(2, 2, true, SK_SHARD(0), SK_REPLICATE),
	  MESH(2, 2, true, SK_SHARD(0), SK_SHARD(1)) },
	{ "two dimensions to the whole",
	  MESH(2, 2, true, SK_SHARD(0), SK_SHARD(1)), WHOLE(2) },
	{ "sharded over tensor parallel, back to itself",
	  MESH(2, 2, true, SK_STRIDED_SHARD(0, 2), SK_SHARD(0)),
	  MESH(2, 2, true, SK_STRIDED_SHARD(0, 2), SK_SHARD(0)) },
	{ "sharded over tensor parallel, uneven, to fully sharded",
	  MESH(4, 2, true, SK_STRIDED_SHARD(0, 2), SK_SHARD(0)), FSDP(4) },
	{ "fully sharded to sharded over tensor parallel",
	  FSDP(3), MESH(3, 2, true, SK_STRIDED_SHARD(0, 2), SK_SHARD(0)) },
	{ "from everywhere whole to rows and columns", WHOLE(3),
	  MESH(2, 2, true, SK_SHARD(1), SK_SHARD(0)) },
};

static struct sk_mesh *make_mesh(const struct layout_of *l)
{
	static const char *const names[] = { "dp", "tp" };

	return l->a ? mesh_of(l->a, l->b, NULL, l->named ? names : NULL) :
		      NULL;
}

static const char *size_name(int64_t n, const char *suffix)
{
	static char name[64];

	(void)snprintf(name, sizeof(name), "net.%d.weight%s", (int)n, suffix);
	return name;
}

/* Parameters and their optimizer's tensors and step. */
static void describe(struct rank *rank, const struct layout_of *l, char **ret)
{
	struct sk_mesh *mesh = make_mesh(l);

	for (size_t i = 0; i < SK_ARRAY_SIZE(sizes); i++) {
		struct sk_tensor t = {
			.name = size_name(sizes[i], ""), .dtype = SK_F32,
			.ndim = 2, .shape = { sizes[i], 6 }, .mesh = mesh,
		};

		memcpy(t.placements, l->placements, sizeof(l->placements));
		ret[i] = rank_tensor(rank, &t, 0xee);
		t.name = size_name(sizes[i], ".exp_avg");
		rank_tensor(rank, &t, 0xee);
		rank_tensor(rank, &(struct sk_tensor){
			.name = size_name(sizes[i], ".step"),
			.dtype = SK_I64 }, 0xee);
	}
	sk_mesh_release(mesh);
}

static void save(struct rank *rank)
{
	const struct conversion *c = rank->arg;
	char *data[SK_ARRAY_SIZE(sizes)];

	describe(rank, &c->from, data);
	rank_write(rank, STEP);
	rank_snapshot(rank, STEP, SK_COMPLETE);
	/* The snapshot has values of its own. */
	rank_write(rank, STEP + 1);
}

/* Elements that this rank holds of the size: null pointers stay null. */
static void check_pointers(struct rank *rank, char **data)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(sizes); i++) {
		int64_t at = sk_state_find(rank->state,
					   size_name(sizes[i], ""));
		const struct sk_local *l = &rank->state->locals[at];

		CHECK(at >= 0);
		CHECK(!l->item.n_boxes || l->parts[0].data == data[i]);
	}
}

static void load(struct rank *rank)
{
	const struct conversion *c = rank->arg;
	char *data[SK_ARRAY_SIZE(sizes)];
	struct sk_report report;

	describe(rank, &c->to, data);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s: %s", c->what,
	      sk_error());
	CHECK(!rank_wrong(rank, STEP, -1), "%s", c->what);
	CHECK(report.tensors == 3 * SK_ARRAY_SIZE(sizes));
	CHECK(!report.missing && !report.extra);
	check_pointers(rank, data);
}

/* ---- experts: r % 4 is rank r's, sharded over ranks r % 4, r % 4 + 4 ---- */

static void describe_experts(struct rank *rank, int world)
{
	int32_t pair[] = { rank->rank % 4, rank->rank % 4 + 4 };
	struct sk_mesh *all = mesh_of(world, 0, NULL, NULL);
	struct sk_mesh *own = mesh_of(world == 8 ? 2 : 1, 0, pair, NULL);
	char name[64];

	rank_tensor(rank, &(struct sk_tensor){
		.name = "net.0.weight", .dtype = SK_BF16, .ndim = 2,
		.shape = { 37, 5 }, .mesh = all,
		.placements = { SK_SHARD(0) } }, 0);
	rank_tensor(rank, &(struct sk_tensor){
		.name = "state.net.0.weight.exp_avg", .dtype = SK_F32,
		.ndim = 2, .shape = { 37, 5 }, .mesh = all,
		.placements = { SK_SHARD(0) } }, 0);
	(void)snprintf(name, sizeof(name), "experts.%d.weight", pair[0]);
	rank_tensor(rank, &(struct sk_tensor){
		.name = name, .dtype = SK_BF16, .ndim = 2,
		.shape = { 11, 4 }, .mesh = own,
		.placements = { SK_SHARD(0) } }, 0);
	(void)snprintf(name, sizeof(name), "state.experts.%d.weight.exp_avg",
		       pair[0]);
	rank_tensor(rank, &(struct sk_tensor){
		.name = name, .dtype = SK_F32, .ndim = 2,
		.shape = { 11, 4 }, .mesh = own,
		.placements = { SK_SHARD(0) } }, 0);
	sk_mesh_release(all);
	sk_mesh_release(own);
}

static void save_experts(struct rank *rank)
{
	describe_experts(rank, 8);
	rank_write(rank, STEP);
	rank_snapshot(rank, STEP, SK_COMPLETE);
}

static void load_experts(struct rank *rank)
{
	struct sk_report report;

	describe_experts(rank, rank->world);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(!rank_wrong(rank, STEP, -1));
	CHECK(report.tensors == 4 && !report.missing && !report.extra);
}

/* Two of four experts' ranks are left: those of the others are extra. */
static void load_few_experts(struct rank *rank)
{
	struct sk_report report;

	describe_experts(rank, rank->world);
	CHECK(rank_restore(rank, SK_LATEST, 0, NULL) == -ENOKEY);
	CHECK(strstr(sk_error(), "experts.2.weight"), "%s", sk_error());
	CHECK(strstr(sk_error(), "state.experts.3.weight.exp_avg"), "%s",
	      sk_error());
	CHECK(!rank_restore(rank, SK_LATEST, SK_RESTORE_EXTRA_OK, &report),
	      "%s", sk_error());
	CHECK(report.extra == 4, "%u", report.extra);
	CHECK(!rank_wrong(rank, STEP, -1));
}

/* ---- the whole on rank 0, nothing elsewhere ---- */

static void gather(struct rank *rank)
{
	struct layout_of whole = WHOLE(1);
	char *data[SK_ARRAY_SIZE(sizes)];
	struct sk_report report;

	/* A mesh of rank 0 alone: the others hold nothing but the steps. */
	whole.a = 1;
	whole.placements[0] = SK_REPLICATE;
	describe(rank, &whole, data);
	for (size_t i = 0; i < SK_ARRAY_SIZE(sizes); i++)
		CHECK(!data[i] == (rank->rank != 0));
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(!rank_wrong(rank, STEP, -1));
	CHECK(report.bytes_memory > 5000 || rank->rank);
	CHECK(report.bytes_memory < 100 || !rank->rank);
}

/* ---- a part of the names ---- */

static void load_part(struct rank *rank)
{
	static const char *const names[] = { "net.5.weight", "net.7.weight" };
	struct sk_restore_options o = { .names = names, .n_names = 2 };
	struct sk_report report;
	struct sk_tensor t = {
		.name = names[0], .dtype = SK_F32, .ndim = 2,
		.shape = { 5, 6 },
	};

	rank_tensor(rank, &t, 0xee);
	CHECK(rank_restore(rank, SK_LATEST, 0, NULL) == -ENOKEY);
	CHECK(!rank_restore(rank, SK_LATEST, SK_RESTORE_PARTIAL, &report),
	      "%s", sk_error());
	CHECK(report.tensors == 1 && report.extra == 32, "%u", report.extra);
	CHECK(!rank_wrong(rank, STEP, -1));
	t.name = names[1];
	t.shape[0] = 7;
	rank_tensor(rank, &t, 0xee);
	/* Described, but without memory yet. */
	t.name = "net.9.weight";
	t.shape[0] = 9;
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	CHECK(!sk_restore(rank->state, STEP, NULL, &o, &report), "%s",
	      sk_error());
	CHECK(report.tensors == 2);
	CHECK(sk_restore(rank->state, STEP, NULL,
			 &(struct sk_restore_options){
				 .flags = SK_RESTORE_PARTIAL }, NULL) ==
	      -EINVAL);
	CHECK(strstr(sk_error(), "net.9.weight"), "%s", sk_error());
	CHECK(!sk_state_remove(rank->state, "net.9.weight"));
	CHECK(!rank_wrong(rank, STEP, -1));
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	for (size_t i = 0; i < SK_ARRAY_SIZE(conversions); i++) {
		const struct conversion *c = &conversions[i];
		char job[32];

		(void)snprintf(job, sizeof(job), "conversion-%d", (int)i);
		scene_ranks(&scene, job, c->from.world, save, c);
		scene_ranks(&scene, job, c->to.world, load, c);
	}
	scene_ranks(&scene, "conversion-0", 4, gather, NULL);
	scene_ranks(&scene, "conversion-0", 2, load_part, NULL);
	scene_ranks(&scene, "experts", 8, save_experts, NULL);
	scene_ranks(&scene, "experts", 8, load_experts, NULL);
	scene_ranks(&scene, "experts", 4, load_experts, NULL);
	scene_ranks(&scene, "experts", 2, load_few_experts, NULL);
	scene_close(&scene);
	return 0;
}
