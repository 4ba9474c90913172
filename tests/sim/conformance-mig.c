/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What we rely on of GPUs that are split into instances (MIG), one by one. As
 * conformance.c: on the simulation and on a real driver; skipped where there
 * are no two instances of one GPU.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "instances.h"
#include "items.h"
#include "share-fd.h"
#include "trainer.h"

static char instances[INSTANCES_MAX][INSTANCE_NAME];

static const sk_cu_allocation of_device = {
	.type = SK_CU_ALLOCATION_PINNED,
	.handles = SK_CU_HANDLE_POSIX_FD,
	.location = { SK_CU_LOCATION_DEVICE, 0 },
};

/* Before the driver is initialized. */
static void see(const char *names)
{
	CHECK(!setenv("CUDA_VISIBLE_DEVICES", names, 1));
}

/* ---- names ---- */

/* What a process knows that has an instance. */
struct identity {
	int devices;
	sk_cu_uuid own, gpu;
	int bus;
};

static struct identity ask(void)
{
	sk_cu_get_uuid_9020 of_gpu;
	struct identity who;
	struct trainer_cuda t;

	trainer_cuda_begin(&t, 0);
	IS(0, t.driver.cuDeviceGetCount(&who.devices));
	IS(0, t.driver.cuDeviceGetUuid(&who.own, 0));
	IS(0, t.driver.cuDeviceGetAttribute(&who.bus, SK_CU_DEVICE_PCI_BUS,
					    0));
	of_gpu = (sk_cu_get_uuid_9020)
		sk_cuda_driver_find(&t.driver, "cuDeviceGetUuid", 9020);
	CHECK(of_gpu);
	IS(0, of_gpu(&who.gpu, 0));
	return who;
}

/* In a process of its own. */
static struct identity identity(const char *names)
{
	struct identity who;
	int ends[2];
	pid_t pid;

	CHECK(!pipe(ends));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		see(names);
		who = ask();
		_exit(write(ends[1], &who, sizeof(who)) != sizeof(who));
	}
	(void)close(ends[1]);
	CHECK(read(ends[0], &who, sizeof(who)) == sizeof(who));
	(void)close(ends[0]);
	CHECK(waitpid(pid, NULL, 0) == pid);
	return who;
}

static bool same(const sk_cu_uuid *a, const sk_cu_uuid *b)
{
	return !memcmp(a, b, sizeof(*a));
}

/* A process sees the one that it names, by that name. */
static void seen_by_name(void)
{
	for (int i = 0; i < 2; i++) {
		const struct identity who = identity(instances[i]);
		char name[INSTANCE_NAME] = "MIG", *at = name + 3;

		CHECK(who.devices == 1);
		for (int k = 0; k < 16; k++)
			at += sprintf(at, "%s%02x", !k || k == 4 || k == 6 ||
				      k == 8 || k == 10 ? "-" : "",
				      (unsigned char)who.own.bytes[k]);
		CHECK(!strcmp(name, instances[i]));
	}
}

/* Two of one GPU differ; by what older versions say they do not. */
static void two_of_one_gpu(void)
{
	const struct identity a = identity(instances[0]),
			      b = identity(instances[1]);

	CHECK(!same(&a.own, &b.own));
	CHECK(same(&a.gpu, &b.gpu) && a.bus == b.bus);
	CHECK(!same(&a.own, &a.gpu) && !same(&b.own, &b.gpu));
}

/* However many are named, and where none is. */
static void one_is_seen(void)
{
	char both[2 * INSTANCE_NAME];

	(void)snprintf(both, sizeof(both), "%s,%s", instances[1],
		       instances[0]);
	CHECK(identity(both).devices == 1);
	(void)unsetenv("CUDA_VISIBLE_DEVICES");
	CHECK(ask().devices == 1);
}

static void none_of_that_name(void)
{
	struct trainer_cuda t;

	see("MIG-00000000-0000-0000-0000-000000000001");
	CHECK(trainer_cuda_open(&t, NULL) == 0);
	IS(SK_CU_NO_DEVICE, t.driver.cuInit(0));
}

/* ---- memory ---- */

static size_t grain(const struct trainer_cuda *t)
{
	size_t bytes = 0;

	IS(0, t->driver.cuMemGetAllocationGranularity(
		   &bytes, &of_device, SK_CU_GRANULARITY_MINIMUM));
	return bytes;
}

/* Makes memory on the first instance, hands it on, and stays. */
static void own(int socket)
{
	struct trainer_cuda t;
	sk_cu_handle handle;
	int fd = -1;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	see(instances[0]);
	trainer_cuda_begin(&t, 0);
	IS(0, t.driver.cuMemCreate(&handle, grain(&t), &of_device, 0));
	IS(0, t.driver.cuMemExportToShareableHandle(
		   &fd, handle, SK_CU_HANDLE_POSIX_FD, 0));
	send_fd(socket, fd);
	for (;;)
		(void)pause();
}

/* A descriptor of memory on the first, imported on that instance. */
static sk_cu_result imported_on(const char *instance)
{
	struct trainer_cuda t;
	sk_cu_handle handle;
	int sockets[2], fd;
	sk_cu_result r;
	pid_t pid;

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
			  sockets));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		own(sockets[1]);
	fd = receive_fd(sockets[0]);
	see(instance);
	trainer_cuda_begin(&t, 0);
	r = t.driver.cuMemImportFromShareableHandle(
		&handle, (void *)(intptr_t)fd, SK_CU_HANDLE_POSIX_FD);
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
	return r;
}

static void shared_within(void)
{
	IS(0, imported_on(instances[0]));
}

static void not_shared_between(void)
{
	CHECK(imported_on(instances[1]) != SK_CU_SUCCESS);
}

/* On that instance; who asked for it is to go on without a driver. */
static void take(const char *instance, size_t bytes, sk_cu_result expected)
{
	struct trainer_cuda t;
	sk_cu_handle handle;

	see(instance);
	trainer_cuda_begin(&t, 0);
	IS(expected, t.driver.cuMemCreate(&handle, bytes, &of_device, 0));
}

/* Each has its own, and all of it is no other's. */
static void budgets(void)
{
	const size_t all = (size_t)16 << 20;
	char dir[] = "/tmp/vcuda-session-XXXXXX", command[64];
	int status;
	pid_t pid;

	CHECK(mkdtemp(dir));
	(void)setenv("VCUDA_SESSION", dir, 1);
	(void)setenv("VCUDA_MIG", "2", 1);
	(void)setenv("VCUDA_MEM", "33554432", 1);
	(void)setenv("VCUDA_CONTEXT", "0", 1);
	for (int i = 0; i < 4; i++) {
		pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			take(instances[i % 2], i < 2 ? all + (2 << 20) : all,
			     i < 2 ? SK_CU_OUT_OF_MEMORY : SK_CU_SUCCESS);
			if (i == 2)
				take(instances[0], 2 << 20,
				     SK_CU_OUT_OF_MEMORY);
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && !status);
	}
	(void)snprintf(command, sizeof(command), "rm -rf %s", dir);
	CHECK(!system(command));
}

/* ---- all of them ---- */

static const struct item items[] = {
	{ "seen by name", seen_by_name, ITEM_ANY },
	{ "two of one GPU", two_of_one_gpu, ITEM_ANY },
	{ "one is seen", one_is_seen, ITEM_SIM },
	{ "none of that name", none_of_that_name, ITEM_ANY },
	{ "shared within one", shared_within, ITEM_ANY },
	{ "not shared between two", not_shared_between, ITEM_ANY },
	{ "each has a budget", budgets, ITEM_SIM },
};

int main(void)
{
	if (instances_find(instances) < 2)
		return 77;
	return cuda_items_main(items, sizeof(items) / sizeof(items[0]), true);
}
