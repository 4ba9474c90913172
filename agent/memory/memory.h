/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory: that of slots. Faulted in piece by piece in the background, those
 * of several ranks in turn, and given back in the background as well: the
 * system takes a while for both.
 *
 * Whatever the background needs for that is part of struct memory, so that
 * neither can fail for want of memory.
 */
#ifndef SK_AGENT_MEMORY_MEMORY_H
#define SK_AGENT_MEMORY_MEMORY_H

#include <stdbool.h>

#include "base/again.h"
#include "base/error.h"
#include "base/link.h"
#include "loop/work.h"
#include "memory/slot.h"

struct agent;
struct sk_cat_slot;

#define MEMORY_PIECES 2u	/* of all memories, in the background at once */

/** A part of a memory that is being faulted in. */
struct memory_piece {
	struct work work;
	struct memory *memory;	/* NULL: not in use */
	struct sk_slot *slot;
	uint64_t from, to;	/* bytes within the slot */
	int result;
	struct sk_err err;
};

struct memory {
	struct sk_link link;		/* in to_populate, then to_collapse */
	struct agent *agent;
	struct sk_slot slots[2];	/* by kind */
	uint64_t bytes;			/* of both */
	uint64_t populated;		/* bytes handed out so far */
	uint32_t order;			/* which slot of its rank */
	const struct sk_cat_slot *of;	/* the catalogue's; NULL: none yet, or
					 * it was given back */
	struct memory_collapse {	/* collapse.h */
		uint64_t done;		/* bytes, in this pass */
		struct sk_again again;	/* when the next one begins */
		unsigned roomless;	/* pieces of this one */
		bool refused;		/* in this one */
	} collapse;
	struct memory_piece pieces[MEMORY_PIECES];
	unsigned busy;			/* pieces under way */
	unsigned held;			/* by the background, that reads it */
	int result;			/* of populating; < 0: see text */
	char text[SK_ERR_MAX];
	bool released;			/* nobody's but the background's */
	bool small;			/* counted: not all in huge pages */
	bool alone;			/* who fills it faults nothing in */
	bool sealed_writes;
	bool stray;			/* who wrote to it may still, and nobody
					 * can tell how long */
	uint32_t record;		/* of the keeper's table; TABLE_NONE */
	uint64_t serial;		/* its */
	unsigned kept;			/* bits of the kinds that it has */
	struct work burial;
};

/** @bytes: by kind, 0: none of it. @order: which slot of its rank it is;
 * those of lower order are faulted in first. Populating begins with
 * memory_populate(). Errors: -ENOMEM and the system's, with a sentence. */
int memory_new(struct agent *a, const char *name, const uint64_t bytes[2],
	       int numa_node, uint32_t order, struct memory **ret,
	       struct sk_err *err);
/** That of a dead agent: takes @fds (-1: none of it) over on success. It is
 * as much faulted in as it was. */
int memory_adopt(struct agent *a, const uint64_t bytes[2], int fds[2],
		 int numa_node, struct memory **ret, struct sk_err *err);
/** Gives it back once no piece is under way; it is not the caller's any
 * more. */
void memory_release(struct memory *m);
/** Its descriptors stay open until as many have let go of it, whoever gives it
 * back meanwhile. */
void memory_hold(struct memory *m);
void memory_unhold(struct memory *m);
/** Hands pieces out that are still to be faulted in. */
void memory_populate(struct agent *a);
/** It is the slot's, until it is given back. */
void memory_serves(struct memory *m, const struct sk_cat_slot *slot);
/** Its slot is being filled; what is in it is being written to disk. */
bool memory_filling(const struct memory *m);
bool memory_flushing(const struct memory *m);
/** Some of its slots lies in small pages, or none does. */
void memory_count_small(struct memory *m, bool small);

/** All of it is faulted in, or was tried to: see result. */
static inline bool memory_ready(const struct memory *m)
{
	return m->populated == m->bytes && !m->busy;
}

#endif
