/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

int sk_err_vset(struct sk_err *err, int r, const char *fmt, va_list ap)
{
	if (!err)
		return r;
	(void)vsnprintf(err->text, sizeof(err->text), fmt, ap);
	/* Names and paths in it are others' words. */
	sk_text_clean(err->text);
	return r;
}

int sk_err_set(struct sk_err *err, int r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	sk_err_vset(err, r, fmt, ap);
	va_end(ap);
	return r;
}

/* The reason stands at the end: of both together being too long it is the words
 * before it that are cut, but for a third of the room. */
static void make_room(char words[SK_ERR_MAX], size_t text)
{
	size_t most = SK_ERR_MAX / 3;

	if (text + sizeof(": ") < SK_ERR_MAX - most)
		most = SK_ERR_MAX - sizeof(": ") - text;
	if (strlen(words) > most)
		strcpy(words + most - strlen("..."), "...");
}

/* "words: @text". Both may be of the sentence that is replaced. */
static void put_before(struct sk_err *err, const char *text, const char *fmt,
		       va_list ap)
{
	char words[SK_ERR_MAX], old[SK_ERR_MAX];

	(void)vsnprintf(words, sizeof(words), fmt, ap);
	(void)snprintf(old, sizeof(old), "%s", text);
	make_room(words, strlen(old));
	/* Cutting the end of a long sentence is what SK_ERR_MAX promises. */
	if (snprintf(err->text, sizeof(err->text), "%s: %s", words, old) < 0)
		err->text[0] = 0;
	sk_text_clean(err->text);
}

int sk_err_prefix(struct sk_err *err, int r, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return r;
	va_start(ap, fmt);
	put_before(err, err->text, fmt, ap);
	va_end(ap);
	return r;
}

int sk_err_errno(struct sk_err *err, int r, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return r;
	va_start(ap, fmt);
	/* The GNU strerror_r is safe in threads and needs no copy. */
	put_before(err, strerror_r(-r, (char[128]){ 0 }, 128), fmt, ap);
	va_end(ap);
	return r;
}
