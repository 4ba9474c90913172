/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/drain.h"

#include <assert.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "layout/layout.h"
#include "memory/extent.h"
#include "memory/slot.h"

enum { FD_DEVICE, FD_DATA, FD_IMAGES };

struct draining {
	const struct sk_os *os;
	const struct sk_wire_worker *order;
	const int *fds;
	const struct drain_watch *watch;
	uint64_t since;			/* bytes, since it was told last */
	char *data;			/* templates, and extents */
	const struct sk_extent *extents;
	struct sk_layout *layouts[2];
	void *images[2];		/* mapped */
	uint64_t *sums[2];
	struct sk_cuda_share *share;
	struct sk_cuda_lane *lane;
};

/* ---- what came ---- */

static int read_data(struct draining *d, struct sk_err *err)
{
	const struct sk_wire_worker *o = d->order;
	uint64_t heads = o->header_bytes[0] + o->header_bytes[1];
	uint64_t bytes = heads + o->n_extents * sizeof(*d->extents), at = 0;
	ssize_t n = 1;

	if (o->n_extents > SK_EXTENTS_MAX ||
	    heads > 2 * ((uint64_t)SK_HEADER_MAX + 2 * SK_PAGE))
		return sk_err_set(err, -EINVAL, "%u extents and %llu bytes of "
				  "headers to drain", o->n_extents,
				  (unsigned long long)heads);
	d->data = malloc(bytes + 1);
	if (!d->data)
		return sk_err_set(err, -ENOMEM, "no memory for a header");
	for (; at < bytes && n > 0; at += n > 0 ? (uint64_t)n : 0)
		n = d->os->pread(d->os, d->fds[FD_DATA], d->data + at,
				 bytes - at, at);
	if (n <= 0)
		return sk_err_set(err, n < 0 ? (int)n : -ENODATA, "cannot read "
				  "what is to be drained");
	/* Headers are whole pages. */
	d->extents = (const struct sk_extent *)(d->data + heads);
	return 0;
}

static int parse(struct draining *d, int n_fds, struct sk_err *err)
{
	const struct sk_wire_worker *o = d->order;
	const char *at = d->data;
	int r, fd = FD_IMAGES;

	for (int k = 0; k < 2; k++) {
		if (!o->header_bytes[k])
			continue;
		if (fd == n_fds)
			return sk_err_set(err, -EINVAL, "%d descriptors to "
					  "drain", n_fds);
		r = sk_layout_parse(at, o->header_bytes[k], o->image_bytes[k],
				    &d->layouts[k], err);
		if (r >= 0)
			r = sk_slot_map_fd(d->os, d->fds[fd++],
					   o->image_bytes[k], true,
					   &d->images[k], err);
		if (r < 0)
			return r;
		at += o->header_bytes[k];
		d->sums[k] = calloc(d->layouts[k]->n_sums + 1u,
				    sizeof(**d->sums));
		if (!d->sums[k])
			return sk_err_set(err, -ENOMEM, "no memory for "
					  "checksums");
	}
	return 0;
}

/* The agent has checked them; what is mapped here is what counts here. */
static int check_extents(const struct draining *d, struct sk_err *err)
{
	uint64_t from[2] = { 0 }, to[2] = { 0 }, bytes;
	int r;

	for (int k = 0; k < 2; k++)
		if (d->layouts[k]) {
			from[k] = d->layouts[k]->header_bytes;
			to[k] = d->layouts[k]->image_bytes;
		}
	r = sk_extents_check(d->extents, d->order->n_extents, from, to, &bytes,
			    err);
	if (r >= 0 && bytes > d->order->bytes)
		r = sk_err_set(err, -EINVAL, "the extents are more than the "
			       "device slot has");
	return r;
}

/* ---- copying ---- */

/* So much more is done. */
static void advance(struct draining *d, uint64_t bytes)
{
	d->since += bytes;
	if (d->since < DRAIN_STEP)
		return;
	d->since = 0;
	d->watch->further(d->watch->ctx);
}

/* A step at a time: a link that others use is slow, and no reason to give up
 * while bytes come. */
static int copy_extent(struct draining *d, const struct sk_extent *p,
		       uint64_t base, struct sk_err *err)
{
	const struct sk_copy copy = {
		.dst = (char *)d->images[p->kind] + p->from,
		.src = (const char *)(uintptr_t)base,
		.run = p->to - p->from, .bytes = p->to - p->from };
	uint64_t at = 0;
	int r = 0;

	while (at < copy.bytes && r >= 0) {
		uint64_t left = copy.bytes - at, n = DRAIN_STEP - d->since;

		n = n < left ? n : left;
		r = sk_cuda_lane_out(d->lane, &copy, at, at + n, NULL, err);
		if (r >= 0 && d->since + n == DRAIN_STEP)
			r = sk_cuda_lane_finish(d->lane, err);
		if (r >= 0)
			advance(d, n);
		at += n;
	}
	return r;
}

static int copy_all(struct draining *d, struct sk_err *err)
{
	uint64_t base = sk_cuda_share_ptr(d->share);
	int r = 0;

	for (uint32_t i = 0; i < d->order->n_extents && r >= 0; i++) {
		r = copy_extent(d, &d->extents[i], base, err);
		base = sk_extent_next(&d->extents[i], base);
	}
	/* Whatever failed: what was asked for writes to the slot. */
	if (r < 0) {
		(void)sk_cuda_lane_finish(d->lane, NULL);
		return r;
	}
	r = sk_cuda_lane_finish(d->lane, err);
	if (r >= 0 && !sk_cuda_share_lives(d->share))
		r = sk_err_set(err, -EIO, "the process that held the device "
			       "slot has ended");
	return r;
}

static void take_sums(struct draining *d, int k)
{
	const struct sk_layout *l = d->layouts[k];

	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];

		for (uint32_t s = 0; s < e->n_sums; s++) {
			uint64_t at = s * SK_SUM_CHUNK, n = e->bytes - at;

			n = n < SK_SUM_CHUNK ? n : SK_SUM_CHUNK;
			d->sums[k][e->first_sum + s] = sk_xxh3(
				(char *)d->images[k] + e->offset + at, n);
			advance(d, n);
		}
	}
}

static void stamp(struct draining *d)
{
	for (int k = 0; k < 2; k++) {
		const struct sk_stamp stamp = {
			.run = d->order->run, .run_id = d->order->run_id,
			.step = (uint64_t)d->order->step, .sums = d->sums[k] };

		if (!d->layouts[k])
			continue;
		take_sums(d, k);
		sk_layout_stamp(d->layouts[k], &stamp, d->images[k]);
	}
}

/* ---- all of it ---- */

static void release(struct draining *d)
{
	(void)sk_cuda_lane_free(d->lane);
	(void)sk_cuda_share_unmap(d->share);
	for (int k = 0; k < 2; k++) {
		free(d->sums[k]);
		sk_slot_unmap(d->os, d->images[k], d->order->image_bytes[k]);
		(void)sk_layout_free(d->layouts[k]);
	}
	free(d->data);
}

int drain(const struct sk_os *os, struct sk_cuda_device *device,
	  const struct sk_wire_worker *order, const int *fds, int n_fds,
	  const struct drain_watch *watch, struct sk_err *err)
{
	struct draining d = { .os = os, .order = order, .fds = fds,
			      .watch = watch };
	int r;

	if (n_fds < FD_IMAGES)
		return sk_err_set(err, -EINVAL, "%d descriptors to drain",
				  n_fds);
	r = read_data(&d, err);
	if (r >= 0)
		r = parse(&d, n_fds, err);
	if (r >= 0)
		r = check_extents(&d, err);
	if (r >= 0)
		r = sk_cuda_share_map(device, fds[FD_DEVICE], order->bytes,
				      false, &d.share, err);
	if (r >= 0)
		r = sk_cuda_lane_new(device, &d.lane, err);
	if (r >= 0)
		r = copy_all(&d, err);
	if (r >= 0)
		stamp(&d);
	release(&d);
	return r;
}
