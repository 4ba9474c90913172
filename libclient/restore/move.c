/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/move.h"

#include "restore/across.h"
#include "restore/buffers.h"
#include "restore/disk.h"
#include "restore/memory.h"
#include "restore/on-device.h"
#include "restore/open.h"
#include "restore/overlap.h"
#include "restore/remote.h"

/* Images whose files are open at once: a process has 1024 descriptors, often,
 * and a rank may want a tensor each of more images than that. */
#define FILES_MOST 256u

static const struct sk_restore_piece *piece_of(const struct sk_restoring *rs,
					       size_t job)
{
	return &rs->pieces[rs->jobs[job].piece];
}

static int reach(struct sk_restoring *rs, size_t from, size_t to)
{
	int r = 0;

	for (size_t i = from; i < to && r >= 0; i++)
		r = sk_restore_reach(rs, piece_of(rs, i)->image,
				     piece_of(rs, i)->place);
	return r;
}

/* Behind the jobs from @from on whose files may be open together. */
static size_t end_of_files(const struct sk_restoring *rs, size_t from)
{
	uint32_t files = 0;
	size_t i = from;

	for (; i < rs->n_jobs; i++) {
		files += i == from ||
			 piece_of(rs, i)->image != piece_of(rs, i - 1)->image;
		if (files > FILES_MOST)
			break;
	}
	return i;
}

static int run_files(struct sk_restoring *rs, size_t from)
{
	bool some = end_of_files(rs, from) < rs->n_jobs;
	int r = 0;

	for (size_t to; from < rs->n_jobs && r >= 0; from = to) {
		to = end_of_files(rs, from);
		r = reach(rs, from, to);
		if (r >= 0)
			r = sk_restore_from_disk(rs, from, to);
		for (size_t i = from; i < to && some; i++)
			sk_restore_leave(rs, piece_of(rs, i)->image);
	}
	return r;
}

static int run_jobs(struct sk_restoring *rs, size_t n)
{
	size_t memory = n;
	int r = 0;

	sk_restore_on_device(rs, &memory);
	if (memory)
		r = sk_restore_from_memory(rs, memory);
	return r < 0 ? r : run_files(rs, n);
}

/* What is not to be had is found before anything is overwritten, where not
 * too many files are read. */
static int reach_first(struct sk_restoring *rs, size_t *ret_memory)
{
	size_t n = 0;

	while (n < rs->n_jobs && !piece_of(rs, n)->place)
		n++;
	*ret_memory = n;
	return reach(rs, 0, end_of_files(rs, n));
}

/* An error of the first is everybody's. */
static int from_others(struct sk_restoring *rs, int r)
{
	rs->report.staging_bytes = 0;
	r = sk_restore_overlap(rs, r);
	if (r < 0)
		return r;
	if (!rs->device_off) {
		r = sk_restore_across(rs, r);
		if (r < 0)
			return r;
	}
	return sk_restore_remote(rs, r);
}

int sk_restore_move(struct sk_restoring *rs, int r)
{
	bool gpus = false;
	size_t n = 0;

	if (r >= 0)
		r = reach_first(rs, &n);
	if (r >= 0) {
		r = sk_restore_begin_gpus(rs);
		gpus = true;
	}
	if (rs->apart)
		r = from_others(rs, r);
	if (r >= 0)
		r = run_jobs(rs, n);
	return gpus ? sk_restore_end_gpus(rs, r) : r;
}
