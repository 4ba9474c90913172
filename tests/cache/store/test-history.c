/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of step directories stays known while they stay the same, and
 * no longer. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common.h"
#include "store/history.h"

struct desk {
	struct place place;
	struct sk_fault_os fault;
	struct sk_store *store;
	struct sk_history *history;
};

/* @ahead_s: of the time at which files are written. */
static void set_clock(struct desk *d, uint64_t ahead_s)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	sk_fault_os_clock(&d->fault, 1, ((uint64_t)now.tv_sec + ahead_s) *
						1000000000);
}

static void desk_open(struct desk *d)
{
	d->store = make_store(&d->place, &d->fault);
	d->history = sk_history_new("job");
	cr_assert_not_null(d->history);
	set_clock(d, 3600);
}

static void desk_close(struct desk *d)
{
	sk_history_free(d->history);
	sk_store_close(d->store);
	place_remove(&d->place);
}

/* One with no more in it than its run; number 0: not even that. */
static void make_step(const struct desk *d, const char *name, uint64_t number)
{
	const struct sk_store_run run = run_named(number);
	char path[256], text[SK_RUN_TEXT_MAX];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/job", d->place.store);
	(void)mkdir(path, 0700);
	(void)snprintf(path, sizeof(path), "%s/job/%s", d->place.store, name);
	cr_assert_eq(mkdir(path, 0700), 0);
	if (!number)
		return;
	strcat(path, "/" SK_RUN_FILE);
	sk_run_text_format(text, &run);
	f = fopen(path, "w");
	cr_assert(f && fprintf(f, "%s\n", text) > 0 && !fclose(f));
}

static void remove_step(const struct desk *d, const char *name)
{
	char path[256];

	(void)snprintf(path, sizeof(path), "%s/job/%s", d->place.store, name);
	cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, path), 0);
}

/* Looks; how many calls of @op that took. */
static uint64_t look(struct desk *d, enum sk_fault_op op)
{
	uint64_t before = sk_fault_os_calls(&d->fault, op);
	struct sk_err err = { "" };

	cr_assert_eq(sk_history_look(d->history, d->store, &err), 0, "%s",
		     err.text);
	return sk_fault_os_calls(&d->fault, op) - before;
}

static uint64_t run_at(const struct desk *d, const char *name)
{
	const struct sk_history_step *s = sk_history_find(d->history, name);

	cr_assert_not_null(s, "%s", name);
	return s->run.number;
}

static void make_steps(const struct desk *d, int n)
{
	char name[SK_STORE_NAME_MAX];

	for (int i = 0; i < n; i++) {
		sk_step_name_format(name, (uint64_t)i);
		make_step(d, name, 1);
	}
}

Test(history, is_newest_first)
{
	static const struct {
		const char *name;
		uint64_t run;
	} steps[] = {
		{ "step-000000000005", 3 },
		{ "step-000000000900", 2 },
		{ "step-000000000005.run-1", 1 },
		{ "step-000000000007", 3 },
		{ "step-000000000001", 0 },
		{ "step-000000000005.run-1-2", 1 },
	};
	static const int order[] = { 4, 3, 0, 1, 2, 5 };
	char name[SK_STEP_DIR_MAX];
	struct desk d;

	desk_open(&d);
	for (size_t i = 0; i < 6; i++)
		make_step(&d, steps[i].name, steps[i].run);
	make_step(&d, "step-12", 9);		/* no name of ours */
	(void)look(&d, SK_FAULT_ANY);
	cr_assert_eq(sk_history_count(d.history), 6);
	for (size_t i = 0; i < 6; i++) {
		sk_history_name(sk_history_at(d.history, i), name);
		cr_assert_str_eq(name, steps[order[i]].name);
		cr_assert_eq(run_at(&d, name), steps[order[i]].run);
	}
	cr_assert_null(sk_history_find(d.history, "step-000000000006"));
	cr_assert_null(sk_history_find(d.history, "step-12"));
	desk_close(&d);
}

Test(history, a_look_at_what_is_known_opens_none_however_many)
{
	uint64_t any[2], first[2];

	for (int k = 0; k < 2; k++) {
		struct desk d;

		desk_open(&d);
		make_steps(&d, k ? 200 : 10);
		first[k] = look(&d, SK_FAULT_OPENAT);
		any[k] = look(&d, SK_FAULT_ANY);
		cr_assert_eq(sk_history_count(d.history), k ? 200 : 10);
		desk_close(&d);
	}
	cr_assert_geq(first[1] - first[0], 190);
	cr_assert_eq(any[0], any[1]);
}

/* A new one is opened, the others are not. */
Test(history, a_new_step_is_opened_alone)
{
	uint64_t opens[2];

	for (int k = 0; k < 2; k++) {
		struct desk d;

		desk_open(&d);
		make_steps(&d, k ? 200 : 10);
		(void)look(&d, SK_FAULT_ANY);
		make_step(&d, "step-000000001000", 2);
		opens[k] = look(&d, SK_FAULT_OPENAT);
		cr_assert_eq(run_at(&d, "step-000000001000"), 2);
		cr_assert_eq(run_at(&d, "step-000000000003"), 1);
		desk_close(&d);
	}
	cr_assert_eq(opens[0], opens[1]);
}

Test(history, what_goes_and_what_takes_its_place_is_seen)
{
	char path[256];
	struct desk d;

	desk_open(&d);
	make_steps(&d, 3);
	(void)look(&d, SK_FAULT_ANY);
	remove_step(&d, "step-000000000001");
	(void)look(&d, SK_FAULT_ANY);
	cr_assert_eq(sk_history_count(d.history), 2);
	/* Mostly it gets the inode of the one that went. */
	remove_step(&d, "step-000000000002");
	make_step(&d, "step-000000000002", 5);
	(void)look(&d, SK_FAULT_ANY);
	cr_assert_eq(sk_history_prove_some(d.history, d.store, 2, NULL), 0);
	cr_assert_eq(sk_history_unproved(d.history), 0);
	cr_assert_eq(run_at(&d, "step-000000000002"), 5);
	remove_step(&d, "step-000000000000");
	remove_step(&d, "step-000000000002");
	(void)look(&d, SK_FAULT_ANY);
	cr_assert_eq(sk_history_count(d.history), 0);
	(void)snprintf(path, sizeof(path), "%s/job", d.place.store);
	cr_assert_eq(rmdir(path), 0);
	(void)look(&d, SK_FAULT_ANY);
	cr_assert_eq(sk_history_count(d.history), 0);
	desk_close(&d);
}

/* By its number alone, as whoever moved it aside has named it. */
Test(history, another_runs_step_of_a_number_is_known)
{
	static const struct {
		uint64_t step, run;
		bool others;
	} cases[] = {
		{ 1, 2, true }, { 2, 2, false }, { 2, 1, true },
		{ 3, 2, true }, { 4, 2, false }, { 5, 2, true },
	};
	struct desk d;

	desk_open(&d);
	make_step(&d, "step-000000000001.run-1", 1);
	make_step(&d, "step-000000000001", 2);
	make_step(&d, "step-000000000002", 2);
	make_step(&d, "step-000000000003.run-1-2", 1);
	make_step(&d, "step-000000000005", 0);
	(void)look(&d, SK_FAULT_ANY);
	for (size_t i = 0; i < SK_ARRAY_SIZE(cases); i++) {
		struct sk_store_run run = run_named(cases[i].run);

		cr_assert_eq(sk_history_has_others(d.history, cases[i].step,
						   &run), cases[i].others,
			     "step %lu of run %lu", cases[i].step,
			     cases[i].run);
	}
	desk_close(&d);
}

/* Names cost no call for each; nor do portions begin anew where the last look
 * has made all of them unproved once more. */
Test(history, a_look_after_a_change_does_the_same_however_many_there_are)
{
	uint64_t stats[2], times[200];
	struct sk_history_step *s;
	struct desk d;

	for (int k = 0; k < 2; k++) {
		desk_open(&d);
		make_steps(&d, k ? 200 : 10);
		(void)look(&d, SK_FAULT_ANY);
		make_step(&d, "step-000000001000", 2);
		stats[k] = look(&d, SK_FAULT_FSTATAT);
		if (!k)
			desk_close(&d);
	}
	cr_assert_eq(stats[0], stats[1], "%lu, %lu", stats[0], stats[1]);
	memset(times, 0, sizeof(times));
	for (int round = 0; round < 8; round++) {
		cr_assert_eq(sk_history_prove_some(d.history, d.store, 50,
						   NULL), 0);
		for (size_t i = 0; i < 200; i++) {
			s = sk_history_by_name(d.history, i);
			times[i] += !s->unproved;
		}
		remove_step(&d, "step-000000001000");
		make_step(&d, "step-000000001000", 2);
		(void)look(&d, SK_FAULT_ANY);
	}
	for (size_t i = 0; i < 200; i++)
		cr_assert_geq(times[i], 1, "step %zu: %lu times", i, times[i]);
	desk_close(&d);
}

/* Two changes in one tick have one time: what changed just now is looked at
 * again. */
Test(history, what_changed_just_now_is_not_trusted)
{
	struct desk d;

	desk_open(&d);
	set_clock(&d, 0);
	make_steps(&d, 3);
	(void)look(&d, SK_FAULT_ANY);
	cr_assert_geq(look(&d, SK_FAULT_OPENAT), 2 + 3);
	set_clock(&d, 3600);
	/* From this look on it is past. */
	cr_assert_geq(look(&d, SK_FAULT_OPENAT), 2 + 3);
	cr_assert_leq(look(&d, SK_FAULT_OPENAT), 1);
	desk_close(&d);
}

/* A clock before the files' says nothing about them. */
Test(history, a_clock_that_is_behind_trusts_nothing)
{
	struct desk d;

	desk_open(&d);
	sk_fault_os_clock(&d.fault, 1, 1);
	make_steps(&d, 3);
	for (int i = 0; i < 3; i++)
		cr_assert_geq(look(&d, SK_FAULT_OPENAT), 2 + 3);
	desk_close(&d);
}

/* Of whom nothing says it is asked at each look. */
Test(history, a_run_that_nothing_says_is_asked_for_again)
{
	char path[256];
	struct desk d;
	FILE *f;

	desk_open(&d);
	make_steps(&d, 3);
	make_step(&d, "step-000000000009", 0);
	(void)look(&d, SK_FAULT_ANY);
	cr_assert_eq(run_at(&d, "step-000000000009"), 0);
	cr_assert_eq(sk_history_at(d.history, 0)->step, 9);
	(void)snprintf(path, sizeof(path), "%s/job/step-000000000009/.run",
		       d.place.store);
	f = fopen(path, "w");
	cr_assert(f && fprintf(f, "torn") > 0 && !fclose(f));
	(void)look(&d, SK_FAULT_ANY);
	cr_assert_eq(run_at(&d, "step-000000000009"), 0);
	desk_close(&d);
}

static bool is_merged_after_a_look(struct desk *d)
{
	(void)look(d, SK_FAULT_ANY);
	return sk_history_merged(d->history);
}

static void prove_all(struct desk *d)
{
	cr_assert_eq(sk_history_prove_some(d->history, d->store, 100, NULL), 0);
}

/* What its user has forgotten stands until a directory comes, goes, is learnt
 * about, or proved. */
Test(history, is_merged_until_something_changes)
{
	const struct sk_store_run run = run_named(3);
	char path[256], text[SK_RUN_TEXT_MAX];
	struct desk d;
	FILE *f;

	desk_open(&d);
	make_steps(&d, 3);
	make_step(&d, "step-000000000009", 0);
	cr_assert_not(is_merged_after_a_look(&d));
	sk_history_note_merged(d.history, true);
	cr_assert(is_merged_after_a_look(&d));
	(void)snprintf(path, sizeof(path), "%s/job/step-000000000009/"
		       SK_RUN_FILE, d.place.store);
	sk_run_text_format(text, &run);
	f = fopen(path, "w");
	cr_assert(f && fprintf(f, "%s\n", text) > 0 && !fclose(f));
	cr_assert_not(is_merged_after_a_look(&d), "learnt");
	sk_history_note_merged(d.history, true);
	make_step(&d, "step-000000000010", 3);
	cr_assert_not(is_merged_after_a_look(&d), "came");
	cr_assert(sk_history_unproved(d.history));
	sk_history_note_merged(d.history, true);
	prove_all(&d);
	cr_assert_not(is_merged_after_a_look(&d), "proved");
	sk_history_note_merged(d.history, true);
	prove_all(&d);
	cr_assert(is_merged_after_a_look(&d));
	remove_step(&d, "step-000000000010");
	cr_assert_not(is_merged_after_a_look(&d), "went");
	sk_history_note_merged(d.history, true);
	(void)snprintf(path, sizeof(path), "%s/job", d.place.store);
	cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, path), 0);
	cr_assert_not(is_merged_after_a_look(&d), "the job went");
	desk_close(&d);
}

/* A look that fails, wherever it does, leaves what was known. */
Test(history, a_look_that_fails_changes_nothing)
{
	static const enum sk_fault_op ops[] = {
		SK_FAULT_OPENAT,   SK_FAULT_FSTAT, SK_FAULT_FSTATAT,
		SK_FAULT_GETDENTS, SK_FAULT_PREAD,
	};
	struct sk_err err = { "" };
	struct desk d;

	desk_open(&d);
	make_steps(&d, 3);
	(void)look(&d, SK_FAULT_ANY);
	for (size_t i = 0; i < SK_ARRAY_SIZE(ops); i++) {
		make_step(&d, "step-000000000044", 2);
		sk_fault_os_fail(&d.fault, ops[i], 1, SK_FAULT_ALWAYS, EMFILE);
		for (int at = 0; at < SK_FAULT_OP_COUNT; at++)
			d.fault.calls[at] = 0;
		cr_assert_eq(sk_history_look(d.history, d.store, &err),
			     -EMFILE, "%zu", i);
		cr_assert(err.text[0]);
		d.fault.rule_count = 0;
		cr_assert_eq(sk_history_count(d.history), 3);
		cr_assert_eq(run_at(&d, "step-000000000002"), 1);
		remove_step(&d, "step-000000000044");
	}
	desk_close(&d);
}

/* What cannot be read now is known as such, and read once it can be. */
Test(history, an_error_lasts_as_long_as_it_is_one)
{
	const struct sk_history_step *s;
	struct desk d;

	desk_open(&d);
	make_steps(&d, 2);
	sk_fault_os_fail(&d.fault, SK_FAULT_PREAD, 1, 1, EIO);
	(void)look(&d, SK_FAULT_PREAD);
	cr_assert_eq(sk_fault_os_hits(&d.fault), 1);
	s = sk_history_at(d.history, 0);
	cr_assert(s->error == -EIO && !s->run.number, "%d", s->error);
	cr_assert_eq(sk_history_at(d.history, 1)->error, 0);
	d.fault.rule_count = 0;
	(void)look(&d, SK_FAULT_PREAD);
	for (size_t i = 0; i < 2; i++) {
		s = sk_history_at(d.history, i);
		cr_assert(!s->error && s->run.number == 1, "%d", s->error);
	}
	desk_close(&d);
}

/* Nor is what could not be asked for want of a descriptor taken for proved:
 * not even where nothing was known before. */
Test(history, a_shortage_proves_nothing)
{
	struct sk_history_step *s;
	struct sk_err err = { "" };
	struct desk d;
	bool others;

	desk_open(&d);
	make_step(&d, "step-000000000001", 0);
	(void)look(&d, SK_FAULT_OPENAT);
	s = sk_history_at(d.history, 0);
	sk_history_doubt(s);
	s->unproved = true;
	d.history->unproved++;
	/* The job's directory can be opened, and its own cannot. */
	sk_fault_os_init(&d.fault, sk_os_linux());
	sk_fault_os_fail(&d.fault, SK_FAULT_OPENAT, 2, 1, EMFILE);
	cr_assert_eq(sk_history_prove(d.history, d.store, &s, 1, &others,
				      &err), -EMFILE);
	cr_assert(err.text[0]);
	desk_close(&d);
}

Test(history, each_file_is_found_under_its_name)
{
	struct sk_history_step step = { .step = 1 };
	struct sk_layout *layout = NULL;

	cr_assert_eq(sk_layout_new("job", 0, 16, SK_IMAGE_PRIMARY, NULL, 0,
				   &layout, NULL), 0);
	/* In no order, and of two worlds. */
	for (int32_t i = 0; i < 16; i++) {
		const struct sk_history_file file = {
			.rank = i * 5 % 8, .world = i < 8 ? 16 : 8,
			.layout = layout, .image = (uint64_t)i + 1,
		};

		cr_assert_null(sk_history_file_find(&step, file.rank,
						    file.world));
		cr_assert_not_null(sk_history_file_note(&step, &file));
	}
	cr_assert_eq(step.n_files, 16);
	for (int32_t i = 0; i < 16; i++) {
		const struct sk_history_file *file = sk_history_file_find(
			&step, i * 5 % 8, i < 8 ? 16 : 8);

		cr_assert(file && file->image == (uint64_t)i + 1, "file %d",
			  i);
	}
	cr_assert_null(sk_history_file_find(&step, 0, 12));
	sk_history_files_forget(&step);
	sk_layout_free(layout);
	cr_assert_eq(step.n_files, 0);
}
