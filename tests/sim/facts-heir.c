/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a killed process leaves on the GPU where a child of a fork has its
 * descriptors still, as a data loader's workers do: how long its work goes on,
 * and how much of its memory is free, before and after that child ends.
 */
#include "facts.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "items.h"
#include "share-fd.h"

#define MIB ((size_t)1 << 20)
#define GRAIN (2 * MIB)		/* memory that others see it write to */
#define WRITES 2000		/* of fact_largest bytes each, beside it */
#define LOOKS_S 1.0

static const sk_cu_allocation of_device = {
	.type = SK_CU_ALLOCATION_PINNED, .handles = SK_CU_HANDLE_POSIX_FD,
	.location = { SK_CU_LOCATION_DEVICE, 0 } };

static sk_cu_ptr map(const struct trainer_cuda *t, sk_cu_handle handle)
{
	const sk_cu_access access = { { SK_CU_LOCATION_DEVICE, 0 },
				      SK_CU_ACCESS_READ_WRITE };
	sk_cu_ptr ptr;

	IS(0, t->driver.cuMemAddressReserve(&ptr, GRAIN, 0, 0, 0));
	IS(0, t->driver.cuMemMap(ptr, GRAIN, 0, handle, 0));
	IS(0, t->driver.cuMemSetAccess(ptr, GRAIN, &access, 1));
	return ptr;
}

/* Asks for more than it will see the end of, has a child, and says so. */
static void work(int socket)
{
	struct trainer_cuda t;
	sk_cu_handle handle;
	sk_cu_ptr seen, own;
	sk_cu_stream s;
	pid_t heir;
	int fd;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	trainer_cuda_begin(&t, 0);
	s = fact_stream(&t);
	fd = receive_fd(socket);
	IS(0, t.driver.cuMemImportFromShareableHandle(
		   &handle, (void *)(intptr_t)fd, SK_CU_HANDLE_POSIX_FD));
	seen = map(&t, handle);
	own = trainer_cuda_alloc(&t, fact_largest);
	heir = fork();
	CHECK(heir >= 0);
	if (!heir) {
		(void)alarm(20);
		for (;;)
			(void)pause();
	}
	CHECK(write(socket, &heir, sizeof(heir)) == sizeof(heir));
	for (unsigned i = 0; i < WRITES; i++) {
		IS(0, t.cuMemsetD8Async(own, (unsigned char)i, fact_largest,
					s));
		IS(0, t.cuMemsetD8Async(seen, (unsigned char)i, GRAIN, s));
	}
	for (;;)
		(void)pause();
}

/* Seconds after @from at which it was seen to change last. */
static double watch(const struct trainer_cuda *t, sk_cu_ptr seen, double from)
{
	char now, before;
	double last = from;

	trainer_cuda_get(t, &before, seen, 1);
	while (fact_now() - from < LOOKS_S) {
		trainer_cuda_get(t, &now, seen, 1);
		if (now != before)
			last = fact_now();
		before = now;
		(void)usleep(1000);
	}
	return last - from;
}

static size_t left_mib(const struct trainer_cuda *t)
{
	size_t left, all;

	IS(0, t->driver.cuMemGetInfo(&left, &all));
	return left / MIB;
}

void fact_heir(void)
{
	size_t before, with_heir;
	struct trainer_cuda t;
	sk_cu_handle handle;
	double over, killed;
	int ends[2], fd = -1;
	sk_cu_ptr seen;
	pid_t pid, heir;

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
	pid = fork();		/* before there is a driver here */
	CHECK(pid >= 0);
	if (!pid)
		work(ends[1]);
	trainer_cuda_begin(&t, 0);
	if (!t.driver.cuMemCreate)
		return;
	before = left_mib(&t);
	IS(0, t.driver.cuMemCreate(&handle, GRAIN, &of_device, 0));
	IS(0, t.driver.cuMemExportToShareableHandle(
		   &fd, handle, SK_CU_HANDLE_POSIX_FD, 0));
	seen = map(&t, handle);
	send_fd(ends[0], fd);
	CHECK(read(ends[0], &heir, sizeof(heir)) == sizeof(heir));
	(void)usleep(50000);
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
	killed = fact_now();
	over = watch(&t, seen, killed);
	with_heir = left_mib(&t);
	(void)kill(heir, SIGKILL);
	(void)usleep(500000);
	printf("{\"fact\": \"a killed process with an heir\", "
	       "\"writes_on_for_ms\": %.1f, \"holds_mib\": %lld, "
	       "\"holds_mib_without_heir\": %lld}\n", over * 1e3,
	       (long long)before - (long long)with_heir,
	       (long long)before - (long long)left_mib(&t));
}
