/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that was refused slots for want of memory: calls/refusals.h. */
#ifndef SK_AGENT_REFUSAL_H
#define SK_AGENT_REFUSAL_H

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "layout/layout.h"

struct refusal {
	uint64_t bytes;			/* that it lacks; 0: none was refused */
	uid_t uid;
	int32_t rank;
	char job[SK_JOB_MAX + 1];
	struct sk_err why;
};

#endif
