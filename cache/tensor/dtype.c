/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/dtype.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"

static const struct {
	const char *name;
	unsigned bits;
} dtypes[SK_DTYPE_COUNT] = {
	[SK_BOOL] = { "BOOL", 8 },
	[SK_F4] = { "F4", 4 },
	[SK_F6_E2M3] = { "F6_E2M3", 6 },
	[SK_F6_E3M2] = { "F6_E3M2", 6 },
	[SK_U8] = { "U8", 8 },
	[SK_I8] = { "I8", 8 },
	[SK_F8_E5M2] = { "F8_E5M2", 8 },
	[SK_F8_E4M3] = { "F8_E4M3", 8 },
	[SK_F8_E8M0] = { "F8_E8M0", 8 },
	[SK_F8_E4M3FNUZ] = { "F8_E4M3FNUZ", 8 },
	[SK_F8_E5M2FNUZ] = { "F8_E5M2FNUZ", 8 },
	[SK_I16] = { "I16", 16 },
	[SK_U16] = { "U16", 16 },
	[SK_F16] = { "F16", 16 },
	[SK_BF16] = { "BF16", 16 },
	[SK_I32] = { "I32", 32 },
	[SK_U32] = { "U32", 32 },
	[SK_F32] = { "F32", 32 },
	[SK_C64] = { "C64", 64 },
	[SK_F64] = { "F64", 64 },
	[SK_I64] = { "I64", 64 },
	[SK_U64] = { "U64", 64 },
};

static int known(enum sk_dtype dtype)
{
	return dtype > SK_DTYPE_NONE && dtype < SK_DTYPE_COUNT;
}

const char *sk_dtype_name(enum sk_dtype dtype)
{
	return known(dtype) ? dtypes[dtype].name : NULL;
}

unsigned sk_dtype_bits(enum sk_dtype dtype)
{
	return known(dtype) ? dtypes[dtype].bits : 0;
}

enum sk_dtype sk_dtype_from_name(const char *name)
{
	for (int d = SK_DTYPE_NONE + 1; d < SK_DTYPE_COUNT; d++)
		if (strcmp(dtypes[d].name, name) == 0)
			return (enum sk_dtype)d;
	return SK_DTYPE_NONE;
}

int sk_dtype_bytes(enum sk_dtype dtype, uint64_t count, uint64_t *ret_bytes,
		   struct sk_err *err)
{
	uint64_t bits;

	if (!known(dtype))
		return sk_err_set(err, -EINVAL, "dtype %d is not known",
				  (int)dtype);
	if (!sk_mul_u64(count, dtypes[dtype].bits, &bits))
		return sk_err_set(err, -EOVERFLOW,
				  "%llu elements of %s are too many",
				  (unsigned long long)count,
				  dtypes[dtype].name);
	if (bits % 8)
		return sk_err_set(err, -EINVAL,
				  "%llu elements of %s end inside a byte",
				  (unsigned long long)count,
				  dtypes[dtype].name);
	*ret_bytes = bits / 8;
	return 0;
}
