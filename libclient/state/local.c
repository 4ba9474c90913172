/* SPDX-License-Identifier: Apache-2.0 */
#include "state/local.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "bytes/copy.h"
#include "conn/check.h"
#include "state/names.h"
#include "tensor/box.h"
#include "tensor/dtype.h"
#include "tensor/name.h"

#define METADATA "__metadata__"

void sk_local_clear(struct sk_local *l)
{
	free((char *)l->item.spec.name);
	sk_mesh_unref((struct sk_mesh *)l->item.spec.mesh);
	free(l->item.boxes);
	free(l->parts);
	free(l->ids);
	*l = (struct sk_local){ 0 };
}

static void strides_of(int ndim, const int64_t *size, const int64_t *given,
		       int64_t *ret)
{
	bool dense = true;

	for (int d = 0; d < ndim; d++)
		dense &= given[d] == 0;
	if (dense)
		sk_dense_strides(ndim, size, ret);
	else
		memcpy(ret, given, (size_t)ndim * sizeof(*ret));
}

static void local_shape(const struct sk_local *l, int64_t *ret)
{
	const struct sk_item *it = &l->item;
	const struct sk_box *boxes = it->boxes;
	int last = it->n_boxes - 1;

	memset(ret, 0, SK_MAX_DIMS * sizeof(*ret));
	if (last < 0)
		return;
	for (int b = 0; b < last; b++)
		sk_spec_next_box(it->spec.ndim, &boxes[b], &boxes[b + 1], ret);
	/* The last box lies at the end of every dimension. */
	for (int d = 0; d < it->spec.ndim; d++)
		ret[d] += boxes[last].size[d];
}

static char *format_sizes(int ndim, const int64_t *v, char *buf, size_t size)
{
	size_t at = (size_t)snprintf(buf, size, "(");

	for (int d = 0; d < ndim && at < size; d++)
		at += (size_t)snprintf(buf + at, size - at, "%s%lld",
				       d ? ", " : "", (long long)v[d]);
	if (at < size)
		(void)snprintf(buf + at, size - at, ")");
	return buf;
}

static int check_local_shape(const struct sk_local *l, int32_t rank,
			     const int64_t *given, const int64_t *computed,
			     struct sk_err *err)
{
	char a[128], b[128];
	int ndim = l->item.spec.ndim;
	bool same = true;

	assert(ndim >= 0 && ndim <= SK_MAX_DIMS);
	/* Outside the mesh a rank holds nothing, of whatever shape. */
	for (int d = 0; given && l->item.n_boxes && d < ndim; d++)
		same &= given[d] == computed[d];
	if (same)
		return 0;
	return sk_err_set(err, -EINVAL, "tensor \"%s\": rank %d has %s, its "
			  "placements give %s; say its boxes with parts",
			  l->item.spec.name, rank,
			  format_sizes(ndim, given, a, sizeof(a)),
			  format_sizes(ndim, computed, b, sizeof(b)));
}

bool sk_strides_reach(int ndim, const int64_t *size, const int64_t *strides,
		      int64_t *ret_low, int64_t *ret_high)
{
	int64_t last;

	*ret_low = *ret_high = 0;
	for (int d = 0; d < ndim; d++) {
		if (__builtin_mul_overflow(size[d] - 1, strides[d], &last) ||
		    (last < 0 && __builtin_add_overflow(*ret_low, last,
							ret_low)) ||
		    (last > 0 && __builtin_add_overflow(*ret_high, last,
							ret_high)))
			return false;
	}
	/* So that bits and addresses can be. */
	return *ret_low > INT64_MIN / 128 && *ret_high < INT64_MAX / 128;
}

static int check_reach(const struct sk_local *l, const int64_t *size,
		       const int64_t *strides, struct sk_err *err)
{
	int ndim = l->item.spec.ndim;
	int64_t low, high;

	for (int d = 0; d < ndim; d++)
		if (!size[d])
			return 0;
	if (sk_strides_reach(ndim, size, strides, &low, &high))
		return 0;
	return sk_err_set(err, -EFAULT, "tensor \"%s\": its strides lead out "
			  "of all memory", l->item.spec.name);
}

/* What lies on itself could be saved, and never restored. */
static int check_strides(const struct sk_local *l, const struct sk_part *p,
			 struct sk_err *err)
{
	int ndim = l->item.spec.ndim;

	for (int d = 0; d < ndim; d++)
		if (!p->box.size[d])
			return 0;
	for (int d = 0; d < ndim; d++)
		if (p->box.size[d] > 1 && !p->strides[d])
			return sk_err_set(err, -EINVAL, "tensor \"%s\": %lld "
					  "elements along dimension %d are one "
					  "in memory (stride 0); describe a "
					  "copy", l->item.spec.name,
					  (long long)p->box.size[d], d);
	return 0;
}

/* Of none there is something as well. No more than that: each page that is
 * touched for the first time costs as much as describing a tensor. */
static size_t room_for(int n)
{
	return n ? (size_t)n : 1;
}

/* Slices the one local tensor into a part per box. */
static int slice(const struct sk_tensor *t, struct sk_local *l,
		 const int64_t *shape, struct sk_err *err)
{
	unsigned bits = sk_dtype_bits(l->item.spec.dtype);
	int64_t stride[SK_MAX_DIMS], at[SK_MAX_DIMS] = { 0 };
	const struct sk_box *boxes = l->item.boxes;

	assert(!l->parts && (!l->item.n_boxes || boxes));
	l->parts = calloc(room_for(l->item.n_boxes), sizeof(*l->parts));
	if (!l->parts)
		return sk_err_set(err, -ENOMEM, "out of memory");
	strides_of(l->item.spec.ndim, shape, t->strides, stride);
	if (check_reach(l, shape, stride, err) < 0)
		return -EFAULT;
	for (int b = 0; b < l->item.n_boxes; b++) {
		int64_t elements = 0;

		if (b)
			sk_spec_next_box(l->item.spec.ndim, &boxes[b - 1],
					 &boxes[b], at);
		for (int d = 0; d < l->item.spec.ndim; d++)
			elements += at[d] * stride[d];
		if (elements * bits % 8)
			return sk_err_set(err, -EINVAL, "tensor \"%s\": box "
					  "%d begins inside a byte",
					  l->item.spec.name, b);
		l->parts[b].box = boxes[b];
		memcpy(l->parts[b].strides, stride, sizeof(stride));
		if (t->data)
			l->parts[b].data = (char *)t->data +
					   elements * (int64_t)bits / 8;
		if (check_strides(l, &l->parts[b], err) < 0)
			return -EINVAL;
	}
	return 0;
}

static int take_parts(const struct sk_tensor *t, struct sk_local *l,
		      struct sk_err *err)
{
	struct sk_item *it = &l->item;

	assert(!it->boxes && !l->parts);
	it->explicit_boxes = true;
	it->n_boxes = (int)t->n_parts;
	it->boxes = calloc(room_for(it->n_boxes), sizeof(*it->boxes));
	l->parts = calloc(room_for(it->n_boxes), sizeof(*l->parts));
	if (!it->boxes || !l->parts)
		return sk_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < t->n_parts; i++) {
		it->boxes[i] = t->parts[i].box;
		l->parts[i] = t->parts[i];
		if (sk_box_check(it->spec.ndim, it->spec.shape, &it->boxes[i],
				 err) < 0)
			return sk_err_prefix(err, -EINVAL, "tensor \"%s\"",
					     it->spec.name);
		strides_of(it->spec.ndim, it->boxes[i].size,
			   t->parts[i].strides, l->parts[i].strides);
		if (check_reach(l, it->boxes[i].size, l->parts[i].strides,
				err) < 0)
			return -EFAULT;
		if (check_strides(l, &l->parts[i], err) < 0)
			return -EINVAL;
	}
	return 0;
}

static int take_placements(const struct sk_tensor *t, int32_t rank,
			   struct sk_local *l, struct sk_err *err)
{
	int64_t shape[SK_MAX_DIMS];
	int r = sk_spec_boxes(&l->item.spec, rank, &l->item.boxes,
			      &l->item.n_boxes, err);

	if (r < 0)
		return r;
	local_shape(l, shape);
	r = check_local_shape(l, rank, t->local_shape, shape, err);
	return r < 0 ? r : slice(t, l, shape, err);
}

int sk_local_check_name(const struct sk_job *job, const char *name,
			const char *what, struct sk_err *err)
{
	return job->flags & SK_JOB_READER ?
	       sk_name_check(name, what, err) :
	       sk_name_check_said(name, what, err);
}

static int take_spec(const struct sk_tensor *t, const struct sk_job *job,
		     struct sk_spec *s, struct sk_err *err)
{
	if (t->ndim < 0 || t->ndim > SK_MAX_DIMS)
		return sk_err_set(err, -EINVAL, "tensor \"%s\" has %d "
				  "dimensions, there may be 0 to %d",
				  t->name ? t->name : "", t->ndim,
				  SK_MAX_DIMS);
	s->name = strdup(t->name ? t->name : "");
	if (!s->name)
		return sk_err_set(err, -ENOMEM, "out of memory");
	if (sk_local_check_name(job, s->name, "tensor", err) < 0)
		return -EINVAL;
	s->dtype = (enum sk_dtype)t->dtype;
	s->ndim = t->ndim;
	memcpy(s->shape, t->shape, (size_t)t->ndim * sizeof(*s->shape));
	s->mesh = sk_mesh_ref(t->mesh);
	memcpy(s->placements, t->placements, sizeof(s->placements));
	return sk_spec_normalize(s, err);
}

static int check_reserved(const struct sk_tensor *t, struct sk_err *err)
{
	int r = sk_check_zero(&t->flags, sizeof(t->flags), "sk_tensor.flags",
			      err);

	return r < 0 ? r : sk_check_zero(t->reserved, sizeof(t->reserved),
					 "sk_tensor.reserved", err);
}

/* A pointer that was forgotten leaves out of account what it is for: a rank's
 * part would be taken for the whole. A rank that is alone has that. */
static int check_meant(const struct sk_tensor *t, const struct sk_job *job,
		       struct sk_err *err)
{
	bool whole = t->mesh || t->parts || job->world == 1;

	if (t->n_parts && !t->parts)
		return sk_err_set(err, -EINVAL, "tensor \"%s\" has %u parts, and "
				  "no list of them", t->name, t->n_parts);
	if (t->parts && t->n_parts > INT32_MAX)
		return sk_err_set(err, -EINVAL, "tensor \"%s\" has %u parts, "
				  "more than there can be", t->name,
				  t->n_parts);
	for (int d = 0; d < SK_MAX_DIMS && !whole; d++)
		if (t->placements[d].kind > SK_PLACEMENT_REPLICATE)
			return sk_err_set(err, -EINVAL, "tensor \"%s\" has "
					  "placements, and no mesh of the %d "
					  "ranks", t->name, job->world);
	return 0;
}

int sk_local_make(const struct sk_tensor *t, enum sk_item_kind kind,
		  const struct sk_job *job, struct sk_local *ret,
		  struct sk_err *err)
{
	const char *name;
	int r;

	*ret = (struct sk_local){ .item.kind = kind, .memory = t->memory,
				  .device = t->device, .gpu = -1 };
	r = check_reserved(t, err);
	if (r >= 0)
		r = take_spec(t, job, &ret->item.spec, err);
	/* A reader may have described what others hold. */
	if (r >= 0 && !(job->flags & SK_JOB_READER))
		r = sk_spec_check_world(&ret->item.spec, job->world, err);
	if (r < 0)
		return r;
	name = ret->item.spec.name;
	ret->hash = sk_name_hash(name);		/* while it is in the cache */
	if (!strncmp(name, SK_RESERVED_PREFIX, strlen(SK_RESERVED_PREFIX)))
		return sk_err_set(err, -EINVAL, "the name \"%s\" begins with "
				  "\"%s\", which is reserved", name,
				  SK_RESERVED_PREFIX);
	if (!strcmp(name, METADATA))
		return sk_err_set(err, -EINVAL, "the name \"%s\" is that of "
				  "what safetensors files say of themselves",
				  name);
	if (t->memory != SK_HOST && t->memory != SK_CUDA)
		return sk_err_set(err, -EINVAL, "tensor \"%s\": %d is no kind "
				  "of memory", name, t->memory);
	r = check_meant(t, job, err);
	if (r < 0)
		return r;
	return t->parts ? take_parts(t, ret, err) :
			  take_placements(t, job->rank, ret, err);
}

bool sk_local_same_boxes(const struct sk_local *a, const struct sk_local *b)
{
	return a->item.kind == b->item.kind &&
	       a->item.explicit_boxes == b->item.explicit_boxes &&
	       sk_spec_same_layout(&a->item.spec, &b->item.spec) &&
	       a->item.n_boxes == b->item.n_boxes &&
	       (!a->item.n_boxes ||
		!memcmp(a->item.boxes, b->item.boxes,
			(size_t)a->item.n_boxes * sizeof(*a->item.boxes)));
}
