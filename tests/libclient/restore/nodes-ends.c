/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores over two nodes to GPUs, by NCCL, in which one rank dies, hangs or
 * fails at any call of NCCL, each rank with a timeout of its own: all others
 * end, and alike, within the longest of these, and whoever has failed says why.
 *
 * By $SK_SEED and $SK_CASES, and of the fixed ones all.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "libclient/gpu-rank.h"
#include "mesh-comm.h"
#include "sim/trainer-nccl.h"

#define NODES 2
#define RANKS 4
#define ROWS 2304	/* of F64: several rounds */
#define COLUMNS 2000
#define DIES UINT32_MAX
#define HANGS (UINT32_MAX - 1)
/* Beside a timeout: what a busy machine takes for all else. */
#define SLACK_MS 30000u

static struct mesh_comm links;
static const int home[RANKS] = { 0, 0, 1, 1 }, away[RANKS] = { 1, 1, 0, 0 };

struct trial {
	const char *function;	/* of NCCL; NULL: nothing is wrong */
	uint64_t nth;
	unsigned becomes;
	int culprit;
	bool told;		/* NCCL says that a peer is gone, */
	uint32_t told_ms;	/* after so long */
	bool mute;		/* the other comm cannot abort */
	bool save;
	bool trains;		/* by a communicator of its own */
	uint32_t timeouts[RANKS];
};

/* What each rank says; the processes share it. */
struct said {
	int result;
	bool over;		/* atomic */
	uint64_t ms;
	char error[160], why[160];
};

static struct said *said;

static uint64_t now_ms(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- ranks ---- */

static void begin(struct gpu_rank *g, struct rank *rank, const int *nodes,
		  int dim)
{
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);
	struct sk_tensor w = { .name = "w", .dtype = SK_F64, .ndim = 2,
			       .shape = { ROWS, COLUMNS }, .mesh = mesh,
			       .placements = { SK_SHARD(dim) } };
	int number = 0;
	char host[16];

	for (int i = 0; i < rank->rank; i++)
		number += nodes[i] == nodes[rank->rank];
	(void)snprintf(host, sizeof(host), "node-%d", nodes[rank->rank]);
	CHECK(!setenv("NCCL_HOSTID", host, 1));
	gpu_begin(g, rank, number);
	w.device = g->device;
	gpu_add(g, &w, rank_bytes(rank, &w), 0xee);
	sk_mesh_release(mesh);
}

static void save(struct rank *rank)
{
	struct sk_restore_options o = { .timeout_ms = 20000 };
	struct sk_comm comm;
	struct gpu_rank g;

	begin(&g, rank, home, 0);
	mesh_comm_join(&links, rank->rank, &comm);
	CHECK(sk_restore(rank->state, SK_LATEST, &comm, &o, NULL) == -ENOENT,
	      "%s", sk_error());
	gpu_fill(&g, 5);
	CHECK(!gpu_snapshot(&g, 5, 0), "%s", sk_error());
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_wait(rank->state, 5, SK_SEALED, 60000), "%s", sk_error());
}

/* ---- a trainer's own communicator ---- */

struct training {
	struct trainer_nccl *nccl;
	sk_nccl_comm comm;
	sk_cu_ptr from, to;
	int next, last;
};

static void settle(struct training *t)
{
	sk_nccl_result r = SK_NCCL_IN_PROGRESS;

	while (r == SK_NCCL_IN_PROGRESS)
		CHECK(!t->nccl->lib.ncclCommGetAsyncError(t->comm, &r));
	CHECK(!r, "the trainer's: %u", r);
}

/* Around the ring; nobody waits for it. */
static void pass_on(struct training *t, const struct gpu_rank *g)
{
	const struct sk_nccl *n = &t->nccl->lib;

	CHECK(!n->ncclGroupStart());
	(void)n->ncclSend((void *)(uintptr_t)t->from, 100000, SK_NCCL_UINT8,
			  t->next, t->comm, g->stream);
	(void)n->ncclRecv((void *)(uintptr_t)t->to, 100000, SK_NCCL_UINT8,
			  t->last, t->comm, g->stream);
	(void)n->ncclGroupEnd();
	settle(t);
}

/* Under way still when the restore begins, which waits for it before it makes
 * a communicator of its own: the device has one at a time. */
static void train_begin(struct training *t, const struct gpu_rank *g,
			struct trainer_nccl *nccl, const struct sk_comm *base)
{
	const int world = g->rank->world, rank = g->rank->rank;
	sk_nccl_config config = trainer_nccl_config();
	sk_nccl_id id = { "" }, all[RANKS];

	*t = (struct training){ .nccl = nccl, .next = (rank + 1) % world,
				.last = (rank + world - 1) % world };
	if (!rank)
		CHECK(!nccl->lib.ncclGetUniqueId(&id));
	CHECK(!base->allgather(base->ctx, &id, sizeof(id), all, 20000));
	(void)nccl->lib.ncclCommInitRankConfig(&t->comm, world, all[0], rank,
					       &config);
	settle(t);
	t->from = trainer_cuda_alloc(&g->cuda, 100000);
	t->to = trainer_cuda_alloc(&g->cuda, 100000);
	for (int i = 0; i < 3; i++)
		pass_on(t, g);
}

static void train_end(struct training *t, const struct gpu_rank *g)
{
	pass_on(t, g);
	CHECK(!g->cuda.driver.cuStreamSynchronize(g->stream));
	(void)t->nccl->lib.ncclCommFinalize(t->comm);
	settle(t);
	CHECK(!t->nccl->lib.ncclCommDestroy(t->comm));
}

/* Before its handle is closed: what hung goes on then. */
static void tell(struct rank *rank, struct sk_comm *comm, int r, uint64_t ms)
{
	struct said *s = &said[rank->rank];

	s->result = r;
	s->ms = ms;
	(void)snprintf(s->error, sizeof(s->error), "%s", r ? sk_error() : "");
	(void)snprintf(s->why, sizeof(s->why), "%s", sk_comm_nccl_why(comm));
	__atomic_store_n(&s->over, true, __ATOMIC_RELEASE);
}

static void load(struct rank *rank)
{
	const struct trial *t = rank->arg;
	struct sk_restore_options o = {
		.flags = SK_RESTORE_MEMORY_ONLY,
		.timeout_ms = t->timeouts[rank->rank] };
	struct sk_comm base, comm;
	struct training training;
	struct trainer_nccl nccl;
	struct gpu_rank g;
	uint64_t begun;
	int r;

	char text[16];

	if (t->told)
		CHECK(!setenv("VNCCL_DEATH", "told", 1));
	(void)snprintf(text, sizeof(text), "%u", t->told_ms);
	CHECK(!setenv("VNCCL_DEATH_MS", text, 1));
	begin(&g, rank, away, 1);
	mesh_comm_join(&links, rank->rank, &base);
	if (t->mute)
		base.abort = NULL;
	CHECK(!sk_comm_nccl(rank->sk, &base, rank->rank, rank->world,
			    g.device, &comm), "%s", sk_error());
	CHECK(!trainer_nccl_open(&nccl, NULL) && nccl.fail);
	if (t->function && rank->rank == t->culprit)
		nccl.fail(t->function, t->nth, t->becomes);
	if (t->trains)
		train_begin(&training, &g, &nccl, &base);
	begun = now_ms();
	r = sk_restore(rank->state, 5, &comm, &o, NULL);
	tell(rank, &comm, r, now_ms() - begun);
	if (t->trains)
		train_end(&training, &g);
	CHECK(r || !gpu_wrong(&g, 5, -1));
	sk_comm_nccl_free(&comm);
	nccl.come_back();
}

/* ---- what all of them say ---- */

static uint32_t longest_of(const struct trial *t)
{
	uint32_t most = 0;

	for (int i = 0; i < RANKS; i++)
		most = t->timeouts[i] > most ? t->timeouts[i] : most;
	return most;
}

static void name_it(const struct trial *t, char ret[200])
{
	(void)snprintf(ret, 200, "%s %llu of rank %d becomes %u%s%s, %u %u %u "
		       "%u ms", t->function ? t->function : "nothing",
		       (unsigned long long)t->nth, t->culprit, t->becomes,
		       t->told ? ", told" : "", t->mute ? ", mute" : "",
		       t->timeouts[0], t->timeouts[1], t->timeouts[2],
		       t->timeouts[3]);
}

/* Whether that rank has come back, waited for until all must have. */
static bool is_over(int rank, uint64_t until)
{
	const struct timespec pause = { 0, 1000000 };

	while (!__atomic_load_n(&said[rank].over, __ATOMIC_ACQUIRE)) {
		if (now_ms() >= until)
			return false;
		(void)nanosleep(&pause, NULL);
	}
	return true;
}

static void check_alike(const struct trial *t, const char *name)
{
	const struct said *first = NULL;

	for (int i = 0; i < RANKS; i++) {
		const struct said *s = &said[i];

		if (!s->over)
			continue;
		CHECK(s->ms <= longest_of(t) + SLACK_MS, "%s: rank %d took "
		      "%llu ms", name, i, (unsigned long long)s->ms);
		CHECK(!s->result || s->error[0], "%s: rank %d says nothing",
		      name, i);
		CHECK(!s->result || s->result == -ETIMEDOUT || s->result ==
		      -EIO, "%s: rank %d: %d, %s", name, i, s->result,
		      s->error);
		first = first ? first : s;
		CHECK(s->result == first->result, "%s: rank %d has %d (%s; "
		      "%s), another one %d (%s; %s)", name, i, s->result,
		      s->error, s->why, first->result, first->error,
		      first->why);
	}
}

/* The one that is to die has, or it never came so far; and one that hangs in a
 * call of its own is ended. */
static void end_ranks(const struct trial *t, const pid_t *pids,
		      const char *name)
{
	uint64_t until = now_ms() + longest_of(t) + 2 * SLACK_MS;
	int status;

	for (int i = 0; i < RANKS; i++)
		CHECK(i == t->culprit || is_over(i, until), "%s: rank %d does "
		      "not end", name, i);
	if (t->culprit >= 0 && t->becomes == HANGS && !is_over(t->culprit, 0))
		(void)kill(pids[t->culprit], SIGKILL);
	for (int i = 0; i < RANKS; i++) {
		CHECK(waitpid(pids[i], &status, 0) == pids[i]);
		CHECK(!status || i == t->culprit, "%s: rank %d", name, i);
		CHECK(!status || WIFSIGNALED(status), "%s: the culprit",
		      name);
	}
}

/* Nothing of two communicators was on one device at once ($VNCCL_ORDER). */
static void check_apart(const struct scene *scene)
{
	char command[160], line[64] = "";
	FILE *f;

	(void)snprintf(command, sizeof(command), "cd %s && grep -h '^[lo] ' "
		       "[0-9]* | sort -r | head -n 1", scene->dir);
	f = popen(command, "re");
	CHECK(f && fgets(line, sizeof(line), f) && !pclose(f));
	CHECK(line[0] == 'l', "beside the trainer's: %s", line);
}

static void run(struct scene *scene, const struct trial *t)
{
	pid_t pids[RANKS];
	char name[200];

	name_it(t, name);
	memset(said, 0, RANKS * sizeof(*said));
	scene->node_of = t->save ? home : away;
	CHECK(!mesh_comm_new(&links, RANKS));
	if (t->save) {
		scene_ranks(scene, "ends", RANKS, save, t);
		mesh_comm_free(&links);
		return;
	}
	scene_ranks_start(scene, "ends", RANKS, load, t, pids);
	mesh_comm_free(&links);
	end_ranks(t, pids, name);
	check_alike(t, name);
	if (t->trains)
		check_apart(scene);
	printf("%s: %d after %llu %llu %llu %llu ms\n", name,
	       said[(t->culprit + 1) % RANKS].result,
	       (unsigned long long)said[0].ms, (unsigned long long)said[1].ms,
	       (unsigned long long)said[2].ms, (unsigned long long)said[3].ms);
	(void)fflush(stdout);
}

/* ---- trials ---- */

#define ALIKE { 5000, 5000, 5000, 5000 }

static const struct trial fixed[] = {
	{ .culprit = -1, .timeouts = { 60000, 4000, 20000, 9000 } },
	{ .culprit = -1, .timeouts = ALIKE, .trains = true },
	{ .culprit = -1, .timeouts = ALIKE, .trains = true },
	{ "ncclGetUniqueId", 1, DIES, 0, .timeouts = { 4000, 5000, 6000,
						       7000 } },
	{ "ncclGetUniqueId", 1, HANGS, 0, .timeouts = { 6000, 5000, 4000,
							3000 } },
	{ "ncclCommInitRankConfig", 1, HANGS, 2, .timeouts = ALIKE },
	{ "ncclCommInitRankConfig", 1, HANGS, 0, .mute = true,
	  .timeouts = { 4000, 4000, 9000, 4000 } },
	{ "ncclCommGetAsyncError", 1, DIES, 1, .timeouts = ALIKE },
	{ "ncclCommGetAsyncError", 1, HANGS, 3, .timeouts = ALIKE },
	{ "ncclGroupStart", 1, HANGS, 1, .timeouts = { 3000, 9000, 5000,
						       4000 } },
	{ "ncclGroupEnd", 1, HANGS, 3, .mute = true, .timeouts = ALIKE },
	{ "ncclCommFinalize", 1, HANGS, 2, .timeouts = ALIKE },
	{ "ncclCommDestroy", 1, DIES, 0, .timeouts = ALIKE },
	{ "ncclCommDestroy", 1, HANGS, 0, .timeouts = ALIKE },
	{ "ncclCommDestroy", 1, SK_NCCL_INTERNAL_ERROR, 3,
	  .timeouts = ALIKE },
	{ "ncclCommFinalize", 1, SK_NCCL_SYSTEM_ERROR, 1,
	  .timeouts = ALIKE },
};

static uint64_t drawn;

static uint32_t draw(uint32_t below)
{
	drawn = drawn * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (uint32_t)(drawn >> 33) % below;
}

static struct trial any(void)
{
	static const char *const functions[] = {
		"ncclGetUniqueId", "ncclCommInitRankConfig",
		"ncclCommGetAsyncError", "ncclCommGetAsyncError",
		"ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd",
		"ncclCommFinalize", "ncclCommDestroy" };
	static const unsigned kinds[] = { DIES, DIES, HANGS,
					  SK_NCCL_INTERNAL_ERROR };
	struct trial t = { .function = functions[draw(10)] };

	t.nth = 1 + draw(strstr(t.function, "Async") ? 120 : 3);
	t.becomes = kinds[draw(4)];
	t.culprit = strstr(t.function, "Unique") ? 0 : (int)draw(RANKS);
	t.told = draw(2);
	t.told_ms = draw(3) * 1000;
	t.mute = draw(2);
	for (int i = 0; i < RANKS; i++)
		t.timeouts[i] = 3000 + 500 * draw(7);
	return t;
}

static uint64_t number(const char *variable, uint64_t otherwise)
{
	const char *text = getenv(variable);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

int main(int argc, char **argv)
{
	const uint64_t cases = number("SK_CASES", 8);
	const struct trial first = { .culprit = -1, .save = true };
	struct scene scene, nodes[NODES];
	struct trainer_nccl nccl;

	setenv("VCUDA_DEVICES", "4", 0);
	if (trainer_nccl_open(&nccl, NULL) < 0 || !nccl.calls)
		return 77;
	said = mmap(NULL, RANKS * sizeof(*said), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(said != MAP_FAILED);
	scene_open(&scene, argc, argv);
	CHECK(!setenv("VNCCL_ORDER", scene.dir, 1));
	scene_add_nodes(&scene, nodes, NODES, true);
	run(&scene, &first);
	for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
		run(&scene, &fixed[i]);
	drawn = number("SK_SEED", 1);
	for (uint64_t i = 0; i < cases; i++) {
		const struct trial t = any();

		run(&scene, &t);
	}
	scene_close(&scene);
	return 0;
}
