/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault-os.h"
#include "store/private.h"

#define IMAGE_BYTES (9 * SK_PAGE + 77)
#define DAY_NS (UINT64_C(86400) * 1000000000)

struct place {
	char path[64];
	char store[80];		/* where the store is: does not exist yet */
};

static void place_make(struct place *p)
{
	strcpy(p->path, "/var/tmp/shardkeep-store-XXXXXX");
	if (!mkdtemp(p->path)) {
		strcpy(p->path, "/tmp/shardkeep-store-XXXXXX");
		cr_assert(mkdtemp(p->path));
	}
	(void)snprintf(p->store, sizeof(p->store), "%s/a/store", p->path);
}

static void place_remove(const struct place *p)
{
	cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, p->path), 0);
}

static struct sk_store *open_store(const struct sk_os *os,
				   const struct place *p)
{
	struct sk_store *store = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_store_open(os, p->store, 3600, &store, NULL, &err), 0,
		     "%s", err.text);
	return store;
}

static struct sk_io *make_io(const struct sk_os *os,
			     enum sk_io_backend backend)
{
	const struct sk_io_opts opts = { .backend = backend, .depth = 4,
					 .block = 4 * SK_PAGE };
	struct sk_err err = { "" };
	struct sk_io *io = NULL;
	int r = sk_io_new(os, &opts, &io, &err);

	cr_assert_eq(r, 0, "%s", err.text);
	return io;
}

static int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	cr_assert(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Run @number as all tests know it; another id is a stranger. */
static struct sk_store_run run_named(uint64_t number)
{
	return (struct sk_store_run){ number, number ? 1000 + number : 0 };
}

static int settle(struct sk_store *store, const char *job, uint64_t step,
		  uint64_t number)
{
	const struct sk_store_run run = run_named(number);

	return sk_store_settle(store, job, step, &run, NULL);
}

static int delete(struct sk_store *store, const char *job, const char *dir,
		  uint64_t number, struct sk_err *err)
{
	const struct sk_store_run run = run_named(number);

	return sk_store_delete(store, job, dir, &run, err);
}

/* What an image holds, said by who wrote it. */
struct image {
	char *bytes;
	struct sk_store_put put;
};

static void image_make(struct image *image, uint64_t run, uint64_t step,
		       int32_t rank)
{
	size_t whole = sk_round_up(IMAGE_BYTES, SK_PAGE);

	image->bytes = aligned_alloc(SK_PAGE, whole);
	cr_assert(image->bytes);
	for (size_t i = 0; i < whole; i++)
		image->bytes[i] = (char)(i + run * 31 + step * 7 + rank);
	image->put = (struct sk_store_put){
		.job = "job", .run = run_named(run), .step = step, .rank = rank,
		.world = 4, .head = image->bytes, .head_bytes = SK_PAGE,
		.data = image->bytes, .bytes = IMAGE_BYTES,
	};
}

static void image_free(struct image *image)
{
	free(image->bytes);
}

static int put_with(struct sk_store *store, enum sk_io_backend backend,
		    uint64_t run, uint64_t step, int32_t rank,
		    struct sk_err *err)
{
	struct sk_io *io = make_io(store->os, backend);
	struct image image;
	int r;

	image_make(&image, run, step, rank);
	r = sk_store_put_image(store, io, &image.put, err);
	image_free(&image);
	sk_io_free(io);
	return r;
}

static int put(struct sk_store *store, uint64_t run, uint64_t step,
	       int32_t rank)
{
	return put_with(store, SK_IO_AUTO, run, step, rank, NULL);
}

/* The run whose image this is, whole; 0: none of 1 .. 9. */
static uint64_t run_of(struct sk_store *store, const struct sk_stored *found)
{
	static char got[IMAGE_BYTES + 1];
	uint64_t is = 0;
	int fd;

	fd = sk_store_open_image(store, found, NULL);
	cr_assert_geq(fd, 0);
	cr_assert_eq(found->file.bytes, IMAGE_BYTES);
	cr_assert_eq(pread(fd, got, sizeof(got), 0), IMAGE_BYTES);
	close(fd);
	for (uint64_t run = 1; run < 10 && !is; run++) {
		struct image image;

		image_make(&image, run, found->step, found->rank);
		if (memcmp(got, image.bytes, IMAGE_BYTES) == 0)
			is = run;
		image_free(&image);
	}
	return is;
}

/* Scans and checks that all images are whole; the number of them. */
static size_t scan(struct sk_store *store, struct sk_stored **ret_images)
{
	struct sk_stored *images = NULL;
	struct sk_err err = { "" };
	size_t n = 99;

	cr_assert_eq(sk_store_scan(store, "job", &images, &n, &err), 0, "%s",
		     err.text);
	for (size_t i = 0; i < n; i++)
		cr_assert_neq(run_of(store, &images[i]), 0, "%s is torn",
			      images[i].dir);
	if (ret_images)
		*ret_images = images;
	else
		free(images);
	return n;
}

/* Whether the scan finds this image of this run. */
static bool holds(struct sk_store *store, uint64_t run, uint64_t step,
		  int32_t rank)
{
	struct sk_stored *images;
	size_t n = scan(store, &images);
	bool found = false;

	for (size_t i = 0; i < n; i++)
		found |= images[i].step == step && images[i].rank == rank &&
			 run_of(store, &images[i]) == run;
	free(images);
	return found;
}

static bool exists(const struct place *p, const char *name)
{
	char path[256];

	(void)snprintf(path, sizeof(path), "%s/%s", p->store, name);
	return faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void make_file(const struct place *p, const char *name,
		      const char *text)
{
	char path[256];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%s", p->store, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	cr_assert_geq(fd, 0, "%s", path);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static void make_dir(const struct place *p, const char *name)
{
	char path[256];

	(void)snprintf(path, sizeof(path), "%s/%s", p->store, name);
	cr_assert_eq(mkdir(path, 0700), 0, "%s", path);
}

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

static void left_by(const struct place *p, const struct sk_store *store,
		    char path[128])
{
	char name[SK_STORE_NAME_MAX];

	sk_temporary_name((struct sk_store *)store,
			  "rank-00000-of-00004.safetensors", name);
	snprintf(path, 128, "job/step-000000000005/%s", name);
	make_file(p, path, "x");
}

/* As if its process had been killed: the lock is gone, its file is not. */
static void kill_store(struct sk_store *store)
{
	close(store->alive);
	store->alive = -1;
	sk_store_close(store);
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

/* An image of the run with that number, but of another life. */
static int put_stranger(struct sk_store *store, uint64_t number, uint64_t step,
			int32_t rank, struct sk_err *err)
{
	struct sk_io *io = make_io(store->os, SK_IO_AUTO);
	struct image image;
	int r;

	image_make(&image, number, step, rank);
	image.put.run.id++;
	r = sk_store_put_image(store, io, &image.put, err);
	image_free(&image);
	sk_io_free(io);
	return r;
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

static int put_owned(struct sk_store *store, enum sk_io_backend backend,
		     uid_t owner, int *ret_owned)
{
	struct sk_io *io = make_io(store->os, backend);
	struct image image;
	int r;

	image_make(&image, 1, 5, 0);
	image.put.owner = &owner;
	image.put.ret_owned = ret_owned;
	r = sk_store_put_image(store, io, &image.put, NULL);
	image_free(&image);
	sk_io_free(io);
	return r;
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

/* faults */

static enum sk_fault_op write_op(enum sk_io_backend backend)
{
	return backend == SK_IO_URING ? SK_FAULT_URING_WRITE : SK_FAULT_PWRITE;
}

/*
 * Fails each call of @op in turn while an image of run 2 is put where images
 * of run 1 may be, and checks what must hold after any fault.
 */
static int fail_put(enum sk_io_backend backend, enum sk_fault_op op, int error,
		    bool older)
{
	struct sk_fault_os fault;
	int n, r;

	for (n = 1; ; n++) {
		struct sk_err err = { "" };
		struct sk_store *store;
		struct place p;
		int fds;

		place_make(&p);
		sk_fault_os_init(&fault, sk_os_linux());
		store = open_store(&fault.os, &p);
		if (older)
			cr_assert_eq(put(store, 1, 5, 1), 0);
		fds = count_fds();
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, op, n, 1, error);
		r = put_with(store, backend, 2, 5, 0, &err);
		fault.rule_count = 0;
		cr_assert_eq(count_fds(), fds, "call %d", n);
		/* scan() checks that all it sees is whole. */
		cr_assert_leq(scan(store, NULL), 2);
		cr_assert(!older || holds(store, 1, 5, 1), "call %d", n);
		if (r == 0)
			cr_assert(holds(store, 2, 5, 0));
		else
			cr_assert(r == -error && err.text[0], "call %d: %d %s",
				  n, r, err.text);
		cr_assert_eq(put(store, 2, 5, 0), 0, "call %d", n);
		cr_assert(holds(store, 2, 5, 0));
		cr_assert_eq(settle(store, "job", 5, 2), 0);
		cr_assert_eq(scan(store, NULL), 1);
		sk_store_close(store);
		place_remove(&p);
		if (!sk_fault_os_hits(&fault))
			break;
		/* A file's descriptor is closed when its name is final or
		 * gone, a directory's when all is done. */
		cr_assert(r < 0 || sk_fault_os_calls(&fault, SK_FAULT_CLOSE),
			  "call %d was not noticed", n);
	}
	cr_assert_eq(r, 0);
	return n - 1;
}

/* Before anything is made: skipping leaves everything where it is. */
static void need_uring(void)
{
	const struct sk_io_opts opts = { .backend = SK_IO_URING };
	struct sk_err err = { "" };
	struct sk_io *io = NULL;

	if (sk_io_new(sk_os_linux(), &opts, &io, &err) < 0)
		cr_skip("no io_uring here: %s", err.text);
	sk_io_free(io);
}

#define BOTH(name)						\
	static void name(enum sk_io_backend backend);		\
	Test(store_faults, name##_by_uring, .timeout = 120)	\
	{							\
		need_uring();					\
		name(SK_IO_URING);				\
	}							\
	Test(store_faults, name##_by_threads, .timeout = 120)	\
	{							\
		name(SK_IO_THREADS);				\
	}							\
	static void name(enum sk_io_backend backend)

BOTH(any_call_out_of_space)
{
	cr_assert_gt(fail_put(backend, SK_FAULT_ANY, ENOSPC, false), 30);
}

BOTH(any_call_fails)
{
	cr_assert_gt(fail_put(backend, SK_FAULT_ANY, EIO, true), 30);
}

/* A server that lost a file says nothing of runs: never are the two mixed up,
 * for what is said of runs is final. */
BOTH(a_stale_handle_is_no_word_about_runs)
{
	uint64_t hits = 1;

	for (uint64_t n = 1; hits; n++) {
		struct sk_fault_os fault;
		struct sk_store *store;
		struct place p;
		int r;

		place_make(&p);
		sk_fault_os_init(&fault, sk_os_linux());
		store = open_store(&fault.os, &p);
		cr_assert_eq(put(store, 1, 5, 1), 0);
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, ESTALE);
		r = put_with(store, backend, 2, 5, 0, NULL);
		hits = sk_fault_os_hits(&fault);
		cr_assert_neq(r, -ESTALE, "call %d", (int)n);
		fault.rule_count = 0;
		cr_assert_eq(put(store, 2, 5, 0), 0, "call %d", (int)n);
		sk_store_close(store);
		place_remove(&p);
	}
}

/* The image is as durable as any, and who asked hears of it. */
BOTH(an_owner_is_refused)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;
	int owned = 1;

	place_make(&p);
	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_fail(&fault, SK_FAULT_FCHOWN, 1, 1, EPERM);
	store = open_store(&fault.os, &p);
	cr_assert_eq(put_owned(store, backend, geteuid(), &owned), 0);
	cr_assert_eq(sk_fault_os_hits(&fault), 1);
	cr_assert_eq(owned, -EPERM);
	cr_assert(holds(store, 1, 5, 0));
	/* Again, over the same: this time it is given. */
	cr_assert_eq(put_owned(store, backend, 0700, NULL), 0);
	cr_assert_eq(put_owned(store, backend, geteuid(), &owned), 0);
	cr_assert_eq(owned, 0);
	sk_store_close(store);
	place_remove(&p);
}

BOTH(each_fsync)
{
	/* store, .run, its directory, job, image, step */
	cr_assert_eq(fail_put(backend, SK_FAULT_FSYNC, EIO, false), 6);
	cr_assert_eq(fail_put(backend, SK_FAULT_FSYNC, ENOSPC, true), 6);
}

BOTH(each_rename)
{
	/* .run, the step, the image; with an older run, that too */
	cr_assert_eq(fail_put(backend, SK_FAULT_RENAMEAT, EIO, false), 3);
	cr_assert_eq(fail_put(backend, SK_FAULT_RENAMEAT, ENOSPC, true), 4);
}

BOTH(short_writes)
{
	for (uint64_t most = 0; most < 3 * SK_PAGE; most += 3001) {
		struct sk_fault_os fault;
		struct sk_store *store;
		struct place p;

		place_make(&p);
		sk_fault_os_init(&fault, sk_os_linux());
		store = open_store(&fault.os, &p);
		/* By threads, the first writes ".run": also in pieces. */
		sk_fault_os_shorten(&fault, write_op(backend),
				    most ? 1 : 2, 4, most);
		cr_assert_eq(put_with(store, backend, 1, 5, 0, NULL), 0);
		cr_assert(sk_fault_os_hits(&fault));
		cr_assert(holds(store, 1, 5, 0));
		sk_store_close(store);
		place_remove(&p);
	}
}

Test(store_faults, opening, .timeout = 120)
{
	struct sk_fault_os fault;
	int n;

	for (n = 1; ; n++) {
		struct sk_store *store = NULL;
		struct place p;
		int fds, r;

		place_make(&p);
		fds = count_fds();
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, EIO);
		r = sk_store_open(&fault.os, p.store, 1, &store, NULL, NULL);
		cr_assert(r == 0 || (r == -EIO && !store));
		sk_store_close(store);
		cr_assert_eq(count_fds(), fds);
		place_remove(&p);
		if (!sk_fault_os_hits(&fault))
			break;
	}
	cr_assert_gt(n, 10);
}

/* Deletes through faults: the step is there whole, or is gone. */
Test(store_faults, deleting, .timeout = 120)
{
	struct sk_fault_os fault;
	int n, r;

	for (n = 1; ; n++) {
		struct sk_store *store;
		struct place p;
		int fds;

		place_make(&p);
		sk_fault_os_init(&fault, sk_os_linux());
		store = open_store(&fault.os, &p);
		cr_assert_eq(put(store, 1, 5, 0), 0);
		cr_assert_eq(put(store, 1, 5, 1), 0);
		fds = count_fds();
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, EIO);
		r = delete(store, "job", "step-000000000005", 1, NULL);
		fault.rule_count = 0;
		cr_assert_eq(count_fds(), fds);
		cr_assert_eq(scan(store, NULL),
			     exists(&p, "job/step-000000000005") ? 2 : 0);
		cr_assert(r < 0 || scan(store, NULL) == 0);
		sk_store_close(store);
		/* What is left is cleared away later. */
		sk_fault_os_clock(&fault, 0, UINT64_C(4000000000000000000));
		sk_store_close(open_store(&fault.os, &p));
		if (!exists(&p, "job/step-000000000005"))
			cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD,
						   p.store), 0);
		place_remove(&p);
		if (!sk_fault_os_hits(&fault))
			break;
	}
	cr_assert_eq(r, 0);
	cr_assert_gt(n, 8);
}

static size_t count_errors(const struct sk_stored *images, size_t n)
{
	size_t errors = 0;

	for (size_t i = 0; i < n; i++)
		errors += images[i].error != 0;
	return errors;
}

/*
 * Whatever call fails while two steps are looked at: either that is said of
 * the whole job, or a record says it; never are there fewer steps and nobody
 * says why. One that is out of descriptors or memory finds nothing.
 */
static void fail_scan(int error, bool shortage)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;
	int n, partial = 0;

	place_make(&p);
	sk_fault_os_init(&fault, sk_os_linux());
	store = open_store(&fault.os, &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(put(store, 1, 6, 0), 0);
	for (n = 1; ; n++) {
		struct sk_stored *images = NULL;
		size_t found = 0, errors;
		int r;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, error);
		r = sk_store_scan(store, "job", &images, &found, NULL);
		errors = count_errors(images, found);
		if (r == 0)
			cr_assert_eq(found, 2, "call %d", n);
		else
			cr_assert(r == -error && !images, "call %d: %d", n, r);
		cr_assert_leq(errors, 1);
		cr_assert(!errors || !shortage, "call %d", n);
		partial += errors;
		free(images);
		if (!sk_fault_os_hits(&fault))
			break;
	}
	cr_assert_gt(n, 10);
	cr_assert(shortage ? !partial : partial >= 6, "%d", partial);
	sk_store_close(store);
	place_remove(&p);
}

Test(store_faults, no_error_of_looking_becomes_nothing, .timeout = 120)
{
	fail_scan(EIO, false);
	fail_scan(EACCES, false);
	fail_scan(EMFILE, true);
	fail_scan(ENFILE, true);
	fail_scan(ENOMEM, true);
}

/* Reading and small writes through faults. */
Test(store_faults, scanning_and_owning, .timeout = 120)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;
	int fds, n;

	place_make(&p);
	sk_fault_os_init(&fault, sk_os_linux());
	store = open_store(&fault.os, &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(sk_store_set_owner(store, "job", 5, NULL), 0);
	fds = count_fds();
	for (n = 1; ; n++) {
		struct sk_stored *images = NULL;
		char **jobs = NULL;
		uid_t uid = 0, was = 0;
		size_t n_images = 0, n_jobs = 0;
		int r;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, EIO);
		r = sk_store_scan(store, "job", &images, &n_images, NULL);
		cr_assert(r == 0 ? n_images == 1 : r == -EIO && !images);
		r = sk_store_jobs(store, &jobs, &n_jobs, NULL);
		cr_assert(r == 0 ? n_jobs == 1 : r == -EIO && !jobs);
		r = sk_store_owner(store, "job", &was, NULL);
		cr_assert(r == 0 || r == -EIO);
		r = sk_store_set_owner(store, "job", 6, NULL);
		cr_assert(r == 0 || r == -EIO);
		fault.rule_count = 0;
		cr_assert_eq(sk_store_owner(store, "job", &uid, NULL), 0);
		cr_assert(uid == 6 || (r < 0 && uid == 5));
		cr_assert_eq(sk_store_set_owner(store, "job", 5, NULL), 0);
		cr_assert_eq(count_fds(), fds);
		free(images);
		if (jobs)
			free(jobs[0]);
		free(jobs);
		if (!sk_fault_os_hits(&fault))
			break;
	}
	cr_assert_gt(n, 20);
	sk_store_close(store);
	place_remove(&p);
}

/* The order that makes a name true, as the system sees it. */

struct trace {
	struct sk_os os;
	char text[512];
};

static void note(const struct sk_os *os, const char *what)
{
	struct trace *trace = os->ctx;
	size_t n = strlen(trace->text);
	size_t m = strlen(what);

	/* Many writes are one. */
	if (n >= m && strcmp(trace->text + n - m, what) == 0)
		return;
	(void)snprintf(trace->text + n, sizeof(trace->text) - n, "%s", what);
}

static int traced_fsync(const struct sk_os *os, int fd)
{
	struct stat st;

	fstat(fd, &st);
	note(os, S_ISDIR(st.st_mode) ? " sync-dir" : " sync-file");
	return sk_os_linux()->fsync(sk_os_linux(), fd);
}

static int traced_renameat(const struct sk_os *os, int olddir,
			   const char *old, int newdir, const char *new_name,
			   unsigned flags)
{
	note(os, strncmp(new_name, "rank-", 5) == 0 ? " rename-image" :
	     strncmp(new_name, "step-", 5) == 0 ? " rename-step" :
	     " rename");
	return sk_os_linux()->renameat(sk_os_linux(), olddir, old, newdir,
				       new_name, flags);
}

static ssize_t traced_pwrite(const struct sk_os *os, int fd, const void *buf,
			     size_t size, uint64_t offset)
{
	note(os, " write");
	return sk_os_linux()->pwrite(sk_os_linux(), fd, buf, size, offset);
}

static int traced_uring(const struct sk_os *os, enum sk_uring_op op,
			int result)
{
	if (op == SK_URING_WRITE)
		note(os, " write");
	return result;
}

static int traced_ftruncate(const struct sk_os *os, int fd, uint64_t size)
{
	note(os, " cut");
	return sk_os_linux()->ftruncate(sk_os_linux(), fd, size);
}

BOTH(nothing_is_named_before_it_is_synced)
{
	struct trace trace = { .os = *sk_os_linux() };
	struct sk_store *store;
	struct place p;

	trace.os.ctx = &trace;
	trace.os.fsync = traced_fsync;
	trace.os.renameat = traced_renameat;
	trace.os.pwrite = traced_pwrite;
	trace.os.ftruncate = traced_ftruncate;
	trace.os.uring_result = traced_uring;
	place_make(&p);
	store = open_store(&trace.os, &p);
	trace.text[0] = 0;
	cr_assert_eq(put_with(store, backend, 1, 5, 0, NULL), 0);
	cr_assert_str_eq(trace.text, " sync-dir"	/* job into store */
			 " write sync-file rename sync-dir"	/* .run */
			 " rename-step sync-dir"	/* step into job */
			 " write cut sync-file rename-image sync-dir");
	sk_store_close(store);
	place_remove(&p);
}

/* several agents */

#define AGENTS 4
#define ROUNDS 12

struct agent {
	struct sk_store *store;
	uint64_t run;
	int32_t rank;
	int r[ROUNDS];
	pthread_barrier_t *start;
};

static void *run_agent(void *arg)
{
	struct agent *a = arg;
	struct sk_io *io = NULL;

	(void)sk_io_new(sk_os_linux(), &(struct sk_io_opts){
		.backend = SK_IO_THREADS, .depth = 1 }, &io, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		struct image image;

		image_make(&image, a->run, (uint64_t)i, a->rank);
		pthread_barrier_wait(a->start);
		do {	/* as the flusher does */
			a->r[i] = sk_store_put_image(a->store, io, &image.put,
						     NULL);
		} while (a->r[i] == -EAGAIN);
		image_free(&image);
	}
	sk_io_free(io);
	return NULL;
}

/* Each with a descriptor of the store of its own, as on several nodes. */
static void run_agents(const struct place *p, struct agent *agents)
{
	pthread_barrier_t start;
	pthread_t threads[AGENTS];

	pthread_barrier_init(&start, NULL, AGENTS);
	for (int i = 0; i < AGENTS; i++) {
		agents[i].store = open_store(sk_os_linux(), p);
		agents[i].start = &start;
		cr_assert_eq(pthread_create(&threads[i], NULL, run_agent,
					    &agents[i]), 0);
	}
	for (int i = 0; i < AGENTS; i++) {
		pthread_join(threads[i], NULL);
		sk_store_close(agents[i].store);
	}
	pthread_barrier_destroy(&start);
}

Test(store_agents, of_one_run_fill_one_directory, .timeout = 120)
{
	struct agent agents[AGENTS] = { 0 };
	struct sk_store *store;
	struct place p;

	place_make(&p);
	for (int i = 0; i < AGENTS; i++)
		agents[i] = (struct agent){ .run = 3, .rank = i };
	run_agents(&p, agents);
	store = open_store(sk_os_linux(), &p);
	cr_assert_eq(scan(store, NULL), AGENTS * ROUNDS);
	for (int i = 0; i < ROUNDS; i++) {
		for (int j = 0; j < AGENTS; j++) {
			cr_assert_eq(agents[j].r[i], 0);
			cr_assert(holds(store, 3, (uint64_t)i, j));
		}
	}
	sk_store_close(store);
	place_remove(&p);
}

/* Old and new runs at once: no directory ever holds images of two. */
Test(store_agents, of_two_runs_are_not_mixed, .timeout = 120)
{
	struct agent agents[AGENTS] = { 0 };
	struct sk_stored *images;
	struct sk_store *store;
	struct place p;
	size_t n;

	place_make(&p);
	for (int i = 0; i < AGENTS; i++)
		agents[i] = (struct agent){ .run = 3 + (uint64_t)i % 2,
					    .rank = i };
	run_agents(&p, agents);
	store = open_store(sk_os_linux(), &p);
	n = scan(store, &images);
	for (size_t i = 0; i + 1 < n; i++)
		if (strcmp(images[i].dir, images[i + 1].dir) == 0)
			cr_assert_eq(run_of(store, &images[i]),
				     run_of(store, &images[i + 1]), "%s",
				     images[i].dir);
	free(images);
	for (int i = 0; i < ROUNDS; i++) {
		for (int j = 0; j < AGENTS; j++) {
			int r = agents[j].r[i];

			/* The newer run never yields. */
			cr_assert(r == 0 || (r == -ESTALE && j % 2 == 0),
				  "round %d, agent %d: %d", i, j, r);
			if (r == 0)
				cr_assert(holds(store, agents[j].run,
						(uint64_t)i, j));
		}
		cr_assert_eq(settle(store, "job", (uint64_t)i, 4),
			     0);
	}
	cr_assert_eq(scan(store, NULL), AGENTS / 2 * ROUNDS);
	sk_store_close(store);
	place_remove(&p);
}

/* Two agents, one of which does all it does between two calls of the other:
 * whatever is said to be durable is there afterwards. */

struct other {
	struct sk_store *store;
	bool stranger;		/* than whose directory there is */
	bool again;		/* asks again where it is told to */
	int r;
};

static int put_rank(struct sk_store *store, bool stranger)
{
	return stranger ? put_stranger(store, 1, 5, 1, NULL) :
			  put(store, 1, 5, 0);
}

static void put_all(void *ctx)
{
	struct other *other = ctx;
	int tries = 0;

	do {
		other->r = put_rank(other->store, other->stranger);
	} while (other->r == -EAGAIN && other->again && ++tries < 9);
}

/* The step's directory of run 1, empty as after its making. */
static void make_empty_step(struct sk_store *store)
{
	const struct sk_store_run run = run_named(1);
	int job = sk_store_make_job_dir(store, "job", 0700, NULL);
	int fd = sk_step_acquire(store, job, 5, &run, 0700, NULL);

	cr_assert(job >= 0 && fd >= 0);
	close(fd);
	close(job);
}

/* @stranger: of the one that is interrupted. The number of calls. */
static int interrupt_put(bool stranger, bool empty)
{
	struct sk_fault_os fault;
	int n;

	for (n = 1; ; n++) {
		struct other other = { .stranger = !stranger, .again = true };
		struct sk_store *store;
		struct place p;
		int r, fds;

		place_make(&p);
		sk_fault_os_init(&fault, sk_os_linux());
		store = open_store(&fault.os, &p);
		other.store = open_store(sk_os_linux(), &p);
		if (empty)
			make_empty_step(other.store);
		fds = count_fds();
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_meddle(&fault, SK_FAULT_ANY, (uint64_t)n, put_all,
				   &other);
		r = put_rank(store, stranger);
		fault.rule_count = 0;
		if (r == -EAGAIN)
			r = put_rank(store, stranger);
		cr_assert_eq(count_fds(), fds, "call %d", n);
		cr_assert(r == 0 || r == -ESTALE, "call %d: %d", n, r);
		if (sk_fault_os_hits(&fault))
			cr_assert(other.r == 0 || other.r == -ESTALE,
				  "call %d: %d", n, other.r);
		cr_assert(r == 0 || other.r == 0, "call %d: neither", n);
		cr_assert(r < 0 || holds(store, 1, 5, stranger), "call %d: it "
			  "is lost", n);
		if (sk_fault_os_hits(&fault) && other.r == 0)
			cr_assert(holds(store, 1, 5, !stranger), "call %d: "
				  "the other's is lost", n);
		sk_store_close(other.store);
		sk_store_close(store);
		place_remove(&p);
		if (!sk_fault_os_hits(&fault))
			break;
	}
	return n - 1;
}

struct newer {
	struct sk_store *store;
	uint64_t run;
	int r;
};

static void put_newer(void *ctx)
{
	struct newer *newer = ctx;

	newer->r = put(newer->store, newer->run, 5, 0);
}

/* Run 1's step is deleted while runs 2 and 3 take it over, before the calls
 * @first and @second of the deletion: theirs stay. */
static uint64_t interrupt_delete(uint64_t first, uint64_t second)
{
	struct newer newer[2] = { { .run = 2 }, { .run = 3 } };
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;
	uint64_t hits;

	place_make(&p);
	sk_fault_os_init(&fault, sk_os_linux());
	store = open_store(&fault.os, &p);
	newer[0].store = newer[1].store = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_meddle(&fault, SK_FAULT_ANY, first, put_newer, &newer[0]);
	sk_fault_os_meddle(&fault, SK_FAULT_ANY, second, put_newer, &newer[1]);
	(void)delete(store, "job", "step-000000000005", 1, NULL);
	hits = sk_fault_os_hits(&fault);
	fault.rule_count = 0;
	kill_store(store);
	(void)sk_store_sweep(newer[0].store, SK_STORE_DEAD_ONLY);
	for (uint64_t i = 0; i < hits; i++)
		cr_assert(newer[i].r == 0 &&
			  holds(newer[i].store, newer[i].run, 5, 0),
			  "calls %d and %d: %d, run %d is lost", (int)first,
			  (int)second, newer[i].r, (int)newer[i].run);
	sk_store_close(newer[0].store);
	place_remove(&p);
	return hits;
}

Test(store_agents, deletes_no_other_ones, .timeout = 120)
{
	uint64_t hits = 2;

	for (uint64_t n = 1; hits; n++) {
		hits = 2;
		for (uint64_t m = n + 1; hits == 2; m++)
			hits = interrupt_delete(n, m);
	}
}

Test(store_agents, lose_nothing_between_two_calls, .timeout = 120)
{
	for (int i = 0; i < 4; i++)
		cr_assert_gt(interrupt_put(i & 1, i & 2), 20);
}

/* Scans while steps come and go. */

struct churn {
	struct sk_store *store;
	int stop;	/* atomic */
};

static void *scan_on(void *arg)
{
	struct churn *churn = arg;
	long failed = 0;

	while (!__atomic_load_n(&churn->stop, __ATOMIC_ACQUIRE)) {
		struct sk_stored *images = NULL;
		char **jobs = NULL;
		size_t n = 0;

		failed += sk_store_scan(churn->store, "job", &images, &n,
					NULL) != 0;
		free(images);
		n = 0;
		failed += sk_store_jobs(churn->store, &jobs, &n, NULL) != 0;
		while (n--)
			free(jobs[n]);
		free(jobs);
	}
	return (void *)failed;
}

Test(store_agents, may_scan_meanwhile, .timeout = 120)
{
	struct churn churn = { 0 };
	pthread_t thread;
	struct place p;
	void *failed;
	char dir[SK_STORE_NAME_MAX];

	place_make(&p);
	churn.store = open_store(sk_os_linux(), &p);
	cr_assert_eq(pthread_create(&thread, NULL, scan_on, &churn), 0);
	for (uint64_t step = 0; step < 60; step++) {
		cr_assert_eq(put(churn.store, 1, step, 0), 0);
		sk_step_name_format(dir, step);
		cr_assert_eq(delete(churn.store, "job", dir, 1, NULL),
			     0);
	}
	__atomic_store_n(&churn.stop, 1, __ATOMIC_RELEASE);
	pthread_join(thread, &failed);
	cr_assert_eq((long)failed, 0);
	sk_store_close(churn.store);
	place_remove(&p);
}
