/* SPDX-License-Identifier: Apache-2.0 */
/* The store's index saves looking, and never says what is not so. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common.h"
#include "store/history.h"

#define STEPS 12
#define NAMES (2 * STEPS)
#define PATH 320
#define INDEX SK_INDEX_DIR "/job"

struct desk {
	struct place place;
	struct sk_fault_os fault;
	struct sk_store *store;
	struct sk_history *history;
	uint64_t runs[NAMES];	/* what is there; 0: no such directory */
};

/* What has been written is an hour old for who looks at it. */
static void set_clock(struct desk *d, int64_t ahead_s)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	sk_fault_os_clock(&d->fault, 1, ((uint64_t)now.tv_sec +
					 (uint64_t)ahead_s) * 1000000000);
}

static void restart(struct desk *d)
{
	sk_history_free(d->history);
	d->history = sk_history_new("job");
	cr_assert_not_null(d->history);
}

static void desk_open(struct desk *d)
{
	*d = (struct desk){ 0 };
	d->store = make_store(&d->place, &d->fault);
	restart(d);
	set_clock(d, 3600);
	make_dir(&d->place, "job");
}

static void desk_close(struct desk *d)
{
	sk_history_free(d->history);
	sk_store_close(d->store);
	place_remove(&d->place);
}

static void path_of(const struct desk *d, const char *name, char path[PATH])
{
	(void)snprintf(path, PATH, "%s/%s", d->place.store, name);
}

/* The even ones are a step's own names, the odd ones set aside. */
static const char *name_of(size_t i)
{
	static char name[SK_STORE_NAME_MAX];

	if (i % 2)
		sk_step_name_displaced(name, i / 2, 1, 1);
	else
		sk_step_name_format(name, i / 2);
	return name;
}

static void make_step(struct desk *d, size_t i, uint64_t number)
{
	const struct sk_store_run run = run_named(number);
	char name[192], text[SK_RUN_TEXT_MAX + 1];

	(void)snprintf(name, sizeof(name), "job/%s", name_of(i));
	make_dir(&d->place, name);
	strcat(name, "/" SK_RUN_FILE);
	sk_run_text_format(text, &run);
	strcat(text, "\n");
	make_file(&d->place, name, text);
	d->runs[i] = number;
}

static void remove_step(struct desk *d, size_t i)
{
	char name[192], path[PATH];

	(void)snprintf(name, sizeof(name), "job/%s", name_of(i));
	path_of(d, name, path);
	cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, path), 0);
	d->runs[i] = 0;
}

static uint64_t ctime_of(const char *path)
{
	struct stat st;

	cr_assert_eq(stat(path, &st), 0, "%s", path);
	return sk_file_time_ns(&st.st_ctim);
}

/* Until what is changed from here on has another time than what has been. */
static void pass_tick(const struct desk *d)
{
	char job[PATH], tick[PATH];

	path_of(d, "job", job);
	path_of(d, "tick", tick);
	do
		make_file(&d->place, "tick", "x");
	while (ctime_of(tick) <= ctime_of(job));
}

static void look_at(struct desk *d)
{
	struct sk_err err = { "" };

	cr_assert_eq(sk_history_look(d->history, d->store, &err), 0, "%s",
		     err.text);
}

/* Looks; how many calls of @op that took. */
static uint64_t look(struct desk *d, enum sk_fault_op op)
{
	uint64_t before = sk_fault_os_calls(&d->fault, op);

	look_at(d);
	return sk_fault_os_calls(&d->fault, op) - before;
}

/* Looks at what is not proved, a portion at a time; how many calls of @op that
 * took. */
static uint64_t prove(struct desk *d, size_t portion, enum sk_fault_op op)
{
	uint64_t before = sk_fault_os_calls(&d->fault, op);
	struct sk_err err = { "" };

	while (sk_history_unproved(d->history)) {
		size_t left = sk_history_unproved(d->history);

		cr_assert_eq(sk_history_prove_some(d->history, d->store,
						   portion, &err), 0, "%s",
			     err.text);
		cr_assert_lt(sk_history_unproved(d->history), left);
		cr_assert_geq(sk_history_unproved(d->history) + portion, left);
	}
	return sk_fault_os_calls(&d->fault, op) - before;
}

static void save(struct desk *d)
{
	struct sk_err err = { "" };

	cr_assert_eq(sk_history_save(d->history, d->store, &err), 0, "%s",
		     err.text);
	cr_assert_not(sk_history_unsaved(d->history));
}

/* What is known, and proved, is what is there. */
static void check(struct desk *d, const char *when)
{
	size_t n = 0;

	(void)prove(d, 2, SK_FAULT_ANY);
	for (size_t i = 0; i < NAMES; i++) {
		const struct sk_history_step *s =
			sk_history_find(d->history, name_of(i));
		const struct sk_store_run run = run_named(d->runs[i]);

		cr_assert_eq(!s, !d->runs[i], "%s: %s", when, name_of(i));
		cr_assert(!s || sk_store_run_equal(&s->run, &run),
			  "%s: %s is said to be of run %lu, and is of %lu",
			  when, name_of(i), s ? s->run.number : 0, run.number);
		n += s != NULL;
	}
	cr_assert_eq(sk_history_count(d->history), n, "%s", when);
}

/* ---- what it saves ---- */

static void make_steps(struct desk *d, size_t n)
{
	char name[64];

	for (size_t i = 0; i < n; i++) {
		const struct sk_store_run run = run_named(1);
		char text[SK_RUN_TEXT_MAX + 1];

		(void)snprintf(name, sizeof(name), "job/step-%012zu", i);
		make_dir(&d->place, name);
		strcat(name, "/" SK_RUN_FILE);
		sk_run_text_format(text, &run);
		strcat(text, "\n");
		make_file(&d->place, name, text);
	}
}

Test(index, a_first_look_does_the_same_however_many_there_are)
{
	uint64_t any[2], without[2];

	for (int k = 0; k < 2; k++) {
		struct desk d;

		desk_open(&d);
		make_steps(&d, k ? 300 : 10);
		without[k] = look(&d, SK_FAULT_ANY);
		cr_assert(sk_history_unsaved(d.history));
		save(&d);
		restart(&d);
		any[k] = look(&d, SK_FAULT_ANY);
		cr_assert_eq(sk_history_count(d.history), k ? 300 : 10);
		cr_assert_not(sk_history_unsaved(d.history));
		desk_close(&d);
	}
	cr_assert_eq(any[0], any[1], "%lu, %lu", any[0], any[1]);
	cr_assert_gt(without[1], without[0] + 290);
}

/* As after an agent that was killed: what came since is looked at, no more.
 * The others' turn comes later, in portions. */
Test(index, what_came_since_is_looked_at_alone)
{
	uint64_t opens[2], stats[2];

	for (int k = 0; k < 2; k++) {
		struct desk d;

		desk_open(&d);
		make_steps(&d, k ? 300 : 30);
		look_at(&d);
		save(&d);
		pass_tick(&d);
		make_step(&d, 3, 7);
		restart(&d);
		stats[k] = sk_fault_os_calls(&d.fault, SK_FAULT_FSTATAT);
		opens[k] = look(&d, SK_FAULT_OPENAT);
		stats[k] = sk_fault_os_calls(&d.fault, SK_FAULT_FSTATAT) -
			   stats[k];
		cr_assert_eq(sk_history_count(d.history), k ? 301 : 31);
		cr_assert(sk_history_unsaved(d.history));
		cr_assert_eq(sk_history_at(d.history, 0)->run.number, 7);
		/* One that took another's place is looked at at once. */
		cr_assert_eq(sk_history_unproved(d.history), k ? 300 : 30);
		cr_assert_geq(prove(&d, 16, SK_FAULT_FSTATAT), k ? 300 : 30);
		desk_close(&d);
	}
	cr_assert_eq(opens[0], opens[1], "%lu, %lu", opens[0], opens[1]);
	cr_assert_eq(stats[0], stats[1], "%lu, %lu", stats[0], stats[1]);
}

static uint64_t device_of(const struct desk *d)
{
	struct stat st;
	char path[PATH];

	path_of(d, "job", path);
	cr_assert_eq(stat(path, &st), 0, "%s", path);
	return st.st_dev;
}

static struct sk_file_id file_of(const struct sk_history_step *s, int rank)
{
	return (struct sk_file_id){ .inode = 1000 * s->step + (uint64_t)rank,
				    .bytes = 5 * SK_PAGE, .mtime_ns = 6,
				    .ctime_ns = 7 };
}

/* As its header was read. */
static void note_file(struct desk *d, const char *name, int rank)
{
	struct sk_history_step *s = sk_history_find(d->history, name);
	struct sk_history_file file = { .rank = rank, .world = 4 };

	file.id = file_of(s, rank);
	file.run = s->run;
	file.content[0] = file.id.inode + 1;
	cr_assert_eq(sk_layout_new("job", rank, 4, SK_IMAGE_PRIMARY, NULL, 0,
				   &file.layout, NULL), 0);
	cr_assert_not_null(sk_history_file_note(s, &file));
	sk_layout_free(file.layout);
}

static bool is_known(struct desk *d, const char *name, int rank, bool changed)
{
	const struct sk_history_step *s = sk_history_find(d->history, name);
	struct sk_file_id id = file_of(s, rank);
	struct sk_layout_brief brief;
	uint64_t content[2];

	id.device = device_of(d);
	id.mtime_ns += changed;
	return sk_history_brief_find(d->history, s, rank, 4, &id, &brief,
				     content) &&
	       brief.rank == rank && content[0] == id.inode + 1;
}

/* What headers said is known to the next agent, each of its step and rank, as
 * long as it is the same file: none is read again. */
Test(index, what_headers_said_is_known_to_the_next)
{
	const char *steps[] = { "step-000000000000", "step-000000000001",
				"step-000000000002" };
	struct desk d;

	desk_open(&d);
	make_steps(&d, 3);
	look_at(&d);
	note_file(&d, steps[0], 0);
	note_file(&d, steps[0], 3);
	note_file(&d, steps[2], 1);
	save(&d);
	restart(&d);
	look_at(&d);
	for (size_t i = 0; i < SK_ARRAY_SIZE(steps); i++)
		for (int rank = 0; rank < 4; rank++) {
			bool noted = i == 0 ? rank % 3 == 0 :
					      i == 2 && rank == 1;

			cr_assert_eq(is_known(&d, steps[i], rank, false),
				     noted, "%s, rank %d", steps[i], rank);
			cr_assert_not(is_known(&d, steps[i], rank, true));
		}
	desk_close(&d);
}

/* ---- what is not believed ---- */

/* The step is another run's, and whatever the index says is not so. */
static void replace_first(struct desk *d)
{
	remove_step(d, 0);
	make_step(d, 0, 8);
}

static void prepare(struct desk *d)
{
	desk_open(d);
	make_step(d, 0, 2);
	make_step(d, 4, 2);
	make_step(d, 5, 1);
	look_at(d);
	save(d);
	check(d, "at first");
	pass_tick(d);
	restart(d);
}

Test(index, another_directory_of_the_name_is_another)
{
	struct desk d;

	prepare(&d);
	replace_first(&d);
	look_at(&d);
	check(&d, "replaced");
	desk_close(&d);
}

/* Also where the inode is the same: whoever asks of that step knows it at
 * once, and it stands where it belongs. */
Test(index, what_is_asked_about_is_proved_at_once)
{
	struct sk_history_step *s;
	bool others = false;
	struct desk d;

	prepare(&d);
	replace_first(&d);
	look_at(&d);
	s = sk_history_find(d.history, name_of(0));
	cr_assert_eq(sk_history_prove(d.history, d.store, &s, 1, &others,
				      NULL), 0);
	cr_assert_eq(s->run.number, 8);
	cr_assert_eq(sk_history_at(d.history, 0), s);
	check(&d, "proved");
	desk_close(&d);
}

/* An index that was written meanwhile proves nothing either. */
Test(index, what_was_not_proved_is_not_when_it_is_read)
{
	struct desk d;

	prepare(&d);
	replace_first(&d);
	look_at(&d);
	save(&d);
	restart(&d);
	cr_assert_eq(look(&d, SK_FAULT_GETDENTS), 0);
	cr_assert_geq(sk_history_unproved(d.history), 2);
	check(&d, "read");
	cr_assert(sk_history_unsaved(d.history));
	save(&d);
	restart(&d);
	cr_assert_eq(look(&d, SK_FAULT_GETDENTS), 0);
	cr_assert_eq(sk_history_unproved(d.history), 0);
	check(&d, "read again");
	desk_close(&d);
}

/* It has other inodes, and what is in it need not be what was there. */
Test(index, a_store_that_was_copied_is_looked_at)
{
	char command[512];
	struct desk d;

	prepare(&d);
	(void)snprintf(command, sizeof(command), "cp -a %s/job %s/copy && "
		       "rm -r %s/job && mv %s/copy %s/job", d.place.store,
		       d.place.store, d.place.store, d.place.store,
		       d.place.store);
	cr_assert_eq(system(command), 0);
	replace_first(&d);
	look_at(&d);
	check(&d, "copied");
	desk_close(&d);
}

static const char *const strange[] = {
	"rm %1$s/" INDEX " && mkfifo %1$s/" INDEX,
	"rm %1$s/" INDEX " && mkdir %1$s/" INDEX,
	"mv %1$s/" INDEX " %1$s/other && ln -s %1$s/other %1$s/" INDEX,
	"chmod 0622 %1$s/" INDEX,
	/* Another user's; who may not give it away does without. */
	"chown 54321 %1$s/" INDEX " 2>/dev/null || rm %1$s/" INDEX,
	": > %1$s/" INDEX,
	"chmod 0 %1$s/" INDEX " && rm %1$s/" INDEX " && touch %1$s/" INDEX,
	"rm -r %1$s/" SK_INDEX_DIR " && touch %1$s/" SK_INDEX_DIR,
	"mv %1$s/" SK_INDEX_DIR " %1$s/x && ln -s x %1$s/" SK_INDEX_DIR,
};

/* Whatever stands in its place, the look is one without it. */
Test(index, what_is_no_index_of_ours_is_as_good_as_none)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(strange); i++) {
		char command[1024];
		struct desk d;

		prepare(&d);
		(void)snprintf(command, sizeof(command), strange[i],
			       d.place.store);
		cr_assert_eq(system(command), 0, "%s", command);
		cr_assert_geq(look(&d, SK_FAULT_PREAD), 2 * 3, "%s", command);
		check(&d, command);
		desk_close(&d);
	}
}

/* Nor is that of another job, though all in it holds. */
Test(index, that_of_another_job_is_not_read)
{
	char from[PATH], to[PATH];
	struct desk d;

	prepare(&d);
	path_of(&d, "job", from);
	path_of(&d, "other", to);
	cr_assert_eq(rename(from, to), 0);
	path_of(&d, INDEX, from);
	path_of(&d, SK_INDEX_DIR "/other", to);
	cr_assert_eq(rename(from, to), 0);
	sk_history_free(d.history);
	d.history = sk_history_new("other");
	cr_assert_geq(look(&d, SK_FAULT_PREAD), 2 * 3);
	check(&d, "another job");
	desk_close(&d);
}

Test(index, one_from_a_time_to_come_is_not_read)
{
	struct desk d;

	prepare(&d);
	set_clock(&d, -3600);
	cr_assert_geq(look(&d, SK_FAULT_PREAD), 2 * 3);
	check(&d, "the clock went back");
	desk_close(&d);
}

static size_t read_index(const struct desk *d, char *bytes, size_t size)
{
	char path[PATH];
	ssize_t n;
	int fd;

	path_of(d, INDEX, path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, bytes, size);
	cr_assert(n >= 0 && (size_t)n < size, "%s", path);
	close(fd);
	return (size_t)n;
}

static void write_index(const struct desk *d, const char *bytes, size_t n)
{
	char path[PATH];
	int fd;

	path_of(d, INDEX, path);
	fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	cr_assert(fd >= 0 && write(fd, bytes, n) == (ssize_t)n, "%s", path);
	close(fd);
}

/* Every byte of it counts, and every length. */
Test(index, a_damaged_one_is_not_believed)
{
	char bytes[4096];
	struct desk d;
	size_t n;

	prepare(&d);
	n = read_index(&d, bytes, sizeof(bytes));
	for (size_t i = 0; i < n; i++) {
		bytes[i] ^= 0x10;
		write_index(&d, bytes, n);
		restart(&d);
		cr_assert_geq(look(&d, SK_FAULT_PREAD), 2 * 3, "byte %zu", i);
		check(&d, "damaged");
		bytes[i] ^= 0x10;
	}
	for (size_t i = 0; i < n; i += 7) {
		write_index(&d, bytes, i);
		restart(&d);
		cr_assert_geq(look(&d, SK_FAULT_PREAD), 2 * 3, "%zu", i);
		check(&d, "cut off");
	}
	write_index(&d, bytes, n);
	restart(&d);
	cr_assert_leq(look(&d, SK_FAULT_PREAD), 1);
	check(&d, "whole again");
	desk_close(&d);
}

/* ---- what stands in its way ---- */

static size_t count_in_index(const struct desk *d)
{
	char path[PATH], command[PATH + 64];
	size_t n = 0;
	FILE *f;

	path_of(d, SK_INDEX_DIR, path);
	(void)snprintf(command, sizeof(command), "ls -A %s 2>/dev/null | "
		       "wc -l", path);
	f = popen(command, "r");
	cr_assert(f && fscanf(f, "%zu", &n) == 1);
	pclose(f);
	return n;
}

/* It is not written, or only half: what was there holds on, and nothing is
 * left behind. */
Test(index, one_that_cannot_be_written_does_no_harm)
{
	static const struct {
		enum sk_fault_op op;
		int error;
	} faults[] = {
		{ SK_FAULT_OPENAT, EACCES }, { SK_FAULT_OPENAT, EROFS },
		{ SK_FAULT_OPENAT, EMFILE }, { SK_FAULT_PWRITE, ENOSPC },
		{ SK_FAULT_PWRITE, EIO },    { SK_FAULT_CLOSE, EDQUOT },
		{ SK_FAULT_RENAMEAT, EPERM },
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(faults); i++) {
		struct sk_err err = { "" };
		struct desk d;

		prepare(&d);
		make_step(&d, 8, 9);
		look_at(&d);
		sk_fault_os_fail(&d.fault, faults[i].op, 1, SK_FAULT_ALWAYS,
				 faults[i].error);
		cr_assert_lt(sk_history_save(d.history, d.store, &err), 0,
			     "%zu", i);
		cr_assert(strstr(err.text, "\"job\""), "%s", err.text);
		d.fault.rule_count = 0;
		cr_assert_eq(count_in_index(&d), 1, "%zu", i);
		restart(&d);
		look_at(&d);
		check(&d, err.text);
		desk_close(&d);
	}
}

/* A short write is gone on with. */
Test(index, is_written_and_read_in_pieces)
{
	struct desk d;

	prepare(&d);
	make_step(&d, 8, 9);
	look_at(&d);
	sk_fault_os_shorten(&d.fault, SK_FAULT_PWRITE, 1, SK_FAULT_ALWAYS, 5);
	sk_fault_os_shorten(&d.fault, SK_FAULT_PREAD, 1, SK_FAULT_ALWAYS, 7);
	save(&d);
	restart(&d);
	pass_tick(&d);
	cr_assert_eq(look(&d, SK_FAULT_GETDENTS), 0);
	check(&d, "in pieces");
	desk_close(&d);
}

/* Reading it fails: it is not there. */
Test(index, one_that_cannot_be_read_does_no_harm)
{
	struct desk d;

	prepare(&d);
	sk_fault_os_forget(&d.fault);
	sk_fault_os_fail(&d.fault, SK_FAULT_PREAD, 1, 1, EIO);
	cr_assert_geq(look(&d, SK_FAULT_OPENAT), 2 * 3);
	check(&d, "EIO");
	desk_close(&d);
}

/* ---- what is left ---- */

Test(index, of_a_job_that_is_gone_goes_with_the_sweep)
{
	char from[PATH], to[PATH];
	struct desk d;

	prepare(&d);
	make_file(&d.place, SK_INDEX_DIR "/.index.00112233aabbccdd.tmp", "x");
	make_file(&d.place, SK_INDEX_DIR "/gone", "x");
	make_file(&d.place, SK_INDEX_DIR "/.somebody's", "x");
	(void)sk_store_sweep(d.store, SK_STORE_DEAD_ONLY);
	cr_assert_eq(count_in_index(&d), 4);
	(void)sk_store_sweep(d.store, 600);
	cr_assert_eq(count_in_index(&d), 2);
	path_of(&d, "job", from);
	path_of(&d, ".elsewhere", to);
	cr_assert_eq(rename(from, to), 0);
	(void)sk_store_sweep(d.store, 600);
	cr_assert_eq(count_in_index(&d), 1);
	look_at(&d);
	cr_assert_eq(sk_history_count(d.history), 0);
	desk_close(&d);
}

/* ---- property ---- */

static uint64_t draw(uint64_t *seed, uint64_t n)
{
	*seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (*seed >> 33) % n;
}

/* Of what is there: added, removed, replaced, moved aside, or added to. */
static void meddle(struct desk *d, uint64_t *seed)
{
	size_t i = draw(seed, NAMES);
	uint64_t run = 1 + draw(seed, 5);
	char path[PATH], aside[PATH], name[192];

	if (!d->runs[i]) {
		make_step(d, i, run);
		return;
	}
	(void)snprintf(name, sizeof(name), "job/%s", name_of(i));
	path_of(d, name, path);
	switch (draw(seed, 4)) {
	case 0:
		remove_step(d, i);
		break;
	case 1:	/* mostly it gets the same inode */
		remove_step(d, i);
		make_step(d, i, run);
		break;
	case 2:
		strcat(name, "/more");
		make_file(&d->place, name, "x");
		break;
	default:
		if (i % 2 || d->runs[i + 1])
			break;
		(void)snprintf(name, sizeof(name), "job/%s", name_of(i + 1));
		path_of(d, name, aside);
		cr_assert_eq(rename(path, aside), 0);
		d->runs[i + 1] = d->runs[i];
		d->runs[i] = 0;
		make_step(d, i, run);
	}
}

/* Another byte, another length, one from before, or none. */
static void damage(struct desk *d, uint64_t *seed, char *old, size_t *n_old)
{
	char bytes[8192];
	size_t n = 0;

	if (!exists(&d->place, INDEX))
		return;
	n = read_index(d, bytes, sizeof(bytes));
	switch (n ? draw(seed, 4) : 3) {
	case 0:
		bytes[draw(seed, n)] ^= (char)(1 + draw(seed, 255));
		write_index(d, bytes, n);
		break;
	case 1:
		write_index(d, bytes, draw(seed, n));
		break;
	case 2:
		memcpy(old, bytes, n);
		*n_old = n;
		break;
	default:
		if (*n_old)
			write_index(d, old, *n_old);
	}
}

Test(index, whatever_happens_it_says_nothing_that_is_not_so)
{
	unsigned looks = 0, saved = 0;
	char old[8192];

	for (uint64_t seed = 1; seed <= 20; seed++) {
		uint64_t random = seed * 77;
		size_t n_old = 0;
		struct desk d;

		desk_open(&d);
		for (int i = 0; i < 60; i++) {
			char when[64];

			(void)snprintf(when, sizeof(when), "seed %lu, %d",
				       seed, i);
			if (draw(&random, 3))
				meddle(&d, &random);
			if (!draw(&random, 4))
				damage(&d, &random, old, &n_old);
			if (!draw(&random, 2))
				restart(&d);
			if (!look(&d, SK_FAULT_GETDENTS))
				saved++;
			looks++;
			check(&d, when);
			if (!draw(&random, 3))
				save(&d);
			pass_tick(&d);
		}
		desk_close(&d);
	}
	/* It was of use at times. */
	cr_assert_gt(saved, looks / 20, "%u of %u", saved, looks);
}
