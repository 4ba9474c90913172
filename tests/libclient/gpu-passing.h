/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the CPU alone makes of the way that a rank goes which has just begun:
 * chunks of shared memory, hashed into buffers, with no driver in between.
 * Where a restore comes to as much, the CPU is what it waits for.
 */
#ifndef SK_TESTS_LIBCLIENT_GPU_PASSING_H
#define SK_TESTS_LIBCLIENT_GPU_PASSING_H

#include <stddef.h>

/** Prints a line of JSON for each number of threads and size of buffers, of
 * @bytes, which are more than caches hold. */
void gpu_passing_facts(size_t bytes);

#endif
