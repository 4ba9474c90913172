/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a driver refuses, and what there is no way on from: calls too early and
 * in no context, addresses and sizes that are none, no room, errors that stay.
 * As conformance.c: on the simulation and on a real driver; what a real one may
 * let pass, or says otherwise, is the simulation's alone.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "items.h"
#include "trainer.h"

#define BYTES ((size_t)3 << 20)
#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)

static const sk_cu_allocation of_device = {
	.type = SK_CU_ALLOCATION_PINNED,
	.handles = SK_CU_HANDLE_POSIX_FD,
	.location = { SK_CU_LOCATION_DEVICE, 0 },
};

static char *pages(size_t bytes)
{
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static sk_cu_stream stream(const struct trainer_cuda *t)
{
	sk_cu_stream s;

	IS(0, t->cuStreamCreate(&s, SK_CU_STREAM_NON_BLOCKING));
	return s;
}

static size_t grain(const struct trainer_cuda *t)
{
	size_t bytes = 0;

	IS(0, t->driver.cuMemGetAllocationGranularity(
		   &bytes, &of_device, SK_CU_GRANULARITY_MINIMUM));
	return bytes;
}

static void require_sharing(const struct trainer_cuda *t)
{
	if (!t->driver.cuMemCreate)
		item_lacks("this driver has no memory without addresses");
}

/* ---- too early, and nowhere ---- */

static void too_early(void)
{
	struct trainer_cuda t;
	sk_cu_context context;
	sk_cu_handle handle;
	sk_cu_event event;
	sk_cu_ptr p;

	CHECK(trainer_cuda_open(&t, NULL) == 0);
	IS(SK_CU_NOT_INITIALIZED, t.driver.cuMemAlloc(&p, BYTES));
	IS(SK_CU_NOT_INITIALIZED, t.driver.cuEventCreate(&event, 0));
	IS(SK_CU_NOT_INITIALIZED,
	   t.driver.cuMemHostRegister(pages(PAGE), PAGE, 1));
	IS(SK_CU_NOT_INITIALIZED,
	   t.driver.cuDevicePrimaryCtxRetain(&context, 0));
	if (t.driver.cuMemCreate)
		IS(SK_CU_NOT_INITIALIZED,
		   t.driver.cuMemCreate(&handle, 2 * MIB, &of_device, 0));
}

struct nowhere {
	struct trainer_cuda t;
	sk_cu_context context;
};

/* What another thread has made current is not current here. */
static void *look_around(void *data)
{
	const struct nowhere *n = data;
	sk_cu_context context = n->context;
	sk_cu_event event;
	sk_cu_ptr p;

	IS(0, n->t.cuCtxGetCurrent(&context));
	CHECK(!context);
	IS(SK_CU_INVALID_CONTEXT, n->t.driver.cuMemAlloc(&p, BYTES));
	IS(SK_CU_INVALID_CONTEXT, n->t.driver.cuEventCreate(&event, 0));
	IS(SK_CU_INVALID_CONTEXT,
	   n->t.driver.cuMemHostRegister(pages(PAGE), PAGE, 1));
	IS(SK_CU_INVALID_CONTEXT, n->t.driver.cuCtxSynchronize());
	IS(SK_CU_INVALID_CONTEXT, n->t.driver.cuCtxPopCurrent(&context));
	return NULL;
}

static void each_thread_its_own(void)
{
	sk_cu_context context;
	pthread_t thread;
	struct nowhere n;

	trainer_cuda_begin(&n.t, 0);
	IS(0, n.t.cuCtxGetCurrent(&n.context));
	CHECK(!pthread_create(&thread, NULL, look_around, &n));
	CHECK(!pthread_join(thread, NULL));
	IS(0, n.t.cuCtxGetCurrent(&context));
	CHECK(context == n.context);
}

/* Releasing pops nothing: it is current still, and is none. */
static void a_context_that_ended(void)
{
	struct trainer_cuda t;
	sk_cu_context context;
	sk_cu_stream s;
	sk_cu_result r;

	trainer_cuda_begin(&t, 0);
	IS(0, t.driver.cuDevicePrimaryCtxRelease(0));
	r = t.cuStreamCreate(&s, SK_CU_STREAM_NON_BLOCKING);
	CHECK(r == VCU_CONTEXT_IS_DESTROYED || r == SK_CU_INVALID_CONTEXT);
	IS(0, t.driver.cuDevicePrimaryCtxRetain(&context, 0));
	IS(0, t.cuCtxSetCurrent(context));
	IS(0, t.driver.cuStreamDestroy(stream(&t)));
}

/* Of the library itself: our loader refuses a stub. */
static void begins_with(sk_cu_result expected)
{
	const char *file = getenv("SHARDKEEP_LIBCUDA");
	void *library = dlopen(file ? file : "libcuda.so.1", RTLD_NOW);
	sk_cu_result (*init)(unsigned);

	CHECK(library);
	init = (sk_cu_result(*)(unsigned))dlsym(library, "cuInit");
	CHECK(init);
	IS(expected, init(0));
}

static void no_device(void)
{
	(void)setenv("VCUDA_DEVICES", "0", 1);
	begins_with(SK_CU_NO_DEVICE);
}

static void a_stub(void)
{
	(void)setenv("VCUDA_MODE", "stub", 1);
	begins_with(SK_CU_STUB_LIBRARY);
}

/* ---- a child of a fork ---- */

static void a_child_is_noticed(void)
{
	struct trainer_cuda t;
	int status, n;
	pid_t pid;

	trainer_cuda_begin(&t, 0);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		CHECK(!t.count("of a child"));
		IS(SK_CU_NOT_INITIALIZED, t.driver.cuDeviceGetCount(&n));
		IS(SK_CU_NOT_INITIALIZED, t.driver.cuInit(0));
		CHECK(t.count("of a child"));
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	CHECK(!t.count("of a child"));
}

/* ---- locking pages ---- */

/* With a flag of its own, and to be read by devices, too. */
static void mapped_to_be_read(void)
{
	int fd = memfd_create("read", MFD_CLOEXEC), has = 0;
	char back[64] = "", *there, *here;
	struct trainer_cuda t;
	sk_cu_stream s;
	sk_cu_ptr p;

	trainer_cuda_begin(&t, 0);
	IS(0, t.driver.cuDeviceGetAttribute(&has,
					    VCU_DEVICE_READ_ONLY_REGISTER, 0));
	if (!has)
		item_lacks("this device locks no pages that are only read");
	CHECK(fd >= 0 && !ftruncate(fd, (off_t)PAGE));
	there = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	here = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(there != MAP_FAILED && here != MAP_FAILED);
	memset(there, 0x39, PAGE);
	s = stream(&t);
	p = trainer_cuda_alloc(&t, PAGE);
	CHECK(t.driver.cuMemHostRegister(here, PAGE, 1));
	IS(0, t.driver.cuMemHostRegister(here, PAGE,
					 SK_CU_HOST_REGISTER_READ_ONLY));
	IS(0, t.driver.cuMemcpyHtoDAsync(p, here, PAGE, s));
	IS(0, t.driver.cuStreamSynchronize(s));
	trainer_cuda_get(&t, back, p + PAGE - sizeof(back), sizeof(back));
	CHECK(back[0] == 0x39 && back[63] == 0x39);
	IS(0, t.driver.cuMemHostUnregister(here));
}

static void written_to_what_is_read(void)
{
	struct trainer_cuda t;
	char *here = pages(PAGE);
	sk_cu_ptr p;

	trainer_cuda_begin(&t, 0);
	p = trainer_cuda_alloc(&t, PAGE);
	IS(0, t.driver.cuMemHostRegister(here, PAGE,
					 SK_CU_HOST_REGISTER_READ_ONLY));
	(void)t.driver.cuMemcpyDtoHAsync(here, p, PAGE, stream(&t));
	IS(SK_CU_ILLEGAL_ADDRESS, t.driver.cuCtxSynchronize());
}

static void too_much_to_lock(void)
{
	struct trainer_cuda t;
	char *p = pages(2 * MIB);

	(void)setenv("VCUDA_LOCK_MOST", "1048576", 1);
	trainer_cuda_begin(&t, 0);
	IS(SK_CU_OUT_OF_MEMORY, t.driver.cuMemHostRegister(p, MIB, 1));
	IS(0, t.driver.cuMemHostRegister(p, MIB - PAGE, 1));
	IS(0, t.driver.cuMemHostRegister(p + MIB, MIB - PAGE, 1));
}

/* A page is locked once, whatever parts of it are asked for. */
static void two_in_one_page(void)
{
	struct trainer_cuda t;
	char *p = pages(2 * PAGE);

	trainer_cuda_begin(&t, 0);
	IS(0, t.driver.cuMemHostRegister(p, PAGE + 100, 1));
	IS(SK_CU_ALREADY_REGISTERED,
	   t.driver.cuMemHostRegister(p + PAGE + 1000, 100, 1));
	IS(0, t.driver.cuMemHostUnregister(p));
	IS(0, t.driver.cuMemHostRegister(p + PAGE + 1000, 100, 1));
}

/* Each for itself, and with its end. */
static void locked_by_two(void)
{
	char *here = pages(PAGE), byte, back[8] = "";
	struct trainer_cuda t;
	int ends[2], status;
	sk_cu_stream s;
	sk_cu_ptr p;
	pid_t pid;

	CHECK(!pipe(ends));
	pid = fork();		/* before there is a driver here */
	CHECK(pid >= 0);
	if (!pid)
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	trainer_cuda_begin(&t, 0);
	IS(0, t.driver.cuMemHostRegister(here, PAGE, 1));
	if (!pid) {
		CHECK(write(ends[1], "!", 1) == 1);
		for (;;)
			(void)pause();
	}
	CHECK(read(ends[0], &byte, 1) == 1);
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
	memset(here, 0x27, PAGE);
	s = stream(&t);
	p = trainer_cuda_alloc(&t, PAGE);
	IS(0, t.driver.cuMemcpyHtoDAsync(p, here, PAGE, s));
	IS(0, t.driver.cuStreamSynchronize(s));
	trainer_cuda_get(&t, back, p, sizeof(back));
	CHECK(back[0] == 0x27 && back[7] == 0x27);
	IS(0, t.driver.cuMemHostUnregister(here));
	IS(SK_CU_NOT_REGISTERED, t.driver.cuMemHostUnregister(here));
}

static void misuse_unmapped_in_flight(void)
{
	struct trainer_gate gate;
	struct trainer_cuda t;
	sk_cu_stream s;
	sk_cu_ptr p;
	char *here;

	trainer_cuda_begin(&t, 0);
	trainer_gate_init(&gate);
	s = stream(&t);
	p = trainer_cuda_alloc(&t, BYTES);
	here = pages(BYTES);
	IS(0, t.driver.cuMemHostRegister(here, BYTES, 1));
	trainer_gate_hold(&t, &gate, s);
	IS(0, t.driver.cuMemcpyDtoHAsync(here, p, BYTES, s));
	CHECK(!munmap(here + BYTES - PAGE, PAGE));
	trainer_gate_open(&gate);
	(void)t.driver.cuStreamSynchronize(s);
}

/* ---- addresses and sizes ---- */

/* Whole grains, at whole grains; all of what was made, once. */
static void places_to_map_to(void)
{
	struct trainer_cuda t;
	sk_cu_handle handle;
	sk_cu_ptr p;
	size_t g;

	trainer_cuda_begin(&t, 0);
	require_sharing(&t);
	g = grain(&t);
	IS(0, t.driver.cuMemCreate(&handle, g, &of_device, 0));
	IS(0, t.driver.cuMemAddressReserve(&p, 3 * g, 0, 0, 0));
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuMemMap(p + PAGE, g, 0, handle, 0));
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuMemMap(p, g - PAGE, 0, handle, 0));
	IS(SK_CU_INVALID_VALUE, t.driver.cuMemMap(p, 0, 0, handle, 0));
	IS(0, t.driver.cuMemMap(p, g, 0, handle, 0));
	CHECK(t.driver.cuMemMap(p, g, 0, handle, 0));
	CHECK(t.driver.cuMemMap(p + 3 * g, g, 0, handle, 0));
	IS(0, t.driver.cuMemUnmap(p, g));
	CHECK(t.driver.cuMemUnmap(p, g));
	IS(0, t.driver.cuMemAddressFree(p, 3 * g));
	IS(0, t.driver.cuMemRelease(handle));
}

/* As documentation has it; a driver may be more generous. */
static void parts_of_places(void)
{
	const sk_cu_access access = { of_device.location,
				      SK_CU_ACCESS_READ_WRITE };
	struct trainer_cuda t;
	sk_cu_handle handle;
	sk_cu_ptr p;
	size_t g;

	trainer_cuda_begin(&t, 0);
	g = grain(&t);
	IS(0, t.driver.cuMemCreate(&handle, 2 * g, &of_device, 0));
	IS(0, t.driver.cuMemAddressReserve(&p, 2 * g, 0, 0, 0));
	IS(SK_CU_INVALID_VALUE, t.driver.cuMemMap(p, g, g, handle, 0));
	IS(0, t.driver.cuMemMap(p, 2 * g, 0, handle, 0));
	IS(SK_CU_INVALID_VALUE, t.driver.cuMemUnmap(p, g));
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuMemSetAccess(p, g - PAGE, &access, 1));
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuMemSetAccess(p + PAGE, g, &access, 1));
	IS(0, t.driver.cuMemSetAccess(p, 2 * g, &access, 1));
}

/* What was not made to be exported is not. */
static void not_to_be_exported(void)
{
	sk_cu_allocation what = of_device;
	struct trainer_cuda t;
	sk_cu_handle handle;
	int fd = -1;

	trainer_cuda_begin(&t, 0);
	require_sharing(&t);
	what.handles = 0;
	IS(0, t.driver.cuMemCreate(&handle, grain(&t), &what, 0));
	CHECK(t.driver.cuMemExportToShareableHandle(
		      &fd, handle, SK_CU_HANDLE_POSIX_FD, 0));
	IS(0, t.driver.cuMemRelease(handle));
}

static void misuse_released_twice(void)
{
	struct trainer_cuda t;
	sk_cu_handle handle;

	trainer_cuda_begin(&t, 0);
	IS(0, t.driver.cuMemCreate(&handle, grain(&t), &of_device, 0));
	IS(0, t.driver.cuMemRelease(handle));
	(void)t.driver.cuMemRelease(handle);
}

static void misuse_released_and_used(void)
{
	struct trainer_cuda t;
	sk_cu_handle handle;
	sk_cu_ptr p;
	size_t g;

	trainer_cuda_begin(&t, 0);
	g = grain(&t);
	IS(0, t.driver.cuMemAddressReserve(&p, g, 0, 0, 0));
	IS(0, t.driver.cuMemCreate(&handle, g, &of_device, 0));
	IS(0, t.driver.cuMemRelease(handle));
	(void)t.driver.cuMemMap(p, g, 0, handle, 0);
}

static void misuse_freed_twice(void)
{
	struct trainer_cuda t;
	sk_cu_ptr p;

	trainer_cuda_begin(&t, 0);
	p = trainer_cuda_alloc(&t, BYTES);
	IS(0, t.driver.cuMemFree(p));
	(void)t.driver.cuMemFree(p);
}

/* ---- copies ---- */

static void beyond_what_there_is(void)
{
	sk_cu_memcpy2d c = { .src_type = SK_CU_MEMORY_DEVICE,
			     .dst_type = SK_CU_MEMORY_HOST,
			     .src_pitch = (size_t)1 << 31,
			     .dst_pitch = PAGE, .width = 100, .height = 1 };
	struct trainer_cuda t;
	sk_cu_stream s;
	sk_cu_ptr p;

	trainer_cuda_begin(&t, 0);
	s = stream(&t);
	p = trainer_cuda_alloc(&t, 1000);
	IS(0, t.cuMemsetD8Async(p, 1, 1000, s));
	IS(SK_CU_INVALID_VALUE, t.cuMemsetD8Async(p, 1, 1001, s));
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuMemcpyDtoDAsync(trainer_cuda_alloc(&t, 1000), p + 500,
				      501, s));
	c.src_device = p;
	c.dst_host = pages(PAGE);
	IS(SK_CU_INVALID_VALUE, t.driver.cuMemcpy2DAsync(&c, s));
	c.src_pitch--;
	IS(0, t.driver.cuMemcpy2DAsync(&c, s));
}

/* Nobody has given access to each other's. */
static void of_another_device(void)
{
	struct trainer_cuda t, other;
	sk_cu_stream s, its_stream;
	sk_cu_event its_event;
	sk_cu_ptr here, there;

	(void)setenv("VCUDA_DEVICES", "2", 1);
	trainer_cuda_begin(&other, 1);
	there = trainer_cuda_alloc(&other, PAGE);
	its_stream = stream(&other);
	IS(0, other.driver.cuEventCreate(&its_event, 0));
	trainer_cuda_begin(&t, 0);
	here = trainer_cuda_alloc(&t, PAGE);
	s = stream(&t);
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuMemcpyDtoDAsync(here, there, PAGE, s));
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuMemcpyDtoDAsync(there, here, PAGE, s));
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuMemcpyDtoHAsync(pages(PAGE), there, PAGE, s));
	IS(SK_CU_INVALID_VALUE, t.cuMemsetD8Async(there, 1, PAGE, s));
	IS(SK_CU_INVALID_HANDLE, t.cuMemsetD8Async(here, 1, PAGE, its_stream));
	IS(SK_CU_INVALID_HANDLE, t.driver.cuEventRecord(its_event, s));
	IS(0, t.driver.cuStreamWaitEvent(s, its_event, 0));
}

static void misuse_device_for_host(void)
{
	struct trainer_cuda t;
	sk_cu_ptr a, b;

	trainer_cuda_begin(&t, 0);
	a = trainer_cuda_alloc(&t, PAGE);
	b = trainer_cuda_alloc(&t, PAGE);
	(void)t.driver.cuMemcpyDtoHAsync((void *)(uintptr_t)a, b, PAGE,
					 stream(&t));
}

/* ---- batches ---- */

#define COPIES 4

struct batch {
	struct trainer_cuda t;
	sk_cu_stream stream;
	sk_cu_ptr dsts[COPIES], srcs[COPIES];
	size_t sizes[COPIES];
	sk_cu_copy_attributes how[COPIES + 1];
	char *here;
};

static void begin_batch(struct batch *b)
{
	sk_cu_ptr p;

	*b = (struct batch){ 0 };
	trainer_cuda_begin(&b->t, 0);
	b->stream = stream(&b->t);
	p = trainer_cuda_alloc(&b->t, BYTES);
	b->here = pages(BYTES);
	IS(0, b->t.driver.cuMemHostRegister(b->here, BYTES, 1));
	memset(b->here, 7, BYTES);
	trainer_cuda_put(&b->t, p, b->here, BYTES);
	memset(b->here, 0, BYTES);
	for (size_t i = 0; i < COPIES; i++) {
		b->srcs[i] = p + i * PAGE;
		b->dsts[i] = (uintptr_t)b->here + i * PAGE;
		b->sizes[i] = 1000;
	}
	for (size_t i = 0; i <= COPIES; i++)
		b->how[i] = (sk_cu_copy_attributes){
			.source_order = SK_CU_SOURCE_IN_STREAM_ORDER,
			.src = { SK_CU_LOCATION_DEVICE, 0 },
			.dst = { SK_CU_LOCATION_HOST, 0 } };
}

static bool has_come(const struct batch *b)
{
	IS(0, b->t.driver.cuStreamSynchronize(b->stream));
	for (size_t i = 0; i < COPIES; i++)
		if (b->here[i * PAGE] != 7 || b->here[i * PAGE + 999] != 7 ||
		    b->here[i * PAGE + 1000])
			return false;
	return true;
}

static sk_cu_result ask(struct batch *b, size_t n_attributes, size_t second,
			size_t third)
{
	size_t first_of[COPIES + 1] = { 0, second, third, 3, 4 };

	return b->t.driver.cuMemcpyBatchAsync(b->dsts, b->srcs, b->sizes,
					      COPIES, b->how, first_of,
					      n_attributes, b->stream);
}

/* Each begins at a copy of its own, behind the one before. */
static void attributes_of_a_batch(void)
{
	struct batch b;

	begin_batch(&b);
	if (!b.t.driver.cuMemcpyBatchAsync)
		item_lacks("this driver, before 12.8, has no batches");
	IS(SK_CU_INVALID_VALUE, ask(&b, 3, 2, 2));
	IS(SK_CU_INVALID_VALUE, ask(&b, 3, 2, 1));
	IS(SK_CU_INVALID_VALUE, ask(&b, 2, COPIES, 0));
	IS(SK_CU_INVALID_VALUE, ask(&b, COPIES + 1, 1, 2));
	IS(SK_CU_INVALID_VALUE, ask(&b, 0, 0, 0));
	IS(0, ask(&b, 3, 1, 3));
	CHECK(has_come(&b));
}

/* As CUDA 12.8 had it, by another parameter. */
static void a_batch_as_it_was(void)
{
	sk_cu_result(*batch) SK_CU_BATCH_12080;
	size_t first_of = 0, failed = 77;
	struct batch b;

	begin_batch(&b);
	batch = (sk_cu_result(*) SK_CU_BATCH_12080)sk_cuda_driver_find(
		&b.t.driver, "cuMemcpyBatchAsync", 12080);
	if (!batch)
		item_lacks("this driver, before 12.8, has no batches");
	IS(0, batch(b.dsts, b.srcs, b.sizes, COPIES, b.how, &first_of, 1,
		    &failed, b.stream));
	CHECK(has_come(&b));
	b.sizes[2] = BYTES;
	if (b.t.calls) {
		IS(SK_CU_INVALID_VALUE,
		   batch(b.dsts, b.srcs, b.sizes, 3, b.how, &first_of, 1,
			 &failed, b.stream));
		CHECK(failed == 2);
		IS(SK_CU_INVALID_VALUE,
		   batch(b.dsts, b.srcs, b.sizes, 0, b.how, &first_of, 1,
			 &failed, b.stream));
		CHECK(failed == SIZE_MAX);
	}
}

/* ---- room ---- */

static size_t left(const struct trainer_cuda *t)
{
	size_t left_, all;

	IS(0, t->driver.cuMemGetInfo(&left_, &all));
	CHECK(left_ <= all);
	return left_;
}

/* Others may take and give meanwhile, but no such amounts. */
static void what_is_left(void)
{
	const size_t most = 64 * MIB, some = 48 * MIB;
	struct trainer_cuda t;
	size_t before;
	sk_cu_ptr p;

	trainer_cuda_begin(&t, 0);
	before = left(&t);
	IS(SK_CU_OUT_OF_MEMORY, t.driver.cuMemAlloc(&p, (size_t)1 << 50));
	p = trainer_cuda_alloc(&t, most);
	CHECK(left(&t) + some <= before);
	IS(0, t.driver.cuMemFree(p));
	CHECK(left(&t) + (most - some) >= before);
}

/* By address or not, mapped once or twice, it is there once. */
static void nothing_is_counted_twice(void)
{
	struct trainer_cuda t;
	sk_cu_handle handle;
	sk_cu_ptr p, q;
	size_t g;

	(void)setenv("VCUDA_MEM", "16777216", 1);
	(void)setenv("VCUDA_CONTEXT", "1048576", 1);
	trainer_cuda_begin(&t, 0);
	g = grain(&t);
	CHECK(left(&t) == 15 * MIB);
	IS(0, t.driver.cuMemCreate(&handle, 2 * g, &of_device, 0));
	CHECK(left(&t) == 11 * MIB);
	IS(0, t.driver.cuMemAddressReserve(&p, 4 * g, 0, 0, 0));
	IS(0, t.driver.cuMemMap(p, 2 * g, 0, handle, 0));
	IS(0, t.driver.cuMemMap(p + 2 * g, 2 * g, 0, handle, 0));
	IS(0, t.driver.cuMemRelease(handle));
	CHECK(left(&t) == 11 * MIB);
	IS(SK_CU_OUT_OF_MEMORY,
	   t.driver.cuMemCreate(&handle, 6 * g, &of_device, 0));
	IS(SK_CU_OUT_OF_MEMORY, t.driver.cuMemAlloc(&q, 12 * MIB));
	q = trainer_cuda_alloc(&t, 11 * MIB);
	CHECK(!left(&t));
	IS(0, t.driver.cuMemFree(q));
	IS(0, t.driver.cuMemUnmap(p, 2 * g));
	CHECK(left(&t) == 11 * MIB);
	IS(0, t.driver.cuMemUnmap(p + 2 * g, 2 * g));
	CHECK(left(&t) == 15 * MIB);
}

static void no_room_for_a_context(void)
{
	struct trainer_cuda t;
	sk_cu_context context;

	(void)setenv("VCUDA_MEM", "16777216", 1);
	(void)setenv("VCUDA_CONTEXT", "10485760", 1);
	CHECK(trainer_cuda_open(&t, NULL) == 0);
	IS(0, t.driver.cuInit(0));
	(void)setenv("VCUDA_CONTEXT", "20971520", 1);
	IS(SK_CU_OUT_OF_MEMORY,
	   t.driver.cuDevicePrimaryCtxRetain(&context, 0));
	(void)setenv("VCUDA_CONTEXT", "10485760", 1);
	IS(0, t.driver.cuDevicePrimaryCtxRetain(&context, 0));
	IS(0, t.cuCtxSetCurrent(context));
	CHECK(left(&t) == 6 * MIB);
	IS(0, t.driver.cuDevicePrimaryCtxRelease(0));
	IS(0, t.driver.cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(left(&t) == 6 * MIB);
}

/* ---- errors that stay ---- */

static void count(void *data)
{
	__atomic_fetch_add((unsigned *)data, 1, __ATOMIC_RELAXED);
}

/* Whatever it asks for; what was queued is dropped. */
static void stays(sk_cu_result error)
{
	sk_cu_enum which[] = { SK_CU_POINTER_MEMORY_TYPE };
	unsigned called = 0, type = 0;
	void *values[] = { &type };
	struct trainer_cuda t, other;
	struct trainer_gate gate;
	sk_cu_context context;
	sk_cu_handle handle;
	sk_cu_event event;
	sk_cu_stream s;
	sk_cu_ptr p, q;

	trainer_cuda_begin(&other, 1);
	trainer_cuda_begin(&t, 0);
	trainer_gate_init(&gate);
	s = stream(&t);
	p = trainer_cuda_alloc(&t, PAGE);
	IS(0, t.driver.cuEventCreate(&event, 0));
	trainer_gate_hold(&t, &gate, s);
	IS(0, t.cuLaunchHostFunc(s, count, &called));
	t.fail("cuMemGetInfo", 1, error);
	IS(error, t.driver.cuMemGetInfo(&(size_t){ 0 }, &(size_t){ 0 }));
	trainer_gate_open(&gate);
	IS(error, t.driver.cuStreamSynchronize(s));
	IS(error, t.driver.cuCtxSynchronize());
	IS(error, t.driver.cuEventQuery(event));
	IS(error, t.driver.cuMemAlloc(&q, PAGE));
	IS(error, t.driver.cuMemFree(p));
	IS(error, t.cuMemsetD8Async(p, 1, PAGE, s));
	IS(error, t.driver.cuMemHostRegister(pages(PAGE), PAGE, 1));
	IS(error, t.driver.cuPointerGetAttributes(1, which, values, p));
	IS(error, t.driver.cuMemCreate(&handle, 2 * MIB, &of_device, 0));
	IS(error, t.driver.cuMemAddressReserve(&q, 2 * MIB, 0, 0, 0));
	IS(error, t.driver.cuDevicePrimaryCtxRetain(&context, 2));
	/* The process is what has to end. */
	IS(0, t.driver.cuDevicePrimaryCtxRelease(1));
	(void)usleep(1000);
	CHECK(!__atomic_load_n(&called, __ATOMIC_RELAXED));
}

static void errors_stay(void)
{
	static const sk_cu_result errors[] = { 700, 719, 214, 226 };
	int status;

	(void)setenv("VCUDA_DEVICES", "3", 1);
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (!pid) {
			stays(errors[i]);
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && !status);
	}
}

/* ---- all of them ---- */

static const struct item items[] = {
	{ "too early", too_early, ITEM_ANY },
	{ "contexts are a thread's", each_thread_its_own, ITEM_ANY },
	{ "a context that ended", a_context_that_ended, ITEM_ANY },
	{ "no device", no_device, ITEM_SIM },
	{ "a stub", a_stub, ITEM_SIM },
	{ "calls of a child", a_child_is_noticed, ITEM_SIM },
	{ "page-locked to be read", mapped_to_be_read, ITEM_ANY },
	{ "written to what is to be read", written_to_what_is_read,
	  ITEM_SIM },
	{ "page-locked by two, of which one is killed", locked_by_two,
	  ITEM_ANY },
	{ "too much to lock", too_much_to_lock, ITEM_SIM },
	{ "two in one page", two_in_one_page, ITEM_SIM },
	{ "places to map to", places_to_map_to, ITEM_ANY },
	{ "parts of places", parts_of_places, ITEM_SIM },
	{ "not to be exported", not_to_be_exported, ITEM_ANY },
	{ "beyond what there is", beyond_what_there_is, ITEM_SIM },
	{ "memory of another device", of_another_device, ITEM_SIM },
	{ "attributes of a batch", attributes_of_a_batch, ITEM_ANY },
	{ "a batch as it was", a_batch_as_it_was, ITEM_ANY },
	{ "what is left", what_is_left, ITEM_ANY },
	{ "nothing is counted twice", nothing_is_counted_twice, ITEM_SIM },
	{ "no room for a context", no_room_for_a_context, ITEM_SIM },
	{ "errors that stay, all of them", errors_stay, ITEM_SIM },
	{ "misuse: unmapped while copies fly", misuse_unmapped_in_flight,
	  ITEM_MISUSE },
	{ "misuse: a handle released twice", misuse_released_twice,
	  ITEM_MISUSE },
	{ "misuse: a handle released and mapped", misuse_released_and_used,
	  ITEM_MISUSE },
	{ "misuse: memory freed twice", misuse_freed_twice, ITEM_MISUSE },
	{ "misuse: a device's pointer for the host's", misuse_device_for_host,
	  ITEM_MISUSE },
};

int main(void)
{
	return cuda_items_main(items, sizeof(items) / sizeof(items[0]), false);
}
