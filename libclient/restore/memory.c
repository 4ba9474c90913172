/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs out of memory: straight from the mapped image into the trainer's
 * tensors, hashing each chunk while it passes.
 *
 * A fresh mapping of an image costs a fault per 64 KiB; asking for the pages
 * of a whole unit at once costs half of that, and reading the image through
 * its descriptor instead costs more than either (measured).
 */
#include "restore/memory.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "base/util.h"
#include "restore/job.h"
#include "restore/threads.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* Bytes that one unit of work spans, and most jobs in it. */
#define UNIT_BYTES ((uint64_t)4 << 20)
#define UNIT_JOBS 256

struct moving {
	struct sk_task task;
	struct sk_restoring *rs;
	size_t *starts;		/* of each unit, and the end of the last */
	size_t n;
	int failed;		/* the first error, and its sentence */
	struct sk_err err;
};

static uint64_t job_offset(const struct sk_restoring *rs,
			   const struct sk_restore_job *job)
{
	return rs->pieces[job->piece].entry->offset +
	       job->chunk * SK_SUM_CHUNK;
}

static uint64_t job_end(const struct sk_restoring *rs,
			const struct sk_restore_job *job)
{
	const struct sk_entry *entry = rs->pieces[job->piece].entry;
	uint64_t from, to;

	sk_restore_chunk(entry, job->chunk, &from, &to);
	return entry->offset + to;
}

void sk_restore_populate(const struct sk_restoring *rs, uint32_t image,
			 uint64_t from, uint64_t to)
{
	const struct sk_restore_image *i = &rs->images[image];
	uint64_t page = sk_page_bytes();

	assert(from < to && to <= i->bytes);
	from = from / page * page;
	(void)rs->sk->os->madvise(rs->sk->os, (char *)i->places[0].map + from,
				  sk_round_up(to, SK_PAGE) - from,
				  MADV_POPULATE_READ);
}

/* What the jobs [from, to) read, which lies in one image: from the first page
 * to the last that were not faulted in when they were sent to others. */
static void populate(const struct sk_restoring *rs, size_t from, size_t to)
{
	assert(from < to && to <= rs->n_jobs);
	while (from < to && sk_restore_job_is_verified(rs, &rs->jobs[from]))
		from++;
	while (from < to && sk_restore_job_is_verified(rs, &rs->jobs[to - 1]))
		to--;
	if (from < to)
		sk_restore_populate(rs, rs->pieces[rs->jobs[from].piece].image,
				    job_offset(rs, &rs->jobs[from]),
				    job_end(rs, &rs->jobs[to - 1]));
}

/* The first that failed stands for all. */
static void note(struct moving *m, int r, const struct sk_err *err)
{
	if (r < 0 && !__atomic_exchange_n(&m->failed, r, __ATOMIC_RELAXED))
		m->err = *err;
}

static void run_unit(struct sk_task *task, size_t unit)
{
	struct moving *m = (struct moving *)task;
	struct sk_restoring *rs = m->rs;
	size_t from = m->starts[unit], to = m->starts[unit + 1];
	const struct sk_restore_piece *p = &rs->pieces[rs->jobs[from].piece];
	uintptr_t map = (uintptr_t)rs->images[p->image].places[0].map;
	struct sk_restore_filling filling = { 0 };
	struct sk_err err = { 0 };
	int r;

	assert(unit < task->units && from < to);
	populate(rs, from, to);
	/* The rest of a bad image is not worth the time. */
	for (size_t i = from; i < to && !sk_bit(rs->bad, p->image); i++) {
		assert(rs->pieces[rs->jobs[i].piece].image == p->image);
		r = sk_restore_run_job(rs, &rs->jobs[i],
				       map + rs->pieces[rs->jobs[i].piece]
						     .entry->offset,
				       &filling, &err);
		note(m, r, &err);
	}
	note(m, sk_restore_filling_end(rs, &filling, 0, &err), &err);
}

/* Jobs that lie close to each other in one image go together. */
static bool fits(const struct sk_restoring *rs, size_t start, size_t i)
{
	const struct sk_restore_piece *a = &rs->pieces[rs->jobs[start].piece];
	const struct sk_restore_piece *b = &rs->pieces[rs->jobs[i].piece];

	assert(start <= i && i < rs->n_jobs);
	return i - start < UNIT_JOBS && a->image == b->image &&
	       job_end(rs, &rs->jobs[i]) - job_offset(rs, &rs->jobs[start]) <=
		       UNIT_BYTES;
}

static size_t cut_units(const struct sk_restoring *rs, size_t n,
			size_t *starts)
{
	size_t units = 0;

	assert(n <= rs->n_jobs);
	for (size_t i = 0; i < n; i++)
		if (!units || !fits(rs, starts[units - 1], i))
			starts[units++] = i;
	starts[units] = n;
	return units;
}

int sk_restore_from_memory(struct sk_restoring *rs, size_t n)
{
	struct moving m = { .task.run = run_unit, .rs = rs };
	_cleanup_free_ size_t *starts = calloc(n + 1, sizeof(*starts));

	if (!starts)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %zu jobs "
				  "of a restore", n);
	m.starts = starts;
	m.task.units = cut_units(rs, n, starts);
	sk_restore_run(rs, &m.task);
	if (m.failed < 0)
		rs->err = m.err;
	return m.failed;
}
