/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores over several nodes to GPUs, by NCCL: what goes how, and what goes
 * wrong. Wherever a rank cannot, all do without; wherever one dies or fails,
 * all end, and alike.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "await.h"
#include "libclient/gpu-rank.h"
#include "mesh-comm.h"
#include "sim/trainer-nccl.h"

#define NODES 2
#define RANKS 4
#define ROWS 1500	/* of F32: each rank sends and gets part of a round */
#define COLUMNS 980
#define WIDE_ROWS 2304	/* of F64, on two ranks: three rounds */
#define WIDE_COLUMNS 2000
#define COPY_ROWS 1200	/* of the same, on four: two rounds, and one more */

/* Of those that are forked next; each joins its copy. */
static struct mesh_comm links;

/* The first two are those of two ranks as well. */
static const int home[RANKS] = { 0, 0, 1, 1 }, away[RANKS] = { 1, 1, 0, 0 };
static const int home_wide[] = { 0, 1 }, away_wide[] = { 1, 0 };

struct trial {
	const char *name;
	int culprit;			/* rank; -1: none */
	const char *variable, *value;	/* of the culprit's environment */
	const char *function;		/* of NCCL, or cuMemAlloc */
	uint64_t nth;
	unsigned becomes;		/* what it fails with */
	bool dies;
	uint32_t timeout_ms;
	int result;
	bool without;			/* NCCL; */
	const char *why;		/* what the comm says to that; */
	const char *why_again;		/* the second time, if another thing */
	bool twice, wide, save;
	bool anew;			/* each restore has a comm of its own */
	bool copies;			/* all ranks want all, of the wide */
	unsigned on_host;		/* bit per rank that has it there; */
	unsigned on_another;		/* or on another device */
	bool bare;			/* the culprit's comm has no device */
	bool told;			/* all hear what failed there */
	bool mute;			/* no base can have others fail soon */
	bool recovers;			/* the second time it is well */
};

/* Of all ranks of a restore; the processes share it. */
static uint64_t *by_device;

static const int *nodes_of(const struct trial *t)
{
	if (t->wide && !t->copies)
		return t->save ? home_wide : away_wide;
	return t->save ? home : away;
}

static int world_of(const struct trial *t)
{
	return t->wide && !t->copies ? 2 : RANKS;
}

static void describe(struct gpu_rank *g, const struct trial *t, int dim)
{
	struct sk_mesh *mesh = mesh_of(g->rank->world, 0, NULL, NULL);
	struct sk_tensor w = { .name = "w", .dtype = SK_F32, .ndim = 2,
			       .shape = { ROWS, COLUMNS }, .mesh = mesh,
			       .device = g->device,
			       .placements = { t->copies && dim ?
				       SK_REPLICATE : SK_SHARD(dim) } };
	struct sk_tensor host = { .name = "host", .dtype = SK_F32, .ndim = 1,
				  .shape = { 5000 }, .mesh = mesh,
				  .placements = { SK_SHARD(0) } };

	if (t->wide) {
		w.dtype = SK_F64;
		w.shape[0] = t->copies ? COPY_ROWS : WIDE_ROWS;
		w.shape[1] = WIDE_COLUMNS;
	}
	if (dim && t->on_another >> g->rank->rank & 1)
		w.device = (w.device + 1) % g->devices;
	if (dim && t->on_host >> g->rank->rank & 1)
		gpu_add_host(g, &w, rank_bytes(g->rank, &w), 0xee);
	else
		gpu_add(g, &w, rank_bytes(g->rank, &w), 0xee);
	gpu_add_host(g, &host, rank_bytes(g->rank, &host), 0xee);
	sk_mesh_release(mesh);
}

/* On the device of its number within its node. */
static void begin(struct gpu_rank *g, struct rank *rank, const int *nodes)
{
	int number = 0;
	char host[16];

	for (int i = 0; i < rank->rank; i++)
		number += nodes[i] == nodes[rank->rank];
	(void)snprintf(host, sizeof(host), "node-%d", nodes[rank->rank]);
	if (!getenv("NCCL_HOSTID"))
		CHECK(!setenv("NCCL_HOSTID", host, 1));
	gpu_begin(g, rank, number);
}

static void save(struct rank *rank)
{
	struct sk_restore_options o = { .timeout_ms = 20000 };
	struct sk_comm comm;
	struct gpu_rank g;

	begin(&g, rank, nodes_of(rank->arg));
	describe(&g, rank->arg, 0);
	mesh_comm_join(&links, rank->rank, &comm);
	CHECK(sk_restore(rank->state, SK_LATEST, &comm, &o, NULL) == -ENOENT,
	      "%s", sk_error());
	gpu_fill(&g, 5);
	CHECK(!gpu_snapshot(&g, 5, 0), "%s", sk_error());
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_wait(rank->state, 5, SK_SEALED, 60000), "%s", sk_error());
}

/* ---- what goes how ---- */

static uint64_t half_of(const struct trial *t)
{
	if (t->copies)
		return COPY_ROWS * WIDE_COLUMNS * 8u / 2;
	return t->wide ? WIDE_ROWS * WIDE_COLUMNS * 8u / 2 :
			 ROWS * COLUMNS * 4u / 2;
}

/* Of what is on devices, each rank wants half of its part that its node has
 * not, or half of all, which comes to one of the two of its node. The host
 * takes no part in it where it is received. */
static void check_bytes(const struct trial *t,
			const struct sk_report *report, uint64_t in)
{
	uint64_t w = half_of(t) / (uint64_t)world_of(t);
	uint64_t out = report->bytes_sent, device = report->bytes_device;

	__atomic_fetch_add(by_device, device, __ATOMIC_RELAXED);
	if (t->copies && !t->without)
		CHECK(device > half_of(t) / 3 && device < half_of(t) * 2 / 3,
		      "%s: %llu of %llu are not balanced", t->name,
		      (unsigned long long)device,
		      (unsigned long long)half_of(t));
	else
		CHECK(device == (t->without ? 0 : w), "%s: %llu of %llu on "
		      "devices", t->name, (unsigned long long)device,
		      (unsigned long long)w);
	CHECK(!report->bytes_disk);
	/* To another device it goes by the host, as it must. */
	if (t->without || t->on_another)
		return;
	/* What it sends goes in, and what its own node has for it. */
	CHECK(in <= out + report->bytes_memory, "%llu into the device, %llu "
	      "sent, %llu from memory", (unsigned long long)in,
	      (unsigned long long)out,
	      (unsigned long long)report->bytes_memory);
}

static void check_end(const struct gpu_rank *g, const struct trial *t,
		      const struct sk_comm *comm, int nth)
{
	const char *wanted = nth && t->why_again ? t->why_again : t->why;
	struct trainer_nccl nccl;
	const char *why = sk_comm_nccl_why(comm);

	/* Of another kind, it says nothing. */
	if (t->bare && g->rank->rank == t->culprit)
		wanted = NULL;
	CHECK(!wanted == !why[0], "%s: \"%s\"", t->name, why);
	CHECK(!wanted || strstr(why, wanted), "%s: \"%s\" lacks \"%s\"",
	      t->name, why, wanted);
	if (trainer_nccl_open(&nccl, NULL) >= 0 && nccl.count &&
	    !getenv("VNCCL_ABORT"))
		CHECK(nccl.count("comms") == 0);
}

/* What failed in NCCL on one rank all say, and whose it was. */
static void check_told(const struct gpu_rank *g, const struct trial *t,
		       const struct sk_comm *comm)
{
	const char *why = sk_comm_nccl_why(comm);
	char whose[32];

	(void)snprintf(whose, sizeof(whose), "rank %d: NCCL: ", t->culprit);
	CHECK(strstr(why, whose), "%s: rank %d: \"%s\"", t->name,
	      g->rank->rank, why);
}

static void go_wrong(const struct gpu_rank *g, const struct trial *t)
{
	struct trainer_nccl nccl;

	if (g->rank->rank != t->culprit || !t->function)
		return;
	if (!strncmp(t->function, "cu", 2)) {
		g->cuda.fail(t->function, t->nth, t->becomes);
		return;
	}
	CHECK(!trainer_nccl_open(&nccl, NULL) && nccl.fail);
	nccl.fail(t->function, t->nth, t->becomes);
}

static void load_once(struct gpu_rank *g, const struct trial *t,
		      struct sk_comm *comm, int nth)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MEMORY_ONLY,
		.timeout_ms = t->timeout_ms ? t->timeout_ms : 20000 };
	struct sk_report report = { 0 };
	uint64_t in = gpu_count(g, "in");
	int r;

	r = sk_restore(g->rank->state, 5, comm, &o, &report);
	CHECK(r == t->result, "%s: rank %d: %d, wanted %d: %s, \"%s\"",
	      t->name, g->rank->rank, r, t->result, sk_error(),
	      sk_comm_nccl_why(comm));
	if (r < 0 && t->told)
		check_told(g, t, comm);
	if (r >= 0) {
		check_bytes(t, &report, gpu_count(g, "in") - in);
		check_end(g, t, comm, nth);
		CHECK(!gpu_wrong(g, 5, -1), "%s", t->name);
	}
}

static void make_comm(struct gpu_rank *g, const struct trial *t,
		      const struct sk_comm *base, struct sk_comm *ret)
{
	const struct rank *rank = g->rank;

	if (t->bare && rank->rank == t->culprit)
		*ret = *base;
	else
		CHECK(!sk_comm_nccl(rank->sk, base, rank->rank, rank->world,
				    g->device, ret), "%s", sk_error());
}

static struct trainer_cuda late;

/* What the handle has freed is somebody else's by now. */
static void use_again(void)
{
	enum { LARGEST = 4096, EACH = 16 };
	static void *blocks[LARGEST / 16 * EACH];
	size_t n = 0;

	for (size_t bytes = 16; bytes <= LARGEST; bytes += 16)
		for (int i = 0; i < EACH; i++) {
			CHECK(blocks[n] = malloc(bytes));
			memset(blocks[n++], 0xa5, bytes);
		}
	while (n)
		free(blocks[--n]);
}

/* When the handle is closed, an abort comes back after all. */
static void come_back(void)
{
	uint64_t before = late.calls("cuCtxPopCurrent");
	struct trainer_nccl nccl;

	use_again();
	CHECK(!trainer_nccl_open(&nccl, NULL));
	nccl.come_back();
	AWAIT(late.calls("cuCtxPopCurrent") > before, "it never came back");
}

/* What a restore needs no NCCL for it says nothing of, whatever was before. */
static void load_host(struct gpu_rank *g, const struct sk_comm *comm)
{
	const char *const names[] = { "host" };
	struct sk_restore_options o = { .names = names, .n_names = 1,
					.timeout_ms = 20000 };

	CHECK(!sk_restore(g->rank->state, 5, comm, &o, NULL), "%s",
	      sk_error());
	CHECK(!sk_comm_nccl_why(comm)[0], "%s", sk_comm_nccl_why(comm));
}

static void load(struct rank *rank)
{
	const struct trial *t = rank->arg;
	struct trial second = *t;
	struct sk_comm base, comm;
	struct gpu_rank g;

	if (t->variable && rank->rank == t->culprit) {
		CHECK(!setenv(t->variable, t->value, 1));
		if (!strcmp(t->variable, "VNCCL_INIT"))
			CHECK(!setenv("VNCCL_ABORT", "hang", 1));
	}
	begin(&g, rank, nodes_of(t));
	describe(&g, t, 1);
	mesh_comm_join(&links, rank->rank, &base);
	if (t->mute)
		base.abort = NULL;
	make_comm(&g, t, &base, &comm);
	go_wrong(&g, t);
	if (t->recovers) {
		second.without = false;
		second.why = NULL;
	}
	for (int i = 0; i <= t->twice; i++) {
		if (i && t->anew) {
			sk_comm_nccl_free(&comm);
			make_comm(&g, t, &base, &comm);
		}
		load_once(&g, i ? &second : t, &comm, i);
	}
	if (t->without && t->why && !t->bare)
		load_host(&g, &comm);
	sk_comm_nccl_free(&comm);
	/* Whoever waits for the device now waits for good. */
	if (t->result && getenv("VNCCL_ABORT"))
		CHECK(sk_restore(rank->state, 5, NULL,
				 &(struct sk_restore_options){
					 .timeout_ms = 3000 }, NULL) < 0);
	if (getenv("VNCCL_ABORT")) {
		late = g.cuda;
		CHECK(!atexit(come_back));
	}
}

/* ---- trials ---- */

static void end_ranks(const struct trial *t, const pid_t *pids)
{
	int failed = 0, status;

	for (int i = 0; i < world_of(t); i++) {
		CHECK(waitpid(pids[i], &status, 0) == pids[i]);
		if (i == t->culprit && t->dies)
			CHECK(WIFSIGNALED(status), "%s: it was never so far",
			      t->name);
		else
			failed += status != 0;
	}
	CHECK(!failed, "%s: %d ranks failed", t->name, failed);
}

static void run(struct scene *scene, const struct trial *t)
{
	pid_t pids[RANKS];

	*by_device = 0;
	scene->node_of = nodes_of(t);
	CHECK(!mesh_comm_new(&links, world_of(t)));
	scene_ranks_start(scene, t->copies ? "copies" : t->wide ? "wide" :
							"narrow",
			  world_of(t), t->save ? save : load, t, pids);
	mesh_comm_free(&links);
	end_ranks(t, pids);
	scene->node_of = NULL;
	/* To each of the two nodes once. */
	CHECK(!t->copies || t->save || t->result || t->dies || *by_device ==
	      (t->without ? 0 : half_of(t) * NODES * (1u + t->twice)), "%s: "
	      "%llu by devices", t->name, (unsigned long long)*by_device);
}

static const struct trial trials[] = {
	{ .name = "save", .culprit = -1, .save = true },
	{ .name = "save wide", .culprit = -1, .save = true, .wide = true },
	{ .name = "save copies", .culprit = -1, .save = true, .wide = true,
	  .copies = true },
	{ .name = "well", .culprit = -1 },
	{ .name = "again", .culprit = -1, .twice = true },
	{ .name = "wide", .culprit = -1, .wide = true },
	{ .name = "copies", .culprit = -1, .wide = true, .copies = true,
	  .twice = true },
	/* Among those who share it, one has it elsewhere: once all the same. */
	{ .name = "copies on a host", .culprit = -1, .wide = true,
	  .copies = true, .on_host = 0x2, .twice = true },
	{ .name = "copies elsewhere", .culprit = -1, .wide = true,
	  .copies = true, .on_host = 0x4, .on_another = 0x1 },
	/* Without NCCL: */
	{ .name = "a rank without a device", .culprit = 3, .without = true,
	  .bare = true, .why = "rank 3" },
	{ .name = "copies, and a rank without", .culprit = 0, .without = true,
	  .bare = true, .wide = true, .copies = true, .on_host = 0x1,
	  .why = "rank 0" },
	{ .name = "no library", .culprit = 2, .without = true,
	  .variable = "SHARDKEEP_LIBNCCL", .value = "/nowhere/libnccl.so.2",
	  .why = "rank 2: no NCCL" },
	{ .name = "another version", .culprit = 1, .without = true,
	  .variable = "VNCCL_VERSION", .value = "22703",
	  .why = "other versions" },
	{ .name = "one host, one device", .culprit = 1, .without = true,
	  .variable = "NCCL_HOSTID", .value = "node-0",
	  .why = "Duplicate GPU" },
	{ .name = "never begins, never ends", .culprit = 3, .without = true,
	  .variable = "VNCCL_INIT", .value = "hang", .timeout_ms = 8000,
	  .why = "", .twice = true,
	  .why_again = "rank 3: an earlier communicator" },
	/* It is the process that cannot, whichever comm asks. */
	{ .name = "never ends, and another comm", .culprit = 3,
	  .without = true, .variable = "VNCCL_INIT", .value = "hang",
	  .timeout_ms = 8000, .why = "", .twice = true, .anew = true,
	  .why_again = "rank 3: an earlier communicator" },
	/* Nobody could be kept from waiting for one that does not come. */
	{ .name = "calls that block", .culprit = 2, .without = true,
	  .variable = "NCCL_COMM_BLOCKING", .value = "1",
	  .why = "NCCL_COMM_BLOCKING" },
	{ .name = "calls that block, written otherwise", .culprit = 2,
	  .without = true, .variable = "NCCL_COMM_BLOCKING", .value = " 0x1",
	  .why = "NCCL_COMM_BLOCKING" },
	{ .name = "no number", .culprit = 2,
	  .variable = "NCCL_COMM_BLOCKING", .value = "yes" },
	/* All has arrived by then. */
	{ .name = "an end that does not come", .culprit = 2,
	  .variable = "VNCCL_FINALIZE", .value = "hang", .timeout_ms = 6000,
	  .twice = true },
	{ .name = "it cannot begin, at first", .culprit = 1, .without = true,
	  .function = "ncclCommInitRankConfig", .nth = 1,
	  .becomes = SK_NCCL_SYSTEM_ERROR, .why = "rank 1: NCCL: ",
	  .twice = true, .recovers = true },
	{ .name = "no id", .culprit = 0, .without = true,
	  .function = "ncclGetUniqueId", .nth = 1,
	  .becomes = SK_NCCL_SYSTEM_ERROR, .why = "unhandled" },
	{ .name = "no room on a device", .culprit = 1, .without = true,
	  .function = "cuMemAlloc", .nth = 1,
	  .becomes = SK_CU_OUT_OF_MEMORY, .why = "rank 1" },
	{ .name = "no room for what is passed on", .culprit = 2,
	  .without = true, .wide = true, .copies = true,
	  .function = "cuMemAlloc", .nth = 2,
	  .becomes = SK_CU_OUT_OF_MEMORY, .why = "rank 2" },
	{ .name = "copies on one device", .culprit = 1, .without = true,
	  .wide = true, .copies = true, .variable = "NCCL_HOSTID",
	  .value = "node-0", .why = "Duplicate GPU" },
	/* An end for all, and soon: who waits asks. */
	{ .name = "a send that fails", .culprit = 1, .wide = true,
	  .function = "ncclSend", .nth = 2,
	  .becomes = SK_NCCL_INTERNAL_ERROR,
	  .result = -ETIMEDOUT, .told = true },
	{ .name = "a send that fails, beside a mute comm", .culprit = 0,
	  .wide = true, .function = "ncclSend", .nth = 2,
	  .becomes = SK_NCCL_INTERNAL_ERROR,
	  .result = -ETIMEDOUT, .told = true, .mute = true },
	{ .name = "a death that nobody tells", .culprit = 0, .wide = true,
	  .function = "ncclGroupEnd", .nth = 3, .becomes = UINT32_MAX,
	  .dies = true, .result = -ETIMEDOUT },
	{ .name = "a copy that is not passed on", .culprit = 3, .wide = true,
	  .copies = true, .function = "ncclSend", .nth = 3,
	  .becomes = SK_NCCL_INTERNAL_ERROR,
	  .result = -ETIMEDOUT, .told = true },
	{ .name = "a death where it is on the host", .culprit = 1,
	  .wide = true, .copies = true, .on_host = 0x2,
	  .function = "ncclGroupEnd", .nth = 2, .becomes = UINT32_MAX,
	  .dies = true, .result = -ETIMEDOUT },
	{ .name = "a death among copies", .culprit = 1, .wide = true,
	  .copies = true, .function = "ncclGroupEnd", .nth = 2,
	  .becomes = UINT32_MAX, .dies = true,
	  .result = -ETIMEDOUT },
	{ .name = "a death at the beginning", .culprit = 2,
	  .function = "ncclCommInitRankConfig", .nth = 1,
	  .becomes = UINT32_MAX, .dies = true,
	  .result = -ETIMEDOUT },
	{ .name = "a death at the end", .culprit = 2,
	  .function = "ncclCommFinalize", .nth = 1, .becomes = UINT32_MAX,
	  .dies = true },
};

/* Peers hear of them: at any call of the exchange. */
static void test_deaths(struct scene *scene)
{
	static const char *const calls[] = { "ncclGroupStart", "ncclRecv",
					     "ncclSend", "ncclGroupEnd" };

	CHECK(!setenv("VNCCL_DEATH", "told", 1));
	for (int i = 0; i < 4; i++)
		run(scene, &(struct trial){
			.name = calls[i], .culprit = i % 2, .wide = i % 2,
			.function = calls[i], .nth = 1 + (uint64_t)(i % 2),
			.becomes = UINT32_MAX, .dies = true,
			.result = -ETIMEDOUT });
	/* Between the last that lands and the last that is passed on. */
	run(scene, &(struct trial){
		.name = "the last copies", .culprit = 2, .wide = true,
		.copies = true, .function = "ncclGroupEnd", .nth = 3,
		.becomes = UINT32_MAX, .dies = true, .result = -ETIMEDOUT });
	CHECK(!unsetenv("VNCCL_DEATH"));
}

/* What a file of NCCL's says counts as the environment does, and less. */
static void test_files(struct scene *scene)
{
	char path[256];
	FILE *file;

	(void)snprintf(path, sizeof(path), "%s/nccl.conf", scene->dir);
	file = fopen(path, "we");
	CHECK(file && fputs("# ours\nNCCL_COMM_BLOCKING=1\n", file) >= 0 &&
	      !fclose(file));
	run(scene, &(struct trial){
		.name = "a file that has calls block", .culprit = 1,
		.without = true, .variable = "NCCL_CONF_FILE", .value = path,
		.why = "nccl.conf\"", .twice = true });
	CHECK(!setenv("NCCL_COMM_BLOCKING", "0", 1));
	run(scene, &(struct trial){
		.name = "a file that is overruled", .culprit = 1,
		.variable = "NCCL_CONF_FILE", .value = path });
	CHECK(!unsetenv("NCCL_COMM_BLOCKING"));
}

/* What an abort that hangs may still write to is nobody else's. */
static void test_hung_in_the_midst(struct scene *scene)
{
	CHECK(!setenv("VNCCL_ABORT", "hang", 1));
	run(scene, &(struct trial){
		.name = "a death, and no end", .culprit = 0, .wide = true,
		.function = "ncclGroupEnd", .nth = 3, .becomes = UINT32_MAX,
		.dies = true, .result = -ETIMEDOUT, .timeout_ms = 3000 });
	CHECK(!unsetenv("VNCCL_ABORT"));
}

int main(int argc, char **argv)
{
	struct trainer_nccl nccl;
	struct scene scene, nodes[NODES];

	setenv("VCUDA_DEVICES", "4", 0);
	if (trainer_nccl_open(&nccl, NULL) < 0 || !nccl.calls)
		return 77;
	by_device = mmap(NULL, sizeof(*by_device), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(by_device != MAP_FAILED);
	scene_open(&scene, argc, argv);
	CHECK(!setenv("VNCCL_ORDER", scene.dir, 1));
	scene_add_nodes(&scene, nodes, NODES, true);
	for (size_t i = 0; i < sizeof(trials) / sizeof(trials[0]); i++)
		run(&scene, &trials[i]);
	test_files(&scene);
	test_deaths(&scene);
	test_hung_in_the_midst(&scene);
	scene_close(&scene);
	return 0;
}
