/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, the order in which jobs are listed: what takes long goes on from
 * a name, whoever comes or goes meanwhile. */
#include <string.h>

#include "catalogue/private.h"

struct place {
	const char *name;
	uid_t uid;
};

/* Descending. */
static int order(const void *key, const struct sk_tree_node *node)
{
	const struct sk_cat_job *job = sk_link_object(node, struct sk_cat_job,
						      ordered);
	const struct place *at = key;
	int by_name = strcmp(job->name, at->name);

	return by_name ? by_name : (job->uid > at->uid) - (job->uid < at->uid);
}

void sk_cat_order_add(struct sk_cat_job *job)
{
	const struct place at = { job->name, job->uid };

	sk_tree_add(&job->catalogue->ordered, &job->ordered, &at, order);
}

void sk_cat_order_remove(struct sk_cat_job *job)
{
	const struct place at = { job->name, job->uid };

	sk_tree_remove(&job->catalogue->ordered, &job->ordered, &at, order);
}

struct sk_cat_job *sk_cat_job_after(const struct sk_catalogue *cat,
				    const char *name, uid_t uid)
{
	const struct place at = { name, uid };
	struct sk_tree_node *node = name ?
		sk_tree_after(&cat->ordered, &at, order) :
		sk_tree_first(&cat->ordered);

	return node ? sk_link_object(node, struct sk_cat_job, ordered) : NULL;
}
