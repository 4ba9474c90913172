/* SPDX-License-Identifier: Apache-2.0 */
/* Words that the ranks exchange, so that all of them go the same way. */
#ifndef SK_LIBCLIENT_RESTORE_AGREE_H
#define SK_LIBCLIENT_RESTORE_AGREE_H

#include "restore/restoring.h"

struct sk_restore_ballot;

/** What a rank says after each phase. */
struct sk_restore_word {
	int32_t status;
	uint32_t bad;		/* images that it found bad */
	uint64_t agent;		/* that serves it */
	uint64_t owed;		/* see jobs.c */
	uint64_t missing_bytes;	/* of names */
	uint64_t flags;		/* allowed by one, allowed by all */
	uint64_t extra;
	uint32_t stale;		/* what its agent listed is not there */
	uint32_t whole;		/* its agent says that it has all */
	uint64_t reserved;
	uint32_t kind;		/* words.c: where this rank is */
	uint32_t reserved_;
};

/*
 * Ranks go in step by a rule: each collective step begins with a word of every
 * rank, for which there is room before the restore begins. So whatever fails on
 * one of them, and wherever, its next word says so, and the others hear it in
 * whichever step they come to next, with nothing in between that would wait for
 * it. Its sentence comes after it, of one rank alone and in the words' room, so
 * that a world's words stay small. An error that all have heard is said no
 * more: a step that is called with it is none, on all ranks alike.
 *
 * By the agent a rank may have given its word, and not take those of the others
 * (rs->missed): they may be hearing a sentence by then, which it hears as well
 * by saying its word again.
 */

/**
 * Says @word, whose status is filled in from @r, and what is stale from rs, and
 * hears the others'. An error of any rank is everybody's: that of the lowest
 * rank that has one is returned, its sentence in rs->err. *ret_words, where
 * wanted, are the caller's until the next step, one per rank, if it returns no
 * error.
 */
int sk_restore_agree(struct sk_restoring *rs, int r,
		     struct sk_restore_word *word,
		     struct sk_restore_word **ret_words,
		     uint32_t more_ms);
/** The same without a word: before this rank does anything else. */
int sk_restore_agreed(struct sk_restoring *rs, int r);
/** The end of what ranks do together, which came to @r: an error that is this
 * rank's alone so far is told, and is everybody's. Where all have the same,
 * each keeps its own sentence. */
int sk_restore_told(struct sk_restoring *rs, int r);
/** All hear what rank @of says, and gives at @mine, in @ret (SK_ERR_MAX bytes):
 * where all know that it has something to say, of what is @status to all. The
 * words of the step before are gone then. Fails, with a sentence, only where
 * the comm does. */
int sk_restore_hear(struct sk_restoring *rs, int32_t of, int status,
		    const char *mine, char *ret);
/** What is left to the others, beside their timeout, for what took this rank
 * @ns: they may have much more to do. */
uint32_t sk_restore_more_ms(uint64_t ns);
/** What comes next is new: errors from now on are told. */
void sk_restore_anew(struct sk_restoring *rs);
/** Every rank gives @bytes at @in; *ret_all is malloc'ed, world * bytes. @r is
 * what this rank has to say, and an error is everybody's. */
int sk_restore_gather(struct sk_restoring *rs, int r, const void *in,
		      size_t bytes, void *ret_all);
/** The comm's allgather: what all give comes to @all, of world * @bytes. It is
 * no step; steps are made of it. */
int sk_restore_give(struct sk_restoring *rs, const void *in, size_t bytes,
		    void *all, uint32_t more_ms);
/** Every rank's ballot into *ret_all, which stays until the next: the first
 * step, in which nobody has an error that it would not be told with. */
int sk_restore_cast(struct sk_restoring *rs,
		    const struct sk_restore_ballot *mine,
		    const struct sk_restore_ballot **ret_all,
		    uint32_t more_ms);
/** How many units of @bytes each rank may give at once, at least one, so that
 * what all of them give is a few MiB: the same on all ranks. */
size_t sk_restore_portion(const struct sk_restoring *rs, size_t bytes);

/** What a rank gives to another, or has got from it. */
struct sk_restore_parcel {
	void *data;
	uint64_t bytes;
};

/**
 * The comm's exchange. What fails is -ETIMEDOUT, with a sentence, and ends the
 * comm for this restore. No parts are no call.
 */
int sk_restore_exchange(struct sk_restoring *rs,
			const struct sk_comm_part *sends, size_t n_sends,
			const struct sk_comm_part *receives,
			size_t n_receives);
/** The same between devices, by the comm's device. */
int sk_restore_exchange_device(struct sk_restoring *rs,
			       const struct sk_comm_part *sends,
			       size_t n_sends,
			       const struct sk_comm_part *receives,
			       size_t n_receives);
/** Begins that; the same on all ranks. -ENODEV: it is done without; else as
 * sk_restore_exchange(). */
int sk_restore_begin_device(struct sk_restoring *rs);
/** The comm's broadcast; what fails, as of sk_restore_exchange(). */
int sk_restore_broadcast(struct sk_restoring *rs, int32_t root, void *data,
			 uint64_t bytes);
/**
 * Every rank gives @out[rank] to each other rank, none or any bytes, and gets
 * *ret_in, of as many parcels, which free() frees with all data. Collective;
 * @r is what this rank has to say, and an error is everybody's.
 */
int sk_restore_trade(struct sk_restoring *rs, int r,
		     const struct sk_restore_parcel *out,
		     struct sk_restore_parcel **ret_in);
/** The same, where this rank gives one thing to each other of its node. A comm
 * that has failed may still read it. */
int sk_restore_trade_near(struct sk_restoring *rs, int r, void *data,
			  uint64_t bytes, struct sk_restore_parcel **ret_in);

#endif
