/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Misuse of simulated GPUs, by whomever: an agent takes what ends its workers
 * for one failure of many, and nobody else would hear.
 */
#ifndef SK_TESTS_MISUSE_H
#define SK_TESTS_MISUSE_H

/** All processes that are begun from here on write theirs to a file of @dir. */
void misuse_watch(const char *dir);
/** The first of it; NULL: there was none. */
const char *misuse_in(const char *dir);

#endif
