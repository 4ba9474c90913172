/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/outcome.h"

#include <errno.h>
#include <inttypes.h>

#include "base/size.h"
#include "disk/faults.h"
#include "disk/leftover.h"
#include "disk/settle.h"
#include "memory/record.h"

#define SECOND_NS UINT64_C(1000000000)
#define RETRY_MOST_S 60u
#define RATE_LEAST ((uint64_t)8 << 20)	/* that tell how fast bytes go */

static void measure(struct agent *a, const struct flush *f)
{
	double seconds = (double)(agent_now(a) - f->started_ns) / 1e9;

	if (f->done && seconds > 0)
		a->flush_rate = (double)f->done / seconds;
	/* Of a small one the time is what any takes. */
	if (f->done >= RATE_LEAST && seconds > 0)
		a->flush_pace = a->flush_rate;
	f->snapshot->job->flush_took_ns = agent_now(a) - f->started_ns;
}

/* All is written, and the disk has not all of it: ranks that died had not saved
 * theirs, or some never had what arithmetic takes to be theirs. */
static void say_replicas(struct agent *a, struct sk_cat_snapshot *s)
{
	struct sk_err why = { 0 }, said = { 0 };

	(void)sk_cat_missing_on_disk(s, &why);
	(void)sk_err_set(&said, 0, "memory holds some parts as replicas only, "
			 "which do not go to disk%s%s", *why.text ? "; " : "",
			 why.text);
	sk_cat_set_failure(s, said.text);
	log_warning(a, "job \"%s\" run %" PRIu64 " step %" PRId64 " is not "
		    "whole on disk: %s", s->job->name, s->run, s->step,
		    said.text);
}

static bool is_newest_on_disk(const struct sk_cat_snapshot *s)
{
	const struct sk_cat_snapshot *newer;

	sk_link_each(newer, &s->job->snapshots, link) {
		s->job->catalogue->visits++;
		if (newer == s || sk_cat_on_disk(newer))
			return newer == s;
	}
	return false;
}

/* How far the job is, which an older step that was asked for is not. */
static void tell_figures(const struct agent *a, const struct sk_cat_snapshot *s)
{
	struct sk_cat_figures *f = &s->job->figures;

	f->durable++;
	if (!is_newest_on_disk(s))
		return;
	f->durable_ns = a->durable_ns;
	f->durable_step = s->step;
}

void outcome_durable(struct agent *a, const struct flush *f)
{
	struct sk_cat_snapshot *s = f->snapshot;
	char bytes[32];

	sk_cat_set_failure(s, NULL);
	s->failures = 0;
	s->no_room = s->store_failed = false;
	a->store_failed = false;
	faults_over(a, s->job);
	record_snapshot(a, s);
	measure(a, f);
	if (sk_cat_on_disk(s)) {
		a->counts.durable++;
		a->durable_ns = agent_now(a);
		tell_figures(a, s);
	} else {
		/* What is missing is not here to be written. */
		s->hopeless_on_disk = true;
		if (!sk_cat_local(s))
			say_replicas(a, s);
	}
	settle_step(a, s);
	log_info(a, "job \"%s\" run %" PRIu64 " step %" PRId64 " is %s (%s "
		 "written)", s->job->name, s->run, s->step,
		 sk_cat_on_disk(s) ? "durable" :
		 sk_cat_local(s) ? "durable as far as it is on this node" :
		 "written as far as it can be",
		 sk_size_format(f->done, bytes, sizeof(bytes)));
}

/* Or, false, what is said of the snapshot alone. */
static bool is_store_fault(const struct flush *f)
{
	return !f->bad && !f->lost && f->result != -ENOMEM &&
	       f->result != -ECANCELED;
}

void outcome_failed(struct agent *a, const struct flush *f)
{
	struct sk_cat_snapshot *s = f->snapshot;
	/* 1 s, 2 s, 4 s, ...: a disk that is full may be for a while. */
	uint64_t wait_s = s->failures < 6 ? UINT64_C(1) << s->failures :
					    RETRY_MOST_S;

	a->counts.flush_errors++;
	s->job->figures.flush_errors++;
	sk_cat_set_failure(s, f->err.text);
	s->store_failed = is_store_fault(f);
	s->failures++;
	s->failures_total++;
	/* Another try would be refused as well. */
	s->hopeless_on_disk = f->lost;
	s->retry_ns = agent_now(a) + wait_s * SECOND_NS;
	log_error(a, "job \"%s\" run %" PRIu64 " step %" PRId64 " could not "
		  "be flushed: %s", s->job->name, s->run, s->step, f->err.text);
	s->no_room = flush_found_no_room(f);
	if (s->store_failed && s->wanted)
		faults_met(a, s);
	else if (f->lost || !s->wanted)	/* any more */
		faults_no_more(a, s->job, s->step);
	if (s->no_room)
		leftover_clear(a);
}
