/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names: those of the snapshot, those that this rank asks for, and what is
 * missing on either side. Ranks may have different sets of names.
 */
#include "restore/keys.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/table.h"
#include "bytes/checksum.h"
#include "restore/images.h"
#include "restore/open.h"
#include "state/local.h"
#include "state/names.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

static int no_memory(struct sk_restoring *rs)
{
	return sk_err_set(&rs->err, -ENOMEM, "no memory for the names of a "
			  "snapshot (%u so far)", rs->n_keys);
}

/* Of no seed: ranks compare the hashes of their names. */
static uint64_t hash_of(enum sk_item_kind kind, const char *name)
{
	return sk_xxh3(name, strlen(name)) * 3 + kind;
}

/* ---- the index ---- */

static bool is_called(const struct sk_item *a, enum sk_item_kind kind,
		      const char *name)
{
	return a->kind == kind && !strcmp(a->spec.name, name);
}

uint64_t sk_restore_key_hash(const struct sk_restore_key *key)
{
	return hash_of(key->item->kind, key->item->spec.name);
}

/* Where all that is asked for lies in its place, nobody has looked for any. */
static int make_table(struct sk_restoring *rs)
{
	for (uint32_t i = (uint32_t)rs->key_table.count; i < rs->n_keys; i++)
		if (sk_table_add(&rs->key_table,
				 sk_restore_key_hash(&rs->keys[i]), i) < 0)
			return no_memory(rs);
	return 0;
}

struct sk_restore_key *sk_restore_key(const struct sk_restoring *rs,
				      enum sk_item_kind kind,
				      const char *name)
{
	struct sk_table_walk walk = sk_table_find(&rs->key_table,
						  hash_of(kind, name));
	uintptr_t i;

	assert(rs->key_table.count == rs->n_keys);
	while (sk_table_next(&walk, &i)) {
		struct sk_restore_key *k = &rs->keys[i];

		assert(i < rs->n_keys);
		if (is_called(k->item, kind, name))
			return k;
	}
	return NULL;
}

bool sk_restore_is_registered_as(const struct sk_restoring *rs, uint32_t i,
				 const struct sk_item *item)
{
	const struct sk_layout *l = rs->state->layouts[0];

	return l && !rs->state->changed && i < l->n_items &&
	       item == &l->items[i] && i < rs->state->n_locals;
}

/* What the rank is registered by is mostly the very layout that told the
 * names: then no name has to be looked at. */
static bool is_registered_as(const struct sk_restoring *rs, uint32_t i,
			     const struct sk_item *item)
{
	return i < rs->n_keys &&
	       sk_restore_is_registered_as(rs, i, rs->keys[i].item) &&
	       item == &rs->state->locals[i].item;
}

/* Mostly all is described in the order in which it was saved: then it is in
 * its place, and no name has to be hashed. */
static struct sk_restore_key *in_place(const struct sk_restoring *rs,
				       uint32_t i, const struct sk_item *item)
{
	if (is_registered_as(rs, i, item))
		return &rs->keys[i];
	return i < rs->n_keys && is_called(rs->keys[i].item, item->kind,
					   item->spec.name) ?
	       &rs->keys[i] : NULL;
}

struct sk_restore_key *sk_restore_key_of(const struct sk_restoring *rs,
					 uint32_t local)
{
	const struct sk_item *item;
	struct sk_restore_key *key;

	assert(local < rs->state->n_locals);
	item = &rs->state->locals[local].item;
	key = in_place(rs, local, item);
	return key ? key : sk_restore_key(rs, item->kind, item->spec.name);
}

static int append_key(struct sk_restoring *rs, struct sk_restore_key key)
{
	if (sk_array_fit(rs->keys, rs->room_keys, rs->n_keys + 1u) < 0)
		return no_memory(rs);
	rs->keys[rs->n_keys++] = key;
	return 0;
}

static int find_known(struct sk_restoring *rs, uint32_t i,
		      const struct sk_item *item, struct sk_restore_key **ret)
{
	int r = 0;

	*ret = in_place(rs, i, item);
	if (*ret)
		return 0;
	r = make_table(rs);
	if (r >= 0)
		*ret = sk_restore_key(rs, item->kind, item->spec.name);
	return r;
}

/* One of a layout's items: known already, or a new one. No layout has two of
 * one name: of the @first, all are new. */
static int index_item(struct sk_restoring *rs, uint32_t i,
		      const struct sk_item *item, bool mine, bool first)
{
	struct sk_restore_key *known = NULL;
	int r = first ? 0 : find_known(rs, i, item, &known);

	if (r < 0)
		return r;
	if (known) {
		known->is_explicit |= item->explicit_boxes;
		return 0;
	}
	return append_key(rs, (struct sk_restore_key){
		.item = item,
		.mine = mine,
		.is_explicit = item->explicit_boxes,
	});
}

static int index_layout(struct sk_restoring *rs,
			const struct sk_layout *layout, bool mine)
{
	bool first = !rs->n_keys;
	int r = 0;

	for (uint32_t i = 0; i < layout->n_items && r >= 0; i++)
		r = index_item(rs, i, &layout->items[i], mine, first);
	/* Ranks of several nodes have told each other one of it before. */
	if (r >= 0 && !sk_restore_described(rs, layout->description))
		r = sk_restore_learn(rs, layout);
	if (r >= 0)
		sk_restore_description(rs, layout->description)->indexed =
			true;
	return r;
}

/* Our own layout tells the names where theirs are the same. */
static const struct sk_layout *ours(const struct sk_restoring *rs,
				    const struct sk_restore_image *image)
{
	const struct sk_layout *l = rs->state->layouts[0];

	return l && l->description == image->description ? l : NULL;
}

static bool is_indexed(const struct sk_restoring *rs, uint64_t description)
{
	const struct sk_restore_description *d =
		sk_restore_description(rs, description);

	return d && d->indexed;
}

/* The names of an image, unless another one of its description told them. */
static int index_image(struct sk_restoring *rs, uint32_t image)
{
	const struct sk_restore_image *i = &rs->images[image];
	bool mine = i->rank == rs->state->job.rank;
	int r;

	assert(image < rs->n_images);
	if (is_indexed(rs, i->description))
		return 0;
	if (!mine && ours(rs, i))
		return index_layout(rs, ours(rs, i), false);
	r = sk_restore_know(rs, image);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	return index_layout(rs, i->layout, mine);
}

/* Where one cannot be read, others of its description may have told. */
static void note_unlearnt(struct sk_restoring *rs)
{
	rs->unlearnt = NULL;
	for (uint32_t i = 0; i < rs->n_images && !rs->unlearnt; i++)
		if (!is_indexed(rs, rs->images[i].description))
			rs->unlearnt = &rs->images[i];
}

/* So that nothing that this rank has described is looked for. */
static bool are_in_place(const struct sk_restoring *rs)
{
	bool all = !rs->names;

	for (uint32_t i = 0; i < rs->state->n_locals && all; i++)
		all = in_place(rs, i, &rs->state->locals[i].item);
	return all;
}

int sk_restore_index(struct sk_restoring *rs)
{
	uint32_t own = sk_restore_first_of(rs, rs->state->job.rank);
	int r = 0;

	assert(!rs->n_keys && !rs->key_table.count);
	/* What the rank of our number had describes best what we want. */
	for (uint32_t i = 0; i < rs->n_images && r >= 0; i++)
		r = index_image(rs, (own + i) % rs->n_images);
	note_unlearnt(rs);
	return r < 0 || are_in_place(rs) ? r : make_table(rs);
}

void sk_restore_forget_keys(struct sk_restoring *rs)
{
	free(rs->keys);
	sk_table_free(&rs->key_table);
	free(rs->missing);
	rs->keys = NULL;
	rs->room_keys = rs->n_keys = 0;
	rs->unlearnt = NULL;
	rs->missing = NULL;
	rs->missing_bytes = rs->missing_room = 0;
	rs->missing_more = false;
}

/* ---- what this rank asks for ---- */

int sk_restore_wanted(struct sk_restoring *rs)
{
	uint32_t n = rs->state->n_locals;

	free(rs->wanted);
	rs->wanted = calloc(n ? n : 1, sizeof(*rs->wanted));
	if (!rs->touched)
		rs->touched = calloc(n ? n : 1, sizeof(*rs->touched));
	if (!rs->wanted || !rs->touched)
		return no_memory(rs);
	for (uint32_t i = 0; i < n; i++)
		rs->wanted[i] = !rs->names;
	for (size_t i = 0; rs->names && i < rs->n_names; i++) {
		int64_t at;
		int r;

		if (!rs->names[i])
			return sk_err_set(&rs->err, -EINVAL, "name %zu of %zu "
					  "to restore is a null pointer", i,
					  rs->n_names);
		/* What cannot be a name is not told to others as one. */
		r = sk_local_check_name(&rs->state->job, rs->names[i],
					"tensor to restore", &rs->err);
		if (r < 0)
			return sk_err_prefix(&rs->err, r, "name %zu of %zu", i,
					     rs->n_names);
		at = sk_state_find(rs->state, rs->names[i]);
		if (at >= 0)
			rs->wanted[at] = true;
	}
	return 0;
}

int sk_restore_note_missing(struct sk_restoring *rs, const char *name)
{
	size_t bytes = strlen(name) + 1;

	rs->missing_more |= rs->missing_bytes + bytes > SK_NAMES_MAX;
	if (rs->missing_more)
		return 0;
	if (sk_array_fit(rs->missing, rs->missing_room,
			 rs->missing_bytes + bytes) < 0)
		return no_memory(rs);
	memcpy(rs->missing + rs->missing_bytes, name, bytes);
	rs->missing_bytes += bytes;
	return 0;
}

static void format_spec(const struct sk_spec *s, char *buf, size_t size)
{
	const char *name = sk_dtype_name(s->dtype);
	size_t at = 0;
	int n;

	n = snprintf(buf, size, "%s [", name ? name : "?");
	for (int d = 0; d < s->ndim && n > 0 && at + (size_t)n < size; d++) {
		at += (size_t)n;
		n = snprintf(buf + at, size - at, "%s%" PRId64, d ? ", " : "",
			     s->shape[d]);
	}
	at += n > 0 ? (size_t)n : 0;
	if (at < size)
		(void)snprintf(buf + at, size - at, "]");
}

static bool same_shape(const struct sk_spec *a, const struct sk_spec *b)
{
	return a->dtype == b->dtype && a->ndim == b->ndim &&
	       !memcmp(a->shape, b->shape,
		       (size_t)a->ndim * sizeof(a->shape[0]));
}

static int check_spec(struct sk_restoring *rs, const struct sk_item *mine,
		      const struct sk_item *theirs)
{
	char a[128], b[128];

	if (same_shape(&mine->spec, &theirs->spec))
		return 0;
	if (mine->kind != SK_ITEM_TENSOR)
		return sk_err_set(&rs->err, -EINVAL, "blob \"%.100s\" has %"
				  PRId64 " bytes in the snapshot and %" PRId64
				  " here", mine->spec.name,
				  theirs->spec.shape[0], mine->spec.shape[0]);
	format_spec(&theirs->spec, a, sizeof(a));
	format_spec(&mine->spec, b, sizeof(b));
	return sk_err_set(&rs->err, -EINVAL, "tensor \"%.100s\" is %s in the "
			  "snapshot and %s here; restore it as it was saved, "
			  "and convert it then", mine->spec.name, a, b);
}

/* All at once, as a snapshot does, costs little; what is not wanted may be
 * gone, and then each that is wanted is asked about. */
static bool are_gpus_fine(struct sk_restoring *rs)
{
	uint32_t used;

	return !rs->state->gpus.n ||
	       sk_gpus_check(rs->state, &used, NULL) >= 0;
}

static int check_target(struct sk_restoring *rs, const struct sk_local *local)
{
	char text[128];

	for (int i = 0; i < local->item.n_boxes; i++) {
		const struct sk_part *p = &local->parts[i];

		if (sk_box_empty(local->item.spec.ndim, &p->box))
			continue;
		if (!p->data)
			return sk_err_set(&rs->err, -EINVAL, "tensor \"%.100s\""
					  " has no memory for %s of it; leave "
					  "it out by naming the others",
					  local->item.spec.name,
					  sk_box_format(local->item.spec.ndim,
							&p->box, text,
							sizeof(text)));
	}
	return rs->gpus_fine ? 0 : sk_gpu_check(rs->state, local, &rs->err);
}

/* Whether a name is missing, or nobody can tell. */
static int check_learnt(struct sk_restoring *rs)
{
	return !rs->unlearnt ? 0 :
	       sk_err_set(&rs->err, -ENODATA, "what rank %" PRId32
			  " saved at step %" PRId64 " of run %" PRIu64
			  " cannot be told: no image that describes it can be "
			  "read", rs->unlearnt->rank, rs->report.step,
			  rs->report.run);
}

/* What is a rank's own, and lost, may be left alone like what it never saved,
 * where it says so; what any rank may have had may not. */
static bool may_be_lost(const struct sk_restoring *rs,
			const struct sk_item *item)
{
	return rs->n_lost && (item->kind != SK_ITEM_BLOB_LOCAL ||
			      (rs->state->job.rank < rs->world &&
			       !(rs->flags & SK_RESTORE_MISSING_OK)));
}

static int say_lost(struct sk_restoring *rs, const char *name)
{
	return sk_err_set(&rs->err, -ENODATA, "\"%.100s\" of step %" PRId64
			  " of run %" PRIu64 " may have gone with %" PRId32
			  " ranks that have no image, rank %" PRId32 " first; "
			  "if it is new, restore without it first", name,
			  rs->report.step, rs->report.run, rs->n_lost,
			  rs->first_lost);
}

/* What a damaged snapshot left in a tensor must not stay there. */
static int compare_missing(struct sk_restoring *rs, uint32_t i)
{
	const struct sk_item *item = &rs->state->locals[i].item;

	int r = check_learnt(rs);

	assert(i < rs->state->n_locals);
	if (r < 0)
		return r;
	if (rs->touched[i])
		return sk_err_set(&rs->err, -EBADMSG, "\"%.100s\" was "
				  "overwritten from a damaged snapshot, and "
				  "this older one lacks it", item->spec.name);
	if (may_be_lost(rs, item))
		return say_lost(rs, item->spec.name);
	rs->report.missing++;
	if (item->kind == SK_ITEM_BLOB_LOCAL)
		return 0;
	return sk_restore_note_missing(rs, item->spec.name);
}

/* The rank of our number has images, and none of them can be read. */
static bool is_mine_unread(const struct sk_restoring *rs)
{
	int32_t rank = rs->state->job.rank;
	bool unread = false;

	for (uint32_t i = sk_restore_first_of(rs, rank);
	     i < rs->n_images && rs->images[i].rank == rank; i++) {
		if (rs->images[i].layout)
			return false;
		unread = true;
	}
	return unread;
}

/* A local blob that other ranks have alone; but ours may just be unread. */
static int compare_foreign(struct sk_restoring *rs, uint32_t i)
{
	if (!is_mine_unread(rs))
		return compare_missing(rs, i);
	return sk_err_set(&rs->err, -ENODATA, "\"%.100s\" of rank %" PRId32
			  " cannot be read",
			  rs->state->locals[i].item.spec.name,
			  rs->state->job.rank);
}

static int compare_local(struct sk_restoring *rs, uint32_t i)
{
	const struct sk_local *local = &rs->state->locals[i];
	struct sk_restore_key *key;
	int r;

	assert(rs->wanted[i]);
	key = sk_restore_key_of(rs, i);
	if (key)
		key->asked = true;
	if (!key)
		return compare_missing(rs, i);
	if (local->item.kind == SK_ITEM_BLOB_LOCAL && !key->mine)
		return compare_foreign(rs, i);
	r = is_registered_as(rs, i, &local->item) && key == &rs->keys[i] ? 0 :
	    check_spec(rs, &local->item, key->item);
	if (r < 0)
		return r;
	rs->report.tensors++;
	return check_target(rs, local);
}

/* Names in the options that are nowhere: a slip of the pen, most likely. */
static int compare_names(struct sk_restoring *rs)
{
	int r = 0;

	for (size_t i = 0; rs->names && i < rs->n_names && r >= 0; i++) {
		const char *name = rs->names[i];

		if (sk_state_find(rs->state, name) >= 0 ||
		    sk_restore_key(rs, SK_ITEM_TENSOR, name) ||
		    sk_restore_key(rs, SK_ITEM_BLOB, name) ||
		    sk_restore_key(rs, SK_ITEM_BLOB_LOCAL, name))
			continue;
		rs->report.missing++;
		r = rs->n_lost ? say_lost(rs, name) : check_learnt(rs);
		if (r >= 0)
			r = sk_restore_note_missing(rs, name);
	}
	return r;
}

int sk_restore_compare(struct sk_restoring *rs)
{
	int r = 0;

	rs->report.tensors = 0;
	rs->report.missing = 0;
	rs->gpus_fine = are_gpus_fine(rs);
	if (!(rs->flags & SK_RESTORE_EXTRA_OK))
		r = check_learnt(rs);
	for (uint32_t i = 0; i < rs->state->n_locals && r >= 0; i++)
		if (rs->wanted[i])
			r = compare_local(rs, i);
	if (r < 0)
		return r;
	return compare_names(rs);
}
