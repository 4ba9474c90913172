/* SPDX-License-Identifier: Apache-2.0 */
#include "catalogue/told.h"

#include "catalogue/private.h"

enum { OF_ALL = 0, OF_USER };	/* whose tree */

static struct sk_cat_job *job_at(const struct sk_tree_node *node, int of)
{
	return sk_link_object(node - of, struct sk_cat_job, by_bytes);
}

/* The largest first; else in any order, as long as it is one. */
static int compare(const struct sk_cat_job *job,
		   const struct sk_cat_job *other)
{
	if (job->used.bytes != other->used.bytes)
		return job->used.bytes > other->used.bytes ? -1 : 1;
	return ((uintptr_t)job > (uintptr_t)other) -
	       ((uintptr_t)job < (uintptr_t)other);
}

static int order_all(const void *key, const struct sk_tree_node *node)
{
	return compare(key, job_at(node, OF_ALL));
}

static int order_of_user(const void *key, const struct sk_tree_node *node)
{
	return compare(key, job_at(node, OF_USER));
}

void sk_cat_told_add(struct sk_cat_job *job)
{
	sk_tree_add(&job->catalogue->by_bytes, &job->by_bytes[OF_ALL], job,
		    order_all);
	sk_tree_add(&job->user->by_bytes, &job->by_bytes[OF_USER], job,
		    order_of_user);
}

void sk_cat_told_remove(struct sk_cat_job *job)
{
	sk_tree_remove(&job->catalogue->by_bytes, &job->by_bytes[OF_ALL], job,
		       order_all);
	sk_tree_remove(&job->user->by_bytes, &job->by_bytes[OF_USER], job,
		       order_of_user);
}

struct sk_cat_job *sk_cat_largest(const struct sk_catalogue *cat,
				  const struct sk_cat_user *user,
				  const struct sk_cat_job *after)
{
	const struct sk_tree *tree = user ? &user->by_bytes : &cat->by_bytes;
	struct sk_tree_node *node = !after ? sk_tree_first(tree) :
		sk_tree_after(tree, after, user ? order_of_user : order_all);

	return node ? job_at(node, user ? OF_USER : OF_ALL) : NULL;
}

static void tell_of(struct sk_cat_job *job)
{
	struct sk_catalogue *cat = job->catalogue;
	const struct sk_cat_snapshot *s;
	unsigned n = 0;

	cat->visits++;
	sk_link_each(s, &job->live, live)
		n += sk_cat_flushable(s);
	cat->n_to_write = cat->n_to_write - job->n_to_write + n;
	job->n_to_write = n;
}

void sk_cat_tell(struct sk_catalogue *cat)
{
	struct sk_cat_job *job;
	struct sk_link awake;

	sk_cat_awake_take(cat, SK_CAT_TELL, &awake);
	while ((job = sk_cat_awake_next(&awake, SK_CAT_TELL)))
		tell_of(job);
}
