/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catalogue, who is awake: the jobs of which something has changed since a
 * duty has looked at them. What nobody touches costs nothing, however many
 * such jobs there are.
 */
#include <assert.h>

#include "catalogue/private.h"

void sk_cat_awake_init(struct sk_link lists[SK_CAT_DUTIES])
{
	for (int duty = 0; duty < SK_CAT_DUTIES; duty++)
		sk_link_init(&lists[duty]);
}

void sk_cat_awake_leave(struct sk_cat_job *job)
{
	for (int duty = 0; duty < SK_CAT_DUTIES; duty++)
		sk_link_remove(&job->awake[duty]);
}

void sk_cat_wake_for(struct sk_cat_job *job, enum sk_cat_duty duty)
{
	/* Who is awake keeps its place: the list may be being walked. */
	if (sk_link_empty(&job->awake[duty]))
		sk_link_insert(&job->catalogue->awake[duty],
			       &job->awake[duty]);
}

void sk_cat_wake(struct sk_cat_job *job)
{
	for (int duty = 0; duty < SK_CAT_DUTIES; duty++)
		sk_cat_wake_for(job, (enum sk_cat_duty)duty);
}

void sk_cat_changed(struct sk_cat_job *job)
{
	job->changes++;
	sk_cat_wake(job);
}

void sk_cat_sleep(struct sk_cat_job *job, enum sk_cat_duty duty)
{
	sk_link_remove(&job->awake[duty]);
}

void sk_cat_awake_take(struct sk_catalogue *cat, enum sk_cat_duty duty,
		       struct sk_link *ret)
{
	/* It takes the head's place. */
	sk_link_init(ret);
	sk_link_insert(&cat->awake[duty], ret);
	sk_link_remove(&cat->awake[duty]);
}

struct sk_cat_job *sk_cat_awake_next(struct sk_link *taken,
				     enum sk_cat_duty duty)
{
	struct sk_link *first = taken->next;

	if (first == taken)
		return NULL;
	sk_link_remove(first);
	return sk_link_object(first, struct sk_cat_job, awake[duty]);
}
