/* SPDX-License-Identifier: Apache-2.0 */
#include "base/strangers.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define USUAL 65534u		/* where /proc does not say it */
#define ALL UINT64_C(4294967295)	/* uids; the last number is none */

/* How many uids lines "inside outside count" are about. They do not overlap:
 * the kernel sees to that. */
static uint64_t count_mapped(const char *text)
{
	uint64_t sum = 0, count;

	for (; text && *text; text = strchr(text, '\n')) {
		text += *text == '\n';
		if (sscanf(text, "%*u %*u %" SCNu64, &count) == 1)
			sum += count;
	}
	return sum;
}

uid_t sk_strangers_uid(const struct sk_os *os)
{
	char text[16384];

	/* A kernel without user namespaces has no such file. */
	if (sk_text_read(os, "/proc/self/uid_map", text, sizeof(text)) < 0 ||
	    count_mapped(text) >= ALL)
		return (uid_t)-1;
	if (sk_text_read(os, "/proc/sys/kernel/overflowuid", text,
			 sizeof(text)) < 0)
		return USUAL;
	return (uid_t)strtoul(text, NULL, 10);
}
