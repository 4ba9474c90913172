/* SPDX-License-Identifier: Apache-2.0 */
/* Orders that are taken back while a worker has them. No worker runs: what one
 * would be started with is the test's, which answers for it. */
#include "memory/workers.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent.h"
#include "wire/channel.h"

#define MOST 4u

struct rig {
	struct sk_os os;
	struct agent *agent;
	int socks[MOST];	/* the workers' ends */
	unsigned n;		/* workers that were started */
};

struct asked {
	struct order order;
	unsigned done;		/* calls */
	int status;		/* of the last */
	bool fd;		/* it came with one */
};

static int spawn(const struct sk_os *os, const char *program,
		 char *const argv[], int keep_fd)
{
	struct rig *rig = sk_link_object(os, struct rig, os);

	(void)program;
	(void)argv;
	cr_assert_lt(rig->n, MOST);
	rig->socks[rig->n] = fcntl(keep_fd, F_DUPFD_CLOEXEC, 3);
	cr_assert_geq(rig->socks[rig->n], 0);
	return 1000 + (int)rig->n++;
}

static int no_pidfd(const struct sk_os *os, pid_t pid)
{
	(void)os;
	(void)pid;
	return -EMFILE;
}

static void rig_init(struct rig *rig)
{
	*rig = (struct rig){ .os = *sk_os_linux(),
			     .agent = calloc(1, sizeof(*rig->agent)) };
	cr_assert(rig->agent);
	rig->os.spawn = spawn;
	rig->os.pidfd_open = no_pidfd;
	rig->agent->os = &rig->os;
	cr_assert_eq(loop_open(&rig->agent->loop, &rig->os), 0);
	sk_link_init(&rig->agent->workers);
	sk_link_init(&rig->agent->ended);
}

static void rig_end(struct rig *rig)
{
	workers_close(rig->agent);
	for (unsigned i = 0; i < rig->n; i++)
		close(rig->socks[i]);
	loop_close(&rig->agent->loop);
	free(rig->agent);
}

static void nothing(struct timer *timer)
{
	(void)timer;
}

/* What is due is done, and nothing is waited for. */
static void turn(struct rig *rig)
{
	struct agent *a = rig->agent;
	struct timer now = { .fire = nothing };

	timer_set(&a->loop.timers, &now, agent_now(a));
	loop_turn(&a->loop);
	timer_clear(&a->loop.timers, &now);
}

static void note_done(struct order *order, int status,
		      const struct sk_wire_worker *answer, int *fd,
		      const struct sk_err *err)
{
	struct asked *asked = sk_link_object(order, struct asked, order);

	(void)answer;
	(void)err;
	asked->done++;
	asked->status = status;
	asked->fd = *fd >= 0;
}

static void ask(struct rig *rig, struct asked *asked, enum sk_msg_type type)
{
	*asked = (struct asked){ .order = { .done = note_done } };
	asked->order.msg.type = (uint16_t)type;
	cr_assert_eq(order_submit(rig->agent, &asked->order), 0);
	turn(rig);
}

/* What a worker was asked for; 0: nothing; a negative errno: the agent has let
 * go of it. */
static int received(const struct rig *rig, unsigned worker)
{
	int fds[SK_MSG_FDS], n = 0, r, sock = rig->socks[worker];
	struct sk_msg msg;

	cr_assert_lt(worker, rig->n, "%u were started", rig->n);
	cr_assert_neq(fcntl(sock, F_SETFL, O_NONBLOCK), -1);
	r = sk_channel_recv(&rig->os, sock, &msg, fds, &n);
	cr_assert_eq(n, 0);
	return r == -EAGAIN ? 0 : r < 0 ? r : (int)msg.type;
}

/* It has done what it was asked for; @fd: -1, or what it made. */
static void answer(struct rig *rig, unsigned worker, int fd)
{
	struct sk_msg msg = { .type = SK_MSG_MAKE_DEVICE_SLOT };

	cr_assert_eq(sk_channel_send(&rig->os, rig->socks[worker], &msg, &fd,
				     fd >= 0), 0);
	turn(rig);
}

/* A worker makes a slot, and nobody wants it any more. */
static void forsake(struct rig *rig, struct asked *make)
{
	ask(rig, make, SK_MSG_MAKE_DEVICE_SLOT);
	cr_assert_eq(received(rig, 0), SK_MSG_MAKE_DEVICE_SLOT);
	order_take_back(rig->agent, &make->order);
	turn(rig);
	cr_assert_eq(received(rig, 0), 0, "it was ended");
}

Test(workers, the_next_slot_waits_for_one_that_nobody_wants)
{
	struct asked first, next;
	struct rig rig;
	int made[2];
	char byte;

	rig_init(&rig);
	cr_assert_eq(pipe2(made, O_CLOEXEC | O_NONBLOCK), 0);
	forsake(&rig, &first);
	ask(&rig, &next, SK_MSG_MAKE_DEVICE_SLOT);
	cr_assert_eq(rig.n, 1);
	cr_assert_eq(received(&rig, 0), 0, "it makes the first");
	answer(&rig, 0, made[1]);
	close(made[1]);
	cr_assert_eq(read(made[0], &byte, 1), 0, "what it made is kept");
	cr_assert_eq(received(&rig, 0), SK_MSG_MAKE_DEVICE_SLOT);
	cr_assert_eq(next.done, 0);
	answer(&rig, 0, made[0]);
	cr_assert(next.done == 1 && !next.status && next.fd);
	cr_assert_eq(first.done, 0);
	close(made[0]);
	rig_end(&rig);
}

Test(workers, a_drain_does_not)
{
	struct asked first, drain;
	struct rig rig;

	rig_init(&rig);
	forsake(&rig, &first);
	ask(&rig, &drain, SK_MSG_DRAIN);
	cr_assert_eq(rig.n, 2);
	cr_assert_lt(received(&rig, 0), 0, "it goes on");
	cr_assert_eq(received(&rig, 1), SK_MSG_DRAIN);
	answer(&rig, 1, -1);
	cr_assert(drain.done == 1 && !drain.status && !drain.fd);
	cr_assert_eq(first.done, 0);
	rig_end(&rig);
}

Test(workers, nor_does_one_that_was_asked_for_before)
{
	struct asked make, drain;
	struct rig rig;

	rig_init(&rig);
	ask(&rig, &make, SK_MSG_MAKE_DEVICE_SLOT);
	ask(&rig, &drain, SK_MSG_DRAIN);
	cr_assert_eq(received(&rig, 0), SK_MSG_MAKE_DEVICE_SLOT);
	cr_assert_eq(received(&rig, 0), 0, "one at a time");
	order_take_back(rig.agent, &make.order);
	turn(&rig);
	cr_assert_lt(received(&rig, 0), 0, "it goes on");
	cr_assert_eq(received(&rig, 1), SK_MSG_DRAIN);
	answer(&rig, 1, -1);
	cr_assert(drain.done == 1 && !drain.status);
	cr_assert_eq(make.done, 0);
	rig_end(&rig);
}
