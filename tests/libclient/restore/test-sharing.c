/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several ranks of a node read, each byte is read once by who wants it,
 * and verified by one of them, whichever images there are.
 */
#include <criterion/criterion.h>
#include <inttypes.h>

#include "restore/agree.h"
#include "stub-agent.h"
#include "tensor/dtype.h"
#include "thread-ranks.h"

static bool is_replica(const struct image *image)
{
	return image->layout->kind == SK_IMAGE_REPLICA;
}

static bool may_be_gone(const struct image *image)
{
	return is_replica(image) && one_in(2);
}

/* Of a rank that was not there nothing was saved for it alone. */
static uint64_t bytes_wanted(const struct rank *rank)
{
	bool was_there = rank->rank < rank->test->world[0];
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < rank->state->n_locals; i++) {
		const struct sk_local *local = &rank->state->locals[i];
		const struct sk_spec *spec = &local->item.spec;

		if (local->item.kind == SK_ITEM_BLOB_LOCAL && !was_there)
			continue;
		for (int p = 0; p < local->item.n_boxes; p++)
			bytes += (uint64_t)sk_box_volume(spec->ndim,
						&local->parts[p].box) *
				 (unsigned)sk_dtype_bits(spec->dtype) / 8;
	}
	return bytes;
}

static uint64_t bytes_read(const struct rank *rank)
{
	return rank->report.bytes_memory + rank->report.bytes_disk;
}

/* Who had to verify what others were to has read it a second time. */
static void each_reads_once(const struct test *test, struct rank *ranks,
			    uint64_t seed)
{
	for (int i = 0; i < test->world[1]; i++)
		cr_assert_eq(bytes_read(&ranks[i]), bytes_wanted(&ranks[i]),
			     "seed %" PRIu64 ", %d to %d ranks: rank %d read %"
			     PRIu64 " bytes of %" PRIu64, seed,
			     test->world[0], test->world[1], i,
			     bytes_read(&ranks[i]), bytes_wanted(&ranks[i]));
}

/* What is saved at @where (as of save()) is restored when @lose has gone. */
static void restore_case(struct test *test, int where, void (*lose)(void),
			 uint64_t seed)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_EXTRA_OK };
	struct rank ranks[RANKS_MAX] = { 0 };

	save(test, 1, 10, where);
	lose();
	cr_assert(!run_plain(test, ranks, SK_LATEST, &o), "seed %" PRIu64
		  ": %s", seed, ranks[0].text);
	cr_assert(!wrong_elements(test, ranks), "seed %" PRIu64, seed);
	each_reads_once(test, ranks, seed);
	close_ranks(test, ranks);
	free_test(test);
}

static void restore_random(uint64_t seed, int where, void (*lose)(void))
{
	struct test test;

	random_test(&test, seed);
	restore_case(&test, where, lose, seed);
}

static void lose_nothing(void)
{
}

static void lose_replicas(void)
{
	lose_images(is_replica);
}

static void lose_some_replicas(void)
{
	lose_images(may_be_gone);
}

Test(sharing, with_all_images_each_rank_reads_once)
{
	for (uint64_t seed = 1; seed <= 150; seed++)
		restore_random(seed, 0, lose_nothing);
}

Test(sharing, without_replicas_each_rank_reads_once)
{
	for (uint64_t seed = 1001; seed <= 1150; seed++)
		restore_random(seed, 0, lose_replicas);
}

Test(sharing, with_some_replicas_each_rank_reads_once)
{
	for (uint64_t seed = 2001; seed <= 2150; seed++)
		restore_random(seed, 0, lose_some_replicas);
}

/* Also what memory has not. */
Test(sharing, of_memory_and_disk_each_rank_reads_once)
{
	for (uint64_t seed = 3001; seed <= 3150; seed++)
		restore_random(seed, 3, lose_some_replicas);
}

/* ---- where each node kept replicas once ---- */

static int32_t node_of[RANKS_MAX];

/* Of two nodes that had them all, this one is left. */
static bool is_elsewhere(const struct image *image)
{
	return node_of[image->layout->rank] != 0;
}

static void lose_other_node(void)
{
	lose_memory(is_elsewhere);
}

/* Of a case whose ranks had two nodes, in any order. */
static void random_nodes(struct test *test, uint64_t seed)
{
	random_test(test, seed);
	for (int i = 0; i < test->world[0]; i++)
		node_of[i] = one_in(2);
	/* So that none has nothing. */
	node_of[below(test->world[0])] = 0;
	cr_assert(!sk_nodes_new(node_of, test->world[0], &test->nodes, NULL));
}

Test(sharing, of_a_node_that_keeps_replicas_once_each_rank_reads_once)
{
	for (uint64_t seed = 4001; seed <= 4150; seed++) {
		struct test test;

		random_nodes(&test, seed);
		restore_case(&test, 0, lose_nothing, seed);
	}
}

/* The other node is gone: all that it held in common is here; of the rest the
 * disk has the primary images. */
Test(sharing, of_such_a_node_and_the_disk_each_rank_reads_once)
{
	for (uint64_t seed = 5001; seed <= 5150; seed++) {
		struct test test;

		random_nodes(&test, seed);
		restore_case(&test, 1, lose_other_node, seed);
	}
}

/* ---- what all ranks hold ---- */

static void replicated_test(struct test *test, int from, int to)
{
	plain_test(test, from, to);
	test->tensors[0].source.placements[0] = SK_REPLICATE;
	test->tensors[0].target.placements[0] = SK_REPLICATE;
}

static void count_verified(const struct test *test, const struct rank *ranks,
			   uint64_t *ret_all, uint64_t *ret_most)
{
	*ret_all = *ret_most = 0;
	for (int i = 0; i < test->world[1]; i++) {
		uint64_t v = ranks[i].report.bytes_verified;

		*ret_all += v;
		*ret_most = v > *ret_most ? v : *ret_most;
	}
}

/* The same meshes before and after. */
Test(sharing, one_image_for_all_is_verified_once)
{
	for (int world = 2; world <= RANKS_MAX; world++) {
		struct rank ranks[RANKS_MAX] = { 0 };
		uint64_t all, most;
		struct test test;

		replicated_test(&test, world, world);
		save(&test, 1, 10, 0);
		lose_images(is_replica);
		cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
			  ranks[0].text);
		cr_assert(!wrong_elements(&test, ranks));
		each_reads_once(&test, ranks, 0);
		count_verified(&test, ranks, &all, &most);
		/* Besides, the blobs: one for all, and one each. */
		cr_assert_eq(all, (4u << 20) + 100 + 40 * (unsigned)world,
			     "%d ranks: %" PRIu64, world, all);
		cr_assert_leq(most, 3u << 20, "%" PRIu64, most);
		close_ranks(&test, ranks);
		free_test(&test);
	}
}

static int left;	/* the rank of whom all is left */

static bool goes_but_for_one(const struct image *image)
{
	return image->layout->rank != left &&
	       (image->layout->rank % 2 || is_replica(image));
}

/* Fewer ranks have images than held it: of one rank two, of others one that
 * has nothing of what is wanted, or none. */
Test(sharing, of_few_images_each_rank_reads_once)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MISSING_OK };

	for (int world = 2; world <= RANKS_MAX; world++)
		for (left = 0; left < world; left++) {
			struct rank ranks[RANKS_MAX] = { 0 };
			struct test test;

			replicated_test(&test, world, RANKS_MAX);
			save(&test, 1, 10, 0);
			lose_images(goes_but_for_one);
			cr_assert(!run_plain(&test, ranks, SK_LATEST, &o),
				  "%s", ranks[0].text);
			for (int i = 0; i < RANKS_MAX; i++) {
				uint64_t bytes = ranks[i].report.bytes_memory;

				/* And blobs, where they are. */
				cr_assert(bytes >= 4u << 20 &&
					  bytes <= (4u << 20) + 140,
					  "%d ranks, %d left: %" PRIu64, world,
					  left, bytes);
			}
			close_ranks(&test, ranks);
			free_test(&test);
		}
}
