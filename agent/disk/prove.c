/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/prove.h"

#include <assert.h>
#include <stdlib.h>

#include "agent.h"
#include "disk/histories.h"
#include "disk/index.h"
#include "disk/stored.h"

/* A millisecond or two, in each second: however many steps there are, and
 * however often their names change, it takes no more. */
#define PORTION 512u
#define PORTION_EACH_NS UINT64_C(1000000000)

struct prove {
	struct work work;
	struct timer timer;
	struct agent *agent;
	bool due, out;
	size_t left, proved;	/* of the portion that is out */
	bool learnt;		/* what the index does not say */
};

/* ---- in the background ---- */

static void prove_history(void *ctx, struct sk_history *h)
{
	struct prove *p = ctx;
	size_t before = sk_history_unproved(h);

	if (!before)
		return;
	if (p->proved < PORTION)
		/* What cannot be looked at is when somebody asks. */
		(void)sk_history_prove_some(h, p->agent->store,
					    PORTION - p->proved, NULL);
	p->proved += before - sk_history_unproved(h);
	p->left += sk_history_unproved(h);
	p->learnt |= sk_history_unsaved(h);
}

static void prove_portion(struct work *work)
{
	struct prove *p = sk_link_object(work, struct prove, work);

	p->left = p->proved = 0;
	p->learnt = false;
	histories_each(p->agent, prove_history, p);
}

/* ---- when ---- */

static void time_to_prove(struct timer *timer)
{
	struct prove *p = sk_link_object(timer, struct prove, timer);

	p->due = true;
	stored_go_on(p->agent);
}

void prove_later(struct agent *a)
{
	struct prove *p = a->prove;

	if (p->due || p->out || p->timer.set)
		return;
	p->timer.fire = time_to_prove;
	timer_set(&a->loop.timers, &p->timer,
		  agent_now(a) + PORTION_EACH_NS);
}

static void proved(struct work *work)
{
	struct prove *p = sk_link_object(work, struct prove, work);
	struct agent *a = p->agent;

	p->out = a->scanning = false;
	/* Where nothing could be looked at, the next look says when. */
	if (p->left && p->proved)
		prove_later(a);
	if (p->learnt)
		index_changed(a, NULL);
	stored_go_on(a);
}

bool prove_is_due(const struct agent *a)
{
	return a->prove && a->prove->due;
}

void prove_begin(struct agent *a)
{
	struct prove *p = a->prove;

	assert(p->due && !p->out && !a->scanning);
	a->scanning = p->out = true;
	p->due = false;
	p->work.run = prove_portion;
	p->work.finish = proved;
	work_submit(&a->loop.works, a->slow, &p->work);
}

int prove_open(struct agent *a)
{
	a->prove = calloc(1, sizeof(*a->prove));
	if (!a->prove)
		return -ENOMEM;
	a->prove->agent = a;
	return 0;
}

void prove_close(struct agent *a)
{
	if (!a->prove)
		return;
	assert(!a->prove->out);
	timer_clear(&a->loop.timers, &a->prove->timer);
	free(a->prove);
	a->prove = NULL;
}
