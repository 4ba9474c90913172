/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/agree.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"

/* A comm that loses what it is given would set ranks at odds; what relies on
 * one's own part of the whole may then rely on it. */
static int check_own(struct sk_restoring *rs, const void *in, size_t bytes,
		     const char *all)
{
	if (!memcmp(all + (size_t)rs->state->job.rank * bytes, in, bytes))
		return 0;
	return sk_err_set(&rs->err, -EPROTO, "the comm's allgather did not "
			  "bring rank %d back what it gave (%zu bytes); it "
			  "must put the part of rank N at N times the bytes",
			  rs->state->job.rank, bytes);
}

int sk_restore_gather(struct sk_restoring *rs, const void *in, size_t bytes,
		      void *ret_all, uint32_t more_ms)
{
	size_t world = (size_t)rs->state->job.world;
	uint64_t began = rs->sk->os->now_ns(rs->sk->os);
	uint64_t all_bytes;
	char *all;
	int r = 0;

	assert(world && rs->state->job.rank < rs->state->job.world);
	if (!sk_mul_u64(world, bytes, &all_bytes))
		return sk_err_set(&rs->err, -EOVERFLOW, "%zu ranks cannot "
				  "exchange %zu bytes each", world, bytes);
	all = malloc(all_bytes ? all_bytes : 1);
	if (!all)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for what %zu "
				  "ranks say (%" PRIu64 " bytes)", world,
				  all_bytes);
	if (world == 1)
		memcpy(all, in, bytes);
	else
		r = rs->comm.allgather(rs->comm.ctx, in, bytes, all,
				       rs->timeout_ms + more_ms);
	rs->report.agree_ns += rs->sk->os->now_ns(rs->sk->os) - began;
	if (r < 0) {
		free(all);
		return sk_err_errno(&rs->err, r, "rank %d cannot agree with "
				    "the %zu other ranks of job %s on a "
				    "restore; every rank must call it",
				    rs->state->job.rank, world - 1,
				    rs->state->job.name);
	}
	r = check_own(rs, in, bytes, all);
	if (r < 0) {
		free(all);
		return r;
	}
	*(void **)ret_all = all;
	return 0;
}

/* The status of all: that of the first rank which has one. */
static int heard(struct sk_restoring *rs, const struct sk_restore_word *words)
{
	assert(rs->state->job.world > 0);
	for (int32_t i = 0; i < rs->state->job.world; i++) {
		const struct sk_restore_word *w = &words[i];
		char text[SK_ERR_MAX];

		if (w->status >= 0)
			continue;
		(void)snprintf(text, sizeof(text), "%.*s", SK_ERR_MAX - 1,
			       w->text);
		if (rs->state->job.world == 1)
			return sk_err_set(&rs->err, w->status, "%s", text);
		return sk_err_set(&rs->err, w->status, "rank %d: %s", i, text);
	}
	return 0;
}

int sk_restore_agree(struct sk_restoring *rs, int r,
		     struct sk_restore_word *word,
		     struct sk_restore_word **ret_words, uint32_t more_ms)
{
	_cleanup_free_ struct sk_restore_word *words = NULL;

	word->status = r < 0 ? r : 0;
	if (r < 0)
		memcpy(word->text, rs->err.text, sizeof(word->text));
	r = sk_restore_gather(rs, word, sizeof(*word), &words, more_ms);
	if (r < 0)
		return r;
	r = heard(rs, words);
	if (ret_words)
		*ret_words = sk_take_ptr(words);
	return r;
}
