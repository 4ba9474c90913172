/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that has just begun passes what it restores through buffers of its
 * own. Where no more of those can be made, the ones that there are do.
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "conn/client.h"
#include "libclient/gpu-rank.h"
#include "restore/buffers.h"

#define MIB ((size_t)1 << 20)
#define BYTES (16 * MIB)
#define NOT_READY 600u
#define FAILED 304u		/* CUDA_ERROR_OPERATING_SYSTEM breaks nothing */

static bool simulated;

/* Of this process: so many times is there memory for buffers, then no more. */
static struct {
	const struct sk_os *real;
	struct sk_os os;
	size_t lot;		/* bytes that are made at once */
	int left;
	int made, refused;
} room;

static int limited_mmap(const struct sk_os *os, void *at, size_t size,
			int prot, int flags, int fd, uint64_t offset,
			void **ret_map)
{
	if (size == room.lot && fd < 0 &&
	    __atomic_sub_fetch(&room.left, 1, __ATOMIC_RELAXED) < 0) {
		__atomic_fetch_add(&room.refused, 1, __ATOMIC_RELAXED);
		return -ENOMEM;
	}
	if (size == room.lot && fd < 0)
		__atomic_fetch_add(&room.made, 1, __ATOMIC_RELAXED);
	return room.real->mmap(os, at, size, prot, flags, fd, offset, ret_map);
}

static void limit(struct rank *rank)
{
	room.real = rank->sk->os;
	room.os = *rank->sk->os;
	room.os.mmap = limited_mmap;
	room.left = 1 << 20;
	rank->sk->os = &room.os;
}

static void add(struct gpu_rank *g, const char *name, int device)
{
	gpu_add(g, &(struct sk_tensor){
		.name = name, .dtype = SK_F32, .ndim = 2,
		.shape = { BYTES / 4 / 1024, 1024 },
		.device = device % g->devices }, BYTES, 1);
}

static void save(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add(&g, "a", 0);
	add(&g, "b", 1);
	gpu_fill(&g, 1);
	gpu_complete(&g, 1);
	rank_ready(rank);
}

/* With that many threads, whatever the machine has. */
static void begin(struct gpu_rank *g, struct rank *rank, unsigned threads,
		  int tensors)
{
	gpu_begin(g, rank, 0);
	add(g, "a", 0);
	if (tensors > 1)
		add(g, "b", 1);
	rank->sk->threads_said = false;
	rank->sk->cpus = threads;
	room.lot = sk_restore_lot_bytes(threads, BYTES);
	limit(rank);
}

/* Memory for so many times a few buffers. */
static int restore(struct gpu_rank *g, int left)
{
	gpu_fill(g, 77);
	room.left = left;
	room.made = room.refused = 0;
	return rank_restore(g->rank, SK_LATEST, SK_RESTORE_EXTRA_OK, NULL);
}

static void is_right(struct gpu_rank *g, const char *what, int i)
{
	CHECK(!gpu_wrong(g, 1, -1), "%s %d", what, i);
}

/* ---- few calls ---- */

static uint64_t asked(const struct gpu_rank *g)
{
	return g->cuda.calls("cuMemcpyHtoDAsync") +
	       g->cuda.calls("cuMemcpyBatchAsync");
}

/* The device is asked for a lot at a time, and for the rest of the last one;
 * nothing else has to pass meanwhile, but where another one may be training. */
static void few(struct rank *rank)
{
	uint64_t calls, waits;
	struct gpu_rank g;

	begin(&g, rank, 8, 1);
	for (int reads = 0; reads < 2; reads++) {
		rank->state->job.flags |= reads ? SK_JOB_READER : 0;
		calls = asked(&g);
		waits = g.cuda.calls("cuStreamWaitEvent");
		CHECK(!restore(&g, 1 << 20), "%s", sk_error());
		calls = asked(&g) - calls;
		waits = g.cuda.calls("cuStreamWaitEvent") - waits;
		CHECK(calls <= BYTES / room.lot + 4, "%zu", (size_t)calls);
		CHECK(reads ? waits > 0 : !waits, "%zu", (size_t)waits);
		is_right(&g, "few", reads);
	}
}

/* Whoever trains again has the link for its own copies, too. */
static void gives_way(struct rank *rank)
{
	struct gpu_rank g;
	uint64_t waits;

	begin(&g, rank, 8, 2);
	CHECK(!restore(&g, 1 << 20), "%s", sk_error());
	waits = g.cuda.calls("cuStreamWaitEvent");
	gpu_complete(&g, 2);
	/* Of each device one is for the trainer's stream. */
	waits = g.cuda.calls("cuStreamWaitEvent") - waits;
	CHECK(waits > (uint64_t)(g.devices > 1 ? 2 : 1), "%zu",
	      (size_t)waits);
}

/* ---- some ---- */

/* However late the device reads them, there are no more than three for each
 * thread. It still reads the first one, so it seems, and others could be made:
 * they cannot. */
static void alone(struct rank *rank)
{
	struct gpu_rank g;

	begin(&g, rank, 1, 1);
	CHECK(!restore(&g, 1 << 20), "%s", sk_error());
	CHECK(room.made && room.made <= 3, "%d", room.made);
	for (unsigned nth = 1; nth < 6; nth++) {
		if (simulated)
			g.cuda.fail("cuEventQuery", nth, NOT_READY);
		CHECK(!restore(&g, 1), "%u: %s", nth, sk_error());
		CHECK(!simulated || room.refused, "%u: none was wanted", nth);
		is_right(&g, "query", (int)nth);
	}
}

/* More threads than buffers: one waits for what another gives back. */
static void together(struct rank *rank)
{
	struct gpu_rank g;

	begin(&g, rank, 6, 1);
	for (int i = 0; i < 6; i++) {
		CHECK(!restore(&g, 1 + i % 3), "%d: %s", i, sk_error());
		is_right(&g, "together", i);
	}
}

/* What becomes of some of them is no matter, as long as there are others. */
static void marks(struct rank *rank)
{
	struct gpu_rank g;

	begin(&g, rank, 4, 1);
	for (unsigned nth = 2; nth < 5; nth++) {
		g.cuda.fail("cuEventCreate", nth, FAILED);
		CHECK(!restore(&g, 1 << 20), "%u: %s", nth, sk_error());
		is_right(&g, "marks", (int)nth);
	}
}

/* ---- none ---- */

static void none(struct rank *rank)
{
	struct gpu_rank g;

	begin(&g, rank, 4, 2);
	CHECK(restore(&g, 0) == -ENOMEM);
	CHECK(strstr(sk_error(), "to restore through"), "%s", sk_error());
	/* Of one GPU there are some, of the other none. */
	if (g.devices > 1) {
		CHECK(restore(&g, 1) == -ENOMEM);
		CHECK(strstr(sk_error(), "to restore through"), "%s",
		      sk_error());
	}
	CHECK(!restore(&g, 1 << 20), "%s", sk_error());
	is_right(&g, "none", 0);
}

/* Who waits is told where whoever has one fails, too. */
static void failing(struct rank *rank)
{
	static const char *const names[] = {
		"cuMemcpyHtoDAsync", "cuEventRecord", "cuEventSynchronize",
		"cuCtxPushCurrent", "cuEventQuery", "cuEventCreate",
		"cuMemHostRegister" };
	struct gpu_rank g;

	begin(&g, rank, 6, 1);
	for (size_t i = 0; i < SK_ARRAY_SIZE(names); i++)
		for (unsigned nth = 1; nth < 20; nth += 1 + nth / 2) {
			int r;

			gpu_fill(&g, 77);
			room.left = 1 + (int)(nth % 2);
			g.cuda.fail(names[i], nth, FAILED);
			r = rank_restore(rank, SK_LATEST, 0, NULL);
			g.cuda.fail(names[i], 0, 0);
			CHECK(r >= 0 || sk_error()[0]);
			if (r >= 0)
				is_right(&g, names[i], (int)nth);
		}
	CHECK(!restore(&g, 1 << 20), "%s", sk_error());
	is_right(&g, "failing", 0);
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
	scene_ranks_killed(&scene, "buffers", 1, save, NULL);
	scene_ranks_killed(&scene, "trained", 1, save, NULL);
	scene_ranks(&scene, "buffers", 1, alone, NULL);
	scene_ranks(&scene, "buffers", 1, together, NULL);
	scene_ranks(&scene, "buffers", 1, none, NULL);
	if (simulated) {
		scene_ranks(&scene, "buffers", 1, few, NULL);
		scene_ranks(&scene, "trained", 1, gives_way, NULL);
		scene_ranks(&scene, "buffers", 1, marks, NULL);
		scene_ranks(&scene, "buffers", 1, failing, NULL);
	}
	scene_close(&scene);
	return 0;
}
