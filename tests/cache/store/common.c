/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void place_make(struct place *p)
{
	strcpy(p->path, "/var/tmp/shardkeep-store-XXXXXX");
	if (!mkdtemp(p->path)) {
		strcpy(p->path, "/tmp/shardkeep-store-XXXXXX");
		cr_assert(mkdtemp(p->path));
	}
	(void)snprintf(p->store, sizeof(p->store), "%s/a/store", p->path);
}

void place_remove(const struct place *p)
{
	cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, p->path), 0);
}

struct sk_store *open_store(const struct sk_os *os,
			    const struct place *p)
{
	struct sk_store *store = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_store_open(os, p->store, 3600, &store, NULL, &err), 0,
		     "%s", err.text);
	return store;
}

struct sk_store *make_store(struct place *p, struct sk_fault_os *fault)
{
	place_make(p);
	if (!fault)
		return open_store(sk_os_linux(), p);
	sk_fault_os_init(fault, sk_os_linux());
	return open_store(&fault->os, p);
}

struct sk_io *make_io(const struct sk_os *os,
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

struct sk_store_run run_named(uint64_t number)
{
	return (struct sk_store_run){ number, number ? 1000 + number : 0 };
}

int settle(struct sk_store *store, const char *job, uint64_t step,
	   uint64_t number)
{
	const struct sk_store_run run = run_named(number);

	return sk_store_settle(store, job, step, &run, NULL);
}

int64_t claim(struct sk_store *store, const char *job, uid_t uid)
{
	uid_t owner;
	int r = sk_store_claim(store, job, uid, &owner, NULL);

	if (r < 0)
		return r;
	return owner;
}

int delete(struct sk_store *store, const char *job, const char *dir,
	   uint64_t number, struct sk_err *err)
{
	const struct sk_store_run run = run_named(number);

	return sk_store_delete(store, job, dir, &run, err);
}

void image_make(struct image *image, uint64_t run, uint64_t step,
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

void image_free(struct image *image)
{
	free(image->bytes);
}

int put_with(struct sk_store *store, enum sk_io_backend backend,
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

int put(struct sk_store *store, uint64_t run, uint64_t step,
	int32_t rank)
{
	return put_with(store, SK_IO_AUTO, run, step, rank, NULL);
}

uint64_t run_of(struct sk_store *store, const struct sk_stored *found)
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

size_t scan(struct sk_store *store, struct sk_stored **ret_images)
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

bool holds(struct sk_store *store, uint64_t run, uint64_t step,
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

bool exists(const struct place *p, const char *name)
{
	char path[256];

	(void)snprintf(path, sizeof(path), "%s/%s", p->store, name);
	return faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void make_file(const struct place *p, const char *name,
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

void make_dir(const struct place *p, const char *name)
{
	char path[256];

	(void)snprintf(path, sizeof(path), "%s/%s", p->store, name);
	cr_assert_eq(mkdir(path, 0700), 0, "%s", path);
}

void left_by(const struct place *p, const struct sk_store *store,
	     char path[LEFT_MAX])
{
	char name[SK_STORE_NAME_MAX];

	sk_temporary_name((struct sk_store *)store,
			  "rank-00000-of-00004.safetensors", name);
	snprintf(path, LEFT_MAX, "job/step-000000000005/%s", name);
	make_file(p, path, "x");
}

void kill_store(struct sk_store *store)
{
	close(store->alive);
	store->alive = -1;
	sk_restoring_forget(store);
	sk_store_close(store);
}

int put_stranger(struct sk_store *store, uint64_t number, uint64_t step,
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

int put_owned(struct sk_store *store, enum sk_io_backend backend,
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
