/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes go in rounds, the same for all ranks. In a round a rank sends a part
 * of what each fetcher wants of it, and receives a part of what it fetches
 * into a window of its region of the staging memory, which all ranks of its
 * node map. While a round is under way the next one is packed, and an earlier
 * one is delivered: read by whoever wants it out of the window.
 *
 * With each round ranks of one node send each other a byte. It says that what
 * was received in the round before lies in its window, and that what was
 * received three before has been delivered. So what came in round t is read
 * while round t + 2 is under way, and its window is written again in t + 4.
 *
 * What several nodes want goes from one to the next (trees.h): what came in
 * round t is copied to what is sent while round t + 1 is under way, as is what
 * this rank reads itself, and sent in t + 2.
 */
#include "restore/remote.h"

#include <assert.h>

#include "base/util.h"
#include "restore/agree.h"
#include "restore/beside.h"
#include "restore/deliver.h"
#include "restore/receive.h"
#include "restore/send.h"

struct remote {
	struct sk_restoring *rs;
	struct sk_terms terms;
	struct sk_flows flows;
	struct sk_staging staging;
	struct sk_sending sending;
	struct sk_receiving receiving;
	struct sk_delivering delivering;
	struct sk_comm_part *sends, *receives;
	char *tokens;			/* the one that is sent is the last */
	uint64_t rounds;
	struct sk_beside beside;
};

/* ---- beside a round ---- */

static int run_beside(void *ctx, size_t unit, struct sk_err *err)
{
	struct remote *m = ctx;
	size_t n = m->sending.n;

	return unit < n ? sk_sending_pack(&m->sending, unit, err) :
			  sk_delivering_run(&m->delivering, unit - n, err);
}

static void begin_beside(struct remote *m)
{
	sk_beside_begin(&m->beside, m->sending.n + m->delivering.n);
}

/* ---- a round ---- */

static size_t add_tokens(struct remote *m, struct sk_comm_part *parts,
			 size_t n, bool send)
{
	const struct sk_restoring *rs = m->rs;

	for (int32_t k = 0; m->staging.shared && k < rs->n_near; k++)
		if (rs->near_ranks[k] != rs->state->job.rank)
			parts[n++] = (struct sk_comm_part){
				rs->near_ranks[k], 0,
				&m->tokens[send ? rs->n_near : k], 1 };
	return n;
}

static int exchange_round(struct remote *m, uint64_t round)
{
	size_t n_sends, n_receives;
	int r;

	if (round > m->rounds)
		return 0;
	n_receives = sk_receiving_list(&m->receiving, round, m->receives, 0);
	n_receives = add_tokens(m, m->receives, n_receives, false);
	n_sends = sk_sending_list(&m->sending, round, m->sends, 0);
	n_sends = add_tokens(m, m->sends, n_sends, true);
	r = sk_restore_exchange(m->rs, m->sends, n_sends, m->receives,
				n_receives);
	if (r < 0 || !m->staging.memory)
		return r;
	return sk_receiving_land(&m->receiving, round);
}

static int run_rounds(struct remote *m)
{
	int failed = 0;

	sk_sending_cut(&m->sending, 0);
	begin_beside(m);
	sk_beside_wait(&m->beside);
	sk_sending_seal(&m->sending);
	for (uint64_t t = 0; t <= m->rounds + 1; t++) {
		int r;

		sk_sending_cut(&m->sending, t + 1);
		if (t >= 2)
			sk_delivering_list(&m->delivering, t - 2);
		begin_beside(m);
		r = exchange_round(m, t);
		sk_beside_wait(&m->beside);
		sk_sending_seal(&m->sending);
		failed = failed < 0 ? failed : r;
		if (m->rs->broken)
			break;
	}
	if (failed >= 0 && m->beside.failed < 0)
		m->rs->err = m->beside.err;
	return failed < 0 ? failed : m->beside.failed;
}

/* ---- all of it ---- */

static int make_staging(struct remote *m)
{
	struct sk_restoring *rs = m->rs;
	struct sk_staging_size size = sk_terms_staging(rs, &m->terms,
						       rs->node);
	int r;

	if (!size.flows)
		return 0;
	r = sk_staging_new(rs, &size,
			   m->terms.ranks[rs->near_ranks[0]].meeting,
			   &m->staging);
	rs->report.staging_bytes += m->staging.bytes;
	return r;
}

/* All that rounds need: once they have begun, nothing is made. */
static int make_room(struct remote *m)
{
	struct sk_restoring *rs = m->rs;
	size_t near = (size_t)rs->n_near;
	int r = sk_flows_make(rs, &m->terms, &m->flows);

	if (r >= 0)
		r = make_staging(m);
	if (r < 0)
		return r;
	m->sends = calloc(m->flows.n_out + near, sizeof(*m->sends));
	m->receives = calloc(m->flows.n_in + near, sizeof(*m->receives));
	m->tokens = calloc(near + 1, 1);
	if (!m->sends || !m->receives || !m->tokens)
		return sk_terms_no_memory(rs);
	r = sk_sending_new(rs, &m->flows, &m->staging, &m->sending);
	if (r >= 0)
		r = sk_receiving_new(rs, &m->terms.wants, &m->staging,
				     &m->flows, &m->receiving);
	if (r >= 0)
		r = sk_delivering_new(rs, &m->terms.wants, &m->staging,
				      &m->delivering);
	return r;
}

static int agree_rounds(struct remote *m, int r)
{
	struct sk_restore_word word = { 0 }, *words;

	word.extra = r < 0 ? 0 : sk_flows_rounds(&m->flows);
	r = sk_restore_agree(m->rs, r, &word, &words, 0);
	for (int32_t k = 0; r >= 0 && k < m->rs->state->job.world; k++)
		if (words[k].extra > m->rounds)
			m->rounds = words[k].extra;
	return r;
}

/* When all are known to have come. */
static int meet(struct remote *m)
{
	struct sk_restoring *rs = m->rs;
	int r = 0;

	if (rs->n_nodes == rs->state->job.world)
		return 0;
	if (m->staging.shared)
		r = sk_staging_meet(rs, &m->staging);
	return sk_restore_agreed(rs, r);
}

static int move(struct remote *m)
{
	int r = agree_rounds(m, make_room(m));

	if (r < 0 || !m->rounds)
		return r;
	r = meet(m);
	return r < 0 ? r : run_rounds(m);
}

static void release(struct remote *m)
{
	sk_sending_free(&m->sending);
	sk_receiving_free(&m->receiving);
	sk_delivering_free(&m->delivering);
	sk_flows_free(&m->flows);
	sk_restore_free_terms(m->rs, &m->terms);
	free(m->sends);
	free(m->receives);
	/* What a comm may still read or write when it has failed stays. */
	if (m->rs->broken)
		m->staging.memory = NULL;
	else
		free(m->tokens);
	sk_staging_free(&m->staging);
}

int sk_restore_remote(struct sk_restoring *rs, int r)
{
	struct remote m = {
		.rs = rs, .staging.share = SK_NODE_SHARE_NULL };

	assert(rs->apart);
	m.beside = (struct sk_beside){ .pool = rs->sk->pool,
				       .run = run_beside, .ctx = &m };
	sk_beside_init(&m.beside);
	r = sk_restore_terms(rs, r, SK_WAY_HOST, &m.terms);
	if (r >= 0)
		r = move(&m);
	release(&m);
	sk_beside_fini(&m.beside);
	return r;
}
