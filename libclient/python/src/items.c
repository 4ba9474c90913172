/* SPDX-License-Identifier: Apache-2.0 */
/* State.describe(): tensors by name, without a tuple made of each. */
#include "core.h"
#include "usual.h"

#include <string.h>

#include "conn/say.h"
#include "state/describe.h"

/* So many are read before the library takes them: each is hundreds of bytes,
 * and memory that is used for the first time is slow. */
#define BLOCK 64

const char state_describe_doc[] =
	"describe(items, usual, odd, model, slowly, keep=None)\n--\n\n"
	"Describes tensors, (name, tensor, name of the one that it belongs "
	"to) each: what is usual (a Usual, or None) and neither it nor its "
	"owner among the odd is read at once, slowly(name, tensor, owner) "
	"gives the tuple of tensors() of any other, or None to leave it out; "
	"model has the owners. "
	"Returns the tensors that have the memory of those read at once, and "
	"those of them on devices; that and keep is what is pointed into.";

struct reading {
	struct usual *usual;		/* NULL: none is */
	PyObject *odd, *model, *slowly;
	PyObject *tuples;		/* what slowly gave: pointed into */
	PyObject *held, *on_devices;
	struct described block;
	struct sk_describing all;
};

static int take_name(PyObject *name, const char **ret)
{
	Py_ssize_t n;

	if (!PyUnicode_Check(name)) {
		PyErr_SetString(PyExc_TypeError, "a tensor's name is a str");
		return -1;
	}
	*ret = PyUnicode_AsUTF8AndSize(name, &n);
	if (!*ret)
		return -1;
	if (strlen(*ret) == (size_t)n)
		return 0;
	PyErr_SetString(PyExc_ValueError, "a tensor's name has a null "
			"character");
	return -1;
}

/* One that @slowly has to tell, or whose owner says what it is. */
static int is_odd(const struct reading *r, PyObject *name, PyObject *owner)
{
	int found = PySet_GET_SIZE(r->odd) ? PySet_Contains(r->odd, name) : 0;

	if (found || owner == name || !PySet_GET_SIZE(r->odd))
		return found;
	return PySet_Contains(r->odd, owner);
}

static int read_usual(struct reading *r, PyObject *item, size_t i)
{
	PyObject *name = PyTuple_GET_ITEM(item, 0);
	PyObject *owner = PyTuple_GET_ITEM(item, 2);
	struct usual_read to = { &r->block.tensors[i], r->block.local_shapes[i],
				 NULL };
	PyObject *of = NULL;
	int done;

	if (!r->usual)
		return 0;
	done = is_odd(r, name, owner);
	if (done)
		return done < 0 ? -1 : 0;
	if (owner != name) {
		of = PyDict_GetItemWithError(r->model, owner);
		if (!of && PyErr_Occurred())
			return -1;
	}
	done = usual_read(r->usual, name, PyTuple_GET_ITEM(item, 1), of, &to);
	if (done <= 0)
		return done;
	if (PyList_Append(r->held, to.memory) ||
	    (to.tensor->memory == SK_CUDA &&
	     PyList_Append(r->on_devices, to.memory)))
		return -1;
	return take_name(name, &to.tensor->name) ? -1 : 1;
}

static int read_slowly(struct reading *r, PyObject *item, size_t i)
{
	PyObject *tuple = PyObject_Call(r->slowly, item, NULL);
	int done;

	if (!tuple || tuple == Py_None) {
		Py_XDECREF(tuple);
		return tuple ? 0 : -1;
	}
	done = PyList_Append(r->tuples, tuple);
	if (!done)
		done = described_take(tuple, &r->block.tensors[i],
				      r->block.local_shapes[i]);
	Py_DECREF(tuple);
	return done ? -1 : 1;
}

/* 1, 0 where it is left out, -1 raised. */
static int read_one(struct reading *r, PyObject *item, size_t i)
{
	int done;

	if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 3) {
		PyErr_SetString(PyExc_TypeError, "a tensor is a tuple: name, "
				"tensor, owner");
		return -1;
	}
	done = read_usual(r, item, i);
	return done ? done : read_slowly(r, item, i);
}

static PyObject *tensor_at(void *items, Py_ssize_t i)
{
	PyObject *item = i < PyTuple_GET_SIZE((PyObject *)items) ?
		PyTuple_GET_ITEM((PyObject *)items, i) : NULL;

	return item && PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 3 ?
		PyTuple_GET_ITEM(item, 1) : NULL;
}

/* The items from @at on: a block of them, or those that are left. */
static int read_block(struct reading *r, PyObject *items, Py_ssize_t at)
{
	Py_ssize_t n = PyTuple_GET_SIZE(items) - at;
	struct sk_err err = { "" };
	int done = described_room(&r->block, n < BLOCK ? n : BLOCK);
	size_t taken = 0;

	for (size_t i = 0; i < r->block.n && done >= 0; i++) {
		if (r->usual)
			usual_ahead(r->usual, tensor_at, items,
				    at + (Py_ssize_t)i);
		done = read_one(r, PyTuple_GET_ITEM(items, at + (Py_ssize_t)i),
				taken);
		taken += done > 0;
	}
	if (done >= 0) {
		done = sk_say(sk_describe_more(&r->all, r->block.tensors,
					       taken, SK_ITEM_TENSOR,
					       &err), &err);
		if (done < 0)
			raise_error(done);
	}
	described_free(&r->block);
	return done;
}

static int read_all(struct reading *r, struct sk_state *state,
		    PyObject *items)
{
	struct sk_err err = { "" };
	int done = sk_say(sk_describe_begin(state,
					    (size_t)PyTuple_GET_SIZE(items),
					    &r->all, &err), &err);

	if (done < 0) {
		raise_error(done);
		return -1;
	}
	for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(items) && done >= 0;
	     at += BLOCK)
		done = read_block(r, items, at);
	return done < 0 ? -1 : 0;
}

static PyObject *tell(struct state *s, struct reading *r, PyObject *keep)
{
	PyObject *all = Py_BuildValue("(OO)", r->held, keep), *was;
	struct sk_err err = { "" };
	int done;

	if (!all)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	describing_begin(s);
	done = sk_say(sk_describe_end(&r->all, &err), &err);
	Py_END_ALLOW_THREADS
	was = done < 0 ? all : s->described;
	if (done >= 0)
		s->described = all;
	describing_end(s);
	Py_XDECREF(was);
	if (done < 0)
		return raise_error(done);
	return Py_BuildValue("(OO)", r->held, r->on_devices);
}

PyObject *state_describe(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	struct reading r = { 0 };
	PyObject *items, *usual, *keep = Py_None, *ret = NULL;

	if (!PyArg_ParseTuple(args, "OOO!O!O|O:describe", &items, &usual,
			      &PySet_Type, &r.odd, &PyDict_Type, &r.model,
			      &r.slowly, &keep) || !state_usable(s) ||
	    usual_take(usual, &r.usual))
		return NULL;
	r.tuples = PyList_New(0);
	r.held = PyList_New(0);
	r.on_devices = PyList_New(0);
	items = PySequence_Tuple(items);	/* names are borrowed from it */
	s->busy++;		/* also while Python tells of some */
	if (items && r.tuples && r.held && r.on_devices &&
	    !read_all(&r, s->state, items))
		ret = tell(s, &r, keep);
	s->busy--;
	sk_describe_free(&r.all);
	Py_XDECREF(items);
	Py_XDECREF(r.tuples);
	Py_XDECREF(r.held);
	Py_XDECREF(r.on_devices);
	return ret;
}
