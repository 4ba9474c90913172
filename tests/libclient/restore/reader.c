/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers: they restore beside the living ranks, take none of the agent's
 * memory and no part in the run; and what they can ask about snapshots.
 */
#include "libclient/restore/common.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#define ROWS 10
#define COLUMNS 33

static void describe(struct rank *rank, struct sk_mesh *mesh)
{
	rank_tensor(rank, &(struct sk_tensor){
		.name = "weight", .dtype = SK_F32, .ndim = 2,
		.shape = { ROWS, COLUMNS }, .mesh = mesh,
		.placements = { SK_SHARD(0) } }, 0xee);
	rank_tensor(rank, &(struct sk_tensor){
		.name = "bias", .dtype = SK_BF16, .ndim = 1,
		.shape = { COLUMNS }, .mesh = mesh,
		.placements = { SK_REPLICATE } }, 0xee);
}

/* The rank, as a reader of its own in the same process. */
static struct rank reader_of(const struct rank *rank, int world)
{
	struct rank reader = *rank;

	reader.world = world;
	reader.rank = world == 1 ? 0 : rank->rank;
	CHECK(!sk_state_create(rank->sk, &(struct sk_job){
		.name = rank->job, .rank = reader.rank, .world = world,
		.flags = SK_JOB_READER }, &reader.state), "%s", sk_error());
	return reader;
}

static uint64_t agent_memory(struct rank *rank)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_err err = { "" };
	uint64_t used;

	CHECK(!sk_conn_open(os, rank->scene->socket, sk_until_ms(os, 5000),
			    &conn, &err), "%s", err.text);
	used = conn.agent.used_bytes;
	sk_conn_close(&conn);
	return used;
}

/* Alone, the whole of it, while every rank of the job lives. */
static void read_beside(struct rank *rank, int64_t step)
{
	uint64_t used = agent_memory(rank);
	struct rank reader = reader_of(rank, 1);
	struct sk_report report;

	describe(&reader, NULL);
	CHECK(!rank_restore(&reader, step, 0, &report), "%s", sk_error());
	CHECK(report.step == step && report.world == rank->world);
	CHECK(!rank_wrong(&reader, step, -1));
	CHECK(agent_memory(rank) == used, "a reader took memory");
	CHECK(sk_snapshot(reader.state, step + 1, NULL) == -EROFS);
	CHECK(strstr(sk_error(), "reader"), "%s", sk_error());
	CHECK(sk_prepare(reader.state, 1000) == -EROFS);
	sk_state_free(reader.state);
}

static void save(struct rank *rank)
{
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);

	describe(rank, mesh);
	sk_mesh_release(mesh);
	for (int64_t step = 1; step <= 3; step++) {
		rank_write(rank, step);
		rank_snapshot(rank, step, SK_DURABLE);
		if (rank->rank == 1)
			read_beside(rank, step);
	}
}

/* Several readers together, on another mesh, by the agent's comm; once more
 * with the same states: rounds do not mix. */
static void read_together(struct rank *rank)
{
	struct rank reader = reader_of(rank, rank->world);
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);
	struct sk_report report;

	describe(&reader, mesh);
	sk_mesh_release(mesh);
	for (int i = 0; i < 2; i++) {
		rank_write(&reader, 99);
		CHECK(!rank_restore(&reader, SK_LATEST, 0, &report), "%s",
		      sk_error());
		CHECK(report.step == 3 && report.run == 1);
		CHECK(!rank_wrong(&reader, 3, -1));
	}
	sk_state_free(reader.state);
}

static json_t *tensor_named(json_t *snapshot, const char *name)
{
	json_t *tensors = json_object_get(snapshot, "tensors"), *t;
	size_t i;

	json_array_foreach(tensors, i, t)
		if (!strcmp(json_string_value(json_object_get(t, "name")),
			    name))
			return t;
	scene_fail(__FILE__, __LINE__, name, " is not there");
}

static int64_t rows_of(json_t *tensor)
{
	json_t *boxes = json_object_get(tensor, "boxes"), *box;
	int64_t rows = 0;
	size_t i;

	json_array_foreach(boxes, i, box)
		rows += json_integer_value(json_array_get(
			json_object_get(box, "size"), 0));
	return rows;
}

static void ask(struct rank *rank)
{
	char *text = NULL;
	json_t *root, *weight;

	CHECK(!sk_snapshots(rank->sk, rank->job, &text), "%s", sk_error());
	root = json_loads(text, 0, NULL);
	CHECK(json_array_size(root) >= 1, "%s", text);
	CHECK(json_integer_value(json_object_get(json_array_get(root, 0),
						 "step")) == 3, "%s", text);
	json_decref(root);
	free(text);
	CHECK(!sk_inspect(rank->sk, rank->job, SK_LATEST, 0, 0, &text), "%s",
	      sk_error());
	root = json_loads(text, 0, NULL);
	CHECK(root, "%s", text);
	weight = tensor_named(root, "weight");
	CHECK(rows_of(weight) == ROWS, "every row once: %s", text);
	CHECK(json_array_size(json_object_get(tensor_named(root, "bias"),
					      "boxes")) == 1,
	      "a replicated tensor has one primary: %s", text);
	CHECK(!strcmp(json_string_value(json_array_get(json_object_get(
		weight, "placements"), 0)), "S(0)"), "%s", text);
	CHECK(json_is_object(json_array_get(
		json_object_get(root, "meshes"), (size_t)json_integer_value(
			json_object_get(weight, "mesh")))), "%s", text);
	json_decref(root);
	free(text);
	CHECK(!sk_inspect(rank->sk, rank->job, SK_LATEST, 0, SK_INSPECT_BRIEF,
			  &text), "%s", sk_error());
	root = json_loads(text, 0, NULL);
	weight = tensor_named(root, "weight");
	CHECK(weight && !json_object_get(weight, "boxes") &&
	      !json_object_get(root, "meshes"), "%s", text);
	CHECK(json_array_size(json_object_get(weight, "shape")), "%s", text);
	json_decref(root);
	free(text);
	CHECK(sk_inspect(rank->sk, rank->job, 77, 0, 8, &text) == -EINVAL);
	CHECK(sk_inspect(rank->sk, rank->job, 77, 0, 0, &text) == -ENOENT);
	CHECK(strstr(sk_error(), "of step 77"), "%s", sk_error());
	CHECK(sk_inspect(rank->sk, rank->job, 77, 9, 0, &text) == -ENOENT);
	CHECK(strstr(sk_error(), "of step 77 of run 9"), "%s", sk_error());
	CHECK(sk_inspect(rank->sk, rank->job, -1, 9, 0, &text) == -ENOENT);
	CHECK(strstr(sk_error(), "of run 9"), "%s", sk_error());
	CHECK(sk_inspect(rank->sk, "nobody", SK_LATEST, 0, 0, &text) == -ENOENT);
	CHECK(sk_inspect(rank->sk, "a job", SK_LATEST, 0, 0, &text) == -EINVAL);
	CHECK(sk_inspect(rank->sk, NULL, SK_LATEST, 0, 0, &text) == -EINVAL);
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "read", 3, save, NULL);
	scene_ranks(&scene, "read", 2, read_together, NULL);
	scene_ranks(&scene, "read", 1, ask, NULL);
	/* From disk alone, by an agent that has not seen the job. */
	scene_stop_agent(&scene, SIGKILL);
	scene_start_agent(&scene);
	scene_ranks(&scene, "read", 2, read_together, NULL);
	scene_ranks(&scene, "read", 1, ask, NULL);
	scene_close(&scene);
	return 0;
}
