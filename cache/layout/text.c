/* SPDX-License-Identifier: Apache-2.0 */
#include "layout/text.h"

#include <assert.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"

char *sk_text_more(struct sk_text *t, size_t n)
{
	assert(t->n <= t->room);
	if (t->failed)
		return NULL;
	/* A header is a page at least. */
	if (n > SIZE_MAX - SK_PAGE - t->n ||
	    sk_array_fit(t->v, t->room, t->n + n + SK_PAGE) < 0)
		t->failed = true;
	return t->failed ? NULL : t->v + t->n;
}

void sk_text_bytes(struct sk_text *t, const char *s, size_t n)
{
	char *at = sk_text_room(t, 2 * n), *w = at;

	if (!at)
		return;
	if (!t->nested) {
		memcpy(at, s, n);
		t->n += n;
		return;
	}
	/* Nobody could foresee where the quotes are: no branch. */
	for (size_t i = 0; i < n; i++) {
		*w = '\\';
		w += s[i] == '"' || s[i] == '\\';
		*w++ = s[i];
	}
	t->n += (size_t)(w - at);
}

void sk_text_int(struct sk_text *t, int64_t v)
{
	uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
	char buf[24], *end = buf + sizeof(buf), *s = end;

	do
		*--s = (char)('0' + u % 10);
	while (u /= 10);
	if (v < 0)
		*--s = '-';
	sk_text_raw(t, s, (size_t)(end - s));
}

/* Letters before one that is escaped, or the end. */
static size_t plain(const char *s)
{
	size_t n = 0;

	while (s[n] && s[n] != '"' && s[n] != '\\')
		n++;
	return n;
}

void sk_text_string(struct sk_text *t, const char *s)
{
	sk_text_word(t, "\"");
	while (*s) {
		size_t n = plain(s);

		sk_text_raw(t, s, n);
		s += n;
		if (*s) {
			sk_text_bytes(t, "\\", 1);
			sk_text_bytes(t, s++, 1);
		}
	}
	sk_text_word(t, "\"");
}
