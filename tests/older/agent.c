/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent of the wire's version before, for clients of this one: takes the
 * options of shardkeepd, whose path is in $SK_TEST_AGENT, starts that behind
 * itself, and lets through what the version before knows, by the headers and
 * the channel of that version (wire/). Whoever says anything else is treated
 * as that agent did. An agent that answers otherwise than in that version ends
 * it with status 99.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire/channel.h"

#define ARGS_MOST 40

struct relay {
	int client, agent;
	atomic_int ways;	/* that are open still */
};

static pid_t behind;

static void fail(const char *what)
{
	fprintf(stderr, "older agent: %s: %s\n", what, strerror(errno));
	if (behind > 0)
		(void)kill(behind, SIGKILL);
	_exit(99);
}

static void relay_end(struct relay *r)
{
	(void)shutdown(r->client, SHUT_RDWR);
	(void)shutdown(r->agent, SHUT_RDWR);
	if (atomic_fetch_sub(&r->ways, 1) > 1)
		return;
	close(r->client);
	close(r->agent);
	free(r);
}

static void close_all(const int *fds, int n)
{
	for (int i = 0; i < n; i++)
		close(fds[i]);
}

static int refuse(const struct relay *r, struct sk_msg *msg, int status,
		  const char *text)
{
	msg->status = status;
	memset(&msg->body, 0, sizeof(msg->body));
	(void)snprintf(msg->body.text, sizeof(msg->body.text), "%s", text);
	return sk_channel_send(sk_os_linux(), r->client, msg, NULL, 0);
}

/* 0: it goes on to the agent; else it was answered, or cannot be. */
static int judge(const struct relay *r, struct sk_msg *msg)
{
	int e;

	if (msg->type >= SK_MSG_TYPE_COUNT)
		return -EPROTO;
	if (msg->type == SK_MSG_HELLO &&
	    msg->body.hello.version != SK_WIRE_VERSION)
		e = refuse(r, msg, -EPROTO, "another version of the protocol; "
			   "upgrade the older one");
	else if (msg->type == SK_MSG_LIST && msg->body.list.reserved)
		e = refuse(r, msg, -EINVAL, "the field \"reserved\" of a list "
			   "message has bits that mean nothing here");
	else
		return 0;
	return e < 0 ? e : 1;
}

static void *from_client(void *data)
{
	struct relay *r = data;
	int fds[SK_MSG_FDS], n, e;
	struct sk_msg msg;

	do {
		e = sk_channel_recv(sk_os_linux(), r->client, &msg, fds, &n);
		if (e < 0)
			break;
		e = judge(r, &msg);
		if (!e)
			e = sk_channel_send(sk_os_linux(), r->agent, &msg, fds,
					    n);
		close_all(fds, n);
	} while (e >= 0);
	relay_end(r);
	return NULL;
}

static void *from_agent(void *data)
{
	struct relay *r = data;
	int fds[SK_MSG_FDS], n, e;
	struct sk_msg msg;

	do {
		e = sk_channel_recv(sk_os_linux(), r->agent, &msg, fds, &n);
		if (e == -EPROTO)
			fail("an answer of another version");
		if (e < 0)
			break;
		if (msg.type == SK_MSG_LIST && msg.status >= 0 &&
		    msg.body.list_reply.reserved)
			fail("an answer to a list has what was reserved");
		if (msg.type == SK_MSG_HELLO && msg.status >= 0)
			msg.body.hello_reply.reserved = 0;
		e = sk_channel_send(sk_os_linux(), r->client, &msg, fds, n);
		close_all(fds, n);
	} while (e >= 0);
	relay_end(r);
	return NULL;
}

static void address(const char *path, struct sockaddr_un *ret)
{
	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (snprintf(ret->sun_path, sizeof(ret->sun_path), "%s", path) >=
	    (int)sizeof(ret->sun_path))
		fail("a path that is too long");
}

static void begin_relay(const char *path, int client)
{
	struct relay *r = calloc(1, sizeof(*r));
	struct sockaddr_un addr;
	pthread_t t;

	if (!r)
		fail("calloc");
	address(path, &addr);
	r->client = client;
	r->ways = 2;
	r->agent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connect(r->agent, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		close(r->agent);
		close(client);
		free(r);
		return;
	}
	if (pthread_create(&t, NULL, from_client, r) || pthread_detach(t) ||
	    pthread_create(&t, NULL, from_agent, r) || pthread_detach(t))
		fail("pthread_create");
}

static int listen_at(const char *path)
{
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sockaddr_un addr;

	address(path, &addr);
	(void)unlink(path);
	if (bind(sock, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
	    listen(sock, 64) < 0)
		fail(path);
	return sock;
}

struct door {
	int sock;
	char path[128];		/* of the agent behind it */
};

static void *accept_all(void *data)
{
	const struct door *door = data;

	for (;;) {
		int client = accept4(door->sock, NULL, NULL, SOCK_CLOEXEC);

		if (client >= 0)
			begin_relay(door->path, client);
	}
	return NULL;
}

static void pass_on(int sig)
{
	(void)kill(behind, sig);
}

static void run(char **args)
{
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	execv(args[0], args);
	_exit(127);
}

/* Ours, but for the socket. */
static const char *take_args(int argc, char **argv, struct door *door,
			     char **ret_args)
{
	const char *path = NULL;

	ret_args[0] = getenv("SK_TEST_AGENT");
	for (int i = 1; i < argc && i < ARGS_MOST; i++) {
		ret_args[i] = argv[i];
		if (strcmp(argv[i - 1], "--socket") != 0)
			continue;
		path = argv[i];
		(void)snprintf(door->path, sizeof(door->path), "%s.new", path);
		ret_args[i] = door->path;
	}
	if (!ret_args[0] || !path)
		fail("$SK_TEST_AGENT and --socket are needed");
	return path;
}

/* One that was killed dies before the agent behind it does. Both hold this, so
 * that who has it knows them to be gone. */
static void await_those_before(const char *path)
{
	char name[256];
	int fd;

	(void)snprintf(name, sizeof(name), "%s.held", path);
	fd = open(name, O_RDWR | O_CREAT, 0600);	/* kept over exec */
	if (fd < 0 || flock(fd, LOCK_EX) < 0)
		fail(name);
}

int main(int argc, char **argv)
{
	char *args[ARGS_MOST + 1] = { NULL };
	static struct door door;
	const char *path = take_args(argc, argv, &door, args);
	pthread_t t;
	int status;

	await_those_before(path);
	/* Before it says that it is ready. */
	door.sock = listen_at(path);
	behind = fork();
	if (!behind)
		run(args);
	for (int i = 1; i < argc - 1; i++)
		if (!strcmp(argv[i], "--ready-fd"))
			close(atoi(argv[i + 1]));
	(void)signal(SIGTERM, pass_on);
	(void)signal(SIGHUP, pass_on);
	if (pthread_create(&t, NULL, accept_all, &door))
		fail("pthread_create");
	while (waitpid(behind, &status, 0) < 0 && errno == EINTR)
		;
	(void)unlink(path);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}
