/* SPDX-License-Identifier: Apache-2.0 */
/* What a test leaves: files behind it, and descriptors open. */
#ifndef SK_TESTS_FILES_H
#define SK_TESTS_FILES_H

#include <stddef.h>

/** Removes the folder with all that is in it; 0, or -1 as nftw() says. */
int remove_tree(const char *path);
/** How many descriptors this process has open, give or take those that looking
 * takes, which are the same each time; -1 where it cannot be seen. */
int count_fds(void);

/** What this process has of the system: open descriptors, threads, and maps
 * of memory files and of what lies in /tmp. -1: not to be found out. */
struct held {
	int fds, threads, maps;
};

struct held held_now(void);
/** A descriptor of some kind that nobody asked for, the caller's to close:
 * @which of SOME_FDS, a memfd of @bytes, a pipe, a device or a socket. -1:
 * there is none to be had. */
#define SOME_FDS 4u
int some_fd(unsigned which, size_t bytes);

#endif
