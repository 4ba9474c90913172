/* SPDX-License-Identifier: Apache-2.0 */
/* What several handlers begin with. */
#include "calls/call.h"

#include <assert.h>
#include <inttypes.h>

#include "memory/bytes.h"
#include "session/rights.h"
#include "wire/version.h"

int call_job(struct call *c, const struct sk_wire_id *id,
	     struct sk_cat_job **ret_job)
{
	struct sk_cat_job *job;
	int r;

	r = sk_wire_check_id(id, &c->err);
	if (r < 0)
		return r;
	job = session_job(c->session, id->job);
	if (!job)
		return sk_err_set(&c->err, -ENOENT, "there is no job \"%s\"",
				  id->job);
	*ret_job = job;
	return 0;
}

int call_slot_of(struct call *c, uint64_t id, uint32_t number,
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

int call_check_filling(struct call *c, const struct sk_cat_slot *slot,
		       int64_t step)
{
	if (slot->use == SK_CAT_FILLING && slot->snapshot->step == step)
		return 0;
	return sk_err_set(&c->err, -EINVAL, "slot %" PRIu32 " of rank %" PRId32
			  " is not being filled for step %" PRId64,
			  slot->number, slot->state->rank, step);
}

int call_state(struct call *c, uint64_t id, struct sk_cat_state **ret_state)
{
	struct sk_cat_state *state = session_state(c->session, id);

	if (!state)
		return sk_err_set(&c->err, -ENOENT, "state %" PRIu64 " is not "
				  "one of this connection", id);
	assert(state->living);
	*ret_state = state;
	return 0;
}

int call_records(struct call *c, const char *name, const void *records,
		 size_t n, size_t bytes)
{
	unsigned version = c->session->version;
	size_t each = sk_wire_record_bytes(version ? version : SK_WIRE_VERSION,
					   c->in->type, bytes);
	_cleanup_free_ char *fit = malloc(n * each + 1);
	int fd;

	if (!fit)
		return sk_err_set(&c->err, -ENOMEM, "no memory for a reply");
	sk_wire_records_fit(records, n, bytes, fit, each);
	fd = bytes_fd(c->agent->os, name, fit, n * each, &c->err);
	if (fd < 0)
		return fd;
	/* STATUS has both at the same places. */
	c->out.body.list_reply.n = n;
	c->out.body.list_reply.record_bytes = (uint32_t)each;
	c->out_fds[0] = fd;
	c->n_out = 1;
	return 0;
}
