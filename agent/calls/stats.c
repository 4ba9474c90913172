/* SPDX-License-Identifier: Apache-2.0 */
/* STATS: counters and gauges, in Prometheus names. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "calls/call.h"
#include "memory/bytes.h"

#define MAX_STATS 64u

struct stats {
	struct sk_wire_stat *all;
	size_t n;
};

static void add(struct stats *s, bool counter, const char *name, double value,
		const char *help)
{
	struct sk_wire_stat *stat = &s->all[s->n];

	assert(s->n < MAX_STATS);
	s->n++;
	(void)snprintf(stat->name, sizeof(stat->name), "shardkeep_%s", name);
	(void)snprintf(stat->help, sizeof(stat->help), "%s", help);
	stat->kind = counter;
	stat->value = value;
}

/* A counter of struct counts. */
struct counter {
	size_t offset;
	const char *name, *help;
};

#define COUNTER(field, n, h) { offsetof(struct counts, field), n "_total", h }
static const struct counter counters[] = {
	COUNTER(sealed, "images_sealed", "images that ranks have sealed"),
	COUNTER(device_seals, "device_seals",
		"images that stood on a GPU before they were in memory"),
	COUNTER(device_drains, "device_drains",
		"images of dead ranks that were brought from a GPU"),
	COUNTER(device_lost, "device_lost",
		"images of dead ranks on a GPU that could not be"),
	COUNTER(completed, "snapshots_complete",
		"snapshots that became complete in memory"),
	COUNTER(durable, "snapshots_durable",
		"snapshots that became durable on disk"),
	COUNTER(bytes_sealed, "bytes_sealed",
		"bytes of slots that were sealed"),
	COUNTER(bytes_flushed, "bytes_flushed", "bytes written to the store"),
	COUNTER(flush_errors, "flush_errors",
		"flushes that failed; they are tried again"),
	COUNTER(discarded_death, "discarded_rank_death",
		"images lost because their rank ended while filling"),
	COUNTER(discarded_client, "discarded_client",
		"images that clients discarded"),
	COUNTER(discarded_bad, "discarded_bad_header",
		"images refused at sealing"),
	COUNTER(refused_busy, "slots_refused",
		"requests for a slot when none was free"),
	COUNTER(refused_memory, "registrations_refused_memory",
		"registrations that exceeded the memory budget"),
	COUNTER(retired, "steps_retired",
		"steps that retention has deleted from disk"),
	COUNTER(retire_errors, "retention_errors",
		"steps that retention could not delete"),
	COUNTER(scrubbed, "images_scrubbed",
		"images that were read and compared with their checksums"),
	COUNTER(scrub_bad, "scrub_bad_checksums",
		"images set aside because that found a bad checksum"),
	COUNTER(evictions, "evictions", "images evicted from memory"),
	COUNTER(bad_reported, "bad_checksums",
		"images set aside because a reader found a bad checksum"),
	COUNTER(ignored_files, "ignored_files",
		"files on the store that are foreign or damaged"),
	COUNTER(unreadable, "unreadable",
		"directories and files on the store that could not be read"),
	COUNTER(connections, "connections", "connections accepted"),
	COUNTER(refused_clients, "connections_refused",
		"connections refused over a quota"),
	COUNTER(deaths, "rank_deaths", "ranks that ended without notice"),
	COUNTER(revived, "images_revived",
		"images that outlived the agent that had sealed them"),
	COUNTER(lost_images, "images_not_revived",
		"images that an earlier agent had sealed and this one could "
		"not take up"),
	COUNTER(unkept, "slots_unkept",
		"slots that will not outlive this agent, though it has a "
		"keeper"),
	COUNTER(protocol_errors, "protocol_errors",
		"connections closed for messages that made no sense"),
};

static void add_memory(struct agent *a, struct stats *s)
{
	uint64_t budget = a->cat.budget, used = a->cat.used;

	add(s, false, "memory_budget_bytes", (double)budget,
	    "memory that slots may take");
	add(s, false, "memory_used_bytes", (double)used,
	    "memory that slots take");
	add(s, false, "memory_free_bytes",
	    (double)(used < budget ? budget - used : 0),
	    "memory that is left for slots");
}

static void add_fds(struct agent *a, struct stats *s)
{
	add(s, false, "descriptors_budget", (double)a->cat.budget_fds,
	    "descriptors that slots may take; 0: any number");
	add(s, false, "descriptors_used", (double)a->cat.used_fds,
	    "descriptors that slots take");
	add(s, false, "descriptors_in_flight", a->in_flight,
	    "descriptors that were sent to clients and may not be read yet");
}

static void add_layouts(struct agent *a, struct stats *s)
{
	add(s, false, "layouts_bytes", (double)a->cat.layout_bytes,
	    "memory that descriptions of tensors take");
	add(s, false, "layouts_remembered_bytes",
	    (double)sk_recall_bytes(a->recall),
	    "the same, of ranks that may come back; some of them in use");
}

static void add_keeper(struct agent *a, struct stats *s)
{
	add(s, false, "keeper", a->keeper.lost ? KEEPER_NONE : a->keeper.kind,
	    "who keeps what memory holds if this agent is killed; 0: nobody, "
	    "1: its parent, 2: systemd");
}

static void add_loop(struct agent *a, struct stats *s)
{
	add(s, true, "turns_total", (double)a->loop.turns,
	    "turns of the event loop");
	add(s, false, "longest_turn_seconds",
	    (double)a->loop.longest_ns / 1e9,
	    "the longest that a turn has kept all clients waiting");
	add(s, true, "visits_total", (double)a->cat.visits,
	    "snapshots, ranks and images that were looked at");
	add(s, false, "longest_turn_visits", (double)a->most_visits,
	    "most snapshots, ranks and images that a turn has looked at");
}

static void add_objects(struct agent *a, struct stats *s)
{
	unsigned jobs = 0, ranks = 0, waiting = 0;
	size_t snapshots = 0;
	struct sk_cat_snapshot *snapshot;
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	struct sk_cat_job *job;

	sk_link_each(job, &a->cat.jobs, link) {
		jobs++;
		sk_link_each(run, &job->runs, link)
		sk_link_each(state, &run->states, link)
			ranks += state->living;
		snapshots += job->n_snapshots;
		sk_link_each(snapshot, &job->live, live)
			waiting += sk_cat_flushable(snapshot);
	}
	add(s, false, "jobs", jobs, "jobs known");
	add(s, false, "ranks", ranks, "ranks registered and living");
	add(s, false, "snapshots", (double)snapshots,
	    "snapshots known; of a job the newest 64, and those in memory");
	add(s, false, "snapshots_to_flush", waiting,
	    "snapshots that wait to be written");
	add(s, false, "clients", a->n_sessions, "connections open");
}

static void add_flush(struct agent *a, struct stats *s)
{
	double age = a->durable_ns ?
		     (double)(agent_now(a) - a->durable_ns) / 1e9 : -1;

	add(s, false, "flush_bytes_per_second", a->flush_rate,
	    "rate of the last flush");
	add(s, false, "durable_age_seconds", age,
	    "time since a snapshot became durable; -1: none yet");
	add(s, false, "store", !a->store ? 0 : a->store_volatile ? 2 : 1,
	    "0: no store, 1: a store, 2: one that a power loss empties");
	add(s, true, "coverage_checks_total", (double)a->cat.coverage_checks,
	    "proofs of completeness that were computed anew");
}

int call_stats(struct call *c)
{
	struct stats s = { .all = calloc(MAX_STATS, sizeof(*s.all)) };
	struct agent *a = c->agent;
	int fd;

	if (!s.all)
		return sk_err_set(&c->err, -ENOMEM, "no memory for a reply");
	add_memory(a, &s);
	add_fds(a, &s);
	add_layouts(a, &s);
	add_keeper(a, &s);
	add_loop(a, &s);
	add_objects(a, &s);
	add_flush(a, &s);
	for (size_t i = 0; i < SK_ARRAY_SIZE(counters); i++) {
		uint64_t value;

		memcpy(&value, (char *)&a->counts + counters[i].offset,
		       sizeof(value));
		add(&s, true, counters[i].name, (double)value,
		    counters[i].help);
	}
	fd = bytes_fd(a->os, "shardkeep:stats", s.all, s.n * sizeof(*s.all),
		      &c->err);
	free(s.all);
	if (fd < 0)
		return fd;
	c->out.body.list_reply.n = s.n;
	c->out.body.list_reply.record_bytes = sizeof(struct sk_wire_stat);
	c->out_fds[0] = fd;
	c->n_out = 1;
	return 0;
}
