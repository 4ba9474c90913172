/* SPDX-License-Identifier: Apache-2.0 */
/* STATUS: how the agent is. */
#include <stdio.h>
#include <string.h>

#include "calls/call.h"
#include "calls/refusals.h"
#include "disk/faults.h"
#include "disk/held.h"
#include "io/io.h"
#include "metrics/metrics.h"
#include "session/rights.h"

/* What names jobs and ranks names nobody else's. */
static void put_why(const struct call *c, enum degraded_id id, char *to,
		    size_t size)
{
	const uid_t *user = session_admin(c->session) ? NULL : &c->session->uid;
	struct sk_err why = { "" };

	switch (id) {
	case DEGRADED_STORE_FULL:
	case DEGRADED_STORE_ERROR:
		faults_why(c->agent, id, user, &why);
		break;
	case DEGRADED_MEMORY:
		refusals_why(c->agent, user, &why);
		break;
	case DEGRADED_PINS:
		held_why(c->agent, user, &why);
		break;
	default:
		memcpy(why.text, c->agent->degraded.v[id].why,
		       sizeof(why.text));
	}
	(void)snprintf(to, size, "%s", why.text);
}

static uint64_t put_states(const struct call *c, struct sk_wire_state *all)
{
	const struct agent *a = c->agent;
	uint64_t n = 0;

	for (int id = 0; id < DEGRADED_COUNT; id++) {
		const struct degraded_state *s = &a->degraded.v[id];
		const struct degraded_info *info = &degraded_infos[id];
		struct sk_wire_state *to = &all[n];

		if (!s->on)
			continue;
		n++;
		(void)snprintf(to->name, sizeof(to->name), "%s", info->name);
		(void)snprintf(to->what, sizeof(to->what), "%s", info->what);
		(void)snprintf(to->remedy, sizeof(to->remedy), "%s",
			       info->remedy);
		put_why(c, (enum degraded_id)id, to->why, sizeof(to->why));
		to->since_ns = agent_now(a) - s->since_ns;
	}
	return n;
}

int call_status(struct call *c)
{
	struct sk_wire_status_reply *reply = &c->out.body.status_reply;
	struct agent *a = c->agent;
	_cleanup_free_ struct sk_wire_state *all = calloc(DEGRADED_COUNT,
							  sizeof(*all));

	if (!all)
		return sk_err_set(&c->err, -ENOMEM, "no memory for a reply");
	reply->n = put_states(c, all);
	reply->stopping = a->stopping;
	reply->uptime_ns = agent_now(a) - a->began_ns;
	reply->store_free_bytes = a->store_free;
	reply->store_bytes = a->store_bytes;
	(void)snprintf(reply->metrics, sizeof(reply->metrics), "%s",
		       metrics_address(a));
	(void)snprintf(reply->io, sizeof(reply->io), "%s",
		       a->io ? sk_io_describe(a->io) : "");
	return call_records(c, "shardkeep:status", all, reply->n,
			    sizeof(*all));
}
