/* SPDX-License-Identifier: Apache-2.0 */
/* Agents of other versions of the protocol; the test is the agent. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/util.h"
#include "conn/conn.h"
#include "wire/channel.h"
#include "wire/version.h"

#define UNTIL_NS UINT64_C(60000000000)

/* How it answers. */
static struct {
	char dir[32], path[64];
	int sock;
	pthread_t thread;
	unsigned speaks;	/* what it answers in */
	bool hangs_up;		/* on who greets in another */
	bool refuses;		/* who greets in another */
	unsigned dials;
	unsigned dies;		/* hangs up on as many, whatever they say */
	unsigned other;		/* what it answers in after the greeting */
} agent;

static void say(int sock, struct sk_msg *msg, unsigned version)
{
	msg->version = (uint16_t)version;
	(void)sk_channel_send(sk_os_linux(), sock, msg, NULL, 0);
}

/* False: it hangs up. */
static bool answer(int sock, const struct sk_msg *asked)
{
	struct sk_msg msg = { .type = asked->type, .seq = asked->seq };

	if (asked->type != SK_MSG_HELLO) {
		say(sock, &msg, agent.other);
		return true;
	}
	if (agent.dials <= agent.dies ||
	    (agent.hangs_up && asked->version != agent.speaks))
		return false;
	if (agent.refuses && asked->version != agent.speaks) {
		msg.status = -EPROTO;
		strcpy(msg.body.text, "mine, yours; upgrade the client");
		say(sock, &msg, asked->version);
		return true;
	}
	strcpy(msg.body.hello_reply.version, "7.8.9");
	say(sock, &msg, agent.speaks);
	return true;
}

static void *serve(void *data)
{
	(void)data;
	for (;;) {
		int sock = accept4(agent.sock, NULL, NULL, SOCK_CLOEXEC);
		struct sk_msg msg;

		if (sock < 0)
			return NULL;
		agent.dials++;
		while (recv(sock, &msg, sizeof(msg), 0) == sizeof(msg) &&
		       answer(sock, &msg))
			;
		close(sock);
	}
}

static void begin(unsigned speaks)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	agent.speaks = agent.other = speaks;
	strcpy(agent.dir, "/tmp/shardkeep-versions-XXXXXX");
	cr_assert(mkdtemp(agent.dir));
	snprintf(agent.path, sizeof(agent.path), "%s/s", agent.dir);
	strcpy(addr.sun_path, agent.path);
	agent.sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	cr_assert_eq(bind(agent.sock, (struct sockaddr *)&addr, sizeof(addr)),
		     0);
	cr_assert_eq(listen(agent.sock, 16), 0);
	cr_assert_eq(pthread_create(&agent.thread, NULL, serve, NULL), 0);
}

static void end(void)
{
	(void)shutdown(agent.sock, SHUT_RDWR);
	(void)pthread_join(agent.thread, NULL);
	close(agent.sock);
	unlink(agent.path);
	rmdir(agent.dir);
}

static int open_conn(struct sk_conn *ret, struct sk_err *err)
{
	const struct sk_os *os = sk_os_linux();

	*ret = (struct sk_conn)SK_CONN_NULL;
	return sk_conn_open(os, agent.path, os->now_ns(os) + UNTIL_NS, ret,
			    err);
}

static int ask(struct sk_conn *conn, struct sk_msg *msg, struct sk_err *err)
{
	return sk_conn_call(conn, msg, NULL, 0, NULL, NULL,
			    sk_os_linux()->now_ns(sk_os_linux()) + UNTIL_NS,
			    err);
}

/* The connection, with what there is of an agent, is of @version. */
static void opens(unsigned version)
{
	struct sk_err err = { "" };
	struct sk_msg msg = { .type = SK_MSG_STATS };
	struct sk_conn conn;

	cr_assert_eq(open_conn(&conn, &err), 0, "%s", err.text);
	cr_assert_eq(conn.version, version);
	cr_assert_eq(ask(&conn, &msg, &err), 0, "%s", err.text);
	cr_assert_eq(msg.version, version);
	sk_conn_close(&conn);
	end();
}

static void is_refused(int r, const char *words)
{
	struct sk_err err = { "" };
	struct sk_conn conn;

	cr_assert_eq(open_conn(&conn, &err), r, "%s", err.text);
	cr_assert(strstr(err.text, words), "%s", err.text);
	end();
}

/* Who opens one need not have made anything of its memory. */
Test(versions, what_was_where_a_connection_is_does_not_matter)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_msg msg = { .type = SK_MSG_STATS };
	struct sk_err err = { "" };
	struct sk_conn conn;

	begin(SK_WIRE_VERSION);
	memset(&conn, 0x5a, sizeof(conn));
	cr_assert_eq(sk_conn_open(os, agent.path, os->now_ns(os) + UNTIL_NS,
				  &conn, &err), 0, "%s", err.text);
	cr_assert_eq(ask(&conn, &msg, &err), 0, "%s", err.text);
	sk_conn_close(&conn);
	end();
}

/* An agent of before versions were agreed on. */
Test(versions, one_that_hangs_up_is_greeted_in_its_own)
{
	if (SK_WIRE_OLDEST > SK_WIRE_MUTE)
		return;
	agent.hangs_up = true;
	begin(SK_WIRE_OLDEST);
	opens(SK_WIRE_OLDEST);
	/* The newest, its own; and both again, for it might have died. */
	cr_assert_eq(agent.dials, 4);
}

/* Agents that are killed one after the other at a hello: the next one is not
 * taken for an older one, nor this client for too old. */
Test(versions, those_that_died_have_said_nothing)
{
	for (agent.dies = 1; agent.dies < 6; agent.dies++) {
		agent.refuses = true;
		agent.dials = 0;
		begin(SK_WIRE_VERSION);
		opens(SK_WIRE_VERSION);
		cr_assert_eq(agent.dials, agent.dies + 2);
	}
}

/* It is greeted in another once for a handle, and not for each question of it:
 * it logs each time. Another agent is found in the end, too. */
Test(versions, what_was_found_is_known_to_the_handles_other_connections)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_conn handle, more;
	struct sk_err err = { "" };

	if (SK_WIRE_OLDEST > SK_WIRE_MUTE)
		return;
	agent.hangs_up = true;
	begin(SK_WIRE_OLDEST);
	cr_assert_eq(open_conn(&handle, &err), 0, "%s", err.text);
	/* This agent serves one connection after the other. */
	handle.sock = sk_close_fd(handle.sock);
	for (unsigned dials = 5; dials < 8; dials++) {
		if (dials == 7)
			agent.speaks = SK_WIRE_VERSION;
		more = (struct sk_conn)SK_CONN_NULL;
		cr_assert_eq(sk_conn_open_more(os, &handle, agent.path,
					       os->now_ns(os) + UNTIL_NS,
					       &more, &err), 0, "%s", err.text);
		cr_assert_eq(more.version, agent.speaks);
		cr_assert_eq(agent.dials, dials + (dials == 7));
		sk_conn_close(&more);
	}
	sk_conn_close(&handle);
	end();
}

Test(versions, one_that_hangs_up_and_is_too_old_is_named)
{
	agent.hangs_up = true;
	begin(SK_WIRE_MUTE - 1);
	is_refused(-EPROTO, "7.8.9 speaks version 4 of the protocol");
}

/* It may have been killed, or be full: it has said nothing of versions. */
Test(versions, one_that_hangs_up_always_was_lost)
{
	agent.hangs_up = true;
	begin(SK_WIRE_VERSION + 9);
	is_refused(-ECONNRESET, "lost at the request \"hello\"");
	cr_assert_eq(agent.dials, 1 + SK_WIRE_MUTE);
}

Test(versions, one_step_older_answers_in_its_own)
{
	begin(SK_WIRE_OLDEST);
	opens(SK_WIRE_OLDEST);
	cr_assert_eq(agent.dials, 1);
}

/* So does one that is one step newer. */
Test(versions, the_same_answers_in_ours)
{
	begin(SK_WIRE_VERSION);
	opens(SK_WIRE_VERSION);
	cr_assert_eq(agent.dials, 1);
}

Test(versions, a_newer_one_refuses_in_its_words)
{
	agent.refuses = true;
	begin(SK_WIRE_VERSION + 2);
	is_refused(-EPROTO, "mine, yours; upgrade the client");
}

Test(versions, one_too_new_is_refused)
{
	begin(SK_WIRE_VERSION + 1);
	is_refused(-EPROTO, "upgrade the client");
}

Test(versions, one_too_old_is_refused)
{
	begin(SK_WIRE_OLDEST - 1);
	is_refused(-EPROTO, "upgrade the agent");
}

/* What was agreed on holds. */
Test(versions, an_answer_in_another_is_none)
{
	struct sk_msg msg = { .type = SK_MSG_STATS };
	struct sk_err err = { "" };
	struct sk_conn conn;

	begin(SK_WIRE_OLDEST);
	agent.other = SK_WIRE_VERSION;
	cr_assert_eq(open_conn(&conn, &err), 0, "%s", err.text);
	cr_assert_eq(ask(&conn, &msg, &err), -ECONNRESET);
	sk_conn_close(&conn);
	end();
}

/* A connection that was lost may be made again with another agent. */
Test(versions, each_connection_agrees_anew)
{
	struct sk_msg msg = { .type = SK_MSG_STATS };
	const struct sk_os *os = sk_os_linux();
	struct sk_err err = { "" };
	struct sk_conn conn;

	begin(SK_WIRE_OLDEST);
	cr_assert_eq(open_conn(&conn, &err), 0, "%s", err.text);
	agent.other = SK_WIRE_VERSION;
	cr_assert_eq(ask(&conn, &msg, &err), -ECONNRESET);
	agent.speaks = SK_WIRE_VERSION;
	cr_assert_eq(sk_conn_again(agent.path, os->now_ns(os) + UNTIL_NS,
				   &conn, &err), 0, "%s", err.text);
	cr_assert_eq(conn.version, SK_WIRE_VERSION);
	msg = (struct sk_msg){ .type = SK_MSG_STATS };
	cr_assert_eq(ask(&conn, &msg, &err), 0, "%s", err.text);
	sk_conn_close(&conn);
	end();
}

static int keep_out(const struct sk_os *os, int fd, const struct sockaddr *a,
		    socklen_t size)
{
	(void)os;
	(void)fd;
	(void)a;
	(void)size;
	return -EACCES;
}

/* There may be one, and another is no remedy. */
Test(versions, who_is_kept_out_is_told_so)
{
	struct sk_os os = *sk_os_linux();
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_err err = { "" };

	os.connect = keep_out;
	cr_assert_eq(sk_conn_open(&os, "/nowhere/s", os.now_ns(&os) + UNTIL_NS,
				  &conn, &err), -EACCES);
	cr_assert(strstr(err.text, "/nowhere/s") &&
		  strstr(err.text, "keeps this user out") &&
		  !strstr(err.text, "start"), "%s", err.text);
}
