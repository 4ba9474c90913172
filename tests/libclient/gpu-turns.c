/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that goes back to more than the device fetches at once: one batch is
 * hashed while the next one comes. What is wrong in any of them, or fails, is
 * no worse than in one.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "cuda/hash.h"
#include "libclient/gpu-rank.h"
#include "state/slots.h"
#include "support/fault-os.h"

#define MANY ((size_t)13000)	/* three batches, and a part */
#define EACH ((size_t)96)
#define SLAB (MANY * EACH)
#define FAILED 304		/* CUDA_ERROR_OPERATING_SYSTEM breaks nothing */
/* What the checksum of one takes of the link, and the table of copies. */
#define IN (16u + 24u)

struct trial {
	struct gpu_rank g;
	sk_cu_ptr slab;
	char *now, *wanted;	/* SLAB bytes each */
	uint64_t bytes;		/* of all tensors */
};

static bool simulated;

static size_t bytes_of(size_t i)
{
	return 17 + i % 64;
}

static void fill(struct trial *t, int64_t step)
{
	for (size_t i = 0; i < SLAB; i++)
		t->wanted[i] = (char)((i * 31 >> 5) + (size_t)step * 7);
	trainer_cuda_put(&t->g.cuda, t->slab, t->wanted, SLAB);
}

static void spoil(struct trial *t)
{
	memset(t->now, 5, SLAB);
	trainer_cuda_put(&t->g.cuda, t->slab, t->now, SLAB);
}

/* All of each tensor of that step, and nothing between them. */
static bool is_right(struct trial *t, int64_t step)
{
	bool right = true;

	trainer_cuda_get(&t->g.cuda, t->now, t->slab, SLAB);
	for (size_t i = 0; i < SLAB && right; i++)
		right = t->now[i] == (i % EACH < bytes_of(i / EACH) ?
				      (char)((i * 31 >> 5) +
					     (size_t)step * 7) : 5);
	return right;
}

static void begin(struct trial *t, struct rank *rank)
{
	gpu_begin(&t->g, rank, 0);
	t->now = rank_memory(SLAB, 0);
	t->wanted = rank_memory(SLAB, 0);
	t->slab = trainer_cuda_alloc(&t->g.cuda, SLAB);
	t->bytes = gpu_describe_many(rank, t->slab, MANY, EACH);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	for (int64_t step = 1; step <= 2; step++) {
		fill(t, step);
		gpu_complete(&t->g, step);
	}
}

/* ---- whole ---- */

static void go_back(struct trial *t, int64_t step)
{
	uint64_t calls, in, hashed;
	struct sk_report report;

	spoil(t);
	calls = gpu_count(&t->g, "calls");
	in = gpu_count(&t->g, "in");
	hashed = gpu_count(&t->g, "hashed");
	CHECK(!rank_restore(t->g.rank, step, 0, &report), "%s", sk_error());
	calls = gpu_count(&t->g, "calls") - calls;
	in = gpu_count(&t->g, "in") - in;
	hashed = gpu_count(&t->g, "hashed") - hashed;
	CHECK(report.step == step && !report.damaged);
	CHECK(report.bytes_verified == t->bytes);
	CHECK(is_right(t, step), "step %" PRId64, step);
	if (!simulated)
		return;
	/* Once, and hashed there: the CPU has copied none of it. */
	CHECK(in == t->bytes + MANY * IN, "%" PRIu64, in);
	CHECK(hashed == t->bytes, "%" PRIu64, hashed);
	CHECK(calls < 400, "%" PRIu64 " calls", calls);
}

static void whole(struct rank *rank)
{
	struct trial t = { .bytes = 0 };

	begin(&t, rank);
	for (int i = 0; i < 4; i++)
		go_back(&t, 1 + i % 2);
}

/* ---- damaged ---- */

static size_t number_of(const struct sk_layout *l, uint32_t entry)
{
	return strtoull(l->items[l->entries[entry].item].spec.name + 1,
			NULL, 10);
}

/* The first byte of an entry, in the slot of the last snapshot. */
static char *find(struct trial *t, uint32_t entry)
{
	struct sk_state *state = t->g.rank->state;
	const struct sk_layout *l = state->layouts[0];

	CHECK(l->n_entries == MANY);
	for (uint32_t k = 0; k < state->n_slots; k++) {
		char *map = state->slots[k].map[0];
		size_t wrong = 0;

		for (uint32_t e = 0; e < MANY; e++)
			wrong += map[l->entries[e].offset] !=
				 t->wanted[number_of(l, e) * EACH];
		if (wrong)
			continue;
		CHECK(!sk_slot_unprotect(state, k, NULL));
		return map + l->entries[entry].offset;
	}
	CHECK(false, "no slot has it");
	return NULL;
}

static void damaged(struct rank *rank)
{
	uint32_t entry = *(const uint32_t *)rank->arg;
	struct trial t = { .bytes = 0 };
	struct sk_report report;

	begin(&t, rank);
	*find(&t, entry) ^= 1;
	spoil(&t);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == 1 && report.damaged == 1);
	CHECK(is_right(&t, 1));
	/* Of who does not look, it is not hidden. */
	CHECK(rank_restore(rank, 2, 0, NULL) < 0);
}

/* In any of the batches. */
static void test_damaged(struct scene *scene)
{
	static const uint32_t of[] = { 0, SK_CUDA_SPANS_MAX - 1,
				       SK_CUDA_SPANS_MAX,
				       2 * SK_CUDA_SPANS_MAX + 7, MANY - 1 };

	for (size_t i = 0; i < SK_ARRAY_SIZE(of); i++) {
		uint32_t entry = of[i];

		scene_ranks(scene, "damaged", 1, damaged, &entry);
	}
}

/* ---- whatever call fails ---- */

static void one_fails(struct trial *t, const char *name, unsigned nth)
{
	int r;

	spoil(t);
	t->g.cuda.fail(name, nth, FAILED);
	r = rank_restore(t->g.rank, 2, 0, NULL);
	t->g.cuda.fail(name, 0, 0);
	CHECK(!t->g.cuda.cuStreamQuery((sk_cu_stream)(uintptr_t)
		sk_cuda_lane_stream(t->g.rank->state->gpus.v[0].lane)),
	      "%s %u", name, nth);
	CHECK(r < 0 || is_right(t, 2), "%s %u", name, nth);
}

/* An error, or right, and nothing is under way then. */
static void fails(struct rank *rank)
{
	static const char *const names[] = {
		"cuMemAlloc", "cuLaunchKernel", "cuMemcpyHtoDAsync",
		"cuMemcpyDtoHAsync", "cuMemcpyBatchAsync", "cuEventCreate",
		"cuEventRecord", "cuEventSynchronize", "cuStreamWaitEvent",
		"cuStreamCreateWithPriority", "cuMemHostRegister" };
	const unsigned every = (unsigned)sk_fault_every();
	struct trial t = { .bytes = 0 };

	begin(&t, rank);
	for (size_t i = 0; i < SK_ARRAY_SIZE(names); i++)
		for (unsigned nth = 1; nth < 14; nth += every + nth / 4)
			one_fails(&t, names[i], nth);
	go_back(&t, 2);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	simulated = t.calls;
	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "whole", 1, whole, NULL);
	test_damaged(&scene);
	if (simulated)
		scene_ranks(&scene, "fails", 1, fails, NULL);
	scene_close(&scene);
	return 0;
}
