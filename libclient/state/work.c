/* SPDX-License-Identifier: Apache-2.0 */
#include "state/work.h"

#include <assert.h>

#include "base/util.h"
#include "layout/layout.h"
#include "tensor/dtype.h"

static int add_ops(const struct sk_state *state, int kind, struct sk_work *w,
		   struct sk_err *err)
{
	const struct sk_layout *l = state->layouts[kind];
	int64_t dense[SK_MAX_DIMS];
	int r = 0;

	for (uint32_t i = 0; l && i < l->n_entries && r >= 0; i++) {
		const struct sk_entry *e = &l->entries[i];
		const struct sk_local *local = &state->locals[e->item];
		const struct sk_part *part = &local->parts[e->box_index];
		const struct sk_spec *s = &local->item.spec;
		struct sk_op *op = &w->ops[w->n_ops];

		assert(e->item < state->n_locals);
		assert((int)e->box_index < local->item.n_boxes);
		*op = (struct sk_op){ .item = e->item, .kind = (uint8_t)kind,
				      .gpu = (int8_t)local->gpu,
				      .memory = local->ids ?
						local->ids[e->box_index] :
						SK_GPU_NO_ID,
				      .first_sum = e->first_sum,
				      .n_sums = e->n_sums };
		if (e->bytes && !part->data)
			return sk_err_set(err, -EINVAL, "tensor \"%s\" has no "
					  "data, rank %d holds %llu bytes of "
					  "it", s->name, state->job.rank,
					  (unsigned long long)e->bytes);
		sk_dense_strides(s->ndim, e->box.size, dense);
		/* Never NULL: the header lies before all data. */
		r = sk_copy_init(&op->copy, sk_dtype_bits(s->dtype), s->ndim,
				 e->box.size, (void *)(uintptr_t)e->offset,
				 dense, part->data, part->strides, err);
		if (r < 0)
			return sk_err_prefix(err, r, "tensor \"%s\"",
					     s->name);
		w->bytes += op->copy.bytes;
		w->n_strided += op->gpu < 0 && op->copy.ndim;
		w->n_ops++;
	}
	return r;
}

static int by_item(const void *a, const void *b)
{
	const struct sk_op *x = a, *y = b;

	if (x->item != y->item)
		return x->item < y->item ? -1 : 1;
	return (x->first_sum > y->first_sum) - (x->first_sum < y->first_sum);
}

static void add_unit(struct sk_work *w, struct sk_unit unit)
{
	assert(unit.first < unit.last && unit.last <= w->n_ops);
	w->units[w->n_units++] = unit;
	if (w->ops[unit.first].gpu >= 0) {
		w->n_gpu_units++;
		w->gpus |= 1u << w->ops[unit.first].gpu;
	}
	for (uint32_t i = unit.first; i < unit.last; i++)
		w->left[w->ops[i].item]++;
}

/* Small ops of one memory together up to a MiB, large ones a MiB at a time. */
static void cut(struct sk_work *w)
{
	uint32_t first = 0;
	uint64_t sum = 0;

	assert(!w->n_units);
	for (uint32_t i = 0; i < w->n_ops; i++) {
		uint64_t bytes = w->ops[i].copy.bytes;

		if (first < i && (sum + bytes > SK_SUM_CHUNK ||
				  w->ops[i].gpu != w->ops[first].gpu)) {
			add_unit(w, (struct sk_unit){ .first = first,
						      .last = i });
			first = i;
			sum = 0;
		}
		if (bytes <= SK_SUM_CHUNK) {
			sum += bytes;
			continue;
		}
		for (uint64_t at = 0; at < bytes; at += SK_SUM_CHUNK)
			add_unit(w, (struct sk_unit){
				.first = i, .last = i + 1, .from = at,
				.to = bytes - at < SK_SUM_CHUNK ? bytes :
				      at + SK_SUM_CHUNK });
		first = i + 1;
	}
	if (first < w->n_ops)
		add_unit(w, (struct sk_unit){ .first = first,
					      .last = w->n_ops });
}

/* ---- what GPUs are asked for ---- */

static int by_place(const void *a, const void *b)
{
	const struct sk_op *x = a, *y = b;

	if (x->gpu != y->gpu)
		return x->gpu < y->gpu ? -1 : 1;
	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	return (x->copy.dst > y->copy.dst) - (x->copy.dst < y->copy.dst);
}

bool sk_op_is_small(const struct sk_op *op)
{
	return !op->copy.ndim && op->copy.bytes < SK_CUDA_TABLE_MOST;
}

/* Of two allocations that are neighbours the driver may refuse one copy. */
static bool goes_on(const struct sk_op *a, const struct sk_op *b)
{
	return !a->copy.ndim && !b->copy.ndim && a->gpu == b->gpu &&
	       a->kind == b->kind && a->memory == b->memory &&
	       a->copy.dst + a->copy.bytes == b->copy.dst &&
	       a->copy.src + a->copy.bytes == b->copy.src;
}

static void join(struct sk_work *w)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < w->n_asks; i++) {
		if (n && goes_on(&w->asks[n - 1], &w->asks[i])) {
			w->asks[n - 1].copy.bytes += w->asks[i].copy.bytes;
			w->asks[n - 1].copy.run = w->asks[n - 1].copy.bytes;
		} else {
			w->asks[n++] = w->asks[i];
		}
	}
	w->n_asks = n;
}

/* -ENOMEM. */
static int find_asks(struct sk_work *w)
{
	struct sk_op *less;

	if (!w->n_gpu_units)
		return 0;
	w->asks = calloc(w->n_ops, sizeof(*w->asks));
	w->gpu_items = calloc(w->n_ops, sizeof(*w->gpu_items));
	if (!w->asks || !w->gpu_items)
		return -ENOMEM;
	for (uint32_t i = 0; i < w->n_ops; i++) {
		if (w->ops[i].gpu < 0)
			continue;
		if (!i || w->ops[i].item != w->ops[i - 1].item)
			w->gpu_items[w->n_gpu_items++] = w->ops[i].item;
		if (w->ops[i].copy.bytes)
			w->asks[w->n_asks++] = w->ops[i];
	}
	qsort(w->asks, w->n_asks, sizeof(*w->asks), by_place);
	join(w);
	less = realloc(w->asks, (w->n_asks + 1u) * sizeof(*less));
	w->asks = less ? less : w->asks;
	for (uint32_t i = 0; i < w->n_asks; i++) {
		w->n_small += sk_op_is_small(&w->asks[i]);
		w->n_strided_asks += w->asks[i].copy.ndim > 0;
	}
	w->small = calloc(1, sizeof(*w->small) +
			  w->n_small * sizeof(*w->small->v));
	w->longs = calloc(w->n_asks - w->n_small + 1u, sizeof(*w->longs));
	if (!w->small || !w->longs)
		return -ENOMEM;
	for (uint32_t i = 0, n = 0; i < w->n_asks; i++)
		if (!sk_op_is_small(&w->asks[i]))
			w->longs[n++] = i;
	return 0;
}

struct sk_work *sk_work_free(struct sk_work *w)
{
	if (w) {
		free(w->ops);
		free(w->units);
		free(w->left);
		free(w->asks);
		free(w->small);
		free(w->longs);
		free(w->gpu_items);
		free(w);
	}
	return NULL;
}

static int make(const struct sk_state *state, struct sk_work **ret,
		struct sk_err *err)
{
	struct sk_work *w = calloc(1, sizeof(*w));
	size_t n = 1, units = 1;
	int r = 0;

	if (!w)
		return sk_err_set(err, -ENOMEM, "out of memory");
	for (int k = 0; k < 2; k++)
		if (state->layouts[k]) {
			n += state->layouts[k]->n_entries;
			units += state->layouts[k]->n_sums +
				 state->layouts[k]->n_entries;
			w->n_sums[k] = state->layouts[k]->n_sums;
		}
	w->n_items = state->n_locals;
	w->ops = calloc(n, sizeof(*w->ops));
	w->units = calloc(units, sizeof(*w->units));
	w->left = calloc(w->n_items + 1u, sizeof(*w->left));
	if (!w->ops || !w->units || !w->left)
		r = sk_err_set(err, -ENOMEM, "out of memory");
	for (int k = 0; k < 2 && r >= 0; k++)
		r = add_ops(state, k, w, err);
	if (r >= 0) {
		qsort(w->ops, w->n_ops, sizeof(*w->ops), by_item);
		cut(w);
		if (find_asks(w) < 0)
			r = sk_err_set(err, -ENOMEM, "out of memory");
	}
	if (r < 0) {
		sk_work_free(w);
		return r;
	}
	*ret = w;
	return 0;
}

int sk_work_prepare(struct sk_state *state, struct sk_err *err)
{
	int r;

	if (state->work && !state->moved)
		return 0;
	/* The newest snapshot still counts by it. */
	(void)sk_fences_settle(&state->fences, SK_FOREVER);
	sk_fences_drop(&state->fences);
	state->work = sk_work_free(state->work);
	r = make(state, &state->work, err);
	state->moved = r < 0;
	return r;
}
