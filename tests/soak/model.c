/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/soak.h"

#include <stdio.h>
#include <string.h>

#define TENSORS 6
#define RANKS_MOST 8

struct dice dice_of(uint64_t seed)
{
	return (struct dice){ .state = seed * 0x9e3779b97f4a7c15u + 1 };
}

uint64_t dice_below(struct dice *dice, uint64_t n)
{
	/* xorshift64*, Vigna 2016: the high bits are the good ones. */
	dice->state ^= dice->state >> 12;
	dice->state ^= dice->state << 25;
	dice->state ^= dice->state >> 27;
	return (dice->state * 0x2545f4914f6cdd1du >> 33) % n;
}

/* The same for every life of the model. */
static void global_tensor(struct sk_tensor *t, char *name, size_t size, int i,
			  struct dice *dice)
{
	static const int32_t types[] = { SK_U8, SK_BF16, SK_F32, SK_F64 };

	(void)snprintf(name, size, "w%d", i);
	*t = (struct sk_tensor){ .name = name };
	t->dtype = types[dice_below(dice, 4)];
	t->ndim = (int32_t)dice_below(dice, 4);
	for (int d = 0; d < t->ndim; d++)
		t->shape[d] = (int64_t)dice_below(dice, 12);
	if (i)
		return;
	/* One of several checksummed chunks. */
	t->ndim = 2;
	t->dtype = SK_F32;
	t->shape[0] = 300 + (int64_t)dice_below(dice, 400);
	t->shape[1] = 600 + (int64_t)dice_below(dice, 200);
}

static struct sk_placement random_placement(const struct sk_tensor *t,
					    struct dice *dice)
{
	int d = t->ndim ? (int)dice_below(dice, (uint64_t)t->ndim) : 0;

	if (!t->ndim || !dice_below(dice, 3))
		return SK_REPLICATE;
	if (!dice_below(dice, 4))
		return SK_STRIDED_SHARD(d, 2);
	return SK_SHARD(d);
}

/* Any of the world's ranks, in any order; NULL: every rank holds it whole. */
static struct sk_mesh *random_mesh(int world, struct dice *dice)
{
	int n = 1 + (int)dice_below(dice, (uint64_t)world);
	int first = (int)dice_below(dice, (uint64_t)world);
	int32_t ranks[RANKS_MOST];

	if (!dice_below(dice, 6))
		return NULL;
	for (int k = 0; k < n; k++)
		ranks[k] = (first + k) % world;
	if (n % 2 == 0 && dice_below(dice, 2))
		return mesh_of(2, n / 2, ranks, NULL);
	return mesh_of(n, 0, ranks, NULL);
}

void model_describe(struct rank *rank, uint64_t model, uint64_t life)
{
	static char config[100], own[30];
	struct dice global = dice_of(model), local = dice_of(model ^ ~life);

	CHECK(rank->world <= RANKS_MOST);
	for (int i = 0; i < TENSORS; i++) {
		struct sk_mesh *mesh = random_mesh(rank->world, &local);
		struct sk_tensor t;
		char name[16];

		global_tensor(&t, name, sizeof(name), i, &global);
		t.mesh = mesh;
		for (int m = 0; m < 2 && mesh; m++)
			t.placements[m] = random_placement(&t, &local);
		rank_tensor(rank, &t, 0xee);
		sk_mesh_release(mesh);
	}
	CHECK(!sk_state_blob(rank->state, "config", config, sizeof(config)));
	CHECK(!sk_state_blob_local(rank->state, "rng", own, sizeof(own)));
}
