/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/ignored.h"

#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "base/array.h"

static int compare_with_found(const void *key, const void *found)
{
	const struct found *f = found;
	const struct file_key theirs = file_key_of(&f->stored);

	return file_key_compare(key, &theirs);
}

const struct found *found_find(const struct scan *scan,
			       const struct file_key *key)
{
	return scan->n_found ? bsearch(key, scan->found, scan->n_found,
				       sizeof(*scan->found),
				       compare_with_found) : NULL;
}

/* What was not read is what it was, or could not be looked at. */
static bool stays(const struct scan *scan, const struct file_key *key)
{
	struct sk_store_run run;
	const struct found *f;

	if (scan->job[0] && strcmp(key->job, scan->job) != 0)
		return true;
	if (scan_seen(scan, key->job, key->dir, &run) == SCAN_NAMED)
		return true;
	f = found_find(scan, key);
	return f && !f->layout &&
	       (f->result < 0 ? found_unreadable(f) :
				sk_file_id_equal(&f->stored.file, &key->file));
}

void ignored_forget(struct agent *a, const struct scan *scan)
{
	size_t n = 0;

	/* What a look that failed has not seen may be there all the same; what
	 * it has read may be added twice. */
	if (scan->result < 0)
		return;
	for (size_t i = 0; i < a->n_ignored; i++)
		if (stays(scan, &a->ignored[i]))
			a->ignored[n++] = a->ignored[i];
	a->n_ignored = n;
}

void ignored_add(struct agent *a, const struct found *f)
{
	if (sk_array_fit(a->ignored, a->room_ignored, a->n_ignored + 1) < 0)
		return;		/* it is read again, and named again */
	a->ignored[a->n_ignored++] = file_key_of(&f->stored);
}

void ignored_sort(struct agent *a)
{
	size_t n = 0;

	if (!a->n_ignored)
		return;
	qsort(a->ignored, a->n_ignored, sizeof(*a->ignored),
	      file_key_compare);
	for (size_t i = 1; i < a->n_ignored; i++)
		if (file_key_compare(&a->ignored[n], &a->ignored[i]) != 0)
			a->ignored[++n] = a->ignored[i];
	a->n_ignored = n + 1;
}
