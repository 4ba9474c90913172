/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: device memory, pointers, page-locked memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vcuda.h"

#define GRAIN ((size_t)64 << 10)
#define PAGE ((uintptr_t)4096)
#define SOILED GRAIN	/* at either end */
#define INVALID_DEVICE (-2)

/* What lies at an address. */
static struct vcu_memory *memory_at(uintptr_t ptr)
{
	for (struct vcu_memory *m = vcu()->memory; m; m = m->next) {
		uintptr_t base = (uintptr_t)m->base;

		if (!m->freed && ptr >= base && ptr - base < m->bytes)
			return m;
	}
	return NULL;
}

/* Behind @m, in the same range; NULL: nothing is mapped there. */
static struct vcu_memory *next_of(const struct vcu_memory *m)
{
	struct vcu_memory *next;

	if (!m->shared || !vcu_range(m->base, m->bytes + 1))
		return NULL;
	next = memory_at((uintptr_t)m->base + m->bytes);
	return next && next->device == m->device ? next : NULL;
}

struct vcu_memory *vcu_memory(uintptr_t ptr, size_t bytes)
{
	struct vcu_memory *first = memory_at(ptr), *m;

	for (m = first; m && bytes > m->bytes - (ptr - (uintptr_t)m->base);
	     m = next_of(m)) {
		bytes -= m->bytes - (ptr - (uintptr_t)m->base);
		ptr = (uintptr_t)m->base + m->bytes;
	}
	return m ? first : NULL;
}

bool vcu_may(uintptr_t ptr, size_t bytes, bool write)
{
	for (struct vcu_memory *m = memory_at(ptr);
	     m && (uintptr_t)m->base < ptr + bytes; m = next_of(m)) {
		vcu_ipc_touch(m);
		if (m->shared && m->access != SK_CU_ACCESS_READ_WRITE &&
		    (write || m->access != SK_CU_ACCESS_READ))
			return false;
	}
	return true;
}

/* ---- allocations ---- */

/* A freed one of that size: its address comes again, as with the driver. */
static struct vcu_memory *take_freed(size_t room)
{
	for (struct vcu_memory *m = vcu()->memory; m; m = m->next)
		if (m->freed && m->room == room)
			return m;
	return NULL;
}

/* The bytes, as the driver sees them: a memory file, which stays open where
 * others may be given it. */
static char *map_view(int device, size_t room, struct vcu_memory *ret)
{
	int fd = vcu_backing(device, room);
	void *view = MAP_FAILED;

	if (fd >= 0)
		view = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED,
			    fd, 0);
	ret->fd = fd;
	if (view != MAP_FAILED)
		ret->file = vcu_file_take(fd, device);
	if (fd >= 0 && (view == MAP_FAILED || !vcu_ipc_keeps(room))) {
		close(fd);
		ret->fd = -1;
	}
	return view == MAP_FAILED ? NULL : view;
}

struct vcu_memory *vcu_reserve(size_t room)
{
	struct vcu_memory *m = take_freed(room);
	void *base;

	if (m)
		return m;
	m = calloc(1, sizeof(*m));
	base = mmap(NULL, room, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!m || base == MAP_FAILED) {
		free(m);
		return NULL;
	}
	m->base = base;
	m->room = room;
	m->freed = true;
	m->next = vcu()->memory;
	vcu()->memory = m;
	return m;
}

/* What was there before is not zero: at least not all of it, for what nobody
 * touches is not to cost its pages. */
static void soil(char *view, size_t room)
{
	size_t n = room < SOILED ? room : SOILED;

	memset(view, 0xa5, n);
	memset(view + room - n, 0xa5, n);
}

static sk_cu_result allocate(sk_cu_ptr *ptr, size_t bytes)
{
	size_t room = (bytes + GRAIN - 1) / GRAIN * GRAIN;
	struct vcu_memory *m = vcu_reserve(room);
	char *view = m ? map_view(vcu_current()->device, room, m) : NULL;

	if (!view)
		return SK_CU_OUT_OF_MEMORY;
	soil(view, room);
	m->view = view;
	m->bytes = bytes;
	m->device = vcu_current()->device;
	m->id = ++vcu()->ids;
	m->freed = false;
	*ptr = (uintptr_t)m->base;
	return SK_CU_SUCCESS;
}

sk_cu_result cuMemAlloc_v2(sk_cu_ptr *ptr, size_t bytes)
{
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuMemAlloc);
	if (!ptr || !bytes)
		return SK_CU_INVALID_VALUE;
	vcu_lock();
	r = vcu_check_unsafe();
	if (r == SK_CU_SUCCESS)
		r = allocate(ptr, bytes);
	vcu_unlock();
	return r;
}

/* A driver frees what somebody else was given at that address since. */
static void refuse_freed(sk_cu_ptr ptr)
{
	for (struct vcu_memory *m = vcu()->memory; m; m = m->next)
		if (m->freed && m->base == (char *)(uintptr_t)ptr)
			vcu_misuse("memory is freed twice");
}

/* As the driver does: what is under way ends first. */
sk_cu_result cuMemFree_v2(sk_cu_ptr ptr)
{
	struct vcu_memory *m;

	VCU_ENTER_CONTEXT(cuMemFree);
	VCU_UNSAFE();
	vcu_lock();
	refuse_freed(ptr);
	m = vcu_memory(ptr, 0);
	if (m && !m->shared && !m->peer &&
	    m->base == (char *)(uintptr_t)ptr) {
		/* From here on nobody is given it: draining gives up the
		 * lock. */
		m->bytes = 0;
		vcu_drain(&vcu()->contexts[m->device]);
		(void)munmap(m->view, m->room);
		vcu_ipc_end(m);
		vcu_file_drop(m->file);
		m->file = NULL;
		m->view = NULL;
		m->freed = true;
	} else {
		m = NULL;
	}
	vcu_unlock();
	return m ? SK_CU_SUCCESS : SK_CU_INVALID_VALUE;
}

/* ---- what a pointer is ---- */

/* Of what is mapped, the range is all that was reserved with it. */
static bool attribute(sk_cu_enum which, void *value,
		      const struct vcu_memory *m, bool locked)
{
	const struct vcu_range *range = m && m->shared ?
					vcu_range(m->base, m->bytes) : NULL;

	switch (which) {
	case SK_CU_POINTER_MEMORY_TYPE:
		*(unsigned *)value = m && m->device >= 0 ?
				     SK_CU_MEMORY_DEVICE :
				     m || locked ? SK_CU_MEMORY_HOST : 0;
		return true;
	case SK_CU_POINTER_BUFFER_ID:
		*(unsigned long long *)value = m ? m->id : 0;
		return true;
	case SK_CU_POINTER_DEVICE_ORDINAL:
		*(int *)value = m ? m->device : INVALID_DEVICE;
		return true;
	case SK_CU_POINTER_OF_ALLOC:
		*(int *)value = m && !m->shared;
		return true;
	case SK_CU_POINTER_RANGE_START:
		*(sk_cu_ptr *)value = range ? (uintptr_t)range->base :
				      m ? (uintptr_t)m->base : 0;
		return true;
	case SK_CU_POINTER_RANGE_SIZE:
		*(size_t *)value = range ? range->bytes : m ? m->bytes : 0;
		return true;
	default:
		return false;
	}
}

/* Of a pointer that it does not know, it says nothing, and succeeds. */
sk_cu_result cuPointerGetAttributes(unsigned n, sk_cu_enum *attributes,
				    void **values, sk_cu_ptr ptr)
{
	const struct vcu_memory *m;
	bool known = true, locked;

	VCU_ENTER_WORK(cuPointerGetAttributes);
	vcu_lock();
	m = vcu_memory(ptr, 0);
	locked = !m && vcu_locked((char *)(uintptr_t)ptr, 1);
	for (unsigned i = 0; i < n; i++)
		known &= attribute(attributes[i], values[i], m, locked);
	vcu_unlock();
	return known ? SK_CU_SUCCESS : SK_CU_INVALID_VALUE;
}

/* Of what is mapped, what was mapped with it. */
sk_cu_result cuMemGetAddressRange_v2(sk_cu_ptr *start, size_t *bytes,
				     sk_cu_ptr ptr)
{
	const struct vcu_memory *m;

	VCU_ENTER_CONTEXT(cuMemGetAddressRange);
	vcu_lock();
	m = vcu_memory(ptr, 1);
	/* Another context's is not told. */
	if (m && m->device >= 0 && m->device != vcu_current()->device)
		m = NULL;
	if (m) {
		*start = (uintptr_t)m->base;
		*bytes = m->bytes;
	}
	vcu_unlock();
	return m ? SK_CU_SUCCESS : SK_CU_NOT_FOUND;
}

/* Where the driver itself has those bytes, of the device or page-locked; NULL:
 * they are neither. */
void *vcudaView(uintptr_t ptr, size_t bytes, int *ret_device)
{
	const struct vcu_memory *m;
	void *view = NULL;

	vcu_lock();
	m = vcu_memory(ptr, bytes);
	*ret_device = m ? m->device : -1;
	if (m)
		view = m->view + (ptr - (uintptr_t)m->base);
	else if (vcu_locked((char *)ptr, bytes))
		view = (void *)ptr;
	vcu_unlock();
	return view;
}

/* ---- page-locked memory ---- */

struct vcu_locked *vcu_locked(const char *ptr, size_t bytes)
{
	for (struct vcu_locked *l = vcu()->locked; l; l = l->next)
		if (ptr >= l->base && ptr < l->base + l->bytes &&
		    bytes <= l->bytes - (size_t)(ptr - l->base))
			return l;
	return NULL;
}

bool vcu_touches_locked(const char *ptr, size_t bytes)
{
	for (struct vcu_locked *l = vcu()->locked; l; l = l->next)
		if (ptr < l->base + l->bytes && l->base < ptr + bytes)
			return true;
	return false;
}

bool vcu_is_mapped(const char *ptr, size_t bytes, bool write)
{
	uintptr_t at = (uintptr_t)ptr, end = at + bytes;
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512], right[8];
	unsigned long from, to;

	while (maps && at < end && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %4s", &from, &to, right) == 3 &&
		    from <= at && at < to) {
			if (write && right[1] != 'w')
				break;
			at = to;
		}
	if (maps)
		(void)fclose(maps);
	return at >= end;
}

/* Whether any page of it is, which no device locks twice. */
static bool shares_pages(const char *ptr, size_t bytes)
{
	uintptr_t begin = (uintptr_t)ptr / PAGE * PAGE;
	uintptr_t end = ((uintptr_t)ptr + bytes + PAGE - 1) / PAGE * PAGE;

	for (struct vcu_locked *l = vcu()->locked; l; l = l->next) {
		uintptr_t from = (uintptr_t)l->base / PAGE * PAGE;
		uintptr_t to = ((uintptr_t)l->base + l->bytes + PAGE - 1) /
			       PAGE * PAGE;

		if (begin < to && from < end)
			return true;
	}
	return false;
}

sk_cu_result vcu_lock_pages(char *ptr, size_t bytes, bool read_only)
{
	struct vcu_locked *l;

	if (shares_pages(ptr, bytes))
		return SK_CU_ALREADY_REGISTERED;
	if (!vcu_is_mapped(ptr, bytes, !read_only))
		return SK_CU_INVALID_VALUE;
	l = calloc(1, sizeof(*l));
	if (!l)
		return SK_CU_OUT_OF_MEMORY;
	l->base = ptr;
	l->bytes = bytes;
	l->read_only = read_only;
	l->next = vcu()->locked;
	vcu()->locked = l;
	return SK_CU_SUCCESS;
}

sk_cu_result cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned flags)
{
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuMemHostRegister);
	if (vcu_mode("no-register"))
		return SK_CU_NOT_SUPPORTED;
	if (!ptr || !bytes || flags & ~15u)
		return SK_CU_INVALID_VALUE;
	if (bytes >= (size_t)vcu_setting("VCUDA_LOCK_MOST", 512l << 30))
		return SK_CU_OUT_OF_MEMORY;
	vcu_lock();
	r = vcu_check_unsafe();
	if (r == SK_CU_SUCCESS)
		r = vcu_lock_pages(ptr, bytes,
				   flags & SK_CU_HOST_REGISTER_READ_ONLY);
	vcu_unlock();
	return r;
}

bool vcu_forget_locked(const char *ptr)
{
	struct vcu_locked **at, *l;

	for (at = &vcu()->locked; *at && (*at)->base != ptr;)
		at = &(*at)->next;
	l = *at;
	if (!l)
		return false;
	if (!vcu_is_mapped(l->base, l->bytes, false))
		vcu_misuse("the %zu bytes at %p were unmapped before they "
			   "were unregistered", l->bytes, (const void *)ptr);
	if (l->flying)
		vcu_misuse("%u copies are under way in the %zu bytes at %p "
			   "that are unregistered", l->flying, l->bytes,
			   (const void *)ptr);
	*at = l->next;
	free(l);
	return true;
}

sk_cu_result cuMemHostUnregister(void *ptr)
{
	bool was;

	VCU_ENTER_CONTEXT(cuMemHostUnregister);
	VCU_UNSAFE();
	vcu_lock();
	was = vcu_forget_locked(ptr);
	vcu_unlock();
	return was ? SK_CU_SUCCESS : SK_CU_NOT_REGISTERED;
}
