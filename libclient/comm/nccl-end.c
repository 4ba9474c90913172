/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/nccl-end.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/thread.h"
#include "base/util.h"

/* The library is the process's, whatever comms and handles there are: what
 * hangs in it may hold what the next communicator would wait for. */
static atomic_bool lost;

bool sk_nccl_is_lost(void)
{
	return atomic_load(&lost);
}

/* A call that may not return, on a thread of its own. Whoever is last of the
 * two frees it. */
struct ending {
	sk_nccl_result (*call)(sk_nccl_comm comm);
	sk_nccl_comm comm;
	struct sk_cuda_device *gpu;
	pthread_mutex_t lock;
	pthread_cond_t over;
	bool under_way;		/* what the device has not come to the end of */
	bool done, left;
};

static void free_ending(struct ending *e)
{
	(void)pthread_cond_destroy(&e->over);
	(void)pthread_mutex_destroy(&e->lock);
	free(e);
}

static void *run_ending(void *arg)
{
	struct ending *e = arg;
	struct sk_cuda_scope scope;
	bool left;

	if (sk_cuda_enter(e->gpu, &scope, NULL) >= 0) {
		(void)e->call(e->comm);
		sk_cuda_leave(&scope);
	}
	(void)pthread_mutex_lock(&e->lock);
	e->done = true;
	left = e->left;
	/* Late, and all that it had asked for has ended. */
	if (left)
		sk_cuda_set_stuck(e->gpu, false);
	(void)pthread_cond_signal(&e->over);
	(void)pthread_mutex_unlock(&e->lock);
	if (left)
		free_ending(e);
	return NULL;
}

static bool wait_ending(const struct sk_os *os, struct ending *e,
			uint64_t until)
{
	bool done;

	(void)pthread_mutex_lock(&e->lock);
	while (!e->done && os->cond_wait(os, &e->over, &e->lock, until) >= 0)
		;
	done = e->done;
	e->left = !done;
	if (!done && e->under_way)
		sk_cuda_set_stuck(e->gpu, true);
	(void)pthread_mutex_unlock(&e->lock);
	if (done)
		free_ending(e);
	return done;
}

static struct ending *begin_ending(struct sk_nccl_comm *c,
				   sk_nccl_result (*call)(sk_nccl_comm))
{
	struct ending *e = calloc(1, sizeof(*e));
	pthread_t thread;

	if (!e)
		return NULL;
	e->call = call;
	e->comm = c->comm;
	e->gpu = c->gpu;
	e->under_way = c->under_way;
	(void)pthread_mutex_init(&e->lock, NULL);
	sk_cond_init(&e->over);
	if (sk_thread_start(&thread, run_ending, e) < 0) {
		free_ending(e);
		return NULL;
	}
	(void)pthread_detach(thread);
	return e;
}

void sk_nccl_end_by(struct sk_nccl_comm *c,
		    sk_nccl_result (*call)(sk_nccl_comm comm),
		    uint64_t until_ns)
{
	const struct sk_os *os = c->sk->os;
	struct ending *e;

	if (!c->comm)
		return;
	e = begin_ending(c, call);
	c->comm = NULL;
	if (e && wait_ending(os, e, until_ns))
		return;
	if (!e && c->under_way)
		sk_cuda_set_stuck(c->gpu, true);
	c->hung = true;
	c->sk->cuda_stays = true;
	atomic_store(&lost, true);
	(void)sk_err_set(&c->why, -EIO, "NCCL did not come back from the end "
			 "of a communicator within %u ms", c->timeout_ms);
}

int sk_nccl_let_go(struct sk_nccl_comm *c)
{
	if (c->hung)
		return -EIO;
	c->mark = sk_cuda_mark_free(c->mark);
	c->lane = sk_cuda_lane_free(c->lane);
	return 0;
}
