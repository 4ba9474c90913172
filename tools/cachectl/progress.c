/* SPDX-License-Identifier: Apache-2.0 */
#include "cachectl.h"

#include <stdio.h>

#define SECOND 1000000000u
#define REDRAW (SECOND / 5)

static uint64_t now(void)
{
	return sk_os_linux()->now_ns(sk_os_linux());
}

void progress_start(struct progress *p, const char *verb, uint64_t total)
{
	*p = (struct progress){ .verb = verb, .total = total,
				.started_ns = now() };
}

void progress_at(struct progress *p, uint64_t done)
{
	uint64_t t = now(), spent = t - p->started_ns;
	char have[32], all[32], rate[32];

	if (spent < SECOND || t - p->shown_ns < REDRAW ||
	    !isatty(STDERR_FILENO))
		return;
	p->shown_ns = t;
	fprintf(stderr, "\r%s %s of %s (%d %%), %s/s\033[K", p->verb,
		format_bytes(done, have, sizeof(have)),
		format_bytes(p->total, all, sizeof(all)),
		p->total ? (int)(100.0 * (double)done / (double)p->total) :
			   100,
		format_bytes((uint64_t)((double)done * 1e9 / (double)spent),
			     rate, sizeof(rate)));
	(void)fflush(stderr);
}

void progress_end(struct progress *p)
{
	if (p->shown_ns)
		fputs("\r\033[K", stderr);
}
