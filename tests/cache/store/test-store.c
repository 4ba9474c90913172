/* SPDX-License-Identifier: Apache-2.0 */
/* The store where all goes well: directories, images, owners. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"

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

Test(store, finds_what_was_put)
{
	struct sk_stored *images;
	struct sk_store *store;
	struct stat st;
	char path[256];
	struct place p;
	size_t n;

	store = make_store(&p, NULL);
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

/* What is not there any more is not there; what cannot be looked at is no word
 * about that. */
Test(store, knows_what_is_gone)
{
	struct sk_fault_os fault;
	struct sk_stored *images;
	struct sk_store *store;
	struct sk_err err = { "" };
	bool gone[3];
	struct place p;

	store = make_store(&p, &fault);
	cr_assert_eq(put(store, 3, 1, 0), 0);
	cr_assert_eq(put(store, 3, 1, 3), 0);
	cr_assert_eq(put(store, 3, 2, 1), 0);
	cr_assert_eq(scan(store, &images), 3);
	cr_assert_eq(sk_store_gone(store, images, 3, gone, &err), 0);
	cr_assert_eq(delete(store, "job", "step-000000000002", 3, NULL), 0);
	cr_assert_eq(put(store, 3, 1, 3), 0);
	cr_assert_eq(sk_store_gone(store, images, 3, gone, &err), 2);
	cr_assert(!gone[0] && gone[1] && gone[2]);
	sk_fault_os_fail(&fault, SK_FAULT_FSTATAT, 1, SK_FAULT_ALWAYS, EIO);
	cr_assert_eq(sk_store_gone(store, images, 3, gone, &err), -EIO);
	cr_assert(strstr(err.text, "rank 0 of"), "%s", err.text);
	free(images);
	sk_store_close(store);
	place_remove(&p);
}

Test(store, refuses_bad_images)
{
	struct sk_io *io = make_io(sk_os_linux(), SK_IO_AUTO);
	struct sk_store *store;
	struct image image;
	struct place p;

	store = make_store(&p, NULL);
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

	store = make_store(&p, NULL);
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

	store = make_store(&p, NULL);
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

/* Whoever can write to the store might have an image written elsewhere. */
Test(store, replaces_a_link_and_not_what_it_names)
{
	static const char name[] = "job/step-000000000001/"
				   "rank-00000-of-00004.safetensors";
	struct sk_err err = { "" };
	struct sk_store *store;
	char path[256], victim[256], text[8] = "";
	struct place p;
	int fd;

	store = make_store(&p, NULL);
	cr_assert_eq(put(store, 1, 1, 0), 0);
	make_file(&p, "victim", "theirs");
	(void)snprintf(path, sizeof(path), "%s/%s", p.store, name);
	(void)snprintf(victim, sizeof(victim), "%s/victim", p.store);
	cr_assert_eq(unlink(path), 0);
	cr_assert_eq(symlink(victim, path), 0);
	cr_assert_eq(put_with(store, SK_IO_AUTO, 1, 1, 0, &err), 0, "%s",
		     err.text);
	cr_assert(holds(store, 1, 1, 0));
	fd = open(victim, O_RDONLY);
	cr_assert_eq(read(fd, text, sizeof(text)), 6);
	cr_assert_str_eq(text, "theirs");
	close(fd);
	sk_store_close(store);
	place_remove(&p);
}

Test(store, has_no_images_of_unknown_jobs)
{
	struct sk_stored *images = NULL;
	struct sk_store *store;
	struct place p;
	size_t n = 9;

	store = make_store(&p, NULL);
	cr_assert_eq(sk_store_scan(store, "nobody", &images, &n, NULL), 0);
	cr_assert(n == 0 && !images);
	cr_assert_eq(sk_store_scan(store, "../x", &images, &n, NULL), -EINVAL);
	cr_assert_eq(settle(store, "nobody", 1, 1), 0);
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

	store = make_store(&p, NULL);
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

	store = make_store(&p, NULL);
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
	struct sk_leftover left;

	(void)ctx;
	(void)fd;
	return sk_leftover_name(name, &left);
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

	store = make_store(&p, NULL);
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

/* What cannot be read for a moment is no less whole for that. */
Test(store, replaces_nothing_that_it_could_not_look_at)
{
	struct sk_io *io = make_io(sk_os_linux(), SK_IO_AUTO);
	struct image image, other;
	struct sk_fault_os fault;
	struct sk_store *store;
	struct sk_err err = { "" };
	struct place p;
	char *bytes, *others;
	uint64_t n, hits = 1;

	store = make_store(&p, &fault);
	make_true_image(&image, 8, 90, 2, &bytes);
	make_true_image(&other, 8, 91, 2, &others);
	other.put.step = 90;
	cr_assert_eq(sk_store_put_image(store, io, &image.put, NULL), 0);
	for (n = 1; hits; n++) {
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_PREAD, n, 1, EIO);
		cr_assert_lt(sk_store_put_image(store, io, &other.put, &err),
			     0, "read %d", (int)n);
		hits = sk_fault_os_hits(&fault);
		cr_assert(!hits || strstr(err.text, "error"), "%s", err.text);
		cr_assert_not(anything_left(&p, "job/step-000000000090"));
	}
	cr_assert_gt(n, 4);
	fault.rule_count = 0;
	cr_assert_eq(sk_store_put_image(store, io, &other.put, NULL), -ESTALE);
	cr_assert_eq(sk_store_put_image(store, io, &image.put, NULL), 0);
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

	store = make_store(&p, NULL);
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

	store = make_store(&p, NULL);
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

	store = make_store(&p, NULL);
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

	store = make_store(&p, NULL);
	cr_assert_eq(sk_store_owner(store, "job", &uid, NULL), -ENOENT);
	make_dir(&p, "job");
	cr_assert_eq(sk_store_owner(store, "job", &uid, NULL), -ENOENT);
	cr_assert_eq(uid, 77);
	cr_assert_eq(claim(store, "job", 1000), 1000);
	cr_assert_eq(sk_store_owner(store, "job", &uid, NULL), 0);
	cr_assert_eq(uid, 1000);
	cr_assert_eq(claim(store, "job", 1001), 1000);
	cr_assert_eq(claim(store, "new", 0), 0);
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

static int count_one(void *ctx, int fd, const char *name)
{
	(void)fd;
	(void)name;
	++*(int *)ctx;
	return 0;
}

static int count_names(const struct sk_store *store, const char *job)
{
	int fd = sk_dir_open(store->os, store->fd, job), n = 0;

	cr_assert_geq(fd, 0);
	cr_assert_eq(sk_dir_each(store->os, fd, count_one, &n), 0);
	close(fd);
	return n;
}

/* Between its look and its name, another agent is there first. */
static void be_first(void *ctx)
{
	make_file(ctx, "job/.owner", "7\n");
}

Test(store, knows_one_owner)
{
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;

	store = make_store(&p, &fault);
	make_dir(&p, "job");
	sk_fault_os_meddle(&fault, SK_FAULT_RENAMEAT, 1, be_first, &p);
	cr_assert_eq(claim(store, "job", 8), 7);
	cr_assert_eq(count_names(store, "job"), 1, "of the other it left some");
	/* There are filesystems that cannot tell. */
	for (int i = 0; i < 2; i++) {
		const char *job = i ? "new" : "old";

		sk_fault_os_forget(&fault);
		sk_fault_os_fail(&fault, SK_FAULT_RENAMEAT, 1, 1,
				 i ? ENOSYS : EINVAL);
		cr_assert_eq(claim(store, job, 8), 8);
		cr_assert_eq(claim(store, job, 9), 8);
	}
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
	store = make_store(&p, NULL);
	cr_assert_eq(claim(store, "job", 65534), 65534);
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
