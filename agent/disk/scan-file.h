/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scan-file: what one file of the store says it is, for the look that found
 * its name.
 */
#ifndef SK_AGENT_DISK_SCAN_FILE_H
#define SK_AGENT_DISK_SCAN_FILE_H

#include "disk/scan.h"
#include "store/history.h"

/**
 * Fills in what @f, of which the directory has told the name, is: its layout,
 * run and content, or result and err. Of a file that is the same as when its
 * header was read that is noted in @h, f->step, and the header is not read
 * again; one that is ignored stays without a layout. On the scan's thread,
 * which has the agent's histories.
 */
void scan_look_at(struct scan *scan, struct sk_history *h, struct found *f);

#endif
