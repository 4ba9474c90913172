/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/send.h"

#include <assert.h>
#include <string.h>

#include "base/pages.h"
#include "base/util.h"
#include "bytes/checksum.h"

static int make_room(struct sk_sending *s)
{
	size_t n = s->n_flows;
	size_t units = sk_flows_units(s->flows, n);

	for (int k = 0; k < 2; k++)
		s->messages[k] = calloc(n + 1, sizeof(*s->messages[k]));
	s->parts = calloc(units + 1, sizeof(*s->parts));
	s->passing = calloc(n + 1, sizeof(*s->passing));
	s->packed_bytes = s->window ? 2 * s->window + SK_PAGE : 0;
	if (s->window)
		s->packed = sk_pages_new(s->rs->sk->os, s->packed_bytes);
	if (!s->messages[0] || !s->messages[1] || !s->parts || !s->passing ||
	    (s->window && !s->packed))
		return sk_terms_no_memory(s->rs);
	s->rs->report.staging_bytes += 2 * s->window;
	return 0;
}

int sk_sending_new(struct sk_restoring *rs, const struct sk_flows *flows,
		   const struct sk_staging *staging, struct sk_sending *ret)
{
	*ret = (struct sk_sending){
		.rs = rs,
		.staging = staging,
		.region = sk_staging_region(rs),
		.window = flows->window,
		.flows = flows->out,
		.n_flows = flows->n_out,
		.sum_bytes = flows->sum_bytes,
	};
	return make_room(ret);
}

void sk_sending_free(struct sk_sending *s)
{
	if (s->rs && !s->rs->broken)
		(void)sk_pages_free(s->rs->sk->os, s->packed,
				    s->packed_bytes);
	free(s->messages[0]);
	free(s->messages[1]);
	free(s->parts);
	free(s->passing);
}

static char *packed_at(const struct sk_sending *s, uint64_t round)
{
	return s->packed + round % 2 * s->window;
}

/* ---- a round is cut ---- */

/* From device to device out of where it will have landed. */
static void pass_on(struct sk_sending *s, const struct sk_flow *f)
{
	const char *came;

	s->passed[s->round % 2] += f->bytes;
	if (!s->staging)
		return;
	came = sk_staging_data(s->staging, s->region,
			       s->round - sk_tree_rounds(SK_WAY_HOST));
	/* Both ends of this rank have cut it alike. */
	assert(f->from->bytes == f->bytes);
	s->passing[s->n_passing++] = (struct sk_passed_part){
		came + f->from->base, f->bytes + s->sum_bytes, f->base };
}

static void *where_is(const struct sk_sending *s, const struct sk_flow *f)
{
	uint64_t round = s->round;

	if (s->staging)
		return packed_at(s, round) + f->base;
	if (!f->from)
		return (void *)(uintptr_t)(s->there + round % 2 * s->window +
					   f->base);
	round -= sk_tree_rounds(SK_WAY_DEVICE);
	return (void *)(uintptr_t)(s->came + round % 2 * s->came_bytes +
				   f->from->base);
}

static void list_messages(struct sk_sending *s)
{
	struct sk_comm_part *v = s->messages[s->round % 2];
	size_t n = 0;

	for (size_t i = 0, of; i < s->n_flows; i += of) {
		uint64_t sums, bytes;

		of = sk_flows_together(s->flows, s->n_flows, i);
		bytes = sk_flows_message(&s->flows[i], of, s->sum_bytes,
					 &sums);
		if (!bytes)
			continue;
		v[n++] = (struct sk_comm_part){
			s->flows[i].rank, 0, where_is(s, &s->flows[i]),
			bytes };
		s->sent[s->round % 2] += bytes - sums;
	}
	s->n_messages[s->round % 2] = n;
}

void sk_sending_cut(struct sk_sending *s, uint64_t round)
{
	s->round = round;
	s->n_parts = s->n_passing = 0;
	s->sent[round % 2] = s->passed[round % 2] = 0;
	sk_flows_cut(s->flows, s->n_flows, round, s->sum_bytes, s->parts,
		     &s->n_parts);
	for (size_t i = 0; i < s->n_flows; i++)
		if (s->flows[i].from && s->flows[i].bytes)
			pass_on(s, &s->flows[i]);
	s->n = s->n_parts + s->n_passing;
	list_messages(s);
}

/* ---- and packed ---- */

int sk_sending_pack(const struct sk_sending *s, size_t part,
		    struct sk_err *err)
{
	const struct sk_flow_part *p = &s->parts[part];
	const struct sk_sourced *from;
	char *to = packed_at(s, s->round);

	assert(part < s->n);
	if (part >= s->n_parts) {
		const struct sk_passed_part *on = &s->passing[part -
							      s->n_parts];

		memcpy(to + on->offset, on->from, on->bytes);
		return 0;
	}
	from = &p->flow->sourced[p->want];
	to += p->offset;
	if (!from->entry) {
		memset(to, 0, p->to - p->from);
		return 0;
	}
	return sk_restore_read_source(s->rs, &p->flow->wants[p->want], from,
				      p->from, p->to, to, err);
}

/* What is passed on has its source's. */
void sk_sending_seal(const struct sk_sending *s)
{
	for (size_t i = 0; s->sum_bytes && i < s->n_flows; i++) {
		const struct sk_flow *f = &s->flows[i];
		char *at = packed_at(s, s->round) + f->base;
		uint64_t sum;

		if (f->from || !f->bytes)
			continue;
		sum = sk_xxh3(at, f->bytes);
		memcpy(at + f->bytes, &sum, sizeof(sum));
	}
}

size_t sk_sending_list(const struct sk_sending *s, uint64_t round,
		       struct sk_comm_part *parts, size_t n)
{
	struct sk_report *report = &s->rs->report;

	report->bytes_sent += s->sent[round % 2];
	report->bytes_passed += s->passed[round % 2];
	memcpy(&parts[n], s->messages[round % 2],
	       s->n_messages[round % 2] * sizeof(*parts));
	return n + s->n_messages[round % 2];
}
