/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of slots, faulted in, in huge pages where that can be had. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "memory/slot.h"

/* Kernel interfaces that are newer than the C library may be. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define PAGES_OF_HUGE (SK_HUGE_PAGE / SK_PAGE)
/* A range with no more pages than this is as good as empty. */
#define BEGUN_PAGES 8u
#define COLLAPSE_TRIES 4u

static bool nearly_empty(const unsigned char *seen)
{
	unsigned n = 0;

	for (size_t i = 0; i < PAGES_OF_HUGE; i++)
		n += seen[i] & 1;
	return n <= BEGUN_PAGES;
}

/* A page that somebody looks at in that moment, as who faults in beside us may,
 * keeps its huge page from becoming one: it does with the next try. */
static int collapse(const struct sk_os *os, char *at, uint64_t bytes)
{
	int r = -EAGAIN;

	for (unsigned i = 0; i < COLLAPSE_TRIES && r == -EAGAIN; i++)
		r = os->madvise(os, at, bytes, MADV_COLLAPSE);
	return r;
}

/* One page of each was asked for, and all came: the system gives memfds huge
 * pages by itself, however old it is. */
static bool came_whole(const struct sk_os *os, char *at, uint64_t bytes)
{
	unsigned char seen[SK_SLOT_PIECE / SK_PAGE] = { 0 };

	assert(bytes <= SK_SLOT_PIECE);
	if (os->mincore(os, at, bytes, seen) < 0)
		return false;
	for (size_t i = 0; i < bytes / SK_PAGE; i++)
		if (!(seen[i] & 1))
			return false;
	return true;
}

/* One page of each has to be there before they can become huge ones. 1, or -1:
 * they are not to be had. */
static int gather(const struct sk_os *os, char *at, uint64_t bytes)
{
	int r;

	assert(bytes && bytes % SK_HUGE_PAGE == 0);
	for (uint64_t i = 0; i < bytes; i += SK_HUGE_PAGE)
		if (os->madvise(os, at + i, SK_PAGE, MADV_POPULATE_WRITE) < 0)
			return -1;
	r = collapse(os, at, bytes);
	return r < 0 && !(r == -EINVAL && came_whole(os, at, bytes)) ? -1 : 1;
}

/* What of [at, at + bytes), whole huge pages, holds next to nothing. As
 * gather(), and 0: nothing was. */
static int gather_empty(const struct sk_os *os, char *at, uint64_t bytes)
{
	unsigned char seen[SK_SLOT_PIECE / SK_PAGE] = { 0 };
	uint64_t from = 0, i;
	int r = 0;

	assert(bytes <= SK_SLOT_PIECE && bytes % SK_HUGE_PAGE == 0);
	if (os->mincore(os, at, bytes, seen) < 0)
		return 0;
	for (i = 0; i < bytes; i += SK_HUGE_PAGE) {
		if (nearly_empty(seen + i / SK_PAGE))
			continue;
		if (from < i)
			r = gather(os, at + from, i - from);
		from = i + SK_HUGE_PAGE;
	}
	return from < i ? gather(os, at + from, i - from) : r;
}

/*
 * Shared memory comes in small pages unless the system is set up for others,
 * but a range of it may become huge pages on request (Linux 6.1), and that
 * takes a third of the time of faulting the small ones in. What holds pages
 * already is left alone: it would be copied. Where the system's own pages are
 * larger, so are its huge ones, 512 MiB to 64 KiB, and few ranges have one.
 */
static int ask_huge(const struct sk_os *os, char *map, uint64_t from,
		    uint64_t to)
{
	uintptr_t at = sk_round_up((uintptr_t)map + from, SK_HUGE_PAGE);
	uintptr_t end = ((uintptr_t)map + to) / SK_HUGE_PAGE * SK_HUGE_PAGE;

	int r = 0, one;

	assert(from <= to);
	if (sk_page_bytes() != SK_PAGE)
		return 0;
	for (; at < end; at += SK_SLOT_PIECE) {
		one = gather_empty(os, (char *)at, end - at < SK_SLOT_PIECE ?
						   end - at : SK_SLOT_PIECE);
		r = one < 0 ? one : r;
	}
	return r;
}

bool sk_slots_collapse(const struct sk_os *os)
{
	return sk_page_bytes() == SK_PAGE &&
	       os->madvise(os, NULL, 0, MADV_COLLAPSE) != -EINVAL;
}

int sk_slot_collapse_map(const struct sk_os *os, void *map, uint64_t from,
			 uint64_t to)
{
	uint64_t at = sk_round_up(from, SK_HUGE_PAGE);
	uint64_t end = to / SK_HUGE_PAGE * SK_HUGE_PAGE;

	assert(from <= to && (uintptr_t)map % SK_PAGE == 0);
	if (at >= end || sk_page_bytes() != SK_PAGE)
		return 0;
	return collapse(os, (char *)map + at, end - at);
}

int sk_slot_collapse(const struct sk_os *os, const struct sk_slot *slot,
		     uint64_t from, uint64_t to)
{
	assert(to <= slot->bytes);
	return slot->huge ? 0 : sk_slot_collapse_map(os, slot->map, from, to);
}

static int populate(const struct sk_os *os, void *map, uint64_t from,
		    uint64_t to)
{
	assert(from <= to);
	return os->madvise(os, (char *)map + from, to - from,
			   MADV_POPULATE_WRITE);
}

int sk_slot_populate_map(const struct sk_os *os, void *map, uint64_t from,
			 uint64_t to, bool huge)
{
	if (huge)
		(void)ask_huge(os, map, from, to);
	return populate(os, map, from, to);
}

/*
 * For kernels before 5.14. Once the pages are allocated, a load is enough to
 * map them, and cannot disturb those who store there at the same time.
 */
static int allocate_and_touch(const struct sk_os *os,
			      const struct sk_slot *slot, uint64_t from,
			      uint64_t to)
{
	const volatile char *map = slot->map;
	int r;

	assert(from < to && to <= slot->bytes);
	r = os->fallocate(os, slot->fd, 0, from, to - from);
	if (r < 0)
		return r;
	for (uint64_t at = from; at < to; at += sk_slot_page(slot))
		(void)map[at];
	return 0;
}

/* The ways in which the system says that it has no memory for a page. */
static bool means_no_memory(int r)
{
	return r == -EFAULT || r == -ENOSPC || r == -ENOMEM;
}

int sk_slot_populate(const struct sk_os *os, struct sk_slot *slot,
		     uint64_t from, uint64_t to, struct sk_err *err)
{
	uint64_t page = sk_slot_page(slot), least = sk_page_bytes();
	int r;

	if (from > to || to > slot->bytes)
		return sk_err_set(err, -EINVAL, "bytes %" PRIu64 " to %"
				  PRIu64 " do not lie in a slot of %" PRIu64
				  " bytes", from, to, slot->bytes);
	if (from == to)
		return 0;
	from -= from % (page > least ? page : least);
	to = sk_round_up(to, page);
	if (!slot->huge && ask_huge(os, slot->map, from, to) < 0)
		__atomic_store_n(&slot->small, true, __ATOMIC_RELAXED);
	r = populate(os, slot->map, from, to);
	if (r == -EINVAL)
		r = allocate_and_touch(os, slot, from, to);
	if (r >= 0)
		return 0;
	if (means_no_memory(r))
		r = -ENOMEM;
	return sk_err_errno(err, r, "cannot fault in bytes %" PRIu64 " to %"
			    PRIu64 " of a slot of %" PRIu64 " bytes; lower "
			    "the agent's memory budget or free memory", from,
			    to, slot->bytes);
}
