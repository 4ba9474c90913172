/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver: memory without an address, which processes share.
 *
 * An allocation is a memory file, its exported handle a descriptor of it: so
 * how long it lives, and for whom, is the kernel's own business.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vcuda.h"

#define GRANULARITY ((size_t)2 << 20)

/* ---- allocations ---- */

static bool is_of_node(const sk_cu_allocation *what)
{
	return what->location.type == SK_CU_LOCATION_HOST_NUMA;
}

/* Nodes of the host: whatever number they have. */
static bool is_ours(const sk_cu_allocation *what)
{
	if (!what || what->type != SK_CU_ALLOCATION_PINNED ||
	    what->location.id < 0)
		return false;
	return is_of_node(what) ||
	       (what->location.type == SK_CU_LOCATION_DEVICE &&
		what->location.id < vcu()->n_devices);
}

sk_cu_result cuMemGetAllocationGranularity(size_t *bytes,
					   const sk_cu_allocation *what,
					   sk_cu_enum which)
{
	VCU_ENTER(cuMemGetAllocationGranularity);
	if (!bytes || !is_ours(what) || which > 1)
		return SK_CU_INVALID_VALUE;
	*bytes = GRANULARITY;
	return SK_CU_SUCCESS;
}

/* With the lock held; the descriptor is its own from here on. */
static sk_cu_result add(sk_cu_handle *handle, int fd, size_t bytes,
			int device, bool exports)
{
	struct vcu_handle *h = calloc(1, sizeof(*h));

	if (!h) {
		close(fd);
		return SK_CU_OUT_OF_MEMORY;
	}
	*h = (struct vcu_handle){ .next = vcu()->handles,
				  .id = ++vcu()->ids, .fd = fd,
				  .file = vcu_file_take(fd, device),
				  .bytes = bytes, .device = device,
				  .exports = exports };
	vcu()->handles = h;
	*handle = h->id;
	return SK_CU_SUCCESS;
}

static sk_cu_result create(sk_cu_handle *handle, size_t bytes,
			   const sk_cu_allocation *what)
{
	int device = is_of_node(what) ? VCU_NODE : what->location.id;
	int fd = vcu_backing(device, bytes);

	if (fd < 0)
		return SK_CU_OUT_OF_MEMORY;
	return add(handle, fd, bytes, device,
		   what->handles == SK_CU_HANDLE_POSIX_FD);
}

sk_cu_result cuMemCreate(sk_cu_handle *handle, size_t bytes,
			 const sk_cu_allocation *what,
			 unsigned long long flags)
{
	sk_cu_result r;

	VCU_ENTER_WORK(cuMemCreate);
	VCU_UNSAFE();
	if (!handle || !bytes || bytes % GRANULARITY || !is_ours(what) ||
	    flags)
		return SK_CU_INVALID_VALUE;
	if (what->handles & VCU_HANDLE_FABRIC && vcu_mode("no-channel"))
		return VCU_NOT_PERMITTED;
	if (what->handles & ~(sk_cu_enum)SK_CU_HANDLE_POSIX_FD ||
	    (what->handles && vcu_mode("no-share")))
		return SK_CU_NOT_SUPPORTED;
	r = is_of_node(what) ? SK_CU_SUCCESS : vcu_broken(what->location.id);
	if (r != SK_CU_SUCCESS)
		return r;
	vcu_lock();
	r = create(handle, bytes, what);
	vcu_unlock();
	return r;
}

/* With the lock held. */
static struct vcu_handle *find(sk_cu_handle handle)
{
	for (struct vcu_handle *h = vcu()->handles; h; h = h->next) {
		if (h->id != handle)
			continue;
		/* A driver gives its number to the next one. */
		if (h->gone)
			vcu_misuse("a handle of memory that was released is "
				   "used");
		return h;
	}
	return NULL;
}

/* What is mapped stays: a mapping needs no handle. */
sk_cu_result cuMemRelease(sk_cu_handle handle)
{
	struct vcu_handle *h;

	VCU_ENTER_WORK(cuMemRelease);
	VCU_UNSAFE();
	vcu_lock();
	h = find(handle);
	if (h) {
		vcu_file_drop(h->file);
		close(h->fd);
		h->gone = true;
	}
	vcu_unlock();
	return h ? SK_CU_SUCCESS : SK_CU_INVALID_VALUE;
}

/* ---- from process to process ---- */

sk_cu_result cuMemExportToShareableHandle(void *ret, sk_cu_handle handle,
					  sk_cu_enum type,
					  unsigned long long flags)
{
	const struct vcu_handle *h;
	int fd = -1;

	VCU_ENTER_WORK(cuMemExportToShareableHandle);
	VCU_UNSAFE();
	if (!ret || flags || type != SK_CU_HANDLE_POSIX_FD)
		return SK_CU_INVALID_VALUE;
	vcu_lock();
	h = find(handle);
	if (h && h->exports)
		fd = fcntl(h->fd, F_DUPFD, 3);
	vcu_unlock();
	if (fd < 0)
		return SK_CU_INVALID_VALUE;
	*(int *)ret = fd;
	return SK_CU_SUCCESS;
}

sk_cu_result cuMemImportFromShareableHandle(sk_cu_handle *handle, void *from,
					    sk_cu_enum type)
{
	int device, fd = (int)(intptr_t)from;
	struct stat st;
	sk_cu_result r;

	VCU_ENTER_WORK(cuMemImportFromShareableHandle);
	VCU_UNSAFE();
	if (!handle || type != SK_CU_HANDLE_POSIX_FD || fstat(fd, &st))
		return SK_CU_INVALID_VALUE;
	device = vcu_backing_device(fd);
	fd = device == VCU_NO_DEVICE ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (fd < 0)
		return SK_CU_INVALID_VALUE;
	vcu_lock();
	r = add(handle, fd, (size_t)st.st_size, device, true);
	vcu_unlock();
	return r;
}

/* ---- addresses ---- */

/* At @at, whatever is there, or anywhere. */
static void *reserve(void *at, size_t bytes)
{
	return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
		    MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0);
}

sk_cu_result cuMemAddressReserve(sk_cu_ptr *ptr, size_t bytes,
				 size_t alignment, sk_cu_ptr at,
				 unsigned long long flags)
{
	struct vcu_range *range;
	char *map, *view, *base;

	VCU_ENTER_WORK(cuMemAddressReserve);
	VCU_UNSAFE();
	if (!ptr || !bytes || bytes % GRANULARITY || flags ||
	    alignment & (alignment - 1) || at)
		return SK_CU_INVALID_VALUE;
	range = calloc(1, sizeof(*range));
	map = reserve(NULL, bytes + GRANULARITY);
	view = reserve(NULL, bytes);
	if (!range || map == MAP_FAILED || view == MAP_FAILED) {
		free(range);
		return SK_CU_OUT_OF_MEMORY;
	}
	base = map + (GRANULARITY - (uintptr_t)map % GRANULARITY);
	*range = (struct vcu_range){ .base = base, .bytes = bytes,
				     .map = map, .view = view };
	vcu_lock();
	range->next = vcu()->ranges;
	vcu()->ranges = range;
	vcu_unlock();
	*ptr = (uintptr_t)base;
	return SK_CU_SUCCESS;
}

/* With the lock held. */
static bool is_mapped(const char *base, size_t bytes)
{
	for (struct vcu_memory *m = vcu()->memory; m; m = m->next)
		if (m->shared && m->base < base + bytes &&
		    base < m->base + m->bytes)
			return true;
	return false;
}

struct vcu_range *vcu_range(const char *base, size_t bytes)
{
	for (struct vcu_range *r = vcu()->ranges; r; r = r->next)
		if (base >= r->base && bytes <= r->bytes &&
		    (size_t)(base - r->base) <= r->bytes - bytes)
			return r;
	return NULL;
}

sk_cu_result cuMemAddressFree(sk_cu_ptr ptr, size_t bytes)
{
	struct vcu_range **at, *range = NULL;

	VCU_ENTER_WORK(cuMemAddressFree);
	VCU_UNSAFE();
	vcu_lock();
	for (at = &vcu()->ranges; *at && (uintptr_t)(*at)->base != ptr;)
		at = &(*at)->next;
	if (*at && (*at)->bytes == bytes && !is_mapped((*at)->base, bytes)) {
		range = *at;
		*at = range->next;
		(void)munmap(range->map, bytes + GRANULARITY);
		(void)munmap(range->view, bytes);
		free(range);
	}
	vcu_unlock();
	return range ? SK_CU_SUCCESS : SK_CU_INVALID_VALUE;
}

/* ---- mappings ---- */

/* Nobody may touch it yet. */
static sk_cu_result map(const struct vcu_range *range, char *base,
			size_t bytes, const struct vcu_handle *h)
{
	struct vcu_memory *m = calloc(1, sizeof(*m));
	void *view = mmap(range->view + (base - range->base), bytes,
			  PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			  h->fd, 0);

	if (!m || view == MAP_FAILED) {
		free(m);
		return SK_CU_OUT_OF_MEMORY;
	}
	*m = (struct vcu_memory){ .next = vcu()->memory, .base = base,
				  .view = view, .bytes = bytes, .room = bytes,
				  .device = h->device, .id = ++vcu()->ids,
				  .shared = true, .fd = -1,
				  .file = h->file };
	vcu_file_again(h->file);
	vcu()->memory = m;
	/* A node's the host will see there, too. */
	if (h->device == VCU_NODE)
		(void)mmap(base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
			   h->fd, 0);
	return SK_CU_SUCCESS;
}

sk_cu_result cuMemMap(sk_cu_ptr ptr, size_t bytes, size_t offset,
		      sk_cu_handle handle, unsigned long long flags)
{
	char *base = (char *)(uintptr_t)ptr;
	const struct vcu_range *range;
	const struct vcu_handle *h;
	sk_cu_result r = SK_CU_INVALID_VALUE;

	VCU_ENTER_WORK(cuMemMap);
	VCU_UNSAFE();
	if (!bytes || bytes % GRANULARITY || ptr % GRANULARITY || offset ||
	    flags)
		return SK_CU_INVALID_VALUE;
	vcu_lock();
	h = find(handle);
	range = vcu_range(base, bytes);
	if (h && bytes > h->bytes)
		r = SK_CU_NOT_SUPPORTED;
	else if (h && range && !is_mapped(base, bytes))
		r = map(range, base, bytes, h);
	vcu_unlock();
	return r;
}

sk_cu_result cuMemUnmap(sk_cu_ptr ptr, size_t bytes)
{
	struct vcu_memory **at, *m = NULL;

	VCU_ENTER_WORK(cuMemUnmap);
	VCU_UNSAFE();
	vcu_lock();
	for (at = &vcu()->memory;
	     *at && !((*at)->shared && (uintptr_t)(*at)->base == ptr &&
		      (*at)->bytes == bytes);)
		at = &(*at)->next;
	if (*at) {
		m = *at;
		/* It is nobody's while waiting gives up the lock. */
		*at = m->next;
		vcu_vanish(m->view, m->room);
		(void)reserve(m->view, m->room);
		if (m->device == VCU_NODE) {
			vcu_forget_locked(m->base);
			(void)reserve(m->base, m->room);
		}
		vcu_file_drop(m->file);
		free(m);
	}
	vcu_unlock();
	return m ? SK_CU_SUCCESS : SK_CU_INVALID_VALUE;
}

/* To the host, which has it at the same address, locked. */
static void give_host(struct vcu_memory *m, const sk_cu_access *access)
{
	if (access->location.type == SK_CU_LOCATION_DEVICE)
		return;
	(void)mprotect(m->base, m->bytes,
		       access->flags == SK_CU_ACCESS_READ_WRITE ?
		       PROT_READ | PROT_WRITE : PROT_READ);
	if (!vcu_locked(m->base, m->bytes))
		(void)vcu_lock_pages(m->base, m->bytes, false);
}

/* To all that is mapped there. */
static void give_access(const char *base, size_t bytes,
			const sk_cu_access *access)
{
	for (struct vcu_memory *m = vcu()->memory; m; m = m->next) {
		if (!m->shared || m->base >= base + bytes ||
		    base >= m->base + m->bytes)
			continue;
		if (m->device == VCU_NODE)
			give_host(m, access);
		else if (access->location.type == SK_CU_LOCATION_DEVICE &&
			 access->location.id == m->device)
			m->access = access->flags;
	}
}

sk_cu_result cuMemSetAccess(sk_cu_ptr ptr, size_t bytes,
			    const sk_cu_access *access, size_t n)
{
	struct vcu_memory *m;

	VCU_ENTER_WORK(cuMemSetAccess);
	VCU_UNSAFE();
	if (!access || !n || !bytes || bytes % GRANULARITY ||
	    ptr % GRANULARITY)
		return SK_CU_INVALID_VALUE;
	vcu_lock();
	m = vcu_memory(ptr, bytes);
	if (m && !m->shared)
		m = NULL;
	for (size_t i = 0; m && i < n; i++)
		give_access((char *)(uintptr_t)ptr, bytes, &access[i]);
	vcu_unlock();
	return m ? SK_CU_SUCCESS : SK_CU_INVALID_VALUE;
}

sk_cu_result cuMemGetInfo_v2(size_t *left, size_t *all)
{
	uint64_t used;

	VCU_ENTER_CONTEXT(cuMemGetInfo);
	vcu_lock();
	used = vcu_memory_used(vcu_current()->device);
	vcu_unlock();
	*all = vcu_memory_bytes();
	*left = *all > used ? *all - used : 0;
	return SK_CU_SUCCESS;
}
