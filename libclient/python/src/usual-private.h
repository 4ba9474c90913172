/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of Usual share: usual.c reads one tensor, usual-memory.c
 * where its bytes lie, usual-place.c the mesh that cuts it, usual-ahead.c asks
 * for the memory of those to come, usual-parts.c lists what they consist of.
 */
#ifndef SK_PYTHON_USUAL_PRIVATE_H
#define SK_PYTHON_USUAL_PRIVATE_H

#include "insides.h"
#include "look.h"
#include "usual.h"

/* Names of attributes, made once. */
enum name {
	LOCAL, SPEC, MESH, PLACEMENTS, SHAPE, DIM, SPLIT, DTYPE, STORAGE,
	NBYTES, OFFSET, RAW, OUTSIDE, SHARDS, GLOBAL, META,
	N_NAMES
};

/* A mesh and placements; most tensors share a few. */
struct place {
	PyObject *device_mesh, *mesh;
	struct sk_mesh *sk;
	int n;
	struct sk_placement v[SK_MAX_DIMS];
	bool outside;			/* this rank is not in the mesh */
};

/* With more than so many, Python tells of the others. */
#define PLACES_MAX 64

/* A type and dispatch keys that were found fit. */
struct kind {
	PyTypeObject *type;		/* one of the plain ones */
	uint64_t keys;
	PyObject *device;		/* what stands in fit: its kind */
};

#define KINDS_MAX 8

struct usual {
	PyObject_HEAD
	PyObject *args;			/* the following are borrowed from */
	PyObject *keys, *fit, *plain, *kinds, *placed, *dtypes;
	PyTypeObject *sharded;
	Py_ssize_t slot;		/* of a sharded one's own part */
	Py_ssize_t spec_slot;		/* and of its spec; 0: asked for */
	struct insides insides;
	struct kind found[KINDS_MAX];
	int n_found;
	const struct dlpack_api *api;
	PyObject *names[N_NAMES];
	struct place places[PLACES_MAX];
	int n_places, last;
};

/* An attribute of @from; new. */
static inline PyObject *usual_get(const struct usual *u, PyObject *from,
				  enum name name)
{
	return PyObject_GetAttr(from, u->names[name]);
}

/* The same of a sharded one, by its slot where it has one. */
static inline PyObject *usual_get_slot(const struct usual *u, PyObject *t,
				       Py_ssize_t slot, enum name name)
{
	PyObject *found = slot ? *(PyObject **)((char *)t + slot) : NULL;

	return found ? Py_NewRef(found) : usual_get(u, t, name);
}

/* Of a call without arguments, or of an attribute; -1 raised. */
static inline int64_t usual_number(PyObject *from)
{
	int64_t n = from ? PyLong_AsLongLong(from) : -1;

	Py_XDECREF(from);
	return n;
}

static inline bool usual_is_plain(const struct usual *u, PyObject *t)
{
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(u->plain); i++)
		if ((PyObject *)Py_TYPE(t) == PyTuple_GET_ITEM(u->plain, i))
			return true;
	return false;
}

/* Whether a plain one says itself which parts it holds: by attributes of its
 * own. -1 raised. */
int usual_says_parts(const struct usual *u, PyObject *t);

/* The rank's own tensor: dtype, memory, strides and its shape. 1 if that was
 * read, 0 where Python is to tell, -1 raised. */
int usual_read_memory(struct usual *u, PyObject *t, struct usual_read *ret,
		      int *ret_ndim, bool *ret_some);

/* Of a sharded one, by its spec; *@ret is @u's. As above. */
int usual_read_place(struct usual *u, PyObject *name, PyObject *t,
		     PyObject *spec, const struct place **ret);

/* The method parts(). */
PyObject *usual_parts(PyObject *usual, PyObject *args);

#endif
