/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Report: what a command found out, before anybody formats it.
 *
 * A command adds fields, tables and drawings in the order people should read
 * them; a formatter prints the whole as aligned text, as one JSON document or
 * as Prometheus text. Commands never print by themselves.
 *
 * Allocation failures are remembered and reported once, by report_print().
 * Thread-safety: none; one report belongs to one thread.
 */
#ifndef SK_CACHECTL_REPORT_H
#define SK_CACHECTL_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum cell_kind {
	CELL_NONE = 0,
	CELL_TEXT,	/* people: lines are broken between words */
	CELL_NAME,	/* people: cut in the middle where it is too long */
	CELL_INT,	/* plain number */
	CELL_BYTES,	/* people: 1.5 MiB; JSON: the number */
	CELL_AGE,	/* seconds; people: 3m 12s */
	CELL_REAL,	/* whole numbers stay whole */
	CELL_WORDS,	/* space-separated; JSON: an array */
	CELL_NUMBERS,	/* "[96, 24]"; JSON: an array */
	CELL_BOOL,	/* people: yes, no */
};

struct column {
	const char *key;	/* in JSON; NULL: not there */
	const char *title;	/* for people; NULL: not shown to them */
};

enum output { OUTPUT_TABLE, OUTPUT_JSON, OUTPUT_PROMETHEUS };

struct report;

struct report *report_new(void);
struct report *report_free(struct report *report);
static inline void report_freep(struct report **r)
{
	report_free(*r);
}
#define _cleanup_report_ __attribute__((cleanup(report_freep)))

/* One value with a name of its own. */
void report_text(struct report *r, const char *key, const char *title,
		 const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void report_number(struct report *r, const char *key, const char *title,
		   enum cell_kind kind, int64_t value);
void report_words(struct report *r, const char *key, const char *title,
		  const char *words);

/* A table; cells follow row by row, one per column. @columns outlives it. */
void report_table(struct report *r, const char *key, const char *title,
		  const struct column *columns, int n_columns);
void report_cell_text(struct report *r, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void report_cell_name(struct report *r, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void report_cell_words(struct report *r, const char *words);
void report_cell_numbers(struct report *r, const char *numbers);
void report_cell(struct report *r, enum cell_kind kind, int64_t value);
void report_cell_real(struct report *r, double value);

/* Lines for people only. */
void report_draw(struct report *r, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/** How it looks to people; formats for scripts know neither. */
struct style {
	bool colour;
	bool clears;	/* it can be emptied */
	int columns;	/* of the screen; 0: none, and 80 do for most */
	int rows;	/* of it; 0: not known */
};

/** Prints to @out; @style NULL: no colour, no screen. 0 or -ENOMEM, -EIO. */
int report_print(const struct report *r, enum output output,
		 const struct style *style, FILE *out);

/** "3m 12s". Returns @buf. */
char *format_age(int64_t seconds, char *buf, size_t size);
/** "model.laye...q_proj.weight": at most @columns on the screen. */
char *format_name(const char *name, int columns, char *buf, size_t size);

#endif
