/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error doctrine.
 *
 * - A function that can fail returns 0 (or a count) or a negative errno.
 * - Outputs (`ret_...`, last but the error) are set on success only.
 * - The first function that decides what went wrong writes one sentence into
 *   the caller's struct sk_err: what, which object, how much, what to do.
 *   Those above pass the value through, or put words before the sentence.
 * - Every function takes a NULL struct sk_err for "no sentence wanted".
 * - assert() is for our own bugs, never for what a client, a file or the
 *   system says.
 * - Libraries do not log. The agent logs once, where it decides.
 */
#ifndef SK_CACHE_BASE_ERROR_H
#define SK_CACHE_BASE_ERROR_H

#include <stdarg.h>

#define SK_ERR_MAX 320

/** One sentence of explanation, without a full stop. Plain data. */
struct sk_err {
	char text[SK_ERR_MAX];
};

/** Writes the sentence (cut at SK_ERR_MAX) and returns @r unchanged. */
int sk_err_set(struct sk_err *err, int r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
int sk_err_vset(struct sk_err *err, int r, const char *fmt, va_list ap)
	__attribute__((format(printf, 3, 0)));

/** Puts "words: " before the sentence that stands there; returns @r. */
int sk_err_prefix(struct sk_err *err, int r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/** "%m" of -r as a sentence: "words: No such file or directory". */
int sk_err_errno(struct sk_err *err, int r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
