/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may become of nodes between and in restores: one is lost, slow, comes
 * back with a run of before, or loses its agent in the middle of it; and what
 * may be used is memory or disk alone. Whatever happens, all ranks end alike.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "libclient/restore/common.h"
#include "mesh-comm.h"

#define NODES 3
#define RANKS 4
#define ROWS 900	/* of 900 F32: 3 MiB, and more than a chunk a rank */

/* Of those that are forked next; each joins its copy. */
static struct mesh_comm links;

/* Half of what each node had is elsewhere when ranks come back away. */
static const int home[RANKS] = { 0, 0, 1, 1 }, away[RANKS] = { 0, 1, 0, 1 },
		 apart[RANKS] = { 0, 1, 2, 1 }, later[RANKS] = { 0, 0, 2, 2 };

/* What the ranks of one restore came to; they share it. */
struct ends {
	pthread_barrier_t there;	/* for ranks that are connected */
	int results[RANKS];
	int64_t steps[RANKS];
	uint64_t memory, remote, disk;
};

struct scene_of_nodes {
	const int *nodes;
	int64_t from, to;	/* steps to save; else it is a restore */
	bool write;		/* and to wait for on disk */
	uint32_t flags, timeout_ms;
	int only;		/* rank that says so; -1: all */
	int slow_node;		/* -1: none */
	unsigned slow_ms;
	int culprit;		/* rank that kills; -1: none */
	int kill_at;
	pid_t victim;
	struct ends *ends;
};

static const struct scene_of_nodes well = { .nodes = away, .slow_node = -1,
					    .culprit = -1, .only = -1 };

static int restore(struct rank *rank, const struct scene_of_nodes *s,
		   struct sk_report *ret_report)
{
	bool says = s->only < 0 || s->only == rank->rank;
	struct sk_restore_options o = { .flags = says ? s->flags : 0,
		.timeout_ms = s->timeout_ms ? s->timeout_ms : 20000 };
	struct sk_comm comm;

	mesh_comm_join(&links, rank->rank, &comm);
	if (s->nodes[rank->rank] == s->slow_node)
		links.slow_ms = s->slow_ms;
	if (rank->rank == s->culprit) {
		links.kill_at = s->kill_at;
		links.victim = s->victim;
	}
	return sk_restore(rank->state, SK_LATEST, &comm, &o, ret_report);
}

static void save(struct rank *rank)
{
	const struct scene_of_nodes *s = rank->arg;

	rank_model(rank, ROWS);
	(void)restore(rank, s, NULL);
	for (int64_t step = s->from; step <= s->to; step++) {
		rank_write(rank, step);
		rank_snapshot(rank, step, SK_SEALED);
		if (!s->write)
			continue;
		CHECK(sk_wait(rank->state, step, SK_WRITTEN, 1) ==
		      -ETIMEDOUT, "nobody asked for it to be written");
		CHECK(!sk_flush(rank->state, step), "%s", sk_error());
		CHECK(!sk_wait(rank->state, step, SK_WRITTEN, 60000), "%s",
		      sk_error());
		/* No agent knows of the others' parts. */
		CHECK(sk_wait(rank->state, step, SK_DURABLE, 1000) ==
		      -ETIMEDOUT && strstr(sk_error(), "SK_WRITTEN"), "%s",
		      sk_error());
	}
}

static void load(struct rank *rank)
{
	const struct scene_of_nodes *s = rank->arg;
	struct sk_report report = { .step = -1 };
	struct ends *ends = s->ends;
	int r;

	rank_model(rank, ROWS);
	/* An agent is to be killed in a restore, not before a rank has found
	 * it. */
	(void)pthread_barrier_wait(&ends->there);
	r = restore(rank, s, &report);
	ends->results[rank->rank] = r;
	ends->steps[rank->rank] = report.step;
	if (r < 0)
		return;
	CHECK(!rank_wrong(rank, report.step, rank->rank), "rank %d",
	      rank->rank);
	__atomic_fetch_add(&ends->memory, report.bytes_memory,
			   __ATOMIC_RELAXED);
	__atomic_fetch_add(&ends->remote, report.bytes_remote,
			   __ATOMIC_RELAXED);
	__atomic_fetch_add(&ends->disk, report.bytes_disk, __ATOMIC_RELAXED);
}

static void run(struct scene *scene, const char *job,
		const struct scene_of_nodes *s, rank_fn fn)
{
	scene->node_of = s->nodes;
	CHECK(!mesh_comm_new(&links, RANKS));
	scene_ranks(scene, job, RANKS, fn, s);
	mesh_comm_free(&links);
	scene->node_of = NULL;
}

static void save_on(struct scene *scene, const char *job, const int *nodes,
		    int64_t from, int64_t to)
{
	struct scene_of_nodes s = well;

	s.nodes = nodes;
	s.from = from;
	s.to = to;
	run(scene, job, &s, save);
}

/* Restores, and sees that all ranks came to the same. Its result. */
static int load_alike(struct scene *scene, const char *job,
		      const struct scene_of_nodes *s, int64_t step)
{
	struct ends *e = s->ends;
	pthread_barrierattr_t shared;

	*e = (struct ends){ .memory = 0 };
	CHECK(!pthread_barrierattr_init(&shared));
	CHECK(!pthread_barrierattr_setpshared(&shared,
					      PTHREAD_PROCESS_SHARED));
	CHECK(!pthread_barrier_init(&e->there, &shared, RANKS));
	run(scene, job, s, load);
	CHECK(!pthread_barrier_destroy(&e->there));
	CHECK(!pthread_barrierattr_destroy(&shared));
	for (int i = 0; i < RANKS; i++)
		CHECK(e->results[i] == e->results[0] &&
		      e->steps[i] == e->steps[0], "%s: rank %d: %d, step %lld; "
		      "rank 0: %d, step %lld", job, i, e->results[i],
		      (long long)e->steps[i], e->results[0],
		      (long long)e->steps[0]);
	CHECK(e->results[0] || e->steps[0] == step, "%s: step %lld", job,
	      (long long)e->steps[0]);
	return e->results[0];
}

static void restart(struct scene *scene, int node, int sig)
{
	scene_stop_agent(&scene->nodes[node], sig);
	scene_start_agent(&scene->nodes[node]);
	scene->agent = scene->nodes[0].agent;
}

/* Step 10 is on the nodes' disks, 11 and 12 in their memory: what the ranks
 * leave is to be written, and takes longer than the scene. */
static void save_in_places(struct scene *scene, const char *job)
{
	save_on(scene, job, home, 10, 10);
	for (int i = 0; i < 2; i++) {
		scene->nodes[i].flush_rate = "1K";
		restart(scene, i, SIGTERM);
	}
	save_on(scene, job, home, 11, 12);
	for (int i = 0; i < 2; i++)
		scene->nodes[i].flush_rate = NULL;
}

/* ---- scenes ---- */

static void test_places(struct scene *scene, struct ends *e)
{
	struct scene_of_nodes s = well;
	int r;

	s.ends = e;
	save_in_places(scene, "places");
	s.flags = SK_RESTORE_MEMORY_ONLY;
	r = load_alike(scene, "places", &s, 12);
	CHECK(!r && e->memory && e->remote && !e->disk, "%d", r);
	s.flags = SK_RESTORE_DISK_ONLY;
	r = load_alike(scene, "places", &s, 10);
	CHECK(!r && !e->memory && e->disk, "%d", r);
	/* What one rank says holds for all. */
	s.only = 2;
	r = load_alike(scene, "places", &s, 10);
	CHECK(!r && !e->memory && e->disk, "%d", r);
	s.flags = SK_RESTORE_MEMORY_ONLY;
	r = load_alike(scene, "places", &s, 12);
	CHECK(!r && e->memory && e->remote && !e->disk, "%d", r);
	s.only = -1;
	/* A node loses its memory: there is none left that is whole. */
	restart(scene, 1, SIGKILL);
	s.flags = SK_RESTORE_MEMORY_ONLY;
	r = load_alike(scene, "places", &s, -1);
	CHECK(r == -ENOENT, "%d", r);
	s.flags = 0;
	r = load_alike(scene, "places", &s, 10);
	CHECK(!r, "%d", r);
	restart(scene, 0, SIGKILL);
}

/* Each rank knows when its own part is on disk; that all do makes the whole. */
static void test_written(struct scene *scene, struct ends *e)
{
	struct scene_of_nodes s = well;
	int r;

	s.nodes = home;
	s.from = s.to = 10;
	s.write = true;
	run(scene, "written", &s, save);
	for (int i = 0; i < 2; i++)
		restart(scene, i, SIGKILL);
	s = well;
	s.ends = e;
	s.flags = SK_RESTORE_DISK_ONLY;
	r = load_alike(scene, "written", &s, 10);
	CHECK(!r, "%d", r);
}

/* So it is where an operator waits: each agent has its part, and is not asked
 * for the others'. */
static void test_flushed(struct scene *scene)
{
	char line[512] = "";

	if (!scene->cachectl)
		return;
	save_on(scene, "flushed", home, 10, 10);
	for (int i = 0; i < 2; i++) {
		FILE *f = scene_ask(&scene->nodes[i],
				    "flush --wait flushed/10");

		CHECK(fgets(line, sizeof(line), f) &&
		      !strncmp(line, "written ", 8), "%s", line);
		CHECK(!pclose(f));
	}
}

/* It holds the others up, and as long as it comes in time, no more. */
static void test_slow(struct scene *scene, struct ends *e)
{
	struct scene_of_nodes s = well;
	int r;

	s.ends = e;
	save_on(scene, "slow", home, 10, 11);
	s.slow_node = 1;
	s.slow_ms = 20;
	r = load_alike(scene, "slow", &s, 11);
	CHECK(!r, "%d", r);
	s.slow_ms = 1000;
	s.timeout_ms = 500;
	r = load_alike(scene, "slow", &s, -1);
	CHECK(r == -ETIMEDOUT, "%d", r);
}

/* A node is lost, and nobody else has what it had: the job begins anew on
 * others. When it is back, what it has is of a run of before, though of later
 * steps. */
static void test_old_run(struct scene *scene, struct ends *e)
{
	struct scene_of_nodes s = well;
	int r;

	s.ends = e;
	save_on(scene, "old", home, 30, 31);
	scene_stop_agent(&scene->nodes[1], SIGTERM);
	s.nodes = later;
	r = load_alike(scene, "old", &s, -1);
	CHECK(r == -ENOENT, "%d", r);
	save_on(scene, "old", later, 20, 21);
	scene_start_agent(&scene->nodes[1]);
	s.nodes = apart;
	r = load_alike(scene, "old", &s, 21);
	CHECK(!r, "%d", r);
}

/* Its agent is killed in any call of the restore: the ranks that it serves
 * cannot go on, or have all that they need of it; the others end with them.
 * What it had is gone, and the next restore goes back to what is on disk. */
static void test_agent_killed(struct scene *scene, struct ends *e, int at)
{
	struct scene_of_nodes s = well;
	char job[16];
	int r;

	s.ends = e;
	(void)snprintf(job, sizeof(job), "killed-%d", at);
	save_in_places(scene, job);
	s.culprit = at % 2 ? 1 : 2;
	s.kill_at = at;
	s.victim = scene->nodes[1].agent;
	r = load_alike(scene, job, &s, 12);
	CHECK(!r || r == -ECONNRESET, "killed in call %d: %d", at, r);
	CHECK(waitpid(s.victim, NULL, 0) == s.victim);
	scene->nodes[1].agent = -1;
	scene_start_agent(&scene->nodes[1]);
	s.culprit = -1;
	r = load_alike(scene, job, &s, 10);
	CHECK(!r, "%d", r);
	restart(scene, 0, SIGKILL);
}

int main(int argc, char **argv)
{
	struct ends *ends = mmap(NULL, sizeof(*ends), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct scene scene, nodes[NODES];

	CHECK(ends != MAP_FAILED);
	scene_open(&scene, argc, argv);
	scene_add_nodes(&scene, nodes, NODES, true);
	test_places(&scene, ends);
	test_written(&scene, ends);
	test_flushed(&scene);
	test_slow(&scene, ends);
	test_old_run(&scene, ends);
	for (int at = 1; at <= 22; at += 3)
		test_agent_killed(&scene, ends, at);
	scene_close(&scene);
	CHECK(!munmap(ends, sizeof(*ends)));
	return 0;
}
