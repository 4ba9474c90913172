/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank sent before it was killed is heard, whether or not it had read
 * what it was told before, and whether or not it can still be told anything.
 */
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"

#define MANY 250	/* messages: more replies than its socket takes */

enum how {
	NOTHING_ELSE,
	LEFT_UNREAD,	/* one reply */
	NOT_TOLD,	/* it is gone when the agent answers */
	FULL,		/* of replies, and some wait with the agent */
	N_HOW,
};

static const char *const names[N_HOW] = {
	"nothing-else", "left-unread", "not-told", "full",
};

struct ends {
	int said[2], go[2];
};

static void say_and_wait(const struct ends *e)
{
	char byte = 0;

	CHECK(write(e->said[1], &byte, 1) == 1 && read(e->go[0], &byte, 1) == 1,
	      "a pipe");
}

static void hear(const struct ends *e)
{
	char byte;

	CHECK(read(e->said[0], &byte, 1) == 1, "it ended");
}

static void go(const struct ends *e)
{
	CHECK(write(e->go[1], "", 1) == 1, "a pipe");
}

static void ask(const struct rank *r, int times)
{
	struct sk_msg msg = { .type = SK_MSG_STATUS };

	for (int i = 0; i < times; i++)
		rig_send(r->sock, &msg);
}

/* All that is asked and the seal, though nobody takes any of it. */
static void have_room(const struct rank *r)
{
	int bytes = 2 * MANY * (int)sizeof(struct sk_msg), got = 0;
	socklen_t size = sizeof(got);

	CHECK(setsockopt(r->sock, SOL_SOCKET, SO_SNDBUF, &bytes,
			 sizeof(bytes)) == 0 &&
	      getsockopt(r->sock, SOL_SOCKET, SO_SNDBUF, &got, &size) == 0 &&
	      got >= bytes, "%d bytes of %d", got, bytes);
}

/* The agent stands still between what it says before and the seal. */
static void be_rank(const struct rig *rig, enum how how, bool closes,
		    const struct ends *e)
{
	struct sk_msg msg = { .type = SK_MSG_SEAL };
	struct pollfd p = { .events = POLLIN };
	struct rank r;
	int slot;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = names[how], .world = 1 }), 0, &r.msg);
	slot = rank_slot(&r, 1, 0);
	CHECK(slot >= 0, "%s", rig_why(&r.msg));
	rank_fill(&r, slot, 1);
	have_room(&r);
	p.fd = r.sock;
	ask(&r, how == LEFT_UNREAD ? 1 : how == FULL ? MANY : 0);
	CHECK((how != LEFT_UNREAD && how != FULL) ||
	      poll(&p, 1, WAIT_MS) == 1, "no reply");
	say_and_wait(e);
	ask(&r, how == NOT_TOLD ? 3 : 0);
	msg.body.seal.state = r.state;
	msg.body.seal.step = 1;
	msg.body.seal.slot = (uint32_t)slot;
	rig_send(r.sock, &msg);
	if (closes)
		close(r.sock);
	say_and_wait(e);
	_exit(1);
}

/* Those of its user are served by turns: so are all messages of the other. */
static void be_answered(int sock)
{
	struct sk_msg msg;

	for (int i = 0; i < MANY; i++) {
		msg = (struct sk_msg){ .type = SK_MSG_STATUS };
		CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), 0,
			     &msg);
	}
}

static void test(const struct rig *rig, enum how how, bool closes)
{
	int sock = rig_connect(rig), status;
	struct sk_msg msg;
	struct ends e;
	pid_t pid;

	CHECK(pipe(e.said) == 0 && pipe(e.go) == 0, "pipe");
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid)
		be_rank(rig, how, closes, &e);
	hear(&e);
	be_answered(sock);
	rig_freeze(rig);
	go(&e);
	hear(&e);
	if (!closes)
		CHECK(kill(pid, SIGKILL) == 0 &&
		      waitpid(pid, &status, 0) == pid, "kill");
	rig_thaw(rig);
	AWAIT(snapshot_flags(sock, names[how], 1) & SK_SNAP_COMPLETE,
	      "%s, %s: what it sealed is lost", names[how],
	      closes ? "closed" : "killed");
	if (closes)
		CHECK(kill(pid, SIGKILL) == 0 &&
		      waitpid(pid, &status, 0) == pid, "kill");
	AWAIT(manage(sock, SK_MSG_EVICT, names[how], 1, SK_EVICT_FORCE,
		     &msg) == 0, "%s", rig_why(&msg));
	for (int i = 0; i < 2; i++) {
		close(e.said[i]);
		close(e.go[i]);
	}
	close(sock);
}

int main(int argc, char **argv)
{
	struct rig rig;

	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	rig_start(&rig, "--memory", "64M", NULL);
	for (int how = 0; how < N_HOW; how++) {
		/* Of one that is killed, not so many are heard. */
		if (how != FULL)
			test(&rig, how, false);
		test(&rig, how, true);
	}
	CHECK(rig_stop(&rig) == 0, "exit status");
	rig_remove(&rig);
	return 0;
}
