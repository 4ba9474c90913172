/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/on-device.h"

#include <string.h>

#include "base/util.h"
#include "restore/device-pass.h"

enum source {
	OF_COPY,		/* in a device slot */
	OF_LOCKED,		/* in host memory that is page-locked */
};

/* Behind the last of the jobs that read the same chunk. */
static size_t end_of_chunk(const struct sk_restoring *rs, size_t from,
			   size_t to)
{
	const struct sk_restore_job *a = &rs->jobs[from], *b;

	for (size_t i = from + 1; i < to; i++) {
		b = &rs->jobs[i];
		if (a->chunk != b->chunk ||
		    rs->pieces[a->piece].entry != rs->pieces[b->piece].entry)
			return i;
	}
	return to;
}

/* ---- an image ---- */

/* This rank's own, as a rule: what it goes back to while it lives lies in one
 * of its slots, which its snapshots have had locked. */
static bool open_locked(struct sk_device_pass *d,
			const struct sk_restore_image *image)
{
	int fd = image->places[0].fd;

	d->locked.lock = fd < 0 ? NULL :
		sk_gpus_find_locked(d->rs->state, fd, (int)image->kind,
				    image->bytes, &d->locked.map);
	return d->locked.lock;
}

static bool open_it(struct sk_device_pass *d, enum source source,
		    const struct sk_restore_image *image)
{
	return source == OF_LOCKED ? open_locked(d, image) :
	       sk_device_copy_open(d->rs, image, d->gpu, &d->copy) >= 0;
}

static void close_it(struct sk_device_pass *d, enum source source)
{
	if (source == OF_COPY)
		sk_device_copy_close(d->rs, &d->copy);
	d->locked = (struct sk_device_locked){ 0 };
}

/* Jobs [from, to) are of it. What is not done then is done out of host
 * memory. */
static void run_image(struct sk_device_pass *d, enum source source,
		      size_t from, size_t to)
{
	struct sk_restoring *rs = d->rs;
	const struct sk_restore_piece *p = &rs->pieces[rs->jobs[from].piece];

	if (!open_it(d, source, &rs->images[p->image]))
		return;
	d->failed = !sk_device_pass_can_verify(d);
	for (size_t next; from < to && !d->failed; from = next) {
		next = end_of_chunk(rs, from, to);
		sk_device_pass_add(d, from, next);
	}
	sk_device_pass_finish(d);
	close_it(d, source);
}

static size_t end_of_image(const struct sk_restoring *rs, size_t from,
			   size_t n)
{
	uint32_t image = rs->pieces[rs->jobs[from].piece].image;

	while (from < n && rs->pieces[rs->jobs[from].piece].image == image)
		from++;
	return from;
}

static void run_images(struct sk_device_pass *d, enum source source)
{
	size_t to;

	for (size_t from = 0; from < d->n_jobs; from = to) {
		to = end_of_image(d->rs, from, d->n_jobs);
		if (sk_device_pass_count(d, from, to))
			run_image(d, source, from, to);
	}
}

static void run_gpu(struct sk_device_pass *d)
{
	d->lane = d->rs->state->gpus.v[d->gpu].lane;
	if (sk_conn_makes_device_slots(&d->rs->conn))
		run_images(d, OF_COPY);
	run_images(d, OF_LOCKED);
	sk_device_pass_release(d);
}

/* ---- all of them ---- */

/* What was verified was the copy. Who reads the chunk in memory, another rank
 * or another job, relies on what is there: that is hashed still. */
static void leave_to_memory(struct sk_restoring *rs, size_t n)
{
	for (size_t from = 0, to; from < n; from = to) {
		struct sk_restore_job *first = &rs->jobs[from];
		bool all = true;

		to = end_of_chunk(rs, from, n);
		for (size_t i = from; i < to; i++)
			all &= rs->jobs[i].on_device;
		if (!first->on_device || !first->verify || first->good)
			continue;
		first->hash_only = first->sharers > 1 || !all;
		first->good = !first->hash_only;
	}
}

/* Those that are done behind the others, which stay by position. */
static size_t put_behind(struct sk_restoring *rs, size_t n)
{
	struct sk_restore_job *done = calloc(n + 1, sizeof(*done));
	size_t left = 0, n_done = 0;

	/* Then they are done once more. */
	if (!done)
		return n;
	for (size_t i = 0; i < n; i++)
		if (rs->jobs[i].on_device && !rs->jobs[i].hash_only)
			done[n_done++] = rs->jobs[i];
		else
			rs->jobs[left++] = rs->jobs[i];
	memcpy(rs->jobs + left, done, n_done * sizeof(*done));
	free(done);
	return left;
}

void sk_restore_on_device(struct sk_restoring *rs, size_t *n)
{
	struct sk_device_pass *d;

	if (!*n || !rs->state->gpus.n)
		return;
	d = calloc(1, sizeof(*d));
	if (!d)
		return;
	d->rs = rs;
	d->limits = sk_device_limits_of(rs->state);
	d->n_jobs = *n;
	d->verify = !(rs->flags & SK_RESTORE_NO_VERIFY);
	for (d->gpu = 0; d->gpu < rs->state->gpus.n; d->gpu++)
		if (sk_device_pass_count(d, 0, *n))
			run_gpu(d);
	free(d);
	leave_to_memory(rs, *n);
	*n = put_behind(rs, *n);
}
