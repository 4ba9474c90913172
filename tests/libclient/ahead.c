/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who waits for a step is not told that a rank will never bring it because that
 * rank, which has asked for its slot ahead, describes more before it takes it.
 * Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <stdio.h>
#include <unistd.h>

#include "state/ahead.h"

#define WORLD 2
#define STEPS 4

static int waits[2];		/* by which rank 1 tells rank 0 that it does */

static void describe(struct rank *rank)
{
	struct sk_mesh *mesh = mesh_of(WORLD, 0, NULL, NULL);

	rank_tensor(rank, &(struct sk_tensor){
		.name = "w", .dtype = SK_F32, .ndim = 1, .shape = { 64 },
		.mesh = mesh, .placements = { SK_SHARD(0) } }, 1);
	sk_mesh_release(mesh);
}

/* It has what the other one lacks. */
static void describe_more(struct rank *rank, int64_t step)
{
	struct sk_mesh *mesh = mesh_of(1, 0, (int32_t[]){ 0 }, NULL);
	char name[32];

	(void)snprintf(name, sizeof(name), "more.%d", (int)step);
	rank_tensor(rank, &(struct sk_tensor){
		.name = name, .dtype = SK_F32, .ndim = 1, .shape = { 9 },
		.mesh = mesh, .placements = { SK_REPLICATE } }, 1);
	sk_mesh_release(mesh);
}

/* The agent has the request when this returns, or hears of it no later than of
 * what another rank asks from then on. */
static void ask_to_wait(struct rank *rank, int64_t step, struct sk_conn *conn,
			struct sk_msg *msg)
{
	uint64_t until = sk_until_ms(rank->sk->os, 60000);
	struct sk_err err = { "" };

	*msg = (struct sk_msg){ .type = SK_MSG_WAIT, .body.wait = {
		.id = sk_state_wire_id(rank->state, step),
		.until = SK_COMPLETE, .timeout_ms = 60000 } };
	CHECK(!sk_conn_open(rank->sk->os, rank->sk->socket_path, until, conn,
			    &err), "%s", err.text);
	CHECK(!sk_conn_ask(conn, msg, NULL, 0, until, &err), "%s", err.text);
}

static void wait_for_other(struct rank *rank, int64_t step)
{
	uint64_t until = sk_until_ms(rank->sk->os, 60000);
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_err err = { "" };
	struct sk_msg msg;

	rank_snapshot(rank, step, SK_SEALED);
	ask_to_wait(rank, step, &conn, &msg);
	CHECK(write(waits[1], "w", 1) == 1);
	CHECK(!sk_conn_hear(&conn, &msg, NULL, NULL, until, &err), "%s",
	      err.text);
	sk_conn_close(&conn);
}

static void take_late(struct rank *rank, int64_t step)
{
	const struct sk_snapshot_options o = { .wait_ms = 60000 };
	char byte;

	CHECK(read(waits[0], &byte, 1) == 1);
	sk_ahead_ask(rank->state, step, &o);
	CHECK(rank->state->ahead.asked == (step % 2 == 0));
	if (step % 2 == 0)
		describe_more(rank, step);
	CHECK(!sk_snapshot(rank->state, step, &o), "%s", sk_error());
	CHECK(!sk_wait(rank->state, step, SK_COMPLETE, 60000), "%s",
	      sk_error());
}

static void run(struct rank *rank)
{
	/* Where the other one fails, it is not waited for. */
	CHECK(!close(waits[!rank->rank]));
	describe(rank);
	/* Of one that registers nothing was asked ahead, nor is after it. */
	rank_snapshot(rank, 0, SK_COMPLETE);
	rank_snapshot(rank, 1, SK_COMPLETE);
	for (int64_t step = 2; step < 2 + STEPS; step++)
		if (rank->rank)
			wait_for_other(rank, step);
		else
			take_late(rank, step);
}

int main(int argc, char **argv)
{
	struct scene scene;

	CHECK(!pipe(waits));
	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "ahead", WORLD, run, NULL);
	scene_close(&scene);
	return 0;
}
