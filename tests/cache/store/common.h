/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the store share: a place for one, and images that tell
 * whose they are. */
#ifndef SK_TEST_STORE_COMMON_H
#define SK_TEST_STORE_COMMON_H

#include <criterion/criterion.h>
#include <stdbool.h>

#include "fault-os.h"
#include "store/private.h"
#include "support/files.h"

#define IMAGE_BYTES (9 * SK_PAGE + 77)
#define DAY_NS (UINT64_C(86400) * 1000000000)
#define LEFT_MAX 192

struct place {
	char path[64];
	char store[80]; /* where the store is: does not exist yet */
};

/* What an image holds, said by who wrote it. */
struct image {
	char *bytes;
	struct sk_store_put put;
};

void place_make(struct place *p);
void place_remove(const struct place *p);
struct sk_store *open_store(const struct sk_os *os, const struct place *p);
/** Both, the store on a table that fails nothing yet, or the system's own. */
struct sk_store *make_store(struct place *p, struct sk_fault_os *fault);
struct sk_io *make_io(const struct sk_os *os, enum sk_io_backend backend);
/** Run @number as all tests know it; another id is a stranger. */
struct sk_store_run run_named(uint64_t number);
int settle(struct sk_store *store, const char *job, uint64_t step,
	   uint64_t number);
/** Whose job it is once @uid has claimed it, or errno. */
int64_t claim(struct sk_store *store, const char *job, uid_t uid);
int delete (struct sk_store *store, const char *job, const char *dir,
	    uint64_t number, struct sk_err *err);
void image_make(struct image *image, uint64_t run, uint64_t step, int32_t rank);
void image_free(struct image *image);
int put_with(struct sk_store *store, enum sk_io_backend backend, uint64_t run,
	     uint64_t step, int32_t rank, struct sk_err *err);
int put(struct sk_store *store, uint64_t run, uint64_t step, int32_t rank);
/** The run whose image this is, whole; 0: none of 1 .. 9. */
uint64_t run_of(struct sk_store *store, const struct sk_stored *found);
/** Scans and checks that all images are whole; the number of them. */
size_t scan(struct sk_store *store, struct sk_stored **ret_images);
/** Whether the scan finds this image of this run. */
bool holds(struct sk_store *store, uint64_t run, uint64_t step, int32_t rank);
bool exists(const struct place *p, const char *name);
void make_file(const struct place *p, const char *name, const char *text);
void make_dir(const struct place *p, const char *name);
void left_by(const struct place *p, const struct sk_store *store,
	     char path[LEFT_MAX]);
/** As if its process had been killed: the lock is gone, its file is not. */
void kill_store(struct sk_store *store);
/** An image of the run with that number, but of another life. */
int put_stranger(struct sk_store *store, uint64_t number, uint64_t step,
		 int32_t rank, struct sk_err *err);
int put_owned(struct sk_store *store, enum sk_io_backend backend, uid_t owner,
	      int *ret_owned);

#endif
