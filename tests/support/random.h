/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers that look random, and are the same each time and everywhere:
 * SplitMix64. @state is the seed at first.
 */
#ifndef SK_TESTS_RANDOM_H
#define SK_TESTS_RANDOM_H

#include <stdint.h>

static inline uint64_t draw_any(uint64_t *state)
{
	uint64_t x = (*state += UINT64_C(0x9e3779b97f4a7c15));

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/** One of 0 to @n - 1. */
static inline uint64_t draw(uint64_t *state, uint64_t n)
{
	return draw_any(state) % n;
}

#endif
