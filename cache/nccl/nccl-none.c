/* SPDX-License-Identifier: Apache-2.0 */
/* A build without CUDA support: there never is an NCCL. */
#include <errno.h>

#include "nccl/nccl.h"

int sk_nccl_open(const struct sk_os *os, const char *file,
		 struct sk_nccl *ret_nccl, struct sk_err *err)
{
	(void)os;
	(void)file;
	(void)ret_nccl;
	return sk_err_set(err, -ENODEV, "this build has no CUDA support, and "
			  "no NCCL without it (meson's option \"cuda\")");
}
