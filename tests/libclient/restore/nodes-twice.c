/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of two nodes that dies, and dies again before its next snapshot is
 * whole. Memory has room for the slots of one life, and there is no store: what
 * the first restart went on from must still be there for the second one.
 * Argument: path of shardkeepd.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>

#include "libclient/restore/common.h"
#include "mesh-comm.h"

#define RANKS 2
#define ROWS 1800	/* of 900 F32: 3.1 MiB a rank */
#define LAST 9		/* that both have sealed */

/* Of those that are forked next; each joins its copy. */
static struct mesh_comm links;

/* What a life restores, and the last step that each rank seals then. */
struct life {
	int result;
	int64_t got;
	int64_t asked;		/* that step; 0: the newest */
	int64_t sealed[RANKS];	/* 0: none */
};

static void live(struct rank *rank)
{
	const struct life *life = rank->arg;
	struct sk_report report = { 0 };
	struct sk_comm comm;
	int r;

	rank_model(rank, ROWS);
	mesh_comm_join(&links, rank->rank, &comm);
	r = sk_restore(rank->state, life->asked ? life->asked : SK_LATEST,
		       &comm, NULL, &report);
	CHECK(r == life->result, "rank %d: %d: %s", rank->rank, r, sk_error());
	CHECK(r < 0 || (report.step == life->got && !report.bytes_disk),
	      "rank %d: step %lld, not %lld", rank->rank,
	      (long long)report.step, (long long)life->got);
	CHECK(r < 0 || !rank_wrong(rank, report.step, rank->rank), "rank %d",
	      rank->rank);
	for (int64_t step = life->got + 1; step <= life->sealed[rank->rank];
	     step++) {
		rank_write(rank, step);
		rank_snapshot(rank, step, SK_SEALED);
	}
	rank_ready(rank);
}

static void lives(struct scene *scene, const char *job,
		  const struct life *life, int n)
{
	for (int i = 0; i < n; i++) {
		CHECK(!mesh_comm_new(&links, RANKS));
		scene_ranks_killed(scene, job, RANKS, live, &life[i]);
		mesh_comm_free(&links);
	}
}

#define LIVES(scene, job, ...) do {					\
	const struct life lived[] = { __VA_ARGS__ };			\
									\
	lives(scene, job, lived, (int)(sizeof(lived) / sizeof(lived[0])));\
} while (0)

/* The first life of all, which ends a step apart. */
#define FIRST { .result = -ENOENT, .got = LAST - 2,			\
		.sealed = { LAST + 1, LAST } }

/* Agents of its own for each. */
static void renew(struct scene *scene, uint32_t slots, const char *memory)
{
	for (int i = 0; i < scene->n_nodes; i++) {
		struct scene *node = &scene->nodes[i];

		scene_stop_agent(node, SIGTERM);
		node->store[0] = 0;
		node->slots = slots;
		node->memory = memory;
		scene_start_agent(node);
	}
	scene->agent = scene->nodes[0].agent;
}

static void all(struct scene *scene, uint32_t slots, const char *memory)
{
	renew(scene, slots, memory);
	LIVES(scene, "at-once", FIRST, { .got = LAST }, { .got = LAST },
	      { .got = LAST });
	renew(scene, slots, memory);
	LIVES(scene, "one-ahead", FIRST,
	      { .got = LAST, .sealed = { LAST + 1, 0 } },
	      { .got = LAST, .sealed = { 0, LAST + 1 } },
	      { .got = LAST });
	/* A step that was asked for goes only where nothing else does. */
	renew(scene, slots, memory);
	LIVES(scene, "named", FIRST, { .got = LAST, .asked = LAST },
	      { .got = LAST, .asked = LAST }, { .got = LAST },
	      { .got = LAST });
	renew(scene, slots, memory);
	LIVES(scene, "goes-on-named", FIRST,
	      { .got = LAST, .asked = LAST,
		.sealed = { LAST + 9, LAST + 9 } },
	      { .got = LAST + 9 });
	renew(scene, slots, memory);
	LIVES(scene, "goes-on", FIRST,
	      { .got = LAST, .sealed = { LAST + 9, LAST + 9 } },
	      { .got = LAST + 9 });
}

int main(int argc, char **argv)
{
	struct scene scene, nodes[2];

	scene_open(&scene, argc, argv);
	scene_add_nodes(&scene, nodes, 2, true);
	/* An image is 3.1 MiB. */
	all(&scene, 2, "7M");
	all(&scene, 2, "11M");
	all(&scene, 3, "11M");
	scene_close(&scene);
	return 0;
}
