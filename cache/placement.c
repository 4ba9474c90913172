/* SPDX-License-Identifier: Apache-2.0 */
#include "placement.h"

#include <stdio.h>
#include <string.h>

#include "cuts.h"
#include "dtype.h"
#include "util.h"

#define NAME_MAX_BYTES 1023

void sk_chunk(int64_t n, int64_t k, int64_t i, int64_t *ret_size,
	      int64_t *ret_offset)
{
	/* PyTorch: chunks of ceil(n / k), the last short, further ones empty */
	int64_t c = n / k + (n % k != 0), start;

	if (__builtin_mul_overflow(c, i, &start) || start > n)
		start = n;
	*ret_offset = start;
	*ret_size = sk_min_i64(c, n - start);
}

/* ---- checking ---- */

/* Length of the UTF-8 sequence at @s, 0 if there is none. */
static int utf8_length(const unsigned char *s)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	int n = s[0] < 0x80 ? 1 : (s[0] & 0xe0) == 0xc0 ? 2 :
		(s[0] & 0xf0) == 0xe0 ? 3 : (s[0] & 0xf8) == 0xf0 ? 4 : 0;
	uint32_t code = n < 2 ? s[0] : s[0] & (0x7fu >> n);

	for (int i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (s[i] & 0x3f);
	}
	if (n == 0 || code < least[n] || code > 0x10ffff ||
	    (code >= 0xd800 && code < 0xe000))
		return 0;
	return n;
}

static int check_name(const char *name, struct sk_err *err)
{
	size_t length = name ? strnlen(name, NAME_MAX_BYTES + 1) : 0;

	if (!length)
		return sk_err_set(err, -EINVAL, "a tensor has no name");
	if (length > NAME_MAX_BYTES)
		return sk_err_set(err, -EINVAL, "the name \"%.40s...\" is "
				  "longer than %d bytes", name,
				  NAME_MAX_BYTES);
	for (size_t i = 0; i < length;) {
		int n = utf8_length((const unsigned char *)name + i);

		if (!n || (unsigned char)name[i] < 0x20 || name[i] == 0x7f)
			return sk_err_set(err, -EINVAL, "the name \"%.40s\" "
					  "is not UTF-8, or holds control "
					  "characters, at byte %zu", name, i);
		i += (size_t)n;
	}
	return 0;
}

static int normalize_placement(struct sk_spec *spec, int m,
			       struct sk_err *err)
{
	struct sk_placement *p = &spec->placements[m];

	switch (p->kind) {
	case SK_PLACEMENT_REPLICATE:
		p->dim = 0;
		p->split_factor = 0;
		return 0;
	case SK_PLACEMENT_SHARD:
	case SK_PLACEMENT_STRIDED_SHARD:
		break;
	case SK_PLACEMENT_PARTIAL:
		return sk_err_set(err, -EINVAL, "tensor \"%s\": mesh "
				  "dimension %d is Partial, a pending "
				  "reduction; reduce it before a snapshot",
				  spec->name, m);
	default:
		return sk_err_set(err, -EINVAL, "tensor \"%s\": mesh "
				  "dimension %d has no placement",
				  spec->name, m);
	}
	if (p->dim < -spec->ndim || p->dim >= spec->ndim)
		return sk_err_set(err, -EINVAL, "tensor \"%s\": mesh "
				  "dimension %d shards dimension %d of %d",
				  spec->name, m, p->dim, spec->ndim);
	if (p->dim < 0)
		p->dim += spec->ndim;
	if (p->kind == SK_PLACEMENT_SHARD)
		p->split_factor = 0;
	else if (p->split_factor <= 0)
		return sk_err_set(err, -EINVAL, "tensor \"%s\": mesh "
				  "dimension %d has split factor %lld",
				  spec->name, m,
				  (long long)p->split_factor);
	return 0;
}

int sk_spec_normalize(struct sk_spec *spec, struct sk_err *err)
{
	int64_t count;
	uint64_t bits;
	int r = check_name(spec->name, err);

	if (r < 0)
		return r;
	if (!sk_dtype_bits(spec->dtype))
		return sk_err_set(err, -EINVAL, "tensor \"%s\": dtype %d is "
				  "not known", spec->name, (int)spec->dtype);
	r = sk_shape_count(spec->ndim, spec->shape, &count, err);
	if (r < 0)
		return sk_err_prefix(err, r, "tensor \"%s\"", spec->name);
	if (!sk_mul_u64((uint64_t)count, sk_dtype_bits(spec->dtype), &bits))
		return sk_err_set(err, -EOVERFLOW, "tensor \"%s\" is too "
				  "large", spec->name);
	for (int m = 0; spec->mesh && m < sk_mesh_ndim(spec->mesh); m++) {
		r = normalize_placement(spec, m, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- cuts ---- */

static bool shards(const struct sk_placement *p, int d)
{
	return (p->kind == SK_PLACEMENT_SHARD ||
		p->kind == SK_PLACEMENT_STRIDED_SHARD) && p->dim == d;
}

/*
 * TP first: a strided cut whose factor is the number of pieces that the later
 * mesh dimensions make comes after them, as a plain one. Works from the last
 * mesh dimension to the first, so the later ones are in order already.
 */
static int put_cut(struct sk_cut *cuts, int n, struct sk_cut cut,
		   int64_t later)
{
	if (cut.split == 1) {	/* one chunk: a plain cut */
		cut.split = 0;
	} else if (n && cut.split == later) {
		cut.split = 0;
		cuts[n] = cut;
		return n + 1;
	}
	memmove(&cuts[1], &cuts[0], (size_t)n * sizeof(*cuts));
	cuts[0] = cut;
	return n + 1;
}

int sk_spec_cuts(const struct sk_spec *spec, int d,
		 struct sk_cut ret_cuts[SK_MAX_DIMS])
{
	int64_t later = 1;
	int n = 0;

	for (int m = spec->mesh ? sk_mesh_ndim(spec->mesh) - 1 : -1; m >= 0;
	     m--) {
		const struct sk_placement *p = &spec->placements[m];
		struct sk_cut cut = { .mesh_dim = m, .split = p->split_factor };

		if (!shards(p, d))
			continue;
		cut.pieces = sk_mesh_dim(spec->mesh, m);
		n = put_cut(ret_cuts, n, cut, later);
		later *= cut.pieces;
	}
	return n;
}

/* Appends, joining what is adjacent. */
static int append(struct sk_intervals *out, struct sk_interval piece)
{
	struct sk_interval *last = out->n ? &out->v[out->n - 1] : NULL;

	if (!piece.size)
		return 0;
	out->total += piece.size;
	if (last && last->from + last->size == piece.from) {
		last->size += piece.size;
		return 0;
	}
	if (out->n == SK_INTERVALS_MAX)
		return -E2BIG;
	if (!(out->n & (out->n - 1))) {
		size_t room = out->n ? 2 * (size_t)out->n : 1;
		struct sk_interval *v = realloc(out->v, room * sizeof(*v));

		if (!v)
			return -ENOMEM;
		out->v = v;
	}
	out->v[out->n++] = piece;
	return 0;
}

/* Appends elements [at, at + size) of what @in lists one after another. */
static int append_range(const struct sk_intervals *in, int64_t at,
			int64_t size, struct sk_intervals *out)
{
	int r = 0;

	for (int i = 0; i < in->n && size > 0 && r >= 0; i++) {
		int64_t k;

		if (at >= in->v[i].size) {
			at -= in->v[i].size;
			continue;
		}
		k = sk_min_i64(size, in->v[i].size - at);
		r = append(out, (struct sk_interval){ in->v[i].from + at, k });
		size -= k;
		at = 0;
	}
	return r;
}

int sk_cut_apply(const struct sk_cut *cut, int64_t i,
		 const struct sk_intervals *in, struct sk_intervals *ret_out)
{
	struct sk_intervals out = { 0 };
	int64_t strides = cut->split ? cut->split : 1;
	int r = 0;

	for (int64_t s = 0; s < strides && r >= 0; s++) {
		int64_t size, offset, sub_size, sub_offset;

		sk_chunk(in->total, strides, s, &size, &offset);
		if (!size)
			break;	/* all further chunks are empty */
		sk_chunk(size, cut->pieces, i, &sub_size, &sub_offset);
		r = append_range(in, offset + sub_offset, sub_size, &out);
	}
	if (r < 0) {
		free(out.v);
		return r;
	}
	*ret_out = out;
	return 0;
}

/* What the rank at @coords holds of dimension @d. */
static int hold(const struct sk_spec *spec, int d, const int64_t *coords,
		struct sk_intervals *ret)
{
	struct sk_intervals now = { 0 };
	struct sk_cut cuts[SK_MAX_DIMS];
	int n = sk_spec_cuts(spec, d, cuts), r;

	r = append(&now, (struct sk_interval){ 0, spec->shape[d] });
	for (int c = 0; c < n && r >= 0; c++) {
		struct sk_intervals next;

		r = sk_cut_apply(&cuts[c], coords[cuts[c].mesh_dim], &now,
				 &next);
		if (r < 0)
			break;
		free(now.v);
		now = next;
	}
	if (r < 0) {
		free(now.v);
		return r;
	}
	*ret = now;
	return 0;
}

/* Intervals per dimension to boxes, last dimension fastest. */
static int multiply(const struct sk_spec *spec,
		    const struct sk_intervals held[SK_MAX_DIMS],
		    struct sk_box **ret_boxes, int *ret_n)
{
	struct sk_box *boxes;
	int64_t n = 1;

	for (int d = 0; d < spec->ndim; d++) {
		n *= held[d].n ? held[d].n : 1;
		if (n > SK_INTERVALS_MAX)
			return -E2BIG;
	}
	boxes = calloc((size_t)n, sizeof(*boxes));
	if (!boxes)
		return -ENOMEM;
	for (int64_t i = 0; i < n; i++) {
		int64_t rest = i;

		for (int d = spec->ndim - 1; d >= 0; d--) {
			int64_t k = held[d].n ? held[d].n : 1;
			bool none = !held[d].n;

			/* Of an empty shard the offset is the full size. */
			boxes[i].offset[d] = none ? spec->shape[d] :
					     held[d].v[rest % k].from;
			boxes[i].size[d] = none ? 0 :
					   held[d].v[rest % k].size;
			rest /= k;
		}
	}
	*ret_boxes = boxes;
	/* An empty shard is one box, however often other dimensions are cut. */
	*ret_n = sk_box_empty(spec->ndim, &boxes[0]) ? 1 : (int)n;
	return 0;
}

static int whole(const struct sk_spec *spec, struct sk_box **ret_boxes,
		 int *ret_n)
{
	*ret_boxes = malloc(sizeof(**ret_boxes));
	if (!*ret_boxes)
		return -ENOMEM;
	**ret_boxes = sk_box_whole(spec->ndim, spec->shape);
	*ret_n = 1;
	return 0;
}

int sk_spec_boxes(const struct sk_spec *spec, int32_t rank,
		  struct sk_box **ret_boxes, int *ret_n, struct sk_err *err)
{
	struct sk_intervals held[SK_MAX_DIMS] = { 0 };
	int64_t coords[SK_MAX_DIMS];
	struct sk_box *boxes = NULL;
	int n = 0, r = 0;

	if (!spec->mesh) {
		r = whole(spec, &boxes, &n);
	} else if (sk_mesh_coords(spec->mesh, rank, coords) >= 0) {
		for (int d = 0; d < spec->ndim && r >= 0; d++)
			r = hold(spec, d, coords, &held[d]);
		if (r >= 0)
			r = multiply(spec, held, &boxes, &n);
		for (int d = 0; d < spec->ndim; d++)
			free(held[d].v);
	}
	if (r == -E2BIG)
		return sk_err_set(err, r, "tensor \"%s\": rank %d would hold "
				  "more than %d boxes", spec->name, rank,
				  SK_INTERVALS_MAX);
	if (r < 0)
		return sk_err_set(err, r, "out of memory for the boxes of "
				  "\"%s\"", spec->name);
	*ret_boxes = boxes;
	*ret_n = n;
	return 0;
}

bool sk_spec_same_layout(const struct sk_spec *a, const struct sk_spec *b)
{
	if (a->dtype != b->dtype || a->ndim != b->ndim ||
	    memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(*a->shape)) ||
	    !a->mesh != !b->mesh)
		return false;
	if (!a->mesh)
		return true;
	if (!sk_mesh_equal(a->mesh, b->mesh))
		return false;
	for (int m = 0; m < sk_mesh_ndim(a->mesh); m++) {
		const struct sk_placement *p = &a->placements[m];
		const struct sk_placement *q = &b->placements[m];

		if (p->kind != q->kind || p->dim != q->dim ||
		    p->split_factor != q->split_factor)
			return false;
	}
	return true;
}

char *sk_placement_format(const struct sk_placement *p, char *buf,
			  size_t size)
{
	switch (p->kind) {
	case SK_PLACEMENT_REPLICATE:
		(void)snprintf(buf, size, "R");
		break;
	case SK_PLACEMENT_SHARD:
		(void)snprintf(buf, size, "S(%d)", p->dim);
		break;
	case SK_PLACEMENT_STRIDED_SHARD:
		(void)snprintf(buf, size, "SS(%d,%lld)", p->dim,
			       (long long)p->split_factor);
		break;
	case SK_PLACEMENT_PARTIAL:
		(void)snprintf(buf, size, "P");
		break;
	default:
		(void)snprintf(buf, size, "?");
	}
	return buf;
}

int sk_placement_parse(const char *text, struct sk_placement *ret_p,
		       struct sk_err *err)
{
	struct sk_placement p = { .kind = SK_PLACEMENT_REPLICATE };
	long long split;
	int end = 0;

	if (strcmp(text, "R") == 0) {
		*ret_p = p;
		return 0;
	}
	if (sscanf(text, "S(%d)%n", &p.dim, &end) == 1 && end &&
	    !text[end]) {
		p.kind = SK_PLACEMENT_SHARD;
		*ret_p = p;
		return 0;
	}
	if (sscanf(text, "SS(%d,%lld)%n", &p.dim, &split, &end) == 2 && end &&
	    !text[end]) {
		p.kind = SK_PLACEMENT_STRIDED_SHARD;
		p.split_factor = split;
		*ret_p = p;
		return 0;
	}
	return sk_err_set(err, -EINVAL, "\"%.40s\" is not a placement; it is "
			  "R, S(dim) or SS(dim,factor)", text);
}

int sk_spec_holders(const struct sk_spec *spec, int32_t rank, int32_t world,
		    int32_t **ret_ranks, int *ret_n, struct sk_err *err)
{
	int64_t at[SK_MAX_DIMS], count = spec->mesh ? 1 : world;
	int ndim = spec->mesh ? sk_mesh_ndim(spec->mesh) : 0;
	int32_t *ranks;

	if (spec->mesh && sk_mesh_coords(spec->mesh, rank, at) < 0)
		return sk_err_set(err, -ENOENT, "rank %d is not in the mesh "
				  "of \"%s\"", rank, spec->name);
	for (int m = 0; m < ndim; m++)
		if (spec->placements[m].kind == SK_PLACEMENT_REPLICATE)
			count *= sk_mesh_dim(spec->mesh, m);
	ranks = malloc((size_t)count * sizeof(*ranks));
	if (!ranks)
		return sk_err_set(err, -ENOMEM, "out of memory for the "
				  "holders of \"%s\"", spec->name);
	for (int64_t i = 0; i < count; i++) {
		int64_t index = 0, rest = i, stride = 1;

		for (int m = ndim - 1; m >= 0; m--) {
			int64_t n = sk_mesh_dim(spec->mesh, m), k = at[m];

			if (spec->placements[m].kind ==
			    SK_PLACEMENT_REPLICATE) {
				k = rest % n;
				rest /= n;
			}
			index += k * stride;
			stride *= n;
		}
		ranks[i] = spec->mesh ? sk_mesh_rank_at(spec->mesh, index) :
					(int32_t)i;
	}
	*ret_ranks = ranks;
	*ret_n = (int)count;
	return 0;
}
