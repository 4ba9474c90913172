/* SPDX-License-Identifier: Apache-2.0 */
/* Whose memory a pointer is; page-locked memory. */
#include <assert.h>

#include "cuda/private.h"

/* ---- pointers ---- */

/* The driver fills in nothing of what it does not know. */
struct known {
	unsigned type;
	int ordinal;
	int of_alloc;		/* its range is what was allocated at once */
	sk_cu_ptr start;
	size_t bytes;
	unsigned long long id;
};

static sk_cu_result ask(const struct sk_cuda_driver *driver, uint64_t ptr,
			struct known *ret)
{
	sk_cu_enum which[] = {
		SK_CU_POINTER_MEMORY_TYPE, SK_CU_POINTER_DEVICE_ORDINAL,
		SK_CU_POINTER_RANGE_START, SK_CU_POINTER_RANGE_SIZE,
		SK_CU_POINTER_BUFFER_ID,   SK_CU_POINTER_OF_ALLOC,
	};
	void *values[] = { &ret->type,	&ret->ordinal, &ret->start,
			   &ret->bytes, &ret->id,      &ret->of_alloc };

	return driver->cuPointerGetAttributes(SK_ARRAY_SIZE(which), which,
					      values, ptr);
}

/* The range of memory that was mapped is all that was reserved with it, as
 * PyTorch's expandable segments reserve a device at once: what one id is of is
 * asked of another function, which tells of the current context's memory. */
static sk_cu_result ask_mapped(const struct sk_cuda_device *device,
			       uint64_t ptr, struct known *ret)
{
	struct sk_cuda_scope scope;
	sk_cu_result result;

	if (sk_cuda_enter(device, &scope, NULL) < 0)
		return SK_CU_INVALID_CONTEXT;
	result = device->driver->cuMemGetAddressRange(&ret->start, &ret->bytes,
						      ptr);
	sk_cuda_leave(&scope);
	if (result != SK_CU_NOT_FOUND && result != SK_CU_INVALID_VALUE)
		return result;
	ret->bytes = 0;			/* nothing is mapped there */
	return SK_CU_SUCCESS;
}

static int know(const struct sk_cuda_device *device, uint64_t ptr,
		struct known *ret, struct sk_err *err)
{
	const char *what = "cuPointerGetAttributes";
	/* Of no context: the driver knows whose it is. */
	sk_cu_result result = ask(device->driver, ptr, ret);

	/* So it says of memory that no context has to do with. */
	if (result == SK_CU_INVALID_CONTEXT || result == SK_CU_INVALID_VALUE) {
		ret->type = 0;
		return 0;
	}
	if (result == SK_CU_SUCCESS && ret->type == SK_CU_MEMORY_DEVICE &&
	    !ret->of_alloc) {
		what = "cuMemGetAddressRange";
		result = ask_mapped(device, ptr, ret);
	}
	return result == SK_CU_SUCCESS ? 0 :
	       sk_cuda_driver_failed(device->driver, result, what, err);
}

int sk_cuda_find(const struct sk_cuda_device *device, uint64_t ptr,
		 struct sk_cuda_range *ret_range, struct sk_err *err)
{
	struct known known = { .ordinal = -1 };
	int r = know(device, ptr, &known, err);

	if (r < 0)
		return r;
	if (known.type != SK_CU_MEMORY_DEVICE ||
	    known.ordinal != device->ordinal || known.start > ptr ||
	    known.bytes <= ptr - known.start)
		return sk_err_set(err, -EFAULT, "%#llx is no memory of CUDA "
				  "device %d", (unsigned long long)ptr,
				  device->ordinal);
	*ret_range = (struct sk_cuda_range){
		.from = known.start, .to = known.start + known.bytes,
		.id = known.id };
	return 0;
}

/* ---- memory of ours ---- */

int sk_cuda_alloc(const struct sk_cuda_device *device, uint64_t bytes,
		  uint64_t *ret_ptr, struct sk_err *err)
{
	struct sk_cuda_scope scope;
	sk_cu_result result;
	sk_cu_ptr ptr;
	int r = sk_cuda_enter(device, &scope, err);

	if (r < 0)
		return r;
	result = device->driver->cuMemAlloc(&ptr, bytes);
	sk_cuda_leave(&scope);
	if (result != SK_CU_SUCCESS)
		return sk_cuda_driver_failed(device->driver, result,
					     "cuMemAlloc", err);
	*ret_ptr = ptr;
	return 0;
}

uint64_t sk_cuda_left(const struct sk_cuda_device *device)
{
	const struct sk_cuda_driver *driver = device->driver;
	sk_cu_result result;
	struct sk_cuda_scope scope;
	size_t left = 0, all;

	if (!driver->cuMemGetInfo || sk_cuda_enter(device, &scope, NULL) < 0)
		return UINT64_MAX;
	result = driver->cuMemGetInfo(&left, &all);
	sk_cuda_leave(&scope);
	return result == SK_CU_SUCCESS ? left : UINT64_MAX;
}

void sk_cuda_release(const struct sk_cuda_device *device, uint64_t ptr)
{
	struct sk_cuda_scope scope;

	/* In a context that is broken, and on a device that would be waited
	 * for without end, it goes with the process. */
	if (!ptr || sk_cuda_is_stuck(device, NULL) < 0 ||
	    sk_cuda_enter(device, &scope, NULL) < 0)
		return;
	(void)device->driver->cuMemFree(ptr);
	sk_cuda_leave(&scope);
}

/* ---- page-locked memory ---- */

static void unlock_to(const struct sk_cuda_lock *lock, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += lock->piece)
		(void)lock->device->driver->cuMemHostUnregister(lock->map +
								at);
}

/* Within the device's context. */
static int lock_all(const struct sk_cuda_lock *lock, struct sk_err *err)
{
	const struct sk_cuda_driver *driver = lock->device->driver;

	for (uint64_t at = 0; at < lock->bytes; at += lock->piece) {
		uint64_t left = lock->bytes - at;
		sk_cu_result result = driver->cuMemHostRegister(
			lock->map + at,
			left < lock->piece ? left : lock->piece,
			SK_CU_HOST_REGISTER_PORTABLE);

		if (result == SK_CU_SUCCESS)
			continue;
		unlock_to(lock, at);
		return sk_cuda_driver_failed(driver, result,
					     "cuMemHostRegister", err);
	}
	return 0;
}

int sk_cuda_lock(const struct sk_cuda_device *device, void *map,
		 uint64_t bytes, uint64_t piece,
		 struct sk_cuda_lock **ret_lock, struct sk_err *err)
{
	_cleanup_free_ struct sk_cuda_lock *lock = calloc(1, sizeof(*lock));
	struct sk_cuda_scope scope;
	int r;

	assert(piece && map);
	if (!lock)
		return sk_err_set(err, -ENOMEM, "out of memory");
	*lock = (struct sk_cuda_lock){ .device = device, .map = map,
				       .bytes = bytes, .piece = piece };
	r = sk_cuda_enter(device, &scope, err);
	if (r < 0)
		return r;
	r = lock_all(lock, err);
	sk_cuda_leave(&scope);
	if (r >= 0)
		*ret_lock = sk_take_ptr(lock);
	return r;
}

struct sk_cuda_lock *sk_cuda_unlock(struct sk_cuda_lock *lock)
{
	struct sk_cuda_scope scope;

	if (!lock)
		return NULL;
	/* In a context that is broken they go with the process. */
	if (sk_cuda_enter(lock->device, &scope, NULL) >= 0) {
		unlock_to(lock, lock->bytes);
		sk_cuda_leave(&scope);
	}
	free(lock);
	return NULL;
}
