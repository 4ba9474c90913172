/* SPDX-License-Identifier: Apache-2.0 */
#include "session/lease.h"

#include <assert.h>

#include "agent.h"
#include "session/session.h"

struct lease {
	struct sk_link link;	/* in its session */
	uint64_t image;		/* an id: the image may go before it */
	uint32_t place;		/* enum sk_place */
};

int lease_new(struct session *s, struct sk_cat_image *image, uint32_t place,
	      struct sk_err *err)
{
	struct lease *l;

	assert(!s->closing);
	if (s->n_leases >= MAX_LEASES)
		return sk_err_set(err, -EDQUOT, "this connection has %u "
				  "images open", s->n_leases);
	l = calloc(1, sizeof(*l));
	if (!l)
		return sk_err_set(err, -ENOMEM, "no memory for a lease");
	l->image = image->id;
	l->place = place;
	sk_link_insert(&s->leases, &l->link);
	s->n_leases++;
	image->device_leases += place == SK_PLACE_DEVICE;
	sk_cat_lease(image, 1);
	return 0;
}

static void end(struct session *s, struct lease *l)
{
	struct sk_cat_image *image;

	assert(s->n_leases);
	image = sk_cat_image_by_id(&s->agent->cat, l->image);
	if (image) {
		image->device_leases -= l->place == SK_PLACE_DEVICE;
		sk_cat_lease(image, -1);
	}
	sk_link_remove(&l->link);
	s->n_leases--;
	free(l);
	agent_changed(s->agent);
}

bool lease_end(struct session *s, uint64_t image, uint32_t place)
{
	struct lease *l;

	sk_link_each(l, &s->leases, link) {
		if (l->image != image || l->place != place)
			continue;
		end(s, l);
		return true;
	}
	return false;
}

void lease_end_all(struct session *s)
{
	while (!sk_link_empty(&s->leases))
		end(s, sk_link_object(s->leases.next, struct lease, link));
	assert(!s->n_leases);
}
