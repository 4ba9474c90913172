/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong between saving and restoring: bits that flip in memory and
 * on disk, ranks that are killed, agents that are stopped or killed,
 * descriptions that do not fit.
 */
#include "libclient/restore/common.h"

#include "base/util.h"
#include "conn/list.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROWS 600	/* 600 x 900 F32: two chunks on each of two ranks */

static void describe(struct rank *rank)
{
	static char blob[64];

	CHECK(!sk_state_blob(rank->state, "config", blob, sizeof(blob)));
	rank_model(rank, ROWS);
}

struct saving {
	int64_t steps[2];
	int until;
};

static void save(struct rank *rank)
{
	const struct saving *s = rank->arg;

	describe(rank);
	for (int i = 0; i < 2 && s->steps[i]; i++) {
		rank_write(rank, s->steps[i]);
		rank_snapshot(rank, s->steps[i], s->until);
	}
}

struct expecting {
	int64_t step;		/* to ask for */
	uint32_t flags;
	int result;
	const char *words;	/* in the sentence of an error */
	int64_t got;		/* the step that came */
	int damaged;		/* images set aside, -1: not looked at */
};

static void load(struct rank *rank)
{
	const struct expecting *e = rank->arg;
	struct sk_report report = { 0 };
	int r;

	describe(rank);
	r = rank_restore(rank, e->step, e->flags, &report);
	CHECK(r == e->result, "%d, wanted %d: %s", r, e->result, sk_error());
	if (r < 0) {
		CHECK(strstr(sk_error(), e->words), "%s", sk_error());
		return;
	}
	CHECK(report.step == e->got, "step %lld", (long long)report.step);
	CHECK(e->damaged < 0 || report.damaged == (uint32_t)e->damaged,
	      "%u set aside", report.damaged);
	CHECK(!rank_wrong(rank, e->got, rank->rank < 2 ? rank->rank : -1));
}

/* ---- flipping bits ---- */

static void flip_fd(int fd, uint64_t at)
{
	char path[64], byte;
	int w;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	w = open(path, O_RDWR | O_CLOEXEC);
	CHECK(w >= 0);
	CHECK(pread(w, &byte, 1, (off_t)at) == 1);
	byte ^= 4;
	CHECK(pwrite(w, &byte, 1, (off_t)at) == 1);
	CHECK(!fsync(w));
	close(w);
}

static void flip_image(struct sk_conn *conn, const struct sk_wire_image *w)
{
	struct sk_opened_image o;
	struct sk_err err = { "" };

	CHECK(!sk_image_open(conn, w->image, w->place,
			     sk_until_ms(conn->os, 10000), &o, &err), "%s",
	      err.text);
	flip_fd(o.data, w->bytes - 1);
	sk_close_fd(o.data);
	sk_close_fd(o.header);
}

/* The last byte of rank 1's primary image in memory. */
static void flip_in_memory(struct scene *scene, const char *job, int64_t step)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_wire_id id = { .step = step, .rank = 1 };
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_wire_image *images;
	struct sk_err err = { "" };
	size_t n = 0, flipped = 0;

	CHECK(!sk_conn_open(os, scene->socket, sk_until_ms(os, 10000), &conn,
			    &err), "%s", err.text);
	strcpy(id.job, job);
	CHECK(!sk_list_images(&conn, &id, 0, sk_until_ms(os, 10000), &images,
			      &n, &err), "%s", err.text);
	for (size_t i = 0; i < n; i++)
		if (images[i].place == SK_PLACE_MEMORY &&
		    images[i].kind == SK_IMAGE_PRIMARY &&
		    images[i].id.step == step && images[i].id.rank == 1) {
			flip_image(&conn, &images[i]);
			flipped++;
		}
	free(images);
	sk_conn_close(&conn);
	CHECK(flipped == 1, "%zu images", flipped);
}

static int flip_file(const char *path, const struct stat *st, int type,
		     struct FTW *ftw)
{
	int fd;

	if (type != FTW_F || !strstr(path + ftw->base, "rank-00001-") ||
	    !strstr(path, "step-000000000020"))
		return 0;
	fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	flip_fd(fd, (uint64_t)st->st_size - 1);
	close(fd);
	return 0;
}

static void flip_on_disk(struct scene *scene)
{
	CHECK(!nftw(scene->store, flip_file, 16, FTW_PHYS));
}

/* ---- scenes ---- */

/* The byte is one of rng's; wq is the first that cannot be had. */
static const char *const what_is_damaged = "\"rng\" of rank 1";

/* The agent flushes what a job that ended has left, and whoever reads memory
 * first sees what is wrong. In these scenes it has no store: a rank does. */
static void memory_is_damaged(struct scene *scene)
{
	const struct saving s = { .steps = { 10, 20 },
				  .until = SK_COMPLETE };
	const struct expecting bad = { .step = 20, .result = -EBADMSG,
				       .words = what_is_damaged };

	scene_ranks(scene, "memory", 2, save, &s);
	flip_in_memory(scene, "memory", 20);
	scene_ranks(scene, "memory", 2, load, &bad);
	/* The agent set the image aside: step 20 is not whole any more, and
	 * why is still said. */
	scene_ranks(scene, "memory", 2, load, &bad);
	scene_ranks(scene, "memory", 3, load, &(struct expecting){
		.step = SK_LATEST, .got = 10 });
}

static void find_it_damaged(struct rank *rank)
{
	char *text = NULL;

	CHECK(sk_inspect(rank->sk, rank->job, SK_LATEST, 0, 0, &text) ==
	      -EBADMSG, "%s", sk_error());
	CHECK(!text && strstr(sk_error(), "the image of rank 1 in memory is "
			      "damaged"), "%s", sk_error());
	CHECK(sk_inspect(rank->sk, "nobody", SK_LATEST, 0, 0, &text) ==
	      -ENOENT, "%s", sk_error());
}

/* Nothing but damage is left: that is no first run. */
static void all_is_damaged(struct scene *scene)
{
	const struct saving s = { .steps = { 20 }, .until = SK_COMPLETE };
	const struct expecting bad = { .step = SK_LATEST, .result = -EBADMSG,
				       .words = what_is_damaged };

	scene_ranks(scene, "all", 2, save, &s);
	flip_in_memory(scene, "all", 20);
	for (int again = 0; again < 2; again++)
		scene_ranks(scene, "all", 2, load, &bad);
	scene_ranks(scene, "all", 1, find_it_damaged, NULL);
	scene_ranks(scene, "all", 3, load, &bad);
}

static void newest_is_damaged(struct scene *scene)
{
	const struct saving s = { .steps = { 10, 20 },
				  .until = SK_COMPLETE };

	scene_ranks(scene, "newest", 2, save, &s);
	flip_in_memory(scene, "newest", 20);
	scene_ranks(scene, "newest", 2, load, &(struct expecting){
		.step = SK_LATEST, .got = 10, .damaged = -1 });
}

/* Nothing is flushed before rank 1 has flipped the bit, and asks for it. */
static void save_and_flush(struct rank *rank)
{
	const struct saving *s = rank->arg;

	save(rank);
	if (rank->rank) {
		flip_in_memory(rank->scene, rank->job, s->steps[1]);
		CHECK(!sk_flush(rank->state, s->steps[1]), "%s", sk_error());
	}
	CHECK(sk_wait(rank->state, s->steps[1], SK_DURABLE, 60000) ==
	      -ENOENT);
	CHECK(strstr(sk_error(), "will not be complete"), "%s", sk_error());
}

/* Then a flush is first, and ranks are told what it has found. */
static void flush_finds_it(struct scene *scene)
{
	const struct saving s = { .steps = { 10, 20 },
				  .until = SK_COMPLETE };

	scene_ranks(scene, "flushed", 2, save_and_flush, &s);
	scene_ranks(scene, "flushed", 2, load, &(struct expecting){
		.step = 20, .result = -EBADMSG, .words = what_is_damaged });
	scene_ranks(scene, "flushed", 3, load, &(struct expecting){
		.step = SK_LATEST, .got = 10, .damaged = -1 });
}

static void disk_has_it_too(struct scene *scene)
{
	const struct saving s = { .steps = { 20 }, .until = SK_DURABLE };

	scene_ranks(scene, "both", 2, save, &s);
	flip_in_memory(scene, "both", 20);
	scene_ranks(scene, "both", 3, load, &(struct expecting){
		.step = SK_LATEST, .got = 20, .damaged = 1 });
}

static void disk_is_damaged(struct scene *scene)
{
	const struct saving s = { .steps = { 10, 20 }, .until = SK_DURABLE };

	scene_ranks(scene, "disk", 2, save, &s);
	flip_on_disk(scene);
	scene_ranks(scene, "disk", 2, load, &(struct expecting){
		.step = 20, .flags = SK_RESTORE_MEMORY_ONLY, .got = 20 });
	scene_ranks(scene, "disk", 3, load, &(struct expecting){
		.step = SK_LATEST, .flags = SK_RESTORE_DISK_ONLY, .got = 10,
		.damaged = -1 });
}

static void agent_starts_again(struct scene *scene)
{
	const struct saving s = { .steps = { 10, 20 }, .until = SK_DURABLE };

	scene_ranks(scene, "stopped", 2, save, &s);
	scene_stop_agent(scene, SIGTERM);
	scene_start_agent(scene);
	scene_ranks(scene, "stopped", 3, load, &(struct expecting){
		.step = SK_LATEST, .got = 20 });
	scene_stop_agent(scene, SIGKILL);
	scene_start_agent(scene);
	scene_ranks(scene, "stopped", 1, load, &(struct expecting){
		.step = 10, .got = 10 });
}

/* ---- ranks that are killed ---- */

static void save_and_wait(struct rank *rank)
{
	describe(rank);
	rank_write(rank, 10);
	rank_snapshot(rank, 10, SK_COMPLETE);
	rank_write(rank, 20);
	/* One rank is in the middle of the next. */
	if (rank->rank)
		CHECK(!sk_snapshot(rank->state, 20, NULL), "%s", sk_error());
	rank_ready(rank);
}

static void ranks_are_killed(struct scene *scene)
{
	scene_ranks_killed(scene, "killed", 2, save_and_wait, NULL);
	scene_ranks(scene, "killed", 2, load, &(struct expecting){
		.step = SK_LATEST, .got = 10 });
	scene_ranks(scene, "killed", 4, load, &(struct expecting){
		.step = SK_LATEST, .got = 10 });
	scene_ranks(scene, "killed", 1, load, &(struct expecting){
		.step = SK_LATEST, .got = 10 });
	scene_ranks(scene, "killed", 2, load, &(struct expecting){
		.step = 20, .result = -ENOENT, .words = "step 20" });
}

/* ---- descriptions ---- */

static void first_run(struct rank *rank)
{
	describe(rank);
	CHECK(rank_restore(rank, SK_LATEST, 0, NULL) == -ENOENT);
	CHECK(strstr(sk_error(), "first run"), "%s", sk_error());
}

static void another_dtype(struct rank *rank)
{
	describe(rank);
	if (rank->rank == 1)
		rank_tensor(rank, &(struct sk_tensor){
			.name = "norm", .dtype = SK_BF16, .ndim = 1,
			.shape = { 900 } }, 0xee);
	CHECK(rank_restore(rank, SK_LATEST, 0, NULL) == -EINVAL);
	CHECK(strstr(sk_error(), "\"norm\" is F32 [900] in the snapshot and "
		     "BF16 [900] here"), "%s", sk_error());
}

static void other_names(struct rank *rank)
{
	char name[32];

	describe(rank);
	(void)snprintf(name, sizeof(name), "of-rank-%d", rank->rank);
	rank_tensor(rank, &(struct sk_tensor){
		.name = name, .dtype = SK_U8, .ndim = 1,
		.shape = { 9 } }, 0xee);
	CHECK(!sk_state_remove(rank->state, "norm"));
	CHECK(rank_restore(rank, SK_LATEST, 0, NULL) == -ENOKEY);
	CHECK(strstr(sk_error(), "of-rank-0, of-rank-1"), "%s", sk_error());
	CHECK(strstr(sk_error(), "no rank: norm"), "%s", sk_error());
}

/* One rank does not come: the others get an error, in bounded time. */
static void one_stays_away(struct rank *rank)
{
	struct sk_restore_options o = { .timeout_ms = 200 };

	describe(rank);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	if (rank->rank)
		return;
	CHECK(sk_restore(rank->state, SK_LATEST, NULL, &o, NULL) ==
	      -ETIMEDOUT);
	/* It may have ended by then. */
	CHECK(strstr(sk_error(), "the first of them rank 1; every rank ") ||
	      strstr(sk_error(), "the first of them rank 1, which is gone; ") ||
	      strstr(sk_error(), ": rank 1 of job \"away\" is gone"), "%s",
	      sk_error());
}

/* One begins anew, in a newer run: the other hears that, and not that the agent
 * is gone. */
static void one_begins_anew(struct rank *rank)
{
	struct sk_restore_options o = {
		.timeout_ms = rank->rank ? 200 : 60000 };
	const int *begun = rank->arg;
	char c;

	describe(rank);
	rank_write(rank, 10);
	rank_snapshot(rank, 10, SK_COMPLETE);
	if (rank->rank) {
		sk_state_free(rank->state);
		CHECK(!sk_state_create(rank->sk, &(struct sk_job){
			.name = rank->job, .rank = 1, .world = 2 },
			&rank->state), "%s", sk_error());
		describe(rank);
		CHECK(sk_restore(rank->state, SK_LATEST, NULL, &o, NULL) ==
		      -ETIMEDOUT, "%s", sk_error());
		CHECK(write(begun[1], "", 1) == 1, "a pipe");
		CHECK(read(begun[2], &c, 1) == 1, "a pipe");
		return;
	}
	CHECK(read(begun[0], &c, 1) == 1, "a pipe");
	CHECK(sk_restore(rank->state, SK_LATEST, NULL, &o, NULL) ==
	      -ECONNRESET, "%s", sk_error());
	CHECK(strstr(sk_error(), "is followed by run 2") &&
	      strstr(sk_error(), "make all ranks' states anew"), "%s",
	      sk_error());
	CHECK(write(begun[3], "", 1) == 1, "a pipe");
}

static void test_begun_anew(struct scene *scene)
{
	int begun[4];

	CHECK(!pipe(begun) && !pipe(begun + 2), "pipe");
	scene_ranks(scene, "anew", 2, one_begins_anew, begun);
	for (int i = 0; i < 4; i++)
		close(begun[i]);
}

/* In the same process: back to an older step after newer ones. */
static void roll_back(struct rank *rank)
{
	struct sk_report report;

	describe(rank);
	for (int64_t step = 10; step <= 20; step += 10) {
		rank_write(rank, step);
		rank_snapshot(rank, step, SK_COMPLETE);
	}
	CHECK(!rank_restore(rank, 10, 0, &report), "%s", sk_error());
	CHECK(!rank_wrong(rank, 10, rank->rank));
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(!rank_wrong(rank, 20, rank->rank));
	CHECK(report.bytes_verified > 0 && report.total_ns > 0);
}

int main(int argc, char **argv)
{
	const struct saving s = { .steps = { 10 }, .until = SK_COMPLETE };
	struct scene scene;

	scene_open(&scene, argc, argv);
	flush_finds_it(&scene);
	disk_has_it_too(&scene);
	disk_is_damaged(&scene);
	ranks_are_killed(&scene);
	scene_ranks(&scene, "first", 2, first_run, NULL);
	scene_ranks(&scene, "fit", 2, save, &s);
	scene_ranks(&scene, "fit", 2, another_dtype, NULL);
	scene_ranks(&scene, "fit", 2, other_names, NULL);
	scene_ranks(&scene, "away", 2, one_stays_away, NULL);
	test_begun_anew(&scene);
	scene_ranks(&scene, "back", 2, roll_back, NULL);
	agent_starts_again(&scene);
	scene_stop_agent(&scene, SIGTERM);
	scene.store[0] = '\0';
	scene_start_agent(&scene);
	memory_is_damaged(&scene);
	all_is_damaged(&scene);
	newest_is_damaged(&scene);
	scene_close(&scene);
	return 0;
}
