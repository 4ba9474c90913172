/* SPDX-License-Identifier: Apache-2.0 */
#include "layout.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "checksum.h"
#include "dtype.h"
#include "layout-private.h"
#include "util.h"

#define EXPLICIT_MAX 4096	/* boxes said by an owner, per item */

int sk_job_check(const char *job, struct sk_err *err)
{
	size_t n = strnlen(job, SK_JOB_MAX + 1);

	if (!n || n > SK_JOB_MAX || job[0] == '.')
		return sk_err_set(err, -EINVAL, "\"%.40s\" is not a job name: "
				  "1 to %d characters, not starting with a "
				  "dot", job, SK_JOB_MAX);
	for (size_t i = 0; i < n; i++)
		if (!strchr("abcdefghijklmnopqrstuvwxyz"
			    "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-",
			    job[i]))
			return sk_err_set(err, -EINVAL, "job name \"%.40s\" "
					  "has a character other than letters, "
					  "digits, dot, underscore and hyphen",
					  job);
	return 0;
}

const char *sk_item_kind_name(enum sk_item_kind kind)
{
	static const char *const names[] = {
		[SK_ITEM_TENSOR] = "tensor",
		[SK_ITEM_BLOB] = "blob",
		[SK_ITEM_BLOB_LOCAL] = "local",
	};

	return names[kind];
}

bool sk_digest_equal(const struct sk_digest *a, const struct sk_digest *b)
{
	return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

char *sk_digest_format(const struct sk_digest *d, char buf[33])
{
	for (int i = 0; i < 16; i++)
		(void)snprintf(buf + 2 * i, 3, "%02x", d->bytes[i]);
	return buf;
}

/* ---- items ---- */

static int check_boxes(const struct sk_item *item, struct sk_err *err)
{
	const struct sk_spec *s = &item->spec;
	struct sk_box both;
	int r = 0;

	if (item->explicit_boxes && item->n_boxes > EXPLICIT_MAX)
		return sk_err_set(err, -EINVAL, "tensor \"%s\": %d boxes, at "
				  "most %d may be said", s->name,
				  item->n_boxes, EXPLICIT_MAX);
	for (int i = 0; i < item->n_boxes && r >= 0; i++)
		r = sk_box_check(s->ndim, s->shape, &item->boxes[i], err);
	if (r < 0)
		return sk_err_prefix(err, r, "tensor \"%s\"", s->name);
	for (int i = 0; item->explicit_boxes && i < item->n_boxes; i++)
		for (int k = 0; k < i; k++)
			if (sk_box_intersect(s->ndim, &item->boxes[i],
					     &item->boxes[k], &both))
				return sk_err_set(err, -EINVAL, "tensor "
						  "\"%s\": boxes %d and %d "
						  "overlap", s->name, k, i);
	return 0;
}

static int copy_item(const struct sk_layout *l, const struct sk_item *from,
		     struct sk_item *to, struct sk_err *err)
{
	size_t bytes;
	int r;

	*to = *from;
	to->boxes = NULL;
	to->spec.mesh = NULL;
	to->spec.name = strdup(from->spec.name ? from->spec.name : "");
	if (!to->spec.name)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	to->spec.mesh = sk_mesh_ref(from->spec.mesh);
	r = sk_spec_normalize(&to->spec, err);
	if (r < 0)
		return r;
	if (!strncmp(to->spec.name, SK_RESERVED_PREFIX,
		     strlen(SK_RESERVED_PREFIX)))
		return sk_err_set(err, -EINVAL, "the name \"%s\" begins with "
				  "\"%s\", which is reserved", to->spec.name,
				  SK_RESERVED_PREFIX);
	if (!from->boxes)
		return sk_spec_boxes(&to->spec, l->rank, &to->boxes,
				     &to->n_boxes, err);
	bytes = (size_t)from->n_boxes * sizeof(*to->boxes);
	to->boxes = malloc(bytes ? bytes : 1);
	if (!to->boxes)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	memcpy(to->boxes, from->boxes, bytes);
	return check_boxes(to, err);
}

/* ---- lookups ---- */

static uint32_t hash_key(enum sk_item_kind kind, const char *name, int ndim,
			 const int64_t *offset)
{
	uint64_t h = sk_xxh3(name, strlen(name)) + (uint64_t)kind * 31;

	for (int d = 0; d < ndim; d++)
		h = (h ^ (uint64_t)offset[d]) * 0x9e3779b97f4a7c15u;
	return (uint32_t)(h ^ h >> 32);
}

static const struct sk_item *item_of(const struct sk_layout *l,
				     const struct sk_entry *e)
{
	return &l->items[e->item];
}

static uint32_t *new_table(uint32_t n, uint32_t *ret_mask)
{
	uint32_t size = 8;

	while (size < 2 * n)
		size *= 2;
	*ret_mask = size - 1;
	return calloc(size, sizeof(uint32_t));
}

static int index_items(struct sk_layout *l, struct sk_err *err)
{
	struct sk_layout_priv *p = l->priv;

	p->item_table = new_table(l->n_items, &p->item_mask);
	if (!p->item_table)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	for (uint32_t i = 0; i < l->n_items; i++) {
		const struct sk_item *item = &l->items[i];
		uint32_t h = hash_key(item->kind, item->spec.name, 0, NULL);

		if (sk_layout_item(l, item->kind, item->spec.name))
			return sk_err_set(err, -EINVAL, "two %ss are named "
					  "\"%s\"",
					  sk_item_kind_name(item->kind),
					  item->spec.name);
		while (p->item_table[h & p->item_mask])
			h++;
		p->item_table[h & p->item_mask] = i + 1;
	}
	return 0;
}

static int index_entries(struct sk_layout *l, struct sk_err *err)
{
	struct sk_layout_priv *p = l->priv;

	p->entry_table = new_table(l->n_entries, &p->entry_mask);
	if (!p->entry_table)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];
		const struct sk_item *item = item_of(l, e);
		uint32_t h = hash_key(item->kind, item->spec.name,
				      item->spec.ndim, e->box.offset);

		while (p->entry_table[h & p->entry_mask])
			h++;
		p->entry_table[h & p->entry_mask] = i + 1;
	}
	return 0;
}

const struct sk_item *sk_layout_item(const struct sk_layout *l,
				     enum sk_item_kind kind, const char *name)
{
	const struct sk_layout_priv *p = l->priv;
	uint32_t h = hash_key(kind, name, 0, NULL), at;

	while ((at = p->item_table[h++ & p->item_mask])) {
		const struct sk_item *item = &l->items[at - 1];

		if (item->kind == kind && !strcmp(item->spec.name, name))
			return item;
	}
	return NULL;
}

const struct sk_entry *sk_layout_find(const struct sk_layout *l,
				      enum sk_item_kind kind,
				      const char *name, const int64_t *offset)
{
	const struct sk_item *item = sk_layout_item(l, kind, name);
	const struct sk_layout_priv *p = l->priv;
	uint32_t h, at;

	if (!item)
		return NULL;
	h = hash_key(kind, name, item->spec.ndim, offset);
	while ((at = p->entry_table[h++ & p->entry_mask])) {
		const struct sk_entry *e = &l->entries[at - 1];

		if (item_of(l, e) == item &&
		    !memcmp(e->box.offset, offset,
			    (size_t)item->spec.ndim * sizeof(*offset)))
			return e;
	}
	return NULL;
}

char *sk_layout_key(const struct sk_layout *l, const struct sk_entry *e,
		    char *buf, size_t size)
{
	const struct sk_item *item = item_of(l, e);
	const char *name = item->spec.name;

	if (item->kind == SK_ITEM_BLOB)
		(void)snprintf(buf, size, "shardkeep.blob.%s", name);
	else if (item->kind == SK_ITEM_BLOB_LOCAL)
		(void)snprintf(buf, size, "shardkeep.local.%d.%s", l->rank,
			       name);
	else if (e->box_index)
		(void)snprintf(buf, size, "shardkeep.box.%u.%s",
			       e->box_index, name);
	else
		(void)snprintf(buf, size, "%s", name);
	return buf;
}

/* ---- entries ---- */

/* A tensor without elements is named once: by the first of its mesh. */
static bool names_empty(const struct sk_layout *l, const struct sk_item *item)
{
	int64_t count;

	if (l->kind != SK_IMAGE_PRIMARY ||
	    sk_shape_count(item->spec.ndim, item->spec.shape, &count, NULL) ||
	    count)
		return false;
	return l->rank == (item->spec.mesh ?
			   sk_mesh_rank_at(item->spec.mesh, 0) : 0);
}

static bool has_entry(const struct sk_layout *l, const struct sk_item *item,
		      bool primary, int box)
{
	if (sk_box_empty(item->spec.ndim, &item->boxes[box]))
		return box == 0 && names_empty(l, item);
	return primary == (l->kind == SK_IMAGE_PRIMARY);
}

static int add_entry(struct sk_layout *l, uint32_t i, int box,
		     struct sk_err *err)
{
	const struct sk_item *item = &l->items[i];
	struct sk_entry e = { .item = i, .box_index = (uint32_t)box,
			      .box = item->boxes[box],
			      .offset = l->image_bytes,
			      .first_sum = l->n_sums };
	uint64_t n;
	int r;

	r = sk_dtype_bytes(item->spec.dtype,
			   (uint64_t)sk_box_volume(item->spec.ndim, &e.box),
			   &e.bytes, err);
	if (r < 0)
		return sk_err_prefix(err, r, "tensor \"%s\", box %d",
				     item->spec.name, box);
	n = e.bytes ? (e.bytes + SK_SUM_CHUNK - 1) / SK_SUM_CHUNK : 1;
	if (!sk_add_u64(l->image_bytes, e.bytes, &l->image_bytes) ||
	    l->image_bytes > (uint64_t)1 << 50 || n > UINT32_MAX - l->n_sums)
		return sk_err_set(err, -E2BIG, "the state of rank %d is too "
				  "large", l->rank);
	e.n_sums = (uint32_t)n;
	l->n_sums += e.n_sums;
	l->entries[l->n_entries++] = e;
	return 0;
}

/* Widest dtype first, in the order of description within a width, so that
 * every tensor is aligned to its element without holes. */
static int add_entries(struct sk_layout *l, const bool *primary,
		       struct sk_err *err)
{
	static const unsigned widths[] = { 64, 32, 16, 8, 6, 4 };
	size_t room = 1;
	int r = 0;

	for (uint32_t i = 0; i < l->n_items; i++)
		room += (size_t)l->items[i].n_boxes;
	l->entries = calloc(room, sizeof(*l->entries));
	if (!l->entries)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	for (size_t w = 0; w < SK_ARRAY_SIZE(widths); w++)
		for (uint32_t i = 0; i < l->n_items && r >= 0; i++) {
			const struct sk_item *item = &l->items[i];

			if (sk_dtype_bits(item->spec.dtype) != widths[w])
				continue;
			for (int b = 0; b < item->n_boxes && r >= 0; b++)
				if (has_entry(l, item, primary[i], b))
					r = add_entry(l, i, b, err);
		}
	return r;
}

/* ---- making ---- */

static int build(struct sk_layout *l, const struct sk_item *items, uint32_t n,
		 struct sk_err *err)
{
	_cleanup_free_ bool *primary = calloc(n + 1u, sizeof(*primary));
	int r = 0;

	l->items = calloc(n + 1u, sizeof(*l->items));
	l->priv = calloc(1, sizeof(*l->priv));
	if (!primary || !l->items || !l->priv)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	for (uint32_t i = 0; i < n && r >= 0; i++, l->n_items = i)
		r = copy_item(l, &items[i], &l->items[i], err);
	if (r >= 0)
		r = index_items(l, err);
	if (r >= 0)
		r = sk_layout_split(l, primary, err);
	if (r >= 0)
		r = add_entries(l, primary, err);
	if (r >= 0)
		r = index_entries(l, err);
	if (r >= 0)
		r = sk_layout_write_header(l, err);
	if (r >= 0)
		sk_xxh3_128(l->header, l->header_bytes, l->digest.bytes);
	return r;
}

int sk_layout_new(const char *job, int32_t rank, int32_t world,
		  enum sk_image_kind kind, const struct sk_item *items,
		  uint32_t n_items, struct sk_layout **ret_layout,
		  struct sk_err *err)
{
	struct sk_layout *l;
	int r = sk_job_check(job, err);

	if (r < 0)
		return r;
	if (world < 1 || world > SK_MESH_MAX_RANKS || rank < 0 ||
	    rank >= world)
		return sk_err_set(err, -EINVAL, "rank %d of %d ranks", rank,
				  world);
	if (n_items > SK_ITEMS_MAX)
		return sk_err_set(err, -EINVAL, "%u tensors and blobs, at "
				  "most %u", n_items, SK_ITEMS_MAX);
	l = calloc(1, sizeof(*l));
	if (!l)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	strcpy(l->job, job);
	l->rank = rank;
	l->world = world;
	l->kind = kind;
	r = build(l, items, n_items, err);
	if (r < 0) {
		sk_layout_free(l);
		return r;
	}
	*ret_layout = l;
	return 0;
}

struct sk_layout *sk_layout_ref(struct sk_layout *l)
{
	atomic_fetch_add(&l->priv->extra_refs, 1);
	return l;
}

struct sk_layout *sk_layout_free(struct sk_layout *l)
{
	if (!l)
		return NULL;
	/* 0 extra wraps to the largest value: that was the last one. */
	if (l->priv && atomic_fetch_sub(&l->priv->extra_refs, 1) != 0)
		return NULL;
	/* One more than were finished: copying may have failed half-way. */
	for (uint32_t i = 0; l->items && i <= l->n_items; i++) {
		free((char *)l->items[i].spec.name);
		sk_mesh_unref((struct sk_mesh *)l->items[i].spec.mesh);
		free(l->items[i].boxes);
	}
	free(l->items);
	free(l->entries);
	free((char *)l->header);
	if (l->priv) {
		free(l->priv->sums_at);
		free(l->priv->entry_table);
		free(l->priv->item_table);
		free(l->priv);
	}
	free(l);
	return NULL;
}

/* ---- stamps ---- */

static void put_number(char *at, uint64_t v)
{
	char text[SK_RUN_WIDTH + 1];

	(void)snprintf(text, sizeof(text), "%*llu", SK_RUN_WIDTH,
		       (unsigned long long)v);
	memcpy(at, text, SK_RUN_WIDTH);
}

static void put_sum(char *at, uint64_t v)
{
	static const char digits[] = "0123456789abcdef";

	for (int i = SK_SUM_WIDTH - 1; i >= 0; i--, v >>= 4)
		at[i] = digits[v & 15];
}

void sk_layout_stamp(const struct sk_layout *l, const struct sk_stamp *stamp,
		     void *dst)
{
	const struct sk_layout_priv *p = l->priv;
	char *header = dst;

	memcpy(header, l->header, l->header_bytes);
	put_number(header + p->run_at, stamp->run);
	put_number(header + p->step_at, stamp->step);
	for (uint32_t i = 0; i < l->n_sums; i++)
		put_sum(header + p->sums_at[i], stamp->sums[i]);
}

static bool get_number(const char *at, uint64_t *ret)
{
	uint64_t v = 0;
	int i = 0;

	while (i < SK_RUN_WIDTH - 1 && at[i] == ' ')
		i++;
	for (; i < SK_RUN_WIDTH; i++)
		if (at[i] < '0' || at[i] > '9' ||
		    __builtin_mul_overflow(v, 10u, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(at[i] - '0'), &v))
			return false;
	*ret = v;
	return true;
}

static bool get_sum(const char *at, uint64_t *ret)
{
	uint64_t v = 0;

	for (int i = 0; i < SK_SUM_WIDTH; i++) {
		char c = at[i];

		if (c >= '0' && c <= '9')
			v = v << 4 | (uint64_t)(c - '0');
		else if (c >= 'a' && c <= 'f')
			v = v << 4 | (uint64_t)(c - 'a' + 10);
		else
			return false;
	}
	*ret = v;
	return true;
}

int sk_layout_read_stamp(const struct sk_layout *l, const void *header,
			 struct sk_stamp *ret_stamp, struct sk_err *err)
{
	const struct sk_layout_priv *p = l->priv;
	_cleanup_free_ char *own = malloc(l->header_bytes);
	uint64_t run, step;

	if (!own)
		return sk_err_set(err, -ENOMEM, "out of memory for a header");
	memcpy(own, header, l->header_bytes);
	if (!get_number(own + p->run_at, &run) ||
	    !get_number(own + p->step_at, &step))
		goto bad;
	for (uint32_t i = 0; i < l->n_sums; i++) {
		if (!get_sum(own + p->sums_at[i], &ret_stamp->sums[i]))
			goto bad;
		put_sum(own + p->sums_at[i], 0);
	}
	put_number(own + p->run_at, 0);
	put_number(own + p->step_at, 0);
	if (memcmp(own, l->header, l->header_bytes))
		goto bad;
	ret_stamp->run = run;
	ret_stamp->step = step;
	return 0;
bad:
	return sk_err_set(err, -EBADMSG, "the header of rank %d's image is "
			  "not that of its layout", l->rank);
}

int sk_header_bytes(const void *first8, uint64_t *ret_bytes,
		    struct sk_err *err)
{
	uint64_t n;

	memcpy(&n, first8, sizeof(n));
	if (n < 2 || n > SK_HEADER_MAX)
		return sk_err_set(err, -EBADMSG, "a header of %llu bytes is "
				  "not safetensors", (unsigned long long)n);
	*ret_bytes = 8 + n;
	return 0;
}
