/* SPDX-License-Identifier: Apache-2.0 */
#include "upkeep.h"

#include "agent.h"
#include "keeper/kept.h"

#define LOOK_NS UINT64_C(2000000000)

/* Clients that are connected stay; others find us again. */
static void look_at_socket(struct agent *a)
{
	struct sk_err err = { "" };
	int r;

	if (endpoint_is_there(a->os, &a->endpoint))
		return;
	(void)loop_watch(&a->loop, &a->listener, 0);
	r = endpoint_renew(a->os, &a->endpoint, &err);
	a->listener.fd = a->endpoint.sock;
	(void)loop_watch(&a->loop, &a->listener, EPOLLIN);
	if (r == 0) {
		log_warning(a, "the socket %s was gone; listening there again",
			    a->endpoint.path);
		(void)keeper_give(a->os, &a->keeper, KEPT_LISTENER,
				  a->endpoint.sock);
		(void)keeper_give(a->os, &a->keeper, KEPT_LOCK,
				  a->endpoint.lock);
	}
	else if (!a->displaced)
		log_error(a, "the socket %s is gone: %s", a->endpoint.path,
			  r > 0 ? "another agent serves there now" :
				  err.text);
	a->displaced = r != 0;
}

void upkeep_log(struct agent *a)
{
	char path[sizeof(a->endpoint.path) + 16];

	if (!a->opts->detach)
		return;
	endpoint_log_path(&a->endpoint, path, sizeof(path));
	/* Where it cannot be, lines go on to the file that was. */
	(void)log_to_file(a->os, path);
}

static void look(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, upkeep_timer);

	look_at_socket(a);
	upkeep_log(a);
	upkeep_start(a);
}

void upkeep_start(struct agent *a)
{
	a->upkeep_timer.fire = look;
	timer_set(&a->loop.timers, &a->upkeep_timer, agent_now(a) + LOOK_NS);
}
