/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/recall.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/link.h"
#include "base/table.h"
#include "base/util.h"
#include "layout/private.h"

/* Layouts of one job, so that one can be computed from another. */
struct of_job {
	char name[SK_JOB_MAX + 1];
	struct sk_link known;		/* newest last */
};

struct known {
	struct sk_link link;		/* in the recall, newest last */
	struct sk_link of_job;
	struct of_job *job;
	struct sk_layout *layout;
};

struct sk_recall {
	pthread_mutex_t lock;
	struct sk_link known;		/* newest last */
	struct sk_table by_digest;	/* struct known */
	struct sk_table by_place;	/* struct known: job, rank and kind */
	struct sk_table by_description;	/* struct known: the first of each */
	struct sk_table jobs;		/* struct of_job */
	uint64_t bytes;			/* that they take */
	uint64_t looks;
};

/* Of a job's newest layouts so many are looked at for one to compute from. */
#define BASES_MAX 8

struct sk_recall *sk_recall_new(void)
{
	struct sk_recall *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	pthread_mutex_init(&m->lock, NULL);
	sk_link_init(&m->known);
	return m;
}

/* ---- hashes ---- */

static uint64_t hash_digest(const struct sk_digest *digest)
{
	return sk_hash_bytes(sk_hash_seed(), digest->bytes,
			     sizeof(digest->bytes));
}

static uint64_t hash_job(const char *job)
{
	return sk_hash_bytes(sk_hash_seed(), job, strlen(job));
}

static uint64_t hash_place(const char *job, int32_t rank,
			   enum sk_image_kind kind)
{
	const int32_t place[] = { rank, (int32_t)kind };

	return sk_hash_bytes(hash_job(job), place, sizeof(place));
}

/* ---- remembering and forgetting ---- */

static struct of_job *find_job(struct sk_recall *m, const char *job)
{
	struct sk_table_walk walk = sk_table_find(&m->jobs, hash_job(job));
	uintptr_t value;

	while (sk_table_next(&walk, &value))
		if (!strcmp(((struct of_job *)value)->name, job))
			return (struct of_job *)value;
	return NULL;
}

static struct of_job *get_job(struct sk_recall *m, const char *job)
{
	struct of_job *j = find_job(m, job);

	if (j)
		return j;
	j = calloc(1, sizeof(*j));
	if (!j)
		return NULL;
	(void)snprintf(j->name, sizeof(j->name), "%s", job);
	sk_link_init(&j->known);
	if (sk_table_add(&m->jobs, hash_job(job), (uintptr_t)j) < 0) {
		free(j);
		return NULL;
	}
	return j;
}

static void trim_job(struct sk_recall *m, struct of_job *j)
{
	if (!sk_link_empty(&j->known))
		return;
	(void)sk_table_remove(&m->jobs, hash_job(j->name), (uintptr_t)j);
	free(j);
}

static void forget(struct sk_recall *m, struct known *k)
{
	const struct sk_layout *l = k->layout;

	(void)sk_table_remove(&m->by_digest, hash_digest(&l->digest),
			      (uintptr_t)k);
	(void)sk_table_remove(&m->by_place,
			      hash_place(l->job, l->rank, l->kind),
			      (uintptr_t)k);
	(void)sk_table_remove(&m->by_description, l->description,
			      (uintptr_t)k);
	sk_link_remove(&k->of_job);
	trim_job(m, k->job);
	sk_link_remove(&k->link);
	assert(m->bytes >= sk_layout_memory(l));
	m->bytes -= sk_layout_memory(l);
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
	sk_table_free(&m->by_digest);
	sk_table_free(&m->by_place);
	sk_table_free(&m->by_description);
	sk_table_free(&m->jobs);
	pthread_mutex_destroy(&m->lock);
	free(m);
	return NULL;
}

static struct sk_layout *find_digest(struct sk_recall *m,
				     const struct sk_digest *digest)
{
	struct sk_table_walk walk = sk_table_find(&m->by_digest,
						  hash_digest(digest));
	uintptr_t value;

	while (sk_table_next(&walk, &value)) {
		const struct known *k = (const struct known *)value;

		m->looks++;
		if (sk_digest_equal(&k->layout->digest, digest))
			return k->layout;
	}
	return NULL;
}

static struct known *find_described(struct sk_recall *m,
				    const struct sk_layout *like)
{
	struct sk_table_walk walk = sk_table_find(&m->by_description,
						  like->description);
	uintptr_t value;

	while (sk_table_next(&walk, &value)) {
		const struct sk_layout *l = ((struct known *)value)->layout;

		m->looks++;
		if (l->description == like->description &&
		    l->world == like->world && !strcmp(l->job, like->job))
			return (struct known *)value;
	}
	return NULL;
}

/* Where no memory is, it is not remembered and parsed again, that is all. */
static void remember(struct sk_recall *m, struct sk_layout *l)
{
	struct of_job *job = get_job(m, l->job);
	struct known *k = job ? calloc(1, sizeof(*k)) : NULL;

	if (!k || sk_table_reserve(&m->by_digest,
				   m->by_digest.count + 1) < 0 ||
	    sk_table_reserve(&m->by_place, m->by_place.count + 1) < 0) {
		free(k);
		if (job)
			trim_job(m, job);
		return;
	}
	(void)sk_table_add(&m->by_digest, hash_digest(&l->digest),
			   (uintptr_t)k);
	(void)sk_table_add(&m->by_place, hash_place(l->job, l->rank, l->kind),
			   (uintptr_t)k);
	if (!find_described(m, l) && !sk_layout_says_boxes(l))
		(void)sk_table_add(&m->by_description, l->description,
				   (uintptr_t)k);
	k->layout = sk_layout_ref(l);
	k->job = job;
	sk_link_insert(&job->known, &k->of_job);
	sk_link_insert(&m->known, &k->link);
	m->bytes += sk_layout_memory(l);
	forget_beyond(m, SK_RECALL_BYTES);
}

void sk_recall_add(struct sk_recall *m, struct sk_layout *layout)
{
	if (!layout)
		return;
	pthread_mutex_lock(&m->lock);
	if (!find_digest(m, &layout->digest))
		remember(m, layout);
	pthread_mutex_unlock(&m->lock);
}

void sk_recall_drop(struct sk_recall *m, const struct sk_layout *layout)
{
	struct sk_table_walk walk;
	uintptr_t value;

	pthread_mutex_lock(&m->lock);
	walk = sk_table_find(&m->by_digest, hash_digest(&layout->digest));
	while (sk_table_next(&walk, &value)) {
		if (((struct known *)value)->layout != layout)
			continue;
		forget(m, (struct known *)value);
		break;
	}
	pthread_mutex_unlock(&m->lock);
}

struct sk_layout *sk_recall_described(struct sk_recall *m,
				      const struct sk_layout *like)
{
	struct sk_layout *l = NULL;
	struct known *k;

	pthread_mutex_lock(&m->lock);
	k = find_described(m, like);
	if (k) {
		l = sk_layout_ref(k->layout);
		/* What others lean on is not the next to go. */
		sk_link_remove(&k->link);
		sk_link_insert(&m->known, &k->link);
	}
	pthread_mutex_unlock(&m->lock);
	return l;
}

uint64_t sk_recall_bytes(struct sk_recall *m)
{
	uint64_t bytes;

	pthread_mutex_lock(&m->lock);
	bytes = m->bytes;
	pthread_mutex_unlock(&m->lock);
	return bytes;
}

uint64_t sk_recall_looks(struct sk_recall *m)
{
	uint64_t looks;

	pthread_mutex_lock(&m->lock);
	looks = m->looks;
	pthread_mutex_unlock(&m->lock);
	return looks;
}

/* ---- finding ---- */

static bool is_header_of(const struct sk_layout *l, const void *header)
{
	struct sk_stamp stamp = { 0 };

	return sk_layout_check(l, header, &stamp, NULL) >= 0;
}

static bool same_place(const struct sk_layout *l, const char *job,
		       int32_t rank, enum sk_image_kind kind)
{
	return l->rank == rank && l->kind == kind && !strcmp(l->job, job);
}

/* What is asked for. */
struct asked {
	const char *job;
	int32_t rank;
	enum sk_image_kind kind;
	const void *header;
	uint64_t bytes;
};

/* A layout of that rank and kind: the one whose header it is, or without
 * @header any. */
static struct sk_layout *find_place(struct sk_recall *m,
				    const struct asked *a,
				    enum sk_image_kind kind,
				    const void *header)
{
	struct sk_table_walk walk = sk_table_find(
		&m->by_place, hash_place(a->job, a->rank, kind));
	uintptr_t value;

	while (sk_table_next(&walk, &value)) {
		struct sk_layout *l = ((struct known *)value)->layout;

		m->looks++;
		if (!same_place(l, a->job, a->rank, kind))
			continue;
		if (!header || (l->header_bytes == a->bytes &&
				is_header_of(l, header)))
			return l;
	}
	return NULL;
}

/* The newest one of the job that is another rank's. */
static struct sk_layout *find_other(struct sk_recall *m,
				    const struct asked *a)
{
	const struct of_job *job = find_job(m, a->job);
	int left = BASES_MAX;

	for (struct sk_link *at = job ? job->known.prev : NULL;
	     at && at != &job->known && left--; at = at->prev) {
		struct sk_layout *l = sk_link_object(at, struct known,
						     of_job)->layout;

		m->looks++;
		if (l->rank != a->rank)
			return l;
	}
	return NULL;
}

/* The layout of that header, or the best one of the job to compute it from:
 * the rank's other image describes the very same tensors. References, or
 * NULL. */
static void search(struct sk_recall *m, const struct asked *a,
		   struct sk_layout **ret_found, struct sk_layout **ret_base)
{
	struct sk_layout *found, *base = NULL;

	pthread_mutex_lock(&m->lock);
	found = find_place(m, a, a->kind, a->header);
	if (!found)
		base = find_place(m, a, a->kind == SK_IMAGE_PRIMARY ?
				  SK_IMAGE_REPLICA : SK_IMAGE_PRIMARY, NULL);
	if (!found && !base)
		base = find_other(m, a);
	*ret_found = found ? sk_layout_ref(found) : NULL;
	*ret_base = base ? sk_layout_ref(base) : NULL;
	pthread_mutex_unlock(&m->lock);
}

int sk_recall_get(struct sk_recall *m, const char *job, int32_t rank,
		  enum sk_image_kind kind, const void *header, size_t size,
		  uint64_t image_bytes, struct sk_layout **ret_layout,
		  struct sk_err *err)
{
	_cleanup_layout_ struct sk_layout *found = NULL;
	_cleanup_layout_ struct sk_layout *base = NULL;
	struct asked asked = { job, rank, kind, header, 0 };
	int r;

	if (size >= 8 && sk_header_bytes(header, &asked.bytes, NULL) == 0 &&
	    asked.bytes <= size)
		search(m, &asked, &found, &base);
	if (!found && base &&
	    sk_layout_compute(base, rank, kind, &found) == 0 &&
	    (found->header_bytes != asked.bytes ||
	     !is_header_of(found, header)))
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

static bool same_item(const struct sk_item *a, const struct sk_item *b)
{
	if (a->kind != b->kind || a->explicit_boxes != b->explicit_boxes ||
	    strcmp(a->spec.name, b->spec.name) != 0 ||
	    !sk_spec_same_layout(&a->spec, &b->spec))
		return false;
	if (!a->explicit_boxes)
		return true;		/* the others follow from the spec */
	if (a->n_boxes != b->n_boxes)
		return false;
	for (int i = 0; i < a->n_boxes; i++)
		if (!sk_box_equal(a->spec.ndim, &a->boxes[i], &b->boxes[i]))
			return false;
	return true;
}

static bool same_items(const struct sk_layout *l, const struct sk_item *items,
		       uint32_t n)
{
	bool same = l->n_items == n && l->header;

	for (uint32_t i = 0; i < n && same; i++)
		same = same_item(&l->items[i], &items[i]);
	return same;
}

struct sk_layout *sk_recall_same(struct sk_recall *m, const char *job,
				 int32_t rank, int32_t world,
				 enum sk_image_kind kind,
				 const struct sk_nodes *nodes,
				 const struct sk_item *items, uint32_t n)
{
	struct sk_layout *found = NULL;
	struct sk_table_walk walk;
	uintptr_t value;

	pthread_mutex_lock(&m->lock);
	walk = sk_table_find(&m->by_place, hash_place(job, rank, kind));
	while (!found && sk_table_next(&walk, &value)) {
		struct sk_layout *l = ((struct known *)value)->layout;

		m->looks++;
		if (same_place(l, job, rank, kind) && l->world == world &&
		    sk_nodes_equal(l->nodes, nodes) && same_items(l, items, n))
			found = sk_layout_ref(l);
	}
	pthread_mutex_unlock(&m->lock);
	return found;
}

int sk_recall_find(struct sk_recall *m, struct sk_layout *base,
		   int32_t rank, enum sk_image_kind kind,
		   const struct sk_digest *digest,
		   struct sk_layout **ret_layout)
{
	struct sk_layout *found;
	int r;

	pthread_mutex_lock(&m->lock);
	found = find_digest(m, digest);
	if (found)
		sk_layout_ref(found);
	pthread_mutex_unlock(&m->lock);
	if (!found) {
		r = base ? sk_layout_compute(base, rank, kind, &found) :
			   -ENOENT;
		if (r < 0)
			return r == -ENOMEM ? r : -ENOENT;
		if (!sk_digest_equal(&found->digest, digest)) {
			sk_layout_free(found);
			return -ENOENT;
		}
		sk_recall_add(m, found);
	}
	*ret_layout = found;
	return 0;
}
