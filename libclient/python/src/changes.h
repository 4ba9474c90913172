/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether any of many dicts changed, without a look at each: where the
 * interpreter tells of changes, from 3.12 on. One count for all of them: who
 * finds it another looks at his own. With the interpreter's lock held.
 */
#ifndef SK_PYTHON_CHANGES_H
#define SK_PYTHON_CHANGES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

/** Whether the interpreter tells of every change of @dict. Once it does, it
 * always will. */
bool changes_told(PyObject *dict);

/** Has changes of @dict counted from here on, as long as it lives; no
 * reference is kept. -1 raised; where none can be counted, nothing is. */
int changes_watch(PyObject *dict);

/** The count; 0: none is kept. A change is counted before it is made. */
uint64_t changes_of_dicts(void);

#endif
