/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who asks for a job of the last agent's that this one has not read yet waits
 * until it has, in the time that the call has, or that a client has patience:
 * no answer tells of such a job that it has nothing, and he who hears none of
 * it in time hears why. Others are answered at once.
 */
#ifndef SK_AGENT_CALLS_UNREAD_H
#define SK_AGENT_CALLS_UNREAD_H

struct call;

/** 0: there is nothing to wait for. CALL_LATER: the call, with its descriptors,
 * is made once more when that is over; or an error with its sentence. */
int call_when_read(struct call *c);

#endif
