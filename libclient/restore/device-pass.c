/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/device-pass.h"

#include "base/util.h"
#include "restore/gpu.h"
#include "restore/job.h"
#include "restore/passing.h"

#define SCRATCH_ALIGN ((uint64_t)64)

/* ---- how much together ---- */

static const struct sk_device_limits limits_of_devices = {
	.chunks = SK_CUDA_SPANS_MAX,
	/* What is hashed while as much comes over the link, which takes some
	 * ms: only of the last the hash is waited for. */
	.turn = (uint64_t)128 << 20,
	/* So that the link has something to do while the rest is added. */
	.run = (uint64_t)16 << 20,
	/* So much at once that waiting for it counts for little. */
	.scratch = (uint64_t)32 << 20,
};

struct sk_device_limits sk_device_limits_of(const struct sk_state *state)
{
	return state->gpus.limits ? *state->gpus.limits : limits_of_devices;
}

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

static bool is_whole(const struct sk_passing *p)
{
	return !p->copy.ndim && p->last - p->first == p->to - p->from;
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
	return r < 0 || d->bytes < d->limits.run ? r : copy_run(d);
}

/* ---- our memory ---- */

/* Up to the limit: what the jobs from @from on may have use for. */
static uint64_t scratch_wanted(const struct sk_device_pass *d, size_t from)
{
	const struct sk_restoring *rs = d->rs;
	uint64_t most = d->limits.scratch, bytes = 0, first, last;

	for (; from < d->n_jobs && bytes < most; from++) {
		if (!sk_device_pass_is_here(d, from))
			continue;
		sk_restore_chunk(rs->pieces[rs->jobs[from].piece].entry,
				 rs->jobs[from].chunk, &first, &last);
		bytes += sk_round_up(last - first, SCRATCH_ALIGN);
	}
	return bytes < most ? bytes : most;
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

/* ---- a batch ---- */

/* What takes the sums is made when they are to be taken: then the link is at
 * work. The first that there is has our code loaded. */
bool sk_device_pass_can_verify(const struct sk_device_pass *d)
{
	return !d->verify || d->batches[d->at].hash ||
	       sk_cuda_hash_can(d->rs->state->gpus.v[d->gpu].device,
				NULL) >= 0;
}

/* All of it is under way then, or all has failed. */
static void ask_for_batch(struct sk_device_pass *d, struct sk_device_batch *b)
{
	d->failed |= copy_run(d) < 0;
	if (!d->failed && d->verify && b->n)
		d->failed = sk_device_batch_ask(d, b) < 0;
}

/* Nothing may be under way when the copy is unmapped. */
static void stop(struct sk_device_pass *d)
{
	d->failed |= sk_cuda_lane_finish(d->lane, NULL) < 0;
	if (d->beside)
		d->failed |= sk_cuda_lane_finish(d->beside, NULL) < 0;
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
		sk_device_batch_settle(d, before);
	if (b->n)
		sk_device_batch_settle(d, b);
	d->used = 0;
	if (d->verify)
		stop(d);
}

/* ---- one hashed while the next one comes ---- */

static bool can_turn(struct sk_device_pass *d)
{
	struct sk_cuda_device *device = d->rs->state->gpus.v[d->gpu].device;

	if (!d->verify || !d->locked.lock ||
	    !sk_device_batch_can_hash(d, &d->batches[!d->at]))
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
		sk_device_batch_settle(d, &d->batches[d->at]);
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
	if (d->failed || b->n == d->limits.chunks ||
	    (d->locked.lock && d->verify && b->bytes >= d->limits.turn))
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
	struct sk_restoring *rs = d->rs;
	struct sk_cuda_span to = { 0 };
	struct sk_passing p;

	for (size_t i = c->from; i < c->to && !d->failed; i++) {
		if (!sk_device_pass_is_here(d, i))
			continue;
		d->failed = sk_restore_prepare_job(rs, &rs->jobs[i], base, &p,
						   NULL) < 0;
		if (d->failed)
			break;
		sk_restore_touch(rs, rs->jobs[i].piece);
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
	if (!base || !n ||
	    sk_restore_prepare_job(rs, &rs->jobs[from], base, &p, NULL) < 0)
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
