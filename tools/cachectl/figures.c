/* SPDX-License-Identifier: Apache-2.0 */
#include "figures.h"

#include <stdio.h>
#include <string.h>

/* Each job has it. */
#define OF_ALL "shardkeep_job_memory_bytes"

static bool is(const char *text, size_t room, const char *want)
{
	return strncmp(text, want, room) == 0;
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

double figure(const struct figures *f, const char *name)
{
	double value = 0;

	(void)figure_of(f, name, "", 0, "", &value);
	return value;
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
