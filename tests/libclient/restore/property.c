/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any mesh to any mesh, by processes and an agent: each case saves a random
 * state on 1 to 4 ranks, lets them end, and restores it on 1 to 4 others with
 * other meshes and placements, from memory and from disk; every third without
 * replicas.
 */
#include <stdio.h>

#include "libclient/restore/random.h"
#include "tensor/dtype.h"

static void add(struct rank *rank, const struct sk_tensor *t, int i,
		void *ctx)
{
	(void)i;
	(void)ctx;
	rank_tensor(rank, t, 0xee);
}

static void save(struct rank *rank)
{
	const struct random_test *test = rank->arg;

	random_describe(rank, test, 0, add, NULL);
	rank_write(rank, 10);
	rank_snapshot(rank, 10, test->disk ? SK_DURABLE : SK_COMPLETE);
}

/* Each byte is read once, whoever else reads it. */
static uint64_t bytes_of(const struct rank *rank, bool was_there)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < rank->state->n_locals; i++) {
		const struct sk_local *local = &rank->state->locals[i];
		const struct sk_spec *spec = &local->item.spec;
		uint64_t bits = (uint64_t)sk_dtype_bits(spec->dtype);

		if (local->item.kind == SK_ITEM_BLOB_LOCAL && !was_there)
			continue;
		for (int p = 0; p < local->item.n_boxes; p++)
			bytes += (uint64_t)sk_box_volume(spec->ndim,
					&local->parts[p].box) * bits / 8;
	}
	return bytes;
}

static void load(struct rank *rank)
{
	const struct random_test *test = rank->arg;
	uint32_t flags = test->disk ? SK_RESTORE_DISK_ONLY :
				      SK_RESTORE_MEMORY_ONLY;
	struct sk_report report;
	int owner = rank->rank < test->world[0] ? rank->rank : -1;

	random_describe(rank, test, 1, add, NULL);
	CHECK(!rank_restore(rank, SK_LATEST, flags, &report),
	      "seed %llu: %s", (unsigned long long)test->seed, sk_error());
	CHECK(report.step == 10 && report.world == test->world[0]);
	CHECK(!rank_wrong(rank, 10, owner), "seed %llu, %d to %d ranks",
	      (unsigned long long)test->seed, test->world[0], test->world[1]);
	CHECK((test->disk ? report.bytes_memory : report.bytes_disk) == 0);
	CHECK(report.bytes_memory + report.bytes_disk ==
	      bytes_of(rank, owner >= 0), "seed %llu, %d to %d ranks: %llu of "
	      "%llu", (unsigned long long)test->seed, test->world[0],
	      test->world[1],
	      (unsigned long long)(report.bytes_memory + report.bytes_disk),
	      (unsigned long long)bytes_of(rank, owner >= 0));
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	for (uint64_t seed = 1; seed <= 24; seed++) {
		struct random_test test;
		char job[32];

		random_test(&test, seed);
		scene.job_flags = seed % 3 == 1 ? SK_JOB_NO_REPLICAS : 0;
		(void)snprintf(job, sizeof(job), "property-%d", (int)seed);
		scene_ranks(&scene, job, test.world[0], save, &test);
		scene_ranks(&scene, job, test.world[1], load, &test);
	}
	scene_close(&scene);
	return 0;
}
