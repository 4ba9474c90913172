/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slot that is only read from its seal on: whoever fills it next is given it
 * when that is done, however late the thread is that does it.
 * Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "conn/client.h"
#include "state/slots.h"
#include "state/state.h"

#define BYTES 100000

/* The first to protect a slot stands still until it may go on. */
struct held {
	struct sk_os os;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool came, may_go;
};

static int protect(const struct sk_os *os, void *at, size_t bytes, int prot)
{
	struct held *h = os->ctx;

	(void)pthread_mutex_lock(&h->lock);
	if (prot == PROT_READ && !h->came) {
		h->came = true;
		(void)pthread_cond_broadcast(&h->changed);
		while (!h->may_go)
			(void)pthread_cond_wait(&h->changed, &h->lock);
	}
	(void)pthread_mutex_unlock(&h->lock);
	return sk_os_linux()->mprotect(sk_os_linux(), at, bytes, prot);
}

static void await_first(struct held *h)
{
	(void)pthread_mutex_lock(&h->lock);
	while (!h->came)
		(void)pthread_cond_wait(&h->changed, &h->lock);
	(void)pthread_mutex_unlock(&h->lock);
}

static void let_go(struct held *h)
{
	(void)pthread_mutex_lock(&h->lock);
	h->may_go = true;
	(void)pthread_cond_broadcast(&h->changed);
	(void)pthread_mutex_unlock(&h->lock);
}

static int take(struct sk_state *state, char *data, int64_t step,
		uint32_t wait_ms)
{
	const struct sk_snapshot_options o = { .wait_ms = wait_ms };

	CHECK(!sk_fence(state), "%s", sk_error());
	memset(data, (int)step, BYTES);
	return sk_snapshot(state, step, &o);
}

static void check_restored(struct sk_state *state, char *data, int64_t step)
{
	CHECK(!sk_wait(state, step, SK_COMPLETE, 60000), "%s", sk_error());
	memset(data, 0, BYTES);
	CHECK(!sk_restore(state, step, NULL, NULL, NULL), "%s", sk_error());
	for (int i = 0; i < BYTES; i++)
		CHECK(data[i] == step, "%d at %d", data[i], i);
}

static void given_when_protected(struct rank *rank)
{
	struct held h = { .os = *sk_os_linux(),
			  .lock = PTHREAD_MUTEX_INITIALIZER,
			  .changed = PTHREAD_COND_INITIALIZER };
	struct sk_job job = { .name = "protected", .world = 1,
			      .flush_every = SK_FLUSH_NEVER };
	char *data = rank_memory(BYTES, 0);
	struct sk_state *state;
	struct sk *sk;

	h.os.ctx = &h;
	h.os.mprotect = protect;
	CHECK(!sk_open_on(&h.os, &(struct sk_options){
		.socket = rank->scene->socket, .threads = 2 }, &sk), "%s",
	      sk_error());
	CHECK(!sk_state_create(sk, &job, &state), "%s", sk_error());
	CHECK(!sk_state_blob(state, "b", data, BYTES), "%s", sk_error());
	CHECK(!take(state, data, 1, 60000), "%s", sk_error());
	await_first(&h);
	CHECK(!take(state, data, 2, 60000), "%s", sk_error());
	CHECK(!sk_wait(state, 2, SK_COMPLETE, 60000), "%s", sk_error());
	/* The other one is still in the hands of that thread. */
	CHECK(take(state, data, 3, 0) == -EBUSY, "%s", sk_error());
	let_go(&h);
	CHECK(!take(state, data, 4, 60000), "%s", sk_error());
	check_restored(state, data, 4);
	sk_state_free(state);
	sk_close(sk);
}

/* ---- where it takes long ---- */

#define LARGE ((size_t)256 << 20)
#define MINUTE UINT64_C(60000000000)

/* Each change of a large slot's access takes exactly @slow. */
struct slow {
	struct sk_os os;
	uint64_t passed, slow;		/* atomic */
	unsigned read_only;		/* times; atomic */
};

/* Of this thread: what it heard last, and hears next; 0: the time. */
static _Thread_local uint64_t heard, hears;

static uint64_t slow_now(const struct sk_os *os)
{
	struct slow *s = os->ctx;

	heard = hears ? hears : sk_os_linux()->now_ns(sk_os_linux()) +
		__atomic_load_n(&s->passed, __ATOMIC_RELAXED);
	hears = 0;
	return heard;
}

static int slow_protect(const struct sk_os *os, void *at, size_t bytes,
			int prot)
{
	struct slow *s = os->ctx;

	if (bytes >= LARGE && prot == PROT_READ) {
		__atomic_fetch_add(&s->read_only, 1, __ATOMIC_RELAXED);
		hears = heard + __atomic_load_n(&s->slow, __ATOMIC_RELAXED);
	}
	return sk_os_linux()->mprotect(sk_os_linux(), at, bytes, prot);
}

static unsigned read_only_after(struct sk_state *state, struct slow *s,
				int64_t step)
{
	const struct sk_snapshot_options o = { .wait_ms = 60000 };

	CHECK(!sk_snapshot(state, step, &o), "%s", sk_error());
	CHECK(!sk_wait(state, step, SK_COMPLETE, 60000), "%s", sk_error());
	CHECK(!sk_fence(state), "%s", sk_error());
	return __atomic_load_n(&s->read_only, __ATOMIC_RELAXED);
}

/* Slots of small pages are left as they are, and looked at again after ten
 * minutes: they may lie in huge ones by then. */
static void again_when_fast(struct rank *rank)
{
	struct slow s = { .os = *sk_os_linux(), .slow = MINUTE };
	struct sk_job job = { .name = "slow", .world = 1,
			      .flush_every = SK_FLUSH_NEVER };
	char *data = rank_memory(LARGE, 0);
	struct sk_state *state;
	struct sk *sk;

	s.os.ctx = &s;
	s.os.mprotect = slow_protect;
	s.os.now_ns = slow_now;
	CHECK(!sk_open_on(&s.os, &(struct sk_options){
		.socket = rank->scene->socket }, &sk), "%s", sk_error());
	CHECK(!sk_state_create(sk, &job, &state), "%s", sk_error());
	CHECK(!sk_state_blob(state, "b", data, LARGE), "%s", sk_error());
	CHECK(read_only_after(state, &s, 1) == 1);
	CHECK(read_only_after(state, &s, 2) == 1, "at each");
	__atomic_store_n(&s.slow, 0, __ATOMIC_RELAXED);
	__atomic_fetch_add(&s.passed, 10 * MINUTE, __ATOMIC_RELAXED);
	CHECK(read_only_after(state, &s, 3) == 2, "never again");
	sk_state_free(state);
	sk_close(sk);
}

/* ---- a piece at a time ---- */

#define HUGE ((uint64_t)2 << 20)
#define GIB ((uint64_t)1 << 30)
#define MAP ((uintptr_t)1 << 40)	/* where nothing is */

/* A system with one mapping, of which it knows what can be written to. */
struct mapping {
	struct sk_os os;
	uint64_t now, ns_per_gib, page;
	uint64_t most, tried;		/* bytes, at once and read-only */
	uint64_t read_only;		/* from its start on */
};

static uint64_t mapping_now(const struct sk_os *os)
{
	return ((struct mapping *)os->ctx)->now;
}

static int mapping_protect(const struct sk_os *os, void *at, size_t bytes,
			   int prot)
{
	struct mapping *m = os->ctx;
	uint64_t from = (uintptr_t)at - MAP;

	if (from % m->page || bytes % m->page)
		return -EINVAL;
	m->most = bytes > m->most ? bytes : m->most;
	if (prot == PROT_READ) {
		CHECK(from == m->read_only);
		m->read_only += bytes;
		m->tried += bytes;
	} else if (from < m->read_only && from + bytes >= m->read_only) {
		m->read_only = 0;
	}
	m->now += m->ns_per_gib * (bytes >> 20) / 1024;
	return 0;
}

static struct mapping protect_mapping(uint64_t bytes, uint64_t page,
				      uint64_t ns_per_gib)
{
	struct mapping m = { .now = 1, .ns_per_gib = ns_per_gib, .page = page,
			     .os = { .now_ns = mapping_now,
				     .mprotect = mapping_protect } };
	struct sk_layout layout = { .image_bytes = bytes };
	struct sk_slot_map slot = { .map = { (void *)MAP } };
	struct sk sk = { .os = &m.os };
	struct sk_state state = { .sk = &sk, .layouts = { &layout },
				  .slots = &slot, .n_slots = 1 };

	m.os.ctx = &m;
	sk_slot_protect(&state, 0);
	CHECK(slot.read_only == (m.read_only > 0));
	CHECK((state.protect_ns > 0) == !m.read_only);
	return m;
}

static void in_pieces(void)
{
	struct mapping m = protect_mapping(40 * GIB + 4096, 4096, 1000);

	CHECK(m.read_only == 40 * GIB + 4096);
	CHECK(m.most <= 256 << 20, "%" PRIu64 " at once", m.most);
	/* Small pages: it is soon known, and undone. */
	m = protect_mapping(40 * GIB + 4096, 4096, 22000000);
	CHECK(!m.read_only && m.tried <= GIB, "%" PRIu64 " bytes", m.tried);
	/* Pages that were set aside are changed as a whole. */
	m = protect_mapping(3 * HUGE - 4096, HUGE, 1000);
	CHECK(m.read_only == 3 * HUGE, "%" PRIu64 " bytes", m.read_only);
}

int main(int argc, char **argv)
{
	struct scene scene;

	in_pieces();
	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "protected", 1, given_when_protected, NULL);
	scene_ranks(&scene, "slow", 1, again_when_fast, NULL);
	scene_close(&scene);
	return 0;
}
