/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warming: the slots as this process maps them, faulted in piece by piece. A
 * thread does it beside everything else; a snapshot that comes before it has
 * got there does the pieces that it needs itself, all at once, which takes a
 * fraction of what page by page takes.
 */
#include "internal.h"
#include "slot.h"

/* What faulting in a piece of small pages takes: while a trainer waits, huge
 * ones are not worth more. */
#define PATIENCE_NS ((uint64_t)25 * 1000 * 1000)

enum { COLD, BUSY, WARM };

struct sk_warming {
	struct sk_state *state;
	uint64_t bytes[2];		/* of an image, whole pages */
	size_t n[2];			/* pieces of an image */
	pthread_t thread;
	bool joined;
	bool slow;			/* huge pages are slow to get; atomic */
	bool stop;			/* under state->copy_lock */
	pthread_mutex_t lock;		/* of pieces that turn BUSY, or WARM */
	pthread_cond_t cond;
	uint8_t pieces[];		/* by slot, then kind; atomic */
};

/* Whether the caller is the one to do it; if not, it is done. */
static bool claim(struct sk_warming *w, uint8_t *piece)
{
	bool mine;

	if (__atomic_load_n(piece, __ATOMIC_ACQUIRE) == WARM)
		return false;
	(void)pthread_mutex_lock(&w->lock);
	while (*piece == BUSY)
		(void)pthread_cond_wait(&w->cond, &w->lock);
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
	bool huge = !hurry || !__atomic_load_n(&w->slow, __ATOMIC_RELAXED);
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
	for (size_t i = from / SK_SLOT_PIECE; i * SK_SLOT_PIECE < to; i++)
		warm_piece(w, slot, kind, i, true);
}

/* A snapshot that is being copied needs the CPUs itself. */
static bool may(struct sk_warming *w)
{
	struct sk_state *state = w->state;
	bool stop;

	(void)pthread_mutex_lock(&state->copy_lock);
	while (state->running && !w->stop)
		(void)pthread_cond_wait(&state->copy_cond, &state->copy_lock);
	stop = w->stop;
	(void)pthread_mutex_unlock(&state->copy_lock);
	return !stop;
}

static void *run(void *arg)
{
	struct sk_warming *w = arg;

	for (uint32_t slot = 0; slot < w->state->n_slots; slot++)
		for (int kind = 0; kind < 2; kind++)
			for (size_t i = 0; i < w->n[kind] && may(w); i++)
				warm_piece(w, slot, kind, i, false);
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
	(void)pthread_cond_init(&w->cond, NULL);
	w->joined = pthread_create(&w->thread, NULL, run, w) != 0;
	return w;
}

void sk_warm_finish(struct sk_warming *w)
{
	if (w && !w->joined)
		(void)pthread_join(w->thread, NULL);
	if (w)
		w->joined = true;
}

struct sk_warming *sk_warm_free(struct sk_warming *w)
{
	struct sk_state *state;

	if (!w)
		return NULL;
	state = w->state;
	(void)pthread_mutex_lock(&state->copy_lock);
	w->stop = true;
	(void)pthread_cond_broadcast(&state->copy_cond);
	(void)pthread_mutex_unlock(&state->copy_lock);
	sk_warm_finish(w);
	(void)pthread_cond_destroy(&w->cond);
	(void)pthread_mutex_destroy(&w->lock);
	free(w);
	return NULL;
}
