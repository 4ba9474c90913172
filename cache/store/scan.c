/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store, the reading: what lies there, and one image's header.
 *
 * Other agents write, rename and delete meanwhile: what vanishes between two
 * looks was not there, and what bears no name of ours is not seen.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "store/history.h"
#include "store/private.h"

/* By when filesystems have written what changed, whoever asks for it: ext4
 * after 5 s, xfs and btrfs after 30 s, all else as the kernel does by itself
 * (/proc/sys/vm/dirty_expire_centisecs). */
#define WRITTEN_S 120u
#define SECOND_NS UINT64_C(1000000000)

struct strings {
	const struct sk_os *os;
	char **names;
	size_t n, room;
};

static void free_strings(struct strings *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->names[i]);
	free(s->names);
}

static int add_job(void *ctx, int fd, const char *name)
{
	struct strings *s = ctx;
	int job;

	if (sk_job_check(name, NULL) < 0)
		return 0;
	job = s->os->openat(s->os, fd, name, O_PATH | O_DIRECTORY |
			    O_NOFOLLOW | O_CLOEXEC, 0);
	if (sk_is_gone(job))
		return 0;
	if (sk_is_shortage(job))
		return job;
	/* Else it is a job all the same: who scans it learns what ails it. */
	if (job >= 0)
		s->os->close(s->os, job);
	if (sk_array_fit(s->names, s->room, s->n + 1) < 0)
		return -ENOMEM;
	s->names[s->n] = strdup(name);
	if (!s->names[s->n])
		return -ENOMEM;
	s->n++;
	return 0;
}

static int compare_strings(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int sk_store_jobs(struct sk_store *store, char ***ret_jobs, size_t *ret_n,
		  struct sk_err *err)
{
	struct strings s = { .os = store->os };
	int r;

	(void)sk_store_find(store);
	r = sk_dir_each(store->os, store->fd, add_job, &s);
	if (r < 0) {
		free_strings(&s);
		return sk_err_errno(err, r, "cannot list the jobs of the store "
				    "\"%s\"", store->path);
	}
	if (s.n)
		qsort(s.names, s.n, sizeof(*s.names), compare_strings);
	*ret_jobs = s.names;
	*ret_n = s.n;
	return 0;
}

struct scan {
	struct sk_store *store;
	const struct sk_os *os;
	const char *job;
	char dir[SK_STEP_DIR_MAX];	/* the step directory being scanned */
	uint64_t step;
	struct sk_store_run run;
	bool pinned;
	uint64_t known_s;		/* when the job was looked at first */
	struct sk_stored *images;
	size_t n, room;
};

/* Another record, of the directory being scanned. */
static int add_record(struct scan *scan, int32_t rank, int32_t world,
		      struct sk_stored **ret_record)
{
	struct sk_stored *record;

	if (sk_array_fit(scan->images, scan->room, scan->n + 1) < 0)
		return -ENOMEM;
	record = &scan->images[scan->n++];
	*record = (struct sk_stored){
		.step = scan->step, .run = scan->run, .rank = rank,
		.world = world,
	};
	(void)snprintf(record->job, sizeof(record->job), "%s", scan->job);
	(void)snprintf(record->dir, sizeof(record->dir), "%s", scan->dir);
	*ret_record = record;
	return 0;
}

/* What cannot be looked at is written down, and the others are gone on with:
 * unless it is this process that lacks something. */
static int add_trouble(struct scan *scan, int32_t rank, int32_t world, int why)
{
	struct sk_stored *record;
	int r;

	if (sk_is_gone(why))
		return 0;
	if (sk_is_shortage(why))
		return why;
	r = add_record(scan, rank, world, &record);
	if (r == 0)
		record->error = why;
	return r;
}

static int add_image(void *ctx, int fd, const char *name)
{
	struct scan *scan = ctx;
	struct sk_stored *record;
	int32_t rank, world;
	struct stat st;
	int r;

	scan->pinned |= strcmp(name, SK_PINNED_FILE) == 0;
	if (!sk_image_name_parse(name, &rank, &world))
		return 0;
	r = scan->os->fstatat(scan->os, fd, name, AT_SYMLINK_NOFOLLOW, &st);
	if (r < 0)
		return add_trouble(scan, rank, world, r);
	if (!S_ISREG(st.st_mode))
		return 0;
	r = add_record(scan, rank, world, &record);
	if (r == 0)
		record->file = sk_file_id_of(&st);
	return r;
}

/* Whoever gave a name before this process knew the job may have been killed
 * before that was durable, and who finds it calls it so. What changed long ago
 * has been written by now; who has changed it since still lives. */
static int make_durable(const struct scan *scan, int fd)
{
	struct stat st;
	uint64_t s;
	int r = scan->os->fstat(scan->os, fd, &st);

	s = r < 0 ? 0 : (uint64_t)st.st_mtim.tv_sec;
	if (s > scan->known_s || scan->known_s - s > WRITTEN_S)
		return r;
	return sk_dir_sync(scan->os, fd);
}

/* The images of a step directory; what was found before an error is no
 * answer, and goes. */
static int scan_images(struct scan *scan, int fd)
{
	size_t before = scan->n;
	int r = sk_step_run_file(scan->store, fd, &scan->run);

	scan->pinned = false;
	if (r == 0)
		r = sk_dir_each(scan->os, fd, add_image, scan);
	if (r == 0 && scan->n > before)
		r = make_durable(scan, fd);
	if (r < 0)
		scan->n = before;
	for (size_t i = before; i < scan->n; i++)
		scan->images[i].pinned = scan->pinned;
	return r;
}

static int scan_step(struct scan *scan, int job_fd,
		     const struct sk_history_step *step)
{
	int fd, r;

	sk_history_name(step, scan->dir);
	scan->step = step->step;
	scan->run = (struct sk_store_run){ 0 };
	fd = r = sk_dir_open(scan->os, job_fd, scan->dir);
	if (fd >= 0) {
		r = scan_images(scan, fd);
		scan->os->close(scan->os, fd);
	}
	return r < 0 ? add_trouble(scan, -1, 0, r) : 0;
}

/* The files of one directory, by (world, rank). */
static int compare_images(const void *a, const void *b)
{
	const struct sk_stored *x = a, *y = b;

	if (x->world != y->world)
		return x->world < y->world ? -1 : 1;
	return (x->rank > y->rank) - (x->rank < y->rank);
}

static int scan_steps(struct scan *scan, int job_fd,
		      struct sk_history_step *const *steps, size_t n)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		size_t before = scan->n;

		r = scan_step(scan, job_fd, steps[i]);
		if (scan->n > before)
			qsort(scan->images + before, scan->n - before,
			      sizeof(*scan->images), compare_images);
	}
	return r;
}

int sk_history_scan(const struct sk_history *history, struct sk_store *store,
		    struct sk_history_step *const *steps, size_t n,
		    struct sk_stored **ret_images, size_t *ret_n,
		    struct sk_err *err)
{
	const char *job = sk_history_job(history);
	struct scan scan = { .store = store, .os = store->os, .job = job,
			     .known_s = history->known_ns / SECOND_NS };
	int fd = -ENOENT, r = 0;

	if (n)
		fd = sk_store_job_dir(store, job, err);
	if (fd < 0 && !sk_is_gone(fd))
		return fd;
	if (fd >= 0) {
		r = scan_steps(&scan, fd, steps, n);
		store->os->close(store->os, fd);
	}
	if (r < 0) {
		free(scan.images);
		return sk_err_errno(err, r, "cannot list the images of job "
				    "\"%s\" in the store \"%s\"", job,
				    store->path);
	}
	*ret_images = scan.images;
	*ret_n = scan.n;
	return 0;
}

/* All of them, by (step, dir). */
static int scan_history(const struct sk_history *h, struct sk_store *store,
			struct sk_stored **ret_images, size_t *ret_n,
			struct sk_err *err)
{
	_cleanup_free_ struct sk_history_step **steps = NULL;
	size_t n = sk_history_count(h);

	steps = calloc(n + 1, sizeof(*steps));
	if (!steps)
		return sk_err_set(err, -ENOMEM, "no memory for %zu steps", n);
	for (size_t i = 0; i < n; i++)
		steps[i] = sk_history_by_name(h, i);
	return sk_history_scan(h, store, steps, n, ret_images, ret_n, err);
}

int sk_store_scan(struct sk_store *store, const char *job,
		  struct sk_stored **ret_images, size_t *ret_n,
		  struct sk_err *err)
{
	struct sk_history *history;
	int r = sk_job_check(job, err);

	if (r < 0)
		return r;
	history = sk_history_new(job);
	if (!history)
		return sk_err_set(err, -ENOMEM, "no memory to look at job "
				  "\"%s\"", job);
	r = sk_history_look(history, store, err);
	if (r == 0)
		r = scan_history(history, store, ret_images, ret_n, err);
	sk_history_free(history);
	return r;
}

/* Opens the file in its directory; a name may have become anything. */
static int open_regular(const struct sk_os *os, int dirfd, const char *name)
{
	struct stat st;
	int fd, r;

	fd = os->openat(os, dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK |
			O_CLOEXEC, 0);
	if (fd < 0)
		return fd;
	r = os->fstat(os, fd, &st);
	if (r == 0 && !S_ISREG(st.st_mode))
		r = -ENOENT;
	/* Only so as not to hang on a pipe; a reader is to wait for data. */
	if (r == 0)
		r = os->fcntl(os, fd, F_SETFL, 0);
	if (r == 0)
		return fd;
	os->close(os, fd);
	return r;
}

int sk_store_open_image(struct sk_store *store, const struct sk_stored *image,
			struct sk_err *err)
{
	char name[SK_STORE_NAME_MAX];
	struct sk_step_name step;
	int job_fd, dir_fd, fd;

	/* It may come from elsewhere, and must not lead out of the store. */
	if (!sk_step_name_parse(image->dir, &step) || image->rank < 0 ||
	    image->rank >= image->world)
		return sk_err_set(err, -EINVAL, "rank %" PRId32 " of %" PRId32
				  " in \"%s\" is not an image of a store",
				  image->rank, image->world, image->dir);
	job_fd = sk_store_job_dir(store, image->job, err);
	if (job_fd < 0)
		return job_fd;
	sk_image_name_format(name, image->rank, image->world);
	fd = dir_fd = sk_dir_open(store->os, job_fd, image->dir);
	if (dir_fd >= 0) {
		fd = open_regular(store->os, dir_fd, name);
		store->os->close(store->os, dir_fd);
	}
	store->os->close(store->os, job_fd);
	if (fd < 0)
		return sk_err_errno(err, fd, "cannot open %s/%s/%s/%s",
				    store->path, image->job, image->dir, name);
	return fd;
}

/* Reads exactly that much from the start of the file. */
static int read_start(const struct sk_os *os, int fd, void *buf, size_t bytes,
		      struct sk_err *err)
{
	size_t done = 0;
	ssize_t n;

	while (done < bytes) {
		n = os->pread(os, fd, (char *)buf + done, bytes - done, done);
		if (n < 0)
			return sk_err_errno(err, (int)n, "cannot read the "
					    "header of an image");
		if (n == 0)
			return sk_err_set(err, -EBADMSG, "the file ends after "
					  "%zu bytes, within its header", done);
		done += (size_t)n;
	}
	return 0;
}

int sk_store_read_header(struct sk_store *store, int fd, void **ret_header,
			 uint64_t *ret_size, struct sk_file_id *ret_file,
			 struct sk_err *err)
{
	_cleanup_free_ void *header = NULL;
	const struct sk_os *os = store->os;
	char first[8];
	struct stat st;
	uint64_t size;
	int r;

	r = os->fstat(os, fd, &st);
	if (r < 0)
		return sk_err_errno(err, r, "cannot ask for the length of an "
				    "image");
	r = read_start(os, fd, first, sizeof(first), err);
	if (r == 0)
		r = sk_header_bytes(first, &size, err);
	if (r < 0)
		return r;
	/* Before memory is taken for what may be a wrong number. */
	if (size > (uint64_t)st.st_size)
		return sk_err_set(err, -EBADMSG, "the header says %" PRIu64
				  " bytes, but the file ends after %" PRIu64,
				  size, (uint64_t)st.st_size);
	header = malloc((size_t)size);
	if (!header)
		return sk_err_errno(err, -ENOMEM, "cannot read a header of %"
				    PRIu64 " bytes", size);
	r = read_start(os, fd, header, (size_t)size, err);
	if (r < 0)
		return r;
	*ret_header = sk_take_ptr(header);
	*ret_size = size;
	*ret_file = sk_file_id_of(&st);
	return 0;
}

static int read_stamp(const struct sk_layout *layout, const void *header,
		      struct sk_stamp *ret_stamp, struct sk_err *err)
{
	struct sk_stamp stamp = { 0 };
	int r;

	stamp.sums = calloc((size_t)layout->n_sums + 1, sizeof(*stamp.sums));
	if (!stamp.sums)
		return sk_err_errno(err, -ENOMEM, "cannot read %" PRIu32
				    " checksums", layout->n_sums);
	r = sk_layout_read_stamp(layout, header, &stamp, err);
	if (r < 0) {
		free(stamp.sums);
		return r;
	}
	*ret_stamp = stamp;
	return 0;
}

int sk_store_read_layout(struct sk_store *store, int fd,
			 struct sk_layout **ret_layout,
			 struct sk_stamp *ret_stamp, struct sk_err *err)
{
	_cleanup_layout_ struct sk_layout *layout = NULL;
	_cleanup_free_ void *header = NULL;
	struct sk_file_id file = { 0 };
	uint64_t size = 0;
	int r;

	r = sk_store_read_header(store, fd, &header, &size, &file, err);
	if (r == 0)
		r = sk_layout_parse(header, (size_t)size, file.bytes, &layout,
				    err);
	if (r == 0 && ret_stamp)
		r = read_stamp(layout, header, ret_stamp, err);
	if (r < 0)
		return r;
	*ret_layout = sk_take_ptr(layout);
	return 0;
}
