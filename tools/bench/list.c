/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of names on the command line. */
#include <errno.h>
#include <string.h>

#include "bench.h"

static bool is_word(const char *word, size_t n, const char *name)
{
	return strlen(name) == n && !strncmp(word, name, n);
}

bool list_has(const char *list, const char *name)
{
	size_t n;

	if (!list)
		return true;
	for (; *list; list += n + (list[n] == ',')) {
		n = strcspn(list, ",");
		if (is_word(list, n, name))
			return true;
	}
	return false;
}

static bool is_known(const char *word, size_t n, const char *(*name)(int i))
{
	for (int i = 0; name(i); i++)
		if (is_word(word, n, name(i)))
			return true;
	return false;
}

int list_check(const char *list, char option, const char *(*name)(int i))
{
	size_t n;

	for (const char *word = list; word; word = word[n] ? word + n + 1 :
							     NULL) {
		n = strcspn(word, ",");
		if (is_known(word, n, name))
			continue;
		note("\"%.*s\" is none of the names that -%c has", (int)n,
		     word, option);
		return -EINVAL;
	}
	return 0;
}
