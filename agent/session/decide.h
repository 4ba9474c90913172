/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decide: what is not known of snapshots is told in the background, one user
 * beside the other, and what follows from it is done when it is known.
 */
#ifndef SK_AGENT_SESSION_DECIDE_H
#define SK_AGENT_SESSION_DECIDE_H

struct agent;

/** The catalogue asks through us from now on. */
void decide_open(struct agent *a);
/** Looks at what is undecided once more; what stays so for want of memory is
 * looked at from time to time. */
void decide_anew(struct agent *a);

#endif
