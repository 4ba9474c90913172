/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An sk_os that wraps another one and writes down what happens to the files
 * below one directory: what a loss of power could leave of it is then built,
 * state by state.
 *
 * What may be lost is what no fsync covered. Of a file: any write, whole or by
 * pages, and a change of its length. Of a directory: any name that was made,
 * changed or removed in it, but not half of a rename. What was written to one
 * page, or done to one name, is lost in order: the last first. That is
 * more than journaling filesystems lose, and what POSIX allows.
 *
 * Thread-safety: any threads may call through the table.
 */
#ifndef SK_TESTS_RECORD_OS_H
#define SK_TESTS_RECORD_OS_H

#include <pthread.h>
#include <stdbool.h>

#include "base/os.h"

#define SK_RECORD_NAME 128
#define SK_RECORD_EVENTS 2048
#define SK_RECORD_OBJECTS 256

enum sk_record_kind {
	SK_RECORD_MADE,		/* name in dir is object */
	SK_RECORD_WROTE,	/* bytes of object */
	SK_RECORD_SIZED,	/* object is so long */
	SK_RECORD_SYNCED,	/* object, a file or a directory */
	SK_RECORD_RENAMED,	/* name in dir, which is object, is now other */
	SK_RECORD_REMOVED,	/* name in dir */
};

struct sk_record_event {
	enum sk_record_kind kind;
	int dir, object;	/* indices of objects */
	char name[SK_RECORD_NAME], other[SK_RECORD_NAME];
	uint64_t offset;	/* or the length */
	size_t bytes;
	char *data;
};

struct sk_record_os {
	struct sk_os os;	/* what is given to the code under test */
	const struct sk_os *inner;
	pthread_mutex_t lock;	/* guards what follows */
	struct sk_record_event events[SK_RECORD_EVENTS];
	size_t n;
	bool full;		/* some were not written down */
	struct {
		ino_t inode;	/* of the last that had it */
		bool is_dir;
	} objects[SK_RECORD_OBJECTS];	/* 0 is the directory itself */
	int n_objects;
};

/** Fills @rec in place, which must not be moved: of the directory @root, in
 * which there is nothing. */
void sk_record_os_init(struct sk_record_os *rec, const struct sk_os *inner,
		       const char *root);
void sk_record_os_free(struct sk_record_os *rec);

/** Builds, in the empty directory @at, one state that a loss of power after
 * the first @n events may leave; @dice is changed. 0, or a negative errno. */
int sk_record_os_state(const struct sk_record_os *rec, size_t n,
		       uint64_t *dice, const char *at);

#endif
