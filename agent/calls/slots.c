/* SPDX-License-Identifier: Apache-2.0 */
/* MAP, SLOT, SEAL, DISCARD: the life of a slot. */
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#include "calls/call.h"
#include "disk/flush.h"
#include "memory/memory.h"

static int slot_of(struct call *c, uint64_t id, uint32_t number,
		     struct sk_cat_slot **ret_slot)
{
	struct sk_cat_state *state = NULL;
	struct sk_cat_slot *slot;
	int r = call_state(c, id, &state);

	if (r < 0)
		return r;
	sk_link_each(slot, &state->slots, link) {
		if (slot->number == number) {
			*ret_slot = slot;
			return 0;
		}
	}
	return sk_err_set(&c->err, -EINVAL, "rank %" PRId32 " of job \"%s\" "
			  "has no slot %" PRIu32, state->rank,
			  state->run->job->name, number);
}

static int dup_fd(struct call *c, int fd)
{
	const struct sk_os *os = c->agent->os;
	int copy = os->fcntl(os, fd, F_DUPFD_CLOEXEC, 3);

	assert(c->n_out < SK_MSG_FDS);
	if (copy < 0)
		return sk_err_errno(&c->err, copy, "cannot hand a slot out; "
				    "raise the agent's limit of open files");
	c->out_fds[c->n_out++] = copy;
	return 0;
}

int call_map(struct call *c)
{
	const struct sk_wire_map *in = &c->in->body.map;
	struct sk_cat_slot *slot;
	struct memory *m;
	int r;

	r = slot_of(c, in->state, in->slot, &slot);
	if (r < 0)
		return r;
	m = slot->memory;
	for (int kind = 0; kind < 2 && r == 0; kind++) {
		if (m->slots[kind].fd >= 0)
			r = dup_fd(c, m->slots[kind].fd);
	}
	while (r < 0 && c->n_out)
		sk_close_fd(c->out_fds[--c->n_out]);
	return r;
}

int call_slot(struct call *c)
{
	const struct sk_wire_slot *in = &c->in->body.slot;
	struct agent *a = c->agent;
	struct sk_cat_state *state = NULL;
	struct sk_cat_slot *slot;
	unsigned evicted;
	int r;

	r = call_state(c, in->state, &state);
	if (r < 0)
		return r;
	if (in->step < 0)
		return sk_err_set(&c->err, -EINVAL, "step %" PRId64 " is "
				  "negative", in->step);
	if (a->stopping)
		return sk_err_set(&c->err, -ESHUTDOWN, "the agent is stopping");
	r = sk_cat_slot_take(state, in->step, in->flags, false, &slot,
			     &evicted, &c->err);
	if (r == -EBUSY) {
		a->counts.refused_busy++;
		c->out.body.slot_reply.eta_ns = flush_eta(a);
	}
	if (r < 0)
		return r;
	a->counts.evictions += evicted;
	c->out.body.slot_reply.slot = slot->number;
	agent_changed(a);
	return 0;
}

/* ---- sealing ---- */

/*
 * The header is copied out by the kernel: a client that tears pages out of
 * the slot gives zeros or an error here, never a signal.
 */
static int read_stamp(struct agent *a, struct sk_cat_slot *slot, int kind,
		      struct sk_stamp *ret, struct sk_err *err)
{
	const struct sk_layout *l = slot->state->layouts[kind]->layout;
	const struct memory *m = slot->memory;
	_cleanup_free_ char *header = malloc(l->header_bytes);
	struct sk_stamp stamp = { 0 };
	ssize_t n;
	int r;

	stamp.sums = calloc((size_t)l->n_sums + 1, sizeof(*stamp.sums));
	if (!header || !stamp.sums) {
		free(stamp.sums);
		return sk_err_set(err, -ENOMEM, "no memory for a header");
	}
	n = a->os->pread(a->os, m->slots[kind].fd, header, l->header_bytes, 0);
	r = n == (ssize_t)l->header_bytes ?
	    sk_layout_read_stamp(l, header, &stamp, err) :
	    sk_err_set(err, -EIO, "the header of a slot cannot be read");
	if (r < 0) {
		free(stamp.sums);
		return r;
	}
	*ret = stamp;
	return 0;
}

static int read_stamps(struct agent *a, struct sk_cat_slot *slot,
		       uint64_t *sums[2], struct sk_err *err)
{
	const struct sk_cat_snapshot *s = slot->snapshot;
	int r = 0;

	assert(s && slot->use == SK_CAT_FILLING);
	for (int kind = 0; kind < 2 && r == 0; kind++) {
		struct sk_stamp stamp = { 0 };

		if (!slot->state->layouts[kind])
			continue;
		r = read_stamp(a, slot, kind, &stamp, err);
		if (r < 0)
			break;
		sums[kind] = stamp.sums;
		if (stamp.run != s->run || stamp.run_id != s->run_id ||
		    stamp.step != (uint64_t)s->step)
			r = sk_err_set(err, -EBADMSG, "the image says run %"
				       PRIu64 ", step %" PRIu64 " where run %"
				       PRIu64 ", step %" PRId64 " was asked "
				       "for", stamp.run, stamp.step, s->run,
				       s->step);
	}
	return r;
}

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

static void count_sealed(struct agent *a, struct sk_cat_snapshot *s,
			 uint64_t bytes, bool was_complete)
{
	a->counts.sealed++;
	a->counts.bytes_sealed += bytes;
	if (!s->complete || was_complete)
		return;
	a->counts.completed++;
	log_info(a, "job \"%s\" run %" PRIu64 " step %" PRId64 " is complete",
		 s->job->name, s->run, s->step);
}

int call_seal(struct call *c)
{
	const struct sk_wire_seal *in = &c->in->body.seal;
	uint64_t *sums[2] = { NULL, NULL };
	struct agent *a = c->agent;
	struct sk_cat_snapshot *s;
	struct sk_cat_slot *slot;
	bool was_complete;
	int r;

	r = slot_of(c, in->state, in->slot, &slot);
	if (r < 0)
		return r;
	s = slot->snapshot;
	if (slot->use != SK_CAT_FILLING || s->step != in->step)
		return sk_err_set(&c->err, -EINVAL, "slot %" PRIu32 " of rank "
				  "%" PRId32 " is not being filled for step %"
				  PRId64, in->slot, slot->state->rank,
				  in->step);
	was_complete = s->complete;
	r = read_stamps(a, slot, sums, &c->err);
	if (r == 0) {
		seal_writes(a, slot->memory);
		r = sk_cat_slot_seal(slot, sums, a->os->wall_ns(a->os));
	}
	if (r == 0) {
		count_sealed(a, s, slot->bytes, was_complete);
	} else {
		free(sums[0]);
		free(sums[1]);
		a->counts.discarded_bad++;
		sk_err_prefix(&c->err, r, "rank %" PRId32 " of job \"%s\" was "
			      "not sealed", slot->state->rank,
			      slot->state->run->job->name);
		log_warning(a, "%s", c->err.text);
		sk_cat_slot_clear(slot);
	}
	agent_changed(a);
	return r;
}

int call_discard(struct call *c)
{
	const struct sk_wire_seal *in = &c->in->body.seal;
	struct sk_cat_slot *slot;
	int r;

	r = slot_of(c, in->state, in->slot, &slot);
	if (r < 0)
		return r;
	if (slot->use != SK_CAT_FILLING || slot->snapshot->step != in->step)
		return sk_err_set(&c->err, -EINVAL, "slot %" PRIu32 " of rank "
				  "%" PRId32 " is not being filled for step %"
				  PRId64, in->slot, slot->state->rank,
				  in->step);
	log_info(c->agent, "job \"%s\" step %" PRId64 " rank %" PRId32
		 ": discarded by the client", slot->state->run->job->name,
		 in->step, slot->state->rank);
	sk_cat_slot_clear(slot);
	c->agent->counts.discarded_client++;
	agent_changed(c->agent);
	return 0;
}
