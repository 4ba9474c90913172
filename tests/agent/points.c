/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every point at which an agent with a keeper can be killed: before each of
 * its calls of the system, from its birth over a job's snapshots and their
 * flushes to its end, and again while it takes up what outlived the one
 * before. After each, what a rank was told is so. The same of an agent that
 * takes another one's place, from its first call to when it serves.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"
#include "keeper/parent.h"
#include "server.h"
#include "support/fault-os.h"
#include "support/files.h"
#include "takeover.h"

#define STEPS 3
#define POINTS_MOST 5000

struct scene {
	struct rig rig;
	struct sk_fault_os *fault;	/* shared with all agents */
	struct sk_fault_os *over;	/* with those that take its place */
	struct options options;
};

/* ---- the agent and its keeper, in processes of their own ---- */

static void die(void *ctx)
{
	(void)ctx;
	(void)kill(getpid(), SIGKILL);
}

static int run_child(struct scene *s, struct parent *p)
{
	struct birth birth = { .keeper = p->keeper, .kept = p->kept,
			       .standby = STANDBY_NULL };
	int lock = kept_take(&birth.kept, KEPT_LOCK);
	int sock = kept_take(&birth.kept, KEPT_LISTENER);
	struct sk_err err = { "" };
	struct endpoint e;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (endpoint_adopt(&s->fault->os, s->rig.socket, lock, sock, &e, &err))
		return 1;
	s->options.ready_fd = p->ready_fd;
	return agent_run(&s->fault->os, &s->options, &e, &birth);
}

static void run_keeper(struct scene *s, int ready)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_err err = { "" };
	struct log log;
	struct parent p = { .os = os, .log = &log, .ready_fd = ready };
	struct endpoint e;
	int r;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	log_open(&log, os, LOG_LEVEL_ERROR);
	CHECK(endpoint_open(os, s->rig.socket, &e, &err) == 0, "%s", err.text);
	CHECK(kept_add(os, &p.kept, KEPT_LISTENER, e.sock) == 0 &&
	      kept_add(os, &p.kept, KEPT_LOCK, e.lock) == 0, "kept");
	r = parent_run(&p);
	_exit(r == PARENT_CHILD ? run_child(s, &p) : r);
}

static void begin(struct scene *s)
{
	int ready[2];
	char c;

	rig_init(&s->rig, "none");
	s->options = (struct options){
		.store = s->rig.store, .memory = 64u << 20,
		.admin_uid = (uid_t)-1, .level = LOG_LEVEL_ERROR,
		.stop_timeout_s = 300, .backend = SK_IO_THREADS };
	CHECK(pipe2(ready, O_CLOEXEC) == 0, "pipe");
	s->rig.agent = fork();
	CHECK(s->rig.agent >= 0, "fork");
	if (!s->rig.agent)
		run_keeper(s, ready[1]);
	close(ready[1]);
	CHECK(read(ready[0], &c, 1) == 1, "it never served");
	close(ready[0]);
}

static void end(struct scene *s)
{
	CHECK(rig_stop(&s->rig) == 0, "something was not durable");
	rig_remove(&s->rig);
}

/* ---- a rank, as the library would go on ---- */

static void open_rank(struct scene *s, struct rank *r)
{
	struct rank_options o = { .job = "points", .world = 1,
				  .run = r->run_id ? r->run : 0,
				  .run_id = r->run_id };
	int status = -1;

	/* Killed once, it serves the second time. */
	for (int i = 0; i < 3 && status < 0; i++) {
		if (r->sock >= 0)
			rank_close(r);
		status = rank_open(r, &s->rig, &o);
		CHECK(status == 0 || status == -EPIPE ||
		      status == -ECONNRESET, "%d: %s", status,
		      rig_why(&r->msg));
	}
	CHECK_STATUS(status, 0, &r->msg);
}

static int take_once(struct rank *r, int64_t step)
{
	int slot = rank_slot(r, step, 0);

	if (slot < 0)
		return slot;
	rank_fill(r, slot, step);
	return rank_seal(r, slot, step);
}

/* Until it is sealed: one agent is killed, and a flush may take a while. */
static void take(struct scene *s, struct rank *r, int64_t step)
{
	int status = -1;

	for (int i = 0; i < 4; i++) {
		status = take_once(r, step);
		/* The answer was lost, and not what it would have said. */
		if (status == 0 || status == -EEXIST)
			return;
		if (status != -EBUSY || rank_await_slot(r) < 0)
			open_rank(s, r);
	}
	CHECK_STATUS(status, 0, &r->msg);
}

static void check_step(struct scene *s, const struct rank *r, int64_t step)
{
	const struct sk_layout *l = r->layouts[0];
	struct sk_msg msg = { .type = SK_MSG_OPEN };
	int sock = rig_connect(&s->rig), fds[SK_MSG_FDS], n = 0;
	struct sk_wire_image *images;
	size_t count;
	char *map;

	CHECK(snapshot_flags(sock, "points", step) & SK_SNAP_COMPLETE,
	      "step %d was sealed, and is not there", (int)step);
	images = list_images(sock, "points", step, &count);
	CHECK(count, "no image");
	msg.body.open.image = images[0].image;
	msg.body.open.place = images[0].place;
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, fds, &n), 0, &msg);
	map = mmap(NULL, l->image_bytes, PROT_READ, MAP_SHARED, fds[0], 0);
	CHECK(map != MAP_FAILED, "mmap");
	for (uint64_t i = l->entries[0].offset; i < l->image_bytes; i += 4)
		CHECK(*(uint32_t *)(map + i) == rank_word(0, step), "bytes");
	munmap(map, l->image_bytes);
	while (n)
		close(fds[--n]);
	free(images);
	close(sock);
}

static void story(struct scene *s, struct rank *r)
{
	*r = (struct rank){ .sock = -1 };
	open_rank(s, r);
	for (int64_t step = 1; step <= STEPS; step++)
		take(s, r, step);
}

/* ---- enumeration ---- */

/* Nobody is killed any more. True: somebody was. */
static bool disarm(struct scene *s)
{
	struct sk_msg msg;
	int sock;

	__atomic_store_n(&s->fault->rule_count, 0, __ATOMIC_SEQ_CST);
	/* Who was just about to has been by the second answer. */
	for (int i = 0; i < 2; i++) {
		sock = rig_try_connect(&s->rig, &msg);
		if (sock >= 0)
			close(sock);
	}
	return sk_fault_os_hits(s->fault);
}

/* Killed before its @nth call. True: there was one. */
static bool killed_at(struct scene *s, uint64_t nth)
{
	struct rank r;
	bool hit;

	sk_fault_os_forget(s->fault);
	sk_fault_os_meddle(s->fault, SK_FAULT_ANY, nth, die, NULL);
	begin(s);
	story(s, &r);
	hit = disarm(s);
	check_step(s, &r, STEPS);
	rank_close(&r);
	end(s);
	return hit;
}

/* Killed when all is sealed, and again before the @nth call after that. */
static bool killed_twice(struct scene *s, uint64_t nth)
{
	struct sk_msg msg;
	struct rank r;
	int sock;
	bool hit;

	sk_fault_os_forget(s->fault);
	begin(s);
	story(s, &r);
	sock = rig_try_connect(&s->rig, &msg);
	CHECK(sock >= 0, "connect");
	close(sock);
	sk_fault_os_meddle(s->fault, SK_FAULT_ANY,
			   sk_fault_os_calls(s->fault, SK_FAULT_ANY) + nth,
			   die, NULL);
	(void)kill((pid_t)msg.body.hello_reply.pid, SIGKILL);
	open_rank(s, &r);
	hit = disarm(s);
	check_step(s, &r, STEPS);
	rank_close(&r);
	end(s);
	return hit;
}

/* ---- another agent in its place ---- */

/* As shardkeepd --takeover, in whichever process that becomes. */
static int take_place(struct scene *s)
{
	const struct sk_os *os = &s->over->os;
	struct standby standby = STANDBY_NULL;
	struct sk_err err = { "" };
	struct log log;
	struct parent p = { .os = os, .log = &log, .ready_fd = -1,
			    .standby = &standby, .was_ready = true };
	struct birth birth;
	struct endpoint e;
	int r;

	/* Nobody's child any more where this test is killed. */
	s->options.idle_exit_s = 30;
	log_open(&log, sk_os_linux(), LOG_LEVEL_ERROR);
	r = takeover(os, s->rig.socket, &p.kept, &standby, &err);
	if (r == 0)
		r = parent_run(&p);
	if (r != PARENT_CHILD)
		return r != 0;
	birth = (struct birth){ .keeper = p.keeper, .kept = p.kept,
				.standby = STANDBY_NULL };
	r = endpoint_adopt(os, s->rig.socket,
			   kept_take(&birth.kept, KEPT_LOCK),
			   kept_take(&birth.kept, KEPT_LISTENER), &e, &err);
	return r || agent_run(os, &s->options, &e, &birth);
}

/* The agent that answers; negative: none. */
static pid_t serving(const struct scene *s)
{
	struct sk_msg msg;
	int sock = rig_try_connect(&s->rig, &msg);

	if (sock < 0)
		return sock;
	close(sock);
	return (pid_t)msg.body.hello_reply.pid;
}

static void end_whoever_serves(struct scene *s)
{
	CHECK(kill(serving(s), SIGTERM) == 0, "kill");
	/* All that this began are our children, once nobody else's. */
	while (waitpid(-1, NULL, 0) > 0)
		continue;
	CHECK(errno == ECHILD, "waitpid: %s", strerror(errno));
	s->rig.agent = 0;
	rig_remove(&s->rig);
}

/* Whoever takes the place, a standby, a keeper or an agent by then, is killed
 * before the @nth call that they make. True: there was one. */
static bool killed_over(struct scene *s, uint64_t nth)
{
	pid_t taker, before;
	struct rank r;
	bool hit;

	sk_fault_os_forget(s->fault);
	sk_fault_os_forget(s->over);
	sk_fault_os_meddle(s->over, SK_FAULT_ANY, nth, die, NULL);
	begin(s);
	story(s, &r);
	before = serving(s);
	taker = fork();
	CHECK(taker >= 0, "fork");
	if (!taker)
		_exit(take_place(s));
	AWAIT(sk_fault_os_hits(s->over) ||
	      (serving(s) > 0 && serving(s) != before), "it hangs");
	__atomic_store_n(&s->over->rule_count, 0, __ATOMIC_SEQ_CST);
	AWAIT(serving(s) > 0, "nobody serves");
	hit = sk_fault_os_hits(s->over);
	check_step(s, &r, STEPS);
	rank_close(&r);
	end_whoever_serves(s);
	return hit;
}

static void enumerate(struct scene *s, const char *what, uint64_t stride,
		      bool (*point)(struct scene *s, uint64_t nth))
{
	uint64_t n = 1, tried = 0, missed = 0;

	/* Threads take turns differently: the end is where several in a row
	 * are beyond it. */
	for (; missed < 3 && n < POINTS_MOST; n += stride, tried++)
		missed = point(s, n) ? 0 : missed + 1;
	CHECK(n < POINTS_MOST, "%s does not end", what);
	printf("%s: %llu of %llu points\n", what, (unsigned long long)tried,
	       (unsigned long long)n);
}

/* ---- who does not come back ---- */

static double used(int sock)
{
	return stat_value(sock, "shardkeep_memory_used_bytes");
}

static void pass(struct scene *s, int sock, uint64_t seconds)
{
	sk_fault_os_advance(s->fault, seconds * UINT64_C(1000000000));
	for (int i = 0; i < 30; i++)
		(void)used(sock);
}

/* A rank is awaited for two minutes: then its free slot is given back, and
 * what it sealed stays. */
static void test_away(struct scene *s)
{
	struct rank r = { .sock = -1 };
	struct sk_msg msg;
	double before;
	int sock;

	sk_fault_os_forget(s->fault);
	sk_fault_os_clock(s->fault, UINT64_C(1000000000000),
			  UINT64_C(1700000000000000000));
	begin(s);
	open_rank(s, &r);
	take(s, &r, 1);
	sock = rig_try_connect(&s->rig, &msg);
	CHECK(sock >= 0, "connect");
	before = used(sock);
	close(sock);
	CHECK(kill((pid_t)msg.body.hello_reply.pid, SIGKILL) == 0, "kill");
	/* Gone with its agent: nobody sees it go. */
	AWAIT((sock = rig_try_connect(&s->rig, &msg)) >= 0, "connect");
	rank_close(&r);
	pass(s, sock, 119);
	CHECK(used(sock) == before, "too early");
	pass(s, sock, 2);
	AWAIT(used(sock) == before / 2, "it is kept");
	CHECK(snapshot_flags(sock, "points", 1) & SK_SNAP_RESIDENT, "step 1");
	close(sock);
	end(s);
}

int main(int argc, char **argv)
{
	uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	struct scene s = { 0 };

	CHECK(stride, "a stride of 1 or more");
	s.fault = mmap(NULL, 2 * sizeof(*s.fault), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(s.fault != MAP_FAILED, "mmap");
	s.over = s.fault + 1;
	sk_fault_os_init(s.fault, sk_os_linux());
	sk_fault_os_init(s.over, sk_os_linux());
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "prctl");
	enumerate(&s, "a life", stride, killed_at);
	enumerate(&s, "what outlived it", stride, killed_twice);
	enumerate(&s, "its place", stride, killed_over);
	test_away(&s);
	return 0;
}
