/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that take contexts of one process at a time. Whoever takes one there
 * keeps all others from it, the next trainer among them. */
#include "cuda/private.h"

bool sk_cuda_takes_one(const struct sk_cuda_driver *driver, int ordinal)
{
	int mode = SK_CU_COMPUTE_DEFAULT;
	sk_cu_device id;

	return driver->cuDeviceGet(&id, ordinal) == SK_CU_SUCCESS &&
	       driver->cuDeviceGetAttribute(&mode, SK_CU_DEVICE_COMPUTE_MODE,
					    id) == SK_CU_SUCCESS &&
	       mode == SK_CU_COMPUTE_EXCLUSIVE;
}

int sk_cuda_exclusive(struct sk_cuda *cuda)
{
	int n = 0;

	if (sk_cuda_ready(cuda, NULL) < 0 ||
	    cuda->driver.cuDeviceGetCount(&n) != SK_CU_SUCCESS)
		return -1;
	for (int ordinal = 0; ordinal < n; ordinal++)
		if (sk_cuda_takes_one(&cuda->driver, ordinal))
			return ordinal;
	return -1;
}
