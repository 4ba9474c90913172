/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/held.h"

#include <stdlib.h>
#include <string.h>

#include "base/token.h"
#include "cuda/private.h"
#include "cuda/share.h"

/* Smaller ones share their pages with others, which would be handed out too. */
#define GRAIN ((uint64_t)2 << 20)
#define SWEEP_NS UINT64_C(1000000000)
#define MAGIC UINT64_C(0x31646c65682d6b73)

struct sk_cuda_held {
	struct sk_cuda_held *next;
	const struct sk_cuda_device *device;
	uint64_t ptr;
	int holder;
};

/* What the token says. */
struct name {
	uint64_t magic, bytes;
	struct sk_cuda_uuid uuid;
	sk_cu_ipc handle;
};

/* ---- holding ---- */

bool sk_cuda_is_held(const struct sk_cuda_device *device)
{
	const char *said = getenv("SHARDKEEP_CUDA_DESCRIPTORS");
	int gives = 0;

	if (said && strcmp(said, "0") == 0)
		return true;
	(void)device->driver->cuDeviceGetAttribute(
		&gives, SK_CU_DEVICE_POSIX_FD_SUPPORTED, device->id);
	return !gives;
}

static int check_driver(const struct sk_cuda_driver *driver,
			struct sk_err *err)
{
	if (driver->cuIpcGetMemHandle && driver->cuIpcOpenMemHandle &&
	    driver->cuIpcCloseMemHandle)
		return 0;
	return sk_err_set(err, -ENODEV, "the CUDA driver gives neither "
			  "descriptors nor handles for memory of a device");
}

static int get_handle(const struct sk_cuda_held *held, sk_cu_ipc *ret,
		      struct sk_err *err)
{
	const struct sk_cuda_driver *driver = held->device->driver;
	struct sk_cuda_scope scope;
	sk_cu_result result;
	int r = sk_cuda_enter(held->device, &scope, err);

	if (r < 0)
		return r;
	result = driver->cuIpcGetMemHandle(ret, held->ptr);
	sk_cuda_leave(&scope);
	if (result == SK_CU_NOT_SUPPORTED)
		return sk_err_set(err, -ENODEV, "CUDA device %d gives neither "
				  "descriptors nor handles for its memory",
				  held->device->ordinal);
	return result == SK_CU_SUCCESS ? 0 :
	       sk_cuda_driver_failed(driver, result, "cuIpcGetMemHandle",
				     err);
}

/* The memory is there. */
static int hand_out(struct sk_cuda_held *held, uint64_t bytes, int *ret_fd,
		    struct sk_err *err)
{
	struct name name = { .magic = MAGIC, .bytes = bytes };
	int r;

	r = sk_cuda_uuid(held->device, &name.uuid, err);
	if (r >= 0)
		r = get_handle(held, &name.handle, err);
	if (r < 0)
		return r;
	r = sk_token_new(held->device->os, &name, sizeof(name), ret_fd,
			 &held->holder);
	return r < 0 ? sk_err_errno(err, r, "cannot make a token for memory "
				    "of a device") : 0;
}

/* Whoever has the token sees that it stands for nothing, before. */
static void release(struct sk_cuda_held *held)
{
	const struct sk_os *os = held->device->os;

	if (held->holder >= 0)
		(void)os->close(os, held->holder);
	sk_cuda_release(held->device, held->ptr);
	free(held);
}

int sk_cuda_held_new(const struct sk_cuda_device *device, uint64_t bytes,
		     struct sk_cuda_held **list, int *ret_fd,
		     uint64_t *ret_bytes, struct sk_err *err)
{
	uint64_t all = sk_round_up(bytes, GRAIN);
	struct sk_cuda_held *held;
	int r = check_driver(device->driver, err);

	if (r < 0)
		return r;
	held = calloc(1, sizeof(*held));
	if (!held)
		return sk_err_set(err, -ENOMEM, "out of memory");
	*held = (struct sk_cuda_held){ .next = *list, .device = device,
				       .holder = -1 };
	r = sk_cuda_alloc(device, all, &held->ptr, err);
	if (r >= 0)
		r = hand_out(held, all, ret_fd, err);
	if (r < 0) {
		release(held);
		return r;
	}
	*ret_bytes = all;
	*list = held;
	return 0;
}

void sk_cuda_held_sweep(struct sk_cuda_held **list)
{
	while (*list) {
		struct sk_cuda_held *held = *list;

		if (!sk_token_is_void(held->device->os, held->holder)) {
			list = &held->next;
			continue;
		}
		*list = held->next;
		release(held);
	}
}

void sk_cuda_held_end(struct sk_cuda_held **list)
{
	while (*list) {
		struct sk_cuda_held *held = *list;

		*list = held->next;
		release(held);
	}
}

/* One after the other: each is looked at when one is nobody's, or in a while. */
void sk_cuda_held_wait(struct sk_cuda_held **list, uint64_t until_ns)
{
	const struct sk_cuda_held *held;

	while ((held = *list)) {
		const struct sk_os *os = held->device->os;
		uint64_t now = os->now_ns(os), next = until_ns;

		if (now >= until_ns)
			return;
		if (held->next && now + SWEEP_NS < next)
			next = now + SWEEP_NS;
		sk_token_await(os, held->holder, next);
		sk_cuda_held_sweep(list);
	}
}

/* ---- using what another one holds ---- */

static int read_name(const struct sk_cuda_device *device, int token,
		     uint64_t bytes, struct name *ret, struct sk_err *err)
{
	struct sk_cuda_uuid uuid = { { 0 } };
	int r = sk_token_read(device->os, token, ret, sizeof(*ret));

	if (r == -ENOTSOCK)
		return r;
	if (r < 0 || ret->magic != MAGIC || ret->bytes < bytes)
		return sk_err_set(err, -EBADF, "descriptor %d stands for no "
				  "memory of a CUDA device, or for less of it",
				  token);
	r = sk_cuda_uuid(device, &uuid, err);
	if (r >= 0 && memcmp(&uuid, &ret->uuid, sizeof(uuid)))
		r = sk_err_set(err, -EBADF, "descriptor %d stands for memory "
			       "of another device than %d", token,
			       device->ordinal);
	return r;
}

int sk_cuda_held_open(const struct sk_cuda_device *device, int token,
		      uint64_t bytes, uint64_t *ret_ptr, struct sk_err *err)
{
	const struct sk_cuda_driver *driver = device->driver;
	sk_cu_ptr ptr = 0, start;
	sk_cu_result result;
	struct name name;
	size_t all = 0;
	int r = read_name(device, token, bytes, &name, err);

	if (r >= 0)
		r = check_driver(driver, err);
	if (r < 0)
		return r;
	result = driver->cuIpcOpenMemHandle(&ptr, name.handle,
					    SK_CU_IPC_PEER_ACCESS);
	if (result != SK_CU_SUCCESS)
		return sk_err_set(err, -EBADF, "the memory that descriptor %d "
				  "stands for cannot be opened (%u)", token,
				  result);
	(void)driver->cuMemGetAddressRange(&start, &all, ptr);
	if (all < bytes) {
		sk_cuda_held_close(device, ptr);
		return sk_err_set(err, -EBADF, "the memory that descriptor %d "
				  "stands for is %zu bytes", token, all);
	}
	*ret_ptr = ptr;
	return 0;
}

void sk_cuda_held_close(const struct sk_cuda_device *device, uint64_t ptr)
{
	(void)device->driver->cuIpcCloseMemHandle(ptr);
}
