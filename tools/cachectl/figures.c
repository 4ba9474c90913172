/* SPDX-License-Identifier: Apache-2.0 */
#include "figures.h"

#include <string.h>

/* Each job has it. */
#define OF_ALL "shardkeep_job_memory_bytes"

static bool is(const char *text, size_t room, const char *want)
{
	return strncmp(text, want, room) == 0;
}

bool figure_of(const struct figures *f, const char *name, const char *job,
	       uint32_t uid, const char *word, double *ret)
{
	for (size_t i = 0; i < f->n; i++) {
		const struct sk_wire_stat *s = &f->v[i];

		if (!is(s->name, sizeof(s->name), name) ||
		    !is(s->job, sizeof(s->job), job) ||
		    (*job && s->uid != uid) ||
		    !is(s->word, sizeof(s->word), word))
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

const struct sk_wire_stat *figure_job(const struct figures *f, size_t i)
{
	for (size_t k = 0; k < f->n; k++) {
		const struct sk_wire_stat *s = &f->v[k];

		if (is(s->name, sizeof(s->name), OF_ALL) && i-- == 0)
			return memchr(s->job, 0, sizeof(s->job)) ? s : NULL;
	}
	return NULL;
}
