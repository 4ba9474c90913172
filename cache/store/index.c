/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store, the index: what a history knows, in a file that outlives the agent.
 *
 *   <store>/.index/<job>
 *
 * It says what the agent knew when it looked last, and is believed as that
 * agent would believe itself: as far as device, inode and times are the same.
 * What is damaged, of another form, or not this user's own is as good as
 * none. Nothing is lost with it, so it is not synced.
 */
#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bytes/checksum.h"
#include "store/private.h"

#define MAGIC UINT64_C(0x0a33786469206b73)	/* "sk idx3\n" */
#define MOST_BYTES (UINT64_C(256) << 20)

/* In the machine's own order; another one's magic is another number. */
struct head {
	uint64_t magic;
	uint64_t sum;		/* XXH3-64 of all with this as 0 */
	uint64_t bytes;		/* of all */
	uint64_t n;		/* steps, which follow */
	uint64_t n_files;	/* then those of the steps, in their order */
	uint64_t n_locals;	/* then sizes that files name; then names */
	uint64_t device, inode, dir_bytes, mtime_ns, ctime_ns;
	uint64_t looked_ns;
	char job[(SK_JOB_MAX / 8 + 1) * 8];
};

struct entry {
	uint64_t step;
	uint64_t run, run_id;
	uint64_t inode, mtime_ns, ctime_ns;
	uint64_t aside;		/* where its name begins in the file, if it is
				 * not the step's own; 0 */
	uint32_t n_files;
	uint32_t unproved;
};

/* Where the parts of the file begin. */
struct parts {
	struct entry *entries;
	struct sk_history_brief *files;
	int64_t *locals;
	size_t names;		/* an offset */
};

static struct parts parts_of(char *file, uint64_t n, uint64_t n_files,
			     uint64_t n_locals)
{
	struct parts p = { .entries = (void *)(file + sizeof(struct head)) };

	p.files = (void *)(p.entries + n);
	p.locals = (void *)(p.files + n_files);
	p.names = (size_t)((char *)(p.locals + n_locals) - file);
	return p;
}

/* Of the newest so many steps it says what their files are. */
#define FILES_OF 64u

/* ---- to bytes ---- */

static size_t names_bytes(const struct sk_history *h)
{
	size_t bytes = 0;

	for (size_t i = 0; i < h->n; i++)
		if (h->steps[i].aside)
			bytes += strlen(h->steps[i].aside) + 1;
	return bytes;
}

static void fill_head(const struct sk_history *h, struct head *head)
{
	*head = (struct head){
		.magic = MAGIC, .bytes = head->bytes, .n = h->n,
		.n_files = head->n_files, .n_locals = head->n_locals,
		.device = h->dir.device, .inode = h->dir.inode,
		.dir_bytes = h->dir.bytes, .mtime_ns = h->dir.mtime_ns,
		.ctime_ns = h->dir.ctime_ns, .looked_ns = h->looked_ns,
	};
	memcpy(head->job, h->job, strlen(h->job));
}

/* Which steps those are; malloc'ed. NULL: no memory. */
static bool *recent_steps(const struct sk_history *h)
{
	bool *recent = calloc(h->n + 1, sizeof(*recent));

	for (size_t i = 0; recent && i < h->n && i < FILES_OF; i++)
		recent[h->order[i]] = true;
	return recent;
}

static void fill_entries(const struct sk_history *h, char *file,
			 const struct parts *p, const bool *recent)
{
	struct sk_briefs files = { .files = p->files, .locals = p->locals };
	size_t at = p->names;

	for (size_t i = 0; i < h->n; i++) {
		const struct sk_history_step *s = &h->steps[i];

		p->entries[i] = (struct entry){
			.step = s->step,
			.run = s->run.number, .run_id = s->run.id,
			.inode = s->inode,
			.mtime_ns = s->mtime_ns, .ctime_ns = s->ctime_ns,
			.aside = s->aside ? at : 0,
			.n_files = recent[i] ?
				   sk_history_briefs(h, s, &files) : 0,
			.unproved = s->unproved,
		};
		if (s->aside)
			at += strlen(strcpy(file + at, s->aside)) + 1;
	}
}

/* malloc'ed; NULL: no memory, or there is too much of it. */
static char *to_bytes(const struct sk_history *h, size_t *ret_bytes)
{
	_cleanup_free_ bool *recent = recent_steps(h);
	struct sk_briefs all = { .files = NULL };
	struct parts p;
	size_t bytes;
	char *file;

	if (!recent)
		return NULL;
	for (size_t i = 0; i < h->n; i++)
		if (recent[i])
			(void)sk_history_briefs(h, &h->steps[i], &all);
	bytes = sizeof(struct head) + h->n * sizeof(*p.entries) +
		all.n * sizeof(*p.files) + all.n_locals * sizeof(*p.locals) +
		names_bytes(h);
	if (bytes > MOST_BYTES)
		return NULL;
	file = calloc(1, bytes);
	if (!file)
		return NULL;
	p = parts_of(file, h->n, all.n, all.n_locals);
	*(struct head *)(void *)file = (struct head){
		.bytes = bytes, .n_files = all.n, .n_locals = all.n_locals };
	fill_head(h, (void *)file);
	fill_entries(h, file, &p, recent);
	((struct head *)(void *)file)->sum = sk_xxh3(file, bytes);
	*ret_bytes = bytes;
	return file;
}

/* ---- and back ---- */

/* Whether so many of each are in it. */
static bool check_parts(const struct head *head, size_t bytes)
{
	uint64_t left = bytes - sizeof(*head);

	if (head->n > left / sizeof(struct entry))
		return false;
	left -= head->n * sizeof(struct entry);
	if (head->n_files > left / sizeof(struct sk_history_brief))
		return false;
	left -= head->n_files * sizeof(struct sk_history_brief);
	return head->n_locals <= left / sizeof(int64_t);
}

static bool check_head(struct head *head, size_t bytes, const char *job)
{
	uint64_t sum = head->sum;

	head->sum = 0;
	return head->magic == MAGIC && head->bytes == bytes &&
	       sum == sk_xxh3(head, bytes) && check_parts(head, bytes) &&
	       !head->job[SK_JOB_MAX] && strcmp(head->job, job) == 0;
}

/* The name that stands there; NULL: none of a step moved aside. */
static const char *name_at(const char *file, const struct head *head,
			   const struct parts *p, const struct entry *entry)
{
	struct sk_step_name name;

	if (entry->aside < p->names || entry->aside >= head->bytes ||
	    !memchr(file + entry->aside, 0, head->bytes - entry->aside) ||
	    strlen(file + entry->aside) >= SK_STEP_DIR_MAX ||
	    !sk_step_name_parse(file + entry->aside, &name) ||
	    !name.displaced || name.step != entry->step)
		return NULL;
	return file + entry->aside;
}

static bool check_brief(const struct head *head,
			const struct sk_history_brief *b)
{
	return b->rank >= 0 && b->rank < b->world &&
	       b->locals_at <= head->n_locals &&
	       b->n_locals <= head->n_locals - b->locals_at;
}

/* By world and rank, as they are looked for. */
static bool is_before(const struct sk_history_brief *a,
		      const struct sk_history_brief *b)
{
	return a->world < b->world ||
	       (a->world == b->world && a->rank < b->rank);
}

static int take_briefs(struct sk_history_step *s, const struct head *head,
		       const struct sk_history_brief *from, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		if (!check_brief(head, &from[i]) ||
		    (i && !is_before(&from[i - 1], &from[i])))
			return -EBADMSG;
	if (!n)
		return 0;
	s->briefs = malloc(n * sizeof(*from));
	if (!s->briefs)
		return -ENOMEM;
	memcpy(s->briefs, from, n * sizeof(*from));
	s->n_briefs = (uint32_t)n;
	return 0;
}

static int take_entry(struct sk_history *h, const char *file,
		      const struct head *head, const struct parts *p,
		      const struct entry *entry)
{
	struct sk_history_step *s = &h->steps[h->n];
	const char *name = NULL;

	*s = (struct sk_history_step){
		.step = entry->step, .run = { entry->run, entry->run_id },
		.inode = entry->inode, .mtime_ns = entry->mtime_ns,
		.ctime_ns = entry->ctime_ns, .unproved = entry->unproved != 0,
	};
	h->unproved += s->unproved;
	if (entry->aside) {
		name = name_at(file, head, p, entry);
		s->aside = name ? strdup(name) : NULL;
		if (!s->aside)
			return name ? -ENOMEM : -EBADMSG;
	}
	h->n++;
	if (h->n > 1 && sk_history_order(s - 1, s) >= 0)
		return -EBADMSG;
	return entry->run > SK_RUN_MAX ? -EBADMSG : 0;
}

static int take_files(struct sk_history *h, const struct head *head,
		      const struct parts *p)
{
	uint64_t at = 0;
	int r = 0;

	for (size_t i = 0; i < h->n && r == 0; i++) {
		uint64_t n = p->entries[i].n_files;

		if (n > head->n_files - at)
			return -EBADMSG;
		r = take_briefs(&h->steps[i], head, p->files + at, n);
		at += n;
	}
	return r;
}

static int take_locals(struct sk_history *h, const struct head *head,
		       const struct parts *p)
{
	h->locals = calloc(head->n_locals + 1, sizeof(*h->locals));
	if (!h->locals)
		return -ENOMEM;
	memcpy(h->locals, p->locals, head->n_locals * sizeof(*h->locals));
	return 0;
}

static int take_entries(struct sk_history *h, char *file,
			const struct head *head)
{
	struct parts p = parts_of(file, head->n, head->n_files,
				  head->n_locals);
	int r;

	h->steps = calloc(head->n + 1, sizeof(*h->steps));
	if (!h->steps)
		return -ENOMEM;
	h->room = head->n + 1;
	r = take_locals(h, head, &p);
	for (uint64_t i = 0; i < head->n && r == 0; i++)
		r = take_entry(h, file, head, &p, &p.entries[i]);
	if (r == 0)
		r = take_files(h, head, &p);
	return r < 0 ? r : sk_history_put_in_order(h);
}

/* Nothing, unless it is as it was written. */
static void from_bytes(struct sk_history *h, char *file, size_t bytes,
		       uint64_t now_ns)
{
	struct head *head = (void *)file;

	assert(!h->n && !h->steps && bytes >= sizeof(*head));
	if (!check_head(head, bytes, h->job))
		return;
	/* Of what was looked at in a time to come nothing can be past. */
	if (head->looked_ns > now_ns)
		return;
	if (take_entries(h, file, head) < 0) {
		sk_history_forget(h);
		return;
	}
	h->dir = (struct sk_file_id){
		.device = head->device, .inode = head->inode,
		.bytes = head->dir_bytes, .mtime_ns = head->mtime_ns,
		.ctime_ns = head->ctime_ns,
	};
	h->looked_ns = head->looked_ns;
}

/* ---- the file ---- */

/* What somebody else wrote, or could have, says nothing to us. */
static bool is_ours(const struct stat *st)
{
	return S_ISREG(st->st_mode) && st->st_uid == geteuid() &&
	       !(st->st_mode & (S_IWGRP | S_IWOTH)) &&
	       (uint64_t)st->st_size >= sizeof(struct head) &&
	       (uint64_t)st->st_size <= MOST_BYTES;
}

/* malloc'ed; NULL: it cannot be read. */
static char *read_all(const struct sk_os *os, int fd, size_t bytes)
{
	char *file = malloc(bytes);
	size_t done = 0;
	ssize_t n = 1;

	while (file && done < bytes && n > 0) {
		n = os->pread(os, fd, file + done, bytes - done, done);
		if (n > 0)
			done += (size_t)n;
	}
	if (done == bytes)
		return file;
	free(file);
	return NULL;
}

static int open_index(struct sk_store *store, const char *job)
{
	const struct sk_os *os = store->os;
	int dir = sk_dir_open(os, store->fd, SK_INDEX_DIR), fd;

	if (dir < 0)
		return dir;
	fd = os->openat(os, dir, job, O_RDONLY | O_NOFOLLOW | O_NONBLOCK |
			O_CLOEXEC, 0);
	os->close(os, dir);
	return fd;
}

void sk_index_load(struct sk_history *h, struct sk_store *store)
{
	const struct sk_os *os = store->os;
	_cleanup_free_ char *file = NULL;
	int fd = open_index(store, h->job);
	struct stat st;

	if (fd < 0)
		return;
	if (os->fstat(os, fd, &st) == 0 && is_ours(&st))
		file = read_all(os, fd, (size_t)st.st_size);
	os->close(os, fd);
	if (file)
		from_bytes(h, file, (size_t)st.st_size, os->wall_ns(os));
}

static int open_dir(struct sk_store *store)
{
	const struct sk_os *os = store->os;
	int fd = sk_dir_open(os, store->fd, SK_INDEX_DIR), r;

	if (fd != -ENOENT)
		return fd;
	r = os->mkdirat(os, store->fd, SK_INDEX_DIR, SK_DIR_OURS);
	return r < 0 && r != -EEXIST ?
	       r : sk_dir_open(os, store->fd, SK_INDEX_DIR);
}

int sk_history_save(struct sk_history *h, struct sk_store *store,
		    struct sk_err *err)
{
	_cleanup_free_ char *file = NULL;
	size_t bytes = 0;
	char temporary[SK_STORE_NAME_MAX];
	int dir, r;

	/* Also where it fails: the next look that learns something tries
	 * again. */
	h->unsaved = false;
	file = to_bytes(h, &bytes);
	if (!file)
		return sk_err_set(err, -ENOMEM, "no memory for the index of "
				  "job \"%s\"", h->job);
	dir = r = open_dir(store);
	if (dir >= 0) {
		sk_temporary_name(store, SK_INDEX_TEMPORARY, temporary);
		/* Who loses it looks anew: that is no reason to sync. */
		r = sk_file_make(store->os, dir, temporary, h->job, file,
				 bytes, 0);
		store->os->close(store->os, dir);
	}
	return r == 0 ? 0 :
	       sk_err_errno(err, r, "cannot write the index of job \"%s\" in "
			    "the store \"%s\"", h->job, store->path);
}

/* ---- what is left of jobs that are gone ---- */

struct index_sweep {
	struct sk_store *store;
	bool (*is_left)(void *ctx, int dirfd, const char *name,
			uint32_t instance);
	void *ctx;
};

static int sweep_entry(void *ctx, int dirfd, const char *name)
{
	const struct index_sweep *sweep = ctx;
	const struct sk_os *os = sweep->store->os;
	struct sk_leftover left;
	struct stat st;
	bool goes;

	if (sk_leftover_name(name, &left))
		goes = sweep->is_left(sweep->ctx, dirfd, name, left.instance);
	else
		goes = sk_job_check(name, NULL) == 0 &&
		       os->fstatat(os, sweep->store->fd, name,
				   AT_SYMLINK_NOFOLLOW, &st) == -ENOENT;
	if (goes)
		(void)os->unlinkat(os, dirfd, name, 0);
	return 0;
}

void sk_index_sweep(struct sk_store *store,
		    bool (*is_left)(void *ctx, int dirfd, const char *name,
				    uint32_t instance),
		    void *ctx)
{
	struct index_sweep sweep = { store, is_left, ctx };
	int fd = sk_dir_open(store->os, store->fd, SK_INDEX_DIR);

	if (fd < 0)
		return;
	(void)sk_dir_each(store->os, fd, sweep_entry, &sweep);
	store->os->close(store->os, fd);
}
