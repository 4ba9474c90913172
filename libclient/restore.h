/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of one restore share.
 *
 *   restore.c         the call, its attempts, its report
 *   restore-agree.c   words that the ranks exchange
 *   restore-choose.c  which snapshot
 *   restore-images.c  its images: listed, opened, mapped
 *   restore-keys.c    the names in it, and what is missing on either side
 *   restore-names.c   what all ranks together lack
 *   restore-plan.c    pieces: which part of which image goes where
 *   restore-share.c   jobs, and which rank verifies what several read
 *   restore-move.c    jobs out of memory
 *   restore-disk.c    jobs out of files
 *   restore-result.c  what moving came to: bad images, what they gave
 */
#ifndef SK_LIBCLIENT_RESTORE_H
#define SK_LIBCLIENT_RESTORE_H

#include "copy.h"
#include "internal.h"
#include "plan.h"

/** Most snapshots that a rank offers. */
#define SK_OFFERS_MAX 64
/** Bytes of missing names that a rank tells the others. */
#define SK_NAMES_MAX ((size_t)1 << 18)

/* ---- what there is ---- */

/** A snapshot that could be restored, as every rank can say it. */
struct sk_restore_offer {
	uint64_t run;
	int64_t step;
	uint64_t digest;	/* of the primary images it has */
};

/** Where an image lies; index 0 memory, 1 disk. */
struct sk_restore_place {
	uint64_t id;		/* at the agent */
	bool there;		/* listed, and not set aside */
	int fd;			/* of the data; -1: not open */
	void *map;		/* memory only; NULL: not mapped */
};

/** One image of the snapshot, wherever it lies. */
struct sk_restore_image {
	int32_t rank;
	uint32_t kind;			/* enum sk_image_kind */
	struct sk_digest digest;
	uint64_t bytes;
	struct sk_layout *layout;	/* NULL: none of its places opened */
	uint64_t *sums;
	uint64_t first_sum;		/* among the sums of all images */
	struct sk_restore_place places[2];
};

/** A name in the snapshot. */
struct sk_restore_key {
	const struct sk_item *item;	/* as one rank described it */
	uint32_t image;			/* whose */
	bool is_explicit;		/* some rank said its boxes itself */
	bool asked;			/* by this rank */
	uint64_t hash;
};

/* ---- what is to be done ---- */

/** A part of a target box and the entry that has it. */
struct sk_restore_piece {
	uint32_t local;		/* in state->locals */
	uint32_t part;		/* of that */
	uint32_t image;
	uint32_t place;
	const struct sk_entry *entry;
	struct sk_box box;
};

/** The part of a piece that lies in one checksummed chunk of its entry. */
struct sk_restore_job {
	uint32_t piece;
	uint32_t chunk;
	uint32_t sharers;	/* ranks of this node that read the chunk */
	bool verify;		/* by this rank, in this job */
};

/** How a piece lies in its entry, in bytes; and its copy. */
struct sk_restore_shape {
	int ndim;
	int64_t entry[SK_MAX_DIMS];
	int64_t offset[SK_MAX_DIMS];
	int64_t size[SK_MAX_DIMS];
};

struct sk_restoring {
	struct sk_state *state;
	struct sk *sk;
	struct sk_comm comm;
	uint32_t flags;
	uint32_t timeout_ms;
	int64_t step;			/* SK_LATEST: the newest */
	uint64_t run;			/* 0: any */
	const char *const *names;
	size_t n_names;
	struct sk_report report;
	struct sk_err err;
	char *text;			/* malloc'ed; instead of err */

	struct sk_conn conn;		/* its own: leases end with it */
	bool connected;
	struct sk_wire_image *listed;	/* of all snapshots of the job */
	size_t n_listed;
	char *incomplete;		/* what the newest one lacks */
	struct sk_restore_offer offers[SK_OFFERS_MAX];
	uint32_t n_offers;
	bool *near;			/* per rank: served by this agent */

	/* of one attempt */
	int32_t world;			/* of the snapshot */
	struct sk_restore_image *images;	/* by (rank, kind) */
	uint32_t n_images;
	uint64_t n_sums;
	struct sk_restore_key *keys;
	uint32_t n_keys, room_keys;
	uint32_t *key_table;		/* index + 1; 0: empty */
	uint32_t key_mask;
	char *missing;			/* names, each with its NUL */
	size_t missing_bytes, missing_room;
	uint32_t n_missing;		/* of them errors unless allowed */
	struct sk_restore_piece *pieces;
	uint32_t n_pieces, room_pieces;
	struct sk_restore_job *jobs;
	size_t n_jobs, room_jobs;
	uint8_t *verified;		/* bit per (place, sum) */
	uint8_t *used;			/* the same: bytes of it were taken */
	uint8_t *bad;			/* bit per (place, image) */
	bool alone;			/* this rank verifies all it reads */

	/* of all attempts */
	bool *wanted;			/* per local */
	uint8_t *touched;		/* per local: perhaps overwritten */
};

/* ---- restore-agree.c ---- */

/** What a rank says after each phase. */
struct sk_restore_word {
	int32_t status;
	uint32_t again;		/* this phase is not over for it */
	uint64_t view;		/* the same images at the same agent */
	uint64_t bytes;		/* of its verification map */
	uint64_t missing_bytes;	/* of names */
	uint64_t flags;		/* allowed by one, allowed by all */
	uint64_t extra;
	char text[SK_ERR_MAX];
};

/** Every rank gives @bytes at @in; *ret_all is malloc'ed, world * bytes. */
int sk_restore_gather(struct sk_restoring *rs, const void *in, size_t bytes,
		      void *ret_all, uint32_t more_ms);
/**
 * Says @word (its status and text are filled in from @r and rs->err) and
 * hears the others'. An error of any rank is everybody's: that of the lowest
 * rank that has one is returned, its sentence in rs->err. *ret_words, where
 * wanted, is malloc'ed, one per rank, set if the result is not an error of
 * the exchange itself.
 */
int sk_restore_agree(struct sk_restoring *rs, int r,
		     struct sk_restore_word *word,
		     struct sk_restore_word **ret_words, uint32_t more_ms);

/* ---- restore-choose.c ---- */

/** Lists what there is and agrees on what may be tried, newest first:
 * rs->offers. r: what went wrong on this rank before. */
int sk_restore_choose(struct sk_restoring *rs, int r);

/* ---- restore-images.c ---- */

/** Opens all images of one offer. Images that are gone are left out. */
int sk_restore_images(struct sk_restoring *rs,
		      const struct sk_restore_offer *offer);
/** Has the data of a place at hand: open, and mapped if it is memory. */
int sk_restore_reach(struct sk_restoring *rs, uint32_t image, uint32_t place);
/** Sets a place aside and says so to the agent. */
void sk_restore_set_aside(struct sk_restoring *rs, uint32_t image,
			  uint32_t place, bool tell);
/** Lets go of everything of the attempt; mappings in the background. */
void sk_restore_release_images(struct sk_restoring *rs);
/** A number that differs where ranks see other images. */
uint64_t sk_restore_view(const struct sk_restoring *rs);

/* ---- restore-keys.c ---- */

/** Which locals the options ask for. */
int sk_restore_wanted(struct sk_restoring *rs);
int sk_restore_index(struct sk_restoring *rs);
struct sk_restore_key *sk_restore_key(const struct sk_restoring *rs,
				      enum sk_item_kind kind,
				      const char *name);
/** Compares each wanted local with the snapshot; fills rs->missing. */
int sk_restore_compare(struct sk_restoring *rs);
/* ---- restore-names.c ---- */

/** After all ranks have compared: agrees on what misses, and refuses. */
int sk_restore_agree_keys(struct sk_restoring *rs, int r);

/* ---- restore-plan.c ---- */

/** Pieces for all wanted locals. */
int sk_restore_plan(struct sk_restoring *rs);
/** Replaces all pieces by new ones for those whose place is gone, or whose
 * checksum nobody took. */
int sk_restore_replan(struct sk_restoring *rs, const uint8_t *unverified);
/** The place from which @rank takes the entry of @source; NULL: none. */
const struct sk_entry *sk_restore_pick(const struct sk_restoring *rs,
				       const struct sk_restore_key *key,
				       const struct sk_box *source,
				       const struct sk_holders *holders,
				       int32_t rank, uint32_t *ret_image,
				       uint32_t *ret_place);
/** The shape of @box of @item in its entry; whole entries are one run. */
void sk_restore_shape(const struct sk_item *item,
		      const struct sk_entry *entry, const struct sk_box *box,
		      struct sk_restore_shape *ret_shape);
/** Bytes of the shape that lie before byte @at of the entry. */
uint64_t sk_restore_before(const struct sk_restore_shape *shape, uint64_t at);
/** The copy of a piece; its src is to be set to entry base + *ret_skip. */
int sk_restore_copy(const struct sk_restoring *rs,
		    const struct sk_restore_piece *piece,
		    struct sk_copy *ret_copy, uint64_t *ret_skip,
		    struct sk_err *err);

/* ---- restore-share.c ---- */

/** Cuts the pieces into jobs, in the order in which they lie. */
int sk_restore_jobs(struct sk_restoring *rs);

/* ---- restore-move.c ---- */

static inline uint64_t sk_restore_sum_index(const struct sk_restoring *rs,
					    const struct sk_restore_piece *p,
					    uint32_t chunk)
{
	return p->place * rs->n_sums + rs->images[p->image].first_sum +
	       p->entry->first_sum + chunk;
}

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

/** Runs a job with the entry's byte 0 at @base (which need not be memory of
 * ours, only the chunk's bytes are touched). */
int sk_restore_run_job(struct sk_restoring *rs,
		       const struct sk_restore_job *job, uintptr_t base,
		       struct sk_err *err);
/** Runs all jobs. Bad places are marked, not errors. */
int sk_restore_move(struct sk_restoring *rs);

/* ---- restore-disk.c ---- */

/** Runs jobs [from, to), which are those from disk. */
int sk_restore_read(struct sk_restoring *rs, size_t from, size_t to);

/* ---- restore-result.c ---- */

/** Agrees on how moving went. *ret_again: sk_restore_redo() is next. */
int sk_restore_agree_moved(struct sk_restoring *rs, int r, bool *ret_again);
/** Moves again, from elsewhere, what came from bad images, and what nobody
 * verified. Nothing of that kind: 0. */
int sk_restore_redo(struct sk_restoring *rs);

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
