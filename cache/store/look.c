/* SPDX-License-Identifier: Apache-2.0 */
/*
 * History, a look: which names there are, and whose they are.
 *
 * What bears the name and has the inode that it had is taken for what it was,
 * without a look at it; it is yet to be proved (sk_history_prove()), as a
 * directory that was removed may have left its inode to the next of its name.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "store/private.h"

/* How long after a change another one may bear the same time: a few ticks, or
 * where the filesystem counts seconds, by twos at worst. */
#define TICKS_NS UINT64_C(100000000)
#define COARSE_NS UINT64_C(3000000000)
#define SECOND_NS UINT64_C(1000000000)

/* ---- the names ---- */

/* -ENOMEM. An inode of 0 is nobody's. */
static int add_step(struct sk_history *h, const char *name,
		    const struct sk_step_name *parsed, uint64_t inode)
{
	struct sk_history_step *s;
	char *aside = NULL;

	if (sk_array_fit(h->steps, h->room, h->n + 1) < 0)
		return -ENOMEM;
	if (parsed->displaced && !(aside = strdup(name)))
		return -ENOMEM;
	s = &h->steps[h->n++];
	*s = (struct sk_history_step){
		.step = parsed->step, .aside = aside, .inode = inode,
	};
	return 0;
}

static int note_name(void *ctx, int fd, const struct dirent64 *entry)
{
	struct sk_step_name parsed;

	(void)fd;
	if (!sk_step_name_parse(entry->d_name, &parsed) ||
	    strlen(entry->d_name) >= SK_STEP_DIR_MAX)
		return 0;
	return add_step(ctx, entry->d_name, &parsed,
			entry->d_type == DT_DIR ? entry->d_ino : 0);
}

/* ---- what they are ---- */

int sk_history_stat(const struct sk_history *h, struct sk_store *store,
		    int job_fd, struct sk_history_step *s)
{
	const struct sk_os *os = store->os;
	char name[SK_STEP_DIR_MAX];
	struct stat st = { 0 };
	int r;

	sk_history_name(s, name);
	s->inode = s->mtime_ns = s->ctime_ns = 0;
	s->error = 0;
	r = os->fstatat(os, job_fd, name, AT_SYMLINK_NOFOLLOW, &st);
	if (sk_is_gone(r) || (r == 0 && !S_ISDIR(st.st_mode)))
		return -ENOENT;
	if (sk_is_shortage(r))
		return r;
	/* What cannot be told is not left out; and another filesystem's
	 * directory is never taken for known. */
	s->error = r;
	if (r < 0 || st.st_dev != h->dir.device)
		return 0;
	s->inode = st.st_ino;
	s->mtime_ns = sk_file_time_ns(&st.st_mtim);
	s->ctime_ns = sk_file_time_ns(&st.st_ctim);
	return 0;
}

/* Whether what had that time when it was looked at cannot have changed since
 * without another one. */
static bool is_past(uint64_t time_ns, uint64_t looked_ns)
{
	uint64_t most = time_ns % SECOND_NS ? TICKS_NS : COARSE_NS;

	return time_ns < looked_ns && looked_ns - time_ns > most;
}

/* Whether it has the inode of one whose run is known for good. */
static bool is_like(const struct sk_history *old,
		    const struct sk_history_step *was,
		    const struct sk_history_step *now)
{
	return was->run.number && was->inode && was->inode == now->inode &&
	       is_past(was->ctime_ns, old->looked_ns);
}

bool sk_history_same(const struct sk_history_step *a,
		     const struct sk_history_step *b)
{
	return a->inode == b->inode && a->mtime_ns == b->mtime_ns &&
	       a->ctime_ns == b->ctime_ns;
}

/* The old one of that name, or NULL. Both are by name, and gone through in
 * step. */
static struct sk_history_step *find_old(const struct sk_history *old,
					size_t *at,
					const struct sk_history_step *now)
{
	while (*at < old->n && sk_history_order(&old->steps[*at], now) < 0)
		++*at;
	return *at < old->n && sk_history_order(&old->steps[*at], now) == 0 ?
	       &old->steps[*at] : NULL;
}

/* As it was, until it is proved. */
static void believe(struct sk_history *h, struct sk_history_step *now,
		    const struct sk_history_step *was)
{
	now->run = was->run;
	now->mtime_ns = was->mtime_ns;
	now->ctime_ns = was->ctime_ns;
	now->unproved = true;
	h->unproved++;
}

static int look_at(const struct sk_history *old, struct sk_history *h,
		   struct sk_history_step *now,
		   const struct sk_history_step *was, struct sk_store *store,
		   int job_fd)
{
	int r = sk_history_stat(h, store, job_fd, now);

	if (r == 0 && was && is_like(old, was, now) &&
	    sk_history_same(was, now))
		now->run = was->run;
	return r;
}

static void drop_gone(struct sk_history *h)
{
	size_t n = 0;

	for (size_t i = 0; i < h->n; i++) {
		if (h->steps[i].error == -ENOENT)
			free(h->steps[i].aside);
		else
			h->steps[n++] = h->steps[i];
	}
	h->n = n;
}

/* Of the same directory the names tell which are as they were; the others are
 * looked at. */
static int carry_over(const struct sk_history *old, struct sk_history *fresh,
		      struct sk_store *store, int job_fd)
{
	bool same_dir = old->dir.inode == fresh->dir.inode &&
			old->dir.device == fresh->dir.device;
	size_t at = 0, n_gone = 0;

	for (size_t i = 0; i < fresh->n; i++) {
		struct sk_history_step *now = &fresh->steps[i];
		const struct sk_history_step *was = find_old(old, &at, now);
		int r;

		if (was && same_dir && is_like(old, was, now)) {
			believe(fresh, now, was);
			continue;
		}
		r = look_at(old, fresh, now, was, store, job_fd);
		if (r < 0 && r != -ENOENT)
			return r;
		if (r < 0)
			now->error = r;
		n_gone += r < 0;
	}
	if (n_gone)
		drop_gone(fresh);
	return 0;
}

/* ---- whose they are ---- */

/* What was noted of files stands where it is the same run's directory: files
 * tell by themselves whether they are others by now. */
static void carry_files(struct sk_history *old, struct sk_history *fresh)
{
	size_t at = 0;

	for (size_t i = 0; i < fresh->n; i++) {
		struct sk_history_step *now = &fresh->steps[i];
		struct sk_history_step *was = find_old(old, &at, now);

		if (!was || !sk_store_run_equal(&was->run, &now->run))
			continue;
		/* Who is in the midst of them goes on. */
		if (was->inode == now->inode)
			now->mark = was->mark;
		now->files = sk_take_ptr(was->files);
		now->n_files = was->n_files;
		now->room_files = was->room_files;
		now->briefs = sk_take_ptr(was->briefs);
		now->n_briefs = was->n_briefs;
		was->n_files = was->room_files = was->n_briefs = 0;
	}
	fresh->locals = sk_take_ptr(old->locals);
}

int sk_history_ask(struct sk_store *store, int job_fd,
		   struct sk_history_step *s)
{
	char name[SK_STEP_DIR_MAX];
	int fd, r;

	sk_history_name(s, name);
	fd = r = sk_dir_open(store->os, job_fd, name);
	if (fd >= 0) {
		r = sk_step_run(store, fd, &s->run);
		store->os->close(store->os, fd);
	}
	/* What went meanwhile is not missed before the next look. */
	s->error = r < 0 && !sk_is_gone(r) ? r : 0;
	return sk_is_shortage(r) ? r : 0;
}

/* Asks those of whom it is not known. *ret_learnt: of some it is now. */
static int ask_runs(struct sk_history *h, struct sk_store *store, int job_fd,
		    bool *ret_learnt)
{
	int r = 0;

	*ret_learnt = false;
	for (size_t i = 0; i < h->n && r == 0; i++) {
		struct sk_history_step *s = h->order ? sk_history_at(h, i) :
						       &h->steps[i];

		/* In order they come first. */
		if (s->run.number && h->order)
			break;
		if (s->run.number)
			continue;
		r = sk_history_ask(store, job_fd, s);
		*ret_learnt |= s->run.number > 0;
	}
	return r;
}

/* ---- a look ---- */

static int read_names(struct sk_history *old, struct sk_history *fresh,
		      struct sk_store *store, int fd)
{
	bool learnt;
	int r;

	r = sk_dir_entries(store->os, fd, note_name, fresh);
	if (r < 0)
		return r;
	if (fresh->n)
		qsort(fresh->steps, fresh->n, sizeof(*fresh->steps),
		       sk_history_order);
	r = carry_over(old, fresh, store, fd);
	if (r == 0)
		r = ask_runs(fresh, store, fd, &learnt);
	if (r == 0)
		r = sk_history_put_in_order(fresh);
	/* Last: a look that fails leaves the old as it was. */
	if (r == 0)
		carry_files(old, fresh);
	return r;
}

static int look_anew(struct sk_history *h, struct sk_store *store, int fd,
		     const struct sk_file_id *dir, uint64_t began_ns)
{
	struct sk_history fresh = { .dir = *dir, .looked_ns = began_ns,
				    .known_ns = h->known_ns,
				    .loaded = true,
				    .prove_from = h->prove_from };
	int r;

	r = read_names(h, &fresh, store, fd);
	if (r < 0) {
		sk_history_forget(&fresh);
		return r;
	}
	memcpy(fresh.job, h->job, sizeof(fresh.job));
	sk_history_forget(h);
	fresh.unsaved = fresh.n > 0;
	*h = fresh;
	return 0;
}

static int look(struct sk_history *h, struct sk_store *store, int fd)
{
	uint64_t began_ns = store->os->wall_ns(store->os);
	struct sk_file_id dir;
	struct stat st;
	bool learnt;
	int r;

	r = store->os->fstat(store->os, fd, &st);
	if (r < 0)
		return r;
	dir = sk_file_id_of(&st);
	h->known_ns = h->known_ns ? h->known_ns : began_ns;
	if (!h->dir.inode || !sk_file_id_equal(&dir, &h->dir) ||
	    !is_past(h->dir.ctime_ns, h->looked_ns))
		return look_anew(h, store, fd, &dir, began_ns);
	r = ask_runs(h, store, fd, &learnt);
	h->unsaved |= learnt;
	h->merged &= !learnt;
	return r < 0 || !learnt ? r : sk_history_put_in_order(h);
}

int sk_history_look(struct sk_history *h, struct sk_store *store,
		    struct sk_err *err)
{
	int fd = sk_store_job_dir(store, h->job, err), r;

	if (sk_is_gone(fd)) {
		sk_history_forget(h);
		return 0;
	}
	if (fd < 0)
		return fd;
	if (!h->loaded)
		sk_index_load(h, store);
	h->loaded = true;
	r = look(h, store, fd);
	store->os->close(store->os, fd);
	return r == 0 ? 0 :
	       sk_err_errno(err, r, "cannot list the steps of job \"%s\" in "
			    "the store \"%s\"", h->job, store->path);
}
