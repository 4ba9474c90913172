/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in memory that was mapped in pieces, as PyTorch's expandable segments
 * are: one range of addresses is reserved for all of a device, pieces are
 * mapped into it one by one, tensors lie across them, and pieces go and others
 * come in their place.
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "libclient/gpu-rank.h"
#include "state/state.h"
#include "state/work.h"

#define PIECES 6

struct mapped {
	struct gpu_rank g;
	sk_cu_ptr base;
	size_t piece;		/* bytes */
};

static const sk_cu_allocation of_device = {
	.type = SK_CU_ALLOCATION_PINNED,
	.location = { SK_CU_LOCATION_DEVICE, 0 },
};

static void map_piece(struct mapped *m, size_t i)
{
	const sk_cu_access access = { { SK_CU_LOCATION_DEVICE, 0 },
				      SK_CU_ACCESS_READ_WRITE };
	const struct sk_cuda_driver *d = &m->g.cuda.driver;
	sk_cu_ptr at = m->base + i * m->piece;
	sk_cu_handle handle;

	CHECK(!d->cuMemCreate(&handle, m->piece, &of_device, 0));
	CHECK(!d->cuMemMap(at, m->piece, 0, handle, 0));
	CHECK(!d->cuMemSetAccess(at, m->piece, &access, 1));
	CHECK(!d->cuMemRelease(handle));
}

static void unmap_piece(struct mapped *m, size_t i)
{
	CHECK(!m->g.cuda.driver.cuMemUnmap(m->base + i * m->piece, m->piece));
}

static void map_all(struct mapped *m, struct rank *rank)
{
	const struct sk_cuda_driver *d = &m->g.cuda.driver;

	gpu_begin(&m->g, rank, 0);
	CHECK(!d->cuMemGetAllocationGranularity(&m->piece, &of_device,
						SK_CU_GRANULARITY_MINIMUM));
	CHECK(!d->cuMemAddressReserve(&m->base, 2 * PIECES * m->piece, 0, 0,
				      0));
	for (size_t i = 0; i < PIECES; i++)
		map_piece(m, i);
}

/* From @from on in the range. */
static struct gpu_tensor *add(struct mapped *m, const char *name, size_t from,
			      size_t bytes)
{
	struct gpu_tensor *x = &m->g.tensors[m->g.n++];

	*x = (struct gpu_tensor){
		.t = { .name = name, .dtype = SK_F32, .ndim = 1,
		       .shape = { (int64_t)bytes / 4 } },
		.here = rank_memory(bytes, 0xee), .there = m->base + from,
		.bytes = bytes };
	gpu_describe(&m->g, x, true);
	return x;
}

/* One within a piece, one across four, one behind it, one in the last piece. */
static struct gpu_tensor *add_all(struct mapped *m)
{
	size_t p = m->piece;

	add(m, "within", 4096, p / 4);
	add(m, "across", p - 512, 2 * p + 1024);
	add(m, "behind", 3 * p + 512, p);
	return add(m, "last", 5 * p + 1024, p / 2);
}

static void refused(int r, const char *word)
{
	CHECK(r == -EFAULT, "%d: %s", r, sk_error());
	CHECK(strstr(sk_error(), word), "%s", sk_error());
}

static void save(struct rank *rank)
{
	struct gpu_tensor *last;
	struct mapped m;

	map_all(&m, rank);
	last = add_all(&m);
	gpu_fill(&m.g, 1);
	gpu_complete(&m.g, 1);
	/* Other memory at the same address. */
	unmap_piece(&m, 5);
	map_piece(&m, 5);
	refused(gpu_snapshot(&m.g, 2, 0), "\"last\"");
	gpu_describe(&m.g, last, true);
	gpu_fill(&m.g, 2);
	gpu_complete(&m.g, 2);
	if (m.g.cuda.fail) {
		m.g.cuda.fail("cuMemGetAddressRange", 2, SK_CU_LAUNCH_FAILED);
		CHECK(gpu_snapshot(&m.g, 3, 0) == -EIO);
		CHECK(strstr(sk_error(), "LAUNCH_FAILED"), "%s", sk_error());
	}
	rank_ready(rank);
}

/* And then none. */
static void lose(struct rank *rank)
{
	struct mapped m;

	map_all(&m, rank);
	add_all(&m);
	gpu_fill(&m.g, 2);
	gpu_complete(&m.g, 1);
	unmap_piece(&m, 5);
	refused(gpu_snapshot(&m.g, 2, 0), "\"last\"");
	refused(sk_state_tensor(rank->state, &(struct sk_tensor){
		.name = "beyond", .dtype = SK_U8, .ndim = 1,
		.shape = { (int64_t)(2 * m.piece) }, .memory = SK_CUDA,
		.data = (void *)(uintptr_t)(m.base + 4 * m.piece) }),
		"\"beyond\"");
}

static void load(struct rank *rank)
{
	struct sk_report report;
	struct mapped m;

	map_all(&m, rank);
	add_all(&m);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == 2 && gpu_wrong(&m.g, 2, rank->rank) == 0);
}

/* By a device slot too, and out of it. */
static void save_twice(struct rank *rank)
{
	struct mapped m;
	int64_t step;

	map_all(&m, rank);
	add_all(&m);
	step = gpu_until_served(&m.g) + 1;
	gpu_fill(&m.g, step);
	gpu_complete(&m.g, step);
	CHECK(!rank_restore(rank, SK_LATEST, 0, NULL), "%s", sk_error());
	CHECK(gpu_wrong(&m.g, step, rank->rank) == 0);
}

/* One copy of two pieces is none: the driver may refuse it. And what is mapped
 * in the middle of a tensor in place of something else is what is copied. */
static void neighbours(struct rank *rank)
{
	static char host[100];
	struct mapped m;
	size_t p;

	map_all(&m, rank);
	p = m.piece;
	add(&m, "a", 0, p);
	add(&m, "b", p, p);
	add(&m, "c", 2 * p, p / 2);
	add(&m, "d", 2 * p + p / 2, 2 * p);
	/* In the image there is one of the host's between these. */
	add(&m, "e", 5 * p, 100);
	CHECK(!sk_state_tensor(rank->state, &(struct sk_tensor){
		.name = "host", .dtype = SK_F32, .ndim = 1, .shape = { 25 },
		.data = host }), "%s", sk_error());
	add(&m, "f", 5 * p + 100, 100);
	gpu_fill(&m.g, 1);
	gpu_complete(&m.g, 1);
	CHECK(rank->state->work->n_asks == 5, "%u asks",
	      rank->state->work->n_asks);
	for (int64_t step = 2; step < 4; step++) {
		unmap_piece(&m, 3);
		map_piece(&m, 3);
		gpu_fill(&m.g, step);
		gpu_complete(&m.g, step);
	}
	gpu_fill(&m.g, 4);
	CHECK(!rank_restore(rank, 3, 0, NULL), "%s", sk_error());
	CHECK(gpu_wrong(&m.g, 3, rank->rank) == 0);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	if (!t.driver.cuMemCreate)
		return 77;
	setenv("SHARDKEEP_DEVICE_MEMORY", "64M", 1);
	scene_open(&scene, argc, argv);
	scene_ranks_killed(&scene, "mapped", 1, save, NULL);
	scene_ranks(&scene, "mapped", 1, load, NULL);
	scene_ranks(&scene, "lost", 1, lose, NULL);
	scene_ranks(&scene, "served", 1, save_twice, NULL);
	scene_ranks(&scene, "neighbours", 1, neighbours, NULL);
	scene_close(&scene);
	return 0;
}
