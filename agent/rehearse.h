/* SPDX-License-Identifier: Apache-2.0 */
/* Rehearsal: whether an agent could begin, before another one ends for it. */
#ifndef SK_AGENT_REHEARSE_H
#define SK_AGENT_REHEARSE_H

#include "base/error.h"
#include "base/os.h"
#include "options.h"

/**
 * agent_try() in a child, which has gone when it returns, and whether the log
 * beside the socket @path can be written where it is to go to the background.
 * A negative errno comes with a sentence. -ETIMEDOUT: it has done none of that
 * in 30 s, as where a filesystem hangs, and is killed as soon as that lets it.
 */
int rehearse(const struct sk_os *os, const struct options *o, const char *path,
	     struct sk_err *err);

#endif
