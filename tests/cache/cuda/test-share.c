/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory of devices, on the simulated driver that $SHARDKEEP_LIBCUDA
 * names: each test is a process of its own.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/token.h"
#include "cuda/held.h"
#include "cuda/share.h"
#include "sim/trainer.h"

#define BYTES ((uint64_t)3 << 20)

struct fixture {
	struct trainer_cuda t;
	struct sk_cuda *cuda;
	struct sk_cuda_device *device;
};

static struct fixture *f;

static void set_up(void)
{
	f = calloc(1, sizeof(*f));
	cr_assert_not_null(f);
	setenv("VCUDA_DEVICES", "2", 0);
	trainer_cuda_begin(&f->t, 0);
	cr_assert_eq(sk_cuda_new(sk_os_linux(), &f->cuda, NULL), 0);
	cr_assert_eq(sk_cuda_device(f->cuda, 0, &f->device, NULL), 0);
}

static void tear_down(void)
{
	sk_cuda_free(f->cuda);
	free(f);
}

TestSuite(share, .init = set_up, .fini = tear_down);

/* What hardware has one of, or does not do where it is told. */
static bool has_two(void)
{
	int n = 0;

	cr_assert_eq(f->t.driver.cuDeviceGetCount(&n), 0);
	return n > 1;
}

static bool is_simulated(void)
{
	return f->t.calls != NULL;
}

static int make(uint64_t *ret_bytes)
{
	struct sk_err err = { "" };
	int fd = -1;

	cr_assert_eq(sk_cuda_share_new(f->device, BYTES, &fd, ret_bytes,
				       &err), 0, "%s", err.text);
	cr_assert_geq(fd, 0);
	cr_assert(*ret_bytes >= BYTES && *ret_bytes < 2 * BYTES);
	return fd;
}

static struct sk_cuda_share *map(int fd, uint64_t bytes)
{
	struct sk_cuda_share *share;
	struct sk_err err = { "" };

	cr_assert_eq(sk_cuda_share_map(f->device, fd, bytes, true, &share,
				       &err), 0, "%s", err.text);
	return share;
}

Test(share, is_one_memory_wherever_it_is_mapped)
{
	uint64_t bytes;
	int fd = make(&bytes);
	struct sk_cuda_share *a = map(fd, bytes), *b = map(fd, bytes);
	char there[16] = "there", back[16] = "";

	close(fd);
	trainer_cuda_put(&f->t, sk_cuda_share_ptr(a) + BYTES - 16, there, 16);
	sk_cuda_share_unmap(a);
	trainer_cuda_get(&f->t, back, sk_cuda_share_ptr(b) + BYTES - 16, 16);
	cr_assert_str_eq(there, back);
	sk_cuda_share_unmap(b);
	cr_assert(!is_simulated() || f->t.count("memory") == 0);
}

Test(share, no_program_that_is_run_has_its_descriptor)
{
	uint64_t bytes;
	int fd = make(&bytes);

	cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	close(fd);
}

/* As a trainer's thread has that works on several. */
Test(share, is_found_whatever_device_is_current)
{
	struct sk_cuda_share *share;
	struct sk_cuda_range range;
	struct sk_err err = { "" };
	struct trainer_cuda second;
	uint64_t bytes;
	int fd;

	if (!has_two())
		return;
	fd = make(&bytes);
	share = map(fd, bytes);
	close(fd);
	trainer_cuda_begin(&second, 1);
	cr_assert_eq(sk_cuda_find(f->device, sk_cuda_share_ptr(share) + 100,
				  &range, &err), 0, "%s", err.text);
	cr_assert_eq(range.from, sk_cuda_share_ptr(share));
	cr_assert_eq(range.to - range.from, bytes);
	sk_cuda_share_unmap(share);
}

Test(share, devices_are_found_by_name)
{
	struct sk_cuda_uuid uuid = { { 0 } };
	struct sk_cuda_device *second, *found;

	if (!has_two())
		return;
	cr_assert_eq(sk_cuda_device(f->cuda, 1, &second, NULL), 0);
	cr_assert_eq(sk_cuda_device_by_uuid(f->cuda, &uuid, &found, NULL),
		     -ENODEV);
	cr_assert_eq(sk_cuda_uuid(second, &uuid, NULL), 0);
	cr_assert_eq(sk_cuda_device_by_uuid(f->cuda, &uuid, &found, NULL),
		     0);
	cr_assert_eq(found, second);
	/* Where the process sees the other one alone. */
	if (!is_simulated())
		return;
	setenv("VCUDA_FIRST", "1", 1);
	cr_assert_eq(sk_cuda_device_by_uuid(f->cuda, &uuid, &found, NULL),
		     0);
	cr_assert_eq(found, f->device);
}

static void assert_cannot(const char *word)
{
	struct sk_err err = { "" };
	uint64_t bytes;
	int fd = -1;

	if (!is_simulated())
		return;
	cr_assert_eq(sk_cuda_share_new(f->device, BYTES, &fd, &bytes, &err),
		     -ENODEV);
	cr_assert(strstr(err.text, word), "%s", err.text);
	cr_assert_eq(fd, -1);
}

Test(share, a_device_that_gives_no_descriptors_is_told)
{
	setenv("VCUDA_MODE", "no-share", 1);
	assert_cannot("no descriptors");
}

static void set_up_without(void)
{
	setenv("VCUDA_MISSING", "cuMemCreate", 1);
	set_up();
}

Test(share, a_driver_that_cannot_is_told, .init = set_up_without)
{
	assert_cannot("cuMemCreate");
}

Test(share, other_descriptors_are_refused)
{
	struct sk_cuda_share *share = NULL;
	struct sk_err err = { "" };
	int fds[2];

	cr_assert_eq(pipe(fds), 0);
	cr_assert_eq(sk_cuda_share_map(f->device, fds[0], BYTES, true, &share,
				       &err), -EBADF);
	cr_assert(strstr(err.text, "no memory of a CUDA device"));
	cr_assert_null(share);
}

/* Whatever fails, nothing of it is left. */
Test(share, what_fails_leaves_nothing)
{
	static const char *const calls[] = {
		"cuMemImportFromShareableHandle", "cuMemAddressReserve",
		"cuMemMap", "cuMemSetAccess",
	};
	struct sk_cuda_share *share = NULL;
	uint64_t bytes;
	int fd;

	if (!is_simulated())
		return;
	fd = make(&bytes);
	for (size_t i = 0; i < SK_ARRAY_SIZE(calls); i++) {
		f->t.fail(calls[i], 1, SK_CU_OUT_OF_MEMORY);
		cr_assert_lt(sk_cuda_share_map(f->device, fd, bytes, true,
					       &share, NULL), 0);
		cr_assert_null(share);
		cr_assert_eq(f->t.count("memory"), 0, "%s", calls[i]);
		cr_assert_eq(f->t.count("reserved"), 0, "%s", calls[i]);
		cr_assert_eq(f->t.count("handles"), 0, "%s", calls[i]);
	}
	close(fd);
	f->t.fail("cuMemExportToShareableHandle", 1, SK_CU_OUT_OF_MEMORY);
	cr_assert_eq(sk_cuda_share_new(f->device, BYTES, &fd, &bytes, NULL),
		     -ENOMEM);
	cr_assert_eq(f->t.count("handles"), 0);
}

Test(share, a_full_device_is_out_of_memory)
{
	char dir[] = "/tmp/vcuda-session-XXXXXX";
	uint64_t bytes;
	int fd = -1;

	if (!is_simulated())
		return;
	cr_assert_not_null(mkdtemp(dir));
	setenv("VCUDA_SESSION", dir, 1);
	setenv("VCUDA_MEM", "2097152", 1);
	cr_assert_eq(sk_cuda_share_new(f->device, BYTES, &fd, &bytes, NULL),
		     -ENOMEM);
	cr_assert_eq(rmdir(dir), 0);
}

/* ---- what a process holds ---- */

Test(share, what_is_held_is_told_apart)
{
	setenv("SHARDKEEP_CUDA_DESCRIPTORS", "0", 1);
	cr_assert(sk_cuda_is_held(f->device));
	setenv("SHARDKEEP_CUDA_DESCRIPTORS", "1", 1);
	cr_assert(!is_simulated() || !sk_cuda_is_held(f->device));
	setenv("VCUDA_MODE", "no-share", 1);
	cr_assert(!is_simulated() || sk_cuda_is_held(f->device));
}

static struct sk_cuda_held *hold(int *ret_fd, uint64_t *ret_bytes)
{
	struct sk_cuda_held *list = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_cuda_held_new(f->device, BYTES, &list, ret_fd,
				      ret_bytes, &err), 0, "%s", err.text);
	cr_assert_not_null(list);
	cr_assert(*ret_bytes >= BYTES && *ret_bytes < 2 * BYTES);
	cr_assert(fcntl(*ret_fd, F_GETFD) & FD_CLOEXEC);
	return list;
}

Test(share, what_is_held_goes_when_nobody_has_it)
{
	struct sk_cuda_held *list;
	uint64_t bytes;
	int fd, other;

	list = hold(&fd, &bytes);
	other = dup(fd);
	close(fd);
	sk_cuda_held_sweep(&list);
	cr_assert_not_null(list);
	close(other);
	sk_cuda_held_wait(&list, SK_FOREVER);
	cr_assert_null(list);
	cr_assert(!is_simulated() || f->t.count("memory") == 0);
}

static void assert_refused(int fd, uint64_t bytes, const char *words)
{
	struct sk_cuda_share *share = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_cuda_share_map(f->device, fd, bytes, true, &share,
				       &err), -EBADF);
	cr_assert_null(share);
	cr_assert(strstr(err.text, words), "%s", err.text);
}

Test(share, what_is_held_is_no_others)
{
	struct sk_cuda_held *list;
	int fd, fds[2], token;
	uint64_t bytes;
	char name[256] = "";

	list = hold(&fd, &bytes);
	assert_refused(fd, bytes, "cannot be opened");
	assert_refused(fd, bytes + 1, "less of it");
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
	assert_refused(fds[0], BYTES, "no memory of a CUDA device");
	cr_assert_eq(sk_token_new(sk_os_linux(), name, sizeof(name), &token,
				  &fds[0]), 0);
	assert_refused(token, BYTES, "no memory of a CUDA device");
	close(fd);
	sk_cuda_held_sweep(&list);
	cr_assert_null(list);
}

/* Another device's, as this process sees them. */
Test(share, what_is_held_is_of_one_device)
{
	struct sk_cuda_device *second;
	struct sk_cuda_share *share = NULL;
	struct sk_err err = { "" };
	uint64_t bytes;
	int fd;

	if (!has_two())
		return;
	(void)hold(&fd, &bytes);
	cr_assert_eq(sk_cuda_device(f->cuda, 1, &second, NULL), 0);
	cr_assert_eq(sk_cuda_share_map(second, fd, bytes, true, &share, &err),
		     -EBADF);
	cr_assert(strstr(err.text, "another device"), "%s", err.text);
}

static void assert_cannot_hold(int expected, const char *word)
{
	struct sk_cuda_held *list = NULL;
	struct sk_err err = { "" };
	uint64_t bytes;
	int fd = -1;

	cr_assert_eq(sk_cuda_held_new(f->device, BYTES, &list, &fd, &bytes,
				      &err), expected);
	cr_assert(strstr(err.text, word), "%s", err.text);
	cr_assert_null(list);
	cr_assert_eq(fd, -1);
	cr_assert_eq(f->t.count("memory"), 0);
}

Test(share, holding_that_fails_leaves_nothing)
{
	if (!is_simulated())
		return;
	f->t.fail("cuIpcGetMemHandle", 1, SK_CU_OUT_OF_MEMORY);
	assert_cannot_hold(-ENOMEM, "cuIpcGetMemHandle");
	f->t.fail("cuMemAlloc", 1, SK_CU_OUT_OF_MEMORY);
	assert_cannot_hold(-ENOMEM, "cuMemAlloc");
	setenv("VCUDA_MODE", "no-ipc", 1);
	assert_cannot_hold(-ENODEV, "neither");
}

static void set_up_without_handles(void)
{
	setenv("VCUDA_MISSING", "cuIpcGetMemHandle", 1);
	set_up();
}

Test(share, a_driver_that_gives_neither_is_told,
     .init = set_up_without_handles)
{
	if (is_simulated())
		assert_cannot_hold(-ENODEV, "neither");
}
