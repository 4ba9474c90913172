/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several nodes want of one source it sends once: to the first of those
 * who fetch it, and each of them passes on what it has received to two others
 * at most, a round or two later. They stand in two trees, half of the bytes in
 * each, one in the order of the other turned round: who passes on in one is a
 * leaf of the other, so nobody sends more than it receives, and how long the
 * last one waits grows with the logarithm of how many they are.
 *
 * What a tree carries is the same for all who stand in it. Wants that the same
 * ranks ask for have a pair of trees; what one rank alone asks for goes to it
 * straight, which is a tree of one, and so does what would make a rank
 * stand in too many. Only the source knows who asks for what: it tells each
 * where it stands, and how much comes in a round.
 *
 * From device to device a fetcher passes on to ranks of its own node as well
 * (relay.h), and what the same ones have of each node lies together. So a tree
 * has its wants in the order of who else has them, in all nodes.
 */
#ifndef SK_LIBCLIENT_RESTORE_TREES_H
#define SK_LIBCLIENT_RESTORE_TREES_H

#include "restore/asked.h"

/** Rounds from the coming of a want to its going on. On the host it is copied
 * from window to window meanwhile; from device to device it goes on out of the
 * window that it came in. */
static inline uint64_t sk_tree_rounds(enum sk_way way)
{
	return way == SK_WAY_HOST ? 2 : 1;
}

struct sk_terms;

struct sk_tree {
	size_t first, n;	/* of ->wants */
	uint64_t bytes;
	const struct sk_ask *members;	/* of one of its wants, by rank */
	size_t n_members;
	bool turned;		/* the last of them is the first */
	uint64_t cap;		/* bytes of one round; 0: not said */
	uint64_t units;		/* parts of one round */
	uint64_t runs;		/* and for so many sets of ranks; flow.h */
};

/** Those of a source. */
struct sk_trees {
	struct sk_tree *v;
	size_t n;
	struct sk_want *wants;	/* those of one tree together; ->others: a
				 * number of those of all who stand in it */
	struct sk_sourced *sourced;
	size_t *asks;		/* per want the first of who asks for it */
	size_t n_wants;
};

/** Where one of them stands. */
struct sk_place_in_tree {
	int32_t parent;		/* -1: the source */
	int32_t children[2];	/* -1: none */
	uint32_t depth;		/* 0: gets it from the source */
};

/** From what is asked, which has to outlive it. Where some rank has something
 * that several ask for, also how much of each goes in a round. -ENOMEM; @ret is
 * to be freed in any case. */
int sk_trees_make(struct sk_restoring *rs, const struct sk_terms *terms,
		  struct sk_trees *ret);
void sk_trees_free(struct sk_trees *trees);

/** The rank that is member @i. */
int32_t sk_tree_member(const struct sk_tree *tree, size_t i);
struct sk_place_in_tree sk_tree_place(const struct sk_tree *tree, size_t i);

#endif
