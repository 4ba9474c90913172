/* SPDX-License-Identifier: Apache-2.0 */
/* Small files of text, as those of /proc and /sys and of settings; and what may
 * stand in a line for people. */
#ifndef SK_CACHE_BASE_TEXT_H
#define SK_CACHE_BASE_TEXT_H

#include <stddef.h>

#include "base/os.h"

/**
 * What stands in the file, as a string in @ret, which has @room bytes, 1 or
 * more. Errors: those of open(2) and read(2), with what was read before;
 * -EFBIG there is more than that; -EILSEQ it has bytes of zero, and is no
 * text.
 */
int sk_text_read(const struct sk_os *os, const char *path, char *ret,
		 size_t room);

/** The bytes of the character that @s begins with; 0: of none in UTF-8, of a
 * control character, or at the end. Pure. */
int sk_text_character(const char *s);
/** The same, but those of the second set of control characters, U+0080 to
 * U+009F, are as good: what has been stored may have them. Pure. */
int sk_text_stored(const char *s);

/** The bytes of the character that @s begins with, where it is none that is
 * seen but turns the direction of what stands beside it, or ends a line
 * (U+200E, U+202A, U+2066 and their like, U+2028); else 0. A name may have it,
 * and what people see of the name must not. Pure. */
int sk_text_turns(const char *s);

/** Makes one line of @text that no log and no terminal takes for more: what is
 * no character, or controls, or turns, becomes '?', a byte for a byte. */
void sk_text_clean(char *text);

#endif
