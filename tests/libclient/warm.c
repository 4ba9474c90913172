/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who faults slots in: agent and rank at once, from either end, for where both
 * want one page it does not become part of a huge one.
 * Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <pthread.h>

#include "base/util.h"
#include "conn/client.h"
#include "memory/slot.h"

#define PIECES 4
#define MOST 64

/* What a rank faults in, of whole pieces, as it goes. */
struct watched {
	struct sk_os os;
	pthread_mutex_t lock;
	const char *pieces[MOST];
	size_t n;
};

static int note(const struct sk_os *os, void *at, size_t bytes, int advice)
{
	struct watched *w = os->ctx;

	if (bytes == SK_SLOT_PIECE && advice == 23 /* MADV_POPULATE_WRITE */) {
		(void)pthread_mutex_lock(&w->lock);
		CHECK(w->n < MOST);
		w->pieces[w->n++] = at;
		(void)pthread_mutex_unlock(&w->lock);
	}
	return sk_os_linux()->madvise(sk_os_linux(), at, bytes, advice);
}

static void from_the_last(struct rank *rank)
{
	struct watched w = { .os = *sk_os_linux(),
			     .lock = PTHREAD_MUTEX_INITIALIZER };
	struct sk_job job = { .name = "warm", .world = 1 };
	uint64_t bytes = PIECES * SK_SLOT_PIECE;
	struct sk_state *state;
	size_t next = 0;
	struct sk *sk;

	w.os.ctx = &w;
	w.os.madvise = note;
	CHECK(!sk_open_on(&w.os, &(struct sk_options){
		.socket = rank->scene->socket }, &sk), "%s", sk_error());
	CHECK(!sk_state_create(sk, &job, &state), "%s", sk_error());
	CHECK(!sk_state_tensor(state, &(struct sk_tensor){
		.name = "w", .dtype = SK_U8, .ndim = 1,
		.shape = { (int64_t)bytes },
		.data = rank_memory(bytes, 0) }), "%s", sk_error());
	CHECK(!sk_prepare(state, 60000), "%s", sk_error());
	CHECK(w.n >= 2 * PIECES, "%zu pieces", w.n);
	for (size_t i = 0; i + 1 < w.n; i++) {
		CHECK(w.pieces[i + 1] != w.pieces[i] + SK_SLOT_PIECE);
		next += w.pieces[i + 1] == w.pieces[i] - SK_SLOT_PIECE;
	}
	CHECK(next >= PIECES - 1, "%zu of %zu", next, w.n);
	sk_state_free(state);
	sk_close(sk);
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "warm", 1, from_the_last, NULL);
	scene_close(&scene);
	return 0;
}
