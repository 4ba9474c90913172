/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a state: some of the names, targets that have no memory yet,
 * page-locked host memory, and the whole of it on one rank while the others
 * ask for nothing.
 */
#include "scenarios/models/common.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tensor/box.h"

#define JOB "partial"
#define WORLD 4

static const struct param params[] = {
	{ "z.embed", 9, 4, { SK_SHARD(0) } },
	{ "body.0", 6, 5, { SK_SHARD(0) } },
	{ "a.head", 4, 4, { SK_SHARD(0) } },
};

#define N SK_ARRAY_SIZE(params)

static void describe(struct rank *rank, size_t n)
{
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);

	for (size_t i = 0; i < n; i++) {
		struct sk_tensor t = tensor_of(&params[i], mesh);

		rank_tensor(rank, &t, 0xee);
	}
	sk_mesh_release(mesh);
}

static void save(struct rank *rank)
{
	describe(rank, N);
	rank_write(rank, 1);
	rank_snapshot(rank, 1, SK_DURABLE);
}

/* Still what it was filled with when it was described. */
static bool untouched(struct rank *rank, const char *name)
{
	int64_t at = sk_state_find(rank->state, name);
	const struct sk_local *l = &rank->state->locals[at];
	const unsigned char *p = l->parts->data;
	int64_t bytes = 4 * sk_box_volume(l->item.spec.ndim, &l->parts->box);

	for (int64_t i = 0; i < bytes; i++)
		if (p[i] != 0xee)
			return false;
	return true;
}

static int restore_names(struct rank *rank, const char *const *names,
			 size_t n, struct sk_report *report)
{
	struct sk_restore_options o = { .names = names, .n_names = n };

	return sk_restore(rank->state, 1, NULL, &o, report);
}

/* F5: the names that are asked for come, the others are left alone. */
static void restore_some_names(struct rank *rank)
{
	static const char *const two[] = { "a.head", "z.embed" };
	struct sk_report report;

	describe(rank, N);
	CHECK(!restore_names(rank, two, 2, &report), "%s", sk_error());
	CHECK(report.tensors == 2);
	CHECK(!rank_wrong_in(rank, 1, "a.head"));
	CHECK(!rank_wrong_in(rank, 1, "z.embed"));
	CHECK(untouched(rank, "body.0"));
}

/* Fewer are described than saved, and more. */
static void restore_what_both_have(struct rank *rank)
{
	struct sk_tensor t = { .name = "new", .dtype = SK_F32, .ndim = 1,
			       .shape = { 3 } };
	struct sk_report report;

	describe(rank, 2);
	CHECK(rank_restore(rank, 1, 0, NULL) == -ENOKEY);
	CHECK(strstr(sk_error(), "a.head") && !strstr(sk_error(), "body.0"));
	CHECK(untouched(rank, "body.0"));
	rank_tensor(rank, &t, 0xee);
	CHECK(rank_restore(rank, 1, SK_RESTORE_EXTRA_OK, NULL) == -ENOKEY);
	CHECK(strstr(sk_error(), "new") && !strstr(sk_error(), "a.head"));
	CHECK(!rank_restore(rank, 1, SK_RESTORE_PARTIAL, &report), "%s",
	      sk_error());
	CHECK(report.tensors == 2 && report.missing == 1 &&
	      report.extra == 1);
	CHECK(!rank_wrong_in(rank, 1, "z.embed"));
	CHECK(!rank_wrong_in(rank, 1, "body.0"));
	CHECK(untouched(rank, "new"));
}

/* F5: a tensor that is described, but has no memory until it is wanted. */
static void restore_without_memory(struct rank *rank)
{
	static const char *const others[] = { "z.embed", "a.head" };
	static const char *const late[] = { "body.0" };
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);
	struct sk_tensor t = tensor_of(&params[1], mesh);
	struct sk_report report;

	describe(rank, N);
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	CHECK(rank_restore(rank, 1, 0, NULL) == -EINVAL);
	CHECK(strstr(sk_error(), "\"body.0\" has no memory"), "%s",
	      sk_error());
	CHECK(untouched(rank, "z.embed"));
	CHECK(!restore_names(rank, others, 2, &report), "%s", sk_error());
	CHECK(report.tensors == 2);
	rank_tensor(rank, &t, 0xee);
	CHECK(!restore_names(rank, late, 1, &report), "%s", sk_error());
	CHECK(!rank_wrong(rank, 1, rank->rank));
	sk_mesh_release(mesh);
}

/* F6: memory that the caller has page-locked, as source and as target. */
static void restore_into_locked_memory(struct rank *rank)
{
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);
	size_t bytes = 1 << 16;
	char *p = mmap(NULL, N * bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	/* Where locking is not allowed it is memory like any other. */
	(void)mlock(p, N * bytes);
	for (size_t i = 0; i < N; i++) {
		struct sk_tensor t = tensor_of(&params[i], mesh);

		t.memory = SK_HOST;
		t.data = p + i * bytes;
		CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	}
	CHECK(!rank_restore(rank, 1, 0, NULL), "%s", sk_error());
	CHECK(!rank_wrong(rank, 1, rank->rank));
	for (size_t i = 0; i < N; i++)
		CHECK(rank->state->locals[i].parts->data == p + i * bytes);
	rank_write(rank, 2);
	rank_snapshot(rank, 2, SK_COMPLETE);
	rank_write(rank, 3);
	CHECK(!rank_restore(rank, 2, 0, NULL), "%s", sk_error());
	CHECK(!rank_wrong(rank, 2, rank->rank));
	/* The library must have let go of it. */
	CHECK(!sk_state_clear(rank->state));
	CHECK(!munmap(p, N * bytes));
	sk_mesh_release(mesh);
}

/* F8: rank 0 alone has everything, on a mesh of its own, in the order in
 * which it was described. */
static void restore_all_on_rank_0(struct rank *rank, uint32_t flags)
{
	struct sk_mesh *mesh = mesh_of(1, 0, (int32_t[]){ 0 }, NULL);
	struct sk_report report;

	for (size_t i = 0; !rank->rank && i < N; i++) {
		struct sk_tensor t = tensor_of(&params[i], mesh);

		t.placements[0] = SK_REPLICATE;
		t.local_shape = t.shape;
		rank_tensor(rank, &t, 0xee);
		CHECK(!strcmp(rank->state->locals[i].item.spec.name,
			      params[i].name));
	}
	CHECK(!rank_restore(rank, 1, flags, &report), "%s", sk_error());
	CHECK(report.step == 1 && report.world == WORLD && !report.extra);
	CHECK(report.tensors == (rank->rank ? 0 : N));
	CHECK(!rank_wrong(rank, 1, rank->rank));
	if (rank->rank) {
		CHECK(sk_snapshot(rank->state, 9, NULL) == -EINVAL);
		CHECK(strstr(sk_error(), "described no tensor"));
	}
	sk_mesh_release(mesh);
}

static void gather_from_memory(struct rank *rank)
{
	restore_all_on_rank_0(rank, SK_RESTORE_MEMORY_ONLY);
}

static void gather_from_disk(struct rank *rank)
{
	restore_all_on_rank_0(rank, SK_RESTORE_DISK_ONLY);
}

/* Nobody asks for anything: everything is extra, and may be. */
static void restore_nothing(struct rank *rank)
{
	struct sk_report report;

	CHECK(rank_restore(rank, 1, 0, NULL) == -ENOKEY);
	CHECK(strstr(sk_error(), "asked for by no rank"), "%s", sk_error());
	CHECK(strstr(sk_error(), "SK_RESTORE_EXTRA_OK"), "%s", sk_error());
	CHECK(!rank_restore(rank, 1, SK_RESTORE_EXTRA_OK, &report), "%s",
	      sk_error());
	CHECK(!report.tensors && report.extra == N);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	scene_ranks(&scene, JOB, WORLD, save, NULL);
	scene_ranks(&scene, JOB, WORLD, restore_some_names, NULL);
	scene_ranks(&scene, JOB, 3, restore_what_both_have, NULL);
	scene_ranks(&scene, JOB, 2, restore_without_memory, NULL);
	scene_ranks(&scene, JOB, WORLD, gather_from_memory, NULL);
	scene_ranks(&scene, JOB, WORLD, gather_from_disk, NULL);
	scene_ranks(&scene, JOB, 2, restore_nothing, NULL);
	scene_ranks(&scene, JOB, 3, restore_into_locked_memory, NULL);
	scene_close(&scene);
	return 0;
}
