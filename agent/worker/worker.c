/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/worker.h"

#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/util.h"
#include "cuda/held.h"
#include "cuda/share.h"
#include "wire/channel.h"
#include "worker/drain.h"
#include "worker/name.h"

/* While it holds memory it looks whether it was asked to end. */
#define LOOK_NS UINT64_C(1000000000)
/* A context takes memory of the device that trainers may want. */
#define IDLE_NS (UINT64_C(10) * 1000000000)

struct worker {
	const struct sk_os *os;
	int sock;
	struct sk_cuda *cuda;
	bool exclusive;			/* the device of this order */
	struct sk_cuda_held *held;	/* that it has made, and stays for */
	pid_t agent;			/* then: whose it was */
};

/* ---- orders ---- */

/* An agent that does not read is busy, and waits for nobody meanwhile. */
static void further(void *ctx)
{
	struct worker *w = ctx;
	struct pollfd p = { .fd = w->sock, .events = POLLOUT };
	struct sk_msg msg = { .type = SK_MSG_DRAIN,
			      .status = SK_WORKER_FURTHER };

	(void)w->os->alarm(w->os, WORKER_STILL_S);
	if (w->os->poll(w->os, &p, 1, w->os->now_ns(w->os)) == 1)
		(void)sk_channel_send(w->os, w->sock, &msg, NULL, 0);
}

/* Whoever stops a service asks each of its processes to end at once: what is
 * held here the agent may have to bring out before. */
static volatile sig_atomic_t asked_to_end;

static void note_it(int sig)
{
	(void)sig;
	asked_to_end = 1;
}

/* Whoever reads what the agent says waits for all who can say something. */
static void say_no_more(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (int i = STDIN_FILENO; i <= STDERR_FILENO && fd >= 0; i++)
		(void)dup2(fd, i);
	if (fd > STDERR_FILENO)
		(void)close(fd);
}

/* The agent may be killed, and what is held here is the next one's. */
static void outlive_agent(struct worker *w)
{
	w->agent = getppid();
	(void)signal(SIGTERM, note_it);
	(void)prctl(PR_SET_PDEATHSIG, 0);
	(void)w->os->setsid(w->os);
	say_no_more();
}

/* What has a descriptor needs no process; for what has none this one stays. */
static int make_slot(struct worker *w, const struct sk_cuda_device *device,
		     struct sk_msg *msg, int *ret_fd, struct sk_err *err)
{
	struct sk_wire_worker *o = &msg->body.worker;
	int r;

	o->instance = sk_cuda_is_instance(device);
	if (!sk_cuda_is_held(device))
		return sk_cuda_share_new(device, o->bytes, ret_fd, &o->bytes,
					 err);
	r = sk_cuda_held_new(device, o->bytes, &w->held, ret_fd, &o->bytes,
			     err);
	if (r >= 0 && !w->agent)
		outlive_agent(w);
	return r;
}

/* What a worker takes there keeps the next trainer out. */
static int is_taken(const struct sk_msg *msg, struct sk_err *err)
{
	if (msg->type != SK_MSG_MAKE_DEVICE_SLOT)
		return 0;
	return sk_err_set(err, -EUSERS, "the GPU takes one process at a time "
			  "(compute mode exclusive-process), which is the "
			  "rank's; its snapshots go straight to memory");
}

/* 0: *ret_device; a device that one process has is none for the agent. */
static int find(struct worker *w, const struct sk_msg *msg,
		const struct sk_cuda_uuid *uuid,
		struct sk_cuda_device **ret_device, struct sk_err *err)
{
	int r;

	w->exclusive = sk_cuda_is_exclusive(w->cuda, uuid);
	r = w->exclusive ? is_taken(msg, err) : 0;
	if (r < 0)
		return r;
	r = sk_cuda_device_by_uuid(w->cuda, uuid, ret_device, err);
	if (r < 0 && w->exclusive)
		return -EUSERS;
	return r == -ENODEV ? worker_sees_none(uuid, err) : r;
}

static int serve(struct worker *w, struct sk_msg *msg, const int *fds,
		 int n_fds, int *ret_fd, struct sk_err *err)
{
	const struct sk_wire_worker *o = &msg->body.worker;
	struct sk_cuda_device *device;
	const struct drain_watch watch = { further, w };
	struct sk_cuda_uuid uuid;
	int r;

	memcpy(uuid.bytes, o->uuid, sizeof(uuid.bytes));
	r = find(w, msg, &uuid, &device, err);
	if (r < 0)
		return r;
	if (msg->type == SK_MSG_MAKE_DEVICE_SLOT)
		return make_slot(w, device, msg, ret_fd, err);
	if (msg->type == SK_MSG_DRAIN)
		return drain(w->os, device, o, fds, n_fds, &watch, err);
	return sk_err_set(err, -EINVAL, "%u is no order", msg->type);
}

static void close_all(struct worker *w, const int *fds, int n)
{
	for (int i = 0; i < n; i++)
		(void)w->os->close(w->os, fds[i]);
}

/* One order; what it came to, or that there are to be no more. */
static int work(struct worker *w, struct sk_err *err)
{
	int fds[SK_MSG_FDS], n_fds = 0, made = -1, r, status;
	struct sk_msg msg;

	r = sk_channel_wait(w->os, w->sock,
			    w->os->now_ns(w->os) + IDLE_NS);
	if (r >= 0)
		r = sk_channel_recv(w->os, w->sock, &msg, fds, &n_fds);
	if (r < 0)
		return -ECONNRESET;
	sk_cuda_held_sweep(&w->held);
	/* It could not open what it holds: the agent asks another one. */
	if (w->held && msg.type == SK_MSG_DRAIN) {
		close_all(w, fds, n_fds);
		return -ECONNRESET;
	}
	/* A driver that hangs cannot be asked to stop. */
	(void)w->os->alarm(w->os, WORKER_STILL_S);
	status = serve(w, &msg, fds, n_fds, &made, err);
	/* It is free for a trainer before anybody knows. */
	if (w->exclusive)
		w->cuda = sk_cuda_free(w->cuda);
	(void)w->os->alarm(w->os, 0);
	close_all(w, fds, n_fds);
	msg.status = status;
	if (status < 0)
		memcpy(msg.body.text, err->text, sizeof(msg.body.text));
	r = sk_channel_send(w->os, w->sock, &msg, &made, made >= 0);
	if (made >= 0)
		(void)w->os->close(w->os, made);
	if (status >= 0 && w->exclusive)
		return -ECONNRESET;
	return status < 0 ? status : r;
}

/* No order is for this one any more, but what it has made may be in use. */
static void hold(struct worker *w)
{
	const struct sk_os *os = w->os;

	(void)os->close(os, w->sock);
	/* With the agent, that is. */
	while (w->held && !(asked_to_end && getppid() != w->agent))
		sk_cuda_held_wait(&w->held, os->now_ns(os) + LOOK_NS);
	sk_cuda_held_end(&w->held);
}

int worker_run(const struct sk_os *os, int sock)
{
	struct worker w = { .os = os, .sock = sock };
	struct sk_err err = { "" };
	int r;

	/* The agent's end is ours; what it blocks and ignores is not. */
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)signal(SIGALRM, SIG_DFL);
	(void)sigprocmask(SIG_SETMASK, &(sigset_t){ 0 }, NULL);
	r = sk_cuda_new(os, &w.cuda, &err);
	if (r >= 0) {
		(void)os->alarm(os, WORKER_STILL_S);
		worker_name(os, sock, w.cuda, os->now_ns(os) + IDLE_NS);
	}
	while (r >= 0)
		r = work(&w, &err);
	hold(&w);
	(void)sk_cuda_free(w.cuda);
	return r == -ECONNRESET ? 0 : 1;
}
