/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the pointers of device tensors point at.
 *
 * Each snapshot asks the driver about every allocation that they lie in. Which
 * those are is found once, from all tensors, and kept with what was said of
 * them: as long as each says the same, so does each tensor, and none has to be
 * looked at. Where one says something else all tensors are, and the sentence
 * has the name of the first that is no longer there.
 */
#include "state/gpu.h"

#include <assert.h>

#include "base/array.h"
#include "base/util.h"
#include "state/state.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

/* ---- of one tensor ---- */

/* The bytes that a part touches, from the first to the last. */
static void extent(const struct sk_local *local, const struct sk_part *part,
		   struct sk_cuda_range *ret)
{
	int64_t bits = (int64_t)sk_dtype_bits(local->item.spec.dtype);
	int64_t low, high;
	bool counts = sk_strides_reach(local->item.spec.ndim, part->box.size,
				       part->strides, &low, &high);

	/* Else it could not have been described. */
	assert(counts);
	(void)counts;
	ret->from = (uintptr_t)part->data + (uint64_t)(low * bits / 8);
	ret->to = (uintptr_t)part->data +
		  (uint64_t)(((high + 1) * bits + 7) / 8);
}

static bool is_empty(const struct sk_local *local, const struct sk_part *part)
{
	return !part->data || sk_box_empty(local->item.spec.ndim, &part->box);
}

/* What was looked up last: neighbours lie in one allocation. */
struct look {
	const struct sk_cuda_device *device;
	int gpu;
	struct sk_cuda_range last;
	struct sk_gpu_known *known;	/* has all of it; or NULL */
};

/* Without memory for it nothing is known, and all is looked up each time. */
static void note(struct look *look, uint64_t at)
{
	struct sk_gpu_known *k = look->known;

	if (!k->whole)
		return;
	k->whole = sk_array_fit(k->v, k->room, (size_t)k->n + 1) >= 0;
	if (k->whole)
		k->v[k->n++] = (struct sk_gpu_alloc){
			.at = at, .range = look->last, .gpu = look->gpu };
}

static int find(struct look *look, uint64_t at, struct sk_err *err)
{
	int r;

	if (at >= look->last.from && at < look->last.to)
		return 0;
	r = sk_cuda_find(look->device, at, &look->last, err);
	if (r >= 0 && look->known)
		note(look, at);
	return r;
}

/* All of a part is memory of the device; *ret_id: of where it begins. Memory
 * that was mapped in pieces has an id for each. */
static int find_part(struct look *look, const struct sk_local *local,
		     const struct sk_part *part, uint64_t *ret_id,
		     struct sk_err *err)
{
	struct sk_cuda_range all = { 0 };
	int r;

	extent(local, part, &all);
	r = find(look, all.from, err);
	if (r < 0)
		return r;
	*ret_id = look->last.id;
	while (look->last.to < all.to) {
		r = find(look, look->last.to, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int look_at_parts(struct look *look, struct sk_local *local,
			 struct sk_err *err)
{
	int r = 0;

	for (int b = 0; b < local->item.n_boxes && r >= 0; b++) {
		local->ids[b] = SK_GPU_NO_ID;
		if (!is_empty(local, &local->parts[b]))
			r = find_part(look, local, &local->parts[b],
				      &local->ids[b], err);
	}
	return r < 0 ? sk_err_prefix(err, r, "tensor \"%s\"",
				     local->item.spec.name) : 0;
}

static bool holds_nothing(const struct sk_local *local)
{
	for (int b = 0; b < local->item.n_boxes; b++)
		if (!is_empty(local, &local->parts[b]))
			return false;
	return true;
}

int sk_gpu_describe(struct sk_state *state, struct sk_local *local,
		    struct sk_err *err)
{
	struct look look = { 0 };
	int gpu;

	if (holds_nothing(local))
		return 0;
	gpu = sk_gpu_use(state, local->device, err);
	if (gpu < 0)
		return sk_err_prefix(err, gpu, "tensor \"%s\" is on CUDA "
				     "device %d", local->item.spec.name,
				     local->device);
	local->ids = calloc((size_t)local->item.n_boxes + 1,
			    sizeof(*local->ids));
	if (!local->ids)
		return sk_err_set(err, -ENOMEM, "out of memory");
	local->gpu = gpu;
	look.device = state->gpus.v[gpu].device;
	return look_at_parts(&look, local, err);
}

static int check(const struct sk_state *state, struct look *look,
		 const struct sk_local *local, struct sk_err *err)
{
	const struct sk_cuda_device *device = state->gpus.v[local->gpu].device;
	struct sk_err why = { "" };
	int r = 0;

	if (look->device != device)
		*look = (struct look){ .device = device, .gpu = local->gpu,
				       .known = look->known };
	for (int b = 0; b < local->item.n_boxes; b++) {
		uint64_t id = SK_GPU_NO_ID;

		if (is_empty(local, &local->parts[b]))
			continue;
		r = find_part(look, local, &local->parts[b], &id, &why);
		if (r == -EFAULT || (r >= 0 && id != local->ids[b]))
			return sk_err_set(err, -EFAULT, "tensor \"%s\": its "
					  "memory on CUDA device %d was freed "
					  "since it was described; describe "
					  "where it lies now",
					  local->item.spec.name,
					  local->device);
		if (r < 0) {
			if (err)
				*err = why;
			return r;
		}
	}
	return 0;
}

int sk_gpu_check(const struct sk_state *state, const struct sk_local *local,
		 struct sk_err *err)
{
	struct look look = { 0 };

	return local->gpu < 0 ? 0 : check(state, &look, local, err);
}

/* ---- of all ---- */

static int by_place(const void *a, const void *b)
{
	const struct sk_gpu_alloc *x = a, *y = b;

	if (x->gpu != y->gpu)
		return x->gpu < y->gpu ? -1 : 1;
	return (x->range.from > y->range.from) -
	       (x->range.from < y->range.from);
}

static bool is_same(const struct sk_cuda_range *a,
		    const struct sk_cuda_range *b)
{
	return a->from == b->from && a->to == b->to && a->id == b->id;
}

/* Each once: tensors of two allocations may come in turn. */
static void make_unique(struct sk_gpu_known *k)
{
	uint32_t n = 0;

	if (k->n > 1)
		qsort(k->v, k->n, sizeof(*k->v), by_place);
	for (uint32_t i = 0; i < k->n; i++)
		if (!n || k->v[i].gpu != k->v[n - 1].gpu ||
		    !is_same(&k->v[i].range, &k->v[n - 1].range))
			k->v[n++] = k->v[i];
	k->n = n;
}

void sk_gpus_forget_known(struct sk_state *state)
{
	state->gpus.known.whole = false;
}

static int look_at_all(struct sk_state *state, struct sk_err *err)
{
	struct sk_gpu_known *k = &state->gpus.known;
	struct look look = { .known = k };
	int r = 0;

	k->n = 0;
	k->used = 0;
	k->whole = true;
	for (uint32_t i = 0; i < state->n_locals && r >= 0; i++) {
		const struct sk_local *local = &state->locals[i];

		if (local->gpu < 0)
			continue;
		k->used |= 1u << local->gpu;
		r = check(state, &look, local, err);
	}
	if (r < 0)
		k->whole = false;
	else
		make_unique(k);
	return r;
}

/* Whether the driver says of each what it said: 1, or 0. -EIO: it says
 * nothing. */
static int is_as_known(const struct sk_state *state, struct sk_err *err)
{
	const struct sk_gpu_known *k = &state->gpus.known;

	if (!k->whole)
		return 0;
	for (uint32_t i = 0; i < k->n; i++) {
		const struct sk_gpu_alloc *a = &k->v[i];
		struct sk_cuda_range now;
		int r = sk_cuda_find(state->gpus.v[a->gpu].device, a->at, &now,
				     err);

		if (r == -EFAULT || (r >= 0 && !is_same(&now, &a->range)))
			return 0;
		if (r < 0)
			return r;
	}
	return 1;
}

int sk_gpus_check(struct sk_state *state, uint32_t *ret_used,
		  struct sk_err *err)
{
	int r = is_as_known(state, err);

	if (!r)
		r = look_at_all(state, err);
	if (r >= 0)
		*ret_used = state->gpus.known.used;
	return r;
}
