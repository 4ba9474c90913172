/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent that has a keeper is killed before each answer that it gives, and
 * before it hears each request, while the ranks of a job restore: on one node
 * through the agent alone, and on two through a comm of theirs. No rank waits
 * for one that has given up: the restore goes on at the next agent, with what
 * outlived the first one, and so does the job.
 *
 * argv[1]: only every so many points.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/outlive.h"
#include "shardkeep.h"
#include "support/mesh-comm.h"

#define JOB "killed"
#define ROWS 600
#define COLUMNS 64
#define RANKS_MOST 3
#define POINTS_MOST 2000
/* An agent that lived shorter, again and again, is one that cannot live, and
 * its keeper takes seconds to the next. */
#define LIFE_US 110000

/* Which ranks there are, and on which nodes. */
struct place {
	const char *what;
	int ranks, nodes;
	int node_of[RANKS_MOST];
};

static const struct place places[] = {
	{ "one node", 2, 1, { 0, 0 } },
	{ "two nodes", 2, 2, { 0, 1 } },
	{ "two nodes, of two ranks and one", 3, 2, { 0, 0, 1 } },
};

/* What ranks tell their parent. */
struct board {
	int result[RANKS_MOST];
	char why[RANKS_MOST][512];
};

struct story {
	const struct place *place;
	struct scene *scenes;		/* of each node */
	struct board *board;
	struct mesh_comm mesh;
	int done[2], go[2];		/* pipes: it is restored; go on */
	int64_t step;			/* that is there; 0: none yet */
	bool whole;			/* each rank wants all */
	uint64_t tried;
};

/* ---- a rank ---- */

static float value(int64_t step, int64_t at)
{
	return (float)(step * 1000003 + at);
}

static void describe(const struct story *t, int rank, struct sk_state *state,
		     float **ret, int64_t *ret_from, int64_t *ret_n)
{
	int64_t each = ROWS / t->place->ranks;
	int32_t of[RANKS_MOST] = { 0, 1, 2 };
	struct sk_mesh *mesh;

	CHECK(sk_mesh_create(1, (int64_t[]){ t->place->ranks }, of, NULL,
			     &mesh) == 0, "%s", sk_error());
	*ret_from = t->whole ? 0 : rank * each * COLUMNS;
	*ret_n = (t->whole ? ROWS : each) * COLUMNS;
	*ret = calloc((size_t)*ret_n, sizeof(**ret));
	CHECK(*ret, "no memory");
	CHECK(sk_state_tensor(state, &(struct sk_tensor){
		.name = "w", .dtype = SK_F32, .ndim = 2,
		.shape = { ROWS, COLUMNS }, .mesh = mesh,
		.placements = { t->whole ? SK_REPLICATE : SK_SHARD(0) },
		.data = *ret }) == 0, "%s", sk_error());
	sk_mesh_release(mesh);
}

/* The agent may be killed meanwhile. */
static void open_job(const struct story *t, int rank, struct sk **ret,
		     struct sk_state **ret_state)
{
	const struct scene *s = &t->scenes[t->place->node_of[rank]];
	int r = sk_open(&(struct sk_options){ .socket = s->rig.socket,
					      .timeout_ms = 60000 }, ret);

	CHECK(r == 0, "%d: %s", r, sk_error());
	CHECK(sk_state_create(*ret, &(struct sk_job){
		.name = JOB, .rank = rank, .world = t->place->ranks,
		.flush_every = SK_FLUSH_NEVER }, ret_state) == 0, "%s",
	      sk_error());
}

/* As whoever looks what there is before it restores: of the next agent, where
 * one is killed. */
static void ask(const struct story *t, struct sk *sk)
{
	char *json;
	int r = sk_snapshots(sk, JOB, &json);

	CHECK(r == 0, "%d: %s", r, sk_error());
	free(json);
	if (!t->step)
		return;
	r = sk_inspect(sk, JOB, t->step, 0, SK_INSPECT_BRIEF, &json);
	CHECK(r == 0, "%d: %s", r, sk_error());
	free(json);
}

static void restore(struct story *t, int rank, struct sk_state *state,
		    const float *w, int64_t from, int64_t n)
{
	struct sk_comm comm;
	struct sk_report report = { 0 };
	int r;

	if (t->place->nodes > 1)
		mesh_comm_join(&t->mesh, rank, &comm);
	r = sk_restore(state, SK_LATEST, t->place->nodes > 1 ? &comm : NULL,
		       NULL, &report);
	t->board->result[rank] = r;
	if (r < 0)
		snprintf(t->board->why[rank], sizeof(t->board->why[rank]),
			 "%s", sk_error());
	for (int64_t i = 0; r == 0 && i < n; i++)
		CHECK(w[i] == value(t->step, from + i), "element %" PRId64
		      " of rank %d of step %" PRId64, from + i, rank, t->step);
	CHECK(r || report.step == t->step, "step %" PRId64, report.step);
	if (!t->step && r == -ENOENT)
		t->board->result[rank] = 0;
}

/* Nobody is killed from the parent's answer on. */
static void wait_for_all(const struct story *t)
{
	char c;

	CHECK(write(t->done[1], "", 1) == 1, "write");
	close(t->go[1]);
	CHECK(read(t->go[0], &c, 1) == 0, "read");
}

static int live(struct story *t, int rank)
{
	int until = t->place->nodes > 1 ? SK_SEALED : SK_COMPLETE;
	struct sk_state *state;
	int64_t from, n;
	struct sk *sk;
	float *w;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	open_job(t, rank, &sk, &state);
	describe(t, rank, state, &w, &from, &n);
	ask(t, sk);
	restore(t, rank, state, w, from, n);
	wait_for_all(t);
	for (int64_t i = 0; i < n; i++)
		w[i] = value(t->step + 1, from + i);
	CHECK(sk_snapshot(state, t->step + 1, NULL) == 0, "%s", sk_error());
	CHECK(sk_wait(state, t->step + 1, until, 60000) == 0, "%s",
	      sk_error());
	sk_state_free(state);
	sk_close(sk);
	free(w);
	return 0;
}

/* ---- a life of the job ---- */

static void start(struct story *t, pid_t *pids)
{
	memset(t->board, 0, sizeof(*t->board));
	CHECK(pipe2(t->done, O_CLOEXEC) == 0 && pipe2(t->go, O_CLOEXEC) == 0,
	      "pipe");
	CHECK(mesh_comm_new(&t->mesh, t->place->ranks) == 0, "sockets");
	for (int rank = 0; rank < t->place->ranks; rank++) {
		pids[rank] = fork();
		CHECK(pids[rank] >= 0, "fork");
		if (!pids[rank])
			_exit(live(t, rank));
	}
	mesh_comm_free(&t->mesh);
}

/* A rank that waits for another has -ETIMEDOUT in the end. */
static void await_restored(const struct story *t)
{
	char c;

	close(t->done[1]);
	for (int rank = 0; rank < t->place->ranks; rank++)
		CHECK(read(t->done[0], &c, 1) == 1, "a rank is gone");
	close(t->done[0]);
}

static void end_life(struct story *t, const pid_t *pids)
{
	int status;

	close(t->go[0]);
	close(t->go[1]);
	for (int rank = 0; rank < t->place->ranks; rank++) {
		CHECK(waitpid(pids[rank], &status, 0) == pids[rank], "wait");
		CHECK(!status, "rank %d ended with %#x", rank, status);
	}
	t->step++;
}

static void check_results(const struct story *t, enum sk_fault_op op,
			  uint64_t nth)
{
	for (int rank = 0; rank < t->place->ranks; rank++)
		CHECK(t->board->result[rank] == 0, "%s, killed before %s %"
		      PRIu64 ": rank %d: %d: %s", t->place->what,
		      op == SK_FAULT_SENDMSG ? "answer" : "request", nth,
		      rank, t->board->result[rank], t->board->why[rank]);
}

/* True: there was such a point. */
static bool killed_at(struct story *t, enum sk_fault_op op, uint64_t nth)
{
	struct sk_fault_os *fault = t->scenes[0].fault;
	pid_t pids[RANKS_MOST];
	bool hit;

	(void)usleep(LIFE_US);
	sk_fault_os_forget(fault);
	sk_fault_os_meddle(fault, op, nth, die, NULL);
	t->whole = !t->whole;
	start(t, pids);
	await_restored(t);
	__atomic_store_n(&fault->rule_count, 0, __ATOMIC_SEQ_CST);
	/* Who was just about to be killed has been by the second answer. */
	for (int i = 0; i < 2; i++)
		(void)serving(&t->scenes[0]);
	hit = sk_fault_os_hits(fault);
	check_results(t, op, nth);
	end_life(t, pids);
	t->tried++;
	return hit;
}

static void enumerate(struct story *t, enum sk_fault_op op, uint64_t stride)
{
	uint64_t n = 1, missed = 0;

	/* Each point twice: from parts to the whole, and back. */
	for (; missed < 3 && n < POINTS_MOST; n += stride) {
		bool hit = killed_at(t, op, n);

		hit = killed_at(t, op, n) || hit;
		missed = hit ? 0 : missed + 1;
	}
	CHECK(n < POINTS_MOST, "it does not end");
}

static void tell(struct story *t, uint64_t stride)
{
	pid_t pids[RANKS_MOST];

	for (int i = 0; i < t->place->nodes; i++)
		begin(&t->scenes[i]);
	start(t, pids);
	await_restored(t);
	end_life(t, pids);
	enumerate(t, SK_FAULT_SENDMSG, stride);
	enumerate(t, SK_FAULT_RECVMSG, stride);
	printf("%s: %" PRIu64 " points\n", t->place->what, t->tried);
	for (int i = 0; i < t->place->nodes; i++) {
		(void)rig_stop(&t->scenes[i].rig);
		rig_remove(&t->scenes[i].rig);
	}
}

static void *shared(size_t bytes)
{
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(map != MAP_FAILED, "mmap");
	return map;
}

int main(int argc, char **argv)
{
	uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	struct scene scenes[2];
	struct board *board = shared(sizeof(*board));

	CHECK(stride, "a stride of 1 or more");
	memset(scenes, 0, sizeof(scenes));
	for (int i = 0; i < 2; i++) {
		scenes[i].fault = shared(sizeof(*scenes[i].fault));
		sk_fault_os_init(scenes[i].fault, sk_os_linux());
	}
	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		struct story t = { .place = &places[i], .scenes = scenes,
				   .board = board };

		tell(&t, stride);
	}
	return 0;
}
