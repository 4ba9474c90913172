/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What other nodes have.
 *
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
 */
#include "restore/remote.h"

#include <assert.h>
#include <string.h>

#include "base/link.h"
#include "base/util.h"
#include "bytes/checksum.h"
#include "restore/flow.h"
#include "restore/gpu.h"
#include "restore/shape.h"
#include "restore/staging.h"

#define SUM_BYTES 8u

/* What all ranks know of each other before they begin. */
struct terms {
	uint64_t flows_in, flows_out;
	uint64_t meeting;	/* of the lowest rank of a node */
	uint64_t end_to_end;	/* sums of what is sent are sent, too */
};

/* A part of this rank's that lies in somebody's window. */
struct delivery {
	uint32_t piece;
	uint64_t from, to;
	const char *bytes;
};

struct remote {
	struct sk_restoring *rs;
	struct sk_wants wants;
	struct sk_sourced *sourced;	/* of all that is asked, by rank */
	struct terms *terms;		/* per rank */
	uint64_t *most_in;		/* per node: flows into one of it */
	struct sk_flow *in, *out;
	size_t n_in, n_out;
	bool end_to_end;
	struct sk_staging staging;
	int32_t region;			/* this rank's */
	char *packed;			/* two windows */
	uint64_t rounds;

	struct sk_flow_part *landing, *packing;	/* of one round */
	size_t n_landing, n_packing;
	uint64_t packed_round;
	uint64_t *in_bytes, *out_bytes[2];	/* per flow, of a round */
	struct delivery *deliveries;
	size_t n_deliveries;
	struct sk_comm_part *sends, *receives;
	char *tokens;			/* the one that is sent is the last */

	/* What runs in the pool beside a round. */
	struct sk_task task;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool running;
	int failed;
	struct sk_err err;
};

static int no_memory(struct remote *m)
{
	return sk_err_set(&m->rs->err, -ENOMEM, "no memory to exchange pieces "
			  "with other nodes");
}

/* ---- terms ---- */

static int32_t world_of(const struct remote *m)
{
	return m->rs->state->job.world;
}

static size_t count_flows_in(const struct sk_wants *w)
{
	size_t n = 0;

	for (size_t i = 0; i < w->n_fetched; i++)
		n += !i || w->fetched[i].source != w->fetched[i - 1].source;
	return n;
}

static size_t asked_of(const struct remote *m, int32_t rank)
{
	return m->wants.asked[rank].bytes / sizeof(struct sk_want);
}

static int find_sources(struct remote *m)
{
	size_t n = 0, at = 0;
	int r = 0;

	for (int32_t k = 0; k < world_of(m); k++) {
		n += asked_of(m, k);
		m->n_out += asked_of(m, k) != 0;
	}
	m->sourced = calloc(n + 1, sizeof(*m->sourced));
	if (!m->sourced)
		return no_memory(m);
	for (int32_t k = 0; k < world_of(m); k++) {
		const struct sk_want *w = m->wants.asked[k].data;

		for (size_t i = 0; i < asked_of(m, k) && r >= 0; i++)
			r = sk_restore_find_source(m->rs, &w[i],
						   &m->sourced[at++]);
	}
	return r;
}

static int gather_terms(struct remote *m)
{
	struct sk_restoring *rs = m->rs;
	const struct sk_os *os = rs->sk->os;
	struct terms mine = {
		.flows_in = count_flows_in(&m->wants),
		.flows_out = m->n_out,
		.end_to_end = rs->state->job.flags & SK_JOB_VERIFY,
	};
	int r = os->random(os, &mine.meeting, sizeof(mine.meeting));

	/* Then it is a number that others may have, too. */
	if (r < 0)
		mine.meeting = os->now_ns(os);
	r = sk_restore_gather(rs, &mine, sizeof(mine), &m->terms, 0);
	if (r < 0)
		return r;
	for (int32_t k = 0; k < world_of(m); k++) {
		uint64_t *most = &m->most_in[rs->node_of[k]];

		if (m->terms[k].flows_in > (uint32_t)world_of(m) ||
		    m->terms[k].flows_out > (uint32_t)world_of(m))
			return sk_err_set(&rs->err, -EPROTO, "rank %d has more "
					  "peers than there are ranks", k);
		if (m->terms[k].flows_in > *most)
			*most = m->terms[k].flows_in;
		m->end_to_end |= m->terms[k].end_to_end != 0;
	}
	return 0;
}

static struct sk_staging_size size_of(const struct remote *m, int32_t node)
{
	return (struct sk_staging_size){
		.ranks = m->rs->nodes[node].n,
		.flows = m->most_in[node],
		.units = SK_FLOW_UNITS,
	};
}

/* ---- flows ---- */

/* What goes from one rank to another in a round, at most; both know it. */
static void limit(const struct remote *m, int32_t from, int32_t to,
		  struct sk_flow *f)
{
	struct sk_staging_size size = size_of(m, m->rs->node_of[to]);
	uint64_t in = m->terms[to].flows_in, out = m->terms[from].flows_out;
	uint64_t cap = sk_staging_window(&size) / (in ? in : 1);
	uint64_t sent = SK_WINDOW_BYTES / (out ? out : 1);

	cap = (cap < sent ? cap : sent) / SK_FLOW_ALIGN * SK_FLOW_ALIGN;
	f->cap = cap > SK_FLOW_ALIGN ? cap : SK_FLOW_ALIGN;
	f->units = SK_FLOW_UNITS / (in ? in : 1);
	f->units = f->units ? f->units : 1;
}

/* Beginnings are apart by what a round takes, its sum included. */
static void place_flows(const struct remote *m, struct sk_flow *v, size_t n)
{
	uint64_t base = 0;

	for (size_t i = 0; i < n; i++) {
		v[i].base = base;
		base += v[i].cap;
		if (m->end_to_end)
			v[i].cap -= SUM_BYTES;
	}
}

static void make_flows_in(struct remote *m)
{
	const struct sk_wants *w = &m->wants;
	int32_t own = m->rs->state->job.rank;

	for (size_t i = 0, k; i < w->n_fetched; i = k) {
		struct sk_flow *f = &m->in[m->n_in++];

		for (k = i; k < w->n_fetched &&
		     w->fetched[k].source == w->fetched[i].source;)
			k++;
		*f = (struct sk_flow){
			.rank = w->fetched[i].source,
			.wants = &w->fetched[i],
			.first = i,
			.n = k - i,
		};
		limit(m, f->rank, own, f);
	}
	place_flows(m, m->in, m->n_in);
}

static void make_flows_out(struct remote *m)
{
	int32_t own = m->rs->state->job.rank;
	size_t at = 0, n = 0;

	for (int32_t k = 0; k < world_of(m); k++) {
		struct sk_flow *f = &m->out[n];

		if (!asked_of(m, k))
			continue;
		*f = (struct sk_flow){
			.rank = k,
			.wants = m->wants.asked[k].data,
			.sourced = &m->sourced[at],
			.n = asked_of(m, k),
		};
		at += f->n;
		limit(m, own, k, f);
		n++;
	}
	assert(n == m->n_out);
	place_flows(m, m->out, m->n_out);
}

static uint64_t rounds_of(const struct remote *m)
{
	uint64_t most = 0;

	for (size_t i = 0; i < m->n_in + m->n_out; i++) {
		const struct sk_flow *f = i < m->n_in ? &m->in[i] :
						&m->out[i - m->n_in];
		uint64_t n = sk_flow_rounds(f);

		most = n > most ? n : most;
	}
	return most;
}

static size_t units_of(const struct sk_flow *v, size_t n)
{
	size_t units = 0;

	for (size_t i = 0; i < n; i++)
		units += v[i].units;
	return units;
}

/* All that rounds need: once they have begun, nothing is made. */
static int make_room(struct remote *m)
{
	size_t n_in = count_flows_in(&m->wants);
	size_t near = (size_t)m->rs->n_near;

	m->in = calloc(n_in + 1, sizeof(*m->in));
	m->out = calloc(m->n_out + 1, sizeof(*m->out));
	m->in_bytes = calloc(n_in + 1, sizeof(uint64_t));
	m->out_bytes[0] = calloc(m->n_out + 1, sizeof(uint64_t));
	m->out_bytes[1] = calloc(m->n_out + 1, sizeof(uint64_t));
	m->sends = calloc(m->n_out + near, sizeof(*m->sends));
	m->receives = calloc(n_in + near, sizeof(*m->receives));
	m->tokens = calloc(near + 1, 1);
	if (!m->in || !m->out || !m->in_bytes || !m->out_bytes[0] ||
	    !m->out_bytes[1] || !m->sends || !m->receives || !m->tokens)
		return no_memory(m);
	make_flows_in(m);
	make_flows_out(m);
	m->landing = calloc(units_of(m->in, m->n_in) + 1,
			    sizeof(*m->landing));
	m->packing = calloc(units_of(m->out, m->n_out) + 1,
			    sizeof(*m->packing));
	m->packed = m->n_out ? aligned_alloc(SK_PAGE, 2 * SK_WINDOW_BYTES +
					     SK_PAGE) : NULL;
	if (!m->landing || !m->packing || (m->n_out && !m->packed))
		return no_memory(m);
	m->rs->report.staging_bytes = m->n_out ? 2 * SK_WINDOW_BYTES : 0;
	return 0;
}

static int make_staging(struct remote *m)
{
	struct sk_restoring *rs = m->rs;
	struct sk_staging_size size = size_of(m, rs->node);
	uint64_t n;
	int r;

	if (!size.flows)
		return 0;
	r = sk_staging_new(rs, &size, m->terms[rs->near_ranks[0]].meeting,
			   &m->staging);
	if (r < 0)
		return r;
	rs->report.staging_bytes += m->staging.bytes;
	while (rs->near_ranks[m->region] != rs->state->job.rank)
		m->region++;
	n = m->staging.entries * (uint32_t)m->staging.n;
	m->deliveries = calloc(n + 1, sizeof(*m->deliveries));
	return m->deliveries ? 0 : no_memory(m);
}

/* ---- packing ---- */

static char *packed_at(const struct remote *m, uint64_t round)
{
	return m->packed + round % 2 * SK_WINDOW_BYTES;
}

static void cut_packing(struct remote *m, uint64_t round)
{
	m->n_packing = 0;
	m->packed_round = round;
	for (size_t i = 0; i < m->n_out; i++)
		m->out_bytes[round % 2][i] =
			sk_flow_cut(&m->out[i], m->packing, &m->n_packing);
}

static int pack(struct remote *m, const struct sk_flow_part *p,
		struct sk_err *err)
{
	const struct sk_sourced *s = &p->flow->sourced[p->want];
	char *to = packed_at(m, m->packed_round) + p->offset;

	if (!s->entry) {
		memset(to, 0, p->to - p->from);
		return 0;
	}
	return sk_restore_read_source(m->rs, &p->flow->wants[p->want], s,
				      p->from, p->to, to, err);
}

static void add_sums(const struct remote *m, uint64_t round)
{
	for (size_t i = 0; m->end_to_end && i < m->n_out; i++) {
		char *at = packed_at(m, round) + m->out[i].base;
		uint64_t n = m->out_bytes[round % 2][i], sum;

		sum = sk_xxh3(at, n);
		memcpy(at + n, &sum, sizeof(sum));
	}
}

/* ---- delivering ---- */

/* What lies in a window is another rank's word. */
static bool is_mine(const struct remote *m, int32_t region,
		    const struct sk_landed *l, size_t *ret_index)
{
	const struct sk_wants *w = &m->wants;
	int32_t fetcher = m->rs->near_ranks[region];
	size_t first = w->first_of[fetcher];
	size_t n = w->first_of[fetcher + 1] - first;

	if (l->rank != m->rs->state->job.rank || l->index >= n)
		return false;
	*ret_index = first + l->index;
	return l->from >= w->mine[*ret_index].from && l->from < l->to &&
	       l->to <= w->mine[*ret_index].to &&
	       l->offset <= m->staging.window &&
	       l->to - l->from <= m->staging.window - l->offset;
}

static void list_deliveries(struct remote *m, uint64_t round)
{
	m->n_deliveries = 0;
	for (int32_t k = 0; m->staging.memory && k < m->staging.n; k++) {
		uint64_t n = *sk_staging_count(&m->staging, k, round);

		for (uint64_t i = 0; i < n && i < m->staging.entries; i++) {
			struct sk_landed l = sk_staging_table(&m->staging, k,
							      round)[i];
			size_t index;

			if (!is_mine(m, k, &l, &index))
				continue;
			m->deliveries[m->n_deliveries++] = (struct delivery){
				m->wants.pieces[index], l.from, l.to,
				sk_staging_data(&m->staging, k, round) +
					l.offset };
		}
	}
}

/* Through buffers that the device reads, a MiB at a time. */
static int deliver_to_gpu(struct sk_restoring *rs, int gpu,
			  const struct delivery *d, struct sk_copy *copy,
			  struct sk_err *err)
{
	int r = 0;

	for (uint64_t at = d->from, n; at < d->to && r >= 0; at += n) {
		struct sk_restore_stage *stage;

		n = d->to - at < SK_SUM_CHUNK ? d->to - at : SK_SUM_CHUNK;
		r = sk_restore_take_stage(rs, gpu, &stage, err);
		if (r < 0)
			return r;
		memcpy(stage->buf, d->bytes + (at - d->from), n);
		copy->src = (const char *)((uintptr_t)stage->buf - at);
		r = sk_restore_put_stage(rs, gpu, stage, copy, at, at + n,
					 err);
	}
	return r;
}

static int deliver(struct remote *m, const struct delivery *d,
		   struct sk_err *err)
{
	struct sk_restoring *rs = m->rs;
	const struct sk_restore_piece *p = &rs->pieces[d->piece];
	const struct sk_local *local = &rs->state->locals[p->local];
	struct sk_copy copy;
	int r = sk_restore_unpack(rs, p, &copy, err);

	if (r < 0)
		return r;
	__atomic_store_n(&rs->touched[p->local], 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&rs->report.bytes_remote, d->to - d->from,
			   __ATOMIC_RELAXED);
	if (local->gpu >= 0)
		return deliver_to_gpu(rs, local->gpu, d, &copy, err);
	copy.src = (const char *)((uintptr_t)d->bytes - d->from);
	sk_copy_run_range(&copy, d->from, d->to);
	return 0;
}

/* ---- beside a round ---- */

static void run_beside(struct sk_task *task, size_t unit)
{
	struct remote *m = sk_link_object(task, struct remote, task);
	struct sk_err err = { "" };
	int r;

	r = unit < m->n_packing ?
		    pack(m, &m->packing[unit], &err) :
		    deliver(m, &m->deliveries[unit - m->n_packing], &err);
	if (r < 0 && !__atomic_exchange_n(&m->failed, r, __ATOMIC_RELAXED))
		m->err = err;
}

static void end_beside(struct sk_task *task)
{
	struct remote *m = sk_link_object(task, struct remote, task);

	(void)pthread_mutex_lock(&m->lock);
	m->running = false;
	(void)pthread_cond_signal(&m->cond);
	(void)pthread_mutex_unlock(&m->lock);
}

static void begin_beside(struct remote *m)
{
	m->task = (struct sk_task){
		.units = m->n_packing + m->n_deliveries,
		.run = run_beside,
		.done = end_beside,
	};
	m->running = true;
	sk_pool_submit(m->rs->sk->pool, &m->task);
}

static void wait_beside(struct remote *m)
{
	(void)pthread_mutex_lock(&m->lock);
	while (m->running)
		(void)pthread_cond_wait(&m->cond, &m->lock);
	(void)pthread_mutex_unlock(&m->lock);
}

/* ---- a round ---- */

static size_t add_tokens(struct remote *m, struct sk_comm_part *parts,
			 size_t n, bool send)
{
	for (int32_t k = 0; m->staging.shared && k < m->rs->n_near; k++)
		if (m->rs->near_ranks[k] != m->rs->state->job.rank)
			parts[n++] = (struct sk_comm_part){
				m->rs->near_ranks[k], 0,
				&m->tokens[send ? m->rs->n_near : k], 1 };
	return n;
}

static size_t list_sends(struct remote *m, uint64_t round)
{
	uint64_t more = m->end_to_end ? SUM_BYTES : 0;
	size_t n = 0;

	for (size_t i = 0; round < m->rounds && i < m->n_out; i++) {
		uint64_t bytes = m->out_bytes[round % 2][i];

		if (!bytes)
			continue;
		m->rs->report.bytes_sent += bytes;
		m->sends[n++] = (struct sk_comm_part){
			m->out[i].rank, 0,
			packed_at(m, round) + m->out[i].base, bytes + more };
	}
	return add_tokens(m, m->sends, n, true);
}

static size_t list_receives(struct remote *m, uint64_t round)
{
	uint64_t more = m->end_to_end ? SUM_BYTES : 0;
	size_t n = 0;

	m->n_landing = 0;
	/* Also after the last round, in which nothing comes: what is checked
	 * is what came in this one. */
	for (size_t i = 0; i < m->n_in; i++) {
		uint64_t bytes = sk_flow_cut(&m->in[i], m->landing,
					     &m->n_landing);

		m->in_bytes[i] = bytes;
		if (!bytes)
			continue;
		m->rs->report.bytes_received += bytes;
		m->receives[n++] = (struct sk_comm_part){
			m->in[i].rank, 0,
			sk_staging_data(&m->staging, m->region, round) +
				m->in[i].base, bytes + more };
	}
	return add_tokens(m, m->receives, n, false);
}

/* ---- what came ---- */

static int check_sums(struct remote *m, uint64_t round)
{
	for (size_t i = 0; m->end_to_end && i < m->n_in; i++) {
		const char *at = sk_staging_data(&m->staging, m->region,
						 round) + m->in[i].base;
		uint64_t n = m->in_bytes[i], sum;

		memcpy(&sum, at + n, sizeof(sum));
		if (n && sum != sk_xxh3(at, n))
			return sk_err_set(&m->rs->err, -EBADMSG, "bytes that "
					  "rank %d sent came to rank %d as "
					  "others", m->in[i].rank,
					  m->rs->state->job.rank);
	}
	return 0;
}

/* Says where in the window each of those who wait finds its part. */
static void land(struct remote *m, uint64_t round)
{
	const struct sk_wants *w = &m->wants;
	struct sk_landed *table;
	size_t at = 0;
	uint64_t n = 0;

	table = sk_staging_table(&m->staging, m->region, round);
	for (size_t i = 0; i < m->n_landing; i++) {
		const struct sk_flow_part *p = &m->landing[i];
		size_t want = p->flow->first + p->want;

		/* Both are by want. */
		while (at && w->consumers[at].want >= want)
			at--;
		while (at < w->n_consumers && w->consumers[at].want < want)
			at++;
		for (size_t k = at; k < w->n_consumers &&
		     w->consumers[k].want == want; k++)
			table[n++] = (struct sk_landed){
				.index = w->consumers[k].index,
				.from = p->from,
				.to = p->to,
				.offset = p->offset,
				.rank = w->consumers[k].rank,
			};
	}
	assert(n <= m->staging.entries);
	*sk_staging_count(&m->staging, m->region, round) = n;
}

static int exchange_round(struct remote *m, uint64_t round)
{
	size_t n_sends, n_receives;
	int r;

	if (round > m->rounds)
		return 0;
	n_receives = list_receives(m, round);
	n_sends = list_sends(m, round);
	r = sk_restore_exchange(m->rs, m->sends, n_sends, m->receives,
				n_receives);
	if (r < 0 || !m->staging.memory)
		return r;
	/* Also of a round in which nothing came. */
	land(m, round);
	return check_sums(m, round);
}

static int run_rounds(struct remote *m)
{
	int failed = 0;

	cut_packing(m, 0);
	begin_beside(m);
	wait_beside(m);
	add_sums(m, 0);
	for (uint64_t t = 0; t <= m->rounds + 1; t++) {
		int r;

		cut_packing(m, t + 1);
		m->n_deliveries = 0;
		if (t >= 2)
			list_deliveries(m, t - 2);
		begin_beside(m);
		r = exchange_round(m, t);
		wait_beside(m);
		add_sums(m, t + 1);
		failed = failed < 0 ? failed : r;
		if (m->rs->broken)
			break;
	}
	if (failed >= 0 && m->failed < 0)
		m->rs->err = m->err;
	return failed < 0 ? failed : m->failed;
}

/* ---- all of it ---- */

static int prepare(struct remote *m, int r)
{
	struct sk_restoring *rs = m->rs;
	struct sk_restore_word word = { 0 };

	m->most_in = calloc((uint32_t)rs->n_nodes, sizeof(*m->most_in));
	if (r >= 0 && !m->most_in)
		r = no_memory(m);
	r = sk_restore_wants(rs, r, &m->wants);
	if (r < 0)
		return r;
	r = sk_restore_agree(rs, find_sources(m), &word, NULL, 0);
	return r < 0 ? r : gather_terms(m);
}

static int agree_rounds(struct remote *m, int r)
{
	_cleanup_free_ struct sk_restore_word *words = NULL;
	struct sk_restore_word word = { 0 };

	word.extra = r < 0 ? 0 : rounds_of(m);
	r = sk_restore_agree(m->rs, r, &word, &words, 0);
	for (int32_t k = 0; r >= 0 && k < world_of(m); k++)
		if (words[k].extra > m->rounds)
			m->rounds = words[k].extra;
	return r;
}

static int move(struct remote *m)
{
	int r = make_room(m), staged = make_staging(m);

	r = agree_rounds(m, r < 0 ? r : staged);
	if (r < 0 || !m->rounds)
		return r;
	return run_rounds(m);
}

static void release(struct remote *m)
{
	/* What a comm may still read or write when it has failed stays. */
	if (!m->rs->broken) {
		sk_staging_free(&m->staging);
		sk_restore_free_wants(&m->wants);
		free(m->packed);
	}
	free(m->sourced);
	free(m->terms);
	free(m->most_in);
	free(m->in);
	free(m->out);
	free(m->in_bytes);
	free(m->out_bytes[0]);
	free(m->out_bytes[1]);
	free(m->landing);
	free(m->packing);
	free(m->deliveries);
	free(m->sends);
	free(m->receives);
	if (!m->rs->broken)
		free(m->tokens);
}

int sk_restore_remote(struct sk_restoring *rs, int r)
{
	struct remote m = { .rs = rs };

	assert(rs->apart);
	(void)pthread_mutex_init(&m.lock, NULL);
	(void)pthread_cond_init(&m.cond, NULL);
	r = prepare(&m, r);
	if (r >= 0)
		r = move(&m);
	release(&m);
	(void)pthread_cond_destroy(&m.cond);
	(void)pthread_mutex_destroy(&m.lock);
	return r;
}
