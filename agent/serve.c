/* SPDX-License-Identifier: Apache-2.0 */
/* One function per request; serve() finds it in a table. */
#include "agent.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define AGENT_VERSION "0.1.0"

struct call {
	struct agent *a;
	struct session *s;
	struct sk_msg *msg;	/* request, then reply */
	int *fds;		/* received; 0 or taken: -1 */
	int n_fds;
	struct sk_err err;
	int out[2];		/* to send, closed after */
	int n_out;
	bool deferred;
};

static int serve_hello(struct call *c)
{
	struct sk_wire_hello_reply *r = &c->msg->body.hello_reply;
	const struct agent *a = c->a;

	if (c->msg->body.hello.version != SK_WIRE_VERSION)
		return sk_err_set(&c->err, -EPROTO, "the agent speaks version "
				  "%u", SK_WIRE_VERSION);
	c->s->greeted = true;
	memset(&c->msg->body, 0, sizeof(c->msg->body));
	r->instance = a->instance;
	r->budget_bytes = a->o.memory;
	r->used_bytes = a->used;
	r->pid = (uint32_t)getpid();
	r->uid = geteuid();
	r->has_store = !a->store ? 0 : a->store_volatile ? 2 : 1;
	strcpy(r->version, AGENT_VERSION);
	if (a->store)
		(void)snprintf(r->store, sizeof(r->store), "%s",
			       sk_store_path(a->store));
	return 0;
}

static int serve_register(struct call *c)
{
	if (c->n_fds != 1)
		return sk_err_set(&c->err, -EINVAL, "a registration comes "
				  "with one descriptor, not %d", c->n_fds);
	if (c->a->stopping)
		return sk_err_set(&c->err, -ESHUTDOWN,
				  "the agent is stopping");
	return state_register(c->a, c->s, c->msg, c->fds[0], &c->err);
}

static int own_state(struct call *c, uint64_t id, struct state **ret)
{
	*ret = state_find(c->a, c->s, id);
	return *ret ? 0 : sk_err_set(&c->err, -EBADF, "state %llu is not "
				     "registered here",
				     (unsigned long long)id);
}

static int serve_map(struct call *c)
{
	uint32_t slot = c->msg->body.map.slot;
	struct state *st;
	int r = own_state(c, c->msg->body.map.state, &st);

	if (r < 0)
		return r;
	if (slot >= st->n_slots)
		return sk_err_set(&c->err, -EINVAL, "slot %u of %u", slot,
				  st->n_slots);
	for (int k = 0; k < 2; k++)
		if (st->layouts[k])
			c->out[c->n_out++] =
				dup(st->slots[slot].memory[k].fd);
	return 0;
}

static int serve_slot(struct call *c)
{
	const struct sk_wire_slot q = c->msg->body.slot;
	struct sk_wire_slot_reply reply = { 0 };
	struct state *st;
	int r = own_state(c, q.state, &st);

	if (r >= 0 && q.step < 0)
		r = sk_err_set(&c->err, -EINVAL, "step %lld is negative",
			       (long long)q.step);
	if (r >= 0 && c->a->stopping)
		r = sk_err_set(&c->err, -ESHUTDOWN, "the agent is stopping");
	if (r >= 0)
		r = slot_take(c->a, st, (uint64_t)q.step, q.flags,
			      &reply.slot, &reply.eta_ns, &c->err);
	memset(&c->msg->body, 0, sizeof(c->msg->body));
	c->msg->body.slot_reply = reply;
	return r;
}

static int serve_seal(struct call *c)
{
	const struct sk_wire_seal *q = &c->msg->body.seal;
	struct state *st;
	int r = own_state(c, q->state, &st);

	if (r >= 0 && q->step < 0)
		r = sk_err_set(&c->err, -EINVAL, "a negative step");
	return r < 0 ? r : slot_seal(c->a, st, q->slot, (uint64_t)q->step,
				     &c->err);
}

static int serve_discard(struct call *c)
{
	const struct sk_wire_seal *q = &c->msg->body.seal;
	struct state *st;
	int r = own_state(c, q->state, &st);

	if (r < 0)
		return r;
	if (q->slot >= st->n_slots ||
	    st->slots[q->slot].status != SLOT_FILLING)
		return sk_err_set(&c->err, -EINVAL, "slot %u is not being "
				  "filled", q->slot);
	st->slots[q->slot].status = SLOT_FREE;
	c->a->count.discarded++;
	return 0;
}

static int serve_unregister(struct call *c)
{
	struct state *st;
	int r = own_state(c, c->msg->body.state, &st);

	if (r >= 0)
		state_leave(c->a, st, true);
	return r;
}

static int defer(struct call *c, uint32_t timeout_ms, int *fd)
{
	int r = wait_add(c->a, c->s, c->msg, fd ? *fd : -1, timeout_ms);

	if (r < 0)
		return sk_err_set(&c->err, r, "out of memory");
	if (fd)
		*fd = -1;	/* the wait's now */
	c->deferred = true;
	return 0;
}

static int serve_prepare(struct call *c)
{
	return defer(c, c->msg->body.prepare.timeout_ms, NULL);
}

static int serve_slot_wait(struct call *c)
{
	return defer(c, c->msg->body.slot_wait.timeout_ms, NULL);
}

static int serve_wait(struct call *c)
{
	if (c->msg->body.wait.until < 1 || c->msg->body.wait.until > 3)
		return sk_err_set(&c->err, -EINVAL, "waiting for %u",
				  c->msg->body.wait.until);
	return defer(c, c->msg->body.wait.timeout_ms, NULL);
}

static int serve_gather(struct call *c)
{
	struct sk_wire_gather *g = &c->msg->body.gather;
	bool inside = g->bytes <= SK_GATHER_INLINE;

	if (g->bytes > SK_GATHER_MAX || c->n_fds != !inside ||
	    g->id.world < 1 || g->id.rank < 0 || g->id.rank >= g->id.world ||
	    g->bytes * (uint64_t)g->id.world > SK_GATHER_MAX)
		return sk_err_set(&c->err, -EINVAL, "a gather of %u bytes "
				  "from rank %d of %d", g->bytes, g->id.rank,
				  g->id.world);
	return defer(c, g->timeout_ms, inside ? NULL : &c->fds[0]);
}

static int serve_list(struct call *c)
{
	int r = query_list(c->a, c->s, c->msg, &c->out[0], &c->err);

	c->n_out = r >= 0;
	return r;
}

static int serve_stats(struct call *c)
{
	int r = query_stats(c->a, c->msg, &c->out[0], &c->err);

	c->n_out = r >= 0;
	return r;
}

static int serve_open(struct call *c)
{
	int r = query_open(c->a, c->s, c->msg, c->out, &c->err);

	c->n_out = r >= 0 ? 2 : 0;
	return r;
}

static int serve_close(struct call *c)
{
	int r = query_close(c->a, c->s, c->msg->body.open.image);

	return r < 0 ? sk_err_set(&c->err, r, "that image is not open") : 0;
}

static int serve_report_bad(struct call *c)
{
	const struct sk_wire_open *o = &c->msg->body.open;
	struct sk_cat_image *image = sk_cat_image_by_id(&c->a->cat, o->image);

	if (!image || !session_may(c->a, c->s, image->snapshot->job->uid))
		return sk_err_set(&c->err, -ENOENT, "there is no image %llu",
				  (unsigned long long)o->image);
	image_bad(c->a, image, o->place);
	return 0;
}

static int find_snapshot(struct call *c, struct sk_cat_snapshot **ret)
{
	const struct sk_wire_id *id = &c->msg->body.manage.id;
	struct sk_cat_job *job;
	struct sk_cat_snapshot *s = NULL;

	disk_scan_job(c->a, id->job);
	job = sk_cat_find_job(&c->a->cat, id->job);
	if (job && session_may(c->a, c->s, job->uid))
		for (s = job->snapshots; s; s = s->next)
			if ((!id->run || s->run == id->run) &&
			    (id->step < 0 || s->step == (uint64_t)id->step))
				break;
	if (!s)
		return sk_err_set(&c->err, -ENOENT, "there is no such "
				  "snapshot of job \"%s\"", id->job);
	*ret = s;
	return 0;
}

static int serve_pin(struct call *c)
{
	struct sk_cat_snapshot *s;
	int r = find_snapshot(c, &s);

	if (r >= 0)
		s->pinned = c->msg->type == SK_MSG_PIN;
	return r;
}

static int serve_evict(struct call *c)
{
	struct sk_cat_snapshot *s;
	int r = find_snapshot(c, &s);

	return r < 0 ? r : snapshot_evict(c->a, s, c->msg->body.manage.flags,
					  &c->err);
}

static int serve_flush(struct call *c)
{
	struct sk_cat_snapshot *s;
	int r = find_snapshot(c, &s);

	if (r < 0)
		return r;
	if (!c->a->store)
		return sk_err_set(&c->err, -ENOTCONN, "the agent has no store "
				  "to flush to; start it with --store");
	s->wanted = true;
	s->retry_ns = 0;
	flush_queue(c->a);
	return 0;
}

static int serve_stop(struct call *c)
{
	if (c->s->uid != 0 && c->s->uid != geteuid())
		return sk_err_set(&c->err, -EPERM, "only root and the agent's "
				  "own user may stop it");
	kill(getpid(), SIGTERM);	/* the same way as from outside */
	return 0;
}

static int (*const calls[SK_MSG_TYPE_COUNT])(struct call *c) = {
	[SK_MSG_HELLO] = serve_hello,
	[SK_MSG_REGISTER] = serve_register,
	[SK_MSG_PREPARE] = serve_prepare,
	[SK_MSG_SLOT] = serve_slot,
	[SK_MSG_SLOT_WAIT] = serve_slot_wait,
	[SK_MSG_SEAL] = serve_seal,
	[SK_MSG_DISCARD] = serve_discard,
	[SK_MSG_UNREGISTER] = serve_unregister,
	[SK_MSG_WAIT] = serve_wait,
	[SK_MSG_GATHER] = serve_gather,
	[SK_MSG_LIST] = serve_list,
	[SK_MSG_OPEN] = serve_open,
	[SK_MSG_CLOSE] = serve_close,
	[SK_MSG_REPORT_BAD] = serve_report_bad,
	[SK_MSG_PIN] = serve_pin,
	[SK_MSG_UNPIN] = serve_pin,
	[SK_MSG_EVICT] = serve_evict,
	[SK_MSG_FLUSH] = serve_flush,
	[SK_MSG_STATS] = serve_stats,
	[SK_MSG_STOP] = serve_stop,
	[SK_MSG_MAP] = serve_map,
};

/* Requests whose body begins with the id of a snapshot or rank. */
static bool has_id(unsigned type)
{
	return type == SK_MSG_REGISTER || type == SK_MSG_PREPARE ||
	       type == SK_MSG_SLOT_WAIT || type == SK_MSG_WAIT ||
	       type == SK_MSG_GATHER || type == SK_MSG_LIST ||
	       (type >= SK_MSG_PIN && type <= SK_MSG_FLUSH);
}

void serve(struct agent *a, struct session *s, struct sk_msg *msg, int *fds,
	   int n_fds)
{
	struct call c = { .a = a, .s = s, .msg = msg, .fds = fds,
			  .n_fds = n_fds, .out = { -1, -1 } };
	int r = 0;

	if (!s->greeted && msg->type != SK_MSG_HELLO)
		r = sk_err_set(&c.err, -EPROTO, "say hello first");
	else if (msg->type >= SK_MSG_TYPE_COUNT || !calls[msg->type])
		r = sk_err_set(&c.err, -ENOSYS, "there is no request %u",
			       msg->type);
	else if (has_id(msg->type))
		r = sk_wire_check_id(&msg->body.list.id, &c.err);
	if (r >= 0)
		r = calls[msg->type](&c);
	if (!c.deferred)
		session_reply(a, s, msg, r, &c.err, c.out, r < 0 ? 0 : c.n_out);
	for (int i = 0; i < 2; i++)
		sk_close_fd(c.out[i]);
}
