/* SPDX-License-Identifier: Apache-2.0 */
/* Reports as people and scripts get them. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "report.h"

#define TEXT 65536

static char text[TEXT];

static const char *print(struct report *r, enum output output, int columns)
{
	FILE *out = fmemopen(text, sizeof(text), "w");

	cr_assert_eq(report_print(r, output, &(struct style){
				  .columns = columns }, out), 0);
	fclose(out);
	return text;
}

/* Who has no screen need not describe one. */
Test(report, a_style_is_not_needed)
{
	struct report *r = report_new();
	FILE *out = fmemopen(text, sizeof(text), "w");

	report_text(r, "a", "a field", "%s", "its value");
	cr_assert_eq(report_print(r, OUTPUT_TABLE, NULL, out), 0);
	fclose(out);
	cr_assert(strstr(text, "its value"), "%s", text);
	report_free(r);
}

/* More than a buffer holds: it is found full before the end. */
Test(report, a_full_disk_is_named_in_each_form)
{
	static const enum output outputs[] = { OUTPUT_TABLE, OUTPUT_JSON };
	struct report *r = report_new();
	FILE *out;

	for (int i = 0; i < 2000; i++)
		report_text(r, "a", "a field", "%s", "its value");
	for (size_t i = 0; i < SK_ARRAY_SIZE(outputs); i++) {
		out = fopen("/dev/full", "w");
		cr_assert(out);
		cr_assert_eq(report_print(r, outputs[i], NULL, out), -ENOSPC,
			     "output %d", outputs[i]);
		fclose(out);
	}
	report_free(r);
}

static int longest_line(const char *s)
{
	int longest = 0;

	for (; *s; s += strcspn(s, "\n") + 1) {
		int n = 0;

		for (const char *c = s; *c != '\n'; c++)
			n += ((unsigned char)*c & 0xc0) != 0x80;
		longest = n > longest ? n : longest;
	}
	return longest;
}

static const struct column columns[] = {
	{ "job", "JOB" }, { "step", "STEP" }, { "state", "STATE" },
	{ "bytes", "BYTES" }, { "uid", NULL },
};

static void add_row(struct report *r, const char *job, int64_t step,
		    const char *state)
{
	report_cell_name(r, "%s", job);
	report_cell(r, CELL_INT, step);
	report_cell_words(r, state);
	report_cell(r, CELL_BYTES, 1536);
	report_cell(r, CELL_INT, 1000);
}

/* People see the name as it is stored, but for what would turn it round. */
Test(table, a_name_cannot_turn_what_stands_beside_it)
{
	_cleanup_report_ struct report *r = report_new();

	report_table(r, "snapshots", NULL, columns, 5);
	add_row(r, "a\u202ebc\u2066", 1, "sealed");
	cr_assert(strstr(print(r, OUTPUT_TABLE, 0), "\na?bc?  "), "%s",
		  text);
	print(r, OUTPUT_JSON, 0);
	cr_assert(strstr(text, "a\u202ebc\u2066") ||
		  strstr(text, "a\\u202ebc\\u2066"), "%s", text);
}

/* Paths, and what an agent that is another's says, may be any bytes. */
Test(report, of_any_bytes_is_shown_and_drives_nothing)
{
	static const char any[] = "/a\x1b[31m\x7f\xc2\x9b\x9b/\xe9t\xc3\xa9";
	_cleanup_report_ struct report *r = report_new();

	report_text(r, "store", "store", "%s", any);
	report_table(r, "snapshots", NULL, columns, 5);
	add_row(r, any, 1, "sealed");
	cr_expect(strstr(print(r, OUTPUT_TABLE, 200), "store  /a?[31m??" "?/?t\xc3"
			 "\xa9\n"), "%s", text);
	cr_expect(strstr(text, "\n/a?[31m??" "?/?t\xc3\xa9  "), "%s", text);
	print(r, OUTPUT_JSON, 0);
	cr_expect(strstr(text, "\"/a\\u001B[31m\\u007f\\u009b?/?t\xc3\xa9\""),
		  "%s", text);
}

Test(table, fits_the_screen)
{
	_cleanup_report_ struct report *r = report_new();
	char job[200], start[20];

	memset(job, 'j', sizeof(job) - 1);
	job[sizeof(job) - 1] = 0;
	memcpy(job + 190, "-theend", 7);
	report_table(r, "snapshots", NULL, columns, 5);
	add_row(r, job, 1200000000, "complete durable newest pinned in-use "
		"to-flush flushing flush-failed");
	add_row(r, "short", 3, "incomplete");
	print(r, OUTPUT_TABLE, 80);
	cr_assert_leq(longest_line(text), 80, "%s", text);
	/* Words are whole, names keep both ends, numbers are never cut. */
	for (const char *const *w = (const char *const[]){ "complete",
	     "durable", "newest", "pinned", "in-use", "to-flush", "flushing",
	     "flush-failed", "1200000000", "theend", "short", "1.5 KiB",
	     NULL }; *w; w++)
		cr_assert(strstr(text, *w), "no %s in\n%s", *w, text);
	snprintf(start, sizeof(start), "\njjj...j");
	cr_assert(strstr(text, start), "%s", text);
	/* Nothing is cut where there is room. */
	print(r, OUTPUT_TABLE, 400);
	cr_assert(strstr(text, job), "%s", text);
}

/* A row becomes fields, one below the other, of a screen; a pipe has rows. */
Test(table, fits_a_narrow_screen)
{
	_cleanup_report_ struct report *r = report_new();
	static const int narrow[] = { 44, 40, 30, 20 };

	report_table(r, "snapshots", NULL, columns, 5);
	add_row(r, "a-name-of-a-job-that-is-long", 1200000000,
		"complete durable newest");
	add_row(r, "short", 3, "incomplete");
	cr_assert(strstr(print(r, OUTPUT_TABLE, 50), "\nshort "), "%s", text);
	for (size_t i = 0; i < SK_ARRAY_SIZE(narrow); i++) {
		print(r, OUTPUT_TABLE, narrow[i]);
		cr_assert_leq(longest_line(text), narrow[i], "%s", text);
	}
	cr_assert(strstr(print(r, OUTPUT_TABLE, 28), "STEP   1200000000\n"),
		  "%s", text);
	cr_assert(strstr(text, "STATE  complete durable\n       newest\n"
			 "BYTES  1.5 KiB\n\nJOB    short\n"), "%s", text);
	cr_assert(!strstr(text, "1000\n"), "what people do not see: %s", text);
	cr_assert(strstr(print(r, OUTPUT_TABLE, 0), "\nshort "), "%s", text);
}

Test(table, any_texts_fit)
{
	srand(11);
	for (int i = 0; i < 500; i++) {
		_cleanup_report_ struct report *r = report_new();

		report_table(r, "snapshots", NULL, columns, 5);
		for (int row = 0; row < 4; row++) {
			char name[300], words[300];

			for (size_t k = 0; k < sizeof(name); k++) {
				name[k] = "ab\xc3\xa9"[rand() % 2];
				words[k] = rand() % 9 ? 'w' : ' ';
			}
			name[rand() % 300] = 0;
			words[rand() % 300] = 0;
			name[299] = words[299] = 0;
			add_row(r, name, rand(), words);
		}
		print(r, OUTPUT_TABLE, 80);
		cr_assert_leq(longest_line(text), 80, "%s", text);
	}
}

Test(names, cut_between_characters)
{
	char buf[64];

	cr_assert_str_eq(format_name("abcdef", 6, buf, 64), "abcdef");
	cr_assert_str_eq(format_name("abcdefghijklmnop", 10, buf, 64),
			 "a...klmnop");
	cr_assert_str_eq(format_name("\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6"
				     "\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc", 8,
				     buf, 64),
			 "\xc3\xa4...\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc");
}

Test(numbers, whole_ones_stay_whole)
{
	_cleanup_report_ struct report *r = report_new();
	static const struct column one[] = { { "value", "VALUE" } };

	report_table(r, "stats", NULL, one, 1);
	report_cell_real(r, 123456789012.0);
	report_cell_real(r, 0);
	report_cell_real(r, -1);
	report_cell_real(r, 1234567890123.25);
	report_cell_real(r, 1.5);
	print(r, OUTPUT_TABLE, 80);
	cr_assert(strstr(text, " 123456789012\n"), "%s", text);
	cr_assert(strstr(text, "\n1234567890123\n"), "%s", text);
	cr_assert(strstr(text, " 1.500\n"), "%s", text);
	cr_assert(!strchr(text, '+'), "%s", text);
	print(r, OUTPUT_JSON, 80);
	cr_assert(strstr(text, ": 123456789012\n"), "%s", text);
	cr_assert(strstr(text, ": 0\n"), "%s", text);
	cr_assert(strstr(text, ": 1234567890123.25"), "%s", text);
}
