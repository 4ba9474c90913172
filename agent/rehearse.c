/* SPDX-License-Identifier: Apache-2.0 */
#include "rehearse.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/util.h"
#include "loop/endpoint.h"
#include "loop/log.h"
#include "server.h"

#define BOUND_NS (UINT64_C(30) * 1000000000)

struct outcome {
	int r;
	struct sk_err err;
};

/* Standard error is that file then: it is this process's last. */
static int try_log(const struct sk_os *os, const char *socket,
		   struct sk_err *err)
{
	struct endpoint e = { .path = "" };
	char path[sizeof(e.path) + 16];
	int r;

	(void)snprintf(e.path, sizeof(e.path), "%s", socket);
	endpoint_log_path(&e, path, sizeof(path));
	r = log_to_file(os, path);
	return r < 0 ? sk_err_errno(err, r, "cannot write the log %s", path) :
		       0;
}

static void perform(const struct sk_os *os, const struct options *o,
		    const char *path, int tell)
{
	struct outcome out = { .err.text = "" };

	out.r = agent_try(os, o, &out.err);
	if (out.r == 0 && o->detach)
		out.r = try_log(os, path, &out.err);
	_exit(os->write(os, tell, &out, sizeof(out)) != sizeof(out));
}

/* A store that hangs keeps the child for as long as it does. */
static int await_word(const struct sk_os *os, int told)
{
	struct pollfd p = { .fd = told, .events = POLLIN };

	return os->poll(os, &p, 1, os->now_ns(os) + BOUND_NS);
}

static int hear(const struct sk_os *os, int told, struct sk_err *err)
{
	struct outcome out;
	ssize_t n;

	if (await_word(os, told) == -ETIMEDOUT)
		return sk_err_set(err, -ETIMEDOUT, "the agent that was tried "
				  "before has not begun in 30 s: does the "
				  "filesystem of its store or log hang?");
	do {
		n = os->read(os, told, &out, sizeof(out));
	} while (n == -EINTR);
	if (n != sizeof(out))
		return sk_err_set(err, -ECHILD, "the agent that was tried "
				  "before ended without a word");
	if (out.r < 0)
		*err = out.err;
	return out.r;
}

int rehearse(const struct sk_os *os, const struct options *o, const char *path,
	     struct sk_err *err)
{
	int ends[2], pid, status, r;

	r = os->pipe(os, ends);
	if (r < 0)
		return sk_err_errno(err, r, "cannot make a pipe");
	pid = os->fork(os);
	if (pid == 0) {
		sk_close_fd(ends[0]);
		perform(os, o, path, ends[1]);
	}
	sk_close_fd(ends[1]);
	r = pid < 0 ? sk_err_errno(err, pid, "cannot begin a process") :
		      hear(os, ends[0], err);
	sk_close_fd(ends[0]);
	/* What a disk holds cannot even be killed; it ends when that lets go,
	 * or ends it. */
	if (pid > 0 && r == -ETIMEDOUT)
		(void)os->kill(os, pid, SIGKILL);
	else if (pid > 0)
		(void)os->waitpid(os, pid, &status);
	return r;
}
