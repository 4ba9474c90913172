/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading: an agent that takes up what one that was killed has left reads no
 * long header but when the test lets it.
 */
#ifndef SK_TEST_AGENT_READING_H
#define SK_TEST_AGENT_READING_H

#include "agent/outlive.h"

#define READING_LONG 32768	/* bytes; shorter ones it reads at once */

/** Before any agent begins. */
void reading_init(struct scene *s);
/** So many long headers more may be read; negative: all. */
void reading_let(int n);
/** Some are wanted; those that may be are read. */
bool reading_waits(void);
bool reading_is_done(void);
/** Bytes that the agent's loop has read, since it was said to count. */
void reading_count_loop(void);
unsigned long reading_loop_bytes(void);
/** The agent is killed, and what it waited for it waits for no more; the one
 * that serves then. */
pid_t reading_kill(const struct scene *s, pid_t pid);
/** Something can be read there. */
bool reading_is_answered(int sock);
/** Of a child of the test, which is to end with 0. */
bool child_has_ended(pid_t pid);
void child_check(pid_t pid);

#endif
