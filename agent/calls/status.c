/* SPDX-License-Identifier: Apache-2.0 */
/* STATUS: how the agent is. */
#include <stdio.h>
#include <string.h>

#include "calls/call.h"
#include "io/io.h"
#include "metrics/metrics.h"

static uint64_t put_states(const struct agent *a, struct sk_wire_state *all)
{
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
		memcpy(to->why, s->why, sizeof(to->why));
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
	reply->n = put_states(a, all);
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
