/* SPDX-License-Identifier: Apache-2.0 */
/*
 * XXH3 of whole lines, which may be stored on the way: lines-x86.c where the
 * CPU has the vectors for it, lines-none.c elsewhere. Private to the room: see
 * pass.h. Thread-safety: pure functions.
 */
#ifndef SK_CACHE_BYTES_LINES_H
#define SK_CACHE_BYTES_LINES_H

#include <stddef.h>
#include <stdint.h>

/* As XXH3's specification has them. */
#define SK_XXH3_LANES 8u
#define SK_XXH3_SECRET 192u
#define SK_XXH3_BLOCK 16u	/* lines; then the lanes are scrambled */

struct sk_lines {
	const char *name;
	/** Takes @n lines, of which the first is the @at-th of its block. */
	void (*hash)(uint64_t *lanes, const char *src, size_t n, size_t at);
	/** Stores them, too: past the cache, @dst lies on a line; through
	 * it, @dst lies anywhere. Each is read once. */
	void (*stream)(uint64_t *lanes, char *dst, const char *src, size_t n,
		       size_t at);
	void (*keep)(uint64_t *lanes, char *dst, const char *src, size_t n,
		     size_t at);
	/** The last line of all, which counts otherwise. */
	void (*end)(uint64_t *lanes, const char *src);
};

/** How many ways to ask for lines each of a CPU's sets of vectors comes in. */
#define SK_LINES_WAYS 2u

/** The @i-th kernel that this CPU has: its widest vectors first,
 * SK_LINES_WAYS of each; NULL behind the last. */
const struct sk_lines *sk_lines_at(unsigned i);
/** The one that is to be used: what sk_copy_measure() found, or the first. */
const struct sk_lines *sk_lines_best(void);

extern const uint8_t sk_xxh3_secret[SK_XXH3_SECRET];

#endif
