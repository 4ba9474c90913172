/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any mesh to any mesh, by processes and an agent: each case saves a random
 * state on 1 to 4 ranks, lets them end, and restores it on 1 to 4 others with
 * other meshes and placements, from memory and from disk.
 */
#include "libclient/restore/common.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define TENSORS 6

struct tensor {
	char name[16];
	int32_t dtype, ndim;
	int64_t shape[3];
	int ranks[2];		/* of the mesh, 0: none */
	int rows[2];		/* of a mesh of two dimensions */
	int first[2];		/* its first rank; the others follow, mod n */
	struct sk_placement placements[2][2];
};

struct test {
	uint64_t seed;
	int world[2];
	bool disk;
	struct tensor tensors[TENSORS];
};

static uint64_t random_state;

static int below(int n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (int)((random_state * 0x2545f4914f6cdd1du >> 33) % (unsigned)n);
}

static void place(struct tensor *t, int side, int world)
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

static void random_test(struct test *test, uint64_t seed)
{
	static const int32_t types[] = { SK_U8, SK_BF16, SK_F32, SK_F64 };

	*test = (struct test){ .seed = seed };
	random_state = seed * 0x9e3779b97f4a7c15u + 7;
	test->world[0] = 1 + below(4);
	test->world[1] = 1 + below(4);
	test->disk = below(2);
	for (int i = 0; i < TENSORS; i++) {
		struct tensor *t = &test->tensors[i];

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
}

static void describe(struct rank *rank, const struct test *test, int side)
{
	static char blob[100], own[30];

	for (int i = 0; i < TENSORS; i++) {
		const struct tensor *t = &test->tensors[i];
		struct sk_tensor st = { .name = t->name, .dtype = t->dtype,
					.ndim = t->ndim };
		int n = t->ranks[side], rows = t->rows[side];
		struct sk_mesh *mesh = NULL;
		int32_t ranks[4];

		memcpy(st.shape, t->shape, sizeof(t->shape));
		memcpy(st.placements, t->placements[side],
		       sizeof(t->placements[side]));
		for (int k = 0; k < n; k++)
			ranks[k] = (t->first[side] + k) % test->world[side];
		if (n)
			mesh = rows > 1 ? mesh_of(rows, n / rows, ranks, NULL) :
					  mesh_of(n, 0, ranks, NULL);
		st.mesh = mesh;
		rank_tensor(rank, &st, 0xee);
		sk_mesh_release(mesh);
	}
	CHECK(!sk_state_blob(rank->state, "config", blob, sizeof(blob)));
	CHECK(!sk_state_blob_local(rank->state, "rng", own, sizeof(own)));
}

static void save(struct rank *rank)
{
	const struct test *test = rank->arg;

	describe(rank, test, 0);
	rank_write(rank, 10);
	rank_snapshot(rank, 10, test->disk ? SK_DURABLE : SK_COMPLETE);
}

static void load(struct rank *rank)
{
	const struct test *test = rank->arg;
	uint32_t flags = test->disk ? SK_RESTORE_DISK_ONLY :
				      SK_RESTORE_MEMORY_ONLY;
	struct sk_report report;
	int owner = rank->rank < test->world[0] ? rank->rank : -1;

	describe(rank, test, 1);
	CHECK(!rank_restore(rank, SK_LATEST, flags, &report),
	      "seed %llu: %s", (unsigned long long)test->seed, sk_error());
	CHECK(report.step == 10 && report.world == test->world[0]);
	CHECK(!rank_wrong(rank, 10, owner), "seed %llu, %d to %d ranks",
	      (unsigned long long)test->seed, test->world[0], test->world[1]);
	CHECK(report.bytes_disk == 0 || test->disk);
	CHECK(report.bytes_memory == 0 || !test->disk);
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	for (uint64_t seed = 1; seed <= 24; seed++) {
		struct test test;
		char job[32];

		random_test(&test, seed);
		(void)snprintf(job, sizeof(job), "property-%d", (int)seed);
		scene_ranks(&scene, job, test.world[0], save, &test);
		scene_ranks(&scene, job, test.world[1], load, &test);
	}
	scene_close(&scene);
	return 0;
}
