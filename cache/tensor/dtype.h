/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element types: names and widths.
 *
 * Source of the list and the spelling: the safetensors format.
 * Thread-safety: pure functions.
 */
#ifndef SK_CACHE_TENSOR_DTYPE_H
#define SK_CACHE_TENSOR_DTYPE_H

#include "base/error.h"
#include "shardkeep-types.h"

/** The name in safetensors ("BF16"), or NULL if @dtype is none. */
const char *sk_dtype_name(enum sk_dtype dtype);

/** Bits per element, 4 to 64; 0 if @dtype is none. */
unsigned sk_dtype_bits(enum sk_dtype dtype);

/** The dtype of that name, SK_DTYPE_NONE if there is none. */
enum sk_dtype sk_dtype_from_name(const char *name);

/**
 * Bytes of @count packed elements.
 * Errors: -EINVAL dtype or a sub-byte run that ends inside a byte,
 * -EOVERFLOW.
 */
int sk_dtype_bytes(enum sk_dtype dtype, uint64_t count, uint64_t *ret_bytes,
		   struct sk_err *err);

#endif
