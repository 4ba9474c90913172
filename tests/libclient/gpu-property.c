/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any mesh to any mesh, with tensors on the host and on any device, other ones
 * before and after: each case saves a random state on 1 to 4 ranks that
 * overwrite it as soon as they have fenced, are killed, and restores it on 1
 * to 4 others.
 */
#include <stdio.h>
#include <string.h>

#include "libclient/gpu-rank.h"
#include "libclient/restore/random.h"

#define CASES 24
#define DEVICES 3

/* Where a rank has a tensor: a device, or -1. */
static int place_of(const struct random_test *test, const struct rank *rank,
		    int side, int i)
{
	uint64_t v = (test->seed * 31 + (uint64_t)rank->rank) * 31 +
		     (uint64_t)(side * 7 + i);

	v *= 0x9e3779b97f4a7c15u;
	return (int)(v >> 33) % (DEVICES + 1) - 1;
}

struct adding {
	struct gpu_rank *g;
	const struct random_test *test;
	int side;
};

static void add(struct rank *rank, const struct sk_tensor *t, int i, void *ctx)
{
	const struct adding *a = ctx;
	int place = place_of(a->test, rank, a->side, i);
	struct sk_tensor at = *t;

	if (place < 0) {
		gpu_add_host(a->g, t, rank_bytes(rank, t), 0xee);
		return;
	}
	at.device = place % a->g->devices;
	gpu_add(a->g, &at, rank_bytes(rank, t), 0xee);
}

static void begin(struct gpu_rank *g, struct rank *rank,
		  const struct random_test *test, int side)
{
	struct adding a = { g, test, side };
	char seed[16];

	(void)snprintf(seed, sizeof(seed), "%d", (int)test->seed * 8 +
		       rank->rank);
	setenv("VCUDA_SEED", seed, 1);
	gpu_begin(g, rank, rank->rank);
	random_describe(rank, test, side, add, &a);
}

/* On the rank's stream, which the others follow; then the host's. */
static void overwrite(struct gpu_rank *g)
{
	for (int i = 0; i < g->n; i++) {
		const struct gpu_tensor *x = &g->tensors[i];

		if (!x->bytes)
			continue;
		if (x->device < 0)
			memset(x->here, 0xdd, x->bytes);
		else if (x->device == g->device)
			CHECK(!g->cuda.cuMemsetD8Async(x->there, 0xdd,
						       x->bytes, g->stream));
	}
}

static void save(struct rank *rank)
{
	const struct random_test *test = rank->arg;
	struct gpu_rank g;

	begin(&g, rank, test, 0);
	gpu_fill(&g, 10);
	CHECK(!gpu_snapshot(&g, 10, test->disk ? SK_SNAPSHOT_FLUSH : 0),
	      "%s", sk_error());
	CHECK(!(test->seed % 2 ? sk_fence(rank->state) :
		sk_fence_stream(rank->state, (uintptr_t)g.stream)), "%s",
	      sk_error());
	overwrite(&g);
	CHECK(!sk_wait(rank->state, 10, test->disk ? SK_DURABLE : SK_COMPLETE,
		       60000), "%s", sk_error());
	rank_ready(rank);
}

static void load(struct rank *rank)
{
	const struct random_test *test = rank->arg;
	uint32_t flags = test->disk ? SK_RESTORE_DISK_ONLY :
				      SK_RESTORE_MEMORY_ONLY;
	int owner = rank->rank < test->world[0] ? rank->rank : -1;
	struct gpu_rank g;

	begin(&g, rank, test, 1);
	CHECK(!rank_restore(rank, SK_LATEST, flags, NULL), "seed %d: %s",
	      (int)test->seed, sk_error());
	CHECK(!gpu_wrong(&g, 10, owner), "seed %d, %d to %d ranks",
	      (int)test->seed, test->world[0], test->world[1]);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	setenv("VCUDA_DEVICES", "3", 0);
	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	scene_open(&scene, argc, argv);
	for (uint64_t seed = 1; seed <= CASES; seed++) {
		struct random_test test;
		char job[32];

		random_test(&test, seed);
		(void)snprintf(job, sizeof(job), "property-%d", (int)seed);
		scene_ranks_killed(&scene, job, test.world[0], save, &test);
		scene_ranks(&scene, job, test.world[1], load, &test);
	}
	scene_close(&scene);
	return 0;
}
