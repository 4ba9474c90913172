/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/deliver.h"

#include <assert.h>
#include <string.h>

#include "restore/gpu.h"
#include "restore/shape.h"
#include "restore/terms.h"

int sk_delivering_new(struct sk_restoring *rs, const struct sk_wants *wants,
		      const struct sk_staging *staging,
		      struct sk_delivering *ret)
{
	uint64_t most = staging->entries * (uint32_t)staging->n;

	*ret = (struct sk_delivering){
		.rs = rs,
		.wants = wants,
		.staging = staging,
		.list = calloc(most + 1, sizeof(*ret->list)),
	};
	return ret->list ? 0 : sk_terms_no_memory(rs);
}

void sk_delivering_free(struct sk_delivering *d)
{
	free(d->list);
}

/* What lies in a window is another rank's word. */
static bool is_mine(const struct sk_delivering *d, int32_t region,
		    const struct sk_landed *l, size_t *ret_index)
{
	const struct sk_wants *w = d->wants;
	int32_t fetcher = d->rs->near_ranks[region];
	size_t first = w->first_of[fetcher];
	size_t n = w->first_of[fetcher + 1] - first;

	if (l->rank != d->rs->state->job.rank || l->index >= n)
		return false;
	*ret_index = first + l->index;
	return l->from >= w->mine[*ret_index].from && l->from < l->to &&
	       l->to <= w->mine[*ret_index].to &&
	       l->offset <= d->staging->window &&
	       l->to - l->from <= d->staging->window - l->offset;
}

void sk_delivering_list(struct sk_delivering *d, uint64_t round)
{
	const struct sk_staging *s = d->staging;

	d->n = 0;
	for (int32_t k = 0; s->memory && k < s->n; k++) {
		uint64_t n = *sk_staging_count(s, k, round);

		for (uint64_t i = 0; i < n && i < s->entries; i++) {
			struct sk_landed l = sk_staging_table(s, k, round)[i];
			size_t index;

			if (!is_mine(d, k, &l, &index))
				continue;
			d->list[d->n++] = (struct sk_delivery){
				d->wants->pieces[index], l.from, l.to,
				sk_staging_data(s, k, round) + l.offset };
		}
	}
}

/* Through buffers that the device reads, a MiB at a time. */
static int deliver_to_gpu(struct sk_restoring *rs,
			  const struct sk_restore_piece *p,
			  const struct sk_delivery *d, struct sk_copy *copy,
			  struct sk_err *err)
{
	struct sk_restore_filling filling = { 0 };
	int r = 0;

	for (uint64_t at = d->from, n; at < d->to && r >= 0; at += n) {
		char *buf;

		n = d->to - at < SK_SUM_CHUNK ? d->to - at : SK_SUM_CHUNK;
		r = sk_restore_fill(rs, &filling, p, n, &buf, err);
		if (r < 0)
			break;
		memcpy(buf, d->bytes + (at - d->from), n);
		copy->src = (const char *)((uintptr_t)buf - at);
		r = sk_restore_filled(rs, &filling, copy, at, at + n, err);
	}
	return sk_restore_filling_end(rs, &filling, r, err);
}

int sk_deliver(struct sk_restoring *rs, const struct sk_delivery *d,
	       struct sk_err *err)
{
	const struct sk_restore_piece *p = &rs->pieces[d->piece];
	const struct sk_local *local = &rs->state->locals[p->local];
	struct sk_copy copy;
	int r = sk_restore_unpack(rs, p, &copy, err);

	if (r < 0)
		return r;
	sk_restore_touch(rs, d->piece);
	__atomic_fetch_add(&rs->report.bytes_remote, d->to - d->from,
			   __ATOMIC_RELAXED);
	if (local->gpu >= 0)
		return deliver_to_gpu(rs, p, d, &copy, err);
	copy.src = (const char *)((uintptr_t)d->bytes - d->from);
	sk_copy_run_range(&copy, d->from, d->to);
	return 0;
}

int sk_delivering_run(const struct sk_delivering *d, size_t index,
		      struct sk_err *err)
{
	assert(index < d->n);
	return sk_deliver(d->rs, &d->list[index], err);
}
