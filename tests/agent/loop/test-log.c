/* SPDX-License-Identifier: Apache-2.0 */
/* What a line of the log is, whatever it tells of. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loop/log.h"

static char text[4096];

/* What is written to standard error, of @plain or with the time. */
static const char *line(bool plain, const char *name)
{
	struct log log = { .os = sk_os_linux(), .level = LOG_LEVEL_INFO,
			   .plain = plain };
	int old = dup(2), ends[2];
	ssize_t n;

	cr_assert(old >= 0 && pipe(ends) == 0);
	cr_assert(dup2(ends[1], 2) == 2);
	log_line(&log, LOG_LEVEL_WARNING, "ignoring \"%s\"", name);
	cr_assert(dup2(old, 2) == 2);
	n = read(ends[0], text, sizeof(text) - 1);
	cr_assert(n > 0);
	text[n] = 0;
	close(ends[0]);
	close(ends[1]);
	close(old);
	return text;
}

/* The journal takes "<0>" at the beginning of a line for an emergency. */
Test(log, a_line_is_one_line)
{
	cr_expect_str_eq(line(true, "w\n<0>the disk burns\x1b[2J"),
			 "<4>ignoring \"w?<0>the disk burns?[2J\"\n");
	cr_expect_str_eq(strchr(line(false, "w\r\nx"), 'Z'),
			 "Z warning: ignoring \"w??x\"\n");
	cr_expect_str_eq(line(true, "größer"), "<4>ignoring \"größer\"\n");
}

/* Whether lines are for the journal, which says that it reads what has these
 * numbers, each of them that far from those of standard error. */
static bool is_plain(unsigned dev_off, unsigned ino_off)
{
	char stream[64];
	struct stat st;
	struct log log;

	cr_assert(fstat(2, &st) == 0);
	(void)snprintf(stream, sizeof(stream), "%llu:%llu",
		       (unsigned long long)st.st_dev + dev_off,
		       (unsigned long long)st.st_ino + ino_off);
	cr_assert(setenv("JOURNAL_STREAM", stream, 1) == 0);
	log_open(&log, sk_os_linux(), LOG_LEVEL_INFO);
	return log.plain;
}

/* A time is the journal's to say; another reader has it from us. */
Test(log, the_journal_is_known_by_its_stream)
{
	struct log log;

	cr_expect(is_plain(0, 0));
	cr_expect(!is_plain(1, 0));
	cr_expect(!is_plain(0, 1));
	cr_assert(setenv("JOURNAL_STREAM", "no numbers", 1) == 0);
	log_open(&log, sk_os_linux(), LOG_LEVEL_INFO);
	cr_expect(!log.plain);
	cr_assert(unsetenv("JOURNAL_STREAM") == 0);
	log_open(&log, sk_os_linux(), LOG_LEVEL_INFO);
	cr_expect(!log.plain);
}
