/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated NCCL: versions, results, groups, counts. */
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vnccl-private.h"

static struct {
	pthread_mutex_t lock;
	uint64_t calls[VN_FUNCTIONS];	/* atomic */
	struct { uint64_t left; sk_nccl_result result; } fail[VN_FUNCTIONS];
	struct ncclComm *comms, *ended;
	uint64_t sent, received;	/* bytes; atomic */
	struct vn_driver driver;
	pthread_cond_t comes_back;
	bool is_back;
} vn = { .lock = PTHREAD_MUTEX_INITIALIZER,
	 .comes_back = PTHREAD_COND_INITIALIZER };

void vn_misuse(const char *fmt, ...)
{
	const char *path = getenv("VCUDA_MISUSE");
	FILE *file = path && *path ? fopen(path, "ae") : NULL;
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fprintf(stderr, "vnccl: MISUSE: %s\n", text);
	if (file)
		fprintf(file, "vnccl: %s\n", text);
	if (file)
		(void)fclose(file);
	abort();
}

const char *vn_getenv(const char *variable)
{
	const char *hardware = getenv("VCUDA_AS_HARDWARE");

	if (hardware && *hardware && !strncmp(variable, "VNCCL_", 6))
		return NULL;
	return getenv(variable);
}

bool vn_said(const char *variable, const char *value)
{
	const char *said = vn_getenv(variable);

	return said && !strcmp(said, value);
}

int vn_version(void)
{
	const char *said = vn_getenv("VNCCL_VERSION");

	return said ? (int)strtol(said, NULL, 0) : 22809;
}

/* The simulated driver that the process uses. */
const struct vn_driver *vn_driver(void)
{
	const char *file = getenv("SHARDKEEP_LIBCUDA");
	void *library;

	(void)pthread_mutex_lock(&vn.lock);
	library = vn.driver.view ? NULL :
		  dlopen(file ? file : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (library) {
		vn.driver.enqueue = (bool (*)(sk_cu_stream, void (*)(void *),
					      void *))
			dlsym(library, "vcudaEnqueue");
		vn.driver.demand = (void (*)(sk_cu_stream))
			dlsym(library, "vcudaDemand");
		vn.driver.get_device = (sk_cu_result(*)(sk_cu_device *))
			dlsym(library, "cuCtxGetDevice");
		vn.driver.get_attribute = (sk_cu_result(*)(int *, sk_cu_enum,
							   sk_cu_device))
			dlsym(library, "cuDeviceGetAttribute");
		vn.driver.get_uuid = (sk_cu_result(*)(sk_cu_uuid *,
						      sk_cu_device))
			dlsym(library, "cuDeviceGetUuid_v2");
		vn.driver.view = (void *(*)(uintptr_t, size_t, int *))
			dlsym(library, "vcudaView");
	}
	(void)pthread_mutex_unlock(&vn.lock);
	if (!vn.driver.view)
		vn_misuse("a communicator without the simulated driver");
	return &vn.driver;
}

/* ---- entering ---- */

sk_nccl_result vn_enter(enum vn_function function)
{
	sk_nccl_result r = SK_NCCL_SUCCESS;

	__atomic_fetch_add(&vn.calls[function], 1, __ATOMIC_RELAXED);
	(void)pthread_mutex_lock(&vn.lock);
	if (vn.fail[function].left && !--vn.fail[function].left)
		r = vn.fail[function].result;
	(void)pthread_mutex_unlock(&vn.lock);
	if (r == UINT32_MAX)
		(void)raise(SIGKILL);
	if (r != UINT32_MAX - 1)
		return r;
	vn_hang();
	return SK_NCCL_SUCCESS;
}

void vn_hang(void)
{
	(void)pthread_mutex_lock(&vn.lock);
	while (!vn.is_back)
		(void)pthread_cond_wait(&vn.comes_back, &vn.lock);
	(void)pthread_mutex_unlock(&vn.lock);
}

void vn_list(struct ncclComm *comm)
{
	(void)pthread_mutex_lock(&vn.lock);
	comm->next = vn.comms;
	vn.comms = comm;
	(void)pthread_mutex_unlock(&vn.lock);
}

void vn_unlist(struct ncclComm *comm)
{
	struct ncclComm **at;

	(void)pthread_mutex_lock(&vn.lock);
	for (at = &vn.comms; *at && *at != comm;)
		at = &(*at)->next;
	if (!*at)
		vn_misuse("a communicator ends that there is not");
	*at = comm->next;
	(void)pthread_mutex_unlock(&vn.lock);
}

void vn_check_life(const struct ncclComm *comm)
{
	const struct ncclComm *c;

	(void)pthread_mutex_lock(&vn.lock);
	for (c = vn.comms; c && c != comm;)
		c = c->next;
	(void)pthread_mutex_unlock(&vn.lock);
	if (!c)
		vn_misuse("a communicator is used that has ended");
}

void vn_bury(struct ncclComm *comm)
{
	(void)pthread_mutex_lock(&vn.lock);
	comm->next = vn.ended;
	vn.ended = comm;
	(void)pthread_mutex_unlock(&vn.lock);
}

void vn_launch(struct ncclComm *comm)
{
	(void)pthread_mutex_lock(&vn.lock);
	vn_note_launch(comm, vn.comms);
	(void)pthread_mutex_unlock(&vn.lock);
}

void vn_count(bool sent, uint64_t bytes)
{
	__atomic_fetch_add(sent ? &vn.sent : &vn.received, bytes,
			   __ATOMIC_RELAXED);
}

/* ---- for tests ---- */

static const char *const names[] = {
#define NAME(function, since, need, result, params) #function,
	SK_NCCL_TABLE(NAME)
};

static int number_of(const char *name)
{
	for (int i = 0; i < VN_FUNCTIONS; i++)
		if (!strcmp(name, names[i]))
			return i;
	vn_misuse("no function %s", name);
}

VN_API uint64_t vncclCalls(const char *name);
VN_API uint64_t vncclCalls(const char *name)
{
	return __atomic_load_n(&vn.calls[number_of(name)], __ATOMIC_RELAXED);
}

/* The @nth call from now on (1: the next) has that result; UINT32_MAX: the
 * process is killed in it; one less: it does not return before
 * vncclComeBack(). */
VN_API void vncclFail(const char *name, uint64_t nth, unsigned result);
VN_API void vncclFail(const char *name, uint64_t nth, unsigned result)
{
	int i = number_of(name);

	(void)pthread_mutex_lock(&vn.lock);
	vn.fail[i].left = nth;
	vn.fail[i].result = result;
	(void)pthread_mutex_unlock(&vn.lock);
}

/* What breaks all communicators of this process beside their calls. */
VN_API void vncclBreak(unsigned result);
VN_API void vncclBreak(unsigned result)
{
	(void)pthread_mutex_lock(&vn.lock);
	for (struct ncclComm *c = vn.comms; c; c = c->next)
		vn_fail(c, result, "broken by the test");
	(void)pthread_mutex_unlock(&vn.lock);
}

/* What hangs goes on, and nothing hangs any more. */
VN_API void vncclComeBack(void);
VN_API void vncclComeBack(void)
{
	(void)pthread_mutex_lock(&vn.lock);
	vn.is_back = true;
	(void)pthread_cond_broadcast(&vn.comes_back);
	(void)pthread_mutex_unlock(&vn.lock);
}

/* What there is: "comms"; what was: bytes "sent" and "received". */
VN_API uint64_t vncclCount(const char *what);
VN_API uint64_t vncclCount(const char *what)
{
	uint64_t n = 0;

	if (!strcmp(what, "sent"))
		return __atomic_load_n(&vn.sent, __ATOMIC_RELAXED);
	if (!strcmp(what, "received"))
		return __atomic_load_n(&vn.received, __ATOMIC_RELAXED);
	if (strcmp(what, "comms"))
		vn_misuse("nothing called %s is counted", what);
	(void)pthread_mutex_lock(&vn.lock);
	for (struct ncclComm *c = vn.comms; c; c = c->next)
		n++;
	(void)pthread_mutex_unlock(&vn.lock);
	return n;
}

/* ---- what it is ---- */

sk_nccl_result ncclGetVersion(int *version)
{
	VN_ENTER(ncclGetVersion);
	*version = vn_version();
	return SK_NCCL_SUCCESS;
}

const char *ncclGetErrorString(sk_nccl_result result)
{
	static const char *const texts[] = {
		"no error", "unhandled cuda error", "unhandled system error",
		"internal error", "invalid argument", "invalid usage",
		"remote process exited or there was a network error",
		"NCCL operation in progress" };

	(void)vn_enter(VN_ncclGetErrorString);
	return result < sizeof(texts) / sizeof(texts[0]) ? texts[result] :
	       "unknown result code";
}

sk_nccl_result ncclGetUniqueId(sk_nccl_id *id)
{
	VN_ENTER(ncclGetUniqueId);
	vn_read_conf();
	return id ? vn_new_id(id) : SK_NCCL_INVALID_ARGUMENT;
}
