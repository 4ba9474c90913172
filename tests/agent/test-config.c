/* SPDX-License-Identifier: Apache-2.0 */
/* What --check-config writes into a line is what a file's line says. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "support/random.h"

#define MOST 24

struct seen {
	char value[4 * MOST];
	int lines;
};

static int see(void *ctx, const char *name, const char *value, int line)
{
	struct seen *seen = ctx;

	cr_assert_str_eq(name, "store");
	cr_assert_eq(line, 1);
	seen->lines++;
	(void)snprintf(seen->value, sizeof(seen->value), "%s", value);
	return 0;
}

/* Of one line; false: it was refused. */
static bool read_line(const char *line, struct seen *ret)
{
	char path[] = "/tmp/shardkeep-config-XXXXXX";
	int fd = mkstemp(path), r;

	*ret = (struct seen){ 0 };
	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, line, strlen(line)), (ssize_t)strlen(line));
	close(fd);
	r = config_read(sk_os_linux(), path, see, ret);
	(void)unlink(path);
	return r == 0 && ret->lines == 1;
}

/* Letters that mean something in a file, and any others. */
static void draw_value(uint64_t *seed, char *ret)
{
	static const char odd[] = " \t\n\r\v\f#\"'\\=x0aF/\x1b\x7f\x80\xc3";
	size_t n = draw(seed, MOST);

	for (size_t i = 0; i < n; i++)
		ret[i] = draw(seed, 4) ?
			 odd[draw(seed, sizeof(odd) - 1)] :
			 (char)(1 + draw(seed, 255));
	ret[n] = 0;
}

Test(config, what_is_written_is_read_as_the_same)
{
	char value[MOST + 1], line[5 * MOST + 40], *written;
	uint64_t seed = 1;
	struct seen seen;

	for (int i = 0; i < 20000; i++) {
		draw_value(&seed, value);
		written = config_written(value);
		cr_assert_not_null(written);
		for (const char *c = written; *c; c++)
			cr_assert((unsigned char)*c >= ' ' && *c != 0x7f);
		(void)snprintf(line, sizeof(line), "store = %s\t# of %d\n",
			       written, i);
		cr_assert(read_line(line, &seen), "%s", line);
		cr_assert_str_eq(seen.value, value, "%s", line);
		free(written);
	}
}

/* What is bare in a file stays so: no marks where none were. */
Test(config, what_a_file_has_bare_is_written_bare)
{
	static const char *const bare[] = { "/srv/a b", "a#b", "a\"b\"",
		"a'", "C:\\d", "=", "9477", "[::1]:0", "50%" };
	char *written;

	for (size_t i = 0; i < sizeof(bare) / sizeof(*bare); i++) {
		written = config_written(bare[i]);
		cr_assert_str_eq(written, bare[i]);
		free(written);
	}
}

/* Any line at all is read, or refused, and nothing else happens. */
Test(config, any_line_in_quotation_marks)
{
	char value[MOST + 1], line[MOST + 40];
	uint64_t seed = 2;
	struct seen seen;

	for (int i = 0; i < 20000; i++) {
		draw_value(&seed, value);
		value[strcspn(value, "\n")] = 0;
		(void)snprintf(line, sizeof(line), "store = \"%s", value);
		if (read_line(line, &seen))
			cr_assert_leq(strlen(seen.value), strlen(value));
	}
}
