/* SPDX-License-Identifier: Apache-2.0 */
/* What the caller asks for, and by which comm: whether it makes sense. */
#ifndef SK_LIBCLIENT_RESTORE_OPTIONS_H
#define SK_LIBCLIENT_RESTORE_OPTIONS_H

#include "restore/restoring.h"

/**
 * Has of @comm what ranks exchange by in rs->comm; NULL: nothing, for the
 * agent's is asked for. -EINVAL, with the sentence, where it makes no sense:
 * rs->comm is then what the others can be told it by, or empty, where they
 * cannot be told, and it is broken off.
 */
int sk_restore_take_comm(struct sk_restoring *rs, const struct sk_comm *comm);
/**
 * Has in rs what is asked for; -EINVAL, with the sentence, where that makes no
 * sense. @r: what was wrong before. The timeout is there in any case, for it
 * holds for telling others as well.
 */
int sk_restore_take_options(struct sk_restoring *rs, int64_t step,
			    const struct sk_restore_options *o, int r);

#endif
