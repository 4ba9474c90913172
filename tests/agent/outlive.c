/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/outlive.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "keeper/parent.h"
#include "server.h"

/* ---- the agent and its keeper, in processes of their own ---- */

static _Atomic pid_t *dying;	/* shared; 0: nobody was to die */

void die(void *ctx)
{
	(void)ctx;
	atomic_store(dying, getpid());
	(void)kill(getpid(), SIGKILL);
}

/* A thread that is to end its process may be kept from it for long. */
static bool is_dead(void)
{
	struct pollfd p = { .events = POLLIN };
	pid_t pid = atomic_load(dying);
	bool dead;

	if (!pid)
		return false;
	p.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	dead = p.fd < 0 || poll(&p, 1, 0) == 1;
	if (p.fd >= 0)
		close(p.fd);
	return dead;
}

void await_death(const struct sk_fault_os *fault)
{
	if (sk_fault_os_hits(fault))
		AWAIT(is_dead(), "%d lives", (int)atomic_load(dying));
}

static int run_child(struct scene *s, struct parent *p)
{
	struct birth birth = { .keeper = p->keeper, .kept = p->kept,
			       .standby = STANDBY_NULL };
	int lock = kept_take(&birth.kept, KEPT_LOCK);
	int sock = kept_take(&birth.kept, KEPT_LISTENER);
	struct sk_err err = { "" };
	struct endpoint e;
	int r;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (endpoint_adopt(&s->fault->os, s->rig.socket, lock, sock, &e, &err))
		return 1;
	s->options.ready_fd = p->ready_fd;
	if (s->before)
		s->before(s->ctx);
	r = agent_run(&s->fault->os, &s->options, &e, &birth);
	if (s->after)
		s->after(s->ctx);
	return r;
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

void begin(struct scene *s)
{
	int ready[2];
	char c;

	if (!dying)
		dying = mmap(NULL, sizeof(*dying), PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(dying != MAP_FAILED, "mmap");
	atomic_store(dying, 0);
	rig_init(&s->rig, "none");
	s->options = (struct options){
		.store = s->rig.store, .memory = 64u << 20,
		.admin_uid = (uid_t)-1, .level = LOG_LEVEL_ERROR,
		.stop_timeout_s = 300, .backend = SK_IO_THREADS,
		.hangs_s = s->hangs_s ? : NEVER_HANGS_S };
	CHECK(pipe2(ready, O_CLOEXEC) == 0, "pipe");
	s->rig.agent = fork();
	CHECK(s->rig.agent >= 0, "fork");
	if (!s->rig.agent)
		run_keeper(s, ready[1]);
	close(ready[1]);
	CHECK(read(ready[0], &c, 1) == 1, "it never served");
	close(ready[0]);
}

void end(struct scene *s)
{
	CHECK(rig_stop(&s->rig) == 0, "something was not durable");
	rig_remove(&s->rig);
}

/* ---- a rank, as the library would go on ---- */

void open_rank(struct scene *s, struct rank *r)
{
	struct rank_options o = { .job = OUTLIVE_JOB, .world = 1,
				  .flush_every = s->flush_every,
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
void take(struct scene *s, struct rank *r, int64_t step)
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

static void check_bytes(const struct rank *r, int fd, int64_t step)
{
	const struct sk_layout *l = r->layouts[0];
	char *map = mmap(NULL, l->image_bytes, PROT_READ, MAP_SHARED, fd, 0);

	CHECK(map != MAP_FAILED, "mmap");
	for (uint64_t i = l->entries[0].offset; i < l->image_bytes; i += 4)
		CHECK(*(uint32_t *)(map + i) == rank_word(0, step), "bytes");
	munmap(map, l->image_bytes);
}

/* Whether none of them became another file meanwhile: a flush that was under
 * way begins again. */
static bool check_images(const struct rank *r, int sock, int64_t step)
{
	struct sk_wire_image *images;
	int status = 0;
	size_t count;

	images = list_images(sock, OUTLIVE_JOB, step, &count);
	CHECK(count, "no image");
	for (size_t i = 0; i < count && status == 0; i++) {
		struct sk_msg msg = { .type = SK_MSG_OPEN, .body.open = {
			.image = images[i].image, .place = images[i].place } };
		int fds[SK_MSG_FDS], n = 0;

		status = rig_call(sock, &msg, NULL, 0, fds, &n);
		if (status != -ENOENT)
			CHECK_STATUS(status, 0, &msg);
		if (n)
			check_bytes(r, fds[0], step);
		while (n)
			close(fds[--n]);
	}
	free(images);
	return status == 0;
}

void check_step(struct scene *s, const struct rank *r, int64_t step)
{
	int sock = rig_connect(&s->rig), tries = 0;

	CHECK(snapshot_flags(sock, OUTLIVE_JOB, step) & SK_SNAP_COMPLETE,
	      "step %d was sealed, and is not there", (int)step);
	while (!check_images(r, sock, step))
		CHECK(++tries < 4, "its files are others each time");
	close(sock);
}

void story(struct scene *s, struct rank *r, int64_t steps)
{
	*r = (struct rank){ .sock = -1 };
	open_rank(s, r);
	for (int64_t step = 1; step <= steps; step++)
		take(s, r, step);
}

pid_t serving(const struct scene *s)
{
	struct sk_msg msg;
	int sock = rig_try_connect(&s->rig, &msg);

	if (sock < 0)
		return sock;
	close(sock);
	return (pid_t)msg.body.hello_reply.pid;
}
