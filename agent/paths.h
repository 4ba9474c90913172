/* SPDX-License-Identifier: Apache-2.0 */
/* Relative paths of options: from where the agent was started. */
#ifndef SK_AGENT_PATHS_H
#define SK_AGENT_PATHS_H

#include "options.h"

/** @path from @here, in memory of the caller's; itself where it is absolute or
 * @here is NULL. NULL: no memory for it. */
char *path_from(const char *here, const char *path);
/**
 * Makes all of @o absolute, so that going to the background moves none of
 * them. A socket stays relative where its address has no room for more: then
 * the agent has to stay where it is. -EINVAL with a word on standard error:
 * o->here is NULL, as the directory was removed; -ENOMEM.
 */
int paths_fix(struct options *o);

#endif
