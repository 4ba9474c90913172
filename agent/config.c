/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
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

/* ---- a value in quotation marks: any text at all ---- */

static int hex_digit(char c)
{
	return isdigit((unsigned char)c) ? c - '0' :
	       c >= 'a' && c <= 'f' ? c - 'a' + 10 :
	       c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* What a backslash before @text stands for, which goes on behind it; -1:
 * nothing. */
static int escaped(char **text)
{
	char *t = *text;
	int high, low;

	if (*t == '"' || *t == '\\') {
		*text += 1;
		return *t;
	}
	high = *t == 'x' ? hex_digit(t[1]) : -1;
	low = high < 0 ? -1 : hex_digit(t[2]);
	*text += low < 0 ? 0 : 3;
	/* No text has a zero in it. */
	return low < 0 || !(high | low) ? -1 : high << 4 | low;
}

/* In place, from its first mark on; false: that is no such value. */
static bool unquote(char *value)
{
	char *from = value + 1, *to = value;

	while (*from && *from != '"') {
		int c = (unsigned char)*from++;

		if (c == '\\')
			c = escaped(&from);
		if (c < 0)
			return false;
		*to++ = (char)c;
	}
	/* A comment has a space before it. */
	if (*from++ != '"' || *from == '#')
		return false;
	*to = 0;
	cut_comment(from);
	return !*trim(from);
}

static bool is_bare(const char *value)
{
	size_t n = strlen(value);

	if (!n || strchr(" #\"'", value[0]) || value[n - 1] == ' ')
		return false;
	for (size_t i = 0; i < n; i++)
		if (iscntrl((unsigned char)value[i]) ||
		    (value[i] == '#' && value[i - 1] == ' '))
			return false;
	return true;
}

char *config_written(const char *value)
{
	char *ret = malloc(4 * strlen(value) + 3), *to = ret;

	if (!ret || is_bare(value))
		return ret ? strcpy(ret, value) : NULL;
	*to++ = '"';
	for (; *value; value++) {
		/* A terminal would do what they say. */
		if (iscntrl((unsigned char)*value)) {
			to += sprintf(to, "\\x%02x", (unsigned char)*value);
			continue;
		}
		if (*value == '"' || *value == '\\')
			*to++ = '\\';
		*to++ = *value;
	}
	*to++ = '"';
	*to = 0;
	return ret;
}

/* Some editors' first bytes of a text that is UTF-8. */
static char *skip_mark(char *text)
{
	static const char mark[] = "\xef\xbb\xbf";
	size_t n = strlen(mark);

	return strncmp(text, mark, n) == 0 ? text + n : text;
}

/* ---- lines ---- */

/* What @text means as a value; NULL: nothing, and why was said. */
static char *read_value(const char *path, int number, const char *name,
			char *text)
{
	const char *why = NULL;

	while (isspace((unsigned char)*text))
		text++;
	if (*text == '"') {
		why = unquote(text) ? NULL : "begins with a quotation mark, "
		      "and does not end with one, or has a \\ before what is "
		      "not \\, \" or xHH";
	} else if (*text == '\'') {
		why = "begins with a quotation mark, which would belong to it; "
		      "leave it away, or take \"";
	} else {
		cut_comment(text);
		text = trim(text);
	}
	if (why)
		fprintf(stderr, "shardkeepd: %s:%d: the value of \"%s\" %s\n",
			path, number, name, why);
	return why ? NULL : text;
}

static int read_line(const char *path, int number, char *line,
		     int (*set)(void *ctx, const char *name,
				const char *value, int line), void *ctx)
{
	char none[] = "", *value = strchr(line, '=');
	int r;

	if (value)
		*value++ = 0;
	line = trim(line);
	if (*line == '#' || (!value && !*line))
		return 0;
	value = value ? read_value(path, number, line, value) : none;
	if (!value)
		return -EINVAL;
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

	if (r == -EILSEQ)
		fprintf(stderr, "shardkeepd: %s has bytes of zero: that is no "
			"text\n", path);
	else if (r < 0 && r != -ENOENT)
		fprintf(stderr, "shardkeepd: cannot read %s: %s\n", path,
			strerror(-r));
	if (r == 0)
		rest = skip_mark(text);
	while (r == 0 && (line = strsep(&rest, "\n")))
		r = read_line(path, ++number, line, set, ctx);
	free(text);
	return r;
}
