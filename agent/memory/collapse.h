/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collapse: slots that lie in small pages come to lie in huge ones, beside
 * everything else. A rank that had no time to wait, or a system that had no
 * huge pages to give, has left them small; each restore would have to map every
 * one of those, and each copy to find it.
 *
 * A piece at a time, at a low priority, and at rest three times as long as
 * that took. What is being filled or written to disk is left for later; where
 * the system refuses, as for what is page-locked, the next pass comes after a
 * minute, then two, up to an hour; where it has no room, this one ends after a
 * few pieces, for to find that out is not free. Whether a pass was refused
 * something is what the state "small-pages" says from then on. Where the system
 * knows no such thing it stays what was seen as they were faulted in.
 *
 * The first pass goes through all that was faulted in: nobody can tell what a
 * rank has faulted in how, and what lies in huge pages takes next to no time.
 */
#ifndef SK_AGENT_MEMORY_COLLAPSE_H
#define SK_AGENT_MEMORY_COLLAPSE_H

#include "memory/memory.h"

struct agent;

/** Errors: -ENOMEM. */
int collapse_open(struct agent *a);
/** What is under way comes back by itself, and nothing after that. */
void collapse_close(struct agent *a);
/** Nothing may be under way. */
void collapse_free(struct agent *a);

/** All of it has been handed out to be faulted in; it is in no list. */
void collapse_add(struct memory *m);
/** Begins with the next piece, where there is one and none is under way. */
void collapse_go_on(struct agent *a);

#endif
