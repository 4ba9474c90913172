/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a GPU fetches by itself, by batches of a few chunks: random tensors, in
 * random places before and after, come back out of slots that are page-locked
 * and out of device slots, all of them, by the device alone, and nothing
 * beside them is touched. What is damaged, or fails, on the way is none the
 * worse for coming in any of the batches.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "conn/client.h"
#include "libclient/gpu-rank.h"
#include "restore/device-pass.h"
#include "state/slots.h"

#define MIB ((uint64_t)1 << 20)
#define GRAIN ((uint64_t)64 << 10)	/* neighbours are to be had by that */
#define ITEMS_MOST 48
#define SLABS_MOST 64
#define DEVICES 2
#define CASES 4			/* of each kind, but what $SK_CASES says */
#define ROUNDS 6
#define BESIDE 5		/* what lies between tensors */
#define FAILED 304u		/* CUDA_ERROR_OPERATING_SYSTEM breaks nothing */
#define BUFFERS (2 * MIB)	/* what bytes pass through by way of the CPU */

/* Bytes, in rows that lie apart where the pitch is larger. */
struct item {
	uint64_t rows, width, pitch;
	int device, slab;
	uint64_t at;		/* in that */
	bool cut;		/* it is described as two parts */
};

struct slab {
	int device;
	uint64_t bytes;
	sk_cu_ptr there;
};

struct trial {
	struct gpu_rank g;
	uint64_t random;
	int devices;
	size_t n_items, n_slabs;
	struct item items[ITEMS_MOST];
	struct slab slabs[SLABS_MOST];
	char names[ITEMS_MOST][8];
	uint64_t bytes;		/* of all items */
	struct sk_device_limits limits;
	const struct sk_os *real;
	struct sk_os os;
};

static bool simulated;
static int buffers;		/* made by this process */

static uint64_t below(struct trial *t, uint64_t n)
{
	t->random ^= t->random << 13;
	t->random ^= t->random >> 7;
	t->random ^= t->random << 17;
	return (t->random * 0x2545f4914f6cdd1du >> 33) % n;
}

static int counted_mmap(const struct sk_os *os, void *at, size_t size,
			int prot, int flags, int fd, uint64_t offset,
			void **ret_map)
{
	const struct sk_os *real = os->ctx;

	if (size == BUFFERS && fd < 0)
		__atomic_fetch_add(&buffers, 1, __ATOMIC_RELAXED);
	return real->mmap(real, at, size, prot, flags, fd, offset, ret_map);
}

/* ---- what there is ---- */

static uint64_t length(struct trial *t)
{
	switch (below(t, 9)) {
	case 0:
		return MIB * (1 + below(t, 2)) + below(t, 3) - 1;
	case 1:
		return MIB / 2 + below(t, 2 * MIB);
	case 2:
	case 3:
		return GRAIN * (1 + below(t, 4));
	case 4:
	case 5:
		return 64 * (1 + below(t, 100));
	default:
		return 1 + below(t, 300);
	}
}

static void make_items(struct trial *t)
{
	t->n_items = 8 + below(t, ITEMS_MOST - 8);
	for (size_t i = 0; i < t->n_items; i++) {
		uint64_t bytes = length(t);
		struct item *x = &t->items[i];

		x->rows = below(t, 3) ? 1 : 1 + below(t, 9);
		x->width = bytes / x->rows;
		if (!x->width)
			*x = (struct item){ .rows = 1, .width = bytes };
		x->device = (int)below(t, (uint64_t)t->devices);
		t->bytes += x->rows * x->width;
		(void)snprintf(t->names[i], sizeof(t->names[i]), "t%02zu", i);
	}
}

/* ---- where it lies ---- */

static uint64_t span(const struct item *x)
{
	return (x->rows - 1) * x->pitch + x->width;
}

/* Of those of one device each lies behind the one before it, with room between
 * them or none; sometimes another allocation begins there. */
static void place(struct trial *t, int device, bool cut)
{
	struct slab *s = NULL;

	for (size_t i = 0; i < t->n_items; i++) {
		struct item *x = &t->items[i];

		if (x->device != device)
			continue;
		x->pitch = x->width + (below(t, 4) ? 0 : below(t, 90));
		x->cut = cut && x->rows > 1 && !below(t, 2);
		if (!s || !below(t, 6) ||
		    (!(s->bytes % GRAIN) && below(t, 2))) {
			s = &t->slabs[t->n_slabs++];
			CHECK(t->n_slabs <= SLABS_MOST);
			*s = (struct slab){ .device = device };
		}
		if (!below(t, 3))
			s->bytes += 1 + below(t, 200);
		x->slab = (int)(s - t->slabs);
		x->at = s->bytes;
		s->bytes += span(x);
	}
}

/* The last first: so they are neighbours in the simulation. */
static void allocate(struct trial *t)
{
	for (size_t i = t->n_slabs; i-- > 0;) {
		gpu_use_device(&t->g, t->slabs[i].device);
		t->slabs[i].there = trainer_cuda_alloc(&t->g.cuda,
						       t->slabs[i].bytes);
	}
	gpu_use_device(&t->g, 0);
}

static sk_cu_ptr address(const struct trial *t, const struct item *x)
{
	return t->slabs[x->slab].there + x->at;
}

static void describe(struct trial *t)
{
	for (size_t i = 0; i < t->n_items; i++) {
		const struct item *x = &t->items[i];
		int64_t rows = (int64_t)x->rows, width = (int64_t)x->width;
		int64_t cut = x->cut ? rows / 2 : rows, pitch;
		char *data = (char *)(uintptr_t)address(t, x);
		struct sk_part parts[2] = {
			{ .box = { { 0, 0 }, { cut, width } }, .data = data,
			  .strides = { (int64_t)x->pitch, 1 } },
			{ .box = { { cut, 0 }, { rows - cut, width } },
			  .data = data + (uint64_t)cut * x->pitch,
			  .strides = { (int64_t)x->pitch, 1 } } };
		struct sk_tensor d = {
			.name = t->names[i], .dtype = SK_U8, .ndim = 2,
			.shape = { rows, width },
			.memory = SK_CUDA, .device = x->device, .data = data };

		pitch = (int64_t)x->pitch;
		if (x->cut) {
			d.data = NULL;
			d.parts = parts;
			d.n_parts = 2;
		} else if (x->rows > 1) {
			d.strides[0] = pitch;
			d.strides[1] = 1;
		}
		CHECK(!sk_state_tensor(t->g.rank->state, &d), "%s",
		      sk_error());
	}
}

static void arrange(struct trial *t, bool cut)
{
	t->n_slabs = 0;
	for (int d = 0; d < t->devices; d++)
		place(t, d, cut);
	allocate(t);
	describe(t);
}

/* Memory of tensors that were described elsewhere since. */
static void let_go(struct trial *t, const struct slab *slabs, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		gpu_use_device(&t->g, slabs[i].device);
		CHECK(!t->g.cuda.driver.cuMemFree(slabs[i].there));
	}
	gpu_use_device(&t->g, 0);
}

static void rearrange(struct trial *t)
{
	struct slab before[SLABS_MOST];
	size_t n = t->n_slabs;

	memcpy(before, t->slabs, sizeof(before));
	arrange(t, false);
	let_go(t, before, n);
}

/* ---- what is in it ---- */

static char value(size_t i, uint64_t at, int64_t step)
{
	return (char)((at * 31 >> 5) + i * 113 + (uint64_t)step * 7);
}

/* Of a slab, what is to be there: tensors of that step, or all BESIDE. */
static char *wanted(const struct trial *t, size_t slab, int64_t step)
{
	char *v = malloc(t->slabs[slab].bytes);

	CHECK(v);
	memset(v, BESIDE, t->slabs[slab].bytes);
	for (size_t i = 0; i < t->n_items && step > 0; i++) {
		const struct item *x = &t->items[i];

		if (x->slab != (int)slab)
			continue;
		for (uint64_t k = 0; k < x->rows * x->width; k++)
			v[x->at + k / x->width * x->pitch + k % x->width] =
				value(i, k, step);
	}
	return v;
}

static void fill(struct trial *t, int64_t step)
{
	for (size_t s = 0; s < t->n_slabs; s++) {
		char *v = wanted(t, s, step);

		gpu_use_device(&t->g, t->slabs[s].device);
		trainer_cuda_put(&t->g.cuda, t->slabs[s].there, v,
				 t->slabs[s].bytes);
		free(v);
	}
	gpu_use_device(&t->g, 0);
}

static void is_right(struct trial *t, int64_t step, const char *what)
{
	for (size_t s = 0; s < t->n_slabs; s++) {
		char *v = wanted(t, s, step);
		char *is = malloc(t->slabs[s].bytes);

		CHECK(is);
		gpu_use_device(&t->g, t->slabs[s].device);
		trainer_cuda_get(&t->g.cuda, is, t->slabs[s].there,
				 t->slabs[s].bytes);
		CHECK(!memcmp(v, is, t->slabs[s].bytes),
		      "%s, slab %zu, step %" PRId64, what, s, step);
		free(is);
		free(v);
	}
	gpu_use_device(&t->g, 0);
}

/* ---- a case ---- */

static void begin(struct trial *t, struct rank *rank, int devices)
{
	const uint64_t seed = *(const uint64_t *)rank->arg;
	char text[16];

	*t = (struct trial){ .random = seed * 0x9e3779b97f4a7c15u + 7 };
	(void)snprintf(text, sizeof(text), "%d", (int)seed);
	CHECK(!setenv("VCUDA_SEED", text, 1));
	gpu_begin(&t->g, rank, 0);
	t->devices = devices < t->g.devices ? devices : t->g.devices;
	t->real = rank->sk->os;
	t->os = *t->real;
	t->os.mmap = counted_mmap;
	t->os.ctx = (void *)(uintptr_t)t->real;
	make_items(t);
}

static void take(struct trial *t, int64_t step)
{
	fill(t, step);
	gpu_complete(&t->g, step);
}

static void limit(struct trial *t)
{
	static const uint64_t turns[] = { 1, 100000, MIB, 3 * MIB + 7 };
	static const uint64_t runs[] = { 1, 5000, MIB, 16 * MIB };

	t->limits = (struct sk_device_limits){
		.chunks = 1 + (below(t, 4) ? below(t, 5) : 4095),
		.turn = below(t, 5) ? turns[below(t, 4)] : 128 * MIB,
		.run = runs[below(t, 4)],
		.scratch = MIB * (1 + below(t, 4)) };
	t->g.rank->state->gpus.limits = &t->limits;
}

/* By the device alone. Returns what is said of it. */
static struct sk_report go_back(struct trial *t, int64_t step, uint32_t flags)
{
	const struct sk_os *os = t->g.rank->sk->os;
	uint64_t hashed = gpu_count(&t->g, "hashed");
	struct sk_report report;

	fill(t, 0);
	buffers = 0;
	t->g.rank->sk->os = &t->os;
	CHECK(!rank_restore(t->g.rank, step, flags, &report), "%s",
	      sk_error());
	t->g.rank->sk->os = os;
	hashed = gpu_count(&t->g, "hashed") - hashed;
	CHECK(report.step == step && !report.damaged);
	CHECK(report.bytes_memory == t->bytes);
	is_right(t, step, "back");
	CHECK(!buffers, "%d: something came by way of the CPU", buffers);
	if (!(flags & SK_RESTORE_NO_VERIFY)) {
		CHECK(report.bytes_verified == t->bytes);
		CHECK(!simulated || hashed == t->bytes, "%" PRIu64, hashed);
	}
	return report;
}

/* ---- out of locked memory ---- */

/* A byte of the slot that has the step's image. */
static bool damage(struct trial *t, int64_t step)
{
	struct sk_state *state = t->g.rank->state;
	const struct sk_layout *l = state->layouts[0];
	const struct sk_entry *e = &l->entries[below(t, l->n_entries)];
	uint64_t at = below(t, e->bytes);
	size_t i = strtoull(l->items[e->item].spec.name + 1, NULL, 10);

	for (uint32_t k = 0; k < state->n_slots; k++) {
		char *map = state->slots[k].map[0];
		bool is = true;

		for (uint64_t b = 0; b < e->bytes && is; b++)
			is = map[e->offset + b] == value(i, b, step);
		if (!is)
			continue;
		CHECK(!sk_slot_unprotect(state, k, NULL));
		map[e->offset + at] ^= 1;
		return true;
	}
	return false;
}

/* A call that fails: it is an error, or right. */
static void fails(struct trial *t, int64_t step)
{
	static const char *const names[] = {
		"cuMemAlloc", "cuLaunchKernel", "cuMemcpyHtoDAsync",
		"cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemcpy2DAsync",
		"cuMemcpyBatchAsync", "cuEventCreate", "cuEventRecord",
		"cuEventSynchronize", "cuStreamWaitEvent",
		"cuStreamCreateWithPriority", "cuMemHostRegister",
		"cuCtxPushCurrent" };
	const char *name = names[below(t, SK_ARRAY_SIZE(names))];
	unsigned nth = 1 + (unsigned)below(t, 30);
	int r;

	fill(t, 0);
	t->g.cuda.fail(name, nth, FAILED);
	r = rank_restore(t->g.rank, step, 0, NULL);
	t->g.cuda.fail(name, 0, 0);
	if (r >= 0)
		is_right(t, step, name);
}

static void lives(struct rank *rank)
{
	struct sk_report report;
	struct trial t;

	begin(&t, rank, DEVICES);
	arrange(&t, false);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	take(&t, 1);
	take(&t, 2);
	for (int i = 0; i < ROUNDS; i++) {
		limit(&t);
		if (i % 2)
			rearrange(&t);
		(void)go_back(&t, 1 + (int64_t)below(&t, 2),
			      below(&t, 6) ? 0 : SK_RESTORE_NO_VERIFY);
		limit(&t);
		if (simulated)
			fails(&t, 1 + (int64_t)below(&t, 2));
	}
	limit(&t);
	CHECK(damage(&t, 2), "no slot has it");
	fill(&t, 0);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == 1 && report.damaged == 1);
	is_right(&t, 1, "damaged");
}

/* ---- out of a device slot ---- */

static void save(struct rank *rank)
{
	int64_t step = 0;
	struct trial t;

	begin(&t, rank, 1);
	arrange(&t, false);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	do
		take(&t, ++step);
	while (!gpu_device_bytes(&t.g));
	take(&t, 1000);
	rank_ready(rank);
}

static void load(struct rank *rank)
{
	struct sk_report report;
	struct trial t;

	begin(&t, rank, 1);
	/* In places of its own. */
	t.random ^= 0x5555555555555555u;
	arrange(&t, true);
	for (int i = 0; i < ROUNDS; i++) {
		limit(&t);
		report = go_back(&t, 1000,
				 below(&t, 6) ? 0 : SK_RESTORE_NO_VERIFY);
		CHECK(report.bytes_device_slot == t.bytes, "%" PRIu64,
		      report.bytes_device_slot);
		limit(&t);
		if (simulated)
			fails(&t, 1000);
	}
}

/* Each job says its case. */
static void run(struct scene *scene, bool slots, uint64_t seed)
{
	char job[32];

	(void)snprintf(job, sizeof(job), "%s-%" PRIu64, slots ? "again" :
		       "lives", seed);
	if (!slots) {
		scene_ranks(scene, job, 1, lives, &seed);
		return;
	}
	scene_ranks_killed(scene, job, 1, save, &seed);
	scene_ranks(scene, job, 1, load, &seed);
}

static void run_all(int argc, char **argv, bool slots)
{
	const char *cases = getenv("SK_CASES"), *first = getenv("SK_SEED");
	uint64_t seed = first ? strtoull(first, NULL, 10) : 1;
	uint64_t end = seed + (cases ? strtoull(cases, NULL, 10) : CASES);
	struct scene scene;

	if (slots)
		CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "128M", 1));
	scene_open(&scene, argc, argv);
	for (; seed < end; seed++)
		run(&scene, slots, seed);
	scene_close(&scene);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;

	CHECK(!setenv("VCUDA_DEVICES", "2", 0));
	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	simulated = t.calls;
	run_all(argc, argv, false);
	run_all(argc, argv, true);
	return 0;
}
