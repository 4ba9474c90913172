/* SPDX-License-Identifier: Apache-2.0 */
/* The driver and its devices: opened at the first use. */
#include "cuda/cuda.h"

#include <assert.h>

#include "cuda/kernels.h"
#include "cuda/private.h"

int sk_cuda_new(const struct sk_os *os, struct sk_cuda **ret_cuda,
		struct sk_err *err)
{
	struct sk_cuda *cuda = calloc(1, sizeof(*cuda));

	if (!cuda)
		return sk_err_set(err, -ENOMEM, "out of memory");
	cuda->os = os;
	(void)pthread_mutex_init(&cuda->lock, NULL);
	*ret_cuda = cuda;
	return 0;
}

struct sk_cuda *sk_cuda_free(struct sk_cuda *cuda)
{
	if (!cuda)
		return NULL;
	for (int i = 0; i < SK_CUDA_DEVICES_MAX; i++) {
		struct sk_cuda_device *device = cuda->devices[i];

		if (device)
			sk_cuda_kernels_free(device);
		/* A driver that is gone before us has let go of it. */
		if (device)
			(void)device->driver->cuDevicePrimaryCtxRelease(
				device->id);
		free(device);
	}
	(void)pthread_mutex_destroy(&cuda->lock);
	free(cuda);
	return NULL;
}

/* With the lock held. What fails is tried again by the next call. */
static int get_ready(struct sk_cuda *cuda, struct sk_err *err)
{
	sk_cu_result result;
	int r;

	if (cuda->ready)
		return 0;
	r = sk_cuda_driver_open(cuda->os, NULL, &cuda->driver, err);
	if (r < 0)
		return r;
	result = cuda->driver.cuInit(0);
	if (result != SK_CU_SUCCESS)
		return sk_cuda_driver_failed(&cuda->driver, result, "cuInit",
					     err);
	cuda->ready = true;
	return 0;
}

static int check_ordinal(const struct sk_cuda *cuda, int ordinal,
			 struct sk_err *err)
{
	sk_cu_result result;
	int n = 0;

	result = cuda->driver.cuDeviceGetCount(&n);
	if (result != SK_CU_SUCCESS)
		return sk_cuda_driver_failed(&cuda->driver, result,
					     "cuDeviceGetCount", err);
	if (ordinal >= 0 && ordinal < n && ordinal < SK_CUDA_DEVICES_MAX)
		return 0;
	return sk_err_set(err, -ENODEV, "there is no CUDA device %d, this "
			  "process sees %d", ordinal, n);
}

static int retain(struct sk_cuda_device *device, struct sk_err *err)
{
	const struct sk_cuda_driver *driver = device->driver;
	sk_cu_result result;
	int can = 0;

	result = driver->cuDeviceGet(&device->id, device->ordinal);
	if (result != SK_CU_SUCCESS)
		return sk_cuda_driver_failed(driver, result, "cuDeviceGet",
					     err);
	result = driver->cuDevicePrimaryCtxRetain(&device->context,
						  device->id);
	if (result == SK_CU_DEVICE_UNAVAILABLE)
		return sk_err_set(err, -ENODEV, "CUDA device %d takes no "
				  "other process (CUDA_ERROR_DEVICE_"
				  "UNAVAILABLE): another one has it for "
				  "itself, where its compute mode is "
				  "exclusive, or it is full",
				  device->ordinal);
	if (result != SK_CU_SUCCESS)
		return sk_cuda_driver_failed(driver, result,
					     "cuDevicePrimaryCtxRetain", err);
	device->host_pointers =
		driver->cuDeviceGetAttribute(&can, SK_CU_DEVICE_HOST_POINTERS,
					     device->id) == SK_CU_SUCCESS &&
		can;
	return 0;
}

/* With the lock held. */
static int open_device(struct sk_cuda *cuda, int ordinal,
		       struct sk_cuda_device **ret_device, struct sk_err *err)
{
	_cleanup_free_ struct sk_cuda_device *device = NULL;
	int r = get_ready(cuda, err);

	if (r >= 0)
		r = check_ordinal(cuda, ordinal, err);
	if (r < 0)
		return r;
	if (!cuda->devices[ordinal]) {
		device = calloc(1, sizeof(*device));
		if (!device)
			return sk_err_set(err, -ENOMEM, "out of memory");
		device->os = cuda->os;
		device->driver = &cuda->driver;
		device->ordinal = ordinal;
		r = sk_cuda_kernels_new(device, err);
		if (r >= 0)
			r = retain(device, err);
		if (r < 0) {
			free(device->kernels);
			return r;
		}
		cuda->devices[ordinal] = sk_take_ptr(device);
	}
	*ret_device = cuda->devices[ordinal];
	return 0;
}

int sk_cuda_ready(struct sk_cuda *cuda, struct sk_err *err)
{
	int r;

	(void)pthread_mutex_lock(&cuda->lock);
	r = get_ready(cuda, err);
	(void)pthread_mutex_unlock(&cuda->lock);
	return r;
}

int sk_cuda_device(struct sk_cuda *cuda, int ordinal,
		   struct sk_cuda_device **ret_device, struct sk_err *err)
{
	int r;

	(void)pthread_mutex_lock(&cuda->lock);
	r = open_device(cuda, ordinal, ret_device, err);
	(void)pthread_mutex_unlock(&cuda->lock);
	return r;
}

/* ---- a thread on a device ---- */

/* Where it captures without us, calls that are unsafe in a capture, as page
 * locking is, would be refused and spoil it. */
static sk_cu_enum exchange_mode(const struct sk_cuda_driver *driver,
				sk_cu_enum mode)
{
	if (driver->cuThreadExchangeStreamCaptureMode)
		(void)driver->cuThreadExchangeStreamCaptureMode(&mode);
	return mode;
}

void sk_cuda_set_stuck(struct sk_cuda_device *device, bool stuck)
{
	atomic_store(&device->stuck, stuck);
}

int sk_cuda_is_stuck(const struct sk_cuda_device *device, struct sk_err *err)
{
	if (!atomic_load(&device->stuck))
		return 0;
	return sk_err_set(err, -EIO, "CUDA device %d has something to do that "
			  "never ended; start the process anew",
			  device->ordinal);
}

int sk_cuda_enter(const struct sk_cuda_device *device,
		  struct sk_cuda_scope *ret_scope, struct sk_err *err)
{
	const struct sk_cuda_driver *driver = device->driver;
	sk_cu_result result = driver->cuCtxPushCurrent(device->context);

	if (result != SK_CU_SUCCESS)
		return sk_cuda_driver_failed(driver, result,
					     "cuCtxPushCurrent", err);
	ret_scope->driver = driver;
	ret_scope->mode = exchange_mode(driver, SK_CU_CAPTURE_MODE_RELAXED);
	return 0;
}

void sk_cuda_leave(const struct sk_cuda_scope *scope)
{
	sk_cu_context ours;

	(void)exchange_mode(scope->driver, scope->mode);
	(void)scope->driver->cuCtxPopCurrent(&ours);
}
