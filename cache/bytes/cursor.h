/* SPDX-License-Identifier: Apache-2.0 */
/* A place in a copy, which goes from run to run. Private to the room. */
#ifndef SK_CACHE_BYTES_CURSOR_H
#define SK_CACHE_BYTES_CURSOR_H

#include "bytes/copy.h"

struct sk_cursor {
	const struct sk_copy *copy;
	int64_t index[SK_MAX_DIMS];
	char *dst;
	const char *src;
};

/** At the @row-th run of it. */
void sk_cursor_seek(struct sk_cursor *cursor, const struct sk_copy *copy,
		    uint64_t row);
/** On by @count along dimension @d, at most to its end; behind the last run it
 * is at the first again. */
void sk_cursor_advance(struct sk_cursor *cursor, int d, uint64_t count);

#endif
