/* SPDX-License-Identifier: Apache-2.0 */
/* An agent of the test's own, in a process of its own. */
#ifndef SK_TESTS_AGENT_H
#define SK_TESTS_AGENT_H

#include <sys/types.h>

/** Runs the agent that @args names, its arguments behind it, up to NULL, and
 * waits until it serves. It takes no store and no budget from the environment,
 * and is killed where the caller ends before it. Its process id; -1 where it
 * does not start. */
pid_t agent_start(const char *const *args);
/** The agent that a keeper has, which is its only child; 0: none just now. */
pid_t agent_of_keeper(pid_t keeper);

#endif
