/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/move.h"

#include "restore/across.h"
#include "restore/disk.h"
#include "restore/gpu.h"
#include "restore/memory.h"
#include "restore/on-device.h"
#include "restore/open.h"
#include "restore/overlap.h"
#include "restore/remote.h"

static int run_jobs(struct sk_restoring *rs, size_t n)
{
	size_t memory = n;
	int r = 0;

	sk_restore_on_device(rs, &memory);
	if (memory)
		r = sk_restore_from_memory(rs, memory);
	if (r >= 0 && n < rs->n_jobs)
		r = sk_restore_from_disk(rs, n, rs->n_jobs);
	return r;
}

static int reach_all(struct sk_restoring *rs, size_t *ret_memory)
{
	int r = 0;

	*ret_memory = 0;
	for (size_t i = 0; i < rs->n_jobs && r >= 0; i++) {
		const struct sk_restore_piece *p =
			&rs->pieces[rs->jobs[i].piece];

		*ret_memory += !p->place;
		r = sk_restore_reach(rs, p->image, p->place);
	}
	return r;
}

/* An error of the first is everybody's. */
static int from_others(struct sk_restoring *rs, int r)
{
	rs->report.staging_bytes = 0;
	r = sk_restore_overlap(rs, r);
	if (r < 0)
		return r;
	if (rs->comm.device) {
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
		r = reach_all(rs, &n);
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
