/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a restore takes of memory in a large world, of which one rank is there
 * and plays the others. Bytes are counted as they are allocated.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fault-alloc.h"
#include "restore/ballot.h"
#include "restore/nodes.h"
#include "restore/others.h"
#include "stub-agent.h"
#include "thread-ranks.h"

#define PORTION ((uint64_t)4 << 20)	/* of what is long */

/* They say what this rank says, as themselves. */
struct others {
	int32_t world;
	bool otherwise;	/* and that their lists are others */
	unsigned gathers;
};

static int repeat(void *ctx, const void *in, size_t bytes, void *out,
		  uint32_t timeout_ms)
{
	struct sk_restore_ballot *ballots = out;
	struct others *o = ctx;
	char *all = out;

	(void)timeout_ms;
	for (int32_t i = 0; i < o->world; i++) {
		memcpy(all + (size_t)i * bytes, in, bytes);
		if (o->gathers)
			continue;
		ballots[i].limits.rank = i;
		if (i && o->otherwise)
			ballots[i].digest ^= 1;
	}
	o->gathers++;
	return 0;
}

/* Of what two ranks saved, a rank of @world takes its part. */
static uint64_t peak_in(int32_t world, bool otherwise, unsigned *ret_gathers)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_EXTRA_OK |
						 SK_RESTORE_MISSING_OK };
	struct others others = { .world = world, .otherwise = otherwise };
	struct sk_comm comm = { .ctx = &others, .allgather = repeat };
	struct rank rank = { 0 };
	struct test test;
	int r;

	plain_test(&test, 2, 2);
	for (int step = 1; step <= 10; step++)
		save(&test, 1, step, 0);
	test.world[1] = world;
	test.tensors[0].target.placements[0] = SK_REPLICATE;
	/* What a state has for that since it was made counts as well. */
	sk_fault_alloc_fail(0, 0);
	open_rank(&rank, &test, 0, NULL);
	r = sk_restore(rank.state, SK_LATEST, &comm, &o, &rank.report);
	(void)sk_fault_alloc_end(NULL);
	cr_assert_eq(r, 0, "%s", sk_error());
	cr_assert_eq(rank.report.step, 10);
	*ret_gathers = others.gathers;
	test.world[1] = 1;
	close_ranks(&test, &rank);
	test.world[1] = 2;
	free_test(&test);
	return sk_fault_alloc_peak();
}

/* A word of each of the others is all that there is of them at a time, and a
 * few MiB of their lists, where those differ. */
Test(memory, a_rank_of_a_large_world_has_a_word_of_each)
{
	unsigned gathers[3];

	for (int otherwise = 0; otherwise < 2; otherwise++) {
		uint64_t few = peak_in(1024, otherwise, &gathers[0]);
		uint64_t many = peak_in(16384, otherwise, &gathers[1 +
								otherwise]);

		cr_assert_leq(many, few + 480u * (16384 - 1024) + PORTION,
			      "%" PRIu64 " bytes, then %" PRIu64, few, many);
	}
	/* Eight lists in portions of six, and who has what, each with a word
	 * before. */
	cr_assert_eq(gathers[2], gathers[1] + 6, "%u gathers, then %u",
		     gathers[1], gathers[2]);
}

/* ---- replicas ---- */

#define TENSORS 192
#define OF_IMAGE 6144	/* bytes that a restore may keep of an image more */

struct model {
	char names[TENSORS][32];
	char data[TENSORS][64];
	struct sk_item items[TENSORS];
};

/* All ranks hold all of it, so each has a few in its image. */
static void save_replicas(const struct test *test, struct model *m)
{
	for (int i = 0; i < TENSORS; i++) {
		(void)snprintf(m->names[i], sizeof(m->names[i]),
			       "layers.%d.weight", i);
		m->items[i].spec = (struct sk_spec){
			.name = m->names[i], .dtype = SK_F32, .ndim = 1,
			.shape = { 16 },
			.mesh = test->tensors[0].source.mesh,
			.placements = { SK_REPLICATE },
		};
	}
	for (int rank = 0; rank < test->world[0]; rank++) {
		struct sk_layout *l = NULL;

		cr_assert_eq(sk_layout_new(JOB, rank, test->world[0],
					   SK_IMAGE_PRIMARY, m->items, TENSORS,
					   &l, NULL), 0);
		cr_assert_eq(l->n_entries,
			     (uint32_t)(TENSORS / test->world[0]));
		add_image(l, 1, 10, false, true);
	}
}

static void want_all(struct rank *rank, struct model *m)
{
	for (int i = 0; i < TENSORS; i++) {
		const struct sk_tensor t = {
			.name = m->names[i], .dtype = SK_F32, .ndim = 1,
			.shape = { 16 }, .data = m->data[i],
		};

		cr_assert_eq(sk_state_tensor(rank->state, &t), 0, "%s",
			     sk_error());
	}
}

/* Of what so many replicas saved, one rank takes all. */
static uint64_t peak_of_replicas(int replicas)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MISSING_OK };
	struct model *m = calloc(1, sizeof(*m));
	struct rank rank = { 0 };
	struct test test;
	int r;

	plain_test(&test, replicas, 1);
	save_replicas(&test, m);
	open_rank(&rank, &test, 0, NULL);
	want_all(&rank, m);
	sk_fault_alloc_fail(0, 0);
	r = sk_restore(rank.state, SK_LATEST, NULL, &o, &rank.report);
	(void)sk_fault_alloc_end(NULL);
	cr_assert_eq(r, 0, "%s", sk_error());
	cr_assert_eq(rank.report.tensors, TENSORS);
	cr_assert_eq(agent.opens, (unsigned)replicas);
	close_ranks(&test, &rank);
	free_test(&test);
	free(m);
	return sk_fault_alloc_peak();
}

/* Who takes its tensors out of many images knows of each what it takes, and
 * what they describe once. */
Test(memory, an_image_more_costs_what_is_read_of_it)
{
	uint64_t few = peak_of_replicas(6), many = peak_of_replicas(48);

	cr_assert_leq(many, few + (48 - 6) * (uint64_t)OF_IMAGE,
		      "%" PRIu64 " bytes, then %" PRIu64, few, many);
}

/* ---- lists of very different length ---- */

#define LONG 20000u	/* images that the first node lists; others one */

/* All else says nothing. */
static int tell_long(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	const struct sk_state *state = ctx;
	struct sk_restore_word *words = out;

	(void)timeout_ms;
	memset(out, 0, (size_t)state->job.world * bytes);
	memcpy((char *)out + (size_t)state->job.rank * bytes, in, bytes);
	for (int32_t i = 0; bytes == sizeof(*words) &&
	     words[state->job.rank].extra && i < state->job.world; i++)
		words[i].extra = i ? 1 : LONG;
	return 0;
}

/* Each rank is a node of its own. */
static uint64_t peak_of_lists(int32_t world)
{
	struct sk_state state = { .job = { .name = "job", .rank = 1,
					   .world = world } };
	struct sk_wire_part part = { .place = SK_PLACE_MEMORY };
	struct sk_restore_offer offer = { .run = 1 };
	uint64_t *agents = calloc((size_t)world, sizeof(*agents));
	struct sk sk = { .os = sk_os_linux() };
	struct sk_restoring rs = { .state = &state, .sk = &sk, .apart = true,
		.listed = &part, .n_listed = 1,
		.comm = { .ctx = &state, .allgather = tell_long } };

	state.said = calloc((size_t)world, SK_SAID_BYTES);
	for (int32_t i = 0; i < world; i++)
		agents[i] = (uint64_t)i + 1;
	cr_assert_eq(sk_restore_nodes(&rs, agents), 0);
	sk_fault_alloc_fail(0, 0);
	cr_assert_eq(sk_restore_merge(&rs, &offer, 0), 0, "%s", rs.err.text);
	(void)sk_fault_alloc_end(NULL);
	cr_assert_eq(rs.n_everywhere, LONG + (size_t)world - 1);
	free(rs.everywhere);
	sk_restore_forget_nodes(&rs);
	free(state.said);
	free(agents);
	return sk_fault_alloc_peak();
}

/* What others list takes the room of what they list, not of as many lists as
 * long as the longest. */
Test(memory, one_long_list_is_no_world_of_them)
{
	uint64_t few = peak_of_lists(16), many = peak_of_lists(1024);

	cr_assert_leq(many, few + 512u * (1024 - 16) + PORTION,
		      "%" PRIu64 " bytes, then %" PRIu64, few, many);
	cr_assert_leq(few, LONG * (sizeof(struct sk_wire_part) +
				   sizeof(struct sk_restore_listed)) +
		      PORTION + 65536, "%" PRIu64, few);
}
