/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warming: the slots as this process maps them, faulted in piece by piece. A
 * thread does it beside everything else; a snapshot that comes before it has
 * got there does the pieces that it needs itself, all at once, which takes a
 * fraction of what page by page takes.
 *
 * A page is charged to the memory cgroup of whoever touches it first, and a
 * huge one to who asks for it. Where ours is not the agent's, a trainer would
 * be killed for what the agent's budget has room for: then the agent has to be
 * done before we touch anything, and only what is there is mapped.
 */
#include "state/warm.h"

#include <assert.h>

#include "base/thread.h"
#include "base/util.h"
#include "memory/slot.h"

/* What faulting in a piece of small pages takes: while a trainer waits, huge
 * ones are not worth more. */
#define PATIENCE_NS ((uint64_t)25 * 1000 * 1000)

/* Between two looks whether the slots are still wanted. */
#define TURN_MS 200u

enum { COLD, BUSY, WARM };

struct sk_warming {
	struct sk_state *state;
	uint64_t bytes[2];		/* of an image, whole pages */
	size_t n[2];			/* pieces of an image */
	pthread_t thread;
	bool started;
	bool over;			/* the thread is; under lock */
	bool slow;			/* huge pages are slow to get; atomic */
	bool stop;			/* under the fences' lock */
	pthread_mutex_t lock;		/* of pieces that turn BUSY, or WARM */
	pthread_cond_t cond;
	uint8_t pieces[];		/* by slot, then kind; atomic */
};

/* Whether the caller is the one to do it; if not, it is done. */
static bool claim(struct sk_warming *w, uint8_t *piece)
{
	const struct sk_os *os = w->state->sk->os;
	bool mine;

	if (__atomic_load_n(piece, __ATOMIC_ACQUIRE) == WARM)
		return false;
	(void)pthread_mutex_lock(&w->lock);
	while (*piece == BUSY)
		(void)os->cond_wait(os, &w->cond, &w->lock, SK_FOREVER);
	mine = *piece == COLD;
	if (mine)
		__atomic_store_n(piece, BUSY, __ATOMIC_RELAXED);
	(void)pthread_mutex_unlock(&w->lock);
	return mine;
}

/* What fails is faulted in where it is touched. */
static void populate(struct sk_warming *w, void *map, uint64_t from,
		     uint64_t to, bool hurry)
{
	bool huge = !w->state->agent_faults &&
		    (!hurry || !__atomic_load_n(&w->slow, __ATOMIC_RELAXED));
	const struct sk_os *os = w->state->sk->os;
	uint64_t began = os->now_ns(os);

	(void)sk_slot_populate_map(os, map, from, to, huge);
	if (hurry && huge && os->now_ns(os) - began > PATIENCE_NS)
		__atomic_store_n(&w->slow, true, __ATOMIC_RELAXED);
}

/* @hurry: a trainer waits for it. */
static void warm_piece(struct sk_warming *w, uint32_t slot, int kind,
		       size_t i, bool hurry)
{
	uint8_t *piece = &w->pieces[slot * (w->n[0] + w->n[1]) +
				    (kind ? w->n[0] : 0) + i];
	uint64_t from = i * SK_SLOT_PIECE, left = w->bytes[kind] - from;

	if (!claim(w, piece))
		return;
	populate(w, w->state->slots[slot].map[kind], from,
		 from + (left < SK_SLOT_PIECE ? left : SK_SLOT_PIECE), hurry);
	(void)pthread_mutex_lock(&w->lock);
	__atomic_store_n(piece, WARM, __ATOMIC_RELEASE);
	(void)pthread_cond_broadcast(&w->cond);
	(void)pthread_mutex_unlock(&w->lock);
}

void sk_warm_range(struct sk_warming *w, uint32_t slot, int kind,
		   uint64_t from, uint64_t to)
{
	if (!w)
		return;
	assert((kind == 0 || kind == 1) && from <= to && to <= w->bytes[kind]);
	for (size_t i = from / SK_SLOT_PIECE; i * SK_SLOT_PIECE < to; i++)
		warm_piece(w, slot, kind, i, true);
}

void sk_warm_slot(struct sk_warming *w, uint32_t slot)
{
	for (int kind = 0; w && kind < 2; kind++)
		for (size_t i = 0; i < w->n[kind]; i++)
			warm_piece(w, slot, kind, i, false);
}

/* A snapshot that is being copied needs the CPUs itself. */
static bool may(struct sk_warming *w)
{
	struct sk_fences *f = &w->state->fences;
	bool stop;

	sk_fences_lock(f);
	while (f->running && !w->stop)
		(void)f->os->cond_wait(f->os, &f->changed, &f->lock,
				       SK_FOREVER);
	stop = w->stop;
	sk_fences_unlock(f);
	return !stop;
}

int sk_warm_ask(struct sk_state *state, uint64_t until_ns, struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_PREPARE, .body.prepare = {
		.id = sk_state_wire_id(state, 0) } };
	int r = sk_call_deferred(state->sk, &msg, NULL, 0, NULL, NULL,
				 until_ns, err);

	if (r >= 0)
		__atomic_store_n(&state->faulted_in, true, __ATOMIC_RELEASE);
	return r;
}

int sk_warm_await(struct sk_state *state, uint64_t until_ns,
		  struct sk_err *err)
{
	if (!state->agent_faults ||
	    __atomic_load_n(&state->faulted_in, __ATOMIC_ACQUIRE))
		return 0;
	return sk_warm_ask(state, until_ns, err);
}

static bool stopped(struct sk_warming *w)
{
	struct sk_fences *f = &w->state->fences;
	bool stop;

	sk_fences_lock(f);
	stop = w->stop;
	sk_fences_unlock(f);
	return stop;
}

/* In turns, for the state may be let go meanwhile. An agent that is lost, or
 * has no memory, is met by the next snapshot. */
static bool agent_is_done(struct sk_warming *w)
{
	struct sk_err err = { "" };
	int r;

	do {
		r = sk_warm_await(w->state, sk_until_ms(w->state->sk->os,
							TURN_MS), &err);
	} while (r == -ETIMEDOUT && !stopped(w));
	return r >= 0;
}

/* From the last one back: the agent begins with the first. Two who want one
 * page keep each other from having a huge one. */
static void warm_slots(struct sk_warming *w, uint32_t n)
{
	for (uint32_t slot = n; slot-- > 0;)
		for (int kind = 1; kind >= 0; kind--)
			for (size_t i = w->n[kind]; i > 0 && may(w); i--)
				warm_piece(w, slot, kind, i - 1, false);
}

static int collapse_piece(const struct sk_warming *w, uint32_t slot, int kind,
			  size_t i)
{
	uint64_t from = i * SK_SLOT_PIECE, left = w->bytes[kind] - from;

	return sk_slot_collapse_map(w->state->sk->os,
				    w->state->slots[slot].map[kind], from,
				    from + (left < SK_SLOT_PIECE ?
						    left : SK_SLOT_PIECE));
}

/* What was faulted in in a hurry may lie in small pages, which the agent brings
 * into huge ones in time; but once it is page-locked nobody can. */
static void collapse_slot(struct sk_warming *w, uint32_t slot)
{
	unsigned roomless = 0;

	for (int kind = 0; kind < 2; kind++)
		for (size_t i = 0; i < w->n[kind] && may(w) &&
				   roomless < SK_SLOT_ROOMLESS; i++)
			roomless += sk_slot_has_no_room(collapse_piece(
				w, slot, kind, i));
}

static void lock_slots(struct sk_warming *w, uint32_t n)
{
	for (uint32_t slot = 0; slot < n && may(w); slot++) {
		if (!w->state->agent_faults &&
		    sk_gpus_will_lock(w->state, slot))
			collapse_slot(w, slot);
		if (may(w))
			sk_gpus_lock_slot(w->state, slot);
	}
}

static void *run(void *arg)
{
	struct sk_warming *w = arg;
	uint32_t n = agent_is_done(w) ? w->state->n_slots : 0;

	warm_slots(w, n);
	if (n && may(w))
		sk_gpus_warm(w->state);
	lock_slots(w, n);
	(void)pthread_mutex_lock(&w->lock);
	w->over = true;
	(void)pthread_cond_broadcast(&w->cond);
	(void)pthread_mutex_unlock(&w->lock);
	return NULL;
}

struct sk_warming *sk_warm_new(struct sk_state *state)
{
	struct sk_warming *w;
	uint64_t bytes[2] = { 0 };
	size_t n[2];

	for (int k = 0; k < 2; k++) {
		if (state->layouts[k])
			bytes[k] = sk_round_up(state->layouts[k]->image_bytes,
					       SK_PAGE);
		n[k] = (bytes[k] + SK_SLOT_PIECE - 1) / SK_SLOT_PIECE;
	}
	w = calloc(1, sizeof(*w) + state->n_slots * (n[0] + n[1]));
	if (!w)
		return NULL;
	w->state = state;
	for (int k = 0; k < 2; k++) {
		w->bytes[k] = bytes[k];
		w->n[k] = n[k];
	}
	(void)pthread_mutex_init(&w->lock, NULL);
	sk_cond_init(&w->cond);
	w->started = !sk_thread_start(&w->thread, run, w);
	return w;
}

int sk_warm_finish(struct sk_warming *w, uint64_t until_ns)
{
	const struct sk_os *os;
	int r = 0;

	if (!w || !w->started)
		return 0;
	os = w->state->sk->os;
	(void)pthread_mutex_lock(&w->lock);
	while (!w->over && r != -ETIMEDOUT)
		r = os->cond_wait(os, &w->cond, &w->lock, until_ns);
	r = w->over ? 0 : -ETIMEDOUT;
	(void)pthread_mutex_unlock(&w->lock);
	return r;
}

struct sk_warming *sk_warm_free(struct sk_warming *w)
{
	struct sk_fences *f;

	if (!w)
		return NULL;
	f = &w->state->fences;
	sk_fences_lock(f);
	w->stop = true;
	(void)pthread_cond_broadcast(&f->changed);
	sk_fences_unlock(f);
	if (w->started)		/* it stops at the next piece */
		(void)pthread_join(w->thread, NULL);
	(void)pthread_cond_destroy(&w->cond);
	(void)pthread_mutex_destroy(&w->lock);
	free(w);
	return NULL;
}
