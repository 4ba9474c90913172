/* SPDX-License-Identifier: Apache-2.0 */
/* Rights: who may see what. */
#ifndef SK_AGENT_SESSION_RIGHTS_H
#define SK_AGENT_SESSION_RIGHTS_H

#include <stdbool.h>

#include "catalogue/catalogue.h"

struct session;

bool session_admin(const struct session *s);
/** 0, or -EPERM and who else may do @what. */
int session_check_admin(const struct session *s, const char *what,
			struct sk_err *err);
/** May the session see the job? */
bool session_sees(const struct session *s, const struct sk_cat_job *job);
/** The job of that name that the session means, or NULL. */
struct sk_cat_job *session_job(const struct session *s, const char *name);
/** The state of that id, if it is this connection's, or NULL. */
struct sk_cat_state *session_state(const struct session *s, uint64_t id);
/** Any state of this connection, or NULL. */
struct sk_cat_state *session_any_state(const struct session *s);

#endif
