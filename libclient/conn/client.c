/* SPDX-License-Identifier: Apache-2.0 */
#include "conn/client.h"

#include <assert.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "base/util.h"
#include "bytes/copy.h"
#include "conn/agent.h"
#include "conn/check.h"
#include "conn/say.h"

#define TIMEOUT_MS 10000

/* More than any machine can use, and less than starves a node. */
#define THREADS_MOST 1024u

/* Those that whoever started it left it. */
static unsigned usable_cpus(void)
{
	cpu_set_t set;
	long n;

	CPU_ZERO(&set);
	if (!sched_getaffinity(0, sizeof(set), &set))
		return (unsigned)CPU_COUNT(&set);
	n = sysconf(_SC_NPROCESSORS_ONLN);
	return n < 1 ? 1 : (unsigned)n;
}

static unsigned default_threads(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN) / 2;

	return n < 1 ? 1 : n > 8 ? 8 : (unsigned)n;
}

int sk_check(const struct sk *sk, struct sk_err *err)
{
	if (!sk)
		return sk_err_set(err, -EINVAL, "the handle is NULL");
	if (sk->pid != getpid())
		return sk_err_set(err, -EOWNERDEAD, "this handle was opened "
				  "before fork(); open one in the child");
	return 0;
}

static int find_or_start(struct sk *sk, const struct sk_options *o,
			 char *path, struct sk_err *err)
{
	uint64_t until = sk_until(sk);
	int r = sk_agent_connect(sk->os, o->socket, sk_conn_open, until,
				 path, &sk->conn, err);

	if (r != -ENOENT || sk_agent_named(o->socket) ||
	    o->flags & SK_OPEN_NO_START)
		return r;
	return sk_agent_start(sk->os, path, until, &sk->conn, err);
}

static int check_options(const struct sk_options *o, struct sk_err *err)
{
	int r = sk_check_flags(o->flags, SK_OPEN_NO_START, "sk_options.flags",
			       err);

	if (r >= 0 && o->socket && !*o->socket)
		r = sk_err_set(err, -EINVAL, "sk_options.socket is empty; "
			       "NULL finds one");
	if (r >= 0 && o->threads > THREADS_MOST)
		r = sk_err_set(err, -EINVAL, "sk_options.threads is %u; at "
			       "most %u", o->threads, THREADS_MOST);
	if (r >= 0)
		r = sk_check_zero(&o->reserved_, sizeof(o->reserved_),
				  "sk_options.reserved_", err);
	return r < 0 ? r : sk_check_zero(o->reserved, sizeof(o->reserved),
					 "sk_options.reserved", err);
}

/* The caller's: a trainer may go to another directory. One that would be too
 * long for an address is good as long as it does not. */
static char *path_to_stay(const struct sk_os *os, const char *path)
{
	size_t most = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
	char here[PATH_MAX], *ret;

	if (*path == '/' || os->getcwd(os, here, sizeof(here)) < 0 ||
	    strlen(here) + 1 + strlen(path) > most)
		return strdup(path);
	return asprintf(&ret, "%s/%s", here, path) < 0 ? NULL : ret;
}

static int open_handle(const struct sk_options *o, struct sk *sk,
		       struct sk_err *err)
{
	char path[SK_PATH_ROOM];
	int r;

	sk->pid = getpid();
	sk->cpus = usable_cpus();
	sk->threads_said = o->threads;
	sk->timeout_ms = o->timeout_ms ? o->timeout_ms : TIMEOUT_MS;
	r = check_options(o, err);
	if (r >= 0)
		r = find_or_start(sk, o, path, err);
	if (r < 0)
		return r;
	sk->socket_path = path_to_stay(sk->os, path);
	sk->recall = sk_recall_new();
	if (!sk->socket_path || !sk->recall)
		return sk_err_set(err, -ENOMEM, "out of memory");
	r = sk_cuda_new(sk->os, &sk->cuda, err);
	if (r < 0)
		return r;
	sk_copy_measure(sk->os);
	sk->hash_is_free = sk_copy_hash_is_free();
	return sk_pool_new(o->threads ? o->threads : default_threads(), -1,
			   "shardkeep", &sk->pool, err);
}

int sk_open_on(const struct sk_os *os, const struct sk_options *opts,
	       struct sk **ret_sk)
{
	const struct sk_options none = { 0 };
	struct sk_err err = { "" };
	char *differs;
	struct sk *sk;
	int r;

	if (!ret_sk)
		return sk_say(sk_err_set(&err, -EINVAL, "a handle needs a "
					 "variable to go to"), &err);
	sk = calloc(1, sizeof(*sk));
	if (!sk)
		return sk_say(sk_err_set(&err, -ENOMEM, "out of memory"),
			      &err);
	sk->os = os;
	sk->conn.sock = sk->apart.sock = -1;
	r = open_handle(opts ? opts : &none, sk, &err);
	if (r < 0) {
		sk_close(sk);
		return sk_say(r, &err);
	}
	*ret_sk = sk;
	/* Nothing is printed here: who asks hears it, and no older failure, as
	 * of looking for one. */
	differs = sk_agent_differs(os, &sk->conn.agent, sk->socket_path);
	return sk_say_long(0, differs ? differs : strdup(""));
}

SK_API int sk_open(const struct sk_options *opts, struct sk **ret_sk)
{
	return sk_open_on(sk_os_linux(), opts, ret_sk);
}

SK_API void sk_close(struct sk *sk)
{
	if (!sk)
		return;
	/* In a forked child the threads and the connection are not ours. */
	if (sk->pid == getpid()) {
		sk_pool_free(sk->pool);
		if (!sk->cuda_stays)
			sk_cuda_free(sk->cuda);
		sk_conn_close(&sk->apart);
		sk_conn_close(&sk->conn);
		sk_recall_free(sk->recall);
	}
	free(sk->socket_path);
	free(sk);
}

/* The one that was kept goes to the agent of the handle, and stands. */
static bool is_kept(struct sk *sk)
{
	uint64_t instance;

	(void)sk_conn_is_open(&sk->conn, NULL, &instance);
	return sk->apart.os && sk->apart.user == geteuid() &&
	       sk->apart.agent.instance == instance &&
	       sk_conn_stands(&sk->apart);
}

static int open_apart(struct sk *sk, struct sk_conn *conn, uint64_t until_ns,
		      struct sk_err *err)
{
	sk_conn_close(conn);
	return sk_conn_open_more(sk->os, &sk->conn, sk->socket_path, until_ns,
				 conn, err);
}

int sk_call_apart(struct sk *sk, struct sk_msg *msg, const int *fds,
		  int n_fds, int *ret_fds, int *ret_n_fds, uint64_t until_ns,
		  struct sk_err *err)
{
	struct sk_conn mine = SK_CONN_NULL;
	bool taken = atomic_exchange(&sk->apart_taken, true);
	struct sk_conn *conn = taken ? &mine : &sk->apart;
	int r = 0;

	if (taken || !is_kept(sk))
		r = open_apart(sk, conn, until_ns, err);
	if (r >= 0)
		r = sk_conn_call(conn, msg, fds, n_fds, ret_fds, ret_n_fds,
				 until_ns, err);
	if (!taken)
		atomic_store(&sk->apart_taken, false);
	sk_conn_close(&mine);
	return r;
}

/* ---- what is answered later ---- */

#define WAY_BACK_MOST_MS 500u	/* of an answer */
#define WAY_BACK_LEAST_MS 20u	/* less is not worth a third request */

static uint32_t *timeout_of(struct sk_msg *msg)
{
	switch (msg->type) {
	case SK_MSG_WAIT:
		return &msg->body.wait.timeout_ms;
	case SK_MSG_SLOT_WAIT:
		return &msg->body.slot_wait.timeout_ms;
	default:
		assert(msg->type == SK_MSG_PREPARE);
		return &msg->body.prepare.timeout_ms;
	}
}

/* Of what is left, what the agent may take. Once it has said something, that
 * stands for what it might have said at the very end. */
static uint32_t agents_part_ms(uint32_t left_ms, bool has_said)
{
	uint32_t back = left_ms / 8;

	if (has_said && back < WAY_BACK_LEAST_MS)
		back = 0;
	if (back > WAY_BACK_MOST_MS)
		back = WAY_BACK_MOST_MS;
	/* 0 would be for ever. */
	return left_ms > back ? left_ms - back : 1;
}

uint32_t sk_wait_ms(const struct sk *sk, uint64_t until_ns)
{
	return agents_part_ms(sk_left_ms(sk->os, until_ns), false);
}

int sk_call_deferred(struct sk *sk, struct sk_msg *msg, const int *fds,
		     int n_fds, int *ret_fds, int *ret_n_fds,
		     uint64_t until_ns, struct sk_err *err)
{
	const struct sk_msg asked = *msg;
	struct sk_err said = { "" };
	bool over;
	int r;

	do {
		struct sk_err now = { "" };

		*msg = asked;
		*timeout_of(msg) = agents_part_ms(sk_left_ms(sk->os, until_ns),
						  said.text[0]);
		r = sk_call_apart(sk, msg, fds, n_fds, ret_fds, ret_n_fds,
				  until_ns, &now);
		over = r != -ETIMEDOUT || sk->os->now_ns(sk->os) >= until_ns;
		/* That no time was left for the last one says less. */
		if (r != -ETIMEDOUT || !over || !said.text[0])
			said = now;
	} while (!over);
	return r < 0 ? sk_err_set(err, r, "%s", said.text) : r;
}
