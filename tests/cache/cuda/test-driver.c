/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loader and devices, on the simulated driver that $SHARDKEEP_LIBCUDA
 * names: each test is a process of its own.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/private.h"
#include "fault-os.h"
#include "sim/trainer.h"

struct line {
	const char *name;
	bool required;
	size_t at;
};

enum { OPTIONAL, REQUIRED };

#define LINE(function, exported, version, need, params)			\
	{ #function, need, offsetof(struct sk_cuda_driver, function) },

static const struct line lines[] = { SK_CUDA_TABLE(LINE) };

static int open_driver(const char *file, struct sk_cuda_driver *ret,
		       struct sk_err *err)
{
	return sk_cuda_driver_open(sk_os_linux(), file, ret, err);
}

static void assert_refused(const char *file, const char *word)
{
	struct sk_cuda_driver driver;
	struct sk_err err = { "" };

	cr_assert_eq(open_driver(file, &driver, &err), -ENODEV);
	cr_assert(strstr(err.text, word), "\"%s\" lacks \"%s\"", err.text,
		  word);
}

/* ---- the loader ---- */

Test(driver, finds_all_and_initializes_nothing)
{
	struct trainer_cuda cuda;
	struct sk_err err = { "" };

	cr_assert_eq(trainer_cuda_open(&cuda, &err), 0, "%s", err.text);
	for (size_t i = 0; i < SK_ARRAY_SIZE(lines); i++)
		cr_assert_not_null(*(void **)((char *)&cuda.driver +
					      lines[i].at), "%s",
				   lines[i].name);
	cr_assert_eq(cuda.driver.version, 13000);
	cr_assert_not_null(cuda.calls);
	cr_assert_eq(cuda.calls("cuInit"), 0);
	cr_assert_eq(cuda.calls("cuDriverGetVersion"), 1);
}

/* As whoever has trouble with them says. */
Test(driver, takes_no_batches_where_it_is_told)
{
	struct trainer_cuda cuda;

	setenv("SHARDKEEP_CUDA_BATCHES", "0", 1);
	cr_assert_eq(trainer_cuda_open(&cuda, NULL), 0);
	cr_assert_null(cuda.driver.cuMemcpyBatchAsync);
	cr_assert_null(cuda.driver.cuMemcpyBatchAsync_12080);
	setenv("SHARDKEEP_CUDA_BATCHES", "1", 1);
	cr_assert_eq(trainer_cuda_open(&cuda, NULL), 0);
	cr_assert_not_null(cuda.driver.cuMemcpyBatchAsync);
}

Test(driver, says_that_there_is_none)
{
	assert_refused("libnobody.so.7", "libnobody.so.7");
}

Test(driver, says_that_it_is_the_stub)
{
	setenv("VCUDA_MODE", "stub", 1);
	assert_refused(NULL, "stub");
}

Test(driver, says_that_it_is_too_old)
{
	setenv("VCUDA_VERSION", "11080", 1);
	assert_refused(NULL, "CUDA 11.8");
	/* It lacks functions then: its age is what explains that. */
	setenv("VCUDA_MISSING", "cuInit", 1);
	assert_refused(NULL, "CUDA 11.8");
	setenv("VCUDA_VERSION", "12000", 1);
	unsetenv("VCUDA_MISSING");
	cr_assert_eq(open_driver(NULL, &(struct sk_cuda_driver){ 0 }, NULL),
		     0);
}

Test(driver, says_that_it_is_older_than_its_own_table)
{
	assert_refused("libm.so.6", "cuGetProcAddress_v2");
}

Test(driver, names_what_is_missing)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(lines); i++) {
		struct sk_cuda_driver driver;
		struct sk_err err = { "" };
		int r;

		setenv("VCUDA_MISSING", lines[i].name, 1);
		r = open_driver(NULL, &driver, &err);
		if (!lines[i].required) {
			cr_assert_eq(r, 0, "%s: %s", lines[i].name, err.text);
			cr_assert_null(*(void **)((char *)&driver +
						  lines[i].at));
			continue;
		}
		cr_assert_eq(r, -ENODEV, "%s", lines[i].name);
		cr_assert(strstr(err.text, lines[i].name), "%s", err.text);
	}
}

/* One that has no batches of CUDA 13 has those of 12.8, or none; never one by
 * the other's parameters. */
Test(driver, batches_are_of_the_driver_s_version)
{
	struct sk_cuda_driver driver;

	cr_assert_eq(open_driver(NULL, &driver, NULL), 0);
	cr_assert_not_null(driver.cuMemcpyBatchAsync);
	cr_assert_null(driver.cuMemcpyBatchAsync_12080);
	setenv("VCUDA_VERSION", "12090", 1);
	cr_assert_eq(open_driver(NULL, &driver, NULL), 0);
	cr_assert_null(driver.cuMemcpyBatchAsync);
	cr_assert_not_null(driver.cuMemcpyBatchAsync_12080);
	setenv("VCUDA_VERSION", "12070", 1);
	cr_assert_eq(open_driver(NULL, &driver, NULL), 0);
	cr_assert_null(driver.cuMemcpyBatchAsync);
	cr_assert_null(driver.cuMemcpyBatchAsync_12080);
}

Test(driver, failing_to_load_is_an_error)
{
	const enum sk_fault_op ops[] = { SK_FAULT_DLOPEN, SK_FAULT_DLSYM };

	for (int i = 0; i < 2; i++) {
		struct sk_cuda_driver driver;
		struct sk_err err = { "" };
		struct sk_fault_os fault;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, ops[i], 1, 1, ENOENT);
		cr_assert_eq(sk_cuda_driver_open(&fault.os, NULL, &driver,
						 &err), -ENODEV);
		cr_assert_neq(err.text[0], 0);
		cr_assert_eq(sk_cuda_driver_open(&fault.os, NULL, &driver,
						 &err), 0);
	}
}

Test(driver, results_have_names)
{
	static const struct {
		sk_cu_result result;
		int r;
		const char *word;
	} cases[] = {
		{ SK_CU_OUT_OF_MEMORY, -ENOMEM, "OUT_OF_MEMORY (2)" },
		{ SK_CU_INVALID_VALUE, -EINVAL, "INVALID_VALUE (1)" },
		{ SK_CU_NO_DEVICE, -ENODEV, "NO_DEVICE (100)" },
		{ SK_CU_CAPTURE_UNSUPPORTED, -EBUSY, "(900)" },
		{ SK_CU_CAPTURE_IMPLICIT, -EBUSY, "(906)" },
		{ SK_CU_ILLEGAL_ADDRESS, -EIO, "ILLEGAL_ADDRESS (700)" },
		{ 4242, -EIO, "unknown error (4242)" },
	};
	struct sk_cuda_driver driver;

	cr_assert_eq(open_driver(NULL, &driver, NULL), 0);
	for (size_t i = 0; i < SK_ARRAY_SIZE(cases); i++) {
		struct sk_err err = { "" };

		cr_assert_eq(sk_cuda_driver_failed(&driver, cases[i].result,
						   "cuThis", &err),
			     cases[i].r);
		cr_assert(strstr(err.text, "cuThis"));
		cr_assert(strstr(err.text, cases[i].word), "%s", err.text);
	}
}

/* ---- devices ---- */

static struct sk_cuda *new_cuda(void)
{
	struct sk_cuda *cuda;

	cr_assert_eq(sk_cuda_new(sk_os_linux(), &cuda, NULL), 0);
	return cuda;
}

Test(device, nothing_is_opened_before_the_first)
{
	struct sk_cuda_device *device;
	struct sk_err err = { "" };
	struct sk_cuda *cuda;

	setenv("SHARDKEEP_LIBCUDA", "libnobody.so.7", 1);
	cuda = new_cuda();
	cr_assert_eq(sk_cuda_device(cuda, 0, &device, &err), -ENODEV);
	cr_assert(strstr(err.text, "libnobody.so.7"), "%s", err.text);
	sk_cuda_free(cuda);
}

Test(device, none_now_may_be_one_later)
{
	struct sk_cuda *cuda = new_cuda();
	struct sk_cuda_device *device;
	struct sk_err err = { "" };

	setenv("VCUDA_DEVICES", "0", 1);
	cr_assert_eq(sk_cuda_device(cuda, 0, &device, &err), -ENODEV);
	cr_assert(strstr(err.text, "NO_DEVICE"), "%s", err.text);
	setenv("VCUDA_DEVICES", "2", 1);
	cr_assert_eq(sk_cuda_device(cuda, 1, &device, &err), 0, "%s",
		     err.text);
	sk_cuda_free(cuda);
}

Test(device, ordinals_are_checked)
{
	const int wrong[] = { -1, 2, 64, INT32_MAX, INT32_MIN };
	struct sk_cuda *cuda = new_cuda();
	struct sk_cuda_device *device;

	setenv("VCUDA_DEVICES", "2", 1);
	for (size_t i = 0; i < SK_ARRAY_SIZE(wrong); i++) {
		struct sk_err err = { "" };

		cr_assert_eq(sk_cuda_device(cuda, wrong[i], &device, &err),
			     -ENODEV, "%d", wrong[i]);
		cr_assert(strstr(err.text, "sees 2"), "%s", err.text);
	}
	sk_cuda_free(cuda);
}

static bool is_active(const struct trainer_cuda *t, int device)
{
	unsigned flags;
	int active;

	cr_assert_eq(t->cuDevicePrimaryCtxGetState(device, &flags, &active),
		     0);
	return active;
}

Test(device, the_primary_context_is_retained_once_and_released)
{
	struct sk_cuda_device *device, *again;
	struct sk_cuda *cuda = new_cuda();
	struct trainer_cuda t;

	setenv("VCUDA_DEVICES", "2", 1);
	cr_assert_eq(trainer_cuda_open(&t, NULL), 0);
	cr_assert_eq(sk_cuda_device(cuda, 1, &device, NULL), 0);
	cr_assert_eq(sk_cuda_device(cuda, 1, &again, NULL), 0);
	cr_assert_eq(device, again);
	cr_assert_eq(t.calls("cuInit"), 1);
	cr_assert_eq(t.calls("cuDevicePrimaryCtxRetain"), 1);
	/* A context costs memory: there is none on the other device. */
	cr_assert(!is_active(&t, 0));
	cr_assert(is_active(&t, 1));
	sk_cuda_free(cuda);
	cr_assert(!is_active(&t, 1));
}

static sk_cu_enum mode_of(const struct trainer_cuda *t)
{
	sk_cu_enum mode = 0, before;

	cr_assert_eq(t->driver.cuThreadExchangeStreamCaptureMode(&mode), 0);
	before = mode;
	cr_assert_eq(t->driver.cuThreadExchangeStreamCaptureMode(&mode), 0);
	return before;
}

static sk_cu_context current(const struct trainer_cuda *t)
{
	sk_cu_context context;

	cr_assert_eq(t->cuCtxGetCurrent(&context), 0);
	return context;
}

Test(device, the_thread_gets_back_what_it_had)
{
	struct sk_cuda_device *device, *other;
	struct sk_cuda *cuda = new_cuda();
	struct sk_cuda_scope scope;
	struct trainer_cuda t;

	setenv("VCUDA_DEVICES", "2", 1);
	cr_assert_eq(trainer_cuda_open(&t, NULL), 0);
	cr_assert_eq(sk_cuda_device(cuda, 0, &device, NULL), 0);
	cr_assert_eq(sk_cuda_device(cuda, 1, &other, NULL), 0);
	for (int i = 0; i < 3; i++) {
		sk_cu_context mine = i == 0 ? NULL : i == 1 ?
				     device->context : other->context;

		cr_assert_eq(t.cuCtxSetCurrent(mine), 0);
		cr_assert_eq(sk_cuda_enter(device, &scope, NULL), 0);
		cr_assert_eq(current(&t), device->context);
		cr_assert_eq(mode_of(&t), SK_CU_CAPTURE_MODE_RELAXED);
		sk_cuda_leave(&scope);
		cr_assert_eq(current(&t), mine);
		cr_assert_eq(mode_of(&t), 0);
	}
	sk_cuda_free(cuda);
}

Test(device, a_driver_without_capture_modes_serves_too)
{
	struct sk_cuda *cuda = new_cuda();
	struct sk_cuda_device *device;
	struct sk_cuda_scope scope;

	setenv("VCUDA_MISSING", "cuThreadExchangeStreamCaptureMode", 1);
	cr_assert_eq(sk_cuda_device(cuda, 0, &device, NULL), 0);
	cr_assert_eq(sk_cuda_enter(device, &scope, NULL), 0);
	sk_cuda_leave(&scope);
	sk_cuda_free(cuda);
}

Test(device, a_forked_child_is_told)
{
	struct sk_cuda *cuda = new_cuda();
	struct sk_cuda_device *device;
	struct sk_err err = { "" };
	int status;
	pid_t pid;

	cr_assert_eq(sk_cuda_device(cuda, 0, &device, NULL), 0);
	pid = fork();
	cr_assert_geq(pid, 0);
	if (!pid)
		_exit(sk_cuda_device(cuda, 0, &device, &err) == -EIO &&
		      strstr(err.text, "NOT_INITIALIZED") ? 0 : 1);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
	sk_cuda_free(cuda);
}
