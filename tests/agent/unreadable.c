/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole agent on a store that cannot be read for a moment: never is that
 * told as a first run. The agent runs in a child, on a table of operations
 * whose rules the test sets from outside.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "agent/forked.h"
#include "agent/rig.h"
#include "base/util.h"
#include "fault-os.h"

static const int errors[] = { EMFILE, ENFILE, ENOMEM, EIO, EACCES };

/* ---- what it is asked ---- */

static int ask_list(int sock, const char *job, struct sk_msg *msg)
{
	*msg = (struct sk_msg){ .type = SK_MSG_LIST, .body.list = {
		.id = { .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS } };
	strcpy(msg->body.list.id.job, job);
	return rig_call(sock, msg, NULL, 0, NULL, NULL);
}

/* The job's two steps are told of, or it is said that they are not. */
static void check_list(int sock, const char *job, bool fails)
{
	struct sk_msg msg;
	int r = ask_list(sock, job, &msg);

	if (r < 0) {
		CHECK_STATUS(r, -EIO, &msg);
		return;
	}
	CHECK(!fails, "a list of a store that cannot be read");
	CHECK(msg.body.list_reply.n == 2 || msg.body.list_reply.unreadable,
	      "%" PRIu64 " snapshots of job %s, and nobody says why",
	      msg.body.list_reply.n, job);
	CHECK(!msg.body.list_reply.unreadable || msg.body.list_reply.text[0],
	      "no sentence");
}

static void make_steps(struct rig *rig, const char *job)
{
	struct rank r;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = job, .world = 1 }), 0, &r.msg);
	for (int64_t step = 5; step < 7; step++) {
		rank_snapshot(&r, step);
		CHECK_STATUS(rank_wait(&r, step, 3, WAIT_MS), 0, &r.msg);
	}
	rank_close(&r);
}

/* A new rank: refused, or of the run after that on disk. */
static int enter(struct rig *rig, const char *job, bool fails)
{
	struct rank r;
	int status = rank_open(&r, rig, &(struct rank_options){
		.job = job, .world = 1 });

	if (status < 0) {
		CHECK_STATUS(status, -EIO, &r.msg);
		CHECK(strstr(rig_why(&r.msg), rig->store), "no path in: %s",
		      rig_why(&r.msg));
	} else {
		CHECK(!fails, "run %" PRIu64 " of an unreadable store", r.run);
		CHECK(r.run == 2, "run %" PRIu64, r.run);
	}
	rank_close(&r);
	return status;
}

/* Nothing can be opened, from the agent's first look on. */
static void test_all_fails(struct rig *rig, struct sk_fault_os *fault,
			   int error)
{
	int sock;

	forked_start(rig, fault, NULL);
	sk_fault_os_fail(fault, SK_FAULT_OPENAT, 1, SK_FAULT_ALWAYS, error);
	(void)enter(rig, "one", true);
	sock = rig_connect(rig);
	check_list(sock, "one", true);
	check_list(sock, "", true);
	/* The cause is gone, and so is the failure. */
	sk_fault_os_forget(fault);
	check_list(sock, "one", false);
	check_list(sock, "two", false);
	CHECK(snapshot_flags(sock, "one", 6) & SK_SNAP_COMPLETE, "step 6");
	(void)enter(rig, "one", false);
	close(sock);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* One call fails, whichever it is. */
static void test_one_fails(struct rig *rig, struct sk_fault_os *fault,
			   enum sk_fault_op op, int error)
{
	uint64_t hits = 1;
	int sock;

	for (uint64_t n = 1; hits; n++) {
		forked_start(rig, fault, NULL);
		sock = rig_connect(rig);
		sk_fault_os_forget(fault);
		sk_fault_os_fail(fault, op, n, 1, error);
		check_list(sock, "one", false);
		hits = sk_fault_os_hits(fault);
		sk_fault_os_forget(fault);
		check_list(sock, "two", false);
		close(sock);
		CHECK(rig_stop(rig) == 0, "exit status");
	}
}

/* What was seen once is not forgotten by a look that cannot see it. */
static void test_known_stays(struct rig *rig, struct sk_fault_os *fault,
			     int error)
{
	uint64_t hits = 1;
	struct sk_msg msg;
	int sock;

	forked_start(rig, fault, NULL);
	sock = rig_connect(rig);
	for (uint64_t n = 1; hits; n++) {
		check_list(sock, "one", false);
		sk_fault_os_forget(fault);
		sk_fault_os_fail(fault, SK_FAULT_OPENAT, n, 1, error);
		if (ask_list(sock, "one", &msg) == 0)
			CHECK(msg.body.list_reply.n == 2, "call %" PRIu64
			      ": %" PRIu64 " snapshots", n,
			      msg.body.list_reply.n);
		hits = sk_fault_os_hits(fault);
		sk_fault_os_forget(fault);
	}
	close(sock);
	CHECK(rig_stop(rig) == 0, "exit status");
}

static void test_registration(struct rig *rig, struct sk_fault_os *fault,
			      int error)
{
	uint64_t hits = 1;

	for (uint64_t n = 1; hits; n++) {
		forked_start(rig, fault, NULL);
		sk_fault_os_forget(fault);
		sk_fault_os_fail(fault, SK_FAULT_OPENAT, n, 1, error);
		(void)enter(rig, "one", false);
		hits = sk_fault_os_hits(fault);
		sk_fault_os_forget(fault);
		(void)rig_stop(rig);
	}
}

/* What memory holds is told whatever becomes of the disk. */
static void test_memory_answers(struct rig *rig, struct sk_fault_os *fault)
{
	struct rank r;
	struct sk_msg msg;

	forked_start(rig, fault, NULL);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "warm", .world = 1, .flush_every = UINT32_MAX }), 0,
		&r.msg);
	rank_snapshot(&r, 9);
	sk_fault_os_fail(fault, SK_FAULT_OPENAT, 1, SK_FAULT_ALWAYS, EIO);
	CHECK_STATUS(ask_list(r.sock, "warm", &msg), 0, &msg);
	CHECK(msg.body.list_reply.n == 1 && msg.body.list_reply.unreadable,
	      "%" PRIu64 " snapshots", msg.body.list_reply.n);
	sk_fault_os_forget(fault);
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* ---- what is damaged ---- */

static void cut_files(const struct rig *rig, const char *job)
{
	for (int step = 5; step < 7; step++) {
		char path[PATH_MAX];

		(void)snprintf(path, sizeof(path), "%s/%s/step-%012d/"
			       "rank-00000-of-00001.safetensors", rig->store,
			       job, step);
		CHECK(truncate(path, step == 5 ? 100 : 0) == 0, "%s", path);
	}
}

/* Both steps of the job, at the first look and at each later one. */
static void check_damaged(int sock, const char *job)
{
	struct sk_msg msg;

	for (int i = 0; i < 3; i++) {
		CHECK_STATUS(ask_list(sock, job, &msg), 0, &msg);
		CHECK(msg.body.list_reply.n == 0, "taken for images");
		CHECK(msg.body.list_reply.unreadable == 2, "%u are damaged",
		      msg.body.list_reply.unreadable);
		CHECK(strstr(msg.body.list_reply.text, "is damaged: "),
		      "why: %s", msg.body.list_reply.text);
	}
}

/* A file that is no image any more was one: who finds nothing else must not
 * take that for a first run. */
static void test_damaged_is_not_nothing(struct rig *rig,
					struct sk_fault_os *fault)
{
	int sock;

	forked_start(rig, fault, NULL);
	make_steps(rig, "cut");
	CHECK(rig_stop(rig) == 0, "exit status");
	cut_files(rig, "cut");
	forked_start(rig, fault, NULL);
	sock = rig_connect(rig);
	check_damaged(sock, "cut");
	/* Its runs are known: whoever begins anew can. */
	CHECK(enter(rig, "cut", false) == 0, "a run after it");
	close(sock);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* Nor is what bears another job's name, which each file's header tells. */
static void test_renamed_is_damaged(struct rig *rig, struct sk_fault_os *fault)
{
	char from[PATH_MAX], to[PATH_MAX];
	int sock;

	forked_start(rig, fault, NULL);
	make_steps(rig, "was");
	sock = rig_connect(rig);
	(void)snprintf(from, sizeof(from), "%s/was", rig->store);
	(void)snprintf(to, sizeof(to), "%s/is", rig->store);
	CHECK(rename(from, to) == 0, "%s", to);
	check_damaged(sock, "is");
	close(sock);
	CHECK(rig_stop(rig) >= 0, "it ends");
}

/* Whose a job is says a file; where that is damaged, nobody knows who may be
 * told of the rest, which is there. */
static void test_an_owner_that_is_none(struct rig *rig,
				       struct sk_fault_os *fault,
				       const char *job, const char *owner)
{
	char path[PATH_MAX];
	unsigned others;
	struct sk_msg msg;
	FILE *f;
	int sock;

	forked_start(rig, fault, NULL);
	make_steps(rig, job);
	sock = rig_connect(rig);
	CHECK_STATUS(ask_list(sock, "", &msg), 0, &msg);
	others = msg.body.list_reply.unreadable;
	close(sock);
	CHECK(rig_stop(rig) == 0, "exit status");
	(void)snprintf(path, sizeof(path), "%s/%s/.owner", rig->store, job);
	f = fopen(path, "w");
	CHECK(f && fputs(owner, f) >= 0 && fclose(f) == 0, "%s", path);
	forked_start(rig, fault, NULL);
	sock = rig_connect(rig);
	CHECK(ask_list(sock, job, &msg) < 0, "a list of a job of nobody");
	CHECK(strstr(rig_why(&msg), path), "it says: %s", rig_why(&msg));
	CHECK_STATUS(ask_list(sock, "", &msg), 0, &msg);
	CHECK(msg.body.list_reply.unreadable == others + 1, "%u of %u",
	      msg.body.list_reply.unreadable, others);
	close(sock);
	CHECK(unlink(path) == 0, "%s", path);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* Asked for by its name, again and again; the list of all is not disturbed. */
static void check_link(struct rig *rig, const char *path, uint32_t others)
{
	int sock = rig_connect(rig);
	struct sk_msg msg;

	for (int i = 0; i < 2; i++) {
		CHECK_STATUS(ask_list(sock, "moved", &msg), -EIO, &msg);
		CHECK(strstr(rig_why(&msg), path), "it says: %s",
		      rig_why(&msg));
		CHECK(enter(rig, "moved", true) == -EIO, "a run of a link");
	}
	CHECK_STATUS(ask_list(sock, "", &msg), 0, &msg);
	CHECK(msg.body.list_reply.unreadable == others, "%u of %u",
	      msg.body.list_reply.unreadable, others);
	close(sock);
}

static uint32_t count_unreadable(struct rig *rig)
{
	int sock = rig_connect(rig);
	struct sk_msg msg;

	CHECK_STATUS(ask_list(sock, "", &msg), 0, &msg);
	close(sock);
	return msg.body.list_reply.unreadable;
}

/* A job that was brought to another disk, with a link in its place: links are
 * not followed, and it is no first run. */
static void test_a_link_is_not_nothing(struct rig *rig,
				       struct sk_fault_os *fault)
{
	char path[PATH_MAX], away[PATH_MAX];
	uint32_t others;

	forked_start(rig, fault, NULL);
	make_steps(rig, "moved");
	others = count_unreadable(rig);
	CHECK(rig_stop(rig) == 0, "exit status");
	(void)snprintf(path, sizeof(path), "%s/moved", rig->store);
	(void)snprintf(away, sizeof(away), "%s/.moved-away", rig->store);
	CHECK(rename(path, away) == 0 && symlink(away, path) == 0, "%s", path);
	forked_start(rig, fault, NULL);
	check_link(rig, path, others);
	CHECK(unlink(path) == 0 && rename(away, path) == 0, "%s", path);
	CHECK(enter(rig, "moved", false) == 0, "back again");
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* ---- what comes during a look ---- */

struct pause {
	int arrived[2], go[2];
};

/* In the agent, on the thread that looks. */
static void hold(void *ctx)
{
	const struct pause *p = ctx;
	char c = 0;

	if (write(p->arrived[1], &c, 1) != 1 || read(p->go[0], &c, 1) != 1)
		_exit(98);
}

struct listing {
	int sock;
	struct sk_wire_snapshot *all;
	size_t n;
};

static void *list_in_thread(void *arg)
{
	struct listing *l = arg;

	l->all = list_snapshots(l->sock, "during", &l->n);
	return NULL;
}

/* With the last of them the job's names have long been read. The agent may look
 * by itself beside us: the fewest are one look's. */
static uint64_t reads_of_a_look(struct sk_fault_os *fault, int sock)
{
	uint64_t fewest = UINT64_MAX;
	struct sk_msg msg;

	for (int i = 0; i < 5; i++) {
		uint64_t n;

		sk_fault_os_forget(fault);
		CHECK_STATUS(ask_list(sock, "during", &msg), 0, &msg);
		n = sk_fault_os_calls(fault, SK_FAULT_GETDENTS);
		fewest = n < fewest ? n : fewest;
	}
	return fewest;
}

/* What is young to its clock the agent opens at each look, and no timer has it
 * look by itself. */
static void stop_the_clock(struct sk_fault_os *fault)
{
	const struct sk_os *os = sk_os_linux();

	sk_fault_os_clock(fault, os->now_ns(os), os->wall_ns(os));
}

/* Step @step of job "during" is on disk, and the next look at the store that
 * anybody asks for stops until pause.go is written to. */
struct held {
	struct pause pause;
	struct rank rank;
	int sock;
};

static void hold_next_look(struct held *h, struct rig *rig,
			   struct sk_fault_os *fault, uint64_t step)
{
	uint64_t reads;

	CHECK(!pipe(h->pause.arrived) && !pipe(h->pause.go), "pipe");
	forked_start(rig, fault, NULL);
	stop_the_clock(fault);
	CHECK_STATUS(rank_open(&h->rank, rig, &(struct rank_options){
		.job = "during", .world = 1 }), 0, &h->rank.msg);
	rank_snapshot(&h->rank, step);
	CHECK_STATUS(rank_wait(&h->rank, step, 3, WAIT_MS), 0, &h->rank.msg);
	h->sock = rig_connect(rig);
	reads = reads_of_a_look(fault, h->sock);
	sk_fault_os_forget(fault);
	sk_fault_os_meddle(fault, SK_FAULT_GETDENTS, reads, hold, &h->pause);
}

static void held_end(struct held *h, struct rig *rig,
		     struct sk_fault_os *fault)
{
	sk_fault_os_forget(fault);
	close(h->sock);
	rank_close(&h->rank);
	CHECK(rig_stop(rig) == 0, "exit status");
	for (int i = 0; i < 2; i++)
		CHECK(!close(h->pause.arrived[i]) && !close(h->pause.go[i]),
		      "close");
}

/* What is flushed while a look is under way is not forgotten by that look,
 * which has not seen it. */
static void test_flushed_meanwhile(struct rig *rig, struct sk_fault_os *fault)
{
	struct listing l = { 0 };
	pthread_t thread;
	struct held h;
	char c = 0;

	hold_next_look(&h, rig, fault, 5);
	l.sock = h.sock;
	CHECK(!pthread_create(&thread, NULL, list_in_thread, &l), "thread");
	CHECK(read(h.pause.arrived[0], &c, 1) == 1, "nobody looks");
	rank_snapshot(&h.rank, 6);
	CHECK_STATUS(rank_wait(&h.rank, 6, 3, WAIT_MS), 0, &h.rank.msg);
	CHECK(write(h.pause.go[1], &c, 1) == 1, "go");
	CHECK(!pthread_join(thread, NULL), "join");
	CHECK(l.n == 2 && l.all[0].id.step == 6, "%zu snapshots", l.n);
	CHECK(l.all[0].flags & SK_SNAP_DURABLE, "flags %x", l.all[0].flags);
	free(l.all);
	held_end(&h, rig, fault);
}

/* Sent, and seen by the agent, which answers to what comes after it. */
static void send_list(int sock)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .job = "during", .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS, .wait_ms = 1 } };

	rig_send(sock, &msg);
	msg = (struct sk_msg){ .type = SK_MSG_LIST, .body.list = {
		.what = SK_LIST_SNAPSHOTS + 99 } };
	rig_send(sock, &msg);
	CHECK(rig_reply(sock, &msg, NULL, NULL) == -EINVAL, "%s",
	      rig_why(&msg));
}

/* Who does not wait for a look hears that it goes on, as often as it asks, and
 * has the list when it is over. */
static void test_long_look(struct rig *rig, struct sk_fault_os *fault)
{
	struct sk_wire_snapshot *all;
	struct sk_msg msg;
	struct held h;
	char c = 0;
	size_t n;

	hold_next_look(&h, rig, fault, 50);
	/* One that the look has, and more than a connection may have waiting,
	 * were they not let go of. */
	for (int i = 0; i < 200; i++) {
		send_list(h.sock);
		if (!i)
			CHECK(read(h.pause.arrived[0], &c, 1) == 1, "no look");
		sk_fault_os_advance(fault, 1000000);
		CHECK_STATUS(rig_reply(h.sock, &msg, NULL, NULL), 0, &msg);
		CHECK(msg.body.list_reply.looking, "it has looked already");
	}
	CHECK(write(h.pause.go[1], &c, 1) == 1, "go");
	all = list_snapshots(h.sock, "during", &n);
	CHECK(n > 0 && all[0].id.step == 50, "%zu snapshots", n);
	free(all);
	held_end(&h, rig, fault);
}

int main(int argc, char **argv)
{
	struct sk_fault_os *fault;
	struct rig rig;

	fault = mmap(NULL, sizeof(*fault), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(fault != MAP_FAILED, "mmap");
	rig_init(&rig, argc > 1 ? argv[1] : argv[0]);
	forked_start(&rig, fault, NULL);
	make_steps(&rig, "one");
	make_steps(&rig, "two");
	CHECK(rig_stop(&rig) == 0, "exit status");
	for (size_t i = 0; i < SK_ARRAY_SIZE(errors); i++) {
		test_all_fails(&rig, fault, errors[i]);
		test_known_stays(&rig, fault, errors[i]);
		test_registration(&rig, fault, errors[i]);
		test_one_fails(&rig, fault, SK_FAULT_OPENAT, errors[i]);
	}
	test_one_fails(&rig, fault, SK_FAULT_GETDENTS, EIO);
	test_one_fails(&rig, fault, SK_FAULT_PREAD, EIO);
	test_one_fails(&rig, fault, SK_FAULT_FSTATAT, EACCES);
	test_memory_answers(&rig, fault);
	test_damaged_is_not_nothing(&rig, fault);
	test_renamed_is_damaged(&rig, fault);
	test_an_owner_that_is_none(&rig, fault, "empty", "");
	test_an_owner_that_is_none(&rig, fault, "garbled", "me\n");
	test_a_link_is_not_nothing(&rig, fault);
	test_flushed_meanwhile(&rig, fault);
	test_long_look(&rig, fault);
	rig_remove(&rig);
	return 0;
}
