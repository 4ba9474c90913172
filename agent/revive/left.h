/* SPDX-License-Identifier: Apache-2.0 */
/* What the last agent left: records of its table, and their descriptors. */
#ifndef SK_AGENT_REVIVE_LEFT_H
#define SK_AGENT_REVIVE_LEFT_H

#include <stdbool.h>

#include "catalogue/catalogue.h"
#include "keeper/kept.h"
#include "keeper/table.h"

struct agent;

/* A slot that was kept, or a device slot. */
struct left {
	struct table_record record;
	uint32_t at;			/* in the table */
	int fds[2];			/* -1: taken, or none */
	struct sk_layout *layouts[2];	/* references, of what is sealed */
	uint64_t *sums[2];
	uint64_t content[2][2];		/* their hashes */
	char *why;			/* of a device slot: what it holds could
					 * not be read; or NULL */
	bool counted;			/* in agent->unread_devices */
	struct left *device;		/* has what it was to hold; or NULL */
	struct sk_cat_slot *slot;	/* that it has become; NULL: none */
};

struct reviving {
	struct agent *agent;
	struct left *entries;
	uint32_t n;
	struct sk_link batches;		/* jobs that are to be read: revive.c */
	uint64_t bytes;			/* of slots */
};

static inline bool left_is_device(const struct left *e)
{
	return e->record.use == TABLE_DEVICE;
}

/* Of a device slot: what it holds is in memory as well. */
static inline bool left_is_copy(const struct left *e)
{
	return left_is_device(e) && e->record.step < 0 && e->record.stands_for;
}

/** All of them into v->entries, which is the caller's, with what @kept has of
 * them; what makes no sense or has lost its memory is let go. -ENOMEM: nothing
 * was. */
int left_collect(struct reviving *v, struct kept *kept);
/** Its record, its descriptors and the keeper's. */
void left_forget(struct reviving *v, struct left *e);
/** The same, counted and logged where it was an image. */
void left_lose(struct reviving *v, struct left *e, const char *why);
/** What a device slot holds cannot be read: it is lost where somebody needs
 * it. */
void left_unreadable(struct left *e, const char *why);
/** What it has not given to anybody. */
void left_free(struct left *e);

#endif
