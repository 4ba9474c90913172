/* SPDX-License-Identifier: Apache-2.0 */
#include "facts.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "items.h"

#define MIB ((size_t)1 << 20)
#define OF_FABRIC 8		/* a kind of handle that we do not ask for */

static void answer(const char *what, sk_cu_result result)
{
	printf("{\"fact\": \"answer\", \"to\": \"%s\", \"result\": %u}\n",
	       what, result);
}

/* By their numbers in cuda.h. */
static void of_device(const struct trainer_cuda *t)
{
	static const struct {
		sk_cu_enum which;
		const char *name;
	} asked[] = {
		{ 88, "pageable memory access" },
		{ SK_CU_DEVICE_HOST_POINTERS, "host pointers" },
		{ SK_CU_DEVICE_HOST_REGISTER_SUPPORTED, "host register" },
		{ 100, "host page tables" },
		{ 102, "virtual memory" },
		{ SK_CU_DEVICE_POSIX_FD_SUPPORTED, "descriptors" },
		{ 113, "read-only host register" },
		{ SK_CU_DEVICE_HOST_NUMA_ID, "node" },
	};

	for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
		int value = -1;
		sk_cu_result result = t->driver.cuDeviceGetAttribute(
			&value, asked[i].which, 0);

		printf("{\"fact\": \"attribute\", \"of\": \"%s\", "
		       "\"result\": %u, \"value\": %d}\n", asked[i].name,
		       result, value);
	}
}

static void of_locking(const struct trainer_cuda *t)
{
	char *p = fact_pages(4 * MIB, 0);

	answer("lock 0 bytes", t->driver.cuMemHostRegister(p, 0, 1));
	answer("lock one piece", t->driver.cuMemHostRegister(p, MIB, 1));
	answer("lock the next", t->driver.cuMemHostRegister(p + MIB, MIB, 1));
	answer("copy across both", t->driver.cuMemcpyDtoHAsync(
		       p + MIB / 2, trainer_cuda_alloc(t, MIB), MIB, NULL));
	answer("and its end", t->driver.cuCtxSynchronize());
	CHECK(!mprotect(p + 2 * MIB, MIB, PROT_READ));
	answer("lock what is read-only",
	       t->driver.cuMemHostRegister(p + 2 * MIB, MIB, 1));
	answer("the same, said",
	       t->driver.cuMemHostRegister(p + 2 * MIB, MIB, 9));
}

static void of_sharing(const struct trainer_cuda *t)
{
	sk_cu_allocation what = {
		.type = SK_CU_ALLOCATION_PINNED, .handles = OF_FABRIC,
		.location = { SK_CU_LOCATION_DEVICE, 0 } };
	sk_cu_handle handle;
	int none[2];

	if (!t->driver.cuMemCreate)
		return;
	CHECK(!pipe(none));
	answer("import a pipe", t->driver.cuMemImportFromShareableHandle(
		       &handle, (void *)(intptr_t)none[0],
		       SK_CU_HANDLE_POSIX_FD));
	answer("memory for a fabric",
	       t->driver.cuMemCreate(&handle, 2 * MIB, &what, 0));
	what.handles = SK_CU_HANDLE_POSIX_FD;
	answer("memory of an odd size",
	       t->driver.cuMemCreate(&handle, 2 * MIB + 4096, &what, 0));
}

static void batch(const struct trainer_cuda *t, const char *what,
		  sk_cu_enum order, size_t n_attributes, sk_cu_stream s)
{
	sk_cu_copy_attributes how[2] = { { .source_order = order },
					 { .source_order = order } };
	sk_cu_ptr to = trainer_cuda_alloc(t, MIB);
	sk_cu_ptr from = trainer_cuda_alloc(t, MIB);
	size_t first[2] = { 0, 1 }, bytes = MIB;

	answer(what, t->driver.cuMemcpyBatchAsync(&to, &from, &bytes, 1, how,
						  first, n_attributes, s));
}

static void of_batches(const struct trainer_cuda *t)
{
	sk_cu_stream s = fact_stream(t);

	if (!t->driver.cuMemcpyBatchAsync)
		return;
	batch(t, "a batch without an order", 0, 1, s);
	batch(t, "a batch of more kinds than copies",
	      SK_CU_SOURCE_IN_STREAM_ORDER, 2, s);
	batch(t, "a batch on the default stream",
	      SK_CU_SOURCE_IN_STREAM_ORDER, 1, NULL);
}

/* Whether the other thread's capture fails that, or is spoilt by it. */
static void *settle(void *data)
{
	const struct trainer_cuda *t = data;
	sk_cu_context context;

	if (!t->driver.cuDevicePrimaryCtxRetain(&context, 0) &&
	    !t->cuCtxSetCurrent(context))
		answer("cuCtxSynchronize beside a capture",
		       t->driver.cuCtxSynchronize());
	return NULL;
}

static void of_capturing(struct trainer_cuda *t)
{
	sk_cu_stream s = fact_stream(t);
	pthread_t thread;
	vcu_graph graph;

	IS(0, t->cuStreamBeginCapture(s, SK_CU_CAPTURE_MODE_RELAXED));
	CHECK(!pthread_create(&thread, NULL, settle, t) &&
	      !pthread_join(thread, NULL));
	answer("and the end of that capture",
	       t->cuStreamEndCapture(s, &graph));
}

void fact_answers(void)
{
	struct trainer_cuda t;

	trainer_cuda_begin(&t, 0);
	of_device(&t);
	of_locking(&t);
	of_sharing(&t);
	of_batches(&t);
	of_capturing(&t);
}
