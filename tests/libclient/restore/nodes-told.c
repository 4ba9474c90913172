/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever fails on one rank of a restore over several nodes, and wherever: all
 * ranks end alike, and soon, though the comm has no way to break off. Each
 * allocation in turn, each system call, and calls of the driver and of NCCL.
 * With $SHARDKEEP_LIBNCCL tensors lie on simulated GPUs, one of what two ranks
 * of a node share in host memory on one of them.
 *
 * Arguments: path of shardkeepd, and "memory", "calls", "devices", "agent": on
 * one node, by its agent's comm, or "passed": memory, on nodes that pass on to
 * each other what several want.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "conn/client.h"
#include "fault-alloc.h"
#include "fault-os.h"
#include "libclient/gpu-rank.h"
#include "mesh-comm.h"
#include "sim/trainer-nccl.h"

#define NODES 3
#define RANKS 3
#define ROUNDS_MOST 5000
/* Who waits for a rank that does not come waits so long, and says so. */
#define TIMEOUT_MS 40000u

/* Of those that are forked next; each joins its copy. By the second they
 * compare what came of it. */
static struct mesh_comm links, talk;
static struct sk_comm talking;

static const int home[RANKS] = { 0, 0, 1 }, away[RANKS] = { 1, 1, 0 },
		 together[RANKS] = { 0, 0, 0 }, apart[RANKS] = { 0, 1, 2 };

static bool by_agent;		/* the comm is */
static bool passes;		/* something is passed on */

static bool on_gpus(void)
{
	return getenv("SHARDKEEP_LIBNCCL") != NULL;
}

/* ---- what is saved and restored ---- */

static void add(struct gpu_rank *g, const struct sk_tensor *t, bool on_host)
{
	struct sk_tensor at = *t;

	at.device = g->device;
	if (!on_gpus())
		rank_tensor(g->rank, &at, 0xee);
	else if (on_host)
		gpu_add_host(g, &at, rank_bytes(g->rank, &at), 0xee);
	else
		gpu_add(g, &at, rank_bytes(g->rank, &at), 0xee);
}

/* What rank 1 has, beside rank 0, is on a mesh of its own. */
static struct sk_mesh *other_mesh(int rank)
{
	static const int32_t ranks[] = { 0, 2, 1 };

	return rank == 1 ? mesh_of(1, 0, &ranks[2], NULL) :
			   mesh_of(2, 0, ranks, NULL);
}

static void describe(struct gpu_rank *g, bool load)
{
	struct sk_mesh *mesh = mesh_of(RANKS, 0, NULL, NULL);
	struct sk_mesh *other = other_mesh(g->rank->rank);
	struct sk_tensor w = { .name = "w", .dtype = SK_F32, .ndim = 2,
			       .shape = { 90, 70 }, .mesh = mesh,
			       .placements = { load ? SK_REPLICATE :
						      SK_SHARD(0) } };
	struct sk_tensor v = { .name = "v", .dtype = SK_F64, .ndim = 2,
			       .shape = { 40, 30 },
			       .mesh = load ? other : mesh,
			       .placements = { SK_SHARD(load ? 1 : 0) } };

	add(g, &w, load && g->rank->rank == 1);
	add(g, &v, false);
	sk_mesh_release(mesh);
	sk_mesh_release(other);
}

static void begin(struct gpu_rank *g, struct rank *rank)
{
	*g = (struct gpu_rank){ .rank = rank };
	if (on_gpus())
		gpu_begin(g, rank, rank->rank);
}

static void save(struct rank *rank)
{
	struct sk_restore_options o = { .timeout_ms = TIMEOUT_MS };
	struct sk_comm comm;
	struct gpu_rank g;

	begin(&g, rank);
	describe(&g, false);
	mesh_comm_join(&links, rank->rank, &comm);
	CHECK(sk_restore(rank->state, SK_LATEST, by_agent ? NULL : &comm, &o,
			 NULL) == -ENOENT,
	      "%s", sk_error());
	if (on_gpus())
		gpu_fill(&g, 5);
	else
		rank_write(rank, 5);
	rank_snapshot(rank, 5, SK_SEALED);
}

/* ---- what fails ---- */

/* What all ranks say of a restore. */
struct outcome {
	int32_t result;
	uint32_t ms;
	uint64_t hits;
	uint64_t passed;
};

struct failing {
	const char *name;
	void (*begin)(const struct failing *f, struct gpu_rank *g, uint64_t n);
	uint64_t (*end)(const struct failing *f, struct gpu_rank *g);
	const char *function;
	enum sk_fault_op op;
	unsigned becomes;	/* an errno, or the function's result */
};

static struct sk_fault_os fault;

static void begin_memory(const struct failing *f, struct gpu_rank *g,
			 uint64_t n)
{
	(void)f;
	(void)g;
	sk_fault_alloc_fail(n, 1);
}

static uint64_t end_memory(const struct failing *f, struct gpu_rank *g)
{
	(void)f;
	(void)g;
	return sk_fault_alloc_end(NULL);
}

static void begin_calls(const struct failing *f, struct gpu_rank *g,
			uint64_t n)
{
	(void)g;
	sk_fault_os_forget(&fault);
	sk_fault_os_fail(&fault, f->op, n, 1, (int)f->becomes);
}

static uint64_t end_calls(const struct failing *f, struct gpu_rank *g)
{
	uint64_t hits = sk_fault_os_hits(&fault);

	(void)f;
	(void)g;
	sk_fault_os_forget(&fault);
	return hits;
}

static uint64_t calls_of(const struct failing *f, const struct gpu_rank *g)
{
	struct trainer_nccl nccl;

	if (!strncmp(f->function, "cu", 2))
		return g->cuda.calls(f->function);
	CHECK(!trainer_nccl_open(&nccl, NULL) && nccl.fail);
	return nccl.calls(f->function);
}

static uint64_t calls_before, fails_at;

static void begin_device(const struct failing *f, struct gpu_rank *g,
			 uint64_t n)
{
	struct trainer_nccl nccl;

	calls_before = calls_of(f, g);
	fails_at = n;
	if (!strncmp(f->function, "cu", 2)) {
		g->cuda.fail(f->function, n, f->becomes);
		return;
	}
	CHECK(!trainer_nccl_open(&nccl, NULL));
	nccl.fail(f->function, n, f->becomes);
}

static uint64_t end_device(const struct failing *f, struct gpu_rank *g)
{
	uint64_t calls = calls_of(f, g) - calls_before;

	/* What it was not asked for so often, it is not to fail later. */
	if (calls < fails_at && !strncmp(f->function, "cu", 2))
		g->cuda.fail(f->function, UINT64_MAX, 0);
	return calls >= fails_at;
}

/* ---- together ---- */

static uint64_t now_ms(void)
{
	return sk_os_linux()->now_ns(sk_os_linux()) / 1000000;
}

static void run_once(struct gpu_rank *g, struct sk_comm *base,
		     const struct failing *f, bool fails, uint64_t n,
		     struct outcome *ret)
{
	struct sk_restore_options o = { .timeout_ms = TIMEOUT_MS };
	struct sk_report report = { 0 };
	struct sk_comm nccl = { 0 };
	uint64_t began = now_ms();

	if (on_gpus())
		CHECK(!sk_comm_nccl(g->rank->sk, base, g->rank->rank, RANKS,
				    g->device, &nccl), "%s", sk_error());
	if (fails)
		f->begin(f, g, n);
	ret->result = sk_restore(g->rank->state, 5,
				 by_agent ? NULL : on_gpus() ? &nccl : base,
				 &o, &report);
	ret->passed = report.bytes_passed;
	ret->hits = fails ? f->end(f, g) : 0;
	ret->ms = (uint32_t)(now_ms() - began);
	sk_comm_nccl_free(&nccl);
}

static void check(struct gpu_rank *g, const struct failing *f, int culprit,
		  uint64_t n, const struct outcome *all)
{
	uint64_t passed = 0;

	for (int i = 0; i < RANKS; i++) {
		passed += all[i].passed;
		CHECK(all[i].result == all[0].result, "%s, the %lluth on rank "
		      "%d: rank 0 has %d, rank %d %d: %s", f->name,
		      (unsigned long long)n, culprit, all[0].result, i,
		      all[i].result, sk_error());
		CHECK(all[i].ms < TIMEOUT_MS / 2, "%s, the %lluth on rank %d: "
		      "rank %d took %u ms: %s", f->name, (unsigned long long)n,
		      culprit, i, all[i].ms, sk_error());
	}
	CHECK(all[0].result || !passes == !passed, "%s: %llu bytes", f->name,
	      (unsigned long long)passed);
	if (!all[0].result)
		CHECK(!(on_gpus() ? gpu_wrong(g, 5, -1) :
				    rank_wrong(g->rank, 5, -1)), "%s", f->name);
}

/* Its @n-th fails on that rank; whether there is one. */
static bool fail_one(struct gpu_rank *g, struct sk_comm *base,
		     const struct failing *f, int culprit, uint64_t n)
{
	struct outcome mine = { 0 }, all[RANKS];

	run_once(g, base, f, g->rank->rank == culprit, n, &mine);
	CHECK(!talking.allgather(talking.ctx, &mine, sizeof(mine), all,
				 2 * TIMEOUT_MS));
	check(g, f, culprit, n, all);
	return all[culprit].hits;
}

static void fail_each(struct gpu_rank *g, struct sk_comm *base,
		      const struct failing *f, uint64_t least)
{
	for (int culprit = 0; culprit < RANKS; culprit++) {
		uint64_t n = 1;

		(void)alarm(600);
		while (fail_one(g, base, f, culprit, n))
			CHECK((n += sk_fault_every()) < ROUNDS_MOST);
		/* What ranks say by the agent fits into its messages. */
		CHECK(n > least || (f->op == SK_FAULT_MEMFD_CREATE && n == 1),
		      "%s: only %llu on rank %d", f->name,
		      (unsigned long long)n, culprit);
	}
}

/* Its state, and both comms, of which the restore's cannot be broken off. */
static void come(struct gpu_rank *g, struct rank *rank, struct sk_comm *base)
{
	begin(g, rank);
	describe(g, true);
	mesh_comm_join(&links, rank->rank, base);
	mesh_comm_join(&talk, rank->rank, &talking);
	base->abort = NULL;
}

static void load(struct rank *rank, const struct failing *f, size_t n,
		 uint64_t least)
{
	struct sk_comm base;
	struct gpu_rank g;

	come(&g, rank, &base);
	/* Who is in no run yet can tell the agent's comm nothing. */
	CHECK(!by_agent || !rank_restore(rank, 5, 0, NULL), "%s", sk_error());
	for (size_t i = 0; i < n; i++)
		fail_each(&g, &base, &f[i], least);
}

static void load_memory(struct rank *rank)
{
	const struct failing f = { "allocation", begin_memory, end_memory,
				   NULL, 0, 0 };

	load(rank, &f, 1, 50);
}

/* Once more, by calls that fail. */
static void open_on_fault(struct rank *rank)
{
	struct sk_job job = { .name = rank->job, .rank = rank->rank,
			      .world = RANKS, .flush_every = SK_FLUSH_NEVER };

	sk_state_free(rank->state);
	sk_close(rank->sk);
	sk_fault_os_init(&fault, sk_os_linux());
	CHECK(!sk_open_on(&fault.os, &(struct sk_options){
		.socket = rank->scene->socket, .threads = 1,
		.timeout_ms = 60000 }, &rank->sk), "%s", sk_error());
	CHECK(!sk_state_create(rank->sk, &job, &rank->state), "%s",
	      sk_error());
}

static void load_calls(struct rank *rank)
{
	const struct failing f[] = {
		{ "call", begin_calls, end_calls, NULL, SK_FAULT_ANY, EIO },
		{ "call", begin_calls, end_calls, NULL, SK_FAULT_ANY,
		  EMFILE } };

	open_on_fault(rank);
	load(rank, f, SK_ARRAY_SIZE(f), 20);
}

static void load_by_agent(struct rank *rank)
{
	const struct failing f[] = {
		{ "allocation", begin_memory, end_memory, NULL, 0, 0 },
		{ "memfd", begin_calls, end_calls, NULL,
		  SK_FAULT_MEMFD_CREATE, EMFILE },
		{ "socket", begin_calls, end_calls, NULL, SK_FAULT_SOCKET,
		  EMFILE } };

	open_on_fault(rank);
	load(rank, f, SK_ARRAY_SIZE(f), 2);
}

static void run(struct scene *scene, const int *node_of, rank_fn fn)
{
	scene->node_of = node_of;
	CHECK(!mesh_comm_new(&links, RANKS) && !mesh_comm_new(&talk, RANKS));
	scene_ranks(scene, "told", RANKS, fn, NULL);
	mesh_comm_free(&links);
	mesh_comm_free(&talk);
	scene->node_of = NULL;
}

/* ---- devices ---- */

/* The one, on that rank, of the next restore: what is broken stays so. */
static struct {
	struct failing f;
	int culprit;
	uint64_t n;
} next;

static void load_device(struct rank *rank)
{
	struct sk_comm base;
	struct gpu_rank g;

	come(&g, rank, &base);
	(void)fail_one(&g, &base, &next.f, next.culprit, next.n);
}

static void fail_devices(struct scene *scene)
{
	static const struct {
		const char *function;
		unsigned becomes;
	} of[] = {
		{ "cuMemAlloc", SK_CU_OUT_OF_MEMORY },
		{ "cuStreamCreateWithPriority", 999 },
		{ "cuEventCreate", SK_CU_OUT_OF_MEMORY },
		{ "cuEventRecord", 700 },
		{ "cuEventQuery", 700 },
		{ "cuEventSynchronize", 700 },
		{ "cuMemcpyHtoDAsync", 700 },
		{ "cuMemcpyDtoHAsync", 700 },
		{ "cuMemcpyDtoDAsync", 700 },
		{ "cuMemHostRegister", 1 },
		{ "cuCtxPushCurrent", 999 },
		{ "ncclGetUniqueId", SK_NCCL_SYSTEM_ERROR },
		{ "ncclCommInitRankConfig", SK_NCCL_SYSTEM_ERROR },
		{ "ncclGroupStart", SK_NCCL_INTERNAL_ERROR },
		{ "ncclSend", SK_NCCL_INTERNAL_ERROR },
		{ "ncclRecv", SK_NCCL_INTERNAL_ERROR },
		{ "ncclGroupEnd", SK_NCCL_INTERNAL_ERROR },
		{ "ncclCommGetAsyncError", SK_NCCL_INTERNAL_ERROR },
	};

	for (uint64_t i = 0; i < 6 * SK_ARRAY_SIZE(of);
	     i += sk_fault_every()) {
		const char *function = of[i / 6].function;

		next.f = (struct failing){ function, begin_device, end_device,
					   function, 0, of[i / 6].becomes };
		next.culprit = (int)(i % RANKS);
		next.n = 1 + i % 6 / 2;
		(void)alarm(600);
		run(scene, away, load_device);
	}
}

int main(int argc, char **argv)
{
	struct scene scene, nodes[NODES];
	const char *what = argc > 2 ? argv[2] : "";

	setenv("VCUDA_DEVICES", "4", 0);
	scene_open(&scene, argc, argv);
	(void)alarm(0);
	scene_add_nodes(&scene, nodes, NODES, true);
	by_agent = !strcmp(what, "agent");
	passes = !strcmp(what, "passed");
	run(&scene, by_agent ? together : passes ? apart : home, save);
	if (!strcmp(what, "devices"))
		fail_devices(&scene);
	else if (by_agent)
		run(&scene, together, load_by_agent);
	else if (passes)
		run(&scene, apart, load_memory);
	else
		run(&scene, away, !strcmp(what, "calls") ? load_calls :
							   load_memory);
	scene_close(&scene);
	return 0;
}
