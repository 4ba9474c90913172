/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's paths, good and bad, by a program that gives everything back:
 * under AddressSanitizer whatever is left at its end is a leak. (Criterion
 * hides those.) Argument: path of shardkeepd.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shardkeep.h"
#include "support/agent.h"

#define CHECK(x) do {							\
	if (!(x)) {							\
		fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #x,	\
			sk_error());					\
		exit(1);						\
	}								\
} while (0)

static char dir[] = "/tmp/shardkeep-leaks-XXXXXX";
static char sock[64], store[64];
static pid_t agent;

static void start_agent(const char *program)
{
	agent = agent_start((const char *const[]){
		program, "--socket", sock, "--store", store, "--memory", "64M",
		"--log-level", "error", NULL });
	CHECK(agent > 0);
}

static void stop_agent(int sig)
{
	int status;

	CHECK(!kill(agent, sig));
	CHECK(waitpid(agent, &status, 0) == agent);
	CHECK(sig == SIGKILL || status == 0);	/* it leaks nothing either */
}

static float weights[60][50];
static char blob[300], local[70];

static void describe(struct sk_state *state, const struct sk_mesh *mesh)
{
	struct sk_tensor w = { .name = "w", .dtype = SK_F32, .ndim = 2,
			       .shape = { 60, 50 }, .mesh = mesh,
			       .placements = { SK_SHARD(0) },
			       .data = weights };
	struct sk_part parts[2] = {
		{ .box = { { 0 }, { 10 } }, .data = weights[30] },
		{ .box = { { 20 }, { 10 } }, .data = weights[40] },
	};
	struct sk_tensor p = { .name = "p", .dtype = SK_F32, .ndim = 1,
			       .shape = { 10 }, .parts = parts,
			       .n_parts = 1 };

	CHECK(!sk_state_tensor(state, &w));
	CHECK(!sk_state_tensor(state, &p));
	CHECK(!sk_state_blob(state, "config", blob, sizeof(blob)));
	CHECK(!sk_state_blob_local(state, "rng", local, sizeof(local)));
	/* Refused, and described anew. */
	w.placements[0] = SK_PARTIAL;
	CHECK(sk_state_tensor(state, &w) == -EINVAL);
	w.placements[0] = SK_SHARD(7);
	CHECK(sk_state_tensor(state, &w) == -EINVAL);
	w.placements[0] = SK_SHARD(0);
	CHECK(!sk_state_tensor(state, &w));
	CHECK(!sk_state_blob(state, "gone", blob, 5));
	CHECK(!sk_state_remove(state, "gone"));
	CHECK(sk_state_remove(state, "gone") == -ENOENT);
}

static void ask(struct sk *sk)
{
	char *json = NULL;

	CHECK(!sk_snapshots(sk, NULL, &json));
	free(json);
	CHECK(!sk_inspect(sk, "leaks", SK_LATEST, 0, 0, &json));
	free(json);
	CHECK(sk_inspect(sk, "nobody", SK_LATEST, 0, 0, &json) == -ENOENT);
	CHECK(sk_inspect(sk, "leaks", 999, 0, 0, &json) == -ENOENT);
}

static void restore(struct sk_state *state)
{
	static const char *const one[] = { "w" }, *const none[] = { "x" };
	struct sk_restore_options some = { .names = one, .n_names = 1 };
	struct sk_restore_options bad = { .names = none, .n_names = 1 };
	struct sk_report report;

	CHECK(!sk_restore(state, SK_LATEST, NULL, NULL, &report));
	CHECK(!sk_restore(state, SK_LATEST, NULL, &some, &report));
	CHECK(sk_restore(state, SK_LATEST, NULL, &bad, &report) < 0);
	CHECK(sk_restore(state, 999, NULL, NULL, &report) == -ENOENT);
	/* A key that the snapshot lacks. */
	CHECK(!sk_state_blob(state, "extra", blob, 5));
	CHECK(sk_restore(state, SK_LATEST, NULL, NULL, &report) == -ENOKEY);
	CHECK(strstr(sk_error(), "extra"));
	CHECK(!sk_state_remove(state, "extra"));
}

static void life(const char *program, bool first)
{
	struct sk_options o = { .socket = sock, .threads = 2 };
	struct sk_job job = { .name = "leaks", .world = 1, .flush_every = 2 };
	struct sk_mesh *mesh = NULL, *child = NULL;
	const char *const name[] = { "dp" }, *const bad[] = { "xx" };
	struct sk_state *state = NULL;
	struct sk *sk = NULL;

	CHECK(sk_open(&(struct sk_options){ .socket = "/nonexistent/a",
		.flags = SK_OPEN_NO_START }, &sk) < 0);
	start_agent(program);
	CHECK(!sk_open(&o, &sk));
	CHECK(!sk_mesh_create(1, &(int64_t){ 1 }, NULL, name, &mesh));
	CHECK(!sk_mesh_child(mesh, 0, name, 1, &child));
	CHECK(sk_mesh_child(mesh, 0, bad, 1, &child) < 0);
	CHECK(sk_state_create(sk, &(struct sk_job){ .name = "a b",
		.world = 1 }, &state) < 0);
	CHECK(!sk_state_create(sk, &job, &state));
	describe(state, child);
	CHECK(sk_restore(state, SK_LATEST, NULL, NULL, NULL) ==
	      (first ? -ENOENT : 0));
	for (int64_t step = 1; step <= 6; step++) {
		uint32_t flags = step % 2 ? SK_SNAPSHOT_VERIFY : 0;

		CHECK(!sk_snapshot(state, step, &(struct sk_snapshot_options){
			.flags = flags, .wait_ms = 10000 }));
		CHECK(!sk_fence(state));
		CHECK(!sk_wait(state, step, SK_COMPLETE, 10000));
	}
	CHECK(sk_snapshot(state, 6, NULL) == -EEXIST);
	CHECK(sk_snapshot(state, -1, NULL) == -EINVAL);
	CHECK(!sk_wait(state, 6, SK_DURABLE, 10000));
	ask(sk);
	restore(state);
	stop_agent(SIGKILL);
	CHECK(sk_snapshot(state, 7, NULL) < 0);
	start_agent(program);
	CHECK(!sk_snapshot(state, 8, NULL));
	sk_state_free(state);	/* waits for the seal */
	sk_mesh_release(child);
	sk_mesh_release(mesh);
	sk_close(sk);
	stop_agent(SIGTERM);
}

static void clean_up(void)
{
	char command[128];

	(void)snprintf(command, sizeof(command), "rm -rf %s", dir);
	(void)!system(command);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	(void)alarm(300);
	CHECK(mkdtemp(dir));
	CHECK(!atexit(clean_up));
	(void)snprintf(sock, sizeof(sock), "%s/agent.sock", dir);
	(void)snprintf(store, sizeof(store), "%s/store", dir);
	for (int i = 0; i < 2; i++)
		life(argv[1], !i);
	if (getenv("SHARDKEEP_LEAK"))	/* to see that the gate can close */
		weights[0][0] = *(char *)memset(malloc(100), 1, 100);
	return 0;
}
