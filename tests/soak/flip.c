/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bits flip in the agent's memory or in the store's files, headers too. A
 * restore brings back a whole snapshot or says that it cannot; never a wrong
 * byte.
 */
#include "soak/soak.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define WORLD_MOST 4
#define FILES_MOST 64
#define OLD 10
#define NEW 20

struct saved {
	uint64_t seed, life;
	int world;
	bool disk;
	char job[40];
};

static void save(struct rank *rank)
{
	const struct saved *s = rank->arg;

	model_describe(rank, s->seed, 0);
	for (int64_t step = OLD; step <= NEW; step += NEW - OLD) {
		rank_write(rank, step);
		rank_snapshot(rank, step, s->disk ? SK_DURABLE : SK_COMPLETE);
	}
}

/* A snapshot, the newest or the one before it, or the word that there is
 * none; each rank looks at its own bytes. */
static void load(struct rank *rank)
{
	const struct saved *s = rank->arg;
	uint32_t flags = s->disk ? SK_RESTORE_DISK_ONLY :
				   SK_RESTORE_MEMORY_ONLY;
	struct sk_report report;
	int r;

	model_describe(rank, s->seed, s->life);
	r = rank_restore(rank, SK_LATEST, flags, &report);
	if (r < 0) {
		CHECK(r == -EBADMSG || r == -ENOENT || r == -EIO,
		      "seed %llu: %d: %s", (unsigned long long)s->seed, r,
		      sk_error());
		return;
	}
	CHECK(report.step == OLD || report.step == NEW);
	CHECK(!rank_wrong(rank, report.step,
			  rank->rank < s->world ? rank->rank : -1),
	      "seed %llu: wrong bytes of step %lld",
	      (unsigned long long)s->seed, (long long)report.step);
}

/* ---- what may be damaged ---- */

struct files {
	char *paths[FILES_MOST];
	int n;
};

static void add_path(struct files *f, const char *path)
{
	if (f->n < FILES_MOST)
		f->paths[f->n++] = strdup(path);
}

/* The agent's slots of the job, by the names that it gives to memory. */
static void find_slots(const struct scene *scene, const char *job,
		       struct files *ret)
{
	char dir[64], want[64];
	struct dirent *entry;
	DIR *d;

	(void)snprintf(dir, sizeof(dir), "/proc/%d/fd", (int)scene->agent);
	(void)snprintf(want, sizeof(want), "shardkeep:%s:", job);
	d = opendir(dir);
	CHECK(d);
	while ((entry = readdir(d))) {
		char path[sizeof(dir) + sizeof(entry->d_name) + 1];
		char target[256];
		ssize_t n;

		(void)snprintf(path, sizeof(path), "%s/%s", dir,
			       entry->d_name);
		n = readlink(path, target, sizeof(target) - 1);
		if (n < 0)
			continue;
		target[n] = 0;
		if (strstr(target, want))
			add_path(ret, path);
	}
	closedir(d);
}

/* nftw() has no argument for its caller. */
static struct files *found;
static const char *found_job;

static int look_at(const char *path, const struct stat *st, int type,
		   struct FTW *ftw)
{
	(void)st;
	(void)ftw;
	if (type == FTW_F && strstr(path, found_job) &&
	    strstr(path, ".safetensors"))
		add_path(found, path);
	return 0;
}

static void find_stored(const struct scene *scene, const char *job,
			struct files *ret)
{
	found = ret;
	found_job = job;
	CHECK(!nftw(scene->store, look_at, 16, FTW_PHYS));
}

static void flip_one(const char *path, struct dice *dice)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct stat st;
	uint64_t at;
	char byte;

	CHECK(fd >= 0, "%s", path);
	CHECK(!fstat(fd, &st) && st.st_size > 0);
	at = dice_below(dice, (uint64_t)st.st_size);
	if (!dice_below(dice, 2))	/* the header is small, and matters */
		at %= 8192;
	CHECK(pread(fd, &byte, 1, (off_t)at) == 1);
	byte ^= (char)(1 << dice_below(dice, 8));
	CHECK(pwrite(fd, &byte, 1, (off_t)at) == 1);
	close(fd);
}

void trial_flip(struct scene *scene, uint64_t seed, struct tally *tally)
{
	struct dice dice = dice_of(seed);
	struct saved s = { .seed = seed };
	struct files files = { .n = 0 };
	int world;

	(void)snprintf(s.job, sizeof(s.job), "flip-%llu",
		       (unsigned long long)seed);
	s.world = 1 + (int)dice_below(&dice, WORLD_MOST);
	world = 1 + (int)dice_below(&dice, WORLD_MOST);
	s.disk = dice_below(&dice, 2);
	s.life = 1;
	scene_ranks(scene, s.job, s.world, save, &s);
	if (s.disk)
		find_stored(scene, s.job, &files);
	else
		find_slots(scene, s.job, &files);
	CHECK(files.n, "nothing of job %s to damage", s.job);
	for (uint64_t i = 1 + dice_below(&dice, 4); i; i--) {
		flip_one(files.paths[dice_below(&dice, (uint64_t)files.n)],
			 &dice);
		tally->flips++;
	}
	while (files.n)
		free(files.paths[--files.n]);
	/* What a start reads anew, too. */
	if (s.disk && dice_below(&dice, 2)) {
		scene_stop_agent(scene, SIGKILL);
		scene_start_agent(scene);
	}
	scene_ranks(scene, s.job, world, load, &s);
	tally->restores++;
}
