/* SPDX-License-Identifier: Apache-2.0 */
#include "support/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

int remove_tree(const char *path)
{
	return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int count_entries(const char *path)
{
	DIR *dir = opendir(path);
	int n = 0;

	if (!dir)
		return -1;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

int count_fds(void)
{
	return count_entries("/proc/self/fd");
}

/* Slots, memory of ours, files of a store: not libraries. */
static int count_maps(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];
	int n = 0;

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "/memfd:") || strstr(line, "/tmp/");
	(void)fclose(f);
	return n;
}

struct held held_now(void)
{
	return (struct held){ .fds = count_fds(),
			      .threads = count_entries("/proc/self/task"),
			      .maps = count_maps() };
}

int some_fd(unsigned which, size_t bytes)
{
	int fd, ends[2];

	switch (which) {
	case 0:
		fd = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		if (fd >= 0) {
			(void)!ftruncate(fd, (off_t)bytes);
			(void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
		}
		return fd;
	case 1:
		if (pipe2(ends, O_CLOEXEC) < 0)
			return -1;
		close(ends[1]);
		return ends[0];
	case 2:
		return open("/dev/zero", O_RDWR | O_CLOEXEC);
	default:
		return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	}
}
