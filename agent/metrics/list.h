/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of what the agent counts and measures: every name, help, type and
 * unit, once. STATS, the HTTP port, the file and cachectl print what stands
 * here.
 */
#ifndef SK_AGENT_METRICS_LIST_H
#define SK_AGENT_METRICS_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Those that are computed; what is merely counted has no name here. */
enum metric_id {
	METRIC_MEMORY_BUDGET,
	METRIC_MEMORY_USED,
	METRIC_MEMORY_FREE,
	METRIC_QUARANTINED,
	METRIC_DESCRIPTORS_BUDGET,
	METRIC_DESCRIPTORS_USED,
	METRIC_DESCRIPTORS_IN_FLIGHT,
	METRIC_LAYOUTS,
	METRIC_LAYOUTS_REMEMBERED,
	METRIC_DEVICE_BUDGET,
	METRIC_DEVICE_SLOTS,
	METRIC_KEEPER,
	METRIC_TURNS,
	METRIC_LONGEST_TURN,
	METRIC_VISITS,
	METRIC_LONGEST_TURN_VISITS,
	METRIC_UPTIME,
	METRIC_JOBS,
	METRIC_JOBS_UNTOLD,
	METRIC_RANKS,
	METRIC_SNAPSHOTS,
	METRIC_TO_FLUSH,
	METRIC_CLIENTS,
	METRIC_FLUSH_RATE,
	METRIC_DURABLE_AGE,
	METRIC_STORE,
	METRIC_COVERAGE_CHECKS,
	METRIC_STORE_FREE,
	METRIC_STORE_SIZE,
	METRIC_REFUSALS,
	METRIC_DEGRADED,
	METRIC_DEVICE_USED,
	METRIC_JOB_MEMORY,
	METRIC_JOB_DEVICE,
	METRIC_JOB_RANKS,
	METRIC_JOB_SNAPSHOTS,
	METRIC_JOB_TO_FLUSH,
	METRIC_JOB_STEP,
	METRIC_JOB_AGE,
	METRIC_COMPUTED
};

enum metric_of {
	METRIC_OF_AGENT,	/* one value */
	METRIC_OF_REASON,	/* one for each reason */
	METRIC_OF_STATE,	/* one for each degraded state */
	METRIC_OF_GPU,		/* one for each GPU that slots lie on */
	METRIC_OF_JOB,		/* one for each job */
	METRIC_OF_JOB_STATE,	/* for each job and sealed, complete, durable */
};

enum metric_unit { METRIC_PLAIN, METRIC_BYTES, METRIC_SECONDS,
		   METRIC_BYTES_PER_SECOND };

struct metric {
	const char *name;	/* behind "shardkeep_" */
	const char *help;
	enum metric_of of;
	enum metric_unit unit;
	bool counter;
	bool ns;		/* counted in nanoseconds, told in seconds */
	/* Where it is counted: in struct counts, or struct sk_cat_figures.
	 * Of the computed ones it is not looked at. */
	size_t offset;
};

extern const struct metric metrics[];
extern const size_t n_metrics;

#endif
