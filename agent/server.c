/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's birth, its turns, and its death. */
#include "server.h"

#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "agent.h"
#include "base/size.h"
#include "base/strangers.h"
#include "calls/call.h"
#include "calls/device.h"
#include "calls/leave.h"
#include "calls/quarantine.h"
#include "calls/table.h"
#include "disk/cadence.h"
#include "disk/flush.h"
#include "disk/index.h"
#include "disk/prove.h"
#include "disk/restoring.h"
#include "disk/retain.h"
#include "disk/scrub.h"
#include "disk/stored.h"
#include "disk/sums.h"
#include "disk/sweep.h"
#include "loop/signals.h"
#include "memory/collapse.h"
#include "memory/heap.h"
#include "memory/memory.h"
#include "memory/record.h"
#include "memory/workers.h"
#include "metrics/metrics.h"
#include "session/decide.h"
#include "session/flight.h"
#include "session/request.h"
#include "session/session.h"
#include "session/stop.h"
#include "shardkeep-version.h"
#include "reload.h"
#include "revive/revive.h"
#include "health.h"
#include "upkeep.h"

#define FDS_PER_CLIENT 8u
#define MAX_CLIENTS 16384u
#define PARSERS 4u		/* users whose work is slow at once */
#define SEALERS 2u		/* the same, with long headers */
#define TELLERS 2u		/* the same, of what images cover */

/* ---- sources ---- */

static void listener_ready(struct source *s, uint32_t events)
{
	struct agent *a = sk_link_object(s, struct agent, listener);

	(void)events;
	session_accept(a);
	agent_check_idle(a);
}

static bool is_of_keeper(const struct agent *a,
			 const struct signalfd_siginfo *info)
{
	return a->keeper.kind == KEEPER_PARENT && info->ssi_code == SI_USER &&
	       (pid_t)info->ssi_pid == getppid();
}

static void signals_ready(struct source *s, uint32_t events)
{
	struct agent *a = sk_link_object(s, struct agent, signals);
	struct signalfd_siginfo info;

	(void)events;
	while (a->os->read(a->os, s->fd, &info, sizeof(info)) ==
	       sizeof(info)) {
		if (info.ssi_signo == SIGHUP)
			agent_reload(a);
		else
			agent_stop_signal(a, is_of_keeper(a, &info),
					  info.ssi_signo == SIGTERM ?
					  "SIGTERM" : "SIGINT");
	}
}

/* It never says anything: it is gone. */
static void keeper_gone(struct source *s, uint32_t events)
{
	struct agent *a = sk_link_object(s, struct agent, keeps);

	(void)events;
	(void)loop_watch(&a->loop, s, 0);
	a->keeper.lost = true;
	log_warning(a, "the keeper is gone: what memory holds will not outlive "
		    "this agent; restart it when that suits");
}

/* ---- the turn ---- */

static void trim_jobs(struct agent *a)
{
	struct sk_cat_job *job;
	struct sk_link awake;

	sk_cat_awake_take(&a->cat, SK_CAT_TRIM, &awake);
	while ((job = sk_cat_awake_next(&awake, SK_CAT_TRIM)))
		(void)sk_cat_job_trim(job);
}

/* What follows from what happened in this turn: of jobs, for those that are
 * awake. */
static void follow_up(struct agent *a)
{
	bool changed = a->changed;

	while (a->changed && !a->quit) {
		a->changed = false;
		decide_anew(a);
		flush_kick(a);
		requests_answer_due(a);
		trim_jobs(a);
		memory_populate(a);
		collapse_go_on(a);
	}
	if (changed)
		stored_leave(a);
}

static bool is_over(struct agent *a)
{
	return a->stopping && !flush_pending(a) && !index_pending(a) &&
	       !device_draining(a, NULL);
}

/* What came with the word to end is answered, and who still waits. */
static void end_if_over(struct agent *a)
{
	if (!is_over(a))
		return;
	loop_serve(&a->loop);
	follow_up(a);
	requests_answer_crowds(a);
	a->quit = is_over(a);
}

/* Connections that are marked end here, where nothing is being walked; that
 * may answer others, and so mark more. */
static void end_turn(struct agent *a)
{
	unsigned before = a->n_sessions;

	do {
		device_drain_dead(a);
		sessions_leave(a);
		quarantine_tidy(a);
		device_copies_tidy(a);
		follow_up(a);
	} while (!sk_link_empty(&a->closing));
	workers_tidy(a);
	if (a->n_sessions != before)
		agent_check_idle(a);
	if (a->cat.visits - a->visits > a->most_visits)
		a->most_visits = a->cat.visits - a->visits;
	a->visits = a->cat.visits;
	end_if_over(a);
}

/* ---- birth and death ---- */

static void release_slot(void *ctx, struct sk_cat_slot *slot)
{
	(void)ctx;
	memory_release(slot->memory);
}

static void forget_job(void *ctx, struct sk_cat_job *job)
{
	(void)ctx;
	retain_job_gone(job);
}

static int open_signals(struct agent *a)
{
	/* A limit on file sizes that cannot be raised is an error of a write;
	 * by default it ends the process. */
	(void)signal(SIGXFSZ, SIG_IGN);
	a->signals.fd = signals_open(a->os);
	return a->signals.fd < 0 ? a->signals.fd : 0;
}

/* What a trainer was limited to, for reasons of its own, its agent is not: as
 * far as the system lets us, and what it does not is no reason to end. */
static void raise_limit(const struct sk_os *os, int which)
{
	struct rlimit limit;

	if (os->getrlimit(os, which, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	(void)os->setrlimit(os, which, &limit);
}

static void raise_limits(struct agent *a)
{
	static const int raised[] = { RLIMIT_NOFILE, RLIMIT_MEMLOCK,
				      RLIMIT_FSIZE, RLIMIT_AS, RLIMIT_DATA,
				      RLIMIT_CPU };
	struct rlimit limit = { .rlim_cur = 1024 };
	rlim_t clients;

	for (size_t i = 0; i < SK_ARRAY_SIZE(raised); i++)
		raise_limit(a->os, raised[i]);
	(void)a->os->getrlimit(a->os, RLIMIT_NOFILE, &limit);
	clients = limit.rlim_cur / FDS_PER_CLIENT;
	/* Half for slots, and half of that for one user: the rest is for
	 * connections, replies and files. */
	a->cat.budget_fds = limit.rlim_cur == RLIM_INFINITY ? 0 :
			    limit.rlim_cur / 2;
	a->cat.user_fds = a->cat.budget_fds / 2;
	/* The system counts those that are sent against the same limit. */
	a->max_flight = limit.rlim_cur < UINT32_MAX ?
			(unsigned)limit.rlim_cur : 0;
	a->max_sessions = clients < MAX_CLIENTS ? (unsigned)clients :
						  MAX_CLIENTS;
}

static int open_sources(struct agent *a)
{
	int r;

	r = loop_open(&a->loop, a->os);
	if (r < 0)
		return r;
	a->spare_fd = a->os->openat(a->os, AT_FDCWD, "/dev/null", O_RDONLY,
				    0);
	a->listener.fd = a->endpoint.sock;
	a->listener.ready = listener_ready;
	a->signals.ready = signals_ready;
	a->keeps = (struct source){ .fd = a->keeper.sock,
				    .ready = keeper_gone };
	r = loop_watch(&a->loop, &a->listener, EPOLLIN);
	if (r == 0)
		r = loop_watch(&a->loop, &a->signals, EPOLLIN);
	if (r == 0 && a->keeper.kind == KEEPER_PARENT)
		r = loop_watch(&a->loop, &a->keeps, EPOLLIN);
	return r;
}

static int open_pools(struct agent *a, struct sk_err *err)
{
	int r;

	a->recall = sk_recall_new();
	a->sums = sums_new();
	if (!a->recall || !a->sums || collapse_open(a) < 0)
		return sk_err_set(err, -ENOMEM, "out of memory");
	r = sk_pool_new(1, -1, "sk-slow", &a->slow, err);
	if (r == 0)
		r = sk_pool_new(PARSERS, -1, "sk-parse", &a->parsers, err);
	if (r == 0)
		r = sk_pool_new(SEALERS, -1, "sk-seal", &a->sealers, err);
	if (r == 0)
		r = sk_pool_new(TELLERS, -1, "sk-tell", &a->tellers, err);
	if (r == 0)
		r = sk_pool_new(2, -1, "sk-populate", &a->populate, err);
	if (r == 0)
		r = sk_pool_new(1, -1, "sk-flush", &a->flusher, err);
	lanes_init(&a->lanes, &a->loop.works, a->parsers);
	lanes_init(&a->deeds, &a->loop.works, a->slow);
	lanes_init(&a->seals, &a->loop.works, a->sealers);
	lanes_init(&a->questions, &a->loop.works, a->tellers);
	decide_open(a);
	return r;
}

static int open_store(struct agent *a, struct sk_err *err)
{
	int r;

	if (!a->opts->store)
		return 0;
	r = sk_store_open(a->os, a->opts->store, SK_STORE_LATER, &a->store,
			  &a->store_volatile, err);
	if (r < 0)
		return r;
	a->cat.has_store = true;
	if (a->store_volatile)
		log_warning(a, "the store %s is in memory; a power loss "
			    "empties it", a->opts->store);
	r = retain_open(a, err);
	if (r == 0)
		r = flush_open(a, err);
	if (r < 0)
		return r;
	r = index_open(a);
	if (r == 0)
		r = prove_open(a);
	/* A history is gone through where somebody died; else later. */
	if (r == 0)
		r = sweep_open(a);
	return r < 0 ? sk_err_errno(err, r, "cannot start") : 0;
}

static void init(struct agent *a, const struct sk_os *os,
		 const struct options *o, const struct endpoint *endpoint)
{
	*a = (struct agent){
		.os = os, .opts = o, .endpoint = *endpoint,
		.uid = geteuid(), .strangers = sk_strangers_uid(os),
		.spare_fd = -1, .signals.fd = -1,
		.loop = { .os = os, .epoll = -1 },
		.keeper = KEEPER_NULL, .table = TABLE_NULL,
		.dispatch = call_dispatch,
		.flush_turns = 1,
	};
	sk_cat_init(&a->cat);
	reload_apply(a, o);
	a->cat.owner = a->uid;
	a->cat.release = release_slot;
	a->cat.forget = forget_job;
	a->cat.forget_run = record_run_over;
	a->cat.noted = record_note;
	a->cat.ctx = a;
	sk_link_init(&a->sessions);
	sk_link_init(&a->closing);
	sk_link_init(&a->lingering);
	sk_link_init(&a->flights);
	sk_link_init(&a->unread);
	sk_link_init(&a->waiting);
	sk_link_init(&a->crowds);
	sk_link_init(&a->gathers);
	sk_link_init(&a->stops);
	sk_link_init(&a->workers);
	sk_link_init(&a->ended);
	sk_link_init(&a->device_slots);
	sk_link_init(&a->quarantines);
	sk_link_init(&a->to_populate);
	sk_link_init(&a->to_collapse);
	sk_link_init(&a->wishes);
	sk_link_init(&a->restoring);
	log_open(&a->log, os, o->level);
	a->began_ns = os->now_ns(os);
}

/* But for what goes on without: figures. */
static int open_parts(struct agent *a, struct sk_err *err)
{
	int r;

	raise_limits(a);
	r = open_signals(a);
	if (r == 0)
		r = closer_new(a->os, &a->closer);
	if (r == 0)
		r = open_sources(a);
	if (r == 0)
		r = a->os->random(a->os, &a->instance, sizeof(a->instance));
	if (r < 0)
		return sk_err_errno(err, r, "cannot start");
	r = open_pools(a, err);
	if (r == 0 && scrub_open(a) < 0)
		r = sk_err_set(err, -ENOMEM, "out of memory");
	if (r == 0)
		r = open_store(a, err);
	return r;
}

static int open_agent(struct agent *a, struct sk_err *err)
{
	int r = open_parts(a, err);

	if (r == 0 && health_open(a) < 0)
		r = sk_err_set(err, -ENOMEM, "out of memory");
	return r < 0 ? r : metrics_open(a, err);
}

/* Whoever waits for this byte may connect from now on. */
static void say_byte(struct agent *a)
{
	if (a->opts->ready_fd < 0)
		return;
	if (a->os->write(a->os, a->opts->ready_fd, "1", 1) != 1)
		log_warning(a, "nobody reads descriptor %d to see that the "
			    "agent is ready", a->opts->ready_fd);
	(void)a->os->close(a->os, a->opts->ready_fd);
}

static void say_ready(struct agent *a)
{
	char memory[32];

	a->ready = true;
	log_info(a, "shardkeepd %s serves on %s with a budget of %s, store %s"
		 "%s%s", SK_VERSION, a->endpoint.path,
		 sk_size_format(a->cat.budget, memory, sizeof(memory)),
		 a->store ? sk_store_path(a->store) : "none",
		 a->io ? ", " : "", a->io ? sk_io_describe(a->io) : "");
	say_byte(a);
	/* After it: a keeper that hears this thinks that it was said. */
	keeper_ready(a->os, &a->keeper);
}

/* A keeper goes on listening where another agent may follow. */
static void close_endpoint(struct agent *a)
{
	bool stays = a->keeper.kind == KEEPER_SYSTEMD ||
		     (a->keeper.kind == KEEPER_PARENT && !a->ready);

	if (stays)
		endpoint_leave(&a->endpoint);
	else
		endpoint_close(a->os, &a->endpoint);
}

/* Nobody can come any more, and all who are here are let go. */
static void close_sessions(struct agent *a)
{
	struct session *s;

	close_endpoint(a);
	a->listener.fd = -1;
	sk_link_each(s, &a->sessions, link)
		session_close(s, NULL);
	sk_link_each(s, &a->lingering, link) {
		sk_link_remove(&s->link);
		sk_link_insert(&a->closing, &s->link);
	}
	sessions_leave(a);
	quarantine_close(a);
	workers_close(a);
	device_slots_close(a);
	flight_close(a);
	assert(!a->n_sessions && sk_link_empty(&a->waiting) &&
	       sk_link_empty(&a->gathers));
}

/* What is out in the background comes back before its things are freed. */
static void close_agent(struct agent *a)
{
	agent_stop_now(a);
	close_sessions(a);
	metrics_close(a);
	health_close(a);
	heap_close(a);
	collapse_close(a);
	works_drain(&a->loop.works);
	revive_give_up(a);
	scrub_close(a);
	stored_close(a);
	/* The catalogue's slots go to the background once more. */
	sk_cat_destroy(&a->cat);
	works_drain(&a->loop.works);
	metrics_free(a);
	a->slow = sk_pool_free(a->slow);
	a->parsers = sk_pool_free(a->parsers);
	a->tellers = sk_pool_free(a->tellers);
	a->sealers = sk_pool_free(a->sealers);
	a->populate = sk_pool_free(a->populate);
	collapse_free(a);
	a->flusher = sk_pool_free(a->flusher);
	a->recall = sk_recall_free(a->recall);
	timer_clear(&a->loop.timers, &a->sums_timer);
	a->sums = sums_free(a->sums);
	flush_close(a);
	sweep_close(a);
	index_close(a);
	prove_close(a);
	retain_close(a);
	restoring_close(a);
	cadence_close(a);
	a->store = sk_store_close(a->store);
	a->signals.fd = sk_close_fd(a->signals.fd);
	a->spare_fd = sk_close_fd(a->spare_fd);
	a->closer = closer_free(a->closer);
	revive_close(a);
	(void)loop_watch(&a->loop, &a->keeps, 0);
	keeper_close(a->os, &a->keeper);
	loop_close(&a->loop);
	while (a->n_stop_fds)
		(void)a->os->close(a->os, a->stop_fds[--a->n_stop_fds]);
}

static void serve(struct agent *a)
{
	say_ready(a);
	agent_check_idle(a);
	upkeep_start(a);
	while (!a->quit) {
		loop_turn(&a->loop);
		end_turn(a);
	}
	if (!flush_all_durable(a))
		a->status = 1;
	calls_say_lost(a);
	log_info(a, "ends");
}

int agent_run(const struct sk_os *os, const struct options *o,
	      const struct endpoint *endpoint, struct birth *birth)
{
	struct sk_err err = { "" };
	struct agent a;
	int r;

	init(&a, os, o, endpoint);
	if (birth)
		a.keeper = birth->keeper;
	r = open_agent(&a, &err);
	if (r == 0 && birth)
		r = revive(&a, &birth->kept, &err);
	if (r < 0) {
		log_error(&a, "%s", err.text);
		a.status = 1;
	} else {
		serve(&a);
	}
	close_agent(&a);
	return a.status;
}

int agent_try(const struct sk_os *os, const struct options *o,
	      struct sk_err *err)
{
	struct endpoint nowhere = { .path = "", .lock = -1 };
	struct options quiet = *o;
	struct agent a;
	int r;

	quiet.level = LOG_LEVEL_ERROR;
	nowhere.sock = os->socket(os, AF_UNIX, SOCK_SEQPACKET, 0);
	if (nowhere.sock < 0)
		return sk_err_errno(err, nowhere.sock, "cannot make a socket");
	init(&a, os, &quiet, &nowhere);
	r = open_parts(&a, err);
	if (r == 0)
		r = table_new(os, &a.table, err);
	close_agent(&a);
	return r;
}
