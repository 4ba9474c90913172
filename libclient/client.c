/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the agent, or starting a private one. */
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "internal.h"

#define TIMEOUT_MS 10000
#define SYSTEM_SOCKET "/run/shardkeep/agent.sock"

extern char **environ;

/* ---- looking ---- */

static int answers(const char *path, struct sk_err *err)
{
	struct sk_conn conn = { .sock = -1 };
	int r = sk_conn_open(path, TIMEOUT_MS, &conn, err);

	if (r >= 0)
		sk_conn_close(&conn);
	return r;
}

static void private_socket(char *path, size_t size)
{
	const char *run = getenv("XDG_RUNTIME_DIR");

	if (run && *run == '/')
		(void)snprintf(path, size, "%s/shardkeep/agent.sock", run);
	else
		(void)snprintf(path, size, "/tmp/shardkeep-%u/agent.sock",
			       (unsigned)getuid());
}

/* The one socket that was named, or NULL: the usual places. */
static const char *named_socket(const char *option)
{
	const char *env = getenv("SHARDKEEP_SOCKET");

	return option && *option ? option : env && *env ? env : NULL;
}

int sk_find_agent(const char *option, char *ret_path, size_t size,
		  struct sk_err *err)
{
	const char *named = named_socket(option);

	if (named) {
		(void)snprintf(ret_path, size, "%s", named);
		return answers(named, err);
	}
	(void)snprintf(ret_path, size, "%s", SYSTEM_SOCKET);
	if (answers(ret_path, NULL) >= 0)
		return 0;
	private_socket(ret_path, size);
	if (answers(ret_path, err) >= 0)
		return 0;
	return sk_err_set(err, -ENOENT, "no agent answers at %s or %s; start "
			  "shardkeepd, or set SHARDKEEP_SOCKET",
			  SYSTEM_SOCKET, ret_path);
}

/* ---- starting ---- */

/* Beside the library, where it is installed or built. */
static bool near_library(char *path, size_t size)
{
	static const char *const places[] = {
		"", "bin/", "../bin/", "../../bin/", "../libexec/", "../agent/",
	};
	char real[4096], *slash;
	Dl_info info;

	if (!dladdr((void *)near_library, &info) || !info.dli_fname ||
	    !realpath(info.dli_fname, real))
		return false;
	slash = strrchr(real, '/');
	slash[1] = 0;
	for (size_t i = 0; i < SK_ARRAY_SIZE(places); i++) {
		(void)snprintf(path, size, "%s%sshardkeepd", real, places[i]);
		if (!access(path, X_OK))
			return true;
	}
	return false;
}

static const char *agent_program(char *buf, size_t size)
{
	const char *env = getenv("SHARDKEEP_AGENT");

	if (env && *env)
		return env;
	return near_library(buf, size) ? buf : "shardkeepd";
}

/* A directory of ours alone: others must not put a socket there. */
static int secure_dir(const char *socket_path, struct sk_err *err)
{
	char dir[4096];
	struct stat st;

	(void)snprintf(dir, sizeof(dir), "%s", socket_path);
	*strrchr(dir, '/') = 0;
	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return sk_err_errno(err, -errno, "cannot make %s", dir);
	if (lstat(dir, &st) < 0)
		return sk_err_errno(err, -errno, "cannot look at %s", dir);
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
	    st.st_mode & 0022)
		return sk_err_set(err, -EACCES, "%s is not a directory that "
				  "this user alone can write to", dir);
	return 0;
}

static int spawn_agent(const char *path, int ready, struct sk_err *err)
{
	char program[4096], fd[16];
	const char *agent = agent_program(program, sizeof(program));
	char *argv[] = { (char *)agent, (char *)"--detach",
			 (char *)"--socket", (char *)path,
			 (char *)"--ready-fd", fd, NULL };
	posix_spawn_file_actions_t actions;
	int status, r;
	pid_t pid;

	(void)snprintf(fd, sizeof(fd), "%d", ready);
	posix_spawn_file_actions_init(&actions);
	/* Onto itself: kept open across exec in the child only. */
	posix_spawn_file_actions_adddup2(&actions, ready, ready);
	r = posix_spawnp(&pid, agent, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (r)
		return sk_err_errno(err, -r, "cannot start the agent %s; set "
				    "SHARDKEEP_AGENT to its path", agent);
	/* It detaches: what we started ends at once. */
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return 0;
}

/* One byte when it serves; none when another process's agent won. */
static void wait_ready(int fd, uint32_t timeout_ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char c;

	if (poll(&p, 1, (int)timeout_ms) > 0 && read(fd, &c, 1) < 0)
		return;		/* connecting will tell */
}

static int wait_answer(const char *path, uint32_t timeout_ms,
		       struct sk_err *err)
{
	int r;

	for (uint32_t ms = 0; ; ms += 20) {
		r = answers(path, err);
		if (r >= 0 || ms >= timeout_ms)
			return r;
		(void)poll(NULL, 0, 20);
	}
}

static int start_agent(const char *path, uint32_t timeout_ms,
		       struct sk_err *err)
{
	int ready[2], r = secure_dir(path, err);

	if (r < 0)
		return r;
	if (pipe2(ready, O_CLOEXEC) < 0)
		return sk_err_errno(err, -errno, "cannot make a pipe");
	r = spawn_agent(path, ready[1], err);
	sk_close_fd(ready[1]);
	if (r >= 0) {
		wait_ready(ready[0], timeout_ms);
		r = wait_answer(path, timeout_ms, err);
	}
	sk_close_fd(ready[0]);
	return r;
}

/* ---- the handle ---- */

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

static int find_or_start(const struct sk_options *o, uint32_t timeout_ms,
			 char *path, size_t size, struct sk_err *err)
{
	int r = sk_find_agent(o->socket, path, size, err);

	if (r != -ENOENT || named_socket(o->socket) ||
	    o->flags & SK_OPEN_NO_START)
		return r;
	return start_agent(path, timeout_ms, err);
}

static int open_handle(const struct sk_options *o, struct sk *sk,
		       struct sk_err *err)
{
	char path[4096];
	int r;

	sk->os = sk_os_linux();
	sk->pid = getpid();
	sk->timeout_ms = o->timeout_ms ? o->timeout_ms : TIMEOUT_MS;
	r = find_or_start(o, sk->timeout_ms, path, sizeof(path), err);
	if (r < 0)
		return r;
	sk->socket_path = strdup(path);
	sk->recall = sk_recall_new();
	if (!sk->socket_path || !sk->recall)
		return sk_err_set(err, -ENOMEM, "out of memory");
	r = sk_conn_open(path, sk->timeout_ms, &sk->conn, err);
	if (r < 0)
		return r;
	return sk_pool_new(o->threads ? o->threads : default_threads(), -1,
			   "shardkeep", &sk->pool, err);
}

SK_API int sk_open(const struct sk_options *opts, struct sk **ret_sk)
{
	struct sk_options none = { 0 };
	struct sk_err err = { "" };
	struct sk *sk = calloc(1, sizeof(*sk));
	int r;

	if (!sk)
		return sk_say(sk_err_set(&err, -ENOMEM, "out of memory"),
			      &err);
	sk->conn.sock = -1;
	r = open_handle(opts ? opts : &none, sk, &err);
	if (r < 0) {
		sk_close(sk);
		return sk_say(r, &err);
	}
	*ret_sk = sk;
	return 0;
}

SK_API void sk_close(struct sk *sk)
{
	if (!sk)
		return;
	/* In a forked child the threads and the connection are not ours. */
	if (sk->pid == getpid()) {
		sk_pool_free(sk->pool);
		if (sk->conn.sock >= 0)
			sk_conn_close(&sk->conn);
		sk_recall_free(sk->recall);
	}
	free(sk->socket_path);
	free(sk);
}

int sk_call_deferred(struct sk *sk, struct sk_msg *msg, const int *fds,
		     int n_fds, int *ret_fds, int *ret_n_fds,
		     uint32_t timeout_ms, struct sk_err *err)
{
	struct sk_conn conn = { .sock = -1 };
	int r = sk_conn_open(sk->socket_path, sk->timeout_ms, &conn, err);

	if (r < 0)
		return r;
	/* The agent gives up at timeout_ms; we wait a little longer. */
	r = sk_conn_call(&conn, msg, fds, n_fds, ret_fds, ret_n_fds,
			 timeout_ms + sk->timeout_ms, err);
	sk_conn_close(&conn);
	return r;
}
