/* SPDX-License-Identifier: Apache-2.0 */
/*
 * To be preloaded: a system whose pages are 64 KiB, as on many ARM servers
 * with GPUs, on one whose pages are smaller. Ranges are as long there as pages
 * make them, and no range that we know of becomes a huge page, which is one of
 * 512 MiB. What such a kernel refuses, a begin within a page and a huge page
 * of 2 MiB, ends the process, for no caller may count on what it says then.
 * What the kernel is asked by the C library itself goes by as it is.
 */
/* Both names of a call are here, which it would make one. */
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BIG ((size_t)64 << 10)
#define SMALL 4096u
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static size_t whole(size_t size)
{
	return (size + BIG - 1) / BIG * BIG;
}

static void check(const void *at, const char *call)
{
	if ((uintptr_t)at % BIG == 0)
		return;
	(void)fprintf(stderr, "%s() of %p, which is within a page of 64 KiB\n",
		      call, at);
	abort();
}

static void *map_now(void *at, size_t size, int prot, int flags, int fd,
		     off_t offset)
{
	return (void *)syscall(SYS_mmap, at, size, prot, flags, fd, offset);
}

static int unmap_now(void *at, size_t size)
{
	return size ? (int)syscall(SYS_munmap, at, size) : 0;
}

/* At the begin of a page, within more than is needed. */
static void *map_aligned(size_t size, int prot, int flags, int fd,
			 off_t offset)
{
	char *room = map_now(NULL, size + BIG, PROT_NONE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			     0), *at, *map;

	if (room == MAP_FAILED)
		return room;
	at = (char *)whole((uintptr_t)room);
	map = map_now(at, size, prot, flags | MAP_FIXED, fd, offset);
	if (map == MAP_FAILED)
		at = room + size + BIG;	/* nothing of it stays */
	(void)unmap_now(room, (size_t)(at - room));
	if (map != MAP_FAILED)
		(void)unmap_now(at + size, (size_t)(room + BIG - at));
	return map;
}

void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	void *map;

	size = whole(size);
	check((void *)offset, "mmap");
	if (flags & MAP_FIXED) {
		check(at, "mmap");
		return map_now(at, size, prot, flags, fd, offset);
	}
	map = map_now(NULL, size, prot, flags, fd, offset);
	if (map == MAP_FAILED || (uintptr_t)map % BIG == 0)
		return map;
	(void)unmap_now(map, size);
	return map_aligned(size, prot, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int prot, int flags, int fd, off_t offset)
	__attribute__((alias("mmap")));

int munmap(void *at, size_t size)
{
	check(at, "munmap");
	return unmap_now(at, whole(size));
}

int mprotect(void *at, size_t size, int prot)
{
	check(at, "mprotect");
	return (int)syscall(SYS_mprotect, at, whole(size), prot);
}

int madvise(void *at, size_t size, int advice)
{
	check(at, "madvise");
	if (advice == MADV_COLLAPSE)
		check((void *)1, "a request for huge pages by madvise");
	/* A file's last page would be as long; here it ends with the file. */
	if (advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE)
		return (int)syscall(SYS_madvise, at, size, advice);
	return (int)syscall(SYS_madvise, at, whole(size), advice);
}

/* A page is there when all of it is. */
int mincore(void *at, size_t size, unsigned char *seen)
{
	unsigned char parts[BIG / SMALL];

	check(at, "mincore");
	for (size_t i = 0; i < whole(size) / BIG; i++) {
		if (syscall(SYS_mincore, (char *)at + i * BIG, BIG, parts) < 0)
			return -1;
		seen[i] = 1;
		for (size_t k = 0; k < BIG / SMALL; k++)
			seen[i] &= parts[k] & 1;
	}
	return 0;
}

long sysconf(int name)
{
	static long (*next)(int);

	if (name == _SC_PAGESIZE)
		return (long)BIG;
	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "sysconf");
	return next(name);
}

int getpagesize(void)
{
	return (int)BIG;
}
