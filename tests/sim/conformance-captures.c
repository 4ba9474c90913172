/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What we rely on of streams that capture graphs: whom a capture forbids what,
 * and what spoils it. As conformance.c: on the simulation and on a real driver.
 */
#include <string.h>
#include <sys/mman.h>

#include "items.h"
#include "trainer.h"

#define PAGE ((size_t)4096)

enum { GLOBAL, THREAD_LOCAL, RELAXED };

/* A thread beside the one that captures, and what it was answered. */
struct other {
	const struct trainer_cuda *t;
	sk_cu_context context;
	sk_cu_enum mode;		/* that it is in */
	sk_cu_ptr memory;
	sk_cu_result results[4];
};

static sk_cu_stream begin_capture(struct trainer_cuda *t, sk_cu_enum mode)
{
	sk_cu_stream s;

	IS(0, t->cuStreamCreate(&s, SK_CU_STREAM_NON_BLOCKING));
	IS(0, t->cuStreamBeginCapture(s, mode));
	return s;
}

static sk_cu_result end_capture(const struct trainer_cuda *t, sk_cu_stream s)
{
	vcu_graph graph;

	return t->cuStreamEndCapture(s, &graph);
}

/* What is potentially unsafe: memory, and questions of what is over. */
static void *act(void *data)
{
	struct other *o = data;
	const struct sk_cuda_driver *d = &o->t->driver;
	sk_cu_ptr ptr;
	sk_cu_event e;

	IS(0, o->t->cuCtxSetCurrent(o->context));
	IS(0, d->cuThreadExchangeStreamCaptureMode(&o->mode));
	o->results[0] = d->cuMemAlloc(&ptr, PAGE);
	o->results[1] = d->cuMemFree(o->memory);
	IS(0, d->cuEventCreate(&e, SK_CU_EVENT_DISABLE_TIMING));
	o->results[2] = d->cuEventQuery(e);
	o->results[3] = d->cuEventSynchronize(e);
	return NULL;
}

/* One of those alone: the next would find it spoilt already. */
static struct other beside(sk_cu_enum capture, sk_cu_enum mode,
			   sk_cu_result expected)
{
	struct trainer_cuda t;
	struct other o;
	pthread_t thread;
	sk_cu_stream s;

	trainer_cuda_begin(&t, 0);
	o = (struct other){ .t = &t, .mode = mode,
			    .memory = trainer_cuda_alloc(&t, PAGE) };
	IS(0, t.cuCtxGetCurrent(&o.context));
	s = begin_capture(&t, capture);
	CHECK(!pthread_create(&thread, NULL, act, &o));
	CHECK(!pthread_join(thread, NULL));
	IS(expected, end_capture(&t, s));
	return o;
}

static bool all_are(const struct other *o, sk_cu_result result)
{
	for (int i = 0; i < 4; i++)
		if (o->results[i] != result)
			return false;
	return true;
}

static void a_global_one_forbids_all(void)
{
	struct other o = beside(GLOBAL, GLOBAL, VCU_CAPTURE_INVALIDATED);

	IS(SK_CU_CAPTURE_UNSUPPORTED, o.results[0]);
}

static void who_knows_is_not_forbidden(void)
{
	struct other relaxed = beside(GLOBAL, RELAXED, 0);
	struct other local;

	CHECK(all_are(&relaxed, 0));
	local = beside(GLOBAL, THREAD_LOCAL, 0);
	CHECK(all_are(&local, 0));
}

static void a_threads_own_forbids_no_other(void)
{
	struct other o = beside(THREAD_LOCAL, GLOBAL, 0);

	CHECK(all_are(&o, 0));
	o = beside(RELAXED, GLOBAL, 0);
	CHECK(all_are(&o, 0));
}

/* The thread itself, which has said nothing. */
static void act_within(sk_cu_enum capture, sk_cu_result expected,
		       sk_cu_result end)
{
	struct trainer_cuda t;
	sk_cu_stream s;
	sk_cu_ptr ptr;

	trainer_cuda_begin(&t, 0);
	s = begin_capture(&t, capture);
	IS(expected, t.driver.cuMemAlloc(&ptr, PAGE));
	IS(end, end_capture(&t, s));
}

static void to_itself(void)
{
	act_within(THREAD_LOCAL, SK_CU_CAPTURE_UNSUPPORTED,
		   VCU_CAPTURE_INVALIDATED);
	act_within(RELAXED, 0, 0);
}

/* All that the library does beside a trainer's capture. */
static void what_is_ours(void)
{
	sk_cu_enum mode = RELAXED;
	struct trainer_cuda t;
	sk_cu_stream s, other;
	sk_cu_event e;
	sk_cu_ptr p;
	char *host;

	trainer_cuda_begin(&t, 0);
	host = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(host != MAP_FAILED);
	s = begin_capture(&t, GLOBAL);
	IS(0, t.driver.cuThreadExchangeStreamCaptureMode(&mode));
	IS(0, t.cuStreamCreate(&other, SK_CU_STREAM_NON_BLOCKING));
	IS(0, t.driver.cuEventCreate(&e, SK_CU_EVENT_DISABLE_TIMING));
	IS(0, t.driver.cuMemAlloc(&p, PAGE));
	IS(0, t.driver.cuMemHostRegister(host, PAGE, 1));
	IS(0, t.driver.cuMemcpyHtoDAsync(p, host, PAGE, other));
	IS(0, t.driver.cuMemcpyDtoHAsync(host, p, PAGE, other));
	IS(0, t.driver.cuEventRecord(e, other));
	IS(0, t.driver.cuEventSynchronize(e));
	IS(0, t.driver.cuEventQuery(e));
	IS(0, t.driver.cuStreamSynchronize(other));
	IS(0, t.driver.cuMemHostUnregister(host));
	IS(0, t.driver.cuMemFree(p));
	IS(0, t.driver.cuEventDestroy(e));
	IS(0, t.driver.cuStreamDestroy(other));
	IS(0, end_capture(&t, s));
}

/* ---- of the simulation alone ---- */

/* A driver that lets it pass today may not tomorrow. */
static void all_of_a_context(void)
{
	sk_cu_enum mode = RELAXED;
	struct trainer_cuda t;
	sk_cu_stream s;

	trainer_cuda_begin(&t, 0);
	s = begin_capture(&t, RELAXED);
	IS(0, t.driver.cuThreadExchangeStreamCaptureMode(&mode));
	IS(SK_CU_CAPTURE_UNSUPPORTED, t.driver.cuCtxSynchronize());
	IS(VCU_CAPTURE_INVALIDATED, end_capture(&t, s));
}

static void unsafe_memory(void)
{
	static const sk_cu_allocation of_device = {
		.type = SK_CU_ALLOCATION_PINNED,
		.location = { SK_CU_LOCATION_DEVICE, 0 } };
	char pageable[64] = "";
	struct trainer_cuda t;
	sk_cu_stream s, other;
	sk_cu_handle handle;
	sk_cu_ptr p;

	trainer_cuda_begin(&t, 0);
	p = trainer_cuda_alloc(&t, PAGE);
	IS(0, t.cuStreamCreate(&other, SK_CU_STREAM_NON_BLOCKING));
	s = begin_capture(&t, GLOBAL);
	IS(SK_CU_CAPTURE_UNSUPPORTED,
	   t.driver.cuMemCreate(&handle, (size_t)2 << 20, &of_device, 0));
	IS(SK_CU_CAPTURE_UNSUPPORTED,
	   t.driver.cuMemcpyHtoDAsync(p, pageable, sizeof(pageable), other));
	IS(SK_CU_CAPTURE_UNSUPPORTED, t.cuStreamQuery(other));
	IS(VCU_CAPTURE_INVALIDATED, end_capture(&t, s));
}

static const struct item items[] = {
	{ "a global capture forbids", a_global_one_forbids_all, ITEM_ANY },
	{ "threads that know", who_knows_is_not_forbidden, ITEM_ANY },
	{ "captures of a thread's own", a_threads_own_forbids_no_other,
	  ITEM_ANY },
	{ "a capture and its own thread", to_itself, ITEM_ANY },
	{ "what is ours beside a capture", what_is_ours, ITEM_ANY },
	{ "all of a context", all_of_a_context, ITEM_SIM },
	{ "memory beside a capture", unsafe_memory, ITEM_SIM },
};

int main(void)
{
	return cuda_items_main(items, sizeof(items) / sizeof(items[0]), false);
}
