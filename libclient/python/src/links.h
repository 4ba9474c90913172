/* SPDX-License-Identifier: Apache-2.0 */
/* Links, for a call that lets the interpreter go on. */
#ifndef SK_PYTHON_LINKS_H
#define SK_PYTHON_LINKS_H

#include "core.h"

extern PyTypeObject links_type;

/** The comm of Links, which nobody else can use until links_give(); NULL
 * raised. @from has to be kept until then. */
const struct sk_comm *links_take(PyObject *from, int32_t *ret_rank,
				 int32_t *ret_world);
void links_give(PyObject *from);

#endif
