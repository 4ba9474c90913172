/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trainer is when it calls, and what it does afterwards: it goes to
 * another directory, and has files open and signals ignored and blocked that
 * are nothing to the agent which it starts.
 */
#include "libclient/restore/common.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/await.h"

/* ---- a socket that is named from here ---- */

static void use(struct sk *sk, const char *job)
{
	struct sk_job j = { .name = job, .world = 1 };
	struct sk_state *state = NULL;
	char data[100] = "data", *json;
	struct sk_tensor t = { .name = "t", .dtype = SK_U8, .ndim = 1,
			       .shape = { sizeof(data) }, .data = data };

	CHECK(!sk_state_create(sk, &j, &state), "%s", sk_error());
	CHECK(!sk_state_tensor(state, &t), "%s", sk_error());
	CHECK(!sk_snapshot(state, 1, NULL), "%s", sk_error());
	CHECK(!sk_wait(state, 1, SK_COMPLETE, 30000), "%s", sk_error());
	memset(data, 0, sizeof(data));
	CHECK(!sk_restore(state, SK_LATEST, NULL, NULL, NULL), "%s",
	      sk_error());
	CHECK(!strcmp(data, "data"));
	CHECK(!sk_inspect(sk, job, SK_LATEST, 0, 0, &json), "%s", sk_error());
	free(json);
	sk_state_free(state);
}

/* Each request that is not the first on its connection finds the agent. */
static void go_elsewhere(struct scene *scene)
{
	struct sk_options o = { .socket = "agent.sock" };
	struct sk *sk = NULL;

	CHECK(!chdir(scene->dir));
	CHECK(!sk_open(&o, &sk), "%s", sk_error());
	CHECK(!chdir("/"));
	use(sk, "elsewhere");
	/* The next agent there as well. */
	scene_stop_agent(scene, SIGKILL);
	scene_start_agent(scene);
	use(sk, "after");
	sk_close(sk);
}

/* Where the whole path is longer than a socket's can be, the short one is
 * good as long as it leads there. */
static void stay_deep(const struct scene *scene)
{
	static const char name[] = "a-directory-of-such-a-long-name-that-no-"
				   "address-of-a-socket-has-room-for-it-all";
	struct sk_options o = { .socket = "../../agent.sock" };
	struct sk *sk = NULL;

	CHECK(!chdir(scene->dir));
	CHECK(!mkdir(name, 0700) && !chdir(name));
	CHECK(!mkdir("below", 0700) && !chdir("below"));
	CHECK(!sk_open(&o, &sk), "%s", sk_error());
	use(sk, "deep");
	sk_close(sk);
	CHECK(!chdir("/"));
}

/* ---- another user ---- */

static void is_refused(int r)
{
	CHECK(r == -EACCES, "%d: %s", r, sk_error());
	CHECK(strstr(sk_error(), "opened by user 0, and the process is user "
				 "4711 now"), "%s", sk_error());
}

/* Whose jobs are others: what was root's is not told for a first run. */
static void become_another(struct scene *scene)
{
	struct sk_options o = { .socket = scene->socket };
	struct sk_job job = { .name = "roots", .world = 1 };
	struct sk_state *state;
	char data[] = "data", *json;
	struct sk *sk;

	if (geteuid())
		return;		/* nor can it become one */
	CHECK(!chmod(scene->dir, 0755));
	CHECK(!sk_open(&o, &sk), "%s", sk_error());
	CHECK(!sk_state_create(sk, &job, &state), "%s", sk_error());
	CHECK(!sk_state_blob(state, "b", data, sizeof(data)));
	CHECK(!sk_snapshot(state, 1, NULL), "%s", sk_error());
	CHECK(!sk_wait(state, 1, SK_COMPLETE, 30000), "%s", sk_error());
	memset(data, 0, sizeof(data));
	CHECK(!seteuid(4711));
	is_refused(sk_restore(state, SK_LATEST, NULL, NULL, NULL));
	is_refused(sk_wait(state, 1, SK_DURABLE, 30000));
	is_refused(sk_inspect(sk, "roots", SK_LATEST, 0, 0, &json));
	is_refused(sk_snapshots(sk, "roots", &json));
	CHECK(!data[0]);
	CHECK(!seteuid(0));
	CHECK(!sk_restore(state, SK_LATEST, NULL, NULL, NULL), "%s",
	      sk_error());
	CHECK(!strcmp(data, "data"));
	sk_state_free(state);
	sk_close(sk);
}

/* ---- an agent that is started ---- */

static uint32_t start_agent(void)
{
	struct sk *sk = NULL;
	sigset_t all, old;
	uint32_t pid;

	sigfillset(&all);
	CHECK(signal(SIGCHLD, SIG_IGN) != SIG_ERR);
	CHECK(!sigprocmask(SIG_SETMASK, &all, &old));
	CHECK(!sk_open(NULL, &sk), "%s", sk_error());
	CHECK(!sigprocmask(SIG_SETMASK, &old, NULL));
	CHECK(signal(SIGCHLD, SIG_DFL) != SIG_ERR);
	pid = sk->conn.agent.pid;
	sk_close(sk);
	return pid;
}

/* It is nobody's child: its end is seen through a descriptor. */
static void end_agent(uint32_t pid, int sig)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p = { .fd = fd, .events = POLLIN };

	CHECK(fd >= 0 && !kill((pid_t)pid, sig));
	CHECK(poll(&p, 1, AWAIT_MS) == 1);
	close(fd);
}

/* A launcher that reads to the end of a pipe waits for its trainers, and not
 * for an agent that outlives them. */
static void check_end_of_pipe(const int *pipe_of_launcher)
{
	struct pollfd p = { .fd = pipe_of_launcher[0], .events = POLLIN };

	close(pipe_of_launcher[1]);
	CHECK(poll(&p, 1, 0) == 1 && p.revents == POLLHUP,
	      "the agent has what its starter had open");
	close(pipe_of_launcher[0]);
}

/* What started it ignored how children end: its keeper does not, and has the
 * next one. */
static uint32_t kill_kept(uint32_t pid)
{
	struct sk_options o = { .flags = SK_OPEN_NO_START };
	struct sk *sk = NULL;

	end_agent(pid, SIGKILL);
	CHECK(!sk_open(&o, &sk), "%s", sk_error());
	CHECK(sk->conn.agent.pid != pid);
	pid = sk->conn.agent.pid;
	use(sk, "kept");
	sk_close(sk);
	return pid;
}

static void start_one(const struct scene *scene)
{
	uint32_t pid;
	int fds[2];

	if (!access("/run/shardkeep/agent.sock", F_OK))
		return;		/* this machine's agent would be found */
	CHECK(!setenv("XDG_RUNTIME_DIR", scene->dir, 1));
	CHECK(!unsetenv("SHARDKEEP_SOCKET"));
	CHECK(!unsetenv("SHARDKEEP_STORE"));
	CHECK(!setenv("SHARDKEEP_AGENT", scene->program, 1));
	CHECK(!setenv("SHARDKEEP_MEMORY", "64M", 1));
	CHECK(!pipe(fds));
	pid = start_agent();
	check_end_of_pipe(fds);
	end_agent(kill_kept(pid), SIGTERM);
}

int main(int argc, char **argv)
{
	struct scene scene;
	char *program;

	scene_open(&scene, argc, argv);
	/* It is named from where the test begins. */
	program = realpath(scene.program, NULL);
	CHECK(program);
	scene.program = program;
	go_elsewhere(&scene);
	stay_deep(&scene);
	become_another(&scene);
	start_one(&scene);
	scene_close(&scene);
	free(program);
	return 0;
}
