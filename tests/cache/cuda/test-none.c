/* SPDX-License-Identifier: Apache-2.0 */
/* A build without CUDA support, with its own file in front of the other. */
#include <criterion/criterion.h>
#include <string.h>

#include "cuda/cuda.h"

Test(none, says_that_the_build_has_none)
{
	struct sk_cuda_device *device;
	struct sk_err err = { "" };
	struct sk_cuda *cuda;

	cr_assert_eq(sk_cuda_new(sk_os_linux(), &cuda, NULL), 0);
	cr_assert_eq(sk_cuda_device(cuda, 0, &device, &err), -ENODEV);
	cr_assert(strstr(err.text, "this build has no CUDA support"), "%s",
		  err.text);
	sk_cuda_free(cuda);
}
