/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/on-device.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "cuda/hash.h"
#include "restore/device-copy.h"
#include "restore/job.h"
#include "restore/passing.h"

/* A chunk on its way. */
struct chunk {
	size_t job;
	uint64_t bytes;
};

/* What is done on one GPU for one image. */
struct device_pass {
	struct sk_restoring *rs;
	int gpu;
	struct sk_cuda_lane *lane;
	bool verify;
	struct sk_cuda_hash *hash;	/* where it is to; made late */
	struct sk_device_copy copy;
	bool failed;			/* nothing that is under way counts */
	size_t n;			/* chunks, up to SK_CUDA_SPANS_MAX */
	struct chunk chunks[SK_CUDA_SPANS_MAX];
	struct sk_cuda_span spans[SK_CUDA_SPANS_MAX];
	uint64_t sums[SK_CUDA_SPANS_MAX];
	/* Neighbours that are copied at once. */
	uint64_t dst, src, bytes;
};

/* ---- which jobs ---- */

static bool is_alone(const struct sk_restoring *rs, size_t i, size_t j)
{
	const struct sk_restore_job *a = &rs->jobs[i], *b = &rs->jobs[j];

	return a->chunk != b->chunk ||
	       rs->pieces[a->piece].entry != rs->pieces[b->piece].entry;
}

/* Whether this job is about nobody's bytes but its own: who verifies a chunk
 * for others as well has to read what they read. */
static bool is_own(const struct sk_restoring *rs, size_t i)
{
	const struct sk_restore_job *job = &rs->jobs[i];

	return !(job->verify && job->sharers > 1) &&
	       (!i || is_alone(rs, i - 1, i)) &&
	       (i + 1 == rs->n_jobs || is_alone(rs, i, i + 1));
}

/* On the GPU, whole and contiguous: where its bytes are and are to be. */
static bool find_chunk(struct device_pass *d, size_t i,
		       struct sk_cuda_span *ret_to, uint64_t *ret_from)
{
	const struct sk_restoring *rs = d->rs;
	const struct sk_restore_piece *p = &rs->pieces[rs->jobs[i].piece];
	uint64_t base, at = p->entry->offset;
	struct sk_passing passing;

	if (rs->state->locals[p->local].gpu != d->gpu || !is_own(rs, i))
		return false;
	base = sk_device_copy_at(&d->copy, at, at + p->entry->bytes);
	if (!base || sk_restore_prepare_job(rs, &rs->jobs[i], base, &passing,
					    NULL) < 0)
		return false;
	if (passing.copy.ndim ||
	    passing.last - passing.first != passing.to - passing.from)
		return false;
	*ret_to = (struct sk_cuda_span){
		(uintptr_t)passing.copy.dst + passing.first,
		passing.to - passing.from };
	*ret_from = base + passing.from;
	return true;
}

/* ---- copying ---- */

static int copy_run(struct device_pass *d)
{
	const struct sk_copy copy = {
		.dst = (char *)(uintptr_t)d->dst,
		.src = (const char *)(uintptr_t)d->src,
		.run = d->bytes, .bytes = d->bytes };
	uint64_t bytes = d->bytes;

	d->bytes = 0;
	return bytes ? sk_cuda_lane_across(d->lane, &copy, 0, bytes, NULL) : 0;
}

static int copy_chunk(struct device_pass *d, const struct sk_cuda_span *to,
		      uint64_t from)
{
	int r = 0;

	if (d->dst + d->bytes != to->at || d->src + d->bytes != from) {
		r = copy_run(d);
		d->dst = to->at;
		d->src = from;
	}
	d->bytes += to->bytes;
	return r;
}

/* ---- verifying ---- */

static uint64_t sum_of(const struct sk_restoring *rs,
		       const struct sk_restore_job *job)
{
	const struct sk_restore_piece *p = &rs->pieces[job->piece];

	return rs->images[p->image].sums[p->entry->first_sum + job->chunk];
}

static void report(struct device_pass *d)
{
	const struct sk_restoring *rs = d->rs;
	struct sk_msg msg = { .type = SK_MSG_REPORT_BAD, .body.bad = {
		.image = d->copy.image, .place = SK_PLACE_DEVICE } };

	d->rs->report.damaged++;
	(void)sk_conn_call(&d->rs->conn, &msg, NULL, 0, NULL, NULL,
			   sk_until(rs->sk), NULL);
}

static void done(struct device_pass *d, const struct chunk *c)
{
	struct sk_restore_job *job = &d->rs->jobs[c->job];
	struct sk_report *r = &d->rs->report;

	job->good = job->verify;
	job->on_device = true;
	r->bytes_memory += c->bytes;
	r->bytes_device_slot += c->bytes;
	r->bytes_verified += d->verify ? c->bytes : 0;
}

/* What has been asked for is there, and right. */
static void finish(struct device_pass *d)
{
	size_t n = d->n, wrong = 0;

	d->n = 0;
	d->failed |= copy_run(d) < 0;
	if (!d->failed && d->verify)
		d->failed = sk_cuda_hash_run(d->hash, d->lane, d->spans, n,
					     d->sums, NULL) < 0;
	/* Nothing may be under way when the copy is unmapped. */
	d->failed |= sk_cuda_lane_finish(d->lane, NULL) < 0;
	if (d->failed)
		return;
	for (size_t i = 0; i < n; i++) {
		if (d->verify &&
		    d->sums[i] != sum_of(d->rs, &d->rs->jobs[d->chunks[i].job]))
			wrong++;
		else
			done(d, &d->chunks[i]);
	}
	if (wrong)
		report(d);
	/* The rest of it is not worth the time. */
	d->failed = wrong;
}

/* ---- an image ---- */

static void add(struct device_pass *d, size_t i)
{
	struct sk_cuda_span to;
	uint64_t from;

	if (!find_chunk(d, i, &to, &from))
		return;
	__atomic_store_n(&d->rs->touched[d->rs->pieces[d->rs->jobs[i].piece]
						 .local], 1, __ATOMIC_RELAXED);
	d->failed = copy_chunk(d, &to, from) < 0;
	d->spans[d->n] = to;
	d->chunks[d->n++] = (struct chunk){ i, to.bytes };
	if (d->failed || d->n == SK_CUDA_SPANS_MAX)
		finish(d);
}

/* The first copy that there is has our code loaded. */
static bool can_verify(struct device_pass *d)
{
	const struct sk_gpu *gpu = &d->rs->state->gpus.v[d->gpu];

	return !d->verify || d->hash ||
	       sk_cuda_hash_new(gpu->device, &d->hash, NULL) >= 0;
}

/* Jobs [from, to) are of it. What is not done then is done out of host
 * memory. */
static void run_image(struct device_pass *d, size_t from, size_t to)
{
	struct sk_restoring *rs = d->rs;
	const struct sk_restore_piece *p = &rs->pieces[rs->jobs[from].piece];

	if (sk_device_copy_open(rs, &rs->images[p->image], d->gpu,
				&d->copy) < 0)
		return;
	d->failed = !can_verify(d);
	for (; from < to && !d->failed; from++)
		add(d, from);
	if (d->n)
		finish(d);
	sk_device_copy_close(rs, &d->copy);
}

static bool wants(const struct sk_restoring *rs, size_t from, size_t to,
		  int gpu)
{
	for (; from < to; from++)
		if (rs->state->locals[rs->pieces[rs->jobs[from].piece].local]
			    .gpu == gpu)
			return true;
	return false;
}

static size_t end_of_image(const struct sk_restoring *rs, size_t from,
			   size_t n)
{
	uint32_t image = rs->pieces[rs->jobs[from].piece].image;

	while (from < n && rs->pieces[rs->jobs[from].piece].image == image)
		from++;
	return from;
}

static void run_gpu(struct device_pass *d, size_t n)
{
	size_t to;

	d->lane = d->rs->state->gpus.v[d->gpu].lane;
	for (size_t from = 0; from < n; from = to) {
		to = end_of_image(d->rs, from, n);
		if (wants(d->rs, from, to, d->gpu))
			run_image(d, from, to);
	}
	d->hash = sk_cuda_hash_free(d->hash);
}

/* ---- all of them ---- */

/* Those that are done behind the others, which stay by position. */
static size_t put_behind(struct sk_restoring *rs, size_t n)
{
	struct sk_restore_job *done = calloc(n + 1, sizeof(*done));
	size_t left = 0, n_done = 0;

	/* Then they are done once more. */
	if (!done)
		return n;
	for (size_t i = 0; i < n; i++)
		if (rs->jobs[i].on_device)
			done[n_done++] = rs->jobs[i];
		else
			rs->jobs[left++] = rs->jobs[i];
	memcpy(rs->jobs + left, done, n_done * sizeof(*done));
	free(done);
	return left;
}

void sk_restore_on_device(struct sk_restoring *rs, size_t *n)
{
	struct device_pass *d;

	if (!*n || !sk_conn_makes_device_slots(&rs->conn))
		return;
	d = calloc(1, sizeof(*d));
	if (!d)
		return;
	d->rs = rs;
	d->verify = !(rs->flags & SK_RESTORE_NO_VERIFY);
	for (d->gpu = 0; d->gpu < rs->state->gpus.n; d->gpu++)
		if (wants(rs, 0, *n, d->gpu))
			run_gpu(d, *n);
	free(d);
	*n = put_behind(rs, *n);
}
