/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of reading and writing share. */
#ifndef SK_TESTS_IO_COMMON_H
#define SK_TESTS_IO_COMMON_H

#include <criterion/criterion.h>
#include <stdbool.h>

#include "fault-os.h"
#include "io/io.h"

/** Before anything is made: skipping leaves everything where it is. */
void need_uring(void);

/* Each behaviour is a function of the backend, and tested with both. */
#define BOTH(name)						\
	static void name(enum sk_io_backend backend);		\
	Test(io, name##_by_uring)				\
	{							\
		need_uring();					\
		name(SK_IO_URING);				\
	}							\
	Test(io, name##_by_threads)				\
	{							\
		name(SK_IO_THREADS);				\
	}							\
	static void name(enum sk_io_backend backend)

/* A directory on a disk, where O_DIRECT is likely. */
struct place {
	char path[64];
	int fd;
};

void place_make(struct place *p);
void place_remove(struct place *p);
bool exists(const struct place *p, const char *name);

/** Page-aligned memory, readable to the next page, with random contents. */
char *random_memory(size_t bytes, uint64_t *state);
void free_memory(char *m, size_t bytes);

struct sk_io *make_io(const struct sk_os *os, struct sk_io_opts opts);
/** That the file is what @w says, to the byte. */
void check_file(const struct place *p, const struct sk_write *w);

/* ---- the calls that move bytes ---- */

static inline enum sk_fault_op write_op(enum sk_io_backend backend)
{
	return backend == SK_IO_URING ? SK_FAULT_URING_WRITE : SK_FAULT_PWRITE;
}

static inline enum sk_fault_op read_op(enum sk_io_backend backend)
{
	return backend == SK_IO_URING ? SK_FAULT_URING_READ : SK_FAULT_PREAD;
}

#endif
