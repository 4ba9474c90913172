/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a restore delivers is what it verified: while somebody scribbles on the
 * images, it may say that they are bad, but never gives bytes that nobody
 * saved. Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/util.h"
#include "conn/list.h"

#define ROUNDS 25

/* ---- who scribbles ---- */

struct scribbler {
	pthread_t thread;
	char *map;
	uint64_t bytes, from;	/* of the image, and where its data begins */
	bool stop;		/* atomic */
};

/* A byte is another for a moment, over and over. */
static void *scribble(void *arg)
{
	struct scribbler *s = arg;
	volatile char *at = s->map + s->from + (s->bytes - s->from) / 2;

	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
		*at ^= 1;
		for (volatile int i = 0; i < 20; i++)
			;
		*at ^= 1;
		for (volatile int i = 0; i < 20; i++)
			;
	}
	return NULL;
}

/* The image's memory, as whoever filled it could still reach it. */
static void begin(struct scribbler *s, const struct sk_opened_image *o)
{
	char path[64];
	int fd;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", o->data);
	fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	*s = (struct scribbler){ .bytes = o->image_bytes,
				 .from = o->header_bytes };
	s->map = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		      0);
	CHECK(s->map != MAP_FAILED);
	close(fd);
	CHECK(!pthread_create(&s->thread, NULL, scribble, s));
}

static void end(struct scribbler *s)
{
	__atomic_store_n(&s->stop, true, __ATOMIC_RELAXED);
	CHECK(!pthread_join(s->thread, NULL));
	munmap(s->map, s->bytes);
}

static void open_image(struct rank *rank, int64_t step,
		       struct sk_opened_image *ret)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_wire_id id = { .step = step, .rank = 0 };
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_wire_image *images;
	struct sk_err err = { "" };
	size_t n = 0;

	strcpy(id.job, rank->job);
	CHECK(!sk_conn_open(os, rank->scene->socket, sk_until_ms(os, 10000),
			    &conn, &err), "%s", err.text);
	CHECK(!sk_list_images(&conn, &id, 0, sk_until_ms(os, 10000), &images,
			      &n, &err), "%s", err.text);
	CHECK(n == 1, "%zu images", n);
	CHECK(!sk_image_open(&conn, images[0].image,
			     (enum sk_place)images[0].place,
			     sk_until_ms(os, 10000), ret, &err), "%s",
	      err.text);
	free(images);
	sk_conn_close(&conn);
}

/* ---- shapes: one for each way in which bytes are moved ---- */

struct shape {
	const char *job;
	int64_t rows, columns;
	int64_t strides[2];
	bool transposed;	/* when it is restored, it lies differently */
};

static const struct shape shapes[] = {
	{ "straight", 512, 1024, { 1024, 1 }, false },
	{ "padded", 512, 1000, { 1024, 1 }, false },
	{ "transposed", 512, 1024, { 1, 512 }, false },
	{ "small", 16, 128, { 128, 1 }, false },
	{ "unlike", 512, 1024, { 1, 512 }, true },
};

static void describe(struct rank *rank, const struct shape *s, void *data,
		     bool strided)
{
	struct sk_tensor t = { .name = "w", .dtype = SK_F32, .ndim = 2,
			       .shape = { s->rows, s->columns },
			       .data = data };

	if (strided)
		memcpy(t.strides, s->strides, sizeof(s->strides));
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
}

/* Whether the scribbler was found out. */
static bool restore_once(struct rank *rank, const struct shape *s, void *data,
			 int64_t step)
{
	struct sk_opened_image o;
	struct scribbler scribbler;
	int r;

	describe(rank, s, data, !s->transposed);
	rank_write(rank, step);
	/* The agent may learn late that the last restore is over. */
	CHECK(!sk_snapshot(rank->state, step, &(struct sk_snapshot_options){
		.wait_ms = 20000 }), "%s", sk_error());
	CHECK(!sk_wait(rank->state, step, SK_COMPLETE, 30000), "%s",
	      sk_error());
	open_image(rank, step, &o);
	describe(rank, s, data, true);
	begin(&scribbler, &o);
	r = rank_restore(rank, step, SK_RESTORE_MEMORY_ONLY, NULL);
	end(&scribbler);
	close(o.data);
	close(o.header);
	CHECK(r >= 0 || r == -EBADMSG || r == -ENOENT, "%d: %s", r,
	      sk_error());
	if (r >= 0)
		CHECK(!rank_wrong(rank, step, -1), "%s: wrong bytes, step %d",
		      s->job, (int)step);
	return r < 0;
}

static void restore_all(struct rank *rank)
{
	const struct shape *s = rank->arg;
	void *data = rank_memory(512 * 1024 * 4, 0);
	int found = 0;

	for (int64_t step = 1; step <= ROUNDS; step++)
		found += restore_once(rank, s, data, step);
	CHECK(found, "%s: nobody scribbled", s->job);
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	for (size_t i = 0; i < SK_ARRAY_SIZE(shapes); i++)
		scene_ranks(&scene, shapes[i].job, 1, restore_all, &shapes[i]);
	scene_close(&scene);
	return 0;
}
