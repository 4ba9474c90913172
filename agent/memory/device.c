/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/device.h"

#include <stdio.h>
#include <string.h>

#include "base/token.h"

bool device_slots_made(const struct agent *a)
{
	/* Where a sealed slot cannot be mapped for writing again, nobody but
	 * its rank can fill it. */
	return a->opts->device_memory && !a->opts->seal_writes;
}

struct device_slot *device_slot_of(const struct agent *a,
				   const struct sk_cat_state *state)
{
	struct device_slot *d;

	sk_link_each(d, &a->device_slots, link)
		if (d->state == state)
			return d;
	return NULL;
}

bool device_slot_is_void(const struct device_slot *d)
{
	return d->fd >= 0 && sk_token_is_void(d->agent->os, d->fd);
}

uint64_t device_bytes(const struct agent *a, const uint8_t *uuid)
{
	const struct device_slot *d;
	uint64_t bytes = 0;

	sk_link_each(d, &a->device_slots, link)
		if (!memcmp(d->uuid, uuid, sizeof(d->uuid)))
			bytes += d->bytes;
	return bytes;
}

uint64_t device_bytes_of_job(const struct agent *a,
			     const struct sk_cat_job *job)
{
	const struct device_slot *d;
	uint64_t bytes = 0;

	sk_link_each(d, &a->device_slots, link)
		if (d->state && d->state->run->job == job)
			bytes += d->bytes;
	return bytes;
}

unsigned device_uses(const struct agent *a, struct device_use *ret,
		     unsigned room)
{
	const struct device_slot *d;
	unsigned n = 0, i;

	sk_link_each(d, &a->device_slots, link) {
		for (i = 0; i < n; i++)
			if (!memcmp(ret[i].uuid, d->uuid, sizeof(d->uuid)))
				break;
		if (i == room)
			continue;
		if (i == n) {
			memcpy(ret[i].uuid, d->uuid, sizeof(d->uuid));
			ret[i].instance = false;
			ret[n++].bytes = 0;
		}
		ret[i].bytes += d->bytes;
		ret[i].instance |= d->instance;
	}
	return n;
}

unsigned device_slots_count(const struct agent *a)
{
	const struct device_slot *d;
	unsigned n = 0;

	sk_link_each(d, &a->device_slots, link)
		n += d->fd >= 0 && d->state;
	return n;
}

void device_name(const uint8_t *uuid, bool instance, char ret[DEVICE_NAME])
{
	size_t at = (size_t)sprintf(ret, "%s", instance ? "MIG" : "GPU");

	for (int i = 0; i < 16; i++)
		at += (size_t)sprintf(ret + at, "%s%02x", i == 0 || i == 4 ||
				      i == 6 || i == 8 || i == 10 ? "-" : "",
				      uuid[i]);
}
