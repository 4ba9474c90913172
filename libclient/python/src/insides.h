/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the framework keeps what it tells of a tensor. To ask it makes
 * objects for each answer, a microsecond for each tensor. Here it is found in
 * a few samples by what they answer, and is known only where that is so for
 * all of them: of another version nothing is known, and it is asked.
 */
#ifndef SK_PYTHON_INSIDES_H
#define SK_PYTHON_INSIDES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

/** All of them, or nothing. */
struct insides {
	bool known;
	Py_ssize_t impl;	/* in the object: where the tensor really is */
	Py_ssize_t storage;	/* there: where its storage is */
	Py_ssize_t keys;	/* there: its dispatch keys */
	/* The framework's stable functions for C, of a handle. */
	int (*offset)(void *handle, int64_t *ret);
	int (*bytes)(void *handle, int64_t *ret);
};

/** @samples: tuples of a tensor and what it answers: its address, that of its
 * storage, its keys, its offset in the storage, and the storage's bytes. The
 * tensors differ in all of them. -1 raised; it is no error to learn nothing. */
int insides_learn(struct insides *in, PyObject *samples);

static inline char *insides_word(const void *at, Py_ssize_t offset)
{
	return *(char *const *)((const char *)at + offset);
}

/** Its dispatch keys. The type of @t is one of the samples'. */
static inline uint64_t insides_keys(const struct insides *in, PyObject *t)
{
	return *(const uint64_t *)(insides_word(t, in->impl) + in->keys);
}

/** Elements of its storage before it, and the bytes of that. Whether it could
 * be told. */
bool insides_extent(const struct insides *in, PyObject *t, int64_t *ret_offset,
		    int64_t *ret_bytes);

#endif
