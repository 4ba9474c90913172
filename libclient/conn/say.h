/* SPDX-License-Identifier: Apache-2.0 */
/* What public functions share: their visibility, and the sentence of the
 * calling thread's last failure. */
#ifndef SK_LIBCLIENT_CONN_SAY_H
#define SK_LIBCLIENT_CONN_SAY_H

#include "base/error.h"
#include "shardkeep.h"

#define SK_API __attribute__((visibility("default")))

/** Keeps the sentence for sk_error() and returns @r unchanged. */
int sk_say(int r, const struct sk_err *err);
/** A sentence of any length; takes the malloc'ed @text over. */
int sk_say_long(int r, char *text);

#endif
