/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/passed.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "agent.h"
#include "base/array.h"
#include "disk/ignored.h"

/* Names come first in both. */
static_assert(offsetof(struct passed, key) == 0, "compared as a key");

void passed_sort(struct agent *a)
{
	if (a->n_passed)
		qsort(a->passed, a->n_passed, sizeof(*a->passed),
		      file_key_compare);
	a->sorted_passed = a->n_passed;
}

/* What was not looked at is what it was. */
static bool stays(const struct scan *scan, const struct file_key *key)
{
	struct sk_store_run run;
	const struct found *f;

	if (scan->job[0] && strcmp(key->job, scan->job) != 0)
		return true;
	f = found_find(scan, key);
	if (f)
		return found_unreadable(f);
	return key->dir[0] &&
	       scan_seen(scan, key->job, key->dir, &run) == SCAN_NAMED;
}

void passed_forget(struct agent *a, const struct scan *scan)
{
	size_t n = 0;

	if (scan->result < 0)
		return;
	for (size_t i = 0; i < a->n_passed; i++)
		if (stays(scan, &a->passed[i].key))
			a->passed[n++] = a->passed[i];
	a->n_passed = a->sorted_passed = n;
}

bool passed_is_new(struct agent *a, const struct sk_stored *stored,
		   const struct sk_err *because)
{
	const struct file_key key = file_key_of(stored);
	uint64_t why = XXH3_64bits(because->text,
				   strlen(because->text));
	struct passed *p = a->sorted_passed ?
		bsearch(&key, a->passed, a->sorted_passed, sizeof(*p),
			file_key_compare) : NULL;

	if (p && p->why == why)
		return false;
	/* Without memory it is named again. */
	if (!p && sk_array_fit(a->passed, a->room_passed,
			       a->n_passed + 1) < 0)
		return true;
	if (!p)
		p = &a->passed[a->n_passed++];
	*p = (struct passed){ .key = key, .why = why };
	return true;
}

void passed_all(struct agent *a, const struct scan *scan)
{
	struct sk_stored all = { .rank = -1 };

	memcpy(all.job, scan->job, sizeof(all.job));
	if (passed_is_new(a, &all, &scan->err))
		log_warning(a, "%s", scan->err.text);
}
