/* SPDX-License-Identifier: Apache-2.0 */
#include "store/history.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
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

void sk_history_forget(struct sk_history *h)
{
	for (size_t i = 0; i < h->n; i++) {
		sk_history_files_forget(&h->steps[i]);
		free(h->steps[i].aside);
	}
	free(h->steps);
	free(h->order);
	free(h->locals);
	h->steps = NULL;
	h->order = NULL;
	h->locals = NULL;
	h->n = h->room = 0;
	h->n_locals = 0;
	h->dir = (struct sk_file_id){ 0 };
}

struct sk_history *sk_history_new(const char *job)
{
	struct sk_history *h = calloc(1, sizeof(*h));

	assert(strlen(job) < sizeof(h->job));
	if (h)
		(void)snprintf(h->job, sizeof(h->job), "%s", job);
	return h;
}

struct sk_history *sk_history_free(struct sk_history *h)
{
	if (!h)
		return NULL;
	sk_history_forget(h);
	free(h);
	return NULL;
}

const char *sk_history_job(const struct sk_history *h)
{
	return h->job;
}

size_t sk_history_count(const struct sk_history *h)
{
	return h->n;
}

bool sk_history_unsaved(const struct sk_history *h)
{
	return h->unsaved;
}

struct sk_history_step *sk_history_at(const struct sk_history *h, size_t i)
{
	assert(i < h->n);
	return &h->steps[h->order[i]];
}

struct sk_history_step *sk_history_by_name(const struct sk_history *h,
					   size_t i)
{
	assert(i < h->n);
	return &h->steps[i];
}

void sk_history_name(const struct sk_history_step *s, char buf[SK_STEP_DIR_MAX])
{
	char name[SK_STORE_NAME_MAX];

	sk_step_name_format(name, s->step);
	(void)snprintf(buf, SK_STEP_DIR_MAX, "%.*s", (int)SK_STEP_DIR_MAX - 1,
		       s->aside ? s->aside : name);
}

/* ---- orders ---- */

int sk_history_order(const void *a, const void *b)
{
	const struct sk_history_step *x = a, *y = b;

	if (x->step != y->step)
		return x->step < y->step ? -1 : 1;
	if (!x->aside || !y->aside)
		return !!x->aside - !!y->aside;
	return strcmp(x->aside, y->aside);
}

static int newest_first(const void *a, const void *b, void *ctx)
{
	const struct sk_history_step *steps = ctx;
	const struct sk_history_step *x = &steps[*(const uint32_t *)a];
	const struct sk_history_step *y = &steps[*(const uint32_t *)b];

	if (!x->run.number != !y->run.number)
		return !x->run.number ? -1 : 1;
	if (x->run.number != y->run.number)
		return x->run.number > y->run.number ? -1 : 1;
	if (x->step != y->step)
		return x->step > y->step ? -1 : 1;
	if (x->run.id != y->run.id)
		return x->run.id > y->run.id ? -1 : 1;
	return sk_history_order(x, y);
}

int sk_history_put_in_order(struct sk_history *h)
{
	uint32_t *order = calloc(h->n + 1, sizeof(*order));

	if (!order)
		return -ENOMEM;
	for (size_t i = 0; i < h->n; i++)
		order[i] = (uint32_t)i;
	qsort_r(order, h->n, sizeof(*order), newest_first, h->steps);
	free(h->order);
	h->order = order;
	return 0;
}

struct sk_history_step *sk_history_find(const struct sk_history *h,
					const char *dir)
{
	struct sk_history_step key = { 0 };
	struct sk_step_name name;

	if (!h->n || !sk_step_name_parse(dir, &name))
		return NULL;
	key.step = name.step;
	key.aside = name.displaced ? (char *)dir : NULL;
	return bsearch(&key, h->steps, h->n, sizeof(key),
		       sk_history_order);
}

/* ---- the names ---- */

/* The names and what the directories are; not yet whose. */
struct names {
	struct sk_store *store;
	struct sk_history *fresh;
};

/* -ENOMEM. An error goes with it: what cannot be told is not left out. */
static int add_step(struct sk_history *h, const char *name,
		    const struct sk_step_name *parsed, const struct stat *st,
		    int error)
{
	struct sk_history_step *s;
	char *aside = NULL;

	if (sk_array_fit(h->steps, h->room, h->n + 1) < 0)
		return -ENOMEM;
	if (parsed->displaced && !(aside = strdup(name)))
		return -ENOMEM;
	s = &h->steps[h->n++];
	*s = (struct sk_history_step){
		.step = parsed->step, .aside = aside, .error = error,
	};
	/* Another filesystem's directory is never taken for known. */
	if (error || st->st_dev != h->dir.device)
		return 0;
	s->inode = st->st_ino;
	s->mtime_ns = sk_file_time_ns(&st->st_mtim);
	s->ctime_ns = sk_file_time_ns(&st->st_ctim);
	return 0;
}

static int note_name(void *ctx, int fd, const char *name)
{
	const struct names *names = ctx;
	const struct sk_os *os = names->store->os;
	struct sk_step_name parsed;
	struct stat st = { 0 };
	int r;

	if (!sk_step_name_parse(name, &parsed) ||
	    strlen(name) >= SK_STEP_DIR_MAX)
		return 0;
	r = os->fstatat(os, fd, name, AT_SYMLINK_NOFOLLOW, &st);
	if (sk_is_gone(r) || (r == 0 && !S_ISDIR(st.st_mode)))
		return 0;
	if (sk_is_shortage(r))
		return r;
	return add_step(names->fresh, name, &parsed, &st, r);
}

/* ---- whose they are ---- */

/* Whether what had that time when it was looked at cannot have changed since
 * without another one. */
static bool is_past(uint64_t time_ns, uint64_t looked_ns)
{
	uint64_t most = time_ns % SECOND_NS ? TICKS_NS : COARSE_NS;

	return time_ns < looked_ns && looked_ns - time_ns > most;
}

static bool is_known(const struct sk_history *old,
		     const struct sk_history_step *was,
		     const struct sk_history_step *now)
{
	return was->run.number && now->inode && was->inode == now->inode &&
	       was->mtime_ns == now->mtime_ns &&
	       was->ctime_ns == now->ctime_ns &&
	       is_past(was->ctime_ns, old->looked_ns);
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

static void carry_over(const struct sk_history *old, struct sk_history *fresh)
{
	size_t at = 0;

	if (old->dir.device != fresh->dir.device)
		return;
	for (size_t i = 0; i < fresh->n; i++) {
		struct sk_history_step *now = &fresh->steps[i];
		const struct sk_history_step *was = find_old(old, &at, now);

		if (was && is_known(old, was, now))
			now->run = was->run;
	}
}

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
		now->files = sk_take_ptr(was->files);
		now->n_files = was->n_files;
		now->room_files = was->room_files;
		now->briefs = sk_take_ptr(was->briefs);
		now->n_briefs = was->n_briefs;
		was->n_files = was->room_files = was->n_briefs = 0;
	}
	fresh->locals = sk_take_ptr(old->locals);
	fresh->n_locals = old->n_locals;
}

static int ask_run(struct sk_store *store, int job_fd,
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
		r = ask_run(store, job_fd, s);
		*ret_learnt |= s->run.number > 0;
	}
	return r;
}

/* ---- a look ---- */

static int read_names(struct sk_history *old, struct sk_history *fresh,
		      struct sk_store *store, int fd)
{
	struct names names = { .store = store, .fresh = fresh };
	bool learnt;
	int r;

	r = sk_dir_each(store->os, fd, note_name, &names);
	if (r < 0)
		return r;
	if (fresh->n)
		qsort(fresh->steps, fresh->n, sizeof(*fresh->steps),
		       sk_history_order);
	carry_over(old, fresh);
	r = ask_runs(fresh, store, fd, &learnt);
	if (r == 0)
		carry_files(old, fresh);
	return r < 0 ? r : sk_history_put_in_order(fresh);
}

static int look_anew(struct sk_history *h, struct sk_store *store, int fd,
		     const struct sk_file_id *dir, uint64_t began_ns)
{
	struct sk_history fresh = { .dir = *dir, .looked_ns = began_ns,
				    .loaded = true };
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
	if (!h->dir.inode || !sk_file_id_equal(&dir, &h->dir) ||
	    !is_past(h->dir.ctime_ns, h->looked_ns))
		return look_anew(h, store, fd, &dir, began_ns);
	r = ask_runs(h, store, fd, &learnt);
	h->unsaved |= learnt;
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
