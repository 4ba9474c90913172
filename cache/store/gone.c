/* SPDX-License-Identifier: Apache-2.0 */
/* Store, a second look: whether files that were seen are still there. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "store/private.h"

/* The step directory in which the last one was looked for. */
struct place {
	int job_fd;		/* -ENOENT: the job is gone */
	int fd;			/* or why there is none */
	const char *dir;
};

static void enter(const struct sk_os *os, struct place *p, const char *dir)
{
	if (p->dir && strcmp(p->dir, dir) == 0)
		return;
	if (p->fd >= 0)
		os->close(os, p->fd);
	p->dir = dir;
	p->fd = p->job_fd < 0 ? p->job_fd : sk_dir_open(os, p->job_fd, dir);
}

/* 1: it is not that file any more. */
static int is_gone(const struct sk_os *os, const struct place *p,
		   const struct sk_stored *image)
{
	char name[SK_STORE_NAME_MAX];
	struct sk_file_id file;
	struct stat st;
	int r = p->fd;

	sk_image_name_format(name, image->rank, image->world);
	if (r >= 0)
		r = os->fstatat(os, p->fd, name, AT_SYMLINK_NOFOLLOW, &st);
	if (r < 0)
		return sk_is_gone(r) ? 1 : r;
	file = sk_file_id_of(&st);
	return !sk_file_id_equal(&file, &image->file);
}

int sk_store_gone(struct sk_store *store, const struct sk_stored *images,
		  size_t n, bool *ret_gone, struct sk_err *err)
{
	struct place p = { .job_fd = -ENOENT, .fd = -ENOENT };
	const struct sk_os *os = store->os;
	int gone = 0, r = 0;

	if (n)
		p.job_fd = sk_store_job_dir(store, images[0].job, err);
	if (p.job_fd < 0 && !sk_is_gone(p.job_fd))
		return p.job_fd;
	for (size_t i = 0; i < n && r >= 0; i++) {
		enter(os, &p, images[i].dir);
		r = is_gone(os, &p, &images[i]);
		if (r < 0)
			sk_err_errno(err, r, "cannot look again at rank %d of "
				     "%s/%s/%s", (int)images[i].rank,
				     store->path, images[i].job,
				     images[i].dir);
		ret_gone[i] = r > 0;
		gone += r > 0;
	}
	if (p.fd >= 0)
		os->close(os, p.fd);
	if (p.job_fd >= 0)
		os->close(os, p.job_fd);
	return r < 0 ? r : gone;
}
