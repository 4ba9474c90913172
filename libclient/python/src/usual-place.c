/* SPDX-License-Identifier: Apache-2.0 */
/* Usual: the meshes and placements that tensors are cut by. */
#include <string.h>

#include "usual-private.h"

static int read_placement(const struct usual *u, PyObject *p,
			  struct sk_placement *ret)
{
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(u->kinds); i++) {
		PyObject *kind = PyTuple_GET_ITEM(u->kinds, i);

		if ((PyObject *)Py_TYPE(p) != PyTuple_GET_ITEM(kind, 0))
			continue;
		ret->kind = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(kind, 1));
		if (ret->kind != SK_PLACEMENT_REPLICATE)
			ret->dim = (int32_t)usual_number(usual_get(u, p, DIM));
		if (ret->kind == SK_PLACEMENT_STRIDED_SHARD)
			ret->split_factor = usual_number(
				usual_get(u, p, SPLIT));
		return PyErr_Occurred() ? -1 : 1;
	}
	return 0;
}

static int read_placements(const struct usual *u, PyObject *from,
			   struct place *ret)
{
	int r = 1;

	if (!PyTuple_Check(from) || PyTuple_GET_SIZE(from) > SK_MAX_DIMS)
		return 0;
	ret->n = (int)PyTuple_GET_SIZE(from);
	for (int i = 0; i < ret->n && r > 0; i++)
		r = read_placement(u, PyTuple_GET_ITEM(from, i), &ret->v[i]);
	return r;
}

static bool same_place(const struct place *a, const struct place *b)
{
	return a->device_mesh == b->device_mesh && a->n == b->n &&
	       !memcmp(a->v, b->v, (size_t)a->n * sizeof(a->v[0]));
}

/* A new one, as Python tells it. */
static int learn(struct usual *u, PyObject *name, PyObject *t,
		 struct place *place)
{
	PyObject *found = PyObject_CallFunctionObjArgs(u->placed, name, t,
						       NULL);
	PyObject *mesh = found ? usual_get(u, found, MESH) : NULL;
	PyObject *outside = mesh ? usual_get(u, found, OUTSIDE) : NULL;
	int r = outside ? PyObject_IsTrue(outside) : -1;

	Py_XDECREF(found);
	Py_XDECREF(outside);
	if (r < 0 || take_mesh(mesh, &place->sk)) {
		Py_XDECREF(mesh);
		return -1;
	}
	place->outside = r;
	place->mesh = mesh;
	Py_INCREF(place->device_mesh);
	u->last = u->n_places++;
	u->places[u->last] = *place;
	return 1;
}

static int find_place(struct usual *u, PyObject *name, PyObject *t,
		      struct place *like, const struct place **ret)
{
	int r = 1;

	if (!same_place(&u->places[u->last], like)) {
		int i = 0;

		while (i < u->n_places && !same_place(&u->places[i], like))
			i++;
		if (i == PLACES_MAX)
			return 0;
		u->last = i;
		if (i == u->n_places)
			r = learn(u, name, t, like);
	}
	*ret = &u->places[u->last];
	return r;
}

int usual_read_place(struct usual *u, PyObject *name, PyObject *t,
		     PyObject *spec, const struct place **ret)
{
	PyObject *mesh = usual_get(u, spec, MESH);
	PyObject *placements = mesh ? usual_get(u, spec, PLACEMENTS) : NULL;
	struct place like = { .device_mesh = mesh };
	int r = placements ? read_placements(u, placements, &like) : -1;

	if (r > 0)
		r = find_place(u, name, t, &like, ret);
	Py_XDECREF(placements);
	Py_XDECREF(mesh);	/* the place has one of its own */
	return r;
}
