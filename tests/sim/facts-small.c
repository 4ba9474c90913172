/* SPDX-License-Identifier: Apache-2.0 */
/* By lanes of the product, which ask for them as a snapshot would. */
#include "facts.h"

#include <stdio.h>

#include "cuda/gather.h"
#include "items.h"

#define COPIES_MOST 10000
#define SIZE_MOST ((size_t)64 << 10)
#define BAR 0.7			/* of what one copy of as many bytes has */
#define ROUNDS 3
#define MARKS 48	/* as a restore has buffers */
#define MIB ((size_t)1 << 20)

static const char *const ways[] = { "h2d", "d2h", "d2d" };

struct place {
	struct sk_cuda_lane *lane;
	struct sk_cuda_mark *marks[MARKS];
	struct sk_cuda_lock *lock;
	sk_cu_ptr there, other;
	char *here;
	size_t bytes;
};

/* @batches: whether the driver is to have them, if it does; else a kernel. */
static void open_place(struct place *p, const struct trainer_cuda *t,
		       bool batches)
{
	struct sk_cuda_device *device;
	struct sk_cuda *cuda;

	CHECK(!sk_cuda_new(sk_os_linux(), &cuda, NULL));
	CHECK(!sk_cuda_device(cuda, 0, &device, NULL));
	if (batches) {
		cuda->driver.cuLaunchKernel = NULL;
	} else {
		cuda->driver.cuMemcpyBatchAsync = NULL;
		cuda->driver.cuMemcpyBatchAsync_12080 = NULL;
	}
	CHECK(!sk_cuda_lane_new(device, &p->lane, NULL));
	for (size_t i = 0; i < MARKS; i++)
		CHECK(!sk_cuda_mark_new(device, &p->marks[i], NULL));
	p->bytes = SIZE_MOST * COPIES_MOST < fact_largest ?
		   SIZE_MOST * COPIES_MOST : fact_largest;
	p->there = trainer_cuda_alloc(t, p->bytes);
	p->other = trainer_cuda_alloc(t, p->bytes);
	p->here = fact_pages(p->bytes, 0);
	CHECK(!sk_cuda_lock(device, p->here, p->bytes, SK_CUDA_PIECE, &p->lock,
			    NULL));
}

static void ask(struct place *p, enum sk_cuda_way way,
		const struct sk_copy *copy)
{
	int r = way == SK_CUDA_ACROSS ?
		sk_cuda_lane_across(p->lane, copy, 0, copy->bytes, NULL) :
		way == SK_CUDA_OUT ?
		sk_cuda_lane_out(p->lane, copy, 0, copy->bytes, p->lock,
				 NULL) :
		sk_cuda_lane_in(p->lane, copy, 0, copy->bytes, p->lock, NULL);

	CHECK(!r);
}

static void mark(struct place *p, size_t turn)
{
	struct sk_cuda_mark *m = p->marks[turn % MARKS];

	CHECK(!sk_cuda_mark_wait(m, NULL));
	CHECK(!sk_cuda_mark_set(m, p->lane, NULL));
}

/* The source backwards, so that no two copies are one; asked for by so many at
 * once, each lot with a mark, as a restore has them through its buffers. Bytes
 * a second. */
static double copies_by(struct place *p, enum sk_cuda_way way, size_t n,
			size_t each, size_t at_once)
{
	char *there = (char *)(uintptr_t)p->there;
	char *other = (char *)(uintptr_t)p->other;
	double best = 1e9, took, from;

	for (int i = 0; i < ROUNDS; i++) {
		from = fact_now();
		for (size_t k = 0; k < n; k++) {
			size_t at = k * each, back = (n - 1 - k) * each;
			const struct sk_copy copy = {
				.dst = (way == SK_CUDA_IN ? there :
					way == SK_CUDA_OUT ? p->here :
					other) + at,
				.src = (way == SK_CUDA_IN ? p->here :
					there) + back,
				.run = each, .bytes = each };

			ask(p, way, &copy);
			if (!((k + 1) % at_once))
				mark(p, k / at_once);
		}
		CHECK(!sk_cuda_lane_finish(p->lane, NULL));
		took = fact_now() - from;
		best = took < best ? took : best;
	}
	return (double)(n * each) / best;
}

static double copies(struct place *p, enum sk_cuda_way way, size_t n,
		     size_t each)
{
	return copies_by(p, way, n, each, SIZE_MAX);
}

/* What a rank that has just begun asks for, by one thread that copies nothing:
 * a buffer of a MiB at a time, and several. */
static void lots(struct place *p, const char *by)
{
	static const size_t each[] = { SIZE_MOST, MIB };

	for (size_t i = 0; i < SK_ARRAY_SIZE(each); i++)
		for (size_t lot = 1; lot <= 16; lot *= 4) {
			size_t n = p->bytes / each[i];
			size_t at_once = lot * (MIB / each[i]);

			printf("{\"fact\": \"copies by lots\", \"by\": "
			       "\"%s\", \"copies\": %zu, \"bytes\": %zu, "
			       "\"at_once\": %zu, \"gb_per_s\": %.3f}\n",
			       by, n, each[i], at_once,
			       copies_by(p, SK_CUDA_IN, n, each[i],
					 at_once) / 1e9);
		}
}

static void small(struct place *p, enum sk_cuda_way way, const char *by)
{
	for (size_t each = 1024; each <= SIZE_MOST; each *= 8) {
		size_t n = p->bytes / each < COPIES_MOST ? p->bytes / each :
							   COPIES_MOST;
		double one = copies(p, way, 1, n * each);
		double many = copies(p, way, n, each);

		printf("{\"fact\": \"small copies\", \"way\": \"%s\", "
		       "\"by\": \"%s\", \"copies\": %zu, \"bytes\": %zu, "
		       "\"gb_per_s\": %.3f, \"of_one\": %.3f, "
		       "\"bar\": %.2f}\n", ways[way], by, n, each, many / 1e9,
		       many / one, each == SIZE_MOST ? BAR : 0);
	}
}

/* Elements of 4 bytes, by a kernel, where it can be had. */
static void turned(struct place *p, enum sk_cuda_way way)
{
	double best = 1e9, took, from;
	struct sk_copy copy;
	int64_t side = 64;

	while (4 * 4 * side * side <= (int64_t)p->bytes && side < 4096)
		side *= 2;
	CHECK(!sk_copy_init(&copy, 32, 2, (int64_t[]){ side, side },
			    way == SK_CUDA_OUT ? (void *)p->here :
			    (void *)(uintptr_t)p->other,
			    (int64_t[]){ side, 1 },
			    (void *)(uintptr_t)p->there,
			    (int64_t[]){ 1, side }, NULL));
	for (int i = 0; i < ROUNDS; i++) {
		from = fact_now();
		ask(p, way, &copy);
		CHECK(!sk_cuda_lane_finish(p->lane, NULL));
		took = fact_now() - from;
		best = took < best ? took : best;
	}
	printf("{\"fact\": \"transposed\", \"way\": \"%s\", \"side\": %lld, "
	       "\"gb_per_s\": %.3f, \"of_one\": %.3f}\n", ways[way],
	       (long long)side, (double)copy.bytes / best / 1e9,
	       (double)copy.bytes / best / copies(p, way, 1, copy.bytes));
}

void fact_small(void)
{
	struct place by_batch, by_kernel;
	struct trainer_cuda t;

	trainer_cuda_begin(&t, 0);
	open_place(&by_batch, &t, true);
	open_place(&by_kernel, &t, false);
	if (sk_cuda_has_batches(by_batch.lane))
		for (int way = SK_CUDA_IN; way <= SK_CUDA_ACROSS; way++)
			small(&by_batch, (enum sk_cuda_way)way, "batch");
	lots(&by_batch, sk_cuda_has_batches(by_batch.lane) ? "batch" : "call");
	if (sk_cuda_can_gather(by_kernel.lane))
		for (int way = SK_CUDA_IN; way <= SK_CUDA_ACROSS; way++)
			small(&by_kernel, (enum sk_cuda_way)way, "kernel");
	lots(&by_kernel, sk_cuda_can_gather(by_kernel.lane) ? "kernel" : "call");
	turned(&by_kernel, SK_CUDA_OUT);
	turned(&by_kernel, SK_CUDA_ACROSS);
}
