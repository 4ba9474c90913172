/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes in the locales that a trainer may have set: with a comma for the
 * point, and with an "I" that is no capital "i". They are made here, where
 * localedef has its sources.
 */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

#define CHECK(cond, ...) do {						\
	if (!(cond)) {							\
		(void)fprintf(stderr, "FAIL: " __VA_ARGS__);		\
		(void)fputc('\n', stderr);				\
		exit(1);						\
	}								\
} while (0)

static char dir[] = "/tmp/shardkeep-locale-XXXXXX";

/* False: it cannot be made here. */
static bool enter(const char *name)
{
	char command[256];

	(void)snprintf(command, sizeof(command), "localedef -i %s -f UTF-8 "
		       "--no-archive %s/%s.UTF-8 >%s/said 2>&1", name, dir,
		       name, dir);
	if (system(command) < 0)
		return false;
	(void)snprintf(command, sizeof(command), "%s.UTF-8", name);
	return setlocale(LC_ALL, command);
}

static void says_and_reads(void)
{
	char text[SK_SIZE_TEXT];
	uint64_t bytes = 0;

	CHECK(!strcmp(sk_size_format(16357785, text, sizeof(text)),
		      "15.6 MiB"), "it says %s", text);
	CHECK(!strcmp(sk_size_tenths(123, text, sizeof(text)), "12.3"),
	      "it says %s", text);
	CHECK(sk_size_parse("1.5gib", 0, &bytes, NULL) == 0 &&
	      bytes == UINT64_C(3) << 29, "1.5gib is not read");
	CHECK(sk_size_parse("2TIB", 0, &bytes, NULL) == 0 &&
	      bytes == UINT64_C(2) << 40, "2TIB is not read");
}

int main(void)
{
	char text[64];
	bool all;

	if (!mkdtemp(dir))
		return 1;
	(void)setenv("LOCPATH", dir, 1);
	all = enter("de_DE");
	if (all) {
		(void)snprintf(text, sizeof(text), "%.1f", 1.5);
		CHECK(!strcmp(text, "1,5"), "the locale says %s", text);
		says_and_reads();
	}
	all = all && enter("tr_TR");
	if (all)
		says_and_reads();
	(void)snprintf(text, sizeof(text), "rm -rf %s", dir);
	if (system(text) < 0)
		return 1;
	if (!all)
		puts("there are no sources of locales");
	return all ? 0 : 77;
}
