/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a source tells each fetcher of the trees that it stands in (trees.h):
 * who sends it what comes by that, in which order, to whom it passes it on, and
 * how much of it there is in a round.
 */
#ifndef SK_LIBCLIENT_RESTORE_BRANCHES_H
#define SK_LIBCLIENT_RESTORE_BRANCHES_H

#include "restore/trees.h"

/** As ranks say it, before the numbers of the wants among those asked. */
struct sk_branch_word {
	uint64_t cap, units, runs;	/* struct sk_tree's */
	uint32_t n;		/* wants */
	uint32_t number;	/* of the tree, among its source's */
	int32_t parent;		/* who sends it: the source, or a passer */
	int32_t children[2];	/* who is sent it; -1: nobody */
	uint32_t depth;		/* how many have passed it on before */
};

/** In the number of a want: others have it than have the one before, in some
 * node of the tree. */
#define SK_BRANCH_BEGINS (UINT32_C(1) << 31)

/** A tree as a fetcher knows it. */
struct sk_branch {
	struct sk_branch_word word;
	int32_t source;
	size_t first;		/* of ->fetched: word.n of them */
};

/** Collective, where terms->passed; @r is what this rank has to say. Brings
 * what this rank fetches in the order in which it comes, and says by ->others
 * where in it others begin to have it. An error may be this
 * rank's alone, to be told in the next step: -ENOMEM, -EPROTO; or the errors of
 * the comm. */
int sk_branches_tell(struct sk_restoring *rs, int r, struct sk_terms *terms);

#endif
