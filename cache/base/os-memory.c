/* SPDX-License-Identifier: Apache-2.0 */
/* The real system: memory. */
#include <fcntl.h>
#include <numaif.h>
#include <sys/mman.h>

#include "base/os-private.h"

int sk_linux_memfd_create(const struct sk_os *os, const char *name,
			  unsigned flags)
{
	(void)os;
	return sk_os_new_fd(memfd_create(name, flags | MFD_CLOEXEC));
}

int sk_linux_fcntl_seal(const struct sk_os *os, int fd, int seals)
{
	(void)os;
	return sk_os_result(fcntl(fd, F_ADD_SEALS, seals));
}

int sk_linux_mmap(const struct sk_os *os, void *at, size_t size, int prot,
		  int flags, int fd, uint64_t offset, void **ret_map)
{
	void *map;

	(void)os;
	map = mmap(at, size, prot, flags, fd, (off_t)offset);
	if (map == MAP_FAILED)
		return -errno;
	*ret_map = map;
	return 0;
}

int sk_linux_munmap(const struct sk_os *os, void *map, size_t size)
{
	(void)os;
	return sk_os_result(munmap(map, size));
}

int sk_linux_madvise(const struct sk_os *os, void *map, size_t size,
		     int advice)
{
	int r;

	(void)os;
	do {
		r = madvise(map, size, advice);
	} while (r < 0 && errno == EINTR);
	return sk_os_result(r);
}

int sk_linux_mincore(const struct sk_os *os, void *map, size_t size,
		     unsigned char *ret_seen)
{
	(void)os;
	return sk_os_result(mincore(map, size, ret_seen));
}

int sk_linux_mbind(const struct sk_os *os, void *map, size_t size, int mode,
		   const unsigned long *nodes, unsigned long node_bits)
{
	(void)os;
	return sk_os_result((int)mbind(map, size, mode, nodes, node_bits, 0));
}

int sk_linux_mprotect(const struct sk_os *os, void *map, size_t size, int prot)
{
	(void)os;
	return sk_os_result(mprotect(map, size, prot));
}
