/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words that ranks say in turn, and the sentences that follow some of them.
 *
 * All that is said is of one length, and says what it is, for a rank may have
 * given its word and not be able to take those of the others, by the agent's
 * comm: then it does not know whether they go on, or one has failed and they
 * hear its sentence. It says its word again, and sees which by what they give.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "restore/agree.h"
#include "restore/ballot.h"

enum kind {
	ON_ITS_WAY = 0,		/* a word between others */
	AT_THE_END = 1,		/* the last of what ranks do together */
	AGREED = 2,		/* and so were all */
	SENTENCE = 3,		/* a portion of one */
};

/* In the place of a word. */
struct portion {
	int32_t status;		/* what all have heard */
	int32_t of;		/* whose sentence it is */
	char text[56];
	uint32_t kind;		/* where a word has it */
	uint32_t at;
};

#define TEXT sizeof(((struct portion *)NULL)->text)
#define PORTIONS ((SK_ERR_MAX + TEXT - 1) / TEXT)
/* Of what was missed, before a rank goes on without. */
#define AGAIN_MOST 64

static_assert(sizeof(struct portion) == sizeof(struct sk_restore_word),
	      "one is taken for the other");
static_assert(offsetof(struct portion, kind) ==
	      offsetof(struct sk_restore_word, kind), "and told apart");

/* Room that was there before: first for what is said in each step. */
static struct sk_restore_word *words_of(const struct sk_restoring *rs)
{
	return rs->state->said;
}

static const struct portion *portions_of(const struct sk_restoring *rs)
{
	return rs->state->said;
}

static struct sk_restore_ballot *ballots_of(const struct sk_restoring *rs)
{
	static_assert(sizeof(struct sk_restore_word) +
		      sizeof(struct sk_restore_ballot) <= SK_SAID_BYTES,
		      "a state has room for them");
	return (void *)(words_of(rs) + rs->state->job.world);
}

/* ---- sentences ---- */

struct sentence {
	int32_t of;
	int status;
	const char *mine;
	char *ret;		/* as far as it was heard; SK_ERR_MAX bytes */
};

static void append(const struct sentence *s, const char *text, size_t n)
{
	size_t length = strlen(s->ret);

	(void)snprintf(s->ret + length, SK_ERR_MAX - length, "%.*s", (int)n,
		       text);
}

/* What all gave: where the next portion begins. Whose sentence it is may not
 * have heard that; it has by now, and all wait for it. */
static size_t take_portion(const struct sk_restoring *rs,
			   const struct sentence *s, size_t at)
{
	const struct portion *p = &portions_of(rs)[s->of];

	if (p->kind != SENTENCE)
		return at;
	append(s, p->text, TEXT);
	return at + TEXT;
}

/* Cannot this rank take it, the others can, and wait for the next. */
static size_t miss_portion(const struct sentence *s, size_t at)
{
	append(s, "...", 3);
	return at + TEXT;
}

static int hear_from(struct sk_restoring *rs, const struct sentence *s,
		     size_t at)
{
	size_t length = strnlen(s->mine, SK_ERR_MAX - 1), rounds = 0;

	while (at < SK_ERR_MAX && rounds++ < PORTIONS + AGAIN_MOST) {
		struct portion mine = { .status = s->status, .of = s->of,
					.kind = SENTENCE,
					.at = (uint32_t)at };
		size_t n = at < length ? length - at : 0;
		int r;

		memcpy(mine.text, s->mine + at, n < TEXT ? n : TEXT);
		r = sk_restore_give(rs, &mine, sizeof(mine), words_of(rs), 0);
		if (r < 0 && rs->broken)
			return r;
		at = r < 0 ? miss_portion(s, at) : take_portion(rs, s, at);
	}
	return 0;
}

int sk_restore_hear(struct sk_restoring *rs, int32_t of, int status,
		    const char *mine, char *ret)
{
	char said[SK_ERR_MAX];

	(void)snprintf(said, sizeof(said), "%s", mine);
	ret[0] = '\0';
	return hear_from(rs, &(struct sentence){ of, status, said, ret }, 0);
}

static int heard(struct sk_restoring *rs, const struct sentence *s)
{
	return sk_err_set(&rs->err, s->status, "rank %d: %.*s", s->of,
			  SK_ERR_MAX - 1, s->ret);
}

/* The status of all: that of rank @i, whose sentence all hear. */
static int hear_error(struct sk_restoring *rs, int32_t i, int status)
{
	char text[SK_ERR_MAX];
	int r = sk_restore_hear(rs, i, status, rs->err.text, text);

	if (r < 0)
		return r;
	if (rs->state->job.world == 1)
		return status;
	return heard(rs, &(struct sentence){ i, status, NULL, text });
}

/* One that the others hear already, by their portion @p. */
static int hear_rest(struct sk_restoring *rs, const struct portion *p)
{
	char text[SK_ERR_MAX] = "", said[SK_ERR_MAX];
	const struct sentence s = { p->of, p->status, said, text };
	size_t at = p->at;
	int r;

	if (s.of < 0 || s.of >= rs->state->job.world || s.status >= 0 ||
	    at >= SK_ERR_MAX || at % TEXT)
		return sk_err_set(&rs->err, -EPROTO, "what the comm brought "
				  "is nothing that a rank says");
	(void)snprintf(said, sizeof(said), "%s", rs->err.text);
	if (at)
		append(&s, "...", 3);
	r = hear_from(rs, &s, take_portion(rs, &s, at));
	rs->told = true;
	return r < 0 ? r : heard(rs, &s);
}

/* ---- words ---- */

/* Of the first rank that has one. */
static int32_t first_failed(const struct sk_restoring *rs)
{
	int32_t i = 0;

	while (i < rs->state->job.world && words_of(rs)[i].status >= 0)
		i++;
	return i;
}

/* A portion that another rank gave; NULL: all gave words. */
static const struct portion *find_portion(const struct sk_restoring *rs)
{
	for (int32_t i = 0; i < rs->state->job.world; i++)
		if (portions_of(rs)[i].kind == SENTENCE)
			return &portions_of(rs)[i];
	return NULL;
}

/* Of what this rank could not take nothing is left but that; an error of its
 * own the others have heard, and it stays. */
static int miss(struct sk_restoring *rs, int r, int missed,
		const struct sk_err *mine)
{
	if (r >= 0 || !rs->missed)
		return missed;
	rs->err = *mine;
	return r;
}

static int exchange_words(struct sk_restoring *rs, int r,
			  struct sk_restore_word *word, uint32_t more_ms)
{
	struct sk_restore_word *words = words_of(rs);
	const struct sk_err mine = rs->err;
	const struct portion *portion;
	int given;

	word->status = r < 0 ? r : 0;
	word->stale = rs->stale;
	given = sk_restore_give(rs, word, sizeof(*word), words, more_ms);
	if (given < 0)
		return miss(rs, r, given, &mine);
	portion = find_portion(rs);
	if (portion)
		return hear_rest(rs, portion);
	for (int32_t i = 0; i < rs->state->job.world; i++)
		rs->stale_anywhere |= words[i].stale;
	return 0;
}

int sk_restore_agree(struct sk_restoring *rs, int r,
		     struct sk_restore_word *word,
		     struct sk_restore_word **ret_words,
		     uint32_t more_ms)
{
	int32_t failed;

	if (r < 0 && rs->told)
		return r;
	r = exchange_words(rs, r, word, more_ms);
	if (r < 0)
		return r;
	failed = first_failed(rs);
	rs->told = failed < rs->state->job.world;
	if (rs->told)
		return hear_error(rs, failed, words_of(rs)[failed].status);
	if (ret_words)
		*ret_words = words_of(rs);
	return 0;
}

int sk_restore_agreed(struct sk_restoring *rs, int r)
{
	struct sk_restore_word word = { 0 };

	return sk_restore_agree(rs, r, &word, NULL, 0);
}

/* ---- the last one ---- */

static bool any_is(const struct sk_restoring *rs, uint32_t kind)
{
	bool any = false;

	for (int32_t i = 0; i < rs->state->job.world; i++)
		any |= words_of(rs)[i].kind == kind;
	return any;
}

/* All are at the end, with the same; one that still goes on would wait for a
 * sentence. */
static bool are_alike(const struct sk_restoring *rs, int r)
{
	bool alike = !any_is(rs, ON_ITS_WAY);

	for (int32_t i = 0; i < rs->state->job.world; i++)
		alike &= words_of(rs)[i].status == r;
	return alike;
}

/* Nothing follows by which one that could not take the words would learn that
 * all are alike: as long as one says that it is at the end still, all say so
 * once more. Only by the agent's comm may that be. */
static int confirm(struct sk_restoring *rs, int r)
{
	struct sk_restore_word word = { .kind = AGREED };
	const struct sk_err mine = rs->err;
	int given, rounds = 0;

	if (rs->comm.ctx != &rs->agent_comm)
		return r;
	do
		given = exchange_words(rs, r, &word, 0);
	while (given >= 0 && any_is(rs, AT_THE_END) && rounds++ < AGAIN_MOST);
	rs->err = mine;
	return r;
}

int sk_restore_told(struct sk_restoring *rs, int r)
{
	struct sk_restore_word word = { .kind = AT_THE_END };
	int rounds = 0, all;
	int32_t failed;

	if (r >= 0 || rs->told || rs->broken)
		return r;
	do
		all = exchange_words(rs, r, &word, 0);
	while (all < 0 && rs->missed && !rs->told && rounds++ < AGAIN_MOST);
	if (all < 0)
		return all;
	rs->told = true;
	if (are_alike(rs, r))
		return confirm(rs, r);
	failed = first_failed(rs);
	return hear_error(rs, failed, words_of(rs)[failed].status);
}

void sk_restore_anew(struct sk_restoring *rs)
{
	rs->told = false;
}

uint32_t sk_restore_more_ms(uint64_t ns)
{
	uint64_t ms = ns / 1000000 * 8;

	return ms > 3000000 ? 3000000 : (uint32_t)ms;
}

int sk_restore_cast(struct sk_restoring *rs,
		    const struct sk_restore_ballot *mine,
		    const struct sk_restore_ballot **ret_all,
		    uint32_t more_ms)
{
	const struct sk_err error = rs->err;
	int r = sk_restore_give(rs, mine, sizeof(*mine), ballots_of(rs),
				more_ms);

	*ret_all = ballots_of(rs);
	return r < 0 ? miss(rs, mine->status, r, &error) : 0;
}
