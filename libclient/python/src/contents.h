/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a dict or a list has in it: whether those are the very same objects
 * still, in the same order. And of an object, whether its attributes are in
 * the very same dict.
 */
#ifndef SK_PYTHON_CONTENTS_H
#define SK_PYTHON_CONTENTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

struct contents {
	PyObject *what;
	PyTypeObject *type;	/* values of others are nobody's business;
				 * NULL: those of other names */
	bool owner;		/* the value is its dict, and no more is
				 * looked at */
	uint64_t version;	/* of a dict, when it was compared last */
	PyObject **items;	/* key, NULL in a list, and value each */
	Py_ssize_t n;
};

/** A number that changes whenever a dict does; 0: there is none. */
static inline uint64_t dict_version(PyObject *dict)
{
#if PY_VERSION_HEX < 0x030c0000
	return ((PyDictObject *)dict)->ma_version_tag;
#else
	(void)dict;
	return 0;
#endif
}

/** Takes (dict or list, type), (dict, names), or (object, None). @ret is zero,
 * and to be let go of in either case. -1 raised. */
int contents_take(PyObject *from, struct contents *ret);
void contents_drop(struct contents *c);
int contents_visit(const struct contents *c, visitproc visit, void *arg);

bool contents_same(struct contents *c);

#endif
