/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds, as remote.c has them, with windows on the device. Sources pack and
 * verify in host memory, as for the host; the window is copied to the device
 * and sent from there. It is received into one of two windows, and copied from
 * there to the tensors while the next round is under way.
 */
#include "restore/across.h"

#include <assert.h>

#include "base/util.h"
#include "restore/agree.h"
#include "restore/beside.h"
#include "restore/send.h"
#include "restore/shape.h"
#include "tensor/box.h"

#define OUT_BYTES (2 * SK_WINDOW_BYTES + SK_PAGE)

/* What a rank has to say before. */
#define SAYS_WANTED ((uint64_t)1)
#define SAYS_VERIFIED ((uint64_t)2)	/* both ends are to be */

struct across {
	struct sk_restoring *rs;
	struct sk_terms terms;
	struct sk_flows flows;
	struct sk_sending sending;
	struct sk_beside beside;
	struct sk_flow_part *landing;	/* of one round */
	size_t n_landing;
	struct sk_comm_part *sends, *receives;
	struct sk_cuda_device *gpu;
	struct sk_cuda_lane *lane;
	struct sk_cuda_lock *lock;	/* of what is packed; or NULL */
	uint64_t there_out, there_in;	/* on the device */
	uint64_t window;		/* bytes of one of there_in */
	uint64_t rounds;
};

/* ---- which pieces ---- */

/* Whether other ranks of the node want any of it. */
static int is_shared(struct sk_restoring *rs, const struct sk_local *local,
		     bool *ret_shared)
{
	const struct sk_spec *spec = &local->item.spec;
	bool shared = false;

	for (int32_t k = 0; k < rs->n_near && !shared; k++) {
		struct sk_box *boxes, cut;
		int n, r;

		if (rs->near_ranks[k] == rs->state->job.rank)
			continue;
		r = sk_spec_boxes(spec, rs->near_ranks[k], &boxes, &n,
				  &rs->err);
		if (r < 0)
			return r;
		for (int i = 0; i < n * local->item.n_boxes; i++)
			shared |= sk_box_intersect(
				spec->ndim, &boxes[i % n],
				&local->parts[i / n].box, &cut);
		free(boxes);
	}
	*ret_shared = shared;
	return 0;
}

/* Of boxes that owners said, overlap.c knows. */
static int can_go(struct sk_restoring *rs, uint32_t local, bool *ret)
{
	const struct sk_local *l = &rs->state->locals[local];
	bool shared = false;
	int r = 0;

	*ret = l->gpu >= 0 && rs->state->gpus.v[l->gpu].ordinal ==
				      rs->comm.device->ordinal;
	if (*ret && !l->item.explicit_boxes)
		r = is_shared(rs, l, &shared);
	*ret &= !shared;
	return r;
}

/* Pieces of a local lie together. */
static int choose(struct sk_restoring *rs, size_t *ret_n)
{
	uint32_t last = UINT32_MAX;
	bool goes = false;
	int r = 0;

	*ret_n = 0;
	for (uint32_t i = 0; i < rs->n_pieces && r >= 0; i++) {
		struct sk_restore_piece *p = &rs->pieces[i];

		p->across = false;
		if (rs->device_off || p->place < SK_PLACE_OTHERS)
			continue;
		if (p->local != last)
			r = can_go(rs, p->local, &goes);
		last = p->local;
		p->across = r >= 0 && goes && !p->shared;
		*ret_n += p->across;
	}
	return r;
}

static int do_without(struct sk_restoring *rs)
{
	for (uint32_t i = 0; i < rs->n_pieces; i++)
		rs->pieces[i].across = false;
	return 0;
}

/* What the ranks say: whether there is anything to do. */
static int ask_all(struct sk_restoring *rs, int r, bool *ret_wanted)
{
	_cleanup_free_ struct sk_restore_word *words = NULL;
	struct sk_restore_word word = { 0 };
	uint64_t said = 0;
	size_t n = 0;

	if (r >= 0)
		r = choose(rs, &n);
	word.extra = (n ? SAYS_WANTED : 0) |
		     (rs->state->job.flags & SK_JOB_VERIFY ? SAYS_VERIFIED :
							     0);
	r = sk_restore_agree(rs, r, &word, &words, 0);
	for (int32_t k = 0; r >= 0 && k < rs->state->job.world; k++)
		said |= words[k].extra;
	*ret_wanted = said == SAYS_WANTED;
	return r;
}

/* ---- room ---- */

static uint64_t end_of(const struct sk_flow *v, size_t n)
{
	return n ? v[n - 1].base + v[n - 1].cap : 0;
}

static int make_lists(struct across *a)
{
	size_t units;
	int r = sk_flows_make(a->rs, &a->terms, &a->flows);

	if (r < 0)
		return r;
	units = sk_flows_units(a->flows.in, a->flows.n_in);
	a->landing = calloc(units + 1, sizeof(*a->landing));
	a->sends = calloc(a->flows.n_out + 1, sizeof(*a->sends));
	a->receives = calloc(a->flows.n_in + 1, sizeof(*a->receives));
	if (!a->landing || !a->sends || !a->receives)
		return sk_terms_no_memory(a->rs);
	return sk_sending_new(a->rs, &a->flows, &a->sending);
}

/* All that rounds need: once they have begun, nothing is made. */
static int make_room(struct across *a)
{
	struct sk_restoring *rs = a->rs;
	uint64_t in;
	int r = make_lists(a);

	if (r >= 0)
		r = sk_cuda_device(rs->sk->cuda, rs->comm.device->ordinal,
				   &a->gpu, &rs->err);
	if (r >= 0)
		r = sk_cuda_lane_new(a->gpu, &a->lane, &rs->err);
	if (r < 0)
		return r;
	in = end_of(a->flows.in, a->flows.n_in);
	a->window = in > SK_WINDOW_BYTES ? sk_round_up(in, SK_PAGE) :
					   SK_WINDOW_BYTES;
	if (a->flows.n_in)
		r = sk_cuda_alloc(a->gpu, 2 * a->window, &a->there_in,
				  &rs->err);
	if (r >= 0 && a->flows.n_out)
		r = sk_cuda_alloc(a->gpu, OUT_BYTES, &a->there_out, &rs->err);
	/* Without, each copy waits for itself. */
	if (r >= 0 && a->flows.n_out)
		(void)sk_cuda_lock(a->gpu, a->sending.packed, OUT_BYTES,
				   OUT_BYTES, &a->lock, NULL);
	rs->report.staging_bytes += (a->there_in ? 2 * a->window : 0) +
				    (a->there_out ? OUT_BYTES : 0);
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
	uint64_t window = s->round % 2 * SK_WINDOW_BYTES;
	int r = 0;

	for (size_t i = 0; i < s->n_flows && r >= 0; i++) {
		uint64_t at = window + s->flows[i].base;
		uint64_t n = s->bytes[s->round % 2][i];
		struct sk_copy copy = straight(a->there_out + at,
					       s->packed + at, n);

		if (n)
			r = sk_cuda_lane_in(a->lane, &copy, 0, n, a->lock,
					    &a->rs->err);
	}
	return r;
}

static uint64_t window_of(const struct across *a, uint64_t round)
{
	return a->there_in + round % 2 * a->window;
}

static int exchange(struct across *a, uint64_t round)
{
	struct sk_report *report = &a->rs->report;
	size_t n_sends, n_receives = 0;

	a->n_landing = 0;
	for (size_t i = 0; i < a->flows.n_in; i++) {
		struct sk_flow *f = &a->flows.in[i];
		uint64_t n = sk_flow_cut(f, a->landing, &a->n_landing);

		if (!n)
			continue;
		report->bytes_received += n;
		report->bytes_device += n;
		a->receives[n_receives++] = (struct sk_comm_part){
			f->rank, 0,
			(void *)(uintptr_t)(window_of(a, round) + f->base),
			n };
	}
	n_sends = sk_sending_list(&a->sending, round, a->sends, 0);
	for (size_t i = 0; i < n_sends; i++) {
		const char *packed = a->sends[i].data;

		a->sends[i].data = (void *)(uintptr_t)(
			a->there_out + (uint64_t)(packed -
						  a->sending.packed));
	}
	return sk_restore_exchange_device(a->rs, a->sends, n_sends,
					  a->receives, n_receives);
}

static int deliver_part(struct across *a, const struct sk_flow_part *p,
			uint64_t bytes, uint32_t piece)
{
	struct sk_restoring *rs = a->rs;
	const struct sk_restore_piece *to = &rs->pieces[piece];
	struct sk_copy copy;
	int r = sk_restore_unpack(rs, to, &copy, &rs->err);

	if (r < 0)
		return r;
	rs->touched[to->local] = 1;
	rs->report.bytes_remote += p->to - p->from;
	copy.src = (const char *)(uintptr_t)(bytes - p->from);
	return sk_cuda_lane_across(a->lane, &copy, p->from, p->to, &rs->err);
}

/* To whom it is, which is this rank's: parts and consumers are by want. */
static int deliver(struct across *a, uint64_t round)
{
	const struct sk_wants *w = &a->terms.wants;
	size_t at = 0;
	int r = 0;

	for (size_t i = 0; i < a->n_landing; i++) {
		const struct sk_flow_part *p = &a->landing[i];
		size_t want = p->flow->first + p->want;

		while (at && w->consumers[at - 1].want >= want)
			at--;
		while (at < w->n_consumers && w->consumers[at].want < want)
			at++;
		for (size_t k = at; k < w->n_consumers && r >= 0 &&
		     w->consumers[k].want == want; k++)
			r = deliver_part(a, p, window_of(a, round) + p->offset,
					 w->pieces[w->consumers[k].index]);
	}
	return r;
}

static void note(int *failed, int r)
{
	if (*failed >= 0 && r < 0)
		*failed = r;
}

/* Who fails goes on, so that nobody waits for it; what it sends is not used
 * then. */
static int run_rounds(struct across *a)
{
	struct sk_restoring *rs = a->rs;
	int failed = 0;

	sk_sending_cut(&a->sending, 0);
	sk_beside_begin(&a->beside, a->sending.n);
	sk_beside_wait(&a->beside);
	note(&failed, push(a));
	for (uint64_t t = 0; t < a->rounds && !rs->broken; t++) {
		int r;

		sk_sending_cut(&a->sending, t + 1);
		sk_beside_begin(&a->beside, a->sending.n);
		note(&failed, sk_cuda_lane_finish(a->lane, &rs->err));
		r = exchange(a, t);
		if (r >= 0)
			r = deliver(a, t);
		note(&failed, r);
		sk_beside_wait(&a->beside);
		note(&failed, push(a));
	}
	note(&failed, sk_cuda_lane_finish(a->lane, failed < 0 ? NULL :
							       &rs->err));
	if (failed >= 0 && a->beside.failed < 0) {
		rs->err = a->beside.err;
		failed = a->beside.failed;
	}
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
		sk_cuda_release(a->gpu, a->there_out);
	}
	(void)sk_cuda_unlock(a->lock);
	(void)sk_cuda_lane_free(a->lane);
	sk_sending_free(&a->sending);
	sk_flows_free(&a->flows);
	sk_restore_free_terms(rs, &a->terms);
	free(a->landing);
	free(a->sends);
	free(a->receives);
	sk_beside_fini(&a->beside);
}

/* *ret_without: this rank, or another one, has no room for it. */
static int move(struct across *a, bool *ret_without)
{
	struct sk_restore_word word = { 0 };
	int r = sk_restore_terms(a->rs, 0, true, &a->terms);

	if (r < 0)
		return r;
	r = sk_flows_agree(a->rs, make_room(a), &a->flows, &a->rounds);
	*ret_without = r < 0 && !a->rs->broken;
	if (r < 0 || !a->rounds)
		return r;
	return sk_restore_agree(a->rs, run_rounds(a), &word, NULL, 0);
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
	bool wanted = false, without = false;

	assert(rs->apart && rs->comm.device);
	r = ask_all(rs, r, &wanted);
	if (r < 0)
		return r;
	if (wanted)
		r = begin(rs);
	if (!wanted || r == -ENODEV) {
		rs->device_off |= wanted;
		return do_without(rs);
	}
	if (r < 0)
		return r;
	a.beside = (struct sk_beside){ .pool = rs->sk->pool, .run = pack,
				       .ctx = &a };
	sk_beside_init(&a.beside);
	r = move(&a, &without);
	release(&a);
	rs->device_off |= without;
	return without ? do_without(rs) : r;
}

void sk_restore_end_across(struct sk_restoring *rs)
{
	if (rs->device_on)
		(void)rs->comm.device->end(rs->comm.ctx);
	rs->device_on = false;
}
