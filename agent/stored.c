/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies on the store. Names are read anew for each question, because
 * other agents may write there too; a header is read once, and parsed only
 * where its layout is a new one. All that in the background.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"

#define MAX_IGNORED 4096u

/* A request, and what it wants looked at. */
struct wish {
	struct sk_link link;
	struct request *request;
	char job[SK_JOB_MAX + 1];	/* "": all */
	uid_t uid;
	bool headers;
};

/* A file that need not be read again while it is the same. */
struct file_key {
	char job[SK_JOB_MAX + 1];
	char dir[SK_CAT_DIR_MAX];
	int32_t rank, world;
	uint64_t mtime_ns;		/* 0: not known yet */
};

struct found {
	struct sk_stored stored;
	uid_t owner;
	struct sk_layout *layout;	/* NULL: known, or not read */
	struct sk_stamp stamp;
	int result;			/* < 0: not an image of ours */
	struct sk_err err;
};

struct scan {
	struct work work;
	struct sk_link wishes;
	char job[SK_JOB_MAX + 1];
	bool headers;
	uint64_t serial;
	struct file_key *known;		/* sorted */
	size_t n_known;
	struct found *found;
	size_t n_found;
	uid_t owner;			/* of the one job; -1: nobody */
	int result;
	struct sk_err err;
};

static int compare_keys(const void *a, const void *b)
{
	const struct file_key *x = a, *y = b;
	int order = strcmp(x->job, y->job);

	order = order ? order : strcmp(x->dir, y->dir);
	order = order ? order : (x->rank > y->rank) - (x->rank < y->rank);
	return order ? order : (x->world > y->world) - (x->world < y->world);
}

static struct file_key key_of(const struct sk_stored *stored)
{
	struct file_key key = { .rank = stored->rank,
				.world = stored->world,
				.mtime_ns = stored->mtime_ns };

	memcpy(key.job, stored->job, sizeof(key.job));
	memcpy(key.dir, stored->dir, sizeof(key.dir));
	return key;
}

/* ---- in the background ---- */

static int read_header(const struct sk_os *os, int fd, uint64_t size,
		       char **ret, uint64_t *ret_bytes, struct sk_err *err)
{
	_cleanup_free_ char *header = NULL;
	uint64_t bytes, first;
	int r;

	if (os->pread(os, fd, &first, sizeof(first), 0) != sizeof(first))
		return sk_err_set(err, -EBADMSG, "the file has no header");
	r = sk_header_bytes(&first, &bytes, err);
	if (r < 0)
		return r;
	if (bytes > size)
		return sk_err_set(err, -EBADMSG, "the file ends within its "
				  "header");
	header = malloc(bytes);
	if (!header)
		return sk_err_set(err, -ENOMEM, "no memory for a header");
	if (os->pread(os, fd, header, bytes, 0) != (ssize_t)bytes)
		return sk_err_set(err, -EIO, "the header cannot be read");
	*ret = sk_take_ptr(header);
	*ret_bytes = bytes;
	return 0;
}

static int read_layout(struct sk_recall *recall, struct found *f,
		       const char *header, uint64_t bytes)
{
	_cleanup_layout_ struct sk_layout *l = NULL;
	struct sk_stamp stamp = { 0 };
	int r;

	r = sk_recall_get(recall, f->stored.job, f->stored.rank,
			  SK_IMAGE_PRIMARY, header, bytes, f->stored.bytes,
			  &l, &f->err);
	if (r < 0)
		return r;
	stamp.sums = calloc((size_t)l->n_sums + 1, sizeof(*stamp.sums));
	if (!stamp.sums)
		return sk_err_set(&f->err, -ENOMEM, "no memory for %u "
				  "checksums", l->n_sums);
	r = sk_layout_read_stamp(l, header, &stamp, &f->err);
	if (r < 0) {
		free(stamp.sums);
		return r;
	}
	f->stamp = stamp;
	f->layout = sk_take_ptr(l);
	return 0;
}

static int check_names(struct found *f)
{
	const struct sk_layout *l = f->layout;

	if (strcmp(l->job, f->stored.job) == 0 && l->rank == f->stored.rank &&
	    l->world == f->stored.world && f->stamp.step == f->stored.step &&
	    l->kind == SK_IMAGE_PRIMARY && f->stamp.run)
		return 0;
	return sk_err_set(&f->err, -EBADMSG, "it says it is rank %" PRId32
			  " of %" PRId32 " of job \"%.40s\", step %" PRIu64,
			  l->rank, l->world, l->job, f->stamp.step);
}

static void read_found(struct agent *a, struct found *f)
{
	_cleanup_free_ char *header = NULL;
	uint64_t bytes = 0;
	int fd;

	fd = sk_store_open_image(a->store, &f->stored, &f->err);
	if (fd < 0) {
		f->result = fd;
		return;
	}
	f->result = read_header(a->os, fd, f->stored.bytes, &header, &bytes,
				&f->err);
	sk_close_fd(fd);
	if (f->result == 0)
		f->result = read_layout(a->recall, f, header, bytes);
	if (f->result == 0)
		f->result = check_names(f);
}

static bool is_known(const struct scan *scan, const struct sk_stored *stored)
{
	struct file_key key = key_of(stored), *known;

	known = scan->n_known ?
		bsearch(&key, scan->known, scan->n_known,
			sizeof(*scan->known), compare_keys) : NULL;
	return known && (!known->mtime_ns ||
			 known->mtime_ns == key.mtime_ns);
}

static int scan_job(struct scan *scan, const char *job)
{
	struct agent *a = scan->work.agent;
	_cleanup_free_ struct sk_stored *images = NULL;
	const char *told = "";		/* the directory whose run is known */
	struct found *found;
	uid_t owner = a->uid;
	size_t n = 0;
	int r;

	r = sk_store_scan(a->store, job, &images, &n, &scan->err);
	if (r < 0)
		return r;
	r = sk_store_owner(a->store, job, &owner, NULL);
	if (r == 0 || n)
		scan->owner = owner;
	found = reallocarray(scan->found, scan->n_found + n + 1,
			     sizeof(*found));
	if (!found)
		return sk_err_set(&scan->err, -ENOMEM, "no memory for %zu "
				  "images", n);
	scan->found = found;
	for (size_t i = 0; i < n; i++) {
		struct found *f = &found[scan->n_found++];

		*f = (struct found){ .stored = images[i], .owner = owner };
		if (is_known(scan, &images[i]))
			told = images[i].dir;
		else if (scan->headers || strcmp(told, images[i].dir) != 0)
			read_found(a, f);
		if (f->layout)
			told = images[i].dir;
	}
	return 0;
}

static void scan_store(struct work *work)
{
	struct scan *scan = sk_link_object(work, struct scan, work);
	char **jobs = NULL;
	size_t n = 0;

	if (scan->job[0]) {
		scan->result = scan_job(scan, scan->job);
		return;
	}
	scan->result = sk_store_jobs(work->agent->store, &jobs, &n,
				     &scan->err);
	for (size_t i = 0; i < n; i++) {
		if (scan->result == 0)
			scan->result = scan_job(scan, jobs[i]);
		free(jobs[i]);
	}
	free(jobs);
}

/* ---- back on the agent's thread ---- */

void stored_name(const struct sk_cat_image *image, struct sk_stored *ret)
{
	const struct sk_cat_snapshot *s = image->snapshot;
	struct sk_stored stored = {
		.step = (uint64_t)s->step, .rank = image->rank,
		.world = s->world,
		.bytes = image->layout->layout->image_bytes,
		.mtime_ns = image->stored.mtime_ns,
	};

	memcpy(stored.job, s->job->name, sizeof(stored.job));
	memcpy(stored.dir, image->stored.dir, sizeof(stored.dir));
	*ret = stored;
}

static void ignore(struct agent *a, const struct found *f)
{
	struct file_key *ignored;

	a->counts.ignored_files++;
	log_warning(a, "ignoring %s/%s, rank %" PRId32 " of %" PRId32 ": %s",
		    f->stored.job, f->stored.dir, f->stored.rank,
		    f->stored.world, f->err.text);
	/* A failed read may do better next time. */
	if (f->result != -EBADMSG && f->result != -ENODATA)
		return;
	if (a->n_ignored == MAX_IGNORED)
		a->n_ignored = 0;
	ignored = reallocarray(a->ignored, a->n_ignored + 1,
			       sizeof(*ignored));
	if (!ignored)
		return;
	a->ignored = ignored;
	ignored[a->n_ignored++] = key_of(&f->stored);
}

static void merge(struct agent *a, struct found *f)
{
	struct sk_cat_layout *layout;
	struct sk_cat_job *job;

	job = sk_cat_job_get(&a->cat, f->stored.job, f->owner);
	layout = sk_cat_layout_take(&a->cat, sk_take_ptr(f->layout));
	if (!job || !layout) {
		sk_cat_layout_unref(layout);
		free(f->stamp.sums);
		return;
	}
	f->result = sk_cat_stored_add(job, f->stamp.run,
				      (int64_t)f->stamp.step, layout,
				      f->stamp.sums, f->stored.dir,
				      f->stored.mtime_ns, &f->err);
	if (f->result == -ESTALE)
		f->result = -EBADMSG;
	if (f->result < 0)
		ignore(a, f);
}

static int compare_found(const void *a, const void *b)
{
	const struct found *x = a, *y = b;
	struct file_key kx = key_of(&x->stored), ky = key_of(&y->stored);

	return compare_keys(&kx, &ky);
}

/* What the disk had and has no more; but not what came since the look. */
static void forget_gone(struct scan *scan, struct sk_cat_job *job)
{
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;

	sk_link_each(s, &job->snapshots, link) {
		s->filling++;	/* keeps it while its images go */
		sk_link_each(image, &s->images, link) {
			struct found key = { 0 };
			struct found *f;

			if (!image->stored.dir[0] ||
			    image->stored.serial > scan->serial)
				continue;
			stored_name(image, &key.stored);
			f = scan->n_found ?
			    bsearch(&key, scan->found, scan->n_found,
				    sizeof(key), compare_found) : NULL;
			/* The name may be another run's by now, or what it
			 * names may be damaged. */
			if (f && (f->result < 0 ||
				  (f->layout && f->stamp.run != s->run)))
				f = NULL;
			if (f)
				image->stored.mtime_ns = f->stored.mtime_ns;
			else
				sk_cat_stored_remove(image);
		}
		s->filling--;
		(void)sk_cat_snapshot_trim(s);
	}
}

static void merge_all(struct agent *a, struct scan *scan)
{
	struct sk_cat_job *job;

	if (scan->n_found)
		qsort(scan->found, scan->n_found, sizeof(*scan->found),
		      compare_found);
	if (scan->result == 0) {
		sk_link_each(job, &a->cat.jobs, link) {
			if (!scan->job[0] || strcmp(job->name, scan->job) == 0)
				forget_gone(scan, job);
		}
	}
	for (size_t i = 0; i < scan->n_found; i++) {
		struct found *f = &scan->found[i];

		if (f->layout && f->result == 0) {
			merge(a, f);
			continue;
		}
		if (f->layout) {
			sk_layout_free(f->layout);
			free(f->stamp.sums);
		}
		/* Deleted between two looks is nothing to speak of. */
		if (f->result < 0 && f->result != -ENOENT)
			ignore(a, f);
	}
	sk_link_each(job, &a->cat.jobs, link)
		sk_cat_refresh(job);
}

static void scan_free(struct scan *scan)
{
	free(scan->known);
	free(scan->found);
	free(scan);
}

static void grant(struct scan *scan, struct wish *w)
{
	struct request *q = w->request;
	struct sk_err err = scan->err;
	int r = scan->result;

	if (r == 0 && !w->headers && scan->owner != (uid_t)-1 &&
	    scan->owner != w->uid)
		r = sk_err_set(&err, -EACCES, "the store holds a job \"%s\" of "
			       "another user; choose another name", w->job);
	free(w);
	q->busy = false;
	q->scanned(q, r, &err);
}

static void start_next(struct agent *a);

static void scanned(struct work *work)
{
	struct scan *scan = sk_link_object(work, struct scan, work);
	struct agent *a = work->agent;
	struct wish *w;

	a->scanning = false;
	merge_all(a, scan);
	sk_link_each(w, &scan->wishes, link) {
		sk_link_remove(&w->link);
		grant(scan, w);
	}
	scan_free(scan);
	agent_changed(a);
	start_next(a);
}

/* ---- starting ---- */

/* What need not be read, and layouts that new files may have. */
static int gather_known(struct agent *a, struct scan *scan)
{
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;
	struct sk_cat_job *job;
	size_t room = a->n_ignored + 1;

	sk_link_each(job, &a->cat.jobs, link)
	sk_link_each(s, &job->snapshots, link)
	sk_link_each(image, &s->images, link)
		room++;
	scan->known = calloc(room, sizeof(*scan->known));
	if (!scan->known)
		return -ENOMEM;
	if (a->n_ignored)
		memcpy(scan->known, a->ignored,
		       a->n_ignored * sizeof(*scan->known));
	scan->n_known = a->n_ignored;
	sk_link_each(job, &a->cat.jobs, link)
	sk_link_each(s, &job->snapshots, link)
	sk_link_each(image, &s->images, link) {
		struct sk_stored stored;

		if (!image->stored.dir[0])
			continue;
		stored_name(image, &stored);
		scan->known[scan->n_known++] = key_of(&stored);
	}
	qsort(scan->known, scan->n_known, sizeof(*scan->known), compare_keys);
	return 0;
}

static void start_next(struct agent *a)
{
	struct wish *first, *w;
	struct scan *scan;

	if (a->quit || a->scanning || sk_link_empty(&a->scans))
		return;
	first = sk_link_object(a->scans.next, struct wish, link);
	scan = calloc(1, sizeof(*scan));
	if (!scan)
		return;		/* the next wish tries again */
	sk_link_init(&scan->wishes);
	memcpy(scan->job, first->job, sizeof(scan->job));
	scan->headers = first->headers;
	scan->serial = a->cat.serial;
	scan->owner = (uid_t)-1;
	/* All that wish the same are served by one look. */
	sk_link_each(w, &a->scans, link) {
		if (strcmp(w->job, scan->job) != 0 ||
		    w->headers != scan->headers)
			continue;
		sk_link_remove(&w->link);
		sk_link_insert(&scan->wishes, &w->link);
	}
	scan->work.run = scan_store;
	scan->work.finish = scanned;
	a->scanning = true;
	/* Without it more is read, and nothing goes wrong. */
	if (gather_known(a, scan) < 0)
		scan->n_known = 0;
	work_submit(a, a->slow, &scan->work);
}

void stored_scan(struct agent *a, struct request *q, const char *job,
		 uid_t uid, bool headers)
{
	struct sk_err err = { "" };
	struct wish *w;

	if (!a->store) {
		q->scanned(q, 0, &err);
		return;
	}
	w = calloc(1, sizeof(*w));
	if (!w) {
		sk_err_set(&err, -ENOMEM, "no memory to look at the store");
		q->scanned(q, -ENOMEM, &err);
		return;
	}
	w->request = q;
	w->uid = uid;
	w->headers = headers;
	(void)snprintf(w->job, sizeof(w->job), "%s", job);
	q->busy = true;
	sk_link_insert(&a->scans, &w->link);
	start_next(a);
}

void stored_close(struct agent *a)
{
	struct sk_err err;
	struct wish *w;

	sk_link_each(w, &a->scans, link) {
		struct request *q = w->request;

		sk_link_remove(&w->link);
		free(w);
		q->busy = false;
		q->scanned(q, sk_err_set(&err, -ESHUTDOWN, "the agent ends"),
			   &err);
	}
}
