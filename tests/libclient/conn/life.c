/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's own life: processes that race to start the agent, threads
 * that share a state, an agent that is killed under a running job.
 */
#include "libclient/restore/common.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/await.h"
#include "support/fault-os.h"

#define RACERS 4
#define STEPS (60 / (int)sk_fault_every())

/* ---- who starts the agent ---- */

static void race(int gate, int out)
{
	struct sk *sk = NULL;
	uint32_t pid;
	char c;

	/* All at once: when the parent closes its end. */
	CHECK(read(gate, &c, 1) == 0);
	CHECK(!sk_open(NULL, &sk), "%s", sk_error());
	pid = sk->conn.agent.pid;
	CHECK(write(out, &pid, sizeof(pid)) == sizeof(pid));
	sk_close(sk);
	exit(0);
}

static uint32_t start_race(int *gate)
{
	int out[2];
	uint32_t first = 0, pid;
	pid_t pids[RACERS];

	CHECK(!pipe(out));
	fflush(NULL);
	for (int i = 0; i < RACERS; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			close(gate[1]);
			race(gate[0], out[1]);
		}
	}
	close(gate[0]);
	close(gate[1]);
	close(out[1]);
	for (int i = 0; i < RACERS; i++) {
		int status;

		CHECK(read(out[0], &pid, sizeof(pid)) == sizeof(pid));
		CHECK(!first || pid == first, "agents %u and %u", first, pid);
		first = pid;
		CHECK(waitpid(pids[i], &status, 0) == pids[i] && !status);
	}
	close(out[0]);
	return first;
}

/* It is nobody's child: its end is seen through a descriptor. */
static void end_agent(uint32_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p = { .fd = fd, .events = POLLIN };

	CHECK(fd >= 0);
	CHECK(!kill((pid_t)pid, SIGTERM));
	CHECK(poll(&p, 1, 30000) == 1);
	close(fd);
}

/* Whoever started it is told why it ended, and where more is written. */
static void test_cannot_start(const struct scene *scene)
{
	struct sk *sk = NULL;
	char log[200];

	(void)snprintf(log, sizeof(log), "%s/shardkeep/agent.log",
		       scene->dir);
	CHECK(!setenv("SHARDKEEP_STORE", "/proc/nowhere", 1));
	CHECK(sk_open(NULL, &sk) == -ECONNREFUSED && !sk);
	CHECK(strstr(sk_error(), "/proc/nowhere") && strstr(sk_error(), log),
	      "%s", sk_error());
	CHECK(!unsetenv("SHARDKEEP_STORE"));
	CHECK(!setenv("SHARDKEEP_MEMORY", "much", 1));
	CHECK(sk_open(NULL, &sk) == -ECONNREFUSED && !sk);
	CHECK(strstr(sk_error(), "SHARDKEEP_MEMORY \"much\" makes no sense") &&
	      strstr(sk_error(), log), "%s", sk_error());
	CHECK(!setenv("SHARDKEEP_MEMORY", "64M", 1));
}

/* An agent that ran already has another store: that is said aloud. */
static void test_differs(const struct scene *scene)
{
	char store[200], same[220], says[240];
	struct sk *sk = NULL;
	uint32_t pid;

	CHECK(!sk_open(NULL, &sk) && !sk_error()[0], "%s", sk_error());
	pid = sk->conn.agent.pid;
	sk_close(sk);
	(void)snprintf(store, sizeof(store), "%s/mine", scene->dir);
	(void)snprintf(same, sizeof(same), "%s/../mine/", store);
	(void)snprintf(says, sizeof(says), "writes to %s", store);
	CHECK(!setenv("SHARDKEEP_STORE", store, 1));
	CHECK(!sk_open(NULL, &sk));
	CHECK(strstr(sk_error(), "SHARDKEEP_STORE is ") &&
	      strstr(sk_error(), "has no store"), "%s", sk_error());
	sk_close(sk);
	end_agent(pid);
	/* One that is started has what it is told. */
	CHECK(!sk_open(NULL, &sk) && !sk_error()[0], "%s", sk_error());
	pid = sk->conn.agent.pid;
	sk_close(sk);
	CHECK(!setenv("SHARDKEEP_STORE", same, 1));
	CHECK(!sk_open(NULL, &sk) && !sk_error()[0], "%s", sk_error());
	sk_close(sk);
	CHECK(!setenv("SHARDKEEP_STORE", scene->dir, 1));
	CHECK(!sk_open(NULL, &sk));
	CHECK(strstr(sk_error(), says), "%s", sk_error());
	sk_close(sk);
	CHECK(!unsetenv("SHARDKEEP_STORE"));
	CHECK(!setenv("SHARDKEEP_MEMORY", "65M", 1));
	CHECK(!sk_open(NULL, &sk));
	CHECK(strstr(sk_error(), "budget of 64.0 MiB"), "%s", sk_error());
	sk_close(sk);
	/* Both at once, and what is no size. */
	CHECK(!setenv("SHARDKEEP_STORE", scene->dir, 1));
	CHECK(!sk_open(NULL, &sk));
	CHECK(strstr(sk_error(), says) && strstr(sk_error(), "SHARDKEEP_MEMORY "
	      "is 65M, but") && strstr(sk_error(), "; stop it, or ask"), "%s",
	      sk_error());
	sk_close(sk);
	CHECK(!unsetenv("SHARDKEEP_STORE"));
	CHECK(!setenv("SHARDKEEP_MEMORY", "much", 1));
	CHECK(!sk_open(NULL, &sk));
	CHECK(strstr(sk_error(), "much, which is no size"), "%s", sk_error());
	sk_close(sk);
	CHECK(!setenv("SHARDKEEP_MEMORY", "64M", 1));
	end_agent(pid);
}

/* Its directory is swept: who is connected stays, others find it again. */
static void test_swept(const struct scene *scene)
{
	struct sk_options no_start = { .flags = SK_OPEN_NO_START };
	struct sk *first = NULL, *second = NULL;
	char path[200];
	uint32_t pid;

	CHECK(!sk_open(NULL, &first), "%s", sk_error());
	pid = first->conn.agent.pid;
	for (const char *const *f = (const char *const[]){ "agent.sock",
	     "agent.sock.lock", "agent.log", "", NULL }; *f; f++) {
		(void)snprintf(path, sizeof(path), "%s/shardkeep/%s",
			       scene->dir, *f);
		(void)remove(path);
	}
	CHECK(await_file(scene->dir, "shardkeep/agent.sock"));
	/* It has its name a moment before anybody listens there. */
	AWAIT(!sk_open(&no_start, &second), "%s", sk_error());
	CHECK(second->conn.agent.pid == pid, "another agent");
	sk_close(first);
	sk_close(second);
	end_agent(pid);
}

/* What the agent writes stays bounded. */
static void test_log(const struct scene *scene)
{
	char path[200];
	struct sk *sk = NULL;
	struct stat st;
	uint32_t pid;

	(void)snprintf(path, sizeof(path), "%s/shardkeep/agent.log",
		       scene->dir);
	CHECK(!sk_open(NULL, &sk), "%s", sk_error());
	pid = sk->conn.agent.pid;
	CHECK(!truncate(path, 9 << 20));
	CHECK(await_file(scene->dir, "shardkeep/agent.log.old"),
	      "%s grows and grows", path);
	CHECK(await_file(scene->dir, "shardkeep/agent.log"), "no %s", path);
	CHECK(!stat(path, &st) && st.st_size < 1 << 20);
	sk_close(sk);
	end_agent(pid);
}

/* 0: there is none yet. */
static int read_number(const char *path)
{
	FILE *f = fopen(path, "re");
	int n = 0;

	if (!f || fscanf(f, "%d", &n) != 1)
		n = 0;
	if (f)
		(void)fclose(f);
	return n;
}

/* One that comes to nothing in time, and is there. */
static void test_starts_late(const struct scene *scene)
{
	const struct sk_options soon = { .timeout_ms = 200 };
	char program[300], text[400];
	struct sk *sk = NULL;
	FILE *f;
	int pid;

	(void)snprintf(program, sizeof(program), "%s/late", scene->dir);
	(void)snprintf(text, sizeof(text), "#!/bin/sh\necho $$ > %s/pid\n"
		       "exec sleep 1000\n", scene->dir);
	CHECK((f = fopen(program, "we")) && fputs(text, f) >= 0 &&
	      !fchmod(fileno(f), 0700) && !fclose(f));
	CHECK(!setenv("SHARDKEEP_AGENT", program, 1));
	CHECK(sk_open(&soon, &sk) == -ETIMEDOUT && !sk, "%s", sk_error());
	CHECK(strstr(sk_error(), "does not serve yet"), "%s", sk_error());
	(void)snprintf(text, sizeof(text), "%s/pid", scene->dir);
	AWAIT((pid = read_number(text)) > 0, "it never ran");
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
	CHECK(!unlink(text) && !unlink(program));
	CHECK(!setenv("SHARDKEEP_AGENT", scene->program, 1));
}

/* The directory that is made for an agent is of use, whatever the umask. */
static void test_masked(const struct scene *scene)
{
	const mode_t before = umask(0777);
	struct sk *sk = NULL;
	char dir[300], path[320];
	struct stat st;
	uint32_t pid;

	(void)snprintf(dir, sizeof(dir), "%s/masked", scene->dir);
	CHECK(!mkdir(dir, 0) && !chmod(dir, 0700));
	CHECK(!setenv("XDG_RUNTIME_DIR", dir, 1));
	CHECK(!sk_open(NULL, &sk), "%s", sk_error());
	(void)umask(before);
	(void)snprintf(path, sizeof(path), "%s/shardkeep", dir);
	CHECK(!stat(path, &st) && (st.st_mode & 07777) == 0700, "%#o",
	      st.st_mode);
	pid = sk->conn.agent.pid;
	sk_close(sk);
	end_agent(pid);
	CHECK(!setenv("XDG_RUNTIME_DIR", scene->dir, 1));
}

static void test_race(struct scene *scene)
{
	struct sk_options no_start = { .flags = SK_OPEN_NO_START };
	struct sk *sk = NULL;
	int gate[2];

	if (!access("/run/shardkeep/agent.sock", F_OK))
		return;		/* this machine's agent would be found */
	CHECK(!setenv("XDG_RUNTIME_DIR", scene->dir, 1));
	CHECK(!unsetenv("SHARDKEEP_SOCKET"));
	CHECK(!setenv("SHARDKEEP_AGENT", scene->program, 1));
	CHECK(!setenv("SHARDKEEP_MEMORY", "64M", 1));
	CHECK(sk_open(&no_start, &sk) == -ENOENT && !sk);
	CHECK(strstr(sk_error(), "SHARDKEEP_SOCKET"), "%s", sk_error());
	CHECK(!pipe(gate));
	end_agent(start_race(gate));
	test_differs(scene);
	test_swept(scene);
	test_log(scene);
	test_cannot_start(scene);
	test_starts_late(scene);
	test_masked(scene);
	/* A program that is none, a directory that others can write to. */
	CHECK(!setenv("SHARDKEEP_AGENT", "/nonexistent/shardkeepd", 1));
	CHECK(sk_open(NULL, &sk) < 0);
	CHECK(strstr(sk_error(), "/nonexistent/shardkeepd"), "%s",
	      sk_error());
	CHECK(!setenv("SHARDKEEP_AGENT", scene->program, 1));
	CHECK(!setenv("SHARDKEEP_SOCKET", "/nonexistent/agent.sock", 1));
	CHECK(sk_open(NULL, &sk) < 0 && sk_error()[0]);
	CHECK(!unsetenv("SHARDKEEP_SOCKET"));
}

/* ---- threads of one state ---- */

struct shared {
	struct rank *rank;
	bool stop;		/* atomic */
	unsigned long calls;	/* atomic */
};

static void *look(void *arg)
{
	struct shared *s = arg;
	struct sk_state *state = s->rank->state;

	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
		struct sk_status status;
		int r;

		CHECK(!sk_fence(state), "%s", sk_error());
		CHECK(!sk_fence_tensor(state, "a"), "%s", sk_error());
		CHECK(sk_fence_tensor(state, "no such") == -ENOENT);
		CHECK(!sk_status(state, &status));
		CHECK(status.result == 0);
		if (status.step >= 0) {
			r = sk_wait(state, status.step, SK_SEALED, 10000);
			CHECK(!r || r == -ENOENT, "%d: %s", r, sk_error());
		}
		__atomic_fetch_add(&s->calls, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void share(struct rank *rank)
{
	struct shared shared = { .rank = rank };
	struct sk_report report;
	pthread_t threads[3];
	char *a;

	a = rank_tensor(rank, &(struct sk_tensor){ .name = "a",
		.dtype = SK_U8, .ndim = 1, .shape = { 3 << 20 } }, 1);
	rank_tensor(rank, &(struct sk_tensor){ .name = "b", .dtype = SK_F32,
		.ndim = 2, .shape = { 100, 77 } }, 2);
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_create(&threads[i], NULL, look, &shared));
	for (int step = 1; step <= STEPS; step++) {
		struct sk_snapshot_options o = { .wait_ms = 10000 };

		CHECK(!sk_fence_tensor(rank->state, "a"), "%s", sk_error());
		memset(a, step, 3 << 20);
		CHECK(!sk_snapshot(rank->state, step, &o), "%s", sk_error());
	}
	CHECK(!sk_wait(rank->state, STEPS, SK_COMPLETE, 30000), "%s",
	      sk_error());
	__atomic_store_n(&shared.stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_join(threads[i], NULL));
	CHECK(shared.calls > 3);
	memset(a, 0, 3 << 20);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == STEPS);
	for (int i = 0; i < 3 << 20; i += 4096)
		CHECK(a[i] == (char)STEPS);
}

/* ---- slots of several pieces, cold ---- */

/* Both slots, both kinds of image, before anything is faulted in. */
static void fill_cold(struct rank *rank)
{
	struct sk_report report;

	rank_tensor(rank, &(struct sk_tensor){ .name = "w", .dtype = SK_F32,
		.ndim = 2, .shape = { 9, 4 << 20 } }, 0);
	for (int64_t step = 1; step <= 2; step++) {
		rank_write(rank, step);
		CHECK(!sk_snapshot(rank->state, step, NULL), "%s",
		      sk_error());
		CHECK(!sk_fence(rank->state), "%s", sk_error());
		rank_write(rank, 7);
		CHECK(!sk_wait(rank->state, step, SK_COMPLETE, 30000), "%s",
		      sk_error());
	}
	for (int64_t step = 1; step <= 2; step++) {
		CHECK(!rank_restore(rank, step, 0, &report), "%s",
		      sk_error());
		CHECK(report.bytes_memory && !report.damaged);
		CHECK(!rank_wrong(rank, step, -1));
	}
}

/* ---- the agent is killed ---- */

/* Whose first step is on disk. */
static void begin_durably(struct rank *rank)
{
	struct sk_options o = { .socket = rank->scene->socket, .threads = 1,
				.timeout_ms = 20000 };
	struct sk_job job = { .name = rank->job, .world = 1 };

	CHECK(!sk_open(&o, &rank->sk), "%s", sk_error());
	CHECK(!sk_state_create(rank->sk, &job, &rank->state));
	rank_tensor(rank, &(struct sk_tensor){ .name = "w", .dtype = SK_F32,
		.ndim = 1, .shape = { 5000 } }, 0);
	rank_write(rank, 1);
	rank_snapshot(rank, 1, SK_DURABLE);
}

static void lose_agent(struct scene *scene)
{
	struct rank rank = { .scene = scene, .world = 1, .job = "lost" };
	struct sk_report report;

	begin_durably(&rank);
	scene_stop_agent(scene, SIGKILL);
	/* Nobody hangs, nobody dies, and it is said. */
	CHECK(sk_snapshot(rank.state, 2, NULL) < 0 && sk_error()[0]);
	CHECK(!sk_fence(rank.state), "%s", sk_error());
	CHECK(sk_wait(rank.state, 1, SK_DURABLE, 1000) < 0);
	CHECK(sk_restore(rank.state, SK_LATEST, NULL, NULL, &report) < 0);
	scene_start_agent(scene);
	rank_write(&rank, 3);
	rank_snapshot(&rank, 3, SK_COMPLETE);
	rank_write(&rank, 4);
	CHECK(!rank_restore(&rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == 3 && !rank_wrong(&rank, 3, -1));
	/* What was durable before is there as well. */
	CHECK(!rank_restore(&rank, 1, 0, &report), "%s", sk_error());
	CHECK(report.bytes_disk && !rank_wrong(&rank, 1, -1));
	sk_state_free(rank.state);
	sk_close(rank.sk);
}

/* Each call finds another agent than the one before it had. */
static void lose_it_unnoticed(struct scene *scene)
{
	struct rank rank = { .scene = scene, .world = 1, .job = "unnoticed" };
	struct sk_report report;

	begin_durably(&rank);
	for (int call = 0; call < 6; call++) {
		scene_stop_agent(scene, call & 1 ? SIGKILL : SIGTERM);
		scene_start_agent(scene);
		if (call == 0)
			CHECK(!rank_restore(&rank, SK_LATEST, 0, &report),
			      "%s", sk_error());
		else if (call == 1)
			CHECK(!sk_prepare(rank.state, 20000), "%s",
			      sk_error());
		else if (call == 2)
			CHECK(!sk_snapshot(rank.state, 2, NULL), "%s",
			      sk_error());
		else if (call == 3)	/* which died with an agent */
			CHECK(sk_flush(rank.state, 2) == -ENOENT, "%s",
			      sk_error());
		else if (call == 4)	/* of a job that no rank has named */
			CHECK(!sk_wait(rank.state, 1, SK_DURABLE, 20000), "%s",
			      sk_error());
		else
			CHECK(!sk_flush(rank.state, 1), "%s", sk_error());
	}
	sk_state_free(rank.state);
	sk_close(rank.sk);
}

/* Killed while a snapshot is on its way: the fence still lets go. */
static void lose_it_midway(struct scene *scene)
{
	struct rank rank = { .scene = scene, .world = 1, .job = "midway" };
	struct sk_options o = { .socket = scene->socket, .threads = 1,
				.timeout_ms = 20000 };
	struct sk_job job = { .name = "midway", .world = 1 };

	CHECK(!sk_open(&o, &rank.sk), "%s", sk_error());
	CHECK(!sk_state_create(rank.sk, &job, &rank.state));
	rank_tensor(&rank, &(struct sk_tensor){ .name = "w", .dtype = SK_U8,
		.ndim = 1, .shape = { 64 << 20 } }, 0);
	CHECK(!sk_prepare(rank.state, 30000), "%s", sk_error());
	CHECK(!sk_snapshot(rank.state, 1, NULL), "%s", sk_error());
	scene_stop_agent(scene, SIGKILL);
	(void)sk_fence(rank.state);	/* sealed in time, or not */
	CHECK(sk_wait(rank.state, 1, SK_COMPLETE, 1000) < 0);
	scene_start_agent(scene);
	/* At the latest the second goes well: the first may tell the old
	 * one's end. */
	if (sk_snapshot(rank.state, 2, NULL) < 0)
		CHECK(!sk_snapshot(rank.state, 2, NULL), "%s", sk_error());
	CHECK(!sk_wait(rank.state, 2, SK_COMPLETE, 30000), "%s", sk_error());
	sk_state_free(rank.state);
	sk_close(rank.sk);
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	test_race(&scene);
	scene_ranks(&scene, "shared", 1, share, NULL);
	scene_ranks(&scene, "cold", 2, fill_cold, NULL);
	lose_agent(&scene);
	lose_it_unnoticed(&scene);
	lose_it_midway(&scene);
	scene_close(&scene);
	return 0;
}
