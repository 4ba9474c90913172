/* SPDX-License-Identifier: Apache-2.0 */
/* What callers leave zero, so that it can mean something later, and what they
 * may not. */
#ifndef SK_LIBCLIENT_CONN_CHECK_H
#define SK_LIBCLIENT_CONN_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/** The @bytes of a reserved @field are 0; else -EINVAL, which names it. */
int sk_check_zero(const void *value, size_t bytes, const char *field,
		  struct sk_err *err);
/** Only @known flags are set in @field; else -EINVAL, which names them. */
int sk_check_flags(uint32_t flags, uint32_t known, const char *field,
		   struct sk_err *err);

/** There is a variable for @what is asked for; else -EINVAL, which names it. */
int sk_check_result(const void *ret, const char *what, struct sk_err *err);

/** What a function of the caller's returned, who is to say 0 or a negative
 * errno. The error codes of other libraries are above 0, which is no success:
 * -EPROTO. */
int sk_check_returned(int r);

/** Where the name of a tensor or blob is needed. */
int sk_check_name(const char *name, struct sk_err *err);

#endif
