/* SPDX-License-Identifier: Apache-2.0 */
#include "state/slots.h"

#include <assert.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/util.h"
#include "conn/memfd.h"
#include "memory/slot.h"
#include "state/warm.h"

/* From this size on it matters how long it takes to protect a slot: more than
 * that of small pages, of a GiB, which is enough to tell. No more at once than
 * a piece: all else here that maps memory waits for that. */
#define LARGE ((uint64_t)256 << 20)
#define ENOUGH ((uint64_t)1 << 30)
#define SLOW_NS_PER_GIB UINT64_C(20000000)
/* Until it is tried once more: small pages may have become huge ones. */
#define SLOW_FOR_NS UINT64_C(600000000000)

static uint64_t image_bytes(const struct sk_state *state, int kind)
{
	return state->layouts[kind] ? state->layouts[kind]->image_bytes : 0;
}

static void tell(struct sk_state *state, uint32_t slots, uint64_t bytes)
{
	sk_fences_lock(&state->fences);
	state->status.slots = slots;
	state->status.slot_bytes = bytes;
	sk_fences_unlock(&state->fences);
}

void sk_slots_unmap(struct sk_state *state)
{
	tell(state, 0, 0);
	state->warming = sk_warm_free(state->warming);
	for (uint32_t i = 0; state->slots && i < state->n_slots; i++) {
		sk_gpus_unlock_slot(state, i);
		for (int k = 0; k < 2; k++)
			if (state->slots[i].map[k])
				sk_slot_unmap(state->sk->os,
					      state->slots[i].map[k],
					      image_bytes(state, k));
	}
	free(state->slots);
	state->slots = NULL;
	state->n_slots = 0;
}

/* Whoever opens an image later can tell that it is this one. */
static void note_file(struct sk_state *state, struct sk_slot_file *file,
		      int fd)
{
	struct stat st;

	if (state->sk->os->fstat(state->sk->os, fd, &st) >= 0)
		*file = (struct sk_slot_file){ st.st_dev, st.st_ino };
}

static int map_images(struct sk_state *state, uint32_t slot, const int *fds,
		      int n_fds, struct sk_err *err)
{
	int at = 0, r = 0;

	assert(slot < state->n_slots && n_fds >= 0 && n_fds <= SK_MSG_FDS);
	for (int k = 0; k < 2 && r >= 0; k++) {
		if (!state->layouts[k])
			continue;
		if (at == n_fds)
			return sk_err_set(err, -EPROTO, "the agent gave %d "
					  "descriptors for a slot", n_fds);
		note_file(state, &state->slots[slot].file[k], fds[at]);
		r = sk_slot_map_fd(state->sk->os, fds[at++],
				   image_bytes(state, k), true,
				   &state->slots[slot].map[k], err);
	}
	return r;
}

static int map_slot(struct sk_state *state, uint32_t slot, uint64_t until_ns,
		    struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_MAP, .body.map = {
		.state = state->id, .slot = slot } };
	int fds[SK_MSG_FDS], n = 0, r;

	assert(state->id && slot < state->n_slots);
	r = sk_conn_call(&state->sk->conn, &msg, NULL, 0, fds, &n, until_ns,
			 err);
	if (r >= 0)
		r = map_images(state, slot, fds, n, err);
	sk_close_fds(state->sk->os, fds, n);
	return r;
}

int sk_slots_map(struct sk_state *state, uint32_t n, uint64_t until_ns,
		 struct sk_err *err)
{
	int r = 0;

	assert(state->id && !state->slots && !state->n_slots);
	state->slots = calloc(n + 1u, sizeof(*state->slots));
	if (!state->slots)
		return sk_err_set(err, -ENOMEM, "no memory for %u slots", n);
	state->n_slots = n;
	state->agent_faults = sk_conn_agent_faults(&state->sk->conn);
	state->faulted_in = false;
	for (uint32_t i = 0; i < n && r >= 0; i++)
		r = map_slot(state, i, until_ns, err);
	if (r < 0)
		return r;
	tell(state, n, state->slot_bytes);
	state->warming = sk_warm_new(state);
	return 0;
}

/* ---- sealed ones ---- */

static uint64_t mapped_bytes(const struct sk_state *state, uint32_t slot,
			     int kind)
{
	return state->slots[slot].map[kind] ?
	       sk_round_up(image_bytes(state, kind), SK_PAGE) : 0;
}

/* A piece from there on; its bytes, or an error. */
static int64_t set_piece(struct sk_state *state, uint32_t slot, int kind,
			 uint64_t from, int prot)
{
	const struct sk_os *os = state->sk->os;
	uint64_t left = mapped_bytes(state, slot, kind) - from;
	uint64_t bytes = left < LARGE ? left : LARGE;
	char *at = (char *)state->slots[slot].map[kind] + from;
	int r = os->mprotect(os, at, bytes, prot);

	/* Refused where it would cut a huge page: then it is the whole one. */
	if (r == -EINVAL)
		r = os->mprotect(os, at, sk_round_up(bytes, SK_HUGE_PAGE),
				 prot);
	return r < 0 ? r : (int64_t)bytes;
}

static bool is_slow(const struct sk_state *state, uint64_t began,
		    uint64_t bytes)
{
	const struct sk_os *os = state->sk->os;

	return bytes >= LARGE && os->now_ns(os) - began >=
	       (bytes >> 20) * SLOW_NS_PER_GIB / 1024;
}

/* False: it takes long, and is broken off. What fails is left as it is. */
static bool protect(struct sk_state *state, uint32_t slot, uint64_t began)
{
	uint64_t done = 0;

	for (int k = 0; k < 2; k++)
		for (uint64_t at = 0; at < mapped_bytes(state, slot, k);) {
			int64_t n = set_piece(state, slot, k, at, PROT_READ);

			if (n < 0)
				return true;
			at += (uint64_t)n;
			done += (uint64_t)n;
			if (done >= ENOUGH && is_slow(state, began, done))
				return false;
		}
	return !is_slow(state, began, done);
}

void sk_slot_protect(struct sk_state *state, uint32_t slot)
{
	const struct sk_os *os = state->sk->os;
	uint64_t began = os->now_ns(os);

	assert(slot < state->n_slots && !state->slots[slot].read_only);
	if (began < __atomic_load_n(&state->protect_ns, __ATOMIC_RELAXED))
		return;
	state->slots[slot].read_only = true;
	if (protect(state, slot, began))
		return;
	__atomic_store_n(&state->protect_ns, began + SLOW_FOR_NS,
			 __ATOMIC_RELAXED);
	(void)sk_slot_unprotect(state, slot, NULL);
}

static int unprotect(struct sk_state *state, uint32_t slot)
{
	int64_t n;

	for (int k = 0; k < 2; k++)
		for (uint64_t at = 0; at < mapped_bytes(state, slot, k);
		     at += (uint64_t)n) {
			n = set_piece(state, slot, k, at,
				      PROT_READ | PROT_WRITE);
			if (n < 0)
				return (int)n;
		}
	return 0;
}

int sk_slot_unprotect(struct sk_state *state, uint32_t slot,
		      struct sk_err *err)
{
	int r;

	assert(slot < state->n_slots);
	if (!state->slots[slot].read_only)
		return 0;
	r = unprotect(state, slot);
	if (r < 0)
		return sk_err_errno(err, r, "cannot write to slot %u of rank "
				    "%d again", slot, state->job.rank);
	state->slots[slot].read_only = false;
	return 0;
}
