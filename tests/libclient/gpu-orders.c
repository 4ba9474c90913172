/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What trainers with tensors on GPUs do in an order that is not the usual one:
 * tensors move from device to device, streams go before the fence, another
 * thread fences, memory goes between a snapshot and its fence, and processes
 * fork.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "conn/client.h"
#include "libclient/gpu-rank.h"

#define BYTES 3000000

static struct gpu_tensor *begin_one(struct gpu_rank *g, struct rank *rank)
{
	gpu_begin(g, rank, 0);
	return gpu_add(g, &(struct sk_tensor){
		.name = "x", .dtype = SK_U8, .ndim = 1,
		.shape = { BYTES } }, BYTES, 1);
}

/* ---- from device to device ---- */

/* To the other one, as model.to() does: new memory, then the old is freed. */
static void move(struct gpu_rank *g, struct gpu_tensor *x)
{
	sk_cu_ptr old = x->there;
	int from = x->device;

	x->device = (from + 1) % g->devices;
	gpu_use_device(g, x->device);
	x->there = trainer_cuda_alloc(&g->cuda, x->bytes);
	gpu_describe(g, x, true);
	gpu_use_device(g, from);
	CHECK(!g->cuda.driver.cuMemFree(old));
	gpu_use_device(g, g->device);
}

/* With a device slot on the one and then on the other. */
static void moves(struct rank *rank)
{
	struct gpu_tensor *x;
	struct gpu_rank g;
	int64_t step;

	x = begin_one(&g, rank);
	(void)gpu_until_served(&g);
	step = 1000;
	for (int i = 0; i < 6; i++, step += 10) {
		struct sk_report report;

		move(&g, x);
		gpu_fill(&g, step);
		/* Of the trainer's device each: 0 is the default stream. */
		CHECK(!sk_snapshot(rank->state, step, &(
			struct sk_snapshot_options){ .wait_ms = 60000 }),
		      "%s", sk_error());
		CHECK(!sk_fence(rank->state), "%s", sk_error());
		CHECK(!sk_wait(rank->state, step, SK_COMPLETE, 60000), "%s",
		      sk_error());
		gpu_fill(&g, step + 1);
		if (i % 2)
			move(&g, x);
		CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s",
		      sk_error());
		CHECK(report.step == step && !gpu_wrong(&g, step, 0));
	}
}

/* ---- streams that go ---- */

static void streams(struct rank *rank)
{
	struct gpu_rank g;
	sk_cu_stream gone;
	uint64_t handle;

	(void)begin_one(&g, rank);
	CHECK(!g.cuda.cuStreamCreate(&gone, SK_CU_STREAM_NON_BLOCKING));
	handle = (uintptr_t)gone;
	gpu_fill(&g, 1);
	CHECK(!sk_snapshot(rank->state, 1, &(struct sk_snapshot_options){
		.stream = handle }), "%s", sk_error());
	CHECK(!g.cuda.driver.cuStreamDestroy(gone));
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_wait(rank->state, 1, SK_COMPLETE, 60000), "%s", sk_error());
	gpu_complete(&g, 3);
	CHECK(!rank_restore(rank, SK_LATEST, 0, NULL), "%s", sk_error());
	CHECK(!gpu_wrong(&g, 1, 0));
}

/* ---- verified ones, which look again at the fence ---- */

static void begin_verified(struct rank *rank, int64_t step, uint64_t stream)
{
	CHECK(!sk_snapshot(rank->state, step, &(struct sk_snapshot_options){
		.stream = stream, .wait_ms = 60000,
		.flags = SK_SNAPSHOT_VERIFY }), "%s", sk_error());
}

static void verified_gone(struct rank *rank)
{
	struct gpu_rank g;
	sk_cu_stream gone;

	(void)begin_one(&g, rank);
	CHECK(!g.cuda.cuStreamCreate(&gone, SK_CU_STREAM_NON_BLOCKING));
	gpu_fill(&g, 1);
	begin_verified(rank, 1, (uintptr_t)gone);
	CHECK(!g.cuda.driver.cuStreamDestroy(gone));
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_wait(rank->state, 1, SK_COMPLETE, 60000), "%s", sk_error());
	CHECK(!rank_restore(rank, SK_LATEST, 0, NULL), "%s", sk_error());
	CHECK(!gpu_wrong(&g, 1, 0));
}

static void *fence_elsewhere(void *data)
{
	const struct rank *rank = data;

	CHECK(sk_fence(rank->state) == -ECANCELED, "%s", sk_error());
	CHECK(strstr(sk_error(), "\"x\""), "%s", sk_error());
	return NULL;
}

/* What a thread has queued on its own stream, under the name that every
 * thread's has, counts where another one fences. */
static void verified_elsewhere(struct rank *rank)
{
	const uint64_t own = SK_CU_STREAM_PER_THREAD;
	struct gpu_tensor *x;
	struct gpu_rank g;
	pthread_t thread;

	x = begin_one(&g, rank);
	gpu_fill(&g, 1);
	begin_verified(rank, 1, own);
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_wait(rank->state, 1, SK_COMPLETE, 60000), "%s", sk_error());
	begin_verified(rank, 2, own);
	if (g.cuda.race)
		g.cuda.race(1);
	CHECK(!g.cuda.cuMemsetD8Async(x->there + BYTES - 1, 77, 1,
				      (sk_cu_stream)(uintptr_t)own));
	CHECK(!pthread_create(&thread, NULL, fence_elsewhere, rank));
	CHECK(!pthread_join(thread, NULL));
	CHECK(!rank_restore(rank, SK_LATEST, 0, NULL), "%s", sk_error());
	CHECK(!gpu_wrong(&g, 1, 0));
}

/* ---- memory that goes between the snapshot and its fence ---- */

/* It is not the snapshot's any more: it is sealed whole, or never; what was
 * there stands, and the next one is taken. */
static void freed(struct rank *rank)
{
	struct gpu_tensor *x;
	struct gpu_rank g;
	int r;

	x = begin_one(&g, rank);
	gpu_fill(&g, 1);
	gpu_complete(&g, 1);
	for (int64_t step = 2; step < 12; step++) {
		gpu_fill(&g, step);
		CHECK(!gpu_snapshot(&g, step, 0), "%s", sk_error());
		CHECK(!g.cuda.driver.cuMemFree(x->there));
		r = sk_fence(rank->state);
		x->there = trainer_cuda_alloc(&g.cuda, x->bytes);
		gpu_describe(&g, x, true);
		if (r < 0) {
			CHECK(strstr(sk_error(), "CUDA"), "%s", sk_error());
			CHECK(sk_wait(rank->state, step, SK_SEALED, 60000) <
			      0);
			gpu_fill(&g, step);
			gpu_complete(&g, step);
		}
		CHECK(!sk_wait(rank->state, step, SK_COMPLETE, 60000), "%s",
		      sk_error());
		CHECK(!rank_restore(rank, SK_LATEST, 0, NULL), "%s",
		      sk_error());
		CHECK(!gpu_wrong(&g, step, 0));
	}
}

/* ---- devices that nobody named ---- */

/* A context takes half a GiB: none is made but where tensors are, by whichever
 * thread of ours. */
static void elsewhere(struct rank *rank)
{
	unsigned flags;
	struct gpu_rank g;
	int64_t step;
	int active;

	gpu_begin(&g, rank, 1);
	if (g.devices < 2)
		return;
	(void)gpu_add(&g, &(struct sk_tensor){
		.name = "x", .dtype = SK_U8, .ndim = 1, .device = 1,
		.shape = { BYTES } }, BYTES, 1);
	gpu_fill(&g, 1);
	gpu_complete(&g, 1);
	step = gpu_until_served(&g);
	gpu_fill(&g, step + 1);
	CHECK(!gpu_snapshot(&g, step + 1, 0), "%s", sk_error());
	CHECK(!sk_fence_stream(rank->state, (uintptr_t)g.stream), "%s",
	      sk_error());
	CHECK(!sk_wait(rank->state, step + 1, SK_COMPLETE, 60000), "%s",
	      sk_error());
	CHECK(!rank_restore(rank, SK_LATEST, 0, NULL), "%s", sk_error());
	CHECK(!gpu_wrong(&g, step + 1, 0));
	CHECK(!g.cuda.cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(!active, "a context of device 0");
}

/* ---- forks ---- */

static void in_child(struct gpu_rank *g)
{
	struct sk_state *state = g->rank->state;
	bool right = gpu_snapshot(g, 9, 0) == -EOWNERDEAD &&
		     sk_fence(state) == -EOWNERDEAD &&
		     sk_fence_stream(state, 0) == -EOWNERDEAD &&
		     sk_restore(state, SK_LATEST, NULL, NULL, NULL) ==
			     -EOWNERDEAD &&
		     sk_state_tensor(state, &g->tensors[0].t) == -EOWNERDEAD;

	right = right && !gpu_count(g, "of a child");

	sk_state_free(state);
	sk_close(g->rank->sk);
	_exit(!right);
}

/* As data loaders do, in the middle of a snapshot too. */
static void forks(struct rank *rank)
{
	struct trainer_gate gate;
	struct gpu_rank g;
	int status;
	pid_t pid;

	(void)begin_one(&g, rank);
	trainer_gate_init(&gate);
	gpu_fill(&g, 1);
	gpu_complete(&g, 1);
	trainer_gate_hold(&g.cuda, &gate, g.stream);
	CHECK(!gpu_snapshot(&g, 2, 0), "%s", sk_error());
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		in_child(&g);
	CHECK(waitpid(pid, &status, 0) == pid && !status, "%#x", status);
	trainer_gate_open(&gate);
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_wait(rank->state, 2, SK_COMPLETE, 60000), "%s", sk_error());
	gpu_complete(&g, 3);
	CHECK(!rank_restore(rank, SK_LATEST, 0, NULL), "%s", sk_error());
	CHECK(!gpu_wrong(&g, 1, 0));
}

/* ---- an end in order ---- */

static const char *const kinds[] = { "streams", "events", "handles",
	"modules", "memory", "reserved", "locked", "contexts" };
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* Columns, which a kernel takes; many small ones; and a large one. */
static void describe_kinds(struct sk_state *state, sk_cu_ptr at)
{
	struct sk_tensor t = { .name = "large", .dtype = SK_U8, .ndim = 1,
			       .shape = { BYTES / 2 }, .memory = SK_CUDA,
			       .data = (void *)(uintptr_t)at };
	char name[16];

	CHECK(!sk_state_tensor(state, &t), "%s", sk_error());
	t = (struct sk_tensor){ .name = "turned", .dtype = SK_F32, .ndim = 2,
		.shape = { 300, 200 }, .strides = { 1, 300 },
		.memory = SK_CUDA,
		.data = (void *)(uintptr_t)(at + BYTES / 2) };
	CHECK(!sk_state_tensor(state, &t), "%s", sk_error());
	for (size_t i = 0; i < 200; i++) {
		(void)snprintf(name, sizeof(name), "small %zu", i);
		t = (struct sk_tensor){ .name = name, .dtype = SK_U8,
			.ndim = 1, .shape = { 100 }, .memory = SK_CUDA,
			.data = (void *)(uintptr_t)(at + BYTES * 3 / 4 +
						    i * 256) };
		CHECK(!sk_state_tensor(state, &t), "%s", sk_error());
	}
}

static uint64_t has_slot(struct sk_state *state)
{
	struct sk_status status;

	CHECK(!sk_status(state, &status));
	return status.device_bytes;
}

/* By each way that bytes go, both ways. */
static void live(struct sk_state *state, const struct trainer_cuda *t,
		 sk_cu_ptr at, sk_cu_stream stream)
{
	struct sk_snapshot_options o = { .stream = (uintptr_t)stream,
					 .wait_ms = 60000 };
	int64_t step = 0, more = 3;

	while (more) {
		CHECK(!t->cuMemsetD8Async(at, (unsigned char)++step, BYTES,
					  stream));
		CHECK(!sk_snapshot(state, step, &o), "%s", sk_error());
		CHECK(!sk_fence_stream(state, (uintptr_t)stream), "%s",
		      sk_error());
		CHECK(!sk_wait(state, step, SK_COMPLETE, 60000), "%s",
		      sk_error());
		more -= has_slot(state) != 0;
	}
	CHECK(!sk_restore(state, SK_LATEST, NULL, NULL, NULL), "%s",
	      sk_error());
	CHECK(!sk_restore(state, step, NULL, NULL, NULL), "%s", sk_error());
}

/* Whoever closes its handle and goes on has nothing of ours left. */
static void in_order(struct rank *rank)
{
	const struct sk_job job = { .name = "in-order-too", .world = 1 };
	uint64_t before[KINDS];
	struct sk_state *state;
	sk_cu_stream stream;
	struct gpu_rank g = { .rank = rank };
	struct sk *sk;
	sk_cu_ptr at;

	trainer_cuda_begin(&g.cuda, 0);
	CHECK(!g.cuda.cuStreamCreate(&stream, SK_CU_STREAM_NON_BLOCKING));
	at = trainer_cuda_alloc(&g.cuda, BYTES);
	for (size_t i = 0; i < KINDS; i++)
		before[i] = gpu_count(&g, kinds[i]);
	CHECK(!sk_open(&(struct sk_options){ .socket = rank->scene->socket,
					     .threads = 2 }, &sk),
	      "%s", sk_error());
	CHECK(!sk_state_create(sk, &job, &state), "%s", sk_error());
	describe_kinds(state, at);
	live(state, &g.cuda, at, stream);
	sk_state_free(state);
	sk_close(sk);
	for (size_t i = 0; i < KINDS; i++)
		CHECK(gpu_count(&g, kinds[i]) == before[i], "%s: %llu, %llu "
		      "before", kinds[i],
		      (unsigned long long)gpu_count(&g, kinds[i]),
		      (unsigned long long)before[i]);
}

/* ---- slots that cannot be written to ---- */

static bool no_writing;		/* atomic */

static int protect(const struct sk_os *os, void *at, size_t bytes, int prot)
{
	(void)os;
	if (prot & PROT_WRITE && __atomic_load_n(&no_writing, __ATOMIC_RELAXED))
		return -EACCES;
	return sk_os_linux()->mprotect(sk_os_linux(), at, bytes, prot);
}

/* Without a device slot the tensors are never copied; with one they stand there
 * by then. Either way all is let go of, it is said why, and the next one is
 * taken. */
static void lose_one(struct gpu_rank *g, int64_t step)
{
	struct sk_state *state = g->rank->state;
	int r;

	__atomic_store_n(&no_writing, true, __ATOMIC_RELAXED);
	CHECK(!gpu_snapshot(g, step, 0), "%s", sk_error());
	r = sk_fence(state);
	CHECK(!r || r == -EACCES, "%d: %s", r, sk_error());
	r = sk_wait(state, step, SK_COMPLETE, 60000);
	CHECK(r == -EACCES, "%d: %s", r, sk_error());
	__atomic_store_n(&no_writing, false, __ATOMIC_RELAXED);
	gpu_complete(g, step + 1);
}

static void not_opened(struct rank *rank)
{
	const struct sk_job job = { .name = "not-opened-too", .world = 1 };
	struct sk_os os = *sk_os_linux();
	struct rank other = *rank;
	struct gpu_rank g;
	int64_t step;

	os.mprotect = protect;
	CHECK(!sk_open_on(&os, &(struct sk_options){
		.socket = rank->scene->socket, .threads = 2 }, &other.sk),
	      "%s", sk_error());
	CHECK(!sk_state_create(other.sk, &job, &other.state), "%s",
	      sk_error());
	(void)begin_one(&g, &other);
	for (step = 1; step < 5; step++)
		gpu_complete(&g, step);
	lose_one(&g, step);
	CHECK(!sk_prepare(other.state, 60000), "%s", sk_error());
	step = gpu_until_served(&g);
	for (int i = 0; i < 4; i++)
		gpu_complete(&g, ++step);
	lose_one(&g, step + 1);
	sk_state_free(other.state);
	sk_close(other.sk);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	setenv("VCUDA_DEVICES", "2", 0);
	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "64M", 1));
	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "moves", 1, moves, NULL);
	scene_ranks(&scene, "streams", 1, streams, NULL);
	scene_ranks(&scene, "verified-gone", 1, verified_gone, NULL);
	scene_ranks(&scene, "verified-elsewhere", 1, verified_elsewhere, NULL);
	scene_ranks(&scene, "freed", 1, freed, NULL);
	scene_ranks(&scene, "elsewhere", 1, elsewhere, NULL);
	scene_ranks(&scene, "forks", 1, forks, NULL);
	scene_ranks(&scene, "in-order", 1, in_order, NULL);
	scene_ranks(&scene, "not-opened", 1, not_opened, NULL);
	scene_close(&scene);
	return 0;
}
