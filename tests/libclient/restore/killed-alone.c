/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent that has no keeper is killed before each answer that it gives, and
 * before it hears each request, while the ranks of a job restore through it.
 * Another one follows at once, or none before all ranks have ended. Those end
 * alike, or who fails says what it cannot know; and what comes next restores.
 *
 * argv[1]: only every so many points.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"
#include "fault-os.h"
#include "server.h"
#include "shardkeep.h"

#define JOB "alone"
#define RANKS 3
#define ELEMENTS 4096
#define POINTS_MOST 2000
/* No rank waits for one that has given up. */
#define TIMEOUT_MS 120000u

/* What ranks tell their parent. */
struct board {
	int result[RANKS];
	char why[RANKS][512];
};

struct story {
	bool follows;		/* another agent, at once */
	bool reads;		/* by readers */
	struct rig rig;
	struct options options;
	struct endpoint endpoint;	/* the parent's, if one follows */
	struct sk_fault_os *fault;	/* shared with agents and ranks */
	struct board *board;
	uint64_t tried, apart;
};

/* ---- agents ---- */

static void serve(struct story *t, int ready)
{
	const struct sk_os *os = &t->fault->os;
	struct endpoint e = t->endpoint;
	struct sk_err err;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!t->follows)
		CHECK(endpoint_open(os, t->rig.socket, &e, &err) == 0, "%s",
		      err.text);
	t->options.ready_fd = ready;
	_exit(agent_run(os, &t->options, &e, NULL));
}

static void start_agent(struct story *t)
{
	int ready[2];
	char c;

	CHECK(pipe(ready) == 0, "pipe");
	t->rig.agent = fork();
	CHECK(t->rig.agent >= 0, "fork");
	if (!t->rig.agent)
		serve(t, ready[1]);
	close(ready[1]);
	CHECK(read(ready[0], &c, 1) == 1, "it never served");
	close(ready[0]);
}

static void begin(struct story *t)
{
	struct sk_err err;

	rig_init(&t->rig, "none");
	t->options = (struct options){
		.store = t->rig.store, .memory = 64u << 20,
		.admin_uid = (uid_t)-1, .level = LOG_LEVEL_ERROR,
		.stop_timeout_s = 300, .backend = SK_IO_THREADS,
		.hangs_s = NEVER_HANGS_S };
	if (t->follows)
		CHECK(endpoint_open(sk_os_linux(), t->rig.socket,
				    &t->endpoint, &err) == 0, "%s", err.text);
	start_agent(t);
}

static void die(void *ctx)
{
	(void)ctx;
	(void)kill(getpid(), SIGKILL);
}

/* ---- a rank ---- */

static float value(int rank, int i)
{
	return (float)(rank * ELEMENTS + i);
}

static int open_job(const struct story *t, int rank, bool reads,
		    struct sk **ret, struct sk_state **ret_state, float *w)
{
	int r = sk_open(&(struct sk_options){ .socket = t->rig.socket,
					      .timeout_ms = TIMEOUT_MS }, ret);

	if (r < 0)
		return r;	/* killed before it was asked anything */
	CHECK(sk_state_create(*ret, &(struct sk_job){
		.name = JOB, .rank = rank, .world = RANKS,
		.flags = reads ? SK_JOB_READER : 0,
		.flush_every = 1 }, ret_state) == 0, "%s", sk_error());
	CHECK(sk_state_blob_local(*ret_state, "w", w, ELEMENTS *
				  sizeof(*w)) == 0, "%s", sk_error());
	return 0;
}

static int save(const struct story *t, int rank)
{
	float *w = calloc(ELEMENTS, sizeof(*w));
	struct sk_state *state;
	struct sk *sk;

	CHECK(open_job(t, rank, false, &sk, &state, w) == 0, "%s", sk_error());
	for (int i = 0; i < ELEMENTS; i++)
		w[i] = value(rank, i);
	CHECK(sk_snapshot(state, 10, NULL) == 0, "%s", sk_error());
	CHECK(sk_wait(state, 10, SK_DURABLE, TIMEOUT_MS) == 0, "%s",
	      sk_error());
	sk_state_free(state);
	sk_close(sk);
	free(w);
	return 0;
}

static int restore(const struct story *t, int rank)
{
	struct sk_restore_options o = { .timeout_ms = TIMEOUT_MS };
	float *w = calloc(ELEMENTS, sizeof(*w));
	struct sk_state *state = NULL;
	struct sk *sk = NULL;
	int r;

	r = open_job(t, rank, t->reads, &sk, &state, w);
	if (r == 0)
		r = sk_restore(state, SK_LATEST, NULL, &o, NULL);
	t->board->result[rank] = r;
	snprintf(t->board->why[rank], sizeof(t->board->why[rank]), "%s",
		 r < 0 ? sk_error() : "");
	for (int i = 0; r == 0 && i < ELEMENTS; i++)
		CHECK(w[i] == value(rank, i), "element %d of rank %d", i,
		      rank);
	sk_state_free(state);
	sk_close(sk);
	free(w);
	return 0;
}

/* ---- a life of the job ---- */

static void start(const struct story *t, pid_t *pids,
		  int (*live)(const struct story *, int))
{
	memset(t->board, 0, sizeof(*t->board));
	for (int rank = 0; rank < RANKS; rank++) {
		pids[rank] = fork();
		CHECK(pids[rank] >= 0, "fork");
		if (pids[rank])
			continue;
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(live(t, rank));
	}
}

/* True: it is killed, and another one serves where one is to follow. */
static bool see_to_agent(struct story *t)
{
	int status;

	if (t->rig.agent < 0 ||
	    waitpid(t->rig.agent, &status, WNOHANG) != t->rig.agent)
		return false;
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
	      "the agent ended with %#x", status);
	t->rig.agent = -1;
	if (t->follows)
		start_agent(t);
	return true;
}

/* True: the agent was killed. */
static bool end_life(struct story *t, pid_t *pids)
{
	int status, left = RANKS;
	bool killed = false;

	while (left) {
		killed |= see_to_agent(t);
		for (int rank = 0; rank < RANKS; rank++) {
			if (!pids[rank] ||
			    waitpid(pids[rank], &status, WNOHANG) !=
			    pids[rank])
				continue;
			CHECK(!status, "rank %d ended with %#x", rank, status);
			pids[rank] = 0;
			left--;
		}
		usleep(1000);
	}
	return killed;
}

/* Who was just about to be killed has been by the second answer. */
static bool was_killed_late(struct story *t)
{
	bool killed = false;

	for (int i = 0; i < 2 && t->rig.agent > 0; i++) {
		struct sk_msg msg;
		int sock = rig_try_connect(&t->rig, &msg);

		if (sock >= 0)
			close(sock);
		while (sock < 0 && !killed)
			killed = see_to_agent(t);
	}
	return killed;
}

static void restore_well(struct story *t)
{
	pid_t pids[RANKS];

	if (t->rig.agent < 0)
		start_agent(t);
	start(t, pids, restore);
	(void)end_life(t, pids);
	for (int rank = 0; rank < RANKS; rank++)
		CHECK(t->board->result[rank] == 0, "rank %d: %d: %s", rank,
		      t->board->result[rank], t->board->why[rank]);
}

static void check_result(const struct story *t, int rank, bool apart,
			 const char *point, uint64_t nth)
{
	const char *why = t->board->why[rank];
	int r = t->board->result[rank];

	CHECK(!t->follows || r == 0, "killed before %s %" PRIu64 ": rank %d: "
	      "%d: %s", point, nth, rank, r, why);
	CHECK(r == 0 || r == -ECONNRESET || r == -ECONNREFUSED, "killed before "
	      "%s %" PRIu64 ": rank %d: %d: %s", point, nth, rank, r, why);
	/* It had all, and nobody to tell it that the others had. */
	CHECK(!apart || r == 0 || strstr(why, "of the others nobody can tell"),
	      "killed before %s %" PRIu64 ": rank %d: %s", point, nth, rank,
	      why);
}

static void check_results(struct story *t, enum sk_fault_op op, uint64_t nth)
{
	const char *point = op == SK_FAULT_SENDMSG ? "answer" : "request";
	int failed = 0;

	for (int rank = 0; rank < RANKS; rank++)
		failed += t->board->result[rank] < 0;
	for (int rank = 0; rank < RANKS; rank++)
		check_result(t, rank, failed && failed < RANKS, point, nth);
	t->apart += failed && failed < RANKS;
}

/* True: there was such a point. */
static bool killed_at(struct story *t, enum sk_fault_op op, uint64_t nth)
{
	pid_t pids[RANKS];
	bool hit;

	sk_fault_os_forget(t->fault);
	sk_fault_os_meddle(t->fault, op, nth, die, NULL);
	start(t, pids, restore);
	hit = end_life(t, pids);
	__atomic_store_n(&t->fault->rule_count, 0, __ATOMIC_SEQ_CST);
	/* It dies, though it may not be dead by now. */
	for (; !hit && sk_fault_os_hits(t->fault); usleep(1000))
		hit = see_to_agent(t);
	hit |= was_killed_late(t);
	check_results(t, op, nth);
	t->tried++;
	restore_well(t);
	return hit;
}

static void enumerate(struct story *t, enum sk_fault_op op, uint64_t stride)
{
	uint64_t n = 1, missed = 0;

	for (; missed < 3 && n < POINTS_MOST; n += stride)
		missed = killed_at(t, op, n) ? 0 : missed + 1;
	CHECK(n < POINTS_MOST, "it does not end");
}

static void tell(struct story *t, uint64_t stride)
{
	pid_t pids[RANKS];

	begin(t);
	start(t, pids, save);
	(void)end_life(t, pids);
	enumerate(t, SK_FAULT_SENDMSG, stride);
	enumerate(t, SK_FAULT_RECVMSG, stride);
	printf("%s%s: %" PRIu64 " points, at %" PRIu64 " some restored and "
	       "some did not\n", t->follows ? "another agent" : "no agent",
	       t->reads ? ", readers" : "", t->tried, t->apart);
	if (t->rig.agent < 0)
		start_agent(t);
	(void)rig_stop(&t->rig);
	rig_remove(&t->rig);
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
	struct sk_fault_os *fault = shared(sizeof(*fault));
	struct board *board = shared(sizeof(*board));

	CHECK(stride, "a stride of 1 or more");
	sk_fault_os_init(fault, sk_os_linux());
	for (int i = 0; i < 4; i++) {
		struct story t = { .follows = i & 1, .reads = i & 2,
				   .fault = fault, .board = board };

		tell(&t, stride);
	}
	return 0;
}
