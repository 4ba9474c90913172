/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver that locks no memory: snapshots are slower, and as right, and who
 * looks after the node is told, by status, doctor and metrics, for as long as
 * it is so.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/gpu-rank.h"
#include "state/state.h"

#define TELLS_US 50000u		/* the agent looks every two seconds */
#define TELLS_MOST 1000		/* times */

static bool says(struct scene *scene, const char *what, const char *text)
{
	FILE *f = scene_ask(scene, what);
	bool found = false;
	char line[512];

	while (fgets(line, sizeof(line), f))
		found |= strstr(line, text) != NULL;
	(void)pclose(f);	/* 7: something is not as it should be */
	return found;
}

static void comes_to(struct scene *scene, bool degraded)
{
	int n = 0;

	while (says(scene, "status", "gpu-pageable") != degraded) {
		CHECK(++n < TELLS_MOST, "it never came to %d", degraded);
		usleep(TELLS_US);
	}
	CHECK(says(scene, "doctor", "gpu-pageable") == degraded);
	CHECK(says(scene, "stats --prometheus",
		   "shardkeep_degraded{state=\"gpu-pageable\"} 1") ==
	      degraded);
}

static void add(struct gpu_rank *g)
{
	gpu_add(g, &(struct sk_tensor){
		.name = "x", .dtype = SK_F32, .ndim = 1,
		.shape = { 100000 } }, 400000, 1);
	gpu_add_host(g, &(struct sk_tensor){
		.name = "host", .dtype = SK_F32, .ndim = 1,
		.shape = { 1000 } }, 4000, 1);
}

static void is_right(struct gpu_rank *g, int64_t step)
{
	gpu_fill(g, 77);
	CHECK(!rank_restore(g->rank, step, 0, NULL), "%s", sk_error());
	CHECK(!gpu_wrong(g, step, 0));
}

static void never(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add(&g);
	gpu_fill(&g, 1);
	gpu_complete(&g, 1);
	CHECK(g.cuda.count("pageable") > 0);
	comes_to(rank->scene, true);
	is_right(&g, 1);
}

/* As locked_later() of gpu.c has it. */
static void later(struct rank *rank)
{
	struct gpu_rank g;
	int64_t step = 0;

	gpu_begin(&g, rank, 0);
	add(&g);
	g.cuda.fail("cuMemHostRegister", 2, SK_CU_OUT_OF_MEMORY);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	/* One of the slots is not, whichever the last snapshot was in. */
	for (int i = 0; i < 2; i++) {
		gpu_fill(&g, ++step);
		gpu_complete(&g, step);
		comes_to(rank->scene, true);
	}
	for (uint32_t i = 0; i < rank->state->n_slots; i++) {
		struct sk_again *again = &rank->state->slots[i].lock_again;

		if (again->at_ns != SK_FOREVER)
			again->at_ns = 1;
	}
	for (int i = 0; i < 4; i++) {
		gpu_fill(&g, ++step);
		gpu_complete(&g, step);
	}
	comes_to(rank->scene, false);
	is_right(&g, step);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	if (trainer_cuda_open(&t, NULL) < 0 || !t.calls)
		return 77;
	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "later", 1, later, NULL);
	CHECK(!setenv("VCUDA_MODE", "no-register", 1));
	scene_ranks(&scene, "never", 1, never, NULL);
	/* Whose it was is gone; who asks the driver is told still. */
	comes_to(&scene, false);
	CHECK(says(&scene, "doctor", "page-locks no memory"));
	CHECK(!unsetenv("VCUDA_MODE"));
	CHECK(!says(&scene, "doctor", "page-locks no memory"));
	CHECK(!setenv("VCUDA_FAILS", "cuDevicePrimaryCtxRetain", 1));
	CHECK(says(&scene, "doctor", "does not begin"));
	scene_close(&scene);
	return 0;
}
