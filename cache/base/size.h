/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write and read them. Thread-safety: pure functions. */
#ifndef SK_CACHE_BASE_SIZE_H
#define SK_CACHE_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/** The largest size that is read: anything larger is a mistake. */
#define SK_SIZE_MOST ((uint64_t)1 << 60)
/** Longest formatted size, NUL included. */
#define SK_SIZE_TEXT 16

/**
 * Reads "4096", "500M", "1.5GiB", "64 KB": a decimal number and perhaps a
 * unit, B or one of K, M, G, T, P (1024 each), in upper or lower case, with or
 * without "B" or "iB". Where @whole is not 0, "60%" is that part of it, up to
 * all. At most 4 digits after the point count.
 * Errors, with a sentence: -EINVAL it is not a size, -ERANGE less than a byte
 * or more than SK_SIZE_MOST.
 */
int sk_size_parse(const char *text, uint64_t whole, uint64_t *ret_bytes,
		  struct sk_err *err);

/** Whether @text, which is read as @bytes, is a number alone, and of less than
 * a MiB: who said "64" of memory or of a disk has forgotten the unit. */
bool sk_size_lacks_unit(const char *text, uint64_t bytes);

/** "77 B", "1.5 GiB". Returns @buf. In any locale with a point: a trainer may
 * have set one that has commas there. */
char *sk_size_format(uint64_t bytes, char *buf, size_t size);

/** "12.3" of 123, so in any locale. Returns @buf. */
char *sk_size_tenths(uint64_t tenths, char *buf, size_t size);

#endif
