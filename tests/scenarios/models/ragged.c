/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ragged shards: 2, 3, 4 and 5 rows over up to 4 ranks, the last of which may
 * be empty and have no memory at all. As FSDP has it, each local tensor is
 * the beginning of a buffer for the largest shard; what lies behind it is
 * neither saved nor touched.
 */
#include "scenarios/models/common.h"

#include <stdio.h>
#include <string.h>

#define COLUMNS 3
#define WIDE 5			/* columns of a buffer that is cut both ways */
#define PADDING 0x5a

static const struct param params[] = {
	{ "two", 2, COLUMNS, { SK_SHARD(0) } },
	{ "three", 3, COLUMNS, { SK_SHARD(0) } },
	{ "four", 4, COLUMNS, { SK_SHARD(0) } },
	{ "five", 5, COLUMNS, { SK_SHARD(0) } },
	{ "wide", 5, COLUMNS, { SK_SHARD(0) } },
};

#define N SK_ARRAY_SIZE(params)

/* The buffers of one rank: their size, and the rows that are its own. */
struct buffers {
	float *data[N];
	int64_t rows[N], room[N], columns[N];
};

static void describe_one(struct rank *rank, const struct sk_mesh *mesh, int i,
			 struct buffers *b)
{
	struct sk_tensor t = tensor_of(&params[i], mesh);
	int64_t local[2] = { 0, COLUMNS }, n = params[i].rows;

	b->columns[i] = strcmp(params[i].name, "wide") ? COLUMNS : WIDE;
	b->room[i] = chunk_of(n, rank->world, 0);
	b->rows[i] = local[0] = chunk_of(n, rank->world, rank->rank);
	b->data[i] = (float *)rank_memory((size_t)(b->room[i] *
				b->columns[i]) * sizeof(float), PADDING);
	t.local_shape = local;
	/* An empty shard has no memory, and its pointer is null. */
	t.data = local[0] ? b->data[i] : NULL;
	if (b->columns[i] != COLUMNS) {
		t.strides[0] = b->columns[i];
		t.strides[1] = 1;
	}
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
}

static void describe(struct rank *rank, struct buffers *b)
{
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);

	for (size_t i = 0; i < N; i++)
		describe_one(rank, mesh, (int)i, b);
	sk_mesh_release(mesh);
}

/* Every byte that is not the local tensor's is as it was. */
static void check_padding(const struct buffers *b)
{
	char padding[sizeof(float)];

	memset(padding, PADDING, sizeof(padding));
	for (size_t i = 0; i < N; i++)
		for (int64_t r = 0; r < b->room[i]; r++)
			for (int64_t c = 0; c < b->columns[i]; c++) {
				float *p = b->data[i] + r * b->columns[i] + c;

				if (r < b->rows[i] && c < COLUMNS)
					continue;
				CHECK(!memcmp(p, padding, sizeof(padding)),
				      "%s", params[i].name);
			}
}

static int empty_shards(const struct buffers *b)
{
	int n = 0;

	for (size_t i = 0; i < N; i++)
		n += b->rows[i] == 0;
	return n;
}

static void save(struct rank *rank)
{
	/* Of 2 and 3 rows over 4 ranks, and of 5 as 2, 2, 1, 0. */
	static const int empty[4] = { 0, 0, 1, 4 };
	struct buffers b;

	describe(rank, &b);
	CHECK(rank->world < 4 || empty_shards(&b) == empty[rank->rank]);
	rank_write(rank, 1);
	rank_snapshot(rank, 1, SK_DURABLE);
	check_padding(&b);
}

static void load(struct rank *rank, uint32_t flags)
{
	struct sk_report report;
	struct buffers b;

	describe(rank, &b);
	CHECK(!rank_restore(rank, 1, flags, &report), "%s", sk_error());
	CHECK(report.tensors == N && !report.missing && !report.extra);
	CHECK(!rank_wrong(rank, 1, rank->rank));
	check_padding(&b);
}

static void load_from_memory(struct rank *rank)
{
	load(rank, SK_RESTORE_MEMORY_ONLY);
}

static void load_from_disk(struct rank *rank)
{
	load(rank, SK_RESTORE_DISK_ONLY);
}

/* A rank that says it has another number of rows is told what it should. */
static void refuse_wrong_rows(struct rank *rank)
{
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);
	struct sk_tensor t = tensor_of(&params[3], mesh);
	int64_t rows = chunk_of(5, rank->world, rank->rank);
	int64_t wrong[2] = { rows ? 0 : 1, COLUMNS };
	float data[5 * COLUMNS];
	char words[32];

	t.data = data;
	t.local_shape = wrong;
	CHECK(sk_state_tensor(rank->state, &t) == -EINVAL);
	(void)snprintf(words, sizeof(words), "(%d, %d)", (int)rows, COLUMNS);
	CHECK(strstr(sk_error(), "\"five\"") && strstr(sk_error(), words),
	      "%s", sk_error());
	sk_mesh_release(mesh);
}

static void check_stored(const struct scene *scene, const char *job, int world)
{
	uint64_t bytes = 0, elements = 0;
	struct stored stored;

	stored_open(scene, job, 1, world, &stored);
	stored_check_once(&stored);
	for (int r = 0; r < world; r++)
		bytes += stored_bytes(&stored, r);
	for (size_t i = 0; i < N; i++)
		elements += (uint64_t)(params[i].rows * COLUMNS);
	CHECK(bytes == elements * sizeof(float), "padding was stored");
	stored_close(&stored);
}

/* F1, F2 */
int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	for (int world = 1; world <= 4; world++) {
		char job[32];

		(void)snprintf(job, sizeof(job), "ragged-%d", world);
		scene_ranks(&scene, job, world, save, NULL);
		check_stored(&scene, job, world);
		scene_ranks(&scene, job, world, load_from_memory, NULL);
		scene_ranks(&scene, job, 5 - world, load_from_memory, NULL);
		scene_ranks(&scene, job, 4, load_from_disk, NULL);
	}
	scene_ranks(&scene, "refused", 4, refuse_wrong_rows, NULL);
	scene_close(&scene);
	return 0;
}
