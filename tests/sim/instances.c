/* SPDX-License-Identifier: Apache-2.0 */
#include "instances.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the first device: tests/sim/seen.c. */
static int simulated(int n, char ret[INSTANCES_MAX][INSTANCE_NAME])
{
	for (int i = 0; i < n; i++)
		(void)snprintf(ret[i], INSTANCE_NAME,
			       "MIG-76637564-6120-6f66-2061-206e6f64%02x00",
			       (unsigned)i);
	return n;
}

/* "  MIG 1g.10gb  Device  0: (UUID: MIG-01234567-89ab-...)" */
static int listed(char ret[INSTANCES_MAX][INSTANCE_NAME])
{
	FILE *f = popen("nvidia-smi -L 2>/dev/null", "r");
	char line[256];
	int n = 0;

	while (f && n < INSTANCES_MAX && fgets(line, sizeof(line), f)) {
		const char *at = strstr(line, "UUID: MIG-");

		if (at)
			(void)snprintf(ret[n++], INSTANCE_NAME, "%s", at + 6);
	}
	if (f)
		(void)pclose(f);
	return n;
}

int instances_find(char ret[INSTANCES_MAX][INSTANCE_NAME])
{
	const char *said = getenv("VCUDA_MIG");
	int n = said ? atoi(said) : 0;

	if (!getenv("SHARDKEEP_LIBCUDA"))
		return listed(ret);
	return simulated(n < INSTANCES_MAX ? n : INSTANCES_MAX, ret);
}
