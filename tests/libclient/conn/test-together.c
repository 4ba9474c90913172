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

static void begin(int refuses, int forges, int dies_after)
{
	t.refuses = refuses;
	t.forges = forges;
	t.dies_after = dies_after;
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
				t.socks), 0);
	t.conn = (struct sk_conn){ .os = sk_os_linux(), .sock = t.socks[0],
				   .version = SK_WIRE_VERSION };
	cr_assert_eq(pthread_mutex_init(&t.conn.lock, NULL), 0);
	cr_assert_eq(pthread_create(&t.thread, NULL, serve, NULL), 0);
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
