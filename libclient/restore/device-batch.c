/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/device-batch.h"

#include "restore/device-pass.h"
#include "restore/job.h"
#include "restore/passing.h"
#include "restore/sums.h"

/* ---- delivering ---- */

/* How the job takes its bytes out of the chunk. */
static int passing_of(const struct sk_device_pass *d, size_t i,
		      struct sk_passing *ret)
{
	return sk_restore_prepare_job(d->rs, &d->rs->jobs[i], 0, ret, NULL);
}

/* Whether chunk @i goes on in memory and in a tensor where the one before it
 * ends: then one copy takes both. */
static bool goes_on(const struct sk_device_pass *d,
		    const struct sk_device_batch *batch, size_t i)
{
	const struct sk_device_chunk *a = &batch->chunks[i - 1], *b = a + 1;
	const struct sk_restore_job *x = &d->rs->jobs[a->from],
				    *y = &d->rs->jobs[b->from];

	return b->right && b->gathered && a->to - a->from == 1 &&
	       b->to - b->from == 1 && x->piece == y->piece &&
	       x->chunk + 1 == y->chunk &&
	       batch->spans[i - 1].at + batch->spans[i - 1].bytes ==
	       batch->spans[i].at;
}

/* Job @i takes its bytes out of chunk @from, whose neighbours up to @to are
 * the same piece's. */
static int take_out(struct sk_device_pass *d, const struct sk_device_batch *b,
		    size_t i, size_t from, size_t to)
{
	const char *bytes = (const char *)(uintptr_t)b->spans[from].at;
	struct sk_passing first, last;
	struct sk_copy copy;
	int r = passing_of(d, i, &first);

	last = first;
	if (r >= 0 && to - from > 1)
		r = passing_of(d, b->chunks[to - 1].from, &last);
	if (r < 0)
		return r;
	sk_restore_touch(d->rs, d->rs->jobs[i].piece);
	copy = sk_passing_out_of(&first, first.from, bytes);
	return sk_cuda_lane_across(d->lane, &copy, first.first, last.last,
				   NULL);
}

static int deliver_chunks(struct sk_device_pass *d,
			  const struct sk_device_batch *b, size_t from,
			  size_t to)
{
	int r = 0;

	for (size_t i = b->chunks[from].from;
	     i < b->chunks[from].to && r >= 0; i++)
		if (sk_device_pass_is_here(d, i))
			r = take_out(d, b, i, from, to);
	return r;
}

/* What turned out to be right goes from our memory to where it is wanted. */
static int deliver(struct sk_device_pass *d, const struct sk_device_batch *b,
		   size_t n)
{
	bool any = false;
	int r = 0;

	for (size_t i = 0, to; i < n && r >= 0; i = to) {
		to = i + 1;
		if (!b->chunks[i].gathered || !b->chunks[i].right)
			continue;
		while (to < n && goes_on(d, b, to))
			to++;
		r = deliver_chunks(d, b, i, to);
		any = true;
	}
	/* So that what fails is mended by whoever comes next. */
	if (any && sk_cuda_lane_finish(d->lane, NULL) < 0)
		r = -EIO;
	return r;
}

/* ---- verifying ---- */

static uint64_t sum_of(const struct sk_restoring *rs,
		       const struct sk_restore_job *job)
{
	const struct sk_restore_piece *p = &rs->pieces[job->piece];

	return sk_restore_sum(&rs->images[p->image], p->entry, job->chunk);
}

/* What is wrong in memory is found there, and told by whoever reads it next. */
static void report(struct sk_device_pass *d)
{
	const struct sk_restoring *rs = d->rs;
	struct sk_msg msg = { .type = SK_MSG_REPORT_BAD, .body.bad = {
		.image = d->copy.image, .place = SK_PLACE_DEVICE } };

	if (d->locked.lock)
		return;
	d->rs->report.damaged++;
	(void)sk_conn_call(&d->rs->conn, &msg, NULL, 0, NULL, NULL,
			   sk_until(rs->sk), NULL);
}

static void done(struct sk_device_pass *d, const struct sk_device_chunk *c,
		 uint64_t bytes)
{
	struct sk_report *r = &d->rs->report;
	struct sk_passing p;

	for (size_t i = c->from; i < c->to; i++) {
		if (!sk_device_pass_is_here(d, i) ||
		    passing_of(d, i, &p) < 0)
			continue;
		d->rs->jobs[i].on_device = true;
		r->bytes_memory += p.last - p.first;
		if (!d->locked.lock)
			r->bytes_device_slot += p.last - p.first;
	}
	/* What has come out of memory is right there, for all who read it. */
	if (d->locked.lock && d->rs->jobs[c->from].verify)
		d->rs->jobs[c->from].good = true;
	r->bytes_verified += d->verify ? bytes : 0;
	if (!d->verify)
		sk_restore_trust(d->rs, 0);
}

/* A copy is one of its own; what lies in memory is read there next, by who may
 * rely on another rank. */
static void doubt(const struct sk_device_pass *d,
		  const struct sk_device_chunk *c)
{
	for (size_t i = c->from; i < c->to && d->locked.lock; i++)
		d->rs->jobs[i].doubted = true;
}

static size_t compare(struct sk_device_pass *d, struct sk_device_batch *b,
		      size_t n)
{
	size_t wrong = 0;

	for (size_t i = 0; i < n; i++) {
		struct sk_device_chunk *c = &b->chunks[i];

		c->right = !d->verify || b->sums[i] ==
			   sum_of(d->rs, &d->rs->jobs[c->from]);
		if (c->right)
			continue;
		doubt(d, c);
		wrong++;
	}
	return wrong;
}

/* ---- a batch ---- */

bool sk_device_batch_can_hash(const struct sk_device_pass *d,
			      struct sk_device_batch *b)
{
	const struct sk_gpu *gpu = &d->rs->state->gpus.v[d->gpu];

	return b->hash || sk_cuda_hash_new(gpu->device, &b->hash, NULL) >= 0;
}

int sk_device_batch_ask(struct sk_device_pass *d, struct sk_device_batch *b)
{
	struct sk_cuda_lane *lane = d->beside ? d->beside : d->lane;
	int r = sk_device_batch_can_hash(d, b) ? 0 : -ENOMEM;

	if (d->beside && r >= 0)
		r = sk_cuda_mark_set(d->come, d->lane, NULL);
	if (d->beside && r >= 0)
		r = sk_cuda_mark_hold(d->come, sk_cuda_lane_stream(lane),
				      NULL);
	return r < 0 ? r : sk_cuda_hash_ask(b->hash, lane, b->spans, b->n,
					    NULL);
}

/* Whoever held the copy has ended: it is neither right nor wrong. */
static bool is_void(const struct sk_device_pass *d)
{
	return d->copy.share && !sk_cuda_share_lives(d->copy.share);
}

void sk_device_batch_settle(struct sk_device_pass *d,
			    struct sk_device_batch *b)
{
	size_t n = b->n, wrong;

	b->n = 0;
	b->bytes = 0;
	if (!d->failed && d->verify)
		d->failed = sk_cuda_hash_take(b->hash, b->sums, n, NULL) < 0;
	if (d->failed)
		return;
	wrong = compare(d, b, n);
	d->failed = deliver(d, b, n) < 0 || is_void(d);
	for (size_t i = 0; i < n && !d->failed; i++)
		if (b->chunks[i].right)
			done(d, &b->chunks[i], b->spans[i].bytes);
	if (wrong && !is_void(d))
		report(d);
	/* The rest of it is not worth the time. */
	d->failed |= wrong;
}
