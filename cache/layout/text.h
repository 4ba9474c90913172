/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that grows, as headers are written: out of memory is kept until the
 * end, so that writers need not ask after each word. Private to the room.
 */
#ifndef SK_CACHE_LAYOUT_TEXT_H
#define SK_CACHE_LAYOUT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/** Begins as zeroes; v is the caller's to free. With nested set, everything
 * goes through the escape of a JSON string, because some of our JSON lies in
 * a string of the header's. */
struct sk_text {
	char *v;
	size_t n, room;
	bool nested;
	bool failed;		/* out of memory: what follows is dropped */
};

/** As it is, whether nested or not. */
void sk_text_byte(struct sk_text *t, char c);
void sk_text_bytes(struct sk_text *t, const char *s, size_t n);
/** As they are, whether nested or not. */
void sk_text_raw(struct sk_text *t, const char *s, size_t n);
/* Here, so that nobody counts the letters of a word that is written down. */
static inline void sk_text_put(struct sk_text *t, const char *s)
{
	sk_text_bytes(t, s, strlen(s));
}

void sk_text_int(struct sk_text *t, int64_t v);
/** A JSON string. Names are UTF-8 without control characters: two characters
 * to escape. */
void sk_text_string(struct sk_text *t, const char *s);

#endif
