/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What we rely on of objects that two threads use. As conformance.c: on the
 * simulation and on a real driver; what nobody may do is the simulation's
 * alone, for a real one reads what it has freed.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "items.h"
#include "trainer.h"

#define PAGE ((size_t)4096)
#define EACH 200	/* copies of a thread */

struct two {
	struct trainer_cuda t;
	sk_cu_context context;
	sk_cu_stream stream;
	sk_cu_event event;
	sk_cu_ptr memory;	/* a page for each copy */
	char *host;		/* the same, locked */
	pthread_barrier_t together;
	sk_cu_result result;	/* of the other thread's */
};

static char *pages(size_t bytes)
{
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static void begin(struct two *two)
{
	const size_t bytes = 2 * EACH * PAGE;

	*two = (struct two){ .result = SK_CU_SUCCESS };
	trainer_cuda_begin(&two->t, 0);
	IS(0, two->t.cuCtxGetCurrent(&two->context));
	IS(0, two->t.cuStreamCreate(&two->stream, SK_CU_STREAM_NON_BLOCKING));
	IS(0, two->t.driver.cuEventCreate(&two->event,
					  SK_CU_EVENT_DISABLE_TIMING));
	two->memory = trainer_cuda_alloc(&two->t, bytes);
	two->host = pages(bytes);
	IS(0, two->t.driver.cuMemHostRegister(two->host, bytes, 0));
	CHECK(!pthread_barrier_init(&two->together, NULL, 2));
}

static pthread_t beside(struct two *two, void *(*act)(void *two))
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, act, two));
	return thread;
}

static void enter(struct two *two)
{
	IS(0, two->t.cuCtxSetCurrent(two->context));
	(void)pthread_barrier_wait(&two->together);
}

static void join(pthread_t thread)
{
	CHECK(!pthread_join(thread, NULL));
}

/* ---- what is fine ---- */

/* Of every second page, with one event after each. */
static void put(struct two *two, size_t first)
{
	for (size_t i = first; i < 2 * EACH; i += 2) {
		memset(two->host + i * PAGE, (int)i & 0x7f, PAGE);
		IS(0, two->t.driver.cuMemcpyHtoDAsync(two->memory + i * PAGE,
						      two->host + i * PAGE,
						      PAGE, two->stream));
		IS(0, two->t.driver.cuEventRecord(two->event, two->stream));
	}
}

static void *put_odd(void *data)
{
	enter(data);
	put(data, 1);
	return NULL;
}

/* Each one's copies are all there, and an event that both record is reached
 * when the later one is. */
static void one_stream(void)
{
	char *got = malloc(2 * EACH * PAGE);
	pthread_t thread;
	struct two two;

	begin(&two);
	CHECK(got);
	thread = beside(&two, put_odd);
	enter(&two);
	put(&two, 0);
	join(thread);
	IS(0, two.t.driver.cuEventSynchronize(two.event));
	IS(0, two.t.cuStreamQuery(two.stream));
	trainer_cuda_get(&two.t, got, two.memory, 2 * EACH * PAGE);
	CHECK(!memcmp(got, two.host, 2 * EACH * PAGE));
}

static void *wait_for(void *data)
{
	struct two *two = data;

	enter(two);
	two->result = two->t.driver.cuEventSynchronize(two->event);
	return NULL;
}

/* Both wait for the same, one of them by the stream. */
static void one_event(void)
{
	struct trainer_gate gate;
	pthread_t thread;
	struct two two;

	begin(&two);
	trainer_gate_init(&gate);
	trainer_gate_hold(&two.t, &gate, two.stream);
	IS(0, two.t.driver.cuEventRecord(two.event, two.stream));
	thread = beside(&two, wait_for);
	enter(&two);
	IS(SK_CU_NOT_READY, two.t.driver.cuEventQuery(two.event));
	trainer_gate_open(&gate);
	IS(0, two.t.driver.cuStreamSynchronize(two.stream));
	join(thread);
	IS(0, two.result);
	IS(0, two.t.driver.cuEventQuery(two.event));
}

static void *lock_it(void *data)
{
	struct two *two = data;

	enter(two);
	two->result = two->t.driver.cuMemHostRegister(two->host, PAGE, 0);
	return NULL;
}

/* One of them has locked it, and the other one hears so. */
static void one_memory(void)
{
	sk_cu_result result;
	pthread_t thread;
	struct two two;

	begin(&two);
	two.host = pages(PAGE);
	thread = beside(&two, lock_it);
	enter(&two);
	result = two.t.driver.cuMemHostRegister(two.host, PAGE, 0);
	join(thread);
	CHECK(!result != !two.result);
	IS(SK_CU_ALREADY_REGISTERED, result + two.result);
	IS(0, two.t.driver.cuMemHostUnregister(two.host));
	IS(SK_CU_NOT_REGISTERED, two.t.driver.cuMemHostUnregister(two.host));
}

/* ---- what is not ---- */

static void *destroy_stream(void *data)
{
	struct two *two = data;

	enter(two);
	(void)two->t.driver.cuStreamDestroy(two->stream);
	return NULL;
}

static void misuse_two_destroy_a_stream(void)
{
	pthread_t thread;
	struct two two;

	begin(&two);
	thread = beside(&two, destroy_stream);
	enter(&two);
	(void)two.t.driver.cuStreamDestroy(two.stream);
	join(thread);
}

static void *destroy_event(void *data)
{
	struct two *two = data;

	enter(two);
	(void)two->t.driver.cuEventDestroy(two->event);
	return NULL;
}

static void misuse_two_destroy_an_event(void)
{
	pthread_t thread;
	struct two two;

	begin(&two);
	thread = beside(&two, destroy_event);
	enter(&two);
	(void)two.t.driver.cuEventDestroy(two.event);
	join(thread);
}

static void *wait_for_stream(void *data)
{
	struct two *two = data;

	enter(two);
	two->result = two->t.driver.cuStreamSynchronize(two->stream);
	return NULL;
}

/* One that is held up for good, and another thread within a wait for it, which
 * counts as that when it is asked for a moment later at the latest. */
static void beside_a_wait(struct two *two, void *(*wait)(void *two))
{
	static struct trainer_gate gate;
	uint64_t busy;

	begin(two);
	trainer_gate_init(&gate);
	trainer_gate_hold(&two->t, &gate, two->stream);
	IS(0, two->t.driver.cuEventRecord(two->event, two->stream));
	busy = two->t.count("busy");
	(void)beside(two, wait);
	enter(two);
	while (two->t.count("busy") == busy)
		(void)two->t.driver.cuEventQuery(two->event);
}

static void misuse_destroyed_beside_a_wait(void)
{
	struct two two;

	beside_a_wait(&two, wait_for_stream);
	(void)two.t.driver.cuStreamDestroy(two.stream);
}

static void misuse_event_beside_a_wait(void)
{
	struct two two;

	beside_a_wait(&two, wait_for);
	(void)two.t.driver.cuEventDestroy(two.event);
}

static const struct item items[] = {
	{ "one stream, two threads", one_stream, ITEM_ANY },
	{ "one event, two threads", one_event, ITEM_ANY },
	{ "one memory, two threads", one_memory, ITEM_ANY },
	{ "misuse: two threads destroy a stream", misuse_two_destroy_a_stream,
	  ITEM_MISUSE },
	{ "misuse: two threads destroy an event", misuse_two_destroy_an_event,
	  ITEM_MISUSE },
	{ "misuse: a stream that another thread waits for",
	  misuse_destroyed_beside_a_wait, ITEM_MISUSE },
	{ "misuse: an event that another thread waits for",
	  misuse_event_beside_a_wait, ITEM_MISUSE },
};

int main(void)
{
	return cuda_items_main(items, sizeof(items) / sizeof(items[0]), false);
}
