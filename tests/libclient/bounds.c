/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No call waits longer than it says: with an agent that is stopped, with a
 * backlog that is full, and with a signal every 10 ms, which none of it may
 * take for a new beginning. Bounds are generous: what is wrong takes for ever,
 * or many times as long. Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "comm/comm.h"
#include "conn/client.h"
#include "fault-os.h"
#include "support/await.h"

#define TIMEOUT_MS 300u
#define BOUND_NS (UINT64_C(15) * 1000 * 1000 * 1000)
#define BACKLOG_MOST 8192

struct bounds {
	struct scene *scene;
	struct sk *sk;
	struct sk_state *state;
	char data[5000];
	int queue[BACKLOG_MOST];
	int n_queue;
};

/* ---- signals ---- */

static void nothing(int sig)
{
	(void)sig;
}

static timer_t begin_signals(void)
{
	struct sigaction action = { .sa_handler = nothing };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL,
				  .sigev_signo = SIGUSR1 };
	const struct itimerspec each = { .it_interval.tv_nsec = 10000000,
					 .it_value.tv_nsec = 10000000 };
	timer_t timer;

	CHECK(!sigaction(SIGUSR1, &action, NULL));	/* no SA_RESTART */
	CHECK(!timer_create(CLOCK_MONOTONIC, &event, &timer));
	CHECK(!timer_settime(timer, 0, &each, NULL));
	return timer;
}

/* ---- the calls ---- */

static int do_open(struct bounds *b)
{
	struct sk *sk = NULL;
	int r = sk_open(&(struct sk_options){ .socket = b->scene->socket,
		.threads = 1, .timeout_ms = TIMEOUT_MS }, &sk);

	sk_close(sk);
	return r;
}

static int do_describe(struct bounds *b)
{
	return sk_state_tensor(b->state, &(struct sk_tensor){ .name = "w",
		.dtype = SK_U8, .ndim = 1, .shape = { sizeof(b->data) },
		.data = b->data });
}

static int do_prepare(struct bounds *b)
{
	return sk_prepare(b->state, TIMEOUT_MS);
}

static int do_snapshot(struct bounds *b)
{
	static int64_t step = 100;

	return sk_snapshot(b->state, step++, NULL);
}

static int do_snapshot_waiting(struct bounds *b)
{
	static int64_t step = 1000;

	return sk_snapshot(b->state, step++, &(struct sk_snapshot_options){
		.wait_ms = TIMEOUT_MS });
}

static int do_fence(struct bounds *b)
{
	return sk_fence(b->state);
}

static int do_fence_tensor(struct bounds *b)
{
	return sk_fence_tensor(b->state, "w");
}

static int do_wait(struct bounds *b)
{
	return sk_wait(b->state, 1, SK_DURABLE, TIMEOUT_MS);
}

static int do_flush(struct bounds *b)
{
	return sk_flush(b->state, 1);
}

static int do_status(struct bounds *b)
{
	struct sk_status status;

	return sk_status(b->state, &status);
}

static int do_restore(struct bounds *b)
{
	return sk_restore(b->state, SK_LATEST, NULL,
			  &(struct sk_restore_options){
				.timeout_ms = TIMEOUT_MS }, NULL);
}

static int do_snapshots(struct bounds *b)
{
	char *json = NULL;
	int r = sk_snapshots(b->sk, NULL, &json);

	free(json);
	return r;
}

static int do_inspect(struct bounds *b)
{
	char *json = NULL;
	int r = sk_inspect(b->sk, "bounds", SK_LATEST, 0, 0, &json);

	free(json);
	return r;
}

static const struct {
	const char *name;
	int (*run)(struct bounds *b);
	bool local;		/* it needs no agent */
} deeds[] = {
	{ "open", do_open, false },
	{ "describe", do_describe, true },
	{ "prepare", do_prepare, false },
	{ "snapshot", do_snapshot, false },
	{ "snapshot and wait", do_snapshot_waiting, false },
	{ "fence", do_fence, true },
	{ "fence tensor", do_fence_tensor, true },
	{ "wait", do_wait, false },
	{ "flush", do_flush, false },
	{ "status", do_status, true },
	{ "restore", do_restore, false },
	{ "snapshots", do_snapshots, false },
	{ "inspect", do_inspect, false },
};

static uint64_t now(void)
{
	return sk_os_linux()->now_ns(sk_os_linux());
}

static void within_bounds(struct bounds *b, size_t i, const char *when)
{
	uint64_t began = now(), took;
	int r = deeds[i].run(b);

	took = now() - began;
	CHECK(took < BOUND_NS, "%s took %llu ms, %s", deeds[i].name,
	      (unsigned long long)took / 1000000, when);
	CHECK(deeds[i].local || r < 0, "%s went well, %s", deeds[i].name,
	      when);
	CHECK(r >= 0 || sk_error()[0], "%s", deeds[i].name);
}

static void open_bounds(const struct sk_os *os, struct bounds *b,
			const char *job)
{
	CHECK(!sk_open_on(os, &(struct sk_options){
		.socket = b->scene->socket, .threads = 1,
		.timeout_ms = TIMEOUT_MS }, &b->sk), "%s", sk_error());
	CHECK(!sk_state_create(b->sk, &(struct sk_job){ .name = job,
		.world = 1, .flush_every = SK_FLUSH_NEVER }, &b->state));
	CHECK(!do_describe(b), "%s", sk_error());
	/* Where much else runs, the agent may take longer than it has. */
	AWAIT(!sk_snapshot(b->state, 1, NULL) &&
	      !sk_wait(b->state, 1, SK_COMPLETE, 30000), "%s", sk_error());
}

/* ---- an agent that says nothing ---- */

static void stop(struct bounds *b)
{
	CHECK(!kill(b->scene->agent, SIGSTOP));
}

/* It goes on; what it was asked meanwhile it answers to nobody. */
static void resume(struct bounds *b)
{
	CHECK(!kill(b->scene->agent, SIGCONT));
	AWAIT(sk_prepare(b->state, 0) >= 0, "%s", sk_error());
}

static void fill_backlog(struct bounds *b)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	strcpy(a.sun_path, b->scene->socket);
	while (b->n_queue < BACKLOG_MOST) {
		int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK |
				  SOCK_CLOEXEC, 0);

		CHECK(sock >= 0);
		if (connect(sock, (struct sockaddr *)&a, sizeof(a)) < 0) {
			CHECK(errno == EAGAIN);
			close(sock);
			return;
		}
		b->queue[b->n_queue++] = sock;
	}
	CHECK(false, "the backlog has no end");
}

static void empty_backlog(struct bounds *b)
{
	while (b->n_queue)
		close(b->queue[--b->n_queue]);
}

static void stopped_agent(struct bounds *b)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(deeds); i++) {
		stop(b);
		within_bounds(b, i, "the agent is stopped");
		resume(b);
	}
}

static void full_backlog(struct bounds *b)
{
	stop(b);
	within_bounds(b, 8, "the agent is stopped");	/* disconnects */
	fill_backlog(b);
	for (size_t i = 0; i < SK_ARRAY_SIZE(deeds); i++)
		within_bounds(b, i, "the backlog is full");
	empty_backlog(b);
	resume(b);
}

/* Who gave it next to no time is not told that it hangs. */
static void short_of_time(struct bounds *b, bool full)
{
	struct sk *sk;

	stop(b);
	if (full)
		fill_backlog(b);
	CHECK(sk_open(&(struct sk_options){ .socket = b->scene->socket,
			.timeout_ms = 20 }, &sk) == -ETIMEDOUT);
	CHECK(strstr(sk_error(), "not answered within 20 ms") &&
	      !strstr(sk_error(), "hangs"), "%s", sk_error());
	empty_backlog(b);
	resume(b);
}

/* The last thing that a rank does. */
static void free_of_stopped_agent(struct bounds *b)
{
	uint64_t began = now();

	stop(b);
	sk_state_free(b->state);
	sk_close(b->sk);
	CHECK(now() - began < BOUND_NS);
	CHECK(!kill(b->scene->agent, SIGCONT));
}

/* ---- by the clock ---- */

/* A system on which waiting takes no time, from when it is told: where nothing
 * has happened yet, the clock goes on to the end of the wait. What a call takes
 * is exactly what it waits. */
struct quick {
	struct sk_os os;
	uint64_t now;		/* atomic; 0: the system's */
};

static uint64_t quick_now(const struct sk_os *os)
{
	struct quick *q = os->ctx;
	uint64_t at = __atomic_load_n(&q->now, __ATOMIC_RELAXED);

	return at ? at : now();
}

static int quick_poll(const struct sk_os *os, struct pollfd *fds, nfds_t n,
		      uint64_t until_ns)
{
	struct quick *q = os->ctx;
	bool is_quick = __atomic_load_n(&q->now, __ATOMIC_RELAXED);
	int r = sk_os_linux()->poll(sk_os_linux(), fds, n,
				    is_quick ? now() : until_ns);

	if (is_quick && r == -ETIMEDOUT && until_ns > quick_now(os))
		__atomic_store_n(&q->now, until_ns, __ATOMIC_RELAXED);
	return r;
}

static void quick_init(struct quick *q)
{
	q->now = 0;
	q->os = *sk_os_linux();
	q->os.now_ns = quick_now;
	q->os.poll = quick_poll;
	q->os.ctx = q;
}

static int do_meet(struct bounds *b)
{
	struct sk_agent_comm ctx = { .sk = b->sk, .id = {
		.job = "bounds", .run = SK_RUN_READERS, .world = 2 } };
	struct sk_comm comm;
	char out[2];

	sk_comm_of_agent(&ctx, &comm);
	return comm.allgather(comm.ctx, "a", 1, out, TIMEOUT_MS);
}

static int do_wait_sealed(struct bounds *b)
{
	return sk_wait(b->state, 7, SK_SEALED, TIMEOUT_MS);
}

static int do_look(struct bounds *b)
{
	return sk_wait(b->state, 1, SK_COMPLETE, 0);
}

static void quick_set(struct quick *q, uint64_t at)
{
	__atomic_store_n(&q->now, at, __ATOMIC_RELAXED);
}

/* Of an agent that hangs, whatever has a timeout takes that long and no
 * longer; looking once has a bound of its own. */
static void exact_bounds(struct bounds *b)
{
	static const struct {
		int (*run)(struct bounds *b);
		uint64_t ms;
	} timed[] = {
		{ do_wait, TIMEOUT_MS }, { do_wait_sealed, TIMEOUT_MS },
		{ do_prepare, TIMEOUT_MS }, { do_meet, TIMEOUT_MS },
		{ do_look, 500 }, { do_flush, TIMEOUT_MS },
		{ do_snapshots, TIMEOUT_MS }, { do_inspect, TIMEOUT_MS },
	};
	struct bounds own = { .scene = b->scene };
	struct quick quick;

	quick_init(&quick);
	open_bounds(&quick.os, &own, "exact");
	stop(b);
	quick_set(&quick, now());
	for (size_t i = 0; i < SK_ARRAY_SIZE(timed); i++) {
		uint64_t took, began = quick_now(&quick.os);
		int r = timed[i].run(&own);

		CHECK(r == -ETIMEDOUT, "%zu: %d: %s", i, r, sk_error());
		took = quick_now(&quick.os) - began;
		CHECK(took == timed[i].ms * 1000000, "%zu: %llu", i,
		      (unsigned long long)took);
	}
	quick_set(&quick, 0);
	CHECK(!kill(b->scene->agent, SIGCONT));
	sk_state_free(own.state);
	sk_close(own.sk);
}

/* An agent that answers is waited for to the end, and has the last word; it is
 * asked for that a few times. */
static void whole_bounds(struct bounds *b)
{
	struct bounds own = { .scene = b->scene };
	struct sk_fault_os fault;
	uint64_t began, dials;
	uint32_t ms = 50;

	sk_fault_os_init(&fault, sk_os_linux());
	open_bounds(&fault.os, &own, "whole");
	/* Where much else runs, an answer's way may take longer than an eighth
	 * of that. */
	do {
		CHECK((ms *= 2) < 60000, "%s", sk_error());
		dials = sk_fault_os_calls(&fault, SK_FAULT_CONNECT);
		began = now();
		CHECK(sk_wait(own.state, 1, SK_DURABLE, ms) == -ETIMEDOUT);
		CHECK(now() - began >= ms * UINT64_C(1000000));
	} while (!strstr(sk_error(), "step 1 is not durable in time: nobody "
			 "asked for it"));
	dials = sk_fault_os_calls(&fault, SK_FAULT_CONNECT) - dials;
	CHECK(dials <= 3, "%llu, %u ms", (unsigned long long)dials, ms);
	CHECK(!do_look(&own), "%s", sk_error());
	sk_state_free(own.state);
	sk_close(own.sk);
}

/* ---- long waits ---- */

/* The longest wait there is, is not a short one: while it lasts, hours pass
 * by the clock, and the snapshot becomes complete. */
struct longest {
	struct sk_state *state;
	int result;
	bool over;		/* atomic */
};

static void *wait_longest(void *arg)
{
	struct longest *l = arg;

	l->result = sk_wait(l->state, 1, SK_COMPLETE, UINT32_MAX);
	__atomic_store_n(&l->over, true, __ATOMIC_RELEASE);
	return NULL;
}

static void open_rank(struct scene *scene, const struct sk_os *os,
		      int32_t rank, char *data, struct sk **ret_sk,
		      struct sk_state **ret_state)
{
	CHECK(!sk_open_on(os, &(struct sk_options){
		.socket = scene->socket, .threads = 1 }, ret_sk), "%s",
	      sk_error());
	CHECK(!sk_state_create(*ret_sk, &(struct sk_job){ .name = "longest",
		.rank = rank, .world = 2, .run = 7 }, ret_state), "%s",
	      sk_error());
	CHECK(!sk_state_blob_local(*ret_state, "b", data, 100), "%s",
	      sk_error());
}

static void longest_wait(struct scene *scene)
{
	struct longest l = { 0 };
	struct sk_state *states[2];
	struct sk_fault_os fault;
	char data[100] = { 1 };
	struct sk *sks[2];
	pthread_t thread;

	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_clock(&fault, 1000, 1000);
	open_rank(scene, &fault.os, 0, data, &sks[0], &states[0]);
	open_rank(scene, sk_os_linux(), 1, data, &sks[1], &states[1]);
	l.state = states[0];
	CHECK(!sk_snapshot(states[0], 1, NULL), "%s", sk_error());
	CHECK(!sk_fence(states[0]), "%s", sk_error());
	CHECK(!sk_wait(states[0], 1, SK_SEALED, 60000), "%s", sk_error());
	CHECK(!pthread_create(&thread, NULL, wait_longest, &l));
	for (int hour = 0; hour < 24; hour++)
		sk_fault_os_advance(&fault, UINT64_C(3600) * 1000000000);
	CHECK(!__atomic_load_n(&l.over, __ATOMIC_ACQUIRE), "it said %d",
	      l.result);
	CHECK(!sk_snapshot(states[1], 1, NULL), "%s", sk_error());
	CHECK(!pthread_join(thread, NULL));
	CHECK(!l.result, "it said %d", l.result);
	for (int i = 0; i < 2; i++) {
		sk_state_free(states[i]);
		sk_close(sks[i]);
	}
}

int main(int argc, char **argv)
{
	static struct bounds b;
	struct scene scene;
	uint64_t began;
	timer_t timer;

	scene_open(&scene, argc, argv);
	longest_wait(&scene);
	b.scene = &scene;
	open_bounds(sk_os_linux(), &b, "bounds");
	exact_bounds(&b);
	whole_bounds(&b);
	/* No time at all is not for ever. */
	began = now();
	CHECK(sk_wait(b.state, 1, SK_DURABLE, 0) == -ETIMEDOUT, "%s",
	      sk_error());
	CHECK(now() - began < BOUND_NS);
	timer = begin_signals();
	stopped_agent(&b);
	full_backlog(&b);
	short_of_time(&b, false);
	short_of_time(&b, true);
	free_of_stopped_agent(&b);
	(void)timer_delete(timer);
	scene_close(&scene);
	return 0;
}
