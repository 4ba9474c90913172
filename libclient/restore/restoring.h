/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One restore: what its files share, from the snapshots that there are to the
 * jobs that move bytes. Each file fills in its part, in this order:
 *
 *   restore.c   the call, attempt after attempt, its report
 *   options.c   what is asked for, and whether that makes sense
 *   begin.c     the agent, before ranks meet
 *   attempt.c   one snapshot that is tried
 *   sentence.c  what is said of a failure
 *   agree.c     what the ranks exchange, by whichever comm
 *   words.c     words that they say in turn, and sentences
 *   portions.c  what is long, some of it at a time
 *   trade.c     what they give to each other
 *   offer.c     snapshots that this rank's agent has
 *   choose.c    which snapshot
 *   limits.c    what all ask for, because one does
 *   ballot.c    what ranks offer, brought together
 *   nodes.c     which ranks share an agent
 *   images.c    its images: listed, set aside, let go
 *   others.c    those of other nodes
 *   open.c      what is known of one, and what opening it brings
 *   takes.c     which of its entries this rank may read
 *   sums.c      checksums of those
 *   tell.c      layouts that ranks tell each other
 *   whole.c     whether the images of all nodes are the whole
 *   keys.c      the names in it, and what is missing on either side
 *   names.c     what all ranks together lack
 *   neighbour.c in whose memory that is looked for, and who has it
 *   plan.c      pieces: which part of which image goes where
 *   shape.c     how a piece lies in its entry
 *   jobs.c      jobs, and which rank verifies what several read
 *   move.c      all of them, and what comes from other nodes
 *   job.c       one job
 *   gpu.c       what goes to GPUs
 *   buffers.c   what it passes through
 *   on-device.c what is on one already
 *   device-pass.c   its chunks on their way
 *   device-batch.c  those that are hashed together
 *   device-copy.c   an image's copy there
 *   memory.c    jobs out of memory
 *   disk.c      jobs out of files
 *   unlike.c    tensors that ranks of a node describe differently
 *   overlap.c   boxes of other nodes that several ranks want
 *   wants.c     what is wanted of other nodes: who asks, who reads
 *   staging.c   memory that the ranks of a node share meanwhile
 *   source.c    reading and packing what others want
 *   terms.c     what ranks know of each other before it is sent
 *   asked.c     what this rank is asked for, each once
 *   trees.c     to whom it goes, and who passes it on to whom
 *   branches.c  what each is told of that
 *   flow.c      what goes between two ranks, cut into rounds
 *   send.c      a round of it packed and handed to the comm
 *   receive.c   a round of it received, and who finds what where
 *   deliver.c   from there into tensors
 *   beside.c    what the pool does while ranks exchange a round
 *   remote.c    rounds: all of that at once, one after the other
 *   by-device.c what goes from device to device
 *   elsewhere.c and is not on a device everywhere
 *   relay.c     and on to other ranks of a node
 *   aside.c     and to where else this rank has it
 *   across.c    rounds of that
 *   room.h      and what follows all of it: memory for snapshots
 *   result.c    what moving came to: bad images, what nobody verified
 *   beyond.c    another call: the names that nobody here described
 */
#ifndef SK_LIBCLIENT_RESTORE_RESTORING_H
#define SK_LIBCLIENT_RESTORE_RESTORING_H

#include "base/table.h"
#include "comm/comm.h"
#include "conn/list.h"
#include "state/state.h"

/** Most snapshots that a rank offers. */
#define SK_OFFERS_MAX 64
/** Of what is saved anew each time that it is listed, no more is to be had. */
#define SK_LIST_AGAIN_MAX 8u
/** Bytes of missing names that a rank tells the others. */
#define SK_NAMES_MAX ((size_t)1 << 18)

/* ---- what there is ---- */

/** A snapshot that could be restored, as every rank can say it. */
struct sk_restore_offer {
	uint64_t run;
	uint64_t run_id;
	int64_t step;
	uint64_t digest;	/* struct sk_wire_snapshot's */
	int32_t world;
	uint32_t flags;		/* SK_OFFER_... */
};
/** Not complete, but all that the agent that has it knows of; complete to that
 * agent; on its disk; where the restore may look; this rank's own agent had
 * some of it. Who says more of one goes before others. */
#define SK_OFFER_LOCAL (1u << 0)
#define SK_OFFER_COMPLETE (1u << 1)
#define SK_OFFER_DURABLE (1u << 2)
#define SK_OFFER_THERE (1u << 3)
#define SK_OFFER_MINE (1u << 4)

/** The ranks of one agent, ascending. */
struct sk_restore_node {
	uint64_t agent;
	int32_t *ranks;
	int32_t n;
};

/** Places: this node's memory and disk, then those of other nodes. */
#define SK_PLACES 4u
#define SK_PLACE_OTHERS 2u	/* + 0 memory, + 1 disk */

/** An image that another node has. */
struct sk_restore_holder {
	uint32_t image;
	int32_t node;
	uint64_t id;		/* at that node's agent */
	uint32_t place;		/* there: 0 memory, 1 disk */
	bool there;
};

/** One that some node listed, and which. */
struct sk_restore_listed {
	struct sk_wire_part part;
	int32_t node;
	uint32_t reserved;
};

/** Where an image lies; by place. Of other nodes' only what is listed, there
 * and checked count. */
struct sk_restore_place {
	uint64_t id;		/* at the agent */
	bool listed;		/* and perhaps set aside */
	bool there;		/* and not */
	bool checked;		/* opened once: it is what was listed */
	bool asked;		/* to be opened with others; open.c */
	uint32_t bad_entry;	/* that was found damaged in it, and 1 */
	int fd;			/* of the data; -1: not open */
	void *map;		/* memory only; NULL: not mapped */
};

/** Checksums [from, to) of an image, which are there. */
struct sk_restore_run {
	uint32_t from, to;
	uint32_t at;		/* where the first is among the values */
};

/** Those of an image that are there; sums.h. */
struct sk_restore_sums {
	uint64_t *values;	/* NULL: it was never opened */
	struct sk_restore_run *runs;	/* ascending */
	uint32_t n_runs, room;
};

/** One image of the snapshot, wherever it lies. */
struct sk_restore_image {
	int32_t rank;
	uint32_t kind;			/* enum sk_image_kind */
	struct sk_digest digest;
	uint64_t description;		/* struct sk_layout's */
	uint64_t bytes;
	struct sk_layout *layout;	/* NULL: not known yet; of an outline
					 * the entries that takes.h says */
	struct sk_layout *whole;	/* where others were needed, or NULL */
	struct sk_restore_sums sums;
	int64_t *turns;			/* sk_layout_turns(); NULL: not asked */
	uint32_t next;			/* after the entry found last: plan.c */
	uint8_t *verified;		/* bit per (place, checksum), of
					 * this node's; NULL: none. sums.h */
	struct sk_restore_place places[SK_PLACES];
};

/** A name in the snapshot. */
struct sk_restore_key {
	const struct sk_item *item;	/* as one rank described it */
	bool mine;			/* the rank of our number */
	bool is_explicit;		/* some rank said its boxes itself */
	bool asked;			/* by this rank */
};

/** A description that some rank had, and one layout of it. */
struct sk_restore_description {
	uint64_t hash;
	const struct sk_layout *layout;	/* an image's, or the state's */
	bool indexed;		/* its names are keys */
	uint32_t *locals;	/* see takes.h; NULL: not asked for yet */
};

/* ---- what is to be done ---- */

/** A part of a target box and the entry that has it. */
struct sk_restore_piece {
	uint32_t local;		/* in state->locals */
	uint32_t part;		/* of that */
	uint32_t image;
	uint32_t place;
	bool relied;		/* others verify chunks of it */
	bool across;		/* of other nodes: from device to device */
	bool shared;		/* of other nodes: a neighbour wants it, too;
				 * overlap.c for boxes that ranks tell, else
				 * by-device.c */
	uint32_t holder;	/* of other nodes: who is asked; wants.c */
	const struct sk_entry *entry;
	void *flat;		/* where all of the entry goes, contiguous;
				 * NULL: it is a part, or lies otherwise */
	struct sk_box box;
};

/** Where an entry is to be had. */
struct sk_restore_source {
	const struct sk_entry *entry;
	uint32_t image;
	uint32_t place;
};

/** The part of a piece that lies in one checksummed chunk of its entry. */
struct sk_restore_job {
	uint32_t piece;
	uint32_t chunk;
	uint32_t sharers;	/* ranks of this node that read the chunk */
	bool verify;		/* by this rank, in this job */
	bool relied;		/* on another rank, which verifies it */
	bool good;		/* verified, and right */
	bool on_device;		/* delivered, from a copy there */
	bool hash_only;		/* and still to be verified in memory */
	bool doubted;		/* found wrong once: hashed with what is copied,
				 * whoever has verified it before */
	uint64_t share;		/* see jobs.c */
};

struct sk_restoring {
	struct sk_state *state;
	struct sk *sk;
	struct sk_comm comm;
	struct sk_agent_comm agent_comm;	/* its ctx, where it is ours */
	uint32_t flags;
	uint32_t timeout_ms;
	int64_t step;			/* SK_LATEST: the newest */
	uint64_t run;			/* 0: any */
	uint64_t run_id;		/* 0: any of that number */
	const char *const *names;
	size_t n_names;
	struct sk_report report;
	struct sk_err err;
	char *text;			/* malloc'ed; instead of err */
	char note[SK_ERR_MAX];		/* what its ballot has to say */
	int refused;			/* what was asked for: all hear it */
	struct sk_err refusal;		/* first, with this. 0: it was not */

	struct sk_conn conn;		/* its own: leases end with it */
	bool connected;
	struct sk_list_gaps gaps;	/* of the store, in the snapshots */
	char *incomplete;		/* what the newest one lacks, else
					 * the newest damaged one */
	bool damaged;			/* it lacks a damaged image */
	/* So many complete ones, and so many others. */
	struct sk_restore_offer offers[2 * SK_OFFERS_MAX];
	uint32_t n_offers;
	unsigned lists;			/* of snapshots, so far */
	bool cut;			/* the last one ended at its limit */
	bool older;			/* so did some rank's */
	struct sk_restore_offer past;	/* the last one that was tried */
	bool doubtful;			/* one that was passed over may be whole
					 * another time */
	bool gaps_anywhere;		/* some rank could not look */
	struct sk_restore_node *nodes;
	int32_t n_nodes, node;		/* this rank's */
	int32_t *node_of;		/* per rank */
	bool apart;			/* several nodes, and a comm for them */
	bool broken;			/* the comm failed */
	bool missed;			/* it did not, the last time, but this
					 * rank could not take what came */
	bool told;			/* all ranks have heard the last error;
					 * agree.h */
	bool device_on;			/* the comm's is begun */
	bool device_off;		/* it is done without */
	const int32_t *near_ranks;	/* of this rank's node */
	int32_t n_near;

	bool stale;			/* what was listed is not there */
	bool stale_anywhere;		/* some rank said so */
	unsigned listed_again;		/* for that, SK_LIST_AGAIN_MAX times */
	struct sk_restore_offer gone;	/* for which that was, the last time */
	bool moving;			/* and each time another one: what is
					 * older is not to take its place */

	/* of one attempt */
	struct sk_wire_part *listed;	/* all images, by rank */
	size_t n_listed;
	bool whole;			/* so an agent says, by the list */
	bool local;			/* it is not, but all that is here */
	/* Ranks of which no node has anything: what is asked for has to be
	 * found, for the rest of it may be lost. */
	int32_t n_lost, first_lost;
	bool follow;			/* layouts of all images follow from
					 * what was learnt: tell.c */
	struct sk_restore_listed *everywhere;	/* the same of all nodes */
	size_t n_everywhere;
	struct sk_restore_holder *holders;	/* by image */
	size_t n_holders;
	int32_t world;			/* of the snapshot */
	struct sk_restore_image *images;	/* by (rank, kind) */
	uint32_t n_images;
	uint32_t n_open;		/* descriptors of data */
	int32_t *memory_ranks;		/* that memory has images of, up */
	int32_t n_memory_ranks;
	struct sk_restore_description *descriptions;
	size_t n_descriptions, room_descriptions;
	struct sk_table by_description;	/* indices */
	const struct sk_restore_image *unlearnt; /* one whose names nobody
						  * can tell, or NULL */
	struct sk_restore_key *keys;
	uint32_t n_keys;
	size_t room_keys;
	struct sk_table key_table;	/* indices of keys; made late */
	char *missing;			/* names, each with its NUL */
	size_t missing_bytes, missing_room;
	bool missing_more;		/* than it has room for */
	struct sk_restore_piece *pieces;
	uint32_t n_pieces;
	size_t room_pieces;
	struct sk_restore_job *jobs;
	size_t n_jobs, room_jobs;
	uint8_t *bad;			/* bit per (place, image) */
	bool alone;			/* this rank verifies all it reads */
	bool trusting;			/* it read bytes of memory that it did
					 * not hash as they passed */
	bool moved;			/* this rank's bytes are back, as far as
					 * it knows */
	bool doubted;			/* what others were to verify */
	bool later;			/* images are opened when it is known
					 * which; open.c */
	uint32_t n_asked;
	struct sk_restore_gpus *gpus;	/* while jobs run; buffers.c */
	bool gpus_fine;			/* all pointers to them are good */

	/* of all attempts */
	bool *wanted;			/* per local */
	bool *boxes_told;		/* the same: ranks of the node tell
					 * each other what they want of it;
					 * overlap.c. NULL: not asked yet */
	uint8_t *touched;		/* per local: perhaps overwritten */
};

/* ---- small things ---- */

/** Where a chunk of an entry begins and ends, in bytes of the entry. */
static inline void sk_restore_chunk(const struct sk_entry *entry,
				    uint32_t chunk, uint64_t *ret_from,
				    uint64_t *ret_to)
{
	*ret_from = chunk * SK_SUM_CHUNK;
	*ret_to = *ret_from + SK_SUM_CHUNK;
	if (*ret_to > entry->bytes)
		*ret_to = entry->bytes;
}

/** Whose turn it is of @n. Multiples of the golden ratio spread evenly,
 * whatever the stride in which large entries stand among small ones. */
static inline uint64_t sk_restore_turn(uint64_t index, uint32_t n)
{
	return (uint64_t)((uint32_t)index * 2654435769u) * n >> 32;
}

/** Bytes that lie at @place came without being hashed as they did: they are
 * those of the image as long as the agent keeps its slot for us. Any thread. */
static inline void sk_restore_trust(struct sk_restoring *rs, uint32_t place)
{
	if (!place)
		__atomic_store_n(&rs->trusting, true, __ATOMIC_RELAXED);
}

/** Its tensor is perhaps overwritten from now on. Any thread. */
static inline void sk_restore_touch(const struct sk_restoring *rs,
				    uint32_t piece)
{
	__atomic_store_n(&rs->touched[rs->pieces[piece].local], 1,
			 __ATOMIC_RELAXED);
}

static inline bool sk_bit(const uint8_t *bits, uint64_t i)
{
	return __atomic_load_n(&bits[i / 8], __ATOMIC_RELAXED) >> i % 8 & 1;
}

static inline void sk_bit_set(uint8_t *bits, uint64_t i)
{
	__atomic_fetch_or(&bits[i / 8], (uint8_t)(1u << i % 8),
			  __ATOMIC_RELAXED);
}

#endif
