/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on GPUs of ranks that come back on other nodes: what their own node
 * does not have comes out of the memory of the others, through windows of host
 * memory and page-locked buffers, to their devices; bit for bit.
 */
#include <stdio.h>

#include "base/util.h"
#include "libclient/gpu-rank.h"
#include "mesh-comm.h"

#define NODES 3
#define STEP 7
#define PITCH 150	/* elements between rows of 100 */

/* Of those that are forked next; each joins its copy. */
static struct mesh_comm links;

/* How a side has the model: along which dimension it is cut, where ranks are,
 * and which device the first one is on. */
struct side {
	int world, dim, device;
	int node_of[4];
};

static const struct trip {
	struct side from, to;
	uint32_t job_flags;
} trips[] = {
	/* All of each rank's is on the other node. */
	{ { 4, 0, 0, { 0, 0, 1, 1 } }, { 4, 0, 1, { 1, 1, 0, 0 } }, 0 },
	/* Another mesh; the third node has nothing, and verifies. */
	{ { 4, 0, 0, { 0, 0, 1, 1 } }, { 3, 1, 1, { 0, 1, 2 } },
	  SK_JOB_VERIFY },
	{ { 3, 1, 1, { 0, 1, 2 } }, { 4, 0, 0, { 2, 2, 1, 0 } }, 0 },
	/* One rank from one other; parts of several MiB. */
	{ { 1, 0, 0, { 0 } }, { 2, 1, 1, { 1, 0 } }, 0 },
};

static void add(struct gpu_rank *g, struct sk_tensor t, int device)
{
	t.device = device % g->devices;
	gpu_add(g, &t, rank_bytes(g->rank, &t), 0xee);
}

/* A matrix and an odd row of bytes on different devices, rows with gaps, what
 * all ranks have alike, and a tensor of the host among them. */
static void begin(struct gpu_rank *g, struct rank *rank,
		  const struct side *side)
{
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);
	struct sk_tensor w = {
		.name = "w", .dtype = SK_F32, .ndim = 2,
		.shape = { 2000, 1000 }, .mesh = mesh,
		.placements = { SK_SHARD(side->dim) } };
	struct sk_tensor rows = {
		.name = "rows", .dtype = SK_F32, .ndim = 2,
		.shape = { 1300, 100 }, .mesh = mesh,
		.placements = { SK_SHARD(0) } };
	struct sk_tensor host = {
		.name = "host", .dtype = SK_F64, .ndim = 1,
		.shape = { 70001 }, .mesh = mesh,
		.placements = { SK_SHARD(0) } };

	gpu_begin(g, rank, rank->rank + side->device);
	add(g, w, g->device);
	add(g, (struct sk_tensor){
		.name = "odd", .dtype = SK_U8, .ndim = 1,
		.shape = { 3000001 }, .mesh = mesh,
		.placements = { SK_SHARD(0) } }, g->device + 1);
	add(g, (struct sk_tensor){
		.name = "norm", .dtype = SK_BF16, .ndim = 1,
		.shape = { 5000 }, .mesh = mesh,
		.placements = { SK_REPLICATE } }, g->device);
	rows.device = g->device;
	rows.strides[0] = PITCH;
	rows.strides[1] = 1;
	gpu_add(g, &rows, rank_bytes(rank, &rows) / 100 * PITCH, 0xee);
	gpu_add_host(g, &host, rank_bytes(rank, &host), 0xee);
	sk_mesh_release(mesh);
}

static int restore(struct rank *rank, struct sk_report *ret_report)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MEMORY_ONLY,
					.timeout_ms = 60000 };
	struct sk_comm comm;

	mesh_comm_join(&links, rank->rank, &comm);
	return sk_restore(rank->state, SK_LATEST, &comm, &o, ret_report);
}

static void save(struct rank *rank)
{
	const struct trip *trip = rank->arg;
	struct gpu_rank g;

	begin(&g, rank, &trip->from);
	CHECK(restore(rank, NULL) == -ENOENT, "%s", sk_error());
	gpu_fill(&g, STEP);
	CHECK(!gpu_snapshot(&g, STEP, 0), "%s", sk_error());
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_wait(rank->state, STEP, SK_SEALED, 60000), "%s",
	      sk_error());
}

/* Whether its node has what there is. */
static bool has_all(const struct trip *trip, int rank)
{
	return trip->from.world == 1 &&
	       trip->to.node_of[rank] == trip->from.node_of[0];
}

static void load(struct rank *rank)
{
	const struct trip *trip = rank->arg;
	struct sk_report report;
	struct gpu_rank g;
	uint64_t pageable;

	begin(&g, rank, &trip->to);
	pageable = gpu_count(&g, "pageable");
	CHECK(!restore(rank, &report), "%s", sk_error());
	CHECK(gpu_count(&g, "pageable") == pageable);
	CHECK(!gpu_wrong(&g, STEP, -1), "rank %d of %d", rank->rank,
	      rank->world);
	CHECK(has_all(trip, rank->rank) == !report.bytes_remote,
	      "%llu bytes came to rank %d",
	      (unsigned long long)report.bytes_remote, rank->rank);
}

static void run_side(struct scene *scene, const char *job,
		     const struct trip *trip, const struct side *side,
		     rank_fn fn)
{
	scene->node_of = side->node_of;
	scene->job_flags = trip->job_flags;
	CHECK(!mesh_comm_new(&links, side->world));
	scene_ranks(scene, job, side->world, fn, trip);
	mesh_comm_free(&links);
}

int main(int argc, char **argv)
{
	struct scene scene, nodes[NODES];
	struct trainer_cuda t;

	setenv("VCUDA_DEVICES", "2", 0);
	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	scene_open(&scene, argc, argv);
	scene_add_nodes(&scene, nodes, NODES, true);
	for (size_t i = 0; i < SK_ARRAY_SIZE(trips); i++) {
		char job[32];

		(void)snprintf(job, sizeof(job), "trip-%d", (int)i);
		run_side(&scene, job, &trips[i], &trips[i].from, save);
		run_side(&scene, job, &trips[i], &trips[i].to, load);
	}
	scene_close(&scene);
	return 0;
}
