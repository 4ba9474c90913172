/* SPDX-License-Identifier: Apache-2.0 */
/* Counters that only grow; metrics/list.c names them. */
#ifndef SK_AGENT_COUNTS_H
#define SK_AGENT_COUNTS_H

#include <stdint.h>

/** Why a slot or a registration was refused. */
enum refused {
	REFUSED_BUSY,		/* all slots hold what must stay */
	REFUSED_MEMORY,		/* the budget */
	REFUSED_DESCRIPTORS,
	REFUSED_SHARE,		/* of one user */
	REFUSED_COUNT
};

struct counts {
	uint64_t sealed, completed, durable;
	uint64_t device_seals;		/* stood on a GPU, whole */
	uint64_t device_drains;		/* of the dead, brought to memory */
	uint64_t device_reads;		/* copies on GPUs, opened */
	uint64_t device_lost;		/* of the dead, that was not */
	uint64_t device_refused;	/* device slots: the budget */
	uint64_t device_failed;		/* the GPU's worker */
	uint64_t bytes_sealed, bytes_flushed;
	uint64_t discarded_death, discarded_client, discarded_bad;
	uint64_t refused_busy, refused_memory;
	uint64_t refused[REFUSED_COUNT];	/* the same, by reason */
	uint64_t copied_ns, stalled_ns, flush_ns;
	uint64_t flush_errors, evictions, protocol_errors, refused_clients;
	uint64_t retired, retire_errors;
	uint64_t scrubbed, scrub_bad;
	uint64_t bad_reported, ignored_files, unreadable;
	uint64_t connections, deaths;
	uint64_t quarantines;		/* processes that outlived those */
	uint64_t revived, lost_images, unkept;
};

#endif
