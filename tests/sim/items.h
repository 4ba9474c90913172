/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance, item by item: what is relied on of a library, each in a process
 * of its own, on the simulation and on the real one.
 */
#ifndef SK_TESTS_SIM_ITEMS_H
#define SK_TESTS_SIM_ITEMS_H

#include <stdbool.h>
#include <stddef.h>

enum item_kind {
	ITEM_ANY,
	ITEM_SIM,	/* what only the simulation promises */
	ITEM_MISUSE,	/* the same: it ends the process */
};

struct item {
	const char *name;
	void (*run)(void);
	enum item_kind kind;
};

/** Runs them, those of a simulation only if it is one; names what failed.
 * Returns how many did. */
int items_run(const struct item *items, size_t n, bool simulated);

/** What one may take: $SK_ITEM_SECONDS, so that one that hangs takes no more of
 * a machine that is lent for minutes. */
unsigned item_seconds(unsigned otherwise);

/** Ends an item's process: what it is about is not here, and why. It counts as
 * left out; any process of an item may say so. */
void item_lacks(const char *why) __attribute__((noreturn));

/** What ends an item's process. */
#define IS(expected, call) item_is(expected, call, #call, __LINE__)
#define CHECK(what) item_check(what, #what, __LINE__)

void item_is(unsigned expected, unsigned got, const char *call, int line);
void item_check(bool what, const char *text, int line);

#endif
