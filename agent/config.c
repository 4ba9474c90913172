/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

#define FILE_MOST 65536u
#define NAME "shardkeep/shardkeepd.conf"

void config_usual(char *ret, size_t size)
{
	const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");

	*ret = 0;
	if (geteuid() == 0)
		(void)snprintf(ret, size, "/etc/" NAME);
	else if (xdg && *xdg == '/')
		(void)snprintf(ret, size, "%s/" NAME, xdg);
	else if (home && *home == '/')
		(void)snprintf(ret, size, "%s/.config/" NAME, home);
}

static char *trim(char *text)
{
	size_t n;

	while (isspace((unsigned char)*text))
		text++;
	n = strlen(text);
	while (n && isspace((unsigned char)text[n - 1]))
		text[--n] = 0;
	return text;
}

/* As --check-config prints them, each with who says it. */
static void cut_comment(char *value)
{
	for (char *c = value; *c; c++) {
		if (*c == '#' && (c == value || isspace((unsigned char)c[-1])))
			*c = 0;
	}
}

static int read_line(const char *path, int number, char *line,
		     int (*set)(void *ctx, const char *name,
				const char *value, int line), void *ctx)
{
	char none[] = "", *value = strchr(line, '=');
	int r;

	if (value) {
		*value++ = 0;
		cut_comment(value);
	}
	line = trim(line);
	if (*line == '#' || (!value && !*line))
		return 0;
	value = value ? trim(value) : none;
	if (*value == '"' || *value == '\'') {
		fprintf(stderr, "shardkeepd: %s:%d: the value of \"%s\" "
			"begins with a quotation mark, which would belong to "
			"it; leave it away\n", path, number, line);
		return -EINVAL;
	}
	r = set(ctx, line, value, number);
	if (r < 0)
		fprintf(stderr, "shardkeepd: %s:%d: \"%s\" is not taken\n",
			path, number, line);
	return r;
}

int config_read(const struct sk_os *os, const char *path,
		int (*set)(void *ctx, const char *name, const char *value,
			   int line),
		void *ctx)
{
	char *text = malloc(FILE_MOST), *rest = text, *line;
	int number = 0;
	int r = text ? sk_text_read(os, path, text, FILE_MOST) :
		       -ENOMEM;

	if (r < 0 && r != -ENOENT)
		fprintf(stderr, "shardkeepd: cannot read %s: %s\n", path,
			strerror(-r));
	while (r == 0 && (line = strsep(&rest, "\n")))
		r = read_line(path, ++number, line, set, ctx);
	free(text);
	return r;
}
