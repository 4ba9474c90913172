/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver: which of the machine's devices a process sees.
 *
 * With $VCUDA_MIG each device is split into so many instances, each a device
 * of its own to whoever has it, and a process sees one: the one that
 * $CUDA_VISIBLE_DEVICES names, else the first. Of that variable only names are
 * looked at, "GPU-..." and "MIG-..."; what numbers say, $VCUDA_FIRST says here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vcuda.h"

#define NAME_LEN 40		/* "GPU-01234567-89ab-cdef-0123-456789abcdef" */

static int first(void)
{
	return (int)vcu_setting("VCUDA_FIRST", 0);
}

static int limit(const char *name, int otherwise)
{
	long n = vcu_setting(name, otherwise);

	return n < 0 ? 0 : n > VCU_DEVICES_MAX ? VCU_DEVICES_MAX : (int)n;
}

int vcu_instances(void)
{
	return limit("VCUDA_MIG", 0);
}

/* ---- names ---- */

static sk_cu_uuid uuid_of(int gpu, int instance)
{
	sk_cu_uuid uuid;

	memcpy(uuid.bytes, "vcuda of a node ", sizeof(uuid.bytes));
	if (instance >= 0)
		uuid.bytes[14] = (char)instance;
	uuid.bytes[15] = (char)gpu;
	return uuid;
}

static void write_name(sk_cu_uuid uuid, bool instance,
		       char ret[NAME_LEN + 1])
{
	char *at = ret + sprintf(ret, "%s", instance ? "MIG" : "GPU");

	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%s%02x", !i || i == 4 || i == 6 || i == 8 ||
			      i == 10 ? "-" : "",
			      (unsigned char)uuid.bytes[i]);
}

static bool is_named(const char *name, int gpu, int instance)
{
	char own[NAME_LEN + 1];

	write_name(uuid_of(gpu, instance), instance >= 0, own);
	return !strncmp(name, own, NAME_LEN);
}

/* ---- what is seen ---- */

static bool find(const char *name, struct vcu_seen *ret)
{
	const int n = vcu_instances();

	for (int gpu = 0; gpu < limit("VCUDA_DEVICES", 1); gpu++) {
		*ret = (struct vcu_seen){ gpu, n ? 0 : -1 };
		if (is_named(name, gpu + first(), -1))
			return true;
		for (ret->instance = 0; ret->instance < n; ret->instance++)
			if (is_named(name, gpu + first(), ret->instance))
				return true;
	}
	return false;
}

/* The first that is not there ends the list, as the real driver has it. */
static int look_for(const char *names, struct vcu_seen *ret)
{
	const int most = vcu_instances() ? 1 : VCU_DEVICES_MAX;
	int n = 0;

	while (n < most && find(names, &ret[n])) {
		n++;
		names = strchr(names, ',');
		if (!names)
			break;
		names++;
	}
	return n;
}

int vcu_look(struct vcu_seen ret[VCU_DEVICES_MAX])
{
	const char *names = getenv("CUDA_VISIBLE_DEVICES");
	int n = limit("VCUDA_DEVICES", 1);

	if (names && (!strncmp(names, "GPU-", 4) || !strncmp(names, "MIG-", 4)))
		return look_for(names, ret);
	if (n && vcu_instances())
		n = 1;
	for (int i = 0; i < n; i++)
		ret[i] = (struct vcu_seen){ i, vcu_instances() ? 0 : -1 };
	return n;
}

int vcu_physical(int device)
{
	return vcu()->seen[device].gpu + first();
}

int vcu_unit(int device)
{
	return vcu_physical(device) | (vcu()->seen[device].instance + 1) << 8;
}

sk_cu_uuid vcu_uuid(int device, bool whole)
{
	return uuid_of(vcu_physical(device),
		       whole ? -1 : vcu()->seen[device].instance);
}
