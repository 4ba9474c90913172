/* SPDX-License-Identifier: Apache-2.0 */
/* A flush under way; flush.c writes it, outcome.c says what came of it. */
#ifndef SK_AGENT_DISK_FLUSHING_H
#define SK_AGENT_DISK_FLUSHING_H

#include <errno.h>
#include <stdatomic.h>

#include "agent.h"
#include "disk/earlier.h"
#include "disk/watch.h"
#include "layout/sums.h"

/* What is being written. While its work is out the background has put, head,
 * file, owned, displaced, lost, bad, sums, earlier, found, has_found, result
 * and err, and the agent's thread the rest; current is both's. */
struct flush {
	struct work work;
	struct agent *agent;
	struct sk_cat_snapshot *snapshot;
	struct sk_cat_image *image;	/* being written */
	uint64_t bytes;			/* of all its images */
	uint64_t done;			/* of whole images */
	atomic_uint_fast64_t current;	/* of the one under way */
	uint64_t started_ns;
	struct sk_store_put put;
	struct sk_file_id file;		/* what it has become */
	struct memory *memory;
	struct sk_sums_walk *sums;	/* of what is written */
	void *head;
	uid_t uid;
	int owned;			/* 0, or why the file is not its */
	bool displaced;			/* an older run's step was moved aside */
	bool lost;			/* the name is somebody else's */
	bool bad;			/* memory is not what was sealed */
	uint32_t bad_entry;		/* of it, and 1 */
	unsigned races;			/* that were lost with this image */
	struct earlier earlier;		/* images; of the last one alone */
	struct watch_found found;	/* once the image is there, or not */
	bool has_found;
	unsigned rounds;		/* in which some of them were gone */
	bool deciding;			/* all is written; is it whole? */
	int result;
	struct sk_err err;
};

static inline bool flush_found_no_room(const struct flush *f)
{
	return f->result == -ENOSPC || f->result == -EDQUOT;
}

#endif
