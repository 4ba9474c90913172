/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/restore/random.h"

#include <stdio.h>
#include <string.h>

static uint64_t random_state;

static int below(int n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (int)((random_state * 0x2545f4914f6cdd1du >> 33) % (unsigned)n);
}

static void place(struct random_tensor *t, int side, int world)
{
	t->ranks[side] = below(6) ? 1 + below(world) : 0;
	t->rows[side] = t->ranks[side] && !(t->ranks[side] % 2) && below(2) ?
			2 : 1;
	t->first[side] = below(world);
	for (int m = 0; m < 2; m++) {
		int d = t->ndim ? below(t->ndim) : 0;

		t->placements[side][m] = SK_SHARD(d);
		if (!t->ndim || !below(3))
			t->placements[side][m] = SK_REPLICATE;
		else if (!below(4))
			t->placements[side][m] = SK_STRIDED_SHARD(d, 2);
	}
}

void random_test(struct random_test *test, uint64_t seed)
{
	random_test_of(test, seed, 4);
}

void random_test_of(struct random_test *test, uint64_t seed, int ranks)
{
	static const int32_t types[] = { SK_U8, SK_BF16, SK_F32, SK_F64 };

	*test = (struct random_test){ .seed = seed };
	random_state = seed * 0x9e3779b97f4a7c15u + 7;
	test->world[0] = 1 + below(ranks);
	test->world[1] = 1 + below(ranks);
	test->disk = below(2);
	for (int i = 0; i < RANDOM_TENSORS; i++) {
		struct random_tensor *t = &test->tensors[i];

		(void)snprintf(t->name, sizeof(t->name), "w%d", i);
		t->dtype = types[below(4)];
		t->ndim = below(4);
		for (int d = 0; d < t->ndim; d++)
			t->shape[d] = below(12);
		if (!i) {	/* several checksummed chunks */
			t->ndim = 2;
			t->dtype = SK_F32;
			t->shape[0] = 700 + below(100);
			t->shape[1] = 700 + below(100);
		}
		place(t, 0, test->world[0]);
		place(t, 1, test->world[1]);
	}
	for (int i = 0; i < RANDOM_TENSORS; i++)
		test->tensors[i].lanes = below(3) ? 1 : 1 + below(3);
}

struct sk_mesh *random_mesh(const struct random_test *test, int side, int i,
			    int rank)
{
	const struct random_tensor *t = &test->tensors[i];
	int lanes = side ? t->lanes : 1, lane = 0, n = 0;
	int32_t ranks[RANDOM_RANKS];

	for (int k = 0; k < t->ranks[side]; k++)
		if ((t->first[side] + k) % test->world[side] == rank)
			lane = k % lanes;
	for (int k = lane; k < t->ranks[side]; k += lanes)
		ranks[n++] = (t->first[side] + k) % test->world[side];
	if (!n)
		return NULL;
	return t->rows[side] > 1 && n % 2 == 0 ?
		       mesh_of(2, n / 2, ranks, NULL) :
		       mesh_of(n, 0, ranks, NULL);
}

void random_describe(struct rank *rank, const struct random_test *test,
		     int side, random_add add, void *ctx)
{
	static char blob[100], own[30];

	for (int i = 0; i < RANDOM_TENSORS; i++) {
		const struct random_tensor *t = &test->tensors[i];
		struct sk_tensor st = { .name = t->name, .dtype = t->dtype,
					.ndim = t->ndim };
		struct sk_mesh *mesh = random_mesh(test, side, i, rank->rank);

		memcpy(st.shape, t->shape, sizeof(t->shape));
		if (mesh)
			memcpy(st.placements, t->placements[side],
			       sizeof(t->placements[side]));
		st.mesh = mesh;
		add(rank, &st, i, ctx);
		sk_mesh_release(mesh);
	}
	CHECK(!sk_state_blob(rank->state, "config", blob, sizeof(blob)));
	CHECK(!sk_state_blob_local(rank->state, "rng", own, sizeof(own)));
}
