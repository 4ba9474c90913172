/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/device-pass.h"

#include "base/util.h"
#include "restore/gpu.h"
#include "restore/job.h"
#include "restore/passing.h"
#include "restore/sums.h"

/* Memory of ours on the device that chunks pass through: so much at once that
 * waiting for it counts for little. */
#define SCRATCH_BYTES ((uint64_t)32 << 20)
#define SCRATCH_ALIGN ((uint64_t)64)
/* What is hashed while as much comes over the link, which takes some ms: only
 * of the last the hash is waited for. */
#define TURN_BYTES ((uint64_t)128 << 20)
/* Neighbours are asked for when they are as many, so that the link has
 * something to do while the rest is added. */
#define RUN_BYTES ((uint64_t)16 << 20)

/* ---- which jobs ---- */

bool sk_device_pass_is_here(const struct sk_device_pass *d, size_t i)
{
	const struct sk_restoring *rs = d->rs;

	return !rs->jobs[i].on_device &&
	       rs->state->locals[rs->pieces[rs->jobs[i].piece].local].gpu ==
		       d->gpu;
}

size_t sk_device_pass_count(const struct sk_device_pass *d, size_t from,
			    size_t to)
{
	size_t n = 0;

	for (; from < to; from++)
		n += sk_device_pass_is_here(d, from);
	return n;
}

/* How the job takes its bytes out of the chunk, whose entry is at @base. */
static int passing_of(const struct sk_device_pass *d, size_t i, uint64_t base,
		      struct sk_passing *ret)
{
	return sk_restore_prepare_job(d->rs, &d->rs->jobs[i], base, ret, NULL);
}

static bool is_whole(const struct sk_passing *p)
{
	return !p->copy.ndim && p->last - p->first == p->to - p->from;
}

static void touch(struct sk_device_pass *d, size_t i)
{
	const struct sk_restoring *rs = d->rs;

	__atomic_store_n(&rs->touched[rs->pieces[rs->jobs[i].piece].local], 1,
			 __ATOMIC_RELAXED);
}

/* ---- where it comes from ---- */

/* The address of the entry there; 0: it is not. */
static uint64_t base_of(const struct sk_device_pass *d,
			const struct sk_entry *e)
{
	return d->locked.lock ? (uintptr_t)d->locked.map + e->offset :
	       sk_device_copy_at(&d->copy, e->offset, e->offset + e->bytes);
}

static int copy_in(struct sk_device_pass *d, const struct sk_copy *copy,
		   uint64_t from, uint64_t to)
{
	return d->locked.lock ?
	       sk_cuda_lane_in(d->lane, copy, from, to, d->locked.lock, NULL) :
	       sk_cuda_lane_across(d->lane, copy, from, to, NULL);
}

/* ---- copying ---- */

static int copy_run(struct sk_device_pass *d)
{
	const struct sk_copy copy = {
		.dst = (char *)(uintptr_t)d->dst,
		.src = (const char *)(uintptr_t)d->src,
		.run = d->bytes, .bytes = d->bytes };
	uint64_t bytes = d->bytes;

	d->bytes = 0;
	return bytes ? copy_in(d, &copy, 0, bytes) : 0;
}

/* @memory is what it goes to: the allocation's id, of ours none. */
static int copy_chunk(struct sk_device_pass *d, const struct sk_cuda_span *to,
		      uint64_t from, uint64_t memory)
{
	int r = 0;

	if (d->dst + d->bytes != to->at || d->src + d->bytes != from ||
	    d->memory != memory) {
		r = copy_run(d);
		d->memory = memory;
		d->dst = to->at;
		d->src = from;
	}
	d->bytes += to->bytes;
	return r < 0 || d->bytes < RUN_BYTES ? r : copy_run(d);
}

/* ---- our memory ---- */

/* Up to SCRATCH_BYTES: what the jobs from @from on may have use for. */
static uint64_t scratch_wanted(const struct sk_device_pass *d, size_t from)
{
	const struct sk_restoring *rs = d->rs;
	uint64_t bytes = 0, first, last;

	for (; from < d->n_jobs && bytes < SCRATCH_BYTES; from++) {
		if (!sk_device_pass_is_here(d, from))
			continue;
		sk_restore_chunk(rs->pieces[rs->jobs[from].piece].entry,
				 rs->jobs[from].chunk, &first, &last);
		bytes += sk_round_up(last - first, SCRATCH_ALIGN);
	}
	return bytes < SCRATCH_BYTES ? bytes : SCRATCH_BYTES;
}

/* A device that is nearly full has room for less, or none. */
static void make_scratch(struct sk_device_pass *d, size_t from)
{
	const struct sk_gpu *gpu = &d->rs->state->gpus.v[d->gpu];
	uint64_t bytes = scratch_wanted(d, from);
	int r;

	r = sk_cuda_alloc(gpu->device, bytes, &d->scratch, NULL);
	while (r == -ENOMEM && bytes / 4 >= SK_SUM_CHUNK) {
		bytes /= 4;
		r = sk_cuda_alloc(gpu->device, bytes, &d->scratch, NULL);
	}
	if (r < 0)
		d->scratch = 0;
	d->room = r < 0 ? 0 : bytes;
	d->no_scratch = r < 0;
}

void sk_device_pass_release(struct sk_device_pass *d)
{
	sk_cuda_release(d->rs->state->gpus.v[d->gpu].device, d->scratch);
	d->scratch = d->room = d->used = 0;
	d->no_scratch = false;
	for (int i = 0; i < 2; i++)
		d->batches[i].hash = sk_cuda_hash_free(d->batches[i].hash);
	d->come = sk_cuda_mark_free(d->come);
	d->beside = sk_cuda_lane_free(d->beside);
}

/* ---- delivering ---- */

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
	int r = passing_of(d, i, 0, &first);

	last = first;
	if (r >= 0 && to - from > 1)
		r = passing_of(d, b->chunks[to - 1].from, 0, &last);
	if (r < 0)
		return r;
	touch(d, i);
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
		    passing_of(d, i, 0, &p) < 0)
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

static bool can_hash(const struct sk_device_pass *d, struct sk_device_batch *b)
{
	const struct sk_gpu *gpu = &d->rs->state->gpus.v[d->gpu];

	return b->hash || sk_cuda_hash_new(gpu->device, &b->hash, NULL) >= 0;
}

/* What takes the sums is made when they are to be taken: then the link is at
 * work. The first that there is has our code loaded. */
bool sk_device_pass_can_verify(const struct sk_device_pass *d)
{
	return !d->verify || d->batches[d->at].hash ||
	       sk_cuda_hash_can(d->rs->state->gpus.v[d->gpu].device,
				NULL) >= 0;
}

/* After what has come so far, on the other lane where there is one. */
static int ask_for_hash(struct sk_device_pass *d, struct sk_device_batch *b)
{
	struct sk_cuda_lane *lane = d->beside ? d->beside : d->lane;
	int r = can_hash(d, b) ? 0 : -ENOMEM;

	if (d->beside && r >= 0)
		r = sk_cuda_mark_set(d->come, d->lane, NULL);
	if (d->beside && r >= 0)
		r = sk_cuda_mark_hold(d->come, sk_cuda_lane_stream(lane),
				      NULL);
	return r < 0 ? r : sk_cuda_hash_ask(b->hash, lane, b->spans, b->n,
					    NULL);
}

/* All of it is under way then, or all has failed. */
static void ask_for_batch(struct sk_device_pass *d, struct sk_device_batch *b)
{
	d->failed |= copy_run(d) < 0;
	if (!d->failed && d->verify && b->n)
		d->failed = ask_for_hash(d, b) < 0;
}

/* Nothing may be under way when the copy is unmapped. */
static void stop(struct sk_device_pass *d)
{
	d->failed |= sk_cuda_lane_finish(d->lane, NULL) < 0;
	if (d->beside)
		d->failed |= sk_cuda_lane_finish(d->beside, NULL) < 0;
}

/* What has been asked for is there, and right. */
static void settle(struct sk_device_pass *d, struct sk_device_batch *b)
{
	size_t n = b->n, wrong;

	b->n = 0;
	b->bytes = 0;
	if (!d->failed && d->verify)
		d->failed = sk_cuda_hash_take(b->hash, b->sums, n, NULL) < 0;
	if (d->failed)
		return;
	wrong = compare(d, b, n);
	d->failed = deliver(d, b, n) < 0;
	for (size_t i = 0; i < n && !d->failed; i++)
		if (b->chunks[i].right)
			done(d, &b->chunks[i], b->spans[i].bytes);
	if (wrong)
		report(d);
	/* The rest of it is not worth the time. */
	d->failed |= wrong;
}

/* The older one first. */
void sk_device_pass_finish(struct sk_device_pass *d)
{
	struct sk_device_batch *b = &d->batches[d->at];
	struct sk_device_batch *before = &d->batches[!d->at];

	ask_for_batch(d, b);
	if (!d->verify || d->failed)
		stop(d);
	if (before->n)
		settle(d, before);
	if (b->n)
		settle(d, b);
	d->used = 0;
	if (d->verify)
		stop(d);
}

/* ---- one hashed while the next one comes ---- */

static bool can_turn(struct sk_device_pass *d)
{
	struct sk_cuda_device *device = d->rs->state->gpus.v[d->gpu].device;

	if (!d->verify || !d->locked.lock ||
	    !can_hash(d, &d->batches[!d->at]))
		return false;
	if (!d->come && sk_cuda_mark_new(device, &d->come, NULL) < 0)
		return false;
	return d->beside ||
	       sk_cuda_lane_new(device, &d->beside, NULL) >= 0;
}

static void turn(struct sk_device_pass *d)
{
	if (d->failed || !can_turn(d)) {
		sk_device_pass_finish(d);
		return;
	}
	ask_for_batch(d, &d->batches[d->at]);
	d->at = !d->at;
	if (d->batches[d->at].n)
		settle(d, &d->batches[d->at]);
	if (d->failed)
		sk_device_pass_finish(d);
}

/* ---- a chunk ---- */

static void append(struct sk_device_pass *d, const struct sk_device_chunk *c,
		   const struct sk_cuda_span *span)
{
	struct sk_device_batch *b = &d->batches[d->at];

	b->spans[b->n] = *span;
	b->chunks[b->n++] = *c;
	b->bytes += span->bytes;
	if (d->failed || b->n == SK_CUDA_SPANS_MAX ||
	    (d->locked.lock && d->verify && b->bytes >= TURN_BYTES))
		turn(d);
}

static uint64_t memory_of(const struct sk_device_pass *d, size_t i)
{
	const struct sk_restoring *rs = d->rs;

	return sk_restore_memory_of(rs, &rs->pieces[rs->jobs[i].piece]);
}

/* Straight to where it is wanted: whole, or unverified. */
static void add_straight(struct sk_device_pass *d,
			 const struct sk_device_chunk *c, uint64_t base)
{
	struct sk_cuda_span to = { 0 };
	struct sk_passing p;

	for (size_t i = c->from; i < c->to && !d->failed; i++) {
		if (!sk_device_pass_is_here(d, i))
			continue;
		d->failed = passing_of(d, i, base, &p) < 0;
		if (d->failed)
			break;
		touch(d, i);
		to = (struct sk_cuda_span){
			(uintptr_t)p.copy.dst + p.first, p.to - p.from };
		d->failed = is_whole(&p) ?
			    copy_chunk(d, &to, base + p.from,
				       memory_of(d, i)) < 0 :
			    copy_in(d, &p.copy, p.first, p.last) < 0;
	}
	append(d, c, &to);
}

/* All of it to our memory, where it is hashed, and goes on from. */
static void add_gathered(struct sk_device_pass *d,
			 const struct sk_device_chunk *c,
			 const struct sk_passing *p, uint64_t base)
{
	struct sk_cuda_span to = { 0, p->to - p->from };

	if (to.bytes > d->room)
		return;
	if (d->used + to.bytes > d->room)
		sk_device_pass_finish(d);
	if (d->failed)
		return;
	to.at = d->scratch + d->used;
	d->used = sk_round_up(d->used + to.bytes, SCRATCH_ALIGN);
	d->failed = copy_chunk(d, &to, base + p->from, SK_GPU_NO_ID) < 0;
	append(d, c, &to);
}

/* Jobs [from, to) are all that read one chunk. */
void sk_device_pass_add(struct sk_device_pass *d, size_t from, size_t to)
{
	const struct sk_restoring *rs = d->rs;
	const struct sk_entry *e = rs->pieces[rs->jobs[from].piece].entry;
	uint64_t base = base_of(d, e);
	struct sk_device_chunk c = { .from = from, .to = to };
	size_t n = sk_device_pass_count(d, from, to);
	struct sk_passing p;

	while (from < to && !sk_device_pass_is_here(d, from))
		from++;
	if (!base || !n || passing_of(d, from, base, &p) < 0)
		return;
	c.gathered = d->verify && (n > 1 || !is_whole(&p));
	if (!c.gathered) {
		add_straight(d, &c, base);
		return;
	}
	if (!d->scratch && !d->no_scratch)
		make_scratch(d, from);
	add_gathered(d, &c, &p, base);
}
