/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device without an address, as a descriptor, and mapped. */
#include "cuda/share.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>

#include "base/token.h"
#include "cuda/held.h"
#include "cuda/private.h"

struct sk_cuda_share {
	const struct sk_cuda_device *device;
	sk_cu_ptr ptr;
	uint64_t bytes;
	bool mapped;
	int token;		/* of memory that another process holds; -1 */
};

static_assert(sizeof(struct sk_cuda_uuid) == sizeof(sk_cu_uuid), "a UUID");

/* ---- whether it can ---- */

/* They came in one version of the driver: one stands for all. */
static int check_driver(const struct sk_cuda_driver *driver,
			struct sk_err *err)
{
	if (driver->cuMemCreate && driver->cuMemMap &&
	    driver->cuMemExportToShareableHandle && driver->cuDeviceGetUuid)
		return 0;
	return sk_err_set(err, -ENODEV, "the CUDA driver cannot share memory "
			  "between processes (it has no cuMemCreate)");
}

static int check_device(const struct sk_cuda_device *device,
			struct sk_err *err)
{
	int can = 0;
	int r = check_driver(device->driver, err);

	if (r < 0)
		return r;
	(void)device->driver->cuDeviceGetAttribute(
		&can, SK_CU_DEVICE_POSIX_FD_SUPPORTED, device->id);
	return can ? 0 :
		     sk_err_set(err, -ENODEV, "CUDA device %d gives no "
				"descriptors for its memory",
				device->ordinal);
}

/* ---- which device ---- */

int sk_cuda_uuid(const struct sk_cuda_device *device,
		 struct sk_cuda_uuid *ret_uuid, struct sk_err *err)
{
	sk_cu_uuid uuid;
	sk_cu_result result;

	if (!device->driver->cuDeviceGetUuid)
		return sk_err_set(err, -ENODEV, "the CUDA driver does not "
				  "tell devices' names (it has no "
				  "cuDeviceGetUuid)");
	result = device->driver->cuDeviceGetUuid(&uuid, device->id);
	if (result != SK_CU_SUCCESS)
		return sk_cuda_driver_failed(device->driver, result,
					     "cuDeviceGetUuid", err);
	memcpy(ret_uuid->bytes, uuid.bytes, sizeof(ret_uuid->bytes));
	return 0;
}

/* Versions before 11.4 name the GPU, whatever it is split into. */
bool sk_cuda_is_instance(const struct sk_cuda_device *device)
{
	sk_cu_get_uuid_9020 of_gpu = (sk_cu_get_uuid_9020)
		sk_cuda_driver_find(device->driver, "cuDeviceGetUuid", 9020);
	struct sk_cuda_uuid own;
	sk_cu_uuid gpu;

	return of_gpu && sk_cuda_uuid(device, &own, NULL) >= 0 &&
	       of_gpu(&gpu, device->id) == SK_CU_SUCCESS &&
	       memcmp(own.bytes, gpu.bytes, sizeof(own.bytes)) != 0;
}

/* No context is made of those that are only asked. */
static int ordinal_of(struct sk_cuda *cuda, const struct sk_cuda_uuid *uuid,
		      int *ret, struct sk_err *err)
{
	const struct sk_cuda_driver *driver = &cuda->driver;
	sk_cu_device id;
	sk_cu_uuid one;
	int n = 0;

	(void)driver->cuDeviceGetCount(&n);
	for (int i = 0; i < n; i++) {
		if (driver->cuDeviceGet(&id, i) != SK_CU_SUCCESS ||
		    driver->cuDeviceGetUuid(&one, id) != SK_CU_SUCCESS ||
		    memcmp(one.bytes, uuid->bytes, sizeof(one.bytes)))
			continue;
		*ret = i;
		return 0;
	}
	return sk_err_set(err, -ENODEV, "this process sees no CUDA device of "
			  "that UUID among its %d", n);
}

static int find(struct sk_cuda *cuda, const struct sk_cuda_uuid *uuid,
		int *ret_ordinal, struct sk_err *err)
{
	int r = sk_cuda_ready(cuda, err);

	if (r >= 0 && !cuda->driver.cuDeviceGetUuid)
		r = sk_err_set(err, -ENODEV, "the CUDA driver does not tell "
			       "devices' names (it has no cuDeviceGetUuid)");
	return r < 0 ? r : ordinal_of(cuda, uuid, ret_ordinal, err);
}

int sk_cuda_sees(struct sk_cuda *cuda, const struct sk_cuda_uuid *uuid,
		 struct sk_err *err)
{
	int ordinal = 0;

	return find(cuda, uuid, &ordinal, err);
}

bool sk_cuda_is_exclusive(struct sk_cuda *cuda,
			  const struct sk_cuda_uuid *uuid)
{
	int ordinal = 0;

	return find(cuda, uuid, &ordinal, NULL) >= 0 &&
	       sk_cuda_takes_one(&cuda->driver, ordinal);
}

int sk_cuda_device_by_uuid(struct sk_cuda *cuda,
			   const struct sk_cuda_uuid *uuid,
			   struct sk_cuda_device **ret_device,
			   struct sk_err *err)
{
	int ordinal = 0, r = find(cuda, uuid, &ordinal, err);

	return r < 0 ? r : sk_cuda_device(cuda, ordinal, ret_device, err);
}

/* ---- making ---- */

static sk_cu_allocation of_device(const struct sk_cuda_device *device)
{
	return (sk_cu_allocation){
		.type = SK_CU_ALLOCATION_PINNED,
		.handles = SK_CU_HANDLE_POSIX_FD,
		.location = { SK_CU_LOCATION_DEVICE, device->id },
	};
}

static int round_up(const struct sk_cuda_device *device, uint64_t bytes,
		    uint64_t *ret, struct sk_err *err)
{
	const sk_cu_allocation what = of_device(device);
	size_t grain = 0;
	sk_cu_result result = device->driver->cuMemGetAllocationGranularity(
		&grain, &what, SK_CU_GRANULARITY_MINIMUM);

	if (result != SK_CU_SUCCESS || !grain)
		return sk_cuda_driver_failed(device->driver, result,
					     "cuMemGetAllocationGranularity",
					     err);
	*ret = sk_round_up(bytes, grain);
	return 0;
}

int sk_cuda_share_new(const struct sk_cuda_device *device, uint64_t bytes,
		      int *ret_fd, uint64_t *ret_bytes, struct sk_err *err)
{
	const struct sk_cuda_driver *driver = device->driver;
	const sk_cu_allocation what = of_device(device);
	uint64_t all = 0;
	sk_cu_handle handle;
	sk_cu_result result;
	int fd = -1, r = check_device(device, err);

	if (r >= 0)
		r = round_up(device, bytes, &all, err);
	if (r < 0)
		return r;
	result = driver->cuMemCreate(&handle, all, &what, 0);
	if (result != SK_CU_SUCCESS)
		return sk_cuda_driver_failed(driver, result, "cuMemCreate",
					     err);
	result = driver->cuMemExportToShareableHandle(
		&fd, handle, SK_CU_HANDLE_POSIX_FD, 0);
	/* From here on the descriptor is what keeps it. */
	(void)driver->cuMemRelease(handle);
	if (result != SK_CU_SUCCESS)
		return sk_cuda_driver_failed(driver, result,
					     "cuMemExportToShareableHandle",
					     err);
	/* The driver does not say whether it has seen to that. */
	(void)device->os->fcntl(device->os, fd, F_SETFD, FD_CLOEXEC);
	*ret_fd = fd;
	*ret_bytes = all;
	return 0;
}

/* ---- mapping ---- */

static sk_cu_result map(struct sk_cuda_share *share, sk_cu_handle handle,
			bool writable)
{
	const struct sk_cuda_driver *driver = share->device->driver;
	const sk_cu_access access = {
		.location = { SK_CU_LOCATION_DEVICE, share->device->id },
		.flags = writable ? SK_CU_ACCESS_READ_WRITE :
				    SK_CU_ACCESS_READ,
	};
	sk_cu_result result;

	result = driver->cuMemAddressReserve(&share->ptr, share->bytes, 0, 0,
					     0);
	if (result != SK_CU_SUCCESS)
		return result;
	result = driver->cuMemMap(share->ptr, share->bytes, 0, handle, 0);
	if (result != SK_CU_SUCCESS)
		return result;
	share->mapped = true;
	return driver->cuMemSetAccess(share->ptr, share->bytes, &access, 1);
}

static int import(struct sk_cuda_share *share, int fd, bool writable,
		  struct sk_err *err)
{
	const struct sk_cuda_driver *driver = share->device->driver;
	sk_cu_handle handle;
	sk_cu_result result;
	int r = check_device(share->device, err);

	if (r < 0)
		return r;
	result = driver->cuMemImportFromShareableHandle(
		&handle, (void *)(intptr_t)fd, SK_CU_HANDLE_POSIX_FD);
	if (result != SK_CU_SUCCESS)
		return sk_err_set(err, -EBADF, "descriptor %d stands for no "
				  "memory of a CUDA device (%u)", fd, result);
	result = map(share, handle, writable);
	/* What is mapped needs no handle. */
	(void)driver->cuMemRelease(handle);
	return result == SK_CU_SUCCESS ? 0 :
	       sk_cuda_driver_failed(driver, result, "mapping of shared "
				     "memory", err);
}

/* A token of our own: what it stands for is ours as long as a mapping of other
 * memory would have it. */
static int open_held(struct sk_cuda_share *share, int fd, struct sk_err *err)
{
	const struct sk_os *os = share->device->os;
	uint64_t ptr;
	int r = sk_cuda_held_open(share->device, fd, share->bytes, &ptr, err);

	if (r < 0)
		return r;
	share->ptr = ptr;
	share->token = os->fcntl(os, fd, F_DUPFD_CLOEXEC, 3);
	if (share->token >= 0)
		return 0;
	sk_cuda_held_close(share->device, share->ptr);
	share->ptr = 0;
	return sk_err_errno(err, share->token, "cannot keep a device's memory");
}

/* Within the device's context. */
static int take(struct sk_cuda_share *share, int fd, bool writable,
		struct sk_err *err)
{
	int r = open_held(share, fd, err);

	return r == -ENOTSOCK ? import(share, fd, writable, err) : r;
}

/* Within the device's context. */
static void release(struct sk_cuda_share *share)
{
	const struct sk_cuda_driver *driver = share->device->driver;
	const struct sk_os *os = share->device->os;

	if (share->token >= 0) {
		sk_cuda_held_close(share->device, share->ptr);
		(void)os->close(os, share->token);
		return;
	}
	if (share->mapped)
		(void)driver->cuMemUnmap(share->ptr, share->bytes);
	if (share->ptr)
		(void)driver->cuMemAddressFree(share->ptr, share->bytes);
}

int sk_cuda_share_map(const struct sk_cuda_device *device, int fd,
		      uint64_t bytes, bool writable,
		      struct sk_cuda_share **ret_share, struct sk_err *err)
{
	_cleanup_free_ struct sk_cuda_share *share = NULL;
	struct sk_cuda_scope scope;
	int r;

	share = calloc(1, sizeof(*share));
	if (!share)
		return sk_err_set(err, -ENOMEM, "out of memory");
	share->device = device;
	share->bytes = bytes;
	share->token = -1;
	r = sk_cuda_enter(device, &scope, err);
	if (r < 0)
		return r;
	r = take(share, fd, writable, err);
	if (r < 0)
		release(share);
	sk_cuda_leave(&scope);
	if (r >= 0)
		*ret_share = sk_take_ptr(share);
	return r;
}

struct sk_cuda_share *sk_cuda_share_unmap(struct sk_cuda_share *share)
{
	struct sk_cuda_scope scope;

	if (!share)
		return NULL;
	/* In a context that is broken it goes with the process, and a token
	 * stays as long. */
	if (sk_cuda_enter(share->device, &scope, NULL) >= 0) {
		release(share);
		sk_cuda_leave(&scope);
	}
	free(share);
	return NULL;
}

bool sk_cuda_share_lives(const struct sk_cuda_share *share)
{
	return share->token < 0 ||
	       !sk_token_is_void(share->device->os, share->token);
}

uint64_t sk_cuda_share_ptr(const struct sk_cuda_share *share)
{
	return share->ptr;
}
