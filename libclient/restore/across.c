/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds, as remote.c has them, with windows on the device. Sources pack and
 * verify in host memory, as for the host; the window is copied to the device
 * and sent from there. It is received into one of two windows, and copied from
 * there to the tensors, by way of the host to those that lie elsewhere. What
 * others of the node want of it (relay.h), and other nodes (trees.h), is sent
 * to them out of that window in the next round, in the same group: so all that
 * a rank does in a round is one operation, and no order among them could be
 * wrong.
 */
#include "restore/across.h"

#include <assert.h>

#include "base/util.h"
#include "comm/nccl.h"
#include "restore/agree.h"
#include "restore/aside.h"
#include "restore/beside.h"
#include "restore/by-device.h"
#include "restore/relay.h"
#include "restore/send.h"
#include "restore/shape.h"

struct across {
	struct sk_restoring *rs;
	struct sk_terms terms;
	struct sk_flows flows;
	struct sk_sending sending;
	struct sk_relaying relaying;
	struct sk_aside aside;
	struct sk_beside beside;
	struct sk_flow_part *landing;	/* of one round */
	size_t n_landing;
	struct sk_comm_part *sends, *receives;
	struct sk_cuda_device *gpu;
	struct sk_cuda_lane *lane;
	struct sk_cuda_lock *lock;	/* of what is packed; or NULL */
	uint64_t there_out, there_in;	/* on the device */
	uint64_t there_passed;		/* what others of the node pass on */
	uint64_t window;		/* bytes of one of there_in */
	uint64_t rounds;
	bool relays;			/* some rank does */
};

/* ---- room ---- */

static uint64_t end_of(const struct sk_flow *v, size_t n)
{
	return n ? v[n - 1].base + v[n - 1].cap : 0;
}

static int make_lists(struct across *a)
{
	size_t units, sends, receives;
	int r = sk_flows_make(a->rs, &a->terms, &a->flows);

	if (a->relays)
		r = sk_relaying_new(a->rs, r, &a->terms, &a->flows,
				    &a->relaying);
	if (r < 0)
		return r;
	units = sk_flows_units(a->flows.in, a->flows.n_in);
	sends = a->flows.n_out + a->relaying.most_sends;
	receives = a->flows.n_in + a->relaying.most_receives;
	a->landing = calloc(units + 1, sizeof(*a->landing));
	a->sends = calloc(sends + 1, sizeof(*a->sends));
	a->receives = calloc(receives + 1, sizeof(*a->receives));
	if (!a->landing || !a->sends || !a->receives)
		return sk_terms_no_memory(a->rs);
	return sk_sending_new(a->rs, &a->flows, NULL, &a->sending);
}

static int make_windows(struct across *a)
{
	struct sk_restoring *rs = a->rs;
	uint64_t in = end_of(a->flows.in, a->flows.n_in);
	uint64_t out = a->sending.packed_bytes;
	int r = 0;

	a->window = in > SK_WINDOW_BYTES ? sk_round_up(in, SK_PAGE) :
					   SK_WINDOW_BYTES;
	if (a->flows.n_in)
		r = sk_cuda_alloc(a->gpu, 2 * a->window, &a->there_in,
				  &rs->err);
	if (r >= 0 && a->relaying.window)
		r = sk_cuda_alloc(a->gpu, a->relaying.window, &a->there_passed,
				  &rs->err);
	if (r >= 0 && out)
		r = sk_cuda_alloc(a->gpu, out, &a->there_out, &rs->err);
	rs->report.staging_bytes +=
		(a->there_in ? 2 * a->window : 0) +
		(a->there_passed ? a->relaying.window : 0) +
		(a->there_out ? out : 0);
	a->sending.there = a->there_out;
	a->sending.came = a->there_in;
	a->sending.came_bytes = a->window;
	return r;
}

/* Where some of what comes is not for the device. */
static int make_aside(struct across *a)
{
	const struct sk_restoring *rs = a->rs;
	const struct sk_wants *w = &a->terms.wants;
	uint64_t bytes = a->window + a->relaying.window;
	bool any = false;

	for (size_t i = 0; i < w->n && !any; i++)
		any = !sk_restore_is_by_device(
			rs, rs->pieces[w->pieces[i]].local);
	return any ? sk_aside_new(a->rs, a->gpu, a->lane,
				  sk_round_up(bytes, SK_PAGE),
				  w->n + a->relaying.most_parts,
				  &a->aside) : 0;
}

/* With the lists all that rounds need: once they have begun, nothing is
 * made. */
static int make_room(struct across *a)
{
	struct sk_restoring *rs = a->rs;
	uint64_t out = a->sending.packed_bytes;
	int r = sk_cuda_device(rs->sk->cuda, rs->comm.device->ordinal,
			       &a->gpu, &rs->err);

	if (r >= 0)
		r = sk_cuda_lane_new(a->gpu, &a->lane, &rs->err);
	if (r >= 0)
		r = make_windows(a);
	if (r >= 0)
		r = make_aside(a);
	/* Without, each copy waits for itself. */
	if (r >= 0 && out)
		(void)sk_cuda_lock(a->gpu, a->sending.packed, out, out,
				   &a->lock, NULL);
	return r;
}

/* ---- a round ---- */

static int pack(void *ctx, size_t unit, struct sk_err *err)
{
	struct across *a = ctx;

	return sk_sending_pack(&a->sending, unit, err);
}

static struct sk_copy straight(uint64_t dst, const char *src, uint64_t bytes)
{
	return (struct sk_copy){ .dst = (char *)(uintptr_t)dst, .src = src,
				 .run = bytes, .bytes = bytes };
}

/* What was packed last goes to the device, where it has the same place. */
static int push(struct across *a)
{
	const struct sk_sending *s = &a->sending;
	uint64_t window = s->round % 2 * s->window;
	int r = 0;

	for (size_t i = 0; i < s->n_flows && r >= 0; i++) {
		uint64_t at = window + s->flows[i].base;
		uint64_t n = s->flows[i].bytes;
		struct sk_copy copy = straight(a->there_out + at,
					       s->packed + at, n);

		if (n && !s->flows[i].from)
			r = sk_cuda_lane_in(a->lane, &copy, 0, n, a->lock,
					    &a->rs->err);
	}
	return r;
}

static uint64_t window_of(const struct across *a, uint64_t round)
{
	return a->there_in + round % 2 * a->window;
}

static size_t list_receives(struct across *a, uint64_t round)
{
	struct sk_report *report = &a->rs->report;
	size_t n_receives = 0;

	a->n_landing = 0;
	sk_flows_cut(a->flows.in, a->flows.n_in, round, 0, a->landing,
		     &a->n_landing);
	for (size_t i = 0; i < a->flows.n_in; i++) {
		const struct sk_flow *f = &a->flows.in[i];

		if (!f->bytes)
			continue;
		report->bytes_received += f->bytes;
		report->bytes_device += f->bytes;
		a->receives[n_receives++] = (struct sk_comm_part){
			f->rank, 0,
			(void *)(uintptr_t)(window_of(a, round) + f->base),
			f->bytes };
	}
	return n_receives;
}

/* With it goes on what landed in the round before. */
static int exchange(struct across *a, uint64_t round)
{
	size_t n_sends = sk_sending_list(&a->sending, round, a->sends, 0);
	size_t n_receives;

	if (a->relays && round)
		n_sends = sk_relaying_sends(&a->relaying, a->landing,
					    a->n_landing,
					    window_of(a, round - 1), a->sends,
					    n_sends);
	n_receives = list_receives(a, round);
	if (a->relays && round)
		n_receives = sk_relaying_receives(&a->relaying, round - 1,
						  a->there_passed,
						  a->receives, n_receives);
	return sk_restore_exchange_device(a->rs, a->sends, n_sends,
					  a->receives, n_receives);
}

/* Bytes [from, to) of that piece, which lie at @bytes, and would at @at of what
 * goes aside. */
static int deliver_part(struct across *a, uint32_t piece, uint64_t from,
			uint64_t to, uint64_t bytes, uint64_t at)
{
	struct sk_restoring *rs = a->rs;
	const struct sk_restore_piece *p = &rs->pieces[piece];
	struct sk_copy copy;
	int r;

	if (!sk_restore_is_by_device(rs, p->local))
		return sk_aside_add(&a->aside, piece, from, to, bytes, at);
	r = sk_restore_unpack(rs, p, &copy, &rs->err);
	if (r < 0)
		return r;
	rs->touched[p->local] = 1;
	rs->report.bytes_remote += to - from;
	copy.src = (const char *)(uintptr_t)(bytes - from);
	return sk_cuda_lane_across(a->lane, &copy, from, to, &rs->err);
}

/* What has landed and is this rank's. */
static int deliver_landed(struct across *a, uint64_t round)
{
	const struct sk_wants *w = &a->terms.wants;
	int32_t rank = a->rs->state->job.rank;
	int r = 0;

	for (size_t i = 0; i < a->n_landing; i++) {
		const struct sk_flow_part *p = &a->landing[i];
		const struct sk_consumer *c;
		size_t n;

		c = sk_wants_consumers(w, p->flow->first + p->want, &n);
		for (size_t k = 0; k < n && r >= 0; k++)
			if (c[k].rank == rank)
				r = deliver_part(
					a, w->pieces[w->first_of[rank] +
						     c[k].index],
					p->from, p->to,
					window_of(a, round) + p->offset,
					p->offset);
	}
	return r;
}

static int deliver(struct across *a, uint64_t round)
{
	int r = deliver_landed(a, round);

	for (size_t i = 0; i < a->relaying.n && r >= 0; i++) {
		const struct sk_relay_part *p = &a->relaying.parts[i];

		r = deliver_part(a, p->piece, p->from, p->to,
				 a->there_passed + p->offset,
				 a->window + p->offset);
	}
	return r;
}

static void note(int *failed, int r)
{
	if (*failed >= 0 && r < 0)
		*failed = r;
}

static void note_beside(struct across *a, const struct sk_beside *beside,
			int *failed)
{
	if (*failed < 0 || beside->failed >= 0)
		return;
	a->rs->err = beside->err;
	*failed = beside->failed;
}

/* What was asked of the lane is done; what went aside is delivered from there
 * meanwhile. */
static void finish(struct across *a, int *failed)
{
	note(failed, sk_cuda_lane_finish(a->lane, *failed < 0 ? NULL :
								&a->rs->err));
	if (*failed < 0)
		a->aside.n = 0;
	sk_aside_begin(&a->aside);
}

static void run_round(struct across *a, uint64_t round, int *failed)
{
	int r;

	sk_sending_cut(&a->sending, round + 1);
	sk_beside_begin(&a->beside, a->sending.n);
	finish(a, failed);
	r = exchange(a, round);
	sk_aside_wait(&a->aside);
	if (r >= 0)
		r = deliver(a, round);
	note(failed, r);
	sk_beside_wait(&a->beside);
	note(failed, push(a));
}

/* Who fails goes on, so that nobody waits for it; what it sends is not used
 * then. */
static int run_rounds(struct across *a)
{
	int failed = 0;

	sk_sending_cut(&a->sending, 0);
	sk_beside_begin(&a->beside, a->sending.n);
	sk_beside_wait(&a->beside);
	note(&failed, push(a));
	for (uint64_t t = 0; t < a->rounds + a->relays && !a->rs->broken; t++)
		run_round(a, t, &failed);
	finish(a, &failed);
	sk_aside_wait(&a->aside);
	note_beside(a, &a->beside, &failed);
	note_beside(a, &a->aside.beside, &failed);
	return failed;
}

/* ---- all of it ---- */

/* What the comm may still touch when it has failed stays. */
static void release(struct across *a)
{
	struct sk_restoring *rs = a->rs;
	bool stays = false;

	if (rs->broken && rs->device_on) {
		stays = rs->comm.device->end(rs->comm.ctx) != 0;
		rs->device_on = false;
	}
	if (a->gpu && !stays) {
		sk_cuda_release(a->gpu, a->there_in);
		sk_cuda_release(a->gpu, a->there_passed);
		sk_cuda_release(a->gpu, a->there_out);
	}
	sk_aside_free(&a->aside);
	(void)sk_cuda_unlock(a->lock);
	(void)sk_cuda_lane_free(a->lane);
	sk_sending_free(&a->sending);
	sk_relaying_free(&a->relaying);
	sk_flows_free(&a->flows);
	sk_restore_free_terms(rs, &a->terms);
	free(a->landing);
	free(a->sends);
	free(a->receives);
	sk_beside_fini(&a->beside);
}

/* @rank has no room: all do without. */
static void say_without(const struct across *a, int32_t rank)
{
	const struct sk_restoring *rs = a->rs;
	bool own = rank == rs->state->job.rank;
	struct sk_err why;

	(void)sk_err_set(&why, 0, "rank %d has no room for what passes through "
			 "its device%s%.200s", rank, own ? ": " : "",
			 own ? rs->err.text : "");
	sk_comm_nccl_note(&rs->comm, &why);
}

/* How many rounds it takes, and whether all have room for them. */
static int agree_rounds(struct across *a, int r, bool *ret_without)
{
	struct sk_restoring *rs = a->rs;
	struct sk_restore_word word = { 0 }, *words;

	if (r >= 0) {
		word.extra = sk_flows_rounds(&a->flows);
		word.flags = make_room(a) < 0;
	}
	r = sk_restore_agree(rs, r, &word, &words, 0);
	for (int32_t k = 0; r >= 0 && k < rs->state->job.world; k++) {
		if (words[k].flags && !*ret_without)
			say_without(a, k);
		*ret_without |= words[k].flags != 0;
		if (words[k].extra > a->rounds)
			a->rounds = words[k].extra;
	}
	return r;
}

/* *ret_without: this rank, or another one, has no room for it. */
static int move(struct across *a, bool *ret_without)
{
	int r = sk_restore_terms(a->rs, 0, a->relays ? SK_WAY_RELAYS :
						       SK_WAY_DEVICE,
				 &a->terms);

	if (r < 0)
		return r;
	r = agree_rounds(a, make_lists(a), ret_without);
	if (r < 0 || *ret_without || !a->rounds)
		return r;
	return sk_restore_agreed(a->rs, run_rounds(a));
}

static int begin(struct sk_restoring *rs)
{
	int r = rs->device_on ? 0 : sk_restore_begin_device(rs);

	rs->device_on = r >= 0;
	return r;
}

int sk_restore_across(struct sk_restoring *rs, int r)
{
	struct across a = { .rs = rs };
	struct sk_by_device wanted;
	bool without = false;

	assert(rs->apart && rs->comm.device);
	r = sk_restore_by_device(rs, r, &wanted);
	if (r >= 0 && wanted.any)
		r = begin(rs);
	if (r == -ENODEV && wanted.any)
		rs->device_off = true;
	else if (r < 0)
		return r;
	if (!wanted.any || rs->device_off) {
		sk_restore_none_by_device(rs);
		return 0;
	}
	a.relays = wanted.shared;
	a.beside = (struct sk_beside){ .pool = rs->sk->pool, .run = pack,
				       .ctx = &a };
	sk_beside_init(&a.beside);
	r = move(&a, &without);
	release(&a);
	rs->device_off |= without;
	if (without)
		sk_restore_none_by_device(rs);
	return r;
}

void sk_restore_end_across(struct sk_restoring *rs)
{
	if (rs->device_on)
		(void)rs->comm.device->end(rs->comm.ctx);
	rs->device_on = false;
}
