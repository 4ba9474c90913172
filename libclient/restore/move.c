/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/move.h"

#include "restore/disk.h"
#include "restore/gpu.h"
#include "restore/memory.h"
#include "restore/open.h"

static int run_jobs(struct sk_restoring *rs, size_t n)
{
	int r = 0;

	if (n)
		r = sk_restore_from_memory(rs, n);
	if (r >= 0 && n < rs->n_jobs)
		r = sk_restore_from_disk(rs, n, rs->n_jobs);
	return r;
}

int sk_restore_move(struct sk_restoring *rs)
{
	size_t n = 0;
	int r = 0;

	for (size_t i = 0; i < rs->n_jobs && r >= 0; i++) {
		const struct sk_restore_piece *p =
			&rs->pieces[rs->jobs[i].piece];

		n += !p->place;
		r = sk_restore_reach(rs, p->image, p->place);
	}
	if (r < 0)
		return r;
	r = sk_restore_begin_gpus(rs);
	if (r >= 0)
		r = run_jobs(rs, n);
	return sk_restore_end_gpus(rs, r);
}
