/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a layout back. Only the description is taken from the file: the
 * layout is computed from it anew, and its header must be the file's, byte
 * for byte. So no offset or size that a file states is ever believed.
 */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "tensor/dtype.h"
#include "layout/private.h"
#include "base/util.h"

struct parse {
	char *text;		/* of the description, or NULL */
	char *items_text;	/* in it: its items, read without JSON */
	struct sk_mesh **meshes;
	size_t n_meshes;
	struct sk_nodes *nodes;
	struct sk_item *items;
	size_t n_items;
	uint64_t bytes;		/* of the header */
	struct sk_err *err;
};

static int bad(struct parse *p, const char *what)
{
	return sk_err_set(p->err, -EBADMSG, "the header is damaged: %s", what);
}

static bool get_i64(const json_t *object, const char *key, int64_t *ret)
{
	const json_t *v = json_object_get(object, key);

	if (!json_is_integer(v))
		return false;
	*ret = json_integer_value(v);
	return true;
}

/* An array of exactly or at most @room integers; -1 if it is not one. */
static int get_ints(const json_t *array, int64_t *ret, size_t room)
{
	size_t n = json_array_size(array);

	if (!json_is_array(array) || n > room)
		return -1;
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(array, i);

		if (!json_is_integer(v))
			return -1;
		ret[i] = json_integer_value(v);
	}
	return (int)n;
}

/* ---- meshes ---- */

static int32_t *get_ranks(const json_t *array)
{
	size_t n = json_array_size(array);
	int32_t *ranks = malloc((n ? n : 1) * sizeof(*ranks));

	for (size_t i = 0; ranks && i < n; i++) {
		const json_t *v = json_array_get(array, i);
		json_int_t k = json_is_integer(v) ? json_integer_value(v) : -1;

		ranks[i] = k >= 0 && k <= INT32_MAX ? (int32_t)k : -1;
	}
	return ranks;
}

static bool get_steps(const json_t *object, struct sk_steps *ret)
{
	const json_t *list = json_object_get(object, "steps");
	size_t n = json_array_size(list);
	int64_t first, pair[2];

	if (!json_is_array(list) || n > SK_STEPS_MAX ||
	    !get_i64(object, "first", &first) || first < 0 ||
	    first > INT32_MAX)
		return false;
	ret->first = (int32_t)first;
	ret->n = (int)n;
	for (size_t i = 0; i < n; i++) {
		if (get_ints(json_array_get(list, n - 1 - i), pair, 2) != 2)
			return false;
		ret->v[i] = (struct sk_step){ pair[0], pair[1] };
	}
	return true;
}

static int parse_mesh(struct parse *p, const json_t *object,
		      struct sk_mesh **ret)
{
	const json_t *ranks = json_object_get(object, "ranks");
	bool has_steps = json_object_get(object, "steps") != NULL;
	const json_t *names = json_object_get(object, "names");
	const char *name[SK_MAX_DIMS] = { 0 };
	int64_t shape[SK_MAX_DIMS], count = 1;
	_cleanup_free_ int32_t *list = NULL;
	struct sk_steps steps;
	int ndim = get_ints(json_object_get(object, "shape"), shape,
			    SK_MAX_DIMS), r;

	if (ndim < 1 || (names && json_array_size(names) != (size_t)ndim))
		return bad(p, "a mesh has no shape");
	for (int d = 0; d < ndim; d++)
		if (shape[d] < 1 ||
		    __builtin_mul_overflow(count, shape[d], &count))
			return bad(p, "a mesh has a bad shape");
	if (ranks && json_array_size(ranks) != (size_t)count)
		return bad(p, "a mesh has other ranks than its shape");
	for (int d = 0; names && d < ndim; d++)
		name[d] = json_string_value(json_array_get(names, (size_t)d));
	if (has_steps && !get_steps(object, &steps))
		return bad(p, "a mesh has steps that are none");
	list = ranks ? get_ranks(ranks) : NULL;
	if (ranks && !list)
		return sk_err_set(p->err, -ENOMEM, "out of memory");
	r = has_steps ? sk_mesh_new_steps(ndim, shape, &steps,
					  names ? name : NULL, ret, p->err) :
			sk_mesh_new(ndim, shape, list, names ? name : NULL,
				    ret, p->err);
	return r == -EINVAL ? -EBADMSG : r;
}

static int parse_meshes(struct parse *p, const json_t *array)
{
	size_t n = json_array_size(array);
	int r = 0;

	if (!json_is_array(array))
		return bad(p, "no mesh table");
	p->meshes = calloc(n + 1, sizeof(*p->meshes));
	if (!p->meshes)
		return sk_err_set(p->err, -ENOMEM, "out of memory");
	for (; p->n_meshes < n && r >= 0; p->n_meshes += r >= 0)
		r = parse_mesh(p, json_array_get(array, p->n_meshes),
			       &p->meshes[p->n_meshes]);
	return r;
}

/* Of a version that tells them. */
static int parse_nodes(struct parse *p, const json_t *array, int32_t world)
{
	size_t n = json_array_size(array), got = 0;
	_cleanup_free_ struct sk_mesh **meshes = NULL;
	int r = 0;

	if (!json_is_array(array) || !n)
		return bad(p, "no table of nodes");
	meshes = calloc(n, sizeof(*meshes));
	if (!meshes)
		return sk_err_set(p->err, -ENOMEM, "out of memory");
	for (; got < n && r >= 0; got += r >= 0)
		r = parse_mesh(p, json_array_get(array, got), &meshes[got]);
	if (r >= 0)
		r = sk_nodes_of_meshes(meshes, n, world, &p->nodes, p->err);
	while (got)
		sk_mesh_unref(meshes[--got]);
	return r == -EINVAL ? -EBADMSG : r;
}

/* ---- items ---- */

static int parse_placements(struct parse *p, const json_t *object,
			    struct sk_spec *spec)
{
	const json_t *list = json_object_get(object, "placements");
	int64_t mesh;

	if (!json_object_get(object, "mesh"))
		return 0;
	if (!get_i64(object, "mesh", &mesh) || mesh < 0 ||
	    (uint64_t)mesh >= p->n_meshes)
		return bad(p, "a tensor of a mesh that is not there");
	spec->mesh = p->meshes[mesh];
	if (json_array_size(list) != (size_t)sk_mesh_ndim(spec->mesh))
		return bad(p, "a tensor without its placements");
	for (int m = 0; m < sk_mesh_ndim(spec->mesh); m++) {
		const char *text = json_string_value(
			json_array_get(list, (size_t)m));

		if (!text || sk_placement_parse(text, &spec->placements[m],
						NULL) < 0)
			return bad(p, "a placement that is none");
	}
	return 0;
}

static int parse_boxes(struct parse *p, const json_t *array,
		       struct sk_item *item)
{
	size_t n = json_array_size(array);

	if (!json_is_array(array) || n > INT32_MAX)
		return bad(p, "a tensor without boxes");
	item->boxes = calloc(n + 1, sizeof(*item->boxes));
	if (!item->boxes)
		return sk_err_set(p->err, -ENOMEM, "out of memory");
	item->n_boxes = (int)n;
	for (size_t b = 0; b < n; b++) {
		const json_t *pair = json_array_get(array, b);
		struct sk_box *box = &item->boxes[b];

		if (get_ints(json_array_get(pair, 0), box->offset,
			     SK_MAX_DIMS) != item->spec.ndim ||
		    get_ints(json_array_get(pair, 1), box->size,
			     SK_MAX_DIMS) != item->spec.ndim)
			return bad(p, "a box of other dimensions");
	}
	return 0;
}

static int kind_from_name(const char *name)
{
	for (int k = SK_ITEM_TENSOR; k <= SK_ITEM_BLOB_LOCAL; k++)
		if (!strcmp(name, sk_item_kind_name((enum sk_item_kind)k)))
			return k;
	return -1;
}

static int parse_item(struct parse *p, const json_t *object,
		      struct sk_item *item)
{
	const char *name = json_string_value(json_object_get(object, "name"));
	const char *kind = json_string_value(json_object_get(object, "kind"));
	const char *dtype = json_string_value(json_object_get(object,
							      "dtype"));
	int k = kind ? kind_from_name(kind) : -1, r;

	if (!name || k < 0 || !dtype)
		return bad(p, "a tensor without name, kind or dtype");
	item->kind = (enum sk_item_kind)k;
	item->spec.name = name;
	item->spec.dtype = sk_dtype_from_name(dtype);
	item->spec.ndim = get_ints(json_object_get(object, "shape"),
				   item->spec.shape, SK_MAX_DIMS);
	item->explicit_boxes = json_is_true(json_object_get(object,
							    "explicit"));
	if (item->spec.ndim < 0)
		return bad(p, "a tensor without shape");
	r = parse_placements(p, object, &item->spec);
	if (r < 0)
		return r;
	/* The others follow; if the file says otherwise, its header is not
	 * the one that is computed. */
	return item->explicit_boxes ?
	       parse_boxes(p, json_object_get(object, "boxes"), item) : 0;
}

static int parse_items(struct parse *p, const json_t *array)
{
	size_t n = json_array_size(array);
	int r = 0;

	if (!json_is_array(array) || n > SK_ITEMS_MAX)
		return bad(p, "no list of tensors");
	p->items = calloc(n + 1, sizeof(*p->items));
	if (!p->items)
		return sk_err_set(p->err, -ENOMEM, "out of memory");
	for (; p->n_items < n && r >= 0; p->n_items++)
		r = parse_item(p, json_array_get(array, p->n_items),
			       &p->items[p->n_items]);
	return r;
}

/* ---- the whole ---- */

static int rebuild(struct parse *p, const json_t *root,
		   struct sk_layout **ret)
{
	const char *job = json_string_value(json_object_get(root, "job"));
	const char *kind = json_string_value(json_object_get(root, "kind"));
	int64_t rank, world, version;
	int r;

	if (!get_i64(root, "version", &version))
		return bad(p, "no version");
	if (version != SK_FORMAT_VERSION && version != SK_FORMAT_VERSION_NODES)
		return sk_err_set(p->err, -EBADMSG, "the image is of format "
				  "version %lld, this program reads %d and %d",
				  (long long)version, SK_FORMAT_VERSION,
				  SK_FORMAT_VERSION_NODES);
	if (!job || !kind || !get_i64(root, "rank", &rank) ||
	    !get_i64(root, "world", &world) || rank < 0 ||
	    rank > INT32_MAX || world < 0 || world > INT32_MAX)
		return bad(p, "job, rank, world or kind");
	r = parse_meshes(p, json_object_get(root, "meshes"));
	if (r >= 0 && version == SK_FORMAT_VERSION_NODES)
		r = parse_nodes(p, json_object_get(root, "nodes"),
				(int32_t)world);
	if (r < 0)
		return r;
	if (p->items_text &&
	    !sk_items_read(p->items_text, p->meshes, p->n_meshes, &p->items,
			   &p->n_items))
		return -ENOMSG;
	if (!p->items_text)
		r = parse_items(p, json_object_get(root, "items"));
	if (r < 0)
		return r;
	r = sk_layout_new_within(job, (int32_t)rank, (int32_t)world,
				 strcmp(kind, "replica") ? SK_IMAGE_PRIMARY :
							   SK_IMAGE_REPLICA,
				 p->nodes, p->items, (uint32_t)p->n_items,
				 p->bytes, ret, p->err);
	return r < 0 && r != -ENOMEM ? -EBADMSG : r;
}

static void parse_free(struct parse *p)
{
	for (size_t i = 0; i < p->n_meshes; i++)
		sk_mesh_unref(p->meshes[i]);
	sk_items_free(p->items, p->n_items);
	sk_nodes_unref(p->nodes);
	free(p->meshes);
	free(p->text);
	*p = (struct parse){ .bytes = p->bytes, .err = p->err };
}

/* @s moved past @text if it begins so, else NULL. */
static const char *past(const char *s, const char *end, const char *text)
{
	size_t n = strlen(text);

	if (!s || (size_t)(end - s) < n || memcmp(s, text, n) != 0)
		return NULL;
	return s + n;
}

/* Where @text begins in [@s, @end), NULL if it does not. */
static const char *find(const char *s, const char *end, const char *text)
{
	return s ? memmem(s, (size_t)(end - s), text, strlen(text)) : NULL;
}

/*
 * The description in a header as we write them, up to its items' end, without
 * reading the rest as JSON: that is computed anew and compared in any case.
 * Within a string a quote has a backslash before it, never a comma, and within
 * a name of the string in the string another two: so both borders are what
 * they look like. A copy for the caller to free, without escapes; NULL where
 * the header is written otherwise.
 */
static char *cut_description(const char *header, uint64_t bytes)
{
	const char *end = header + bytes, *stop;
	const char *s = past(header + 8, end, SK_HEADER_BEGIN);
	char *text, *w;

	s = past(find(s, end, SK_HEADER_MIDDLE), end, SK_HEADER_MIDDLE);
	stop = find(s, end, "],\\\"entries\\\":[");
	text = w = stop ? malloc((size_t)(stop - s) + 3) : NULL;
	if (!text)
		return NULL;
	/* Each letter is written, and written over where it was an escape: no
	 * letter waits for what the one before it was. */
	for (bool escaped = false; s < stop; s++) {
		*w = *s;
		escaped = *s == '\\' && !escaped;
		w += !escaped;
	}
	strcpy(w, "]}");
	return text;
}

/* No memory is no damage: a whole image would be set aside for it. */
static int explain_json(const json_error_t *e, const char *what,
			struct sk_err *err)
{
	enum json_error_code code = json_error_code(e);

	/* Whatever is wrong with a text has a code of its own. */
	if (code == json_error_unknown || code == json_error_out_of_memory)
		return sk_err_set(err, -ENOMEM, "no memory to read %s", what);
	return sk_err_set(err, -EBADMSG, "%s is not JSON: %s", what, e->text);
}

/* The string __metadata__.shardkeep of any safetensors header. */
static int search_description(const char *header, uint64_t bytes, char **ret,
			      struct sk_err *err)
{
	json_error_t e = { 0 };
	json_t *outer = json_loadb(header + 8, bytes - 8,
				   JSON_REJECT_DUPLICATES, &e);
	const char *text;
	int r = 0;

	if (!outer)
		return explain_json(&e, "the header", err);
	text = json_string_value(json_object_get(
		json_object_get(outer, "__metadata__"), "shardkeep"));
	*ret = text ? strdup(text) : NULL;
	if (!text)
		r = sk_err_set(err, -ENODATA, "the file is not of Shardkeep");
	else if (!*ret)
		r = sk_err_set(err, -ENOMEM, "out of memory");
	json_decref(outer);
	return r;
}

static int load_description(const char *header, uint64_t bytes, json_t **ret,
			    struct sk_err *err)
{
	_cleanup_free_ char *text = cut_description(header, bytes);
	json_error_t e = { 0 };
	int r = 0;

	if (!text)
		r = search_description(header, bytes, &text, err);
	if (r < 0)
		return r;
	*ret = json_loads(text, JSON_REJECT_DUPLICATES, &e);
	return *ret ? 0 : explain_json(&e, "the header's shardkeep", err);
}

/* The description without its items, which are kept as text. NULL where it is
 * not as we write it. */
static json_t *load_head(struct parse *p, const char *header, uint64_t bytes)
{
	static const char list[] = ",\"items\":[";
	char *cut;

	p->text = cut_description(header, bytes);
	cut = p->text ? strstr(p->text, list) : NULL;
	if (!cut)
		return NULL;
	p->items_text = cut + strlen(list);
	strcpy(cut, "}");
	return json_loads(p->text, JSON_REJECT_DUPLICATES, NULL);
}

/* -ENOMSG where it is not as we write it: to be read as any JSON. */
static int parse_ours(struct parse *p, const char *header, uint64_t bytes,
		      struct sk_layout **ret)
{
	json_t *root = load_head(p, header, bytes);
	int r = root ? rebuild(p, root, ret) : -ENOMSG;

	json_decref(root);
	parse_free(p);
	return r;
}

static int parse_any(struct parse *p, const char *header, uint64_t bytes,
		     struct sk_layout **ret)
{
	json_t *root = NULL;
	int r = load_description(header, bytes, &root, p->err);

	if (r >= 0)
		r = rebuild(p, root, ret);
	json_decref(root);
	parse_free(p);
	return r;
}

static int same_header(const struct sk_layout *l, const void *header,
		       uint64_t bytes, struct sk_err *err)
{
	struct sk_stamp stamp = { 0 };
	int r;

	if (l->header_bytes != bytes)
		return sk_err_set(err, -EBADMSG, "the header is damaged: it "
				  "is not what its description gives");
	r = sk_layout_check(l, header, &stamp, err);
	return r < 0 ? r : 0;
}

int sk_layout_parse(const void *header, size_t size, uint64_t image_bytes,
		    struct sk_layout **ret_layout, struct sk_err *err)
{
	_cleanup_layout_ struct sk_layout *layout = NULL;
	struct parse p = { .err = err };
	uint64_t bytes;
	int r;

	if (size < 8)
		return sk_err_set(err, -EBADMSG, "%zu bytes are no header",
				  size);
	r = sk_header_bytes(header, &bytes, err);
	if (r < 0)
		return r;
	if (bytes > size)
		return sk_err_set(err, -EBADMSG, "the header is cut short: "
				  "%zu of %llu bytes", size,
				  (unsigned long long)bytes);
	p.bytes = bytes;
	r = parse_ours(&p, header, bytes, &layout);
	if (r == -ENOMSG)
		r = parse_any(&p, header, bytes, &layout);
	if (r >= 0)
		r = same_header(layout, header, bytes, err);
	if (r < 0)
		return r;
	if (image_bytes && image_bytes != layout->image_bytes)
		return sk_err_set(err, -EBADMSG, "the image has %llu bytes, "
				  "its header describes %llu",
				  (unsigned long long)image_bytes,
				  (unsigned long long)layout->image_bytes);
	*ret_layout = sk_take_ptr(layout);
	return 0;
}
