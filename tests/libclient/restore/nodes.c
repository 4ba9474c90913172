/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any mesh to any mesh over several nodes: agents of their own, each with what
 * its ranks saved. Ranks come back on other nodes, and take from each other's
 * what their own does not have.
 */
#include <stdio.h>
#include <string.h>

#include "libclient/restore/random.h"
#include "mesh-comm.h"

#define NODES 3
#define CASES 16

struct trial {
	struct random_test test;
	int side;
	struct mesh_comm *mesh;
	int lost;		/* node, -1: none */
	uint32_t job_flags;
};

static void add(struct rank *rank, const struct sk_tensor *t, int i,
		void *ctx)
{
	(void)i;
	(void)ctx;
	rank_tensor(rank, t, 0xee);
}

static int restore(struct rank *rank, const struct trial *t, int64_t step,
		   uint32_t flags, struct sk_report *ret_report)
{
	struct sk_restore_options o = { .flags = flags, .timeout_ms = 20000 };
	struct sk_comm comm;

	mesh_comm_join(t->mesh, rank->rank, &comm);
	return sk_restore(rank->state, step, &comm, &o, ret_report);
}

/* In one run with the others, whose number they all agree on. */
static void save(struct rank *rank)
{
	const struct trial *t = rank->arg;

	random_describe(rank, &t->test, 0, add, NULL);
	CHECK(restore(rank, t, SK_LATEST, 0, NULL) == -ENOENT, "%s",
	      sk_error());
	for (int64_t step = 10; step <= 11; step++) {
		rank_write(rank, step);
		CHECK(!sk_snapshot(rank->state, step, NULL), "%s",
		      sk_error());
		CHECK(!sk_fence(rank->state), "%s", sk_error());
		CHECK(!sk_wait(rank->state, step, SK_SEALED, 60000), "%s",
		      sk_error());
	}
}

/* Mostly where ranks come back, for who is nowhere near what it needs has to
 * do without. */
static void draw_nodes(const struct random_test *test, int side, int *node_of)
{
	uint64_t v = test->seed * 0x9e3779b97f4a7c15u;
	int there[4];

	for (int i = 0; i < 4; i++)
		there[i] = (int)((v >> (8 + 4 * i)) % NODES);
	for (int i = 0; i < 4; i++)
		node_of[i] = side ? there[i] : test->seed % 4 ?
			there[(v >> (32 + 4 * i)) % (uint64_t)test->world[1]] :
			(int)((v >> (24 + 4 * i)) % NODES);
}

/* Whether a node that has images has no rank. */
static bool is_out_of_reach(const struct random_test *test)
{
	int saved[4], there[4];
	bool far = false;

	draw_nodes(test, 0, saved);
	draw_nodes(test, 1, there);
	for (int i = 0; i < test->world[0]; i++) {
		bool near = false;

		for (int k = 0; k < test->world[1]; k++)
			near |= there[k] == saved[i];
		far |= !near;
	}
	return far;
}

static void load(struct rank *rank)
{
	const struct trial *t = rank->arg;
	const struct random_test *test = &t->test;
	int owner = rank->rank < test->world[0] ? rank->rank : -1;
	struct sk_report report;
	int r;

	random_describe(rank, test, 1, add, NULL);
	r = restore(rank, t, SK_LATEST, SK_RESTORE_MEMORY_ONLY, &report);
	if (is_out_of_reach(test)) {
		CHECK(r == -ENOENT, "seed %d: %d", (int)test->seed, r);
		return;
	}
	CHECK(!r, "seed %d: %s", (int)test->seed, sk_error());
	CHECK(report.step == 11 && report.world == test->world[0]);
	CHECK(!rank_wrong(rank, 11, owner), "seed %d, %d to %d ranks",
	      (int)test->seed, test->world[0], test->world[1]);
	CHECK(!report.bytes_disk);
}

static void run_side(struct scene *scene, struct trial *t, const char *job,
		     rank_fn fn)
{
	int world = t->test.world[t->side];
	int node_of[4];
	struct mesh_comm mesh;

	draw_nodes(&t->test, t->side, node_of);
	scene->node_of = node_of;
	CHECK(!mesh_comm_new(&mesh, world));
	t->mesh = &mesh;
	scene_ranks(scene, job, world, fn, t);
	mesh_comm_free(&mesh);
	scene->node_of = NULL;
}

static void test_property(struct scene *scene, uint64_t cases)
{
	for (uint64_t seed = 1; seed <= cases; seed++) {
		struct trial t = { .lost = -1 };
		char job[32];

		random_test(&t.test, seed);
		(void)snprintf(job, sizeof(job), "nodes-%d", (int)seed);
		run_side(scene, &t, job, save);
		t.side = 1;
		run_side(scene, &t, job, load);
	}
}

int main(int argc, char **argv)
{
	struct scene scene, nodes[NODES];
	const char *cases = getenv("SK_CASES");

	scene_open(&scene, argc, argv);
	scene_add_nodes(&scene, nodes, NODES, true);
	test_property(&scene, cases ? strtoull(cases, NULL, 10) : CASES);
	scene_close(&scene);
	return 0;
}
