/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of a reply that do not fit a message. */
#ifndef SK_AGENT_MEMORY_BYTES_H
#define SK_AGENT_MEMORY_BYTES_H

#include <stddef.h>

#include "base/error.h"
#include "base/os.h"

/**
 * A memfd that is filled piece by piece, and then sealed against any change;
 * the caller's. Errors, all the way, with a sentence.
 */
int bytes_begin(const struct sk_os *os, const char *name, struct sk_err *err);
int bytes_add(const struct sk_os *os, int fd, const void *data, size_t bytes,
	      struct sk_err *err);
int bytes_end(const struct sk_os *os, int fd, struct sk_err *err);
/** A memfd with a copy of @data, sealed against any change; the caller's.
 * A negative errno comes with a sentence. */
int bytes_fd(const struct sk_os *os, const char *name, const void *data,
	     size_t bytes, struct sk_err *err);

#endif
