/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How a parameter is cut, whatever the mesh. */
enum cut { CUT_ROWS, CUT_COLUMNS, CUT_NORM, CUT_EXPERTS };

struct parameter {
	const char *name;
	enum cut cut;
};

static const struct parameter llama[] = {
	{ "attention_norm.weight", CUT_NORM },
	{ "attention.wq.weight", CUT_ROWS },
	{ "attention.wk.weight", CUT_ROWS },
	{ "attention.wv.weight", CUT_ROWS },
	{ "attention.wo.weight", CUT_COLUMNS },
	{ "ffn_norm.weight", CUT_NORM },
	{ "feed_forward.w1.weight", CUT_ROWS },
	{ "feed_forward.w2.weight", CUT_COLUMNS },
	{ "feed_forward.w3.weight", CUT_ROWS },
};

static const struct parameter experts[] = {
	{ "attention_norm.weight", CUT_NORM },
	{ "attention.wq.weight", CUT_ROWS },
	{ "attention.wk.weight", CUT_ROWS },
	{ "attention.wv.weight", CUT_ROWS },
	{ "attention.wo.weight", CUT_COLUMNS },
	{ "ffn_norm.weight", CUT_NORM },
	{ "moe.router.gate.weight", CUT_ROWS },
	{ "moe.experts.w1", CUT_EXPERTS },
	{ "moe.experts.w2", CUT_EXPERTS },
	{ "moe.experts.w3", CUT_EXPERTS },
};

static const struct {
	const char *name;
	const struct parameter *layer;
	int n;
} kinds[MODEL_KINDS] = {
	[MODEL_LLAMA] = { "llama", llama, sizeof(llama) / sizeof(*llama) },
	[MODEL_EXPERTS] = { "experts", experts,
			    sizeof(experts) / sizeof(*experts) },
};

static const char *const mesh_names[MESH_KINDS] = {
	[MESH_FSDP] = "fsdp", [MESH_HSDP] = "hsdp", [MESH_TP] = "tp",
};

const char *model_name(int kind)
{
	return kind < MODEL_KINDS ? kinds[kind].name : NULL;
}

const char *model_mesh_name(int mesh)
{
	return mesh < MESH_KINDS ? mesh_names[mesh] : NULL;
}

/* ---- shapes: @each elements per rank of the world ---- */

#define COLUMNS 16

static void shape_fsdp(struct sk_tensor *t, int64_t world, int64_t each)
{
	t->ndim = 2;
	t->shape[0] = world * (each / COLUMNS);
	t->shape[1] = COLUMNS;
	t->placements[0] = SK_SHARD(0);
}

static void shape_hsdp(struct sk_tensor *t, int64_t each)
{
	t->ndim = 2;
	t->shape[0] = MODEL_ROW * (each / COLUMNS);
	t->shape[1] = COLUMNS;
	t->placements[0] = SK_REPLICATE;
	t->placements[1] = SK_SHARD(0);
}

/* FSDP over tensor parallelism; rows are cut by the latter first. */
static void shape_tp(struct sk_tensor *t, enum cut cut, int64_t world,
		     int64_t each)
{
	int64_t rows = world / MODEL_ROW * (each / COLUMNS);

	t->ndim = 2;
	t->shape[0] = cut == CUT_ROWS ? rows * MODEL_ROW : rows;
	t->shape[1] = cut == CUT_COLUMNS ? COLUMNS * MODEL_ROW : COLUMNS;
	t->placements[0] = cut == CUT_ROWS ? SK_STRIDED_SHARD(0, MODEL_ROW) :
					     SK_SHARD(0);
	t->placements[1] = cut == CUT_ROWS ? SK_SHARD(0) :
			   cut == CUT_COLUMNS ? SK_SHARD(1) : SK_REPLICATE;
}

/* An expert per rank of a row, each sharded over the rows. */
static void shape_experts(struct sk_tensor *t, int64_t world, int64_t each)
{
	t->ndim = 3;
	t->shape[0] = MODEL_ROW;
	t->shape[1] = world / MODEL_ROW * (each / COLUMNS);
	t->shape[2] = COLUMNS;
	t->placements[0] = SK_SHARD(1);
	t->placements[1] = SK_SHARD(0);
}

static void shape(const struct model *m, enum cut cut, struct sk_tensor *t)
{
	int64_t each = (int64_t)(m->bytes / (uint64_t)m->tensors / 4);

	each = each < COLUMNS ? COLUMNS : each / COLUMNS * COLUMNS;
	if (cut == CUT_EXPERTS)
		shape_experts(t, m->world, each);
	else if (m->mesh == MESH_FSDP)
		shape_fsdp(t, m->world, each);
	else if (m->mesh == MESH_HSDP)
		shape_hsdp(t, each);
	else
		shape_tp(t, cut, m->world, each);
}

/* ---- the whole ---- */

static char *name_of(const struct model *m, int i, const struct parameter *p)
{
	static const char *const states[] = { "", ".exp_avg", ".exp_avg_sq" };
	char *name;

	if (asprintf(&name, "layers.%d.%s%s", i / 3 / kinds[m->kind].n, p->name,
		     states[i % 3]) < 0)
		return NULL;
	return name;
}

static int make_meshes(const struct model *m, int32_t ranks,
		       struct model_tensors *t)
{
	static const char *const names[MESH_KINDS][2] = {
		[MESH_FSDP] = { "fsdp" },
		[MESH_HSDP] = { "replicate", "shard" },
		[MESH_TP] = { "fsdp", "tp" },
	};
	static const char *const of_experts[] = { "fsdp", "ep" };
	int64_t flat = ranks, rows[] = { ranks / MODEL_ROW, MODEL_ROW };
	bool one = m->mesh == MESH_FSDP;

	if (sk_mesh_create(one ? 1 : 2, one ? &flat : rows, NULL,
			   names[m->mesh], &t->meshes[0]))
		return -1;
	return sk_mesh_create(2, rows, NULL, of_experts, &t->meshes[1]) ? -1 :
									   0;
}

int model_make(const struct model *m, int32_t ranks, struct model_tensors *ret)
{
	struct model_tensors t = { .v = calloc((size_t)m->tensors,
					       sizeof(*t.v)) };

	if (!t.v || make_meshes(m, ranks, &t)) {
		model_free(&t);
		return -1;
	}
	for (; t.n < m->tensors; t.n++) {
		const struct parameter *p =
			&kinds[m->kind].layer[t.n / 3 % kinds[m->kind].n];

		t.v[t.n] = (struct sk_tensor){
			.name = name_of(m, t.n, p), .dtype = SK_F32,
			.mesh = t.meshes[p->cut == CUT_EXPERTS],
		};
		if (!t.v[t.n].name) {
			model_free(&t);
			return -1;
		}
		shape(m, p->cut, &t.v[t.n]);
	}
	*ret = t;
	return 0;
}

void model_free(struct model_tensors *t)
{
	for (int i = 0; t->v && i < t->n; i++)
		free((char *)t->v[i].name);
	free(t->v);
	sk_mesh_release(t->meshes[0]);
	sk_mesh_release(t->meshes[1]);
	*t = (struct model_tensors){ 0 };
}
