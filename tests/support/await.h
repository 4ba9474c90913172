/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for what happens, whenever that is: no test sleeps and hopes. Who
 * can wait for the event itself, a reply, a byte in a pipe, the end of a
 * process, does that; these are for what nobody says.
 */
#ifndef SK_TESTS_AWAIT_H
#define SK_TESTS_AWAIT_H

#include <stdbool.h>
#include <stdint.h>

#define AWAIT_MS 60000

/**
 * Asks again until it is so. A question that is a message, as of an agent's
 * counters, is a turn of the agent as well: what it has still to do is done
 * meanwhile. Ends the test by the CHECK of whoever includes this where it is
 * not so for AWAIT_MS, and then asks once more, for the test may itself have
 * stood still.
 */
#define AWAIT(cond, ...)						\
	do {								\
		const uint64_t until_ = await_until();			\
									\
		while (!(cond)) {					\
			if (!await_late(until_))			\
				continue;				\
			CHECK(cond, __VA_ARGS__);			\
			break;						\
		}							\
	} while (0)

uint64_t await_until(void);
bool await_late(uint64_t until);

/** Waits until @dir, which is there, has @name, folders of it included. False
 * after AWAIT_MS. */
bool await_file(const char *dir, const char *name);

#endif
