/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shardkeepd's command line and environment: the input is words, one a line,
 * the first for the environment. What is accepted is in bounds.
 */
#include "fuzz/fuzz.h"

#include <getopt.h>
#include <unistd.h>

#include "options.h"

#define WORDS 16

/* What it says would drown what a fuzzer has to say. */
static void be_quiet(void)
{
	static bool quiet;

	if (!quiet)
		FUZZ_CHECK(freopen("/dev/null", "w", stdout));
	quiet = true;
}

static void set_environment(const char *word)
{
	static const char *const names[] = {
		"SHARDKEEP_SOCKET", "SHARDKEEP_STORE", "SHARDKEEP_MEMORY",
		"SHARDKEEP_DEVICE_MEMORY" };

	for (int i = 0; i < 4; i++) {
		if (word[0] == "ksmd"[i])
			FUZZ_CHECK(!setenv(names[i], word + 1, 1));
		else
			FUZZ_CHECK(!unsetenv(names[i]));
	}
}

static void check(const struct options *o)
{
	FUZZ_CHECK(o->memory);
	FUZZ_CHECK(!o->device_memory || o->device_memory >= 1);
	FUZZ_CHECK(o->keeper <= KEEP_NEVER);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = strndup((const char *)data, size), *rest = text, *word;
	char *argv[WORDS + 2] = { (char[]){ "shardkeepd" } };
	struct options o = { 0 };
	int argc = 1;

	FUZZ_CHECK(text);
	be_quiet();
	word = strsep(&rest, "\n");
	set_environment(word);
	while (rest && argc <= WORDS)
		argv[argc++] = strsep(&rest, "\n");
	optind = 0;
	if (options_parse(argc, argv, &o) == 0)
		check(&o);
	options_free(&o);
	free(text);
	return 0;
}
