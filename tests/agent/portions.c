/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A look at the store that takes long lets others in: here one whose portions
 * are one step each. Who asks for little has it while who asks for all waits,
 * and all is what there is, whatever became of it meanwhile.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/whole.h"
#include "store/private.h"

#define LONG "long"
#define SHORT "short"
#define STEPS 60
#define SECOND UINT64_C(1000000000)

static void start(struct whole *w)
{
	struct timespec now;

	/* What was written is an hour old. */
	clock_gettime(CLOCK_REALTIME, &now);
	sk_fault_os_init(w->fault, sk_os_linux());
	sk_fault_os_clock(w->fault, SECOND,
			  ((uint64_t)now.tv_sec + 3600) * SECOND);
	whole_start(w);
	CHECK(w->serves, "%s", whole_log(w));
}

static void stop(struct whole *w)
{
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "%s", whole_log(w));
}

/* An agent that did not write what the store has, nor has an index of it. */
static void begin(struct whole *w)
{
	char path[256];

	whole_init(w);
	w->options.retention_said = true;
	w->options.retention = (struct sk_retention){ .keep_every = 1 };
	start(w);
	rank_write_steps(&w->rig, LONG, STEPS);
	rank_write_steps(&w->rig, SHORT, 1);
	stop(w);
	for (int i = 0; i < 2; i++) {
		(void)snprintf(path, sizeof(path), "%s/%s/.index",
			       w->rig.store, i ? SHORT : LONG);
		(void)unlink(path);
	}
	start(w);
}

static void end(struct whole *w)
{
	stop(w);
	whole_remove(w);
}

/* ---- lists ---- */

static void ask(int sock, const char *job, uint32_t limit)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .step = -1, .rank = -1 }, .limit = limit,
		.what = SK_LIST_SNAPSHOTS } };

	strcpy(msg.body.list.id.job, job);
	rig_send(sock, &msg);
}

/* How many are complete on disk, of those that are told. */
static unsigned answer(int sock)
{
	struct sk_msg msg;
	int fds[SK_MSG_FDS], n_fds = 0;
	struct sk_wire_snapshot s;
	unsigned n = 0;

	CHECK_STATUS(rig_reply(sock, &msg, fds, &n_fds), 0, &msg);
	CHECK(n_fds == 1, "%d descriptors", n_fds);
	for (uint64_t i = 0; i < msg.body.list_reply.n; i++) {
		CHECK(pread(fds[0], &s, sizeof(s), (off_t)(i * sizeof(s))) ==
		      sizeof(s), "cut short");
		n += s.flags & SK_SNAP_COMPLETE && s.flags & SK_SNAP_DURABLE;
	}
	close(fds[0]);
	return n;
}

/* ---- who waits for whom ---- */

/* The agent stands still in a read of the store: it says so, and waits. */
static int told[2], let[2];

static void stand_still(void *ctx)
{
	char c = 0;

	(void)ctx;
	if (write(told[1], &c, 1) != 1 || read(let[0], &c, 1) != 1)
		abort();
}

static void await_standing(void)
{
	char c;

	CHECK(read(told[0], &c, 1) == 1, "it does not stand still");
}

static void let_go(void)
{
	CHECK(write(let[1], "", 1) == 1, "let go");
}

static bool is_answered(int sock)
{
	return poll(&(struct pollfd){ .fd = sock, .events = POLLIN }, 1, 0);
}

/* A step takes some reads. It stands still as the look at all begins, until
 * another one is asked for, and anew when a part of it is over. */
static void test_others_come_in_between(const char *all)
{
	struct whole w;
	uint64_t reads;
	int sock[3];

	CHECK(pipe(told) == 0 && pipe(let) == 0, "pipe");
	begin(&w);
	for (int k = 0; k < 3; k++)
		sock[k] = rig_connect(&w.rig);
	reads = sk_fault_os_calls(w.fault, SK_FAULT_PREAD);
	for (unsigned k = 0; k < 2; k++)
		sk_fault_os_meddle(w.fault, SK_FAULT_PREAD,
				   reads + 3 + k * STEPS, stand_still, NULL);
	ask(sock[0], all, 0);
	await_standing();
	ask(sock[1], SHORT, 1);
	rig_turns(sock[2], 3);
	let_go();
	await_standing();
	CHECK(answer(sock[1]) == 1, "one step waits for %d others", STEPS);
	CHECK(!is_answered(sock[0]), "it was no long look");
	let_go();
	CHECK(answer(sock[0]) == STEPS + !all[0], "all the others");
	for (int k = 0; k < 3; k++)
		close(sock[k]);
	end(&w);
	for (int k = 0; k < 2; k++) {
		close(told[k]);
		close(let[k]);
	}
}

/* ---- what becomes of it meanwhile ---- */

/* The newest of the same job are listed in between, one is deleted, others are
 * written; who asked for all has all. */
static void test_it_changes_meanwhile(void)
{
	struct sk_msg msg;
	struct whole w;
	struct rank r;
	unsigned n;
	int all, sock;

	begin(&w);
	all = rig_connect(&w.rig);
	sock = rig_connect(&w.rig);
	ask(all, LONG, 0);
	ask(sock, LONG, 3);
	CHECK(answer(sock) == 3, "the newest three");
	CHECK_STATUS(manage(sock, SK_MSG_EVICT, LONG, 2, SK_EVICT_DISK, &msg),
		     0, &msg);
	CHECK_STATUS(rank_open(&r, &w.rig, &(struct rank_options){
		.job = LONG, .world = 1, .rows = 1 }), 0, &r.msg);
	rank_snapshot(&r, STEPS + 1);
	CHECK_STATUS(rank_wait(&r, STEPS + 1, 3, WAIT_MS), 0, &r.msg);
	/* It may have been told before that was so. */
	n = answer(all);
	CHECK(n >= STEPS - 1 && n <= STEPS + 1, "%u of %d", n, STEPS);
	ask(sock, LONG, 0);
	n = answer(sock);
	CHECK(n == STEPS, "%u of %d, one less and one more", n, STEPS);
	rank_close(&r);
	close(sock);
	close(all);
	end(&w);
}

/* Who asked goes, and the look with it or without; the agent, too. */
static void test_who_asked_goes(void)
{
	struct whole w;
	int all, sock;

	begin(&w);
	sock = rig_connect(&w.rig);
	for (int i = 0; i < 8; i++) {
		all = rig_connect(&w.rig);
		ask(all, i % 2 ? "" : LONG, 0);
		ask(sock, SHORT, 1);
		CHECK(answer(sock) == 1, "the one step");
		close(all);
	}
	ask(sock, LONG, 0);
	CHECK(answer(sock) == STEPS, "all the others");
	all = rig_connect(&w.rig);
	ask(all, "", 0);
	ask(sock, SHORT, 1);
	CHECK(answer(sock) == 1, "the one step");
	end(&w);
	close(all);
	close(sock);
}

/* ---- what is wrong with some of it ---- */

static void spoil(const struct whole *w, int step)
{
	char path[256];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/" LONG "/step-%012d/"
		       "rank-00000-of-00001.safetensors", w->rig.store, step);
	f = fopen(path, "r+");
	CHECK(f && fwrite("not a header", 1, 12, f) == 12 && fclose(f) == 0,
	      "spoil %s", path);
}

static unsigned times(const char *text, const char *what)
{
	unsigned n = 0;

	while ((text = strstr(text, what))) {
		n++;
		text += strlen(what);
	}
	return n;
}

/* It is named once, and stays ignored. */
static void test_what_is_spoilt_is_named_once(void)
{
	struct whole w;
	int sock;

	begin(&w);
	for (int step = 5; step <= STEPS; step += 20)
		spoil(&w, step);
	sock = rig_connect(&w.rig);
	for (int i = 0; i < 3; i++) {
		ask(sock, i == 1 ? "" : LONG, 0);
		CHECK(answer(sock) == STEPS - 3 + (i == 1), "the rest");
	}
	CHECK(times(whole_log(&w), "ignoring ") == 3, "%s", whole_log(&w));
	close(sock);
	end(&w);
}

int main(void)
{
	test_others_come_in_between(LONG);
	test_others_come_in_between("");
	test_it_changes_meanwhile();
	test_who_asked_goes();
	test_what_is_spoilt_is_named_once();
	return 0;
}
