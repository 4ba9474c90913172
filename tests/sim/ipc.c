/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver: memory with an address, which other processes open by
 * a handle (cuIpc).
 *
 * It is its maker's: whoever has it open when its maker frees it, or ends, has
 * an address at which anything may be. What is asked for there is misuse, and
 * the process ends; with $VCUDA_IPC "undefined" the bytes are others instead,
 * as on a bad day.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vcuda.h"

#define GRAIN ((size_t)2 << 20)
#define LAZY_PEER_ACCESS 1u
#define MAGIC UINT64_C(0x7663756461697063)

/* What a handle says. */
struct name {
	uint64_t magic, id, bytes;
	uintptr_t base;
	pid_t pid;
	int fd;				/* its maker's */
	int unit;			/* of the device */
};

_Static_assert(sizeof(struct name) <= sizeof(sk_cu_ipc), "a handle");

/* The file whose number is in the handle; of whoever has that number now. */
static int open_file(const struct name *name)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", name->pid,
		       name->fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

/* ---- giving ---- */

bool vcu_ipc_keeps(size_t bytes)
{
	return bytes % GRAIN == 0;
}

/* Whoever has it open sees that, by the file's mode. */
void vcu_ipc_end(struct vcu_memory *m)
{
	if (m->fd < 0)
		return;
	(void)fchmod(m->fd, 0);
	close(m->fd);
	m->fd = -1;
}

/* What is smaller shares its pages with others, which would be given too. */
sk_cu_result cuIpcGetMemHandle(sk_cu_ipc *handle, sk_cu_ptr ptr)
{
	const struct vcu_memory *m;
	struct name name = { .magic = MAGIC };

	VCU_ENTER_CONTEXT(cuIpcGetMemHandle);
	if (vcu_mode("no-ipc"))
		return SK_CU_NOT_SUPPORTED;
	vcu_lock();
	m = vcu_memory(ptr, 1);
	if (m && (m->shared || m->peer || m->fd < 0 ||
		  m->base != (char *)(uintptr_t)ptr))
		m = NULL;
	if (m) {
		name.id = m->id;
		name.bytes = m->bytes;
		name.base = (uintptr_t)m->base;
		name.pid = getpid();
		name.fd = m->fd;
		name.unit = vcu_unit(m->device);
	}
	vcu_unlock();
	if (!m || !handle)
		return SK_CU_INVALID_VALUE;
	*handle = (sk_cu_ipc){ { 0 } };
	memcpy(handle->bytes, &name, sizeof(name));
	return SK_CU_SUCCESS;
}

/* ---- taking ---- */

/* With the lock held, as all that follows. What is open of it already; or what
 * was there before it, and is open still. */
static struct vcu_memory *find_open(const struct name *name, bool *ret_stale)
{
	*ret_stale = false;
	for (struct vcu_memory *m = vcu()->memory; m; m = m->next) {
		const struct vcu_peer *p = m->peer;

		if (m->freed || !p || p->pid != name->pid)
			continue;
		if (p->id == name->id)
			return m;
		*ret_stale |= p->base < name->base + name->bytes &&
			      name->base < p->base + m->bytes;
	}
	return NULL;
}

static struct vcu_peer *new_peer(const struct name *name)
{
	struct vcu_peer *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	*p = (struct vcu_peer){ .pid = name->pid, .id = name->id,
				.base = name->base, .refs = 1,
				.fd = open_file(name),
				.process = (int)syscall(SYS_pidfd_open,
							name->pid, 0) };
	return p;
}

static void free_peer(struct vcu_peer *p)
{
	if (!p)
		return;
	if (p->fd >= 0)
		close(p->fd);
	if (p->process >= 0)
		close(p->process);
	free(p);
}

static bool is_gone(const struct vcu_peer *p)
{
	struct pollfd process = { .fd = p->process, .events = POLLIN };
	struct stat st;

	return p->process < 0 || poll(&process, 1, 0) != 0 ||
	       fstat(p->fd, &st) || !(st.st_mode & 0777);
}

static sk_cu_result take(sk_cu_ptr *ptr, const struct name *name)
{
	struct vcu_peer *p = new_peer(name);
	struct vcu_memory *m = NULL;
	void *view = MAP_FAILED;

	if (p && p->fd >= 0 && !is_gone(p) &&
	    vcu_backing_device(p->fd) == vcu_current()->device)
		view = mmap(NULL, name->bytes, PROT_READ | PROT_WRITE,
			    MAP_SHARED, p->fd, 0);
	if (view != MAP_FAILED)
		m = vcu_reserve(name->bytes);
	if (!m) {
		if (view != MAP_FAILED)
			(void)munmap(view, name->bytes);
		free_peer(p);
		return SK_CU_INVALID_HANDLE;
	}
	m->view = view;
	m->bytes = name->bytes;
	m->device = vcu_current()->device;
	m->id = ++vcu()->ids;
	m->peer = p;
	m->fd = -1;
	m->freed = false;
	*ptr = (uintptr_t)m->base;
	return SK_CU_SUCCESS;
}

static sk_cu_result open_name(sk_cu_ptr *ptr, const struct name *name)
{
	struct vcu_memory *m;
	bool stale;

	if (name->pid == getpid())
		return SK_CU_INVALID_CONTEXT;
	m = find_open(name, &stale);
	if (!m)
		return stale ? VCU_ALREADY_MAPPED : take(ptr, name);
	/* As older drivers had it. */
	if (vcu_said("VCUDA_IPC", "once"))
		return VCU_ALREADY_MAPPED;
	m->peer->refs++;
	*ptr = (uintptr_t)m->base;
	return SK_CU_SUCCESS;
}

sk_cu_result cuIpcOpenMemHandle_v2(sk_cu_ptr *ptr, sk_cu_ipc handle,
				   unsigned flags)
{
	struct name name;
	sk_cu_result r;

	VCU_ENTER_CONTEXT(cuIpcOpenMemHandle);
	memcpy(&name, handle.bytes, sizeof(name));
	if (!ptr || flags != LAZY_PEER_ACCESS)
		return SK_CU_INVALID_VALUE;
	if (name.magic != MAGIC)
		return SK_CU_INVALID_HANDLE;
	vcu_lock();
	r = vcu_check_unsafe();
	if (r == SK_CU_SUCCESS)
		r = open_name(ptr, &name);
	vcu_unlock();
	return r;
}

sk_cu_result cuIpcCloseMemHandle(sk_cu_ptr ptr)
{
	struct vcu_memory *m;

	VCU_ENTER_CONTEXT(cuIpcCloseMemHandle);
	VCU_UNSAFE();
	vcu_lock();
	m = vcu_memory(ptr, 1);
	if (m && (!m->peer || m->base != (char *)(uintptr_t)ptr))
		m = NULL;
	if (m && !--m->peer->refs) {
		/* It is nobody's while waiting gives up the lock. */
		m->bytes = 0;
		vcu_drain(&vcu()->contexts[m->device]);
		(void)munmap(m->view, m->room);
		free_peer(m->peer);
		m->peer = NULL;
		m->view = NULL;
		m->freed = true;
	}
	vcu_unlock();
	return m ? SK_CU_SUCCESS : SK_CU_INVALID_VALUE;
}

/* ---- what is asked for there ---- */

void vcu_ipc_touch(struct vcu_memory *m)
{
	if (!m->peer || m->peer->spoilt || !is_gone(m->peer))
		return;
	if (!vcu_said("VCUDA_IPC", "undefined"))
		vcu_misuse("%zu bytes of process %d are used, which it has "
			   "freed, or ended with", m->bytes, m->peer->pid);
	m->peer->spoilt = true;
	memset(m->view, 0xdb, m->bytes);
}
