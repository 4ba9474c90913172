/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a driver's documentation leaves open, or forbids without a promise that
 * it will say so: here the simulation takes the worst of it, and nothing of
 * ours may rely on more. As conformance.c; on a real driver all of it is left
 * out, for there is nothing to compare.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/kernels.h"
#include "items.h"
#include "trainer.h"

#define BYTES ((size_t)3 << 20)
#define PAGE ((size_t)4096)
#define GRAIN ((size_t)2 << 20)

static sk_cu_stream stream(const struct trainer_cuda *t)
{
	sk_cu_stream s;

	IS(0, t->cuStreamCreate(&s, SK_CU_STREAM_NON_BLOCKING));
	return s;
}

static char *locked(const struct trainer_cuda *t, size_t bytes)
{
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	IS(0, t->driver.cuMemHostRegister(p, bytes, 1));
	return p;
}

/* ---- memory that is not locked ---- */

/* What goes to the device has been read when the call is back, and may not be
 * there yet. */
static void arrives_later(void)
{
	char *host = malloc(BYTES), *back;
	struct trainer_gate gate;
	struct trainer_cuda t;
	sk_cu_stream s;
	sk_cu_ptr p;

	trainer_cuda_begin(&t, 0);
	trainer_gate_init(&gate);
	s = stream(&t);
	p = trainer_cuda_alloc(&t, BYTES);
	back = locked(&t, BYTES);
	CHECK(host);
	memset(host, 0x31, BYTES);
	trainer_gate_hold(&t, &gate, s);
	IS(0, t.driver.cuMemcpyHtoDAsync(p, host, BYTES, s));
	memset(host, 0x32, BYTES);
	IS(SK_CU_NOT_READY, t.cuStreamQuery(s));
	trainer_gate_open(&gate);
	IS(0, t.driver.cuMemcpyDtoHAsync(back, p, BYTES, s));
	IS(0, t.driver.cuStreamSynchronize(s));
	CHECK(back[0] == 0x31 && back[BYTES - 1] == 0x31);
	free(host);
}

static void misuse_unmapped(void)
{
	struct trainer_cuda t;
	char *p;

	trainer_cuda_begin(&t, 0);
	p = locked(&t, PAGE);
	CHECK(!munmap(p, PAGE));
	(void)t.driver.cuMemHostUnregister(p);
}

/* ---- batches ---- */

struct batch {
	struct trainer_cuda t;
	sk_cu_stream stream;
	sk_cu_ptr p;
	sk_cu_copy_attributes how;
};

static sk_cu_result ask(struct batch *b, sk_cu_ptr dst0, sk_cu_ptr src0,
			sk_cu_ptr dst1, sk_cu_ptr src1, size_t bytes1)
{
	sk_cu_ptr dsts[] = { b->p + dst0, b->p + dst1 };
	sk_cu_ptr srcs[] = { b->p + src0, b->p + src1 };
	size_t sizes[] = { 1000, bytes1 }, first = 0;

	return b->t.driver.cuMemcpyBatchAsync(dsts, srcs, sizes, 2, &b->how,
					      &first, 1, b->stream);
}

static void begin_batch(struct batch *b)
{
	trainer_cuda_begin(&b->t, 0);
	b->stream = stream(&b->t);
	b->p = trainer_cuda_alloc(&b->t, BYTES);
	b->how = (sk_cu_copy_attributes){
		.source_order = SK_CU_SOURCE_IN_STREAM_ORDER };
}

static void empty_copies(void)
{
	struct batch b;

	begin_batch(&b);
	IS(SK_CU_INVALID_VALUE, ask(&b, 0, 10000, 20000, 30000, 0));
	IS(0, ask(&b, 0, 10000, 1000, 10000, 1000));
	IS(0, b.t.driver.cuStreamSynchronize(b.stream));
}

static void misuse_one_after_the_other(void)
{
	struct batch b;

	begin_batch(&b);
	(void)ask(&b, 0, 10000, 20000, 999, 1000);
}

static void misuse_to_one_place(void)
{
	struct batch b;

	begin_batch(&b);
	(void)ask(&b, 0, 10000, 999, 20000, 1000);
}

static void misuse_onto_itself(void)
{
	struct batch b;

	begin_batch(&b);
	(void)b.t.driver.cuMemcpyDtoDAsync(b.p, b.p + 999, 1000, b.stream);
}

/* ---- memory that goes ---- */

/* Nobody waits for what is under way there. */
static void unmapped_beneath(void)
{
	static const sk_cu_allocation of_device = {
		.type = SK_CU_ALLOCATION_PINNED,
		.location = { SK_CU_LOCATION_DEVICE, 0 } };
	const sk_cu_access access = { { SK_CU_LOCATION_DEVICE, 0 },
				      SK_CU_ACCESS_READ_WRITE };
	/* The error may be told before the stream has left it. */
	static struct trainer_gate gate;
	struct trainer_cuda t;
	sk_cu_handle handle;
	sk_cu_stream s;
	sk_cu_ptr p;

	trainer_cuda_begin(&t, 0);
	trainer_gate_init(&gate);
	s = stream(&t);
	IS(0, t.driver.cuMemCreate(&handle, GRAIN, &of_device, 0));
	IS(0, t.driver.cuMemAddressReserve(&p, GRAIN, 0, 0, 0));
	IS(0, t.driver.cuMemMap(p, GRAIN, 0, handle, 0));
	IS(0, t.driver.cuMemSetAccess(p, GRAIN, &access, 1));
	trainer_gate_hold(&t, &gate, s);
	IS(0, t.driver.cuMemcpyDtoHAsync(locked(&t, PAGE), p, PAGE, s));
	IS(0, t.driver.cuMemUnmap(p, GRAIN));
	trainer_gate_open(&gate);
	IS(SK_CU_ILLEGAL_ADDRESS, t.driver.cuStreamSynchronize(s));
}

/* ---- functions of the host ---- */

struct functions {
	struct trainer_cuda t;
	unsigned called;		/* atomic */
};

static void count(void *data)
{
	struct functions *f = data;

	__atomic_fetch_add(&f->called, 1, __ATOMIC_RELAXED);
}

static bool is_held(struct trainer_gate *gate)
{
	bool held;

	(void)pthread_mutex_lock(&gate->lock);
	held = gate->held;
	(void)pthread_mutex_unlock(&gate->lock);
	return held;
}

/* Of whatever stream. */
static void one_at_a_time(void)
{
	struct functions f = { .called = 0 };
	sk_cu_stream one, other, third;
	struct trainer_gate gate;
	sk_cu_ptr p;

	trainer_cuda_begin(&f.t, 0);
	trainer_gate_init(&gate);
	one = stream(&f.t);
	other = stream(&f.t);
	third = stream(&f.t);
	p = trainer_cuda_alloc(&f.t, PAGE);
	trainer_gate_hold(&f.t, &gate, one);
	while (!is_held(&gate))
		(void)f.t.cuStreamQuery(one);
	IS(0, f.t.cuLaunchHostFunc(other, count, &f));
	/* What is no such function goes on. */
	IS(0, f.t.cuMemsetD8Async(p, 1, PAGE, third));
	IS(0, f.t.driver.cuStreamSynchronize(third));
	IS(SK_CU_NOT_READY, f.t.cuStreamQuery(other));
	CHECK(!__atomic_load_n(&f.called, __ATOMIC_RELAXED));
	trainer_gate_open(&gate);
	IS(0, f.t.driver.cuStreamSynchronize(other));
	CHECK(f.called == 1);
}

static void call_driver(void *data)
{
	struct functions *f = data;
	int n;

	(void)f->t.driver.cuDeviceGetCount(&n);
}

static void misuse_calls(void)
{
	struct functions f = { .called = 0 };
	sk_cu_stream s;

	trainer_cuda_begin(&f.t, 0);
	s = stream(&f.t);
	IS(0, f.t.cuLaunchHostFunc(s, call_driver, &f));
	(void)f.t.driver.cuStreamSynchronize(s);
}

/* ---- functions by version, and by context ---- */

static void too_new(void)
{
	struct trainer_cuda t;
	sk_cu_enum found = 9;
	void *function;

	trainer_cuda_begin(&t, 0);
	IS(SK_CU_INVALID_VALUE, t.driver.get_proc("cuInit", &function, 99000,
						  0, &found));
	IS(0, t.driver.get_proc("cuNothing", &function, 2000, 0, &found));
	CHECK(!function && found);
}

static void of_another_context(void)
{
	struct trainer_cuda t, second;
	sk_cu_ptr p, start;
	size_t bytes;

	(void)setenv("VCUDA_DEVICES", "2", 1);
	trainer_cuda_begin(&t, 0);
	p = trainer_cuda_alloc(&t, PAGE);
	IS(0, t.driver.cuMemGetAddressRange(&start, &bytes, p));
	trainer_cuda_begin(&second, 1);
	IS(SK_CU_NOT_FOUND, t.driver.cuMemGetAddressRange(&start, &bytes, p));
}

/* ---- what is left when a process ends ---- */

/* Each kind, alone. */
static void leave_one(const struct trainer_cuda *t, int which)
{
	const sk_cu_allocation what = {
		.type = SK_CU_ALLOCATION_PINNED,
		.location = { SK_CU_LOCATION_DEVICE, 0 } };
	sk_cu_module module;
	sk_cu_handle handle;
	sk_cu_event event;
	sk_cu_ptr ptr;

	switch (which) {
	case 0: (void)stream(t); break;
	case 1: IS(0, t->driver.cuEventCreate(&event, 0)); break;
	case 2: (void)trainer_cuda_alloc(t, PAGE); break;
	case 3:
		IS(0, t->driver.cuMemCreate(&handle, 2 << 20, &what, 0));
		break;
	case 4:
		IS(0, t->driver.cuMemAddressReserve(&ptr, 2 << 20, 0, 0, 0));
		break;
	case 5:
		(void)locked(t, PAGE);
		break;
	case 6:
		IS(0, t->driver.cuModuleLoadData(&module,
						 sk_cuda_kernels_text));
		break;
	}
}

#define KINDS 7

/* All is given back, but for that one: 7 none, 8 the context itself. */
static int ending_with(int which)
{
	struct trainer_cuda t;
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid) {
		(void)setenv("VCUDA_LEAKS", "1", 1);
		(void)signal(SIGABRT, SIG_DFL);
		trainer_cuda_begin(&t, 0);
		leave_one(&t, which);
		if (which <= KINDS)
			IS(0, t.driver.cuDevicePrimaryCtxRelease(0));
		exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

static void what_is_left(void)
{
	for (int which = 0; which <= KINDS + 1; which++) {
		int status = ending_with(which);

		CHECK(which == KINDS ? !status :
		      WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	}
}

static const struct item items[] = {
	{ "a copy arrives later", arrives_later, ITEM_SIM },
	{ "empty copies of a batch", empty_copies, ITEM_SIM },
	{ "unmapped beneath a copy", unmapped_beneath, ITEM_SIM },
	{ "functions of the host, one by one", one_at_a_time, ITEM_SIM },
	{ "versions that there are not", too_new, ITEM_SIM },
	{ "memory of another context", of_another_context, ITEM_SIM },
	{ "what is left when a process ends", what_is_left, ITEM_SIM },
	{ "misuse: unmapped before it is unregistered", misuse_unmapped,
	  ITEM_MISUSE },
	{ "misuse: copies of a batch that are one", misuse_one_after_the_other,
	  ITEM_MISUSE },
	{ "misuse: copies of a batch to one place", misuse_to_one_place,
	  ITEM_MISUSE },
	{ "misuse: a copy onto itself", misuse_onto_itself, ITEM_MISUSE },
	{ "misuse: a function that calls the driver", misuse_calls,
	  ITEM_MISUSE },
};

int main(void)
{
	return cuda_items_main(items, sizeof(items) / sizeof(items[0]), false);
}
