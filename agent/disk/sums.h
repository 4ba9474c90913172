/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checksums of those images on disk that were opened last: memory does not
 * keep them of all, and ranks that restore open the same images one after the
 * other. A file that has been read is not read again while it is the same.
 *
 * Thread-safe.
 */
#ifndef SK_AGENT_DISK_SUMS_H
#define SK_AGENT_DISK_SUMS_H

#include <stdbool.h>

#include "base/file-id.h"
#include "layout/layout.h"

struct sums;

/** Which image of which file. */
struct sums_key {
	struct sk_file_id file;
	struct sk_digest digest;	/* of its layout */
	uint64_t content[2];		/* hash of its checksums */
};

/** NULL: no memory. */
struct sums *sums_new(void);
struct sums *sums_free(struct sums *sums);
/** Fills all @n in. @ret_whole: wanted is a layout that knows its header, of
 * which a reference is given; NULL: it is not. False: it is to be read. */
bool sums_find(struct sums *sums, const struct sums_key *key,
	       uint64_t *ret_sums, uint32_t n, struct sk_layout **ret_whole);
/** Keeps them for a while, and @whole (NULL: none). */
void sums_keep(struct sums *sums, const struct sums_key *key,
	       const uint64_t *values, uint32_t n, struct sk_layout *whole);
/** Forgets all. */
void sums_clear(struct sums *sums);

#endif
