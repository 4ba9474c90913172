/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing of a job goes while one of its ranks restores: nobody knows which
 * step it will ask for, and it may be one that need not stay, as one that was
 * brought back from a backup.
 */
#ifndef SK_AGENT_DISK_HOLD_H
#define SK_AGENT_DISK_HOLD_H

#include "catalogue/catalogue.h"

/** For whom a job is held; all zero: for nobody yet. */
struct hold {
	uint64_t who;		/* serial of the last rank that came */
	uint64_t since_ns;	/* the agent's clock */
};

/**
 * Whether it stands: a living rank has no slots yet, ten minutes at most. It
 * may have come for something else, or memory have no slots for it. Takes note
 * of who has come since it was asked last.
 */
bool hold_stands(struct hold *hold, const struct sk_cat_job *job,
		 uint64_t now_ns);

#endif
