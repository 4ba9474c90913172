/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two jobs of one name on the same two nodes, the ranks of the second where the
 * others of the first are: no agent can tell that these are no ranks of the
 * first. Their restore can, and does not have them go on in its run, where
 * snapshots would be whole that are half of one job's and half of the other's.
 * But ranks of one job are no strangers to each other where agents that are
 * gone told them of other runs.
 * Argument: path of shardkeepd.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "libclient/restore/common.h"
#include "mesh-comm.h"

#define WORLD 2
#define SPREAD 3	/* of which two are on one node */
#define ROWS 60

static const int home[WORLD] = { 0, 1 }, away[WORLD] = { 1, 0 };

/* Of those that are forked next; each joins its copy. */
static struct mesh_comm links;

struct story {
	bool saves;		/* before the second job comes */
	int ready, over;	/* ranks of the first; it is to end */
	int results[WORLD];
	char why[WORLD][300];
};

static void await(const int *flag, int n)
{
	const struct sk_os *os = sk_os_linux();

	while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) < n)
		(void)os->poll(os, NULL, 0, sk_until_ms(os, 2));
}

static struct sk_comm comm;	/* of a rank's process */

static int restore(struct rank *rank, struct sk_report *ret_report)
{
	struct sk_restore_options o = { .timeout_ms = 20000 };

	mesh_comm_join(&links, rank->rank, &comm);
	rank_model(rank, ROWS);
	return sk_restore(rank->state, SK_LATEST, &comm, &o, ret_report);
}

static void come_first(struct rank *rank)
{
	struct story *story = (struct story *)rank->arg;
	int r = restore(rank, NULL);

	CHECK(r == -ENOENT, "%d %s", r, sk_error());
	rank_write(rank, 5);
	if (story->saves)
		rank_snapshot(rank, 5, SK_SEALED);
	__atomic_fetch_add(&story->ready, 1, __ATOMIC_ACQ_REL);
	await(&story->over, 1);
	rank_write(rank, 6);
	rank_snapshot(rank, 6, SK_SEALED);
}

static void come_second(struct rank *rank)
{
	struct story *story = (struct story *)rank->arg;

	story->results[rank->rank] = restore(rank, NULL);
	(void)snprintf(story->why[rank->rank], sizeof(story->why[0]), "%s",
		       sk_error());
}

static void come_after(struct rank *rank)
{
	struct sk_report report;

	CHECK(!restore(rank, &report), "%s", sk_error());
	CHECK(report.step == 6 && !rank_wrong(rank, 6, rank->rank));
	rank_write(rank, 7);
	rank_snapshot(rank, 7, SK_SEALED);
	CHECK(rank->state->run > report.run, "%llu",
	      (unsigned long long)rank->state->run);
}

static void run(struct scene *scene, const char *job, rank_fn fn,
		const struct story *story)
{
	scene->node_of = away;
	CHECK(!mesh_comm_new(&links, WORLD));
	scene_ranks(scene, job, WORLD, fn, story);
	mesh_comm_free(&links);
}

static void test_twins(struct scene *scene, struct story *story)
{
	char job[16];
	pid_t first[WORLD];

	(void)snprintf(job, sizeof(job), "twins-%d", story->saves);
	scene->node_of = home;
	CHECK(!mesh_comm_new(&links, WORLD));
	scene_ranks_start(scene, job, WORLD, come_first, story, first);
	mesh_comm_free(&links);
	await(&story->ready, WORLD);
	run(scene, job, come_second, story);
	for (int i = 0; i < WORLD; i++)
		CHECK(story->results[i] == -EEXIST &&
		      strstr(story->why[i], "two jobs of one name"),
		      "rank %d: %d %s", i, story->results[i], story->why[i]);
	/* The first one goes on, and after it another one from what it has. */
	__atomic_store_n(&story->over, 1, __ATOMIC_RELEASE);
	scene_ranks_end(job, WORLD, first);
	run(scene, job, come_after, story);
}

/* As where a restore failed when some had been told that they are in one run,
 * and then their agent went, and another one came. */
static void come_back(struct rank *rank)
{
	uint64_t id = 100 + (unsigned)rank->rank, all[SPREAD];
	int r;

	sk_state_set_run(rank->state, 1, id);
	r = restore(rank, NULL);
	CHECK(r == -ENOENT, "%d %s", r, sk_error());
	rank_write(rank, 1);
	rank_snapshot(rank, 1, SK_SEALED);
	id = rank->state->run_id;
	CHECK(!comm.allgather(comm.ctx, &id, sizeof(id), all, 20000));
	for (int i = 0; i < SPREAD; i++)
		CHECK(all[i] == id, "rank %d, and %d", i, rank->rank);
}

static void test_strayed(struct scene *scene)
{
	static const int spread[SPREAD] = { 0, 1, 1 };

	scene->node_of = spread;
	CHECK(!mesh_comm_new(&links, SPREAD));
	scene_ranks(scene, "strayed", SPREAD, come_back, NULL);
	mesh_comm_free(&links);
}

int main(int argc, char **argv)
{
	struct story *story = mmap(NULL, sizeof(*story),
				   PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct scene scene, nodes[2];

	CHECK(story != MAP_FAILED);
	scene_open(&scene, argc, argv);
	scene_add_nodes(&scene, nodes, 2, true);
	for (int saves = 0; saves < 2; saves++) {
		*story = (struct story){ .saves = saves };
		test_twins(&scene, story);
	}
	test_strayed(&scene);
	scene_close(&scene);
	CHECK(!munmap(story, sizeof(*story)));
	return 0;
}
