/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that do not read the descriptors that they asked for: the system
 * bounds how many a user may have sent, but for root, and the agent is not
 * root here. Another user's clients are served all the while.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"

#define FDS 1024	/* of the agent */
#define CLIENTS 60
#define CALLS 20	/* of each: more than the limit in all */
#define REST_MS 500u
#define ASKS 40			/* fewer than may be in flight */
#define TURNS_MOST (8 * CLIENTS)	/* they are tried ever more rarely */

/* Users of this test alone: the system counts by user. */
static uid_t agent_uid, idle_uid, good_uid;

static bool start_agent(struct rig *rig)
{
	const struct rlimit limit = { .rlim_cur = FDS, .rlim_max = FDS };

	CHECK(chown(rig->dir, agent_uid, (gid_t)-1) == 0, "chown");
	CHECK(setresuid(agent_uid, agent_uid, 0) == 0, "setresuid");
	if (access(rig->program, X_OK) < 0) {
		CHECK(setresuid(0, 0, 0) == 0, "setresuid");
		return false;
	}
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
	rig_start(rig, "--memory", "64M", "--log-level", "error", NULL);
	CHECK(setresuid(0, 0, 0) == 0, "setresuid");
	return true;
}

static void ask(int sock)
{
	struct sk_msg msg = { .type = SK_MSG_STATS };

	rig_send(sock, &msg);
}

static void read_all(int sock, int n)
{
	struct sk_msg msg;

	while (n--) {
		int fds[SK_MSG_FDS], n_fds = 0;

		CHECK_STATUS(rig_reply(sock, &msg, fds, &n_fds), 0, &msg);
		CHECK(n_fds == 1, "%d descriptors", n_fds);
		close(fds[0]);
	}
}

static void await(int fd)
{
	char c;

	CHECK(read(fd, &c, 1) == 1, "read");
}

/* Reads nothing before it is told to; then all of it is there. */
static void be_idle(const struct rig *rig, int ready, int go)
{
	int socks[CLIENTS];

	CHECK(setgroups(0, NULL) == 0 && setuid(idle_uid) == 0, "setuid");
	for (int i = 0; i < CLIENTS; i++)
		socks[i] = rig_connect(rig);
	for (int k = 0; k < CALLS; k++)
		for (int i = 0; i < CLIENTS; i++)
			ask(socks[i]);
	/* Ends that leave what was sent unread change nothing. */
	for (int i = 0; i < CLIENTS / 4; i++)
		CHECK(write(socks[i], "?", 1) == 1, "write");
	CHECK(write(ready, "1", 1) == 1, "write");
	await(go);
	for (int i = CLIENTS / 4; i < CLIENTS; i++)
		read_all(socks[i], CALLS);
	_exit(0);
}

static void be_good(const struct rig *rig)
{
	struct rank r;
	double turns;

	CHECK(setgroups(0, NULL) == 0 && setuid(good_uid) == 0, "setuid");
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "good", .world = 1, .rows = 1 }), 0, &r.msg);
	for (int64_t step = 1; step < 20; step++)
		rank_snapshot(&r, step);
	turns = stat_value(r.sock, "shardkeep_turns_total");
	CHECK(stat_value(r.sock, "shardkeep_descriptors_in_flight") >= 10,
	      "nothing is in flight");
	CHECK(stat_value(r.sock, "shardkeep_descriptors_in_flight") <
	      0.6 * FDS, "too much is in flight");
	/* It has nothing to do before it answers that the time is over. */
	CHECK(rank_slot(&r, 20, 0) >= 0, "slot");
	CHECK_STATUS(rank_wait(&r, 20, 2, REST_MS), -ETIMEDOUT, &r.msg);
	turns = stat_value(r.sock, "shardkeep_turns_total") - turns;
	CHECK(turns < TURNS_MOST, "%.0f turns for nothing", turns);
	rank_close(&r);
	_exit(0);
}

static void ended(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %#x",
	      status);
}

/* But for this answer: it flies too, and lands with the connection. */
static double in_flight(const struct rig *rig)
{
	int sock = rig_connect(rig);
	double n = stat_value(sock, "shardkeep_descriptors_in_flight");

	close(sock);
	return n;
}

/* A connection that has ended for what it sent: what it has not read is in
 * flight as long as it can be read, and no longer, though nobody sends. */
static void test_unread(const struct rig *rig)
{
	int slow = rig_connect(rig);
	struct pollfd p = { .fd = slow, .events = POLLIN };
	bool landed = false;

	ask(slow);
	CHECK(poll(&p, 1, WAIT_MS) == 1, "no answer");
	CHECK(write(slow, "?", 1) == 1, "write");
	AWAIT(poll(&p, 1, 0) == 1 && p.revents & POLLHUP, "it does not end");
	CHECK(in_flight(rig) >= 1, "it is forgotten");
	close(slow);
	/* Many asks would have the agent look. */
	for (int i = 0; i < ASKS && !landed; i++) {
		(void)poll(NULL, 0, REST_MS);
		landed = in_flight(rig) < 1;
	}
	CHECK(landed, "it flies on");
}

int main(int argc, char **argv)
{
	int ready[2], go[2];
	struct rig rig;
	pid_t idle, good;

	if (geteuid() != 0)
		return 77;	/* it takes several users */
	agent_uid = 1000000 + 4 * (uid_t)getpid();
	idle_uid = agent_uid + 1;
	good_uid = agent_uid + 2;
	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	if (!start_agent(&rig)) {
		rig_remove(&rig);
		return 77;
	}
	CHECK(pipe(ready) == 0 && pipe(go) == 0, "pipe");
	idle = fork();
	CHECK(idle >= 0, "fork");
	if (!idle)
		be_idle(&rig, ready[1], go[0]);
	await(ready[0]);
	good = fork();
	CHECK(good >= 0, "fork");
	if (!good)
		be_good(&rig);
	ended(good);
	CHECK(write(go[1], "1", 1) == 1, "write");
	ended(idle);
	test_unread(&rig);
	CHECK(rig_stop(&rig) == 0, "exit status");
	rig_remove(&rig);
	return 0;
}
