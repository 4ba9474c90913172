/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pass: bytes that are read once, hashed, and stored where they are wanted.
 *
 * What is stored is what was hashed, whoever writes to the source meanwhile.
 * Where the CPU has the vectors, hash and streaming stores go line by line in
 * one loop, and cost what the copy alone does. Thread-safety: a pass by one
 * thread at a time.
 */
#ifndef SK_CACHE_BYTES_PASS_H
#define SK_CACHE_BYTES_PASS_H

#include <stdint.h>

#include "bytes/checksum.h"
#include "bytes/copy.h"
#include "bytes/lines.h"
#include "bytes/stream.h"

/** On the stack. */
struct sk_pass {
	/* private: */
	const struct sk_lines *lines;	/* NULL: as xxHash does it */
	uint64_t bytes, at;		/* of all, and how far */
	uint64_t lanes[SK_XXH3_LANES];
	uint64_t fill;			/* of a line that is not whole yet; of
					 * the last one, and what is behind */
	char rest[2 * SK_LINE];
	struct sk_xxh3_stream sum;	/* without lines */
};

/** A pass over @bytes bytes, of which sk_pass_end() has the XXH3-64. */
void sk_pass_begin(struct sk_pass *pass, uint64_t bytes);
/** The same by this kernel of sk_lines_at(), or by none. */
void sk_pass_begin_by(struct sk_pass *pass, const struct sk_lines *lines,
		      uint64_t bytes);
/** The next @n bytes. Stored at @dst unless that is NULL; no fence: nobody may
 * look before sk_stream_fence(). */
void sk_pass_take(struct sk_pass *pass, char *dst, const char *src,
		  uint64_t n);
/** When all were taken. */
uint64_t sk_pass_end(struct sk_pass *pass);

/**
 * Takes the bytes [@from, @to) of @copy in row-major order, which is to be the
 * order of its source, and stores them; what lies before and between its runs,
 * from @at on, is hashed only. Returns where it ended. For runs of at least
 * SK_PASS_RUN bytes: shorter ones are better held still and copied from there.
 */
const char *sk_pass_run(struct sk_pass *pass, const struct sk_copy *copy,
			uint64_t from, uint64_t to, const char *at);
#define SK_PASS_RUN 1024u

#endif
