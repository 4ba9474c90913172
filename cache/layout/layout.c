/* SPDX-License-Identifier: Apache-2.0 */
/* A layout's making: items, entries, references. */
#include "layout/layout.h"

#include <assert.h>
#include <string.h>

#include "bytes/checksum.h"
#include "tensor/dtype.h"
#include "layout/private.h"
#include "base/util.h"
#include "tensor/tiling.h"

#define EXPLICIT_MAX 4096	/* boxes said by an owner, per item */
/* Visits (tensor/tiling.h) of a layout besides those that its boxes bring:
 * comparing each pair of so many boxes once. */
#define VISITS_FREE ((uint64_t)EXPLICIT_MAX * EXPLICIT_MAX / 2)

/* ---- items ---- */

/* What an owner said: each element once, so that an image has it once. */
static int check_overlap(const struct sk_item *item, uint64_t *visits,
			 struct sk_err *err)
{
	const struct sk_spec *s = &item->spec;
	struct sk_box whole = sk_box_whole(s->ndim, s->shape);
	size_t n = (size_t)item->n_boxes, pair[2];
	int r;

	*visits += sk_tiling_visits(s->ndim, n);
	r = sk_tiling_overlap(s->ndim, &whole, item->boxes, n, visits, pair);
	if (r == -ENOMEM)
		return sk_err_set(err, r, "out of memory for a layout");
	if (r < 0)
		return sk_err_set(err, r, "tensor \"%s\": its %zu boxes lie "
				  "so that whether they overlap cannot be told "
				  "in time; say fewer", s->name, n);
	return r ? sk_err_set(err, -EINVAL, "tensor \"%s\": boxes %zu and "
			      "%zu overlap", s->name, pair[0], pair[1]) : 0;
}

static int check_boxes(const struct sk_item *item, uint64_t *visits,
		       struct sk_err *err)
{
	const struct sk_spec *s = &item->spec;
	int r = 0;

	if (item->n_boxes > EXPLICIT_MAX)
		return sk_err_set(err, -EINVAL, "tensor \"%s\": %d boxes, at "
				  "most %d may be said", s->name,
				  item->n_boxes, EXPLICIT_MAX);
	for (int i = 0; i < item->n_boxes && r >= 0; i++)
		r = sk_box_check(s->ndim, s->shape, &item->boxes[i], err);
	if (r < 0)
		return sk_err_prefix(err, r, "tensor \"%s\"", s->name);
	return check_overlap(item, visits, err);
}

static int copy_item(const struct sk_layout *l, const struct sk_item *from,
		     struct sk_item *to, uint64_t *visits, struct sk_err *err)
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
	if (r >= 0)
		r = sk_spec_check_world(&to->spec, l->world, err);
	if (r < 0)
		return r;
	if (!strncmp(to->spec.name, SK_RESERVED_PREFIX,
		     strlen(SK_RESERVED_PREFIX)))
		return sk_err_set(err, -EINVAL, "the name \"%s\" begins with "
				  "\"%s\", which is reserved", to->spec.name,
				  SK_RESERVED_PREFIX);
	if (!from->explicit_boxes)
		return sk_spec_boxes(&to->spec, l->rank, &to->boxes,
				     &to->n_boxes, err);
	bytes = (size_t)from->n_boxes * sizeof(*to->boxes);
	to->boxes = malloc(bytes ? bytes : 1);
	if (!to->boxes)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	if (bytes)
		memcpy(to->boxes, from->boxes, bytes);
	return check_boxes(to, visits, err);
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
		      bool has, int box)
{
	if (sk_box_empty(item->spec.ndim, &item->boxes[box]))
		return box == 0 && names_empty(l, item);
	return has;
}

static uint64_t header_most(const struct sk_layout *l)
{
	return l->priv->header_most ? l->priv->header_most : SK_HEADER_MAX;
}

/* Each takes its digits, in quotes. */
static uint64_t most_sums(const struct sk_layout *l)
{
	return header_most(l) / (SK_SUM_WIDTH + 2);
}

static int add_entry(struct sk_layout *l, uint32_t i, int box,
		     struct sk_err *err)
{
	const struct sk_item *item = &l->items[i];
	struct sk_entry e = { .item = i, .box_index = (uint32_t)box,
			      .box = item->boxes[box],
			      .offset = l->image_bytes,
			      .first_sum = l->n_sums,
			      .index = l->n_entries };
	uint64_t n;
	int r;

	r = sk_dtype_bytes(item->spec.dtype,
			   (uint64_t)sk_box_volume(item->spec.ndim, &e.box),
			   &e.bytes, err);
	if (r < 0)
		return sk_err_prefix(err, r, "tensor \"%s\", box %d",
				     item->spec.name, box);
	n = e.bytes ? (e.bytes + SK_SUM_CHUNK - 1) / SK_SUM_CHUNK : 1;
	/* Of a few bytes in a header there would be a header of gigabytes. */
	if (!sk_add_u64(l->image_bytes, e.bytes, &l->image_bytes) ||
	    n > most_sums(l) - l->n_sums)
		return sk_err_set(err, -E2BIG, "the state of rank %d is too "
				  "large: its checksums alone take more than "
				  "the %llu bytes of a header", l->rank,
				  (unsigned long long)header_most(l));
	e.n_sums = (uint32_t)n;
	l->n_sums += e.n_sums;
	l->entries[l->n_entries++] = e;
	return 0;
}

/* Widest dtype first, in the order of description within a width, so that
 * every tensor is aligned to its element without holes. */
static int add_entries(struct sk_layout *l, const bool *has,
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
				if (has_entry(l, item, has[i], b))
					r = add_entry(l, i, b, err);
		}
	return r;
}

/* ---- making ---- */

#define BLOCK 16u	/* what the allocator adds, about */

static uint64_t table_memory(const struct sk_table *t)
{
	return t->slots ? (t->mask + 1) * sizeof(*t->slots) : 0;
}

uint64_t sk_layout_entries_memory(const struct sk_layout *l)
{
	return (uint64_t)l->n_entries * sizeof(*l->entries) +
	       table_memory(&l->priv->entries);
}

static uint64_t measure(const struct sk_layout *l)
{
	uint64_t bytes = sizeof(*l) + sizeof(*l->priv) + l->header_bytes +
			 sk_layout_entries_memory(l) +
			 table_memory(&l->priv->items);

	bytes += (uint64_t)l->n_items * (sizeof(*l->items) +
					 sizeof(*l->priv->boxes));
	bytes += (uint64_t)l->n_sums * sizeof(*l->priv->sums_at);
	for (uint32_t i = 0; i < l->n_items; i++) {
		const struct sk_item *item = &l->items[i];

		bytes += strlen(item->spec.name) + 2 * BLOCK +
			 (uint64_t)item->n_boxes * sizeof(*item->boxes);
	}
	return bytes;
}

uint64_t sk_layout_memory(const struct sk_layout *l)
{
	return l->priv->memory;
}

/* Room was for all boxes of the items; replicas' go to few images each. */
void sk_layout_trim_entries(struct sk_layout *l)
{
	struct sk_entry *v = realloc(l->entries, (l->n_entries + 1u) *
						 sizeof(*v));

	l->entries = v ? v : l->entries;
}

int sk_layout_fill(struct sk_layout *l, struct sk_err *err)
{
	_cleanup_free_ bool *has = calloc(l->n_items + 1u, sizeof(*has));
	int r;

	assert(!l->entries && !l->n_entries);
	if (!has)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	r = sk_layout_split(l, has, NULL, err);
	if (r >= 0)
		r = add_entries(l, has, err);
	if (r < 0)
		return r;
	sk_layout_trim_entries(l);
	return 0;
}

int sk_layout_finish(struct sk_layout *l, struct sk_err *err)
{
	int r;

	l->n_sums = 0;
	l->image_bytes = 0;
	r = sk_layout_fill(l, err);
	if (r >= 0)
		r = sk_layout_write_header(l, err);
	if (r >= 0)
		sk_xxh3_128(l->header, l->header_bytes, l->digest.bytes);
	return r;
}

static int build(struct sk_layout *l, const struct sk_item *items, uint32_t n,
		 uint64_t most, struct sk_err *err)
{
	uint64_t visits = VISITS_FREE;
	int r = 0;

	l->items = calloc(n + 1u, sizeof(*l->items));
	l->priv = calloc(1, sizeof(*l->priv));
	if (!l->items || !l->priv)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	l->priv->header_most = most;
	for (uint32_t i = 0; i < n && r >= 0; i++, l->n_items = i)
		r = copy_item(l, &items[i], &l->items[i], &visits, err);
	if (r >= 0)
		r = sk_layout_index_items(l, err);
	if (r >= 0)
		r = sk_layout_finish(l, err);
	if (r >= 0)
		r = sk_layout_index_entries(l, err);
	if (r < 0)
		return r;
	l->priv->memory = measure(l);
	return 0;
}

int sk_layout_new_within(const char *job, int32_t rank, int32_t world,
			 enum sk_image_kind kind, struct sk_nodes *nodes,
			 const struct sk_item *items, uint32_t n_items,
			 uint64_t most, struct sk_layout **ret_layout,
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
	l->nodes = sk_nodes_ref(nodes);
	r = build(l, items, n_items, most, err);
	if (r < 0) {
		sk_layout_free(l);
		return r;
	}
	*ret_layout = l;
	return 0;
}

int sk_layout_new(const char *job, int32_t rank, int32_t world,
		  enum sk_image_kind kind, const struct sk_item *items,
		  uint32_t n_items, struct sk_layout **ret_layout,
		  struct sk_err *err)
{
	return sk_layout_new_within(job, rank, world, kind, NULL, items,
				    n_items, 0, ret_layout, err);
}

int sk_layout_new_over(const char *job, int32_t rank, int32_t world,
		       enum sk_image_kind kind, struct sk_nodes *nodes,
		       const struct sk_item *items, uint32_t n_items,
		       struct sk_layout **ret_layout, struct sk_err *err)
{
	return sk_layout_new_within(job, rank, world, kind, nodes, items,
				    n_items, 0, ret_layout, err);
}

struct sk_layout *sk_layout_ref(struct sk_layout *l)
{
	atomic_fetch_add(&l->priv->extra_refs, 1);
	return l;
}

static struct sk_layout *sketch_free(struct sk_layout *l)
{
	sk_layout_free(l->priv->base);
	free(l->entries);
	free((char *)l->header);
	free(l->priv->sums_at);
	sk_table_free(&l->priv->entries);
	free(l->priv->locals);
	free(l->priv);
	free(l);
	return NULL;
}

struct sk_layout *sk_layout_free(struct sk_layout *l)
{
	if (!l)
		return NULL;
	/* 0 extra wraps to the largest value: that was the last one. */
	if (l->priv && atomic_fetch_sub(&l->priv->extra_refs, 1) != 0)
		return NULL;
	if (l->priv && l->priv->base)
		return sketch_free(l);
	/* One more than were finished: copying may have failed half-way. */
	for (uint32_t i = 0; l->items && i <= l->n_items; i++) {
		free((char *)l->items[i].spec.name);
		sk_mesh_unref((struct sk_mesh *)l->items[i].spec.mesh);
		free(l->items[i].boxes);
	}
	free(l->items);
	free(l->entries);
	free((char *)l->header);
	sk_nodes_unref(l->nodes);
	if (l->priv) {
		free(l->priv->sums_at);
		free(l->priv->boxes);
		sk_table_free(&l->priv->entries);
		sk_table_free(&l->priv->items);
		free(l->priv);
	}
	free(l);
	return NULL;
}
