/* SPDX-License-Identifier: Apache-2.0 */
#include "error.h"

#include <stdio.h>
#include <string.h>

int sk_err_vset(struct sk_err *err, int r, const char *fmt, va_list ap)
{
	if (err)
		(void)vsnprintf(err->text, sizeof(err->text), fmt, ap);
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

/* Puts @words, then ": ", before what stands in err. */
static void put_before(struct sk_err *err, const char *words)
{
	char old[SK_ERR_MAX];

	memcpy(old, err->text, sizeof(old));
	old[sizeof(old) - 1] = 0;
	/* Cutting the end of a long sentence is what SK_ERR_MAX promises. */
	if (snprintf(err->text, sizeof(err->text), "%s: %s", words, old) < 0)
		err->text[0] = 0;
}

int sk_err_prefix(struct sk_err *err, int r, const char *fmt, ...)
{
	char words[SK_ERR_MAX];
	va_list ap;

	if (!err)
		return r;
	va_start(ap, fmt);
	(void)vsnprintf(words, sizeof(words), fmt, ap);
	va_end(ap);
	put_before(err, words);
	return r;
}

int sk_err_errno(struct sk_err *err, int r, const char *fmt, ...)
{
	char words[SK_ERR_MAX];
	va_list ap;

	if (!err)
		return r;
	va_start(ap, fmt);
	(void)vsnprintf(words, sizeof(words), fmt, ap);
	va_end(ap);
	/* The GNU strerror_r is safe in threads and needs no copy. */
	(void)snprintf(err->text, sizeof(err->text), "%s",
		       strerror_r(-r, (char[128]){ 0 }, 128));
	put_before(err, words);
	return r;
}
