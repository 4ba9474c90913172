/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that are described elsewhere, on a GPU or in host memory, while the
 * rank has its device slot: what is saved of each is what stands where it lies
 * now.
 */
#include "libclient/gpu-rank.h"

/* No small copy: SK_CUDA_TABLE_MOST. */
#define BIG ((uint64_t)4400000)
#define SOME ((uint64_t)8000)

static void add_all(struct gpu_rank *g)
{
	gpu_add(g, &(struct sk_tensor){
		.name = "big", .dtype = SK_F32, .ndim = 2,
		.shape = { 1100, 1000 }, .device = g->device }, BIG, 1);
	gpu_add(g, &(struct sk_tensor){
		.name = "a", .dtype = SK_F32, .ndim = 1,
		.shape = { 2000 }, .device = g->device }, SOME, 1);
	gpu_add_host(g, &(struct sk_tensor){
		.name = "b", .dtype = SK_F32, .ndim = 1,
		.shape = { 2000 } }, SOME, 1);
	/* So many are copied by a kernel. */
	for (int i = 0; i < 4; i++)
		gpu_add(g, &(struct sk_tensor){
			.name = (const char *const[]){ "c", "d", "e",
						       "f" }[i],
			.dtype = SK_F32, .ndim = 1, .shape = { 2000 },
			.device = g->device }, SOME, 1);
}

/* What a snapshot is to do then. */
enum way {
	OVER,		/* described over what there was */
	ANEW,		/* by who drops all, and restores first */
};

/* Where tensor @i lies from now on. */
static void move(struct gpu_rank *g, int i, int device)
{
	struct gpu_tensor *x = &g->tensors[i];

	x->device = device;
	if (device < 0)
		return;
	gpu_use_device(g, device);
	x->there = trainer_cuda_alloc(&g->cuda, x->bytes);
	gpu_use_device(g, g->device);
}

static void describe(struct gpu_rank *g, enum way way, int64_t step)
{
	if (way == ANEW)
		CHECK(!sk_state_clear(g->rank->state), "%s", sk_error());
	gpu_describe_all(g, true);
	if (way == OVER)
		return;
	CHECK(!rank_restore(g->rank, step, 0, NULL), "%s", sk_error());
	CHECK(gpu_wrong(g, step, g->rank->rank) == 0);
}

/* Whatever came before, and until it is served by the device again. */
static void goes_on(struct gpu_rank *g, int64_t *step, const char *what)
{
	int64_t last = *step + 3;

	while (*step < last || (!gpu_device_bytes(g) && *step < 1000)) {
		gpu_fill(g, ++*step);
		gpu_complete(g, *step);
		gpu_fill(g, 77);
		CHECK(!rank_restore(g->rank, *step, 0, NULL), "%s: %s", what,
		      sk_error());
		CHECK(gpu_wrong(g, *step, g->rank->rank) == 0, "%s", what);
	}
	CHECK(gpu_device_bytes(g), "%s", what);
}

static void moves(struct rank *rank)
{
	enum way way = *(const enum way *)rank->arg;
	struct gpu_rank g;
	int64_t step;
	uint64_t id;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	step = gpu_until_served(&g);
	id = rank->state->id;
	goes_on(&g, &step, "as it was");
	CHECK(rank->state->id == id);
	move(&g, 1, -1);
	describe(&g, way, step);
	goes_on(&g, &step, "one to the host");
	move(&g, 1, 0);
	move(&g, 2, 0);
	describe(&g, way, step);
	goes_on(&g, &step, "two to the device");
	for (int i = 0; i < g.n && g.devices > 1; i++)
		move(&g, i, 1);
	describe(&g, way, step);
	goes_on(&g, &step, "all to another");
}

/* What the agent made of a device serves nobody then. */
static void leaves(struct rank *rank)
{
	struct gpu_rank g;
	int64_t step;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	step = gpu_until_served(&g);
	for (int i = 0; i < g.n; i++)
		move(&g, i, -1);
	gpu_describe_all(&g, true);
	gpu_fill(&g, ++step);
	CHECK(!sk_snapshot(rank->state, step, NULL), "%s", sk_error());
	CHECK(!sk_wait(rank->state, step, SK_COMPLETE, 60000));
	CHECK(!gpu_device_bytes(&g));
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	CHECK(!setenv("VCUDA_DEVICES", "2", 0));
	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "64M", 1));
	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "over", 1, moves, &(enum way){ OVER });
	scene_ranks(&scene, "anew", 1, moves, &(enum way){ ANEW });
	scene_ranks(&scene, "leaves", 1, leaves, NULL);
	scene_close(&scene);
	return 0;
}
