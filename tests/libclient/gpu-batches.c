/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a GPU fetches by itself, by batches of a few chunks: random tensors, in
 * random places before and after, come back out of slots that are page-locked
 * and out of device slots, all of them, by the device alone, and nothing
 * beside them is touched. What is damaged, or fails, on the way is none the
 * worse for coming in any of the batches. $SK_CASES says how many cases,
 * $SK_SEED which is the first.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "conn/client.h"
#include "cuda/share.h"
#include "libclient/gpu-rank.h"
#include "restore/device-pass.h"
#include "state/slots.h"

#define MIB ((uint64_t)1 << 20)
#define GRAIN ((uint64_t)64 << 10)	/* neighbours are to be had by that */
#define ITEMS_MOST 36
#define SLABS_MOST 48
#define DEVICES 2
#define CASES 3			/* of each kind */
#define ROUNDS 4
#define BESIDE 5		/* what lies between tensors */
#define FAILED 304u		/* CUDA_ERROR_OPERATING_SYSTEM breaks nothing */
#define BUFFERS_MOST (8 * MIB)	/* what bytes pass through by way of the CPU */

/* Bytes, in rows that lie apart where the pitch is larger. */
struct item {
	uint64_t rows, width, pitch;
	bool apart;		/* they do */
	int device, slab;
	uint64_t at;		/* in that */
	bool cut, turned;	/* it is described as two parts; the later
				 * one first */
};

struct slab {
	int device;
	uint64_t bytes;
	bool goes_on;		/* the next one is to begin where it ends */
	sk_cu_ptr there;
};

struct trial {
	struct gpu_rank g;
	uint64_t random;
	int devices;
	size_t n_items, n_slabs;
	struct item items[ITEMS_MOST];
	struct slab slabs[SLABS_MOST];
	char names[ITEMS_MOST][24];
	uint64_t bytes;		/* of all items */
	struct sk_device_limits limits;
};

static bool simulated;
/* Made by this process. */
static int buffers;
static const struct sk_os *real;

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
	if (size >= MIB && size <= BUFFERS_MOST && !(size % MIB) && fd < 0)
		__atomic_fetch_add(&buffers, 1, __ATOMIC_RELAXED);
	return real->mmap(os, at, size, prot, flags, fd, offset, ret_map);
}

/* From now on, before there are threads. */
static void count_buffers(struct sk *sk)
{
	static struct sk_os os;

	real = sk->os;
	os = *real;
	os.mmap = counted_mmap;
	sk->os = &os;
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

/* Cut where a chunk ends, or in the middle of one. */
static void make_even(struct trial *t, struct item *x)
{
	x->rows = below(t, 2) ? 4 : 6;
	x->width = MIB / 2;
	x->apart = true;
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
		if (!below(t, 10))
			make_even(t, x);
		else if (!below(t, 14))
			*x = (struct item){ .rows = 1 };
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

static struct slab *next_slab(struct trial *t, int device)
{
	struct slab *s = &t->slabs[t->n_slabs++];

	CHECK(t->n_slabs <= SLABS_MOST);
	*s = (struct slab){ .device = device };
	return s;
}

/* Of those of one device each lies behind the one before it, with room between
 * them or none; sometimes another allocation begins there, and sometimes right
 * there. */
static void place(struct trial *t, int device, bool cut)
{
	struct slab *s = next_slab(t, device);

	for (size_t i = 0; i < t->n_items; i++) {
		struct item *x = &t->items[i];

		if (x->device != device)
			continue;
		x->pitch = x->width + (x->apart ? 1 + below(t, 90) :
					   below(t, 3) ? 0 : below(t, 90));
		x->cut = cut && x->rows > 1 && below(t, x->apart ? 4 : 2);
		x->turned = below(t, 2);
		if (s->goes_on || (s->bytes && !below(t, 6)))
			s = next_slab(t, device);
		if (s->bytes && !below(t, 3))
			s->bytes += 1 + below(t, 200);
		x->slab = (int)(s - t->slabs);
		x->at = s->bytes;
		s->goes_on = x->width && !below(t, 4);
		if (s->goes_on)
			x->at = sk_round_up(x->at + span(x), GRAIN) - span(x);
		s->bytes = x->at + span(x);
	}
	s->bytes += !s->bytes;
	s->goes_on = false;
}

static void make(struct trial *t, struct slab *s)
{
	gpu_use_device(&t->g, s->device);
	s->there = trainer_cuda_alloc(&t->g.cuda, s->bytes);
}

/* The simulation gives a freed one's address to the next of its size, and what
 * lies below that to one that fits there; not beside every sanitizer. */
static void make_neighbours(struct trial *t, struct slab *s)
{
	s[1].bytes = s[1].bytes > s->bytes ? s[1].bytes : s->bytes + GRAIN;
	make(t, s + 1);
	CHECK(!t->g.cuda.driver.cuMemFree(s[1].there));
	make(t, s);
	make(t, s + 1);
}

static void allocate(struct trial *t)
{
	for (size_t i = 0; i < t->n_slabs; i++)
		if (t->slabs[i].goes_on)
			make_neighbours(t, &t->slabs[i++]);
		else
			make(t, &t->slabs[i]);
	gpu_use_device(&t->g, 0);
}

static sk_cu_ptr address(const struct trial *t, const struct item *x)
{
	return t->slabs[x->slab].there + x->at;
}

static void describe_one(struct trial *t, size_t i)
{
	const struct item *x = &t->items[i];
	int64_t rows = (int64_t)x->rows, width = (int64_t)x->width;
	int64_t strides[2] = { (int64_t)x->pitch, 1 };
	int64_t cut = rows / 2;
	char *data = (char *)(uintptr_t)address(t, x);
	struct sk_part parts[3] = {
		{ .box = { { 0, 0 }, { cut, width } }, .data = data },
		{ .box = { { cut, 0 }, { rows - cut, width } },
		  .data = data + (uint64_t)cut * x->pitch } };
	struct sk_tensor d = {
		.name = t->names[i], .dtype = SK_U8, .ndim = 2,
		.shape = { rows, width },
		.memory = SK_CUDA, .device = x->device, .data = data };

	memcpy(parts[0].strides, strides, sizeof(strides));
	memcpy(parts[1].strides, strides, sizeof(strides));
	parts[2] = parts[0];
	memcpy(d.strides, strides, sizeof(strides));
	if (x->cut) {
		memset(d.strides, 0, sizeof(d.strides));
		d.data = NULL;
		d.parts = parts + x->turned;
		d.n_parts = 2;
	}
	CHECK(!sk_state_tensor(t->g.rank->state, &d), "%s", sk_error());
}

static void describe(struct trial *t)
{
	for (size_t i = 0; i < t->n_items; i++)
		describe_one(t, i);
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

static void rearrange(struct trial *t, bool cut)
{
	struct slab before[SLABS_MOST];
	size_t n = t->n_slabs;

	memcpy(before, t->slabs, sizeof(before));
	arrange(t, cut);
	let_go(t, before, n);
}

/* ---- what is in it ---- */

static char value(size_t i, uint64_t at, int64_t step)
{
	return (char)((at * 31 >> 5) + i * 113 + (uint64_t)step * 7);
}

static void put_item(const struct trial *t, size_t i, int64_t step, char *v)
{
	const struct item *x = &t->items[i];

	for (uint64_t k = 0; k < x->rows * x->width; k++)
		v[x->at + k / x->width * x->pitch + k % x->width] =
			value(i, k, step);
}

/* Of a slab, what is to be there: tensors of that step, or all BESIDE. */
static char *wanted(const struct trial *t, size_t slab, int64_t step)
{
	char *v = malloc(t->slabs[slab].bytes);

	CHECK(v);
	memset(v, BESIDE, t->slabs[slab].bytes);
	for (size_t i = 0; i < t->n_items && step > 0; i++)
		if (t->items[i].slab == (int)slab)
			put_item(t, i, step, v);
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
	count_buffers(rank->sk);
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
	uint64_t hashed = gpu_count(&t->g, "hashed");
	struct sk_report report;

	fill(t, 0);
	__atomic_store_n(&buffers, 0, __ATOMIC_RELAXED);
	CHECK(!rank_restore(t->g.rank, step, flags, &report), "%s",
	      sk_error());
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
	const struct sk_entry *e;
	uint64_t at;
	size_t i;

	do
		e = &l->entries[below(t, l->n_entries)];
	while (!e->bytes);
	at = below(t, e->bytes);
	i = strtoull(l->items[e->item].spec.name + 1, NULL, 10);
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
static void one_fails(struct trial *t, int64_t step, const char *name,
		      unsigned nth)
{
	int r;

	fill(t, 0);
	t->g.cuda.fail(name, nth, FAILED);
	r = rank_restore(t->g.rank, step, 0, NULL);
	t->g.cuda.fail(name, 0, 0);
	if (r >= 0)
		is_right(t, step, name);
}

/* Those that copy, and may say so when they are waited for. */
static void copies_fail(struct trial *t, int64_t step)
{
	static const char *const names[] = {
		"cuMemcpyBatchAsync", "cuLaunchKernel", "cuMemcpyDtoDAsync",
		"cuMemcpy2DAsync" };

	/* In one batch: then they are the first. */
	t->g.rank->state->gpus.limits = NULL;
	for (size_t i = 0; i < SK_ARRAY_SIZE(names); i++)
		for (unsigned nth = 1; nth < 8; nth++)
			one_fails(t, step, names[i], nth);
}

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

	one_fails(t, step, name, 1 + (unsigned)below(t, 30));
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
			rearrange(&t, false);
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

/* Takes snapshots until there is a device slot. The step of the last one. */
static int64_t begin_on_device(struct trial *t, struct rank *rank)
{
	int64_t step = 0;

	begin(t, rank, 1);
	arrange(t, false);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	do
		take(t, ++step);
	while (!gpu_device_bytes(&t->g));
	return step;
}

static void save(struct rank *rank)
{
	struct trial t;

	(void)begin_on_device(&t, rank);
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
		if (i % 2)
			rearrange(&t, true);
		report = go_back(&t, 1000,
				 below(&t, 6) ? 0 : SK_RESTORE_NO_VERIFY);
		CHECK(report.bytes_device_slot == t.bytes, "%" PRIu64,
		      report.bytes_device_slot);
		limit(&t);
		if (simulated)
			fails(&t, 1000);
	}
	if (simulated && *(const uint64_t *)rank->arg % 3 == 1)
		copies_fail(&t, 1000);
}

/* What is wrong there in several places comes out of the slot of host memory,
 * which is locked. */
static void spoilt(struct rank *rank)
{
	struct sk_report report;
	int64_t step;
	struct trial t;

	step = begin_on_device(&t, rank);
	for (int i = 0; i < ROUNDS; i++) {
		take(&t, ++step);
		rearrange(&t, false);
		fill(&t, 0);
		for (uint64_t n = 1 + below(&t, 6); n; n--)
			CHECK(!t.g.cuda.cuMemsetD8Async(
				sk_cuda_share_ptr(
					rank->state->device_slot.share) +
				below(&t, t.bytes), 0x5a, 1, 0));
		limit(&t);
		__atomic_store_n(&buffers, 0, __ATOMIC_RELAXED);
		CHECK(!rank_restore(rank, step, 0, &report), "%s",
		      sk_error());
		CHECK(report.bytes_memory == t.bytes);
		CHECK(report.damaged == (report.bytes_device_slot < t.bytes),
		      "%u", report.damaged);
		CHECK(!buffers, "%d: something came by way of the CPU",
		      buffers);
		is_right(&t, step, "spoilt");
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
	(void)snprintf(job, sizeof(job), "spoilt-%" PRIu64, seed);
	scene_ranks(scene, job, 1, spoilt, &seed);
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
