/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/slot.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/pages.h"

/* Kernel interfaces that are newer than the C library may be. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define SYS_HUGE "/hugepages/hugepages-2048kB/"
#define NAME_LONGEST 200	/* memfd_create refuses 250 and more */
#define BYTES_MOST ((uint64_t)INT64_MAX - SK_HUGE_PAGE)

/* The number that a file of sysfs holds, 0 where there is none. */
static uint64_t read_number(const struct sk_os *os, const char *path)
{
	char text[32];
	ssize_t n;
	int fd;

	fd = os->openat(os, AT_FDCWD, path, O_RDONLY, 0);
	if (fd < 0)
		return 0;
	n = os->pread(os, fd, text, sizeof(text) - 1, 0);
	os->close(os, fd);
	if (n <= 0)
		return 0;
	text[n] = 0;
	return strtoull(text, NULL, 10);
}

/* Huge pages that a new slot may have: free, promised to nobody, near. */
static uint64_t huge_pages_free(const struct sk_os *os, int numa_node)
{
	uint64_t free_pages, promised, near;
	char path[128];

	free_pages = read_number(os, "/sys/kernel/mm" SYS_HUGE
				     "free_hugepages");
	promised = read_number(os, "/sys/kernel/mm" SYS_HUGE
				   "resv_hugepages");
	if (free_pages <= promised)
		return 0;
	free_pages -= promised;
	if (numa_node < 0)
		return free_pages;
	(void)snprintf(path, sizeof(path), "/sys/devices/system/node/node%d"
		       SYS_HUGE "free_hugepages", numa_node);
	near = read_number(os, path);
	return near < free_pages ? near : free_pages;
}

/* Other users' debuggers and our children have no business here. */
static int hide_map(const struct sk_os *os, void *map, uint64_t bytes)
{
	int r;

	r = os->madvise(os, map, bytes, MADV_DONTDUMP);
	if (r < 0)
		return r;
	return os->madvise(os, map, bytes, MADV_DONTFORK);
}

/* Addresses where huge pages can lie, with nothing there yet. */
static int reserve_aligned(const struct sk_os *os, uint64_t bytes,
			   void **ret_map)
{
	uint64_t more = bytes + SK_HUGE_PAGE;
	uintptr_t start, at, end;
	void *map;
	int r;

	assert(bytes && bytes % sk_page_bytes() == 0);
	r = os->mmap(os, NULL, more, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0,
		     &map);
	if (r < 0)
		return r;
	start = (uintptr_t)map;
	at = sk_round_up(start, SK_HUGE_PAGE);
	end = at + bytes;
	if (at > start)
		os->munmap(os, map, at - start);
	if (start + more > end)
		os->munmap(os, (void *)end, start + more - end);
	*ret_map = (void *)at;
	return 0;
}

static int map_aligned(const struct sk_os *os, int fd, uint64_t bytes,
		       int prot, void **ret_map)
{
	void *at;
	int r;

	assert(bytes);
	if (bytes < SK_HUGE_PAGE)
		return os->mmap(os, NULL, bytes, prot, MAP_SHARED, fd, 0,
				ret_map);
	bytes = sk_round_up(bytes, sk_page_bytes());
	r = reserve_aligned(os, bytes, &at);
	if (r < 0)
		return r;
	r = os->mmap(os, at, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0,
		     ret_map);
	if (r < 0)
		os->munmap(os, at, bytes);
	return r;
}

static int map_hidden(const struct sk_os *os, int fd, uint64_t bytes,
		      int prot, void **ret_map)
{
	void *map;
	int r;

	r = map_aligned(os, fd, bytes, prot, &map);
	if (r < 0)
		return r;
	r = hide_map(os, map, bytes);
	if (r < 0) {
		os->munmap(os, map, bytes);
		return r;
	}
	*ret_map = map;
	return 0;
}

static int create_memfd(const struct sk_os *os, const char *name, bool huge)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	char text[NAME_LONGEST + 1];
	int fd;

	if (huge)
		flags |= MFD_HUGETLB | MFD_HUGE_2MB;
	(void)snprintf(text, sizeof(text), "%s", name);
	fd = os->memfd_create(os, text, flags | MFD_NOEXEC_SEAL);
	if (fd == -EINVAL)	/* kernels before 6.3 */
		fd = os->memfd_create(os, text, flags);
	return fd;
}

/*
 * The policy belongs to the memory, not to this mapping, so that pages which
 * a client touches first lie there too. Preferred, not bound: a node without
 * free memory must give slower memory, not wake the OOM killer.
 */
static bool prefer_node(const struct sk_os *os, void *map, uint64_t bytes,
			int numa_node)
{
	struct bitmask *nodes;
	int r;

	assert(map && numa_node >= 0);
	if (numa_available() < 0 || numa_node > numa_max_node())
		return false;
	nodes = numa_allocate_nodemask();
	if (!nodes)
		return false;
	numa_bitmask_setbit(nodes, (unsigned)numa_node);
	r = os->mbind(os, map, bytes, MPOL_PREFERRED, nodes->maskp,
		      nodes->size + 1);
	numa_bitmask_free(nodes);
	return r == 0;
}

/* Creates and maps; *ret_step says what failed. */
static int create_slot(const struct sk_os *os, const char *name,
		       struct sk_slot *slot, const char **ret_step)
{
	int r;

	*ret_step = "create";
	slot->fd = create_memfd(os, name, slot->huge);
	if (slot->fd < 0)
		return slot->fd;
	*ret_step = "size";
	r = os->ftruncate(os, slot->fd, slot->bytes);
	if (r < 0)
		return r;
	*ret_step = "seal";
	r = os->fcntl_seal(os, slot->fd, F_SEAL_SHRINK | F_SEAL_GROW);
	if (r < 0)
		return r;
	/* For huge pages this reserves them all, or says -ENOMEM. */
	*ret_step = "map";
	return map_hidden(os, slot->fd, slot->bytes, PROT_READ | PROT_WRITE,
			  &slot->map);
}

/* What to do, by what was short. */
static const char *advice(int r)
{
	if (r == -EFBIG)
		return "raise the agent's limit of file sizes (ulimit -f)";
	if (r == -EMFILE || r == -ENFILE)
		return "raise the limit of open files (ulimit -n)";
	return "lower the agent's memory budget or free memory";
}

static int try_create(const struct sk_os *os, const char *name,
		      uint64_t bytes, bool huge, struct sk_slot *ret_slot,
		      struct sk_err *err)
{
	struct sk_slot slot = SK_SLOT_NULL;
	const char *step;
	int r;

	assert(bytes && bytes <= BYTES_MOST);
	slot.huge = huge;
	slot.bytes = sk_round_up(bytes, sk_slot_page(&slot));
	r = create_slot(os, name, &slot, &step);
	if (r < 0) {
		sk_slot_destroy(os, &slot);
		return sk_err_errno(err, r, "cannot %s the memory of slot %s "
				    "(%" PRIu64 " bytes); %s", step, name,
				    bytes, advice(r));
	}
	*ret_slot = slot;
	return 0;
}

int sk_slot_create(const struct sk_os *os, const char *name, uint64_t bytes,
		   int numa_node, struct sk_slot *ret_slot,
		   struct sk_err *err)
{
	bool huge = bytes >= SK_HUGE_PAGE;
	struct sk_slot slot;
	int r;

	if (!bytes)
		return sk_err_set(err, -EINVAL, "slot %s would hold 0 bytes",
				  name);
	if (bytes > BYTES_MOST)
		return sk_err_set(err, -ENOMEM, "slot %s of %" PRIu64
				  " bytes is larger than any memory", name,
				  bytes);
	if (huge)
		huge = huge_pages_free(os, numa_node) >=
		       sk_round_up(bytes, SK_HUGE_PAGE) / SK_HUGE_PAGE;
	r = huge ? try_create(os, name, bytes, true, &slot, NULL) : -ENOMEM;
	if (r < 0)	/* others may have taken the huge pages meanwhile */
		r = try_create(os, name, bytes, false, &slot, err);
	if (r < 0)
		return r;
	if (numa_node >= 0 && prefer_node(os, slot.map, slot.bytes, numa_node))
		slot.numa_node = numa_node;
	/* Does nothing unless the system grants memfds such pages. */
	if (!slot.huge)
		(void)os->madvise(os, slot.map, slot.bytes, MADV_HUGEPAGE);
	*ret_slot = slot;
	return 0;
}

void sk_slot_destroy(const struct sk_os *os, struct sk_slot *slot)
{
	if (slot->map)
		os->munmap(os, slot->map, slot->bytes);
	if (slot->fd >= 0)
		os->close(os, slot->fd);
	*slot = (struct sk_slot)SK_SLOT_NULL;
}

int sk_slot_seal_writes(const struct sk_os *os, struct sk_slot *slot,
			struct sk_err *err)
{
	int r, seals;

	assert(slot->fd >= 0);
	seals = os->fcntl(os, slot->fd, F_GET_SEALS, 0);
	if (seals >= 0 && seals & F_SEAL_FUTURE_WRITE)
		return 0;
	r = os->fcntl_seal(os, slot->fd, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
	if (r < 0)
		return sk_err_errno(err, r, "cannot seal a slot of %" PRIu64
				    " bytes against writes; let trusted "
				    "users only reach the agent",
				    slot->bytes);
	return 0;
}

int sk_slot_reopen_ro(const struct sk_os *os, const struct sk_slot *slot,
		      struct sk_err *err)
{
	char path[64];
	int fd;

	assert(slot->fd >= 0);
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", slot->fd);
	fd = os->openat(os, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0)
		return sk_err_errno(err, fd, "cannot reopen a slot of %"
				    PRIu64 " bytes for reading through %s; "
				    "mount /proc and look at the limit of "
				    "open files", slot->bytes, path);
	return fd;
}

static int check_fd(const struct sk_os *os, int fd, uint64_t bytes,
		    struct sk_err *err)
{
	struct stat st;
	int r, seals;

	seals = os->fcntl(os, fd, F_GET_SEALS, 0);
	if (seals == -EINVAL || seals == -EBADF)
		return sk_err_set(err, -EBADF, "descriptor %d is not a slot: "
				  "it is not a memfd", fd);
	if (seals < 0)
		return sk_err_errno(err, seals, "cannot tell the seals of "
				    "slot descriptor %d", fd);
	if (!(seals & F_SEAL_SHRINK))
		return sk_err_set(err, -EBADF, "descriptor %d is not a slot: "
				  "it may shrink", fd);
	r = os->fstat(os, fd, &st);
	if (r < 0)
		return sk_err_errno(err, r, "cannot tell the size of slot "
				    "descriptor %d", fd);
	if (st.st_size < 0 || (uint64_t)st.st_size < bytes)
		return sk_err_set(err, -EBADF, "descriptor %d is a slot of "
				  "%lld bytes, not of the %" PRIu64
				  " that were announced", fd,
				  (long long)st.st_size, bytes);
	return 0;
}

/* A mapping of huge pages is made, and changed, by whole ones only. */
static int whole_pages(const struct sk_os *os, int fd, uint64_t bytes,
		       uint64_t *ret_bytes)
{
	struct statfs fs;
	int r = os->fstatfs(os, fd, &fs);

	assert(bytes);
	if (r < 0)
		return r;
	*ret_bytes = bytes;
	if ((unsigned)fs.f_type == HUGETLBFS_MAGIC)
		*ret_bytes = sk_round_up(bytes, (uint64_t)fs.f_bsize);
	return 0;
}

int sk_slot_map_fd(const struct sk_os *os, int fd, uint64_t bytes,
		   bool writable, void **ret_map, struct sk_err *err)
{
	int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
	uint64_t whole;
	int r;

	if (!bytes)
		return sk_err_set(err, -EINVAL, "descriptor %d was announced "
				  "as a slot of 0 bytes", fd);
	r = check_fd(os, fd, bytes, err);
	if (r < 0)
		return r;
	r = whole_pages(os, fd, bytes, &whole);
	if (r == 0)
		r = map_hidden(os, fd, whole, prot, ret_map);
	if (r < 0)
		return sk_err_errno(err, r, "cannot map slot descriptor %d "
				    "(%" PRIu64 " bytes) for %s", fd, bytes,
				    writable ? "writing" : "reading");
	return 0;
}

int sk_slot_adopt(const struct sk_os *os, int fd, uint64_t bytes,
		  int numa_node, struct sk_slot *ret_slot,
		  struct sk_err *err)
{
	struct sk_slot slot = { .fd = fd, .numa_node = numa_node };
	int prot = PROT_READ | PROT_WRITE, seals, r;
	struct statfs fs;

	assert(bytes && bytes <= BYTES_MOST);
	r = check_fd(os, fd, bytes, err);
	if (r < 0)
		return r;
	seals = os->fcntl(os, fd, F_GET_SEALS, 0);
	r = os->fstatfs(os, fd, &fs);
	if (seals < 0 || r < 0)
		return sk_err_errno(err, r < 0 ? r : seals, "cannot look at "
				    "slot descriptor %d", fd);
	slot.huge = (unsigned)fs.f_type == HUGETLBFS_MAGIC;
	slot.bytes = sk_round_up(bytes, sk_slot_page(&slot));
	if (seals & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE))
		prot = PROT_READ;
	r = map_hidden(os, fd, slot.bytes, prot, &slot.map);
	if (r < 0)
		return sk_err_errno(err, r, "cannot map slot descriptor %d (%"
				    PRIu64 " bytes)", fd, slot.bytes);
	*ret_slot = slot;
	return 0;
}

void sk_slot_unmap(const struct sk_os *os, void *map, uint64_t bytes)
{
	if (!map)
		return;
	/* Refused where it would cut a huge page: then it is the whole one. */
	if (os->munmap(os, map, bytes) == -EINVAL)
		os->munmap(os, map, sk_round_up(bytes, SK_HUGE_PAGE));
}

int sk_numa_node_here(void)
{
	unsigned cpu, node;

	if (numa_available() < 0 || numa_num_configured_nodes() < 2)
		return -1;
	if (getcpu(&cpu, &node) < 0)
		return -1;
	return (int)node;
}
