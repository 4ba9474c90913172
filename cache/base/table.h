/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash tables: from a hash to the values that may be what is looked for.
 *
 * The table knows no keys. Its owner hashes them, with the table's seed where
 * others choose them, and compares the few values that have the same hash:
 *
 *	struct sk_table_walk walk = sk_table_find(&t, hash);
 *
 *	while (sk_table_next(&walk, &value))
 *		if (is_it(value))
 *			...
 *
 * Values are indices or pointers. Open addressing, at most two thirds full.
 * Zeroes are an empty table. Thread-safety: the owner's; reading is reading.
 */
#ifndef SK_CACHE_BASE_TABLE_H
#define SK_CACHE_BASE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sk_table_slot {
	uint64_t hash;
	uintptr_t value;	/* + 1; 0: free */
};

struct sk_table {
	struct sk_table_slot *slots;	/* NULL: none */
	size_t mask;		/* how many, less one */
	size_t count;
};

struct sk_table_walk {
	const struct sk_table *table;
	uint64_t hash;
	size_t at;
};

/** Makes room for @count values in all, so that so many can be added without
 * failing. Errors: -ENOMEM, the table stays as it was. */
int sk_table_reserve(struct sk_table *table, size_t count);
/** Adds @value (< UINTPTR_MAX), also where an equal one is. -ENOMEM. */
int sk_table_add(struct sk_table *table, uint64_t hash, uintptr_t value);
/** Removes one such entry; false: there is none. Ends walks. */
bool sk_table_remove(struct sk_table *table, uint64_t hash, uintptr_t value);
/** Frees what it holds; it is empty after it. */
void sk_table_free(struct sk_table *table);

struct sk_table_walk sk_table_find(const struct sk_table *table,
				   uint64_t hash);
/** The next value of that hash, in no set order; false: no more. */
bool sk_table_next(struct sk_table_walk *walk, uintptr_t *ret_value);

/** A number that nobody outside of this process knows, the same for its whole
 * life: whoever chooses keys cannot choose where they fall. */
uint64_t sk_hash_seed(void);
/** Hash of bytes. @seed may be another key's hash, so that keys of several
 * parts are hashed one after another. */
uint64_t sk_hash_bytes(uint64_t seed, const void *data, size_t size);

#endif
