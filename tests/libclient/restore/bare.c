/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model that each rank has whole, of a job with replicas and of one without:
 * what the agent needs for it, who has it after they are killed, and what each
 * of them gives up where one rank did not save.
 * Argument: path of shardkeepd.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "libclient/restore/common.h"
#include "support/await.h"

#define RANKS 4
#define TENSORS 8
#define ELEMENTS (1 << 20)
#define MODEL ((uint64_t)TENSORS * ELEMENTS * 4)

/* Two slots of one whole model, and little more: not of two. */
#define MEMORY "112M"

#define WORDS "without replicas (SK_JOB_NO_REPLICAS) each slot is 24.0 MiB less"

/* Of all ranks; their processes share it. */
struct counts {
	int tried, refused;
};

static void describe(struct rank *rank)
{
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);
	char name[16];

	for (int i = 0; i < TENSORS; i++) {
		(void)snprintf(name, sizeof(name), "layer.%d", i);
		rank_tensor(rank, &(struct sk_tensor){
			.name = name, .dtype = SK_F32, .ndim = 1,
			.shape = { ELEMENTS }, .mesh = mesh,
			.placements = { SK_REPLICATE } }, 0xee);
	}
	sk_mesh_release(mesh);
}

/* All are there until each has tried. */
static void ask_for_room(struct rank *rank)
{
	struct counts *c = (struct counts *)rank->arg;
	int r;

	describe(rank);
	r = sk_prepare(rank->state, 0);
	if (r < 0) {
		CHECK(r == -ENOMEM, "%d: %s", r, sk_error());
		CHECK(strstr(sk_error(), WORDS), "%s", sk_error());
		__atomic_fetch_add(&c->refused, 1, __ATOMIC_RELAXED);
	}
	__atomic_fetch_add(&c->tried, 1, __ATOMIC_RELEASE);
	AWAIT(__atomic_load_n(&c->tried, __ATOMIC_ACQUIRE) == RANKS,
	      "%d have", c->tried);
}

/* The last step is not the last rank's. */
static void save(struct rank *rank)
{
	describe(rank);
	for (int64_t step = 1; step <= 3; step++) {
		if (step == 3 && rank->rank == RANKS - 1)
			continue;
		rank_write(rank, step);
		rank_snapshot(rank, step, step < 3 ? SK_COMPLETE : SK_SEALED);
	}
	rank_ready(rank);
}

static void load(struct rank *rank)
{
	int64_t newest = rank->scene->job_flags & SK_JOB_NO_REPLICAS ? 2 : 3;
	struct sk_report report;

	describe(rank);
	CHECK(!rank_restore(rank, SK_LATEST, SK_RESTORE_MEMORY_ONLY, &report),
	      "%s", sk_error());
	CHECK(report.step == newest, "%d", (int)report.step);
	CHECK(!rank_wrong(rank, newest, rank->rank));
	CHECK(report.bytes_memory == MODEL, "%llu",
	      (unsigned long long)report.bytes_memory);
}

int main(int argc, char **argv)
{
	struct counts *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct scene scene;

	CHECK(c != MAP_FAILED);
	scene_open(&scene, argc, argv);
	scene_stop_agent(&scene, SIGTERM);
	scene.memory = MEMORY;
	scene_start_agent(&scene);
	scene_ranks(&scene, "room", RANKS, ask_for_room, c);
	CHECK(c->refused == RANKS - 1, "%d were refused", c->refused);
	scene.job_flags = SK_JOB_NO_REPLICAS;
	*c = (struct counts){ 0 };
	scene_ranks(&scene, "room", RANKS, ask_for_room, c);
	CHECK(!c->refused, "%d were refused", c->refused);
	scene_ranks_killed(&scene, "bare", RANKS, save, NULL);
	for (int world = 1; world <= 6; world++)
		scene_ranks(&scene, "bare", world, load, NULL);
	scene_close(&scene);
	scene_open(&scene, argc, argv);
	scene_ranks_killed(&scene, "held", RANKS, save, NULL);
	scene_ranks(&scene, "held", RANKS, load, NULL);
	/* It could not bring its last step to disk, and would say so. */
	scene_stop_agent(&scene, SIGKILL);
	scene_close(&scene);
	return 0;
}
