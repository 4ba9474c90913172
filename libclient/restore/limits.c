/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/limits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bytes/checksum.h"
#include "restore/ballot.h"

/* Where it may lie: of these a rank's is everybody's. Checksums are left out
 * only where all leave them out. */
#define PLACES (SK_RESTORE_MEMORY_ONLY | SK_RESTORE_DISK_ONLY)

struct sk_restore_limits sk_restore_limits(const struct sk_restoring *rs)
{
	const struct sk_job *job = &rs->state->job;
	struct sk_restore_limits mine = {
		.step = rs->step, .run = rs->run, .run_id = rs->run_id,
		.job = sk_xxh3(job->name, strlen(job->name)),
		.rank = job->rank, .world = job->world, .flags = rs->flags,
	};

	return mine;
}

/* ---- what can be no restore ---- */

/* All have seen that rank @i's is another one. */
static int refuse_job(struct sk_restoring *rs, int32_t i)
{
	const char *mine = rs->state->job.name;
	char first[SK_ERR_MAX], other[SK_ERR_MAX];
	int r = sk_restore_hear(rs, 0, -EINVAL, mine, first);

	if (r >= 0)
		r = sk_restore_hear(rs, i, -EINVAL, mine, other);
	if (r < 0)
		return r;
	return sk_err_set(&rs->err, -EINVAL, "rank 0 restores job %.80s and "
			  "rank %" PRId32 " job %.80s: a restore is of one",
			  first, i, other);
}

static int check_job(struct sk_restoring *rs,
		     const struct sk_restore_limits *first,
		     const struct sk_restore_limits *l, int32_t i)
{
	if (l->world != first->world)
		return sk_err_set(&rs->err, -EINVAL, "rank 0 counts %" PRId32
				  " ranks in the job and rank %" PRId32 " %"
				  PRId32, first->world, i, l->world);
	if (l->job != first->job)
		return refuse_job(rs, i);
	return 0;
}

int sk_restore_check_jobs(struct sk_restoring *rs,
			  const struct sk_restore_ballot *ballots)
{
	int r = 0;

	for (int32_t i = 0; i < rs->state->job.world && r >= 0; i++)
		r = check_job(rs, &ballots[0].limits, &ballots[i].limits, i);
	return r;
}

/* ---- what one asks for, all do ---- */

/* All ranks', so far, and the first rank that asked for each. */
struct shared {
	struct sk_restore_limits all;
	int32_t step_of, run_of, id_of, place_of;
};

static int share_step(struct sk_restoring *rs, struct shared *s,
		      const struct sk_restore_limits *l)
{
	if (l->step == SK_LATEST || l->step == s->all.step)
		return 0;
	if (s->all.step != SK_LATEST)
		return sk_err_set(&rs->err, -EINVAL, "rank %" PRId32 " asks "
				  "for step %" PRId64 " and rank %" PRId32
				  " for step %" PRId64 ": a restore is of one",
				  s->step_of, s->all.step, l->rank, l->step);
	s->all.step = l->step;
	s->step_of = l->rank;
	return 0;
}

static int share_run(struct sk_restoring *rs, struct shared *s,
		     const struct sk_restore_limits *l)
{
	if (l->run && s->all.run && l->run != s->all.run)
		return sk_err_set(&rs->err, -EINVAL, "rank %" PRId32 " asks "
				  "for run %" PRIu64 " and rank %" PRId32
				  " for run %" PRIu64 ": a restore is of one",
				  s->run_of, s->all.run, l->rank, l->run);
	if (l->run_id && s->all.run_id && l->run_id != s->all.run_id)
		return sk_err_set(&rs->err, -EINVAL, "rank %" PRId32 " asks "
				  "for the run of id %016" PRIx64 " and rank %"
				  PRId32 " for that of %016" PRIx64 ": a "
				  "restore is of one", s->id_of,
				  s->all.run_id, l->rank, l->run_id);
	if (l->run && !s->all.run) {
		s->all.run = l->run;
		s->run_of = l->rank;
	}
	if (l->run_id && !s->all.run_id) {
		s->all.run_id = l->run_id;
		s->id_of = l->rank;
	}
	return 0;
}

static const char *place_name(uint32_t flags)
{
	return flags & SK_RESTORE_MEMORY_ONLY ? "SK_RESTORE_MEMORY_ONLY" :
						"SK_RESTORE_DISK_ONLY";
}

static int share_flags(struct sk_restoring *rs, struct shared *s,
		       const struct sk_restore_limits *l)
{
	uint32_t place = l->flags & PLACES;

	s->all.flags &= l->flags | ~(uint32_t)SK_RESTORE_NO_VERIFY;
	if (!place)
		return 0;
	if (s->all.flags & PLACES & ~place)
		return sk_err_set(&rs->err, -EINVAL, "rank %" PRId32
				  " restores with %s and rank %" PRId32
				  " with %s: no place is left for both",
				  s->place_of, place_name(s->all.flags),
				  l->rank, place_name(place));
	if (!(s->all.flags & place))
		s->place_of = l->rank;
	s->all.flags |= place;
	return 0;
}

static bool offered_by(const struct shared *s,
		       const struct sk_restore_limits *l)
{
	return l->step == s->all.step && l->run == s->all.run &&
	       l->run_id == s->all.run_id &&
	       !((l->flags ^ s->all.flags) & PLACES);
}

static void become(struct sk_restoring *rs, const struct shared *s)
{
	const uint32_t shared = PLACES | SK_RESTORE_NO_VERIFY;

	rs->step = s->all.step;
	rs->run = s->all.run;
	rs->run_id = s->all.run_id;
	rs->flags = (rs->flags & ~shared) | (s->all.flags & shared);
}

int sk_restore_share_limits(struct sk_restoring *rs,
			    const struct sk_restore_ballot *ballots,
			    bool *ret_again)
{
	struct shared s = { .all = { .step = SK_LATEST,
				     .flags = SK_RESTORE_NO_VERIFY } };
	bool again = false;
	int r = 0;

	for (int32_t i = 0; i < rs->state->job.world && r >= 0; i++) {
		const struct sk_restore_limits *l = &ballots[i].limits;

		r = share_step(rs, &s, l);
		if (r >= 0)
			r = share_run(rs, &s, l);
		if (r >= 0)
			r = share_flags(rs, &s, l);
	}
	if (r < 0)
		return r;
	for (int32_t i = 0; i < rs->state->job.world; i++)
		again |= !offered_by(&s, &ballots[i].limits);
	become(rs, &s);
	*ret_again = again;
	return 0;
}
