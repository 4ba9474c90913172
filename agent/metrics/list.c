/* SPDX-License-Identifier: Apache-2.0 */
#include "metrics/list.h"

#include "base/util.h"
#include "catalogue/catalogue.h"
#include "counts.h"

/* One that is computed. */
#define GAUGE(o, u, n, h)						\
	{ .name = (n), .help = (h), .of = METRIC_OF_##o, .unit = METRIC_##u }
#define SUM(o, n, h)							\
	{ .name = (n "_total"), .help = (h), .of = METRIC_OF_##o,	\
	  .counter = true }
/* One that is counted: by the agent, and by job. */
#define COUNTER(field, n, h)						\
	{ .name = (n "_total"), .help = (h), .counter = true,		\
	  .offset = offsetof(struct counts, field) }
#define JOB_COUNTER(field, n, h)					\
	{ .name = ("job_" n "_total"), .help = (h), .counter = true,	\
	  .of = METRIC_OF_JOB,						\
	  .offset = offsetof(struct sk_cat_figures, field) }
/* The same, of nanoseconds. */
#define SECONDS(field, n, h)						\
	{ .name = (n "_seconds_total"), .help = (h), .counter = true,	\
	  .unit = METRIC_SECONDS, .ns = true,				\
	  .offset = offsetof(struct counts, field) }
#define JOB_SECONDS(field, n, h)					\
	{ .name = ("job_" n "_seconds_total"), .help = (h),		\
	  .counter = true, .of = METRIC_OF_JOB,				\
	  .unit = METRIC_SECONDS, .ns = true,				\
	  .offset = offsetof(struct sk_cat_figures, field) }

const struct metric metrics[] = {
	[METRIC_MEMORY_BUDGET] = GAUGE(AGENT, BYTES, "memory_budget_bytes",
		"memory that slots may take"),
	[METRIC_MEMORY_USED] = GAUGE(AGENT, BYTES, "memory_used_bytes",
		"memory that slots take"),
	[METRIC_MEMORY_FREE] = GAUGE(AGENT, BYTES, "memory_free_bytes",
		"memory that is left for slots"),
	[METRIC_QUARANTINED] = GAUGE(AGENT, BYTES, "quarantined_bytes",
		"of the memory that slots take, what processes may still "
		"write to that have closed their connection"),
	[METRIC_DESCRIPTORS_BUDGET] = GAUGE(AGENT, PLAIN,
		"descriptors_budget",
		"descriptors that slots may take; 0: any number"),
	[METRIC_DESCRIPTORS_USED] = GAUGE(AGENT, PLAIN, "descriptors_used",
		"descriptors that slots take"),
	[METRIC_DESCRIPTORS_IN_FLIGHT] = GAUGE(AGENT, PLAIN,
		"descriptors_in_flight",
		"descriptors that were sent to clients and may not be read "
		"yet"),
	[METRIC_LAYOUTS] = GAUGE(AGENT, BYTES, "layouts_bytes",
		"memory that descriptions of tensors take"),
	[METRIC_LAYOUTS_REMEMBERED] = GAUGE(AGENT, BYTES,
		"layouts_remembered_bytes",
		"the same, of ranks that may come back; some of them in use"),
	[METRIC_DEVICE_BUDGET] = GAUGE(AGENT, BYTES,
		"device_memory_budget_bytes",
		"memory of each GPU that device slots may take; 0: none are "
		"made"),
	[METRIC_DEVICE_SLOTS] = GAUGE(AGENT, PLAIN, "device_slots",
		"ranks that have a device slot"),
	[METRIC_KEEPER] = GAUGE(AGENT, PLAIN, "keeper",
		"who keeps what memory holds if this agent is killed; 0: "
		"nobody, 1: its parent, 2: systemd"),
	[METRIC_TURNS] = SUM(AGENT, "turns", "turns of the event loop"),
	[METRIC_LONGEST_TURN] = GAUGE(AGENT, SECONDS, "longest_turn_seconds",
		"the longest that a turn has kept all clients waiting"),
	[METRIC_VISITS] = SUM(AGENT, "visits",
		"snapshots, ranks and images that were looked at"),
	[METRIC_LONGEST_TURN_VISITS] = GAUGE(AGENT, PLAIN,
		"longest_turn_visits",
		"most snapshots, ranks and images that a turn has looked at"),
	[METRIC_UPTIME] = GAUGE(AGENT, SECONDS, "uptime_seconds",
		"time since this agent began"),
	[METRIC_JOBS] = GAUGE(AGENT, PLAIN, "jobs", "jobs known"),
	[METRIC_JOBS_UNTOLD] = GAUGE(AGENT, PLAIN, "jobs_untold",
		"jobs that have no figures of their own here, as there are "
		"too many"),
	[METRIC_RANKS] = GAUGE(AGENT, PLAIN, "ranks",
		"ranks registered and living"),
	[METRIC_SNAPSHOTS] = GAUGE(AGENT, PLAIN, "snapshots",
		"snapshots known; of a job the newest 64, and those in "
		"memory"),
	[METRIC_TO_FLUSH] = GAUGE(AGENT, PLAIN, "snapshots_to_flush",
		"snapshots that wait to be written"),
	[METRIC_CLIENTS] = GAUGE(AGENT, PLAIN, "clients",
		"connections open"),
	[METRIC_FLUSH_RATE] = GAUGE(AGENT, BYTES_PER_SECOND,
		"flush_bytes_per_second", "rate of the last flush"),
	[METRIC_DURABLE_AGE] = GAUGE(AGENT, SECONDS, "durable_age_seconds",
		"time since a snapshot became durable; -1: none yet"),
	[METRIC_STORE] = GAUGE(AGENT, PLAIN, "store",
		"0: no store, 1: a store, 2: one that a power loss empties"),
	[METRIC_COVERAGE_CHECKS] = SUM(AGENT, "coverage_checks",
		"proofs of completeness that were computed anew"),
	[METRIC_STORE_FREE] = GAUGE(AGENT, BYTES, "store_free_bytes",
		"room on the store's filesystem; 0: not known"),
	[METRIC_STORE_SIZE] = GAUGE(AGENT, BYTES, "store_size_bytes",
		"size of the store's filesystem; 0: not known"),
	[METRIC_DEGRADED] = GAUGE(STATE, PLAIN, "degraded",
		"1: this is not as it should be; cachectl status says more"),
	[METRIC_REFUSALS] = SUM(REASON, "refusals",
		"slots (busy) and registrations (memory, descriptors, share "
		"of a user) that were refused"),
	[METRIC_DEVICE_USED] = GAUGE(GPU, BYTES, "device_memory_used_bytes",
		"memory of the GPU that device slots take"),
	[METRIC_JOB_MEMORY] = GAUGE(JOB, BYTES, "job_memory_bytes",
		"memory that the job's slots take"),
	[METRIC_JOB_DEVICE] = GAUGE(JOB, BYTES, "job_device_memory_bytes",
		"memory of GPUs that the job's device slots take"),
	[METRIC_JOB_RANKS] = GAUGE(JOB, PLAIN, "job_ranks",
		"ranks of the job, registered and living"),
	[METRIC_JOB_SNAPSHOTS] = GAUGE(JOB, PLAIN, "job_snapshots",
		"snapshots of the job that are known"),
	[METRIC_JOB_TO_FLUSH] = GAUGE(JOB, PLAIN, "job_snapshots_to_flush",
		"snapshots of the job that wait to be written"),
	[METRIC_JOB_STEP] = GAUGE(JOB_STATE, PLAIN, "job_step",
		"step that was last sealed; newest one that is complete, "
		"durable"),
	[METRIC_JOB_AGE] = GAUGE(JOB_STATE, SECONDS, "job_age_seconds",
		"time since that was so; of before the agent began: since "
		"it was sealed"),
	COUNTER(sealed, "images_sealed", "images that ranks have sealed"),
	COUNTER(device_seals, "device_seals",
		"images that stood on a GPU before they were in memory"),
	COUNTER(device_drains, "device_drains",
		"images of dead ranks that were brought from a GPU"),
	COUNTER(device_reads, "device_reads",
		"copies of images on GPUs that restores have opened"),
	COUNTER(device_lost, "device_lost",
		"images of dead ranks on a GPU that could not be"),
	COUNTER(device_refused, "device_slots_refused",
		"device slots that the budget of a GPU had no room for"),
	COUNTER(device_failed, "device_slots_failed",
		"device slots that could not be made on a GPU"),
	COUNTER(completed, "snapshots_complete",
		"snapshots that became complete in memory"),
	COUNTER(durable, "snapshots_durable",
		"snapshots that became durable on disk"),
	COUNTER(bytes_sealed, "bytes_sealed",
		"bytes of slots that were sealed"),
	COUNTER(bytes_flushed, "bytes_flushed", "bytes written to the store"),
	SECONDS(copied_ns, "copy",
		"time that ranks copied for, as they say at the seal"),
	SECONDS(stalled_ns, "stall",
		"time that calls kept trainers, as their ranks say at the "
		"seal"),
	SECONDS(flush_ns, "flush", "time that flushes took"),
	COUNTER(flush_errors, "flush_errors",
		"flushes that failed; they are tried again"),
	COUNTER(discarded_death, "discarded_rank_death",
		"images lost because their rank ended while filling"),
	COUNTER(discarded_client, "discarded_client",
		"images that clients discarded"),
	COUNTER(discarded_bad, "discarded_bad_header",
		"images refused at sealing"),
	COUNTER(refused_busy, "slots_refused",
		"slots that were refused, as none was free"),
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
	COUNTER(quarantines, "quarantines",
		"connections of ranks that ended before their process"),
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
	JOB_COUNTER(sealed, "images_sealed",
		    "images that ranks of the job have sealed"),
	JOB_COUNTER(bytes_sealed, "bytes_sealed",
		    "bytes of the job's slots that were sealed"),
	JOB_SECONDS(copied_ns, "copy",
		    "time that ranks of the job copied for"),
	JOB_SECONDS(stalled_ns, "stall",
		    "time that calls kept the job's trainers"),
	JOB_COUNTER(completed, "snapshots_complete",
		    "snapshots of the job that became complete in memory"),
	JOB_COUNTER(durable, "snapshots_durable",
		    "snapshots of the job that became durable on disk"),
	JOB_COUNTER(bytes_flushed, "bytes_flushed",
		    "bytes of the job that were written to the store"),
	JOB_SECONDS(flush_ns, "flush", "time that flushes of the job took"),
	JOB_COUNTER(flush_errors, "flush_errors",
		    "flushes of the job that failed"),
	JOB_COUNTER(refused_slots, "slots_refused",
		    "slots of the job that were refused, as all were busy"),
	JOB_COUNTER(lost, "discarded_rank_death",
		    "images of the job lost because their rank ended"),
};
const size_t n_metrics = SK_ARRAY_SIZE(metrics);
