/* SPDX-License-Identifier: Apache-2.0 */
/* What only hardware can tell: what facts.c and facts-beside.c share. */
#ifndef SK_TESTS_SIM_FACTS_H
#define SK_TESTS_SIM_FACTS_H

#include "trainer.h"

extern size_t fact_largest;	/* bytes; set once */

double fact_now(void);
/** Of a memory file; @flags as memfd_create()'s. NULL: there are none such. */
void *fact_pages(size_t bytes, unsigned flags);
sk_cu_stream fact_stream(const struct trainer_cuda *t);

/* Facts, each in a process of its own. */
/** What copies to the host and kernels cost each other, of one process and of
 * two. */
void fact_beside(void);
/** Huge pages, and pages that another process has locked, too. */
void fact_locking(void);
/** Whether a flag of a batch changes what a copy within the device takes. */
void fact_flags(void);
/** What making, mapping and taking over a large piece of memory takes. */
void fact_shared(void);

#endif
