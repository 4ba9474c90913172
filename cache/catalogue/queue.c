/* SPDX-License-Identifier: Apache-2.0 */
/* Users stand in the queue in the order of what each has in it first, and the
 * jobs of a user among themselves. */
#include "catalogue/queue.h"

#include <string.h>

#include "catalogue/private.h"

#define USERS_TURN 1	/* of a key; 0 is what counts before it */

static int order(const void *key, const struct sk_tree_node *node)
{
	const struct sk_cat_queued *q = sk_link_object(node,
						       struct sk_cat_queued,
						       node);
	const uint64_t *mine = key;

	for (int i = 0; i < SK_CAT_QUEUE_KEY; i++) {
		if (mine[i] != q->key[i])
			return mine[i] < q->key[i] ? -1 : 1;
	}
	return 0;
}

static const struct sk_cat_job *first_of(const struct sk_cat_user *user)
{
	struct sk_tree_node *node = sk_tree_first(&user->queue);

	return node ? sk_link_object(node, struct sk_cat_job, queued.node) :
		      NULL;
}

/* What it has first is another now, or its turn is. */
static void place_user(struct sk_catalogue *cat, struct sk_cat_user *user)
{
	const struct sk_cat_job *first = first_of(user);
	struct sk_cat_queued *q = &user->queued;

	if (sk_tree_has(&q->node))
		sk_tree_remove(&cat->queue, &q->node, q->key, order);
	if (!first)
		return;
	memcpy(q->key, first->queued.key, sizeof(q->key));
	q->key[USERS_TURN] = user->flush_turn;
	sk_tree_add(&cat->queue, &q->node, q->key, order);
}

static void leave(struct sk_cat_job *job)
{
	struct sk_cat_queued *q = &job->queued;

	if (sk_tree_has(&q->node))
		sk_tree_remove(&job->user->queue, &q->node, q->key, order);
	job->next_out = NULL;
}

void sk_cat_queue_leave(struct sk_cat_job *job)
{
	if (!sk_tree_has(&job->queued.node))
		return;
	leave(job);
	place_user(job->catalogue, job->user);
}

void sk_cat_queue_put(struct sk_cat_snapshot *s,
		      const struct sk_cat_queue_place *at)
{
	struct sk_cat_job *job = s->job;
	const uint64_t key[SK_CAT_QUEUE_KEY] = {
		at->before,
		0,
		at->turn,
		at->served,
		s->created_ns,
		(uintptr_t)job,
	};

	leave(job);
	job->next_out = s;
	memcpy(job->queued.key, key, sizeof(key));
	sk_tree_add(&job->user->queue, &job->queued.node, key, order);
	place_user(job->catalogue, job->user);
}

struct sk_cat_snapshot *sk_cat_queue_first(const struct sk_catalogue *cat)
{
	struct sk_tree_node *node = sk_tree_first(&cat->queue);

	return node ? first_of(sk_link_object(node, struct sk_cat_user,
					      queued.node))->next_out : NULL;
}
