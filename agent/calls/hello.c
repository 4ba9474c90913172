/* SPDX-License-Identifier: Apache-2.0 */
/* HELLO: who speaks here, and whether both sides speak alike. */
#include <string.h>

#include "calls/call.h"
#include "calls/device.h"
#include "shardkeep-version.h"

int call_hello(struct call *c)
{
	const struct sk_wire_hello *in = &c->in->body.hello;
	struct sk_wire_hello_reply *reply = &c->out.body.hello_reply;
	struct agent *a = c->agent;

	static_assert(sizeof(SK_VERSION) <= sizeof(reply->version),
		      "the version fits the reply");
	if (in->version != SK_WIRE_VERSION)
		return sk_err_set(&c->err, -EPROTO, "the agent %s speaks "
				  "version %u of the protocol, the client %u; "
				  "upgrade the older one", SK_VERSION,
				  SK_WIRE_VERSION, in->version);
	/* Here and not in the table: another version may mean something by
	 * them, and is told what to do. */
	if (in->flags)
		return sk_err_set(&c->err, -EINVAL, "flags %#x of a hello are "
				  "not known", in->flags);
	c->session->greeted = true;
	reply->instance = a->instance;
	reply->budget_bytes = a->cat.budget;
	/* How much others use is theirs, but that memory is short is not. */
	reply->used_bytes = a->cat.used;
	reply->pid = (uint32_t)getpid();
	reply->uid = a->uid;
	reply->has_store = !a->store ? 0 : a->store_volatile ? 2 : 1;
	reply->has_devices = device_slots_made(a);
	memcpy(reply->version, SK_VERSION, sizeof(SK_VERSION));
	if (a->store)
		(void)strncat(reply->store, sk_store_path(a->store),
			      sizeof(reply->store) - 1);
	return 0;
}
