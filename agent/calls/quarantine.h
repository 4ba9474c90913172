/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quarantine: what a rank leaves whose connection has ended, and whose process
 * has not. It has its slots mapped, and a GPU may still be writing into them
 * for it: the socket's end comes before the driver's. Until the process is
 * gone, which its pidfd tells, nobody else gets them; the budget counts them.
 *
 * One that hangs in the kernel keeps them for as long as it does: a line in
 * the log and the gauge quarantined_bytes say so.
 *
 * What a GPU writes to is so for half a minute at most where the process is
 * gone and left heirs: children of a fork, as a data loader's workers, that
 * have its descriptors still. The driver lets its work go on as long as anybody
 * has those, and who has them has the connection's as well: its end says that
 * none is left. Of such a rank the slot that it was filling is kept back.
 */
#ifndef SK_AGENT_CALLS_QUARANTINE_H
#define SK_AGENT_CALLS_QUARANTINE_H

#include <sys/types.h>

struct agent;
struct session;

/** What the ranks of that connection have, before they leave: nothing where
 * its process is known to be gone, without heirs. Where nobody can tell, their
 * slots serve no other rank. */
void quarantine_begin(struct agent *a, struct session *s);
/** The process is back on another connection: what it writes is its own. */
void quarantine_forgive(struct agent *a, const struct session *s);
/** Ends those whose processes have gone. Once a turn. */
void quarantine_tidy(struct agent *a);
/** The agent ends. */
void quarantine_close(struct agent *a);

#endif
