/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of ours in a program that is not. */
#ifndef SK_CACHE_BASE_THREAD_H
#define SK_CACHE_BASE_THREAD_H

#include <pthread.h>

/**
 * As pthread_create(), which is not called anywhere else in what trainers
 * link: the thread takes none of the program's signals, but for the faults
 * that it makes itself. Returns 0 or a negative errno.
 */
int sk_thread_start(pthread_t *ret_thread, void *(*run)(void *arg), void *arg);

#endif
