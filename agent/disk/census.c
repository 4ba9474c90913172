/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/census.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "disk/histories.h"

static size_t words(const struct sk_cat_snapshot *s)
{
	return ((size_t)s->world + 63) / 64;
}

static const struct sk_cat_snapshot *
snapshot_of(const struct sk_cat_job *job, const struct sk_history_step *h)
{
	return sk_cat_snapshot_find(job, h->run.number, h->run.id,
				    (int64_t)h->step);
}

/* What is kept of a step that was looked into. */
static void count_images(const struct sk_cat_snapshot *s, const char *dir,
			 struct sk_retain_step *step, uint64_t *bits)
{
	struct sk_cat_image *image;

	sk_link_each(image, &s->images, link) {
		if (strcmp(image->stored.dir, dir) != 0)
			continue;
		step->looked = true;
		step->bytes += image->stored.file.bytes;
		if (!image->bad_disk)
			bits[image->rank / 64] |= UINT64_C(1)
						  << image->rank % 64;
	}
}

/* It is read, written, to be written, or nobody can tell yet. */
static bool is_in_use(const struct sk_cat_snapshot *s)
{
	return s->leases || s->flushing || s->filling ||
	       s->known.disk_undecided || sk_cat_flushable(s);
}

static void count_step(const struct sk_cat_job *job,
		       const struct sk_history_step *h, const char *dir,
		       struct sk_retain_step *step, uint64_t *bits)
{
	const struct sk_cat_snapshot *s = snapshot_of(job, h);
	const struct sk_cat_run *run = sk_cat_run_find(job, h->run.number,
						       h->run.id);

	*step = (struct sk_retain_step){
		.run = h->run.number, .run_id = h->run.id,
		.step = (int64_t)h->step, .written_ns = h->mtime_ns,
		.living = run && sk_cat_run_living(run), .ours = run,
	};
	if (!s) {
		step->complete = run && sk_cat_run_kept(run, step->step);
		return;
	}
	step->world = s->world;
	step->ranks = bits;
	count_images(s, dir, step, bits);
	step->complete = step->looked && sk_cat_on_disk(s);
	step->pinned = s->pinned;
	step->in_use = is_in_use(s);
}

static int make_room(struct census *c, const struct sk_cat_job *job,
		     const struct sk_history *h)
{
	size_t n = sk_history_count(h), n_bits = 1;

	for (size_t i = 0; i < n; i++) {
		const struct sk_cat_snapshot *s =
			snapshot_of(job, sk_history_at(h, i));

		n_bits += s ? words(s) : 0;
	}
	c->steps = calloc(n + 1, sizeof(*c->steps));
	c->dirs = calloc(n + 1, sizeof(*c->dirs));
	c->bits = calloc(n_bits, sizeof(*c->bits));
	if (c->steps && c->dirs && c->bits)
		return 0;
	census_free(c);
	return -ENOMEM;
}

int census_take(struct agent *a, const struct sk_cat_job *job,
		struct census *ret)
{
	const struct sk_history *h = histories_find(a, job->name);
	struct census c = { .n = 0 };
	uint64_t *bits;

	assert(!a->scanning);
	if (!h) {
		*ret = c;
		return 0;
	}
	if (make_room(&c, job, h) < 0)
		return -ENOMEM;
	bits = c.bits;
	for (size_t i = 0; i < sk_history_count(h); i++) {
		const struct sk_history_step *step = sk_history_at(h, i);

		if (!step->run.number)
			continue;
		sk_history_name(step, c.dirs[c.n]);
		count_step(job, step, c.dirs[c.n], &c.steps[c.n], bits);
		bits += c.steps[c.n].ranks ? ((size_t)c.steps[c.n].world + 63) /
					     64 : 0;
		c.n++;
	}
	*ret = c;
	return 0;
}

void census_free(struct census *c)
{
	free(c->steps);
	free(c->dirs);
	free(c->bits);
	*c = (struct census){ .n = 0 };
}
