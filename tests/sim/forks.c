/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver: what a fork does to page-locked memory. The kernel
 * keeps the pages where they are, and from 5.9 on it copies them for the child
 * at once, as others that play one do later. Before, whoever writes first gets
 * another page, and the device stays with the one that it was told of.
 */
#include <stdio.h>
#include <string.h>

#include "vcuda.h"

/* Whether a child gets pages of it that are then each one's own as soon as it
 * writes to them. */
static bool is_copied_on_write(const struct vcu_locked *l)
{
	uintptr_t base = (uintptr_t)l->base, end = base + l->bytes;
	FILE *maps = fopen("/proc/self/smaps", "r");
	char line[1024], right[8], kind = 's';
	unsigned long from, to;
	bool is = false;

	while (maps && !is && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %4s", &from, &to, right) == 3)
			kind = from < end && to > base ? right[3] : 's';
		else if (!strncmp(line, "VmFlags:", 8))
			is = kind == 'p' && !strstr(line, " dc");
	}
	if (maps)
		(void)fclose(maps);
	return is;
}

static void before_fork(void)
{
	vcu_lock();
	for (struct vcu_locked *l = vcu()->locked; l; l = l->next)
		l->forked |= is_copied_on_write(l);
}

void vcu_watch_forks(void)
{
	if (pthread_atfork(before_fork, vcu_unlock, vcu_unlock))
		vcu_misuse("forks cannot be watched");
}
