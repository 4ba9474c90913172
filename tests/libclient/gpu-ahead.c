/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes to a device slot by a few calls is asked for in the snapshot's own
 * call, where the thread that waits for GPUs has nothing else: and whoever asks
 * for it, what comes back is what there was.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "cuda/table.h"
#include "libclient/gpu-rank.h"
#include "snapshot/copying.h"
#include "support/await.h"

#define SMALL 600		/* tensors, of up to CELL bytes */
#define CELL ((size_t)600)
#define SLABS 2			/* they move from one to the other */
#define LONG ((size_t)5 << 20)
#define ROUNDS 16
#define SLAB_BYTES (SMALL * CELL + LONG)

struct name {
	char text[24];
};

struct trial {
	struct gpu_rank g;
	sk_cu_ptr slabs[SLABS];
	char *wanted, *got;
	int at;			/* in which slab they are */
	int64_t step;
	unsigned ahead, later;
};

static size_t bytes_of(size_t i)
{
	return i < SMALL ? 1 + i * 7 % (CELL - 8) : LONG;
}

/* Each has room behind it, but the long one. */
static void describe(struct trial *t, size_t n)
{
	struct sk_tensor *tensors = calloc(n, sizeof(*tensors));
	struct name *names = calloc(n, sizeof(*names));

	CHECK(tensors && names);
	for (size_t i = 0; i < n; i++) {
		(void)snprintf(names[i].text, sizeof(names[i].text), "t%zu",
			       i);
		tensors[i] = (struct sk_tensor){
			.name = names[i].text, .dtype = SK_U8, .ndim = 1,
			.shape = { (int64_t)bytes_of(i) }, .memory = SK_CUDA,
			.data = (void *)(uintptr_t)(t->slabs[t->at] +
						    i * CELL) };
	}
	CHECK(!sk_state_tensors(t->g.rank->state, tensors, n), "%s",
	      sk_error());
	free(names);
	free(tensors);
}

static void fill(struct trial *t)
{
	uint64_t x = (uint64_t)t->step * 0x9e3779b97f4a7c15u + 1;

	for (size_t i = 0; i + sizeof(x) <= SLAB_BYTES; i += sizeof(x)) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		memcpy(t->wanted + i, &x, sizeof(x));
	}
	trainer_cuda_put(&t->g.cuda, t->slabs[t->at], t->wanted, SLAB_BYTES);
}

static bool is_ahead(struct sk_state *state)
{
	const struct sk_copying *c;
	bool ret, asked;

	(void)pthread_mutex_lock(&state->fences.lock);
	c = (const struct sk_copying *)state->fences.newest;
	ret = c && c->ahead;
	asked = c && c->pending.asked;
	(void)pthread_mutex_unlock(&state->fences.lock);
	CHECK(asked || !ret, "a fence of a stream would wait");
	return ret;
}

static bool snapshot(struct trial *t)
{
	struct sk_state *state = t->g.rank->state;
	bool ahead;
	int r;

	t->step++;
	r = gpu_snapshot(&t->g, t->step, 0);
	CHECK(!r, "%s", sk_error());
	ahead = is_ahead(state);
	t->ahead += ahead;
	t->later += !ahead;
	return ahead;
}

static void fence(struct trial *t)
{
	CHECK(!sk_fence_stream(t->g.rank->state, (uintptr_t)t->g.stream), "%s",
	      sk_error());
}

static bool take(struct trial *t)
{
	bool ahead;

	fill(t);
	ahead = snapshot(t);
	fence(t);
	return ahead;
}

static void wait(struct trial *t)
{
	CHECK(!sk_wait(t->g.rank->state, t->step, SK_COMPLETE, 60000), "%s",
	      sk_error());
}

/* All of each tensor, and nothing between them. */
static void compare(struct trial *t, size_t n)
{
	trainer_cuda_get(&t->g.cuda, t->got, t->slabs[t->at], SLAB_BYTES);
	for (size_t i = 0; i < n; i++)
		CHECK(!memcmp(t->got + i * CELL, t->wanted + i * CELL,
			      bytes_of(i)),
		      "step %lld, tensor %zu", (long long)t->step, i);
}

static void spoil(struct trial *t)
{
	memset(t->got, 0, SLAB_BYTES);
	trainer_cuda_put(&t->g.cuda, t->slabs[t->at], t->got, SLAB_BYTES);
}

static void go_back(struct trial *t, size_t n)
{
	wait(t);
	spoil(t);
	CHECK(!rank_restore(t->g.rank, SK_LATEST, 0, NULL), "%s", sk_error());
	compare(t, n);
}

static void begin(struct trial *t, struct rank *rank, size_t n)
{
	gpu_begin(&t->g, rank, 0);
	for (int i = 0; i < SLABS; i++)
		t->slabs[i] = trainer_cuda_alloc(&t->g.cuda, SLAB_BYTES);
	t->wanted = rank_memory(SLAB_BYTES, 0);
	t->got = rank_memory(SLAB_BYTES, 0);
	describe(t, n);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	do {
		(void)take(t);
		wait(t);
	} while (!gpu_device_bytes(&t->g));
	CHECK(!t->ahead, "there was no device slot");
}

/* Many small ones by a table, once the device has it; a long one beside. Where
 * they move, it is told anew. */
static void small_ones(struct rank *rank)
{
	struct trial t = { .step = 0 };

	begin(&t, rank, SMALL + 1);
	CHECK(!take(&t), "many calls are not made in the trainer's time");
	wait(&t);
	for (int i = 0; i < ROUNDS; i++) {
		bool moves = i % 8 == 5;

		if (moves) {
			wait(&t);
			t.at = !t.at;
			describe(&t, SMALL + 1);
		}
		/* One that is over leaves the device to the next. */
		CHECK(take(&t) == !moves || i % 4 == 2, "round %d", i);
		if (i % 4 != 1)
			go_back(&t, SMALL + 1);
	}
	CHECK(t.ahead > ROUNDS / 2 && t.later > ROUNDS / 8);
}

/* One that comes when the last is on its way out of the device slot leaves it
 * there. */
static void on_its_heels(struct rank *rank)
{
	struct trial t = { .step = 0 };
	bool ahead;

	begin(&t, rank, SMALL + 1);
	(void)take(&t);		/* it has the table */
	memset(t.got, 1, SLAB_BYTES);
	trainer_cuda_put(&t.g.cuda, t.slabs[1], t.got, SLAB_BYTES);
	for (int i = 0; i < ROUNDS / 2; i++) {
		wait(&t);
		/* What brings it out gets no further. */
		(void)pthread_mutex_lock(&rank->state->gpus.locking);
		CHECK(take(&t));
		CHECK(!t.g.cuda.driver.cuMemcpyDtoDAsync(t.slabs[0],
							 t.slabs[1],
							 SLAB_BYTES,
							 t.g.stream));
		ahead = snapshot(&t);
		(void)pthread_mutex_unlock(&rank->state->gpus.locking);
		CHECK(!ahead, "it is in the device slot still");
		fence(&t);
		wait(&t);
		CHECK(!rank_restore(rank, t.step - 1, 0, NULL), "%s",
		      sk_error());
		compare(&t, SMALL + 1);
	}
}

/* A few, each by a call. */
static void few(struct rank *rank)
{
	struct trial t = { .step = 0 };

	begin(&t, rank, 3);
	for (int i = 0; i < 4; i++) {
		CHECK(take(&t));
		go_back(&t, 3);
	}
}

/* As few as may be, but a table's: it is made, and its kernel launched for the
 * first time, where the trainer does not wait for it. */
static void few_small_ones(struct rank *rank)
{
	struct trial t = { .step = 0 };

	begin(&t, rank, SK_CUDA_TABLE_LEAST);
	CHECK(!take(&t), "there is no table yet");
	go_back(&t, SK_CUDA_TABLE_LEAST);
	CHECK(take(&t));
	go_back(&t, SK_CUDA_TABLE_LEAST);
}

/* ---- whatever call fails ---- */

#define FAILED 304		/* CUDA_ERROR_OPERATING_SYSTEM breaks nothing */

/* What was let go of is overwritten, on the stream or here. */
static int fence_and_spoil(struct trial *t, const char *name, unsigned how)
{
	struct sk_state *state = t->g.rank->state;
	int r = how % 3 == 0 ? sk_fence(state) :
		how % 3 == 1 ? sk_fence_tensor(state, "t2") :
		sk_fence_stream(state, (uintptr_t)t->g.stream);

	if (r < 0)
		return r;
	if (how % 3 == 2)
		CHECK(!t->g.cuda.cuMemsetD8Async(t->slabs[t->at], 3,
						 SLAB_BYTES, t->g.stream));
	if (how % 3 == 0) {
		t->g.cuda.fail(name, 0, 0);	/* it is the trainer's turn */
		spoil(t);
	}
	return 0;
}

static void one_fails(struct trial *t, size_t n, const char *name,
		      unsigned nth, unsigned how)
{
	struct sk_state *state = t->g.rank->state;
	int r, fenced = 0, sealed = -1;

	fill(t);
	t->g.cuda.fail(name, nth, FAILED);
	r = gpu_snapshot(&t->g, ++t->step, 0);
	if (!r)
		fenced = fence_and_spoil(t, name, how);
	if (!r)
		sealed = sk_wait(state, t->step, SK_COMPLETE, 60000);
	t->g.cuda.fail(name, 0, 0);
	CHECK(!t->g.cuda.driver.cuStreamSynchronize(t->g.stream));
	CHECK(!t->g.cuda.cuStreamQuery((sk_cu_stream)(uintptr_t)
		sk_cuda_lane_stream(state->gpus.v[0].lane)),
	      "%s %u: copies are under way", name, nth);
	if (!sealed)
		go_back(t, n);
	/* It was told, of that snapshot and not of the next one. */
	CHECK(!(fenced < 0 && sealed >= 0 && how % 3 != 2), "%s %u", name,
	      nth);
	fill(t);
	r = gpu_snapshot(&t->g, ++t->step, 0);
	CHECK(!r, "%s %u: %s", name, nth, sk_error());
	go_back(t, n);
}

/* An error that is told, or the right bytes, and nothing under way then. */
static void fails(struct rank *rank)
{
	static const char *const names[] = {
		"cuMemcpyDtoDAsync", "cuMemcpyHtoDAsync", "cuLaunchKernel",
		"cuMemcpyDtoHAsync", "cuEventRecord", "cuEventSynchronize",
		"cuStreamWaitEvent", "cuCtxPushCurrent", "cuMemAlloc" };
	size_t n = *(const size_t *)rank->arg;
	struct trial t = { .step = 0 };
	unsigned how = 0;

	begin(&t, rank, n);
	for (size_t i = 0; i < SK_ARRAY_SIZE(names); i++)
		for (unsigned nth = 1; nth < 7; nth *= 2)
			one_fails(&t, n, names[i], nth, how++);
	CHECK(t.step > 40);
}

/* ---- beside a capture ---- */

/* Of another stream of the same thread: neither what is asked for in the call
 * nor who waits in a fence is part of it, or spoils it. */
static void beside_a_capture(struct rank *rank)
{
	struct trial t = { .step = 0 };
	sk_cu_stream other;
	vcu_graph graph;

	begin(&t, rank, 3);
	CHECK(!t.g.cuda.cuStreamCreate(&other, SK_CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < 6; i++) {
		fill(&t);
		CHECK(!t.g.cuda.cuStreamBeginCapture(other, 0));
		CHECK(snapshot(&t), "it goes ahead all the same");
		CHECK(!(i % 3 == 0 ? sk_fence(rank->state) :
			i % 3 == 1 ? sk_fence_tensor(rank->state, "t1") :
			sk_fence_stream(rank->state, (uintptr_t)t.g.stream)),
		      "%s", sk_error());
		CHECK(!t.g.cuda.cuStreamEndCapture(other, &graph),
		      "it is spoilt, round %d", i);
		go_back(&t, 3);
	}
}

/* ---- several threads of the trainer's ---- */

struct others {
	struct trial *t;
	size_t n;
	bool over;
};

static bool is_over(struct others *o)
{
	return __atomic_load_n(&o->over, __ATOMIC_ACQUIRE);
}

static void *fence_all_along(void *arg)
{
	struct others *o = arg;
	struct sk_state *state = o->t->g.rank->state;

	for (unsigned i = 0; !is_over(o); i++) {
		CHECK(!(i % 3 == 0 ? sk_fence(state) :
			i % 3 == 1 ? sk_fence_tensor(state, "t1") :
			sk_fence_stream(state, (uintptr_t)o->t->g.stream)),
		      "%s", sk_error());
		/* The others need a processor as well. */
		CHECK(!usleep(300));
	}
	return NULL;
}

static void *describe_all_along(void *arg)
{
	struct others *o = arg;

	while (!is_over(o)) {
		describe(o->t, o->n);
		CHECK(!usleep(5000));
	}
	return NULL;
}

/* Who fences, and who describes the same anew, disturb nobody. */
static void beside_others(struct rank *rank)
{
	struct trial t = { .step = 0 };
	struct others o = { &t, *(const size_t *)rank->arg, false };
	pthread_t threads[3];

	begin(&t, rank, o.n);
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_create(&threads[i], NULL,
				      i < 2 ? fence_all_along :
					      describe_all_along, &o));
	for (int i = 0; i < ROUNDS; i++) {
		(void)take(&t);
		CHECK(!t.g.cuda.cuMemsetD8Async(t.slabs[t.at], 3, SLAB_BYTES,
						t.g.stream));
		if (i % 3 == 0)
			go_back(&t, o.n);
		else
			CHECK(!sk_fence(rank->state), "%s", sk_error());
	}
	__atomic_store_n(&o.over, true, __ATOMIC_RELEASE);
	for (int i = 0; i < 3; i++)
		CHECK(!pthread_join(threads[i], NULL));
}

/* ---- the thread that waits for GPUs has something else to do ---- */

struct blocking {
	struct sk_task task;
	pthread_mutex_t gate;
	bool over;
};

static void block(struct sk_task *task, size_t i)
{
	struct blocking *b = (struct blocking *)task;

	(void)i;
	(void)pthread_mutex_lock(&b->gate);
	(void)pthread_mutex_unlock(&b->gate);
}

static void unblocked(struct sk_task *task)
{
	__atomic_store_n(&((struct blocking *)task)->over, true,
			 __ATOMIC_RELEASE);
}

/* Whoever fences waits for the device, and not for that thread. */
static void needs_nobody(struct rank *rank)
{
	struct trial t = { .step = 0 };
	struct sk_status status;

	begin(&t, rank, 3);
	for (int i = 0; i < 4; i++) {
		struct blocking b = {
			.task = { .units = 1, .run = block,
				  .done = unblocked },
			.gate = PTHREAD_MUTEX_INITIALIZER };

		(void)pthread_mutex_lock(&b.gate);
		sk_pool_submit(rank->state->gpus.pool, &b.task);
		CHECK(take(&t));
		(void)alarm(60);	/* else it waits for ever */
		CHECK(!(i % 2 ? sk_fence_tensor(rank->state, "t1") :
				sk_fence(rank->state)), "%s", sk_error());
		(void)alarm(0);
		/* So whoever holds the memory knows that he may let go. */
		CHECK(!sk_status(rank->state, &status) && status.copied_ns,
		      "the fence has let go, and the status has not");
		spoil(&t);
		(void)pthread_mutex_unlock(&b.gate);
		go_back(&t, 3);
		AWAIT(__atomic_load_n(&b.over, __ATOMIC_ACQUIRE),
		      "it goes on");
	}
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "64M", 1));
	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "few", 1, few, NULL);
	scene_ranks(&scene, "few-small", 1, few_small_ones, NULL);
	scene_ranks(&scene, "capture", 1, beside_a_capture, NULL);
	scene_ranks(&scene, "nobody", 1, needs_nobody, NULL);
	scene_ranks(&scene, "small", 1, small_ones, NULL);
	for (size_t n = 3; t.calls && n <= SMALL + 1; n += SMALL - 2)
		scene_ranks(&scene, "fails", 1, fails, &n);
	for (size_t n = 3; n <= SMALL + 1; n += SMALL - 2)
		scene_ranks(&scene, "beside", 1, beside_others, &n);
	scene.slots = 3;	/* so that there is one */
	scene_ranks(&scene, "heels", 1, on_its_heels, NULL);
	scene_close(&scene);
	return 0;
}
