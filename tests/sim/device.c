/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: initialization, devices, primary contexts. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "vcuda.h"

#define STACK_MAX 32
#define CONTEXTS_OF_ALL 160u	/* that a device would have room for */

/* The thread's contexts; the last is current. */
static _Thread_local struct {
	struct CUctx_st *contexts[STACK_MAX];
	int n;
} stack;

struct CUctx_st *vcu_current(void)
{
	return stack.n ? stack.contexts[stack.n - 1] : NULL;
}

sk_cu_result cuInit(unsigned flags)
{
	struct vcu *v = vcu();
	sk_cu_result r = SK_CU_SUCCESS;
	bool first;

	(void)vcu_enter(VCU_cuInit);
	if (flags)
		return SK_CU_INVALID_VALUE;
	if (vcu_mode("stub"))
		return SK_CU_STUB_LIBRARY;
	if (v->initialized && v->pid != getpid())
		return SK_CU_NOT_INITIALIZED;
	vcu_lock();
	first = !v->initialized;
	if (first) {
		v->n_devices = vcu_look(v->seen);
		for (int i = 0; i < v->n_devices; i++)
			v->contexts[i].device = i;
		v->pid = getpid();
		if (v->n_devices)
			__atomic_store_n(&v->initialized, true,
					 __ATOMIC_RELEASE);
		else
			r = SK_CU_NO_DEVICE;
	}
	vcu_unlock();
	if (first && r == SK_CU_SUCCESS)
		vcu_watch_forks();
	return r;
}

sk_cu_result cuDriverGetVersion(int *version)
{
	(void)vcu_enter(VCU_cuDriverGetVersion);
	if (vcu_mode("stub"))
		return SK_CU_STUB_LIBRARY;
	if (!version)
		return SK_CU_INVALID_VALUE;
	*version = (int)vcu_setting("VCUDA_VERSION", 13000);
	return SK_CU_SUCCESS;
}

/* ---- results ---- */

static const char *name_of(sk_cu_result result)
{
	static const struct {
		sk_cu_result result;
		const char *name;
	} names[] = {
		{ SK_CU_SUCCESS, "CUDA_SUCCESS" },
		{ SK_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE" },
		{ SK_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY" },
		{ SK_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED" },
		{ SK_CU_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY" },
		{ SK_CU_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE" },
		{ SK_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE" },
		{ SK_CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE" },
		{ SK_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT" },
		{ SK_CU_INVALID_PTX, "CUDA_ERROR_INVALID_PTX" },
		{ SK_CU_NO_COMPILER, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND" },
		{ SK_CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE" },
		{ SK_CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND" },
		{ SK_CU_NOT_READY, "CUDA_ERROR_NOT_READY" },
		{ SK_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS" },
		{ SK_CU_ALREADY_REGISTERED,
		  "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" },
		{ SK_CU_NOT_REGISTERED,
		  "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" },
		{ SK_CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED" },
		{ SK_CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED" },
		{ VCU_CAPTURE_INVALIDATED,
		  "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" },
		{ SK_CU_CAPTURE_UNSUPPORTED,
		  "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" },
		{ SK_CU_CAPTURE_IMPLICIT,
		  "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" },
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].result == result)
			return names[i].name;
	return NULL;
}

sk_cu_result cuGetErrorName(sk_cu_result result, const char **text)
{
	(void)vcu_enter(VCU_cuGetErrorName);
	*text = name_of(result);
	return *text ? SK_CU_SUCCESS : SK_CU_INVALID_VALUE;
}

sk_cu_result cuGetErrorString(sk_cu_result result, const char **text)
{
	(void)vcu_enter(VCU_cuGetErrorString);
	*text = name_of(result);
	return *text ? SK_CU_SUCCESS : SK_CU_INVALID_VALUE;
}

/* ---- devices ---- */

static bool is_device(sk_cu_device device)
{
	return device >= 0 && device < vcu()->n_devices;
}

sk_cu_result cuDeviceGetCount(int *n)
{
	VCU_ENTER(cuDeviceGetCount);
	*n = vcu()->n_devices;
	return SK_CU_SUCCESS;
}

sk_cu_result cuDeviceGet(sk_cu_device *device, int ordinal)
{
	VCU_ENTER(cuDeviceGet);
	if (!is_device(ordinal))
		return SK_CU_INVALID_DEVICE;
	*device = ordinal;
	return SK_CU_SUCCESS;
}

sk_cu_result cuDeviceGetName(char *name, int size, sk_cu_device device)
{
	VCU_ENTER(cuDeviceGetName);
	if (!is_device(device))
		return SK_CU_INVALID_DEVICE;
	(void)snprintf(name, (size_t)size, "vcuda device %d", device);
	return SK_CU_SUCCESS;
}

sk_cu_result cuDeviceGetUuid_v2(sk_cu_uuid *uuid, sk_cu_device device)
{
	VCU_ENTER(cuDeviceGetUuid);
	if (!is_device(device))
		return SK_CU_INVALID_DEVICE;
	*uuid = vcu_uuid(device, false);
	return SK_CU_SUCCESS;
}

/* Before 11.4, and for who asks for that version: the GPU's. */
sk_cu_result cuDeviceGetUuid(sk_cu_uuid *uuid, sk_cu_device device)
{
	VCU_ENTER(cuDeviceGetUuid);
	if (!is_device(device))
		return SK_CU_INVALID_DEVICE;
	*uuid = vcu_uuid(device, true);
	return SK_CU_SUCCESS;
}

sk_cu_result cuDeviceGetAttribute(int *value, sk_cu_enum attribute,
				  sk_cu_device device)
{
	VCU_ENTER(cuDeviceGetAttribute);
	if (!is_device(device))
		return SK_CU_INVALID_DEVICE;
	switch (attribute) {
	case SK_CU_DEVICE_MAX_PITCH:
		*value = 0x7fffffff;
		return SK_CU_SUCCESS;
	case SK_CU_DEVICE_COMPUTE_MODE:
		*value = vcu_exclusive() ? SK_CU_COMPUTE_EXCLUSIVE :
					   SK_CU_COMPUTE_DEFAULT;
		return SK_CU_SUCCESS;
	case SK_CU_DEVICE_PCI_BUS:
		*value = 0xff;	/* where no machine has anything */
		return SK_CU_SUCCESS;
	case SK_CU_DEVICE_PCI_DEVICE:
	case SK_CU_DEVICE_PCI_DOMAIN:
		*value = vcu_physical(device);
		return SK_CU_SUCCESS;
	case SK_CU_DEVICE_HOST_NUMA_ID:
		*value = (int)vcu_setting("VCUDA_NUMA", -1);
		return vcu_setting("VCUDA_VERSION", 13000) < 12020 ?
			       SK_CU_INVALID_VALUE : SK_CU_SUCCESS;
	case SK_CU_DEVICE_HOST_POINTERS:
		*value = !vcu_mode("no-host-pointers");
		return SK_CU_SUCCESS;
	case SK_CU_DEVICE_HOST_REGISTER_SUPPORTED:
		*value = !vcu_mode("no-register");
		return SK_CU_SUCCESS;
	case SK_CU_DEVICE_POSIX_FD_SUPPORTED:
		*value = !vcu_mode("no-share");
		return SK_CU_SUCCESS;
	case VCU_DEVICE_READ_ONLY_REGISTER:
		*value = !vcu_mode("no-register");
		return SK_CU_SUCCESS;
	case VCU_DEVICE_FABRIC_SUPPORTED:
		*value = vcu_mode("no-channel");
		return vcu_setting("VCUDA_VERSION", 13000) < 12030 ?
			       SK_CU_INVALID_VALUE : SK_CU_SUCCESS;
	default:
		return SK_CU_INVALID_VALUE;
	}
}

/* ---- contexts ---- */

/* As much of the device as the scale has: half a GiB of 80. */
static sk_cu_result take_room(struct CUctx_st *context)
{
	long bytes = vcu_setting("VCUDA_CONTEXT",
				 (long)(vcu_memory_bytes() / CONTEXTS_OF_ALL));

	context->room_fd = -1;
	if (!bytes)
		return SK_CU_SUCCESS;
	context->room_fd = vcu_backing(context->device, (size_t)bytes);
	if (context->room_fd >= 0)
		context->room = vcu_file_take(context->room_fd,
					      context->device);
	return context->room ? SK_CU_SUCCESS : SK_CU_OUT_OF_MEMORY;
}

static void give_room(struct CUctx_st *context)
{
	if (!context->room)
		return;
	vcu_file_drop(context->room);
	close(context->room_fd);
	context->room = NULL;
}

/* With the lock held. */
static sk_cu_result activate(struct CUctx_st *context)
{
	sk_cu_result r;

	if (!vcu_take(context->device))
		return SK_CU_DEVICE_UNAVAILABLE;
	r = take_room(context);
	if (r != SK_CU_SUCCESS) {
		vcu_let_go(context->device);
		return r;
	}
	__atomic_store_n(&context->resets, vcu_resets(context->device),
			 __ATOMIC_RELAXED);
	return SK_CU_SUCCESS;
}

sk_cu_result cuDevicePrimaryCtxRetain(sk_cu_context *context,
				      sk_cu_device device)
{
	struct CUctx_st *c = &vcu()->contexts[is_device(device) ? device : 0];
	sk_cu_result r;

	VCU_ENTER_WORK(cuDevicePrimaryCtxRetain);
	if (!is_device(device))
		return SK_CU_INVALID_DEVICE;
	if (vcu_setting("VCUDA_SLOW", 0))
		(void)usleep(1000 * (unsigned)vcu_setting("VCUDA_SLOW", 0));
	vcu_lock();
	r = c->refs ? SK_CU_SUCCESS : activate(c);
	if (r == SK_CU_SUCCESS) {
		__atomic_add_fetch(&c->refs, 1, __ATOMIC_RELAXED);
		*context = c;
	}
	vcu_unlock();
	return r;
}

sk_cu_result cuDevicePrimaryCtxRelease_v2(sk_cu_device device)
{
	struct CUctx_st *c = &vcu()->contexts[is_device(device) ? device : 0];
	bool was_active;

	VCU_ENTER(cuDevicePrimaryCtxRelease);
	if (!is_device(device))
		return SK_CU_INVALID_DEVICE;
	vcu_lock();
	was_active = c->refs;
	if (was_active && !__atomic_sub_fetch(&c->refs, 1, __ATOMIC_RELAXED)) {
		give_room(c);
		vcu_let_go(device);
	}
	vcu_unlock();
	return was_active ? SK_CU_SUCCESS : SK_CU_INVALID_CONTEXT;
}

sk_cu_result cuDevicePrimaryCtxGetState(sk_cu_device device, unsigned *flags,
					int *active)
{
	VCU_ENTER(cuDevicePrimaryCtxGetState);
	if (!is_device(device))
		return SK_CU_INVALID_DEVICE;
	*flags = 0;
	vcu_lock();
	*active = vcu()->contexts[device].refs != 0;
	vcu_unlock();
	return SK_CU_SUCCESS;
}

static bool is_active(const struct CUctx_st *context)
{
	bool active = false;

	vcu_lock();
	for (int i = 0; i < vcu()->n_devices; i++)
		active |= context == &vcu()->contexts[i] && context->refs;
	vcu_unlock();
	return active;
}

sk_cu_result cuCtxPushCurrent_v2(sk_cu_context context)
{
	VCU_ENTER(cuCtxPushCurrent);
	if (!is_active(context))
		return SK_CU_INVALID_CONTEXT;
	if (stack.n == STACK_MAX)
		vcu_misuse("%d contexts pushed, none popped", STACK_MAX);
	stack.contexts[stack.n++] = context;
	return SK_CU_SUCCESS;
}

sk_cu_result cuCtxPopCurrent_v2(sk_cu_context *context)
{
	VCU_ENTER(cuCtxPopCurrent);
	if (!stack.n)
		return SK_CU_INVALID_CONTEXT;
	stack.n--;
	if (context)
		*context = stack.contexts[stack.n];
	return SK_CU_SUCCESS;
}

sk_cu_result cuCtxGetCurrent(sk_cu_context *context)
{
	VCU_ENTER(cuCtxGetCurrent);
	*context = vcu_current();
	return SK_CU_SUCCESS;
}

sk_cu_result cuCtxSetCurrent(sk_cu_context context)
{
	VCU_ENTER(cuCtxSetCurrent);
	if (context && !is_active(context))
		return SK_CU_INVALID_CONTEXT;
	if (stack.n)
		stack.n--;
	if (context)
		stack.contexts[stack.n++] = context;
	return SK_CU_SUCCESS;
}

sk_cu_result cuCtxGetDevice(sk_cu_device *device)
{
	VCU_ENTER_CONTEXT(cuCtxGetDevice);
	*device = vcu_current()->device;
	return SK_CU_SUCCESS;
}
