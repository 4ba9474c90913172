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

/** Room for @n more bytes, 0 as well, or NULL; who wrote them adds them to
 * n. */
char *sk_text_more(struct sk_text *t, size_t n);
static inline char *sk_text_room(struct sk_text *t, size_t n)
{
	/* More than that: what is empty has no room for nothing either. */
	return !t->failed && t->room - t->n > n ? t->v + t->n :
						  sk_text_more(t, n);
}

/** As they are, whether nested or not. Here, so that of a word that is written
 * down nobody counts the letters. */
static inline void sk_text_raw(struct sk_text *t, const char *s, size_t n)
{
	char *at = sk_text_room(t, n);

	if (!at)
		return;
	memcpy(at, s, n);
	t->n += n;
}

/** As it is, whether nested or not. */
static inline void sk_text_byte(struct sk_text *t, char c)
{
	sk_text_raw(t, &c, 1);
}

/** Between two. */
static inline void sk_text_comma(struct sk_text *t, bool between)
{
	if (between)
		sk_text_byte(t, ',');
}

/** Escaped, where nested. */
void sk_text_bytes(struct sk_text *t, const char *s, size_t n);
static inline void sk_text_put(struct sk_text *t, const char *s)
{
	sk_text_bytes(t, s, strlen(s));
}

/** The same of a literal whose only letters to escape are quotes: as it stands
 * in the source it is escaped already. */
#define sk_text_word(t, word) (						\
	(t)->nested ?							\
		sk_text_raw((t), &#word[1], sizeof(#word) - 3) :	\
		sk_text_raw((t), "" word, sizeof(word) - 1))

void sk_text_int(struct sk_text *t, int64_t v);
/** A JSON string. Names are UTF-8 without control characters: two characters
 * to escape. */
void sk_text_string(struct sk_text *t, const char *s);

#endif
