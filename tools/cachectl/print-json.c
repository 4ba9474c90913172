/* SPDX-License-Identifier: Apache-2.0 */
/* For scripts: one JSON document, exact numbers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/text.h"
#include "base/util.h"
#include "report-private.h"

/* A path need not be UTF-8, which JSON is. */
static json_t *text_value(const char *text, size_t n)
{
	json_t *value = json_stringn(text, n);
	_cleanup_free_ char *copy = value ? NULL : strndup(text, n);

	for (char *at = copy; at && *at;) {
		int bytes = sk_text_stored(at);

		if (!bytes && *at & 0x80)
			*at = '?';
		at += bytes ? bytes : 1;
	}
	return value ? value : copy ? json_string(copy) : NULL;
}

static json_t *words(const char *text)
{
	json_t *array = json_array();

	while (array && text && *text) {
		size_t n = strcspn(text, " ");

		if (n && json_array_append_new(array, text_value(text, n)))
			goto fail;
		text += n + strspn(text + n, " ");
	}
	return array;
fail:
	json_decref(array);
	return NULL;
}

static json_t *value(const struct cell *cell)
{
	switch (cell->kind) {
	case CELL_TEXT:
	case CELL_NAME:
		return text_value(cell->text, strlen(cell->text));
	case CELL_NUMBERS:
		return json_loads(cell->text, 0, NULL);
	case CELL_WORDS:
		return words(cell->text);
	case CELL_REAL:
		return is_whole(cell->real) ?
		       json_integer((json_int_t)cell->real) :
		       json_real(cell->real);
	case CELL_BOOL:
		return json_boolean(cell->number);
	case CELL_INT:
	case CELL_BYTES:
	case CELL_AGE:
		return json_integer(cell->number);
	default:
		return json_null();
	}
}

static json_t *table(const struct part *part)
{
	json_t *rows = json_array(), *row = NULL;

	for (size_t i = 0; rows && i < part->n_cells; i++) {
		size_t c = i % (size_t)part->n_columns;

		if (c == 0) {
			row = json_object();
			if (json_array_append_new(rows, row))
				goto fail;
		}
		if (!part->columns[c].key)
			continue;	/* shown to people only */
		if (json_object_set_new(row, part->columns[c].key,
					value(&part->cells[i])))
			goto fail;
	}
	return rows;
fail:
	json_decref(rows);
	return NULL;
}

/* Jansson leaves U+007F to U+009F as they are, by which a terminal may be
 * driven. Each comes in one piece. */
static int put(const char *text, size_t n, void *ctx)
{
	FILE *out = ctx;

	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)text[i];
		unsigned char next = i + 1 < n ? (unsigned char)text[i + 1] : 0;

		if (c == 0xc2 && next >= 0x80 && next < 0xa0) {
			fprintf(out, "\\u%04x", next);
			i++;
		} else if (c == 0x7f) {
			fputs("\\u007f", out);
		} else {
			fputc(c, out);
		}
	}
	return ferror(out) ? -1 : 0;
}

static int print(const struct report *r, const struct style *style, FILE *out)
{
	json_t *doc = json_object();
	int e = 0;

	(void)style;
	for (size_t i = 0; doc && !e && i < r->n_parts; i++) {
		const struct part *part = &r->parts[i];

		if (part->kind == PART_DRAWING)
			continue;
		e = json_object_set_new(doc, part->key,
					part->kind == PART_TABLE ?
					table(part) : value(part->cells));
	}
	if (!doc || e) {
		json_decref(doc);
		return -ENOMEM;
	}
	e = json_dump_callback(doc, put, out,
			       JSON_INDENT(2) | JSON_PRESERVE_ORDER);
	fputc('\n', out);
	json_decref(doc);
	return e ? -EIO : 0;
}

const struct print_ops print_json_ops = { .print = print };
