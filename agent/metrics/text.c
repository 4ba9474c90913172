/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "metrics/sample.h"

static void put_value(FILE *out, const char *value)
{
	for (; *value; value++) {
		if (*value == '\n')
			fputs("\\n", out);
		else if (*value == '\\' || *value == '"')
			fprintf(out, "\\%c", *value);
		else
			fputc(*value, out);
	}
}

static void put_label(FILE *out, const char **between, const char *key,
		      const char *value)
{
	fprintf(out, "%s%s=\"", *between, key);
	put_value(out, value);
	fputc('"', out);
	*between = ",";
}

static void put_labels(FILE *out, const struct sample *s)
{
	const char *between = "{";
	char uid[16];

	if (s->job[0]) {
		(void)snprintf(uid, sizeof(uid), "%" PRIu32,
			       (uint32_t)s->uid);
		put_label(out, &between, "job", s->job);
		put_label(out, &between, "uid", uid);
	}
	if (s->key)
		put_label(out, &between, s->key, sample_word(s));
	if (*between == ',')
		fputc('}', out);
}

static void put_all(FILE *out, const struct samples *all)
{
	const struct metric *last = NULL;

	for (size_t i = 0; i < all->n; i++) {
		const struct sample *s = &all->v[i];
		const struct metric *m = s->metric;

		if (m != last)
			fprintf(out, "# HELP shardkeep_%s %s\n"
				"# TYPE shardkeep_%s %s\n", m->name, m->help,
				m->name, m->counter ? "counter" : "gauge");
		last = m;
		fprintf(out, "shardkeep_%s", m->name);
		put_labels(out, s);
		fprintf(out, " %.17g\n", s->value);
	}
}

char *metrics_text(const struct samples *s, size_t *ret_bytes)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, ret_bytes);
	int failed;

	if (!out)
		return NULL;
	put_all(out, s);
	failed = ferror(out);
	failed |= fclose(out);
	if (!failed)
		return text;
	free(text);
	return NULL;
}
