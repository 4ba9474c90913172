/* SPDX-License-Identifier: Apache-2.0 */
/* Where in the host a device is. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "cuda/private.h"

static bool ask(const struct sk_cuda_device *device, sk_cu_enum attribute,
		int *ret)
{
	return device->driver->cuDeviceGetAttribute(ret, attribute,
						    device->id) ==
	       SK_CU_SUCCESS;
}

/* Documentation/ABI/testing/sysfs-bus-pci of Linux; -1 stands in it where the
 * firmware says nothing. */
static int node_of_bus(const struct sk_os *os,
		       const struct sk_cuda_device *device)
{
	int domain, bus, slot;
	char path[64], text[16], *end;
	long node;

	if (!ask(device, SK_CU_DEVICE_PCI_DOMAIN, &domain) ||
	    !ask(device, SK_CU_DEVICE_PCI_BUS, &bus) ||
	    !ask(device, SK_CU_DEVICE_PCI_DEVICE, &slot))
		return -1;
	(void)snprintf(path, sizeof(path),
		       "/sys/bus/pci/devices/%04x:%02x:%02x.0/numa_node",
		       domain, bus, slot);
	if (sk_text_read(os, path, text, sizeof(text)) < 0)
		return -1;
	node = strtol(text, &end, 10);
	return end > text && node >= 0 && node <= INT_MAX ? (int)node : -1;
}

int sk_cuda_numa_node(const struct sk_os *os,
		      const struct sk_cuda_device *device)
{
	int node;

	if (ask(device, SK_CU_DEVICE_HOST_NUMA_ID, &node) && node >= 0)
		return node;
	return node_of_bus(os, device);
}
