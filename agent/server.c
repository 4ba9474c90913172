/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop: sockets, signals, deadlines, and work that came back. */
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#include "agent.h"

#define EVENTS 64
#define FDS_PER_CLIENT 8u
#define MAX_CLIENTS 16384u
#define STALE_S 3600u		/* of temporary names on the store */
#define SECOND_NS UINT64_C(1000000000)

int agent_watch(struct agent *a, struct source *s, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.ptr = s };
	int op = !events ? EPOLL_CTL_DEL :
		 s->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

	if (s->fd < 0 || (!events && !s->watched))
		return 0;
	if (epoll_ctl(a->epoll, op, s->fd, &e) < 0)
		return -errno;
	s->watched = events;
	return 0;
}

/* ---- stopping ---- */

static void stop_now(struct agent *a)
{
	atomic_store(&a->abort, true);
	a->quit = true;
}

static void stop_time_over(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, stop_timer);

	log_error(a, "the time to flush is over");
	stop_now(a);
}

void agent_stop(struct agent *a, const char *why)
{
	struct sk_cat_job *job;

	if (a->stopping) {
		log_warning(a, "stopping at once: %s", why);
		stop_now(a);
		return;
	}
	log_info(a, "stopping: %s", why);
	a->stopping = true;
	sk_link_each(job, &a->cat.jobs, link)
		flush_newest(a, job);
	a->stop_timer.fire = stop_time_over;
	if (timer_set(&a->timers, &a->stop_timer, agent_now(a) +
		      a->opts->stop_timeout_s * SECOND_NS) < 0)
		a->quit = true;
	agent_changed(a);
}

static void idle(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, idle_timer);

	agent_stop(a, "nobody has been connected for a while");
}

void agent_check_idle(struct agent *a)
{
	timer_clear(&a->timers, &a->idle_timer);
	if (!a->opts->idle_exit_s || a->n_sessions || a->stopping)
		return;
	a->idle_timer.fire = idle;
	(void)timer_set(&a->timers, &a->idle_timer, agent_now(a) +
			a->opts->idle_exit_s * SECOND_NS);
}

/* ---- sources ---- */

static void listener_ready(struct source *s, uint32_t events)
{
	struct agent *a = sk_link_object(s, struct agent, listener);

	(void)events;
	session_accept(a);
	agent_check_idle(a);
}

static void signals_ready(struct source *s, uint32_t events)
{
	struct agent *a = sk_link_object(s, struct agent, signals);
	struct signalfd_siginfo info;

	(void)events;
	while (read(s->fd, &info, sizeof(info)) == sizeof(info))
		agent_stop(a, info.ssi_signo == SIGTERM ? "SIGTERM" :
			   info.ssi_signo == SIGINT ? "SIGINT" : "a signal");
}

static void wake_ready(struct source *s, uint32_t events)
{
	(void)events;
	work_finish_all(sk_link_object(s, struct agent, wake));
}

/* ---- the loop ---- */

static void bury_sessions(struct agent *a)
{
	struct session *s;

	sk_link_each(s, &a->buried, link) {
		sk_link_remove(&s->link);
		free(s);
	}
}

/* What follows from what happened in this turn. */
static void settle(struct agent *a)
{
	struct sk_cat_job *job;

	while (a->changed && !a->quit) {
		a->changed = false;
		flush_kick(a);
		requests_look(a);
		sk_link_each(job, &a->cat.jobs, link)
			(void)sk_cat_job_trim(job);
		memory_populate(a);
	}
	if (a->stopping && !flush_pending(a))
		a->quit = true;
}

static void turn(struct agent *a)
{
	struct epoll_event events[EVENTS];
	int n;

	n = epoll_wait(a->epoll, events, EVENTS,
		       timers_wait(&a->timers, agent_now(a)));
	for (int i = 0; i < n; i++) {
		struct source *s = events[i].data.ptr;

		s->ready(s, events[i].events);
	}
	timers_run(&a->timers, agent_now(a));
	settle(a);
	bury_sessions(a);
}

/* ---- birth and death ---- */

static void release_slot(void *ctx, struct sk_cat_slot *slot)
{
	(void)ctx;
	memory_release(slot->memory);
}

static int open_signals(struct agent *a)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	/* Before any thread is made: they inherit it. */
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	(void)signal(SIGPIPE, SIG_IGN);
	(void)signal(SIGHUP, SIG_IGN);
	a->signals.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return a->signals.fd < 0 ? -errno : 0;
}

static void raise_limits(struct agent *a)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		limit.rlim_cur = 1024;
	a->max_sessions = limit.rlim_cur / FDS_PER_CLIENT < MAX_CLIENTS ?
			  (unsigned)(limit.rlim_cur / FDS_PER_CLIENT) :
			  MAX_CLIENTS;
	/* Pinned buffers, where we may. */
	if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_MEMLOCK, &limit);
	}
}

static int open_sources(struct agent *a)
{
	int r;

	a->epoll = epoll_create1(EPOLL_CLOEXEC);
	a->wake.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	a->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (a->epoll < 0 || a->wake.fd < 0)
		return -errno;
	a->listener.fd = a->place.sock;
	a->listener.ready = listener_ready;
	a->signals.ready = signals_ready;
	a->wake.ready = wake_ready;
	r = agent_watch(a, &a->listener, EPOLLIN);
	if (r == 0)
		r = agent_watch(a, &a->signals, EPOLLIN);
	return r < 0 ? r : agent_watch(a, &a->wake, EPOLLIN);
}

static int open_pools(struct agent *a, struct sk_err *err)
{
	int r;

	a->recall = sk_recall_new();
	if (!a->recall)
		return sk_err_set(err, -ENOMEM, "out of memory");
	r = sk_pool_new(1, -1, "sk-slow", &a->slow, err);
	if (r == 0)
		r = sk_pool_new(2, -1, "sk-populate", &a->populate, err);
	if (r == 0)
		r = sk_pool_new(1, -1, "sk-flush", &a->flusher, err);
	return r;
}

static int open_store(struct agent *a, struct sk_err *err)
{
	int r;

	if (!a->opts->store)
		return 0;
	r = sk_store_open(a->os, a->opts->store, STALE_S, &a->store,
			  &a->store_volatile, err);
	if (r < 0)
		return r;
	a->cat.has_store = true;
	if (a->store_volatile)
		log_warning(a, "the store %s is in memory; a power loss "
			    "empties it", a->opts->store);
	return flush_open(a, err);
}

static void init(struct agent *a, const struct options *o,
		 struct place *place)
{
	*a = (struct agent){
		.os = sk_os_linux(), .opts = o, .place = *place,
		.uid = geteuid(), .epoll = -1, .spare_fd = -1,
		.signals.fd = -1, .wake.fd = -1,
	};
	sk_cat_init(&a->cat);
	a->cat.budget = o->memory;
	a->cat.release = release_slot;
	a->cat.ctx = a;
	sk_link_init(&a->sessions);
	sk_link_init(&a->buried);
	sk_link_init(&a->finished);
	sk_link_init(&a->waiting);
	sk_link_init(&a->gathers);
	sk_link_init(&a->to_populate);
	sk_link_init(&a->scans);
	pthread_mutex_init(&a->work_lock, NULL);
	log_open(&a->log, o->level);
}

static int start(struct agent *a, struct sk_err *err)
{
	int r;

	raise_limits(a);
	r = open_signals(a);
	if (r == 0)
		r = open_sources(a);
	if (r == 0)
		r = a->os->random(a->os, &a->instance, sizeof(a->instance));
	if (r < 0)
		return sk_err_errno(err, r, "cannot start");
	r = open_pools(a, err);
	return r < 0 ? r : open_store(a, err);
}

/* Whoever waits for this byte may connect from now on. */
static void say_ready(struct agent *a)
{
	char memory[32];

	log_info(a, "shardkeepd %s serves on %s with a budget of %s, store %s"
		 "%s%s", AGENT_VERSION, a->place.path,
		 sk_cat_bytes(a->cat.budget, memory, sizeof(memory)),
		 a->store ? sk_store_path(a->store) : "none",
		 a->io ? ", " : "", a->io ? sk_io_describe(a->io) : "");
	if (a->opts->ready_fd < 0)
		return;
	if (write(a->opts->ready_fd, "1", 1) != 1)
		log_warning(a, "nobody reads descriptor %d to see that the "
			    "agent is ready", a->opts->ready_fd);
	close(a->opts->ready_fd);
}

/* What is out in the background comes back before its things are freed. */
static void drain(struct agent *a)
{
	struct pollfd p = { .fd = a->wake.fd, .events = POLLIN };

	while (a->working) {
		(void)poll(&p, 1, -1);
		work_finish_all(a);
	}
}

static void finish(struct agent *a)
{
	struct session *s;

	stop_now(a);
	/* First nobody can come any more, then all are let go. */
	place_leave(&a->place);
	a->listener.fd = -1;
	sk_link_each(s, &a->sessions, link)
		session_close(s, NULL);
	bury_sessions(a);
	drain(a);
	stored_close(a);
	sk_cat_destroy(&a->cat);
	drain(a);
	a->slow = sk_pool_free(a->slow);
	a->populate = sk_pool_free(a->populate);
	a->flusher = sk_pool_free(a->flusher);
	a->recall = sk_recall_free(a->recall);
	flush_close(a);
	a->store = sk_store_close(a->store);
	free(a->timers.heap);
	free(a->ignored);
	sk_close_fd(a->signals.fd);
	sk_close_fd(a->wake.fd);
	sk_close_fd(a->spare_fd);
	sk_close_fd(a->epoll);
	pthread_mutex_destroy(&a->work_lock);
}

int agent_run(const struct options *o, struct place *place)
{
	struct sk_err err = { "" };
	struct agent a;
	int r;

	init(&a, o, place);
	r = start(&a, &err);
	if (r < 0) {
		log_error(&a, "%s", err.text);
		a.status = 1;
		finish(&a);
		return a.status;
	}
	say_ready(&a);
	agent_check_idle(&a);
	while (!a.quit)
		turn(&a);
	if (!flush_all_durable(&a))
		a.status = 1;
	log_info(&a, "ends");
	finish(&a);
	return a.status;
}
