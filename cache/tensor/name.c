/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/name.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#define NAME_MAX_BYTES 1023

/* Length of the UTF-8 sequence at @s, 0 if there is none. */
static int utf8_length(const unsigned char *s)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	int n = s[0] < 0x80 ? 1 : (s[0] & 0xe0) == 0xc0 ? 2 :
		(s[0] & 0xf0) == 0xe0 ? 3 : (s[0] & 0xf8) == 0xf0 ? 4 : 0;
	uint32_t code = n < 2 ? s[0] : s[0] & (0x7fu >> n);

	for (int i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (s[i] & 0x3f);
	}
	if (n == 0 || code < least[n] || code > 0x10ffff ||
	    (code >= 0xd800 && code < 0xe000))
		return 0;
	return n;
}

int sk_name_check(const char *name, const char *what, struct sk_err *err)
{
	size_t length = name ? strnlen(name, NAME_MAX_BYTES + 1) : 0;

	if (!length)
		return sk_err_set(err, -EINVAL, "a %s has no name", what);
	if (length > NAME_MAX_BYTES)
		return sk_err_set(err, -EINVAL, "the name \"%.40s...\" of a "
				  "%s is longer than %d bytes", name, what,
				  NAME_MAX_BYTES);
	for (size_t i = 0; i < length;) {
		int n = utf8_length((const unsigned char *)name + i);

		if (!n || (unsigned char)name[i] < 0x20 || name[i] == 0x7f)
			return sk_err_set(err, -EINVAL, "the name \"%.40s\" "
					  "is not UTF-8, or holds control "
					  "characters, at byte %zu", name, i);
		i += (size_t)n;
	}
	return 0;
}
