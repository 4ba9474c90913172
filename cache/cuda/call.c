/* SPDX-License-Identifier: Apache-2.0 */
/* Asking the driver, and what it answers. */
#include <errno.h>

#include "cuda/driver.h"

void *sk_cuda_driver_find(const struct sk_cuda_driver *driver,
			  const char *name, int version)
{
	sk_cu_enum found = SK_CU_PROC_ADDRESS_FOUND;
	void *function = NULL;

	if (driver->get_proc(name, &function, version, 0, &found) !=
		    SK_CU_SUCCESS || found != SK_CU_PROC_ADDRESS_FOUND)
		return NULL;
	return function;
}

static int errno_of(sk_cu_result result)
{
	switch (result) {
	case SK_CU_OUT_OF_MEMORY:
		return -ENOMEM;
	case SK_CU_INVALID_VALUE:
		return -EINVAL;
	case SK_CU_STUB_LIBRARY:
	case SK_CU_DEVICE_UNAVAILABLE:
	case SK_CU_NO_DEVICE:
	case SK_CU_INVALID_DEVICE:
		return -ENODEV;
	default:
		return result >= SK_CU_CAPTURE_UNSUPPORTED &&
		       result <= SK_CU_CAPTURE_WRONG_THREAD ? -EBUSY : -EIO;
	}
}

int sk_cuda_driver_failed(const struct sk_cuda_driver *driver,
			  sk_cu_result result, const char *what,
			  struct sk_err *err)
{
	const char *name = NULL;

	if (driver->cuGetErrorName(result, &name) != SK_CU_SUCCESS || !name)
		name = "an unknown error";
	return sk_err_set(err, errno_of(result), "CUDA: %s failed: %s (%u)",
			  what, name, result);
}
