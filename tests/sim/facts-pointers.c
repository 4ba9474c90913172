/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a driver says of pointers to memory that trainers may have and its
 * documentation does not describe: of a pool, managed, mapped in pieces. A
 * snapshot looks at them by the same calls.
 */
#include "facts.h"

#include <stdio.h>

#include "cuda/cuda.h"
#include "items.h"

#define MIB ((size_t)1 << 20)
#define GRAIN (2 * MIB)
#define ATTACH_GLOBAL 1

typedef sk_cu_result (*alloc_async)(sk_cu_ptr *ptr, size_t bytes,
				    sk_cu_stream stream);
typedef sk_cu_result (*alloc_managed)(sk_cu_ptr *ptr, size_t bytes,
				      unsigned flags);

static const struct sk_cuda_device *device(void)
{
	struct sk_cuda_device *found;
	struct sk_cuda *cuda;

	CHECK(!sk_cuda_new(sk_os_linux(), &cuda, NULL));
	CHECK(!sk_cuda_device(cuda, 0, &found, NULL));
	return found;
}

/* What is said of it, and what the product makes of that. */
static uint64_t say(const struct trainer_cuda *t, const char *of,
		    sk_cu_ptr ptr)
{
	unsigned type = 0;
	int ordinal = -1, of_alloc = -1;
	unsigned long long id = 0;
	sk_cu_enum which[] = { SK_CU_POINTER_MEMORY_TYPE,
			       SK_CU_POINTER_DEVICE_ORDINAL,
			       SK_CU_POINTER_OF_ALLOC,
			       SK_CU_POINTER_BUFFER_ID };
	void *values[] = { &type, &ordinal, &of_alloc, &id };
	sk_cu_result asked = t->driver.cuPointerGetAttributes(4, which, values,
							      ptr + 100);
	struct sk_cuda_range range = { 0 };
	sk_cu_result ranged;
	sk_cu_ptr start = 0;
	size_t bytes = 0;
	int found;

	ranged = t->driver.cuMemGetAddressRange(&start, &bytes, ptr + 100);
	found = sk_cuda_find(device(), ptr + 100, &range, NULL);
	printf("{\"fact\": \"pointer\", \"of\": \"%s\", \"result\": %u, "
	       "\"type\": %u, \"ordinal\": %d, \"of_alloc\": %d, "
	       "\"id\": %llu, \"range_result\": %u, \"range_mib\": %.3f, "
	       "\"begins_there\": %s, \"found\": %d, \"at\": %llu}\n",
	       of, asked, type, ordinal, of_alloc, id, ranged,
	       (double)bytes / (double)MIB, start == ptr ? "true" : "false",
	       found, (unsigned long long)ptr);
	return id;
}

static void of_pool(const struct trainer_cuda *t)
{
	alloc_async allocate = (alloc_async)sk_cuda_driver_find(
		&t->driver, "cuMemAllocAsync", 11020);
	sk_cu_stream s = fact_stream(t);
	sk_cu_ptr ptr;

	if (!allocate || allocate(&ptr, GRAIN, s))
		return;
	IS(0, t->driver.cuStreamSynchronize(s));
	(void)say(t, "a pool", ptr);
}

static void of_managed(const struct trainer_cuda *t)
{
	alloc_managed allocate = (alloc_managed)sk_cuda_driver_find(
		&t->driver, "cuMemAllocManaged", 6000);
	sk_cu_ptr ptr;

	if (allocate && !allocate(&ptr, GRAIN, ATTACH_GLOBAL))
		(void)say(t, "managed memory", ptr);
}

static void map(const struct trainer_cuda *t, sk_cu_ptr at)
{
	static const sk_cu_allocation of_device = {
		.type = SK_CU_ALLOCATION_PINNED,
		.location = { SK_CU_LOCATION_DEVICE, 0 } };
	const sk_cu_access access = { { SK_CU_LOCATION_DEVICE, 0 },
				      SK_CU_ACCESS_READ_WRITE };
	sk_cu_handle handle;

	IS(0, t->driver.cuMemCreate(&handle, GRAIN, &of_device, 0));
	IS(0, t->driver.cuMemMap(at, GRAIN, 0, handle, 0));
	IS(0, t->driver.cuMemSetAccess(at, GRAIN, &access, 1));
	IS(0, t->driver.cuMemRelease(handle));
}

/* Two pieces, and another one in the place of the first. */
static void of_pieces(const struct trainer_cuda *t)
{
	uint64_t first, second, anew;
	sk_cu_ptr ptr;

	if (!t->driver.cuMemCreate)
		return;
	IS(0, t->driver.cuMemAddressReserve(&ptr, 4 * GRAIN, 0, 0, 0));
	map(t, ptr);
	map(t, ptr + GRAIN);
	first = say(t, "a piece", ptr);
	second = say(t, "the next piece", ptr + GRAIN);
	IS(0, t->driver.cuMemUnmap(ptr, GRAIN));
	(void)say(t, "a piece that went", ptr);
	map(t, ptr);
	anew = say(t, "another in its place", ptr);
	printf("{\"fact\": \"pieces\", \"have_ids_of_their_own\": %s, "
	       "\"another_has_another\": %s}\n",
	       first != second ? "true" : "false",
	       first != anew ? "true" : "false");
}

/* Beside others of the same size, which may lie in one block with it. */
static void of_freed(const struct trainer_cuda *t, const char *of,
		     const char *anew, size_t bytes)
{
	sk_cu_ptr v[4];

	for (int i = 0; i < 4; i++)
		v[i] = trainer_cuda_alloc(t, bytes);
	(void)say(t, of, v[1]);
	IS(0, t->driver.cuMemFree(v[1]));
	(void)say(t, "the same, freed", v[1]);
	v[1] = trainer_cuda_alloc(t, bytes);
	(void)say(t, anew, v[1]);
}

void fact_pointers(void)
{
	struct trainer_cuda t;

	trainer_cuda_begin(&t, 0);
	of_freed(&t, "64 KiB", "64 KiB anew", MIB / 16);
	of_freed(&t, "3 MiB", "3 MiB anew", 3 * MIB);
	(void)say(&t, "an allocation", trainer_cuda_alloc(&t, GRAIN));
	of_pieces(&t);
	of_pool(&t);
	of_managed(&t);
}
