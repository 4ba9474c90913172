/* SPDX-License-Identifier: Apache-2.0 */
/* Store, what keeps a step directory that is to be deleted. */
#include <inttypes.h>
#include <string.h>

#include "store/private.h"

static int refuse_pinned(const struct sk_store *store, int fd, const char *dir,
			 struct sk_err *err)
{
	int r = sk_not_stale(sk_step_pinned(store, fd));

	if (r < 0)
		return sk_err_errno(err, r, "cannot tell whether \"%s\" is "
				    "pinned", dir);
	return r ? sk_err_set(err, -EBUSY, "\"%s\" is pinned", dir) : 0;
}

static int refuse_restoring(struct sk_store *store, const char *job,
			    struct sk_err *err)
{
	int r = sk_store_is_restoring(store, job);

	if (r < 0)
		return sk_err_errno(err, r, "cannot tell whether ranks "
				    "restore");
	return r ? sk_err_set(err, -EAGAIN, "ranks restore just now") : 0;
}

struct owned {
	const struct sk_store *store;
	const struct sk_spare *spare;
};

/* 1: it is not of the ranks that are named. What is begun counts as well. */
static int find_others(void *ctx, int fd, const char *name)
{
	const struct owned *o = ctx;
	struct sk_leftover left;
	int32_t rank, world;

	(void)fd;
	if (!strcmp(name, SK_RUN_FILE))
		return 0;
	if (sk_leftover_name(name, &left))
		return left.instance != o->store->instance;
	return !sk_image_name_parse(name, &rank, &world) ||
	       world != o->spare->world || !o->spare->own[rank];
}

static int refuse_others(struct sk_store *store, int fd, const char *dir,
			 const struct sk_spare *spare, struct sk_err *err)
{
	struct owned o = { store, spare };
	int r = sk_not_stale(sk_dir_each(store->os, fd, find_others, &o));

	if (r < 0)
		return sk_err_errno(err, r, "cannot tell what is in \"%s\"",
				    dir);
	return r ? sk_err_set(err, -EEXIST, "\"%s\" has what others have "
			      "written", dir) : 0;
}

int sk_step_spared(struct sk_store *store, int fd, const char *dir,
		   const struct sk_spare *spare, struct sk_err *err)
{
	int r = refuse_pinned(store, fd, dir, err);

	if (r == 0 && spare->own)
		r = refuse_others(store, fd, dir, spare, err);
	return r < 0 ? r : refuse_restoring(store, spare->job, err);
}
