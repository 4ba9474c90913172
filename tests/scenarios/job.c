/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of several processes against a real agent: snapshots, kills, restores
 * on other meshes, from memory and from disk. Argument: path of shardkeepd.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shardkeep.h"
#include "support/agent.h"
#include "support/files.h"

#define ROWS 13
#define COLUMNS 7
#define WAIT_MS 60000

/* Breaking the fence is a data race, and means to be one. */
#ifdef __SANITIZE_THREAD__
static const bool may_race = false;
#else
static const bool may_race = true;
#endif

static char dir[64], socket_path[128], store[128];
static const char *agent_path;
static pid_t agent;

static void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, " (%s)\n", sk_error());
	_exit(1);
}

#define CHECK(x) do { if (!(x)) die("line %d: %s", __LINE__, #x); } while (0)

/* ---- the agent ---- */

static void start_agent(void)
{
	agent = agent_start((const char *const[]){
		agent_path, "--socket", socket_path, "--store", store,
		"--memory", "64M", "--log-level", "error", NULL });
	CHECK(agent > 0);
}

static int end_agent(int sig)
{
	int status;

	kill(agent, sig);
	CHECK(waitpid(agent, &status, 0) == agent);
	return status;
}

/* ---- ranks ---- */

struct rank {
	struct sk *sk;
	struct sk_mesh *mesh;
	struct sk_state *state;
	float *w;
	int64_t row, rows;
	char config[5], rng[3];
};

static float value(int64_t i, int64_t j, int64_t step)
{
	return (float)(i * 100 + j + step * 10000);
}

static void fill(struct rank *r, int64_t step)
{
	for (int64_t i = 0; i < r->rows; i++)
		for (int64_t j = 0; j < COLUMNS; j++)
			r->w[i * COLUMNS + j] = value(r->row + i, j, step);
}

static void check(const struct rank *r, int64_t step)
{
	for (int64_t i = 0; i < r->rows; i++)
		for (int64_t j = 0; j < COLUMNS; j++)
			CHECK(r->w[i * COLUMNS + j] ==
			      value(r->row + i, j, step));
	CHECK(!memcmp(r->config, "conf", 5));
}

static void join(struct rank *r, const char *name, int rank, int world)
{
	const struct sk_options o = { .socket = socket_path };
	const struct sk_job job = { .name = name, .rank = rank,
				    .world = world,
				    .flush_every = SK_FLUSH_NEVER };
	int64_t c = (ROWS + world - 1) / world;
	struct sk_tensor t = {
		.name = "w", .dtype = SK_F32, .ndim = 2,
		.shape = { ROWS, COLUMNS }, .placements = { SK_SHARD(0) },
	};

	r->row = rank * c < ROWS ? rank * c : ROWS;
	r->rows = ROWS - r->row < c ? ROWS - r->row : c;
	r->w = calloc(ROWS * COLUMNS, sizeof(float));
	CHECK(!sk_open(&o, &r->sk));
	CHECK(!sk_mesh_create(1, (int64_t[]){ world }, NULL, NULL, &r->mesh));
	CHECK(!sk_state_create(r->sk, &job, &r->state));
	t.mesh = r->mesh;
	t.data = r->rows ? r->w : NULL;
	CHECK(!sk_state_tensor(r->state, &t));
	CHECK(!sk_state_blob(r->state, "config", r->config, 5));
	CHECK(!sk_state_blob_local(r->state, "rng", r->rng, 3));
}

static void leave(struct rank *r)
{
	sk_state_free(r->state);
	sk_mesh_release(r->mesh);
	sk_close(r->sk);
	free(r->w);
}

/* Runs @body on @world processes; @sig is how they are to end, 0: by 0. */
static void run(int world, void (*body)(int rank, int world), int sig)
{
	pid_t pids[16];

	for (int i = 0; i < world; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0);
		if (!pids[i]) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			body(i, world);
			_exit(0);
		}
	}
	for (int i = 0; i < world; i++) {
		int status;

		CHECK(waitpid(pids[i], &status, 0) == pids[i]);
		CHECK(sig ? WIFSIGNALED(status) && WTERMSIG(status) == sig :
			    !status);
	}
}

/* Two snapshots, then killed; nobody says good-bye. */
static void snapshot_and_die(int rank, int world)
{
	struct rank r = { .config = "conf", .rng = "ab" };

	join(&r, "job", rank, world);
	CHECK(sk_restore(r.state, SK_LATEST, NULL, NULL, NULL) == -ENOENT);
	for (int64_t step = 1; step <= 2; step++) {
		const struct sk_snapshot_options o = { .wait_ms = WAIT_MS };

		fill(&r, step);
		CHECK(!sk_snapshot(r.state, step, &o));
		CHECK(!sk_fence_tensor(r.state, "w"));
		CHECK(!sk_fence(r.state));
	}
	CHECK(sk_snapshot(r.state, 2, NULL) == -EEXIST);
	fill(&r, 99);		/* after the fence: must not show */
	CHECK(!sk_wait(r.state, 2, SK_COMPLETE, WAIT_MS));
	kill(getpid(), SIGKILL);
}

static void restore_from(int rank, int world, bool memory)
{
	struct sk_report report;
	struct rank r = { .rng = "" };

	join(&r, "job", rank, world);
	CHECK(!sk_restore(r.state, SK_LATEST, NULL, NULL, &report));
	CHECK(report.step == 2);
	CHECK(memory ? !report.bytes_disk : !report.bytes_memory);
	CHECK(report.missing == (rank < 4 ? 0 : 1));	/* rng of rank 4 */
	check(&r, 2);
	leave(&r);
}

static void restore_from_memory(int rank, int world)
{
	restore_from(rank, world, true);
}

static void restore_from_disk(int rank, int world)
{
	restore_from(rank, world, false);
}

/* A tensor that changes before the fence is named, and never sealed. */
static void break_the_fence(int rank, int world)
{
	const struct sk_snapshot_options o = { .flags = SK_SNAPSHOT_VERIFY,
					       .wait_ms = WAIT_MS };
	struct rank r = { .config = "conf", .rng = "ab" };

	join(&r, "careless", rank, world);
	fill(&r, 1);
	CHECK(!sk_snapshot(r.state, 1, &o));
	r.w[0] = -1;
	CHECK(sk_fence(r.state) == -ECANCELED);
	CHECK(strstr(sk_error(), "\"w\""));
	CHECK(sk_wait(r.state, 1, SK_SEALED, 100) < 0);
	fill(&r, 2);
	(void)sk_snapshot(r.state, 2, &o);
	CHECK(!sk_snapshot(r.state, 3, &o));
	CHECK(!sk_fence(r.state));
	CHECK(!sk_wait(r.state, 3, SK_COMPLETE, WAIT_MS));
	leave(&r);
}

/* Missing and extra keys are listed; asked for, they are left alone. */
static void strict_keys(int rank, int world)
{
	const struct sk_restore_options partial = {
		.flags = SK_RESTORE_PARTIAL };
	struct sk_report report;
	struct rank r = { .rng = "" };
	float other[2] = { 5, 6 };
	struct sk_tensor t = { .name = "other", .dtype = SK_F32, .ndim = 1,
			       .shape = { 2 }, .data = other };

	join(&r, "job", rank, world);
	CHECK(!sk_state_tensor(r.state, &t));
	CHECK(!sk_state_remove(r.state, "config"));
	CHECK(sk_restore(r.state, SK_LATEST, NULL, NULL, NULL) == -ENOKEY);
	CHECK(strstr(sk_error(), "other") && strstr(sk_error(), "config"));
	CHECK(!sk_restore(r.state, SK_LATEST, NULL, &partial, &report));
	CHECK(report.missing >= 1 && report.extra == 1 && other[0] == 5);
	leave(&r);
}

static void too_large(int rank, int world)
{
	static float big[8 << 20];
	struct rank r = { .config = "conf" };
	struct sk_tensor t = { .name = "big", .dtype = SK_F32, .ndim = 1,
			       .shape = { 8 << 20 }, .data = big };

	join(&r, "large", rank, world);
	CHECK(!sk_state_tensor(r.state, &t));
	CHECK(sk_prepare(r.state, WAIT_MS) == -ENOMEM);
	CHECK(strstr(sk_error(), "asked for"));
	leave(&r);
}

static void fork_is_noticed(int rank, int world)
{
	struct rank r = { .config = "conf" };
	int status;
	pid_t pid;

	join(&r, "forked", rank, world);
	pid = fork();
	if (!pid)
		_exit(sk_snapshot(r.state, 1, NULL) == -EOWNERDEAD ? 0 : 1);
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	leave(&r);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	agent_path = argv[1];
	(void)snprintf(dir, sizeof(dir), "/tmp/shardkeep-test-XXXXXX");
	CHECK(mkdtemp(dir));
	(void)snprintf(socket_path, sizeof(socket_path), "%s/s", dir);
	(void)snprintf(store, sizeof(store), "%s/store", dir);
	start_agent();
	run(4, snapshot_and_die, SIGKILL);
	run(3, restore_from_memory, 0);
	run(5, restore_from_memory, 0);
	run(1, restore_from_memory, 0);
	run(2, strict_keys, 0);
	if (may_race)
		run(1, break_the_fence, 0);
	run(1, too_large, 0);
	run(1, fork_is_noticed, 0);
	CHECK(end_agent(SIGTERM) == 0);
	start_agent();
	run(3, restore_from_disk, 0);
	run(5, restore_from_disk, 0);
	CHECK(end_agent(SIGTERM) == 0);
	(void)remove_tree(dir);
	puts("ok");
	return 0;
}
