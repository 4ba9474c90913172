/* SPDX-License-Identifier: Apache-2.0 */
/* STATS: counters and gauges, in Prometheus names. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "calls/call.h"
#include "metrics/sample.h"
#include "session/rights.h"

static void put(struct sk_wire_stat *to, const struct sample *from)
{
	const struct metric *m = from->metric;
	const char *word;
	size_t n, first;

	(void)snprintf(to->name, sizeof(to->name), "shardkeep_%s", m->name);
	(void)snprintf(to->help, sizeof(to->help), "%s", m->help);
	to->kind = m->counter;
	to->value = from->value;
	(void)snprintf(to->job, sizeof(to->job), "%s", from->job);
	to->uid = from->job[0] ? from->uid : 0;
	if (!from->key)
		return;
	(void)snprintf(to->key, sizeof(to->key), "%s", from->key);
	word = sample_word(from);
	n = strlen(word);
	first = n < sizeof(to->word) ? n : sizeof(to->word) - 1;
	memcpy(to->word, word, first);
	assert(n - first < sizeof(to->rest));
	memcpy(to->rest, word + first, n - first);
}

static int reply(struct call *c, const struct samples *s)
{
	_cleanup_free_ struct sk_wire_stat *all = calloc(s->n + 1,
							 sizeof(*all));

	if (!all)
		return sk_err_set(&c->err, -ENOMEM, "no memory for a reply");
	for (size_t i = 0; i < s->n; i++)
		put(&all[i], &s->v[i]);
	return call_records(c, "shardkeep:stats", all, s->n, sizeof(*all));
}

int call_stats(struct call *c)
{
	struct samples s = SAMPLES_NULL;
	bool all = session_admin(c->session);
	int r = samples_take(c->agent, all ? NULL : &c->session->uid, &s);

	if (r < 0)
		return sk_err_set(&c->err, r, "no memory for a reply");
	r = reply(c, &s);
	samples_free(&s);
	return r;
}
