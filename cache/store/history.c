/* SPDX-License-Identifier: Apache-2.0 */
#include "store/history.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "store/private.h"

void sk_history_forget(struct sk_history *h)
{
	for (size_t i = 0; i < h->n; i++) {
		sk_history_files_forget(&h->steps[i]);
		free(h->steps[i].aside);
	}
	free(h->steps);
	free(h->order);
	free(h->locals);
	h->steps = NULL;
	h->order = NULL;
	h->locals = NULL;
	h->n = h->room = h->unproved = 0;
	h->merged = false;
	h->dir = (struct sk_file_id){ 0 };
}

struct sk_history *sk_history_new(const char *job)
{
	struct sk_history *h = calloc(1, sizeof(*h));

	assert(strlen(job) < sizeof(h->job));
	if (h)
		(void)snprintf(h->job, sizeof(h->job), "%s", job);
	return h;
}

struct sk_history *sk_history_free(struct sk_history *h)
{
	if (!h)
		return NULL;
	sk_history_forget(h);
	free(h);
	return NULL;
}

const char *sk_history_job(const struct sk_history *h)
{
	return h->job;
}

size_t sk_history_count(const struct sk_history *h)
{
	return h->n;
}

bool sk_history_unsaved(const struct sk_history *h)
{
	return h->unsaved;
}

bool sk_history_merged(const struct sk_history *h)
{
	return h->merged;
}

void sk_history_note_merged(struct sk_history *h, bool merged)
{
	h->merged = merged;
}

struct sk_history_step *sk_history_at(const struct sk_history *h, size_t i)
{
	assert(i < h->n);
	return &h->steps[h->order[i]];
}

struct sk_history_step *sk_history_by_name(const struct sk_history *h,
					   size_t i)
{
	assert(i < h->n);
	return &h->steps[i];
}

void sk_history_name(const struct sk_history_step *s, char buf[SK_STEP_DIR_MAX])
{
	char name[SK_STORE_NAME_MAX];

	sk_step_name_format(name, s->step);
	(void)snprintf(buf, SK_STEP_DIR_MAX, "%.*s", (int)SK_STEP_DIR_MAX - 1,
		       s->aside ? s->aside : name);
}

/* ---- orders ---- */

int sk_history_order(const void *a, const void *b)
{
	const struct sk_history_step *x = a, *y = b;

	if (x->step != y->step)
		return x->step < y->step ? -1 : 1;
	if (!x->aside || !y->aside)
		return !!x->aside - !!y->aside;
	return strcmp(x->aside, y->aside);
}

static int newest_first(const void *a, const void *b, void *ctx)
{
	const struct sk_history_step *steps = ctx;
	const struct sk_history_step *x = &steps[*(const uint32_t *)a];
	const struct sk_history_step *y = &steps[*(const uint32_t *)b];

	if (!x->run.number != !y->run.number)
		return !x->run.number ? -1 : 1;
	if (x->run.number != y->run.number)
		return x->run.number > y->run.number ? -1 : 1;
	if (x->step != y->step)
		return x->step > y->step ? -1 : 1;
	if (x->run.id != y->run.id)
		return x->run.id > y->run.id ? -1 : 1;
	return sk_history_order(x, y);
}

int sk_history_put_in_order(struct sk_history *h)
{
	uint32_t *order = calloc(h->n + 1, sizeof(*order));

	if (!order)
		return -ENOMEM;
	for (size_t i = 0; i < h->n; i++)
		order[i] = (uint32_t)i;
	qsort_r(order, h->n, sizeof(*order), newest_first, h->steps);
	free(h->order);
	h->order = order;
	return 0;
}

struct sk_history_step *sk_history_find(const struct sk_history *h,
					const char *dir)
{
	struct sk_history_step key = { 0 };
	struct sk_step_name name;

	if (!h->n || !sk_step_name_parse(dir, &name))
		return NULL;
	key.step = name.step;
	key.aside = name.displaced ? (char *)dir : NULL;
	return bsearch(&key, h->steps, h->n, sizeof(key),
		       sk_history_order);
}

static size_t first_of(const struct sk_history *h, uint64_t step)
{
	size_t from = 0, to = h->n;

	while (from < to) {
		size_t mid = from + (to - from) / 2;

		if (h->steps[mid].step < step)
			from = mid + 1;
		else
			to = mid;
	}
	return from;
}

bool sk_history_has_others(const struct sk_history *h, uint64_t step,
			   const struct sk_store_run *run)
{
	for (size_t i = first_of(h, step);
	     i < h->n && h->steps[i].step == step; i++) {
		if (!sk_store_run_equal(&h->steps[i].run, run))
			return true;
	}
	return false;
}
