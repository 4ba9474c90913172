/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts, registration, mapped slots. */
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "internal.h"
#include "slot.h"

static uint64_t image_bytes(const struct sk_state *state, int kind)
{
	return state->layouts[kind] ? state->layouts[kind]->image_bytes : 0;
}

/* ---- what is registered ---- */

static void unmap_slots(struct sk_state *state)
{
	state->warming = sk_warm_free(state->warming);
	for (uint32_t i = 0; state->slots && i < state->n_slots; i++)
		for (int k = 0; k < 2; k++)
			if (state->slots[i].map[k])
				sk_slot_unmap(state->sk->os,
					      state->slots[i].map[k],
					      image_bytes(state, k));
	free(state->slots);
	state->slots = NULL;
	state->n_slots = 0;
}

static void forget(struct sk_state *state)
{
	unmap_slots(state);
	state->work = sk_work_free(state->work);
	for (int k = 0; k < 2; k++)
		state->layouts[k] = sk_layout_free(state->layouts[k]);
}

void sk_state_unregister(struct sk_state *state)
{
	struct sk_msg msg = { .type = SK_MSG_UNREGISTER,
			      .body.state = state->id };

	/* An agent that is gone needs no good-bye. */
	if (state->id)
		(void)sk_conn_call_in(&state->sk->conn, state->generation,
				      &msg, state->sk->timeout_ms, NULL);
	state->id = 0;
	forget(state);
}

static int make_layouts(struct sk_state *state, struct sk_err *err)
{
	_cleanup_free_ struct sk_item *items = NULL;
	int r = 0;

	/* A rank that asks for nothing takes part in a restore all the same:
	 * the others could not agree without it. */
	items = calloc(state->n_locals + 1u, sizeof(*items));
	if (!items)
		return sk_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < state->n_locals; i++)
		items[i] = state->locals[i].item;
	for (int k = 0; k < 2 && r >= 0; k++)
		if (k == SK_IMAGE_PRIMARY ||
		    !(state->job.flags & SK_JOB_NO_REPLICAS))
			r = sk_layout_new(state->job.name, state->job.rank,
					  state->job.world,
					  (enum sk_image_kind)k, items,
					  state->n_locals, &state->layouts[k],
					  err);
	if (r >= 0 && state->layouts[1] && !state->layouts[1]->n_entries)
		state->layouts[1] = sk_layout_free(state->layouts[1]);
	return r;
}

static int put_headers(const struct sk_state *state, struct sk_err *err)
{
	int fd = memfd_create("shardkeep:layout",
			      MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int r = fd < 0 ? -errno : 0;

	for (int k = 0; k < 2 && r >= 0; k++) {
		const struct sk_layout *l = state->layouts[k];

		for (uint64_t at = 0; l && at < l->header_bytes && r >= 0;) {
			ssize_t n = write(fd, l->header + at,
					  l->header_bytes - at);

			if (n < 0)
				r = -errno;
			else
				at += (uint64_t)n;
		}
	}
	if (r >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		r = -errno;
	if (r < 0) {
		sk_close_fd(fd);
		return sk_err_errno(err, r, "cannot hand over a layout");
	}
	return fd;
}

static int ask_register(struct sk_state *state, bool slots,
			struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_REGISTER };
	struct sk_wire_register *q = &msg.body.reg;
	_cleanup_close_ int fd = put_headers(state, err);
	int r;

	if (fd < 0)
		return fd;
	strcpy(q->id.job, state->job.name);
	q->id.run = state->run ? state->run : state->job.run;
	q->id.rank = state->job.rank;
	q->id.world = state->job.world;
	q->state = state->id;
	q->slots = state->job.slots;
	q->flush_every = state->job.flush_every;
	q->numa_node = sk_numa_node_here();
	q->flags = slots ? 0 : SK_REGISTER_LATER;
	for (int k = 0; k < 2; k++)
		if (state->layouts[k]) {
			q->header_bytes[k] = state->layouts[k]->header_bytes;
			q->image_bytes[k] = state->layouts[k]->image_bytes;
		}
	/* Lost in between, it is not taken for registered. */
	(void)sk_conn_look(&state->sk->conn, &state->generation,
			   &state->instance);
	r = sk_conn_call(&state->sk->conn, &msg, &fd, 1, NULL, NULL,
			 state->sk->timeout_ms, err);
	if (r < 0)
		return r;
	state->id = msg.body.reg_reply.state;
	state->run = msg.body.reg_reply.run;
	state->slot_bytes = msg.body.reg_reply.slot_bytes;
	/* Inherited ones are not asked for, and may be there all the same. */
	state->n_slots = slots ? msg.body.reg_reply.slots : 0;
	return 0;
}

static int map_slot(struct sk_state *state, uint32_t slot, struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_MAP, .body.map = {
		.state = state->id, .slot = slot } };
	int fds[SK_MSG_FDS], n = 0, r, at = 0;

	r = sk_conn_call(&state->sk->conn, &msg, NULL, 0, fds, &n,
			 state->sk->timeout_ms, err);
	for (int k = 0; k < 2 && r >= 0; k++) {
		if (!state->layouts[k])
			continue;
		if (at == n)
			return sk_err_set(err, -EPROTO, "the agent gave %d "
					  "descriptors for a slot", n);
		r = sk_slot_map_fd(state->sk->os, fds[at++],
				   state->layouts[k]->image_bytes, true,
				   &state->slots[slot].map[k], err);
	}
	while (n)
		sk_close_fd(fds[--n]);
	return r;
}

static int map_slots(struct sk_state *state, struct sk_err *err)
{
	int r = 0;

	state->slots = calloc(state->n_slots + 1u, sizeof(*state->slots));
	if (!state->slots)
		return sk_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < state->n_slots && r >= 0; i++)
		r = map_slot(state, i, err);
	if (r >= 0)
		state->warming = sk_warm_new(state);
	return r;
}

/* Another agent, or another connection, knows nothing of this state. */
static bool is_registered(const struct sk_state *state)
{
	uint64_t generation, instance;

	return sk_conn_look(&state->sk->conn, &generation, &instance) &&
	       state->id && state->instance == instance &&
	       state->generation == generation;
}

/* From nothing: layouts, an id, slots. */
static int register_anew(struct sk_state *state, bool slots,
			 struct sk_err *err)
{
	int r;

	sk_snapshot_settle(state);
	forget(state);
	r = make_layouts(state, err);
	if (r >= 0)
		r = ask_register(state, slots, err);
	if (r >= 0 && slots)
		r = map_slots(state, err);
	if (r < 0)
		return r;
	state->changed = false;
	state->moved = false;
	return 0;
}

static int add_slots(struct sk_state *state, struct sk_err *err)
{
	int r = ask_register(state, true, err);

	if (r >= 0)
		r = map_slots(state, err);
	if (r < 0)
		state->changed = true;
	return r;
}

int sk_state_register(struct sk_state *state, bool slots, struct sk_err *err)
{
	int r;

	if (state->job.flags & SK_JOB_READER)
		return !slots ? 0 :
		       sk_err_set(err, -EROFS, "rank %d of job \"%s\" is a "
				  "reader: it restores and takes no snapshots",
				  state->job.rank, state->job.name);
	r = sk_conn_again(state->sk->socket_path, state->sk->timeout_ms,
			  &state->sk->conn, err);
	if (r < 0)
		return r;
	if (!is_registered(state)) {
		state->id = 0;
		state->changed = true;
	}
	if (state->changed)
		return register_anew(state, slots, err);
	return slots && !state->n_slots ? add_slots(state, err) : 0;
}

SK_API int sk_prepare(struct sk_state *state, uint32_t timeout_ms)
{
	struct sk_msg msg = { .type = SK_MSG_PREPARE };
	struct sk_err err = { "" };
	int r = sk_check(state->sk, &err);

	if (r < 0)
		return sk_say(r, &err);
	(void)pthread_mutex_lock(&state->lock);
	r = sk_state_register(state, true, &err);
	if (r >= 0 && timeout_ms) {
		strcpy(msg.body.prepare.id.job, state->job.name);
		msg.body.prepare.id.run = state->run;
		msg.body.prepare.id.rank = state->job.rank;
		msg.body.prepare.timeout_ms = timeout_ms;
		r = sk_call_deferred(state->sk, &msg, NULL, 0, NULL, NULL,
				     timeout_ms, &err);
	}
	if (r >= 0 && timeout_ms)
		sk_warm_finish(state->warming);
	/* A target without data restores nothing, but may be prepared. */
	if (r >= 0)
		(void)sk_snapshot_prepare(state, NULL);
	(void)pthread_mutex_unlock(&state->lock);
	return sk_say(r, &err);
}
