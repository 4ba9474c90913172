/* SPDX-License-Identifier: Apache-2.0 */
#include "support/record-os.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/random.h"

#define PAGE 4096u
#define HIDDEN ".deleted-"	/* and an id, and the inode: docs/format.md */
#define INODE_AT (sizeof(HIDDEN) - 1 + 16 + 1)

/* ---- writing down ---- */

static struct sk_record_os *record_of(const struct sk_os *os)
{
	return os->ctx;
}

/* -1: it is none of ours. */
static int object_of(const struct sk_record_os *rec, ino_t inode)
{
	for (int i = rec->n_objects - 1; i >= 0; i--)
		if (rec->objects[i].inode == inode)
			return i;
	return -1;
}

static int object_of_fd(const struct sk_record_os *rec, int fd)
{
	struct stat st;

	return fstat(fd, &st) < 0 ? -1 : object_of(rec, st.st_ino);
}

static int object_new(struct sk_record_os *rec, ino_t inode, bool is_dir)
{
	if (rec->n_objects == SK_RECORD_OBJECTS) {
		rec->full = true;
		return -1;
	}
	rec->objects[rec->n_objects].inode = inode;
	rec->objects[rec->n_objects].is_dir = is_dir;
	return rec->n_objects++;
}

/* NULL: there is no room. */
static struct sk_record_event *event_new(struct sk_record_os *rec,
					 enum sk_record_kind kind, int dir,
					 int object)
{
	struct sk_record_event *e = &rec->events[rec->n];

	if (rec->n == SK_RECORD_EVENTS) {
		rec->full = true;
		return NULL;
	}
	*e = (struct sk_record_event){ .kind = kind, .dir = dir,
				       .object = object };
	rec->n++;
	return e;
}

static void put_name(char *at, const char *name)
{
	assert(strlen(name) < SK_RECORD_NAME);
	strcpy(at, name);
}

static void note_made(struct sk_record_os *rec, int dirfd, const char *name)
{
	struct sk_record_event *e = NULL;
	int dir = object_of_fd(rec, dirfd), object = -1;
	struct stat st;

	if (dir >= 0 && !fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW))
		object = object_new(rec, st.st_ino, S_ISDIR(st.st_mode));
	if (object >= 0)
		e = event_new(rec, SK_RECORD_MADE, dir, object);
	if (e)
		put_name(e->name, name);
}

static int record_openat(const struct sk_os *os, int dirfd, const char *path,
			 int flags, mode_t mode)
{
	struct sk_record_os *rec = record_of(os);
	struct stat st;
	bool makes;
	int fd;

	pthread_mutex_lock(&rec->lock);
	makes = flags & O_CREAT && dirfd != AT_FDCWD &&
		fstatat(dirfd, path, &st, AT_SYMLINK_NOFOLLOW) < 0;
	fd = rec->inner->openat(rec->inner, dirfd, path, flags, mode);
	if (fd >= 0 && makes)
		note_made(rec, dirfd, path);
	pthread_mutex_unlock(&rec->lock);
	return fd;
}

static int record_mkdirat(const struct sk_os *os, int dirfd, const char *path,
			  mode_t mode)
{
	struct sk_record_os *rec = record_of(os);
	int r;

	pthread_mutex_lock(&rec->lock);
	r = rec->inner->mkdirat(rec->inner, dirfd, path, mode);
	if (r == 0)
		note_made(rec, dirfd, path);
	pthread_mutex_unlock(&rec->lock);
	return r;
}

static ssize_t record_pwrite(const struct sk_os *os, int fd, const void *buf,
			     size_t size, uint64_t offset)
{
	struct sk_record_os *rec = record_of(os);
	struct sk_record_event *e = NULL;
	ssize_t n;
	int object;

	pthread_mutex_lock(&rec->lock);
	n = rec->inner->pwrite(rec->inner, fd, buf, size, offset);
	object = object_of_fd(rec, fd);
	if (n > 0 && object >= 0)
		e = event_new(rec, SK_RECORD_WROTE, -1, object);
	if (e) {
		e->offset = offset;
		e->data = malloc((size_t)n);
		assert(e->data);
		e->bytes = (size_t)n;
		memcpy(e->data, buf, (size_t)n);
	}
	pthread_mutex_unlock(&rec->lock);
	return n;
}

static int record_ftruncate(const struct sk_os *os, int fd, uint64_t size)
{
	struct sk_record_os *rec = record_of(os);
	struct sk_record_event *e = NULL;
	int object, r;

	pthread_mutex_lock(&rec->lock);
	r = rec->inner->ftruncate(rec->inner, fd, size);
	object = object_of_fd(rec, fd);
	if (r == 0 && object >= 0)
		e = event_new(rec, SK_RECORD_SIZED, -1, object);
	if (e)
		e->offset = size;
	pthread_mutex_unlock(&rec->lock);
	return r;
}

static int record_fsync(const struct sk_os *os, int fd)
{
	struct sk_record_os *rec = record_of(os);
	int object, r;

	pthread_mutex_lock(&rec->lock);
	r = rec->inner->fsync(rec->inner, fd);
	object = object_of_fd(rec, fd);
	if (r == 0 && object >= 0)
		(void)event_new(rec, SK_RECORD_SYNCED, -1, object);
	pthread_mutex_unlock(&rec->lock);
	return r;
}

static int record_renameat(const struct sk_os *os, int olddir,
			   const char *old, int newdir, const char *new_name,
			   unsigned flags)
{
	struct sk_record_os *rec = record_of(os);
	struct sk_record_event *e = NULL;
	struct stat st = { 0 };
	int r;

	pthread_mutex_lock(&rec->lock);
	(void)fstatat(olddir, old, &st, AT_SYMLINK_NOFOLLOW);
	r = rec->inner->renameat(rec->inner, olddir, old, newdir, new_name,
				 flags);
	/* All of ours stay in their directory. */
	assert(r < 0 || object_of_fd(rec, olddir) ==
	       object_of_fd(rec, newdir));
	if (r == 0 && object_of_fd(rec, olddir) >= 0)
		e = event_new(rec, SK_RECORD_RENAMED,
			      object_of_fd(rec, olddir),
			      object_of(rec, st.st_ino));
	if (e) {
		put_name(e->name, old);
		put_name(e->other, new_name);
	}
	pthread_mutex_unlock(&rec->lock);
	return r;
}

static int record_unlinkat(const struct sk_os *os, int dirfd,
			   const char *path, int flags)
{
	struct sk_record_os *rec = record_of(os);
	struct sk_record_event *e = NULL;
	int r, dir;

	pthread_mutex_lock(&rec->lock);
	r = rec->inner->unlinkat(rec->inner, dirfd, path, flags);
	dir = object_of_fd(rec, dirfd);
	if (r == 0 && dir >= 0)
		e = event_new(rec, SK_RECORD_REMOVED, dir, -1);
	if (e)
		put_name(e->name, path);
	pthread_mutex_unlock(&rec->lock);
	return r;
}

void sk_record_os_init(struct sk_record_os *rec, const struct sk_os *inner,
		       const char *root)
{
	struct stat st;

	*rec = (struct sk_record_os){ .os = *inner, .inner = inner };
	rec->os.ctx = rec;
	rec->os.openat = record_openat;
	rec->os.mkdirat = record_mkdirat;
	rec->os.pwrite = record_pwrite;
	rec->os.ftruncate = record_ftruncate;
	rec->os.fsync = record_fsync;
	rec->os.renameat = record_renameat;
	rec->os.unlinkat = record_unlinkat;
	(void)pthread_mutex_init(&rec->lock, NULL);
	if (stat(root, &st) < 0)
		abort();
	(void)object_new(rec, st.st_ino, true);
}

void sk_record_os_free(struct sk_record_os *rec)
{
	for (size_t i = 0; i < rec->n; i++)
		free(rec->events[i].data);
	(void)pthread_mutex_destroy(&rec->lock);
}

/* ---- a state ---- */

#define ENTRIES_MOST 512

struct entry {
	int dir, object;
	char name[SK_RECORD_NAME];
};

struct state {
	const struct sk_record_os *rec;
	struct {
		char *data;
		uint64_t bytes;
	} files[SK_RECORD_OBJECTS];
	struct entry entries[ENTRIES_MOST];
	int n;
};

/* Whether a later fsync among the first @n events covers it. */
static bool is_synced(const struct sk_record_os *rec, size_t at, size_t n,
		      int object)
{
	for (size_t i = at + 1; i < n; i++)
		if (rec->events[i].kind == SK_RECORD_SYNCED &&
		    rec->events[i].object == object)
			return true;
	return false;
}

static int entry_find(const struct state *s, int dir, const char *name)
{
	for (int i = 0; i < s->n; i++)
		if (s->entries[i].dir == dir &&
		    !strcmp(s->entries[i].name, name))
			return i;
	return -1;
}

static void entry_drop(struct state *s, int dir, const char *name)
{
	int at = entry_find(s, dir, name);

	if (at >= 0)
		s->entries[at] = s->entries[--s->n];
}

static void entry_put(struct state *s, int dir, const char *name, int object)
{
	struct entry *e;

	entry_drop(s, dir, name);
	assert(s->n < ENTRIES_MOST);
	e = &s->entries[s->n++];
	e->dir = dir;
	e->object = object;
	put_name(e->name, name);
}

static void file_size(struct state *s, int object, uint64_t bytes)
{
	char *data;

	if (bytes <= s->files[object].bytes) {
		s->files[object].bytes = bytes;
		return;
	}
	data = realloc(s->files[object].data, bytes);
	assert(data);
	memset(data + s->files[object].bytes, 0,
	       bytes - s->files[object].bytes);
	s->files[object].data = data;
	s->files[object].bytes = bytes;
}

/* All of it, or those pages that the dice keep. */
static void file_write(struct state *s, const struct sk_record_event *e,
		       bool whole, uint64_t *dice)
{
	for (size_t done = 0; done < e->bytes;) {
		size_t n = PAGE - (e->offset + done) % PAGE;

		n = n < e->bytes - done ? n : e->bytes - done;
		if (whole || draw(dice, 2)) {
			if (e->offset + done + n > s->files[e->object].bytes)
				file_size(s, e->object, e->offset + done + n);
			memcpy(s->files[e->object].data + e->offset + done,
			       e->data + done, n);
		}
		done += n;
	}
}

/* What was done to a name after something that is lost is lost as well. */
static bool is_after_lost(const struct sk_record_os *rec, size_t at,
			  const bool *lost)
{
	const struct sk_record_event *e = &rec->events[at], *b;

	for (size_t i = 0; i < at; i++) {
		b = &rec->events[i];
		if (lost[i] && b->dir == e->dir &&
		    (!strcmp(b->name, e->name) || !strcmp(b->other, e->name) ||
		     (e->other[0] && (!strcmp(b->name, e->other) ||
				      !strcmp(b->other, e->other)))))
			return true;
	}
	return false;
}

/* What an fsync covers stays, and so does what came before it by that rule. */
static void choose_lost(const struct sk_record_os *rec, size_t n,
			uint64_t *dice, bool *lost)
{
	unsigned part = (unsigned)draw(dice, 4);	/* none .. all */

	for (size_t i = 0; i < n; i++) {
		const struct sk_record_event *e = &rec->events[i];
		bool of_dir = e->kind == SK_RECORD_MADE ||
			      e->kind == SK_RECORD_RENAMED ||
			      e->kind == SK_RECORD_REMOVED;

		lost[i] = false;
		if (e->kind == SK_RECORD_SYNCED)
			continue;
		if (is_synced(rec, i, n, of_dir ? e->dir : e->object))
			continue;
		lost[i] = draw(dice, 4) < part ||
			  (of_dir && is_after_lost(rec, i, lost));
	}
}

static void apply(struct state *s, const struct sk_record_event *e, bool whole,
		  uint64_t *dice)
{
	switch (e->kind) {
	case SK_RECORD_MADE:
		entry_put(s, e->dir, e->name, e->object);
		break;
	case SK_RECORD_RENAMED:
		entry_drop(s, e->dir, e->name);
		entry_put(s, e->dir, e->other, e->object);
		break;
	case SK_RECORD_REMOVED:
		entry_drop(s, e->dir, e->name);
		break;
	case SK_RECORD_SIZED:
		file_size(s, e->object, e->offset);
		break;
	case SK_RECORD_WROTE:
		file_write(s, e, whole, dice);
		break;
	case SK_RECORD_SYNCED:
		break;
	}
}

static int write_file(int dirfd, const char *name, const char *data,
		      uint64_t bytes)
{
	int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
			0600);
	ssize_t n = 0;

	if (fd < 0)
		return -errno;
	if (bytes)
		n = pwrite(fd, data, bytes, 0);
	close(fd);
	return n == (ssize_t)bytes ? 0 : -EIO;
}

/* A directory that is to be deleted is known by its inode, which is another
 * one here. */
static int fix_inode(int dirfd, const char *name)
{
	char fixed[SK_RECORD_NAME], digits[17];
	struct stat st;

	if (strncmp(name, HIDDEN, strlen(HIDDEN)) != 0)
		return 0;
	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	put_name(fixed, name);
	(void)snprintf(digits, sizeof(digits), "%016llx",
		       (unsigned long long)st.st_ino);
	memcpy(fixed + INODE_AT, digits, 16);
	return renameat(dirfd, name, dirfd, fixed) < 0 ? -errno : 0;
}

static int build(const struct state *s, int dir, int at)
{
	int r = 0;

	for (int i = 0; i < s->n && r == 0; i++) {
		const struct entry *e = &s->entries[i];
		int fd;

		if (e->dir != dir)
			continue;
		if (!s->rec->objects[e->object].is_dir) {
			r = write_file(at, e->name, s->files[e->object].data,
				       s->files[e->object].bytes);
			continue;
		}
		if (mkdirat(at, e->name, 0700) < 0)
			return -errno;
		fd = openat(at, e->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		r = fd < 0 ? -errno : build(s, e->object, fd);
		if (fd >= 0)
			close(fd);
		if (r == 0)
			r = fix_inode(at, e->name);
	}
	return r;
}

int sk_record_os_state(const struct sk_record_os *rec, size_t n,
		       uint64_t *dice, const char *at)
{
	struct state *s = calloc(1, sizeof(*s));
	bool *lost = calloc(n + 1, sizeof(*lost));
	int fd = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r;

	assert(s && lost && fd >= 0 && n <= rec->n && !rec->full);
	s->rec = rec;
	choose_lost(rec, n, dice, lost);
	for (size_t i = 0; i < n; i++) {
		const struct sk_record_event *e = &rec->events[i];

		if (!lost[i])
			apply(s, e, true, dice);
		else if (e->kind == SK_RECORD_WROTE)
			apply(s, e, false, dice);
	}
	r = build(s, 0, fd);
	for (int i = 0; i < rec->n_objects; i++)
		free(s->files[i].data);
	free(s);
	free(lost);
	close(fd);
	return r;
}
