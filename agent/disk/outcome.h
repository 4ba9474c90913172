/* SPDX-License-Identifier: Apache-2.0 */
/* What came of a flush: told to the catalogue, the counts and the log. */
#ifndef SK_AGENT_DISK_OUTCOME_H
#define SK_AGENT_DISK_OUTCOME_H

#include "disk/flushing.h"

/** All that is here to be written is. */
void outcome_durable(struct agent *a, const struct flush *f);
/** f->result, with its sentence: it is tried again later, if that is of use. */
void outcome_failed(struct agent *a, const struct flush *f);

#endif
