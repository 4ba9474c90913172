/* SPDX-License-Identifier: Apache-2.0 */
/* Any mesh to any mesh, from memory or from disk, by processes and an agent. */
#include "soak/soak.h"

#include <stdio.h>

#define STEP 10
#define WORLD_MOST 6

struct saved {
	uint64_t seed, life;
	int world;		/* that saved */
	bool disk;
};

static void save(struct rank *rank)
{
	const struct saved *s = rank->arg;

	model_describe(rank, s->seed, s->life);
	rank_write(rank, STEP);
	rank_snapshot(rank, STEP, s->disk ? SK_DURABLE : SK_COMPLETE);
}

static void load(struct rank *rank)
{
	const struct saved *s = rank->arg;
	uint32_t flags = s->disk ? SK_RESTORE_DISK_ONLY :
				   SK_RESTORE_MEMORY_ONLY;
	struct sk_report report;

	model_describe(rank, s->seed, s->life);
	CHECK(!rank_restore(rank, SK_LATEST, flags, &report), "seed %llu: %s",
	      (unsigned long long)s->seed, sk_error());
	CHECK(report.step == STEP && report.world == s->world);
	CHECK(!rank_wrong(rank, STEP, rank->rank < s->world ? rank->rank : -1),
	      "seed %llu, %d to %d ranks", (unsigned long long)s->seed,
	      s->world, rank->world);
}

void trial_property(struct scene *scene, uint64_t seed, struct tally *tally)
{
	struct dice dice = dice_of(seed);
	struct saved s = { .seed = seed };
	char job[40];
	int world;

	(void)snprintf(job, sizeof(job), "property-%llu",
		       (unsigned long long)seed);
	s.world = 1 + (int)dice_below(&dice, WORLD_MOST);
	world = 1 + (int)dice_below(&dice, WORLD_MOST);
	s.disk = dice_below(&dice, 2);
	scene->job_flags = dice_below(&dice, 2) ? 0 : SK_JOB_NO_REPLICAS;
	scene_ranks(scene, job, s.world, save, &s);
	s.life = 1;
	scene_ranks(scene, job, world, load, &s);
	scene->job_flags = 0;
	tally->restores++;
}
