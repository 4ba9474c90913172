/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of kernel, limits, memory and GPUs. */
#include "checks.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/timex.h>
#include <sys/utsname.h>

#include "base/pages.h"
#include "base/size.h"
#include "cuda/cuda.h"
#include "cuda/driver.h"
#include "cuda/hash.h"
#include "io/io.h"
#include "memory/slot.h"
#include "nccl/nccl.h"

#define LOCKED_LEAST ((uint64_t)64 << 20)
#define FILES_LEAST 4096u

void check_kernel(struct doctor *d)
{
	struct utsname name;
	unsigned major = 0, minor = 0;

	if (uname(&name) < 0 ||
	    sscanf(name.release, "%u.%u", &major, &minor) != 2)
		doctor_say(d, "kernel", VERDICT_WARN, "look at uname -r",
			   "its version is not known");
	else if (major < 5 || (major == 5 && minor < 14))
		doctor_say(d, "kernel", VERDICT_WARN, "Linux 5.14 faults "
			   "memory in faster, 6.1 in huge pages", "%s",
			   name.release);
	else
		doctor_say(d, "kernel", VERDICT_OK, NULL, "%s", name.release);
}

/* The soft limit of a line of /proc/PID/limits; false: it cannot be read. */
static bool find_limit(struct doctor *d, const char *line, uint64_t *ret)
{
	char path[64], text[4096], word[32] = "";
	const char *at;

	(void)snprintf(path, sizeof(path), "/proc/%s/limits", d->pid);
	at = doctor_text(d, path, text, sizeof(text)) ? strstr(text, line) :
							NULL;
	if (!at || sscanf(at + strlen(line), "%31s", word) != 1)
		return false;
	*ret = strcmp(word, "unlimited") == 0 ? UINT64_MAX :
						strtoull(word, NULL, 10);
	return true;
}

/* CAP_IPC_LOCK: to its holder the limit does not apply. */
static bool may_lock(struct doctor *d)
{
	char path[64], text[4096];
	const char *at;

	(void)snprintf(path, sizeof(path), "/proc/%s/status", d->pid);
	at = doctor_text(d, path, text, sizeof(text)) ?
	     strstr(text, "CapEff:") : NULL;
	return at && strtoull(at + 7, NULL, 16) >> 14 & 1;
}

void check_memlock(struct doctor *d)
{
	char text[SK_SIZE_TEXT];
	uint64_t most;

	if (may_lock(d))
		doctor_say(d, "memlock", VERDICT_OK, NULL, "any number of "
			   "bytes can be locked");
	else if (!find_limit(d, "Max locked memory", &most))
		doctor_say(d, "memlock", VERDICT_WARN, "ask as its user, or "
			   "as root", "the agent's limit cannot be read");
	else if (most < LOCKED_LEAST)
		doctor_say(d, "memlock", VERDICT_WARN, "LimitMEMLOCK=infinity "
			   "in the unit, or ulimit -l unlimited; GPUs need it",
			   "at most %s can be locked",
			   sk_size_format(most, text, sizeof(text)));
	else
		doctor_say(d, "memlock", VERDICT_OK, NULL, "%s can be locked",
			   most == UINT64_MAX ? "any number of bytes" :
			   sk_size_format(most, text, sizeof(text)));
}

void check_files(struct doctor *d)
{
	uint64_t most;

	if (!find_limit(d, "Max open files", &most))
		return;		/* it was said of the other limit */
	doctor_say(d, "descriptors", most < FILES_LEAST ? VERDICT_WARN :
		   VERDICT_OK, most < FILES_LEAST ? "LimitNOFILE=65536; a "
		   "slot takes one or two, a client a few" : NULL,
		   "%llu may be open", (unsigned long long)most);
}

void check_pages(struct doctor *d)
{
	struct sk_slot slot = SK_SLOT_NULL;
	const struct sk_os *os = d->ctx->os;
	char setting[128];
	struct sk_err err = { "" };
	int r = sk_slot_create(os, "shardkeep:doctor", 2 * SK_HUGE_PAGE, -1,
			       &slot, &err);

	if (r == 0)
		r = sk_slot_populate(os, &slot, 0, slot.bytes, &err);
	if (r < 0)
		doctor_say(d, "huge pages", VERDICT_FAIL, "free memory",
			   "not even 4 MiB can be had: %s", err.text);
	else if (!slot.huge && sk_page_bytes() != SK_PAGE)
		doctor_say(d, "huge pages", VERDICT_OK, NULL, "slots lie in "
			   "pages of %zu KiB, which are large enough",
			   sk_page_bytes() >> 10);
	else if (slot.huge || !slot.small)
		doctor_say(d, "huge pages", VERDICT_OK, NULL, "slots lie in "
			   "them%s", slot.huge ? ", in reserved ones" : "");
	else
		doctor_say(d, "huge pages", VERDICT_WARN, "echo advise > "
			   "/sys/kernel/mm/transparent_hugepage/shmem_enabled "
			   "(from Linux 6.1 on anything but deny will do)",
			   "slots lie in small pages; shmem_enabled is %s",
			   doctor_read(d, "/sys/kernel/mm/transparent_hugepage/"
				       "shmem_enabled", setting,
				       sizeof(setting)) ? setting :
			   "not there");
	sk_slot_destroy(os, &slot);
}

void check_uring(struct doctor *d)
{
	const struct sk_io_opts opts = { .backend = SK_IO_URING };
	struct sk_io *io = NULL;
	struct sk_err err = { "" };
	char setting[32];

	if (sk_io_new(d->ctx->os, &opts, &io, &err) == 0)
		doctor_say(d, "io_uring", VERDICT_OK, NULL, "it is to be had");
	else if (doctor_read(d, "/proc/sys/kernel/io_uring_disabled", setting,
			     sizeof(setting)) && setting[0] != '0')
		doctor_say(d, "io_uring", VERDICT_WARN, "sysctl "
			   "kernel.io_uring_disabled=0", "the system forbids "
			   "it (io_uring_disabled is %s); threads write",
			   setting);
	else
		doctor_say(d, "io_uring", VERDICT_WARN, "allow it in the "
			   "container's seccomp profile; threads write "
			   "meanwhile", "%s", err.text);
	(void)sk_io_free(io);
}

/* "MemAvailable:  123 kB" */
static uint64_t available(struct doctor *d)
{
	char text[512];
	const char *at = doctor_text(d, "/proc/meminfo", text, sizeof(text)) ?
			 strstr(text, "MemAvailable:") : NULL;

	return at ? strtoull(at + 13, NULL, 10) * 1024 : 0;
}

void check_memory(struct doctor *d)
{
	uint64_t there = available(d), left;
	char a[SK_SIZE_TEXT], b[SK_SIZE_TEXT];

	if (!there)
		return;
	(void)sk_size_format(there, a, sizeof(a));
	if (!d->has_agent) {
		doctor_say(d, "memory", VERDICT_OK, NULL, "%s are available",
			   a);
		return;
	}
	left = d->budget - (d->ctx->conn.agent.used_bytes < d->budget ?
			    d->ctx->conn.agent.used_bytes : d->budget);
	(void)sk_size_format(left, b, sizeof(b));
	doctor_say(d, "memory", left > there ? VERDICT_WARN : VERDICT_OK,
		   left > there ? "lower --memory, or free memory: slots that "
		   "do not fit the machine cannot be faulted in" : NULL,
		   "%s are available, the budget may take %s more", a, b);
}

void check_numa(struct doctor *d)
{
	char nodes[64];

	if (!doctor_read(d, "/sys/devices/system/node/online", nodes,
			 sizeof(nodes)))
		doctor_say(d, "numa", VERDICT_OK, NULL, "the kernel knows no "
			   "nodes; memory is where it is");
	else
		doctor_say(d, "numa", VERDICT_OK, NULL, "nodes %s", nodes);
}

enum trial { TRIED_WELL, TRIED_NO_DRIVER, TRIED_NO_CODE, TRIED_NO_LOCKS };

static int try_lock(const struct doctor *d,
		    const struct sk_cuda_device *device, struct sk_err *err)
{
	const struct sk_os *os = d->ctx->os;
	size_t bytes = sk_page_bytes();
	void *page = sk_pages_new(os, bytes);
	struct sk_cuda_lock *lock = NULL;
	int r = page ? sk_cuda_lock(device, page, bytes, bytes, &lock, err) :
		       0;

	(void)sk_cuda_unlock(lock);
	(void)sk_pages_free(os, page, bytes);
	return r;
}

/* Of the first device, where there is one; it takes a context there for the
 * moment. One that is full is as well as can be. */
static enum trial try_device(const struct doctor *d, struct sk_err *err)
{
	struct sk_cuda_device *device;
	enum trial trial = TRIED_WELL;
	struct sk_cuda *cuda;
	int r = sk_cuda_new(d->ctx->os, &cuda, err);

	if (r < 0)
		return TRIED_WELL;
	r = sk_cuda_device(cuda, 0, &device, err);
	if (r < 0)
		trial = r == -EIO ? TRIED_NO_DRIVER : TRIED_WELL;
	else if (sk_cuda_hash_can(device, err) < 0)
		trial = TRIED_NO_CODE;
	else if (try_lock(d, device, err) < 0)
		trial = TRIED_NO_LOCKS;
	(void)sk_cuda_free(cuda);
	return trial;
}

/* The first GPU that takes one process at a time, which must not be this one;
 * -1: none does. */
static int find_exclusive(const struct doctor *d)
{
	struct sk_cuda *cuda;
	int ordinal;

	if (sk_cuda_new(d->ctx->os, &cuda, NULL) < 0)
		return -1;
	ordinal = sk_cuda_exclusive(cuda);
	(void)sk_cuda_free(cuda);
	return ordinal;
}

/* By enum trial. */
static const struct {
	const char *remedy, *what;
} trials[] = {
	[TRIED_NO_DRIVER] = {
		"look at nvidia-smi, and at who may open /dev/nvidia*",
		"does not begin: tensors on GPUs are refused" },
	[TRIED_NO_CODE] = {
		"install the driver's compiler of PTX "
		"(libnvidia-ptxjitcompiler)",
		"takes none of our code: restores do not read device slots" },
	[TRIED_NO_LOCKS] = {
		"ulimit -l unlimited, and a sandbox that lets processes lock "
		"memory",
		"page-locks no memory: what GPUs copy goes through its own "
		"buffers, more slowly" },
};

static void say_driver(struct doctor *d, const struct sk_cuda_driver *driver)
{
	int major = driver->version / 1000;
	int minor = driver->version % 1000 / 10;
	int exclusive = find_exclusive(d);
	struct sk_err err = { "" };
	enum trial trial;

	if (exclusive >= 0) {
		doctor_say(d, "cuda", VERDICT_WARN, "nvidia-smi "
			   "--compute-mode=DEFAULT, if there are to be device "
			   "slots", "the driver is of CUDA %d.%d; GPU %d takes "
			   "one process at a time (compute mode "
			   "exclusive-process), so it has no device slots",
			   major, minor, exclusive);
		return;
	}
	trial = try_device(d, &err);
	if (trial == TRIED_WELL)
		doctor_say(d, "cuda", VERDICT_OK, NULL, "the driver is of "
			   "CUDA %d.%d", major, minor);
	else
		doctor_say(d, "cuda", VERDICT_WARN, trials[trial].remedy,
			   "the driver is of CUDA %d.%d, and %s (%s)", major,
			   minor, trials[trial].what, err.text);
}

/* None of both is needed. */
void check_gpus(struct doctor *d)
{
	struct sk_cuda_driver driver;
	struct sk_nccl nccl;
	struct sk_err err = { "" };

	if (sk_cuda_driver_open(d->ctx->os, NULL, &driver, &err) == 0)
		say_driver(d, &driver);
	else
		doctor_say(d, "cuda", VERDICT_OK, NULL, "none: %s", err.text);
	if (sk_nccl_open(d->ctx->os, NULL, &nccl, &err) == 0)
		doctor_say(d, "nccl", VERDICT_OK, NULL, "%d.%d.%d",
			   nccl.version / 10000, nccl.version / 100 % 100,
			   nccl.version % 100);
	else
		doctor_say(d, "nccl", VERDICT_OK, NULL, "none: %s", err.text);
}

/* Nothing is decided by it, but ages are told by it. */
void check_clock(struct doctor *d)
{
	struct timex state = { 0 };
	uint64_t year_2024 = UINT64_C(1704067200) * 1000000000;

	if (d->ctx->os->wall_ns(d->ctx->os) < year_2024)
		doctor_say(d, "clock", VERDICT_WARN, "set it; ages of "
			   "snapshots are wrong", "it is before 2024");
	else if (adjtimex(&state) == TIME_ERROR)
		doctor_say(d, "clock", VERDICT_OK, NULL, "not synchronized, "
			   "which ages alone depend on");
	else
		doctor_say(d, "clock", VERDICT_OK, NULL, "synchronized");
}
