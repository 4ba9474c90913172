/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a snapshot and a restore of tensors on a GPU take, beside what the link
 * and the device can do, which plain copies of page-locked memory say in the
 * same process: one line of JSON each, as tests/sim/facts.c has them. On the
 * simulation the figures mean nothing, and that it runs does.
 * Arguments: the agent, cachectl, MiB of state (64).
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/util.h"
#include "libclient/gpu-passing.h"
#include "libclient/gpu-rank.h"
#include "sim/facts.h"
#include "state/slots.h"

#define MIB ((size_t)1 << 20)
#define SMALL ((size_t)64 << 10)
#define SMALL_MOST 10000
#define GAP ((size_t)512)	/* as allocators of frameworks round up to */
#define ROUNDS 3
#define PASSED ((size_t)1 << 30)

static size_t state_bytes;	/* set once */
static bool by_device;		/* the agent has memory of the device */

/* The same bytes as one tensor, or as small ones: neighbours, which are copied
 * at once, or with room between them. */
struct shape {
	const char *name;
	size_t n, each, gap;
};

/* Bytes a second, the best of some rounds. */
struct rates {
	double out, in, across;
};

struct trial {
	struct gpu_rank g;
	struct shape shape;
	struct rates most;	/* that there can be */
	sk_cu_ptr slab;
	int64_t step;
};

static size_t bytes_of(const struct trial *t)
{
	return t->shape.n * t->shape.each;
}

static void better(double *best, double bytes, double seconds)
{
	if (bytes / seconds > *best)
		*best = bytes / seconds;
}

/* ---- values: a figure of what is not right is none ---- */

#define LOOK 256	/* bytes of each piece */

static size_t pieces_of(const struct trial *t)
{
	return bytes_of(t) / SMALL;
}

static sk_cu_ptr piece_at(const struct trial *t, size_t i)
{
	return t->slab + i * SMALL + i * SMALL / t->shape.each * t->shape.gap;
}

static uint8_t value_of(size_t i)
{
	return (uint8_t)((i + 1) * 0x9e3779b97f4a7c15u >> 56);
}

static void fill(struct trial *t)
{
	for (size_t i = 0; i < pieces_of(t); i++)
		CHECK(!t->g.cuda.cuMemsetD8Async(piece_at(t, i), value_of(i),
						 SMALL, t->g.stream));
}

static void spoil(struct trial *t)
{
	for (size_t i = 0; i < pieces_of(t); i++)
		CHECK(!t->g.cuda.cuMemsetD8Async(piece_at(t, i),
						 (uint8_t)~value_of(i), SMALL,
						 t->g.stream));
	CHECK(!t->g.cuda.driver.cuStreamSynchronize(t->g.stream));
}

static void check_values(const struct trial *t)
{
	uint8_t got[LOOK];

	for (size_t i = 0; i < pieces_of(t); i++) {
		size_t at = i * 4099 % (SMALL - LOOK);

		trainer_cuda_get(&t->g.cuda, got, piece_at(t, i) + at, LOOK);
		for (size_t k = 0; k < LOOK; k++)
			CHECK(got[k] == value_of(i), "%s: piece %zu is not "
			      "what was saved", t->shape.name, i);
	}
}

/* ---- what there can be ---- */

static double finish(const struct trial *t, double from)
{
	CHECK(!t->g.cuda.driver.cuStreamSynchronize(t->g.stream));
	return fact_now() - from;
}

static void measure_copies(struct trial *t)
{
	const struct sk_cuda_driver *d = &t->g.cuda.driver;
	size_t n = bytes_of(t);
	sk_cu_ptr other = trainer_cuda_alloc(&t->g.cuda, n);
	void *host = fact_pages(n, 0);

	CHECK(!d->cuMemHostRegister(host, n, 1));
	for (int i = 0; i < ROUNDS; i++) {
		double from = fact_now();

		CHECK(!d->cuMemcpyDtoHAsync(host, t->slab, n, t->g.stream));
		better(&t->most.out, (double)n, finish(t, from));
		from = fact_now();
		CHECK(!d->cuMemcpyHtoDAsync(t->slab, host, n, t->g.stream));
		better(&t->most.in, (double)n, finish(t, from));
		from = fact_now();
		CHECK(!d->cuMemcpyDtoDAsync(other, t->slab, n, t->g.stream));
		better(&t->most.across, (double)n, finish(t, from));
	}
	CHECK(!d->cuMemHostUnregister(host));
	CHECK(!munmap(host, n) && !d->cuMemFree(other));
}

/* ---- what there is ---- */

static void say(const struct trial *t, const char *what, double value)
{
	printf("{\"fact\": \"bar\", \"what\": \"%s\", \"of\": \"%s\", "
	       "\"tier\": \"%s\", \"mib\": %zu, \"value\": %.4f", what,
	       t->shape.name, by_device ? "device" : "host",
	       bytes_of(t) / MIB, value);
}

static void say_bar(double bar, bool met)
{
	printf(", \"bar\": %.2f, \"met\": %s", bar, met ? "true" : "false");
}

static void say_no_more(void)
{
	puts("}");
}

static void say_ms(const struct trial *t, const char *what, double seconds,
		   double bar)
{
	say(t, what, seconds * 1e3);
	if (bar > 0)
		say_bar(bar, seconds * 1e3 <= bar);
	say_no_more();
}

static void say_rate(const struct trial *t, const char *what, double of_most,
		     double bar)
{
	say(t, what, of_most);
	if (bar > 0)
		say_bar(bar, of_most >= bar);
	say_no_more();
}

struct name {
	char text[24];
};

static void describe(struct trial *t)
{
	struct sk_tensor *tensors = calloc(t->shape.n, sizeof(*tensors));
	struct name *names = calloc(t->shape.n, sizeof(*names));

	CHECK(tensors && names);
	t->slab = trainer_cuda_alloc(&t->g.cuda, bytes_of(t) +
				     t->shape.n * t->shape.gap);
	for (size_t i = 0; i < t->shape.n; i++) {
		(void)snprintf(names[i].text, sizeof(names[i].text), "t%zu",
			       i);
		tensors[i] = (struct sk_tensor){
			.name = names[i].text, .dtype = SK_U8, .ndim = 1,
			.shape = { (int64_t)t->shape.each },
			.memory = SK_CUDA,
			.data = (void *)(uintptr_t)(t->slab +
						    i * (t->shape.each +
							 t->shape.gap)) };
	}
	CHECK(!sk_state_tensors(t->g.rank->state, tensors, t->shape.n), "%s",
	      sk_error());
	free(names);
	free(tensors);
}

/* Seconds: what the call takes of the trainer's thread, and with a fence of its
 * stream right behind it; until its stream goes on; until its thread knows that
 * its memory is its own again. */
struct took {
	double call, fenced, goes_on, free;
};

static void snapshot(struct trial *t, struct took *ret)
{
	struct sk_state *state = t->g.rank->state;
	double from;

	fill(t);
	(void)finish(t, 0);
	from = fact_now();
	CHECK(!gpu_snapshot(&t->g, ++t->step, 0), "%s", sk_error());
	ret->call = fact_now() - from;
	CHECK(!sk_fence_stream(state, (uintptr_t)t->g.stream), "%s",
	      sk_error());
	ret->fenced = fact_now() - from;
	ret->goes_on = finish(t, from);
	CHECK(!sk_fence(state), "%s", sk_error());
	ret->free = fact_now() - from;
	CHECK(!sk_wait(state, t->step, SK_COMPLETE, 60000), "%s", sk_error());
}

/* What the trainer writes behind either fence is in no snapshot. */
static void prove(struct trial *t, bool by_stream)
{
	struct sk_state *state = t->g.rank->state;

	fill(t);
	CHECK(!gpu_snapshot(&t->g, ++t->step, 0), "%s", sk_error());
	CHECK(!(by_stream ?
		sk_fence_stream(state, (uintptr_t)t->g.stream) :
		sk_fence(state)), "%s", sk_error());
	spoil(t);
	CHECK(!sk_wait(state, t->step, SK_COMPLETE, 60000), "%s", sk_error());
	CHECK(!rank_restore(t->g.rank, t->step, 0, NULL), "%s", sk_error());
	check_values(t);
}

/* As of a process that has just begun. */
static void forget_slots(struct sk_state *state)
{
	(void)pthread_mutex_lock(&state->lock);
	sk_slots_unmap(state);
	(void)pthread_mutex_unlock(&state->lock);
}

/* Bytes a second. */
static double restore_by(struct trial *t, uint32_t flags, bool begun)
{
	struct sk_report report;
	double in = 0, from;

	for (int i = 0; i < ROUNDS; i++) {
		if (begun)
			forget_slots(t->g.rank->state);
		spoil(t);
		from = fact_now();
		CHECK(!rank_restore(t->g.rank, SK_LATEST, flags, &report),
		      "%s", sk_error());
		better(&in, (double)bytes_of(t), fact_now() - from);
		CHECK(report.bytes_device_slot ==
		      (by_device ? bytes_of(t) : 0), "%s: another way",
		      t->shape.name);
	}
	check_values(t);
	return in;
}

static void restore(struct trial *t)
{
	double in = restore_by(t, 0, false);
	double unverified = restore_by(t, SK_RESTORE_NO_VERIFY, false);

	say_rate(t, "restored without checksums, of the same",
		 unverified / (by_device ? t->most.across : t->most.in), 0);
	/* Out of a device slot nothing crosses the link. */
	if (by_device)
		say_rate(t, "restored, of the device's rate",
			 in / t->most.across, 0);
	else {
		say_rate(t, "restored, of the link's rate", in / t->most.in,
			 0.95);
		say_rate(t, "restored by who has just begun, of the same",
			 restore_by(t, 0, true) / t->most.in, 0.95);
	}
}

/* The one that warms what there is to be is not counted. */
static void until_ready(struct trial *t)
{
	struct took ignored;

	CHECK(!sk_prepare(t->g.rank->state, 60000), "%s", sk_error());
	do
		snapshot(t, &ignored);
	while (by_device && !gpu_device_bytes(&t->g));
}

static void snapshots(struct trial *t)
{
	struct took best = { 1e9, 1e9, 1e9, 1e9 }, took;
	double n = (double)bytes_of(t);
	bool one_tensor = t->shape.n == 1;

	for (int i = 0; i < ROUNDS; i++) {
		snapshot(t, &took);
		best.call = took.call < best.call ? took.call : best.call;
		best.fenced = took.fenced < best.fenced ? took.fenced :
							  best.fenced;
		best.goes_on = took.goes_on < best.goes_on ? took.goes_on :
							     best.goes_on;
		best.free = took.free < best.free ? took.free : best.free;
	}
	say_ms(t, "ms of the snapshot's call", best.call, 1);
	say_ms(t, "ms with a fence of the stream behind it", best.fenced, 0);
	say_ms(t, "ms until the stream goes on", best.goes_on, 0);
	if (by_device)
		say_rate(t, "safe to overwrite, of the device's rate",
			 n / best.free / t->most.across,
			 one_tensor ? 0.8 : 0.7);
	else
		say_rate(t, "safe to overwrite, of the link's rate",
			 n / best.free / t->most.out,
			 one_tensor ? 0.95 : 0.7);
}

static void try_shape(struct rank *rank, struct shape shape)
{
	struct trial t = { .shape = shape };

	gpu_begin(&t.g, rank, 0);
	describe(&t);
	measure_copies(&t);
	until_ready(&t);
	snapshots(&t);
	prove(&t, true);
	prove(&t, false);
	restore(&t);
	fflush(stdout);
}

static void one(struct rank *rank)
{
	try_shape(rank, (struct shape){ "one tensor", 1, state_bytes });
}

static size_t small_ones(void)
{
	size_t n = state_bytes / SMALL;

	return n < SMALL_MOST ? n : SMALL_MOST;
}

static void many(struct rank *rank)
{
	try_shape(rank, (struct shape){ "small tensors", small_ones(), SMALL });
}

static void many_apart(struct rank *rank)
{
	try_shape(rank, (struct shape){ "small tensors apart", small_ones(),
					SMALL, GAP });
}

static void try_all(struct scene *scene)
{
	scene_ranks(scene, by_device ? "one-device" : "one", 1, one, NULL);
	scene_ranks(scene, by_device ? "many-device" : "many", 1, many, NULL);
	scene_ranks(scene, by_device ? "apart-device" : "apart", 1, many_apart,
		    NULL);
}

int main(int argc, char **argv)
{
	size_t mib = argc > 3 ? strtoull(argv[3], NULL, 10) : 64;
	char memory[32], on_device[32];
	struct trainer_cuda t;
	struct scene scene;

	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	state_bytes = (mib < 4 ? 4 : mib) * MIB;
	scene_open(&scene, argc, argv);
	scene_stop_agent(&scene, SIGTERM);
	(void)snprintf(memory, sizeof(memory), "%zuM", 6 * mib + 256);
	(void)snprintf(on_device, sizeof(on_device), "%zuM", 2 * mib + 64);
	scene.memory = memory;
	scene.has_threads = true;
	CHECK(!unsetenv("SHARDKEEP_DEVICE_MEMORY"));
	scene_start_agent(&scene);
	try_all(&scene);
	scene_stop_agent(&scene, SIGTERM);
	gpu_passing_facts(state_bytes < PASSED ? state_bytes : PASSED);
	by_device = t.driver.cuMemCreate != NULL;
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", on_device, 1));
	scene_start_agent(&scene);
	if (by_device)
		try_all(&scene);
	scene_close(&scene);
	return 0;
}
