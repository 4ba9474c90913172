/* SPDX-License-Identifier: Apache-2.0 */
/* Groups and users of a machine that is made up: files below a directory. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/strangers.h"
#include "base/util.h"

#define GIB ((uint64_t)1 << 30)
#define NONE_OF_V1 "9223372036854771712\n"

/* A table whose absolute paths lie below a directory. */
struct made_up {
	struct sk_os os;
	char dir[64];
};

static int open_below(const struct sk_os *os, int dirfd, const char *path,
		      int flags, mode_t mode)
{
	const struct made_up *m = (const struct made_up *)os;
	char below[8192];

	(void)snprintf(below, sizeof(below), "%s%s", m->dir, path);
	return sk_os_linux()->openat(sk_os_linux(), dirfd, below, flags,
				     mode);
}

static void begin(struct made_up *m)
{
	*m = (struct made_up){ .os = *sk_os_linux(),
			       .dir = "/tmp/test-cgroup-XXXXXX" };
	m->os.openat = open_below;
	cr_assert(mkdtemp(m->dir));
}

static void put(const struct made_up *m, const char *path, const char *text)
{
	char at[512];
	FILE *f;

	(void)snprintf(at, sizeof(at), "%s%s", m->dir, path);
	for (char *p = strchr(at + strlen(m->dir) + 1, '/'); p;
	     p = strchr(p + 1, '/')) {
		*p = 0;
		(void)mkdir(at, 0700);
		*p = '/';
	}
	f = fopen(at, "w");
	cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", at);
}

static void end(const struct made_up *m)
{
	char command[128];

	(void)snprintf(command, sizeof(command), "rm -r %s", m->dir);
	cr_assert_eq(system(command), 0);
}

static uint64_t limit_of(const struct made_up *m, const char *pid)
{
	struct sk_cgroup group;

	cr_assert_eq(sk_cgroup_of(&m->os, pid, &group), 0);
	return sk_cgroup_limit(&m->os, &group);
}

Test(cgroup, version_2_least_on_the_way_up)
{
	struct made_up m;

	begin(&m);
	put(&m, "/proc/self/cgroup", "0::/system.slice/agent.service\n");
	cr_assert_eq(limit_of(&m, "self"), UINT64_MAX);
	put(&m, "/sys/fs/cgroup/system.slice/agent.service/memory.max",
	    "max\n");
	cr_assert_eq(limit_of(&m, "self"), UINT64_MAX);
	put(&m, "/sys/fs/cgroup/system.slice/memory.max", "8589934592\n");
	cr_assert_eq(limit_of(&m, "self"), 8 * GIB);
	put(&m, "/sys/fs/cgroup/system.slice/agent.service/memory.max",
	    "17179869184\n");
	cr_assert_eq(limit_of(&m, "self"), 8 * GIB);
	put(&m, "/sys/fs/cgroup/system.slice/agent.service/memory.max",
	    "4294967296\n");
	cr_assert_eq(limit_of(&m, "self"), 4 * GIB);
	end(&m);
}

/* A container sees its own group as the root, whatever it is called. */
Test(cgroup, namespaces)
{
	struct made_up m;

	begin(&m);
	put(&m, "/proc/self/cgroup", "0::/\n");
	put(&m, "/sys/fs/cgroup/memory.max", "2147483648\n");
	cr_assert_eq(limit_of(&m, "self"), 2 * GIB);
	put(&m, "/proc/self/cgroup", "0::/docker/0123456789abcdef\n");
	cr_assert_eq(limit_of(&m, "self"), 2 * GIB);
	end(&m);
}

Test(cgroup, version_1)
{
	struct made_up m;

	begin(&m);
	put(&m, "/proc/self/cgroup", "9:name=systemd:/x\n8:pids:/y\n"
	    "7:cpu,memory:/a/b\n3:memory_more:/z\n0::/v2\n");
	put(&m, "/sys/fs/cgroup/memory/memory.limit_in_bytes", NONE_OF_V1);
	put(&m, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes", NONE_OF_V1);
	put(&m, "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", NONE_OF_V1);
	/* Of the other version, which has no memory here. */
	put(&m, "/sys/fs/cgroup/v2/memory.max", "4096\n");
	cr_assert_eq(limit_of(&m, "self"), UINT64_MAX);
	put(&m, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
	    "3221225472\n");
	cr_assert_eq(limit_of(&m, "self"), 3 * GIB);
	end(&m);
}

Test(cgroup, whoever_says_nothing)
{
	struct sk_cgroup group = { .version = 7 };
	struct made_up m;
	char *endless;

	begin(&m);
	cr_assert_eq(sk_cgroup_of(&m.os, "self", &group), 0);
	cr_assert_eq(group.version, 0);
	cr_assert_eq(sk_cgroup_limit(&m.os, &group), UINT64_MAX);
	cr_assert(!sk_cgroup_differs(&m.os, 77));
	cr_assert_eq(sk_cgroup_of(&m.os, "77", &group), -ENOENT);
	put(&m, "/proc/self/cgroup", "nonsense\n0:\n0::\n:::\n0::relative\n");
	cr_assert_eq(sk_cgroup_of(&m.os, "self", &group), 0);
	cr_assert_eq(group.version, 0);
	endless = malloc(1 << 16);
	cr_assert(endless);
	memset(endless, 'x', 1 << 16);
	endless[(1 << 16) - 1] = 0;
	put(&m, "/proc/self/cgroup", endless);
	cr_assert_eq(sk_cgroup_of(&m.os, "self", &group), -EFBIG);
	memcpy(endless, "0::/", 4);
	endless[SK_CGROUP_ROOM + 4] = 0;
	put(&m, "/proc/self/cgroup", endless);
	cr_assert_eq(sk_cgroup_of(&m.os, "self", &group), -EFBIG);
	cr_assert(sk_cgroup_differs(&m.os, 77));
	free(endless);
	end(&m);
}

Test(cgroup, who_is_charged)
{
	struct made_up m;

	begin(&m);
	put(&m, "/proc/self/cgroup", "4:memory:/a\n0::/\n");
	put(&m, "/proc/10/cgroup", "4:memory:/a\n0::/other\n");
	put(&m, "/proc/11/cgroup", "4:memory:/a/b\n0::/\n");
	put(&m, "/proc/12/cgroup", "0::/a\n");
	cr_assert(!sk_cgroup_differs(&m.os, 10));
	cr_assert(sk_cgroup_differs(&m.os, 11));
	cr_assert(sk_cgroup_differs(&m.os, 12));
	cr_assert(sk_cgroup_differs(&m.os, 13), "it cannot be read");
	cr_assert(sk_cgroup_differs(&m.os, 0), "of another namespace");
	end(&m);
}

Test(cgroup, memory_is_the_least_of_both)
{
	struct made_up m;

	begin(&m);
	put(&m, "/proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
	cr_assert_eq(sk_memory_total(&m.os), 16 * GIB);
	put(&m, "/proc/self/cgroup", "0::/a\n");
	put(&m, "/sys/fs/cgroup/a/memory.max", "1073741824\n");
	cr_assert_eq(sk_memory_total(&m.os), GIB);
	put(&m, "/sys/fs/cgroup/a/memory.max", "34359738368\n");
	cr_assert_eq(sk_memory_total(&m.os), 16 * GIB);
	put(&m, "/proc/meminfo", "");
	cr_assert_gt(sk_memory_total(&m.os), 0);
	end(&m);
}

Test(strangers, of_user_namespaces)
{
	struct made_up m;

	begin(&m);
	cr_assert_eq(sk_strangers_uid(&m.os), (uid_t)-1);
	put(&m, "/proc/self/uid_map", "         0          0 4294967295\n");
	cr_assert_eq(sk_strangers_uid(&m.os), (uid_t)-1);
	put(&m, "/proc/self/uid_map", "0 0 1000\n1000 1000 4294966295\n");
	cr_assert_eq(sk_strangers_uid(&m.os), (uid_t)-1);
	put(&m, "/proc/self/uid_map", "0 1000 1\n1 100000 65536\n");
	cr_assert_eq(sk_strangers_uid(&m.os), 65534);
	put(&m, "/proc/sys/kernel/overflowuid", "4711\n");
	cr_assert_eq(sk_strangers_uid(&m.os), 4711);
	put(&m, "/proc/self/uid_map", "");
	cr_assert_eq(sk_strangers_uid(&m.os), 4711);
	end(&m);
}
