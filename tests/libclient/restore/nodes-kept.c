/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several nodes keep of what their ranks have in common: each rank all,
 * each node once (SK_JOB_NODE_REPLICAS), or all together once. A node is lost,
 * and what is left in memory restores, or does not; and memory is as it is
 * said to be.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "libclient/restore/common.h"
#include "mesh-comm.h"
#include "support/agent.h"
#include "support/await.h"
#include "tensor/dtype.h"

#define NODES 3
#define RANKS_MOST 6
#define WHOLES 6
#define WHOLE_BYTES (200u * 900 * 4)	/* of each of those that all have */
#define ROW_BYTES (360u * 900 * 4)	/* of what each row of a mesh has */
#define SLOTS 2
#define OTHERS 4096u			/* of a rank: what is its own */
#define HEADERS (64u << 10)

/* Of those that are forked next; each joins its copy. */
static struct mesh_comm links;

/* Where ranks are, and of which a row of the mesh is on one node. */
struct place {
	const char *name;
	int world;
	int node_of[RANKS_MOST];
	int64_t rows, columns;
	int32_t mesh[RANKS_MOST];
};

static const struct place places[] = {
	{ "blocks", 4, { 0, 0, 1, 1 }, 2, 2, { 0, 1, 2, 3 } },
	{ "turns", 4, { 0, 1, 0, 1 }, 2, 2, { 0, 2, 1, 3 } },
	{ "uneven", 4, { 0, 1, 1, 1 }, 2, 1, { 0, 2 } },
	{ "three", 6, { 0, 1, 2, 2, 1, 0 }, 3, 2, { 5, 0, 4, 1, 3, 2 } },
};

/* Where they come back when the other nodes are no more. */
static const struct place shrunk[] = {
	{ "shrunk-two", 2, { 0, 0 }, 1, 2, { 1, 0 } },
	{ "shrunk-three", 3, { 0, 0, 0 }, 3, 1, { 0, 1, 2 } },
};

/* What ranks saw; they share it. */
struct seen {
	int results[RANKS_MOST];
	uint64_t node_bytes[NODES];	/* of one slot of each rank */
	uint64_t remote, disk, verified;
};

struct scene_of_kept {
	const struct place *at;
	int64_t steps[2];	/* from, to: saved after the restore */
	int64_t want;		/* to restore; 0: there is none */
	struct seen *seen;
	bool own;		/* ranks have something of their own, too */
	bool unlike;		/* rank 1 describes another tensor by a name */
	uint32_t flags;		/* of the restore */
};

static void describe(struct rank *rank, const struct scene_of_kept *s)
{
	const struct place *at = s->at;
	struct sk_tensor t = { .dtype = SK_F32, .ndim = 2,
			       .shape = { 200, 900 } };
	char names[WHOLES][8];

	for (int i = 0; i < WHOLES; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "whole%d", i);
		t.name = names[i];
		t.shape[0] = s->unlike && rank->rank == 1 && !i ? 201 : 200;
		(void)rank_tensor(rank, &t, 0xee);
	}
	t.name = "row";
	t.shape[0] = 360;
	t.mesh = mesh_of(at->rows, at->columns, at->mesh, NULL);
	t.placements[0] = SK_REPLICATE;
	t.placements[1] = SK_SHARD(0);
	if (rank_bytes(rank, &t))
		(void)rank_tensor(rank, &t, 0xee);
	sk_mesh_release((struct sk_mesh *)t.mesh);
	CHECK(!s->own || !sk_state_blob_local(rank->state, "rng",
			     rank_memory(OTHERS, rank->rank), OTHERS), "%s",
	      sk_error());
}

static int restore(struct rank *rank, uint32_t flags,
		   struct sk_report *ret_report)
{
	struct sk_restore_options o = {
		.flags = SK_RESTORE_MEMORY_ONLY | flags, .timeout_ms = 20000 };
	struct sk_comm comm;

	mesh_comm_join(&links, rank->rank, &comm);
	return sk_restore(rank->state, SK_LATEST, &comm, &o, ret_report);
}

/* Of the test that has them all lost. */
static bool is_lost(const struct scene_of_kept *s, const struct rank *rank)
{
	return !s->at->node_of[rank->rank];
}

static void check_restored(struct rank *rank, const struct scene_of_kept *s,
			   const struct sk_report *report)
{
	CHECK(report->step == s->want, "%s, rank %d: step %lld", s->at->name,
	      rank->rank, (long long)report->step);
	CHECK(!rank_wrong(rank, report->step, report->missing ? -1 :
							rank->rank),
	      "%s, rank %d", s->at->name, rank->rank);
	CHECK(report->missing == (s->own && s->flags && is_lost(s, rank)),
	      "%s, rank %d: %u", s->at->name, rank->rank, report->missing);
	__atomic_fetch_add(&s->seen->remote, report->bytes_remote,
			   __ATOMIC_RELAXED);
	__atomic_fetch_add(&s->seen->disk, report->bytes_disk,
			   __ATOMIC_RELAXED);
	__atomic_fetch_add(&s->seen->verified, report->bytes_verified,
			   __ATOMIC_RELAXED);
}

static void live(struct rank *rank)
{
	const struct scene_of_kept *s = rank->arg;
	struct sk_report report;
	int r;

	describe(rank, s);
	r = restore(rank, s->flags, &report);
	s->seen->results[rank->rank] = r;
	CHECK(r >= 0 || r == -ENOENT, "%s", sk_error());
	if (r >= 0)
		check_restored(rank, s, &report);
	for (int64_t step = s->steps[0]; step <= s->steps[1]; step++) {
		rank_write(rank, step);
		rank_snapshot(rank, step, SK_SEALED);
	}
	if (s->steps[1])
		__atomic_fetch_add(&s->seen->node_bytes[
					   s->at->node_of[rank->rank]],
				   rank->state->slot_bytes / SLOTS,
				   __ATOMIC_RELAXED);
}

/* A life: all find @want, or none anything, and then take steps. */
static void run(struct scene *scene, const char *job,
		const struct scene_of_kept *s)
{
	int want = s->want ? 0 : -ENOENT;

	*s->seen = (struct seen){ .remote = 0 };
	scene->node_of = s->at->node_of;
	CHECK(!mesh_comm_new(&links, s->at->world));
	scene_ranks(scene, job, s->at->world, live, s);
	mesh_comm_free(&links);
	scene->node_of = NULL;
	for (int i = 0; i < s->at->world; i++)
		CHECK(s->seen->results[i] == want, "%s, job %s: rank %d: %d",
		      s->at->name, job, i, s->seen->results[i]);
	CHECK(!s->seen->disk);
}

static void lose(struct scene *scene, int node)
{
	scene_stop_agent(&scene->nodes[node], SIGKILL);
	scene_start_agent(&scene->nodes[node]);
	scene->agent = scene->nodes[0].agent;
}

/* ---- memory ---- */

static uint64_t most_of(const struct place *at, int node)
{
	uint64_t ranks = 0;

	for (int i = 0; i < at->world; i++)
		ranks += at->node_of[i] == node;
	return WHOLES * WHOLE_BYTES + ROW_BYTES + ranks * (OTHERS + HEADERS);
}

/* What a node's ranks have in common, it has once, and all of it. */
static void check_once(const struct scene_of_kept *s)
{
	for (int node = 0; node < NODES; node++) {
		uint64_t bytes = s->seen->node_bytes[node];

		CHECK(!bytes || (bytes > WHOLES * WHOLE_BYTES + ROW_BYTES &&
				 bytes <= most_of(s->at, node)),
		      "%s, node %d: %llu", s->at->name, node,
		      (unsigned long long)bytes);
	}
}

static void check_by_each(const struct scene_of_kept *s)
{
	uint64_t all = 0, whole = WHOLES * WHOLE_BYTES + ROW_BYTES;

	for (int node = 0; node < NODES; node++)
		all += s->seen->node_bytes[node];
	CHECK(all > (unsigned)s->at->world * WHOLES * (uint64_t)WHOLE_BYTES);
	CHECK(s->at->rows * (int64_t)whole < (int64_t)all);
}

/* ---- scenes ---- */

/* Each node has all; whichever is lost, nothing is. */
static void test_once_per_node(struct scene *scene, const struct place *at,
			       struct seen *seen)
{
	struct scene_of_kept s = { at, { 1, 2 }, 0, seen };

	scene->job_flags = SK_JOB_NODE_REPLICAS;
	run(scene, at->name, &s);
	check_once(&s);
	for (int node = 0; node < (int)at->rows; node++) {
		lose(scene, node);
		s.want = s.steps[1];
		s.steps[0] = s.want + 1;
		s.steps[1] = s.want + 2;
		run(scene, at->name, &s);
		CHECK(seen->remote >= WHOLES * WHOLE_BYTES);
		check_once(&s);
	}
	/* And nothing need be sent where none is. */
	s.want = s.steps[1];
	s.steps[1] = 0;
	run(scene, at->name, &s);
	CHECK(!seen->remote, "%llu", (unsigned long long)seen->remote);
	/* Those of a node share out who verifies what, each part once. */
	CHECK(seen->verified == (uint64_t)at->rows *
				(WHOLES * WHOLE_BYTES + ROW_BYTES), "%s: %llu",
	      at->name, (unsigned long long)seen->verified);
}

/* Ranks come back elsewhere: what they take from then on, their nodes have. */
static void test_moved(struct scene *scene, struct seen *seen)
{
	struct scene_of_kept s = { &places[0], { 1, 1 }, 0, seen };

	run(scene, "moved", &s);
	s = (struct scene_of_kept){ &places[1], { 2, 2 }, 1, seen };
	run(scene, "moved", &s);
	check_once(&s);
	lose(scene, 0);
	s = (struct scene_of_kept){ &places[0], { 3, 3 }, 2, seen };
	run(scene, "moved", &s);
	check_once(&s);
	lose(scene, 1);
	s = (struct scene_of_kept){ &places[0], { 4, 4 }, 3, seen };
	run(scene, "moved", &s);
	check_once(&s);
}

/* What a rank has alone goes with its node, and what has it not is no snapshot
 * of this job; unless who asks can do without, or asks for nothing of it. */
static void test_own(struct scene *scene, struct seen *seen)
{
	struct scene_of_kept s = { &places[0], { 1, 1 }, 0, seen, true };

	run(scene, "own", &s);
	lose(scene, 0);
	s.steps[1] = 0;
	run(scene, "own", &s);
	s.want = 1;
	s.flags = SK_RESTORE_MISSING_OK;
	run(scene, "own", &s);
	s.own = false;
	s.flags = SK_RESTORE_EXTRA_OK;
	run(scene, "own", &s);
}

/* So it is where the job goes on on one of its nodes, with a rank that was on
 * another one. */
static void test_own_shrunk(struct scene *scene, struct seen *seen)
{
	struct scene_of_kept s = { &places[0], { 1, 1 }, 0, seen, true };

	run(scene, "own-shrunk", &s);
	s.at = &shrunk[1];
	s.steps[1] = 0;
	run(scene, "own-shrunk", &s);
	s.at = &shrunk[0];
	s.want = 1;
	run(scene, "own-shrunk", &s);
}

/* Ranks that are there do not agree, and what is lost cannot tell which of them
 * is right. */
static void test_unlike(struct scene *scene, struct seen *seen)
{
	struct scene_of_kept s = { &places[0], { 1, 1 }, 0, seen };

	s.unlike = true;
	run(scene, "unlike", &s);
	lose(scene, 1);
	s = (struct scene_of_kept){ &places[0], { 1, 0 }, 0, seen };
	run(scene, "unlike", &s);
}

/* The rest of the job is gone for good: what is left goes on, on fewer ranks,
 * at what its node has. A node that comes back has what is older. */
static void test_shrunk(struct scene *scene, struct seen *seen)
{
	for (int i = 0; i < (int)SK_ARRAY_SIZE(shrunk); i++) {
		struct scene_of_kept s = { &places[0], { 1, 2 }, 0, seen };

		run(scene, shrunk[i].name, &s);
		s = (struct scene_of_kept){ &shrunk[i], { 3, 4 }, 2, seen };
		run(scene, shrunk[i].name, &s);
		check_once(&s);
		s = (struct scene_of_kept){ &shrunk[!i], { 1, 0 }, 4, seen };
		run(scene, shrunk[i].name, &s);
		s = (struct scene_of_kept){ &places[1], { 5, 5 }, 4, seen };
		run(scene, shrunk[i].name, &s);
		check_once(&s);
	}
}

static pid_t agent_of(struct scene *node)
{
	pid_t pid = 0;

	AWAIT((pid = agent_of_keeper(node->agent)) > 0, "no agent");
	return pid;
}

/* The same where that node's agent is killed as well, and the next one has its
 * memory: it knows no less of who was elsewhere. */
static void test_revived(struct scene *scene, struct seen *seen)
{
	struct scene *node = &scene->nodes[0];
	struct scene_of_kept s = { &places[0], { 1, 2 }, 0, seen };
	pid_t agent;

	scene_stop_agent(node, SIGTERM);
	node->keeper = true;
	scene_start_agent(node);
	scene->agent = node->agent;
	run(scene, "revived", &s);
	agent = agent_of(node);
	CHECK(!kill(agent, SIGKILL));
	AWAIT(agent_of(node) != agent, "still the same agent");
	s = (struct scene_of_kept){ &shrunk[0], { 3, 4 }, 2, seen };
	run(scene, "revived", &s);
}

/* Beside it the other two: each rank keeps all, and all together once. */
static void test_others(struct scene *scene, struct seen *seen)
{
	struct scene_of_kept s = { &places[0], { 1, 2 }, 0, seen };

	scene->job_flags = 0;
	run(scene, "each", &s);
	check_by_each(&s);
	scene->job_flags = SK_JOB_NO_REPLICAS;
	run(scene, "together", &s);
	CHECK(seen->node_bytes[0] + seen->node_bytes[1] <=
	      most_of(s.at, 0) + most_of(s.at, 1) -
	      WHOLES * WHOLE_BYTES - ROW_BYTES);
	lose(scene, 1);
	s.steps[1] = 0;
	run(scene, "together", &s);
	scene->job_flags = 0;
	s.want = 2;
	run(scene, "each", &s);
	CHECK(seen->remote);
}

int main(int argc, char **argv)
{
	struct scene scene, nodes[NODES];
	struct seen *seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(seen != MAP_FAILED);
	scene_open(&scene, argc, argv);
	scene_add_nodes(&scene, nodes, NODES, true);
	for (size_t i = 0; i < SK_ARRAY_SIZE(places); i++)
		test_once_per_node(&scene, &places[i], seen);
	test_moved(&scene, seen);
	test_own(&scene, seen);
	test_own_shrunk(&scene, seen);
	test_unlike(&scene, seen);
	test_shrunk(&scene, seen);
	test_others(&scene, seen);
	test_revived(&scene, seen);
	scene_close(&scene);
	CHECK(!munmap(seen, sizeof(*seen)));
	return 0;
}
