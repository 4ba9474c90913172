/* SPDX-License-Identifier: Apache-2.0 */
#include "revive/left.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "memory/record.h"

/* Of a device slot: the memory, and what tells how to drain it. */
static bool has_fd(const struct left *e, int kind)
{
	return left_is_device(e) || e->record.kind_bytes[kind];
}

void left_forget(struct reviving *v, struct left *e)
{
	struct agent *a = v->agent;
	char name[KEPT_NAME];

	table_drop(&a->table, e->at);
	for (int kind = 0; kind < 2; kind++) {
		e->fds[kind] = sk_close_fd(e->fds[kind]);
		if (!has_fd(e, kind))
			continue;
		record_name(e->record.serial, kind, name, sizeof(name));
		keeper_forget(a->os, &a->keeper, name);
	}
	e->record.serial = 0;
}

void left_lose(struct reviving *v, struct left *e, const char *why)
{
	const struct table_record *r = &e->record;

	if (r->use == TABLE_SEALED || (left_is_device(e) && r->step >= 0)) {
		v->agent->counts.lost_images++;
		log_error(v->agent, "the image of job \"%.*s\" run %" PRIu64
			  " step %" PRId64 " rank %" PRId32 " did not outlive "
			  "the last agent: %s", (int)sizeof(r->job), r->job,
			  r->run, r->step, r->rank, why);
	}
	left_forget(v, e);
}

/* Written by an agent, but not by this one. */
static bool slot_makes_sense(const struct table_record *r)
{
	return r->use >= TABLE_FREE && r->use <= TABLE_DEVICE && r->state &&
	       r->kind_bytes[0] &&
	       r->kind_bytes[0] % SK_PAGE == 0 &&
	       r->kind_bytes[1] % SK_PAGE == 0 &&
	       r->kind_bytes[0] < INT64_MAX / 2 &&
	       r->kind_bytes[1] < INT64_MAX / 2 &&
	       (r->use == TABLE_DEVICE ||
		(r->header_bytes[0] <= r->kind_bytes[0] &&
		 r->header_bytes[1] <= r->kind_bytes[1])) &&
	       (r->use != TABLE_SEALED || r->step >= 0);
}

static bool makes_sense(const struct table_record *r)
{
	return memchr(r->job, 0, sizeof(r->job)) &&
	       sk_job_check(r->job, NULL) == 0 && r->rank >= 0 &&
	       r->rank < r->world &&
	       (r->use == TABLE_RUN ? !r->state && !r->kind_bytes[0] &&
				      !r->kind_bytes[1] :
				      slot_makes_sense(r));
}

static void take_fds(struct reviving *v, struct kept *kept, struct left *e)
{
	bool whole = true;
	char name[KEPT_NAME];

	for (int kind = 0; kind < 2; kind++) {
		if (!has_fd(e, kind))
			continue;
		record_name(e->record.serial, kind, name, sizeof(name));
		e->fds[kind] = kept_take(kept, name);
		whole &= e->fds[kind] >= 0;
	}
	if (!makes_sense(&e->record))
		left_lose(v, e, "its record makes no sense");
	else if (!whole)
		left_lose(v, e, "its memory was not kept");
}

int left_collect(struct reviving *v, struct kept *kept)
{
	const struct table *t = &v->agent->table;
	uint32_t most = table_used(t);

	v->entries = calloc((size_t)most + 1, sizeof(*v->entries));
	if (!v->entries)
		return -ENOMEM;
	for (uint32_t at = 0; at < most; at++) {
		struct left *e = &v->entries[v->n];

		if (!table_get(t, at, &e->record))
			continue;
		e->at = at;
		e->fds[0] = e->fds[1] = -1;
		v->n++;
	}
	for (uint32_t i = 0; i < v->n; i++)
		take_fds(v, kept, &v->entries[i]);
	return 0;
}

void left_unreadable(struct left *e, const char *why)
{
	for (int kind = 0; kind < 2; kind++)
		e->layouts[kind] = sk_layout_free(e->layouts[kind]);
	free(e->why);
	e->why = strdup(why);
}

void left_free(struct left *e)
{
	free(e->why);
	e->why = NULL;
	for (int kind = 0; kind < 2; kind++) {
		e->fds[kind] = sk_close_fd(e->fds[kind]);
		e->layouts[kind] = sk_layout_free(e->layouts[kind]);
		free(e->sums[kind]);
		e->sums[kind] = NULL;
	}
}
