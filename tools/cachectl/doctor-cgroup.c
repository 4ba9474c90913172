/* SPDX-License-Identifier: Apache-2.0 */
/* What the memory cgroup of the agent, or ours, leaves. */
#include "checks.h"

#include <string.h>

#include "base/cgroup.h"
#include "base/size.h"

/* Beside slots: layouts, buffers, threads. */
#define OVERHEAD ((uint64_t)256 << 20)

void check_cgroup(struct doctor *d)
{
	const struct sk_os *os = d->ctx->os;
	char most[SK_SIZE_TEXT], want[SK_SIZE_TEXT];
	struct sk_cgroup group;
	uint64_t limit;
	int r = sk_cgroup_of(os, d->pid, &group);

	if (r < 0) {
		doctor_say(d, "cgroup", VERDICT_WARN, NULL, "that of process "
			   "%s cannot be told: %s", d->pid, strerror(-r));
		return;
	}
	limit = sk_cgroup_limit(os, &group);
	if (limit == UINT64_MAX) {
		doctor_say(d, "cgroup", VERDICT_OK, NULL, "no limit of "
			   "memory");
		return;
	}
	(void)sk_size_format(limit, most, sizeof(most));
	(void)sk_size_format(d->budget + OVERHEAD, want, sizeof(want));
	if (limit < d->budget + OVERHEAD)
		doctor_say(d, "cgroup", VERDICT_FAIL, "raise it, or lower "
			   "--memory: the system would kill the agent",
			   "the limit is %s, budget and what is beside it "
			   "take up to %s", most, want);
	else
		doctor_say(d, "cgroup", VERDICT_OK, NULL, "the limit is %s",
			   most);
}
