/* SPDX-License-Identifier: Apache-2.0 */
/* The store where all goes well: names, directories, images, owners. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"

/* names */

Test(store_names, are_written_as_documented)
{
	char buf[SK_STORE_NAME_MAX];

	sk_step_name_format(buf, 1000);
	cr_assert_str_eq(buf, "step-000000001000");
	sk_step_name_format(buf, UINT64_MAX);
	cr_assert_str_eq(buf, "step-18446744073709551615");
	sk_step_name_displaced(buf, 7, 12, 1);
	cr_assert_str_eq(buf, "step-000000000007.run-12");
	sk_step_name_displaced(buf, 7, 12, 3);
	cr_assert_str_eq(buf, "step-000000000007.run-12-3");
	sk_image_name_format(buf, 3, 8);
	cr_assert_str_eq(buf, "rank-00003-of-00008.safetensors");
	sk_image_name_format(buf, 123456, 1234567);
	cr_assert_str_eq(buf, "rank-123456-of-1234567.safetensors");
}

Test(store_names, are_read_back)
{
	char buf[SK_STORE_NAME_MAX];
	struct sk_step_name step;
	int32_t rank, world;

	for (uint64_t n = 1; n && n < UINT64_MAX / 11; n = n * 11 + 3) {
		sk_step_name_format(buf, n);
		cr_assert(sk_step_name_parse(buf, &step));
		cr_assert(step.step == n && !step.displaced);
		sk_step_name_displaced(buf, n, n / 3, 1 + n % 3);
		cr_assert(sk_step_name_parse(buf, &step));
		cr_assert(step.step == n && step.displaced &&
			  step.run == n / 3);
		cr_assert_lt(strlen(buf), sizeof(((struct sk_stored *)0)->dir));
	}
	for (int32_t n = 0; n < INT32_MAX / 11; n = n * 11 + 3) {
		sk_image_name_format(buf, n, n + 1);
		cr_assert(sk_image_name_parse(buf, &rank, &world));
		cr_assert(rank == n && world == n + 1);
	}
}

Test(store_names, are_read_strictly)
{
	static const char *const steps[] = {
		"", "step-", "step-1", "step-00000000100", "Step-000000001000",
		"step-000000001000 ", "step-0000000001000", "step-00000000100x",
		"step-000000001000.run-", "step-000000001000.run-x",
		"step-000000001000.run-01", "step-000000001000.run-1-",
		"step-000000001000.run-1-02", "step-000000001000.run-1-2-3",
		"step-18446744073709551616", "step-99999999999999999999999",
		"step-+00000001000", "step--00000001000", ".step-000000001000",
		"step-000000001000/", "step-000000001000.tmp",
	};
	static const char *const images[] = {
		"", "rank-00003-of-00008", "rank-3-of-8.safetensors",
		"rank-00008-of-00008.safetensors",
		"rank-00003-of-00000.safetensors",
		"rank-000003-of-00008.safetensors",
		"rank-00003-of-00008.safetensors.tmp",
		".rank-00003-of-00008.safetensors",
		"rank-00003-of-2147483648.safetensors",
		"rank--0003-of-00008.safetensors",
		"rank-00003-of-00008.safetensorsx",
	};
	struct sk_step_name step;
	int32_t rank, world;
	uint64_t value;

	for (size_t i = 0; i < SK_ARRAY_SIZE(steps); i++)
		cr_assert_not(sk_step_name_parse(steps[i], &step), "%s",
			      steps[i]);
	for (size_t i = 0; i < SK_ARRAY_SIZE(images); i++)
		cr_assert_not(sk_image_name_parse(images[i], &rank, &world),
			      "%s", images[i]);
	cr_assert(sk_decimal_parse("0", &value) && value == 0);
	cr_assert_not(sk_decimal_parse("", &value));
	cr_assert_not(sk_decimal_parse("00", &value));
	cr_assert_not(sk_decimal_parse(" 1", &value));
	cr_assert_not(sk_decimal_parse("18446744073709551616", &value));
}

Test(store_names, of_leftovers_are_ours_alone)
{
	static const char *const names[] = {
		"step-000000000001", "rank-00000-of-00001.safetensors",
		SK_RUN_FILE, SK_OWNER_FILE,
	};
	static const char *const foreign[] = {
		"", ".", "..", ".tmp", ".deleted-", ".deleted-0123",
		".deleted-0123456789abcdefg", ".deleted-0123456789ABCDEF",
		".nfs000000012", ".foo.0123456789abcdef.tmp",
		".rank-00000-of-00001.safetensors.tmp",
		"rank-00000-of-00001.safetensors.0123456789abcdef.tmp",
		".rank-00000-of-00001.safetensors.0123456789abcdef.tmp2",
		".run", ".owner", "step-000000000001",
	};
	struct sk_store store = { .instance = 0x01abcdef };
	char buf[SK_STORE_NAME_MAX], last[SK_STORE_NAME_MAX];
	uint32_t of;

	for (size_t i = 0; i < SK_ARRAY_SIZE(names); i++) {
		sk_temporary_name(&store, names[i], buf);
		cr_assert(sk_leftover_name(buf, &of), "%s", buf);
		cr_assert_eq(of, store.instance);
		cr_assert_eq(buf[0], '.');
	}
	sk_deleted_name(&store, last);
	sk_deleted_name(&store, buf);
	cr_assert(strcmp(last, buf));
	cr_assert(sk_leftover_name(buf, &of), "%s", buf);
	cr_assert_eq(of, store.instance);
	for (size_t i = 0; i < SK_ARRAY_SIZE(foreign); i++)
		cr_assert_not(sk_leftover_name(foreign[i], &of), "%s",
			      foreign[i]);
	sk_alive_name_format(buf, 0x01abcdef);
	cr_assert(sk_alive_name_parse(buf, &of) && of == 0x01abcdef);
	cr_assert_not(sk_alive_name_parse(".agent-1abcdef", &of));
	cr_assert_not(sk_alive_name_parse(".agent-01ABCDEF", &of));
	cr_assert_not(sk_alive_name_parse(".agent-01abcdefg", &of));
}

/* opening */

Test(store, makes_its_directories)
{
	struct sk_store *store = NULL;
	struct place p;
	struct stat st;
	char path[128];
	int is_volatile = -1;
	/* Of root's, users enter what is theirs. */
	mode_t mode = geteuid() == 0 ? 0711 : 0700;

	(void)umask(022);
	place_make(&p);
	(void)snprintf(path, sizeof(path), "%s///", p.store);
	cr_assert_eq(sk_store_open(sk_os_linux(), path, 0, &store,
				   &is_volatile, NULL), 0);
	cr_assert_str_eq(sk_store_path(store), p.store);
	cr_assert(is_volatile == 0 || is_volatile == 1);
	sk_store_close(store);
	(void)snprintf(path, sizeof(path), "%s/a", p.path);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_mode & 07777, mode);
	cr_assert_eq(stat(p.store, &st), 0);
	cr_assert_eq(st.st_mode & 07777, mode);
	sk_store_close(open_store(sk_os_linux(), &p));
	cr_assert_null(sk_store_close(NULL));
	place_remove(&p);
}

Test(store, says_that_memory_is_volatile)
{
	char path[] = "/dev/shm/shardkeep-store-XXXXXX";
	struct sk_store *store = NULL;
	int is_volatile = -1;

	if (!mkdtemp(path))
		cr_skip("no /dev/shm here");
	cr_assert_eq(sk_store_open(sk_os_linux(), path, 0, &store,
				   &is_volatile, NULL), 0);
	cr_assert_eq(is_volatile, 1);
	sk_store_close(store);
	rmdir(path);
}

Test(store, refuses_what_is_no_directory)
{
	struct sk_store *store = NULL;
	struct sk_err err = { "" };
	char path[128];
	struct place p;

	place_make(&p);
	cr_assert_eq(sk_store_open(sk_os_linux(), "", 0, &store, NULL, &err),
		     -EINVAL);
	sk_store_close(open_store(sk_os_linux(), &p));
	make_file(&p, "file", "x");
	(void)snprintf(path, sizeof(path), "%s/file", p.store);
	cr_assert_eq(sk_store_open(sk_os_linux(), path, 0, &store, NULL, &err),
		     -ENOTDIR);
	cr_assert_not_null(strstr(err.text, path));
	(void)snprintf(path, sizeof(path), "%s/file/sub", p.store);
	cr_assert_eq(sk_store_open(sk_os_linux(), path, 0, &store, NULL, &err),
		     -ENOTDIR);
	cr_assert_null(store);
	place_remove(&p);
}

#define LEFT_JOB "job/.deleted-0123456789abcdef"
#define LEFT_STEP "job/.step-000000000009.0123456789abcdef.tmp"
#define LEFT_OWNER "job/..owner.0123456789abcdef.tmp"
#define LEFT_IMAGE "job/step-000000000005/" \
		   ".rank-00000-of-00004.safetensors.0123456789abcdef.tmp"
#define FOREIGN "job/step-000000000005/.rank-00000-of-00004.tmp"

Test(store, clears_away_what_the_dead_left)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	struct timespec now;
	struct place p;
	uint64_t wall;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	sk_store_close(store);
	make_dir(&p, LEFT_JOB);
	make_file(&p, LEFT_JOB "/rank-00000-of-00004.safetensors", "x");
	make_dir(&p, LEFT_JOB "/deep");
	make_file(&p, LEFT_JOB "/deep/file", "x");
	make_dir(&p, LEFT_STEP);
	make_file(&p, LEFT_STEP "/.run", "1\n");
	make_file(&p, LEFT_OWNER, "1\n");
	make_file(&p, LEFT_IMAGE, "x");
	make_file(&p, FOREIGN, "x");
	make_file(&p, ".deleted-0123456789abcdef", "not ours here");

	clock_gettime(CLOCK_REALTIME, &now);
	wall = now.tv_sec * UINT64_C(1000000000);
	sk_fault_os_init(&fault, sk_os_linux());
	/* Young, or from the future of a clock that was set back. */
	sk_fault_os_clock(&fault, 0, wall);
	sk_store_close(open_store(&fault.os, &p));
	sk_fault_os_clock(&fault, 0, wall - DAY_NS);
	sk_store_close(open_store(&fault.os, &p));
	cr_assert(exists(&p, LEFT_JOB) && exists(&p, LEFT_STEP) &&
		  exists(&p, LEFT_OWNER) && exists(&p, LEFT_IMAGE));
	sk_fault_os_clock(&fault, 0, wall + DAY_NS);
	store = open_store(&fault.os, &p);
	cr_assert_not(exists(&p, LEFT_JOB));
	cr_assert_not(exists(&p, LEFT_STEP));
	cr_assert_not(exists(&p, LEFT_OWNER));
	cr_assert_not(exists(&p, LEFT_IMAGE));
	cr_assert(exists(&p, FOREIGN));
	cr_assert(exists(&p, ".deleted-0123456789abcdef"));
	cr_assert(holds(store, 1, 5, 0));
	sk_store_close(store);
	place_remove(&p);
}

/* Whose agent is dead is told at once, whatever the age; whose lives is left
 * alone, whatever the age. */
Test(store, knows_the_dead_from_the_living)
{
	struct sk_store *store, *other, *third;
	char ours[128], theirs[128], thirds[128];
	struct sk_fault_os old;
	struct timespec now;
	struct place p;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	other = open_store(sk_os_linux(), &p);
	third = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	left_by(&p, store, ours);
	left_by(&p, other, theirs);
	left_by(&p, third, thirds);
	clock_gettime(CLOCK_REALTIME, &now);
	sk_fault_os_init(&old, sk_os_linux());
	sk_fault_os_clock(&old, 0, now.tv_sec * UINT64_C(1000000000) + DAY_NS);
	sk_store_close(open_store(&old.os, &p));
	cr_assert(exists(&p, ours) && exists(&p, theirs) &&
		  exists(&p, thirds), "they live");
	cr_assert_eq(sk_store_sweep(store, SK_STORE_DEAD_ONLY), 0);
	kill_store(other);
	cr_assert_eq(sk_store_sweep(store, SK_STORE_DEAD_ONLY), 1);
	cr_assert_not(exists(&p, theirs), "swept by one that runs");
	cr_assert(exists(&p, ours) && exists(&p, thirds));
	cr_assert_eq(sk_store_sweep(store, SK_STORE_DEAD_ONLY), 0);
	kill_store(third);
	sk_store_close(open_store(sk_os_linux(), &p));
	cr_assert_not(exists(&p, thirds), "swept at a start");
	cr_assert(exists(&p, ours) && holds(store, 1, 5, 0));
	sk_store_close(store);
	place_remove(&p);
}

/* An agent that was killed in its first flush leaves a directory of a run that
 * nobody knows of: the next one has that number again, and the step. */
Test(store, nothing_is_in_nobodys_way)
{
	const struct sk_store_run first = { 1, 77 };
	const char *image = "job/step-000000000005/"
			    "rank-00000-of-00004.safetensors";
	struct sk_store *store;
	struct place p;
	char left[128], path[256];
	int job, fd;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	job = sk_store_make_job_dir(store, "job", 0700, NULL);
	fd = sk_step_acquire(store, job, 5, &first, 0700, NULL);
	cr_assert(job >= 0 && fd >= 0);
	left_by(&p, store, left);
	cr_assert_eq(put(store, 1, 5, 0), -ESTALE, "it is being written");
	snprintf(path, sizeof(path), "%s/%s", p.store, left);
	cr_assert_eq(unlink(path), 0);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert(exists(&p, image) && holds(store, 1, 5, 0));
	cr_assert_eq(sk_step_acquire(store, job, 5, &first, 0700,
				     NULL), -ESTALE);
	close(fd);
	close(job);
	sk_store_close(store);
	place_remove(&p);
}

/* Nor is what it was writing: nobody will end it. */
Test(store, the_dead_are_in_nobodys_way)
{
	const struct sk_store_run first = { 1, 77 };
	struct sk_store *store, *other;
	struct place p;
	char left[128];
	int job, fd;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	other = open_store(sk_os_linux(), &p);
	job = sk_store_make_job_dir(other, "job", 0700, NULL);
	fd = sk_step_acquire(other, job, 5, &first, 0700, NULL);
	cr_assert(job >= 0 && fd >= 0);
	left_by(&p, other, left);
	cr_assert_eq(put(store, 1, 5, 0), -ESTALE, "it lives");
	cr_assert(exists(&p, left));
	kill_store(other);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert(holds(store, 1, 5, 0));
	close(fd);
	close(job);
	sk_store_close(store);
	place_remove(&p);
}

/* Whatever somebody put where our small files and directories stand. */
Test(store, strange_things_are_in_nobodys_way)
{
	struct sk_store *store;
	struct place p;
	char path[256];
	int r[4] = { 0 };

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	/* Each in place of the run's file. */
	for (int i = 0; i < 4; i++) {
		(void)snprintf(path, sizeof(path),
			       "%s/job/step-000000000005/.run", p.store);
		cr_assert_eq(remove(path), 0);
		r[i] = i == 0 ? mkdir(path, 0700) :
		       i == 1 ? mkfifo(path, 0600) :
		       i == 2 ? symlink("/dev/zero", path) :
		       mknod(path, S_IFSOCK | 0600, 0);
		cr_assert_eq(r[i], 0, "%d", i);
		cr_assert_eq(scan(store, NULL), 1, "case %d", i);
	}
	cr_assert_eq(put(store, 2, 5, 0), 0);
	cr_assert(exists(&p, "job/step-000000000005.run-0"));
	/* And of the names that older runs' steps get. */
	make_file(&p, "job/step-000000000005.run-2", "x");
	(void)snprintf(path, sizeof(path),
		       "%s/job/step-000000000005.run-2-2", p.store);
	cr_assert_eq(symlink("..", path), 0);
	make_dir(&p, "job/step-000000000005.run-2-3");
	make_file(&p, "job/step-000000000005.run-2-3/file", "x");
	cr_assert_eq(put(store, 3, 5, 0), 0);
	cr_assert(exists(&p, "job/step-000000000005.run-2-4/.run"));
	cr_assert(holds(store, 3, 5, 0) && holds(store, 2, 5, 0));
	sk_store_close(store);
	place_remove(&p);
}

/* Where there are no locks age decides, and nobody looks dead who is not. */
Test(store, lives_without_locks)
{
	struct sk_fault_os none;
	struct sk_store *store;
	char left[128];
	struct place p;

	place_make(&p);
	sk_fault_os_init(&none, sk_os_linux());
	sk_fault_os_fail(&none, SK_FAULT_FLOCK, 1, UINT64_MAX, ENOLCK);
	store = open_store(&none.os, &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	left_by(&p, store, left);
	sk_store_close(open_store(sk_os_linux(), &p));
	cr_assert(exists(&p, left));
	sk_store_close(store);
	place_remove(&p);
}

/* Removed and made anew, it is found again. */
Test(store, finds_its_directory_again)
{
	struct sk_store *store, *other;
	char aside[128], left[128];
	struct place p;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	snprintf(aside, sizeof(aside), "%s.aside", p.store);
	cr_assert_eq(rename(p.store, aside), 0);
	cr_assert_eq(mkdir(p.store, 0700), 0);
	cr_assert_not(holds(store, 1, 5, 0));
	cr_assert_eq(put(store, 1, 6, 0), 0);
	cr_assert(holds(store, 1, 6, 0));
	cr_assert(exists(&p, "job/step-000000000006"));
	/* And it lives there. */
	other = open_store(sk_os_linux(), &p);
	cr_assert_eq(sk_store_sweep(other, SK_STORE_DEAD_ONLY), 0);
	sk_store_close(other);
	cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, p.store), 0);
	cr_assert_neq(put(store, 1, 7, 0), 0);
	cr_assert_eq(rename(aside, p.store), 0);
	cr_assert_eq(put(store, 1, 7, 0), 0);
	cr_assert(holds(store, 1, 5, 0) && holds(store, 1, 7, 0));
	/* And lives there again, where it was taken for dead meanwhile. */
	left_by(&p, store, left);
	sk_store_close(open_store(sk_os_linux(), &p));
	cr_assert(exists(&p, left));
	sk_store_close(store);
	place_remove(&p);
}

/* What is open may not even say any more which directory it was. */
Test(store, finds_its_directory_again_after_a_server_lost_it)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;

	place_make(&p);
	sk_fault_os_init(&fault, sk_os_linux());
	store = open_store(&fault.os, &p);
	cr_assert_eq(sk_fault_os_calls(&fault, SK_FAULT_DUP2), 0);
	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_fail(&fault, SK_FAULT_FSTAT, 1, 1, ESTALE);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(sk_fault_os_calls(&fault, SK_FAULT_DUP2), 1);
	cr_assert(holds(store, 1, 5, 0));
	sk_store_close(store);
	place_remove(&p);
}

/* putting and finding */

Test(store, finds_what_was_put)
{
	struct sk_stored *images;
	struct sk_store *store;
	struct stat st;
	char path[256];
	struct place p;
	size_t n;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(scan(store, &images), 0);
	cr_assert_eq(put(store, 3, 2000, 1), 0);
	cr_assert_eq(put(store, 3, 1000, 3), 0);
	cr_assert_eq(put(store, 3, 1000, 0), 0);
	n = scan(store, &images);
	cr_assert_eq(n, 3);
	cr_assert(images[0].step == 1000 && images[0].rank == 0);
	cr_assert(images[1].step == 1000 && images[1].rank == 3);
	cr_assert(images[2].step == 2000 && images[2].rank == 1);
	for (size_t i = 0; i < n; i++) {
		cr_assert_str_eq(images[i].job, "job");
		cr_assert_eq(images[i].world, 4);
		cr_assert_gt(images[i].file.mtime_ns, 0);
		cr_assert_eq(run_of(store, &images[i]), 3);
	}
	cr_assert_str_eq(images[0].dir, "step-000000001000");
	free(images);
	(void)snprintf(path, sizeof(path), "%s/job/step-000000001000/"
		       "rank-00003-of-00004.safetensors", p.store);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_mode & 07777, 0600);
	(void)snprintf(path, sizeof(path), "%s/job/step-000000001000",
		       p.store);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_mode & 07777, 0700);
	sk_store_close(store);
	place_remove(&p);
}

Test(store, refuses_bad_images)
{
	struct sk_io *io = make_io(sk_os_linux(), SK_IO_AUTO);
	struct sk_store *store;
	struct image image;
	struct place p;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	image_make(&image, 1, 1, 0);
	for (int i = 0; i < 6; i++) {
		struct sk_store_put bad = image.put;
		struct sk_err err = { "" };

		bad.job = i == 0 ? "../job" : i == 1 ? "" : bad.job;
		bad.rank = i == 2 ? -1 : i == 3 ? 4 : bad.rank;
		bad.world = i == 4 ? 0 : bad.world;
		bad.run.number = i == 5 ? 0 : bad.run.number;
		cr_assert_eq(sk_store_put_image(store, io, &bad, &err),
			     -EINVAL, "case %d", i);
		cr_assert(err.text[0]);
	}
	cr_assert_eq(scan(store, NULL), 0);
	image_free(&image);
	sk_io_free(io);
	sk_store_close(store);
	place_remove(&p);
}

Test(store, opens_nothing_outside)
{
	static const struct sk_stored bad[] = {
		{ .job = "job", .dir = "../..", .world = 1 },
		{ .job = "job", .dir = "", .world = 1 },
		{ .job = "..", .dir = "step-000000000001", .world = 1 },
		{ .job = "", .dir = "step-000000000001", .world = 1 },
		{ .job = "job", .dir = "step-000000000001", .world = 0 },
		{ .job = "job", .dir = "step-000000000001", .rank = -1,
		  .world = 1 },
	};
	struct sk_stored gone = { .job = "job", .dir = "step-000000000002",
				  .world = 4 };
	struct sk_stored pipe_image = { .job = "job",
					.dir = "step-000000000001",
					.world = 9 };
	struct sk_store *store;
	struct place p;
	char path[256];

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 1, 0), 0);
	for (size_t i = 0; i < SK_ARRAY_SIZE(bad); i++) {
		struct sk_err err = { "" };

		cr_assert_eq(sk_store_open_image(store, &bad[i], &err),
			     -EINVAL, "case %zu", i);
		cr_assert(err.text[0]);
	}
	cr_assert_eq(sk_store_open_image(store, &gone, NULL), -ENOENT);
	(void)snprintf(path, sizeof(path), "%s/job/step-000000000001/"
		       "rank-00000-of-00009.safetensors", p.store);
	cr_assert_eq(mkfifo(path, 0600), 0);
	cr_assert_eq(sk_store_open_image(store, &pipe_image, NULL), -ENOENT);
	sk_store_close(store);
	place_remove(&p);
}

Test(store, does_not_see_foreign_names)
{
	static const char *const files[] = {
		"file", "job/file", "job/step-000000000007",
		"job/step-000000000001/README",
		"job/step-000000000001/rank-00001-of-00004.safetensors.tmp",
		("job/step-000000000001/.rank-00001-of-00004.safetensors."
		 "0123456789abcdef.tmp"),
		"job/step-000000000001/rank-00001-of-4.safetensors",
		"job/step-000000000001/\xff\xfe\n\x01%s%n",
		"job/\xff%n\n",
	};
	static const char *const dirs[] = {
		".hidden", "a b", "\xff\xfe", "job/step-1", "job/.deleted-1",
		"job/step-000000000001/rank-00002-of-00004.safetensors",
		"job/step-000000000008", "other", "Zed",
	};
	struct sk_store *store;
	struct place p;
	char path[256];
	char **jobs;
	size_t n;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 1, 0), 0);
	for (size_t i = 0; i < SK_ARRAY_SIZE(files); i++)
		make_file(&p, files[i], "x");
	for (size_t i = 0; i < SK_ARRAY_SIZE(dirs); i++)
		make_dir(&p, dirs[i]);
	(void)snprintf(path, sizeof(path), "%s/link", p.store);
	cr_assert_eq(symlink("job", path), 0);
	(void)snprintf(path, sizeof(path), "%s/job/step-000000000009",
		       p.store);
	cr_assert_eq(symlink("step-000000000001", path), 0);
	(void)snprintf(path, sizeof(path), "%s/job/step-000000000001/"
		       "rank-00003-of-00004.safetensors", p.store);
	cr_assert_eq(symlink("rank-00000-of-00004.safetensors", path), 0);

	cr_assert_eq(scan(store, NULL), 1);
	cr_assert_eq(sk_store_jobs(store, &jobs, &n, NULL), 0);
	cr_assert_eq(n, 3);
	cr_assert_str_eq(jobs[0], "Zed");
	cr_assert_str_eq(jobs[1], "job");
	cr_assert_str_eq(jobs[2], "other");
	for (size_t i = 0; i < n; i++)
		free(jobs[i]);
	free(jobs);
	sk_store_close(store);
	place_remove(&p);
}

Test(store, has_no_images_of_unknown_jobs)
{
	struct sk_stored *images = NULL;
	struct sk_store *store;
	struct place p;
	size_t n = 9;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(sk_store_scan(store, "nobody", &images, &n, NULL), 0);
	cr_assert(n == 0 && !images);
	cr_assert_eq(sk_store_scan(store, "../x", &images, &n, NULL), -EINVAL);
	cr_assert_eq(settle(store, "nobody", 1, 1), 0);
	sk_store_close(store);
	place_remove(&p);
}

/* runs */

Test(store, keeps_runs_apart)
{
	struct sk_err err = { "" };
	struct sk_store *store;
	struct place p;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(put(store, 1, 5, 1), 0);
	cr_assert_eq(put(store, 1, 6, 0), 0);
	/* A newer run takes the name; what was there can still be read. */
	cr_assert_eq(put(store, 2, 5, 0), 0);
	cr_assert(exists(&p, "job/step-000000000005.run-1"));
	cr_assert(holds(store, 2, 5, 0));
	cr_assert(holds(store, 1, 5, 0) && holds(store, 1, 5, 1));
	/* An older one is refused, whatever the rank. */
	cr_assert_eq(put_with(store, SK_IO_AUTO, 1, 5, 3, &err), -ESTALE);
	cr_assert_not_null(strstr(err.text, "run 2"), "%s", err.text);
	cr_assert_eq(put(store, 1, 5, 0), -ESTALE);
	cr_assert_eq(put(store, 1, 6, 1), 0);
	cr_assert_eq(put(store, 2, 5, 1), 0);
	/* The same again is written anew. */
	cr_assert_eq(put(store, 2, 5, 1), 0);
	cr_assert_eq(scan(store, NULL), 6);

	cr_assert_eq(settle(store, "job", 6, 1), 0);
	cr_assert_eq(scan(store, NULL), 6);
	cr_assert_eq(settle(store, "job", 5, 2), 0);
	cr_assert_not(exists(&p, "job/step-000000000005.run-1"));
	cr_assert_eq(scan(store, NULL), 4);
	cr_assert(holds(store, 2, 5, 0) && holds(store, 1, 6, 0));
	sk_store_close(store);
	place_remove(&p);
}

Test(store, finds_a_free_name_for_each_older_run)
{
	struct sk_store *store;
	struct place p;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	for (uint64_t run = 1; run < 5; run++)
		cr_assert_eq(put(store, run, 5, 0), 0);
	cr_assert_eq(scan(store, NULL), 4);
	cr_assert_eq(delete(store, "job", "step-000000000005", 4, NULL),
		     0);
	/* With nothing under the name, an old run may come again. */
	cr_assert_eq(put(store, 1, 5, 2), 0);
	cr_assert_eq(settle(store, "job", 5, 1), 0);
	cr_assert_eq(scan(store, NULL), 4);
	cr_assert_eq(put(store, 6, 5, 0), 0);
	cr_assert(exists(&p, "job/step-000000000005.run-1-2"));
	cr_assert_eq(scan(store, NULL), 5);
	cr_assert_eq(settle(store, "job", 5, 6), 0);
	cr_assert_eq(scan(store, NULL), 1);
	cr_assert(holds(store, 6, 5, 0));
	sk_store_close(store);
	place_remove(&p);
}

/* Two lives of one number: who comes second has lost the step. */
Test(store, refuses_strangers_of_the_same_number)
{
	const struct sk_store_run stranger = { 4, 99 };
	struct sk_err err = { "" };
	struct sk_store *store;
	struct place p;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 4, 5, 0), 0);
	for (int32_t rank = 0; rank < 4; rank++) {
		cr_assert_eq(put_stranger(store, 4, 5, rank, &err), -ESTALE);
		cr_assert_not_null(strstr(err.text, "another run 4"), "%s",
				   err.text);
	}
	cr_assert_eq(scan(store, NULL), 1);
	cr_assert(holds(store, 4, 5, 0));
	/* Nor does it delete it, or what the step displaced. */
	cr_assert_eq(put(store, 3, 6, 0), 0);
	cr_assert_eq(put(store, 4, 6, 0), 0);
	cr_assert_eq(sk_store_delete(store, "job", "step-000000000005",
				     &stranger, &err), -ESTALE);
	cr_assert_eq(sk_store_settle(store, "job", 6, &stranger, NULL), 0);
	cr_assert(exists(&p, "job/step-000000000006.run-3"));
	cr_assert_eq(scan(store, NULL), 3);
	sk_store_close(store);
	place_remove(&p);
}

/* A whole run is not settled away under a newer one that is not whole. */
Test(store, settles_only_who_holds_the_step)
{
	struct sk_store *store;
	struct place p;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 2, 5, 0), 0);
	cr_assert_eq(put(store, 3, 5, 0), 0);
	cr_assert_eq(settle(store, "job", 5, 2), 0);
	cr_assert(exists(&p, "job/step-000000000005.run-2"));
	cr_assert_eq(settle(store, "job", 5, 3), 0);
	cr_assert_not(exists(&p, "job/step-000000000005.run-2"));
	sk_store_close(store);
	place_remove(&p);
}

/* Each bit of ".run" is under its checksum: no flip makes it another's. */
Test(store, sees_each_flipped_bit_of_a_run_file)
{
	struct sk_store_run run = { 7, 0xfedcba9876543210u }, back;
	char text[SK_RUN_TEXT_MAX];

	sk_run_text_format(text, &run);
	cr_assert(sk_run_text_parse(text, &back));
	cr_assert(sk_store_run_equal(&run, &back));
	for (size_t bit = 0; bit < 8 * strlen(text); bit++) {
		char hurt[SK_RUN_TEXT_MAX];

		strcpy(hurt, text);
		hurt[bit / 8] ^= (char)(1 << bit % 8);
		cr_assert_not(sk_run_text_parse(hurt, &back), "%s", hurt);
	}
	run.number = SK_RUN_MAX + 1;
	sk_run_text_format(text, &run);
	cr_assert_not(sk_run_text_parse(text, &back), "out of range");
}

/* What says no run is older than all that do. */
Test(store, moves_what_has_no_run_aside)
{
	static const char *const marks[] = { "", "x\n", "7", "-1\n", "07\n",
		"99999999999999999999999\n", "7\n",
		"7 00000000000003ef\n",
		"7 00000000000003ef 0000000000000000\n" };
	struct sk_store *store;
	struct place p;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	make_dir(&p, "job");
	make_dir(&p, "job/step-000000000009");	/* empty: just taken */
	cr_assert_eq(put(store, 1, 9, 0), 0);
	for (size_t i = 0; i < SK_ARRAY_SIZE(marks); i++) {
		char name[64];

		(void)snprintf(name, sizeof(name), "job/step-%012zu", i);
		make_dir(&p, name);
		strcat(name, "/.run");
		make_file(&p, name, marks[i]);
		cr_assert_eq(put(store, 1, i, 0), 0);
		(void)snprintf(name, sizeof(name), "job/step-%012zu.run-0", i);
		cr_assert(exists(&p, name), "%s", marks[i]);
		cr_assert_eq(settle(store, "job", i, 1), 0);
		cr_assert_not(exists(&p, name));
	}
	sk_store_close(store);
	place_remove(&p);
}

/* An image with a true header, and a directory without its ".run". */
static void make_true_image(struct image *image, uint64_t run, uint64_t step,
			    int32_t rank, char **ret_bytes)
{
	struct sk_item item = {
		.spec = { .name = (char *)"rng", .dtype = SK_U8, .ndim = 1,
			  .shape = { 5000 } },
		.kind = SK_ITEM_BLOB_LOCAL,
	};
	struct sk_stamp stamp = { .run = run, .run_id = run_named(run).id,
				  .step = step };
	struct sk_layout *layout = NULL;
	struct sk_err err = { "" };
	char *bytes;

	cr_assert_eq(sk_layout_new("job", rank, 4, SK_IMAGE_PRIMARY, &item, 1,
				   &layout, &err), 0, "%s", err.text);
	stamp.sums = calloc(layout->n_sums, sizeof(*stamp.sums));
	for (uint32_t i = 0; i < layout->n_sums; i++)
		stamp.sums[i] = i + 41;
	bytes = aligned_alloc(SK_PAGE, sk_round_up(layout->image_bytes,
						   SK_PAGE));
	memset(bytes, 7, sk_round_up(layout->image_bytes, SK_PAGE));
	sk_layout_stamp(layout, &stamp, bytes);
	image->put = (struct sk_store_put){
		.job = "job", .run = run_named(run), .step = step, .rank = rank,
		.world = 4, .head = bytes, .head_bytes = layout->header_bytes,
		.data = bytes, .bytes = layout->image_bytes,
	};
	free(stamp.sums);
	sk_layout_free(layout);
	*ret_bytes = bytes;
}

Test(store, reads_layout_and_stamp)
{
	struct sk_io *io = make_io(sk_os_linux(), SK_IO_AUTO);
	struct sk_layout *layout = NULL;
	struct sk_stored *images;
	struct sk_stamp stamp = { 0 };
	struct sk_err err = { "" };
	struct sk_store *store;
	struct image image;
	struct place p;
	char *bytes;
	size_t n;
	int fd;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	make_true_image(&image, 8, 90, 2, &bytes);
	cr_assert_eq(sk_store_put_image(store, io, &image.put, NULL), 0);
	cr_assert_eq(sk_store_scan(store, "job", &images, &n, NULL), 0);
	cr_assert_eq(n, 1);
	fd = sk_store_open_image(store, &images[0], NULL);
	cr_assert_eq(sk_store_read_layout(store, fd, &layout, &stamp, &err), 0,
		     "%s", err.text);
	cr_assert(stamp.run == 8 && stamp.step == 90 && stamp.sums[0] == 41);
	cr_assert(layout->rank == 2 &&
		  layout->image_bytes == images[0].file.bytes);
	free(stamp.sums);
	sk_layout_free(layout);
	cr_assert_eq(sk_store_read_layout(store, fd, &layout, NULL, NULL), 0);
	sk_layout_free(layout);
	close(fd);
	free(images);
	free(bytes);
	sk_io_free(io);
	sk_store_close(store);
	place_remove(&p);
}

/* A rank may have nothing to store: its file ends with its header. */
Test(store, reads_an_empty_image)
{
	const struct sk_stamp stamp = { .run = 8, .run_id = 9, .step = 90 };
	struct sk_layout *layout = NULL, *back = NULL;
	struct sk_stamp read = { 0 };
	struct sk_store *store;
	struct place p;
	FILE *f = tmpfile();
	char *header;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(sk_layout_new("job", 1, 4, SK_IMAGE_PRIMARY, NULL, 0,
				   &layout, NULL), 0);
	cr_assert_eq(layout->image_bytes, layout->header_bytes);
	header = malloc(layout->header_bytes);
	sk_layout_stamp(layout, &stamp, header);
	cr_assert_eq(fwrite(header, 1, layout->header_bytes, f),
		     layout->header_bytes);
	fflush(f);
	cr_assert_eq(sk_store_read_layout(store, fileno(f), &back, &read,
					  NULL), 0);
	cr_assert(read.run == 8 && read.step == 90 && back->rank == 1 &&
		  !back->n_items);
	free(read.sums);
	sk_layout_free(back);
	sk_layout_free(layout);
	free(header);
	fclose(f);
	sk_store_close(store);
	place_remove(&p);
}

static int find_left(void *ctx, int fd, const char *name)
{
	uint32_t instance;

	(void)ctx;
	(void)fd;
	return sk_leftover_name(name, &instance);
}

static bool anything_left(const struct place *p, const char *dir)
{
	char path[256];
	int fd, r;

	(void)snprintf(path, sizeof(path), "%s/%s", p->store, dir);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(fd, 0, "%s", path);
	r = sk_dir_each(sk_os_linux(), fd, find_left, NULL);
	close(fd);
	return r;
}

/* A whole image stays, whatever else of its name and run comes; what is hurt
 * is mended by the same image only. */
Test(store, replaces_no_whole_image)
{
	struct sk_io *io = make_io(sk_os_linux(), SK_IO_AUTO);
	static const char name[] = "job/step-000000000090/"
				   "rank-00002-of-00004.safetensors";
	struct sk_file_id file = { 0 }, again = { 0 };
	struct image image, other;
	struct sk_store *store;
	struct sk_err err = { "" };
	struct sk_stored *images;
	struct place p;
	char *bytes, *others;
	size_t n;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	make_true_image(&image, 8, 90, 2, &bytes);
	image.put.ret_file = &file;
	cr_assert_eq(sk_store_put_image(store, io, &image.put, NULL), 0);
	/* It is the file that a scan finds. */
	cr_assert_eq(sk_store_scan(store, "job", &images, &n, NULL), 0);
	cr_assert_eq(n, 1);
	cr_assert(sk_file_id_equal(&images[0].file, &file));
	cr_assert(images[0].run.number == 8 &&
		  images[0].run.id == run_named(8).id);
	free(images);

	make_true_image(&other, 8, 91, 2, &others);
	other.put.step = 90;
	cr_assert_eq(sk_store_put_image(store, io, &other.put, &err), -ESTALE);
	cr_assert_not_null(strstr(err.text, "other content"), "%s", err.text);
	cr_assert_not(anything_left(&p, "job/step-000000000090"));
	image.put.ret_file = &again;
	cr_assert_eq(sk_store_put_image(store, io, &image.put, NULL), 0);
	cr_assert(again.inode && !sk_file_id_equal(&again, &file));
	make_file(&p, name, "hurt");
	cr_assert_eq(sk_store_put_image(store, io, &other.put, NULL), 0);
	free(others);
	free(bytes);
	sk_io_free(io);
	sk_store_close(store);
	place_remove(&p);
}

Test(store, learns_the_run_from_an_image)
{
	struct sk_io *io = make_io(sk_os_linux(), SK_IO_AUTO);
	struct sk_store *store;
	struct image image;
	struct place p;
	char path[256];
	char *bytes;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	make_true_image(&image, 8, 90, 2, &bytes);
	cr_assert_eq(sk_store_put_image(store, io, &image.put, NULL), 0);
	(void)snprintf(path, sizeof(path), "%s/job/step-000000000090/.run",
		       p.store);
	cr_assert_eq(unlink(path), 0);
	/* One that is hurt must not keep the other from telling. */
	make_file(&p, "job/step-000000000090/rank-00000-of-00004.safetensors",
		  "torn");
	cr_assert_eq(put(store, 7, 90, 3), -ESTALE);
	cr_assert_eq(put(store, 8, 90, 3), 0);
	cr_assert(exists(&p, "job/step-000000000090/"
			     "rank-00003-of-00004.safetensors"));
	cr_assert_eq(put(store, 9, 90, 3), 0);
	cr_assert(exists(&p, "job/step-000000000090.run-8"));
	free(bytes);
	sk_io_free(io);
	sk_store_close(store);
	place_remove(&p);
}

Test(store, refuses_what_is_no_image)
{
	static const struct {
		const char *bytes;
		size_t size;
	} files[] = {
		{ "", 0 },
		{ "\x08\0\0\0\0\0\0", 7 },
		{ "\x08\0\0\0\0\0\0\0", 8 },
		{ "\x08\0\0\0\0\0\0\0{}", 10 },
		{ "\xff\xff\xff\xff\xff\xff\xff\xff{}      ", 16 },
		{ "\0\0\0\x01\0\0\0\0{}      ", 16 },
	};
	struct sk_layout *layout = NULL;
	struct sk_store *store;
	struct place p;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	for (size_t i = 0; i < SK_ARRAY_SIZE(files); i++) {
		struct sk_err err = { "" };
		FILE *f = tmpfile();

		fwrite(files[i].bytes, 1, files[i].size, f);
		fflush(f);
		cr_assert_eq(sk_store_read_layout(store, fileno(f), &layout,
						  NULL, &err), -EBADMSG,
			     "case %zu", i);
		cr_assert(err.text[0]);
		cr_assert_null(layout);
		fclose(f);
	}
	cr_assert_eq(sk_store_read_layout(store, -1, &layout, NULL, NULL),
		     -EBADF);
	sk_store_close(store);
	place_remove(&p);
}

/* deleting */

Test(store, deletes_steps)
{
	static const char *const bad[] = { "", "..", "step-1", ".owner",
		"step-000000000001/../..", ".deleted-0123456789abcdef" };
	struct sk_err err = { "" };
	struct sk_store *store;
	struct place p;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 1, 0), 0);
	cr_assert_eq(put(store, 1, 2, 0), 0);
	make_dir(&p, "job/step-000000000001/deep");
	make_file(&p, "job/step-000000000001/deep/file", "x");
	cr_assert_eq(delete(store, "job", "step-000000000001", 1, NULL),
		     0);
	cr_assert_eq(scan(store, NULL), 1);
	cr_assert_eq(delete(store, "job", "step-000000000001", 1, &err),
		     -ENOENT);
	cr_assert(err.text[0]);
	cr_assert_eq(delete(store, "none", "step-000000000001", 1, NULL),
		     -ENOENT);
	for (size_t i = 0; i < SK_ARRAY_SIZE(bad); i++)
		cr_assert_eq(delete(store, "job", bad[i], 1, NULL),
			     -EINVAL, "%s", bad[i]);
	cr_assert_eq(scan(store, NULL), 1);
	sk_store_close(store);
	place_remove(&p);
}

/* owners */

Test(store, remembers_owners)
{
	static const char *const bad[] = { "", "5", "x\n", "-1\n",
		"4294967295\n", "99999999999\n", "1 2\n" };
	struct sk_store *store;
	struct place p;
	uid_t uid = 77;

	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(sk_store_owner(store, "job", &uid, NULL), -ENOENT);
	make_dir(&p, "job");
	cr_assert_eq(sk_store_owner(store, "job", &uid, NULL), -ENOENT);
	cr_assert_eq(uid, 77);
	cr_assert_eq(sk_store_set_owner(store, "job", 1000, NULL), 0);
	cr_assert_eq(sk_store_owner(store, "job", &uid, NULL), 0);
	cr_assert_eq(uid, 1000);
	cr_assert_eq(sk_store_set_owner(store, "new", 0, NULL), 0);
	cr_assert_eq(sk_store_owner(store, "new", &uid, NULL), 0);
	cr_assert_eq(uid, 0);
	for (size_t i = 0; i < SK_ARRAY_SIZE(bad); i++) {
		make_file(&p, "job/.owner", bad[i]);
		cr_assert_eq(sk_store_owner(store, "job", &uid, NULL),
			     -EBADMSG, "%s", bad[i]);
	}
	cr_assert_eq(sk_store_owner(store, "a/b", &uid, NULL), -EINVAL);
	sk_store_close(store);
	place_remove(&p);
}

/* User and mode of what lies at @name below the store. */
static void check_file(const struct place *p, const char *name, uid_t uid,
		       mode_t mode)
{
	char path[256];
	struct stat st;

	(void)snprintf(path, sizeof(path), "%s/%s", p->store, name);
	cr_assert_eq(stat(path, &st), 0, "%s", path);
	cr_assert_eq(st.st_uid, uid, "%s: %u", path, (unsigned)st.st_uid);
	cr_assert_eq(st.st_mode & 07777, mode, "%s: %o", path, st.st_mode);
}

Test(store, gives_files_and_no_directories)
{
	const char *image = "job/step-000000000005/"
			    "rank-00000-of-00004.safetensors";
	struct sk_store *store;
	struct place p;
	int owned = 1;

	if (geteuid() != 0)
		cr_skip("only root gives files away");
	(void)umask(022);
	place_make(&p);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(sk_store_set_owner(store, "job", 65534, NULL), 0);
	cr_assert_eq(put_owned(store, SK_IO_AUTO, 65534, &owned), 0);
	cr_assert_eq(owned, 0);
	check_file(&p, image, 65534, 0600);
	check_file(&p, "job", 0, 0711);
	check_file(&p, "job/.owner", 0, 0600);
	check_file(&p, "job/step-000000000005", 0, 0755);
	check_file(&p, "job/step-000000000005/.run", 0, 0600);
	/* Without a word of it all stays as it was. */
	cr_assert_eq(put(store, 1, 6, 0), 0);
	check_file(&p, "job/step-000000000006", 0, 0700);
	sk_store_close(store);
	place_remove(&p);
}
