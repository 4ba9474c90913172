/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the agent has written: what their headers say is known, and need
 * not be read at the next look. It is kept until then.
 */
#ifndef SK_AGENT_DISK_WROTE_H
#define SK_AGENT_DISK_WROTE_H

#include "catalogue/catalogue.h"
#include "store/history.h"

struct agent;

struct wrote {
	char job[SK_JOB_MAX + 1];
	char dir[SK_CAT_DIR_MAX];
	struct sk_history_file file;	/* has a reference of its layout */
};

struct wrote_list {
	struct wrote *files;
	size_t n, room;
};

/** The disk has the image by now. */
void wrote_add(struct agent *a, const struct sk_cat_image *image);
/** Takes those of the job ("": all) out of the agent's. Where there is no
 * memory they are read. */
void wrote_take(struct agent *a, const char *job, struct wrote_list *ret);
/** Before a look: directories that were another run's, and are ours by now, are
 * not taken for what they were. */
void wrote_doubt(const struct wrote_list *list, struct sk_history *history);
/** Notes those of the history's job in it; it was looked at since. */
void wrote_note(const struct wrote_list *list, struct sk_history *history);
void wrote_free(struct wrote_list *list);
/** The agent's are forgotten. */
void wrote_close(struct agent *a);

#endif
