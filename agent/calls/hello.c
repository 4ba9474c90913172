/* SPDX-License-Identifier: Apache-2.0 */
/* HELLO: who speaks here, and whether both sides speak alike. */
#include <string.h>

#include "base/cgroup.h"
#include "calls/call.h"
#include "calls/device.h"
#include "shardkeep-version.h"
#include "wire/version.h"

static int agree(struct call *c)
{
	unsigned theirs = c->in->body.hello.version;
	unsigned version = sk_wire_common(theirs);

	if (version) {
		c->session->version = version;
		return 0;
	}
	return sk_err_set(&c->err, -EPROTO, "the agent %s speaks versions %u "
			  "and %u of the protocol, the client version %u; "
			  "upgrade the %s", SK_VERSION, SK_WIRE_OLDEST,
			  SK_WIRE_VERSION, theirs,
			  theirs < SK_WIRE_OLDEST ? "client" : "agent");
}

int call_hello(struct call *c)
{
	const struct sk_wire_hello *in = &c->in->body.hello;
	struct sk_wire_hello_reply *reply = &c->out.body.hello_reply;
	struct agent *a = c->agent;
	int r = agree(c);

	static_assert(sizeof(SK_VERSION) <= sizeof(reply->version),
		      "the version fits the reply");
	if (r < 0)
		return r;
	/* Here and not in the table: another version may mean something by
	 * them, and is told what to do. */
	if (in->flags)
		return sk_err_set(&c->err, -EINVAL, "flags %#x of a hello are "
				  "not known", in->flags);
	if (c->session->uid == a->strangers)
		return sk_err_set(&c->err, -EACCES, "the agent runs in a user "
				  "namespace and sees this user, and others, "
				  "as %u: run it outside, or map the user "
				  "into its namespace", c->session->uid);
	c->session->greeted = true;
	c->session->faults_nothing = sk_cgroup_differs(a->os, c->session->pid);
	reply->instance = a->instance;
	reply->budget_bytes = a->cat.budget;
	/* How much others use is theirs, but that memory is short is not. */
	reply->used_bytes = a->cat.used;
	reply->pid = (uint32_t)getpid();
	reply->uid = a->uid;
	reply->has_store = !a->store ? 0 : a->store_volatile ? 2 : 1;
	if (c->session->faults_nothing)
		reply->flags |= SK_HELLO_AGENT_FAULTS;
	reply->has_devices = device_slots_made(a);
	reply->wire = SK_WIRE_VERSION;
	memcpy(reply->version, SK_VERSION, sizeof(SK_VERSION));
	if (a->store)
		(void)strncat(reply->store, sk_store_path(a->store),
			      sizeof(reply->store) - 1);
	return 0;
}
