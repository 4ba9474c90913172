/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop: descriptors, times, and work that came back. */
#include "loop/loop.h"

#include <assert.h>

#define EVENTS 64
/* Then descriptors are looked at again: whoever has come meanwhile may be
 * next. */
#define TURN_NS UINT64_C(100000)
#define CHORES_A_TURN 64

static void wake_ready(struct source *s, uint32_t events)
{
	(void)events;
	works_finish(&sk_link_object(s, struct loop, wake)->works);
}

int loop_open(struct loop *loop, const struct sk_os *os)
{
	int r;

	*loop = (struct loop){ .os = os, .epoll = -1 };
	turns_init(&loop->chores);
	r = works_open(&loop->works, os);
	if (r < 0)
		return r;
	loop->epoll = os->epoll_create(os);
	loop->wake = (struct source){ .ready = wake_ready,
				      .fd = loop->works.wake };
	r = loop->epoll < 0 ? loop->epoll :
			      loop_watch(loop, &loop->wake, EPOLLIN);
	if (r < 0) {
		works_close(&loop->works);
		loop->epoll = sk_close_fd(loop->epoll);
	}
	return r;
}

void loop_close(struct loop *loop)
{
	if (loop->epoll < 0)
		return;
	works_close(&loop->works);
	loop->epoll = sk_close_fd(loop->epoll);
}

int loop_watch(struct loop *loop, struct source *s, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.ptr = s };
	int op = !events ? EPOLL_CTL_DEL :
		 s->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
	int r;

	if (s->fd < 0 || (!events && !s->watched))
		return 0;
	assert(s->ready);
	r = loop->os->epoll_ctl(loop->os, loop->epoll, op, s->fd, &e);
	if (r == 0)
		s->watched = events;
	return r;
}

void loop_queue(struct loop *loop, struct chore *chore)
{
	turns_queue(&loop->chores, chore);
}

static void run_chores(struct loop *loop, uint64_t until)
{
	for (int i = 0; i < CHORES_A_TURN; i++)
		if (!turns_take(&loop->chores, loop->os) ||
		    loop_now(loop) >= until)
			return;
}

void loop_serve(struct loop *loop)
{
	run_chores(loop, UINT64_MAX);
}

/* What was served since the last wait kept all others waiting. */
static void end_turn(struct loop *loop)
{
	uint64_t now = loop_now(loop);

	if (loop->n_turns++ && now - loop->turn_ns > loop->longest_ns)
		loop->longest_ns = now - loop->turn_ns;
}

void loop_turn(struct loop *loop)
{
	struct epoll_event events[EVENTS];
	uint64_t until = timers_next(&loop->timers);
	int n;

	end_turn(loop);
	if (!turns_idle(&loop->chores))
		until = 0;	/* long past */
	n = loop->os->epoll_wait(loop->os, loop->epoll, events, EVENTS, until);
	loop->turn_ns = loop_now(loop);
	for (int i = 0; i < n; i++) {
		struct source *s = events[i].data.ptr;

		s->ready(s, events[i].events);
	}
	run_chores(loop, loop_now(loop) + TURN_NS);
	timers_run(&loop->timers, loop_now(loop));
}
