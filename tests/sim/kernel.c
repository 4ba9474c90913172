/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver: code for devices. It takes the product's own, as text,
 * and no other; what runs is the same source, compiled for this machine, thread
 * by thread, when the stream comes to it. Threads come in no order.
 */
#include <stdlib.h>
#include <string.h>

#include "vcuda.h"

#include "cuda/kernels.cl"

extern const char sk_cuda_kernels_text[];

enum { PARTS, LANES, MERGE, COPIES, BOX, KERNELS };

static const char *const names[KERNELS] = {
	"sk_parts", "sk_lanes", "sk_merge", "sk_copies", "sk_box" };

struct CUfunc_st {
	struct CUmod_st *module;
	int kernel;
	bool loaded;
};

/* Calls of this thread that load code, and may wait for the context. */
static _Thread_local uint64_t loads;

uint64_t vcu_loads(void)
{
	return loads;
}

/* With the lock held. */
static void finish_loading(sk_cu_function f)
{
	loads += !f->loaded;
	f->loaded = true;
}

/* One that was launched. */
struct launch {
	struct CUctx_st *context;
	int kernel;
	uint64_t blocks, threads;	/* of each block */
	uint64_t params[5];
	struct sk_kernel_box box;	/* of BOX, in place of those */
};

/* ---- modules ---- */

static sk_cu_result load(sk_cu_module *module)
{
	struct CUmod_st *m = calloc(1, sizeof(*m));

	if (!m)
		return SK_CU_OUT_OF_MEMORY;
	m->functions = calloc(KERNELS, sizeof(*m->functions));
	m->context = vcu_current();
	m->next = vcu()->modules;
	vcu()->modules = m;
	for (int i = 0; i < KERNELS; i++)
		m->functions[i] = (struct CUfunc_st){ m, i, false };
	loads++;
	*module = m;
	return SK_CU_SUCCESS;
}

sk_cu_result cuModuleLoadData(sk_cu_module *module, const void *image)
{
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuModuleLoadData);
	if (!module || !image)
		return SK_CU_INVALID_VALUE;
	if (vcu_mode("no-compiler"))
		return SK_CU_NO_COMPILER;
	if (strcmp(image, sk_cuda_kernels_text))
		return SK_CU_INVALID_PTX;
	vcu_lock();
	r = vcu_check_unsafe();
	if (r == SK_CU_SUCCESS)
		r = load(module);
	vcu_unlock();
	return r;
}

/* With the lock held. What lay there may be another's code by then. */
static struct CUmod_st *find(const struct CUmod_st *module)
{
	struct CUmod_st *m = vcu()->modules;

	while (m && m != module)
		m = m->next;
	if (m && m->gone)
		vcu_misuse("code that was unloaded is used");
	return m;
}

sk_cu_result cuModuleUnload(sk_cu_module module)
{
	struct CUmod_st *m;

	VCU_ENTER_CONTEXT(cuModuleUnload);
	VCU_UNSAFE();
	vcu_lock();
	m = find(module);
	if (m) {
		vcu_drain(m->context);
		m->gone = true;
	}
	vcu_unlock();
	return m ? SK_CU_SUCCESS : SK_CU_INVALID_HANDLE;
}

sk_cu_result cuModuleGetFunction(sk_cu_function *function,
				 sk_cu_module module, const char *name)
{
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuModuleGetFunction);
	VCU_UNSAFE();
	if (!function || !name)
		return SK_CU_INVALID_VALUE;
	vcu_lock();
	r = find(module) ? SK_CU_NOT_FOUND : SK_CU_INVALID_HANDLE;
	for (int i = 0; r == SK_CU_NOT_FOUND && i < KERNELS; i++)
		if (!strcmp(name, names[i])) {
			*function = &module->functions[i];
			r = SK_CU_SUCCESS;
			if (vcu_setting("VCUDA_VERSION", 13000) < 12040)
				finish_loading(*function);
		}
	vcu_unlock();
	return r;
}

sk_cu_result cuFuncLoad(sk_cu_function function)
{
	VCU_ENTER_CONTEXT(cuFuncLoad);
	VCU_UNSAFE();
	if (!function)
		return SK_CU_INVALID_VALUE;
	vcu_lock();
	(void)find(function->module);
	finish_loading(function);
	vcu_unlock();
	return SK_CU_SUCCESS;
}

/* ---- what a kernel touches ---- */

/* As the driver itself sees it; what a device may not touch breaks the
 * context. */
static void *view(const struct launch *l, uint64_t at, uint64_t bytes,
		  bool write)
{
	const struct vcu_memory *m;
	char *p = NULL;

	vcu_lock();
	m = vcu_memory(at, bytes);
	if (m && m->device == l->context->device && vcu_may(at, bytes, write))
		p = m->view + (at - (uintptr_t)m->base);
	else
		vcu_spoil(l->context, SK_CU_ILLEGAL_ADDRESS);
	vcu_unlock();
	return p;
}

/* The table of what is worked on, with views in place of addresses. */
static struct sk_kernel_span *see_spans(const struct launch *l, uint64_t n)
{
	struct sk_kernel_span *v = calloc(n + 1, sizeof(*v)), *spans;

	spans = view(l, l->params[0], n * sizeof(*v), false);
	if (!v || !spans) {
		free(v);
		return NULL;
	}
	memcpy(v, spans, n * sizeof(*v));
	for (uint64_t i = 0; i < n; i++) {
		void *p = v[i].bytes ? view(l, v[i].at, v[i].bytes, false) :
				       v;

		if (!p) {
			free(v);
			return NULL;
		}
		v[i].at = (uintptr_t)p;
	}
	return v;
}

/* Page-locked memory of the host has its address there as well, where devices
 * have no others for it. */
static void *view_locked(uint64_t at, uint64_t bytes)
{
	const struct vcu_locked *locked = NULL;

	vcu_lock();
	if (!vcu_mode("no-host-pointers"))
		locked = vcu_locked((char *)(uintptr_t)at, bytes);
	if (locked && locked->forked)
		vcu_misuse("a kernel reaches %zu bytes at %p, which were "
			   "page-locked and private when the process forked",
			   (size_t)bytes, (void *)(uintptr_t)at);
	vcu_unlock();
	return locked ? (void *)(uintptr_t)at : NULL;
}

/* Bytes that it is to move: out of the device, to it, and within it. */
struct moved {
	uint64_t out, in, across;
};

static bool see_copy(const struct launch *l, struct sk_kernel_copy *c,
		     struct moved *moved)
{
	void *to = view_locked(c->dst, c->bytes);
	void *from = view_locked(c->src, c->bytes);

	moved->out += to ? c->bytes : 0;
	moved->in += from ? c->bytes : 0;
	moved->across += to || from ? 0 : c->bytes;
	from = from ? from : view(l, c->src, c->bytes, false);
	to = to || !from ? to : view(l, c->dst, c->bytes, true);
	c->dst = (uintptr_t)to;
	c->src = (uintptr_t)from;
	return to && from;
}

static struct sk_kernel_copy *see_copies(const struct launch *l, uint64_t n,
					 struct moved *moved)
{
	struct sk_kernel_copy *v = calloc(n + 1, sizeof(*v)), *copies;

	copies = view(l, l->params[0], n * sizeof(*v), false);
	if (!v || !copies) {
		free(v);
		return NULL;
	}
	memcpy(v, copies, n * sizeof(*v));
	for (uint64_t i = 0; i < n; i++)
		if (!see_copy(l, &v[i], moved)) {
			free(v);
			return NULL;
		}
	return v;
}

/* ---- running ---- */

/* A permutation of [0, n), so that nobody relies on an order. */
static uint64_t shuffled(uint64_t i, uint64_t n)
{
	return n - 1 - i;
}

static void hash_lanes(const struct launch *l,
		       const struct sk_kernel_span *spans)
{
	uint64_t n = l->params[1], threads = l->blocks * l->threads;
	bool parts_only = l->kernel == PARTS;
	uint64_t most = l->params[parts_only ? 3 : 4];
	uint64_t *parts = !most ? NULL :
			  view(l, l->params[parts_only ? 2 : 3],
			       n * most * SK_LANES * 8, parts_only);
	uint64_t *sums = parts_only ? NULL :
			 view(l, l->params[2], n * SK_LANES * 8, true);

	if (most && !parts)
		return;
	for (uint64_t i = 0; i < threads; i++)
		if (parts_only)
			sk_kernel_parts(shuffled(i, threads), spans, n, parts,
					most);
		else if (sums)
			sk_kernel_lanes(shuffled(i, threads), spans, n, sums,
					parts, most);
}

static void hash_merge(const struct launch *l,
		       const struct sk_kernel_span *spans)
{
	uint64_t n = l->params[1], threads = l->blocks * l->threads, bytes = 0;
	uint64_t *sums = view(l, l->params[2], n * SK_LANES * 8, false);
	uint64_t *ret = view(l, l->params[3], n * 8, true);

	for (uint64_t i = 0; sums && ret && i < threads; i++)
		sk_kernel_merge(shuffled(i, threads), spans, n, sums, ret);
	for (uint64_t i = 0; i < n; i++)
		bytes += spans[i].bytes;
	vcu_lock();
	vcu()->bytes_hashed += bytes;
	vcu_unlock();
}

static void hash(const struct launch *l)
{
	struct sk_kernel_span *spans = see_spans(l, l->params[1]);

	if (spans && l->kernel == MERGE)
		hash_merge(l, spans);
	else if (spans)
		hash_lanes(l, spans);
	free(spans);
}

static void copies(const struct launch *l)
{
	struct moved moved = { 0 };
	struct sk_kernel_copy *v = see_copies(l, l->params[1], &moved);

	for (uint64_t i = 0; v && i < l->params[1]; i++)
		for (uint64_t t = 0; t < l->threads * l->params[2]; t++)
			sk_kernel_copies(shuffled(t % l->threads, l->threads),
					 l->threads, t / l->threads, &v[i]);
	vcu_lock();
	if (v) {
		vcu()->bytes_across += moved.across;
		vcu()->bytes_out += moved.out;
		vcu()->bytes_in += moved.in;
	}
	vcu_unlock();
	free(v);
}

/* Where a side lies, from its first byte to its last, as the driver sees it:
 * what its address, which may be in the middle, becomes. */
static bool see_side(const struct launch *l, sk_u64 *at,
		     const sk_u64 *strides, bool write)
{
	int64_t low = 0, high = (int64_t)l->box.run;
	char *p;

	for (unsigned d = 0; d < SK_BOX_DIMS; d++) {
		int64_t reach = (int64_t)(l->box.size[d] - 1) *
				(int64_t)strides[d];

		low += reach < 0 ? reach : 0;
		high += reach > 0 ? reach : 0;
	}
	p = view(l, *at + (uint64_t)low, (uint64_t)(high - low), write);
	*at = (uintptr_t)p - (uint64_t)low;
	return p;
}

static void box(const struct launch *l)
{
	struct sk_kernel_box b = l->box;
	uint64_t bytes = b.run, n;

	if (!see_side(l, &b.src, b.src_stride, false) ||
	    !see_side(l, &b.dst, b.dst_stride, true))
		return;
	n = sk_box_tiles(&b);
	for (uint64_t i = 0; i < n; i++)
		for (uint64_t t = 0; t < l->threads; t++)
			sk_kernel_tile(shuffled(t, l->threads), l->threads,
				       shuffled(i, n), &b);
	for (unsigned d = 0; d < SK_BOX_DIMS; d++)
		bytes *= b.size[d];
	vcu_lock();
	vcu()->bytes_across += bytes;
	vcu_unlock();
}

static void run(void *data)
{
	struct launch *l = data;

	if (l->kernel == COPIES)
		copies(l);
	else if (l->kernel == BOX)
		box(l);
	else
		hash(l);
	free(l);
}

/* Parameters are read in the call. With the lock held. */
static sk_cu_result launch(sk_cu_function f, const struct launch *what,
			   sk_cu_stream handle)
{
	struct CUstream_st *stream;
	struct launch *l;
	sk_cu_result r = vcu_stream(handle, &stream);

	if (r != SK_CU_SUCCESS)
		return r;
	if (!find(f->module) || f->module->context != stream->context)
		return SK_CU_INVALID_HANDLE;
	l = malloc(sizeof(*l));
	if (!l)
		return SK_CU_OUT_OF_MEMORY;
	vcu()->lazy += !f->loaded;
	finish_loading(f);
	*l = *what;
	l->context = stream->context;
	(void)vcu_append(stream, &(struct vcu_op){
		.kind = VCU_HOST, .function = run, .kernel = true,
		.data = l });
	return SK_CU_SUCCESS;
}

sk_cu_result cuLaunchKernel(sk_cu_function function, unsigned grid_x,
			    unsigned grid_y, unsigned grid_z, unsigned block_x,
			    unsigned block_y, unsigned block_z,
			    unsigned shared_bytes, sk_cu_stream stream,
			    void **params, void **extra)
{
	static const int counts[KERNELS] = { 4, 5, 4, 3, 0 };
	struct launch l = { .blocks = grid_x, .threads = block_x };
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuLaunchKernel);
	if (!function || !params || extra || shared_bytes || !grid_x ||
	    grid_y != 1 || grid_z != 1 || !block_x || block_x > 1024 ||
	    block_y != 1 || block_z != 1)
		return SK_CU_INVALID_VALUE;
	l.kernel = function->kernel;
	for (int i = 0; i < counts[l.kernel]; i++)
		memcpy(&l.params[i], params[i], sizeof(l.params[i]));
	if (l.kernel == BOX)
		memcpy(&l.box, params[0], sizeof(l.box));
	vcu_lock();
	r = launch(function, &l, stream);
	vcu_unlock();
	return r;
}
