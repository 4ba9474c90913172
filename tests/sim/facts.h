/* SPDX-License-Identifier: Apache-2.0 */
/* What only hardware can tell: what its files share. */
#ifndef SK_TESTS_SIM_FACTS_H
#define SK_TESTS_SIM_FACTS_H

#include "trainer.h"

extern size_t fact_largest;	/* bytes; set once */

double fact_now(void);
/** Of a memory file; @flags as memfd_create()'s. NULL: there are none such. */
void *fact_pages(size_t bytes, unsigned flags);
sk_cu_stream fact_stream(const struct trainer_cuda *t);

/* Facts, each in a process of its own. */
/** Results that nothing relies on. */
void fact_answers(void);
/** Thousands of small copies, by batches and by a kernel of ours, beside one of
 * as many bytes; a transposed matrix. */
void fact_small(void);
/** What cuMemCreate() makes on a node of the host: whether it can be had in
 * place of a memory file, what it takes, and what can be done with it. */
void fact_node(void);
/** What a long copy costs others that come meanwhile, by how it is asked
 * for. */
void fact_pace(void);
/** What copies to the host and kernels cost each other, of one process and of
 * two. */
void fact_beside(void);
/** How long a small call of a trainer's takes while another thread page-locks
 * memory, in pieces of which size. */
void fact_stalls(void);
/** Whether a kernel of ours is loaded, and runs, beside a stream that waits. */
void fact_first_kernel(void);
/** Huge pages, and pages that another process has locked, too. */
void fact_locking(void);
/** Whether a flag of a batch changes what a copy within the device takes. */
void fact_flags(void);
/** What is said of pointers to memory of pools, managed, or in pieces. */
void fact_pointers(void);
/** What a killed process leaves where a child of a fork has its descriptors. */
void fact_heir(void);
/** What making, mapping and taking over a large piece of memory takes. */
void fact_shared(void);

#endif
