/* SPDX-License-Identifier: Apache-2.0 */
/* A build without CUDA support: there never is a driver. */
#include <errno.h>

#include "cuda/driver.h"

int sk_cuda_driver_open(const struct sk_os *os, const char *file,
			struct sk_cuda_driver *ret_driver,
			struct sk_err *err)
{
	(void)os;
	(void)file;
	(void)ret_driver;
	return sk_err_set(err, -ENODEV, "this build has no CUDA support "
			  "(meson's option \"cuda\")");
}
