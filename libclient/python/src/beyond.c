/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State.beyond(): what a snapshot holds and the state does not describe, in
 * one call, and without text in between. Names are collected while the
 * interpreter goes on, and become Python's afterwards.
 */
#include "core.h"

#include <errno.h>
#include <string.h>

#include "base/array.h"
#include "conn/check.h"
#include "conn/client.h"
#include "conn/say.h"
#include "restore/beyond.h"

const char state_beyond_doc[] =
	"beyond(run, step, same=False)\n--\n\n"
	"What that snapshot holds beyond what is described: how many ranks "
	"saved it, (name, kind, mine, dtype, shape) each, and whether each of "
	"them described the very same, where that is expected: then its "
	"headers need not be read.";

const char state_announce_doc[] =
	"announce()\n--\n\n"
	"Registers what is described, as restore() would; returns the agent's "
	"instance, the run and its id: where those are the same on all ranks, "
	"the agent can be their comm.";

struct found {
	char *name;
	enum sk_item_kind kind;
	bool mine;
	int dtype, ndim;
	int64_t shape[SK_MAX_DIMS];
};

struct all {
	struct found *v;
	size_t n, room;
};

static int note(void *ctx, const struct sk_item *item, bool mine)
{
	const struct sk_spec *spec = &item->spec;
	struct all *all = ctx;
	struct found *f;

	if (sk_array_fit(all->v, all->room, all->n + 1) < 0)
		return -ENOMEM;
	f = &all->v[all->n];
	*f = (struct found){ .name = strdup(spec->name), .kind = item->kind,
			     .mine = mine, .dtype = (int)spec->dtype,
			     .ndim = spec->ndim };
	memcpy(f->shape, spec->shape, sizeof(f->shape));
	all->n += f->name != NULL;
	return f->name ? 0 : -ENOMEM;
}

static void forget(struct all *all)
{
	while (all->n)
		free(all->v[--all->n].name);
	free(all->v);
}

static PyObject *shape_tuple(const struct found *f)
{
	PyObject *shape = PyTuple_New(f->ndim);

	for (int d = 0; shape && d < f->ndim; d++) {
		PyObject *n = PyLong_FromLongLong(f->shape[d]);

		if (!n)
			Py_CLEAR(shape);
		else
			PyTuple_SET_ITEM(shape, d, n);
	}
	return shape;
}

static PyObject *names_list(const struct all *all)
{
	static const char *const kinds[] = {
		[SK_ITEM_TENSOR] = "tensor",
		[SK_ITEM_BLOB] = "blob",
		[SK_ITEM_BLOB_LOCAL] = "local",
	};
	PyObject *list = PyList_New((Py_ssize_t)all->n);

	for (size_t i = 0; list && i < all->n; i++) {
		const struct found *f = &all->v[i];
		PyObject *one = Py_BuildValue(
			"(ssOiN)", f->name, kinds[f->kind],
			f->mine ? Py_True : Py_False, f->dtype,
			shape_tuple(f));

		if (!one)
			Py_CLEAR(list);
		else
			PyList_SET_ITEM(list, (Py_ssize_t)i, one);
	}
	return list;
}

/* The sentence stays this thread's. */
static int look(struct state *s, unsigned long long run, long long step,
		struct all *all, int32_t *ret_world, bool *ret_same)
{
	const struct sk_beyond to = { .ctx = all, .name = note,
				      .same = ret_same };
	struct sk_err err = { "no memory for the names of a snapshot" };
	int r = sk_state_check(s->state, &err);

	if (r >= 0)
		r = sk_restore_beyond(s->state, run, step, &to, ret_world,
				      &err);
	return sk_say(r, &err);
}

PyObject *state_beyond(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	struct natural run = { "run", UINT64_MAX, 0 };
	struct all all = { 0 };
	PyObject *list = NULL;
	int32_t world = 0;
	int expected = 0, r;
	bool same = false;
	long long step;

	if (!PyArg_ParseTuple(args, "O&L|p:beyond", take_natural, &run, &step,
			      &expected) ||
	    !state_usable(s))
		return NULL;
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	r = look(s, run.value, step, &all, &world, expected ? &same : NULL);
	Py_END_ALLOW_THREADS
	s->busy--;
	list = r < 0 ? raise_error(r) : names_list(&all);
	forget(&all);
	return list ? Py_BuildValue("(iNO)", (int)world, list,
				    same ? Py_True : Py_False) : NULL;
}

PyObject *state_announce(PyObject *self, PyObject *args)
{
	struct state *s = (struct state *)self;
	struct sk_err err = { "" };
	struct sk_announced told = { 0 };
	int r;

	(void)args;
	if (!state_usable(s))
		return NULL;
	s->busy++;
	Py_BEGIN_ALLOW_THREADS
	r = sk_state_check(s->state, &err);
	if (r >= 0)
		r = sk_restore_announce(s->state, &told, &err);
	r = sk_say(r, &err);
	Py_END_ALLOW_THREADS
	s->busy--;
	return r < 0 ? raise_error(r) :
		       Py_BuildValue("(KKK)", (unsigned long long)told.agent,
				     (unsigned long long)told.run,
				     (unsigned long long)told.run_id);
}

const char client_instance_doc[] =
	"instance()\n--\n\n"
	"The agent's number: it is random, and another agent has another. "
	"Ranks of the same are on one node.";

PyObject *client_instance(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	uint64_t generation, instance = 0;

	(void)args;
	if (!c->sk) {
		PyErr_SetString(PyExc_ValueError, "the client is closed");
		return NULL;
	}
	c->busy++;
	Py_BEGIN_ALLOW_THREADS
	(void)sk_conn_is_open(&c->sk->conn, &generation, &instance);
	Py_END_ALLOW_THREADS
	c->busy--;
	return PyLong_FromUnsignedLongLong(instance);
}
