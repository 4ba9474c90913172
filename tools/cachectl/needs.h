/* SPDX-License-Identifier: Apache-2.0 */
/* How far a job may still grow on the store, by its retention. */
#ifndef SK_CACHECTL_NEEDS_H
#define SK_CACHECTL_NEEDS_H

#include <stddef.h>
#include <stdint.h>

#include "base/retention.h"
#include "wire/message.h"

/** Bytes beyond those that lie there of the @n snapshots of a job: one more
 * than are kept lies there before the oldest goes, each as large as the largest
 * one now. What is pinned, or stays by its step's number, makes no room for
 * them. Where no limit is set on their number: as many as there are. */
uint64_t still_needs(const struct sk_retention *keep,
		     const struct sk_wire_snapshot *all, size_t n);

#endif
