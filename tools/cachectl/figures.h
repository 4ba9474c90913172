/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent counts, by job, as status and top show it. */
#ifndef SK_CACHECTL_FIGURES_H
#define SK_CACHECTL_FIGURES_H

#include <stdbool.h>
#include <stddef.h>

#include "wire/message.h"

/** The agent's figures at one moment; all zero: none. */
struct figures {
	struct sk_wire_stat *v;		/* owned */
	size_t n;
};

/** One of the agent's own; 0 where there is none. */
double figure(const struct figures *f, const char *name);
/** One of a job's; @word: of what, or "". False: there is none. */
bool figure_of(const struct figures *f, const char *name, const char *job,
	       uint32_t uid, const char *word, double *ret);
/** The i-th job, in the agent's order; NULL: there are no more. It has the
 * job's name and uid. */
const struct sk_wire_stat *figure_job(const struct figures *f, size_t i);

#endif
