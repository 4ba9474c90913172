/* SPDX-License-Identifier: Apache-2.0 */
#include "base/table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <xxhash.h>

#define SLOTS_LEAST 8u

/* Hashes may be plain counters: their bits are spread before they are cut. */
static size_t home(const struct sk_table *table, uint64_t hash)
{
	return (size_t)(hash * UINT64_C(0x9e3779b97f4a7c15) >> 32) &
	       table->mask;
}

static void put(struct sk_table *table, uint64_t hash, uintptr_t value)
{
	size_t at = home(table, hash);

	assert(table->slots && value);
	while (table->slots[at].value)
		at = (at + 1) & table->mask;
	table->slots[at] = (struct sk_table_slot){ hash, value };
}

static bool has_room(const struct sk_table *table, size_t count)
{
	return table->slots && count <= (table->mask + 1) / 3 * 2;
}

int sk_table_reserve(struct sk_table *table, size_t count)
{
	struct sk_table larger = { .count = table->count };
	size_t n = table->slots ? table->mask + 1 : SLOTS_LEAST;

	if (has_room(table, count))
		return 0;
	while (n / 3 * 2 < count)
		if (__builtin_mul_overflow(n, 2u, &n))
			return -ENOMEM;
	larger.slots = calloc(n, sizeof(*larger.slots));
	if (!larger.slots)
		return -ENOMEM;
	larger.mask = n - 1;
	for (size_t i = 0; table->slots && i <= table->mask; i++)
		if (table->slots[i].value)
			put(&larger, table->slots[i].hash,
			    table->slots[i].value);
	free(table->slots);
	*table = larger;
	return 0;
}

int sk_table_add(struct sk_table *table, uint64_t hash, uintptr_t value)
{
	size_t count = table->count + 1;
	int r = 0;

	assert(value < UINTPTR_MAX);
	/* Twice as many at once: adding one by one costs the same for each. */
	if (!has_room(table, count))
		r = sk_table_reserve(table, 2 * count);
	if (r < 0)
		return r;
	put(table, hash, value + 1);
	table->count = count;
	return 0;
}

/* Moves those up that would not be found beyond a free slot. */
static void close_gap(struct sk_table *table, size_t gap)
{
	struct sk_table_slot *slots = table->slots;
	size_t mask = table->mask;

	assert(gap <= mask && slots[gap].value);
	for (size_t at = (gap + 1) & mask; slots[at].value;
	     at = (at + 1) & mask) {
		size_t from_home = (at - home(table, slots[at].hash)) & mask;

		if (from_home < ((at - gap) & mask))
			continue;
		slots[gap] = slots[at];
		gap = at;
	}
	slots[gap].value = 0;
}

bool sk_table_remove(struct sk_table *table, uint64_t hash, uintptr_t value)
{
	struct sk_table_walk walk = sk_table_find(table, hash);
	uintptr_t found;

	while (sk_table_next(&walk, &found)) {
		if (found != value)
			continue;
		assert(table->count);
		close_gap(table, (walk.at - 1) & table->mask);
		table->count--;
		return true;
	}
	return false;
}

void sk_table_free(struct sk_table *table)
{
	free(table->slots);
	*table = (struct sk_table){ 0 };
}

struct sk_table_walk sk_table_find(const struct sk_table *table, uint64_t hash)
{
	return (struct sk_table_walk){ .table = table, .hash = hash,
				       .at = home(table, hash) };
}

bool sk_table_next(struct sk_table_walk *walk, uintptr_t *ret_value)
{
	const struct sk_table *table = walk->table;

	while (table->slots && table->slots[walk->at].value) {
		const struct sk_table_slot *slot = &table->slots[walk->at];

		walk->at = (walk->at + 1) & table->mask;
		if (slot->hash != walk->hash)
			continue;
		*ret_value = slot->value - 1;
		return true;
	}
	return false;
}

uint64_t sk_hash_seed(void)
{
	/* 16 random bytes that the kernel lays beside each program. */
	const void *at = (const void *)getauxval(AT_RANDOM);
	uint64_t seed = 0;

	if (at)
		memcpy(&seed, at, sizeof(seed));
	return seed;
}

uint64_t sk_hash_bytes(uint64_t seed, const void *data, size_t size)
{
	assert(data || !size);
	return XXH3_64bits_withSeed(data, size, seed);
}
