/* SPDX-License-Identifier: Apache-2.0 */
#include "bytes/choice.h"

#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "bytes/copy.h"
#include "bytes/lines.h"
#include "bytes/stream.h"

/* So few bytes tell as much as many: what streaming stores wrote lies in no
 * cache, so a copy back and forth reads memory and writes memory each time. */
#define BYTES ((size_t)128 << 10)
/* Another process may have the CPU meanwhile: the best of some counts. */
#define ROUNDS 6
/* By less than a tenth is by chance. */
#define TENTHS_LEAST 9

/* Tables are filled once, so what was chosen is as good as a constant. */
static unsigned stream_way, lines_way;
static bool hash_is_free, measured;

const struct sk_stream *sk_stream_best(void)
{
	return sk_stream_at(__atomic_load_n(&stream_way, __ATOMIC_RELAXED));
}

const struct sk_lines *sk_lines_best(void)
{
	return sk_lines_at(__atomic_load_n(&lines_way, __ATOMIC_RELAXED));
}

bool sk_copy_hash_is_free(void)
{
	return __atomic_load_n(&hash_is_free, __ATOMIC_RELAXED);
}

unsigned sk_choose(const uint64_t *ns, unsigned n)
{
	unsigned best = 0;

	for (unsigned i = 1; i < n; i++)
		if (ns[i] < ns[best])
			best = i;
	return ns[best] * 10 < ns[0] * TENTHS_LEAST ? best : 0;
}

/* ---- measuring ---- */

struct bench {
	const struct sk_os *os;
	char *from, *to;
};

static void copy_by(const struct bench *b, unsigned way)
{
	sk_stream_at(way)->copy(b->to, b->from, BYTES);
}

static void hash_by(const struct bench *b, unsigned way)
{
	uint64_t lanes[SK_XXH3_LANES] = { 0 };

	sk_lines_at(way)->stream(lanes, b->to, b->from, BYTES / SK_LINE, 0);
}

static uint64_t time_one(struct bench *b, unsigned way,
			 void (*run)(const struct bench *b, unsigned way))
{
	uint64_t start = b->os->now_ns(b->os);
	char *swap = b->from;

	run(b, way);
	sk_stream_fence();
	b->from = b->to;
	b->to = swap;
	return b->os->now_ns(b->os) - start;
}

/* The best times of @n ways, of which each has its turn in each round. */
static void time_all(struct bench *b, uint64_t *ret_ns, unsigned n,
		     void (*run)(const struct bench *b, unsigned way))
{
	memset(ret_ns, 0xff, n * sizeof(*ret_ns));
	/* There and back: nothing is in the cache any more. */
	time_one(b, 0, run);
	time_one(b, 0, run);
	for (unsigned i = 0; i < ROUNDS * n; i++) {
		uint64_t ns = time_one(b, i % n, run);

		if (ns < ret_ns[i % n])
			ret_ns[i % n] = ns;
	}
}

static void measure(struct bench *b)
{
	uint64_t copy[SK_WALKS], hash[SK_LINES_WAYS];
	unsigned walk, way;

	time_all(b, copy, SK_WALKS, copy_by);
	walk = sk_choose(copy, SK_WALKS);
	__atomic_store_n(&stream_way, walk, __ATOMIC_RELAXED);
	if (!sk_lines_at(0))
		return;
	time_all(b, hash, SK_LINES_WAYS, hash_by);
	way = sk_choose(hash, SK_LINES_WAYS);
	__atomic_store_n(&lines_way, way, __ATOMIC_RELAXED);
	/* A clock that stands still, or is too coarse, tells nothing. */
	__atomic_store_n(&hash_is_free, hash[way] && hash[way] * TENTHS_LEAST <=
					copy[walk] * 10, __ATOMIC_RELAXED);
}

void sk_copy_measure(const struct sk_os *os)
{
	_cleanup_free_ char *room = NULL;
	struct bench b = { .os = os };

	if (!sk_stream_at(0) ||
	    __atomic_exchange_n(&measured, true, __ATOMIC_RELAXED))
		return;
	room = aligned_alloc(SK_LINE, 2 * BYTES);
	if (!room)
		return;
	memset(room, 1, 2 * BYTES);
	b.from = room;
	b.to = room + BYTES;
	measure(&b);
}
