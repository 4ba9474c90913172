/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scrub: images in memory and on disk are compared with their checksums, in the
 * background, so many bytes a second. What is damaged is set aside as if a
 * reader had found it: restores use another holder, and what memory still has
 * is written once more.
 */
#ifndef SK_AGENT_DISK_SCRUB_H
#define SK_AGENT_DISK_SCRUB_H

struct agent;

/** Begins, where --scrub-rate is not 0. -ENOMEM. */
int scrub_open(struct agent *a);
/** Its work must have come back. */
void scrub_close(struct agent *a);

#endif
