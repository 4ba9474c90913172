/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What describing, laying out, parsing and showing cost, at two sizes. What
 * does it is compiled so that it calls us in each basic block: that is what is
 * counted, so it is the same on any machine, however busy.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "cachectl.h"
#include "layout/layout.h"
#include "briefs.h"
#include "lists.h"
#include "restore/beyond.h"
#include "show.h"
#include "support/agent.h"
#include "support/files.h"
#include "tensor/mesh.h"

#define FILL 64		/* bytes of one tensor, at most */

struct name {
	char text[32];
};

static struct name name_of(unsigned i)
{
	struct name name;

	(void)snprintf(name.text, sizeof(name.text), "layers.%u.weight", i);
	return name;
}

/* In an array of their own. */
static const char *name_in(struct name *names, unsigned i)
{
	names[i] = name_of(i);
	return names[i].text;
}

static _Thread_local uint64_t blocks;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
	blocks++;
}

/* @many is @times @few, times @slack for what is a logarithm. */
static void expect(const char *what, uint64_t few, uint64_t many, double times,
		   double slack)
{
	cr_assert_gt(few, 0, "%s: nothing is counted", what);
	cr_assert_leq((double)many, (double)few * times * slack,
		      "%s: %lu blocks, and %lu of %g times as much", what,
		      (unsigned long)few, (unsigned long)many, times);
}

/* ---- a rank's description ---- */

static char data[FILL];

/* An agent of this test's own, which ends with it. */
static char dir[] = "/tmp/shardkeep-growth-XXXXXX";
static char agent_socket[sizeof(dir) + 16];

static void start_agent(void)
{
	const char *args[] = { getenv("SK_TEST_AGENT"), "--socket",
			       agent_socket, "--memory", "64M", "--no-keeper",
			       "--log-level", "error", NULL };

	cr_assert(args[0], "SK_TEST_AGENT is the path of shardkeepd");
	cr_assert(mkdtemp(dir));
	(void)snprintf(agent_socket, sizeof(agent_socket), "%s/agent.sock",
		       dir);
	cr_assert_gt(agent_start(args), 0, "the agent did not start");
}

static void remove_agent(void)
{
	cr_assert_eq(remove_tree(dir), 0);
}

static struct sk_state *new_state(struct sk **ret_sk, int32_t world)
{
	const struct sk_options options = { .socket = agent_socket,
					    .flags = SK_OPEN_NO_START };
	const struct sk_job job = { .name = "growth", .world = world };
	struct sk_state *state = NULL;

	cr_assert_eq(sk_open(&options, ret_sk), 0, "%s", sk_error());
	cr_assert_eq(sk_state_create(*ret_sk, &job, &state), 0, "%s",
		     sk_error());
	return state;
}

static void describe(struct sk_state *state, unsigned n)
{
	struct sk_tensor *t = calloc(n, sizeof(*t));
	struct name *names = calloc(n, sizeof(*names));

	for (unsigned i = 0; i < n; i++) {
		t[i] = (struct sk_tensor){
			.name = name_in(names, i), .dtype = SK_U8, .ndim = 1,
			.shape = { FILL }, .data = data,
		};
	}
	cr_assert_eq(sk_state_tensors(state, t, n), 0, "%s", sk_error());
	free(names);
	free(t);
}

struct removal {
	uint64_t describing, removing;
};

/* One after the other, in the order in which they came. */
static struct removal remove_all(unsigned n)
{
	struct removal cost;
	struct sk_state *state;
	struct sk *sk;

	state = new_state(&sk, 1);
	blocks = 0;
	describe(state, n);
	cost.describing = blocks;
	for (unsigned i = 0; i < n; i++) {
		cr_assert_eq(sk_state_remove(state, name_of(i).text), 0, "%s",
			     sk_error());
	}
	cost.removing = blocks - cost.describing;
	sk_state_free(state);
	sk_close(sk);
	return cost;
}

Test(growth, tensors_are_described_and_removed_at_a_price_each,
     .init = start_agent, .fini = remove_agent)
{
	struct removal few = remove_all(4096), many = remove_all(32768);

	expect("describing", few.describing, many.describing, 8, 1.5);
	expect("removing", few.removing, many.removing, 8, 1.5);
}

/* ---- registering ---- */

/* What a rank of so many tensors pays to register, and what once it has read
 * what it left behind. */
struct registering {
	uint64_t anew, back;
};

static uint64_t registers(struct sk_state *state)
{
	blocks = 0;
	cr_assert_eq(sk_prepare(state, 0), 0, "%s", sk_error());
	return blocks;
}

static int not_called(void *ctx, const struct sk_item *item, bool mine)
{
	(void)ctx;
	cr_assert_fail("%s (mine: %d) is described", item->spec.name, mine);
	return 0;
}

static struct registering register_twice(unsigned n)
{
	const struct sk_beyond nobody = { .name = not_called };
	struct sk_err err = { "" };
	struct registering cost;
	struct sk_state *state;
	int32_t world;
	uint64_t run;
	struct sk *sk;

	state = new_state(&sk, 1);
	describe(state, n);
	cost.anew = registers(state);
	run = state->run;
	cr_assert_eq(sk_snapshot(state, 1, 0), 0, "%s", sk_error());
	cr_assert_eq(sk_wait(state, 1, SK_COMPLETE, 10000), 0, "%s",
		     sk_error());
	sk_state_free(state);
	sk_close(sk);
	state = new_state(&sk, 1);
	describe(state, n);
	cr_assert_eq(sk_restore_beyond(state, run, 1, &nobody, &world, &err), 0,
		     "%s", err.text);
	cost.back = registers(state);
	sk_state_free(state);
	sk_close(sk);
	return cost;
}

Test(growth, what_a_restore_has_read_is_not_laid_out_anew,
     .init = start_agent, .fini = remove_agent)
{
	struct registering few = register_twice(1000);
	struct registering many = register_twice(8000);

	expect("registering", few.anew, many.anew, 8, 1.5);
	expect("after a restore", few.back, many.back, 8, 1.5);
	cr_assert_leq(2 * many.back, many.anew, "%lu blocks after a restore, "
		      "%lu without", (unsigned long)many.back,
		      (unsigned long)many.anew);
}

/* ---- many boxes ---- */

/* Of a tensor whose rows are dealt out, a chunk each: described once. */
static uint64_t describe_strided(int64_t chunks)
{
	struct sk_mesh *mesh = NULL;
	struct sk_tensor t = {
		.name = "w", .dtype = SK_U8, .ndim = 1,
		.shape = { 4 * chunks }, .data = data,
		.placements = { SK_STRIDED_SHARD(0, chunks) },
	};
	struct sk_state *state;
	struct sk *sk;

	state = new_state(&sk, 2);
	cr_assert_eq(sk_mesh_create(1, (int64_t[]){ 2 }, NULL, NULL, &mesh),
		     0);
	t.mesh = mesh;
	t.data = calloc(2, (size_t)chunks);
	blocks = 0;
	cr_assert_eq(sk_state_tensor(state, &t), 0, "%s", sk_error());
	sk_state_free(state);
	free(t.data);
	sk_mesh_release(mesh);
	sk_close(sk);
	return blocks;
}

static uint64_t describe_parts(unsigned n)
{
	struct sk_part *parts = calloc(n, sizeof(*parts));
	struct sk_tensor t = {
		.name = "w", .dtype = SK_U8, .ndim = 1,
		.shape = { 4 * (int64_t)n }, .parts = parts, .n_parts = n,
	};
	struct sk_state *state;
	struct sk *sk;

	for (unsigned i = 0; i < n; i++) {
		parts[i].box.offset[0] = 4 * (int64_t)i;
		parts[i].box.size[0] = 2;
		parts[i].strides[0] = 3;
		parts[i].data = data;
	}
	state = new_state(&sk, 2);
	blocks = 0;
	cr_assert_eq(sk_state_tensor(state, &t), 0, "%s", sk_error());
	sk_state_free(state);
	sk_close(sk);
	free(parts);
	return blocks;
}

Test(growth, boxes_are_described_at_a_price_each, .init = start_agent,
     .fini = remove_agent)
{
	expect("chunks", describe_strided(4096), describe_strided(32768), 8,
	       1.2);
	expect("boxes", describe_parts(4096), describe_parts(32768), 8, 1.2);
}

/* ---- layouts ---- */

struct costs {
	uint64_t laying, parsing, bytes;
};

/* Of a rank that holds that share of so many tensors. */
static struct costs lay_out(const struct sk_mesh *mesh, int32_t world,
			    struct sk_placement placement, unsigned n)
{
	struct sk_item *items = calloc(n, sizeof(*items));
	struct name *names = calloc(n, sizeof(*names));
	struct sk_layout *l = NULL, *parsed = NULL;
	struct sk_err err = { "" };
	struct costs c;

	for (unsigned i = 0; i < n; i++) {
		items[i].spec = (struct sk_spec){
			.name = name_in(names, i), .dtype = SK_U8, .ndim = 1,
			.shape = { 16384 }, .mesh = mesh,
			.placements = { placement },
		};
	}
	blocks = 0;
	cr_assert_eq(sk_layout_new("growth", 0, world, SK_IMAGE_PRIMARY, items,
				   n, &l, &err), 0, "%s", err.text);
	c.laying = blocks;
	cr_assert_eq(sk_layout_parse(l->header, l->header_bytes,
				     l->image_bytes, &parsed, &err), 0, "%s",
		     err.text);
	c.parsing = blocks - c.laying;
	c.bytes = l->header_bytes;
	sk_layout_free(parsed);
	sk_layout_free(l);
	free(names);
	free(items);
	return c;
}

/* Ranks in no order that could be said in short. */
static struct sk_mesh *scattered(int32_t n)
{
	int32_t *ranks = calloc((size_t)n, sizeof(*ranks));
	struct sk_mesh *mesh = NULL;
	uint64_t seed = 1;

	for (int32_t i = 0; i < n; i++)
		ranks[i] = i;
	for (int32_t i = n - 1; i > 1; i--) {
		int32_t at, was = ranks[i];

		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963u;
		at = 1 + (int32_t)((seed >> 33) % (uint64_t)i);
		ranks[i] = ranks[at];
		ranks[at] = was;
	}
	cr_assert_eq(sk_mesh_new(1, (int64_t[]){ n }, ranks, NULL, &mesh,
				 NULL), 0);
	free(ranks);
	return mesh;
}

static struct costs costs_scattered(int32_t ranks, unsigned tensors)
{
	struct sk_mesh *mesh = scattered(ranks);
	struct costs c = lay_out(mesh, ranks, SK_SHARD(0), tensors);

	sk_mesh_unref(mesh);
	return c;
}

/* It is said once, whatever lies on it: neither bytes nor time have ranks
 * times tensors. */
Test(growth, a_scattered_mesh_costs_its_ranks_once)
{
	struct costs base = costs_scattered(1024, 100);
	struct costs ranks = costs_scattered(8192, 100);
	struct costs both = costs_scattered(8192, 800);
	struct costs tensors = costs_scattered(1024, 800);

	expect("laying out on 8 x ranks", base.laying, ranks.laying, 8, 1.3);
	expect("parsing on 8 x ranks", base.parsing, ranks.parsing, 8, 1.3);
	/* Each size costs its own. */
	cr_assert_leq(both.bytes, ranks.bytes + tensors.bytes);
	cr_assert_leq(both.laying, 1.1 * (double)(ranks.laying +
						  tensors.laying));
	cr_assert_leq(both.parsing, 1.1 * (double)(ranks.parsing +
						   tensors.parsing));
}

static struct costs costs_line(int32_t ranks, struct sk_placement placement,
			       unsigned tensors)
{
	struct sk_mesh *mesh = NULL;
	struct costs c;

	cr_assert_eq(sk_mesh_new(1, (int64_t[]){ ranks }, NULL, NULL, &mesh,
				 NULL), 0);
	c = lay_out(mesh, ranks, placement, tensors);
	sk_mesh_unref(mesh);
	return c;
}

/* What all ranks hold is dealt out to them by arithmetic, and so is what each
 * holds a piece of. */
Test(growth, a_rank_of_many_costs_what_one_of_few_does)
{
	const struct sk_placement placements[] = { SK_REPLICATE, SK_SHARD(0) };

	for (size_t i = 0; i < SK_ARRAY_SIZE(placements); i++) {
		struct costs few = costs_line(256, placements[i], 1000);
		struct costs many = costs_line(16384, placements[i], 1000);
		struct costs more = costs_line(256, placements[i], 8000);

		expect("laying out", few.laying, many.laying, 1, 1.1);
		expect("parsing", few.parsing, many.parsing, 1, 1.1);
		cr_assert_leq(many.bytes, few.bytes + 4096 + few.bytes / 16);
		expect("8 x tensors", few.laying, more.laying, 8, 1.5);
		expect("parsing them", few.parsing, more.parsing, 8, 1.5);
	}
}

/* ---- what cachectl shows ---- */

static uint64_t show(unsigned tensors)
{
	struct sk_item *items = calloc(tensors, sizeof(*items));
	struct name *names = calloc(tensors, sizeof(*names));
	struct report *report = report_new();
	struct sk_layout *layout;
	struct rows rows = { 0 };
	struct sk_err err = { "" };

	for (unsigned i = 0; i < tensors; i++) {
		items[i].spec = (struct sk_spec){
			.name = name_in(names, i), .dtype = SK_U8, .ndim = 1,
			.shape = { FILL },
		};
	}
	cr_assert_eq(sk_layout_new("growth", 0, 1, SK_IMAGE_PRIMARY, items,
				   tensors, &layout, &err), 0, "%s",
		     err.text);
	blocks = 0;
	/* As a second rank has them, which is not kept. */
	for (int i = 0; i < 2; i++)
		cr_assert_eq(rows_add(&rows, layout, true), 0);
	cr_assert_eq(rows.n_layouts, 1);
	rows_report(&rows, report);
	rows_free(&rows);
	report_free(report);
	sk_layout_free(layout);
	free(names);
	free(items);
	return blocks;
}

Test(growth, tensors_are_shown_at_a_price_each)
{
	expect("rows", show(10000), show(100000), 10, 1.2);
}

/* Of layouts alone: @n ranks' with some tensors, and an object of each that is
 * as large as the others' or not. */
static uint64_t brief(unsigned n, bool differ)
{
	enum { TENSORS = 40 };
	struct sk_item items[TENSORS + 1] = { 0 };
	struct name names[TENSORS];
	struct briefs briefs = { 0 };
	uint64_t all = 0;

	for (unsigned i = 0; i < TENSORS; i++)
		items[i].spec = (struct sk_spec){
			.name = name_in(names, i), .dtype = SK_F32, .ndim = 1,
			.shape = { 4 } };
	items[TENSORS].kind = SK_ITEM_BLOB_LOCAL;
	items[TENSORS].spec = (struct sk_spec){
		.name = "own", .dtype = SK_U8, .ndim = 1 };
	for (unsigned rank = 0; rank < n; rank++) {
		struct sk_layout *l;

		items[TENSORS].spec.shape[0] = differ ? 1 + rank : 1;
		cr_assert_eq(sk_layout_new("growth", (int32_t)rank, (int32_t)n,
					   SK_IMAGE_PRIMARY, items,
					   TENSORS + 1, &l, NULL), 0);
		blocks = 0;
		cr_assert_eq(briefs_add(&briefs, &l), 0);
		all += blocks;
		sk_layout_free(l);
	}
	briefs_release(&briefs);
	return all;
}

Test(growth, layouts_of_many_ranks_are_computed_once_at_most)
{
	expect("briefs", brief(20, false), brief(200, false), 10, 1.2);
	cr_assert(10 * brief(200, true) < brief(200, false));
}

struct listing {
	uint64_t merging, finding;
};

/* Each looked for among all, as who compares two lists does. */
static struct listing list(unsigned jobs, unsigned steps)
{
	unsigned n = jobs * steps;
	struct sk_wire_snapshot *all = calloc(n, sizeof(*all));
	struct listing cost;
	struct listed listed;

	for (unsigned i = 0; i < n; i++) {
		all[i].id.step = steps - i % steps;
		all[i].created_ns = (uint64_t)all[i].id.step * n + i / steps;
		(void)snprintf(all[i].id.job, sizeof(all[i].id.job), "job-%u",
			       i / steps);
	}
	blocks = 0;
	cr_assert_eq(list_merge(all, n), 0);
	cost.merging = blocks;
	cr_assert_eq(listed_note(&listed, all, sizeof(*all), n), 0);
	for (unsigned i = 0; i < n; i++) {
		struct listed_walk walk = listed_find(&listed, &all[i].id);

		cr_assert_eq(listed_next(&walk), &all[i]);
	}
	cost.finding = blocks - cost.merging;
	listed_free(&listed);
	free(all);
	return cost;
}

Test(growth, snapshots_are_listed_at_a_price_each)
{
	struct listing few = list(500, 2), jobs = list(4000, 2);
	struct listing steps = list(2, 4000);

	expect("merging of 8 x jobs", few.merging, jobs.merging, 8, 1.6);
	expect("finding of 8 x jobs", few.finding, jobs.finding, 8, 1.5);
	expect("finding of 8 x steps", few.finding, steps.finding, 8, 1.5);
}
