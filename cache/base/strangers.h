/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Users that a user namespace has no number for. The kernel shows all of them
 * as one, the overflow uid, so there they cannot be told apart.
 */
#ifndef SK_CACHE_BASE_STRANGERS_H
#define SK_CACHE_BASE_STRANGERS_H

#include "base/os.h"

/** The uid that stands for everybody whom this process' user namespace does
 * not know; (uid_t)-1: it knows all, and each uid is one user. */
uid_t sk_strangers_uid(const struct sk_os *os);

#endif
