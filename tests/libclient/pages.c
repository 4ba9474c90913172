/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A system whose pages are 64 KiB, by tests/support/big-pages.c: slots lie in
 * those, and nobody is told that they are small.
 * Arguments: paths of shardkeepd and cachectl.
 */
#include "libclient/restore/common.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* More than two pieces of a slot, and no whole number of pages. */
#define BYTES ((INT64_C(70) << 20) + 4097)

static void describe(struct rank *rank)
{
	static const int64_t sizes[] = { BYTES, 70000, 3 };
	char name[] = "a";

	for (int i = 0; i < 3; i++, name[0]++)
		(void)rank_tensor(rank, &(struct sk_tensor){
			.name = name, .dtype = SK_U8, .ndim = 1,
			.shape = { sizes[i] } }, 0);
}

static void save(struct rank *rank)
{
	describe(rank);
	for (int64_t step = 1; step < 5; step++) {
		rank_write(rank, step);
		rank_snapshot(rank, step, SK_DURABLE);
	}
}

static void load(struct rank *rank)
{
	describe(rank);
	CHECK(!rank_restore(rank, SK_LATEST, 0, NULL), "%s", sk_error());
	CHECK(!rank_wrong(rank, 4, -1));
}

static bool says(struct scene *scene, const char *what, const char *words)
{
	FILE *f = scene_ask(scene, what);
	bool found = false;
	char line[1024];

	while (fgets(line, sizeof(line), f))
		found |= strstr(line, words) != NULL;
	(void)pclose(f);	/* 7: something is not as it should be */
	return found;
}

int main(int argc, char **argv)
{
	struct scene scene;

	CHECK(sysconf(_SC_PAGESIZE) > 4096, "they are not large");
	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "pages", 1, save, NULL);
	CHECK(says(&scene, "status", "memory"));
	CHECK(!says(&scene, "status", "small-pages"));
	CHECK(says(&scene, "doctor", "slots lie in pages of 64 KiB"));
	scene_ranks(&scene, "pages", 1, load, NULL);
	scene_close(&scene);
	return 0;
}
