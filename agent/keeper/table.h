/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Table: what the agent knows of each slot, in a memory that outlives it.
 *
 * The agent alone writes it, and no client ever has it. A record stands there
 * twice; the older one is written, and is the newer one when its checksum is
 * right. So an agent that is killed at any instruction leaves a record as it
 * was, or as it was to be.
 *
 * Thread-safety: one thread at a time.
 */
#ifndef SK_AGENT_KEEPER_TABLE_H
#define SK_AGENT_KEEPER_TABLE_H

#include <stdbool.h>

#include "base/error.h"
#include "base/os.h"
#include "base/process.h"
#include "layout/layout.h"

#define TABLE_VERSION 2u
#define TABLE_RECORDS 65536u
#define TABLE_NONE UINT32_MAX

/* record.flags */
#define TABLE_PINNED (1u << 0)		/* its snapshot is */
#define TABLE_WANTED (1u << 1)		/* on disk, and is not yet */
#define TABLE_NO_WRITES (1u << 2)	/* sealed against them */
#define TABLE_BAD (1u << 3)		/* primary; the next bit: replica */
#define TABLE_PIN_STORED (1u << 5)	/* its snapshot's, on disk */
#define TABLE_BY_PIN (1u << 6)		/* TABLE_WANTED, by nothing else: agents
					 * that know none write it anyhow */
#define TABLE_INSTANCE (1u << 31)	/* of TABLE_DEVICE: of a GPU's */

/* TABLE_DEVICE: no slot, but memory of a GPU that stands for one. TABLE_RUN:
 * none either, but a run that ranks have been told of; agents that know none
 * drop it. */
enum table_use {
	TABLE_FREE = 1,
	TABLE_FILLING,
	TABLE_SEALED,
	TABLE_DEVICE,
	TABLE_RUN,
};

/** A slot: whose it is, and what is in it; of a run its number, id and world,
 * its job and user, and nothing else. No padding: the checksum is of all
 * bytes. */
struct table_record {
	uint64_t serial;	/* names its descriptors; 0: there is none */
	uint64_t state;		/* which registration: a later is higher */
	uint64_t run, run_id;
	int64_t step, last_step;
	uint64_t created_ns;
	uint64_t kind_bytes[2];
	uint64_t header_bytes[2];	/* of the state's layouts */
	uint64_t image_bytes[2];
	struct sk_digest digests[2];
	struct sk_digest content[2];	/* hash of an image's checksums */
	uint32_t uid;
	int32_t rank, world, numa_node;
	uint32_t use, flags, flush_every;
	/* Of TABLE_DEVICE: kind_bytes[0] are its bytes, step is -1 while
	 * nothing is sealed there alone, and flags are those that the slot was
	 * asked for with. */
	uint32_t n_extents;
	uint64_t stands_for;	/* serial of the slot that is being filled; with
				 * step -1 of that which holds the image that
				 * it has a copy of, whose step is last_step:
				 * agents that know no copies see nothing
				 * sealed there. 0: of none */
	union {
		uint8_t uuid[16];		/* of TABLE_DEVICE */
		struct sk_process process;	/* of a slot: whose it is;
						 * agents that know none leave
						 * zeros */
	};
	char job[SK_JOB_MAX + 8];
};

struct table {
	int fd;
	struct table_page *map;	/* NULL: there is no table */
	uint64_t next_serial;
	uint64_t taken[TABLE_RECORDS / 64];	/* a bit each */
};
#define TABLE_NULL { .fd = -1 }

/** How many records there may be: those below it. */
uint32_t table_used(const struct table *t);

/** An empty one. A negative errno comes with a sentence. */
int table_new(const struct sk_os *os, struct table *ret, struct sk_err *err);
/** Whether it is a table that this agent reads; as table_adopt(). */
int table_check(const struct sk_os *os, int fd, struct sk_err *err);
/** One that was kept; takes @fd over on success. -EPROTO: another version
 * wrote it, or none: the sentence says which. */
int table_adopt(const struct sk_os *os, int fd, struct table *ret,
		struct sk_err *err);
/** Harmless where there is none. The memory stays its keeper's. */
void table_close(const struct sk_os *os, struct table *t);

/** A place for a record, and a serial that none ever had. TABLE_NONE: there
 * is none. */
uint32_t table_take(struct table *t, uint64_t *ret_serial);
/** Takes effect as a whole, or not at all. */
void table_put(struct table *t, uint32_t at,
	       const struct table_record *record);
/** False: none is there. */
bool table_get(const struct table *t, uint32_t at,
	       struct table_record *ret_record);
/** The place is free. */
void table_drop(struct table *t, uint32_t at);
/** Agents that have had it, this one too: what a number begins with that is
 * never given twice. */
uint64_t table_lives(const struct table *t);

#endif
