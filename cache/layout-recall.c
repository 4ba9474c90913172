/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "layout-recall.h"
#include "link.h"
#include "util.h"

struct known {
	struct sk_link link;
	struct sk_layout *layout;
};

struct sk_recall {
	pthread_mutex_t lock;
	struct sk_link known;		/* newest last */
	uint64_t bytes;			/* of their headers */
};

struct sk_recall *sk_recall_new(void)
{
	struct sk_recall *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	pthread_mutex_init(&m->lock, NULL);
	sk_link_init(&m->known);
	return m;
}

static void forget(struct sk_recall *m, struct known *k)
{
	m->bytes -= k->layout->header_bytes;
	sk_link_remove(&k->link);
	sk_layout_free(k->layout);
	free(k);
}

static void forget_beyond(struct sk_recall *m, uint64_t bytes)
{
	struct known *k;

	sk_link_each(k, &m->known, link) {
		if (m->bytes <= bytes)
			return;
		forget(m, k);
	}
}

void sk_recall_clear(struct sk_recall *m)
{
	pthread_mutex_lock(&m->lock);
	forget_beyond(m, 0);
	pthread_mutex_unlock(&m->lock);
}

struct sk_recall *sk_recall_free(struct sk_recall *m)
{
	if (!m)
		return NULL;
	sk_recall_clear(m);
	pthread_mutex_destroy(&m->lock);
	free(m);
	return NULL;
}

static bool is_known(const struct sk_recall *m, const struct sk_layout *l)
{
	const struct known *k;

	sk_link_each(k, &m->known, link)
		if (sk_digest_equal(&k->layout->digest, &l->digest))
			return true;
	return false;
}

void sk_recall_add(struct sk_recall *m, struct sk_layout *layout)
{
	struct known *k = layout ? calloc(1, sizeof(*k)) : NULL;

	if (!k)
		return;		/* it is parsed again, that is all */
	pthread_mutex_lock(&m->lock);
	if (is_known(m, layout)) {
		free(k);
	} else {
		k->layout = sk_layout_ref(layout);
		m->bytes += layout->header_bytes;
		sk_link_insert(&m->known, &k->link);
		forget_beyond(m, SK_RECALL_BYTES);
	}
	pthread_mutex_unlock(&m->lock);
}

/* ---- finding ---- */

static bool is_header_of(const struct sk_layout *l, const void *header)
{
	_cleanup_free_ uint64_t *sums = calloc(l->n_sums + 1u, sizeof(*sums));
	struct sk_stamp stamp = { .sums = sums };

	return sums && sk_layout_read_stamp(l, header, &stamp, NULL) == 0;
}

static bool same_place(const struct sk_layout *l, const char *job,
		       int32_t rank, enum sk_image_kind kind)
{
	return l->rank == rank && l->kind == kind && !strcmp(l->job, job);
}

/* Whether @l is better to compute from than @base: the rank's other image
 * describes the very same tensors. */
static bool is_better(const struct sk_layout *l, const struct sk_layout *base,
		      int32_t rank)
{
	return !base || l->rank == rank || base->rank != rank;
}

/* A layout of that header, or the best one of the job to compute it from;
 * references, or NULL. */
static void search(struct sk_recall *m, const char *job, int32_t rank,
		   enum sk_image_kind kind, const void *header,
		   uint64_t bytes, struct sk_layout **ret_found,
		   struct sk_layout **ret_base)
{
	struct sk_layout *found = NULL, *base = NULL;
	struct known *k;

	pthread_mutex_lock(&m->lock);
	sk_link_each(k, &m->known, link) {
		struct sk_layout *l = k->layout;

		if (!found && l->header_bytes == bytes &&
		    same_place(l, job, rank, kind) && is_header_of(l, header))
			found = l;
		if (!strcmp(l->job, job) &&
		    !same_place(l, job, rank, kind) &&
		    is_better(l, base, rank))
			base = l;
	}
	*ret_found = found ? sk_layout_ref(found) : NULL;
	*ret_base = base && !found ? sk_layout_ref(base) : NULL;
	pthread_mutex_unlock(&m->lock);
}

/* The same tensors as the rank's other image, or what placements give another
 * rank; boxes said one by one give that nothing. */
static int compute(const struct sk_layout *base, int32_t rank,
		   enum sk_image_kind kind, struct sk_layout **ret)
{
	_cleanup_free_ struct sk_item *items = NULL;
	uint32_t n = base->n_items;

	if (rank >= base->world)
		return -EINVAL;
	items = calloc(n + 1u, sizeof(*items));
	if (!items)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		items[i] = base->items[i];
		if (base->rank == rank)
			continue;
		if (base->items[i].explicit_boxes)
			return -EINVAL;
		items[i].boxes = NULL;
		items[i].n_boxes = 0;
	}
	return sk_layout_new(base->job, rank, base->world, kind, items, n, ret,
			     NULL);
}

int sk_recall_get(struct sk_recall *m, const char *job, int32_t rank,
		  enum sk_image_kind kind, const void *header, size_t size,
		  uint64_t image_bytes, struct sk_layout **ret_layout,
		  struct sk_err *err)
{
	_cleanup_layout_ struct sk_layout *found = NULL;
	_cleanup_layout_ struct sk_layout *base = NULL;
	uint64_t bytes;
	int r;

	if (size >= 8 && sk_header_bytes(header, &bytes, NULL) == 0 &&
	    bytes <= size)
		search(m, job, rank, kind, header, bytes, &found, &base);
	if (!found && base && compute(base, rank, kind, &found) == 0 &&
	    (found->header_bytes != bytes || !is_header_of(found, header)))
		found = sk_layout_free(found);
	if (found && image_bytes && found->image_bytes != image_bytes)
		found = sk_layout_free(found);	/* parsing says what is wrong */
	if (!found) {
		r = sk_layout_parse(header, size, image_bytes, &found, err);
		if (r < 0)
			return r;
	}
	sk_recall_add(m, found);
	*ret_layout = sk_take_ptr(found);
	return 0;
}
