/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SK_LIBCLIENT_CONN_PRIVATE_H
#define SK_LIBCLIENT_CONN_PRIVATE_H

#include "conn/conn.h"

/** Nothing more is asked of it. With the lock held, where others may use it. */
void sk_conn_hang_up(struct sk_conn *conn);

#endif
