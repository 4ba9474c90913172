/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots of tensors on a GPU, attacked: each call of the driver that one
 * makes fails in its turn, breaks the context, or is the process's end; into
 * host memory alone, and by a device slot. What was sealed is what there was
 * when the snapshot was called, nothing copies behind the fence, the next one
 * is as if nothing had been, and nothing is left.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/util.h"
#include "libclient/gpu-rank.h"
#include "support/await.h"

#define KILL UINT32_MAX		/* as a result: the call kills the process */
#define OPERATING_SYSTEM 304u	/* breaks nothing */
#define NTH_MOST 3u		/* of one call: what comes later is like it */
#define KILLS_MOST 2u		/* the same */
#define SMALL 6			/* tensors */
#define SMALL_BYTES 3000
#define HOST_BYTES 10000
#define GAP 0xee
#define OVER 0xdd		/* what the trainer goes on with */

struct one {
	sk_cu_ptr at;
	char *here;
	size_t bytes;		/* of memory */
	size_t elements;	/* bytes of it that are the tensor's */
};

struct rig {
	struct gpu_rank g;
	struct one v[3 + SMALL];
	char *host;
	int n;
	bool breaks, fails;	/* its context does; a call may */
};

static unsigned char value_of(int64_t step)
{
	return (unsigned char)(1 + step % 200);
}

static void add(struct rig *rig, struct sk_tensor t, size_t bytes,
		size_t elements)
{
	struct one *x = &rig->v[rig->n++];

	*x = (struct one){ .at = trainer_cuda_alloc(&rig->g.cuda, bytes),
			   .here = rank_memory(bytes, GAP), .bytes = bytes,
			   .elements = elements };
	t.memory = SK_CUDA;
	t.data = (void *)(uintptr_t)x->at;
	CHECK(!sk_state_tensor(rig->g.rank->state, &t), "%s", sk_error());
}

static void begin(struct rig *rig, struct rank *rank)
{
	static char names[SMALL][8];

	*rig = (struct rig){ 0 };
	gpu_begin(&rig->g, rank, 0);
	add(rig, (struct sk_tensor){
		.name = "big", .dtype = SK_F32, .ndim = 2,
		.shape = { 60, 1000 } }, 240000, 240000);
	add(rig, (struct sk_tensor){
		.name = "rows", .dtype = SK_F32, .ndim = 2,
		.shape = { 50, 100 }, .strides = { 150, 1 } },
		50 * 600, 50 * 400);
	add(rig, (struct sk_tensor){
		.name = "across", .dtype = SK_F32, .ndim = 2,
		.shape = { 200, 100 }, .strides = { 1, 200 } },
		80000, 80000);
	for (int i = 0; i < SMALL; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "s%d", i);
		add(rig, (struct sk_tensor){
			.name = names[i], .dtype = SK_U8, .ndim = 1,
			.shape = { SMALL_BYTES } }, SMALL_BYTES, SMALL_BYTES);
	}
	rig->host = rank_memory(10000, 0);
	CHECK(!sk_state_blob_local(rank->state, "host", rig->host, HOST_BYTES));
}

/* Queued on the trainer's stream. */
static void fill(struct rig *rig, int with)
{
	for (int i = 0; i < rig->n; i++)
		(void)rig->g.cuda.cuMemsetD8Async(rig->v[i].at,
						  (unsigned char)with,
						  rig->v[i].bytes,
						  rig->g.stream);
}

static void settle(struct rig *rig)
{
	CHECK(!rig->g.cuda.driver.cuCtxSynchronize());
}

static void is_right(struct rig *rig, int64_t step, const char *what,
		     uint64_t nth)
{
	const unsigned char value = value_of(step);

	for (int i = 0; i < rig->n; i++) {
		const struct one *x = &rig->v[i];
		size_t right = 0, gaps = 0;

		trainer_cuda_get(&rig->g.cuda, x->here, x->at, x->bytes);
		for (size_t k = 0; k < x->bytes; k++) {
			right += (unsigned char)x->here[k] == value;
			gaps += (unsigned char)x->here[k] == GAP;
		}
		CHECK(right == x->elements && right + gaps == x->bytes,
		      "%s %d: step %" PRId64 ", tensor %d: %zu of %zu", what,
		      (int)nth, step, i, right, x->elements);
	}
	for (size_t k = 0; k < HOST_BYTES; k++)
		CHECK((unsigned char)rig->host[k] == value, "%s: host", what);
}

static void restored(struct rig *rig, int64_t step, const char *what,
		     uint64_t nth)
{
	struct sk_report report;

	fill(rig, GAP);
	settle(rig);
	memset(rig->host, GAP, HOST_BYTES);
	CHECK(!rank_restore(rig->g.rank, SK_LATEST, 0, &report), "%s %d: %s",
	      what, (int)nth, sk_error());
	CHECK(report.step == step, "%s %d: step %" PRId64 ", not %" PRId64,
	      what, (int)nth, report.step, step);
	is_right(rig, step, what, nth);
}

/* The trainer's thread waits for no device, neither in a snapshot nor behind a
 * fence of a stream's; where a call fails it may. */
static int snapshot(struct rig *rig, int64_t step, int *ret_fenced)
{
	struct sk_state *state = rig->g.rank->state;
	uint64_t stream = (uintptr_t)rig->g.stream;
	uint64_t waits = gpu_count(&rig->g, "waits");
	int r = gpu_snapshot(&rig->g, step, 0);

	CHECK(r >= 0 || sk_error()[0]);
	if (step % 2)
		waits -= gpu_count(&rig->g, "waits");
	*ret_fenced = step % 2 ? sk_fence(state) :
				 sk_fence_stream(state, stream);
	CHECK(*ret_fenced >= 0 || sk_error()[0]);
	if (!(step % 2))
		waits -= gpu_count(&rig->g, "waits");
	CHECK(!waits || rig->fails, "%d waits", -(int)waits);
	return r;
}

/* The trainer's step: a snapshot, a fence by either way, and over it. Whether
 * it was sealed. */
static bool take(struct rig *rig, int64_t step)
{
	struct sk_state *state = rig->g.rank->state;
	int r, fenced, waited = -1;

	fill(rig, value_of(step));
	memset(rig->host, value_of(step), HOST_BYTES);
	r = snapshot(rig, step, &fenced);
	/* Who is told that it failed goes over it as well. One that waited on
	 * the host in a stream's stead may have come through: then what is
	 * pending is copied out of device memory of our own. */
	if (fenced < 0 && !(step % 2))
		fenced = sk_fence(state);
	CHECK(fenced >= 0 || rig->breaks || !gpu_count(&rig->g, "pending"));
	fill(rig, OVER);
	memset(rig->host, OVER, HOST_BYTES);
	if (r >= 0)
		waited = sk_wait(state, step, SK_COMPLETE, 10000);
	CHECK(waited != -ETIMEDOUT, "%s", sk_error());
	return waited >= 0;
}

static int64_t well(struct rig *rig, int64_t step)
{
	rig->fails = false;
	CHECK(take(rig, step), "step %" PRId64 ": %s", step, sk_error());
	rig->fails = true;
	return step;
}

static int64_t until_served(struct rig *rig, bool device)
{
	int64_t step = 0;

	do {
		(void)well(rig, ++step);
	} while (step < 4 || (device && !gpu_device_bytes(&rig->g)));
	return step;
}

/* ---- calls that fail ---- */

static const char *const calls[] = {
	"cuCtxPushCurrent", "cuPointerGetAttributes", "cuStreamIsCapturing",
	"cuStreamGetCtx", "cuEventRecord", "cuStreamWaitEvent",
	"cuEventCreate", "cuEventSynchronize", "cuMemcpyDtoHAsync",
	"cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync", "cuMemcpy2DAsync",
	"cuMemcpy3DAsync", "cuMemcpyBatchAsync", "cuLaunchKernel",
	"cuMemAlloc", "cuMemHostRegister", "cuModuleLoadData",
	"cuModuleGetFunction", "cuMemGetInfo", "cuDeviceGetUuid",
	"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap",
	"cuMemSetAccess", "cuStreamSynchronize",
};

static int64_t fail_one(struct rig *rig, const char *name, unsigned result,
			int64_t good, int64_t *step)
{
	bool came = true;

	for (uint64_t nth = 1; nth <= NTH_MOST && came; nth++) {
		uint64_t before = rig->g.cuda.calls(name);

		rig->g.cuda.fail(name, nth, result);
		if (take(rig, ++*step))
			good = *step;
		came = rig->g.cuda.calls(name) - before >= nth;
		rig->g.cuda.fail(name, 0, 0);
		settle(rig);
		restored(rig, good, name, nth);
		good = well(rig, ++*step);
	}
	return good;
}

static void fail_each(struct rank *rank)
{
	static const unsigned results[] = { OPERATING_SYSTEM,
					    SK_CU_OUT_OF_MEMORY };
	static const char *const counts[] = { "memory", "locked", "events",
					      "streams", "reserved",
					      "handles" };
	const size_t n = SK_ARRAY_SIZE(calls);
	uint64_t had[SK_ARRAY_SIZE(counts)];
	int64_t step, good;
	struct rig rig;

	begin(&rig, rank);
	good = step = until_served(&rig, rank->arg);
	restored(&rig, good, "at first", 0);
	for (size_t i = 0; i < 2 * n; i++) {
		/* What is made when it is needed first is there by then. */
		for (size_t k = 0; i == n && k < SK_ARRAY_SIZE(counts); k++)
			had[k] = gpu_count(&rig.g, counts[k]);
		good = fail_one(&rig, calls[i % n], results[i / n], good,
				&step);
	}
	restored(&rig, good, "at last", 0);
	/* Some goes beside. */
	for (size_t k = 0; k < SK_ARRAY_SIZE(counts); k++)
		AWAIT(gpu_count(&rig.g, counts[k]) <= had[k],
		      "%s: %" PRIu64 ", and %" PRIu64 " before", counts[k],
		      gpu_count(&rig.g, counts[k]), had[k]);
}

/* ---- a context that breaks, a process that ends ---- */

struct end {
	const char *call;
	uint64_t nth;
	unsigned result;
};

/* Its next life finds what the one before had come to. */
static void come_to_an_end(struct rank *rank)
{
	const struct end *e = rank->arg;
	struct sk_report report = { 0 };
	struct rig rig;
	int64_t step;
	int r;

	begin(&rig, rank);
	rig.breaks = true;
	r = rank_restore(rank, SK_LATEST, 0, &report);
	CHECK(r >= 0 || r == -ENOENT, "%s", sk_error());
	if (r >= 0)
		restored(&rig, report.step, e->call, e->nth);
	step = report.step;
	do
		(void)well(&rig, ++step);
	while (!gpu_device_bytes(&rig.g));
	rig.g.cuda.fail(e->call, e->nth, e->result);
	(void)take(&rig, ++step);
}

/* Whether it came so far. */
static bool ends(struct scene *scene, const struct end *e)
{
	pid_t pid;
	int status;

	scene_ranks_start(scene, "ends", 1, come_to_an_end, e, &pid);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(!status || (e->result == KILL && WIFSIGNALED(status) &&
			  WTERMSIG(status) == SIGKILL), "%s %d: %#x", e->call,
	      (int)e->nth, status);
	return status;
}

static void end_each(struct scene *scene)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(calls); i++) {
		struct end e = { calls[i], 1, SK_CU_ILLEGAL_ADDRESS };

		(void)ends(scene, &e);
		e.result = KILL;
		while (ends(scene, &e) && e.nth < KILLS_MOST)
			e.nth++;
	}
}

static void with_device_memory(int argc, char **argv)
{
	struct scene scene;

	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "64M", 1));
	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "device", 1, fail_each, &scene);
	end_each(&scene);
	scene_close(&scene);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	if (trainer_cuda_open(&t, NULL) < 0 || !t.calls)
		return 77;
	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "host", 1, fail_each, NULL);
	scene_close(&scene);
	with_device_memory(argc, argv);
	return 0;
}
