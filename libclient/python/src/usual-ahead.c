/* SPDX-License-Identifier: Apache-2.0 */
/* Usual: the memory of tensors to come. */
#include "usual-private.h"

/* What is asked of the memory by the distance, each by what the one before has
 * brought: the object, its own part, what that really is, its storage. */
#define AHEAD 3

static PyObject *own_part(const struct usual *u, PyObject *t)
{
	PyObject *local = Py_TYPE(t) == u->sharded && u->slot ?
		*(PyObject **)((char *)t + u->slot) : NULL;

	return local ? local : t;
}

static bool has_insides(const struct usual *u, PyObject *t)
{
	return u->insides.known && usual_is_plain(u, t);
}

static void ahead_spec(const struct usual *u, PyObject *t)
{
	if (Py_TYPE(t) == u->sharded && u->spec_slot)
		__builtin_prefetch(*(char **)((char *)t + u->spec_slot));
}

static void ahead_impl(const struct usual *u, PyObject *t)
{
	const char *impl;

	if (!has_insides(u, t))
		return;
	impl = insides_word(t, u->insides.impl);
	__builtin_prefetch(impl);
	__builtin_prefetch(impl + 64);
	__builtin_prefetch(impl + 128);
	__builtin_prefetch(impl + 192);
}

static void ahead_storage(const struct usual *u, PyObject *t)
{
	if (has_insides(u, t))
		__builtin_prefetch(insides_word(insides_word(
			t, u->insides.impl), u->insides.storage));
}

void usual_ahead(const struct usual *u, PyObject *(*at)(void *, Py_ssize_t),
		 void *of, Py_ssize_t i)
{
	PyObject *t = at(of, i + 4 * AHEAD);

	if (t) {
		__builtin_prefetch(t);
		__builtin_prefetch((const char *)t + 64);
	}
	t = at(of, i + 3 * AHEAD);
	if (t) {
		__builtin_prefetch(own_part(u, t));
		ahead_spec(u, t);
	}
	t = at(of, i + 2 * AHEAD);
	if (t)
		ahead_impl(u, own_part(u, t));
	t = at(of, i + AHEAD);
	if (t)
		ahead_storage(u, own_part(u, t));
}
