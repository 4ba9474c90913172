/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/histories.h"

#include <string.h>

#include "agent.h"

static uint64_t hash_job(const char *job)
{
	return sk_hash_bytes(sk_hash_seed(), job, strlen(job));
}

struct sk_history *histories_find(const struct agent *a, const char *job)
{
	struct sk_table_walk walk = sk_table_find(&a->histories,
						  hash_job(job));
	uintptr_t at;

	while (sk_table_next(&walk, &at)) {
		struct sk_history *h = (struct sk_history *)at;

		if (strcmp(sk_history_job(h), job) == 0)
			return h;
	}
	return NULL;
}

struct sk_history *histories_get(struct agent *a, const char *job)
{
	struct sk_history *h = histories_find(a, job);

	if (h)
		return h;
	h = sk_history_new(job);
	if (h && sk_table_add(&a->histories, hash_job(job), (uintptr_t)h) < 0)
		h = sk_history_free(h);
	return h;
}

void histories_trim(struct agent *a, struct sk_history *h)
{
	if (sk_history_count(h))
		return;
	(void)sk_table_remove(&a->histories, hash_job(sk_history_job(h)),
			      (uintptr_t)h);
	sk_history_free(h);
}

void histories_each(const struct agent *a,
		    void (*fn)(void *ctx, struct sk_history *history),
		    void *ctx)
{
	for (size_t i = 0; a->histories.slots && i <= a->histories.mask; i++) {
		uintptr_t value = a->histories.slots[i].value;

		if (value)
			fn(ctx, (struct sk_history *)(value - 1));
	}
}

static void free_one(void *ctx, struct sk_history *h)
{
	(void)ctx;
	sk_history_free(h);
}

void histories_free(struct agent *a)
{
	histories_each(a, free_one, NULL);
	sk_table_free(&a->histories);
}
