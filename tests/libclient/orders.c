/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls in other orders than the usual one, by trainers that were written
 * in a hurry: each answer is what the header says, and no byte is wrong.
 * Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (3 << 20)

static char *big(struct rank *rank)
{
	return rank_tensor(rank, &(struct sk_tensor){ .name = "w",
		.dtype = SK_F32, .ndim = 1, .shape = { BYTES / 4 } }, 0);
}

static void take(struct sk_state *state, int64_t step)
{
	struct sk_snapshot_options o = { .wait_ms = 60000 };
	int r = sk_snapshot(state, step, &o);

	CHECK(!r, "step %d: %s", (int)step, sk_error());
}

/* Waits, fences, flushes and restores before there is anything. */
static void before_all(struct rank *rank)
{
	struct sk_status status;
	uint64_t slot_bytes;

	CHECK(sk_wait(rank->state, 1, SK_COMPLETE, 60000) == -ENOENT);
	CHECK(sk_flush(rank->state, 1) == -ENOENT);
	CHECK(!sk_fence(rank->state));
	CHECK(sk_fence_tensor(rank->state, "w") == -ENOENT);
	CHECK(sk_snapshot(rank->state, 1, NULL) == -EINVAL);
	CHECK(!sk_state_clear(rank->state));
	CHECK(sk_state_remove(rank->state, "w") == -ENOENT);
	CHECK(!sk_status(rank->state, &status) && status.step == -1);
	CHECK(!status.run && !status.slots && !status.slot_bytes);
	CHECK(sk_restore(rank->state, 7, NULL, NULL, NULL) == -ENOENT);
	(void)big(rank);
	CHECK(sk_wait(rank->state, 1, SK_COMPLETE, 60000) == -ENOENT);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	CHECK(!sk_status(rank->state, &status) && status.step == -1);
	CHECK(status.run && status.slots == 2);
	slot_bytes = status.slot_bytes;
	CHECK(slot_bytes >= 2 * BYTES);
	CHECK(sk_wait(rank->state, 1, SK_DURABLE, 60000) == -ENOENT);
	rank_write(rank, 1);
	rank_snapshot(rank, 1, SK_COMPLETE);
	CHECK(!sk_status(rank->state, &status) && status.step == 1);
	CHECK(status.slots == 2 && status.slot_bytes == slot_bytes);
	rank_write(rank, 9);
	CHECK(!rank_restore(rank, 1, 0, NULL), "%s", sk_error());
	CHECK(!rank_wrong(rank, 1, -1));
}

/* Restores beside a snapshot under way, then goes on without a fence. */
static void without_fences(struct rank *rank)
{
	(void)big(rank);
	rank_write(rank, 1);
	rank_snapshot(rank, 1, SK_COMPLETE);
	for (int64_t step = 2; step < 8; step++) {
		take(rank->state, step);
		/* The same bytes: read, and not written. */
		CHECK(!sk_wait(rank->state, step, SK_COMPLETE, 60000), "%s",
		      sk_error());
		CHECK(!rank_wrong(rank, 1, -1));
	}
	take(rank->state, 8);
	CHECK(!rank_restore(rank, SK_LATEST, 0, NULL), "%s", sk_error());
	CHECK(!rank_wrong(rank, 1, -1));
	CHECK(sk_snapshot(rank->state, 8, NULL) == -EEXIST, "%s", sk_error());
	CHECK(sk_snapshot(rank->state, 7, NULL) == -EEXIST, "%s", sk_error());
}

/* Two states of one rank of one job: the second is a stranger. */
static void two_states(struct rank *rank)
{
	struct sk_job job = { .name = rank->job, .world = 1,
			      .flush_every = SK_FLUSH_NEVER };
	struct sk_state *other;
	char *data = rank_memory(16, 1);

	(void)big(rank);
	CHECK(!sk_state_create(rank->sk, &job, &other), "%s", sk_error());
	CHECK(!sk_state_blob(other, "b", data, 16), "%s", sk_error());
	take(rank->state, 1);
	CHECK(sk_snapshot(other, 1, NULL) == -EEXIST, "%s", sk_error());
	CHECK(sk_prepare(other, 0) == -EEXIST, "%s", sk_error());
	sk_state_free(other);
	CHECK(!sk_wait(rank->state, 1, SK_COMPLETE, 60000), "%s", sk_error());
	/* Another job beside it shares the connection. */
	job.name = "two-b";
	CHECK(!sk_state_create(rank->sk, &job, &other), "%s", sk_error());
	CHECK(!sk_state_blob(other, "b", data, 16), "%s", sk_error());
	for (int64_t step = 2; step < 9; step++) {
		take(rank->state, step);
		take(other, step);
	}
	CHECK(!sk_wait(other, 8, SK_COMPLETE, 60000), "%s", sk_error());
	CHECK(!sk_wait(rank->state, 8, SK_COMPLETE, 60000), "%s", sk_error());
	sk_state_free(other);
}

/* Whatever a copy is doing, the end waits for it; and it is sealed. */
static void freed_while_copying(struct rank *rank)
{
	struct sk_job job = { .name = "freed", .world = 1, .run = 0,
			      .flush_every = SK_FLUSH_NEVER };
	char *data = rank_memory(BYTES, 5);
	struct sk_state *state;
	struct sk *sk;

	for (int64_t step = 1; step < 9; step++) {
		CHECK(!sk_open(&(struct sk_options){
			.socket = rank->scene->socket, .threads = 1 }, &sk),
		      "%s", sk_error());
		CHECK(!sk_state_create(sk, &job, &state), "%s", sk_error());
		CHECK(!sk_state_blob(state, "b", data, BYTES));
		memset(data, (int)step, BYTES);
		take(state, step);
		sk_state_free(state);
		sk_close(sk);
		memset(data, 99, BYTES);
		CHECK(!sk_open(&(struct sk_options){
			.socket = rank->scene->socket }, &sk), "%s",
		      sk_error());
		CHECK(!sk_state_create(sk, &job, &state), "%s", sk_error());
		CHECK(!sk_state_blob(state, "b", data, BYTES));
		CHECK(!sk_restore(state, step, NULL, NULL, NULL), "%s",
		      sk_error());
		for (int i = 0; i < BYTES; i += 4095)
			CHECK(data[i] == step, "%d at %d", data[i], i);
		sk_state_free(state);
		sk_close(sk);
	}
}

/* A data loader is forked while a copy is under way; it may end in any way. */
static void forks(struct rank *rank)
{
	int status;
	pid_t pid;

	(void)big(rank);
	rank_write(rank, 1);
	for (int64_t step = 1; step < 9; step++) {
		take(rank->state, step);
		pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			char *text = NULL;

			if (sk_fence(rank->state) != -EOWNERDEAD ||
			    sk_wait(rank->state, step, SK_SEALED, 1) !=
			    -EOWNERDEAD ||
			    sk_snapshot(rank->state, 77, NULL) !=
			    -EOWNERDEAD ||
			    sk_snapshots(rank->sk, NULL, &text) !=
			    -EOWNERDEAD)
				_exit(1);
			sk_state_free(rank->state);
			sk_close(rank->sk);
			if (step % 2)
				raise(SIGKILL);
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid &&
		      status == (step % 2 ? SIGKILL : 0), "%#x", status);
		CHECK(!sk_wait(rank->state, step, SK_COMPLETE, 60000), "%s",
		      sk_error());
	}
	rank_write(rank, 2);
	CHECK(!rank_restore(rank, 8, 0, NULL), "%s", sk_error());
	CHECK(!rank_wrong(rank, 1, -1));
}

/* Described, removed and cleared between snapshots, and after a restore. */
static void described_in_between(struct rank *rank)
{
	char *a = rank_memory(100, 1), *b = rank_memory(100, 2);

	CHECK(!sk_state_blob(rank->state, "a", a, 100));
	take(rank->state, 1);
	CHECK(!sk_state_blob(rank->state, "b", b, 100), "%s", sk_error());
	CHECK(sk_restore(rank->state, 1, NULL, NULL, NULL) == -ENOKEY, "%s",
	      sk_error());
	CHECK(strstr(sk_error(), "b"), "%s", sk_error());
	take(rank->state, 2);
	CHECK(!sk_state_remove(rank->state, "a"), "%s", sk_error());
	take(rank->state, 3);
	CHECK(!sk_state_clear(rank->state));
	CHECK(sk_snapshot(rank->state, 4, NULL) == -EINVAL, "%s", sk_error());
	CHECK(!sk_wait(rank->state, 3, SK_COMPLETE, 60000), "%s", sk_error());
	memset(a, 0, 100);
	CHECK(!sk_state_blob(rank->state, "a", a, 100));
	CHECK(!sk_restore(rank->state, 2, NULL, &(struct sk_restore_options){
		.flags = SK_RESTORE_EXTRA_OK }, NULL), "%s", sk_error());
	CHECK(a[7] == 1);
	take(rank->state, 4);
	CHECK(!sk_wait(rank->state, 4, SK_COMPLETE, 60000), "%s", sk_error());
}

/* Where a variable, a list or a handle is needed and there is none. */
static void without_variables(struct rank *rank)
{
	struct sk_job job = { .name = "none", .world = 1 };
	struct sk_meeting alone = { .at = "/tmp/shardkeep-alone", .world = 1 };
	struct sk_comm comm = { 0 };
	struct sk_mesh *mesh;

	CHECK(!sk_mesh_create(1, (int64_t[]){ 1 }, NULL, (const char *[]){
		"dp" }, &mesh));
	CHECK(sk_open(NULL, NULL) == -EINVAL);
	CHECK(sk_mesh_create(1, (int64_t[]){ 1 }, NULL, NULL, NULL) ==
	      -EINVAL);
	CHECK(sk_mesh_child(mesh, 0, (const char *[]){ "dp" }, 1, NULL) ==
	      -EINVAL);
	CHECK(sk_state_create(rank->sk, &job, NULL) == -EINVAL);
	CHECK(strstr(sk_error(), "variable"), "%s", sk_error());
	CHECK(sk_state_create(rank->sk, NULL, &rank->state) == -EINVAL);
	CHECK(sk_status(rank->state, NULL) == -EINVAL);
	CHECK(strstr(sk_error(), "variable"), "%s", sk_error());
	CHECK(sk_snapshots(rank->sk, NULL, NULL) == -EINVAL);
	CHECK(strstr(sk_error(), "variable"), "%s", sk_error());
	CHECK(sk_inspect(rank->sk, "none", SK_LATEST, 0, 0, NULL) == -EINVAL);
	CHECK(strstr(sk_error(), "variable"), "%s", sk_error());
	CHECK(sk_comm_meet(rank->sk, &alone, NULL) == -EINVAL);
	CHECK(strstr(sk_error(), "variable"), "%s", sk_error());
	CHECK(!sk_comm_meet(rank->sk, &alone, &comm), "%s", sk_error());
	CHECK(sk_comm_nccl(rank->sk, &comm, 0, 1, 0, NULL) == -EINVAL);
	CHECK(strstr(sk_error(), "variable"), "%s", sk_error());
	for (int again = 0; again < 2; again++)
		sk_comm_meet_free(&comm);
	sk_comm_meet_free(NULL);
	sk_comm_nccl_free(&comm);
	sk_comm_nccl_free(NULL);
	CHECK(!*sk_comm_nccl_why(&comm) && !*sk_comm_nccl_why(NULL));
	sk_mesh_release(mesh);
}

/* A trainer has two comms, and asks or gives back the other one. */
static void other_comms(struct rank *rank)
{
	struct sk_meeting alone = { .at = "/tmp/shardkeep-alone", .world = 1 };
	struct sk_comm base = { 0 }, nccl = { 0 };
	char out[4] = "";

	CHECK(!sk_comm_meet(rank->sk, &alone, &base), "%s", sk_error());
	CHECK(!sk_comm_nccl(rank->sk, &base, 0, 1, 0, &nccl), "%s",
	      sk_error());
	CHECK(!*sk_comm_nccl_why(&base));
	sk_comm_nccl_free(&base);
	sk_comm_meet_free(&nccl);
	CHECK(!base.allgather(base.ctx, "abc", 4, out, 1000));
	CHECK(!nccl.allgather(nccl.ctx, "abc", 4, out, 1000));
	CHECK(!strcmp(out, "abc"));
	sk_comm_nccl_free(&nccl);
	sk_comm_meet_free(&base);
	CHECK(!nccl.ctx && !base.ctx);
}

/* Where a name is needed, none is another thing than one of nothing. */
static void without_names(struct rank *rank)
{
	const char *names[] = { "w", NULL };
	char *longest = rank_memory(600001, 'q');
	const struct sk_restore_options o = { .names = names, .n_names = 2 };

	(void)big(rank);
	take(rank->state, 1);
	CHECK(sk_state_remove(rank->state, NULL) == -EINVAL);
	CHECK(strstr(sk_error(), "name"), "%s", sk_error());
	CHECK(sk_fence_tensor(rank->state, NULL) == -EINVAL);
	CHECK(strstr(sk_error(), "name"), "%s", sk_error());
	CHECK(sk_state_remove(rank->state, "") == -ENOENT);
	CHECK(sk_fence_tensor(rank->state, "") == -ENOENT);
	CHECK(!sk_wait(rank->state, 1, SK_COMPLETE, 60000), "%s", sk_error());
	CHECK(sk_restore(rank->state, 1, NULL, &o, NULL) == -EINVAL);
	CHECK(strstr(sk_error(), "name 1 of 2"), "%s", sk_error());
	names[1] = "";
	CHECK(sk_restore(rank->state, 1, NULL, &o, NULL) == -EINVAL);
	CHECK(strstr(sk_error(), "name 1 of 2"), "%s", sk_error());
	/* Longer than what ranks tell each other of all names. */
	longest[600000] = 0;
	names[1] = longest;
	CHECK(sk_restore(rank->state, 1, NULL, &o, NULL) == -EINVAL);
	CHECK(strstr(sk_error(), "name 1 of 2"), "%s", sk_error());
	names[1] = "w";
	CHECK(!sk_restore(rank->state, 1, NULL, &o, NULL), "%s", sk_error());
}

/* A description that leaves out what the rest of it is about. */
static void half_described(struct rank *rank)
{
	float w[12] = { 0 };
	struct sk_tensor t = { .name = "w", .dtype = SK_F32, .ndim = 1,
			       .shape = { 12 }, .data = w };
	struct sk_part part = { .box.size = { 12 }, .data = w };

	t.placements[0] = SK_SHARD(0);
	CHECK(sk_state_tensor(rank->state, &t) == -EINVAL);
	CHECK(strstr(sk_error(), "\"w\" has placements, and no mesh"), "%s",
	      sk_error());
	t.placements[0] = SK_REPLICATE;
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	t.n_parts = 1;
	CHECK(sk_state_tensor(rank->state, &t) == -EINVAL);
	CHECK(strstr(sk_error(), "1 parts, and no list"), "%s", sk_error());
	t.parts = &part;
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	t.n_parts = UINT32_MAX;
	CHECK(sk_state_tensor(rank->state, &t) == -EINVAL);
	CHECK(strstr(sk_error(), "4294967295 parts"), "%s", sk_error());
	t.n_parts = 1;
	part.box.offset[0] = INT64_MAX;
	CHECK(sk_state_tensor(rank->state, &t) == -EINVAL);
	CHECK(strstr(sk_error(), "[9223372036854775807:9223372036854775807]"),
	      "%s", sk_error());
	CHECK(sk_state_blob(rank->state, "b", w, SIZE_MAX) == -EOVERFLOW);
	CHECK(strstr(sk_error(), "can be counted"), "%s", sk_error());
	CHECK(sk_flush(rank->state, -1) == -EINVAL);
	CHECK(strstr(sk_error(), "step -1 is negative"), "%s", sk_error());
	CHECK(sk_wait(rank->state, -1, SK_SEALED, 0) == -EINVAL);
	CHECK(strstr(sk_error(), "step -1 is negative"), "%s", sk_error());
	CHECK(sk_wait(rank->state, 1, 0, 0) == -EINVAL);
	CHECK(strstr(sk_error(), "SK_SEALED"), "%s", sk_error());
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "before", 1, before_all, NULL);
	scene_ranks(&scene, "fenceless", 1, without_fences, NULL);
	scene_ranks(&scene, "two", 1, two_states, NULL);
	scene_ranks(&scene, "freed-by", 1, freed_while_copying, NULL);
	scene_ranks(&scene, "forks", 1, forks, NULL);
	scene_ranks(&scene, "between", 1, described_in_between, NULL);
	scene_ranks(&scene, "none", 1, without_variables, NULL);
	scene_ranks(&scene, "comms", 1, other_comms, NULL);
	scene_ranks(&scene, "nameless", 1, without_names, NULL);
	scene_ranks(&scene, "half", 2, half_described, NULL);
	scene_close(&scene);
	return 0;
}
