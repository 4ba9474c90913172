/* SPDX-License-Identifier: Apache-2.0 */
/* One request by one system call: below every engine. */
#include <assert.h>

#include "io/backend.h"

int sk_io_perform(const struct sk_os *os, const struct sk_io_request *q)
{
	if (q->op == SK_URING_READ)
		return (int)os->pread(os, q->fd, q->buf, q->bytes, q->offset);
	return (int)os->pwrite(os, q->fd, q->buf, q->bytes, q->offset);
}
