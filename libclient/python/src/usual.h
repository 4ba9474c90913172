/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What most tensors of a model are: the framework's own types, strided, whole
 * or cut by a mesh and placements. Those are read here; of any other one, and
 * of one that cannot be stored, Python tells.
 */
#ifndef SK_PYTHON_USUAL_H
#define SK_PYTHON_USUAL_H

#include "core.h"

struct usual;

/** A Usual, borrowed; of None NULL. -1 raised: it is another object, or one
 * that was never made whole. */
int usual_take(PyObject *from, struct usual **ret);

/** What is read of one: its memory is borrowed from it. */
struct usual_read {
	struct sk_tensor *tensor;	/* zero; its name is the caller's */
	int64_t *local_shape;		/* room for SK_MAX_DIMS */
	PyObject *memory;		/* the tensor that has the bytes */
};

/**
 * Reads tensor @t, called @name; @owner is the tensor that it belongs to, or
 * NULL. What its kind was not yet found fit to be stored, or is not usual: 0,
 * and @ret is zero still. 1 if it was read, -1 raised. @ret points into @t
 * and @u.
 */
int usual_read(struct usual *u, PyObject *name, PyObject *t, PyObject *owner,
	       struct usual_read *ret);

/** The tensor that has the bytes of @t: itself, or a sharded one's own part,
 * where @u's api can show it; its look_slot() goes to @ret_slot. Borrowed;
 * NULL: it is not usual, or raised. */
PyObject *usual_memory(const struct usual *u, PyObject *t,
		       Py_ssize_t *ret_slot);

/** Where a plain tensor really is, and its storage; NULL where that is not
 * known. Memory is asked for by it, and never read. */
void usual_insides(const struct usual *u, PyObject *t, const char **ret_impl,
		   const char **ret_storage);

/** Asks the memory for what will be read of tensors to come, before the one
 * at @i is: they lie all over it. @at: borrowed, NULL beyond the last. */
void usual_ahead(const struct usual *u, PyObject *(*at)(void *, Py_ssize_t),
		 void *of, Py_ssize_t i);

const struct dlpack_api *usual_api(const struct usual *u);

#endif
