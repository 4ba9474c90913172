/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What we rely on of the driver, one by one, each in a process of its own.
 *
 * The same program runs on the simulated driver and on a real one: where they
 * differ, the simulation is mended. Without $SHARDKEEP_LIBCUDA it takes the
 * machine's driver, and is skipped where there is none. What only the
 * simulation promises (that misuse ends the process, counts) is left out
 * then.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "items.h"
#include "trainer.h"

#define BYTES ((size_t)3 << 20)
#define PAGE ((size_t)4096)
#define LARGE ((size_t)64 << 20)

static char *pages(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static char *locked(const struct trainer_cuda *t, size_t bytes)
{
	char *p = pages(bytes);

	IS(0, t->driver.cuMemHostRegister(p, bytes, 1));
	return p;
}

static bool all_are(const char *p, size_t n, int byte)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != (char)byte)
			return false;
	return true;
}

static sk_cu_stream stream(const struct trainer_cuda *t, unsigned flags)
{
	sk_cu_stream s;

	IS(0, t->cuStreamCreate(&s, flags));
	return s;
}

static sk_cu_event event(const struct trainer_cuda *t)
{
	sk_cu_event e;

	IS(0, t->driver.cuEventCreate(&e, SK_CU_EVENT_DISABLE_TIMING));
	return e;
}

/* For as long as it would take, were nothing in its way. */
static bool is_held(const struct trainer_cuda *t, sk_cu_event e)
{
	for (int i = 0; i < 20; i++) {
		if (t->driver.cuEventQuery(e) != SK_CU_NOT_READY)
			return false;
		(void)usleep(1000);
	}
	return true;
}

/* ---- beginning ---- */

static void before_init(void)
{
	struct trainer_cuda t;
	sk_cu_stream s;
	int n;

	CHECK(trainer_cuda_open(&t, NULL) == 0);
	IS(SK_CU_NOT_INITIALIZED, t.driver.cuDeviceGetCount(&n));
	IS(0, t.driver.cuInit(0));
	IS(0, t.driver.cuInit(0));
	IS(0, t.driver.cuDeviceGetCount(&n));
	CHECK(n > 0);
	IS(SK_CU_INVALID_DEVICE, t.driver.cuDeviceGet(&(int){ 0 }, n));
	IS(SK_CU_INVALID_DEVICE, t.driver.cuDeviceGet(&(int){ 0 }, -1));
	IS(SK_CU_INVALID_CONTEXT, t.cuStreamCreate(&s, 0));
}

static void primary_contexts(void)
{
	sk_cu_context a, b, popped;
	struct trainer_cuda t;
	unsigned flags;
	int active;

	CHECK(trainer_cuda_open(&t, NULL) == 0);
	IS(0, t.driver.cuInit(0));
	IS(0, t.cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(!active);
	IS(0, t.driver.cuDevicePrimaryCtxRetain(&a, 0));
	IS(0, t.driver.cuDevicePrimaryCtxRetain(&b, 0));
	CHECK(a == b);
	IS(0, t.cuCtxGetCurrent(&b));
	CHECK(!b);		/* retaining makes nothing current */
	IS(0, t.driver.cuCtxPushCurrent(a));
	IS(0, t.cuCtxGetCurrent(&b));
	CHECK(a == b);
	IS(0, t.driver.cuCtxPopCurrent(&popped));
	CHECK(popped == a);
	IS(0, t.cuCtxGetCurrent(&b));
	CHECK(!b);
	IS(0, t.driver.cuDevicePrimaryCtxRelease(0));
	IS(0, t.cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(active);
	IS(0, t.driver.cuDevicePrimaryCtxRelease(0));
	IS(0, t.cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(!active);
}

static void forked(void)
{
	struct trainer_cuda t;
	int status, n;
	pid_t pid;

	trainer_cuda_begin(&t, 0);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		_exit(t.driver.cuDeviceGetCount(&n) ==
		      SK_CU_NOT_INITIALIZED ? 0 : 1);
	CHECK(waitpid(pid, &status, 0) == pid && !status);
}

/* ---- memory ---- */

static void host_touches_device(void)
{
	struct trainer_cuda t;
	volatile char *p;
	int status;
	pid_t pid;

	trainer_cuda_begin(&t, 0);
	p = (char *)(uintptr_t)trainer_cuda_alloc(&t, BYTES);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		(void)signal(SIGSEGV, SIG_DFL);
		_exit(*p ? 0 : 1);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
}

struct known {
	unsigned type;
	int ordinal;
	sk_cu_ptr start;
	size_t bytes;
	unsigned long long id;
};

static sk_cu_result look(const struct trainer_cuda *t, sk_cu_ptr ptr,
			 struct known *ret)
{
	sk_cu_enum which[] = { 2, 9, 11, 12, 7 };
	void *values[] = { &ret->type, &ret->ordinal, &ret->start,
			   &ret->bytes, &ret->id };

	*ret = (struct known){ .type = 9, .ordinal = 9, .start = 9,
			       .bytes = 9, .id = 9 };
	return t->driver.cuPointerGetAttributes(5, which, values, ptr);
}

static void pointers(void)
{
	struct trainer_cuda t;
	struct known a, b;
	sk_cu_ptr p, q;
	char *host;

	trainer_cuda_begin(&t, 0);
	p = trainer_cuda_alloc(&t, BYTES);
	q = trainer_cuda_alloc(&t, BYTES);
	IS(0, look(&t, p + 100, &a));
	CHECK(a.type == SK_CU_MEMORY_DEVICE && a.ordinal == 0);
	CHECK(a.start == p && a.bytes >= BYTES);
	IS(0, look(&t, q, &b));
	CHECK(a.id != b.id);
	/* Freed: it is nothing, or somebody else's. */
	IS(0, t.driver.cuMemFree(p));
	IS(0, look(&t, p, &b));
	CHECK(b.type == 0 || b.id != a.id);
	for (int i = 0; i < 4; i++) {
		p = trainer_cuda_alloc(&t, BYTES);
		IS(0, look(&t, p, &b));
		CHECK(a.id != b.id);
		a = b;
		IS(0, t.driver.cuMemFree(p));
	}
	host = pages(PAGE);
	IS(0, look(&t, (uintptr_t)host, &b));
	CHECK(b.type == 0);
	IS(0, t.driver.cuMemHostRegister(host, PAGE, 1));
	IS(0, look(&t, (uintptr_t)host, &b));
	CHECK(b.type == SK_CU_MEMORY_HOST);
	IS(SK_CU_INVALID_VALUE, t.driver.cuMemFree(q + 256));
}

static void page_locking(void)
{
	struct trainer_cuda t;
	char *p;

	trainer_cuda_begin(&t, 0);
	p = pages(8 * PAGE);
	IS(SK_CU_INVALID_VALUE, t.driver.cuMemHostRegister(p, 0, 1));
	IS(SK_CU_NOT_REGISTERED, t.driver.cuMemHostUnregister(p));
	IS(0, t.driver.cuMemHostRegister(p, 4 * PAGE, 1));
	IS(SK_CU_ALREADY_REGISTERED,
	   t.driver.cuMemHostRegister(p, 4 * PAGE, 1));
	IS(SK_CU_ALREADY_REGISTERED,
	   t.driver.cuMemHostRegister(p + 2 * PAGE, 4 * PAGE, 1));
	IS(0, t.driver.cuMemHostRegister(p + 4 * PAGE, 4 * PAGE, 1));
	IS(0, t.driver.cuMemHostUnregister(p));
	IS(SK_CU_NOT_REGISTERED, t.driver.cuMemHostUnregister(p));
	IS(0, t.driver.cuMemHostRegister(p, 4 * PAGE, 1));
	IS(0, t.driver.cuMemHostUnregister(p));
	IS(0, t.driver.cuMemHostUnregister(p + 4 * PAGE));
	/* What is mapped read-only needs a flag of its own. */
	CHECK(!mprotect(p, 4 * PAGE, PROT_READ));
	CHECK(t.driver.cuMemHostRegister(p, 4 * PAGE, 1) != SK_CU_SUCCESS);
}

/* ---- forks ---- */

/* A page that is written when a child may have it as well, and copied. */
static void copy_after_fork(int advice)
{
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct trainer_cuda t;
	sk_cu_stream s;
	sk_cu_ptr p;
	pid_t child;
	char *b;

	CHECK(page != MAP_FAILED && !madvise(page, PAGE, advice));
	trainer_cuda_begin(&t, 0);
	s = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	p = trainer_cuda_alloc(&t, PAGE);
	b = locked(&t, PAGE);
	IS(0, t.driver.cuMemHostRegister(page, PAGE, 1));
	memset(page, 1, PAGE);
	child = trainer_fork();
	memset(page, 2, PAGE);
	IS(0, t.driver.cuMemcpyHtoDAsync(p, page, PAGE, s));
	IS(0, t.driver.cuMemcpyDtoHAsync(b, p, PAGE, s));
	IS(0, t.driver.cuStreamSynchronize(s));
	CHECK(all_are(b, PAGE, 2));
	memset(page, 3, PAGE);
	IS(0, t.driver.cuMemcpyDtoHAsync(page, p, PAGE, s));
	IS(0, t.driver.cuStreamSynchronize(s));
	CHECK(all_are(page, PAGE, 2));
	IS(0, t.driver.cuMemHostUnregister(page));
	trainer_reap(child);
}

/* Of pages that no child gets, the process and the device have the same. */
static void locked_and_forked(void)
{
	copy_after_fork(MADV_DONTFORK);
}

static void misuse_forked(void)
{
	copy_after_fork(MADV_NORMAL);
}

/* ---- copies ---- */

static void there_and_back(void)
{
	struct trainer_cuda t;
	sk_cu_stream s;
	sk_cu_ptr p;
	char *a, *b;

	trainer_cuda_begin(&t, 0);
	s = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	p = trainer_cuda_alloc(&t, BYTES);
	a = locked(&t, BYTES);
	b = locked(&t, BYTES);
	for (size_t i = 0; i < BYTES; i++)
		a[i] = (char)(i * 7 >> 3);
	IS(0, t.driver.cuMemcpyHtoDAsync(p, a, BYTES, s));
	IS(0, t.driver.cuMemcpyDtoHAsync(b, p, BYTES, s));
	IS(0, t.driver.cuStreamSynchronize(s));
	CHECK(!memcmp(a, b, BYTES));
	IS(0, t.driver.cuMemcpyDtoHAsync(b, p, 0, s));
	IS(0, t.driver.cuMemcpyHtoDAsync(p, a, 0, s));
}

/* Rows of 100 bytes, 256 apart on the device, 128 apart here. */
static void rows(void)
{
	sk_cu_memcpy2d c = { .src_type = SK_CU_MEMORY_DEVICE,
			     .dst_type = SK_CU_MEMORY_HOST,
			     .src_pitch = 256, .dst_pitch = 128,
			     .width = 100, .height = 50 };
	struct trainer_cuda t;
	sk_cu_stream s;
	char *a, *b;

	trainer_cuda_begin(&t, 0);
	s = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	c.src_device = trainer_cuda_alloc(&t, BYTES);
	a = locked(&t, BYTES);
	b = locked(&t, BYTES);
	for (size_t i = 0; i < BYTES; i++)
		a[i] = (char)(i * 5 >> 2);
	memset(b, 0x77, BYTES);
	c.dst_host = b;
	IS(0, t.driver.cuMemcpyHtoDAsync(c.src_device, a, BYTES, s));
	IS(0, t.driver.cuMemcpy2DAsync(&c, s));
	IS(0, t.driver.cuStreamSynchronize(s));
	for (size_t row = 0; row < 50; row++) {
		CHECK(!memcmp(a + row * 256, b + row * 128, 100));
		CHECK(all_are(b + row * 128 + 100, 28, 0x77));
	}
	c.src_pitch = 99;
	IS(SK_CU_INVALID_VALUE, t.driver.cuMemcpy2DAsync(&c, s));
}

/* Three planes of 4 rows, 6 rows apart on the device, 5 here. */
static void planes(void)
{
	sk_cu_memcpy3d c = { .src_type = SK_CU_MEMORY_DEVICE,
			     .dst_type = SK_CU_MEMORY_HOST,
			     .src_pitch = 128, .src_height = 6,
			     .dst_pitch = 112, .dst_height = 5,
			     .width = 100, .height = 4, .depth = 3 };
	struct trainer_cuda t;
	sk_cu_stream s;
	char *a, *b;

	trainer_cuda_begin(&t, 0);
	s = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	c.src_device = trainer_cuda_alloc(&t, BYTES);
	a = locked(&t, BYTES);
	b = locked(&t, BYTES);
	for (size_t i = 0; i < BYTES; i++)
		a[i] = (char)(i * 7 >> 2);
	memset(b, 0x77, BYTES);
	c.dst_host = b;
	IS(0, t.driver.cuMemcpyHtoDAsync(c.src_device, a, BYTES, s));
	IS(0, t.driver.cuMemcpy3DAsync(&c, s));
	IS(0, t.driver.cuStreamSynchronize(s));
	for (size_t row = 0; row < 12; row++) {
		const char *from = a + (row / 4 * 6 + row % 4) * 128;
		const char *to = b + (row / 4 * 5 + row % 4) * 112;

		CHECK(!memcmp(from, to, 100));
		CHECK(all_are(to + 100, 12, 0x77));
	}
	CHECK(all_are(b + 4 * 112, 112, 0x77));
	c.src_height = 3;
	IS(SK_CU_INVALID_VALUE, t.driver.cuMemcpy3DAsync(&c, s));
}

/* Memory that is not locked has what it should when the call returns. */
static void pageable(void)
{
	char *a = malloc(BYTES), *b = malloc(BYTES);
	struct trainer_cuda t;
	sk_cu_stream s;
	sk_cu_ptr p;

	CHECK(a && b);
	trainer_cuda_begin(&t, 0);
	s = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	p = trainer_cuda_alloc(&t, BYTES);
	memset(a, 0x31, BYTES);
	memset(b, 0, BYTES);
	IS(0, t.driver.cuMemcpyHtoDAsync(p, a, BYTES, s));
	memset(a, 0x32, BYTES);
	IS(0, t.driver.cuMemcpyDtoHAsync(b, p, BYTES, s));
	CHECK(all_are(b, BYTES, 0x31));
	if (t.count)
		CHECK(t.count("pageable") == 2);
	free(a);
	free(b);
}

static void batches(void)
{
	sk_cu_copy_attributes a = {
		.source_order = SK_CU_SOURCE_IN_STREAM_ORDER,
		.src = { SK_CU_LOCATION_DEVICE, 0 },
		.dst = { SK_CU_LOCATION_HOST, 0 } };
	sk_cu_ptr dsts[100], srcs[100], p;
	size_t sizes[100], first = 0;
	struct trainer_cuda t;
	sk_cu_stream s;
	char *a_bytes, *b;

	trainer_cuda_begin(&t, 0);
	if (!t.driver.cuMemcpyBatchAsync)
		return;
	s = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	p = trainer_cuda_alloc(&t, BYTES);
	a_bytes = locked(&t, BYTES);
	b = locked(&t, BYTES);
	for (size_t i = 0; i < BYTES; i++)
		a_bytes[i] = (char)(i * 11 >> 4);
	trainer_cuda_put(&t, p, a_bytes, BYTES);
	for (size_t i = 0; i < 100; i++) {
		sizes[i] = 1 + i * 7;
		srcs[i] = p + i * 1000;
		dsts[i] = (uintptr_t)b + i * 1000;
	}
	IS(0, t.driver.cuMemcpyBatchAsync(dsts, srcs, sizes, 100, &a, &first,
					  1, s));
	IS(0, t.driver.cuStreamSynchronize(s));
	for (size_t i = 0; i < 100; i++) {
		CHECK(!memcmp(b + i * 1000, a_bytes + i * 1000, sizes[i]));
		CHECK(!b[i * 1000 + sizes[i]]);
	}
	a.source_order = 0;
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuMemcpyBatchAsync(dsts, srcs, sizes, 100, &a, &first, 1,
				       s));
	a.source_order = SK_CU_SOURCE_IN_STREAM_ORDER;
	first = 1;
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuMemcpyBatchAsync(dsts, srcs, sizes, 100, &a, &first, 1,
				       s));
	first = 0;
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuMemcpyBatchAsync(dsts, srcs, sizes, 100, &a, &first, 1,
				       NULL));
}

/* ---- streams and events ---- */

struct holder {
	struct trainer_cuda t;
	sk_cu_context context;
	struct trainer_gate gate;
	pthread_barrier_t held, over;
};

struct ending {
	struct trainer_cuda t;
	sk_cu_context context;
	sk_cu_event done;
};

static void asynchronous(void)
{
	struct trainer_gate gate;
	struct trainer_cuda t;
	sk_cu_stream s;
	sk_cu_event e;
	sk_cu_ptr p;
	char *b;

	trainer_cuda_begin(&t, 0);
	trainer_gate_init(&gate);
	s = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	e = event(&t);
	p = trainer_cuda_alloc(&t, BYTES);
	b = locked(&t, BYTES);
	memset(b, 0x55, BYTES);
	IS(0, t.driver.cuEventQuery(e));	/* never recorded: reached */
	trainer_gate_hold(&t, &gate, s);
	IS(0, t.cuMemsetD8Async(p, 0x11, BYTES, s));
	IS(0, t.driver.cuMemcpyDtoHAsync(b, p, BYTES, s));
	IS(0, t.driver.cuEventRecord(e, s));
	CHECK(is_held(&t, e));
	IS(SK_CU_NOT_READY, t.cuStreamQuery(s));
	CHECK(all_are(b, BYTES, 0x55));
	trainer_gate_open(&gate);
	IS(0, t.driver.cuEventSynchronize(e));
	IS(0, t.driver.cuEventQuery(e));
	CHECK(all_are(b, BYTES, 0x11));
}

/* What a stream waits for is the point that the event had at the call. */
static void events(void)
{
	struct trainer_gate first, second;
	sk_cu_event e, done;
	struct trainer_cuda t;
	sk_cu_stream a, b;

	trainer_cuda_begin(&t, 0);
	trainer_gate_init(&first);
	trainer_gate_init(&second);
	a = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	b = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	e = event(&t);
	done = event(&t);
	IS(0, t.driver.cuStreamWaitEvent(b, e, 0));	/* a no-op */
	IS(0, t.driver.cuStreamSynchronize(b));
	trainer_gate_hold(&t, &first, a);
	IS(0, t.driver.cuEventRecord(e, a));
	IS(0, t.driver.cuStreamWaitEvent(b, e, 0));
	IS(0, t.driver.cuEventRecord(done, b));
	trainer_gate_hold(&t, &second, a);
	IS(0, t.driver.cuEventRecord(e, a));		/* moves on */
	CHECK(is_held(&t, done));
	trainer_gate_open(&first);
	IS(0, t.driver.cuEventSynchronize(done));
	CHECK(is_held(&t, e));
	/* Both may be destroyed while others wait for them. */
	IS(0, t.driver.cuStreamWaitEvent(b, e, 0));
	IS(0, t.driver.cuEventRecord(done, b));
	IS(0, t.driver.cuEventDestroy(e));
	IS(0, t.driver.cuStreamDestroy(a));
	CHECK(is_held(&t, done));
	trainer_gate_open(&second);
	IS(0, t.driver.cuEventSynchronize(done));
}

/* The default stream and those that block with it wait for each other; a
 * non-blocking one for nobody. */
static void default_stream(void)
{
	sk_cu_stream blocking, other;
	struct trainer_gate gate;
	struct trainer_cuda t;
	sk_cu_event a, b, c;

	trainer_cuda_begin(&t, 0);
	trainer_gate_init(&gate);
	blocking = stream(&t, 0);
	other = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	a = event(&t);
	b = event(&t);
	c = event(&t);
	trainer_gate_hold(&t, &gate, blocking);
	IS(0, t.driver.cuEventRecord(a, NULL));
	IS(0, t.driver.cuEventRecord(b, blocking));
	IS(0, t.driver.cuEventRecord(c, other));
	IS(0, t.driver.cuEventSynchronize(c));
	CHECK(is_held(&t, a) && is_held(&t, b));
	trainer_gate_open(&gate);
	IS(0, t.driver.cuEventSynchronize(a));
	IS(0, t.driver.cuEventSynchronize(b));
}

static void *wait_for(void *data)
{
	const struct ending *e = data;

	(void)e->t.cuCtxSetCurrent(e->context);
	(void)e->t.driver.cuEventSynchronize(e->done);
	return NULL;
}

#define OWN ((sk_cu_stream)(uintptr_t)SK_CU_STREAM_PER_THREAD)

static void *hold_own(void *data)
{
	struct holder *h = data;

	IS(0, h->t.cuCtxSetCurrent(h->context));
	trainer_gate_hold(&h->t, &h->gate, OWN);
	(void)pthread_barrier_wait(&h->held);
	/* Its stream ends with it, and may be waited for then. */
	(void)pthread_barrier_wait(&h->over);
	return NULL;
}

/* The same handle is another stream to another thread; the default one waits
 * for all of them. */
static void thread_stream(void)
{
	struct holder h;
	sk_cu_event a, b;
	pthread_t thread;

	trainer_cuda_begin(&h.t, 0);
	trainer_gate_init(&h.gate);
	IS(0, h.t.cuCtxGetCurrent(&h.context));
	CHECK(!pthread_barrier_init(&h.held, NULL, 2));
	CHECK(!pthread_barrier_init(&h.over, NULL, 2));
	CHECK(!pthread_create(&thread, NULL, hold_own, &h));
	(void)pthread_barrier_wait(&h.held);
	a = event(&h.t);
	b = event(&h.t);
	IS(0, h.t.driver.cuEventRecord(a, OWN));
	IS(0, h.t.driver.cuEventSynchronize(a));
	IS(0, h.t.driver.cuEventRecord(b, NULL));
	CHECK(is_held(&h.t, b));
	trainer_gate_open(&h.gate);
	IS(0, h.t.driver.cuEventSynchronize(b));
	(void)pthread_barrier_wait(&h.over);
	CHECK(!pthread_join(thread, NULL));
}

/* A process ends when one of its threads waits for copies, as ours does when a
 * trainer's main() returns: it neither hangs nor dies of it. */
static void ends_beside_a_wait(void)
{
	static struct ending e;
	pthread_t thread;
	sk_cu_stream s;
	sk_cu_ptr p;
	char *b;

	trainer_cuda_begin(&e.t, 0);
	IS(0, e.t.cuCtxGetCurrent(&e.context));
	s = stream(&e.t, SK_CU_STREAM_NON_BLOCKING);
	e.done = event(&e.t);
	p = trainer_cuda_alloc(&e.t, LARGE);
	b = locked(&e.t, LARGE);
	for (int i = 0; i < 100; i++)
		IS(0, e.t.driver.cuMemcpyDtoHAsync(b, p, LARGE, s));
	IS(0, e.t.driver.cuEventRecord(e.done, s));
	CHECK(!pthread_create(&thread, NULL, wait_for, &e));
	(void)alarm(10);
	exit(0);
}

static void capturing(void)
{
	sk_cu_stream blocking, s;
	struct trainer_cuda t;
	sk_cu_enum status = 9, mode = 2;
	vcu_graph graph;
	char *p;

	trainer_cuda_begin(&t, 0);
	blocking = stream(&t, 0);
	s = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	p = pages(PAGE);
	IS(0, t.cuStreamBeginCapture(blocking, 0));
	IS(0, t.driver.cuStreamIsCapturing(blocking, &status));
	CHECK(status == 1);
	IS(0, t.driver.cuStreamIsCapturing(s, &status));
	CHECK(status == 0);
	IS(SK_CU_CAPTURE_IMPLICIT, t.driver.cuStreamIsCapturing(NULL,
								&status));
	/* In relaxed mode, locking pages harms no capture. */
	IS(0, t.driver.cuThreadExchangeStreamCaptureMode(&mode));
	CHECK(mode == 0);
	IS(0, t.driver.cuMemHostRegister(p, PAGE, 1));
	IS(0, t.driver.cuMemHostUnregister(p));
	IS(0, t.driver.cuThreadExchangeStreamCaptureMode(&mode));
	CHECK(mode == 2);
	IS(0, t.cuStreamEndCapture(blocking, &graph));
}

static void capture_is_spoilt(void)
{
	struct trainer_cuda t;
	vcu_graph graph;
	sk_cu_stream s;
	sk_cu_ptr p;

	trainer_cuda_begin(&t, 0);
	s = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	IS(0, t.cuStreamBeginCapture(s, 0));
	IS(SK_CU_CAPTURE_UNSUPPORTED, t.driver.cuMemAlloc(&p, BYTES));
	IS(VCU_CAPTURE_INVALIDATED, t.cuStreamEndCapture(s, &graph));
}

/* ---- of the simulation alone ---- */

static void bounds(void)
{
	struct trainer_cuda t;
	sk_cu_ptr p;
	char *a;

	trainer_cuda_begin(&t, 0);
	p = trainer_cuda_alloc(&t, 1000);
	a = locked(&t, PAGE);
	IS(0, t.driver.cuMemcpyHtoDAsync(p, a, 1000, NULL));
	IS(SK_CU_INVALID_VALUE, t.driver.cuMemcpyHtoDAsync(p, a, 1001, NULL));
	IS(SK_CU_INVALID_VALUE, t.driver.cuMemcpyDtoHAsync(a, p + 999, 2,
							   NULL));
	/* Half of it is locked. */
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuMemcpyDtoHAsync(a + PAGE - 1, p, 2, NULL));
}

static void sticky(void)
{
	struct trainer_cuda t;
	sk_cu_stream s;

	trainer_cuda_begin(&t, 0);
	s = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	t.fail("cuStreamQuery", 2, SK_CU_ILLEGAL_ADDRESS);
	IS(0, t.cuStreamQuery(s));
	IS(SK_CU_ILLEGAL_ADDRESS, t.cuStreamQuery(s));
	IS(SK_CU_ILLEGAL_ADDRESS, t.driver.cuStreamSynchronize(s));
	IS(SK_CU_ILLEGAL_ADDRESS, t.driver.cuMemHostRegister(&t, 1, 1));
}

static void misuse_unregister(void)
{
	struct trainer_gate gate;
	struct trainer_cuda t;
	sk_cu_stream s;
	sk_cu_ptr p;
	char *a;

	trainer_cuda_begin(&t, 0);
	trainer_gate_init(&gate);
	s = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	p = trainer_cuda_alloc(&t, BYTES);
	a = locked(&t, BYTES);
	trainer_gate_hold(&t, &gate, s);
	IS(0, t.driver.cuMemcpyDtoHAsync(a, p, BYTES, s));
	(void)t.driver.cuMemHostUnregister(a);
}

static void misuse_capture(void)
{
	struct trainer_cuda t;
	sk_cu_stream s;

	trainer_cuda_begin(&t, 0);
	s = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	IS(0, t.cuStreamBeginCapture(s, 0));
	(void)t.driver.cuEventRecord(event(&t), s);
}

static void misuse_destroyed(void)
{
	struct trainer_cuda t;
	sk_cu_context c;
	sk_cu_stream s;

	trainer_cuda_begin(&t, 0);
	s = stream(&t, SK_CU_STREAM_NON_BLOCKING);
	IS(0, t.driver.cuStreamDestroy(s));
	(void)t.driver.cuStreamGetCtx(s, &c);
}

static void misuse_event(void)
{
	struct trainer_cuda t;
	sk_cu_event e;

	trainer_cuda_begin(&t, 0);
	e = event(&t);
	IS(0, t.driver.cuEventDestroy(e));
	(void)t.driver.cuEventDestroy(e);
}

static void misuse_version(void)
{
	struct trainer_cuda t;
	sk_cu_result (*synchronize)(void);

	trainer_cuda_begin(&t, 0);
	synchronize = (sk_cu_result(*)(void))sk_cuda_driver_find(
		&t.driver, "cuCtxSynchronize", 13000);
	(void)synchronize();
}

/* ---- all of them ---- */

static const struct item items[] = {
	{ "calls before cuInit", before_init, ITEM_ANY },
	{ "primary contexts", primary_contexts, ITEM_ANY },
	{ "a forked child", forked, ITEM_ANY },
	{ "the host touches device memory", host_touches_device, ITEM_ANY },
	{ "what pointers are", pointers, ITEM_ANY },
	{ "page locking", page_locking, ITEM_ANY },
	{ "page locking, and a fork", locked_and_forked, ITEM_ANY },
	{ "there and back", there_and_back, ITEM_ANY },
	{ "rows", rows, ITEM_ANY },
	{ "planes", planes, ITEM_ANY },
	{ "memory that is not locked", pageable, ITEM_ANY },
	{ "batches", batches, ITEM_ANY },
	{ "streams run later", asynchronous, ITEM_ANY },
	{ "events", events, ITEM_ANY },
	{ "the default stream", default_stream, ITEM_ANY },
	{ "a thread's own stream", thread_stream, ITEM_ANY },
	{ "an end beside a wait", ends_beside_a_wait, ITEM_ANY },
	{ "capturing", capturing, ITEM_ANY },
	{ "a capture that is spoilt", capture_is_spoilt, ITEM_ANY },
	{ "bounds", bounds, ITEM_SIM },
	{ "errors that stay", sticky, ITEM_SIM },
	{ "misuse: unlocked while copies fly", misuse_unregister, ITEM_MISUSE },
	{ "misuse: private pages after a fork", misuse_forked, ITEM_MISUSE },
	{ "misuse: work on a capturing stream", misuse_capture, ITEM_MISUSE },
	{ "misuse: a stream that is gone", misuse_destroyed, ITEM_MISUSE },
	{ "misuse: an event that is gone", misuse_event, ITEM_MISUSE },
	{ "misuse: another signature", misuse_version, ITEM_MISUSE },
};

int main(void)
{
	return cuda_items_main(items, sizeof(items) / sizeof(items[0]), false);
}
