/* SPDX-License-Identifier: Apache-2.0 */
#include "state/device-slot.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "conn/memfd.h"
#include "state/state.h"
#include "state/work.h"

/* What one takes of a device is not told; some hundred MiB. */
#define CONTEXT ((uint64_t)512 << 20)

void sk_device_slot_free(struct sk_state *state)
{
	struct sk_device_slot *d = &state->device_slot;

	(void)sk_cuda_share_unmap(d->share);
	free(d->extents);
	free(d->at);
	/* Who asks for the status needs no lock. */
	__atomic_store_n(&d->bytes, 0, __ATOMIC_RELAXED);
	d->again = (struct sk_again){ 0 };
	d->gpu = 0;
	d->stamp = 0;
	d->share = NULL;
	d->extents = NULL;
	d->at = NULL;
	d->n_extents = 0;
}

/* ---- extents ---- */

static int by_place(const void *a, const void *b)
{
	const struct sk_extent *x = a, *y = b;

	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	return (x->from > y->from) - (x->from < y->from);
}

/* Neighbours become one. */
static uint32_t join(struct sk_extent *v, uint32_t n)
{
	uint32_t last = 0;

	for (uint32_t i = 1; i < n; i++) {
		if (v[i].kind == v[last].kind && v[i].from == v[last].to)
			v[last].to = v[i].to;
		else
			v[++last] = v[i];
	}
	return n ? last + 1 : 0;
}

/* Errors: -ENOMEM; -E2BIG none, or too many. */
static int find_extents(struct sk_device_slot *d, const struct sk_work *w)
{
	uint64_t at = 0;
	uint32_t n = 0;

	d->extents = calloc(w->n_ops + 1u, sizeof(*d->extents));
	d->at = calloc(w->n_ops + 1u, sizeof(*d->at));
	if (!d->extents || !d->at)
		return -ENOMEM;
	for (uint32_t i = 0; i < w->n_ops; i++) {
		const struct sk_op *op = &w->ops[i];
		uint64_t from = (uintptr_t)op->copy.dst;

		if (op->gpu >= 0 && op->copy.bytes)
			d->extents[n++] = (struct sk_extent){
				.from = from, .to = from + op->copy.bytes,
				.kind = op->kind };
	}
	qsort(d->extents, n, sizeof(*d->extents), by_place);
	d->n_extents = join(d->extents, n);
	for (uint32_t i = 0; i < d->n_extents; i++) {
		d->at[i] = at;
		at = sk_extent_next(&d->extents[i], at);
	}
	return d->n_extents && d->n_extents <= SK_EXTENTS_MAX ? 0 : -E2BIG;
}

uint64_t sk_device_slot_at(const struct sk_device_slot *d,
			   const struct sk_op *op)
{
	uint64_t from = (uintptr_t)op->copy.dst;
	uint32_t low = 0, high = d->n_extents;

	/* The last that begins no later. */
	while (high - low > 1) {
		uint32_t mid = low + (high - low) / 2;
		const struct sk_extent *p = &d->extents[mid];

		if (p->kind < op->kind ||
		    (p->kind == op->kind && p->from <= from))
			low = mid;
		else
			high = mid;
	}
	assert(d->extents[low].kind == op->kind &&
	       d->extents[low].from <= from &&
	       from + op->copy.bytes <= d->extents[low].to);
	return sk_cuda_share_ptr(d->share) + d->at[low] +
	       (from - d->extents[low].from);
}

/* ---- asking ---- */

static int ask(struct sk_state *state, const struct sk_cuda_uuid *uuid,
	       uint64_t id, uint64_t generation, uint32_t flags)
{
	struct sk_device_slot *d = &state->device_slot;
	const struct sk_os *os = state->sk->os;
	struct sk_msg msg = { .type = SK_MSG_DEVICE_SLOT,
			      .body.device_slot = {
		.state = id, .n_extents = d->n_extents, .flags = flags } };
	const struct iovec part = { d->extents,
				    d->n_extents * sizeof(*d->extents) };
	int fds[SK_MSG_FDS], n = 0, r;
	int fd = sk_memfd_with(os, "shardkeep:extents", &part, 1);

	if (fd < 0)
		return fd;
	memcpy(msg.body.device_slot.uuid, uuid->bytes, sizeof(uuid->bytes));
	r = sk_conn_call_fds_in(&state->sk->conn, generation, &msg, &fd, 1,
				fds, &n, sk_until(state->sk), NULL);
	(void)os->close(os, fd);
	if (r >= 0 && n != 1)
		r = -EPROTO;
	if (r >= 0)
		r = sk_cuda_share_map(state->gpus.v[d->gpu].device, fds[0],
				      msg.body.device_slot_reply.bytes, true,
				      &d->share, NULL);
	if (r >= 0)
		__atomic_store_n(&d->bytes,
				 msg.body.device_slot_reply.bytes,
				 __ATOMIC_RELAXED);
	sk_close_fds(os, fds, n);
	return r;
}

/* What the agent had may be of a device that was reset since. That is tried
 * once: another one may do no better. */
static int ask_twice(struct sk_state *state, const struct sk_cuda_uuid *uuid,
		     uint64_t id, uint64_t generation)
{
	struct sk_device_slot *d = &state->device_slot;
	int r = ask(state, uuid, id, generation, 0);

	if (r >= 0)
		d->anew = false;
	if (r != -EBADF || d->anew)
		return r;
	d->anew = true;
	return ask(state, uuid, id, generation, SK_DEVICE_SLOT_ANEW);
}

bool sk_device_slot_serves(const struct sk_state *state,
			   const struct sk_work *work)
{
	const struct sk_device_slot *d = &state->device_slot;

	return d->share && work->gpus == 1u << d->gpu &&
	       sk_cuda_share_lives(d->share);
}

/* What no time changes: none serves that many extents, there are none at this
 * agent, or the GPU takes one process at a time. */
static bool is_final(int r)
{
	return r == -E2BIG || r == -ENODEV || r == -EUSERS || r == -EINVAL;
}

/* A worker's context takes memory of the device that the trainer may want just
 * then, so none is begun for nothing each time. The first may find one that the
 * agent has still. */
static int check_room(const struct sk_state *state)
{
	const struct sk_device_slot *d = &state->device_slot;
	uint32_t last = d->n_extents - 1;
	uint64_t bytes = sk_extent_next(&d->extents[last], d->at[last]);

	return d->again.refusals &&
	       sk_cuda_left(state->gpus.v[d->gpu].device) < bytes + CONTEXT ?
	       -ENOMEM : 0;
}

static void refused(struct sk_state *state, int r)
{
	struct sk_device_slot *d = &state->device_slot;
	const struct sk_os *os = state->sk->os;
	struct sk_again again = d->again;

	sk_device_slot_free(state);
	if (r != -EAGAIN)	/* else it is being made */
		sk_again_refused(&again, os->now_ns(os));
	if (is_final(r))
		sk_again_never(&again);
	d->again = again;
}

void sk_device_slot_ask(struct sk_state *state, const struct sk_work *work,
			uint64_t id, uint64_t generation)
{
	struct sk_device_slot *d = &state->device_slot;
	const struct sk_os *os = state->sk->os;
	struct sk_cuda_uuid uuid;
	int r;

	if (d->share && !sk_cuda_share_lives(d->share))
		refused(state, -EIO);
	if (d->share || !sk_again_is_due(&d->again, os->now_ns(os)) ||
	    !sk_conn_makes_device_slots(&state->sk->conn) ||
	    __builtin_popcount(work->gpus) != 1)
		return;
	d->gpu = __builtin_ctz(work->gpus);
	r = sk_cuda_uuid(state->gpus.v[d->gpu].device, &uuid, NULL);
	if (r >= 0)
		r = find_extents(d, work);
	if (r >= 0)
		r = check_room(state);
	if (r >= 0)
		r = ask_twice(state, &uuid, id, generation);
	if (r < 0)
		refused(state, r);
	else
		d->again = (struct sk_again){ 0 };
}
