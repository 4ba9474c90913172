/* SPDX-License-Identifier: Apache-2.0 */
/* Several requests in one round trip. The test is the agent: it answers when
 * all are there, the last one first. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"
#include "conn/conn.h"
#include "wire/channel.h"
#include "wire/version.h"

#define N SK_CONN_AT_ONCE
#define UNTIL_NS UINT64_C(60000000000)

static struct {
	int socks[2];		/* the client's, the agent's */
	pthread_t thread;
	unsigned asked;
	int refuses, forges;	/* which one; -1: none */
	int dies_after;		/* so many answers; -1: never */
	struct sk_conn conn;
	struct sk_conn_request asks[N];
	struct sk_err err;
} t;

static void answer(const struct sk_msg *asked)
{
	uint64_t image = asked->body.open.image;
	struct sk_msg msg = { .type = asked->type, .seq = asked->seq,
			      .version = asked->version };
	const int fds[] = { t.socks[1], t.socks[1] };

	msg.body.open_reply.image_bytes = image * 10;
	if ((int)image == t.forges)
		msg.seq += 1000;
	if ((int)image == t.refuses) {
		msg = (struct sk_msg){ .type = asked->type, .seq = asked->seq,
				       .version = asked->version,
				       .status = -ENOENT };
		strcpy(msg.body.text, "no such image");
	}
	(void)sk_channel_send(sk_os_linux(), t.socks[1], &msg, fds,
			      msg.status < 0 ? 0 : 2);
}

static void *serve(void *data)
{
	struct sk_msg msgs[N];

	(void)data;
	for (; t.asked < N; t.asked++)
		if (recv(t.socks[1], &msgs[t.asked], sizeof(msgs[0]), 0) !=
		    sizeof(msgs[0]))
			break;
	for (int i = N; i-- > 0 && t.asked == N;) {
		if (N - 1 - i == t.dies_after)
			break;
		answer(&msgs[i]);
	}
	if (t.dies_after >= 0)
		(void)shutdown(t.socks[1], SHUT_RDWR);
	return NULL;
}

static void begin_as(void *(*agent)(void *), int refuses, int forges,
		     int dies_after)
{
	t.refuses = refuses;
	t.forges = forges;
	t.dies_after = dies_after;
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
				t.socks), 0);
	t.conn = (struct sk_conn){ .os = sk_os_linux(), .sock = t.socks[0],
				   .version = SK_WIRE_VERSION };
	cr_assert_eq(pthread_mutex_init(&t.conn.lock, NULL), 0);
	cr_assert_eq(pthread_create(&t.thread, NULL, agent, NULL), 0);
}

static void begin(int refuses, int forges, int dies_after)
{
	begin_as(serve, refuses, forges, dies_after);
}

static int call(void)
{
	for (unsigned i = 0; i < N; i++)
		t.asks[i].msg = (struct sk_msg){
			.type = SK_MSG_OPEN, .body.open.image = i };
	return sk_conn_call_all(&t.conn, t.asks, N, t.conn.os->now_ns(
				t.conn.os) + UNTIL_NS, &t.err);
}

static int lowest_free(void)
{
	int fd = dup(t.socks[1]);

	cr_assert_geq(fd, 0);
	close(fd);
	return fd;
}

static void end(void)
{
	(void)pthread_join(t.thread, NULL);
	sk_conn_close(&t.conn);
	close(t.socks[1]);
}

Test(together, all_are_there_before_one_is_answered)
{
	begin(-1, -1, -1);
	cr_assert_eq(call(), 0, "%s", t.err.text);
	cr_assert_eq(t.asked, N);
	for (unsigned i = 0; i < N; i++) {
		cr_assert_eq(t.asks[i].r, 0);
		cr_assert_eq(t.asks[i].msg.body.open_reply.image_bytes,
			     i * 10);
		cr_assert_eq(t.asks[i].n_fds, 2);
		close(t.asks[i].fds[0]);
		close(t.asks[i].fds[1]);
	}
	end();
}

Test(together, one_that_is_refused_is_no_end_of_the_others)
{
	begin(3, -1, -1);
	cr_assert_eq(call(), 0, "%s", t.err.text);
	for (int i = 0; i < N; i++) {
		cr_assert_eq(t.asks[i].r, i == 3 ? -ENOENT : 0);
		cr_assert_eq(t.asks[i].n_fds, i == 3 ? 0 : 2);
		for (int k = 0; k < t.asks[i].n_fds; k++)
			close(t.asks[i].fds[k]);
	}
	cr_assert_str_eq(t.asks[3].err.text, "no such image");
	end();
}

static void ends_the_connection(int forges, int dies_after, const char *why)
{
	int before;

	begin(-1, forges, dies_after);
	before = lowest_free();
	cr_assert_eq(call(), -ECONNRESET);
	cr_assert(strstr(t.err.text, why), "%s", t.err.text);
	cr_assert_eq(t.conn.sock, -1);
	for (int i = 0; i < N; i++)
		cr_assert_eq(t.asks[i].n_fds, 0);
	/* Its socket is closed, and what came with the answers. */
	cr_assert_leq(lowest_free(), before);
	(void)shutdown(t.socks[1], SHUT_RDWR);
	end();
}

Test(together, what_nobody_asked_for_ends_the_connection)
{
	ends_the_connection(2, -1, "lost at the request");
}

Test(together, an_agent_that_dies_leaves_nothing_open)
{
	ends_the_connection(-1, 4, "lost at the request");
}

/* ---- ahead of its use ---- */

static struct sk_conn_ahead a;

static uint64_t until(void)
{
	return t.conn.os->now_ns(t.conn.os) + UNTIL_NS;
}

static int ask_ahead(uint64_t image)
{
	a = (struct sk_conn_ahead){ .msg = {
		.type = SK_MSG_OPEN, .body.open.image = image } };
	return sk_conn_ask_ahead(&t.conn, 0, &a, until(), &t.err);
}

/* The agent of one that is asked alone answers at once. */
static void *serve_each(void *data)
{
	struct sk_msg msg;

	(void)data;
	while (recv(t.socks[1], &msg, sizeof(msg), 0) == sizeof(msg)) {
		if (t.asked++ == (unsigned)t.dies_after)
			break;
		answer(&msg);
	}
	(void)shutdown(t.socks[1], SHUT_RDWR);
	return NULL;
}

static void begin_each(int refuses, int dies_after)
{
	begin_as(serve_each, refuses, -1, dies_after);
}

static void end_each(void)
{
	(void)shutdown(t.socks[1], SHUT_RDWR);
	end();
}

static int call_one(uint64_t image, uint64_t *ret_bytes)
{
	struct sk_msg msg = { .type = SK_MSG_OPEN, .body.open.image = image };
	int r = sk_conn_call(&t.conn, &msg, NULL, 0, NULL, NULL, until(),
			     &t.err);

	*ret_bytes = msg.body.open_reply.image_bytes;
	return r;
}

Test(ahead, its_reply_waits_while_others_ask)
{
	struct sk_conn_ahead other = { .msg.type = SK_MSG_OPEN };
	uint64_t bytes;

	begin_each(-1, -1);
	cr_assert_eq(ask_ahead(5), 0);
	cr_assert_eq(sk_conn_ask_ahead(&t.conn, 0, &other, until(), &t.err),
		     -EBUSY);
	for (uint64_t i = 0; i < 3; i++) {
		cr_assert_eq(call_one(i, &bytes), 0, "%s", t.err.text);
		cr_assert_eq(bytes, i * 10);
	}
	cr_assert_eq(sk_conn_hear_ahead(&t.conn, &a, until(), &t.err), 0);
	cr_assert_eq(a.msg.body.open_reply.image_bytes, 50);
	cr_assert_eq(ask_ahead(7), 0);
	cr_assert_eq(sk_conn_hear_ahead(&t.conn, &a, until(), &t.err), 0);
	cr_assert_eq(a.msg.body.open_reply.image_bytes, 70);
	end_each();
}

Test(ahead, what_is_refused_is_told_when_it_is_heard)
{
	uint64_t bytes;

	begin_each(3, -1);
	for (int others = 0; others < 2; others++) {
		cr_assert_eq(ask_ahead(3), 0);
		if (others)
			cr_assert_eq(call_one(1, &bytes), 0);
		cr_assert_eq(sk_conn_hear_ahead(&t.conn, &a, until(), &t.err),
			     -ENOENT);
		cr_assert_str_eq(t.err.text, "no such image");
	}
	end_each();
}

Test(ahead, a_connection_that_is_lost_takes_it_along)
{
	uint64_t bytes;

	begin_each(-1, 0);
	cr_assert_eq(ask_ahead(1), 0);
	cr_assert_eq(call_one(2, &bytes), -ECONNRESET);
	cr_assert_eq(sk_conn_hear_ahead(&t.conn, &a, until(), &t.err),
		     -ECONNRESET);
	cr_assert_eq(ask_ahead(1), -ECONNRESET);
	cr_assert_null(t.conn.ahead);
	end_each();
}

Test(ahead, another_connection_has_no_reply_to_it)
{
	begin_each(-1, -1);
	cr_assert_eq(sk_conn_ask_ahead(&t.conn, 1, &a, until(), &t.err),
		     -ECONNRESET);
	cr_assert_eq(ask_ahead(1), 0);
	sk_conn_close(&t.conn);
	cr_assert_null(t.conn.ahead);
	cr_assert_eq(a.r, -ECONNRESET);
	cr_assert_str_not_empty(a.err.text);
	t.conn.os = sk_os_linux();
	cr_assert_eq(pthread_mutex_init(&t.conn.lock, NULL), 0);
	end_each();
}
