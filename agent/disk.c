/* SPDX-License-Identifier: Apache-2.0 */
/* The catalogue of what lies in the store: a job is scanned when it is first
 * asked for. */
#include "agent.h"

#include <string.h>

static int add_image(struct agent *a, struct sk_cat_job *job,
		     const struct sk_stored *f, struct sk_layout *layout,
		     const struct sk_stamp *stamp)
{
	struct sk_cat_snapshot *s;
	struct sk_cat_image *image;

	if (strcmp(layout->job, job->name) || layout->rank != f->rank ||
	    layout->world != f->world || stamp->step != f->step ||
	    layout->kind != SK_IMAGE_PRIMARY)
		return -EBADMSG;	/* a file under another's name */
	s = sk_cat_snapshot(job, stamp->run, stamp->step, f->world);
	if (!s)
		return -ENOMEM;
	if (s->world != f->world)
		return -EBADMSG;
	image = sk_cat_find_image(s, f->rank, SK_IMAGE_PRIMARY);
	if (!image)
		image = sk_cat_add(&a->cat, s, layout, stamp->sums);
	if (!image)
		return -ENOMEM;
	image->on_disk = true;
	strcpy(image->dir, f->dir);
	if (!s->created_ns || f->mtime_ns < s->created_ns)
		s->created_ns = f->mtime_ns;
	return 0;
}

static void read_image(struct agent *a, struct sk_cat_job *job,
		       const struct sk_stored *f)
{
	struct sk_layout *layout = NULL;
	struct sk_stamp stamp = { 0 };
	struct sk_err err = { "" };
	int fd = sk_store_open_image(a->store, f, &err), r = fd;

	if (r >= 0)
		r = sk_store_read_layout(a->store, fd, &layout, &stamp, &err);
	if (r >= 0)
		r = add_image(a, job, f, layout, &stamp);
	if (r < 0)
		say(a, 1, "%s/%s, rank %d is left alone: %s", job->name,
		    f->dir, f->rank, err.text[0] ? err.text :
		    "it is not what its name says");
	sk_close_fd(fd);
	sk_layout_free(layout);
	free(stamp.sums);
}

static uid_t owner(struct agent *a, const char *job)
{
	uid_t uid;

	return sk_store_owner(a->store, job, &uid, NULL) < 0 ? geteuid() : uid;
}

void disk_scan_job(struct agent *a, const char *name)
{
	struct sk_cat_job *job = sk_cat_find_job(&a->cat, name);
	struct sk_stored *files = NULL;
	struct sk_err err = { "" };
	size_t n = 0;

	if (!a->store || !name[0] || (job && job->scanned))
		return;
	if (sk_store_scan(a->store, name, &files, &n, &err) < 0) {
		say(a, 1, "cannot look at job \"%s\" in the store: %s", name,
		    err.text);
		return;
	}
	if (n && !job)
		job = sk_cat_job(&a->cat, name, owner(a, name));
	if (job)
		job->scanned = true;
	for (size_t i = 0; job && i < n; i++)
		read_image(a, job, &files[i]);
	for (struct sk_cat_snapshot *s = job ? job->snapshots : NULL; s;
	     s = s->next)
		snapshot_cover(a, s);
	free(files);
}

void disk_scan_all(struct agent *a)
{
	char **jobs = NULL;
	size_t n = 0;

	if (!a->store || sk_store_jobs(a->store, &jobs, &n, NULL) < 0)
		return;
	for (size_t i = 0; i < n; i++) {
		disk_scan_job(a, jobs[i]);
		free(jobs[i]);
	}
	free(jobs);
}
