/* SPDX-License-Identifier: Apache-2.0 */
/* What the library answers. */
#include <errno.h>

#include "nccl/nccl.h"

static int errno_of(sk_nccl_result result)
{
	switch (result) {
	case SK_NCCL_INVALID_ARGUMENT:
	case SK_NCCL_INVALID_USAGE:
		return -EINVAL;
	case SK_NCCL_REMOTE_ERROR:
		return -ECONNRESET;
	case SK_NCCL_IN_PROGRESS:
		return -EINPROGRESS;
	default:
		return -EIO;
	}
}

int sk_nccl_failed(const struct sk_nccl *nccl, sk_nccl_result result,
		   sk_nccl_comm comm, const char *what, struct sk_err *err)
{
	const char *name = nccl->ncclGetErrorString(result);
	const char *why = nccl->ncclGetLastError ?
				  nccl->ncclGetLastError(comm) : NULL;

	return sk_err_set(err, errno_of(result), "NCCL: %s failed: %s (%u)"
			  "%s%.200s", what, name ? name : "an unknown error",
			  result, why && *why ? ": " : "", why ? why : "");
}
