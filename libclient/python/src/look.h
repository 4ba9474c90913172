/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One tensor that is watched, by the framework's C functions where it has
 * them, without an object made; else by the tensor's attributes. What is
 * looked at lies all over the memory and has left the caches since the last
 * time, so that looking is waiting for memory: who looks at many asks for
 * what will be needed a few tensors ahead.
 */
#ifndef SK_PYTHON_LOOK_H
#define SK_PYTHON_LOOK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

#include "dlpack.h"

struct usual;

struct watched {
	PyObject *where, *key;	/* the dict that holds it, and its name there */
	PyObject *tensor;	/* it */
	PyObject *local;	/* what has its data; itself, if not sharded */
	uint64_t version;	/* of the dict, when it was found there last */
	Py_ssize_t slot;	/* where in the tensor that lies; 0: look.c */
	PyObject *look;		/* (data_ptr, shape, strides, dtype), or NULL:
				 * the following */
	struct dlpack_tensor seen;
	int64_t *sizes;		/* its shape, then its strides */
	const char *impl, *storage;	/* the framework's, never read here */
};

/** How many tensors ahead to look_ahead(). */
#define LOOK_AHEAD 8

/** What a capsule has that can show tensors; NULL: nothing. -1 raised. */
int look_api(PyObject *capsule, const struct dlpack_api **ret);

/** Where objects of a type keep an attribute; 0: it must be asked for. */
Py_ssize_t look_slot(PyTypeObject *type, const char *attribute);

/** Takes (dict, key) and the tensor that is there. @ret is zero, and to be let
 * go of in any case. 1, 0 where it is no place to look at, -1 raised. */
int look_find(PyObject *from, struct watched *ret);
/** Then how it looks, by @u, which may be NULL; of what that does not know,
 * @local_of tells what has its data. The same is returned. */
int look_take(const struct usual *u, PyObject *local_of, struct watched *w);
void look_drop(struct watched *w);

/** Whether it is where and as it was, @placed: as it was alone, its dict is
 * known to have it; -1 raised. */
int look_same(const struct usual *u, struct watched *w, bool placed);

/** Asks the memory for what look_same() will read. Always inline: a function
 * that does nothing but this is one without effects to GCC, which drops it. */
__attribute__((always_inline))
static inline void look_ahead(const struct watched *w, bool placed)
{
	if (!placed)
		__builtin_prefetch(w->where);
	__builtin_prefetch(w->sizes);
	__builtin_prefetch((const char *)w->tensor + w->slot);
	__builtin_prefetch(w->local);
	__builtin_prefetch(w->local + 1);
	__builtin_prefetch(w->impl);
	__builtin_prefetch(w->impl + 64);
	__builtin_prefetch(w->impl + 128);
	__builtin_prefetch(w->impl + 192);
	__builtin_prefetch(w->storage);
}

#endif
