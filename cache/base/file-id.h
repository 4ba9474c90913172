/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tells a file from another one, and from what it was before: a file
 * whose identity is the same need not be read again.
 *
 * The change time is part of it, because it cannot be set: a copy put back
 * into the same inode may bring its old length and modification time along.
 */
#ifndef SK_CACHE_BASE_FILE_ID_H
#define SK_CACHE_BASE_FILE_ID_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct sk_file_id {
	uint64_t device;
	uint64_t inode;		/* 0: no file is known */
	uint64_t bytes;
	uint64_t mtime_ns;	/* wall clock */
	uint64_t ctime_ns;
};

static inline uint64_t sk_file_time_ns(const struct timespec *t)
{
	return (uint64_t)t->tv_sec * UINT64_C(1000000000) +
	       (uint64_t)t->tv_nsec;
}

static inline struct sk_file_id sk_file_id_of(const struct stat *st)
{
	return (struct sk_file_id){
		.device = st->st_dev, .inode = st->st_ino,
		.bytes = (uint64_t)st->st_size,
		.mtime_ns = sk_file_time_ns(&st->st_mtim),
		.ctime_ns = sk_file_time_ns(&st->st_ctim),
	};
}

static inline bool sk_file_id_equal(const struct sk_file_id *a,
				    const struct sk_file_id *b)
{
	return a->device == b->device && a->inode == b->inode &&
	       a->bytes == b->bytes && a->mtime_ns == b->mtime_ns &&
	       a->ctime_ns == b->ctime_ns;
}

#endif
