/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer, by the library, at an agent that has taken up its job and is
 * still reading it: whatever it calls ends in the time that it has, with what
 * it waited for, and not as if the agent were dead or the job had nothing.
 */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/reading.h"
#include "shardkeep.h"

#define JOB "kept"
#define OTHER "other"
#define TENSORS 400		/* a header of them is a long one */
#define NEVER (1u << 20)
#define SECOND UINT64_C(1000000000)
#define TIMEOUT_MS 2000u	/* of a trainer's calls */

/* ---- the trainer ---- */

struct trainer {
	struct sk *sk;
	struct sk_state *state;
	char data[4096];
};

static int do_inspect(struct trainer *t)
{
	char *json = NULL;

	return sk_inspect(t->sk, JOB, SK_LATEST, 0, 0, &json);
}

static int do_list(struct trainer *t)
{
	char *json = NULL;

	return sk_snapshots(t->sk, JOB, &json);
}

static int do_prepare(struct trainer *t)
{
	return sk_prepare(t->state, 0);
}

static int do_snapshot(struct trainer *t)
{
	return sk_snapshot(t->state, 7, NULL);
}

static int do_restore(struct trainer *t)
{
	struct sk_report report;

	return sk_restore(t->state, SK_LATEST, NULL, NULL, &report);
}

static void open_trainer(const struct scene *s, struct trainer *t)
{
	CHECK(sk_open(&(struct sk_options){ .socket = s->rig.socket,
		.threads = 1, .timeout_ms = TIMEOUT_MS }, &t->sk) == 0, "%s",
	      sk_error());
	CHECK(sk_state_create(t->sk, &(struct sk_job){ .name = JOB,
		.world = 1 }, &t->state) == 0, "%s", sk_error());
	CHECK(sk_state_tensor(t->state, &(struct sk_tensor){ .name = "w",
		.dtype = SK_U8, .ndim = 1, .shape = { sizeof(t->data) },
		.data = t->data }) == 0, "%s", sk_error());
}

static pid_t call(const struct scene *s, int (*run)(struct trainer *t),
		  const char *name)
{
	pid_t pid = fork();
	struct trainer t = { 0 };
	int status;

	CHECK(pid >= 0, "fork");
	if (pid)
		return pid;
	open_trainer(s, &t);
	status = run(&t);
	CHECK(status == -ETIMEDOUT && strstr(sk_error(), "what the last agent "
	      "left is still being read"), "%s: %d: %s", name, status,
	      sk_error());
	sk_state_free(t.state);
	sk_close(t.sk);
	_exit(0);
}

/* ---- the agent ---- */

static pid_t begin_unread(struct scene *s, struct rank *r)
{
	struct sk_msg msg;
	pid_t first;

	reading_let(-1);
	s->fault->virtual_clock = false;
	begin(s);
	/* On disk alone. */
	rank_write_steps(&s->rig, OTHER, 1);
	CHECK_STATUS(rank_open(r, &s->rig, &(struct rank_options){
		.job = JOB, .world = 1, .rows = 1, .more = TENSORS,
		.flush_every = NEVER }), 0, &r->msg);
	rank_snapshot(r, 1);
	CHECK_STATUS(manage(r->sock, SK_MSG_EVICT, OTHER, 1, SK_EVICT_FORCE,
			    &msg), 0, &msg);
	sk_fault_os_clock(s->fault, 1000 * SECOND, 1700000000 * SECOND);
	first = serving(s);
	reading_let(0);
	first = reading_kill(s, first);
	AWAIT(reading_waits(), "nothing is read");
	return first;
}

/* It says so every few seconds of its own, which are sooner over here: at the
 * end of the trainer's time it is asked once more each time, and answers
 * later. */
static void pass_until_ended(struct scene *s, pid_t pid)
{
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		sk_fault_os_advance(s->fault, SECOND / 10);
		usleep(10000);
	}
	CHECK(!status, "%#x", status);
}

static void test_calls(struct scene *s)
{
	static const struct {
		int (*run)(struct trainer *t);
		const char *name;
	} calls[] = {
		{ do_inspect, "inspect" }, { do_list, "list" },
		{ do_prepare, "prepare" }, { do_snapshot, "snapshot" },
		{ do_restore, "restore" },
	};
	struct rank r;
	int sock;

	(void)begin_unread(s, &r);
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		pass_until_ended(s, call(s, calls[i].run, calls[i].name));
	sock = rig_connect(&s->rig);
	CHECK(stat_value(sock, "shardkeep_images_revived_total") == 0,
	      "it was read");
	reading_let(-1);
	CHECK(snapshot_flags(sock, JOB, 1) & SK_SNAP_COMPLETE, "it is lost");
	close(sock);
	rank_close(&r);
	end(s);
}

/* How far the reading is; what others have looked at meanwhile would have who
 * waits take one that hangs for one that goes on. */
static uint64_t progress(struct scene *s, int sock)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .job = JOB, .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS, .limit = 1, .wait_ms = 1000 } };

	rig_send(sock, &msg);
	AWAIT((sk_fault_os_advance(s->fault, SECOND / 10),
	       reading_is_answered(sock)), "no answer");
	CHECK_STATUS(rig_reply(sock, &msg, NULL, NULL), 0, &msg);
	CHECK(msg.body.list_reply.looking, "it is read");
	return msg.body.list_reply.n;
}

static void test_progress(struct scene *s)
{
	struct sk_msg msg;
	uint64_t before;
	struct rank r;
	int sock;

	(void)begin_unread(s, &r);
	sock = rig_connect(&s->rig);
	before = progress(s, sock);
	CHECK(snapshot_flags(sock, OTHER, 1) & SK_SNAP_DURABLE, "the other");
	CHECK(progress(s, sock) == before, "a look at another job counts");
	reading_let(-1);
	CHECK_STATUS(manage(sock, SK_MSG_FLUSH, JOB, 1, 0, &msg), 0, &msg);
	close(sock);
	rank_close(&r);
	end(s);
}

int main(void)
{
	struct scene s = { 0 };

	reading_init(&s);
	test_calls(&s);
	test_progress(&s);
	return 0;
}
