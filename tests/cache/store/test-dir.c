/* SPDX-License-Identifier: Apache-2.0 */
/* Directories as they are removed. */
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* @depth of them, each in the one before; open, as the last one is. */
static int dig(int at, int depth)
{
	for (int i = 0; i < depth; i++) {
		int next;

		cr_assert_eq(mkdirat(at, "d", 0700), 0);
		next = openat(at, "d", O_DIRECTORY | O_CLOEXEC);
		cr_assert_geq(next, 0);
		close(at);
		at = next;
	}
	return at;
}

/* How far down one that is removed may reach. */
static int remove_of_depth(int depth)
{
	char path[] = "/tmp/shardkeep-dir-XXXXXX", command[64];
	int top, r;

	cr_assert(mkdtemp(path));
	top = open(path, O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(top, 0);
	close(dig(dup(top), depth));
	r = sk_dir_remove(sk_os_linux(), top, "d");
	cr_assert_eq(faccessat(top, "d", F_OK, 0), r ? 0 : -1);
	close(top);
	(void)snprintf(command, sizeof(command), "rm -r %s", path);
	cr_assert_eq(system(command), 0);
	return r;
}

Test(dir, what_somebody_made_deep_is_not_followed)
{
	cr_assert_eq(remove_of_depth(1), 0);
	cr_assert_eq(remove_of_depth(8), 0);
	cr_assert_eq(remove_of_depth(9), -ELOOP);
	cr_assert_eq(remove_of_depth(60), -ELOOP);
}
