/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/receive.h"

#include <assert.h>
#include <string.h>

#include "bytes/checksum.h"

int sk_receiving_new(struct sk_restoring *rs, const struct sk_wants *wants,
		     const struct sk_staging *staging,
		     const struct sk_flows *flows, struct sk_receiving *ret)
{
	size_t n = flows->n_in;
	size_t units = sk_flows_units(flows->in, n);

	*ret = (struct sk_receiving){
		.rs = rs,
		.wants = wants,
		.staging = staging,
		.region = sk_staging_region(rs),
		.flows = flows->in,
		.n_flows = n,
		.sum_bytes = flows->sum_bytes,
		.parts = calloc(units + 1, sizeof(*ret->parts)),
	};
	return ret->parts ? 0 : sk_terms_no_memory(rs);
}

void sk_receiving_free(struct sk_receiving *r)
{
	free(r->parts);
}

static char *window_of(const struct sk_receiving *r, uint64_t round)
{
	return sk_staging_data(r->staging, r->region, round);
}

/* After the last round nothing comes; the lengths have to say so. */
size_t sk_receiving_list(struct sk_receiving *r, uint64_t round,
			 struct sk_comm_part *parts, size_t n)
{
	r->n = 0;
	sk_flows_cut(r->flows, r->n_flows, round, r->sum_bytes, r->parts,
		     &r->n);
	for (size_t i = 0, of; i < r->n_flows; i += of) {
		uint64_t sums, bytes;

		of = sk_flows_together(r->flows, r->n_flows, i);
		bytes = sk_flows_message(&r->flows[i], of, r->sum_bytes,
					 &sums);
		if (!bytes)
			continue;
		r->rs->report.bytes_received += bytes - sums;
		parts[n++] = (struct sk_comm_part){
			r->flows[i].rank, 0,
			window_of(r, round) + r->flows[i].base, bytes };
	}
	return n;
}

static int check_sums(const struct sk_receiving *r, uint64_t round)
{
	struct sk_restoring *rs = r->rs;

	for (size_t i = 0; r->sum_bytes && i < r->n_flows; i++) {
		const char *at = window_of(r, round) + r->flows[i].base;
		uint64_t n = r->flows[i].bytes, sum;

		if (!n)
			continue;
		memcpy(&sum, at + n, sizeof(sum));
		if (sum != sk_xxh3(at, n))
			return sk_err_set(&rs->err, -EBADMSG, "bytes that "
					  "rank %d sent came to rank %d as "
					  "others", r->flows[i].rank,
					  rs->state->job.rank);
	}
	return 0;
}

/* Appends those who wait for a part, the first of whom is not before @at. */
static size_t land_part(const struct sk_wants *w, const struct sk_flow_part *p,
			size_t at, struct sk_landed *table, uint64_t *n)
{
	size_t want = p->flow->first + p->want;

	/* Both are by want, but a round may go on where the last one was. */
	while (at && w->consumers[at].want >= want)
		at--;
	while (at < w->n_consumers && w->consumers[at].want < want)
		at++;
	for (size_t k = at; k < w->n_consumers && w->consumers[k].want == want;
	     k++)
		table[(*n)++] = (struct sk_landed){
			.index = w->consumers[k].index,
			.from = p->from,
			.to = p->to,
			.offset = p->offset,
			.rank = w->consumers[k].rank,
		};
	return at;
}

int sk_receiving_land(const struct sk_receiving *r, uint64_t round)
{
	const struct sk_staging *s = r->staging;
	struct sk_landed *table = sk_staging_table(s, r->region, round);
	size_t at = 0;
	uint64_t n = 0;

	for (size_t i = 0; i < r->n; i++)
		at = land_part(r->wants, &r->parts[i], at, table, &n);
	assert(n <= s->entries);
	*sk_staging_count(s, r->region, round) = n;
	return check_sums(r, round);
}
