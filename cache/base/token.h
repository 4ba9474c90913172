/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token: a descriptor that stands for something that one process holds, as a
 * descriptor of a file stands for the file. It is handed on, and kept, as any
 * other; whoever has it can read what it says; and the holder learns when
 * nobody has it any more, whichever of them were killed. Should the holder end
 * first, who has it can tell.
 *
 * It is an end of a pair of sockets, in which what it says lies unread.
 */
#ifndef SK_CACHE_BASE_TOKEN_H
#define SK_CACHE_BASE_TOKEN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/os.h"

/** Makes one that says @bytes of @what, some hundred at most. *ret_token may go
 * anywhere, *ret_holder stays with the holder; the caller closes both. Errors:
 * those of socketpair(2) and sendmsg(2). */
int sk_token_new(const struct sk_os *os, const void *what, size_t bytes,
		 int *ret_token, int *ret_holder);
/** What it says. -ENOTSOCK, or another error: it is no token; -EBADMSG: it is
 * not of so many bytes. Never blocks. */
int sk_token_read(const struct sk_os *os, int token, void *ret, size_t bytes);
/** Its holder is gone, and what it stood for; or of a holder, nobody has its
 * token any more. false too of what is neither: that stands for itself. */
bool sk_token_is_void(const struct sk_os *os, int either);
/** Until that is so, @until_ns of the clock at the latest (SK_FOREVER). What
 * was sent by it is nothing to a holder. */
void sk_token_await(const struct sk_os *os, int either, uint64_t until_ns);

#endif
