/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What we rely on of device memory that processes share, one by one. As
 * conformance.c: on the simulation and on a real driver.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/hash.h"
#include "items.h"
#include "share-fd.h"
#include "trainer.h"

static const sk_cu_allocation of_device = {
	.type = SK_CU_ALLOCATION_PINNED,
	.handles = SK_CU_HANDLE_POSIX_FD,
	.location = { SK_CU_LOCATION_DEVICE, 0 },
};

static size_t grain(const struct trainer_cuda *t)
{
	size_t bytes = 0;

	IS(0, t->driver.cuMemGetAllocationGranularity(
		   &bytes, &of_device, SK_CU_GRANULARITY_MINIMUM));
	CHECK(bytes && !(bytes & (bytes - 1)));
	return bytes;
}

static sk_cu_handle create(const struct trainer_cuda *t, size_t bytes)
{
	sk_cu_handle handle;

	IS(0, t->driver.cuMemCreate(&handle, bytes, &of_device, 0));
	return handle;
}

static int export(const struct trainer_cuda *t, sk_cu_handle handle)
{
	int fd = -1;

	IS(0, t->driver.cuMemExportToShareableHandle(
		   &fd, handle, SK_CU_HANDLE_POSIX_FD, 0));
	CHECK(fd >= 0);
	return fd;
}

static sk_cu_handle import(const struct trainer_cuda *t, int fd)
{
	sk_cu_handle handle;

	IS(0, t->driver.cuMemImportFromShareableHandle(
		   &handle, (void *)(intptr_t)fd, SK_CU_HANDLE_POSIX_FD));
	return handle;
}

/* Mapped with no access yet. */
static sk_cu_ptr map(const struct trainer_cuda *t, sk_cu_handle handle,
		     size_t bytes)
{
	sk_cu_ptr ptr;

	IS(0, t->driver.cuMemAddressReserve(&ptr, bytes, 0, 0, 0));
	IS(0, t->driver.cuMemMap(ptr, bytes, 0, handle, 0));
	return ptr;
}

static void permit(const struct trainer_cuda *t, sk_cu_ptr ptr, size_t bytes,
		   sk_cu_enum flags)
{
	const sk_cu_access access = { { SK_CU_LOCATION_DEVICE, 0 }, flags };

	IS(0, t->driver.cuMemSetAccess(ptr, bytes, &access, 1));
}

static sk_cu_ptr map_fd(const struct trainer_cuda *t, int fd, size_t bytes)
{
	sk_cu_handle handle = import(t, fd);
	sk_cu_ptr ptr = map(t, handle, bytes);

	permit(t, ptr, bytes, SK_CU_ACCESS_READ_WRITE);
	IS(0, t->driver.cuMemRelease(handle));
	return ptr;
}

/* ---- one process ---- */

static void sizes(void)
{
	struct trainer_cuda t;
	sk_cu_handle handle;
	sk_cu_ptr ptr;
	size_t g;

	trainer_cuda_begin(&t, 0);
	g = grain(&t);
	IS(SK_CU_INVALID_VALUE, t.driver.cuMemCreate(&handle, 0, &of_device,
						     0));
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuMemCreate(&handle, g + 4096, &of_device, 0));
	/* The documentation has whole pages of the host do. */
	if (t.calls)
		IS(SK_CU_INVALID_VALUE,
		   t.driver.cuMemAddressReserve(&ptr, g + 4096, 0, 0, 0));
	handle = create(&t, g);
	IS(0, t.driver.cuMemAddressReserve(&ptr, 2 * g, 0, 0, 0));
	IS(SK_CU_NOT_SUPPORTED, t.driver.cuMemMap(ptr, 2 * g, 0, handle, 0));
	IS(0, t.driver.cuMemMap(ptr + g, g, 0, handle, 0));
	IS(0, t.driver.cuMemUnmap(ptr + g, g));
	IS(0, t.driver.cuMemAddressFree(ptr, 2 * g));
	IS(0, t.driver.cuMemRelease(handle));
}

static void without_context(void)
{
	struct trainer_cuda t;
	unsigned flags;
	int fd, active;

	CHECK(trainer_cuda_open(&t, NULL) == 0);
	IS(0, t.driver.cuInit(0));
	fd = export(&t, create(&t, grain(&t)));
	IS(0, t.cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(!active);
	CHECK(!close(fd));
}

static void there_and_back(void)
{
	char there[64] = "there", back[64] = "";
	struct trainer_cuda t;
	sk_cu_handle handle;
	sk_cu_ptr a, b;
	size_t g;
	int fd;

	trainer_cuda_begin(&t, 0);
	g = grain(&t);
	handle = create(&t, g);
	fd = export(&t, handle);
	a = map(&t, handle, g);
	permit(&t, a, g, SK_CU_ACCESS_READ_WRITE);
	IS(0, t.driver.cuMemRelease(handle));
	trainer_cuda_put(&t, a + g - sizeof(there), there, sizeof(there));
	/* The same memory, at another address. */
	b = map_fd(&t, fd, g);
	close(fd);
	CHECK(a != b);
	trainer_cuda_get(&t, back, b + g - sizeof(back), sizeof(back));
	CHECK(!strcmp(there, back));
	IS(0, t.driver.cuMemUnmap(a, g));
	trainer_cuda_get(&t, back, b + g - sizeof(back), sizeof(back));
	CHECK(!strcmp(there, back));
}

static void what_it_is(void)
{
	sk_cu_enum which[] = { SK_CU_POINTER_MEMORY_TYPE,
			       SK_CU_POINTER_DEVICE_ORDINAL };
	unsigned type = 0;
	int ordinal = -1;
	void *values[] = { &type, &ordinal };
	struct trainer_cuda t;
	sk_cu_ptr ptr;
	size_t g;

	trainer_cuda_begin(&t, 0);
	g = grain(&t);
	ptr = map(&t, create(&t, g), g);
	permit(&t, ptr, g, SK_CU_ACCESS_READ_WRITE);
	IS(0, t.driver.cuPointerGetAttributes(2, which, values, ptr + 5));
	CHECK(type == SK_CU_MEMORY_DEVICE && ordinal == 0);
}

/* One range, two pieces of it side by side, and room behind: a pointer's range
 * may be all that was reserved, cuMemGetAddressRange() tells of what was
 * mapped; one copy goes across. */
static void side_by_side(void)
{
	char there[64] = "there", back[64] = "";
	struct trainer_cuda t;
	sk_cu_ptr ptr, start;
	size_t g, bytes;

	trainer_cuda_begin(&t, 0);
	g = grain(&t);
	IS(0, t.driver.cuMemAddressReserve(&ptr, 4 * g, 0, 0, 0));
	for (size_t i = 0; i < 2; i++) {
		IS(0, t.driver.cuMemMap(ptr + i * g, g, 0, create(&t, g), 0));
		permit(&t, ptr + i * g, g, SK_CU_ACCESS_READ_WRITE);
	}
	for (size_t i = 0; i < 2; i++) {
		IS(0, t.driver.cuMemGetAddressRange(&start, &bytes,
						    ptr + i * g + 7));
		CHECK(start == ptr + i * g && bytes == g);
	}
	CHECK(t.driver.cuMemGetAddressRange(&start, &bytes, ptr + 2 * g));
	trainer_cuda_put(&t, ptr + g - 32, there, sizeof(there));
	trainer_cuda_get(&t, back, ptr + g - 32, sizeof(back));
	CHECK(!memcmp(there, back, sizeof(there)));
}

static void no_handles(void)
{
	struct trainer_cuda t;
	sk_cu_handle handle;
	int fds[2];

	trainer_cuda_begin(&t, 0);
	CHECK(!pipe2(fds, O_CLOEXEC));
	CHECK(t.driver.cuMemImportFromShareableHandle(
		      &handle, (void *)(intptr_t)fds[0],
		      SK_CU_HANDLE_POSIX_FD) != SK_CU_SUCCESS);
	CHECK(t.driver.cuMemImportFromShareableHandle(
		      &handle, (void *)(intptr_t)-1,
		      SK_CU_HANDLE_POSIX_FD) != SK_CU_SUCCESS);
}

/* Memory for a fabric: where a device has none of it, it is refused, and all
 * else is as before; where it has, the handle is one for whoever has leave. */
static void check_fabric(void)
{
	sk_cu_allocation what = of_device;
	struct trainer_cuda t;
	int has = 0;
	sk_cu_handle handle, again;
	sk_cu_result r;
	char name[64];
	sk_cu_ptr ptr;
	size_t g;

	trainer_cuda_begin(&t, 0);
	g = grain(&t);
	if (t.driver.cuDeviceGetAttribute(&has, VCU_DEVICE_FABRIC_SUPPORTED,
					  0))
		item_lacks("this driver, before 12.3, knows of no fabric");
	what.handles = VCU_HANDLE_FABRIC;
	r = t.driver.cuMemCreate(&handle, g, &what, 0);
	if (!has) {
		CHECK(r == VCU_NOT_PERMITTED || r == SK_CU_NOT_SUPPORTED);
	} else if (r != VCU_NOT_PERMITTED) {	/* no channel is ours */
		IS(0, r);
		IS(0, t.driver.cuMemExportToShareableHandle(
			      name, handle, VCU_HANDLE_FABRIC, 0));
		IS(0, t.driver.cuMemImportFromShareableHandle(
			      &again, name, VCU_HANDLE_FABRIC));
		IS(0, t.driver.cuMemRelease(again));
		IS(0, t.driver.cuMemRelease(handle));
	}
	ptr = map_fd(&t, export(&t, create(&t, g)), g);
	trainer_cuda_put(&t, ptr, "there", 6);
}

static void a_fabric(void)
{
	check_fabric();
}

static void a_fabric_without_a_channel(void)
{
	(void)setenv("VCUDA_MODE", "no-channel", 1);
	check_fabric();
}

/* Which kinds of handles there are, a driver tells by its version. */
static void a_fabric_before_its_time(void)
{
	struct trainer_cuda t;
	int has;

	(void)setenv("VCUDA_VERSION", "12020", 1);
	trainer_cuda_begin(&t, 0);
	IS(SK_CU_INVALID_VALUE,
	   t.driver.cuDeviceGetAttribute(&has, VCU_DEVICE_FABRIC_SUPPORTED,
					 0));
}

static void mapped_addresses_stay(void)
{
	struct trainer_cuda t;
	sk_cu_ptr ptr;
	size_t g;

	trainer_cuda_begin(&t, 0);
	g = grain(&t);
	ptr = map(&t, create(&t, g), g);
	IS(SK_CU_INVALID_VALUE, t.driver.cuMemAddressFree(ptr, g));
	IS(0, t.driver.cuMemUnmap(ptr, g));
	IS(0, t.driver.cuMemAddressFree(ptr, g));
}

/* ---- what breaks the context ---- */

static void broken_by(sk_cu_enum access, bool write)
{
	char bytes[8] = "";
	struct trainer_cuda t;
	sk_cu_stream s;
	sk_cu_ptr ptr;
	size_t g;

	trainer_cuda_begin(&t, 0);
	IS(0, t.cuStreamCreate(&s, SK_CU_STREAM_NON_BLOCKING));
	g = grain(&t);
	ptr = map(&t, create(&t, g), g);
	if (access)
		permit(&t, ptr, g, access);
	if (write)
		(void)t.driver.cuMemcpyHtoDAsync(ptr, bytes, 8, s);
	else
		(void)t.driver.cuMemcpyDtoHAsync(bytes, ptr, 8, s);
	IS(SK_CU_ILLEGAL_ADDRESS, t.driver.cuStreamSynchronize(s));
	IS(SK_CU_ILLEGAL_ADDRESS, t.driver.cuStreamSynchronize(s));
}

static void read_without_access(void)
{
	broken_by(0, false);
}

/* And a line of it, once, of this process. */
static void write_without_right(void)
{
	char dir[] = "/tmp/vcuda-session-XXXXXX", path[64], line[64] = "";
	char expected[64];
	FILE *file;

	CHECK(mkdtemp(dir));
	(void)setenv("VCUDA_SESSION", dir, 1);
	broken_by(SK_CU_ACCESS_READ, true);
	(void)snprintf(path, sizeof(path), "%s/xid", dir);
	file = fopen(path, "re");
	CHECK(file && fgets(line, sizeof(line), file));
	(void)snprintf(expected, sizeof(expected), "Xid (0): 31, pid=%d\n",
		       getpid());
	CHECK(!strcmp(line, expected) && !fgets(line, sizeof(line), file));
	CHECK(!fclose(file) && !unlink(path));
	(void)snprintf(path, sizeof(path), "rm -rf %s", dir);
	CHECK(!system(path));
}

/* ---- several processes ---- */

/* A process that makes memory, writes "owner", hands it on, and waits to be
 * killed. */
static void own(int socket, size_t grains)
{
	char word[8] = "owner";
	struct trainer_cuda t;
	size_t bytes;
	int fd;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	trainer_cuda_begin(&t, 0);
	bytes = grains * grain(&t);
	fd = export(&t, create(&t, bytes));
	trainer_cuda_put(&t, map_fd(&t, fd, bytes), word, sizeof(word));
	send_fd(socket, fd);
	for (;;)
		(void)pause();
}

static pid_t owner(size_t grains, int *ret_fd)
{
	int sockets[2];
	pid_t pid;

	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
			  sockets));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		own(sockets[1], grains);
	*ret_fd = receive_fd(sockets[0]);
	close(sockets[0]);
	close(sockets[1]);
	return pid;
}

static void end(pid_t pid)
{
	CHECK(!kill(pid, SIGKILL));
	CHECK(waitpid(pid, NULL, 0) == pid);
}

static bool has_word(const struct trainer_cuda *t, sk_cu_ptr ptr)
{
	char word[8] = "";

	trainer_cuda_get(t, word, ptr, sizeof(word));
	return !strcmp(word, "owner");
}

static void owner_is_killed(void)
{
	struct trainer_cuda t;
	sk_cu_ptr ptr;
	int fd;
	pid_t pid = owner(1, &fd);

	trainer_cuda_begin(&t, 0);
	ptr = map_fd(&t, fd, grain(&t));
	CHECK(has_word(&t, ptr));
	end(pid);
	CHECK(has_word(&t, ptr));
}

/* As of who holds descriptors for others and knows no driver. */
static void only_a_descriptor_is_left(void)
{
	struct trainer_cuda t;
	int fd;
	pid_t pid = owner(1, &fd);

	end(pid);
	trainer_cuda_begin(&t, 0);
	CHECK(has_word(&t, map_fd(&t, fd, grain(&t))));
}

/* One that runs with memory of another's; what it does there. */
static pid_t guest(int fd, void (*act)(const struct trainer_cuda *t,
				       sk_cu_ptr ptr, size_t bytes, int tell),
		   size_t grains, int *ret_told)
{
	int ends[2];
	pid_t pid;

	CHECK(!pipe2(ends, O_CLOEXEC));
	pid = fork();		/* before there is a driver here */
	CHECK(pid >= 0);
	if (!pid) {
		struct trainer_cuda t;
		size_t bytes;

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		trainer_cuda_begin(&t, 0);
		bytes = grains * grain(&t);
		act(&t, map_fd(&t, fd, bytes), bytes, ends[1]);
		_exit(0);
	}
	close(ends[1]);
	*ret_told = ends[0];
	return pid;
}

static void tell(int fd)
{
	CHECK(write(fd, "!", 1) == 1);
}

static void hear(int fd)
{
	char byte;

	CHECK(read(fd, &byte, 1) == 1);
	close(fd);
}

/* A kernel of ours reads at an address that is none. */
static void break_down(const struct trainer_cuda *t, sk_cu_ptr ptr,
		       size_t bytes, int told)
{
	const struct sk_cuda_span none = { 0x10, 4096 };
	struct sk_cuda_device *device;
	struct sk_cuda_hash *hash;
	struct sk_cuda_lane *lane;
	struct sk_cuda *cuda;
	uint64_t sum;

	(void)bytes;
	CHECK(has_word(t, ptr));
	CHECK(!sk_cuda_new(sk_os_linux(), &cuda, NULL));
	CHECK(!sk_cuda_device(cuda, 0, &device, NULL));
	CHECK(!sk_cuda_lane_new(device, &lane, NULL));
	CHECK(!sk_cuda_hash_new(device, &hash, NULL));
	CHECK(sk_cuda_hash_run(hash, lane, &none, 1, &sum, NULL) < 0);
	tell(told);
	for (;;)
		(void)pause();
}

/* Its memory, and whoever else works with it, are as before. */
static void one_breaks_down(void)
{
	struct trainer_cuda t;
	pid_t pid, broken;
	sk_cu_ptr ptr;
	int fd, told;

	pid = owner(1, &fd);
	broken = guest(fd, break_down, 1, &told);
	trainer_cuda_begin(&t, 0);
	ptr = map_fd(&t, fd, grain(&t));
	hear(told);
	CHECK(has_word(&t, ptr));
	end(broken);
	CHECK(has_word(&t, ptr));
	end(pid);
	CHECK(has_word(&t, ptr));
	CHECK(has_word(&t, map_fd(&t, fd, grain(&t))));
}

#define WRITTEN 16	/* grains */

/* Without end, and never waits: there is always more asked for than done. */
static void write_on(const struct trainer_cuda *t, sk_cu_ptr ptr,
		     size_t bytes, int told)
{
	sk_cu_stream s;

	IS(0, t->cuStreamCreate(&s, SK_CU_STREAM_NON_BLOCKING));
	for (unsigned i = 0;; i++) {
		IS(0, t->cuMemsetD8Async(ptr, (unsigned char)i, bytes, s));
		if (i == 100)
			tell(told);
		if (i % 100 == 99)
			(void)usleep(1000);
	}
}

/* Once its process has ended, what it had asked for is over. */
static void what_was_asked_is_over(void)
{
	static char before[WRITTEN << 21], after[WRITTEN << 21];
	struct trainer_cuda t;
	pid_t pid, writer;
	size_t bytes;
	int fd, told;
	sk_cu_ptr ptr;

	pid = owner(WRITTEN, &fd);
	writer = guest(fd, write_on, WRITTEN, &told);
	trainer_cuda_begin(&t, 0);
	bytes = WRITTEN * grain(&t);
	CHECK(bytes <= sizeof(before));
	ptr = map_fd(&t, fd, bytes);
	hear(told);
	end(writer);
	trainer_cuda_get(&t, before, ptr, bytes);
	(void)usleep(200000);
	trainer_cuda_get(&t, after, ptr, bytes);
	CHECK(!memcmp(before, after, bytes));
	end(pid);
}

static void devices_have_one_name(void)
{
	struct trainer_cuda t;
	sk_cu_uuid a, b;
	int fds[2];
	pid_t pid;

	CHECK(!pipe2(fds, O_CLOEXEC));
	pid = fork();
	CHECK(pid >= 0);
	trainer_cuda_begin(&t, 0);
	IS(0, t.driver.cuDeviceGetUuid(&a, 0));
	if (!pid)
		_exit(write(fds[1], &a, sizeof(a)) != sizeof(a));
	CHECK(read(fds[0], &b, sizeof(b)) == sizeof(b));
	CHECK(!memcmp(&a, &b, sizeof(a)));
	CHECK(waitpid(pid, NULL, 0) == pid);
}

/* ---- one process at a time ---- */

static void has_a_mode(void)
{
	struct trainer_cuda t;
	int mode = -1;

	CHECK(trainer_cuda_open(&t, NULL) == 0);
	IS(0, t.driver.cuInit(0));
	IS(0, t.driver.cuDeviceGetAttribute(&mode, SK_CU_DEVICE_COMPUTE_MODE,
					    0));
	CHECK(mode == SK_CU_COMPUTE_DEFAULT ||
	      mode == SK_CU_COMPUTE_EXCLUSIVE);
}

/* Whoever has a context keeps the others out, until it has none, or ends;
 * memory without an address needs none. */
static void one_at_a_time(void)
{
	char file[] = "/tmp/vcuda-exclusive-XXXXXX";
	struct trainer_cuda t;
	sk_cu_context context;
	int fd = mkstemp(file), owned;
	pid_t pid;

	CHECK(fd >= 0 && write(fd, "!", 1) == 1 && !close(fd));
	(void)setenv("VCUDA_EXCLUSIVE", file, 1);
	pid = owner(1, &owned);
	CHECK(trainer_cuda_open(&t, NULL) == 0);
	IS(0, t.driver.cuInit(0));
	IS(SK_CU_DEVICE_UNAVAILABLE,
	   t.driver.cuDevicePrimaryCtxRetain(&context, 0));
	IS(0, t.driver.cuMemRelease(create(&t, grain(&t))));
	end(pid);
	IS(0, t.driver.cuDevicePrimaryCtxRetain(&context, 0));
	IS(0, t.driver.cuDevicePrimaryCtxRetain(&context, 0));
	IS(0, t.driver.cuDevicePrimaryCtxRelease(0));
	IS(0, t.driver.cuDevicePrimaryCtxRelease(0));
	CHECK(!unlink(file));
}

/* ---- how much there is ---- */

/* Processes have the device together only where they are told to. */
static void begin_session(char dir[64])
{
	if (!trainer_is_told())
		item_lacks("each process has a simulated device of its own");
	(void)snprintf(dir, 64, "/tmp/vcuda-session-XXXXXX");
	CHECK(mkdtemp(dir));
	(void)setenv("VCUDA_SESSION", dir, 1);
}

static void end_session(const char *dir)
{
	char command[80];

	(void)snprintf(command, sizeof(command), "rm -rf %s", dir);
	CHECK(!system(command));
}

static size_t left(const struct trainer_cuda *t)
{
	size_t bytes, all;

	IS(0, t->driver.cuMemGetInfo(&bytes, &all));
	return bytes;
}

/* A driver may take its time. */
static bool gets_to(const struct trainer_cuda *t, size_t bytes)
{
	for (int i = 0; i < 500; i++) {
		if (left(t) >= bytes)
			return true;
		(void)usleep(10000);
	}
	return false;
}

#define MANY 64	/* grains */

/* A mapping alone keeps it, whoever made it; then it is there for others. */
static void comes_back(void)
{
	struct trainer_cuda t;
	size_t bytes, kept;
	sk_cu_ptr ptr;
	char dir[64];
	pid_t pid;
	int fd;

	begin_session(dir);
	pid = owner(MANY, &fd);
	trainer_cuda_begin(&t, 0);
	bytes = MANY * grain(&t);
	ptr = map_fd(&t, fd, bytes);
	close(fd);
	end(pid);
	(void)usleep(300000);
	kept = left(&t);
	CHECK(has_word(&t, ptr));
	IS(0, t.driver.cuMemUnmap(ptr, bytes));
	IS(0, t.driver.cuMemAddressFree(ptr, bytes));
	CHECK(gets_to(&t, kept + bytes - bytes / 4));
	CHECK(!t.calls || left(&t) == kept + bytes);
	end_session(dir);
}

static void hold_context(int told)
{
	struct trainer_cuda t;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	trainer_cuda_begin(&t, 0);
	IS(0, t.driver.cuCtxSynchronize());
	tell(told);
	for (;;)
		(void)pause();
}

/* So one that nobody meant to make is seen. */
static void contexts_take_room(void)
{
	struct trainer_cuda t;
	int begun[2], held[2];
	size_t before;
	char dir[64];
	pid_t pid;
	char byte;

	begin_session(dir);
	CHECK(!pipe2(begun, O_CLOEXEC) && !pipe2(held, O_CLOEXEC));
	pid = fork();		/* before there is a driver here */
	CHECK(pid >= 0);
	if (!pid) {
		CHECK(read(begun[0], &byte, 1) == 1);
		hold_context(held[1]);
	}
	trainer_cuda_begin(&t, 0);
	before = left(&t);
	tell(begun[1]);
	hear(held[0]);
	CHECK(left(&t) < before);
	end(pid);
	CHECK(gets_to(&t, before - ((size_t)32 << 20)));
	end_session(dir);
}

static void budget(void)
{
	char dir[] = "/tmp/vcuda-session-XXXXXX", command[64];
	size_t left, before, all, g = (size_t)2 << 20;
	struct trainer_cuda t;
	sk_cu_handle handle;
	int fd;
	pid_t pid;

	CHECK(mkdtemp(dir));
	(void)setenv("VCUDA_SESSION", dir, 1);
	(void)setenv("VCUDA_MEM", "16777216", 1);
	(void)setenv("VCUDA_CONTEXT", "0", 1);
	pid = owner(4, &fd);
	trainer_cuda_begin(&t, 0);
	IS(0, t.driver.cuMemGetInfo(&before, &all));
	CHECK(all == 8 * g && before == 4 * g);
	IS(SK_CU_OUT_OF_MEMORY,
	   t.driver.cuMemCreate(&handle, 5 * g, &of_device, 0));
	/* What only a descriptor keeps is kept. */
	end(pid);
	IS(0, t.driver.cuMemGetInfo(&left, &all));
	CHECK(left == before);
	close(fd);
	IS(0, t.driver.cuMemGetInfo(&left, &all));
	CHECK(left == all);
	IS(0, t.driver.cuMemRelease(create(&t, 5 * g)));
	(void)snprintf(command, sizeof(command), "rm -rf %s", dir);
	CHECK(!system(command));
}

/* All who have a context of it hear so, what it held is gone, whoever has it,
 * and who begins then has an empty device. */
static void reset(void)
{
	char dir[] = "/tmp/vcuda-session-XXXXXX", path[64], command[64];
	size_t left, all, g = (size_t)2 << 20;
	struct trainer_cuda t;
	sk_cu_handle handle;
	int fd, status, file;
	pid_t pid, next;

	CHECK(mkdtemp(dir));
	(void)setenv("VCUDA_SESSION", dir, 1);
	(void)setenv("VCUDA_CONTEXT", "0", 1);
	pid = owner(1, &fd);
	next = fork();
	CHECK(next >= 0);
	if (!next) {
		(void)raise(SIGSTOP);
		trainer_cuda_begin(&t, 0);
		CHECK(t.driver.cuMemImportFromShareableHandle(
			      &handle, (void *)(intptr_t)fd,
			      SK_CU_HANDLE_POSIX_FD));
		IS(0, t.driver.cuMemGetInfo(&left, &all));
		CHECK(left == all);
		handle = create(&t, g);
		close(export(&t, handle));
		_exit(0);
	}
	CHECK(waitpid(next, &status, WUNTRACED) == next &&
	      WIFSTOPPED(status));
	trainer_cuda_begin(&t, 0);
	CHECK(has_word(&t, map_fd(&t, fd, g)));
	(void)snprintf(path, sizeof(path), "%s/reset-0", dir);
	file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	CHECK(file >= 0 && write(file, "", 1) == 1 && !close(file));
	IS(SK_CU_LAUNCH_FAILED, t.driver.cuMemGetInfo(&left, &all));
	IS(SK_CU_LAUNCH_FAILED, t.driver.cuCtxSynchronize());
	CHECK(!kill(next, SIGCONT) && waitpid(next, &status, 0) == next);
	CHECK(!status);
	end(pid);
	(void)snprintf(command, sizeof(command), "rm -rf %s", dir);
	CHECK(!system(command));
}

/* ---- all of them ---- */

static const struct item items[] = {
	{ "sizes", sizes, ITEM_ANY },
	{ "made without a context", without_context, ITEM_ANY },
	{ "mapped twice", there_and_back, ITEM_ANY },
	{ "what its pointers are", what_it_is, ITEM_ANY },
	{ "pieces side by side", side_by_side, ITEM_ANY },
	{ "what is no handle", no_handles, ITEM_ANY },
	{ "memory for a fabric", a_fabric, ITEM_ANY },
	{ "memory for a fabric, without a channel", a_fabric_without_a_channel,
	  ITEM_SIM },
	{ "memory for a fabric, in an old driver", a_fabric_before_its_time,
	  ITEM_SIM },
	{ "addresses that are mapped", mapped_addresses_stay, ITEM_SIM },
	{ "no access was given", read_without_access, ITEM_SIM },
	{ "written to, to be read", write_without_right, ITEM_SIM },
	{ "the owner is killed", owner_is_killed, ITEM_ANY },
	{ "only a descriptor is left", only_a_descriptor_is_left, ITEM_ANY },
	{ "a process breaks down", one_breaks_down, ITEM_ANY },
	{ "what a killed one has asked for", what_was_asked_is_over,
	  ITEM_ANY },
	{ "memory that nobody has any more", comes_back, ITEM_ANY },
	{ "contexts take room", contexts_take_room, ITEM_ANY },
	{ "devices have one name", devices_have_one_name, ITEM_ANY },
	{ "a device has a compute mode", has_a_mode, ITEM_ANY },
	{ "one process at a time", one_at_a_time, ITEM_SIM },
	{ "what processes use together", budget, ITEM_SIM },
	{ "a device that is reset", reset, ITEM_SIM },
};

int main(void)
{
	return cuda_items_main(items, sizeof(items) / sizeof(items[0]), true);
}
