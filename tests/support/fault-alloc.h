/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fails allocations, so that "every allocation may fail" is a loop:
 *
 *	for (n = 1; ; n++) {
 *		sk_fault_alloc_fail(n, 1);
 *		r = what_is_tested();
 *		hits = sk_fault_alloc_end(&live);
 *		assert(r == -ENOMEM || (r == 0 && ...)), and live == 0
 *		if (!hits)
 *			break;
 *	}
 *
 * For programs that link with dep_fault_alloc (tests/meson.build), whose own
 * objects' calls the linker turns to here; those inside of shared libraries
 * are not seen. With sanitizers as without.
 *
 * Thread-safety: all threads' allocations are counted together. Begin and end
 * where nothing else runs.
 */
#ifndef SK_TESTS_FAULT_ALLOC_H
#define SK_TESTS_FAULT_ALLOC_H

#include <stdint.h>

#define SK_FAULT_ALLOC_ALWAYS UINT64_MAX

/** Counts from here on, and fails the @nth allocation (from 1; 0: none) and
 * those after it, @times in all. */
void sk_fault_alloc_fail(uint64_t nth, uint64_t times);
/** What is counted is what the next process forked from here allocates, in
 * memory that both share; it begins with sk_fault_alloc_fail(). This one's own
 * is not counted any more; it says with sk_fault_alloc_next() what is failed,
 * and asks what came of it. */
void sk_fault_alloc_share(void);
/** Fails the @nth allocation from now on, and those after it, @times in all;
 * 0: none. What lives goes on being counted. */
void sk_fault_alloc_next(uint64_t nth, uint64_t times);
/** How many were failed since. */
uint64_t sk_fault_alloc_hits(void);
/** Fails no more, but goes on counting what is freed. */
void sk_fault_alloc_mend(void);
/** Fails no more. Returns how many were failed; *ret_live (may be NULL) is
 * how many that were made since are not freed. */
uint64_t sk_fault_alloc_end(uint64_t *ret_live);
/** Allocations since sk_fault_alloc_fail(), failed ones included. */
uint64_t sk_fault_alloc_calls(void);
/** Most bytes at a time that were made since and not freed. */
uint64_t sk_fault_alloc_peak(void);

#endif
