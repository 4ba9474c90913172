/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/placement.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "tensor/cuts.h"
#include "tensor/dtype.h"
#include "tensor/name.h"
#include "base/array.h"
#include "base/util.h"

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
	case SK_PLACEMENT_NONE:
		return sk_err_set(err, -EINVAL, "tensor \"%s\": mesh "
				  "dimension %d has no placement",
				  spec->name, m);
	default:
		return sk_err_set(err, -EINVAL, "tensor \"%s\": mesh "
				  "dimension %d has a placement of kind %d, "
				  "which there is not", spec->name, m,
				  p->kind);
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
	int r = sk_name_check(spec->name, "tensor", err);

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

int sk_spec_check_world(const struct sk_spec *spec, int32_t world,
			struct sk_err *err)
{
	int32_t last = spec->mesh ? sk_mesh_last_rank(spec->mesh) : 0;

	if (last < world)
		return 0;
	return sk_err_set(err, -EINVAL, "tensor \"%s\" lies on a mesh with "
			  "rank %d, and the job has %d ranks", spec->name,
			  last, world);
}

/* ---- boxes ---- */

/* What the rank at @coords holds of dimension @d. */
static int hold(const struct sk_spec *spec, int d, const int64_t *coords,
		struct sk_intervals *ret)
{
	struct sk_intervals now = { 0 };
	struct sk_cut cuts[SK_MAX_DIMS];
	int n = sk_spec_cuts(spec, d, cuts), r;

	r = sk_intervals_add(&now, (struct sk_interval){ 0, spec->shape[d] });
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

void sk_spec_next_box(int ndim, const struct sk_box *box,
		      const struct sk_box *next, int64_t *at)
{
	/* Those that carry begin anew, the one that counts moves on. */
	for (int d = 0; d < ndim; d++)
		if (next->offset[d] > box->offset[d])
			at[d] += box->size[d];
		else if (next->offset[d] < box->offset[d])
			at[d] = 0;
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

void sk_spec_holder(const struct sk_spec *spec, int32_t rank, int32_t world,
		    int64_t *ret_index, int64_t *ret_count)
{
	int64_t at[SK_MAX_DIMS], index = 0, count = 1;
	int r;

	if (!spec->mesh) {
		*ret_index = rank;
		*ret_count = world;
		return;
	}
	r = sk_mesh_coords(spec->mesh, rank, at);
	assert(r >= 0);		/* who is outside holds nothing */
	(void)r;
	for (int m = 0; m < sk_mesh_ndim(spec->mesh); m++) {
		if (spec->placements[m].kind != SK_PLACEMENT_REPLICATE)
			continue;
		index = index * sk_mesh_dim(spec->mesh, m) + at[m];
		count *= sk_mesh_dim(spec->mesh, m);
	}
	*ret_index = index;
	*ret_count = count;
}

int64_t sk_spec_holder_find(const struct sk_spec *spec, int32_t rank,
			    int32_t other, int32_t world)
{
	int64_t mine[SK_MAX_DIMS], its[SK_MAX_DIMS], index, count;
	int r;

	if (!spec->mesh)
		return other < world ? other : -1;
	if (sk_mesh_coords(spec->mesh, other, its) < 0)
		return -1;
	r = sk_mesh_coords(spec->mesh, rank, mine);
	assert(r >= 0);
	(void)r;
	for (int m = 0; m < sk_mesh_ndim(spec->mesh); m++)
		if (spec->placements[m].kind != SK_PLACEMENT_REPLICATE &&
		    mine[m] != its[m])
			return -1;
	sk_spec_holder(spec, other, world, &index, &count);
	return index;
}
