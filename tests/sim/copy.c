/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver: copies. Pointers are checked when the call is made,
 * bytes are read when the operation runs. A copy to host memory that is not
 * page-locked is done before the call returns; of one to the device the host's
 * bytes are read by then.
 */
#include <stdlib.h>
#include <string.h>

#include "vcuda.h"

#define PITCH 512u	/* what cuMemAllocPitch() would choose */

/* One side of a copy, and what it lies in. */
struct side {
	char *at;			/* as this process can touch it */
	struct vcu_locked *locked;	/* of the host, or NULL */
};

static size_t span(size_t pitch, size_t width, size_t height)
{
	return height ? pitch * (height - 1) + width : 0;
}

static sk_cu_result device_side(sk_cu_ptr ptr, size_t bytes, bool write,
				struct side *ret)
{
	struct vcu_memory *m = vcu_memory(ptr, bytes);

	if (!m)
		return SK_CU_INVALID_VALUE;
	if (!vcu_may(ptr, bytes, write)) {
		vcu_spoil(vcu_current(), SK_CU_ILLEGAL_ADDRESS);
		return SK_CU_ILLEGAL_ADDRESS;
	}
	if (m->device != vcu_current()->device)
		return SK_CU_INVALID_VALUE;
	ret->at = m->view + (ptr - (uintptr_t)m->base);
	return SK_CU_SUCCESS;
}

/* What lies in two pieces of locked memory is not known to be locked. */
static sk_cu_result host_side(const void *ptr, size_t bytes, bool write,
			      struct side *ret)
{
	const struct vcu_memory *m;

	ret->at = (char *)ptr;
	ret->locked = vcu_locked(ptr, bytes);
	if (!ret->locked && vcu_touches_locked(ptr, bytes))
		return SK_CU_INVALID_VALUE;
	if (ret->locked && ret->locked->forked)
		vcu_misuse("a copy of %zu bytes at %p, which were page-locked "
			   "and private when the process forked: the device "
			   "may have other pages than the process", bytes,
			   ptr);
	if (ret->locked && ret->locked->read_only && write) {
		vcu_spoil(vcu_current(), SK_CU_ILLEGAL_ADDRESS);
		return SK_CU_ILLEGAL_ADDRESS;
	}
	m = vcu_memory((uintptr_t)ptr, 0);
	if (m && m->device >= 0)
		vcu_misuse("a device pointer where the host's was asked for");
	return SK_CU_SUCCESS;
}

void vcu_landed(const struct vcu_op *op)
{
	struct vcu_locked *l;

	if (op->kind != VCU_COPY)
		return;
	l = vcu_locked(op->dst, 1);
	if (!l)
		l = vcu_locked(op->src, 1);
	if (l && l->flying)
		l->flying--;
}

/* What goes to the device is read in the call, and arrives later. */
static void stage(struct vcu_op *op)
{
	op->staged = malloc(op->width * op->height);
	if (!op->staged)
		vcu_misuse("out of memory");
	for (size_t row = 0; row < op->height; row++)
		memcpy(op->staged + row * op->width,
		       op->src + row * op->src_pitch, op->width);
	op->src = op->staged;
	op->src_pitch = op->width;
}

/* With the lock held. */
static sk_cu_result launch_pageable(struct CUstream_st *stream, bool out,
				    struct vcu_op *op)
{
	struct vcu_point end;
	sk_cu_result r = vcu_check_unsafe();

	if (r != SK_CU_SUCCESS)
		return r;
	vcu()->pageable++;
	if (!out)
		stage(op);
	end = vcu_append(stream, op);
	if (out)
		vcu_reach(end);
	return SK_CU_SUCCESS;
}

/* With the lock held. */
static sk_cu_result launch(sk_cu_stream handle, bool out, struct vcu_op *op,
			   const struct side *host)
{
	struct CUstream_st *stream;
	sk_cu_result r = vcu_stream(handle, &stream);

	if (r != SK_CU_SUCCESS)
		return r;
	if (!host->locked)
		return launch_pageable(stream, out, op);
	host->locked->flying++;
	op->locked = true;
	(void)vcu_append(stream, op);
	return SK_CU_SUCCESS;
}

static sk_cu_result copy(sk_cu_stream stream, bool out, sk_cu_ptr device,
			 size_t device_pitch, const void *host,
			 size_t host_pitch, size_t width, size_t height)
{
	struct side d = { 0 }, h = { 0 };
	struct vcu_op op;
	sk_cu_result r;

	r = device_side(device, span(device_pitch, width, height), !out, &d);
	if (r == SK_CU_SUCCESS)
		r = host_side(host, span(host_pitch, width, height), out, &h);
	if (r != SK_CU_SUCCESS)
		return r;
	op = (struct vcu_op){
		.kind = VCU_COPY,
		.dst = out ? h.at : d.at,
		.src = out ? d.at : h.at,
		.dst_pitch = out ? host_pitch : device_pitch,
		.src_pitch = out ? device_pitch : host_pitch,
		.width = width,
		.height = height,
	};
	r = launch(stream, out, &op, &h);
	if (r == SK_CU_SUCCESS)
		*(out ? &vcu()->bytes_out : &vcu()->bytes_in) +=
			width * height;
	return r;
}

static bool overlap(uintptr_t a, size_t a_bytes, uintptr_t b, size_t b_bytes)
{
	return a < b + b_bytes && b < a + a_bytes;
}

/* Within a device. With the lock held. */
static sk_cu_result copy_across(sk_cu_stream handle, sk_cu_ptr dst,
				size_t dst_pitch, sk_cu_ptr src,
				size_t src_pitch, size_t width, size_t height)
{
	struct side to = { 0 }, from = { 0 };
	struct CUstream_st *stream;
	sk_cu_result r;

	if (height == 1 && overlap(dst, width, src, width))
		vcu_misuse("a copy of %zu bytes to where they are", width);
	r = device_side(dst, span(dst_pitch, width, height), true, &to);
	if (r == SK_CU_SUCCESS)
		r = device_side(src, span(src_pitch, width, height), false,
				&from);
	if (r == SK_CU_SUCCESS)
		r = vcu_stream(handle, &stream);
	if (r != SK_CU_SUCCESS)
		return r;
	(void)vcu_append(stream, &(struct vcu_op){
		.kind = VCU_COPY, .dst = to.at, .src = from.at,
		.dst_pitch = dst_pitch, .src_pitch = src_pitch,
		.width = width, .height = height });
	vcu()->bytes_across += width * height;
	return SK_CU_SUCCESS;
}

sk_cu_result cuMemcpyDtoDAsync_v2(sk_cu_ptr dst, sk_cu_ptr src, size_t bytes,
				  sk_cu_stream stream)
{
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuMemcpyDtoDAsync);
	if (!bytes)
		return SK_CU_SUCCESS;
	vcu_lock();
	r = copy_across(stream, dst, bytes, src, bytes, bytes, 1);
	vcu_unlock();
	return r;
}

sk_cu_result cuMemcpyDtoHAsync_v2(void *dst, sk_cu_ptr src, size_t bytes,
				  sk_cu_stream stream)
{
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuMemcpyDtoHAsync);
	if (!bytes)
		return SK_CU_SUCCESS;
	vcu_lock();
	r = copy(stream, true, src, bytes, dst, bytes, bytes, 1);
	vcu_unlock();
	return r;
}

sk_cu_result cuMemcpyHtoDAsync_v2(sk_cu_ptr dst, const void *src,
				  size_t bytes, sk_cu_stream stream)
{
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuMemcpyHtoDAsync);
	if (!bytes)
		return SK_CU_SUCCESS;
	vcu_lock();
	r = copy(stream, false, dst, bytes, src, bytes, bytes, 1);
	vcu_unlock();
	return r;
}

static bool is_pitch(size_t pitch, size_t width)
{
	return pitch >= width && pitch <= 0x7fffffff;
}

/* Rows between the device and another place. With the lock held. */
static sk_cu_result copy_rows(const sk_cu_memcpy2d *c, sk_cu_stream stream)
{
	bool out = c->src_type == SK_CU_MEMORY_DEVICE;
	bool in = c->dst_type == SK_CU_MEMORY_DEVICE;
	size_t from = c->src_x + c->src_y * c->src_pitch;
	size_t to = c->dst_x + c->dst_y * c->dst_pitch;

	if (!out && !in)
		vcu_misuse("a copy of kinds %u to %u is not simulated",
			   c->src_type, c->dst_type);
	if (out && in && vcu_mode("pitches") &&
	    (c->src_pitch % PITCH || c->dst_pitch % PITCH))
		return SK_CU_INVALID_VALUE;
	if (out && in)
		return copy_across(stream, c->dst_device + to, c->dst_pitch,
				   c->src_device + from, c->src_pitch,
				   c->width, c->height);
	if (out)
		return copy(stream, true, c->src_device + from, c->src_pitch,
			    (char *)c->dst_host + to, c->dst_pitch, c->width,
			    c->height);
	return copy(stream, false, c->dst_device + to, c->dst_pitch,
		    (const char *)c->src_host + from, c->src_pitch, c->width,
		    c->height);
}

sk_cu_result cuMemcpy2DAsync_v2(const sk_cu_memcpy2d *c, sk_cu_stream stream)
{
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuMemcpy2DAsync);
	if (!c || !is_pitch(c->src_pitch, c->src_x + c->width) ||
	    !is_pitch(c->dst_pitch, c->dst_x + c->width))
		return SK_CU_INVALID_VALUE;
	if (!c->width || !c->height)
		return SK_CU_SUCCESS;
	vcu_lock();
	r = copy_rows(c, stream);
	vcu_unlock();
	return r;
}

/* Its rows, but for where they begin. */
static sk_cu_memcpy2d plane_of(const sk_cu_memcpy3d *c)
{
	return (sk_cu_memcpy2d){
		.src_x = c->src_x,
		.src_type = c->src_type,
		.src_host = c->src_host,
		.src_device = c->src_device,
		.src_pitch = c->src_pitch,
		.dst_x = c->dst_x,
		.dst_type = c->dst_type,
		.dst_host = c->dst_host,
		.dst_device = c->dst_device,
		.dst_pitch = c->dst_pitch,
		.width = c->width,
		.height = c->height,
	};
}

/* Heights are those of the memory, and may be none of a single plane. */
static bool is_box(const sk_cu_memcpy3d *c)
{
	if (c->src_reserved || c->dst_reserved ||
	    !is_pitch(c->src_pitch, c->src_x + c->width) ||
	    !is_pitch(c->dst_pitch, c->dst_x + c->width))
		return false;
	return c->depth <= 1 || (c->src_height >= c->src_y + c->height &&
				 c->dst_height >= c->dst_y + c->height);
}

sk_cu_result cuMemcpy3DAsync_v2(const sk_cu_memcpy3d *c, sk_cu_stream stream)
{
	sk_cu_result r = SK_CU_SUCCESS;
	sk_cu_memcpy2d plane;

	VCU_ENTER_CONTEXT(cuMemcpy3DAsync);
	if (!c || !is_box(c))
		return SK_CU_INVALID_VALUE;
	if (!c->width || !c->height)
		return SK_CU_SUCCESS;
	plane = plane_of(c);
	vcu_lock();
	for (size_t z = 0; z < c->depth && r == SK_CU_SUCCESS; z++) {
		plane.src_y = c->src_y + (c->src_z + z) * c->src_height;
		plane.dst_y = c->dst_y + (c->dst_z + z) * c->dst_height;
		r = copy_rows(&plane, stream);
	}
	vcu_unlock();
	return r;
}

sk_cu_result cuMemsetD8Async(sk_cu_ptr ptr, unsigned char byte, size_t bytes,
			     sk_cu_stream handle)
{
	struct side d = { 0 };
	struct CUstream_st *stream;
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuMemsetD8Async);
	if (!bytes)
		return SK_CU_SUCCESS;
	vcu_lock();
	r = device_side(ptr, bytes, true, &d);
	if (r == SK_CU_SUCCESS)
		r = vcu_stream(handle, &stream);
	if (r == SK_CU_SUCCESS)
		(void)vcu_append(stream, &(struct vcu_op){
			.kind = VCU_SET, .dst = d.at, .byte = byte,
			.width = bytes, .height = 1, .race = vcu()->race });
	vcu_unlock();
	return r;
}

/* ---- batches ---- */

static bool attributes_are_right(const sk_cu_copy_attributes *attributes,
				 const size_t *first_of, size_t n_attributes,
				 size_t n)
{
	if (!n_attributes || n_attributes > n || !attributes || !first_of)
		return false;
	for (size_t i = 0; i < n_attributes; i++) {
		if (attributes[i].source_order < 1 ||
		    attributes[i].source_order > 3 ||
		    attributes[i].flags > SK_CU_COPY_OVERLAP)
			return false;
		if (i ? first_of[i] <= first_of[i - 1] || first_of[i] >= n :
			first_of[0])
			return false;
	}
	return true;
}

struct place {
	sk_cu_ptr at;
	size_t bytes;
};

static int by_address(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return (x->at > y->at) - (x->at < y->at);
}

/* The last that begins before there; those that come lie behind it. */
static const struct place *last_before(const struct place *v, size_t n,
				       sk_cu_ptr end)
{
	size_t low = 0, high = n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (v[mid].at < end)
			low = mid + 1;
		else
			high = mid;
	}
	return low ? &v[low - 1] : NULL;
}

/* Copies of a batch come in any order: none may have to do with what another
 * one writes. */
static void check_independent(const sk_cu_ptr *dsts, const sk_cu_ptr *srcs,
			      const size_t *sizes, size_t n)
{
	struct place *v = calloc(n, sizeof(*v));

	if (!v)
		vcu_misuse("out of memory");
	for (size_t i = 0; i < n; i++)
		v[i] = (struct place){ dsts[i], sizes[i] };
	qsort(v, n, sizeof(*v), by_address);
	for (size_t i = 1; i < n; i++)
		if (v[i - 1].at + v[i - 1].bytes > v[i].at)
			vcu_misuse("two copies of a batch to one place");
	for (size_t i = 0; i < n; i++) {
		const struct place *p = last_before(v, n, srcs[i] + sizes[i]);

		if (p && overlap(p->at, p->bytes, srcs[i], sizes[i]))
			vcu_misuse("a copy of a batch reads what another one "
				   "of it writes");
	}
	free(v);
}

/* With the lock held. Addresses of a batch are the device's. */
static sk_cu_result copy_either(sk_cu_ptr dst, sk_cu_ptr src, size_t bytes,
				sk_cu_stream stream)
{
	if (vcu_mode("no-host-pointers") &&
	    !(vcu_memory(src, 0) && vcu_memory(dst, 0))) {
		vcu_spoil(vcu_current(), SK_CU_ILLEGAL_ADDRESS);
		return SK_CU_SUCCESS;
	}
	if (vcu_memory(src, 0) && vcu_memory(dst, 0))
		return copy_across(stream, dst, bytes, src, bytes, bytes, 1);
	if (vcu_memory(src, 0))
		return copy(stream, true, src, bytes, (void *)(uintptr_t)dst,
			    bytes, bytes, 1);
	return copy(stream, false, dst, bytes, (void *)(uintptr_t)src, bytes,
		    bytes, 1);
}

/* Of the one that it is subject to. With the lock held. */
static void count_flags(const sk_cu_copy_attributes *attributes,
			const size_t *first_of, size_t n_attributes, size_t i,
			size_t bytes)
{
	size_t k = 0;

	while (k + 1 < n_attributes && first_of[k + 1] <= i)
		k++;
	if (attributes[k].flags & SK_CU_COPY_OVERLAP)
		vcu()->bytes_overlap += bytes;
}

static sk_cu_result batch(sk_cu_ptr *dsts, sk_cu_ptr *srcs, size_t *sizes,
			  size_t n, sk_cu_copy_attributes *attributes,
			  size_t *first_of, size_t n_attributes,
			  size_t *failed, sk_cu_stream stream)
{
	sk_cu_result r = SK_CU_SUCCESS;

	/* As long as it is none's. */
	if (failed)
		*failed = SIZE_MAX;
	if (!n || (uintptr_t)stream <= SK_CU_STREAM_LEGACY ||
	    !attributes_are_right(attributes, first_of, n_attributes, n))
		return SK_CU_INVALID_VALUE;
	for (size_t i = 0; i < n; i++)
		if (!sizes[i])
			return SK_CU_INVALID_VALUE;
	check_independent(dsts, srcs, sizes, n);
	vcu_lock();
	for (size_t i = n; i-- > 0 && r == SK_CU_SUCCESS;) {
		r = copy_either(dsts[i], srcs[i], sizes[i], stream);
		if (r == SK_CU_SUCCESS)
			count_flags(attributes, first_of, n_attributes, i,
				    sizes[i]);
		if (r != SK_CU_SUCCESS && failed)
			*failed = i;
	}
	vcu_unlock();
	return r;
}

sk_cu_result cuMemcpyBatchAsync_v2(sk_cu_ptr *dsts, sk_cu_ptr *srcs,
				   size_t *sizes, size_t n,
				   sk_cu_copy_attributes *attributes,
				   size_t *first_of, size_t n_attributes,
				   sk_cu_stream stream)
{
	VCU_ENTER_CONTEXT(cuMemcpyBatchAsync);
	return batch(dsts, srcs, sizes, n, attributes, first_of, n_attributes,
		     NULL, stream);
}

sk_cu_result cuMemcpyBatchAsync(sk_cu_ptr *dsts, sk_cu_ptr *srcs,
				size_t *sizes, size_t n,
				sk_cu_copy_attributes *attributes,
				size_t *first_of, size_t n_attributes,
				size_t *failed, sk_cu_stream stream)
{
	VCU_ENTER_CONTEXT(cuMemcpyBatchAsync);
	if (!failed)
		vcu_misuse("the batch of CUDA 12.8 was called as that of 13");
	return batch(dsts, srcs, sizes, n, attributes, first_of, n_attributes,
		     failed, stream);
}
