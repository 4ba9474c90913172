/* SPDX-License-Identifier: Apache-2.0 */
#include "conn/check.h"

#include <errno.h>

#include "shardkeep-version.h"

int sk_check_zero(const void *value, size_t bytes, const char *field,
		  struct sk_err *err)
{
	const unsigned char *at = value;

	for (size_t i = 0; i < bytes; i++)
		if (at[i])
			return sk_err_set(err, -EINVAL, "%s is not 0: "
					  "libshardkeep " SK_VERSION
					  " gives it no meaning", field);
	return 0;
}

int sk_check_flags(uint32_t flags, uint32_t known, const char *field,
		   struct sk_err *err)
{
	if (!(flags & ~known))
		return 0;
	return sk_err_set(err, -EINVAL, "%s has %#x, which libshardkeep "
			  SK_VERSION " does not know", field, flags & ~known);
}

int sk_check_returned(int r)
{
	return r > 0 ? -EPROTO : r;
}

int sk_check_name(const char *name, struct sk_err *err)
{
	return name ? 0 : sk_err_set(err, -EINVAL, "the name of a tensor or "
				     "blob is NULL");
}

int sk_check_result(const void *ret, const char *what, struct sk_err *err)
{
	return ret ? 0 : sk_err_set(err, -EINVAL, "%s needs a variable to go "
				    "to", what);
}
