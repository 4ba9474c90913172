/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/passing.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "bytes/pass.h"

/*
 * What is verified is what is delivered, whoever writes to an image
 * meanwhile: its bytes are read once, and what is stored is what was hashed.
 * Long runs go line by line (bytes/pass.h); shorter ones out of a buffer that
 * stays in the first level cache, which is filled by four streams at once: one
 * alone waits for memory wherever pages lie scattered. Runs shorter than
 * RUN_LEAST gain more from a chunk at a time.
 */
#define STEP_BYTES ((uint64_t)16 << 10)
#define STREAMS 4u
#define LINE 64u	/* bytes of a cache line */
#define RUN_LEAST 64u

/* What is fetched in four streams is copied out of the cache. */
void sk_passing_gather(char *to, const char *from, uint64_t n)
{
	uint64_t part = n / STREAMS;

	for (uint64_t at = 0; at < part; at += LINE)
		for (unsigned i = 0; i < STREAMS; i++)
			__builtin_prefetch(from + i * part + at);
	memcpy(to, from, n);
}

/* A step at a time, which is hashed while the first level cache has it. */
uint64_t sk_passing_gather_hashed(char *to, const char *from, uint64_t bytes)
{
	struct sk_xxh3_stream sum;

	sk_xxh3_begin(&sum);
	for (uint64_t at = 0, n; at < bytes; at += n) {
		n = bytes - at < STEP_BYTES ? bytes - at : STEP_BYTES;
		sk_passing_gather(to + at, from + at, n);
		sk_xxh3_add(&sum, to + at, n);
	}
	return sk_xxh3_end(&sum);
}

/* Bytes [at, at + n) of the entry where nobody writes to them: in @buf, or,
 * of memory that is ours alone, where they lie. */
static const char *hold_still(const struct sk_passing *p, uint64_t at,
			      uint64_t n, char *buf)
{
	assert(at >= p->from && at + n <= p->to);
	if (!p->shared)
		return p->base + at;
	sk_passing_gather(buf, p->base + at, n);
	return buf;
}

struct sk_copy sk_passing_out_of(const struct sk_passing *p, uint64_t at,
				 const char *bytes)
{
	struct sk_copy copy = p->copy;

	copy.src = (const char *)((uintptr_t)copy.src + (uintptr_t)bytes -
				  ((uintptr_t)p->base + at));
	return copy;
}

/* In long runs: the bytes of the chunk as they lie, and of them the copy. */
static uint64_t pass_long(const struct sk_passing *p)
{
	struct sk_pass pass;
	const char *at = p->base + p->from;

	sk_pass_begin(&pass, p->to - p->from);
	at = sk_pass_run(&pass, &p->copy, p->first, p->last, at);
	sk_pass_take(&pass, NULL, at, (uint64_t)(p->base + p->to - at));
	sk_stream_fence();
	return sk_pass_end(&pass);
}

static uint64_t pass_strided(const struct sk_passing *p)
{
	char buf[STEP_BYTES] __attribute__((aligned(LINE)));
	uint64_t n, next, done = p->first;
	struct sk_xxh3_stream sum;

	sk_xxh3_begin(&sum);
	for (uint64_t at = p->from; at < p->to; at += n) {
		const char *bytes;
		struct sk_copy copy;

		n = STEP_BYTES < p->to - at ? STEP_BYTES : p->to - at;
		bytes = hold_still(p, at, n, buf);
		sk_xxh3_add(&sum, bytes, n);
		next = sk_restore_before(&p->shape, at + n);
		next = next < p->last ? next : p->last;
		if (next <= done)	/* before the first, behind the last */
			continue;
		copy = sk_passing_out_of(p, at, bytes);
		sk_copy_run_unfenced(&copy, done, next);
		done = next;
	}
	sk_stream_fence();
	return sk_xxh3_end(&sum);
}

/* All of it at once; @buf has room for the chunk. */
static uint64_t pass_whole(const struct sk_passing *p, char *buf)
{
	uint64_t n = p->to - p->from;
	const char *bytes = hold_still(p, p->from, n, buf);
	struct sk_copy copy = sk_passing_out_of(p, p->from, bytes);
	uint64_t sum = sk_xxh3(bytes, n);

	sk_copy_run_range(&copy, p->first, p->last);
	return sum;
}

static uint64_t pass_small(const struct sk_passing *p)
{
	char buf[STEP_BYTES] __attribute__((aligned(LINE)));

	return pass_whole(p, buf);
}

int sk_passing_run(const struct sk_passing *p, uint64_t *ret_sum,
		   struct sk_err *err)
{
	uint64_t bytes = p->to - p->from;
	_cleanup_free_ char *buf = NULL;

	assert(p->from <= p->to && p->first <= p->last);
	if (bytes <= STEP_BYTES) {
		*ret_sum = pass_small(p);
	} else if (p->copy.run >= SK_PASS_RUN) {
		*ret_sum = pass_long(p);
	} else if (p->copy.run >= RUN_LEAST) {
		*ret_sum = pass_strided(p);
	} else {
		buf = p->shared ? malloc(bytes) : NULL;
		if (p->shared && !buf)
			return sk_err_set(err, -ENOMEM, "no memory to verify "
					  "%llu bytes in",
					  (unsigned long long)bytes);
		*ret_sum = pass_whole(p, buf);
	}
	return 0;
}

