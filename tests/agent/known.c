/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who says by digests what it describes: let in with what it has here, and
 * with nothing that another rank, job or user has.
 */
#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"

#define NOBODY 65534

static struct rank_options options(void)
{
	/* The second one: it has images of both kinds. */
	return (struct rank_options){ .job = "known", .rank = 1, .world = 2,
				      .replicated = true };
}

/* As @r described itself, with nothing but the digests. */
static struct sk_msg registration(const struct rank *r)
{
	struct sk_msg msg = { .type = SK_MSG_REGISTER };
	struct sk_wire_register *q = &msg.body.reg;

	q->id = (struct sk_wire_id){ .rank = r->rank, .world = r->world };
	snprintf(q->id.job, sizeof(q->id.job), "%s", r->job);
	q->slots = 2;
	q->flush_every = 1;
	q->numa_node = -1;
	q->flags = SK_REGISTER_KNOWN;
	for (int k = 0; k < 2 && r->layouts[k]; k++) {
		q->header_bytes[k] = r->layouts[k]->header_bytes;
		q->image_bytes[k] = r->layouts[k]->image_bytes;
		q->known[k] = r->layouts[k]->digest;
	}
	return msg;
}

static int say(int sock, const struct rank *r, struct sk_msg *ret)
{
	*ret = registration(r);
	return rig_call(sock, ret, NULL, 0, NULL, NULL);
}

static double jobs(int sock)
{
	return stat_value(sock, "shardkeep_jobs");
}

/* Nothing is known yet, nor after it was asked for. */
static void test_nothing(const struct rig *rig, const struct rank *like)
{
	struct rank r = *like;
	int sock = rig_connect(rig);
	struct sk_msg msg;
	double before = jobs(sock);

	strcpy(r.job, "nothing");
	CHECK_STATUS(say(sock, &r, &msg), -ENODATA, &msg);
	CHECK(strstr(rig_why(&msg), "nothing"), "%s", rig_why(&msg));
	CHECK(jobs(sock) == before, "%g jobs, before %g", jobs(sock), before);
	close(sock);
}

static void refused(const struct rig *rig, struct sk_msg msg, const int *fd,
		    int status)
{
	int sock = rig_connect(rig);

	CHECK_STATUS(rig_call(sock, &msg, fd, !!fd, NULL, NULL), status, &msg);
	close(sock);
}

/* What is not that rank's own, and what is told wrong of it. */
static void test_refused(const struct rig *rig, const struct rank *r)
{
	int fd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct sk_msg msg = registration(r);

	CHECK(fd >= 0 && r->layouts[1], "memfd, or one image");
	refused(rig, msg, &fd, -EINVAL);
	close(fd);
	msg.body.reg.image_bytes[0] += 4096;
	refused(rig, msg, NULL, -EINVAL);
	msg = registration(r);
	msg.body.reg.id.rank = !r->rank;
	refused(rig, msg, NULL, -ENODATA);
	msg = registration(r);
	msg.body.reg.known[1] = msg.body.reg.known[0];
	refused(rig, msg, NULL, -ENODATA);
	msg = registration(r);
	msg.body.reg.id.world = r->world + 1;
	refused(rig, msg, NULL, -EINVAL);
	msg = registration(r);
	msg.body.reg.known[0].bytes[3] ^= 1;
	refused(rig, msg, NULL, -ENODATA);
	msg.body.reg.header_bytes[0] = 0;
	refused(rig, msg, NULL, -EINVAL);
}

/* A job of that name with those very tensors is another one. */
static void test_other_user(const struct rig *rig, const struct rank *r)
{
	struct sk_msg msg;
	int status;
	pid_t pid;

	if (geteuid() != 0)
		return;
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		CHECK(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 &&
		      setuid(NOBODY) == 0, "setuid");
		CHECK_STATUS(say(rig_connect(rig), r, &msg), -ENODATA, &msg);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %#x",
	      status);
}

/* By itself on its connection, which keeps its place; then by the next life
 * of the rank, with what the last one registered or saved. */
static void test_again(const struct rig *rig)
{
	struct rank_options o = options();
	struct rank r;
	struct sk_msg msg;
	int sock;

	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	test_nothing(rig, &r);
	test_refused(rig, &r);
	test_other_user(rig, &r);
	msg = registration(&r);
	msg.body.reg.state = r.state;
	CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	CHECK(msg.body.reg_reply.state == r.state &&
	      msg.body.reg_reply.run == r.run, "another place");
	rank_close(&r);
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	rank_snapshot(&r, 1);
	msg = registration(&r);
	rank_close(&r);
	sock = rig_connect(rig);
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	CHECK(msg.body.reg_reply.slots == 2, "%u slots",
	      msg.body.reg_reply.slots);
	close(sock);
}

/* By what it saved before it described itself in another way. */
static void test_saved(const struct rig *rig)
{
	struct rank_options o = options(), other = options();
	struct sk_msg msg;
	struct rank r;

	o.job = other.job = "saved";
	other.more = 1;
	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	rank_snapshot(&r, 1);
	msg = registration(&r);
	CHECK_STATUS(rank_again(&r, &other), 0, &r.msg);
	msg.body.reg.state = r.state;
	CHECK_STATUS(rig_call(r.sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	rank_close(&r);
}

/* What the disk alone has: read before, or handed over. */
static void test_from_disk(struct rig *rig)
{
	struct rank_options o = options();
	struct rank r[2];
	struct sk_msg msg;
	int sock, status, whole = 0;

	o.job = "stored";
	o.replicated = false;	/* replicas are not on disk */
	for (o.rank = 0; o.rank < 2; o.rank++)
		CHECK_STATUS(rank_open(&r[o.rank], rig, &o), 0,
			     &r[o.rank].msg);
	rank_snapshot(&r[0], 1);
	rank_snapshot(&r[1], 1);
	CHECK_STATUS(rank_wait(&r[0], 1, 3, WAIT_MS), 0, &r[0].msg);
	CHECK(rig_stop(rig) == 0, "exit status");
	rig_start(rig, "--memory", "256M", "--log-level", "error", "--store",
		  rig->store, NULL);
	sock = rig_connect(rig);
	free(list_snapshots(sock, "stored", &(size_t){ 0 }));
	/* Of ranks that are alike the agent has one's description whole. */
	for (int i = 0; i < 2; i++) {
		status = say(sock, &r[i], &msg);
		CHECK(status == 0 || status == -ENODATA, "%s", rig_why(&msg));
		whole += status == 0;
		rank_close(&r[i]);
	}
	CHECK(whole < 2, "one is known by what the other describes alone");
	close(sock);
	o.rank = 0;
	CHECK_STATUS(rank_open(&r[0], rig, &o), 0, &r[0].msg);
	rank_snapshot(&r[0], 2);
	rank_close(&r[0]);
}

/* ---- numbers of runs ---- */

#define CROWD 20	/* more than are looked at with each change */

/* A process that has closed its rank's connection, and lives on. */
static pid_t be_stray(const struct rig *rig, const struct rank_options *o)
{
	int told[2];
	char byte;
	pid_t pid;

	CHECK(!pipe(told), "pipe");
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		struct rank r;

		CHECK_STATUS(rank_open(&r, rig, o), 0, &r.msg);
		CHECK(r.run == 2, "run %d", (int)r.run);
		close(r.sock);
		CHECK(write(told[1], "", 1) == 1, "write");
		pause();
	}
	close(told[1]);
	CHECK(read(told[0], &byte, 1) == 1, "the stray is gone");
	close(told[0]);
	return pid;
}

/* A rank's life without a snapshot, over by then. */
static void live(const struct rig *rig, const struct rank_options *o)
{
	struct rank r;
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0, "fork");
	if (!pid) {
		CHECK_STATUS(rank_open(&r, rig, o), 0, &r.msg);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && !status, "%#x", status);
}

/* With many that wait beside it, a registration that waits for its rank's last
 * life is looked at after that is gone, and the job with it: what the store
 * said of its runs is kept in mind. */
static void test_number(struct rig *rig)
{
	const struct rank_options o = { .job = "numbered", .world = 1 };
	struct rank r, crowd;
	struct sk_msg msg;
	pid_t stray;
	int sock;

	CHECK_STATUS(rank_open(&r, rig, &o), 0, &r.msg);
	rank_snapshot(&r, 1);
	CHECK_STATUS(rank_wait(&r, 1, 3, WAIT_MS), 0, &r.msg);
	CHECK(rig_stop(rig) == 0, "exit status");
	/* Two fit, and the third makes what nobody has any more go. */
	rig_start(rig, "--memory", "400K", "--log-level", "error", "--store",
		  rig->store, NULL);
	stray = be_stray(rig, &o);
	sock = rig_connect(rig);
	AWAIT(stat_value(sock, "shardkeep_quarantines_total") > 0, "none");
	live(rig, &(struct rank_options){ .job = "past", .world = 1 });
	AWAIT(stat_value(sock, "shardkeep_rank_deaths_total") > 1, "none");
	CHECK_STATUS(rank_open(&crowd, rig, &(struct rank_options){
		.job = "crowd", .world = 2 }), 0, &crowd.msg);
	rank_snapshot(&crowd, 1);
	for (int i = 0; i < CROWD; i++)
		rank_send_wait(&crowd, 1, 2, WAIT_MS);
	close(r.sock);
	r.sock = rig_connect(rig);
	msg = registration(&r);
	rig_send(r.sock, &msg);
	rig_turns(sock, 200);
	CHECK(!kill(stray, SIGKILL) && waitpid(stray, NULL, 0) == stray,
	      "the stray");
	CHECK_STATUS(rig_reply(r.sock, &msg, NULL, NULL), 0, &msg);
	CHECK(msg.body.reg_reply.run > 1, "run 1 again, which the store has");
	rank_close(&r);
	rank_close(&crowd);
	close(sock);
}

int main(int argc, char **argv)
{
	struct rig rig;

	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	rig_start(&rig, "--memory", "256M", "--log-level", "error", "--store",
		  rig.store, NULL);
	test_again(&rig);
	test_saved(&rig);
	test_from_disk(&rig);
	test_number(&rig);
	CHECK(rig_stop(&rig) == 0, "exit status");
	rig_remove(&rig);
	return 0;
}
