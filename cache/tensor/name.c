/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/name.h"

#include <errno.h>
#include <string.h>

#include "base/text.h"

#define NAME_MAX_BYTES 1023

static int check(const char *name, const char *what,
		 int (*character)(const char *), struct sk_err *err)
{
	size_t length = name ? strnlen(name, NAME_MAX_BYTES + 1) : 0;

	if (!length)
		return sk_err_set(err, -EINVAL, "a %s has no name", what);
	if (length > NAME_MAX_BYTES)
		return sk_err_set(err, -EINVAL, "the name \"%.40s...\" of a "
				  "%s is longer than %d bytes", name, what,
				  NAME_MAX_BYTES);
	for (size_t i = 0; i < length;) {
		int n = character(name + i);

		if (!n)
			return sk_err_set(err, -EINVAL, "the name \"%.40s\" "
					  "is not UTF-8, or holds control "
					  "characters, at byte %zu", name, i);
		i += (size_t)n;
	}
	return 0;
}

int sk_name_check(const char *name, const char *what, struct sk_err *err)
{
	return check(name, what, sk_text_stored, err);
}

int sk_name_check_said(const char *name, const char *what, struct sk_err *err)
{
	return check(name, what, sk_text_character, err);
}
