/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories of a job on two or three nodes: lives that end anywhere,
 * their ranks killed, and between them agents that are killed, or started anew,
 * so that a node has lost its memory. Each restore is compared with what was
 * saved: it is of one step, byte for byte, the same on all ranks, on whatever
 * ranks, and not older than what cannot have been lost. In some of them each
 * rank has all: then nothing is lost that any node has on which a job goes on.
 * $SK_SEED says which is the first, $SK_CASES how many. Arguments: path of
 * shardkeepd; "shared": the nodes have one store.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "fault-os.h"
#include "libclient/restore/common.h"
#include "mesh-comm.h"

#define NODES 3
#define RANKS 4
#define ROWS 37
#define LIVES 6
#define CASES 8

/* Of those that are forked next; each joins its copy. */
static struct mesh_comm links;

/* A step, and the life that wrote it; what is later is newer. Where lives went
 * on without a node, its run tells, which all nodes' agents number. */
struct mark {
	int life;
	int64_t step;		/* 0: none */
	uint64_t run;		/* of a job whose ranks have all in common */
};

/* What a life is to do, and then what it found; its processes share it. */
struct life {
	int world, node_of[RANKS];
	int64_t steps;		/* that all its ranks take */
	bool further[RANKS];	/* these one more: nodes are a step apart; */
	bool begins[RANKS];	/* and these begin it, and are killed */
	bool durable;		/* the last that all take goes to the disks */
	int nodes;		/* that have ranks */
	uint64_t run;
	int result[RANKS];
	struct mark got[RANKS];
};

struct story {
	uint64_t seed;
	int life;
	struct mark least;	/* what cannot have been lost */
	struct mark durable;	/* the same of the disks */
	bool common;		/* each rank has all, and nothing of its own: */
	struct mark has[NODES];	/* what each node's memory has of it */
	struct life *lives;
};

static uint64_t random_state;

static int below(int n)
{
	random_state = random_state * 6364136223846793005u +
		       1442695040888963407u;
	return (int)((random_state >> 33) % (unsigned)n);
}

/* Values tell which life wrote a step: one that is taken again after going
 * back has others. */
static int64_t values(struct mark m)
{
	return m.step * LIVES + m.life;
}

static bool is_older(struct mark a, struct mark b)
{
	if (a.run != b.run)
		return a.run < b.run;
	if (a.run)
		return a.step < b.step;
	return a.life != b.life ? a.life < b.life : a.step < b.step;
}

/* ---- a life ---- */

static void describe(struct rank *rank, bool common)
{
	static const char *const names[] = { "wq", "wk", "norm" };
	struct sk_mesh *mesh;

	if (!common) {
		rank_model(rank, ROWS);
		return;
	}
	mesh = mesh_of(rank->world, 0, NULL, NULL);
	for (int i = 0; i < 3; i++)
		rank_tensor(rank, &(struct sk_tensor){
			.name = names[i], .dtype = SK_F32, .ndim = 2,
			.shape = { ROWS + i, 300 }, .mesh = i ? mesh : NULL,
			.placements = { SK_REPLICATE } }, 0xee);
	sk_mesh_release(mesh);
}

/* All of it is what one life wrote as that step. */
static struct mark find_writer(struct rank *rank, const struct story *story,
			       const struct sk_report *report)
{
	int owner = rank->rank < report->world ? rank->rank : -1;
	struct mark m = { story->life - 1, report->step };

	while (m.life >= 0 && rank_wrong(rank, values(m), owner))
		m.life--;
	CHECK(m.life >= 0, "seed %llu, life %d, rank %d: step %lld is as "
	      "nobody wrote it", (unsigned long long)story->seed, story->life,
	      rank->rank, (long long)m.step);
	return m;
}

static void take(struct rank *rank, struct mark m, bool whole)
{
	struct sk_snapshot_options o = { .wait_ms = 60000 };

	rank_write(rank, values(m));
	CHECK(!sk_snapshot(rank->state, m.step, &o), "%s", sk_error());
	if (!whole)
		return;
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_wait(rank->state, m.step, SK_SEALED, 60000), "%s",
	      sk_error());
}

static void live(struct rank *rank)
{
	const struct story *story = rank->arg;
	struct life *life = &story->lives[story->life];
	struct sk_report report = { 0 };
	struct mark m = { 0 };
	struct sk_comm comm;
	int r;

	describe(rank, story->common);
	mesh_comm_join(&links, rank->rank, &comm);
	r = sk_restore(rank->state, SK_LATEST, &comm, NULL, &report);
	CHECK(!r || r == -ENOENT, "seed %llu, life %d, rank %d: %d: %s",
	      (unsigned long long)story->seed, story->life, rank->rank, r,
	      sk_error());
	if (!r)
		m = find_writer(rank, story, &report);
	m.run = story->common ? report.run : 0;
	if (!rank->rank)
		life->run = rank->state->run;
	life->result[rank->rank] = r;
	life->got[rank->rank] = m;
	m.life = story->life;
	for (int64_t i = 0; i < life->steps; i++) {
		m.step++;
		take(rank, m, true);
	}
	if (life->durable) {
		CHECK(!sk_flush(rank->state, m.step), "%s", sk_error());
		CHECK(!sk_wait(rank->state, m.step, SK_WRITTEN, 60000), "%s",
		      sk_error());
	}
	m.step++;
	if (life->further[rank->rank] || life->begins[rank->rank])
		take(rank, m, life->further[rank->rank]);
	rank_ready(rank);
}

/* What any of the nodes has, on which the job goes on. */
static struct mark newest_of(const struct story *story, int nodes)
{
	struct mark newest = { 0 };

	for (int i = 0; i < nodes; i++)
		if (is_older(newest, story->has[i]))
			newest = story->has[i];
	return newest;
}

static void note_memory(struct story *story, const struct life *life)
{
	for (int i = 0; i < life->nodes && life->steps; i++)
		story->has[i] = (struct mark){
			story->life, life->got[0].step + life->steps,
			life->run };
}

/* All ranks the same, and nothing that is older than it need be. */
static void check(struct story *story)
{
	const struct life *life = &story->lives[story->life];
	const struct mark *got = life->got;

	if (story->common)
		story->least = newest_of(story, life->nodes);
	for (int i = 0; i < life->world; i++)
		CHECK(life->result[i] == life->result[0] &&
		      got[i].life == got[0].life && got[i].step == got[0].step,
		      "seed %llu, life %d: rank %d has step %lld of life %d, "
		      "rank 0 step %lld of life %d",
		      (unsigned long long)story->seed, story->life, i,
		      (long long)got[i].step, got[i].life,
		      (long long)got[0].step, got[0].life);
	CHECK(!is_older(got[0], story->least), "seed %llu, life %d: step "
	      "%lld of life %d is restored, and there was step %lld of life "
	      "%d", (unsigned long long)story->seed, story->life,
	      (long long)got[0].step, got[0].life,
	      (long long)story->least.step, story->least.life);
	if (!life->result[0])
		story->least = got[0];
	if (life->steps)
		story->least = (struct mark){ story->life,
					      got[0].step + life->steps };
	if (life->durable)
		story->durable = story->least;
	note_memory(story, life);
}

/* ---- a story ---- */

/* Each node has ranks: nobody asks one that has none. Where each has all, some
 * may be left out. */
static void draw(struct life *life, int nodes, bool common)
{
	if (common && !below(3))
		nodes = 1 + below(nodes);
	*life = (struct life){ .world = nodes + below(RANKS - nodes + 1),
			       .steps = below(4), .nodes = nodes };
	for (int i = 0; i < life->world; i++) {
		life->node_of[i] = i < nodes ? i : below(nodes);
		life->further[i] = !below(3);
		life->begins[i] = !life->further[i] && !below(3);
	}
	life->durable = life->steps && !below(3);
}

/* An agent that is killed has lost its memory; one that is told to stop has
 * written what is needed before, or says that it cannot, where a rank has begun
 * what others have copies of. */
static void end_agents(struct scene *scene, struct story *story, int nodes)
{
	for (int i = 0; i < nodes; i++) {
		struct scene *node = &scene->nodes[i];
		int what = below(6);

		if (what > 1)
			continue;
		what *= !story->common;
		scene_stop_agent(node, what ? SIGTERM : SIGKILL);
		scene_start_agent(node);
		if (!what)
			story->least = story->durable;
		story->has[i] = (struct mark){ 0 };
	}
	scene->agent = scene->nodes[0].agent;
}

static void tell(struct scene *scene, struct story *story)
{
	char job[32];
	int nodes;

	random_state = story->seed * 0x9e3779b97f4a7c15u + 5;
	nodes = 2 + below(NODES - 1);
	story->least = story->durable = (struct mark){ 0 };
	memset(story->has, 0, sizeof(story->has));
	(void)snprintf(job, sizeof(job), "random-%llu",
		       (unsigned long long)story->seed);
	for (story->life = 0; story->life < LIVES; story->life++) {
		struct life *life = &story->lives[story->life];

		draw(life, nodes, story->common);
		/* What all have, each keeps, or each node. */
		if (story->common)
			scene->job_flags = below(2) ? SK_JOB_NODE_REPLICAS : 0;
		scene->node_of = life->node_of;
		CHECK(!mesh_comm_new(&links, life->world));
		scene_ranks_killed(scene, job, life->world, live, story);
		mesh_comm_free(&links);
		check(story);
		end_agents(scene, story, nodes);
	}
}

int main(int argc, char **argv)
{
	const uint32_t kept[] = { SK_JOB_NO_REPLICAS, 0, SK_JOB_NODE_REPLICAS };
	const char *cases = getenv("SK_CASES"), *first = getenv("SK_SEED");
	uint64_t n = cases ? strtoull(cases, NULL, 10) :
			     1 + CASES / sk_fault_every();
	struct scene scene, nodes[NODES];
	struct story story = { .seed = first ? strtoull(first, NULL, 10) : 1 };

	story.lives = mmap(NULL, LIVES * sizeof(*story.lives),
			   PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(story.lives != MAP_FAILED);
	scene_open(&scene, argc > 2 ? 2 : argc, argv);
	scene_add_nodes(&scene, nodes, NODES,
			argc < 3 || strcmp(argv[2], "shared") != 0);
	/* One that is restored, and two that others have not. */
	for (int i = 0; i < NODES; i++)
		nodes[i].slots = 3;
	for (; n; n--, story.seed++) {
		/* What all have, each keeps, one, or one of each node. */
		scene.job_flags = kept[story.seed % 3];
		story.common = story.seed % 2 &&
			       scene.job_flags != SK_JOB_NO_REPLICAS;
		tell(&scene, &story);
	}
	scene_close(&scene);
	CHECK(!munmap(story.lives, LIVES * sizeof(*story.lives)));
	return 0;
}
