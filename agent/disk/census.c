/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/census.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "disk/tally.h"

int census_names(const struct sk_history *h, struct census *ret)
{
	size_t n = sk_history_count(h);
	struct census c = {
		.steps = calloc(n + 1, sizeof(*c.steps)),
		.dirs = calloc(n + 1, sizeof(*c.dirs)),
	};

	if (!c.steps || !c.dirs) {
		census_free(&c);
		return -ENOMEM;
	}
	for (size_t i = 0; i < n; i++) {
		const struct sk_history_step *s = sk_history_at(h, i);

		if (!s->run.number)
			continue;
		c.steps[c.n] = (struct sk_retain_step){
			.run = s->run.number, .run_id = s->run.id,
			.step = (int64_t)s->step, .written_ns = s->mtime_ns,
		};
		sk_history_name(s, c.dirs[c.n++]);
	}
	*ret = c;
	return 0;
}

static void join(struct sk_retain_step *s, const char *dir,
		 const struct tally *t)
{
	const struct tally_run *run = tally_run(t, s->run, s->run_id);
	const struct tally_step *known =
		tally_step(t, s->run, s->run_id, s->step, dir);

	s->living = run && run->living;
	s->ours = run;
	if (!known) {
		s->complete = run && tally_kept(run, s->step);
		return;
	}
	s->world = known->world;
	s->pinned = known->pinned;
	s->kept = known->kept;
	s->passed = known->passed;
	s->in_use = known->in_use;
	s->looked = strcmp(known->dir, dir) == 0;
	if (!s->looked)
		return;
	s->complete = known->on_disk;
	s->bytes = known->bytes;
	s->ranks = tally_ranks(t, known);
}

void census_join(struct census *c, const struct tally *t)
{
	for (size_t i = 0; i < c->n; i++)
		join(&c->steps[i], c->dirs[i], t);
}

void census_free(struct census *c)
{
	free(c->steps);
	free(c->dirs);
	*c = (struct census){ .n = 0 };
}
