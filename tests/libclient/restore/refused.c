/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one agent that restore without a comm of their own, one of which is
 * refused before it meets the others: all are told at once, by it, what is
 * wrong with what it asks for or describes. Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define WORLD 3
#define WRONG 1			/* the rank */
#define STEP 5
/* Longer than this process lives: nobody is to wait for it. */
#define NEVER_MS 3000000u

struct wrong {
	const char *what;
	int64_t step;
	struct sk_restore_options opts;
	void (*describe)(struct rank *rank);
	int result;
	const char *words;	/* that all hear */
	uint32_t job_flags;
	bool by_all;		/* it is found out together */
};

/* ---- what cannot be registered ---- */

static void describe_overlap(struct rank *rank)
{
	static char data[64];
	const struct sk_part parts[] = {
		{ .box = { .size = { 4 } }, .data = data },
		{ .box = { .offset = { 2 }, .size = { 4 } }, .data = data } };

	CHECK(!sk_state_tensor(rank->state, &(struct sk_tensor){
		.name = "twice", .dtype = SK_F32, .ndim = 1, .shape = { 8 },
		.parts = parts, .n_parts = 2 }), "%s", sk_error());
}

/* More than this process may write into a file. */
static void describe_beyond_limit(struct rank *rank)
{
	const struct rlimit most = { 64 << 10, RLIM_INFINITY };
	char name[400];

	for (int i = 0; i < 400; i++) {
		(void)snprintf(name, sizeof(name), "%0390d", i);
		CHECK(!sk_state_blob(rank->state, name, name, 1), "%s",
		      sk_error());
	}
	(void)signal(SIGXFSZ, SIG_IGN);
	CHECK(!setrlimit(RLIMIT_FSIZE, &most));
}

/* ---- one that is wrong ---- */

static const char *const nameless[] = { "wq", NULL };
static const char *const unknown[] = { "wq", "wk" };

static const struct wrong wrongs[] = {
	{ "a flag that nobody knows", SK_LATEST, { .flags = 1u << 31 }, NULL,
	  -EINVAL, "sk_restore_options.flags", 0, false },
	{ "no place", SK_LATEST,
	  { .flags = SK_RESTORE_MEMORY_ONLY | SK_RESTORE_DISK_ONLY }, NULL,
	  -EINVAL, "has nowhere to restore from", 0, false },
	{ "something reserved", SK_LATEST, { .reserved = { 1 } }, NULL,
	  -EINVAL, "sk_restore_options.reserved", 0, false },
	{ "names that are not there", SK_LATEST, { .n_names = 3 }, NULL,
	  -EINVAL, "3 names to restore, and no list", 0, false },
	{ "no name", SK_LATEST, { .names = nameless, .n_names = 2 }, NULL,
	  -EINVAL, "is a null pointer", 0, false },
	{ "no step", -7, { 0 }, NULL, -EINVAL, "step -7 is neither", 0, false },
	{ "no step of a reader", -7, { 0 }, NULL, -EINVAL,
	  "step -7 is neither", SK_JOB_READER, false },
	{ "overlapping boxes", SK_LATEST, { 0 }, describe_overlap, -EINVAL,
	  "\"twice\"", 0, false },
	{ "a file too large", SK_LATEST, { 0 }, describe_beyond_limit, -EFBIG,
	  "layout", 0, false },
	{ "a tensor that is not there", SK_LATEST,
	  { .names = unknown, .n_names = 2 }, NULL, -ENOKEY, "wk", 0, true },
	{ "a step that is not there", 99, { 0 }, NULL, -ENOENT,
	  "no snapshot of step 99", 0, true },
	{ "a run that is not there", SK_LATEST, { .run = 1 << 30 }, NULL,
	  -ENOENT, "of run 1073741824", 0, true },
};

/* A state of its own, in no run yet: what came before is no help. */
static void come_anew(struct rank *rank, const struct wrong *w)
{
	struct sk_job job = { .name = rank->job, .rank = rank->rank,
			      .world = rank->world, .flags = w->job_flags };

	sk_state_free(rank->state);
	CHECK(!sk_state_create(rank->sk, &job, &rank->state), "%s",
	      sk_error());
	rank_model(rank, 30);
	if (rank->rank == WRONG && w->describe)
		w->describe(rank);
}

static void restore_wrongly(struct rank *rank)
{
	const struct wrong *w = rank->arg;
	bool me = rank->rank == WRONG;
	struct sk_restore_options opts = { .timeout_ms = 0 };
	char begins[32] = "";
	int r;

	if (me)
		opts = w->opts;
	opts.timeout_ms = NEVER_MS;
	if (!w->by_all)
		(void)snprintf(begins, sizeof(begins), "rank %d: ", WRONG);
	for (int again = 0; again < 2; again++) {
		if (!again)
			come_anew(rank, w);
		r = sk_restore(rank->state, me ? w->step : SK_LATEST, NULL,
			       &opts, NULL);
		CHECK(r == w->result, "%s: rank %d has %d: %s", w->what,
		      rank->rank, r, sk_error());
		CHECK(!strncmp(sk_error(), begins, strlen(begins)) &&
		      strstr(sk_error(), w->words), "%s: rank %d: %s",
		      w->what, rank->rank, sk_error());
	}
}

static void save(struct rank *rank)
{
	rank_model(rank, 30);
	rank_write(rank, STEP);
	rank_snapshot(rank, STEP, SK_DURABLE);
}

/* Who has heard that goes on: another restore of the same states is whole. */
static void restore_rightly(struct rank *rank)
{
	const struct wrong *w = rank->arg;
	struct sk_restore_options opts = { .timeout_ms = NEVER_MS };
	int64_t step = STEP + 1 + (w - wrongs);
	struct sk_report report;

	restore_wrongly(rank);
	if (rank->rank == WRONG && w->describe)
		CHECK(!sk_state_remove(rank->state, "twice"), "%s",
		      sk_error());
	CHECK(!sk_restore(rank->state, SK_LATEST, NULL, &opts, &report), "%s",
	      sk_error());
	CHECK(!rank_wrong(rank, report.step, rank->rank));
	if (w->job_flags & SK_JOB_READER)
		return;
	rank_write(rank, step);
	rank_snapshot(rank, step, SK_COMPLETE);
}

/* ---- whom nobody hears ---- */

static void restore_alone(struct rank *rank)
{
	struct sk_restore_options opts = { .flags = 1u << 31,
					   .timeout_ms = 50 };

	if (rank->rank != WRONG)
		return;
	CHECK(sk_restore(rank->state, SK_LATEST, NULL, &opts, NULL) ==
	      -EINVAL, "%s", sk_error());
	CHECK(strstr(sk_error(), "sk_restore_options.flags"), "%s",
	      sk_error());
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "refused", WORLD, save, NULL);
	scene_ranks(&scene, "refused", WORLD, restore_alone, NULL);
	for (size_t i = 0; i < SK_ARRAY_SIZE(wrongs); i++) {
		bool lasts = wrongs[i].describe == describe_beyond_limit;

		(void)alarm(120);
		scene_ranks(&scene, "refused", WORLD,
			    lasts ? restore_wrongly : restore_rightly,
			    &wrongs[i]);
	}
	scene_close(&scene);
	return 0;
}
