/* SPDX-License-Identifier: Apache-2.0 */
/* A build without CUDA support has no NCCL. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "nccl/nccl.h"

Test(none, says_so)
{
	struct sk_err err = { "" };
	struct sk_nccl nccl;

	cr_assert_eq(sk_nccl_open(sk_os_linux(), NULL, &nccl, &err), -ENODEV);
	cr_assert(strstr(err.text, "no CUDA support"), "%s", err.text);
}
