/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver: what device memory is made of, and how much there is.
 *
 * Memory of a device is a memory file. Where $VCUDA_SESSION names a folder,
 * all processes that name it share the devices' $VCUDA_MEM bytes, of which
 * instances have equal parts: each file stands there under a name, locked
 * through the description that made it. Descriptors that were handed on and
 * mappings share that description; so a file that is not locked any more is
 * one that no process has any more, whichever of them were killed. A file
 * "reset-N" there, for the machine's device N, that gets a byte longer resets
 * it: contexts of all processes are broken, and what it held is gone. What the
 * kernel's log says of a real one, the file "xid" there does.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vcuda.h"

#define NAME "vcuda-device-"
#define NODE_NAME "vcuda-node"
#define RESETS "reset-"
#define RECORDS "xid"

static const char *session(void)
{
	const char *said = vcu_getenv("VCUDA_SESSION");

	return said && *said ? said : NULL;
}

uint64_t vcu_memory_bytes(void)
{
	const uint64_t all = (uint64_t)vcu_setting("VCUDA_MEM", 80l << 30);
	const int instances = vcu_instances();

	return instances ? all / (unsigned)instances : all;
}

/* The file grows by a byte each time. */
static unsigned resets_of(int dir, int unit)
{
	char name[64];
	struct stat st;

	(void)snprintf(name, sizeof(name), RESETS "%d", unit);
	return fstatat(dir, name, &st, 0) ? 0 : (unsigned)st.st_size;
}

unsigned vcu_resets(int device)
{
	unsigned n;
	int dir;

	if (!session())
		return 0;
	dir = open(session(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	n = resets_of(dir, vcu_unit(device));
	close(dir);
	return n;
}

void vcu_record(int device, int xid)
{
	char path[PATH_MAX], line[64];
	int fd, n;

	if (!session())
		return;
	(void)snprintf(path, sizeof(path), "%s/" RECORDS, session());
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	n = snprintf(line, sizeof(line), "Xid (%d): %d, pid=%d\n",
		     vcu_unit(device), xid, getpid());
	if (fd < 0 || write(fd, line, (size_t)n) != n)
		vcu_misuse("a record cannot be written");
	close(fd);
}

static struct flock whole(short type)
{
	return (struct flock){ .l_type = type, .l_whence = SEEK_SET };
}

/* Bytes of a file of the folder; one that nobody has goes. */
static uint64_t bytes_of(int dir, const char *name)
{
	struct flock lock = whole(F_WRLCK);
	struct stat st = { 0 };
	int fd = openat(dir, name, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return 0;
	(void)fstat(fd, &st);
	(void)fcntl(fd, F_OFD_GETLK, &lock);
	if (lock.l_type == F_UNLCK) {
		(void)unlinkat(dir, name, 0);
		st.st_size = 0;
	}
	close(fd);
	return (uint64_t)st.st_size;
}

static uint64_t used_of(int dir, int unit)
{
	char prefix[64];
	DIR *d = fdopendir(dup(dir));
	struct dirent *e;
	uint64_t used = 0;

	(void)snprintf(prefix, sizeof(prefix), NAME "%d.%u.", unit,
		       resets_of(dir, unit));
	if (d)
		rewinddir(d);
	while (d && (e = readdir(d)))
		if (!strncmp(e->d_name, prefix, strlen(prefix)))
			used += bytes_of(dir, e->d_name);
	if (d)
		(void)closedir(d);
	return used;
}

/* The folder, locked against others that count. */
static int open_session(void)
{
	int dir = open(session(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (dir < 0)
		vcu_misuse("no folder \"%s\", of $VCUDA_SESSION", session());
	(void)flock(dir, LOCK_EX);
	return dir;
}

static int make_named(int dir, int unit, size_t bytes)
{
	struct flock lock = whole(F_WRLCK);
	char name[64];
	int fd;

	(void)snprintf(name, sizeof(name), NAME "%d.%u.%d.%llu", unit,
		       resets_of(dir, unit), getpid(),
		       (unsigned long long)++vcu()->ids);
	fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd >= 0 && (fcntl(fd, F_OFD_SETLK, &lock) ||
			ftruncate(fd, (off_t)bytes))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static int make_counted(int unit, size_t bytes)
{
	int dir = open_session(), fd = -1;

	if (used_of(dir, unit) + bytes <= vcu_memory_bytes())
		fd = make_named(dir, unit, bytes);
	close(dir);
	return fd;
}

static int make_alone(const char *name, size_t bytes)
{
	int fd = memfd_create(name, MFD_CLOEXEC);

	if (fd >= 0 && ftruncate(fd, (off_t)bytes)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* ---- what this process has ---- */

struct vcu_file *vcu_file_take(int fd, int device)
{
	struct vcu_file *f;
	struct stat st;

	if (fstat(fd, &st))
		return NULL;
	for (f = vcu()->files; f && f->number != (uint64_t)st.st_ino;)
		f = f->next;
	if (!f) {
		f = calloc(1, sizeof(*f));
		if (!f)
			vcu_misuse("out of memory");
		*f = (struct vcu_file){ .next = vcu()->files,
					.number = (uint64_t)st.st_ino,
					.bytes = (size_t)st.st_size,
					.device = device };
		vcu()->files = f;
	}
	f->refs++;
	return f;
}

void vcu_file_again(struct vcu_file *file)
{
	if (file)
		file->refs++;
}

void vcu_file_drop(struct vcu_file *file)
{
	struct vcu_file **at = &vcu()->files;

	if (!file || --file->refs)
		return;
	while (*at != file)
		at = &(*at)->next;
	*at = file->next;
	free(file);
}

static uint64_t used_here(int device)
{
	uint64_t used = 0;

	for (const struct vcu_file *f = vcu()->files; f; f = f->next)
		used += f->device == device ? f->bytes : 0;
	return used;
}

int vcu_backing(int device, size_t bytes)
{
	char name[64];

	if (device == VCU_NODE)
		return make_alone(NODE_NAME, bytes);
	if (session())
		return make_counted(vcu_unit(device), bytes);
	if (used_here(device) + bytes > vcu_memory_bytes())
		return -1;
	(void)snprintf(name, sizeof(name), NAME "%d.0.", vcu_unit(device));
	return make_alone(name, bytes);
}

uint64_t vcu_memory_used(int device)
{
	uint64_t used;
	int dir;

	if (session()) {
		dir = open_session();
		used = used_of(dir, vcu_unit(device));
		close(dir);
		return used;
	}
	return used_here(device);
}

int vcu_backing_device(int fd)
{
	char link[64], path[PATH_MAX];
	const char *name;
	unsigned resets;
	ssize_t n;
	int unit;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return VCU_NO_DEVICE;
	path[n] = '\0';
	if (strstr(path, NODE_NAME))
		return VCU_NODE;
	name = strstr(path, NAME);
	if (!name || sscanf(name, NAME "%d.%u.", &unit, &resets) != 2)
		return VCU_NO_DEVICE;
	/* What it was before it was reset is gone. */
	for (int i = 0; i < vcu()->n_devices; i++)
		if (vcu_unit(i) == unit)
			return resets == vcu_resets(i) ? i : VCU_NO_DEVICE;
	return VCU_NO_DEVICE;
}
