/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files on the store that are no images of ours: damaged, foreign, of another
 * run. Each is named once, and not read again while it is the same file.
 */
#ifndef SK_AGENT_DISK_IGNORED_H
#define SK_AGENT_DISK_IGNORED_H

#include "disk/scan.h"

struct agent;

/** A look begins, which has them from there on: what was added is put in
 * order. */
void ignored_sort(struct agent *a);
/** It ends, and what it found is sorted: what it did not find again, or has
 * read anew, is forgotten. */
void ignored_forget(struct agent *a, const struct scan *scan);
/** It is no image: before the next look. */
void ignored_add(struct agent *a, const struct found *f);
/** What a look found of that name, or NULL; it must be sorted. */
const struct found *found_find(const struct scan *scan,
			       const struct file_key *key);

#endif
