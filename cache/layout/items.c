/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The items of a description, read as header.c writes them. A header has
 * hundreds of bytes per tensor; a tree of JSON of them costs several times
 * what computing the layout does. Nothing that is read here is believed:
 * whatever differs from the form is left to the reader of any JSON, which
 * says what is wrong with it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "layout/private.h"
#include "tensor/dtype.h"

#define DIGITS_MAX 18	/* of what fits in 63 bits for sure */
#define ITEM_LEAST 64	/* letters of one item: so many there are at most, and
			 * room that is not used is no memory yet */

struct reader {
	char *at;		/* in text that ends with a NUL */
	struct sk_mesh *const *meshes;
	size_t n_meshes;
	/* Most tensors are placed as the one before. */
	const char *placed;
	struct sk_placement placement;
	const char *dtype_name;		/* and of its dtype */
	enum sk_dtype dtype;
};

static bool take(struct reader *in, const char *word)
{
	size_t n = strlen(word);

	if (strncmp(in->at, word, n) != 0)
		return false;
	in->at += n;
	return true;
}

/* Of characters that need no escape; ended by a NUL where its quote was. */
static char *take_string(struct reader *in)
{
	char *begin = in->at + 1, *end;

	if (*in->at != '"')
		return NULL;
	end = begin + strcspn(begin, "\"\\");
	if (*end != '"')
		return NULL;
	*end = 0;
	in->at = end + 1;
	return begin;
}

static bool take_int(struct reader *in, int64_t *ret)
{
	const char *begin = in->at;
	int64_t v = 0;

	while (*in->at >= '0' && *in->at <= '9') {
		if (in->at - begin == DIGITS_MAX)
			return false;
		v = 10 * v + (*in->at++ - '0');
	}
	*ret = v;
	return in->at > begin;
}

/* How many there are, -1: no array of at most SK_MAX_DIMS. */
static int take_ints(struct reader *in, int64_t *ret)
{
	int n = 0;

	if (!take(in, "["))
		return -1;
	if (take(in, "]"))
		return 0;
	do {
		if (n == SK_MAX_DIMS || !take_int(in, &ret[n++]))
			return -1;
	} while (take(in, ","));
	return take(in, "]") ? n : -1;
}

static bool take_kind(struct reader *in, enum sk_item_kind *ret)
{
	for (int k = SK_ITEM_TENSOR; k <= SK_ITEM_BLOB_LOCAL; k++) {
		const char *name = sk_item_kind_name((enum sk_item_kind)k);
		size_t n = strlen(name);

		if (strncmp(in->at, name, n) != 0 || in->at[n] != '"')
			continue;
		in->at += n + 1;
		*ret = (enum sk_item_kind)k;
		return true;
	}
	return false;
}

static bool take_placement(struct reader *in, struct sk_placement *ret)
{
	const char *text = take_string(in);

	if (!text)
		return false;
	if (!in->placed || strcmp(in->placed, text) != 0) {
		if (sk_placement_parse(text, &in->placement, NULL) < 0)
			return false;
		in->placed = text;
	}
	*ret = in->placement;
	return true;
}

static bool take_placements(struct reader *in, struct sk_spec *spec)
{
	int64_t mesh;

	if (!take_int(in, &mesh) || (uint64_t)mesh >= in->n_meshes ||
	    !take(in, ",\"placements\":["))
		return false;
	spec->mesh = in->meshes[mesh];
	for (int m = 0; m < sk_mesh_ndim(spec->mesh); m++)
		if ((m && !take(in, ",")) ||
		    !take_placement(in, &spec->placements[m]))
			return false;
	return take(in, "]");
}

static bool take_box(struct reader *in, int ndim, struct sk_box *ret)
{
	return take(in, "[") && take_ints(in, ret->offset) == ndim &&
	       take(in, ",") && take_ints(in, ret->size) == ndim &&
	       take(in, "]");
}

static bool take_boxes(struct reader *in, struct sk_item *item)
{
	size_t room = 0;

	item->explicit_boxes = true;
	if (sk_array_fit(item->boxes, room, 1) < 0)
		return false;
	while (*in->at == '[') {
		size_t n = (size_t)item->n_boxes;

		if (n == INT32_MAX ||
		    sk_array_fit(item->boxes, room, n + 1) < 0 ||
		    !take_box(in, item->spec.ndim, &item->boxes[n]))
			return false;
		item->n_boxes++;
		if (!take(in, ","))
			break;
	}
	return take(in, "]}");
}

/* Boxes that nobody said follow from the rest. */
static bool skip_boxes(struct reader *in)
{
	char *end;

	if (!take(in, ",\"boxes\":["))
		return false;
	end = strchr(in->at, '}');
	if (!end)
		return false;
	in->at = end + 1;
	return true;
}

static enum sk_dtype dtype_of(struct reader *in, const char *name)
{
	if (!in->dtype_name || strcmp(in->dtype_name, name) != 0)
		in->dtype = sk_dtype_from_name(name);
	in->dtype_name = name;
	return in->dtype;
}

static bool take_item(struct reader *in, struct sk_item *item)
{
	struct sk_spec *spec = &item->spec;
	const char *dtype;

	if (!take(in, "{\"name\":"))
		return false;
	spec->name = take_string(in);
	if (!spec->name || !take(in, ",\"kind\":\"") ||
	    !take_kind(in, &item->kind) || !take(in, ",\"dtype\":"))
		return false;
	dtype = take_string(in);
	if (!dtype || !take(in, ",\"shape\":"))
		return false;
	spec->dtype = dtype_of(in, dtype);
	spec->ndim = take_ints(in, spec->shape);
	if (spec->ndim < 0 ||
	    (take(in, ",\"mesh\":") && !take_placements(in, spec)))
		return false;
	return take(in, ",\"explicit\":true,\"boxes\":[") ?
	       take_boxes(in, item) : skip_boxes(in);
}

bool sk_items_read(char *text, struct sk_mesh *const *meshes, size_t n_meshes,
		   struct sk_item **ret_items, size_t *ret_n)
{
	struct reader in = { .at = text, .meshes = meshes,
			     .n_meshes = n_meshes };
	struct sk_item *items = NULL;
	size_t n = 0, room = 0;
	bool good = sk_array_fit(items, room, strlen(text) / ITEM_LEAST +
					      1) >= 0;

	if (good && !take(&in, "]"))
		do {
			good = n < SK_ITEMS_MAX &&
			       sk_array_fit(items, room, n + 1) >= 0;
			if (!good)
				break;
			items[n] = (struct sk_item){ 0 };
			good = take_item(&in, &items[n++]);
		} while (good && take(&in, ","));
	good = good && (!n || take(&in, "]")) && !strcmp(in.at, "}");
	if (good) {
		*ret_items = items;
		*ret_n = n;
		return true;
	}
	sk_items_free(items, n);
	return false;
}

void sk_items_free(struct sk_item *items, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(items[i].boxes);
	free(items);
}
