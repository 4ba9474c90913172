/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on GPUs: snapshots, what is refused, what fails, and restores bit
 * for bit, by processes and an agent.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "libclient/gpu-rank.h"
#include "state/state.h"
#include "state/work.h"

static uint64_t calls(const struct gpu_rank *g, const char *function)
{
	return g->cuda.calls ? g->cuda.calls(function) : 0;
}

/* ---- one rank on one device ---- */

static void add_plain(struct gpu_rank *g, int fill_byte)
{
	gpu_add(g, &(struct sk_tensor){
		.name = "big", .dtype = SK_F32, .ndim = 2,
		.shape = { 700, 1000 } }, 2800000, fill_byte);
	gpu_add(g, &(struct sk_tensor){
		.name = "small", .dtype = SK_BF16, .ndim = 1,
		.shape = { 33 } }, 66, fill_byte);
	gpu_add(g, &(struct sk_tensor){
		.name = "scalar", .dtype = SK_F64 }, 8, fill_byte);
	CHECK(!sk_state_blob_local(g->rank->state, "rng",
				   rank_memory(100, fill_byte), 100));
}

static void save_plain(struct rank *rank)
{
	struct gpu_rank g;
	uint64_t pageable, busy;

	gpu_begin(&g, rank, 0);
	add_plain(&g, 1);
	gpu_fill(&g, 5);
	pageable = gpu_count(&g, "pageable");
	busy = gpu_count(&g, "busy");
	gpu_complete(&g, 5);
	CHECK(gpu_count(&g, "pageable") == pageable);
	CHECK(gpu_count(&g, "busy") == busy);
	CHECK(calls(&g, "cuStreamSynchronize") == 0);
	rank_ready(rank);
}

static void load_plain(struct rank *rank)
{
	struct gpu_rank g;
	struct sk_report report;
	uint64_t pageable;

	gpu_begin(&g, rank, 0);
	add_plain(&g, 0x77);
	pageable = gpu_count(&g, "pageable");
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == 5 && report.tensors == 4);
	CHECK(report.bytes_verified == 2800000 + 66 + 8 + 100);
	CHECK(gpu_count(&g, "pageable") == pageable);
	CHECK(gpu_wrong(&g, 5, rank->rank) == 0);
}

/* ---- where slots lie ---- */

/* Of the slots' mappings in this process, as numa_maps(5) of proc(5) has
 * them: the policy is the memory's, whoever set it. */
static unsigned mappings_that_prefer(const char *policy, unsigned *ret_others)
{
	FILE *maps = fopen("/proc/self/numa_maps", "r");
	char line[512], has[32];
	unsigned n = 0;

	*ret_others = 0;
	CHECK(maps);
	while (fgets(line, sizeof(line), maps)) {
		if (!strstr(line, "/memfd:shardkeep"))
			continue;
		CHECK(sscanf(line, "%*s %31s", has) == 1);
		n += !strcmp(has, policy);
		*ret_others += strcmp(has, policy) != 0;
	}
	fclose(maps);
	return n;
}

/* A kernel without NUMA has neither nodes nor that file. */
static void near(struct rank *rank)
{
	struct gpu_rank g;
	unsigned others;

	gpu_begin(&g, rank, 0);
	add_plain(&g, 1);
	gpu_fill(&g, 5);
	gpu_complete(&g, 5);
	CHECK(mappings_that_prefer("prefer:0", &others) > 0);
	CHECK(!others);
}

/* ---- two devices, uneven shards, strides, nothing at all ---- */

static const char *const strided = "strided";

/* A rank's rows of a matrix of 10 columns, every second column of a wider
 * one; and the same transposed. */
static void add_shards(struct gpu_rank *g, const struct sk_mesh *mesh)
{
	struct rank *rank = g->rank;
	int64_t rows = (11 + rank->world - 1) / rank->world;
	int64_t first = rows * rank->rank, mine;
	int64_t row4 = 4 > rank->rank;

	mine = first >= 11 ? 0 : 11 - first < rows ? 11 - first : rows;
	gpu_add(g, &(struct sk_tensor){
		.name = "uneven", .dtype = SK_F32, .ndim = 2,
		.shape = { 11, 300 }, .mesh = mesh, .device = g->device,
		.placements = { SK_SHARD(0) } },
	    (size_t)mine * 1200, 3);
	gpu_add(g, &(struct sk_tensor){
		.name = strided, .dtype = SK_F32, .ndim = 2,
		.shape = { 11, 10 }, .mesh = mesh, .device = g->device,
		.placements = { SK_SHARD(0) },
		.strides = { 40, 2 } },
	    (size_t)mine * 160, 3);
	gpu_add(g, &(struct sk_tensor){
		.name = "columns", .dtype = SK_F64, .ndim = 2,
		.shape = { 11, 10 }, .mesh = mesh, .device = g->device,
		.placements = { SK_SHARD(0) },
		.strides = { 1, mine ? mine : 1 } },
	    (size_t)mine * 80, 3);
	gpu_add(g, &(struct sk_tensor){
		.name = "padded", .dtype = SK_BF16, .ndim = 3,
		.shape = { 11, 5, 100 }, .mesh = mesh,
		.device = g->device,
		.placements = { SK_SHARD(0) },
		.strides = { 1000, 200, 1 } },
	    (size_t)mine * 2000, 3);
	gpu_add(g, &(struct sk_tensor){
		.name = "few", .dtype = SK_U8, .ndim = 1, .shape = { 4 },
		.mesh = mesh, .device = g->device,
		.placements = { SK_SHARD(0) } },
	    row4 && rank->world <= 4 ? (size_t)(rank->world == 2 ? 2 :
		    rank->world == 3 ? (rank->rank < 2 ? 2 : 0) : 1) : 0, 3);
	gpu_add(g, &(struct sk_tensor){
		.name = "nothing", .dtype = SK_F32, .ndim = 2,
		.shape = { 0, 7 }, .device = g->device }, 0, 0);
	gpu_add(g, &(struct sk_tensor){
		.name = "replicated", .dtype = SK_F32, .ndim = 1,
		.shape = { 5000 }, .device = g->device }, 20000, 3);
}

static void save_shards(struct rank *rank)
{
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);
	struct gpu_rank g;

	gpu_begin(&g, rank, rank->rank);
	add_shards(&g, mesh);
	for (int64_t step = 1; step <= 3; step++) {
		gpu_fill(&g, step);
		gpu_complete(&g, step);
	}
	rank_ready(rank);
}

static void load_shards(struct rank *rank)
{
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin(&g, rank, rank->rank);
	add_shards(&g, mesh);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == 3);
	CHECK(gpu_wrong(&g, 3, rank->rank) == 0);
	/* What lies between the rows is nobody's. */
	for (int i = 0; i < g.n; i++)
		if (g.tensors[i].t.name == strided && g.tensors[i].bytes)
			CHECK(g.tensors[i].here[4] == 3);
	sk_mesh_release(mesh);
}

/* One rank, tensors on both devices and on the host. */
static void add_both(struct gpu_rank *g)
{
	for (int i = 0; i < 2; i++) {
		gpu_add(g, &(struct sk_tensor){
			.name = i ? "on 1" : "on 0", .dtype = SK_F32,
			.ndim = 1, .shape = { 300000 },
			.device = i % g->devices },
		    1200000, 9);
	}
	CHECK(!sk_state_blob(g->rank->state, "host", rank_memory(3000, 9),
			     3000));
}

static void save_both(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_both(&g);
	gpu_fill(&g, 1);
	gpu_complete(&g, 1);
	rank_ready(rank);
}

static void load_both(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_both(&g);
	CHECK(!rank_restore(rank, SK_LATEST, 0, NULL), "%s", sk_error());
	CHECK(gpu_wrong(&g, 1, rank->rank) == 0);
}

/* ---- the order of things ---- */

/* One tensor, and a gate that the trainer's stream can be held at. */
static struct gpu_tensor *begin_gated(struct gpu_rank *g, struct rank *rank,
				      struct trainer_gate *gate)
{
	gpu_begin(g, rank, 0);
	trainer_gate_init(gate);
	return gpu_add(g, &(struct sk_tensor){
		.name = "x", .dtype = SK_U8, .ndim = 1,
		.shape = { 3000000 } }, 3000000, 1);
}

/* What the trainer's stream does before the snapshot is in it, what it does
 * after the fence is not; and nothing waits for it meanwhile. */
static void save_behind(struct rank *rank)
{
	struct trainer_gate gate;
	struct sk_status status;
	struct gpu_tensor *x;
	struct gpu_rank g;

	x = begin_gated(&g, rank, &gate);
	trainer_gate_hold(&g.cuda, &gate, g.stream);
	CHECK(!g.cuda.cuMemsetD8Async(x->there, 2, x->bytes, g.stream));
	CHECK(!gpu_snapshot(&g, 1, 0), "%s", sk_error());
	CHECK(!sk_status(rank->state, &status) && !status.copied_ns);
	CHECK(g.cuda.cuStreamQuery(g.stream) == SK_CU_NOT_READY);
	trainer_gate_open(&gate);
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!g.cuda.cuMemsetD8Async(x->there, 3, x->bytes, g.stream));
	CHECK(!sk_wait(rank->state, 1, SK_COMPLETE, 60000), "%s", sk_error());
	rank_ready(rank);
}

static void load_behind(struct rank *rank)
{
	struct trainer_gate gate;
	struct gpu_tensor *x;
	struct gpu_rank g;

	x = begin_gated(&g, rank, &gate);
	/* What was queued before the restore does not come after it. */
	CHECK(!g.cuda.cuMemsetD8Async(x->there, 9, x->bytes, g.stream));
	CHECK(!rank_restore(rank, SK_LATEST, SK_RESTORE_EXTRA_OK, NULL), "%s",
	      sk_error());
	trainer_cuda_get(&g.cuda, x->here, x->there, x->bytes);
	for (size_t i = 0; i < x->bytes; i++)
		CHECK(x->here[i] == 2, "byte %zu is %d", i, x->here[i]);
}

/* Beside the slots, tables of the lane. */
static void check_locked(const struct gpu_rank *g,
			 const struct sk_status *status)
{
	uint64_t locked;

	if (!g->cuda.count)
		return;
	locked = gpu_count(g, "locked");
	CHECK(locked >= status->locked_bytes &&
	      locked - status->locked_bytes < 1 << 20, "%" PRIu64, locked);
}

/* The stream waits, not the caller: what is queued on it after the fence is
 * not in the snapshot, though it is queued before the copy has begun. */
static void save_streamed(struct rank *rank)
{
	uint64_t stream;
	struct trainer_gate gate;
	struct sk_status status;
	struct gpu_tensor *x;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	trainer_gate_init(&gate);
	stream = (uintptr_t)g.stream;
	CHECK(!sk_fence_stream(rank->state, stream), "%s", sk_error());
	x = gpu_add(&g, &(struct sk_tensor){
		.name = "x", .dtype = SK_U8, .ndim = 1,
		.shape = { 3000000 } }, 3000000, 1);
	CHECK(!sk_state_blob(rank->state, "host", rank_memory(2000000, 4),
			     2000000));
	/* Locked before the first snapshot, where one waits for it. */
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	CHECK(!sk_status(rank->state, &status));
	CHECK(status.locked_bytes >= 2 * x->bytes);
	check_locked(&g, &status);
	trainer_gate_hold(&g.cuda, &gate, g.stream);
	CHECK(!g.cuda.cuMemsetD8Async(x->there, 2, x->bytes, g.stream));
	CHECK(!gpu_snapshot(&g, 1, 0), "%s", sk_error());
	CHECK(!sk_fence_stream(rank->state, stream), "%s", sk_error());
	CHECK(!sk_status(rank->state, &status) && !status.copied_ns);
	CHECK(!g.cuda.cuMemsetD8Async(x->there, 3, x->bytes, g.stream));
	trainer_gate_open(&gate);
	CHECK(!sk_wait(rank->state, 1, SK_COMPLETE, 60000), "%s", sk_error());
	CHECK(!sk_fence_stream(rank->state, stream), "%s", sk_error());
	trainer_cuda_get(&g.cuda, x->here, x->there, 1);
	CHECK(x->here[0] == 3);
	rank_ready(rank);
}

/* ---- what is refused ---- */

static void refused(int r, int expected, const char *word)
{
	CHECK(r == expected, "%d, not %d: %s", r, expected, sk_error());
	CHECK(strstr(sk_error(), word), "\"%s\" lacks \"%s\"", sk_error(),
	      word);
}

static void pointers(struct rank *rank)
{
	struct sk_tensor t = { .name = "stray", .dtype = SK_F32, .ndim = 1,
			       .shape = { 100 }, .memory = SK_CUDA };
	const struct sk_restore_options kept = {
		.names = (const char *[]){ "kept" }, .n_names = 1 };
	struct gpu_tensor *x, *y;
	struct gpu_rank g;
	sk_cu_ptr again;

	gpu_begin(&g, rank, 0);
	x = gpu_add(&g, &(struct sk_tensor){
		.name = "kept", .dtype = SK_F32, .ndim = 1,
		.shape = { 1000 } }, 4000, 1);
	y = gpu_add(&g, &(struct sk_tensor){
		.name = "freed", .dtype = SK_F32, .ndim = 1,
		.shape = { 1000 } }, 4000, 1);
	t.data = x->here;
	refused(sk_state_tensor(rank->state, &t), -EFAULT, "stray");
	t.data = (void *)(uintptr_t)x->there;
	t.device = 7;
	refused(sk_state_tensor(rank->state, &t), -ENODEV, "device 7");
	t.device = 0;
	t.memory = 2;
	refused(sk_state_tensor(rank->state, &t), -EINVAL, "stray");
	t.memory = SK_CUDA;
	t.shape[0] = 1 << 20;	/* beyond the allocation's end */
	refused(sk_state_tensor(rank->state, &t), -EFAULT, "stray");
	t.shape[0] = 1000;
	t.strides[0] = INT64_MAX / 2;
	refused(sk_state_tensor(rank->state, &t), -EFAULT, "stray");
	gpu_complete(&g, 1);
	CHECK(!g.cuda.driver.cuMemFree(y->there));
	refused(gpu_snapshot(&g, 2, 0), -EFAULT, "\"freed\"");
	refused(rank_restore(rank, 1, 0, NULL), -EFAULT, "\"freed\"");
	/* What is not wanted may be gone. */
	CHECK(!sk_restore(rank->state, 1, NULL, &kept, NULL), "%s",
	      sk_error());
	/* The address may come again: it is not the same memory. */
	again = trainer_cuda_alloc(&g.cuda, 4000);
	refused(gpu_snapshot(&g, 2, 0), -EFAULT, "\"freed\"");
	y->there = again;
	gpu_describe(&g, y, true);
	gpu_complete(&g, 2);
	/* Nor where no snapshot was taken between. */
	CHECK(!g.cuda.driver.cuMemFree(y->there));
	y->there = trainer_cuda_alloc(&g.cuda, 4000);
	refused(gpu_snapshot(&g, 3, 0), -EFAULT, "\"freed\"");
	gpu_describe(&g, y, true);
	gpu_complete(&g, 3);
	/* What is described elsewhere is looked at there. */
	y->there = trainer_cuda_alloc(&g.cuda, 4000);
	gpu_describe(&g, y, true);
	gpu_complete(&g, 4);
	CHECK(!g.cuda.driver.cuMemFree(y->there));
	refused(gpu_snapshot(&g, 5, 0), -EFAULT, "\"freed\"");
	CHECK(!sk_state_remove(rank->state, "freed"), "%s", sk_error());
	gpu_complete(&g, 5);
}

#define SLICES GPU_TENSORS	/* of two allocations */

/* From one to the next by @step. */
static void add_slices(struct gpu_rank *g, int step)
{
	static char names[SLICES][8];
	sk_cu_ptr slabs[2];

	for (int i = 0; i < 2; i++)
		slabs[i] = trainer_cuda_alloc(&g->cuda, SLICES * 256);
	for (int i = 0; i < SLICES; i++) {
		int at = i * step % SLICES + i * step / SLICES;
		struct gpu_tensor *x = &g->tensors[g->n++];

		(void)snprintf(names[i], sizeof(names[i]), "s%d", i);
		*x = (struct gpu_tensor){
			.t = { .name = names[i], .dtype = SK_F32, .ndim = 1,
			       .shape = { 64 } },
			.here = rank_memory(256, 1),
			.there = slabs[at / (SLICES / 2)] +
				 (sk_cu_ptr)(at % (SLICES / 2)) * 256,
			.bytes = 256 };
		gpu_describe(g, x, true);
	}
}

/* The driver is asked about each allocation, once, and not about each slice;
 * what is contiguous there and in the image is copied at once. */
static void take_slices(struct rank *rank, int step, uint32_t asks)
{
	struct gpu_rank g;
	uint64_t asked;

	gpu_begin(&g, rank, 0);
	add_slices(&g, step);
	gpu_fill(&g, 2);
	gpu_complete(&g, 1);
	asked = calls(&g, "cuPointerGetAttributes");
	gpu_complete(&g, 2);
	CHECK(!g.cuda.calls ||
	      calls(&g, "cuPointerGetAttributes") - asked == 2, "%d calls",
	      (int)(calls(&g, "cuPointerGetAttributes") - asked));
	CHECK(rank->state->work->n_asks == asks, "%u asks",
	      rank->state->work->n_asks);
	gpu_fill(&g, 3);
	CHECK(!rank_restore(rank, 2, 0, NULL), "%s", sk_error());
	CHECK(!gpu_wrong(&g, 2, rank->rank));
}

static void slices(struct rank *rank)
{
	take_slices(rank, 1, 2);
}

static void slices_in_turn(struct rank *rank)
{
	take_slices(rank, SLICES / 2, SLICES);
}

static void capture(struct rank *rank)
{
	struct gpu_rank g;
	vcu_graph graph;

	gpu_begin(&g, rank, 0);
	add_plain(&g, 1);
	CHECK(!g.cuda.cuStreamBeginCapture(g.stream, 0));
	refused(gpu_snapshot(&g, 1, 0), -EBUSY, "captur");
	refused(sk_fence_stream(rank->state, (uintptr_t)g.stream), -EBUSY,
		"captur");
	/* What it captured is not spoilt. */
	CHECK(!g.cuda.cuStreamEndCapture(g.stream, &graph));
	/* Here it is: all of the device is waited for. */
	CHECK(!g.cuda.cuStreamBeginCapture(g.stream, 0));
	refused(rank_restore(rank, SK_LATEST, 0, NULL), -EBUSY, "captur");
	CHECK(g.cuda.cuStreamEndCapture(g.stream, &graph) ==
	      VCU_CAPTURE_INVALIDATED);
	gpu_complete(&g, 1);
}

static void no_driver(struct rank *rank)
{
	static char data[400];
	struct sk_tensor t = { .name = "w", .dtype = SK_F32, .ndim = 1,
			       .shape = { 100 }, .memory = SK_CUDA,
			       .data = data };

	setenv("SHARDKEEP_LIBCUDA", "libnobody.so.7", 1);
	refused(sk_state_tensor(rank->state, &t), -ENODEV, "libnobody.so.7");
	CHECK(strstr(sk_error(), "\"w\""), "%s", sk_error());
	/* What is on the host is no worse for it. */
	t.memory = SK_HOST;
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	rank_snapshot(rank, 1, SK_COMPLETE);
}

/* ---- what fails ---- */

/* Where the end of its copies cannot be marked, or waited for, they are over
 * all the same when the fence says so: the slot is another snapshot's then. */
static void unmarked(struct gpu_rank *g, int64_t step, const char *call,
		     uint64_t nth)
{
	g->cuda.fail(call, nth, 999);
	CHECK(!gpu_snapshot(g, step, 0), "%s", sk_error());
	/* Who copies is to meet it: a fence that does so itself leaves it to
	 * that one to say what came of the copy. */
	if (strcmp(call, "cuEventSynchronize") == 0)
		CHECK(sk_wait(g->rank->state, step, SK_SEALED, 60000) < 0);
	refused(sk_fence(g->rank->state), -EIO, call);
	CHECK(!gpu_count(g, "pending"), "it is copied after the fence");
	/* The agent hears of it later than who waits at the fence. */
	CHECK(sk_wait(g->rank->state, step, SK_SEALED, 1000) < 0);
}

static void failures(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_plain(&g, 1);
	gpu_fill(&g, 1);
	gpu_complete(&g, 1);
	g.cuda.fail("cuMemcpyBatchAsync", 1, 2);
	CHECK(!gpu_snapshot(&g, 2, 0), "%s", sk_error());
	refused(sk_fence(rank->state), -ENOMEM, "OUT_OF_MEMORY");
	refused(sk_fence_stream(rank->state, 0), -ENOMEM, "OUT_OF_MEMORY");
	CHECK(sk_wait(rank->state, 2, SK_SEALED, 1000) < 0);
	gpu_complete(&g, 3);
	g.cuda.fail("cuEventRecord", 1, 999);
	refused(gpu_snapshot(&g, 4, 0), -EIO, "cuEventRecord");
	gpu_complete(&g, 4);
	unmarked(&g, 5, "cuEventRecord", 2);
	unmarked(&g, 6, "cuEventSynchronize", 1);
	/* What the device does not fetch, it is given. */
	g.cuda.fail("cuMemcpyHtoDAsync", 1, 999);
	CHECK(!rank_restore(rank, 4, 0, NULL), "%s", sk_error());
	/* A context that is broken stays so: what was sealed is not lost, and
	 * what needs no GPU goes on. */
	g.cuda.fail("cuMemcpyBatchAsync", 1, SK_CU_ILLEGAL_ADDRESS);
	CHECK(!gpu_snapshot(&g, 7, 0), "%s", sk_error());
	refused(sk_fence(rank->state), -EIO, "ILLEGAL_ADDRESS");
	refused(gpu_snapshot(&g, 8, 0), -EIO, "ILLEGAL_ADDRESS");
	rank_ready(rank);
}

static void after_failures(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_plain(&g, 1);
	g.cuda.fail("cuMemcpyHtoDAsync", 1, 999);
	refused(rank_restore(rank, 4, 0, NULL), -EIO, "a copy to the device");
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == 4 && gpu_wrong(&g, 1, rank->rank) == 0);
}

/* ---- verification ---- */

static void verified(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_plain(&g, 1);
	gpu_fill(&g, 1);
	CHECK(!gpu_snapshot(&g, 1, SK_SNAPSHOT_VERIFY), "%s", sk_error());
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_wait(rank->state, 1, SK_COMPLETE, 60000), "%s", sk_error());
	CHECK(!gpu_snapshot(&g, 2, SK_SNAPSHOT_VERIFY), "%s", sk_error());
	/* Queued, and perhaps not done yet when the fence is reached; a race
	 * with the copy, as of a trainer that forgets the fence. */
	if (g.cuda.race)
		g.cuda.race(1);
	CHECK(!g.cuda.cuMemsetD8Async(g.tensors[0].there + 2000000, 9, 1,
				      g.stream));
	refused(sk_fence_stream(rank->state, (uintptr_t)g.stream), -ECANCELED,
		"\"big\"");
	CHECK(!rank_restore(rank, SK_LATEST, 0, NULL), "%s", sk_error());
	CHECK(gpu_wrong(&g, 1, rank->rank) == 0);
}

/* ---- many ---- */

#define MANY 10000
#define EACH ((size_t)96)

static void many(struct rank *rank)
{
	size_t bytes = MANY * EACH;
	char *here = rank_memory(bytes, 0), *back = rank_memory(bytes, 5);
	struct gpu_rank g;
	uint64_t before;
	sk_cu_ptr slab;

	gpu_begin(&g, rank, 0);
	slab = trainer_cuda_alloc(&g.cuda, bytes);
	for (size_t i = 0; i < bytes; i++)
		here[i] = (char)(i * 31 >> 5);
	trainer_cuda_put(&g.cuda, slab, here, bytes);
	(void)gpu_describe_many(rank, slab, MANY, EACH);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	before = gpu_count(&g, "calls");
	CHECK(!gpu_snapshot(&g, 1, 0), "%s", sk_error());
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(gpu_count(&g, "calls") - before < 50, "%" PRIu64 " calls",
	      gpu_count(&g, "calls") - before);
	CHECK(!sk_wait(rank->state, 1, SK_COMPLETE, 60000), "%s", sk_error());
	trainer_cuda_put(&g.cuda, slab, back, bytes);
	CHECK(!rank_restore(rank, 1, 0, NULL), "%s", sk_error());
	trainer_cuda_get(&g.cuda, back, slab, bytes);
	for (size_t i = 0; i < bytes; i++)
		CHECK(back[i] == (i % EACH < 17 + i / EACH % 64 ? here[i] : 5),
		      "byte %zu", i);
}

/* ---- what is left, and what is never begun ---- */

static void host_only(struct rank *rank)
{
	struct trainer_cuda t;

	rank_tensor(rank, &(struct sk_tensor){
		.name = "w", .dtype = SK_F32, .ndim = 1,
		.shape = { 1000 } }, 1);
	rank_snapshot(rank, 1, SK_COMPLETE);
	CHECK(!rank_restore(rank, 1, 0, NULL), "%s", sk_error());
	CHECK(!trainer_cuda_open(&t, NULL));
	CHECK(!t.calls || t.calls("cuInit") == 0);
	/* Nor by a rank that holds nothing of a tensor on a device. */
	CHECK(!sk_state_tensor(rank->state, &(struct sk_tensor){
		.name = "none", .dtype = SK_F32, .ndim = 1,
		.memory = SK_CUDA }), "%s", sk_error());
	rank_snapshot(rank, 2, SK_COMPLETE);
	CHECK(!t.calls || t.calls("cuInit") == 0);
}

/* The system had no memory to lock for a moment: what that has left is locked
 * by a snapshot that comes a minute later, and not by those before. */
static void locked_later(struct rank *rank)
{
	struct sk_status status;
	uint64_t tried;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_plain(&g, 1);
	/* The first is the lane's tables. */
	g.cuda.fail("cuMemHostRegister", 2, SK_CU_OUT_OF_MEMORY);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	CHECK(!sk_status(rank->state, &status));
	CHECK(status.locked_bytes < 2 * 2800000, "none was refused");
	tried = calls(&g, "cuMemHostRegister");
	for (int64_t step = 1; step < 4; step++)
		gpu_complete(&g, step);
	CHECK(calls(&g, "cuMemHostRegister") == tried, "asked at each");
	for (uint32_t i = 0; i < rank->state->n_slots; i++) {
		struct sk_again *again = &rank->state->slots[i].lock_again;

		if (again->at_ns != SK_FOREVER)
			again->at_ns = 1;
	}
	for (int64_t step = 4; step < 6; step++)
		gpu_complete(&g, step);
	CHECK(!sk_status(rank->state, &status));
	CHECK(status.locked_bytes >= 2 * 2800000);
	check_locked(&g, &status);
}

static void nothing_left(struct rank *rank)
{
	struct sk_options o = { .socket = rank->scene->socket, .threads = 1 };
	struct sk_job job = { .name = "left", .world = 1,
			      .flush_every = SK_FLUSH_NEVER };
	struct rank other = *rank;
	uint64_t streams, events;
	struct gpu_rank g;

	CHECK(!sk_open(&o, &other.sk) &&
	      !sk_state_create(other.sk, &job, &other.state));
	gpu_begin(&g, &other, 0);
	streams = gpu_count(&g, "streams");
	events = gpu_count(&g, "events");
	add_plain(&g, 1);
	gpu_complete(&g, 1);
	gpu_complete(&g, 2);
	CHECK(!rank_restore(&other, 1, 0, NULL), "%s", sk_error());
	CHECK(!g.cuda.count || gpu_count(&g, "locked") > 0);
	sk_state_free(other.state);
	sk_close(other.sk);
	CHECK(gpu_count(&g, "locked") == 0);
	CHECK(gpu_count(&g, "streams") == streams);
	CHECK(gpu_count(&g, "events") == events);
}

/* ---- all ---- */

static void save_and_load(struct scene *scene, const char *job, int before,
			  int after, rank_fn save, rank_fn load)
{
	scene_ranks_killed(scene, job, before, save, NULL);
	scene_ranks(scene, job, after, load, NULL);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	setenv("VCUDA_DEVICES", "2", 0);
	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "host", 1, host_only, NULL);
	save_and_load(&scene, "plain", 1, 1, save_plain, load_plain);
	save_and_load(&scene, "behind", 1, 1, save_behind, load_behind);
	save_and_load(&scene, "streamed", 1, 1, save_streamed, load_behind);
	save_and_load(&scene, "shards", 3, 2, save_shards, load_shards);
	save_and_load(&scene, "wider", 2, 4, save_shards, load_shards);
	save_and_load(&scene, "both", 1, 1, save_both, load_both);
	scene_ranks(&scene, "pointers", 1, pointers, NULL);
	scene_ranks(&scene, "slices", 1, slices, NULL);
	scene_ranks(&scene, "in-turn", 1, slices_in_turn, NULL);
	scene_ranks(&scene, "capture", 1, capture, NULL);
	scene_ranks(&scene, "driverless", 1, no_driver, NULL);
	scene_ranks(&scene, "verified", 1, verified, NULL);
	scene_ranks(&scene, "many", 1, many, NULL);
	scene_ranks(&scene, "left", 1, nothing_left, NULL);
	if (t.calls)
		scene_ranks(&scene, "later", 1, locked_later, NULL);
	if (t.calls)
		save_and_load(&scene, "failures", 1, 1, failures,
			      after_failures);
	setenv("VCUDA_NUMA", "0", 1);
	if (t.calls && !access("/proc/self/numa_maps", R_OK))
		scene_ranks(&scene, "near", 1, near, NULL);
	/* With locking refused it is slower, and no worse. */
	setenv("VCUDA_MODE", "no-register", 1);
	if (t.calls)
		save_and_load(&scene, "pageable", 3, 2, save_shards,
			      load_shards);
	scene_close(&scene);
	return 0;
}
