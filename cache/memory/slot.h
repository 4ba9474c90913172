/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slot: the memory that holds one image, always a file descriptor.
 *
 * Host tier: a memfd that can neither shrink nor grow from birth, on huge
 * pages where the system has them, faulted in on its NUMA node before first
 * use. The device tier (a shareable CUDA allocation) will be another
 * sk_memory_kind behind the same functions.
 *
 * Thread-safety: one slot by one thread at a time, except that populating may
 * run beside anything but destroying.
 */
#ifndef SK_CACHE_MEMORY_SLOT_H
#define SK_CACHE_MEMORY_SLOT_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/os.h"
#include "base/util.h"

enum sk_memory_kind {
	SK_MEMORY_HOST = 0,
	SK_MEMORY_DEVICE = 1,	/* a CUDA allocation, when GPUs are built */
};

struct sk_slot {
	enum sk_memory_kind memory;
	int fd;
	uint64_t bytes;		/* whole pages (or huge pages) */
	void *map;		/* the owner's own mapping, read and write */
	int numa_node;		/* -1: anywhere */
	bool huge;
	bool small;		/* atomic: huge pages were asked for, and
				 * refused for a piece of it */
};
#define SK_SLOT_NULL { .fd = -1, .numa_node = -1 }

/** What is best faulted in at once: a request for huge pages costs a round of
 * all CPUs, whatever its size. */
#define SK_SLOT_PIECE (UINT64_C(32) << 20)

static inline uint64_t sk_slot_page(const struct sk_slot *slot)
{
	return slot->huge ? SK_HUGE_PAGE : SK_PAGE;
}

/**
 * Creates a slot of at least @bytes and maps it. @name is seen in
 * /proc/PID/fd. Seals: shrink, grow; the seal set stays open for
 * sk_slot_seal_writes(). Nothing is faulted in yet; huge pages, where enough
 * of them are free, are reserved. numa_node stays -1 where the system cannot
 * prefer a node.
 * Errors: -EINVAL 0 bytes, -ENOMEM, errors of memfd_create, ftruncate, mmap.
 */
int sk_slot_create(const struct sk_os *os, const char *name, uint64_t bytes,
		   int numa_node, struct sk_slot *ret_slot,
		   struct sk_err *err);
/**
 * A slot that was created by another process, from its descriptor, which is
 * the slot's from then on: it must be one that can neither shrink nor grow,
 * of @bytes rounded up to its pages. Mapped for writing too, unless it is
 * sealed against that.
 * Errors: -EBADF it is something else, errors of mmap; @fd stays the caller's.
 */
int sk_slot_adopt(const struct sk_os *os, int fd, uint64_t bytes,
		  int numa_node, struct sk_slot *ret_slot,
		  struct sk_err *err);
/** Unmaps and closes; the slot is SK_SLOT_NULL after it. */
void sk_slot_destroy(const struct sk_os *os, struct sk_slot *slot);

/** Faults in the pages that [from, to) of the owner's mapping touches; as
 * transparent huge pages where the system gives them and nothing is there
 * yet, whatever its settings for shared memory are.
 * Errors: -ENOMEM when the system has no memory, instead of a signal;
 * -EINVAL a range outside of the slot. */
int sk_slot_populate(const struct sk_os *os, struct sk_slot *slot,
		     uint64_t from, uint64_t to, struct sk_err *err);

/** The same for a client's writable mapping, as sk_slot_map_fd() gave it:
 * @from and @to are whole pages within it. Without @huge no huge pages are
 * asked for: where memory is fragmented the system may take long to make
 * them. Errors: those of madvise(2); -EINVAL before Linux 5.14, where touching
 * the pages does it. */
int sk_slot_populate_map(const struct sk_os *os, void *map, uint64_t from,
			 uint64_t to, bool huge);

/** Whether the system knows how to do what follows: Linux 6.1, unless it was
 * built without huge pages. */
bool sk_slots_collapse(const struct sk_os *os);
/** Has what lies in small pages of [from, to), as far as that are whole huge
 * pages of a slot that is faulted in, lie in huge ones. Its bytes are copied;
 * who uses them meanwhile waits for that, of a huge page at a time, and what is
 * page-locked stays as it is. Harmless, and soon done, where they lie so.
 * Errors, by which some of it may still lie in small pages: -EAGAIN somebody
 * holds a page; -ENOMEM; -EBUSY the memory cgroup has no room; -EINVAL the
 * system has no such pages to give. */
int sk_slot_collapse(const struct sk_os *os, const struct sk_slot *slot,
		     uint64_t from, uint64_t to);
/** Whether it was for want of room. Before it says so the system has looked for
 * some, and taken it from files that it has read: who has heard it of so many
 * pieces leaves the others. */
#define SK_SLOT_ROOMLESS 8u
static inline bool sk_slot_has_no_room(int r)
{
	return r == -ENOMEM || r == -EBUSY;
}
/** As sk_slot_collapse(), of a client's mapping, as sk_slot_map_fd() gave it. */
int sk_slot_collapse_map(const struct sk_os *os, void *map, uint64_t from,
			 uint64_t to);

/** No new writable mapping, write, hole or truncation from now on; mappings
 * that exist keep storing. For nodes where other users are not trusted. */
int sk_slot_seal_writes(const struct sk_os *os, struct sk_slot *slot,
			struct sk_err *err);

/** A descriptor of the same memory opened for reading only; caller closes. */
int sk_slot_reopen_ro(const struct sk_os *os, const struct sk_slot *slot,
		      struct sk_err *err);

/**
 * For the receiver of a descriptor: checks that it is a memfd that cannot
 * shrink, of at least @bytes, and maps [0, bytes), at an address where huge
 * pages can lie. @writable as wanted.
 * Errors: -EBADF it is not what it should be, -EINVAL 0 bytes, errors of mmap.
 */
int sk_slot_map_fd(const struct sk_os *os, int fd, uint64_t bytes,
		   bool writable, void **ret_map, struct sk_err *err);

/** Releases what sk_slot_map_fd() gave for the same @bytes; they need not be
 * whole pages, not even of a slot on huge pages. NULL is fine. */
void sk_slot_unmap(const struct sk_os *os, void *map, uint64_t bytes);

/** The NUMA node of the calling thread, -1 where there is only one. */
int sk_numa_node_here(void);

#endif
