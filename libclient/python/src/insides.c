/* SPDX-License-Identifier: Apache-2.0 */
#include "insides.h"

#include <dlfcn.h>
#include <malloc.h>
#include <string.h>

/* Where the stable functions are: it is loaded already. */
#define LIBRARY "libtorch_cpu.so"

/* A tensor's own memory is less; what is behind it is not looked at. */
#define IMPL_MOST 256

struct sample {
	PyObject *tensor;
	void *impl, *storage;
	uint64_t keys;
	int64_t offset, bytes;
};

/* ---- places ---- */

/* The only word of [from, to) that is @value, or 0. */
static Py_ssize_t find(const void *at, Py_ssize_t from, Py_ssize_t to,
		       uint64_t value)
{
	Py_ssize_t found = 0;

	for (Py_ssize_t i = from; i + (Py_ssize_t)sizeof(value) <= to;
	     i += (Py_ssize_t)sizeof(value)) {
		if (memcmp((const char *)at + i, &value, sizeof(value)))
			continue;
		if (found)
			return 0;
		found = i;
	}
	return found;
}

static Py_ssize_t find_inside(const struct sample *s, uint64_t value)
{
	size_t most = malloc_usable_size(s->impl);

	return find(s->impl, (Py_ssize_t)sizeof(void *),
		    (Py_ssize_t)(most < IMPL_MOST ? most : IMPL_MOST), value);
}

/* Whether one sample has it where those before had. */
static bool agrees(Py_ssize_t *place, Py_ssize_t found)
{
	if (!*place)
		*place = found;
	return found && *place == found;
}

static bool find_places(struct insides *in, const struct sample *s)
{
	return agrees(&in->impl,
		      find(s->tensor, (Py_ssize_t)sizeof(PyObject),
			   Py_TYPE(s->tensor)->tp_basicsize,
			   (uintptr_t)s->impl)) &&
	       agrees(&in->storage,
		      find_inside(s, (uintptr_t)s->storage)) &&
	       agrees(&in->keys, find_inside(s, s->keys));
}

/* ---- functions ---- */

static bool find_functions(struct insides *in)
{
	void *library = dlopen(LIBRARY, RTLD_LAZY | RTLD_NOLOAD);

	if (!library)
		return false;
	in->offset = (int (*)(void *, int64_t *))dlsym(
		library, "aoti_torch_get_storage_offset");
	in->bytes = (int (*)(void *, int64_t *))dlsym(
		library, "aoti_torch_get_storage_size");
	(void)dlclose(library);		/* the framework keeps it */
	return in->offset && in->bytes;
}

/* A handle is the address of a pointer to the tensor. */
bool insides_extent(const struct insides *in, PyObject *t, int64_t *ret_offset,
		    int64_t *ret_bytes)
{
	void *handle = (char *)t + in->impl;

	return in->known && !in->offset(handle, ret_offset) &&
	       !in->bytes(handle, ret_bytes);
}

/* ---- samples ---- */

static int take(PyObject *from, struct sample *ret)
{
	unsigned long long impl, storage, keys;
	long long offset, bytes;

	if (!PyTuple_Check(from)) {
		PyErr_SetString(PyExc_TypeError, "a sample is a tuple");
		return -1;
	}
	if (!PyArg_ParseTuple(from, "OKKKLL", &ret->tensor, &impl, &storage,
			      &keys, &offset, &bytes))
		return -1;
	ret->impl = (void *)(uintptr_t)impl;
	ret->storage = (void *)(uintptr_t)storage;
	ret->keys = keys;
	ret->offset = offset;
	ret->bytes = bytes;
	return 0;
}

static bool tells(struct insides *in, const struct sample *s)
{
	int64_t offset, bytes;

	return insides_extent(in, s->tensor, &offset, &bytes) &&
	       offset == s->offset && bytes == s->bytes &&
	       insides_keys(in, s->tensor) == s->keys;
}

/* @each: what is asked of every sample, in turn. -1 raised. */
static int all(struct insides *in, PyObject *samples,
	       bool (*each)(struct insides *, const struct sample *),
	       bool *ret)
{
	*ret = PyTuple_GET_SIZE(samples) > 1;
	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(samples) && *ret; i++) {
		struct sample s;

		if (take(PyTuple_GET_ITEM(samples, i), &s))
			return -1;
		*ret = each(in, &s);
	}
	return 0;
}

int insides_learn(struct insides *in, PyObject *samples)
{
	bool good;

	*in = (struct insides){ 0 };
	if (all(in, samples, find_places, &good))
		return -1;
	in->known = good && find_functions(in);
	if (in->known && all(in, samples, tells, &in->known))
		return -1;
	return 0;
}
