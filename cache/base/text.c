/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

int sk_text_read(const struct sk_os *os, const char *path, char *ret,
		 size_t room)
{
	size_t at = 0;
	ssize_t n = 1;
	int fd;

	assert(room);
	ret[0] = 0;
	fd = os->openat(os, AT_FDCWD, path, O_RDONLY, 0);
	if (fd < 0)
		return fd;
	while (n > 0 && at < room - 1) {
		n = os->read(os, fd, ret + at, room - 1 - at);
		at += n > 0 ? (size_t)n : 0;
	}
	(void)os->close(os, fd);
	ret[at] = 0;
	if (n)
		return n < 0 ? (int)n : -EFBIG;
	return strlen(ret) < at ? -EILSEQ : 0;
}

/* C0 and DEL, and C1: a terminal may take each for the beginning of a
 * command. */
static bool controls(uint32_t code, bool second)
{
	return code < 0x20 || code == 0x7f ||
	       (second && code >= 0x80 && code < 0xa0);
}

/* 0: none, of one in UTF-8. */
static int decode(const char *text, uint32_t *ret_code)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const unsigned char *s = (const unsigned char *)text;
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
	*ret_code = code;
	return n;
}

int sk_text_character(const char *text)
{
	uint32_t code = 0;
	int n = decode(text, &code);

	return controls(code, true) ? 0 : n;
}

int sk_text_stored(const char *text)
{
	uint32_t code = 0;
	int n = decode(text, &code);

	return controls(code, false) ? 0 : n;
}

int sk_text_turns(const char *text)
{
	uint32_t code = 0;
	int n = decode(text, &code);
	bool turns = code == 0x61c || code == 0x200e || code == 0x200f ||
		     (code >= 0x2028 && code <= 0x202e) ||
		     (code >= 0x2066 && code <= 0x2069);

	return turns ? n : 0;
}

void sk_text_clean(char *text)
{
	while (*text) {
		int n = sk_text_character(text), turns = sk_text_turns(text);

		if (n && !turns)
			text += n;
		else if (n)
			while (n--)
				*text++ = '?';
		else
			*text++ = '?';
	}
}
