/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SEAL: an image is whole. Its header is read out of the slot and compared with
 * the layout, in the background where it is long: others are not kept waiting
 * for one who has many tensors.
 */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "calls/call.h"
#include "calls/device.h"
#include "calls/seal.h"
#include "disk/cadence.h"
#include "memory/memory.h"
#include "session/request.h"
#include "session/rights.h"

#define SHORT_HEADER 32768u	/* bytes; read within microseconds */

/* What is read, and whose it is. */
struct seal {
	struct request request;
	struct lane_work work;
	struct agent *agent;
	uint64_t fill;			/* which of its slot's */
	int64_t step;
	uint64_t run, run_id;
	uint64_t copied_ns, stalled_ns;	/* as the client says */
	struct memory *memory;
	struct sk_layout *layouts[2];	/* references */
	uint64_t *sums[2];
	uint64_t content[2][2];		/* their hashes */
	int result;
	struct sk_err err;
	/* Of a dead rank, who is to know; NULL: nobody is any more. */
	struct sk_cat_slot *slot;
	void (*over)(void *ctx);
	void *ctx;
};

/* ---- reading: anywhere ---- */

/*
 * The header is copied out by the kernel: a client that tears pages out of
 * the slot gives zeros or an error here, never a signal.
 */
static int read_stamp(struct seal *seal, int kind, struct sk_stamp *ret)
{
	const struct sk_os *os = seal->agent->os;
	const struct sk_layout *l = seal->layouts[kind];
	_cleanup_free_ char *header = malloc(l->header_bytes);
	struct sk_stamp stamp = { 0 };
	ssize_t n;
	int r;

	stamp.sums = calloc((size_t)l->n_sums + 1, sizeof(*stamp.sums));
	if (!header || !stamp.sums) {
		free(stamp.sums);
		return sk_err_set(&seal->err, -ENOMEM, "no memory for a "
				  "header");
	}
	n = os->pread(os, seal->memory->slots[kind].fd, header,
		      l->header_bytes, 0);
	r = n == (ssize_t)l->header_bytes ?
	    sk_layout_read_stamp(l, header, &stamp, &seal->err) :
	    sk_err_errno(&seal->err, n < 0 ? (int)n : -EIO,
			 "the header of a slot cannot be read");
	if (r < 0) {
		free(stamp.sums);
		return r;
	}
	*ret = stamp;
	return 0;
}

static int read_stamps(struct seal *seal)
{
	int r = 0;

	for (int kind = 0; kind < 2 && r == 0; kind++) {
		struct sk_stamp stamp = { 0 };

		if (!seal->layouts[kind])
			continue;
		r = read_stamp(seal, kind, &stamp);
		if (r < 0)
			break;
		seal->sums[kind] = stamp.sums;
		sk_cat_hash_sums(seal->layouts[kind], stamp.sums,
				 seal->content[kind]);
		if (stamp.run != seal->run || stamp.run_id != seal->run_id ||
		    stamp.step != (uint64_t)seal->step)
			r = sk_err_set(&seal->err, -EBADMSG, "the image says "
				       "run %" PRIu64 ", step %" PRIu64 " "
				       "where run %" PRIu64 ", step %" PRId64
				       " was asked for", stamp.run, stamp.step,
				       seal->run, seal->step);
	}
	return r;
}

static void read_in_background(struct lane_work *work)
{
	struct seal *seal = sk_link_object(work, struct seal, work);

	seal->result = read_stamps(seal);
}

/* ---- what is done with it ---- */

/* From here on nobody can map the slot for writing, or tear pages out. */
static void seal_writes(struct agent *a, struct memory *m)
{
	struct sk_err err;
	int r = 0;

	if (!a->opts->seal_writes || m->sealed_writes)
		return;
	for (int kind = 0; kind < 2 && r == 0; kind++) {
		if (m->slots[kind].fd >= 0)
			r = sk_slot_seal_writes(a->os, &m->slots[kind], &err);
	}
	if (r < 0)
		log_warning(a, "%s", err.text);
	else
		m->sealed_writes = true;
}

static void refuse(struct agent *a, struct sk_cat_slot *slot,
		   struct seal *seal)
{
	a->counts.discarded_bad++;
	sk_err_prefix(&seal->err, seal->result, "rank %" PRId32 " of job "
		      "\"%s\" was not sealed", slot->state->rank,
		      slot->state->run->job->name);
	log_warning(a, "%s", seal->err.text);
	sk_cat_slot_clear(slot);
}

/* A client says how long it was: no more than can be. */
#define TIME_MOST UINT64_C(3600000000000)

static uint64_t bounded(uint64_t ns)
{
	return ns < TIME_MOST ? ns : 0;
}

static void count_sealed(const struct seal *seal,
			 const struct sk_cat_slot *slot)
{
	struct sk_cat_figures *f = &slot->snapshot->job->figures;
	struct counts *all = &seal->agent->counts;

	all->sealed++;
	all->bytes_sealed += slot->bytes;
	all->copied_ns += seal->copied_ns;
	all->stalled_ns += seal->stalled_ns;
	f->sealed++;
	f->bytes_sealed += slot->bytes;
	f->copied_ns += seal->copied_ns;
	f->stalled_ns += seal->stalled_ns;
	f->sealed_ns = agent_now(seal->agent);
	f->sealed_step = slot->snapshot->step;
}

/* The header was read: the slot has an image, or is cleared. */
static void conclude(struct seal *seal, struct sk_cat_slot *slot)
{
	struct agent *a = seal->agent;
	struct sk_cat_snapshot *s = slot->snapshot;
	struct device_slot *d = device_sealed_for(a, slot);

	assert(slot->use == SK_CAT_FILLING && slot->fill == seal->fill);
	if (seal->result == 0) {
		seal_writes(a, slot->memory);
		seal->result = sk_cat_slot_seal(slot, seal->sums,
						seal->content,
						a->os->wall_ns(a->os));
		if (seal->result < 0)
			sk_err_errno(&seal->err, seal->result,
				     "its image cannot be noted");
	}
	/* Not before: whoever is killed in between has one of the two. */
	device_seal_over(a, slot);
	agent_changed(a);
	if (seal->result < 0) {
		refuse(a, slot, seal);
		return;
	}
	seal->sums[0] = seal->sums[1] = NULL;
	if (d)
		device_stands(d, slot);
	count_sealed(seal, slot);
	cadence_sealed(a, s);
	/* Now, so that it is known soon where it must be told. */
	(void)sk_cat_complete(s);
}

static void let_go(struct seal *seal)
{
	memory_unhold(seal->memory);
	for (int kind = 0; kind < 2; kind++) {
		seal->layouts[kind] = sk_layout_free(seal->layouts[kind]);
		free(seal->sums[kind]);
		seal->sums[kind] = NULL;
	}
}

/* ---- in the background ---- */

static void seal_release(struct request *q)
{
	free(sk_link_object(q, struct seal, request));
}

static const struct request_kind seal_kind = { .release = seal_release };

/* As it was when it was asked for; NULL: something else became of it. */
static struct sk_cat_slot *still_filling(const struct seal *seal)
{
	const struct sk_wire_seal *in = &seal->request.msg.body.seal;
	struct sk_cat_state *state;
	struct sk_cat_slot *slot;

	/* Else the agent ends. */
	state = seal->request.session ?
		session_state(seal->request.session, in->state) : NULL;
	if (!state)
		return NULL;
	sk_link_each(slot, &state->slots, link) {
		if (slot->number == in->slot && slot->use == SK_CAT_FILLING &&
		    slot->fill == seal->fill)
			return slot;
	}
	return NULL;
}

static void was_read(struct lane_work *work)
{
	struct seal *seal = sk_link_object(work, struct seal, work);
	struct sk_cat_slot *slot = still_filling(seal);
	struct sk_err err;
	int r;

	if (slot)
		conclude(seal, slot);
	else
		seal->result = sk_err_set(&seal->err, -ECANCELED, "step %"
					  PRId64 " was given up while it was "
					  "being sealed", seal->step);
	let_go(seal);
	r = seal->result;
	err = seal->err;
	seal->request.busy = false;
	if (seal->request.session)
		session_unhold(seal->request.session);
	request_answer(&seal->request, r, NULL, NULL, 0, &err);
}

static int seal_later(struct call *c, const struct seal *what,
		      const char *job)
{
	struct seal *seal = malloc(sizeof(*seal));
	int r;

	if (!seal)
		return sk_err_set(&c->err, -ENOMEM, "no memory to seal");
	*seal = *what;
	r = request_init(&seal->request, &seal_kind, c->session, c->in, 0,
			 &c->err);
	if (r < 0) {
		free(seal);
		return r;
	}
	seal->work.run = read_in_background;
	seal->work.finish = was_read;
	seal->request.busy = true;
	/* A rank that ends now has sealed it all the same. */
	session_hold(c->session);
	lanes_submit(&c->agent->seals, c->session->uid, job, &seal->work);
	return CALL_LATER;
}

/* ---- either way ---- */

static struct seal begin(struct agent *a, struct sk_cat_slot *slot)
{
	struct sk_cat_layout *const *layouts = slot->state->layouts;
	struct seal seal = {
		.agent = a, .fill = slot->fill,
		.step = slot->snapshot->step, .run = slot->snapshot->run,
		.run_id = slot->snapshot->run_id, .memory = slot->memory,
	};

	for (int kind = 0; kind < 2; kind++) {
		if (layouts[kind])
			seal.layouts[kind] =
				sk_layout_ref(layouts[kind]->layout);
	}
	memory_hold(seal.memory);
	return seal;
}

static bool is_short(const struct seal *seal)
{
	uint64_t bytes = 0;

	for (int kind = 0; kind < 2; kind++)
		bytes += seal->layouts[kind] ?
			 seal->layouts[kind]->header_bytes : 0;
	return bytes <= SHORT_HEADER;
}

/* ---- for the dead ---- */

static void was_read_for_dead(struct lane_work *work)
{
	struct seal *seal = sk_link_object(work, struct seal, work);
	void (*over)(void *ctx) = seal->over;

	if (over) {
		/* It is given up by that, for it is sealed. */
		conclude(seal, seal->slot);
		over(seal->ctx);
	}
	let_go(seal);
	free(seal);
}

struct seal *seal_for_dead(struct agent *a, struct sk_cat_slot *slot,
			   void (*over)(void *ctx), void *ctx)
{
	const struct sk_cat_job *job = slot->state->run->job;
	struct seal seal = begin(a, slot), *later = NULL;

	if (!is_short(&seal))
		later = malloc(sizeof(*later));
	if (!later) {
		seal.result = read_stamps(&seal);
		conclude(&seal, slot);
		let_go(&seal);
		return NULL;
	}
	*later = seal;
	later->slot = slot;
	later->over = over;
	later->ctx = ctx;
	later->work.run = read_in_background;
	later->work.finish = was_read_for_dead;
	lanes_submit(&a->seals, job->uid, job->name, &later->work);
	return later;
}

void seal_give_up(struct seal *seal)
{
	seal->over = NULL;
}

/* ---- the call ---- */

int call_seal(struct call *c)
{
	const struct sk_wire_seal *in = &c->in->body.seal;
	struct sk_cat_slot *slot = NULL;
	struct seal seal;
	int r;

	r = call_slot_of(c, in->state, in->slot, &slot);
	if (r == 0)
		r = call_check_filling(c, slot, in->step);
	if (r < 0)
		return r;
	slot->state->pageable = in->flags & SK_SEAL_PAGEABLE;
	seal = begin(c->agent, slot);
	seal.copied_ns = bounded(in->copied_ns);
	seal.stalled_ns = bounded(in->stalled_ns);
	if (!is_short(&seal)) {
		r = seal_later(c, &seal, slot->state->run->job->name);
		if (r < 0)
			let_go(&seal);
		return r;
	}
	seal.result = read_stamps(&seal);
	conclude(&seal, slot);
	let_go(&seal);
	c->err = seal.err;
	return seal.result;
}
