/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catalogue, verdicts: what coverage said of sets of images, and the questions
 * that are out.
 *
 * The key of a set is the sum of what its members hash to, so that the order in
 * which ranks come, seal and are evicted does not matter. The hash has a seed
 * that nobody else knows.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "catalogue/private.h"

/* Items of whose boxes telling what they fill takes next to nothing. */
#define LIGHT 512u

struct sk_cat_verdict {
	struct sk_link link;		/* in its job */
	uint64_t key[2];
	int result;
	char text[];			/* "" where the result is 0 */
};

/* ---- sets ---- */

void sk_cat_layout_mark(struct sk_cat_layout *layout)
{
	const struct sk_digest *d = &layout->layout->digest;

	for (int present = 0; present < 2; present++) {
		uint64_t hash = sk_hash_seed() + (uint64_t)present;

		for (int i = 0; i < 2; i++) {
			hash = sk_hash_bytes(hash, d->bytes, sizeof(d->bytes));
			layout->marks[present][i] = hash;
		}
	}
}

struct sk_cat_set sk_cat_set_new(int32_t world)
{
	return (struct sk_cat_set){
		.key[0] = sk_hash_bytes(sk_hash_seed(), &world, sizeof(world)),
	};
}

void sk_cat_set_add(struct sk_cat_set *set, const struct sk_cat_layout *layout,
		    bool present)
{
	set->key[0] += layout->marks[present][0];
	set->key[1] += layout->marks[present][1];
	set->n++;
}

/* ---- verdicts ---- */

static struct sk_cat_verdict *find(const struct sk_cat_job *job,
				   const uint64_t key[2])
{
	struct sk_table_walk walk = sk_table_find(&job->verdicts, key[0]);
	uintptr_t at;

	while (sk_table_next(&walk, &at)) {
		struct sk_cat_verdict *v = (struct sk_cat_verdict *)at;

		if (v->key[0] == key[0] && v->key[1] == key[1])
			return v;
	}
	return NULL;
}

static void forget(struct sk_cat_job *job, struct sk_cat_verdict *v)
{
	(void)sk_table_remove(&job->verdicts, v->key[0], (uintptr_t)v);
	sk_link_remove(&v->link);
	free(v);
}

/* Where there is no memory to keep it, it is asked for again. */
static void keep(struct sk_cat_job *job, const struct sk_cat_question *q)
{
	size_t size = strlen(q->err.text) + 1;
	struct sk_cat_verdict *v = find(job, q->key);

	assert(q->result != -ENOMEM);
	if (v)
		return;
	if (job->verdicts.count >= SK_CAT_VERDICTS)
		forget(job, sk_link_object(job->verdict_order.next,
					   struct sk_cat_verdict, link));
	v = malloc(sizeof(*v) + size);
	if (!v || sk_table_add(&job->verdicts, q->key[0], (uintptr_t)v) < 0) {
		free(v);
		return;
	}
	memcpy(v->key, q->key, sizeof(v->key));
	memcpy(v->text, q->err.text, size);
	v->result = q->result;
	sk_link_insert(&job->verdict_order, &v->link);
}

void sk_cat_verdicts_free(struct sk_cat_job *job)
{
	struct sk_cat_verdict *v;

	/* Whoever has it out hands it back to nobody. */
	if (job->question)
		job->question->job = NULL;
	sk_link_each(v, &job->verdict_order, link)
		forget(job, v);
	sk_table_free(&job->verdicts);
}

bool sk_cat_verdict(struct sk_cat_job *job, const struct sk_cat_set *set,
		    int *ret_result, struct sk_err *err)
{
	struct sk_cat_verdict *v = find(job, set->key);

	if (!v)
		return false;
	sk_link_remove(&v->link);
	sk_link_insert(&job->verdict_order, &v->link);
	*ret_result = v->result;
	if (v->result < 0)
		sk_err_set(err, v->result, "%s", v->text);
	return true;
}

/* ---- questions ---- */

static void question_free(struct sk_cat_question *q)
{
	for (size_t i = 0; i < q->n; i++)
		sk_layout_free(q->layouts[i]);
	free(q->layouts);
	free(q->images);
	free(q);
}

struct sk_cat_question *sk_cat_question_new(struct sk_cat_job *job,
					    const struct sk_cat_set *set,
					    int32_t world)
{
	struct sk_cat_question *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->images = calloc(set->n + 1, sizeof(*q->images));
	q->layouts = calloc(set->n + 1, sizeof(struct sk_layout *));
	if (!q->images || !q->layouts) {
		question_free(q);
		return NULL;
	}
	q->job = job;
	q->uid = job->uid;
	q->world = world;
	q->room = set->n;
	memcpy(q->key, set->key, sizeof(q->key));
	return q;
}

void sk_cat_question_add(struct sk_cat_question *q,
			 const struct sk_cat_layout *layout, bool present)
{
	assert(q->n < q->room);
	/* Its own references, because it may be out for longer than the
	 * catalogue has them. */
	q->layouts[q->n] = sk_layout_ref(layout->layout);
	q->images[q->n].layout = layout->layout;
	q->images[q->n++].present = present;
}

/* Whether it is answered before anybody notices. */
static bool is_light(const struct sk_cat_question *q)
{
	size_t items = 0;

	for (size_t i = 0; i < q->n; i++) {
		items += q->layouts[i]->n_items;
		if (items > LIGHT)
			return false;
	}
	/* Boxes that were said may overlap in ways that take long. */
	for (size_t i = 0; i < q->n; i++)
		for (uint32_t k = 0; k < q->layouts[i]->n_items; k++)
			if (q->layouts[i]->items[k].explicit_boxes)
				return false;
	return true;
}

void sk_cat_question_run(struct sk_cat_question *q)
{
	q->result = sk_coverage_check(q->images, q->n, q->world, &q->err);
}

bool sk_cat_question_end(struct sk_cat_question *q)
{
	struct sk_cat_job *job = q->job;
	bool known = q->result != -ENOMEM;

	if (job) {
		assert(!job->question || job->question == q);
		job->question = NULL;
		sk_cat_changed(job);
	}
	if (job && known)
		keep(job, q);
	question_free(q);
	return known;
}

uid_t sk_cat_question_uid(const struct sk_cat_question *q)
{
	return q->uid;
}

const char *sk_cat_question_job(const struct sk_cat_question *q)
{
	return q->job->name;
}

int sk_cat_question_ask(struct sk_cat_question *q, struct sk_err *err)
{
	struct sk_cat_job *job = q->job;
	struct sk_catalogue *cat = job->catalogue;
	int r;

	assert(!job->question && q->n == q->room);
	cat->coverage_checks++;
	if (cat->ask && !is_light(q)) {
		job->question = q;
		r = cat->ask(cat->ctx, q);
		if (r == 0)
			return -EINPROGRESS;
		job->question = NULL;
		question_free(q);
		return r;
	}
	sk_cat_question_run(q);
	r = q->result;
	if (r < 0)
		sk_err_set(err, r, "%s", q->err.text);
	(void)sk_cat_question_end(q);
	return r;
}
