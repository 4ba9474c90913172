/* SPDX-License-Identifier: Apache-2.0 */
/* Values as people read them, and texts that must fit a column. */
#include <math.h>
#include <string.h>

#include "base/size.h"
#include "report-private.h"

#define DOTS "..."

char *format_age(int64_t s, char *buf, size_t size)
{
	if (s < 0)
		(void)snprintf(buf, size, "-");
	else if (s < 60)
		(void)snprintf(buf, size, "%llds", (long long)s);
	else if (s < 3600)
		(void)snprintf(buf, size, "%lldm %llds", (long long)(s / 60),
			       (long long)(s % 60));
	else if (s < 86400)
		(void)snprintf(buf, size, "%lldh %lldm",
			       (long long)(s / 3600),
			       (long long)(s / 60 % 60));
	else
		(void)snprintf(buf, size, "%lldd %lldh",
			       (long long)(s / 86400),
			       (long long)(s / 3600 % 24));
	return buf;
}

bool is_whole(double value)
{
	/* Beyond 2^53 a double does not tell neighbours apart. */
	return value == trunc(value) && fabs(value) <= 9007199254740992.0;
}

static const char *format_real(double value, char buf[CELL_MAX])
{
	if (is_whole(value) || fabs(value) >= 100)
		(void)snprintf(buf, CELL_MAX, "%.0f", value);
	else
		(void)snprintf(buf, CELL_MAX, "%.3f", value);
	return buf;
}

const char *cell_text(const struct cell *cell, char buf[CELL_MAX])
{
	switch (cell->kind) {
	case CELL_TEXT:
	case CELL_NAME:
	case CELL_WORDS:
	case CELL_NUMBERS:
		return cell->text && *cell->text ? cell->text : "-";
	case CELL_BYTES:
		return sk_size_format((uint64_t)cell->number, buf, CELL_MAX);
	case CELL_AGE:
		return format_age(cell->number, buf, CELL_MAX);
	case CELL_REAL:
		return format_real(cell->real, buf);
	case CELL_BOOL:
		return cell->number ? "yes" : "no";
	case CELL_INT:
		(void)snprintf(buf, CELL_MAX, "%lld",
			       (long long)cell->number);
		return buf;
	default:
		return "-";
	}
}

static bool begins_character(char c)
{
	return ((unsigned char)c & 0xc0) != 0x80;
}

int text_width(const char *text)
{
	int n = 0;

	for (; *text; text++)
		n += begins_character(*text);
	return n;
}

size_t text_prefix(const char *text, int columns)
{
	size_t n = 0;

	for (; text[n]; n++)
		if (begins_character(text[n]) && columns-- == 0)
			break;
	return n;
}

int text_longest_word(const char *text)
{
	int longest = 0, n = 0;

	for (; *text; text++) {
		n = *text == ' ' ? 0 : n + begins_character(*text);
		longest = n > longest ? n : longest;
	}
	return longest;
}

size_t text_line(const char *text, int columns, size_t *ret_next)
{
	size_t n = text_prefix(text, columns), end = n;

	if (text[n] && text[n] != ' ') {
		while (end && text[end - 1] != ' ')
			end--;
		if (!end)
			end = n;	/* one long word */
	}
	*ret_next = end;
	while (text[*ret_next] == ' ')
		++*ret_next;
	while (end && text[end - 1] == ' ')
		end--;
	return end;
}

/* The end tells names apart more often than the beginning: it gets more. */
char *format_name(const char *name, int columns, char *buf, size_t size)
{
	int w = text_width(name), left = (columns - 3) / 4;
	size_t head, tail;

	if (w <= columns) {
		(void)snprintf(buf, size, "%s", name);
		return buf;
	}
	head = text_prefix(name, left);
	tail = text_prefix(name, w - (columns - 3 - left));
	(void)snprintf(buf, size, "%.*s" DOTS "%s", (int)head, name,
		       name + tail);
	return buf;
}
