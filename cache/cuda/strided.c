/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a kernel takes is a box of elements; a range of a copy is a few boxes.
 * What crosses the link does so in one piece, and stands in the lane's memory
 * on the device before or after that. The stream keeps the order: the kernel
 * reads what has arrived, and what is written there next comes after that.
 */
#include "cuda/strided.h"

#include <assert.h>

#include "cuda/kernels.h"

#define STAGE ((uint64_t)8 << 20)	/* memory of a lane, on the device */
#define RUN_MOST 256u	/* longer ones are no elements but rows */
#define CALLS_MOST 4u	/* so many calls are few */
#define BATCHED 256u	/* copies of a batch that are as good as a call */
#define GAPS_MOST 4u	/* times of what is wanted that may cross the link */
#define THREADS 256u
/* Few blocks: the trainer's kernels have the rest of the device. */
#define BLOCKS 32u

#define TILE 32u	/* as kernels.cl has it */
#define DIMS 8
static_assert(DIMS >= SK_MAX_DIMS, "a copy is a box of as many dimensions");

/* As kernels.cl has it. */
struct box {
	uint64_t dst, src, run;
	uint64_t size[DIMS];
	int64_t dst_stride[DIMS], src_stride[DIMS];
};

/* ---- whether it is worth it ---- */

static uint64_t calls_of(const struct sk_cuda_walk *w, uint64_t rows)
{
	const struct sk_copy *copy = w->copy;
	const struct sk_cuda_place p = { copy->dst, copy->src };
	int in = copy->ndim - 1;

	if (!sk_cuda_rows_at_once(w, p, 2))
		return copy->run < w->together ? rows / BATCHED : rows;
	rows /= (uint64_t)copy->size[in];
	if (sk_cuda_planes_at_once(w, p, 2))
		rows /= (uint64_t)copy->size[in - 1];
	return rows;
}

/* Whether what comes later in row-major order lies further on. */
static bool is_in_order(const struct sk_copy *copy, const int64_t *strides)
{
	int64_t reach = (int64_t)copy->run;

	for (int d = copy->ndim - 1; d >= 0; d--) {
		if (strides[d] < reach)
			return false;
		reach = strides[d] * copy->size[d];
	}
	return true;
}

static int64_t offset_of(const struct sk_copy *copy, const int64_t *strides,
			 uint64_t element)
{
	int64_t offset = 0;

	for (int d = copy->ndim - 1; d >= 0; d--) {
		offset += (int64_t)(element % (uint64_t)copy->size[d]) *
			  strides[d];
		element /= (uint64_t)copy->size[d];
	}
	return offset;
}

/* On the host's side, from the first of these elements to the end of the last,
 * which are in order. */
static uint64_t span_of(const struct sk_cuda_walk *w, uint64_t first,
			uint64_t last)
{
	const struct sk_copy *copy = w->copy;
	const int64_t *strides = w->way == SK_CUDA_OUT ? copy->dst_stride :
							 copy->src_stride;

	return (uint64_t)(offset_of(copy, strides, last - 1) -
			  offset_of(copy, strides, first)) + copy->run;
}

/* In one piece: out of the device nothing may be written in between. */
static bool can_cross(const struct sk_cuda_walk *w, uint64_t first,
		      uint64_t last)
{
	uint64_t wanted = (last - first) * w->copy->run;
	bool out = w->way == SK_CUDA_OUT;

	if (!is_in_order(w->copy, out ? w->copy->dst_stride :
					w->copy->src_stride))
		return false;
	return span_of(w, first, last) <= (out ? 1 : GAPS_MOST) * wanted;
}

static bool has_stage(struct sk_cuda_lane *lane)
{
	const struct sk_os *os = lane->device->os;
	bool has;

	(void)pthread_mutex_lock(&lane->stage_lock);
	if (!lane->stage &&
	    sk_again_is_due(&lane->stage_again, os->now_ns(os)) &&
	    sk_cuda_alloc(lane->device, STAGE, &lane->stage, NULL) < 0)
		sk_again_refused(&lane->stage_again, os->now_ns(os));
	has = lane->stage;
	(void)pthread_mutex_unlock(&lane->stage_lock);
	return has;
}

bool sk_cuda_is_strided(const struct sk_cuda_walk *w, uint64_t from,
			uint64_t to)
{
	const struct sk_copy *copy = w->copy;

	assert(from % copy->run == 0 && to % copy->run == 0);
	if (from >= to || copy->ndim < 1 || copy->run > RUN_MOST ||
	    calls_of(w, (to - from) / copy->run) <= CALLS_MOST)
		return false;
	if (w->way != SK_CUDA_ACROSS &&
	    !can_cross(w, from / copy->run, to / copy->run))
		return false;
	return sk_cuda_kernels_load(w->lane->device, NULL) >= 0 &&
	       (w->way == SK_CUDA_ACROSS || has_stage(w->lane));
}

/* ---- boxes ---- */

static uint64_t distance(int64_t stride)
{
	return (uint64_t)(stride < 0 ? -stride : stride);
}

/* The dimension that lies closest; @other is not asked. -1: there is none. */
static int closest(const struct sk_copy *copy, const int64_t *strides,
		   int first, int other)
{
	int best = -1;

	for (int d = copy->ndim - 1; d >= first; d--)
		if (d != other && (best < 0 || distance(strides[d]) <
						       distance(strides[best])))
			best = d;
	return best;
}

static void add(struct box *box, int at, const struct sk_copy *copy, int d,
		uint64_t size)
{
	box->size[at] = size;
	box->dst_stride[at] = copy->dst_stride[d];
	box->src_stride[at] = copy->src_stride[d];
}

/* Dimensions from @first on, of which that one has @size. The kernel cuts the
 * first two of the box into tiles: those that lie closest on either side. */
static struct box box_of(const struct sk_copy *copy, struct sk_cuda_place p,
			 int first, uint64_t size)
{
	struct box box = { .dst = (uintptr_t)p.dst, .src = (uintptr_t)p.src,
			   .run = copy->run };
	int a = closest(copy, copy->dst_stride, first, -1);
	int b = closest(copy, copy->src_stride, first, a);
	int n = 0;

	for (int i = 0; i < DIMS; i++)
		box.size[i] = 1;
	if (a >= 0)
		add(&box, n++, copy, a, a == first ? size :
					(uint64_t)copy->size[a]);
	if (b >= 0)
		add(&box, n++, copy, b, b == first ? size :
					(uint64_t)copy->size[b]);
	for (int d = copy->ndim - 1; d >= first; d--)
		if (d != a && d != b)
			add(&box, n++, copy, d, d == first ? size :
						(uint64_t)copy->size[d]);
	return box;
}

static uint64_t tiles_of(const struct box *box)
{
	uint64_t n = (box->size[0] + TILE - 1) / TILE *
		     ((box->size[1] + TILE - 1) / TILE);

	for (int d = 2; d < DIMS; d++)
		n *= box->size[d];
	return n;
}

static int launch(const struct sk_cuda_walk *w, struct box box)
{
	uint64_t tiles = tiles_of(&box);
	void *params[] = { &box };

	return sk_cuda_kernels_launch(w->lane, SK_CUDA_KERNEL_BOX,
				      tiles < BLOCKS ? (unsigned)tiles :
						       BLOCKS,
				      THREADS, params, w->err);
}

/* ---- ranges, as boxes ---- */

static struct sk_cuda_place step(const struct sk_copy *copy,
				 struct sk_cuda_place p, int d, uint64_t n)
{
	p.dst += (int64_t)n * copy->dst_stride[d];
	p.src += (int64_t)n * copy->src_stride[d];
	return p;
}

/* Elements [first, last) of those in dimensions @d and after, which begin at
 * @p: the end of a slice, whole slices, and the beginning of one. */
static int copy_range(const struct sk_cuda_walk *w, struct sk_cuda_place p,
		      int d, uint64_t first, uint64_t last)
{
	const struct sk_copy *copy = w->copy;
	uint64_t slice = 1, from, to;
	int r = 0;

	if (d == copy->ndim)
		return launch(w, box_of(copy, p, d, 1));
	for (int i = d + 1; i < copy->ndim; i++)
		slice *= (uint64_t)copy->size[i];
	from = first / slice;
	to = last / slice;
	first %= slice;
	last %= slice;
	if (from == to)
		return copy_range(w, step(copy, p, d, from), d + 1, first,
				  last);
	if (first)
		r = copy_range(w, step(copy, p, d, from++), d + 1, first,
			       slice);
	if (r >= 0 && from < to)
		r = launch(w, box_of(copy, step(copy, p, d, from), d,
				     to - from));
	if (r >= 0 && last)
		r = copy_range(w, step(copy, p, d, to), d + 1, 0, last);
	return r;
}

/* ---- over the link ---- */

/* Of elements from @first on, as many as the lane's memory has room for. */
static uint64_t end_of(const struct sk_cuda_walk *w, uint64_t first,
		       uint64_t last)
{
	uint64_t n = last - first;

	while (span_of(w, first, first + n) > STAGE)
		n = (n + 1) / 2;
	return first + n;
}

/* With the stage's lock held: no other thread's copy comes in between. */
static int cross(const struct sk_cuda_walk *w, uint64_t first, uint64_t last)
{
	struct sk_cuda_walk plain = *w;
	struct sk_cuda_place p = { w->copy->dst, w->copy->src }, link;
	uint64_t bytes = span_of(w, first, last), stage = w->lane->stage;
	int64_t offset;
	int r;

	plain.together = 0;	/* it must not be asked for any later */
	if (w->way == SK_CUDA_OUT) {
		offset = offset_of(w->copy, w->copy->dst_stride, first);
		link = (struct sk_cuda_place){ p.dst + offset,
					       (char *)(uintptr_t)stage };
		p.dst = (char *)(uintptr_t)(stage - (uint64_t)offset);
		r = copy_range(w, p, 0, first, last);
		return r < 0 ? r : sk_cuda_copy_bytes(&plain, link, bytes);
	}
	offset = offset_of(w->copy, w->copy->src_stride, first);
	link = (struct sk_cuda_place){ (char *)(uintptr_t)stage,
				       p.src + offset };
	p.src = (char *)(uintptr_t)(stage - (uint64_t)offset);
	r = sk_cuda_copy_bytes(&plain, link, bytes);
	return r < 0 ? r : copy_range(w, p, 0, first, last);
}

int sk_cuda_copy_strided(const struct sk_cuda_walk *w, uint64_t from,
			 uint64_t to)
{
	const struct sk_copy *copy = w->copy;
	uint64_t first = from / copy->run, last = to / copy->run;
	int r = 0;

	if (w->way == SK_CUDA_ACROSS)
		return copy_range(w, (struct sk_cuda_place){ copy->dst,
							     copy->src },
				  0, first, last);
	while (first < last && r >= 0) {
		uint64_t end = end_of(w, first, last);

		(void)pthread_mutex_lock(&w->lane->stage_lock);
		r = cross(w, first, end);
		(void)pthread_mutex_unlock(&w->lane->stage_lock);
		first = end;
	}
	return r;
}
