/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts of many ranks at once, in brief: those whose ranks describe the same
 * tensors have names and shapes once, and of each what lies where, some 300
 * bytes for each tensor in place of a KiB. Where boxes are said one by one all
 * of it stays, for nothing tells what another rank's are.
 *
 * Not thread-safe.
 */
#ifndef SK_CACHECTL_BRIEFS_H
#define SK_CACHECTL_BRIEFS_H

#include "layout/layout.h"

/** The first that described so; whole. */
struct brief_first {
	struct sk_layout *layout;
	uint64_t locals;	/* a hash of the sizes of its local blobs */
};

/** Zeroes are none. */
struct briefs {
	struct brief_first *firsts;
	size_t n_firsts, room;
};

/**
 * Puts an outline of *layout, which is whole, in its place where another one
 * that was given before describes the same, local blobs of the same sizes among
 * it; it has the same entries, in the same order. One is computed at most,
 * however many were given. Errors: -ENOMEM, and *layout is as before.
 */
int briefs_add(struct briefs *b, struct sk_layout **layout);
void briefs_release(struct briefs *b);

#endif
