/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a communicator of NCCL may end, on the simulated one and on a clock
 * that goes on only where somebody waits.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "comm/nccl.h"
#include "conn/client.h"

#define MS UINT64_C(1000000)
#define TIMEOUT_MS 1000

static struct sk_os os;
static uint64_t now = MS;
static bool hangs;		/* whatever is waited for by a condition */

static uint64_t look(const struct sk_os *its)
{
	(void)its;
	return now;
}

/* Others do have that time. */
static int pause_until(const struct sk_os *its, struct pollfd *fds, nfds_t n,
		       uint64_t until_ns)
{
	cr_assert(!n && !fds && its);
	cr_assert_geq(until_ns, now);
	(void)usleep((useconds_t)((until_ns - now) / 1000));
	now = until_ns;
	return 0;
}

static int wait_until(const struct sk_os *its, pthread_cond_t *cond,
		      pthread_mutex_t *mutex, uint64_t until_ns)
{
	(void)its;
	if (!hangs)
		return -pthread_cond_wait(cond, mutex);
	now = until_ns > now ? until_ns : now;
	return -ETIMEDOUT;
}

/* The other comm has its time as well. */
static void abort_slowly(void *ctx)
{
	(void)ctx;
	now += TIMEOUT_MS / 2 * MS;
}

/* One is enough: there are no words to be said. */
static int gather(void *ctx, const void *in, size_t bytes, void *out,
		  uint32_t timeout_ms)
{
	(void)ctx;
	(void)timeout_ms;
	memcpy(out, in, bytes);
	return 0;
}

static int move(void *ctx, const struct sk_comm_part *sends, size_t n_sends,
		const struct sk_comm_part *receives, size_t n_receives,
		uint32_t timeout_ms)
{
	(void)ctx;
	(void)sends;
	(void)n_sends;
	(void)receives;
	(void)n_receives;
	(void)timeout_ms;
	return 0;
}

static struct sk sk;

/* With a communicator, and so much time for whatever comes next. */
static struct sk_nccl_comm *begin(struct sk_comm *ret)
{
	const struct sk_comm base = { .allgather = gather, .exchange = move,
				      .abort = abort_slowly };
	struct sk_nccl_comm *c;

	os = *sk_os_linux();
	os.now_ns = look;
	os.poll = pause_until;
	os.cond_wait = wait_until;
	sk = (struct sk){ .os = &os, .pid = getpid() };
	cr_assert_eq(sk_cuda_new(sk_os_linux(), &sk.cuda, NULL), 0);
	cr_assert_eq(sk_comm_nccl(&sk, &base, 0, 1, 0, ret), 0);
	cr_assert_eq(ret->device->begin(ret->ctx, 60000), 0, "%s",
		     sk_comm_nccl_why(ret));
	c = ret->ctx;
	c->timeout_ms = TIMEOUT_MS;
	return c;
}

Test(nccl_end, a_good_one_takes_no_time_of_an_abort)
{
	struct sk_comm comm;

	(void)begin(&comm);
	cr_assert_eq(comm.device->end(comm.ctx), 0, "%s",
		     sk_comm_nccl_why(&comm));
	sk_comm_nccl_free(&comm);
}

/* Its peers died or hang: it is aborted within the same time. */
Test(nccl_end, that_does_not_come_is_an_abort)
{
	struct sk_comm comm;
	uint64_t begun;

	setenv("VNCCL_FINALIZE", "hang", 1);
	(void)begin(&comm);
	begun = now;
	cr_assert_eq(comm.device->end(comm.ctx), 0, "%s",
		     sk_comm_nccl_why(&comm));
	cr_assert_leq(now - begun, TIMEOUT_MS * MS);
	sk_comm_nccl_free(&comm);
}

Test(nccl_end, nothing_comes_and_it_is_waited_for_once)
{
	struct sk_comm comm;
	uint64_t begun;

	setenv("VNCCL_FINALIZE", "hang", 1);
	setenv("VNCCL_ABORT", "hang", 1);
	(void)begin(&comm);
	hangs = true;
	begun = now;
	cr_assert_eq(comm.device->end(comm.ctx), -EIO);
	cr_assert_leq(now - begun, TIMEOUT_MS * MS, "%llu ms",
		      (unsigned long long)((now - begun) / MS));
	cr_assert(strstr(sk_comm_nccl_why(&comm), "within 1000 ms"), "%s",
		  sk_comm_nccl_why(&comm));
}

/* What the other comm takes to abort is part of it. */
Test(nccl_end, an_abort_is_waited_for_once)
{
	struct sk_comm comm;
	uint64_t begun;

	setenv("VNCCL_ABORT", "hang", 1);
	(void)begin(&comm);
	hangs = true;
	begun = now;
	comm.abort(comm.ctx);
	cr_assert_leq(now - begun, TIMEOUT_MS * MS, "%llu ms",
		      (unsigned long long)((now - begun) / MS));
	cr_assert_eq(comm.device->end(comm.ctx), -EIO);
	cr_assert_leq(now - begun, TIMEOUT_MS * MS);
}
