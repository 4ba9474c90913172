/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/staging.h"

#include <assert.h>
#include <sys/mman.h>

#include "base/util.h"

/* Before the table: how much of it there is; a line of its own. */
#define COUNT_BYTES 64u
/* Of one flow in a window: SK_FLOW_ALIGN of flow.h. */
#define LEAST_BYTES 32u

static uint64_t entries_of(const struct sk_staging_size *size)
{
	uint64_t n = size->flows > size->units ? size->flows : size->units;

	return n * (uint32_t)size->ranks;
}

static uint64_t table_bytes(uint64_t entries)
{
	return sk_round_up(COUNT_BYTES + entries * sizeof(struct sk_landed),
			   SK_PAGE);
}

/* All regions of a node are what the agent gathers at once, at most. */
uint64_t sk_staging_window(const struct sk_staging_size *size)
{
	uint64_t most = SK_GATHER_MAX / SK_WINDOWS /
			((uint32_t)size->ranks + 1u) / SK_PAGE * SK_PAGE;
	uint64_t least = sk_round_up(size->flows * LEAST_BYTES + 1, SK_PAGE);
	uint64_t table = table_bytes(entries_of(size));

	most = most > table + least ? most - table : least;
	return most < size->window ? most : size->window;
}

int32_t sk_staging_region(const struct sk_restoring *rs)
{
	int32_t region = 0;

	while (rs->near_ranks[region] != rs->state->job.rank)
		region++;
	return region;
}

static int come(struct sk_restoring *rs, uint64_t meeting,
		struct sk_staging *s)
{
	struct sk_node_meeting who = {
		.job = rs->state->job.name,
		.agent = rs->nodes[rs->node].agent,
		.meeting = meeting,
		.rank = sk_staging_region(rs),
		.n = rs->n_near,
		.timeout_ms = rs->timeout_ms,
	};

	if (s->bytes > UINT32_MAX)
		return sk_err_set(&rs->err, -E2BIG, "%d ranks on a node share "
				  "too much memory", rs->n_near);
	return sk_node_come(rs->sk, &who, (uint32_t)s->bytes, &s->share,
			    &rs->err);
}

static int take_own(struct sk_restoring *rs, struct sk_staging *s)
{
	s->memory = aligned_alloc(SK_PAGE, s->bytes);
	if (!s->memory)
		return sk_err_set(&rs->err, -ENOMEM, "no memory for %llu bytes "
				  "to restore through",
				  (unsigned long long)s->bytes);
	for (uint64_t i = 0; i < SK_WINDOWS; i++)
		*sk_staging_count(s, 0, i) = 0;
	return 0;
}

int sk_staging_new(struct sk_restoring *rs, const struct sk_staging_size *size,
		   uint64_t meeting, struct sk_staging *ret)
{
	*ret = (struct sk_staging){
		.os = rs->sk->os,
		.window = sk_staging_window(size),
		.entries = entries_of(size),
		.n = rs->n_near,
		.shared = rs->n_near > 1,
		.share = SK_NODE_SHARE_NULL,
	};
	ret->bytes = SK_WINDOWS * (table_bytes(ret->entries) + ret->window);
	return ret->shared ? come(rs, meeting, ret) : take_own(rs, ret);
}

int sk_staging_meet(struct sk_restoring *rs, struct sk_staging *s)
{
	void *map;
	int r;

	assert(s->shared);
	r = sk_node_memory(rs->sk, &s->share, &map, &rs->err);
	if (r >= 0)
		s->memory = map;
	sk_node_leave(&s->share);
	return r;
}

void sk_staging_free(struct sk_staging *s)
{
	if (!s->shared)
		free(s->memory);
	else if (s->memory)
		(void)s->os->munmap(s->os, s->memory,
				    s->bytes * (uint32_t)s->n);
	sk_node_leave(&s->share);
	*s = (struct sk_staging){ .share = SK_NODE_SHARE_NULL };
}

static char *window_of(const struct sk_staging *s, int32_t region,
		       uint64_t round)
{
	assert(region < s->n);
	return s->memory + (uint32_t)region * s->bytes +
	       round % SK_WINDOWS * (s->bytes / SK_WINDOWS);
}

char *sk_staging_data(const struct sk_staging *s, int32_t region,
		      uint64_t round)
{
	return window_of(s, region, round) + table_bytes(s->entries);
}

uint64_t *sk_staging_count(const struct sk_staging *s, int32_t region,
			   uint64_t round)
{
	return (uint64_t *)window_of(s, region, round);
}

struct sk_landed *sk_staging_table(const struct sk_staging *s, int32_t region,
				   uint64_t round)
{
	return (struct sk_landed *)(window_of(s, region, round) +
				    COUNT_BYTES);
}
