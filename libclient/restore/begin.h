/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank does before it meets the others. */
#ifndef SK_LIBCLIENT_RESTORE_BEGIN_H
#define SK_LIBCLIENT_RESTORE_BEGIN_H

#include "restore/restoring.h"

/** Registers, with what is described or, where that is refused, in the run with
 * nothing, for the others to hear why; and has the agent's comm in rs->comm
 * where the caller gave none. Errors: sk_state_register()'s; who is in no run
 * then has nobody to tell anything by the agent, and gets no comm of it. */
int sk_restore_find(struct sk_restoring *rs);
/** What is needed of an agent that was found: a connection, names. Who asks
 * for what makes no sense has only that to say: rs->refused. */
int sk_restore_begin(struct sk_restoring *rs);
/** Both, without another comm: there may have been no agent before. */
int sk_restore_begin_again(struct sk_restoring *rs);
/** What was wrong with the call, and its sentence. */
int sk_restore_refuse(struct sk_restoring *rs);

/** Leases end with the connection: a new one has none. */
int sk_restore_connect(struct sk_restoring *rs);
void sk_restore_disconnect(struct sk_restoring *rs);

/** Which ranks share a node is known: where each node keeps replicas once, what
 * this rank saves from here on follows from it. Errors: -ENOMEM. */
int sk_restore_settle_nodes(struct sk_restoring *rs);

#endif
