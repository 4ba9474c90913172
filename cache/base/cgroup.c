/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cgroup.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

#define FILE_MOST 16384u
/* Version 1 says "no limit" by a number that no machine has. */
#define NO_LIMIT (UINT64_C(1) << 60)

static const struct {
	const char *root, *file;
} places[] = {
	[1] = { "/sys/fs/cgroup/memory", "memory.limit_in_bytes" },
	[2] = { "/sys/fs/cgroup", "memory.max" },
};

/* "memory" among names that have commas between them. */
static bool has_memory(const char *names)
{
	static const char name[] = "memory";
	size_t n = sizeof(name) - 1;

	for (const char *at = names; at; at = strchr(at, ',')) {
		at += *at == ',';
		if (strncmp(at, name, n) == 0 && (!at[n] || at[n] == ','))
			return true;
	}
	return false;
}

static int take_path(struct sk_cgroup *group, unsigned version,
		     const char *path)
{
	if (strlen(path) >= sizeof(group->path))
		return -EFBIG;
	group->version = version;
	strcpy(group->path, path);
	return 0;
}

/* A line "4:memory:/group" of version 1, or "0::/group" of version 2; memory
 * is of version 1 where it has a line of its own. */
static int read_line(struct sk_cgroup *group, char *line)
{
	char *names = strchr(line, ':');
	char *path = names ? strchr(names + 1, ':') : NULL;

	if (!path || path[1] != '/')
		return 0;
	*names++ = 0;
	*path++ = 0;
	if (has_memory(names))
		return take_path(group, 1, path);
	if (!*names && strcmp(line, "0") == 0 && group->version != 1)
		return take_path(group, 2, path);
	return 0;
}

int sk_cgroup_of(const struct sk_os *os, const char *pid,
		 struct sk_cgroup *ret_group)
{
	struct sk_cgroup group = { 0 };
	char path[64], text[FILE_MOST], *rest = text, *line;
	int r;

	(void)snprintf(path, sizeof(path), "/proc/%s/cgroup", pid);
	r = sk_text_read(os, path, text, sizeof(text));
	/* A kernel without cgroups has no such file, of anybody. */
	if (r == -ENOENT && strcmp(pid, "self") == 0)
		r = 0;
	while (r == 0 && (line = strsep(&rest, "\n")))
		r = read_line(&group, line);
	if (r == 0)
		*ret_group = group;
	return r;
}

/* Of one group; what is not there, or "max", limits nothing. */
static uint64_t limit_at(const struct sk_os *os, unsigned version,
			 const char *group)
{
	char path[SK_CGROUP_ROOM + 64], text[64];
	uint64_t limit;

	(void)snprintf(path, sizeof(path), "%s%s/%s", places[version].root,
		       group, places[version].file);
	if (sk_text_read(os, path, text, sizeof(text)) < 0 ||
	    text[0] < '0' || text[0] > '9')
		return UINT64_MAX;
	limit = strtoull(text, NULL, 10);
	return limit > NO_LIMIT ? UINT64_MAX : limit;
}

uint64_t sk_cgroup_limit(const struct sk_os *os,
			 const struct sk_cgroup *group)
{
	struct sk_cgroup at = *group;
	uint64_t least = UINT64_MAX, one;
	char *slash;

	while (at.version) {
		one = limit_at(os, at.version, at.path);
		least = one < least ? one : least;
		slash = strrchr(at.path, '/');
		if (!slash)
			break;
		*slash = 0;
	}
	return least;
}

bool sk_cgroup_differs(const struct sk_os *os, pid_t pid)
{
	struct sk_cgroup mine, theirs;
	char number[16];

	if (sk_cgroup_of(os, "self", &mine) < 0)
		return true;
	if (!mine.version)
		return false;
	(void)snprintf(number, sizeof(number), "%d", (int)pid);
	/* One of another namespace of processes is 0. */
	if (pid <= 0 || sk_cgroup_of(os, number, &theirs) < 0)
		return true;
	return mine.version != theirs.version ||
	       strcmp(mine.path, theirs.path) != 0;
}

static uint64_t machine_memory(const struct sk_os *os)
{
	char text[4096], *at;
	uint64_t kib = 0;

	/* Its first line is all that is wanted; the rest may be cut. */
	(void)sk_text_read(os, "/proc/meminfo", text, sizeof(text));
	at = strstr(text, "MemTotal:");
	if (at)
		kib = strtoull(at + strlen("MemTotal:"), NULL, 10);
	if (kib)
		return kib * 1024;
	return (uint64_t)sysconf(_SC_PHYS_PAGES) *
	       (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t sk_memory_total(const struct sk_os *os)
{
	uint64_t total = machine_memory(os), limit = UINT64_MAX;
	struct sk_cgroup group;

	if (sk_cgroup_of(os, "self", &group) == 0)
		limit = sk_cgroup_limit(os, &group);
	return limit < total ? limit : total;
}
