/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver: what a process leaves behind that ends in order. A
 * driver takes it back; who relies on that leaks while it lives. $VCUDA_LEAKS
 * "tell" has it said, anything else is misuse.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vcuda.h"

VCU_API uint64_t vcudaCount(const char *what);

/* Of what is broken nothing can be given back. */
static bool is_broken(void)
{
	for (int i = 0; i < vcu()->n_devices; i++)
		if (vcu()->contexts[i].sticky)
			return true;
	return false;
}

static void add(char text[512], const char *what, uint64_t n)
{
	size_t at = strlen(text);

	if (n)
		(void)snprintf(text + at, 512 - at, "%s%" PRIu64 " %s",
			       at ? ", " : "", n, what);
}

__attribute__((destructor)) static void tell_what_is_left(void)
{
	static const struct {
		const char *count, *what;
	} kinds[] = {
		{ "streams", "streams" }, { "events", "events" },
		{ "handles", "handles of memory" }, { "modules", "modules" },
		{ "memory", "bytes of memory" },
		{ "reserved", "bytes of addresses" },
		{ "locked", "bytes that are page-locked" },
		{ "contexts", "references to contexts" },
	};
	char text[512] = "";

	if (!vcu_getenv("VCUDA_LEAKS") || !vcu()->initialized ||
	    vcu()->pid != getpid() || is_broken())
		return;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		add(text, kinds[i].what, vcudaCount(kinds[i].count));
	if (!text[0])
		return;
	if (!vcu_said("VCUDA_LEAKS", "tell"))
		vcu_misuse("this process ends and leaves %s", text);
	fprintf(stderr, "vcuda: this process leaves %s\n", text);
}
