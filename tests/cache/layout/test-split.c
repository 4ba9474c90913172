/* SPDX-License-Identifier: Apache-2.0 */
/* Who is primary, and who of a node keeps a replica, against a rule that looks
 * at every holder each time. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "layout/deal.h"
#include "layout/layout.h"
#include "tensor/dtype.h"
#include "support/random.h"

#define WORLD 24
#define ITEMS 20

static uint64_t seed = 5;

static int64_t pick(int64_t n)
{
	return (int64_t)draw(&seed, (uint64_t)n);
}

/* ---- one group ---- */

static int64_t fewest(const uint64_t *load, int64_t n)
{
	int64_t best = 0;

	for (int64_t i = 1; i < n; i++)
		if (load[i] < load[best])
			best = i;
	return best;
}

Test(split, a_deal_goes_to_the_first_with_the_fewest_bytes)
{
	for (int round = 0; round < 2000; round++) {
		struct sk_deal d = { .holders = 1 + pick(40) };
		int64_t largest = pick(3) ? 1000 : 3;
		uint64_t load[40] = { 0 };

		/* Any order, empty items among them. */
		for (int64_t n = pick(200); n > 0; n--) {
			uint64_t bytes = (uint64_t)pick(largest);
			int64_t want = fewest(load, d.holders);

			cr_assert_eq(sk_deal_next(&d, bytes), want);
			load[want] += bytes;
		}
		free(d.heap);
	}
}

static uint64_t steps_for(int64_t items, int64_t holders)
{
	struct sk_deal d = { .holders = holders };

	for (int64_t i = 0; i < items; i++)
		cr_assert_geq(sk_deal_next(&d, (uint64_t)(1 + pick(1000))),
			      0);
	free(d.heap);
	return d.steps;
}

/* Holders that get nothing cost nothing; items cost a logarithm each. */
Test(split, a_deal_costs_as_its_items)
{
	cr_assert_leq(steps_for(1000, 1024), 12 * 1000);
	cr_assert_leq(steps_for(1000, 1 << 24), 12 * 1000);
	cr_assert_leq(steps_for(16000, 1024), 16 * 12 * 1000);
	cr_assert_leq(steps_for(16000, 1 << 24), 16 * 16 * 1000);
}

/* ---- a state ---- */

struct state {
	const struct sk_mesh *meshes[2];
	struct sk_item items[ITEMS];
	char names[ITEMS][8];
	uint32_t n;
	int32_t node_of[WORLD];
	struct sk_nodes *nodes;		/* NULL: replicas are kept by each */
};

static const struct sk_mesh *random_mesh(void)
{
	static const int64_t shapes[][3] = { { 24, 1, 1 }, { 2, 3, 4 },
					     { 1, 5, 2 }, { 4, 1, 3 } };
	const int64_t *shape = shapes[pick(SK_ARRAY_SIZE(shapes))];
	int64_t n = shape[0] * shape[1] * shape[2], stride = 1 + 4 * pick(2);
	int32_t ranks[WORLD], first = (int32_t)pick(WORLD);
	struct sk_mesh *m = NULL;

	for (int64_t i = 0; i < n; i++)
		ranks[i] = (int32_t)((first + i * stride) % WORLD);
	cr_assert_eq(sk_mesh_new(3, shape, ranks, NULL, &m, NULL), 0);
	return m;
}

/* In blocks of their numbers, one in turn each, or anyhow. */
static void random_nodes(struct state *s)
{
	int32_t n = (int32_t)(1 + pick(6)), how = (int32_t)pick(3);

	for (int32_t i = 0; i < WORLD; i++)
		s->node_of[i] = how == 2 ? (int32_t)pick(n) :
				how ? i % n : i / (WORLD / n + 1);
	s->nodes = NULL;
	cr_assert_eq(sk_nodes_new(s->node_of, WORLD, &s->nodes, NULL), 0);
}

static void random_state(struct state *s)
{
	random_nodes(s);
	s->n = 1 + (uint32_t)pick(ITEMS);
	s->meshes[0] = random_mesh();
	s->meshes[1] = random_mesh();
	for (uint32_t i = 0; i < s->n; i++) {
		struct sk_spec *spec = &s->items[i].spec;

		(void)snprintf(s->names[i], sizeof(s->names[i]), "%c%u",
			       (int)('a' + pick(26)), i / 2 % ITEMS);
		s->items[i] = (struct sk_item){ .kind = i % 2 ?
			SK_ITEM_BLOB : SK_ITEM_TENSOR };
		*spec = (struct sk_spec){ .name = s->names[i], .ndim = 1,
					  .dtype = SK_U8,
					  .shape = { 1 + pick(50) } };
		if (i % 2)
			continue;
		spec->mesh = pick(4) ? s->meshes[pick(2)] : NULL;
		for (int m = 0; m < 3; m++)
			spec->placements[m] = pick(3) ? SK_REPLICATE :
							SK_SHARD(0);
	}
}

/* By definition: what two ranks hold of a spec whose coordinates differ in
 * replicated dimensions only is the same. */
static bool same_holders(const struct sk_spec *s, int a, int b)
{
	int64_t x[3], y[3];

	if (!s->mesh)
		return true;
	if (sk_mesh_coords(s->mesh, a, x) < 0 ||
	    sk_mesh_coords(s->mesh, b, y) < 0)
		return false;
	for (int m = 0; m < 3; m++)
		if (x[m] != y[m] &&
		    s->placements[m].kind != SK_PLACEMENT_REPLICATE)
			return false;
	return true;
}

/* Both have the same sets of equal holders. */
static bool same_group(const struct sk_spec *a, const struct sk_spec *b)
{
	if (!a->mesh || !b->mesh)
		return !a->mesh && !b->mesh;
	for (int m = 0; m < 3; m++)
		if ((a->placements[m].kind == SK_PLACEMENT_REPLICATE) !=
		    (b->placements[m].kind == SK_PLACEMENT_REPLICATE))
			return false;
	return sk_mesh_equal(a->mesh, b->mesh);
}

static int64_t bytes_of(const struct sk_item *item, int rank)
{
	struct sk_box *boxes = NULL;
	int64_t bytes = 0;
	int n;

	cr_assert_eq(sk_spec_boxes(&item->spec, rank, &boxes, &n, NULL), 0);
	for (int b = 0; b < n; b++)
		bytes += sk_box_volume(item->spec.ndim, &boxes[b]);
	free(boxes);
	return bytes;
}

/* Ranks in the order of the mesh, so that ties go as the rule says. */
static int32_t rank_at(const struct sk_spec *s, int i)
{
	return s->mesh ? sk_mesh_rank_at(s->mesh, i) : i;
}

/* Of the holders that are on @node, -1: of all. */
static int least_of(const struct state *s, const struct sk_spec *spec,
		    int rank, int32_t node, const uint64_t *load)
{
	int64_t n = spec->mesh ? sk_mesh_count(spec->mesh) : WORLD;
	int best = -1;

	for (int i = 0; i < n; i++) {
		int32_t r = rank_at(spec, i);

		if (same_holders(spec, rank, r) &&
		    (node < 0 || s->node_of[r] == node) &&
		    (best < 0 || load[r] < load[best]))
			best = r;
	}
	return best;
}

/* Deals the items of @first's group as @rank sees them. */
static void deal_group(const struct state *s, uint32_t first, int rank,
		       bool *primary, bool *replica)
{
	uint64_t load[WORLD] = { 0 }, near[WORLD] = { 0 };
	int32_t node = s->node_of[rank];
	bool done[ITEMS] = { false };

	for (;;) {
		int64_t most = 0, bytes;
		uint32_t at = s->n;
		int to;

		for (uint32_t i = 0; i < s->n; i++) {
			if (done[i] || !same_group(&s->items[i].spec,
						   &s->items[first].spec))
				continue;
			bytes = bytes_of(&s->items[i], rank);
			if (bytes > most ||
			    (bytes && bytes == most &&
			     strcmp(s->names[i], s->names[at]) < 0)) {
				most = bytes;
				at = i;
			}
		}
		if (at == s->n)
			return;
		to = least_of(s, &s->items[at].spec, rank, -1, load);
		load[to] += (uint64_t)most;
		done[at] = true;
		primary[at] = to == rank;
		replica[at] = !s->nodes && to != rank;
		if (!s->nodes || s->node_of[to] == node)
			continue;
		to = least_of(s, &s->items[at].spec, rank, node, near);
		near[to] += (uint64_t)most;
		replica[at] = to == rank;
	}
}

static bool has(const struct sk_layout *l, uint32_t item)
{
	for (uint32_t e = 0; e < l->n_entries; e++)
		if (l->entries[e].item == item)
			return true;
	return false;
}

static void check_rank(const struct state *s, int rank)
{
	bool want[2][ITEMS] = { { false } };
	struct sk_layout *l[2] = { NULL };
	struct sk_err err = { "" };

	for (uint32_t i = 0; i < s->n; i++)
		deal_group(s, i, rank, want[0], want[1]);
	for (int k = 0; k < 2; k++)
		cr_assert_eq(sk_layout_new_over("job", rank, WORLD,
						(enum sk_image_kind)k,
						s->nodes, s->items, s->n,
						&l[k], &err), 0, "%s",
			     err.text);
	for (int k = 0; k < 2; k++)
		for (uint32_t i = 0; i < s->n; i++)
			cr_assert_eq(has(l[k], i), want[k][i], "rank %d, kind "
				     "%d, item %u", rank, k, i);
	sk_layout_free(l[0]);
	sk_layout_free(l[1]);
}

Test(split, is_the_rule_on_every_rank, .timeout = 300)
{
	static struct state s;

	for (int round = 0; round < 60; round++) {
		random_state(&s);
		for (int rank = 0; rank < WORLD; rank++)
			check_rank(&s, rank);
		for (int m = 0; m < 2; m++)
			sk_mesh_unref((struct sk_mesh *)s.meshes[m]);
		sk_nodes_unref(s.nodes);
	}
}
