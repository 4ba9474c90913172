/* SPDX-License-Identifier: Apache-2.0 */
/* Small files of text, as those of /proc and /sys and of settings. */
#ifndef SK_CACHE_BASE_TEXT_H
#define SK_CACHE_BASE_TEXT_H

#include <stddef.h>

#include "base/os.h"

/**
 * What stands in the file, as a string in @ret, which has @room bytes, 1 or
 * more. Errors: those of open(2) and read(2), with what was read before;
 * -EFBIG there is more than that.
 */
int sk_text_read(const struct sk_os *os, const char *path, char *ret,
		 size_t room);

#endif
