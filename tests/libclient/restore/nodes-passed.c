/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several nodes want of one source: it sends it once, and they pass it on
 * to each other. Random nodes, placements and losses: every value is right,
 * nothing comes twice to a node, and no source sends a byte twice. Then those
 * who pass it on die, are slow, fail, and change what they pass on. With
 * $SHARDKEEP_LIBNCCL tensors lie on GPUs, and in some cases some of them on the
 * host afterwards. $SK_CASES says how many cases, up to 80 (agents keep them
 * all), $SK_SEED which is the first; with $SK_FEW, as on a GPU, little else.
 * Arguments: the agent, and one of "once", "wrong" and "random"; else all.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "fault-os.h"
#include "libclient/gpu-rank.h"
#include "mesh-comm.h"
#include "sim/trainer-nccl.h"
#include "tensor/box.h"

#define NODES 16
#define FEW 6		/* of them, where there are not to be many */
#define RANKS 16
#define FEW_RANKS 12
#define COLUMNS 900
#define ROW ((uint64_t)COLUMNS * 4)
#define CASES 13
#define STEP 7

static const int64_t rows_of[] = { 1200, 500, 290, 37, 5, 1 };

#define TENSORS SK_ARRAY_SIZE(rows_of)
#define ROWS 2033	/* all of them */
#define LARGEST (1200 * ROW)

/* Of those that are forked next; each joins its copy. */
static struct mesh_comm links;

struct outcome {
	int result;
	int calls;
	char text[256];
	uint64_t sent, passed, received, disk, device;
};

struct side {
	int world, shards;	/* of each copy of the model */
	int node_of[RANKS];
};

struct trial {
	uint64_t seed;
	struct side sides[2];
	bool lost;		/* node 1 loses its memory in between */
	bool load;
	uint32_t timeout_ms;
	int culprit;		/* rank; -1: none */
	int die_at;
	bool lies, slow;
	bool fails;		/* NCCL does, there */
	struct outcome *ends;	/* per rank; the processes share it */
};

static const struct side *side_of(const struct trial *t)
{
	return &t->sides[t->load];
}

static bool on_gpus(void)
{
	return getenv("SHARDKEEP_LIBNCCL") != NULL;
}

/* Of two cases out of three some tensors come back to host memory. */
static bool is_on_host(const struct trial *t, int rank, size_t tensor)
{
	uint64_t draw = (t->seed * 16 + (uint64_t)rank) * 16 + tensor + 1;

	draw *= 0x9e3779b97f4a7c15u;
	return !on_gpus() || (t->load && draw >> 56 < t->seed % 3 * 60);
}

/* ---- a model, on some mesh ---- */

static struct sk_mesh *mesh_for(const struct side *s)
{
	return mesh_of(s->world / s->shards, s->shards, NULL, NULL);
}

static void describe(struct gpu_rank *g, const struct trial *t)
{
	struct sk_mesh *mesh = mesh_for(side_of(t));
	static char names[TENSORS][16];

	for (size_t i = 0; i < TENSORS; i++) {
		struct sk_tensor w = {
			.name = names[i], .dtype = SK_F32, .ndim = 2,
			.shape = { rows_of[i], COLUMNS }, .mesh = mesh,
			.device = g->device,
			.placements = { SK_REPLICATE, SK_SHARD(0) } };

		(void)snprintf(names[i], sizeof(names[i]), "w%zu", i);
		if (is_on_host(t, g->rank->rank, i))
			gpu_add_host(g, &w, rank_bytes(g->rank, &w), 0xee);
		else
			gpu_add(g, &w, rank_bytes(g->rank, &w), 0xee);
	}
	sk_mesh_release(mesh);
}

/* Each has a device of its own, or NCCL is to take it for a host. */
static void begin(struct gpu_rank *g, struct rank *rank)
{
	const struct trial *t = rank->arg;
	char host[16];

	*g = (struct gpu_rank){ .rank = rank };
	if (on_gpus() && gpu_devices() < rank->world)
		(void)snprintf(host, sizeof(host), "rank-%d", rank->rank);
	else
		(void)snprintf(host, sizeof(host), "node-%d",
			       side_of(t)->node_of[rank->rank]);
	CHECK(!setenv("NCCL_HOSTID", host, 1));
	if (on_gpus())
		gpu_begin(g, rank, rank->rank);
	describe(g, t);
}

/* Bit per node: whose ranks have the row; of one trial, on devices. */
static void mark(const struct side *s, const struct trial *devices,
		 uint16_t *nodes)
{
	for (size_t i = 0; i < TENSORS; nodes += rows_of[i++]) {
		int64_t each = (rows_of[i] + s->shards - 1) / s->shards;

		for (int r = 0; r < s->world; r++) {
			int64_t from = r % s->shards * each;

			if (devices && is_on_host(devices, r, i))
				continue;
			for (int64_t k = from; k < from + each &&
			     k < rows_of[i]; k++)
				nodes[k] |= (uint16_t)(1 << s->node_of[r]);
		}
	}
}

struct need {
	uint64_t all;		/* by nodes that lack it, for each of them */
	uint64_t once;		/* by any of them */
	uint64_t device;	/* of all, what goes by devices */
};

/* Of a tensor's rows: what comes to any device comes by devices to all. */
static void add_need(struct need *need, const struct trial *t, size_t rows,
		     const uint16_t *has, const uint16_t *wants,
		     const uint16_t *on)
{
	uint64_t all = 0;
	bool by_devices = false;

	for (size_t i = 0; i < rows; i++) {
		unsigned from = has[i] & ~(t->lost ? 2u : 0u);
		unsigned lack = wants[i] & ~from;

		all += (uint64_t)__builtin_popcount(lack) * ROW;
		need->once += lack ? ROW : 0;
		by_devices |= (lack & on[i]) != 0;
	}
	need->all += all;
	need->device += by_devices ? all : 0;
}

static struct need needed(const struct trial *t)
{
	uint16_t has[ROWS] = { 0 }, wants[ROWS] = { 0 }, on[ROWS] = { 0 };
	struct need need = { 0 };
	size_t at = 0;

	mark(&t->sides[0], NULL, has);
	mark(&t->sides[1], NULL, wants);
	mark(&t->sides[1], t, on);
	for (size_t i = 0; i < TENSORS; at += (size_t)rows_of[i++])
		add_need(&need, t, (size_t)rows_of[i], has + at, wants + at,
			 on + at);
	return need;
}

/* ---- the two sides ---- */

/* What fails is NCCL's, or it dies there, or in the comm of sockets. */
static void go_wrong(const struct trial *t)
{
	struct trainer_nccl nccl;

	links.lies = t->lies;
	if (!on_gpus()) {
		links.die_at = t->die_at;
		return;
	}
	CHECK(!trainer_nccl_open(&nccl, NULL) && nccl.fail);
	if (t->die_at)
		nccl.fail(t->fails ? "ncclSend" : "ncclGroupEnd",
			  (uint64_t)t->die_at,
			  t->fails ? SK_NCCL_INTERNAL_ERROR : UINT32_MAX);
}

/* Groups that NCCL had, or calls of the comm. */
static int calls_of(void)
{
	struct trainer_nccl nccl;

	if (!on_gpus())
		return links.calls;
	CHECK(!trainer_nccl_open(&nccl, NULL));
	return nccl.calls ? (int)nccl.calls("ncclGroupEnd") : 0;
}

/* A GPU that is one takes its time, and nothing fails at will there. */
static bool is_thorough(void)
{
	struct trainer_nccl nccl;

	if (!on_gpus() || getenv("SK_FEW"))
		return !getenv("SK_FEW");
	CHECK(!trainer_nccl_open(&nccl, NULL));
	return nccl.calls != NULL;
}

static int restore(struct gpu_rank *g, struct sk_report *ret_report)
{
	struct rank *rank = g->rank;
	const struct trial *t = rank->arg;
	struct sk_restore_options o = {
		.timeout_ms = t->timeout_ms ? t->timeout_ms : 30000,
		.flags = t->lost ? 0 : SK_RESTORE_MEMORY_ONLY };
	struct sk_comm comm, nccl;
	int r;

	mesh_comm_join(&links, rank->rank, &comm);
	if (t->load && rank->rank == t->culprit)
		go_wrong(t);
	if (!on_gpus())
		return sk_restore(rank->state, SK_LATEST, &comm, &o,
				  ret_report);
	CHECK(!sk_comm_nccl(rank->sk, &comm, rank->rank, rank->world,
			    g->device, &nccl), "%s", sk_error());
	r = sk_restore(rank->state, SK_LATEST, &nccl, &o, ret_report);
	CHECK(r < 0 || !sk_comm_nccl_why(&nccl)[0], "%s",
	      sk_comm_nccl_why(&nccl));
	sk_comm_nccl_free(&nccl);
	return r;
}

static void save(struct rank *rank)
{
	const struct trial *t = rank->arg;
	struct gpu_rank g;

	begin(&g, rank);
	CHECK(restore(&g, NULL) == -ENOENT, "%s", sk_error());
	if (on_gpus())
		gpu_fill(&g, STEP);
	else
		rank_write(rank, STEP);
	rank_snapshot(rank, STEP, SK_SEALED);
	if (!t->lost)
		return;
	CHECK(!sk_flush(rank->state, STEP), "%s", sk_error());
	CHECK(!sk_wait(rank->state, STEP, SK_WRITTEN, 60000), "%s",
	      sk_error());
}

/* Stands still again and again; for nothing waits that long. */
static void be_slow(void)
{
	const struct timespec t = { 0, 60000000 };
	pid_t rank = getpid();

	if (fork())
		return;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < 20; i++) {
		(void)kill(rank, i % 2 ? SIGCONT : SIGSTOP);
		(void)nanosleep(&t, NULL);
	}
	_exit(0);
}

static void load(struct rank *rank)
{
	const struct trial *t = rank->arg;
	struct outcome *end = &t->ends[rank->rank];
	struct sk_report report = { 0 };
	struct gpu_rank g;

	if (t->slow && rank->rank == t->culprit)
		be_slow();
	begin(&g, rank);
	end->result = restore(&g, &report);
	end->calls = calls_of();
	if (end->result < 0) {
		(void)snprintf(end->text, sizeof(end->text), "%s",
			       sk_error());
		return;
	}
	CHECK(!(on_gpus() ? gpu_wrong(&g, STEP, -1) :
			    rank_wrong(rank, STEP, -1)), "seed %d, rank %d", (int)t->seed,
	      rank->rank);
	end->sent = report.bytes_sent;
	end->passed = report.bytes_passed;
	end->received = report.bytes_received;
	end->disk = report.bytes_disk;
	end->device = report.bytes_device;
}

static void run(struct scene *scene, const char *job, struct trial *t)
{
	const struct side *s = side_of(t);
	pid_t pids[RANKS];
	int status;

	memset(t->ends, 0, RANKS * sizeof(*t->ends));
	scene->node_of = s->node_of;
	CHECK(!mesh_comm_new(&links, s->world));
	scene_ranks_start(scene, job, s->world, t->load ? load : save, t,
			  pids);
	mesh_comm_free(&links);
	scene->node_of = NULL;
	for (int i = 0; i < s->world; i++) {
		CHECK(waitpid(pids[i], &status, 0) == pids[i]);
		CHECK(!status || (t->load && i == t->culprit && t->die_at),
		      "seed %d, rank %d: status %#x", (int)t->seed, i,
		      status);
	}
}

/* ---- random cases ---- */

static uint64_t random_state;

static int below(int n)
{
	random_state = random_state * 6364136223846793005u +
		       1442695040888963407u;
	return (int)((random_state >> 33) % (unsigned)n);
}

/* Ranks on the first @nodes of the nodes, at least one on each. */
static void draw_side(struct side *s, int nodes, int most)
{
	static const int cuts[] = { 1, 1, 2, 3 };

	s->world = nodes + below(most - nodes + 1);
	do
		s->shards = cuts[below(4)];
	while (s->world % s->shards);
	for (int i = 0; i < s->world; i++)
		s->node_of[i] = i < nodes ? i : below(nodes);
}

static void draw(struct trial *t, uint64_t seed)
{
	struct side *from = &t->sides[0];

	*t = (struct trial){ .seed = seed, .culprit = -1, .ends = t->ends };
	random_state = seed * 0x9e3779b97f4a7c15u + 11;
	draw_side(from, 1 + below(3), 6);
	draw_side(&t->sides[1], 3 + below(FEW - 2), FEW_RANKS);
	/* Two nodes with the whole of it each, one of which comes back without;
	 * else what each saved, once: FSDP. */
	if (below(3)) {
		from->shards = below(2) ? from->world : from->shards;
		return;
	}
	from->world = 4;
	from->shards = 1 + below(2);
	for (int i = 0; i < 4; i++)
		from->node_of[i] = i / 2;
	t->lost = true;
}

static void lose(struct scene *scene, int node)
{
	scene_stop_agent(&scene->nodes[node], SIGKILL);
	scene_start_agent(&scene->nodes[node]);
}

static void check(const struct trial *t)
{
	struct need need = needed(t);
	uint64_t sent = 0, passed = 0, received = 0, device = 0;

	for (int i = 0; i < t->sides[1].world; i++) {
		const struct outcome *end = &t->ends[i];

		CHECK(!end->result, "seed %d, rank %d: %s", (int)t->seed, i,
		      end->text);
		CHECK(!end->disk, "seed %d, rank %d", (int)t->seed, i);
		/* Nobody has more to pass on than to receive, but for what is
		 * one want. */
		CHECK(end->passed <= end->received + 2 * LARGEST &&
		      end->passed <= 2 * end->received,
		      "seed %d, rank %d: %llu passed on of %llu",
		      (int)t->seed, i, (unsigned long long)end->passed,
		      (unsigned long long)end->received);
		sent += end->sent;
		passed += end->passed;
		received += end->received;
		device += end->device;
	}
	CHECK(device == need.device, "seed %d: %llu by devices, %llu needed",
	      (int)t->seed, (unsigned long long)device,
	      (unsigned long long)need.device);
	CHECK(sent == received, "seed %d", (int)t->seed);
	CHECK(received >= need.all && received <= need.all + need.all / 20,
	      "seed %d: %llu received, %llu needed", (int)t->seed,
	      (unsigned long long)received, (unsigned long long)need.all);
	/* Small ones may be asked for by more sets of ranks than have trees. */
	CHECK(sent - passed >= need.once &&
	      sent - passed <= need.once + need.once / 20, "seed %d: sources sent %llu of %llu",
	      (int)t->seed, (unsigned long long)(sent - passed),
	      (unsigned long long)need.once);
}

static void test_random(struct scene *scene, struct trial *t)
{
	const char *cases = getenv("SK_CASES"), *first = getenv("SK_SEED");
	uint64_t n = cases ? strtoull(cases, NULL, 10) :
			     1 + CASES / sk_fault_every();
	uint64_t seed = first ? strtoull(first, NULL, 10) : 1;

	for (uint64_t end = seed + n; seed < end; seed++) {
		char job[32];

		draw(t, seed);
		(void)snprintf(job, sizeof(job), "passed-%d", (int)seed);
		run(scene, job, t);
		if (t->lost)
			lose(scene, 1);
		t->load = true;
		run(scene, job, t);
		check(t);
	}
}

/* ---- one source, and all others without ---- */

static void one_source(struct trial *t, int nodes)
{
	*t = (struct trial){ .culprit = -1, .ends = t->ends };
	t->sides[0] = (struct side){ .world = 1, .shards = 1 };
	t->sides[1] = (struct side){ .world = nodes, .shards = 1 };
	for (int i = 0; i < nodes; i++)
		t->sides[1].node_of[i] = i;
}

/* Its link has each byte once; so has everybody's. */
static void test_once(struct scene *scene, struct trial *t, const char *job,
		      int nodes)
{
	one_source(t, nodes);
	run(scene, job, t);
	t->load = true;
	run(scene, job, t);
	check(t);
	CHECK(t->ends[0].sent == ROWS * ROW && !t->ends[0].passed, "%llu",
	      (unsigned long long)t->ends[0].sent);
	for (int i = 1; i < nodes; i++)
		CHECK(t->ends[i].received == ROWS * ROW &&
		      t->ends[i].sent == t->ends[i].passed, "rank %d", i);
}

static void end_all(struct scene *scene, struct trial *t)
{
	run(scene, "wrong", t);
	for (int i = 0; i < FEW; i++)
		CHECK((i == t->culprit && !t->fails) ||
		      t->ends[i].result == -ETIMEDOUT,
		      "call %d, rank %d: %d %s", t->die_at, i,
		      t->ends[i].result, t->ends[i].text);
}

/* Whoever passes on dies, wherever: the others end, and alike. */
static void test_gone(struct scene *scene, struct trial *t)
{
	int calls[FEW], last = 9;

	for (int i = 0; i < FEW; i++)
		calls[i] = t->ends[i].calls;
	t->timeout_ms = 5000;
	if (on_gpus())
		last = calls[1] - 1;
	for (int back = last; back >= 0; back -= 2) {
		t->culprit = 1 + (calls[1] + back) % (FEW - 1);
		t->die_at = calls[t->culprit] - back;
		if (t->die_at > 0)
			end_all(scene, t);
	}
	/* Of those who pass on, for only they send. */
	for (int at = 1; on_gpus() && at < 3; at++) {
		t->culprit = at;
		t->die_at = at;
		t->fails = true;
		end_all(scene, t);
	}
	t->fails = false;
	t->die_at = 0;
	t->timeout_ms = 0;
	t->culprit = -1;
}

/* One that stands still now and then: all wait, and get what they want. */
static void test_slow(struct scene *scene, struct trial *t)
{
	for (t->culprit = 0; is_thorough() && t->culprit < 2; t->culprit++) {
		t->slow = true;
		run(scene, "once", t);
		check(t);
	}
	t->slow = false;
	t->culprit = -1;
}

/* What a passer changes is seen by whoever gets it from there. */
static void test_lies(struct scene *scene, struct trial *t)
{
	bool passes[FEW];
	int liars = 0;

	scene->job_flags = SK_JOB_VERIFY;
	test_once(scene, t, "lies", FEW);
	for (int i = 0; i < FEW; i++)
		liars += passes[i] = t->ends[i].passed != 0;
	CHECK(liars == FEW - 2, "%d pass something on", liars);
	for (int liar = 1; liar < FEW; liar++) {
		if (!passes[liar])
			continue;
		t->culprit = liar;
		t->lies = true;
		run(scene, "lies", t);
		for (int i = 0; i < FEW; i++)
			CHECK(t->ends[i].result == -EBADMSG &&
			      strstr(t->ends[i].text, "came to rank"),
			      "rank %d: %d %s", i, t->ends[i].result,
			      t->ends[i].text);
	}
	scene->job_flags = 0;
}

static bool is_asked(int argc, char **argv, const char *what)
{
	return argc < 3 || !strcmp(argv[2], what);
}

int main(int argc, char **argv)
{
	struct scene scene, nodes[NODES];
	struct trial t;

	t.ends = mmap(NULL, RANKS * sizeof(*t.ends), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(t.ends != MAP_FAILED);
	setenv("VCUDA_DEVICES", "16", 0);
	if (on_gpus())
		(void)gpu_devices();
	scene_open(&scene, argc, argv);
	CHECK(!setenv("VNCCL_ORDER", scene.dir, 1));
	scene_add_nodes(&scene, nodes, NODES, true);
	if (is_asked(argc, argv, "once")) {
		test_once(&scene, &t, "once", FEW);
		test_slow(&scene, &t);
		if (is_thorough())
			test_once(&scene, &t, "many", NODES);
	}
	if (is_asked(argc, argv, "wrong") && is_thorough()) {
		test_once(&scene, &t, "wrong", FEW);
		test_gone(&scene, &t);
		/* Where both ends verify, nothing goes by devices. */
		if (!on_gpus())
			test_lies(&scene, &t);
	}
	if (is_asked(argc, argv, "random"))
		test_random(&scene, &t);
	scene_close(&scene);
	return 0;
}
