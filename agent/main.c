/* SPDX-License-Identifier: Apache-2.0 */
/* shardkeepd: starting, and going to the background. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/standard.h"
#include "base/util.h"
#include "keeper/parent.h"
#include "server.h"
#include "takeover.h"
#include "worker/worker.h"

#define SECOND_NS UINT64_C(1000000000)
#define PATIENCE_NS (10 * SECOND_NS)	/* beyond its time to stop */
#define AGAIN_NS (SECOND_NS / 50)

/* The log goes beside the socket, and standard input and output nowhere. */
static int move_output(const struct sk_os *os, const struct endpoint *e)
{
	char path[sizeof(e->path) + 16];
	_cleanup_close_ int null = -1;
	int r;

	endpoint_log_path(e, path, sizeof(path));
	null = os->openat(os, AT_FDCWD, "/dev/null", O_RDWR, 0);
	if (null < 0)
		return null;
	r = os->dup2(os, null, STDIN_FILENO);
	if (r >= 0)
		r = os->dup2(os, null, STDOUT_FILENO);
	return r < 0 ? r : log_to_file(os, path);
}

/* Until clients can connect, or the agent has ended without: whoever gave no
 * descriptor to be told by has our exit status. */
static int await_ready(const struct sk_os *os, int told,
		       const struct endpoint *e)
{
	char path[sizeof(e->path) + 16], c;

	if (told < 0 || os->read(os, told, &c, 1) == 1)
		return 0;
	endpoint_log_path(e, path, sizeof(path));
	fprintf(stderr, "shardkeepd: the agent ended before it was ready; %s "
		"says why\n", path);
	return 1;
}

/* The parent ends; the child belongs to no terminal. */
static int detach(const struct sk_os *os, struct options *o,
		  const struct endpoint *e)
{
	int ready[2] = { -1, -1 }, r = 0;

	if (o->ready_fd < 0)
		r = os->pipe(os, ready);
	if (r >= 0)
		r = os->fork(os);
	if (r) {
		sk_close_fd(ready[1]);
		if (r > 0)
			_exit(await_ready(os, ready[0], e));
		sk_close_fd(ready[0]);
		return r;
	}
	if (ready[1] >= 0)
		o->ready_fd = ready[1];
	sk_close_fd(ready[0]);
	r = os->setsid(os);
	if (r >= 0)
		r = move_output(os, e);
	/* One whose whole path is too long for an address is found from where
	 * we are alone. */
	return r < 0 || e->path[0] != '/' ? r : os->chdir(os, "/");
}

static int go_to_background(const struct sk_os *os, struct options *o,
			    const struct endpoint *e, struct sk_err *err)
{
	int r = detach(os, o, e);

	if (r == 0)
		return 0;
	sk_err_errno(err, r, "cannot go to the background");
	if (!o->takeover)
		return r;
	/* The old agent has ended: what it held is ours alone. */
	fprintf(stderr, "shardkeepd: %s\n", err->text);
	return 0;
}

/* What the shell that started us has open besides, pipes that somebody reads to
 * their end, does not live as long as we do. The one that is to be told gets a
 * number of its own, which may have been that of standard output. */
static void leave_files(const struct sk_os *os, struct options *o)
{
	int first = SK_SPAWN_FD;

	if (o->ready_fd >= 0 && os->dup2(os, o->ready_fd, first) >= 0)
		o->ready_fd = first++;
	closefrom(first);
}

/* The asker waits for a byte, and another agent is as good as ours. */
static int other_serves(const struct sk_os *os, const struct options *o,
			const struct endpoint *e)
{
	/* A client that starts us only wants one to serve. */
	if (!o->detach)
		fprintf(stderr, "shardkeepd: another agent serves on %s\n",
			e->path);
	if (o->ready_fd >= 0 && os->write(os, o->ready_fd, "1", 1) != 1)
		return 1;
	return 0;
}

/* Whoever started us in the background looks for the reason in the log. */
static void complain(const struct sk_os *os, const struct options *o,
		     const struct endpoint *e, const struct sk_err *err)
{
	char path[sizeof(e->path) + 16];
	struct log log;

	fprintf(stderr, "shardkeepd: %s\n", err->text);
	if (!o->detach || !e->path[0])
		return;
	endpoint_log_path(e, path, sizeof(path));
	if (log_to_file(os, path) < 0)
		return;
	log_open(&log, os, o->level);
	log_line(&log, LOG_LEVEL_ERROR, "%s", err->text);
}

/* The same where no option was taken: of those, what the library gives. */
static void complain_of_options(const struct sk_os *os, int argc, char **argv)
{
	struct endpoint e = { .path = "" };
	char path[sizeof(e.path) + 16];
	struct options o = { 0 };
	bool detach = false;

	for (int i = 1; i < argc; i++) {
		detach |= strcmp(argv[i], "--detach") == 0;
		if (i + 1 < argc && strcmp(argv[i], "--socket") == 0 &&
		    strlen(argv[i + 1]) < sizeof(e.path))
			strcpy(e.path, argv[i + 1]);
	}
	if (!detach || !e.path[0])
		return;
	endpoint_log_path(&e, path, sizeof(path));
	if (log_to_file(os, path) == 0 && options_parse(argc, argv, &o) == 0)
		options_free(&o);
}

/* ---- what outlives the agent ---- */

/* In the hands of whoever keeps it, and of the agent. */
static void keep_endpoint(const struct sk_os *os, struct keeper *k,
			  const struct endpoint *e)
{
	(void)keeper_give(os, k, KEPT_LISTENER, e->sock);
	(void)keeper_give(os, k, KEPT_LOCK, e->lock);
}

/* All that the running agent has. */
static int take_over(const struct sk_os *os, const struct options *o,
		     struct birth *birth, struct sk_err *err)
{
	struct endpoint e = { .path = "" };
	int r;

	if (!o->takeover)
		return 0;
	r = endpoint_find(os, o->socket, &e, err);
	return r < 0 ? r : takeover(os, o, e.path, &birth->kept,
				    &birth->standby, err);
}

/* Its lock and its socket, where the last agent's were kept. */
static int take_endpoint(const struct sk_os *os, const struct options *o,
			 struct kept *kept, struct endpoint *ret,
			 struct sk_err *err)
{
	int lock = kept_take(kept, KEPT_LOCK);
	int sock = kept_take(kept, KEPT_LISTENER);

	return endpoint_adopt(os, o->socket, lock, sock, ret, err);
}

/* Until it ends, for as long as ours would take; false: it goes on. */
static bool await_other(const struct sk_os *os, const char *path,
			uint64_t until_ns, bool *said)
{
	int process;
	enum other_state state = other_look(os, path, &process);
	struct pollfd p = { .fd = process, .events = POLLIN };
	uint64_t again_ns = os->now_ns(os) + AGAIN_NS;

	if (state == OTHER_STOPPING && !*said)
		fprintf(stderr, "shardkeepd: the agent at %s is stopping; this "
			"one serves when it has ended\n", path);
	*said |= state == OTHER_STOPPING;
	/* Its keeper, or another one that also waited, is soon done. */
	if (state == OTHER_GONE || (state == OTHER_STOPPING && process < 0))
		(void)os->poll(os, NULL, 0, again_ns);
	else if (state == OTHER_STOPPING)
		(void)os->poll(os, &p, 1, until_ns);
	sk_close_fd(process);
	return state != OTHER_SERVES && os->now_ns(os) < until_ns;
}

/* The same where an agent that is stopping still has them. */
static int await_endpoint(const struct sk_os *os, const struct options *o,
			  struct kept *kept, struct endpoint *ret,
			  struct sk_err *err)
{
	uint64_t until_ns = os->now_ns(os) + PATIENCE_NS +
			    o->stop_timeout_s * SECOND_NS;
	bool said = false;
	int r;

	/* One that has closed its socket may hold the lock for a while. */
	do {
		r = take_endpoint(os, o, kept, ret, err);
	} while ((r == 1 && await_other(os, ret->path, until_ns, &said)) ||
		 (r == -EBUSY && said && os->now_ns(os) < until_ns));
	if (r == 1 && said && os->now_ns(os) >= until_ns)
		return sk_err_set(err, -EBUSY, "the agent at %s is stopping, "
				  "and does not end; wait for it, or end it",
				  ret->path);
	return r;
}

/* The agent, in a process that a parent has begun. */
static int run_child(struct parent *p, struct options *o)
{
	struct birth birth = { .keeper = p->keeper, .kept = p->kept,
			       .standby = STANDBY_NULL };
	struct endpoint e = { .path = "" };
	struct sk_err err = { "" };
	int r = take_endpoint(p->os, o, &birth.kept, &e, &err);

	if (r) {
		log_line(p->log, LOG_LEVEL_ERROR, "%s", r < 0 ? err.text :
			 "another agent serves there now");
		kept_clear(p->os, &birth.kept);
		return 1;
	}
	keep_endpoint(p->os, &birth.keeper, &e);
	o->ready_fd = p->ready_fd;
	r = agent_run(p->os, o, &e, &birth);
	kept_clear(p->os, &birth.kept);
	return r;
}

/* Where no agent has served, none has taken its address away. */
static void end_keeping(struct parent *p, const struct endpoint *e)
{
	struct endpoint own = *e;

	own.sock = kept_take(&p->kept, KEPT_LISTENER);
	own.lock = kept_take(&p->kept, KEPT_LOCK);
	if (p->was_ready)
		endpoint_leave(&own);
	else
		endpoint_close(p->os, &own);
	kept_clear(p->os, &p->kept);
}

/* The agent, and a parent that outlives it. */
static int run_kept(const struct sk_os *os, struct options *o,
		    const struct endpoint *e, struct birth *birth)
{
	char log_path[sizeof(e->path) + 16];
	struct log log;
	struct parent p = { .os = os, .log = &log,
			    .log_path = o->detach ? log_path : NULL,
			    .ready_fd = o->ready_fd,
			    .kept = birth->kept, .standby = &birth->standby,
			    .was_ready = o->takeover };
	int r;

	birth->kept = (struct kept){ 0 };
	endpoint_log_path(e, log_path, sizeof(log_path));
	log_open(&log, os, o->level);
	r = kept_add(os, &p.kept, KEPT_LISTENER, e->sock);
	if (r == 0)
		r = kept_add(os, &p.kept, KEPT_LOCK, e->lock);
	if (r < 0)
		return 1;
	r = parent_run(&p);
	if (r == PARENT_CHILD)
		return run_child(&p, o);
	end_keeping(&p, e);
	return r;
}

static int run(const struct sk_os *os, struct options *o,
	       const struct endpoint *e, struct birth *birth)
{
	bool keep = o->keeper == KEEP_ALWAYS || o->takeover ||
		    (o->keeper == KEEP_DEFAULT && o->detach);

	if (o->keeper == KEEP_NEVER)
		keeper_close(os, &birth->keeper);
	if (birth->keeper.kind == KEEPER_NONE && keep)
		return run_kept(os, o, e, birth);
	keep_endpoint(os, &birth->keeper, e);
	standby_dismiss(os, &birth->standby);
	return agent_run(os, o, e, birth);
}

/* The exit status of what prints, and ends. */
static int printed(void)
{
	if (!fflush(stdout) && !ferror(stdout))
		return 0;
	fprintf(stderr, "shardkeepd: cannot print: %s\n", strerror(errno));
	return 1;
}

int main(int argc, char **argv)
{
	const struct sk_os *os = sk_os_linux();
	struct birth birth = { .keeper = KEEPER_NULL,
			       .standby = STANDBY_NULL };
	struct endpoint endpoint = { .path = "" };
	struct options o = { 0 };
	struct sk_err err = { "" };
	int r, status = 1;

	/* A log line must not go to a socket, or into a lock file. */
	sk_standard_hold(os, O_RDWR);
	r = options_parse(argc, argv, &o);
	if (r < 0)
		complain_of_options(os, argc, argv);
	if (r)
		return r < 0 ? 2 : printed();
	/* Each mode is said where something is made; no file says more than
	 * 0600, but root's directories are for users to come through. */
	(void)umask(022);
	if (o.worker_fd >= 0) {
		status = worker_run(os, o.worker_fd);
		options_free(&o);
		return status;
	}
	r = kept_from_environment(os, &birth.kept);
	if (o.detach && !birth.kept.n)
		leave_files(os, &o);
	birth.keeper = keeper_from_environment(os);
	if (r < 0)
		sk_err_errno(&err, r, "cannot take up what was kept");
	else
		r = take_over(os, &o, &birth, &err);
	if (r == 0)
		r = await_endpoint(os, &o, &birth.kept, &endpoint, &err);
	if (r == 0 && o.detach)
		r = go_to_background(os, &o, &endpoint, &err);
	if (r < 0)
		complain(os, &o, &endpoint, &err);
	else
		status = r ? other_serves(os, &o, &endpoint) :
			     run(os, &o, &endpoint, &birth);
	standby_dismiss(os, &birth.standby);
	kept_clear(os, &birth.kept);
	options_free(&o);
	return status;
}
