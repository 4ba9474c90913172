/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/aside.h"

#include <assert.h>

#include "base/pages.h"
#include "restore/terms.h"

static int deliver(void *ctx, size_t unit, struct sk_err *err)
{
	struct sk_aside *a = ctx;

	return sk_deliver(a->rs, &a->list[unit], err);
}

int sk_aside_new(struct sk_restoring *rs, struct sk_cuda_device *gpu,
		 struct sk_cuda_lane *lane, uint64_t bytes, size_t most,
		 struct sk_aside *ret)
{
	*ret = (struct sk_aside){
		.rs = rs,
		.lane = lane,
		.memory = sk_pages_new(rs->sk->os, bytes),
		.bytes = bytes,
		.list = calloc(most + 1, sizeof(*ret->list)),
		.most = most,
		.beside = { .pool = rs->sk->pool, .run = deliver, .ctx = ret },
	};
	assert(bytes && bytes % SK_PAGE == 0);
	sk_beside_init(&ret->beside);
	if (!ret->memory || !ret->list)
		return sk_terms_no_memory(rs);
	rs->report.staging_bytes += bytes;
	/* Without, each copy waits for itself. */
	(void)sk_cuda_lock(gpu, ret->memory, bytes, bytes, &ret->lock, NULL);
	return 0;
}

void sk_aside_free(struct sk_aside *a)
{
	if (!a->rs)
		return;
	(void)sk_cuda_unlock(a->lock);
	(void)sk_pages_free(a->rs->sk->os, a->memory, a->bytes);
	free(a->list);
	sk_beside_fini(&a->beside);
}

int sk_aside_add(struct sk_aside *a, uint32_t piece, uint64_t from,
		 uint64_t to, uint64_t there, uint64_t at)
{
	struct sk_copy copy;
	char *here;

	assert(a->memory && a->n < a->most);
	here = a->memory + at;
	copy = (struct sk_copy){ .dst = here,
				 .src = (const char *)(uintptr_t)there,
				 .run = to - from, .bytes = to - from };
	a->list[a->n++] = (struct sk_delivery){ piece, from, to, here };
	return sk_cuda_lane_out(a->lane, &copy, 0, to - from, a->lock,
				&a->rs->err);
}

void sk_aside_begin(struct sk_aside *a)
{
	if (a->n)
		sk_beside_begin(&a->beside, a->n);
}

void sk_aside_wait(struct sk_aside *a)
{
	if (a->n)
		sk_beside_wait(&a->beside);
	a->n = 0;
}
