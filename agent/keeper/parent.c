/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/parent.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include "base/util.h"
#include "loop/signals.h"

#define MS UINT64_C(1000000)
#define QUICK_NS (100 * MS)	/* an agent that lived no longer */
#define QUICK_MOST 10u		/* of those, that are followed at once */
#define PAUSE_NS (10 * MS)	/* then; twice as long each time */
#define PAUSES 9u
#define FAILED_MOST 3u
#define FDS_A_MESSAGE 253	/* the system's own limit */

/* ---- what it is told ---- */

/* The line of a message that begins so; "": there is none. */
static const char *line_of(const char *text, const char *begin, char *buf,
			   size_t size)
{
	size_t n = strlen(begin);

	for (const char *at = text; at; at = strchr(at, '\n')) {
		at += *at == '\n';
		if (strncmp(at, begin, n) != 0)
			continue;
		(void)snprintf(buf, size, "%.*s",
			       (int)strcspn(at + n, "\n"), at + n);
		return buf;
	}
	return "";
}

static bool says(const char *text, const char *line)
{
	char value[8];

	return strcmp(line_of(text, line, value, sizeof(value)), "1") == 0;
}

static void agent_is_ready(struct parent *p)
{
	p->ready = p->was_ready = true;
	p->failed = 0;
	p->ready_fd = sk_close_fd(p->ready_fd);
}

static void hear(struct parent *p, const char *text, int *fds, int n)
{
	char name[KEPT_NAME + 1];
	const char *said = line_of(text, "FDNAME=", name, sizeof(name));
	int fd;

	if (says(text, "FDSTORE=")) {
		/* Without one, this process may not open any more. */
		if (!n || kept_add(p->os, &p->kept, said, fds[0]) < 0)
			log_line(p->log, LOG_LEVEL_ERROR, "the keeper cannot "
				 "keep %s", said);
		if (n)
			fds[0] = -1;
	}
	if (says(text, "FDSTOREREMOVE=")) {
		fd = kept_take(&p->kept, said);
		if (fd >= 0)
			(void)p->os->close(p->os, fd);
	}
	if (says(text, "READY="))
		agent_is_ready(p);
	if (says(text, "STOPPING="))
		p->stopping = true;
	for (int i = 0; i < n; i++)
		sk_close_fd(fds[i]);
}

/* One message; false: the agent has closed its end, as the dead do. */
static bool receive(struct parent *p)
{
	union {
		char buf[CMSG_SPACE(FDS_A_MESSAGE * sizeof(int))];
		struct cmsghdr align;
	} control;
	char text[512];
	struct iovec iov = { text, sizeof(text) - 1 };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1,
			    .msg_control = control.buf,
			    .msg_controllen = sizeof(control.buf) };
	int fds[FDS_A_MESSAGE], n_fds = 0;
	ssize_t n = p->os->recvmsg(p->os, p->sock, &h, 0);

	if (n <= 0)
		return n == -EAGAIN || n == -ENOMEM;
	text[n] = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n_fds = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(c), (size_t)n_fds * sizeof(int));
	}
	hear(p, text, fds, n_fds);
	return true;
}

static void pass_signal_on(struct parent *p)
{
	struct signalfd_siginfo info;

	while (p->os->read(p->os, p->signals, &info, sizeof(info)) ==
	       sizeof(info)) {
		/* What the next one is told as well, which reads its options
		 * anyway. */
		if (info.ssi_signo != SIGHUP)
			p->told = (int)info.ssi_signo;
		else if (p->log_path)
			(void)log_to_file(p->os, p->log_path);
		if (p->child > 0)
			(void)p->os->kill(p->os, p->child,
					  (int)info.ssi_signo);
	}
}

/* ---- an agent's life ---- */

/* Until it has ended; what it said before is heard. Its status. */
static int await_end(struct parent *p)
{
	int status = 0;
	bool lives = true;

	while (lives) {
		struct pollfd fds[2] = {
			{ .fd = p->sock, .events = POLLIN },
			{ .fd = p->signals, .events = POLLIN },
		};

		if (p->os->poll(p->os, fds, 2, SK_FOREVER) < 0)
			continue;
		if (fds[1].revents)
			pass_signal_on(p);
		if (fds[0].revents)
			lives = receive(p);
	}
	if (p->os->waitpid(p->os, p->child, &status) < 0)
		status = 1 << 8;
	p->child = -1;
	p->sock = sk_close_fd(p->sock);
	return status;
}

static int begin(struct parent *p)
{
	int ends[2], r;

	r = p->os->socketpair(p->os, AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK,
			      0, ends);
	if (r < 0)
		return r;
	p->ready = p->stopping = false;
	p->lives++;
	p->began_ns = p->os->now_ns(p->os);
	r = p->os->fork(p->os);
	/* Two have all now; either of them may be killed. */
	if (r >= 0 && p->standby)
		standby_dismiss(p->os, p->standby);
	if (r == 0) {
		(void)p->os->close(p->os, ends[0]);
		p->signals = sk_close_fd(p->signals);
		p->keeper = (struct keeper){ .kind = KEEPER_PARENT,
					     .sock = ends[1] };
		return PARENT_CHILD;
	}
	(void)p->os->close(p->os, ends[1]);
	p->sock = ends[0];
	p->child = r;
	if (r < 0)
		p->sock = sk_close_fd(p->sock);
	/* Said between two lives. */
	else if (p->told)
		(void)p->os->kill(p->os, p->child, p->told);
	return r < 0 ? r : 0;
}

/* ---- between two lives ---- */

static void say_end(const struct parent *p, int status)
{
	size_t n = 0;

	if (p->log_path)
		(void)log_to_file(p->os, p->log_path);

	for (size_t i = 0; i < p->kept.n; i++)
		n += p->kept.v[i].fd >= 0;
	if (WIFSIGNALED(status))
		log_line(p->log, LOG_LEVEL_WARNING, "the agent was ended by "
			 "signal %d; the next one goes on with %zu kept "
			 "descriptors", WTERMSIG(status), n);
	else
		log_line(p->log, LOG_LEVEL_WARNING, "the agent could not "
			 "begin again (status %d); it is tried again with %zu "
			 "kept descriptors", WEXITSTATUS(status), n);
}

/* True: there is to be another one. */
static bool goes_on(struct parent *p, int status)
{
	bool killed = WIFSIGNALED(status);

	if (p->stopping || (!killed && (p->ready || !p->was_ready)))
		return false;
	p->failed += killed && !p->ready;
	p->quick = p->os->now_ns(p->os) - p->began_ns < QUICK_NS || !p->ready ?
		   p->quick + 1 : 0;
	say_end(p, status);
	if (p->failed < FAILED_MOST)
		return true;
	p->failed = 0;
	if (kept_drop(p->os, &p->kept, KEPT_TABLE) +
	    kept_drop(p->os, &p->kept, "slot-"))
		log_line(p->log, LOG_LEVEL_ERROR, "%u agents in a row were "
			 "killed before they could serve; what memory held is "
			 "let go", FAILED_MOST);
	/* One that never served need not. */
	return p->was_ready;
}

static void pause_a_while(struct parent *p)
{
	unsigned n = p->quick < QUICK_MOST ? 0 : p->quick - QUICK_MOST + 1;
	uint64_t until_ns = p->os->now_ns(p->os) +
			    (PAUSE_NS << (n < PAUSES ? n : PAUSES));
	struct pollfd fd = { .fd = p->signals, .events = POLLIN };

	/* Who is told to stop does not wait: its agent has what to flush. */
	if (n && p->os->poll(p->os, &fd, 1, until_ns) > 0)
		pass_signal_on(p);
}

/* The agent inherits that they are blocked: what it is told before it can
 * hear it waits. */
static int open_signals(struct parent *p)
{
	p->signals = signals_open(p->os);
	return p->signals < 0 ? p->signals : 0;
}

static int say_broken(const struct parent *p, int r)
{
	log_line(p->log, LOG_LEVEL_ERROR, "the keeper cannot begin an agent: "
		 "%s", strerror(-r));
	return 1;
}

void parent_raise_limit(const struct sk_os *os)
{
	struct rlimit limit;

	if (os->getrlimit(os, RLIMIT_NOFILE, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	(void)os->setrlimit(os, RLIMIT_NOFILE, &limit);
}

int parent_run(struct parent *p)
{
	int status = 1 << 8, r;

	p->sock = p->signals = -1;
	p->child = -1;
	parent_raise_limit(p->os);
	r = open_signals(p);
	if (r < 0)
		return say_broken(p, r);
	for (;;) {
		r = begin(p);
		if (r == PARENT_CHILD)
			return PARENT_CHILD;
		if (r < 0 && !p->was_ready)
			return say_broken(p, r);
		if (r == 0)
			status = await_end(p);
		else
			p->quick = QUICK_MOST + PAUSES;
		if (r == 0 && !goes_on(p, status))
			break;
		pause_a_while(p);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
