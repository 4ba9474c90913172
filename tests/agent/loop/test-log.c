/* SPDX-License-Identifier: Apache-2.0 */
/* What a line of the log is, whatever it tells of. */
#include <criterion/criterion.h>
#include <string.h>
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
