/* SPDX-License-Identifier: Apache-2.0 */
/* The table against a plain list of what is in it. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "base/table.h"
#include "support/random.h"

#define ENTRIES 400
#define STEPS 4000

struct entry {
	uint64_t hash;
	uintptr_t value;
};

struct naive {
	struct entry v[ENTRIES];
	size_t n;
};

static size_t naive_count(const struct naive *n, uint64_t hash,
			  uintptr_t value)
{
	size_t found = 0;

	for (size_t i = 0; i < n->n; i++)
		found += n->v[i].hash == hash && n->v[i].value == value;
	return found;
}

/* As many of each value under that hash, and no other. */
static void check_hash(const struct sk_table *t, const struct naive *n,
		       uint64_t hash)
{
	struct sk_table_walk walk = sk_table_find(t, hash);
	size_t want = 0, got = 0;
	uintptr_t value;

	for (size_t i = 0; i < n->n; i++)
		want += n->v[i].hash == hash;
	while (sk_table_next(&walk, &value)) {
		cr_assert(naive_count(n, hash, value));
		got++;
	}
	cr_assert_eq(got, want);
	cr_assert_eq(t->count, n->n);
}

/* @hashes of them: few make long runs of equal ones. */
static void against_naive(uint64_t seed, uint64_t hashes, bool plain)
{
	static struct naive naive;
	struct sk_table t = { 0 };

	naive.n = 0;
	for (int i = 0; i < STEPS; i++) {
		uint64_t hash = draw_any(&seed) % hashes;
		uintptr_t value = draw_any(&seed) % 5;
		size_t at;

		hash = plain ? hash : hash << 32;
		if (draw_any(&seed) % 2 && naive.n < ENTRIES) {
			cr_assert_eq(sk_table_add(&t, hash, value), 0);
			naive.v[naive.n++] = (struct entry){ hash, value };
		} else {
			bool there = naive_count(&naive, hash, value);

			cr_assert_eq(sk_table_remove(&t, hash, value), there);
			for (at = 0; there && at < naive.n; at++)
				if (naive.v[at].hash == hash &&
				    naive.v[at].value == value) {
					naive.v[at] = naive.v[--naive.n];
					break;
				}
		}
		check_hash(&t, &naive, hash);
	}
	sk_table_free(&t);
}

Test(table, is_what_a_list_is)
{
	const uint64_t hashes[] = { 1, 3, 50, 1000, UINT32_MAX };

	for (size_t i = 0; i < 5; i++) {
		against_naive(i + 1, hashes[i], true);
		against_naive(i + 100, hashes[i], false);
	}
}

Test(table, holds_any_value)
{
	struct sk_table t = { 0 };
	struct sk_table_walk walk;
	uintptr_t value = 1;

	cr_assert_not(sk_table_remove(&t, 7, 0));
	cr_assert_eq(sk_table_add(&t, 7, UINTPTR_MAX - 1), 0);
	walk = sk_table_find(&t, 7);
	cr_assert(sk_table_next(&walk, &value));
	cr_assert_eq(value, UINTPTR_MAX - 1);
	cr_assert_not(sk_table_next(&walk, &value));
	sk_table_free(&t);
	cr_assert_eq(t.count, 0);
}

Test(table, reserved_room_is_there)
{
	struct sk_table t = { 0 };
	const struct sk_table_slot *slots;

	cr_assert_eq(sk_table_reserve(&t, 1000), 0);
	slots = t.slots;
	for (uintptr_t i = 0; i < 1000; i++)
		cr_assert_eq(sk_table_add(&t, i, i), 0);
	cr_assert_eq(t.slots, slots, "it has grown all the same");
	cr_assert_eq(sk_table_reserve(&t, SIZE_MAX / 2), -ENOMEM);
	cr_assert_eq(t.count, 1000);
	sk_table_free(&t);
}

/* Slots from where the first of them is looked for to where it is. */
static size_t way_to(const struct sk_table *t, uint64_t hash, uintptr_t value)
{
	struct sk_table_walk walk = sk_table_find(t, hash);
	size_t from = walk.at;
	uintptr_t found;

	while (sk_table_next(&walk, &found))
		if (found == value)
			return (walk.at - from) & t->mask;
	cr_assert(false, "%zu is lost", (size_t)value);
	return 0;
}

/* The mean way, when all of @n have been replaced some times. */
static double mean_way(size_t n)
{
	struct sk_table t = { 0 };
	uint64_t hash[2] = { 0 };
	size_t ways = 0;

	for (uintptr_t i = 0; i < 5 * n; i++) {
		hash[0] = sk_hash_bytes(7, &i, sizeof(i));
		cr_assert_eq(sk_table_add(&t, hash[0], i), 0);
		if (i < n)
			continue;
		i -= n;
		hash[1] = sk_hash_bytes(7, &i, sizeof(i));
		cr_assert(sk_table_remove(&t, hash[1], i));
		i += n;
	}
	cr_assert_eq(t.count, n);
	for (uintptr_t i = 4 * n; i < 5 * n; i++)
		ways += way_to(&t, sk_hash_bytes(7, &i, sizeof(i)), i);
	sk_table_free(&t);
	return (double)ways / (double)n;
}

/* What names, layouts and histories count on: nobody pays for what is gone. */
Test(table, a_way_is_as_long_however_many_came_and_went)
{
	static const size_t sizes[] = { 1000, 32000, 256000 };

	for (int i = 0; i < 3; i++) {
		double way = mean_way(sizes[i]);

		cr_assert(way >= 1 && way < 3, "%zu values: %g slots",
			  sizes[i], way);
	}
}

Test(table, hashes_depend_on_the_seed)
{
	cr_assert_eq(sk_hash_seed(), sk_hash_seed());
	cr_assert_eq(sk_hash_bytes(1, "abc", 3), sk_hash_bytes(1, "abc", 3));
	cr_assert_neq(sk_hash_bytes(1, "abc", 3), sk_hash_bytes(2, "abc", 3));
}
