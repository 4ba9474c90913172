/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flusher: writes snapshots to the store, one at a time.
 *
 * flush.c writes one, outcome.c says what came of it; due.c says which is next
 * and what is still to come.
 */
#ifndef SK_AGENT_DISK_FLUSH_H
#define SK_AGENT_DISK_FLUSH_H

#include <stdbool.h>
#include <stdint.h>

#include "catalogue/catalogue.h"

struct agent;

/** Where there is a store. A negative errno comes with a sentence. */
int flush_open(struct agent *a, struct sk_err *err);
/** None may be under way. */
void flush_close(struct agent *a);
/** It is known what the disk has: one that waits for that goes on. */
void flush_go_on(struct agent *a);
/** Begins the next flush, if any is due and none is under way. */
void flush_kick(struct agent *a);
/** Nanoseconds that the flush under way still needs; 0: none is, or nothing
 * is known of how fast it is yet. */
uint64_t flush_eta(const struct agent *a);
/** Bytes of the snapshot's images that have to be written yet. */
uint64_t flush_left(const struct sk_cat_snapshot *s);
/** Bytes of the snapshot that are written, the file under way included. */
uint64_t flush_done(const struct agent *a, const struct sk_cat_snapshot *s);

/* ---- due.c ---- */

/** The snapshot to be written next, or NULL; sets the timer of the next try
 * where one that failed waits for it. */
struct sk_cat_snapshot *flush_next(struct agent *a, uint64_t now_ns);
/** Has the newest complete snapshot written, where there is a store; of a job
 * whose other ranks are on other nodes all that may be it. */
void flush_newest(struct agent *a, struct sk_cat_job *job);
/** True while something is to be written that can be. */
bool flush_pending(struct agent *a);
/** The same of one job, but for what is under way. */
bool flush_has_more(const struct agent *a, const struct sk_cat_job *job);
/** How many snapshots are lost if the agent ends now, and in @ret_err, which
 * may be NULL, which and why: the newest complete ones of their jobs, and those
 * that were to be written, as far as they are not on disk. */
unsigned flush_lost(const struct agent *a, struct sk_err *ret_err);
/** Names in the log what is lost with this agent; true: nothing that a store
 * could have taken. */
bool flush_all_durable(const struct agent *a);
/** Failures from before do not count any more. */
void flush_try_anew(struct agent *a);
/** The store has more of it: who found none tries again at once. */
void flush_room_came(struct agent *a);
/** For one job. */
void flush_room_came_for(struct agent *a, const struct sk_cat_job *job);

#endif
