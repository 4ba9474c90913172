/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a fetcher passes on, and what those it is for make of what it has said:
 * message by message the same, and every byte of a want once, whatever the
 * rounds cut. The comm is a script: rank 0 is the fetcher, and what it says is
 * kept for the others, who are played one after the other.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "base/util.h"
#include "restore/relay.h"
#include "support/random.h"

#define RANKS 5
#define FLOWS 4
#define WANTS 60	/* of a flow */
#define ALL (FLOWS * WANTS)
#define CASES 300

static uint64_t random_state;

static uint64_t below(uint64_t n)
{
	return draw(&random_state, n);
}

/* ---- ranks, and how they talk ---- */

struct player {
	struct sk sk;
	struct sk_state state;
	char room[RANKS * SK_SAID_BYTES] __attribute__((aligned(8)));
	struct sk_restoring rs;
	struct sk_terms terms;
	struct sk_term said[RANKS];
	struct sk_relaying relaying;
	/* Of the others: */
	struct sk_want mine[ALL];
	uint32_t pieces[ALL];
	size_t first_of[RANKS + 1];
	uint64_t got[ALL];		/* bytes of each, so far */
	char window[FLOWS << 12];
	struct sk_comm_part *receives;
	size_t n_receives;
};

/* How long that is, as trade.c has ranks say it. */
struct said {
	uint64_t bytes;
	int32_t rank;
	uint32_t reserved;
};

struct scene {
	int32_t near[RANKS];
	struct sk_want wants[ALL];
	uint32_t has[ALL];		/* bit per rank */
	struct sk_flow in[FLOWS];
	struct sk_flows flows;
	struct sk_consumer consumers[ALL * RANKS];
	struct sk_flow_part landed[ALL + 1];
	struct sk_comm_part sends[ALL * RANKS + 1];
	char window[FLOWS << 12];
	struct player players[RANKS];
	/* What the fetcher has said to each: */
	struct sk_relay_word words[RANKS][ALL];
	struct said said[RANKS];
	uint64_t n_said;
	int32_t rank;			/* who plays */
};

static int allgather(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	struct scene *s = ctx;
	void *kept = NULL;

	(void)timeout_ms;
	memset(out, 0, RANKS * bytes);
	memcpy((char *)out + (size_t)s->rank * bytes, in, bytes);
	if (bytes == sizeof(s->n_said))
		kept = &s->n_said;
	else if (bytes == s->n_said * sizeof(s->said[0]))
		kept = s->said;
	if (kept && s->rank)
		memcpy(out, kept, bytes);
	else if (kept)
		memcpy(kept, in, bytes);
	return 0;
}

static int exchange(void *ctx, const struct sk_comm_part *sends,
		    size_t n_sends, const struct sk_comm_part *receives,
		    size_t n_receives, uint32_t timeout_ms)
{
	struct scene *s = ctx;

	(void)timeout_ms;
	for (size_t i = 0; i < n_sends; i++) {
		cr_assert(sends[i].bytes <= sizeof(s->words[0]));
		memcpy(s->words[sends[i].rank], sends[i].data, sends[i].bytes);
	}
	for (size_t i = 0; i < n_receives; i++) {
		cr_assert(!receives[i].rank);
		memcpy(receives[i].data, s->words[s->rank], receives[i].bytes);
	}
	return 0;
}

static void seat(struct scene *s, int32_t rank)
{
	struct player *p = &s->players[rank];

	p->sk.os = sk_os_linux();
	p->state.job.rank = rank;
	p->state.job.world = RANKS;
	p->state.said = p->room;
	p->rs.sk = &p->sk;
	p->rs.state = &p->state;
	p->rs.near_ranks = s->near;
	p->rs.n_near = RANKS;
	p->rs.comm = (struct sk_comm){ .ctx = s, .allgather = allgather,
				       .exchange = exchange };
	p->said[0].flows_in = FLOWS;
	p->terms.ranks = p->said;
	p->terms.wants.mine = p->mine;
	p->terms.wants.pieces = p->pieces;
	p->terms.wants.first_of = p->first_of;
	s->near[rank] = rank;
}

/* ---- what is wanted ---- */

static void draw_want(struct scene *s, size_t i, bool first)
{
	struct sk_wants *w = &s->players[0].terms.wants;
	uint64_t from = below(3) * 100;

	s->wants[i] = (struct sk_want){
		.from = from,
		.to = from + 1 + below(below(8) ? 200 : 6000) };
	s->has[i] = i && !first && below(3) ? s->has[i - 1] :
					      (uint32_t)below(1u << RANKS);
	s->has[i] = s->has[i] ? s->has[i] : 1;
	s->wants[i].others = s->has[i];
	for (int32_t k = 0; k < RANKS; k++) {
		struct player *p = &s->players[k];
		size_t mine = p->first_of[1];

		if (!(s->has[i] >> k & 1))
			continue;
		s->consumers[w->n_consumers++] = (struct sk_consumer){
			(uint32_t)i, k, mine };
		p->mine[mine] = s->wants[i];
		p->pieces[mine] = (uint32_t)i;
		for (int32_t r = 1; r <= RANKS; r++)
			p->first_of[r]++;
	}
}

static void draw_scene(struct scene *s)
{
	uint64_t base = 0;

	for (int32_t k = 0; k < RANKS; k++)
		seat(s, k);
	s->players[0].terms.wants.consumers = s->consumers;
	for (size_t f = 0; f < FLOWS; f++) {
		for (size_t i = 0; i < WANTS; i++)
			draw_want(s, f * WANTS + i, !i);
		s->in[f] = (struct sk_flow){
			.rank = RANKS, .wants = &s->wants[f * WANTS],
			.first = f * WANTS, .n = WANTS,
			.cap = 32 + 32 * below(127), .units = 1 + below(20),
			.runs = 1 + below(5), .base = base };
		base += s->in[f].cap;
	}
	s->flows = (struct sk_flows){ .in = s->in, .n_in = FLOWS };
}

static char value(size_t want, uint64_t at)
{
	return (char)(want * 31 + at * 7);
}

/* ---- rounds ---- */

/* Others have it than have the one before. */
static bool is_other(const struct sk_flow_part *p)
{
	const struct sk_want *w = &p->flow->wants[p->want];

	return w->others != w[-1].others;
}

/* Parts of one round; how many messages of them may be for one rank. */
static size_t land(struct scene *s)
{
	size_t n = 0, bytes = 0;

	for (size_t f = 0; f < FLOWS; f++) {
		size_t first = n, runs = 1;

		bytes += sk_flow_cut(&s->in[f], s->landed, &n);
		cr_assert(n - first <= s->in[f].units);
		for (size_t i = first; i < n; i++)
			runs += i > first && is_other(&s->landed[i]);
		cr_assert(runs <= s->in[f].runs);
	}
	for (size_t i = 0; i < n; i++) {
		const struct sk_flow_part *p = &s->landed[i];

		for (uint64_t k = p->from; k < p->to; k++)
			s->window[p->offset + k - p->from] =
				value(p->flow->first + p->want, k);
	}
	cr_assert(bytes || !n);
	return n;
}

static void check_parts(struct player *p)
{
	const struct sk_relaying *r = &p->relaying;

	for (size_t i = 0; i < r->n; i++) {
		const struct sk_relay_part *part = &r->parts[i];
		size_t mine = 0;

		while (p->pieces[mine] != part->piece)
			mine++;
		cr_assert(part->from == p->mine[mine].from + p->got[mine]);
		cr_assert(part->to <= p->mine[mine].to);
		for (uint64_t k = part->from; k < part->to; k++)
			cr_assert(p->window[part->offset + k - part->from] ==
				  value(part->piece, k));
		p->got[mine] += part->to - part->from;
	}
}

/* Those of @n sends that are for the player are what it receives. */
static void pass_on(struct scene *s, size_t n, int32_t rank, uint64_t round)
{
	struct player *p = &s->players[rank];
	size_t at = 0;

	p->n_receives = sk_relaying_receives(&p->relaying, round,
					     (uintptr_t)p->window,
					     p->receives, 0);
	cr_assert(p->n_receives <= p->relaying.most_receives);
	for (size_t i = 0; i < n; i++) {
		if (s->sends[i].rank != rank)
			continue;
		cr_assert(at < p->n_receives);
		cr_assert(p->receives[at].bytes == s->sends[i].bytes);
		memcpy(p->receives[at++].data, s->sends[i].data,
		       s->sends[i].bytes);
	}
	cr_assert(at == p->n_receives);
	check_parts(p);
}

static void begin(struct scene *s)
{
	for (int32_t k = 0; k < RANKS; k++) {
		struct player *p = &s->players[k];
		struct sk_flows none = { 0 };

		s->rank = k;
		cr_assert(!sk_relaying_new(&p->rs, 0, &p->terms,
					   k ? &none : &s->flows,
					   &p->relaying), "%s",
			  p->rs.err.text);
		cr_assert(p->relaying.window <= sizeof(p->window));
		p->receives = calloc(p->relaying.most_receives + 1,
				     sizeof(*p->receives));
	}
}

static void end(struct scene *s)
{
	for (int32_t k = 0; k < RANKS; k++) {
		struct player *p = &s->players[k];

		for (size_t i = 0; k && i < p->first_of[1]; i++)
			cr_assert(p->got[i] == p->mine[i].to -
						       p->mine[i].from);
		sk_relaying_free(&p->relaying);
		free(p->receives);
	}
	free(s);
}

Test(relay, any_wants_in_any_rounds)
{
	for (uint64_t seed = 1; seed <= CASES; seed++) {
		struct scene *s = calloc(1, sizeof(*s));
		size_t n;

		random_state = seed;
		draw_scene(s);
		begin(s);
		for (uint64_t round = 0; (n = land(s)); round++) {
			n = sk_relaying_sends(&s->players[0].relaying,
					      s->landed, n,
					      (uintptr_t)s->window, s->sends,
					      0);
			for (int32_t k = 1; k < RANKS; k++)
				pass_on(s, n, k, round);
		}
		end(s);
	}
}

/* Another rank's word: what cannot be is refused. */
Test(relay, words_that_cannot_be)
{
	static const struct sk_relay_word words[][2] = {
		{ { .index = ALL, .cap = 32 } },
		{ { .cap = 0 } },
		{ { .cap = UINT64_MAX } },
		{ { .base = UINT64_MAX - 5, .cap = 64 } },
		{ { .offset = 64, .cap = 64 } },
		{ { .base = 64, .offset = 32, .cap = 64 } },
		{ { .cap = 64 }, { .cap = 64 } },
		{ { .round = 1, .cap = 64 }, { .cap = 64, .offset = 32 } },
		{ { .cap = 64 }, { .base = 32, .offset = 32, .cap = 64 } },
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		struct scene *s = calloc(1, sizeof(*s));
		struct player *p = &s->players[1];
		struct sk_flows none = { 0 };

		draw_scene(s);
		s->rank = 1;
		memcpy(s->words[1], words[i], sizeof(words[i]));
		s->n_said = 1;
		s->said[0].rank = 1;
		s->said[0].bytes = words[i][1].cap ? sizeof(words[i]) :
						     sizeof(words[i][0]);
		cr_assert(sk_relaying_new(&p->rs, 0, &p->terms, &none,
					  &p->relaying) == -EPROTO, "%zu", i);
		cr_assert(strstr(p->rs.err.text, "rank 0 passes on"));
		sk_relaying_free(&p->relaying);
		free(s);
	}
}

/* Nor does a length that no memory has, or wraps where it is rounded up, have
 * anything received. */
Test(relay, lengths_that_cannot_be)
{
	static const uint64_t lengths[] = {
		UINT64_MAX, UINT64_MAX - 6, UINT64_MAX - 200, INT64_MAX,
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(lengths); i++) {
		struct scene *s = calloc(1, sizeof(*s));
		struct player *p = &s->players[1];
		struct sk_flows none = { 0 };

		draw_scene(s);
		s->rank = 1;
		s->n_said = 1;
		s->said[0].rank = 1;
		s->said[0].bytes = lengths[i];
		cr_assert(sk_relaying_new(&p->rs, 0, &p->terms, &none,
					  &p->relaying) == -ENOMEM, "%zu", i);
		cr_assert(strstr(p->rs.err.text, "what 5 ranks say"), "%s",
			  p->rs.err.text);
		sk_relaying_free(&p->relaying);
		free(s);
	}
}
