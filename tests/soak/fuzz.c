/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strangers on the socket: random messages, with random descriptors, ended in
 * random ways. The agent lives, and another job goes on.
 */
#include "soak/soak.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "support/files.h"
#include "wire/channel.h"

#define CLIENTS 6
#define MESSAGES 400

static int dial(const struct scene *scene)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC |
			  SOCK_NONBLOCK, 0);

	CHECK(sock >= 0);
	(void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", scene->socket);
	CHECK(!connect(sock, (struct sockaddr *)&a, sizeof(a)) ||
	      errno == EAGAIN);
	return sock;
}

static void greet(int sock)
{
	struct sk_msg msg = { .type = SK_MSG_HELLO,
			      .body.hello.version = SK_WIRE_VERSION };

	(void)sk_channel_send(sk_os_linux(), sock, &msg, NULL, 0);
}

/* Requests that wait for something, of a rank that could be. */
static void waiting_message(struct sk_msg *msg, const char *job,
			    struct dice *dice)
{
	static const uint16_t types[] = { SK_MSG_GATHER, SK_MSG_WAIT,
					  SK_MSG_SLOT_WAIT, SK_MSG_PREPARE };
	struct sk_wire_id *id = &msg->body.gather.id;

	*msg = (struct sk_msg){ .type = types[dice_below(dice, 4)] };
	strcpy(id->job, job);
	id->rank = (int32_t)dice_below(dice, 2);
	id->world = 2;
	id->step = (int64_t)dice_below(dice, 5);
	if (msg->type == SK_MSG_GATHER) {
		if (dice_below(dice, 2))
			id->run = SK_RUN_READERS;
		msg->body.gather.round = 1000 + dice_below(dice, 3);
		msg->body.gather.bytes = 8 * (uint32_t)dice_below(dice, 3);
		msg->body.gather.timeout_ms = (uint32_t)dice_below(dice, 50);
	} else if (msg->type == SK_MSG_WAIT) {
		msg->body.wait.until = 1 + (uint32_t)dice_below(dice, 3);
		msg->body.wait.timeout_ms = (uint32_t)dice_below(dice, 50);
	} else {
		msg->body.prepare.timeout_ms = (uint32_t)dice_below(dice, 50);
	}
}

/* What its owner may do to a job is no attack on it, and we are the owner, and
 * perhaps the administrator, who may end the agent. */
static void spare(struct sk_msg *msg)
{
	if (msg->type == SK_MSG_STOP)
		msg->type = SK_MSG_GATHER;
	if (msg->type == SK_MSG_EVICT || msg->type == SK_MSG_PIN)
		strcpy(msg->body.manage.id.job, "fuzz");
	if (msg->type == SK_MSG_REPORT_BAD)
		msg->body.bad.image |= 1ull << 40;
}

/* Mostly small numbers. */
static void random_message(struct sk_msg *msg, const char *job,
			   struct dice *dice)
{
	*msg = (struct sk_msg){ .type = (uint16_t)dice_below(dice,
						SK_MSG_TYPE_COUNT + 2) };
	for (size_t i = 0; i < sizeof(msg->body.raw); i++) {
		uint64_t kind = dice_below(dice, 40);

		msg->body.raw[i] = kind > 2 ? 0 :
				   (uint8_t)dice_below(dice, kind ? 4 : 256);
	}
	if (dice_below(dice, 4)) {
		memset(msg->body.raw, 0, SK_JOB_MAX + 4);
		strcpy((char *)msg->body.raw, dice_below(dice, 2) ? job :
		       dice_below(dice, 2) ? "fuzz" : "");
	}
	spare(msg);
}

static void drain(int sock)
{
	struct sk_msg msg;
	int fds[SK_MSG_FDS], n;

	while (sk_channel_recv(sk_os_linux(), sock, &msg, fds, &n) == 0) {
		while (n)
			sk_close_fd(fds[--n]);
	}
}

/* Several requests at once, and then no ear for the answers. */
static void ask_and_turn_away(const struct scene *scene, const char *job,
			      struct dice *dice)
{
	int sock = dial(scene);

	greet(sock);
	for (uint64_t i = 2 + dice_below(dice, 8); i; i--) {
		struct sk_msg msg;

		waiting_message(&msg, job, dice);
		(void)sk_channel_send(sk_os_linux(), sock, &msg, NULL, 0);
	}
	if (dice_below(dice, 2))
		(void)usleep((useconds_t)dice_below(dice, 2000));
	(void)shutdown(sock, SHUT_RD);
	if (dice_below(dice, 2))
		(void)usleep((useconds_t)dice_below(dice, 60000));
	close(sock);
}

/* What it is to the agent from now on; the descriptor that serves next. */
static int end_somehow(const struct scene *scene, int sock, struct dice *dice)
{
	switch (dice_below(dice, 3)) {
	case 0:
		(void)shutdown(sock, SHUT_RD);
		return sock;	/* goes on writing */
	case 1:
		(void)shutdown(sock, SHUT_WR);
		return sock;
	default:
		close(sock);
		sock = dial(scene);
		greet(sock);
		return sock;
	}
}

/* A message that the agent will not have ends the connection. */
static int send_one(const struct scene *scene, int sock, const char *job,
		    struct dice *dice)
{
	int fds[SK_MSG_FDS], n = 0, r;
	struct sk_msg msg;

	while (n < SK_MSG_FDS && !dice_below(dice, 3))
		fds[n++] = some_fd((unsigned)dice_below(dice, SOME_FDS),
				   dice_below(dice, 1 << 20));
	if (dice_below(dice, 3))
		random_message(&msg, job, dice);
	else
		waiting_message(&msg, job, dice);
	r = sk_channel_send(sk_os_linux(), sock, &msg, fds, n);
	while (n)
		sk_close_fd(fds[--n]);
	if (dice_below(dice, 10))
		drain(sock);
	if (r != -EPIPE && r != -ECONNRESET)
		return sock;
	close(sock);
	sock = dial(scene);
	greet(sock);
	return sock;
}

static void attack(const struct scene *scene, const char *job,
		   struct dice *dice, struct tally *tally)
{
	int socks[CLIENTS];

	for (int i = 0; i < CLIENTS; i++) {
		socks[i] = dial(scene);
		if (dice_below(dice, 8))
			greet(socks[i]);
	}
	for (int i = 0; i < MESSAGES; i++) {
		uint64_t who = dice_below(dice, CLIENTS);

		socks[who] = send_one(scene, socks[who], job, dice);
		tally->messages++;
		if (!dice_below(dice, 20))
			ask_and_turn_away(scene, job, dice);
		if (!dice_below(dice, 20))
			socks[who] = end_somehow(scene, socks[who], dice);
	}
	for (int i = 0; i < CLIENTS; i++)
		close(socks[i]);
}

/* The other job: it saves, and gets back what it saved. */
static void save_and_load(struct rank *rank)
{
	const uint64_t *seed = rank->arg;
	struct sk_report report;

	model_describe(rank, *seed, 0);
	for (int64_t step = 1; step <= 3; step++) {
		rank_write(rank, step);
		/* What another of its programs has flushed takes a moment. */
		CHECK(!sk_snapshot(rank->state, step,
				   &(struct sk_snapshot_options){
					   .wait_ms = 60000 }),
		      "seed %llu: %s", (unsigned long long)*seed, sk_error());
		CHECK(!sk_wait(rank->state, step, SK_COMPLETE, 60000), "%s",
		      sk_error());
	}
	rank_write(rank, 77);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "seed %llu: %s",
	      (unsigned long long)*seed, sk_error());
	CHECK(report.step == 3 && !rank_wrong(rank, 3, rank->rank));
}

void trial_fuzz(struct scene *scene, uint64_t seed, struct tally *tally)
{
	struct dice dice = dice_of(seed);
	char job[40];
	pid_t pids[2];

	(void)snprintf(job, sizeof(job), "good-%llu",
		       (unsigned long long)seed);
	scene_ranks_start(scene, job, 2, save_and_load, &seed, pids);
	attack(scene, job, &dice, tally);
	scene_ranks_end(job, 2, pids);
	CHECK(!kill(scene->agent, 0));
	tally->restores++;
}
