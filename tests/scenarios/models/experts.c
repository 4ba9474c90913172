/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts over FSDP: 8 ranks as (fsdp 2, ep 4), where rank r owns expert r%4
 * on the mesh (r%4, r%4 + 4), a child of the two-dimensional one, and knows
 * nothing of the other experts. What all ranks share lies on all 8.
 */
#include "scenarios/models/common.h"

#include <stdio.h>
#include <string.h>

#define JOB "experts"
#define EXPERTS 4

static const struct param shared[] = {
	{ "net.0.weight", 10, 6, { SK_SHARD(0) } },
	{ "net.0.bias", 10, 0, { SK_SHARD(0) } },
	{ "second.net.0.weight", 5, 3, { SK_SHARD(0) } },
};

/* Experts of 5 to 8 rows, so that two ranks share them evenly or not. */
static struct param expert(int e, char name[32])
{
	(void)snprintf(name, 32, "experts.%d.weight", e);
	return (struct param){ name, 5 + e, 3, { SK_SHARD(0) } };
}

/* The ranks stand as (fsdp, ep); each owns those of the first @n experts that
 * are its ep coordinate, modulo the ep size. */
static void describe_some(struct rank *rank, int fsdp, int ep, int n)
{
	static const char *const names[] = { "fsdp", "ep" };
	struct sk_mesh *grid = mesh_of(fsdp, ep, NULL, names), *child;
	struct sk_mesh *all = mesh_of(fsdp * ep, 0, NULL, NULL);

	for (size_t i = 0; i < SK_ARRAY_SIZE(shared); i++)
		rank_param(rank, &shared[i], all, 0xee);
	CHECK(!sk_mesh_child(grid, rank->rank, names, 1, &child), "%s",
	      sk_error());
	for (int e = rank->rank % ep; e < n; e += ep) {
		char name[32];
		struct param p = expert(e, name);

		rank_param(rank, &p, child, 0xee);
	}
	sk_mesh_release(child);
	sk_mesh_release(grid);
	sk_mesh_release(all);
}

static void describe(struct rank *rank, int fsdp, int ep)
{
	describe_some(rank, fsdp, ep, EXPERTS);
}

static void save(struct rank *rank)
{
	describe(rank, 2, 4);
	rank_write(rank, 5);
	rank_snapshot(rank, 5, SK_DURABLE);
}

/* Strictly: no name is missing, none is left over, on any rank. */
static void restore_all(struct rank *rank, uint32_t flags)
{
	struct sk_report report;

	CHECK(rank_wrong(rank, 5, rank->rank));
	CHECK(!rank_restore(rank, SK_LATEST, flags, &report), "%s",
	      sk_error());
	CHECK(report.step == 5 && report.world == 8);
	CHECK(!report.missing && !report.extra);
	CHECK(report.tensors == rank->state->n_locals);
	CHECK(!rank_wrong(rank, 5, rank->rank));
}

static void restore_on_the_same_mesh(struct rank *rank)
{
	describe(rank, 2, 4);
	restore_all(rank, SK_RESTORE_MEMORY_ONLY);
	rank_write(rank, 6);
	restore_all(rank, SK_RESTORE_DISK_ONLY);
}

static void restore_an_expert_per_rank(struct rank *rank)
{
	describe(rank, 1, 4);
	restore_all(rank, SK_RESTORE_MEMORY_ONLY);
}

static void restore_two_experts_per_rank(struct rank *rank)
{
	describe(rank, 2, 2);
	restore_all(rank, SK_RESTORE_DISK_ONLY);
}

static void restore_all_experts_on_one(struct rank *rank)
{
	describe(rank, 1, 1);
	restore_all(rank, SK_RESTORE_MEMORY_ONLY);
}

/* Two of the four experts are nobody's: refused by name, or asked for. */
static void restore_some_experts(struct rank *rank)
{
	struct sk_report report;

	describe_some(rank, 1, 2, 2);
	CHECK(rank_restore(rank, 5, 0, NULL) == -ENOKEY);
	CHECK(strstr(sk_error(), "experts.2.weight") &&
	      strstr(sk_error(), "optim.state.experts.3.weight.exp_avg") &&
	      !strstr(sk_error(), "experts.0") &&
	      !strstr(sk_error(), "experts.1"), "%s", sk_error());
	CHECK(!rank_restore(rank, 5, SK_RESTORE_EXTRA_OK, &report), "%s",
	      sk_error());
	CHECK(report.extra == 6);
	CHECK(!rank_wrong(rank, 5, rank->rank));
}

/* ---- what was saved ---- */

/* E1, E2: shared ones say all 8 ranks in order, the optimizer's too. */
static void check_shared(const struct stored *s, int rank)
{
	struct sk_mesh *all = mesh_of(8, 0, NULL, NULL);

	for (size_t i = 0; i < SK_ARRAY_SIZE(shared); i++) {
		const struct sk_item *p, *o;
		char name[64];

		(void)snprintf(name, sizeof(name), "optim.state.%s.exp_avg",
			       shared[i].name);
		p = stored_item(s, rank, shared[i].name);
		o = stored_item(s, rank, name);
		CHECK(p && o && sk_spec_same_layout(&p->spec, &o->spec));
		CHECK(sk_mesh_equal(p->spec.mesh, all));
		CHECK(p->spec.shape[0] == shared[i].rows &&
		      p->spec.placements[0].kind == SK_PLACEMENT_SHARD);
	}
	sk_mesh_release(all);
}

/* E3, E4: its own expert on the mesh of two ranks, and no other's name. */
static void check_experts(const struct stored *s, int rank)
{
	static const char *const fsdp[] = { "fsdp" };
	const int own = rank % EXPERTS;
	struct sk_mesh *mine = mesh_of(2, 0, (int32_t[]){ own, own + 4 },
				       fsdp);

	for (int e = 0; e < EXPERTS; e++) {
		char name[32];
		struct param p = expert(e, name);
		const struct sk_item *item = stored_item(s, rank, p.name);

		CHECK(!item == (e != own), "rank %d, expert %d", rank, e);
		CHECK(!item || sk_mesh_equal(item->spec.mesh, mine));
	}
	sk_mesh_release(mine);
}

/* E5: each parameter has its optimizer state and the other way round. */
static void check_names(const struct stored *s, int rank)
{
	const struct sk_layout *l = s->layouts[rank];
	uint32_t params = 0, states = 0;

	for (uint32_t i = 0; i < l->n_items; i++) {
		const char *name = l->items[i].spec.name;
		char other[128];

		if (!strncmp(name, "optim.", 6)) {
			states++;
			continue;
		}
		params++;
		(void)snprintf(other, sizeof(other),
			       "optim.state.%s.exp_avg", name);
		CHECK(stored_item(s, rank, other), "%s", other);
		(void)snprintf(other, sizeof(other), "optim.state.%s.step",
			       name);
		CHECK(stored_item(s, rank, other), "%s", other);
	}
	CHECK(params == SK_ARRAY_SIZE(shared) + 1 && states == 2 * params);
}

int main(int argc, char **argv)
{
	struct stored stored;
	struct scene scene;

	scene_open(&scene, argc, argv);
	scene_ranks(&scene, JOB, 8, save, NULL);
	stored_open(&scene, JOB, 5, 8, &stored);
	stored_check_once(&stored);
	for (int r = 0; r < 8; r++) {
		check_shared(&stored, r);
		check_experts(&stored, r);
		check_names(&stored, r);
	}
	stored_close(&stored);
	scene_ranks(&scene, JOB, 8, restore_on_the_same_mesh, NULL);
	scene_ranks(&scene, JOB, 4, restore_an_expert_per_rank, NULL);
	scene_ranks(&scene, JOB, 4, restore_two_experts_per_rank, NULL);
	scene_ranks(&scene, JOB, 1, restore_all_experts_on_one, NULL);
	scene_ranks(&scene, JOB, 2, restore_some_experts, NULL);
	scene_close(&scene);
	return 0;
}
