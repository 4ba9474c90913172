/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent counts, by job, as status and top show it. */
#ifndef SK_CACHECTL_FIGURES_H
#define SK_CACHECTL_FIGURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "report.h"
#include "wire/message.h"

#define FIGURE_WORD (sizeof(((struct sk_wire_stat *)0)->word) +		\
		     sizeof(((struct sk_wire_stat *)0)->rest) + 1)

/** The agent's figures at one moment; all zero: none. */
struct figures {
	struct sk_wire_stat *v;		/* owned */
	size_t n;
};

/** Towards 0, and not beyond what a whole number can be; of what is no number
 * 0. */
int64_t figure_whole(double value);
/** One of the agent's own, as figure_whole(); 0 where there is none. */
int64_t figure(const struct figures *f, const char *name);
/** One of a job's; @word: of what, or "". False: there is none. */
bool figure_of(const struct figures *f, const char *name, const char *job,
	       uint32_t uid, const char *word, double *ret);
/** The @i-th of that name, in the agent's order; NULL: there are no more. */
const struct sk_wire_stat *figure_at(const struct figures *f, const char *name,
				     size_t i);
/** What tells it apart from others of its name; "": nothing. Returns @buf. */
char *figure_word(const struct sk_wire_stat *s, char buf[FIGURE_WORD]);
/** The i-th job, in the agent's order; NULL: there are no more. It has the
 * job's name and uid. */
const struct sk_wire_stat *figure_job(const struct figures *f, size_t i);

/* ---- of reports ---- */

/** A cell of one of a job's, as figure_of(); empty where there is none. */
void figures_cell(struct report *r, enum cell_kind kind,
		  const struct figures *f, const char *name,
		  const struct sk_wire_stat *job, const char *word);
/** What of the budget is taken; @table: in words as well. */
void figures_memory(struct report *r, const struct figures *f, bool table);

/* ---- gpus.c ---- */

/** Whether the agent gives memory of GPUs, or has any of it out. */
bool figures_have_gpus(const struct figures *f);
/** How many device slots there are, and what became of others. */
void figures_count_gpus(struct report *r, const struct figures *f);
/** A line for each GPU; for people (@table) none where there is none. */
void figures_list_gpus(struct report *r, const struct figures *f, bool table);

#endif
