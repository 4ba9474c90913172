/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/send.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "bytes/checksum.h"

int sk_sending_new(struct sk_restoring *rs, const struct sk_flows *flows,
		   struct sk_sending *ret)
{
	size_t n = flows->n_out;
	size_t units = sk_flows_units(flows->out, n);

	*ret = (struct sk_sending){
		.rs = rs,
		.window = flows->window,
		.flows = flows->out,
		.n_flows = n,
		.sum_bytes = flows->sum_bytes,
		.bytes = { calloc(n + 1, sizeof(uint64_t)),
			   calloc(n + 1, sizeof(uint64_t)) },
		.parts = calloc(units + 1, sizeof(*ret->parts)),
	};
	if (n)
		ret->packed = aligned_alloc(SK_PAGE, 2 * ret->window + SK_PAGE);
	if (!ret->bytes[0] || !ret->bytes[1] || !ret->parts ||
	    (n && !ret->packed))
		return sk_terms_no_memory(rs);
	rs->report.staging_bytes += n ? 2 * ret->window : 0;
	return 0;
}

void sk_sending_free(struct sk_sending *s)
{
	if (s->rs && !s->rs->broken)
		free(s->packed);
	free(s->bytes[0]);
	free(s->bytes[1]);
	free(s->parts);
}

static char *packed_at(const struct sk_sending *s, uint64_t round)
{
	return s->packed + round % 2 * s->window;
}

void sk_sending_cut(struct sk_sending *s, uint64_t round)
{
	s->n = 0;
	s->round = round;
	for (size_t i = 0; i < s->n_flows; i++)
		s->bytes[round % 2][i] =
			sk_flow_cut(&s->flows[i], s->parts, &s->n);
}

int sk_sending_pack(const struct sk_sending *s, size_t part,
		    struct sk_err *err)
{
	const struct sk_flow_part *p = &s->parts[part];
	const struct sk_sourced *from = &p->flow->sourced[p->want];
	char *to = packed_at(s, s->round) + p->offset;

	assert(part < s->n);
	if (!from->entry) {
		memset(to, 0, p->to - p->from);
		return 0;
	}
	return sk_restore_read_source(s->rs, &p->flow->wants[p->want], from,
				      p->from, p->to, to, err);
}

void sk_sending_seal(const struct sk_sending *s)
{
	for (size_t i = 0; s->sum_bytes && i < s->n_flows; i++) {
		char *at = packed_at(s, s->round) + s->flows[i].base;
		uint64_t n = s->bytes[s->round % 2][i], sum;

		sum = sk_xxh3(at, n);
		memcpy(at + n, &sum, sizeof(sum));
	}
}

size_t sk_sending_list(const struct sk_sending *s, uint64_t round,
		       struct sk_comm_part *parts, size_t n)
{
	for (size_t i = 0; i < s->n_flows; i++) {
		uint64_t bytes = s->bytes[round % 2][i];

		if (!bytes)
			continue;
		s->rs->report.bytes_sent += bytes;
		parts[n++] = (struct sk_comm_part){
			s->flows[i].rank, 0,
			packed_at(s, round) + s->flows[i].base,
			bytes + s->sum_bytes };
	}
	return n;
}
