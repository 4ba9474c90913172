/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver: who may have a context. $VCUDA_EXCLUSIVE is a file by
 * which processes know of each other: a byte of it for each device, locked by
 * whoever has a context there, until it has none or ends. While the file is not
 * empty, devices take contexts of one process at a time; who has one when that
 * begins keeps it.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "vcuda.h"

static const char *file(void)
{
	const char *said = vcu_getenv("VCUDA_EXCLUSIVE");

	return said && *said ? said : NULL;
}

bool vcu_exclusive(void)
{
	struct stat st;

	return file() && !stat(file(), &st) && st.st_size;
}

/* Locks of this process: no child has them. */
static bool set(int device, short type)
{
	const struct flock lock = { .l_type = type, .l_whence = SEEK_SET,
				    .l_start = vcu_unit(device), .l_len = 1 };
	struct vcu *v = vcu();

	if (!v->mode_fd)
		v->mode_fd = open(file(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (v->mode_fd < 0)
		vcu_misuse("no file \"%s\", of $VCUDA_EXCLUSIVE", file());
	return !fcntl(v->mode_fd, F_SETLK, &lock);
}

bool vcu_take(int device)
{
	if (!file())
		return true;
	if (vcu_exclusive())
		return set(device, F_WRLCK);
	(void)set(device, F_RDLCK);
	return true;
}

void vcu_let_go(int device)
{
	if (file())
		(void)set(device, F_UNLCK);
}
