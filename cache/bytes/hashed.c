/* SPDX-License-Identifier: Apache-2.0 */
/* A copy and the checksum of what it wrote, in step. */
#include <assert.h>

#include "bytes/checksum.h"
#include "bytes/copy.h"
#include "bytes/pass.h"

uint64_t sk_copy_run_hashed(const struct sk_copy *copy, uint64_t from,
			    uint64_t to)
{
	assert(from <= to && to <= copy->bytes);
	if (!copy->ndim) {
		struct sk_pass pass;

		sk_pass_begin(&pass, to - from);
		sk_pass_take(&pass, copy->dst + from, copy->src + from,
			     to - from);
		return sk_pass_end(&pass);
	}
	/* What is gathered from here and there is read again. */
	sk_copy_run_unfenced(copy, from, to);
	sk_stream_fence();
	return sk_xxh3(copy->dst + from, to - from);
}
