/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that lives and goes back: its image lies in a slot that it has
 * page-locked, out of which the device fetches it, and hashes it there.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "libclient/gpu-rank.h"
#include "state/slots.h"

#define BIG ((uint64_t)2800000)
#define SMALL ((uint64_t)66)
#define ROWS ((uint64_t)2000)
#define ALL (BIG + SMALL + ROWS)
#define HOST ((uint64_t)24100)
/* Of ALL; what the checksum of one takes of the link. */
#define CHUNKS 5u
#define IN 16u
#define OUT 8u

/* What a restore is to come to. */
struct want {
	const char *variable, *value;	/* of the simulation */
	uint32_t flags;
	uint64_t hashed;	/* chunks, on the device */
	uint64_t gathered;	/* bytes of them, in memory of its own */
};

static bool simulated;

static void add_all(struct gpu_rank *g)
{
	gpu_add(g, &(struct sk_tensor){
		.name = "big", .dtype = SK_F32, .ndim = 2,
		.shape = { 700, 1000 } }, BIG, 1);
	gpu_add(g, &(struct sk_tensor){
		.name = "rows", .dtype = SK_F32, .ndim = 2,
		.shape = { 50, 10 }, .strides = { 40, 2 } }, 50 * 160, 1);
	gpu_add_host(g, &(struct sk_tensor){
		.name = "offloaded", .dtype = SK_F64, .ndim = 1,
		.shape = { 3000 } }, 24000, 1);
	gpu_add(g, &(struct sk_tensor){
		.name = "small", .dtype = SK_BF16, .ndim = 1,
		.shape = { 33 } }, SMALL, 1);
	CHECK(!sk_state_blob_local(g->rank->state, "rng",
				   rank_memory(100, 1), 100));
}

static void take(struct gpu_rank *g, int64_t step)
{
	gpu_fill(g, step);
	gpu_complete(g, step);
}

static void begin(struct gpu_rank *g, struct rank *rank)
{
	gpu_begin(g, rank, 0);
	add_all(g);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
}

static uint64_t locks(const struct gpu_rank *g)
{
	return g->cuda.calls ? g->cuda.calls("cuMemHostRegister") : 0;
}

static void go_back(struct gpu_rank *g, const struct want *w, int64_t step)
{
	uint64_t in, out, across, hashed, locked;
	struct sk_report report;

	gpu_fill(g, 77);
	in = gpu_count(g, "in");
	out = gpu_count(g, "out");
	across = gpu_count(g, "across");
	hashed = gpu_count(g, "hashed");
	locked = locks(g);
	CHECK(!rank_restore(g->rank, step, w->flags, &report), "%s",
	      sk_error());
	in = gpu_count(g, "in") - in;
	out = gpu_count(g, "out") - out;
	across = gpu_count(g, "across") - across;
	hashed = gpu_count(g, "hashed") - hashed;
	locked = locks(g) - locked;
	CHECK(gpu_wrong(g, step, g->rank->rank) == 0);
	CHECK(report.damaged == 0 && report.bytes_device_slot == 0);
	CHECK(report.bytes_memory == ALL + HOST);
	if (!(w->flags & SK_RESTORE_NO_VERIFY))
		CHECK(report.bytes_verified == ALL + HOST);
	if (!simulated)
		return;
	CHECK(in == ALL + w->hashed * IN, "%" PRIu64, in);
	CHECK(out == w->hashed * OUT, "%" PRIu64, out);
	CHECK(across == w->gathered, "%" PRIu64, across);
	CHECK(hashed == (w->hashed ? ALL : 0), "%" PRIu64, hashed);
	/* No buffers that the CPU would copy through. */
	CHECK(!w->hashed || locked == 1, "%" PRIu64, locked);
}

/* ---- whole ---- */

static void whole(struct rank *rank)
{
	const struct want *w = rank->arg;
	struct gpu_rank g;

	if (w->variable)
		CHECK(!setenv(w->variable, w->value, 1));
	begin(&g, rank);
	take(&g, 1);
	take(&g, 2);
	go_back(&g, w, 2);
	go_back(&g, w, 1);
	/* And goes on, in the same slots. */
	take(&g, 3);
	go_back(&g, w, 3);
}

static const struct want by_device = { .hashed = CHUNKS, .gathered = ROWS };

static void test_whole(struct scene *scene)
{
	scene_ranks(scene, "whole", 1, whole, &by_device);
	scene_ranks(scene, "unverified", 1, whole, &(struct want){
		.flags = SK_RESTORE_NO_VERIFY });
	if (!simulated)
		return;
	scene_ranks(scene, "no-compiler", 1, whole, &(struct want){
		.variable = "VCUDA_MODE", .value = "no-compiler" });
	/* Nothing is locked but what is small. */
	scene_ranks(scene, "not-locked", 1, whole, &(struct want){
		.variable = "VCUDA_LOCK_MOST", .value = "2800000" });
}

/* ---- on two GPUs ---- */

/* Each of them fetches what lies on it, out of one slot that is locked once. */
static void on_two(struct rank *rank)
{
	const uint64_t all = 2 * BIG;
	struct sk_report report;
	struct gpu_rank g;
	uint64_t hashed;

	gpu_begin(&g, rank, 0);
	for (int i = 0; i < 2; i++)
		gpu_add(&g, &(struct sk_tensor){
			.name = i ? "second" : "first", .dtype = SK_F32,
			.ndim = 2, .shape = { 700, 1000 },
			.device = i % g.devices }, BIG, 1);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	take(&g, 1);
	take(&g, 2);
	for (int64_t step = 2; step > 0; step--) {
		gpu_fill(&g, 77);
		hashed = gpu_count(&g, "hashed");
		CHECK(!rank_restore(rank, step, 0, &report), "%s",
		      sk_error());
		hashed = gpu_count(&g, "hashed") - hashed;
		CHECK(gpu_wrong(&g, step, 0) == 0);
		CHECK(report.bytes_verified == all);
		CHECK(!simulated || hashed == all, "%" PRIu64, hashed);
	}
}

/* ---- damaged ---- */

/* The slot of a snapshot, by what it has of the first tensor. */
static char *find(struct gpu_rank *g)
{
	struct sk_state *state = g->rank->state;
	const struct sk_layout *layout = state->layouts[0];
	const struct sk_entry *e = NULL;

	for (uint32_t i = 0; i < layout->n_entries && !e; i++)
		if (layout->entries[i].bytes == BIG)
			e = &layout->entries[i];
	CHECK(e);
	for (uint32_t i = 0; i < state->n_slots; i++) {
		char *at = (char *)state->slots[i].map[0] + e->offset;

		if (memcmp(at, g->tensors[0].here, BIG) != 0)
			continue;
		CHECK(!sk_slot_unprotect(state, i, NULL));
		return at;
	}
	CHECK(false, "no slot has it");
	return NULL;
}

static void damaged(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;

	begin(&g, rank);
	take(&g, 1);
	take(&g, 2);
	find(&g)[2000000] ^= 1;
	gpu_fill(&g, 77);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == 1 && report.damaged == 1);
	CHECK(gpu_wrong(&g, 1, rank->rank) == 0);
	/* Of who does not look, it is not hidden. */
	CHECK(rank_restore(rank, 2, 0, NULL) < 0);
}

/* ---- whatever call fails ---- */

#define FAILED 304		/* CUDA_ERROR_OPERATING_SYSTEM breaks nothing */

/* It is an error, or right; and nothing is under way then. */
static void one_fails(struct gpu_rank *g, const char *name, unsigned nth,
		      uint32_t flags)
{
	int r;

	gpu_fill(g, 77);
	g->cuda.fail(name, nth, FAILED);
	r = rank_restore(g->rank, 2, flags, NULL);
	g->cuda.fail(name, 0, 0);
	CHECK(!g->cuda.cuStreamQuery((sk_cu_stream)(uintptr_t)
		sk_cuda_lane_stream(g->rank->state->gpus.v[0].lane)),
	      "%s %u", name, nth);
	CHECK(r < 0 || gpu_wrong(g, 2, g->rank->rank) == 0, "%s %u", name,
	      nth);
}

static void fails(struct rank *rank)
{
	static const char *const names[] = {
		"cuMemAlloc", "cuLaunchKernel", "cuMemcpyHtoDAsync",
		"cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync",
		"cuMemcpyBatchAsync", "cuEventRecord", "cuEventSynchronize",
		"cuStreamWaitEvent", "cuMemHostRegister", "cuCtxPushCurrent" };
	struct gpu_rank g;

	begin(&g, rank);
	take(&g, 1);
	take(&g, 2);
	go_back(&g, &by_device, 2);
	for (size_t i = 0; i < SK_ARRAY_SIZE(names); i++)
		for (unsigned k = 0; k < 6; k++)
			one_fails(&g, names[i], 1 + k / 2,
				  k % 2 ? SK_RESTORE_NO_VERIFY : 0);
	go_back(&g, &by_device, 2);
}

/* ---- who has just begun ---- */

#define TENSORS 40
#define LENGTH ((size_t)64 << 10)

static void forget_slots(struct sk_state *state)
{
	(void)pthread_mutex_lock(&state->lock);
	sk_slots_unmap(state);
	(void)pthread_mutex_unlock(&state->lock);
}

static void describe_neighbours(struct rank *rank, sk_cu_ptr slab)
{
	for (size_t i = 0; i < TENSORS; i++) {
		char name[16];

		(void)snprintf(name, sizeof(name), "t%zu", i);
		CHECK(!sk_state_tensor(rank->state, &(struct sk_tensor){
			.name = name, .dtype = SK_U8, .ndim = 1,
			.shape = { LENGTH }, .memory = SK_CUDA,
			.data = (void *)(uintptr_t)(slab + i * LENGTH) }),
		      "%s", sk_error());
	}
}

/* What lies together on both sides is one copy, as long as there is a buffer
 * for it. */
static void begun(struct rank *rank)
{
	const char *const names[] = { "cuMemcpyHtoDAsync", "cuLaunchKernel",
				      "cuMemcpyBatchAsync" };
	const size_t bytes = TENSORS * LENGTH;
	char *here = rank_memory(bytes, 0), *back = rank_memory(bytes, 5);
	uint64_t calls[3] = { 0 };
	struct gpu_rank g;
	sk_cu_ptr slab;

	gpu_begin(&g, rank, 0);
	slab = trainer_cuda_alloc(&g.cuda, bytes);
	for (size_t i = 0; i < bytes; i++)
		here[i] = (char)(i * 31 >> 5);
	trainer_cuda_put(&g.cuda, slab, here, bytes);
	describe_neighbours(rank, slab);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	gpu_complete(&g, 1);
	trainer_cuda_put(&g.cuda, slab, back, bytes);
	forget_slots(rank->state);
	for (size_t i = 0; simulated && i < 3; i++)
		calls[i] = g.cuda.calls(names[i]);
	CHECK(!rank_restore(rank, 1, 0, NULL), "%s", sk_error());
	for (size_t i = 0; simulated && i < 3; i++)
		calls[i] = g.cuda.calls(names[i]) - calls[i];
	trainer_cuda_get(&g.cuda, back, slab, bytes);
	CHECK(!memcmp(here, back, bytes));
	if (simulated)
		CHECK(calls[0] == 3 && !calls[1] && !calls[2], "%" PRIu64
		      " copies, %" PRIu64 " kernels, %" PRIu64 " batches",
		      calls[0], calls[1], calls[2]);
}

/* Allocations that are neighbours, of LENGTH and twice that, the shorter one
 * first. The simulation gives a freed one's address to the next of its size, and
 * what lies below that to one that fits there. */
static bool are_neighbours(struct gpu_rank *g, sk_cu_ptr *ret)
{
	sk_cu_ptr was = trainer_cuda_alloc(&g->cuda, 2 * LENGTH);

	CHECK(!g->cuda.driver.cuMemFree(was));
	ret[0] = trainer_cuda_alloc(&g->cuda, LENGTH);
	ret[1] = trainer_cuda_alloc(&g->cuda, 2 * LENGTH);
	return ret[0] + LENGTH == ret[1];
}

static void put_two(struct gpu_rank *g, const sk_cu_ptr *v, const char *from)
{
	trainer_cuda_put(&g->cuda, v[0], from, LENGTH);
	trainer_cuda_put(&g->cuda, v[1], from + LENGTH, 2 * LENGTH);
}

static void describe_two(struct rank *rank, const sk_cu_ptr *v)
{
	for (int i = 0; i < 2; i++)
		CHECK(!sk_state_tensor(rank->state, &(struct sk_tensor){
			.name = i ? "t1" : "t0", .dtype = SK_U8, .ndim = 1,
			.shape = { (int64_t)LENGTH << i }, .memory = SK_CUDA,
			.data = (void *)(uintptr_t)v[i] }),
		      "%s", sk_error());
}

/* What lies in two allocations may be no one copy for the driver. */
static void two_allocations(struct rank *rank)
{
	char *here = rank_memory(3 * LENGTH, 3);
	char *back = rank_memory(3 * LENGTH, 5);
	struct gpu_rank g;
	sk_cu_ptr v[2] = { 0 };
	bool found = false;

	gpu_begin(&g, rank, 0);
	for (int i = 0; i < 20 && !found; i++)
		found = are_neighbours(&g, v);
	CHECK(found || !simulated);
	put_two(&g, v, here);
	describe_two(rank, v);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	gpu_complete(&g, 1);
	for (int begun = 0; begun < 2; begun++) {
		uint64_t hashed = gpu_count(&g, "hashed");

		put_two(&g, v, back);
		if (begun)
			forget_slots(rank->state);
		CHECK(!rank_restore(rank, 1, 0, NULL), "%s", sk_error());
		trainer_cuda_get(&g.cuda, back, v[0], LENGTH);
		trainer_cuda_get(&g.cuda, back + LENGTH, v[1], 2 * LENGTH);
		CHECK(!memcmp(here, back, 3 * LENGTH));
		memset(back, 5, 3 * LENGTH);
		CHECK(!simulated || begun ||
		      gpu_count(&g, "hashed") > hashed,
		      "it did not come in place");
	}
}

/* ---- together ---- */

#define RANKS 3
#define OWN ((uint64_t)1600000)

/* What ranks have in common each fetches its part of, and verifies that for
 * the others; what they have of each other the CPU copies. */
static void together(struct rank *rank)
{
	uint64_t *verified = *(uint64_t *const *)rank->arg;
	int64_t world = rank->world, rows = 400 * world;
	struct sk_report report;
	struct sk_mesh *mesh;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	CHECK(!sk_mesh_create(1, &world, NULL, NULL, &mesh));
	gpu_add(&g, &(struct sk_tensor){
		.name = "own", .dtype = SK_F32, .ndim = 2,
		.shape = { rows, 1000 }, .mesh = mesh,
		.placements = { { .kind = SK_PLACEMENT_SHARD } } },
		OWN, 1);
	gpu_add(&g, &(struct sk_tensor){
		.name = "common", .dtype = SK_F32, .ndim = 2,
		.shape = { rows, 1000 }, .mesh = mesh,
		.placements = { { .kind = SK_PLACEMENT_REPLICATE } } },
		OWN * RANKS, 1);
	sk_mesh_release(mesh);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	take(&g, 1);
	take(&g, 2);
	for (int64_t step = 2; step > 0; step--) {
		gpu_fill(&g, 77);
		CHECK(!rank_restore(rank, step, 0, &report), "%s",
		      sk_error());
		CHECK(gpu_wrong(&g, step, rank->rank) == 0);
		CHECK(report.damaged == 0);
		__atomic_fetch_add(verified, report.bytes_verified,
				   __ATOMIC_RELAXED);
	}
}

/* A chunk that whoever has it verifies for the others is so once; of others it
 * is verified there, and by whoever fetches it. With replicas each rank has its
 * own of all, and verifies that. */
static void test_together(struct scene *scene)
{
	const uint64_t own = 2 * RANKS * OWN, common = 2 * RANKS * OWN;
	uint64_t *verified = mmap(NULL, sizeof(*verified),
				  PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(verified != MAP_FAILED);
	scene_ranks(scene, "together", RANKS, together, &verified);
	CHECK(*verified == own + RANKS * common, "%" PRIu64, *verified);
	*verified = 0;
	scene->job_flags = SK_JOB_NO_REPLICAS;
	scene_ranks(scene, "shared", RANKS, together, &verified);
	scene->job_flags = 0;
	CHECK(*verified >= own + common && *verified < own + 2 * common,
	      "%" PRIu64, *verified);
	CHECK(!munmap(verified, sizeof(*verified)));
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	CHECK(!setenv("VCUDA_DEVICES", "2", 0));
	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	simulated = t.calls;
	scene_open(&scene, argc, argv);
	test_whole(&scene);
	scene_ranks(&scene, "damaged", 1, damaged, NULL);
	scene_ranks(&scene, "two", 1, on_two, NULL);
	if (simulated)
		scene_ranks(&scene, "fails", 1, fails, NULL);
	scene_ranks(&scene, "begun", 1, begun, NULL);
	scene_ranks(&scene, "allocations", 1, two_allocations, NULL);
	test_together(&scene);
	scene_close(&scene);
	return 0;
}
