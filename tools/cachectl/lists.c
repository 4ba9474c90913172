/* SPDX-License-Identifier: Apache-2.0 */
#include "lists.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

/* ---- newest first ---- */

/* What is left to list of one job. */
struct rest {
	size_t at, end;
};

/* Snapshots come job by job, newest first. Returns how many jobs. */
static size_t split_jobs(const struct sk_wire_snapshot *all, size_t n,
			 struct rest *ret)
{
	size_t jobs = 0;

	for (size_t i = 0; i < n; i++) {
		if (i && strcmp(all[i].id.job, all[i - 1].id.job) == 0 &&
		    all[i].uid == all[i - 1].uid)
			ret[jobs - 1].end++;
		else
			ret[jobs++] = (struct rest){ i, i + 1 };
	}
	return jobs;
}

static bool goes_before(const struct sk_wire_snapshot *all,
			const struct rest *a, const struct rest *b)
{
	uint64_t x = all[a->at].created_ns, y = all[b->at].created_ns;

	return x != y ? x > y : a->at < b->at;
}

/* Of a heap of rests the one at @i goes down to where it belongs. */
static void sift(const struct sk_wire_snapshot *all, struct rest *heap,
		 size_t n, size_t i)
{
	for (;;) {
		size_t best = i, left = 2 * i + 1;
		struct rest moved = heap[i];

		for (size_t k = left; k < n && k < left + 2; k++)
			if (goes_before(all, &heap[k], &heap[best]))
				best = k;
		if (best == i)
			return;
		heap[i] = heap[best];
		heap[best] = moved;
		i = best;
	}
}

int list_merge(struct sk_wire_snapshot *all, size_t n)
{
	_cleanup_free_ struct sk_wire_snapshot *old = calloc(n + 1,
							     sizeof(*old));
	_cleanup_free_ struct rest *heap = calloc(n + 1, sizeof(*heap));
	size_t jobs;

	if (!old || !heap)
		return -ENOMEM;
	memcpy(old, all, n * sizeof(*old));
	jobs = split_jobs(old, n, heap);
	for (size_t i = jobs / 2; i-- > 0;)
		sift(old, heap, jobs, i);
	for (size_t i = 0; i < n; i++) {
		all[i] = old[heap->at++];
		if (heap->at == heap->end)
			heap[0] = heap[--jobs];
		sift(old, heap, jobs, 0);
	}
	return 0;
}

/* ---- found by what they are ---- */

static const struct sk_wire_id *id_at(const struct listed *l, size_t i)
{
	return (const void *)((const char *)l->first + i * l->record_bytes);
}

static uint64_t hash_id(const struct sk_wire_id *id)
{
	uint64_t hash = sk_hash_bytes(sk_hash_seed(), id->job,
				      strlen(id->job));

	hash = sk_hash_bytes(hash, &id->step, sizeof(id->step));
	return sk_hash_bytes(hash, &id->rank, sizeof(id->rank));
}

int listed_note(struct listed *l, const void *first, size_t record_bytes,
		size_t n)
{
	*l = (struct listed){ .first = first, .record_bytes = record_bytes };
	if (sk_table_reserve(&l->table, n) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		(void)sk_table_add(&l->table, hash_id(id_at(l, i)), i);
	return 0;
}

void listed_free(struct listed *l)
{
	sk_table_free(&l->table);
}

struct listed_walk listed_find(const struct listed *l,
			       const struct sk_wire_id *id)
{
	return (struct listed_walk){ l, id, sk_table_find(&l->table,
							  hash_id(id)) };
}

const void *listed_next(struct listed_walk *w)
{
	uintptr_t i;

	while (sk_table_next(&w->walk, &i)) {
		const struct sk_wire_id *id = id_at(w->listed, i);

		if (id->step == w->id->step && id->rank == w->id->rank &&
		    strcmp(id->job, w->id->job) == 0)
			return id;
	}
	return NULL;
}
