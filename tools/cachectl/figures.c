/* SPDX-License-Identifier: Apache-2.0 */
#include "figures.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"

/* Each job has it. */
#define OF_ALL "shardkeep_job_memory_bytes"

static bool is(const char *text, size_t room, const char *want)
{
	return strncmp(text, want, room) == 0;
}

int64_t figure_whole(double value)
{
	/* As a double INT64_MAX is one more than it. */
	if (value >= (double)INT64_MAX)
		return INT64_MAX;
	if (value <= (double)INT64_MIN)
		return INT64_MIN;
	return value == value ? (int64_t)value : 0;
}

char *figure_word(const struct sk_wire_stat *s, char buf[FIGURE_WORD])
{
	(void)snprintf(buf, FIGURE_WORD, "%.*s%.*s", (int)sizeof(s->word),
		       s->word, (int)sizeof(s->rest), s->rest);
	return buf;
}

bool figure_of(const struct figures *f, const char *name, const char *job,
	       uint32_t uid, const char *word, double *ret)
{
	char its[FIGURE_WORD];

	for (size_t i = 0; i < f->n; i++) {
		const struct sk_wire_stat *s = &f->v[i];

		if (!is(s->name, sizeof(s->name), name) ||
		    !is(s->job, sizeof(s->job), job) ||
		    (*job && s->uid != uid) ||
		    strcmp(figure_word(s, its), word))
			continue;
		*ret = s->value;
		return true;
	}
	return false;
}

int64_t figure(const struct figures *f, const char *name)
{
	double value = 0;

	(void)figure_of(f, name, "", 0, "", &value);
	return figure_whole(value);
}

const struct sk_wire_stat *figure_at(const struct figures *f, const char *name,
				     size_t i)
{
	for (size_t k = 0; k < f->n; k++)
		if (is(f->v[k].name, sizeof(f->v[k].name), name) && i-- == 0)
			return &f->v[k];
	return NULL;
}

const struct sk_wire_stat *figure_job(const struct figures *f, size_t i)
{
	const struct sk_wire_stat *s = figure_at(f, OF_ALL, i);

	return s && memchr(s->job, 0, sizeof(s->job)) ? s : NULL;
}

/* ---- of reports ---- */

void figures_cell(struct report *r, enum cell_kind kind,
		  const struct figures *f, const char *name,
		  const struct sk_wire_stat *job, const char *word)
{
	double value;

	if (figure_of(f, name, job->job, job->uid, word, &value))
		report_cell(r, kind, figure_whole(value));
	else
		report_cell(r, CELL_NONE, 0);
}

void figures_memory(struct report *r, const struct figures *f, bool table)
{
	int64_t used = figure(f, "shardkeep_memory_used_bytes");
	int64_t budget = figure(f, "shardkeep_memory_budget_bytes");
	char a[SK_SIZE_TEXT], b[SK_SIZE_TEXT];

	report_number(r, "memory_used_bytes", NULL, CELL_BYTES, used);
	report_number(r, "memory_budget_bytes", NULL, CELL_BYTES, budget);
	if (table)
		report_text(r, "memory", "memory", "%s of %s",
			    sk_size_format((uint64_t)used, a, sizeof(a)),
			    sk_size_format((uint64_t)budget, b, sizeof(b)));
}
