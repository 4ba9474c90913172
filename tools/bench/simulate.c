/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The images of a world: real headers in front of files of zeros that take no
 * room, so that any rank may restore any part and verify it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "layout/coverage.h"
#include "store/store.h"
#include "world.h"

/* Layouts are all kept for coverage while they take no more than this. */
#define KEEP_BYTES ((uint64_t)1 << 30)
#define LAYOUTS_TIMED 16

/* What the images of one world share. */
struct making {
	struct world *w;
	struct sk_item *items;
	uint32_t n;
	void *zeros;		/* a chunk of them */
	struct {
		uint64_t bytes, sum;
	} last;			/* checksums of zeros repeat */
	struct sk_layout **kept;	/* NULL: they are not */
	uint64_t layout_ns;	/* of all */
	int64_t step;
	char dir[600];		/* its */
};

static int make_items(struct making *m, const struct model_tensors *t)
{
	m->items = calloc((size_t)t->n + 1, sizeof(*m->items));
	if (!m->items)
		return -1;
	for (int i = 0; i < t->n; i++) {
		struct sk_item *item = &m->items[m->n++];

		item->spec = (struct sk_spec){
			.name = t->v[i].name,
			.dtype = (enum sk_dtype)t->v[i].dtype,
			.ndim = t->v[i].ndim, .mesh = t->v[i].mesh,
		};
		memcpy(item->spec.shape, t->v[i].shape,
		       sizeof(item->spec.shape));
		memcpy(item->spec.placements, t->v[i].placements,
		       sizeof(item->spec.placements));
	}
	return 0;
}

static uint64_t sum_of_zeros(struct making *m, uint64_t bytes)
{
	if (bytes != m->last.bytes || !m->last.sum) {
		m->last.bytes = bytes;
		m->last.sum = sk_xxh3(m->zeros, bytes);
	}
	return m->last.sum;
}

/* The stamped header, malloc'ed. */
static void *stamp(struct making *m, const struct sk_layout *l)
{
	_cleanup_free_ uint64_t *sums = calloc(l->n_sums + 1u, sizeof(*sums));
	void *header = malloc(l->header_bytes);
	struct sk_stamp s = { m->w->run->number, m->w->run->id,
			      (uint64_t)m->step, sums };

	for (uint32_t i = 0; sums && i < l->n_entries; i++)
		for (uint64_t k = 0; k < l->entries[i].n_sums; k++) {
			uint64_t left = l->entries[i].bytes -
					k * SK_SUM_CHUNK;

			sums[l->entries[i].first_sum + k] = sum_of_zeros(m,
				left < SK_SUM_CHUNK ? left : SK_SUM_CHUNK);
		}
	if (sums && header)
		sk_layout_stamp(l, &s, header);
	return sums ? header : NULL;
}

/* The first one as the agent does it: it makes the directories. */
static int put_first(struct making *m, const struct sk_layout *l,
		     const void *header)
{
	const struct sk_os *os = sk_os_linux();
	struct world *w = m->w;
	void *zeros = mmap(NULL, l->image_bytes, PROT_READ, MAP_PRIVATE |
			   MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	const struct sk_store_put put = {
		.job = l->job, .run = { w->run->number, w->run->id },
		.step = m->step, .rank = l->rank, .world = l->world,
		.head = header, .head_bytes = l->header_bytes,
		.data = zeros, .bytes = l->image_bytes,
	};
	struct sk_io_opts opts = { 0 };
	struct sk_store *store = NULL;
	struct sk_err err = { "" };
	struct sk_io *io = NULL;
	uid_t owner;
	int no, r;

	r = sk_store_open(os, w->bench->store, 3600, &store, &no, &err);
	if (r >= 0)
		r = sk_io_new(os, &opts, &io, &err);
	if (r >= 0)
		r = sk_store_put_image(store, io, &put, &err);
	if (r >= 0)
		r = sk_store_claim(store, l->job, getuid(), &owner, &err);
	sk_io_free(io);
	sk_store_close(store);
	munmap(zeros, l->image_bytes);
	return r < 0 ? world_fail(w, "%s", err.text) : 0;
}

static int put_file(struct making *m, const struct sk_layout *l,
		    const void *header)
{
	char path[700];
	int fd, r;

	(void)snprintf(path, sizeof(path),
		       "%s/rank-%05d-of-%05d.safetensors", m->dir, l->rank,
		       l->world);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return world_fail(m->w, "cannot make %s: %s", path,
				  strerror(errno));
	r = write(fd, header, l->header_bytes) == (ssize_t)l->header_bytes &&
	    !ftruncate(fd, (off_t)l->image_bytes);
	close(fd);
	return r ? 0 : world_fail(m->w, "cannot write %s: %s", path,
				  strerror(errno));
}

static int make_image(struct making *m, int32_t rank)
{
	_cleanup_free_ void *header = NULL;
	_cleanup_layout_ struct sk_layout *l = NULL;
	struct sk_err err = { "" };
	uint64_t began = cpu_ns();
	int r;

	r = sk_layout_new(m->w->job, rank, m->w->model.world, SK_IMAGE_PRIMARY,
			  m->items, m->n, &l, &err);
	m->layout_ns += cpu_ns() - began;
	if (r < 0)
		return world_fail(m->w, "%s", err.text);
	header = stamp(m, l);
	if (!header)
		return world_fail(m->w, "no memory");
	r = rank || m->step > WORLD_STEP ? put_file(m, l, header) :
					   put_first(m, l, header);
	if (m->kept)
		m->kept[rank] = sk_take_ptr(l);
	return r;
}

/* ---- what is timed apart ---- */

static int time_headers(struct making *m)
{
	struct world_figures *f = m->w->figures;
	struct sk_layout *l, *parsed;
	struct sk_err err = { "" };
	uint64_t began, bytes = 0;
	int r = 0;

	for (int i = 0; i < LAYOUTS_TIMED && r >= 0; i++) {
		int32_t rank = m->w->model.world / LAYOUTS_TIMED * i;

		r = sk_layout_new(m->w->job, rank, m->w->model.world,
				  SK_IMAGE_PRIMARY, m->items, m->n, &l, &err);
		if (r < 0)
			break;
		began = cpu_ns();
		r = sk_layout_parse(l->header, l->header_bytes,
				    l->image_bytes, &parsed, &err);
		f->parse_ns += (cpu_ns() - began) / LAYOUTS_TIMED;
		f->header_bytes = l->header_bytes;
		bytes = sk_layout_memory(l);
		if (r >= 0)
			sk_layout_free(parsed);
		sk_layout_free(l);
	}
	if (r < 0)
		return world_fail(m->w, "%s", err.text);
	if (bytes * (uint64_t)m->w->model.world <= KEEP_BYTES &&
	    m->w->steps == 1)
		m->kept = calloc((size_t)m->w->model.world, sizeof(*m->kept));
	return 0;
}

static int time_coverage(struct making *m)
{
	size_t n = (size_t)m->w->model.world;
	_cleanup_free_ struct sk_coverage_image *images = NULL;
	struct sk_err err = { "" };
	uint64_t began;
	int r;

	if (!m->kept)
		return 0;
	images = calloc(n, sizeof(*images));
	if (!images)
		return world_fail(m->w, "no memory");
	for (size_t i = 0; i < n; i++)
		images[i] = (struct sk_coverage_image){ m->kept[i], true };
	began = cpu_ns();
	r = sk_coverage_check(images, n, m->w->model.world, &err);
	m->w->figures->cover_ns = cpu_ns() - began;
	return r < 0 ? world_fail(m->w, "the images are not whole: %s",
				  err.text) : 0;
}

static int make_step(struct making *m, int64_t step)
{
	const struct world *w = m->w;
	int r = 0;

	m->step = step;
	(void)snprintf(m->dir, sizeof(m->dir), "%s/%s/step-%012d",
		       w->bench->store, w->job, (int)step);
	if (step > WORLD_STEP && mkdir(m->dir, 0700))
		return world_fail(m->w, "cannot make %s: %s", m->dir,
				  strerror(errno));
	for (int32_t i = 0; i < w->model.world && !r; i++)
		r = make_image(m, i);
	return r;
}

int world_simulate(struct world *w)
{
	struct making m = { .w = w };
	struct model_tensors t;
	int r;

	m.zeros = calloc(1, SK_SUM_CHUNK);
	if (!m.zeros || model_make(&w->model, w->model.world, &t))
		return world_fail(w, "no memory, or %s", sk_error());
	r = make_items(&m, &t);
	if (!r)
		r = time_headers(&m);
	for (int32_t i = 0; i < w->steps && !r; i++)
		r = make_step(&m, WORLD_STEP + i);
	w->figures->layout_ns = m.layout_ns / (uint64_t)w->model.world;
	return r ? r : time_coverage(&m);	/* the process ends with it */
}
