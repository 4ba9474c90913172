/* SPDX-License-Identifier: Apache-2.0 */
/* KEEP: what of a run stays on disk, as its ranks say. */
#include <inttypes.h>

#include "calls/call.h"
#include "catalogue/kept.h"

/* Snapshots that are looked at for what was written last: of those before,
 * flushes wait for none. */
#define AMONG 64u

static void say_written(const struct sk_cat_run *run,
			const struct sk_wire_keep *in,
			struct sk_wire_keep_reply *out)
{
	const struct sk_cat_snapshot *s;
	unsigned n = 0;

	*out = (struct sk_wire_keep_reply){ .written = -1 };
	sk_link_each(s, &run->job->snapshots, link) {
		run->job->catalogue->visits++;
		if (s->run < run->number || n++ == AMONG)
			break;
		if (s->run_id == run->id && sk_cat_written_here(s)) {
			out->written = s->step;
			break;
		}
	}
	s = in->steps[1] < 0 ? NULL :
	    sk_cat_snapshot_find(run->job, run->number, run->id, in->steps[1]);
	out->has_next = s && sk_cat_written_here(s);
}

int call_keep(struct call *c)
{
	const struct sk_wire_keep *in = &c->in->body.keep;
	struct sk_cat_state *state = NULL;
	struct sk_cat_run *run;
	struct sk_cat_job *job;
	int r = call_job(c, &in->id, &job);

	if (r < 0)
		return r;
	if (in->steps[0] < -1 || in->steps[1] < -1)
		return sk_err_set(&c->err, -EINVAL, "steps %" PRId64 " and %"
				  PRId64 " to keep cannot be", in->steps[0],
				  in->steps[1]);
	run = sk_cat_run_find(job, in->id.run, in->id.run_id);
	if (run)
		state = sk_cat_state_find(run, in->id.rank);
	if (!state || !state->living)
		return sk_err_set(&c->err, -ENOENT, "rank %" PRId32 " of job "
				  "\"%s\" is not registered in run %" PRIu64,
				  in->id.rank, in->id.job, in->id.run);
	sk_cat_run_keeps(run, in->steps);
	say_written(run, in, &c->out.body.keep_reply);
	return 0;
}
