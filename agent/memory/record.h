/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Record: the catalogue's slots as the keeper's table has them, and their
 * memory as it has that. Where there is no keeper nothing happens.
 */
#ifndef SK_AGENT_MEMORY_RECORD_H
#define SK_AGENT_MEMORY_RECORD_H

#include <stdbool.h>

#include "catalogue/catalogue.h"
#include "keeper/table.h"

struct agent;
struct memory;

/** The name of a slot's descriptor of that kind. */
void record_name(uint64_t serial, int kind, char *ret, size_t size);
/** What a record says of an image's checksums, sk_cat_hash_sums(): the same in
 * every agent. */
void record_content(const struct sk_cat_image *image, struct sk_digest *ret);
/** What a record says of the rank, and of its run and job. */
void record_state(const struct sk_cat_state *state,
		  struct table_record *ret);
/** One could not be kept: it is counted, and said once. */
void record_unkept(struct agent *a, const char *what, const char *why);
/** The memory outlives the agent from now on; its record follows when it is
 * a slot. Where that cannot be, it is counted, and said once. */
void record_keep(struct agent *a, struct memory *m);
/** Now and then: a keeper that did not read for a while may do so again, and
 * takes what it could not be given. */
void record_look(struct agent *a);
/** It does no more. */
void record_forget(struct memory *m);
/** Gives the place at *@record back. False: it has none, or the agent ends,
 * and what it holds then is the next agent's. */
bool record_drop(struct agent *a, uint32_t *record);
/** For sk_catalogue.noted. */
void record_note(void *ctx, const struct sk_cat_slot *slot);
/** The run outlives the agent, by its number and id, until one of its ranks
 * ends: before any of them is told of it. Harmless when it does already. */
void record_run(struct agent *a, struct sk_cat_run *run);
/** It does no more; for sk_catalogue.forget_run. */
void record_run_over(void *ctx, struct sk_cat_run *run);
/** What is told of the snapshot is another: pinned, wanted, durable. */
void record_snapshot(struct agent *a, const struct sk_cat_snapshot *s);

#endif
