/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers restore what a job has in memory, by a comm of their own. After any
 * one of their meetings the agent is killed, and with it goes what kept the
 * slots for them: the job goes on at the next agent and fills each of its
 * slots anew. What comes back is one step all the same, whoever was to verify
 * it, and when.
 * Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/agent.h"
#include "support/await.h"
#include "support/mesh-comm.h"

#define JOB "unkept"
#define SLOTS 2
#define READERS 2
#define MEETINGS_MOST 60
/* An agent that lived shorter, again and again, is one that cannot live, and
 * its keeper takes seconds to the next. */
#define LIFE_US 110000
/* For the other's next word, which may wait for this one's. */
#define WORD_MS 300

/* What all processes see. */
struct board {
	bool reached;		/* the meeting, in this trial */
	int64_t complete;	/* step */
};

struct trial {
	struct board *board;
	int go[2], gone[2];	/* pipes to the job and back */
	pid_t keeper;		/* of the agent that serves the job */
	struct mesh_comm *mesh;
	uint32_t flags;
	bool brief;		/* what one alone verifies is all they want */
	int who, meeting;	/* of whom, after which it happens; from 1 */
};

static void describe(struct rank *rank, bool brief)
{
	/* Several chunks, of which ranks verify one each for the others, and
	 * less than one. */
	if (!brief)
		rank_tensor(rank, &(struct sk_tensor){
			.name = "long", .dtype = SK_F32, .ndim = 2,
			.shape = { 700, 1000 } }, 0xee);
	rank_tensor(rank, &(struct sk_tensor){
		.name = "short", .dtype = SK_F32, .ndim = 1,
		.shape = { 1000 } }, 0xee);
}

/* ---- the job ---- */

static int take(struct rank *rank, int64_t step)
{
	struct sk_snapshot_options o = { .flags = SK_SNAPSHOT_NO_FLUSH,
					 .wait_ms = 60000 };
	int r;

	rank_write(rank, step);
	r = sk_snapshot(rank->state, step, &o);
	if (r >= 0)
		r = sk_fence(rank->state);
	return r < 0 ? r : sk_wait(rank->state, step, SK_COMPLETE, 60000);
}

/* Each slot, and the first of them again. */
static void fill_all(struct rank *rank, const struct trial *t, int64_t *step)
{
	for (int n = 0; n <= SLOTS;) {
		int r = take(rank, ++*step);

		CHECK(r == 0 || r == -ECONNRESET, "step %lld: %d: %s",
		      (long long)*step, r, sk_error());
		n += r == 0;
	}
	t->board->complete = *step;
}

static void train(struct rank *rank)
{
	const struct trial *t = rank->arg;
	int64_t step = 0;
	char c;

	close(t->go[1]);
	describe(rank, false);
	do {
		fill_all(rank, t, &step);
		CHECK(write(t->gone[1], "", 1) == 1);
	} while (read(t->go[0], &c, 1) == 1);
}

static void have_job_go_on(const struct trial *t)
{
	char c;

	CHECK(write(t->go[1], "", 1) == 1 && read(t->gone[0], &c, 1) == 1);
}

/* ---- a reader ---- */

struct hooked {
	struct rank *rank;
	const struct trial *trial;
	struct sk_comm comm;
	int meetings;
};

/* The other one has done its part, and may have verified for both. */
static void await_word(const struct hooked *h)
{
	const struct mesh_comm *mesh = h->comm.ctx;
	struct pollfd p = { .events = POLLIN };

	p.fd = mesh->fds[mesh->rank * mesh->world + 1 - mesh->rank];
	(void)poll(&p, 1, WORD_MS);
}

static void met(struct hooked *h)
{
	const struct trial *t = h->trial;
	pid_t agent;

	if (++h->meetings != t->meeting || h->rank->rank != t->who)
		return;
	await_word(h);
	(void)usleep(LIFE_US);
	AWAIT((agent = agent_of_keeper(t->keeper)), "no agent");
	CHECK(!kill(agent, SIGKILL));
	have_job_go_on(t);
	t->board->reached = true;
}

static int gather(void *ctx, const void *in, size_t bytes, void *all,
		  uint32_t timeout_ms)
{
	struct hooked *h = ctx;
	int r = h->comm.allgather(h->comm.ctx, in, bytes, all, timeout_ms);

	met(h);
	return r;
}

static int exchange(void *ctx, const struct sk_comm_part *sends,
		    size_t n_sends, const struct sk_comm_part *receives,
		    size_t n_receives, uint32_t timeout_ms)
{
	struct hooked *h = ctx;
	int r = h->comm.exchange(h->comm.ctx, sends, n_sends, receives,
				 n_receives, timeout_ms);

	met(h);
	return r;
}

static void load(struct rank *rank)
{
	const struct trial *t = rank->arg;
	struct hooked h = { .rank = rank, .trial = t };
	struct sk_comm comm = { .ctx = &h, .allgather = gather,
				.exchange = exchange };
	struct sk_restore_options o = {
		.flags = t->flags | (t->brief ? SK_RESTORE_EXTRA_OK : 0) };
	struct sk_report report = { .step = -1 };
	int r;

	mesh_comm_join(t->mesh, rank->rank, &h.comm);
	describe(rank, t->brief);
	r = sk_restore(rank->state, SK_LATEST, &comm, &o, &report);
	CHECK(r == 0, "rank %d, after meeting %d of rank %d: %d: %s",
	      rank->rank, t->meeting, t->who, r, sk_error());
	if (rank_wrong(rank, report.step, -1)) {
		rank_tell_wrong(rank, report.step, -1);
		CHECK(false, "rank %d, after meeting %d of rank %d, by %#x",
		      rank->rank, t->meeting, t->who, t->flags);
	}
	mesh_comm_free(t->mesh);
}

/* ---- trials ---- */

static void read_once(struct scene *scene, struct trial *t)
{
	struct scene readers = *scene;
	struct mesh_comm mesh;

	CHECK(!mesh_comm_new(&mesh, READERS));
	t->mesh = &mesh;
	t->board->reached = false;
	readers.job_flags = SK_JOB_READER;
	scene_ranks(&readers, JOB, READERS, load, t);
	mesh_comm_free(&mesh);
}

/* After each of the meetings of one of @n in turn, of which there are as many
 * as there are. */
static void try_all(struct scene *scene, struct trial *t, int n)
{
	for (t->who = 0; t->who < n; t->who++) {
		t->meeting = 0;
		do {
			t->meeting++;
			CHECK(t->meeting < MEETINGS_MOST);
			read_once(scene, t);
		} while (t->board->reached);
		CHECK(t->meeting > 3, "they met %d times", t->meeting - 1);
	}
}

static void start_job(struct scene *scene, struct trial *t, pid_t *pid)
{
	struct scene job = *scene;
	char c;

	job.n_nodes = 0;
	job.slots = SLOTS;
	CHECK(!pipe2(t->go, O_CLOEXEC) && !pipe2(t->gone, O_CLOEXEC));
	t->board = mmap(NULL, sizeof(*t->board), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(t->board != MAP_FAILED);
	scene_ranks_start(&job, JOB, 1, train, t, pid);
	CHECK(read(t->gone[0], &c, 1) == 1);
}

int main(int argc, char **argv)
{
	struct scene scene, nodes[2];
	struct trial t = { 0 };
	pid_t pid;

	scene_open(&scene, argc, argv);
	scene_stop_agent(&scene, SIGTERM);
	scene.keeper = true;
	scene_start_agent(&scene);
	t.keeper = scene.agent;
	start_job(&scene, &t, &pid);
	t.brief = true;
	try_all(&scene, &t, READERS);
	t.brief = false;
	t.flags = SK_RESTORE_NO_VERIFY;
	try_all(&scene, &t, READERS);
	t.flags = 0;
	scene_add_nodes(&scene, nodes, 2, true);
	/* Of the other node nobody reads memory. */
	try_all(&scene, &t, 1);
	close(t.go[1]);
	scene_ranks_end(JOB, 1, &pid);
	scene_close(&scene);
	return 0;
}
