/* SPDX-License-Identifier: Apache-2.0 */
#include "changes.h"

/* Without the interpreter's lock a change and its count were two things. */
#if PY_VERSION_HEX >= 0x030c0000 && !defined(Py_GIL_DISABLED)

static int watcher = -1;	/* the interpreter has a few for all */
static uint64_t count;

static int note(PyDict_WatchEvent event, PyObject *dict, PyObject *key,
		PyObject *value)
{
	(void)dict;
	(void)key;
	(void)value;
	count += event != PyDict_EVENT_DEALLOCATED;
	return 0;
}

/* From 3.13 on an instance has its values in itself, and they are written to
 * by attributes without a word about the dict that shows them. One that does
 * not share them never will again. */
bool changes_told(PyObject *dict)
{
	return PY_VERSION_HEX < 0x030d0000 ||
	       !((PyDictObject *)dict)->ma_values;
}

int changes_watch(PyObject *dict)
{
	if (!count) {
		count = 1;
		watcher = PyDict_AddWatcher(note);
		if (watcher < 0)
			PyErr_Clear();	/* others have them all */
	}
	return watcher < 0 ? 0 : PyDict_Watch(watcher, dict);
}

uint64_t changes_of_dicts(void)
{
	return watcher < 0 ? 0 : count;
}

#else

bool changes_told(PyObject *dict)
{
	(void)dict;
	return false;
}

int changes_watch(PyObject *dict)
{
	(void)dict;
	return 0;
}

uint64_t changes_of_dicts(void)
{
	return 0;
}

#endif
