/* SPDX-License-Identifier: Apache-2.0 */
/* Lists, opened images, statistics. */
#include "agent.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

int memfd_with(const void *data, size_t size, struct sk_err *err)
{
	int fd = memfd_create("shardkeep:reply",
			      MFD_CLOEXEC | MFD_ALLOW_SEALING);
	size_t at = 0;

	while (fd >= 0 && at < size) {
		ssize_t n = write(fd, (const char *)data + at, size - at);

		if (n < 0) {
			n = -errno;
			sk_close_fd(fd);
			return sk_err_errno(err, (int)n, "cannot answer");
		}
		at += (size_t)n;
	}
	if (fd < 0)
		return sk_err_errno(err, -errno, "cannot answer");
	(void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW |
		    F_SEAL_WRITE);
	return fd;
}

/* ---- lists ---- */

struct records {
	char *v;
	size_t n, size;
};

static void *add_record(struct records *r)
{
	char *v = realloc(r->v, (r->n + 1) * r->size);

	if (!v)
		return NULL;
	r->v = v;
	return memset(v + r->n++ * r->size, 0, r->size);
}

static struct sk_wire_id id_of(const struct sk_cat_snapshot *s, int32_t rank)
{
	struct sk_wire_id id = { .run = s->run, .step = (int64_t)s->step,
				 .rank = rank, .world = s->world };

	strcpy(id.job, s->job->name);
	return id;
}

static uint32_t snapshot_flags(const struct sk_cat_snapshot *s)
{
	uint32_t flags = 0;

	for (struct sk_cat_image *i = s->images; i; i = i->next)
		flags |= (i->slot ? SK_SNAP_MEMORY : 0) |
			 (i->on_disk ? SK_SNAP_DISK : 0);
	return flags | (s->complete ? SK_SNAP_COMPLETE : 0) |
	       (sk_cat_durable(s) ? SK_SNAP_DURABLE : 0) |
	       (s->pinned ? SK_SNAP_PINNED : 0) |
	       (s->flushing ? SK_SNAP_FLUSHING : 0) |
	       (s->wanted && !sk_cat_durable(s) ? SK_SNAP_WANTED : 0) |
	       (s == sk_cat_newest_complete(s->job) ? SK_SNAP_NEWEST : 0) |
	       (sk_cat_in_use(s) ? SK_SNAP_IN_USE : 0) |
	       (s->failed ? SK_SNAP_FAILED : 0);
}

static uint32_t count_names(const struct sk_cat_snapshot *s)
{
	uint32_t n = 0;

	for (struct sk_cat_image *i = s->images; i; i = i->next)
		for (uint32_t k = 0; k < i->layout->n_items; k++) {
			const struct sk_item *item = &i->layout->items[k];
			struct sk_cat_image *b = s->images;

			while (b != i && !sk_layout_item(b->layout, item->kind,
							 item->spec.name))
				b = b->next;
			n += b == i;
		}
	return n;
}

static int list_snapshot(struct records *out, const struct sk_cat_snapshot *s)
{
	struct sk_wire_snapshot *r = add_record(out);

	if (!r)
		return -ENOMEM;
	r->id = id_of(s, -1);
	for (struct sk_cat_image *i = s->images; i; i = i->next) {
		r->bytes_memory += i->slot ? i->layout->image_bytes : 0;
		r->bytes_disk += i->on_disk ? i->layout->image_bytes : 0;
		r->images += i->kind == SK_IMAGE_PRIMARY;
	}
	r->created_ns = s->created_ns;
	r->flushed_bytes = s->flushed_bytes;
	r->flags = snapshot_flags(s);
	r->uid = s->job->uid;
	r->tensors = count_names(s);
	memcpy(r->text, s->text, sizeof(r->text));
	return 0;
}

static int list_place(struct records *out, const struct sk_cat_image *i,
		      uint32_t place)
{
	struct sk_wire_image *r = add_record(out);
	bool bad = place == SK_PLACE_MEMORY ? i->bad_memory : i->bad_disk;

	if (!r)
		return -ENOMEM;
	r->id = id_of(i->snapshot, i->rank);
	r->image = i->id;
	r->bytes = i->layout->image_bytes;
	r->digest = i->layout->digest;
	r->kind = i->kind;
	r->place = place;
	r->state = bad ? SK_IMAGE_BAD : !i->slot ? SK_IMAGE_STORED :
		   i->on_disk ? SK_IMAGE_DURABLE : SK_IMAGE_SEALED;
	return 0;
}

static int list_images(struct records *out, const struct sk_cat_snapshot *s,
		       int32_t rank)
{
	int r = 0;

	for (struct sk_cat_image *i = s->images; i && r >= 0; i = i->next) {
		if (rank >= 0 && i->rank != rank)
			continue;
		if (i->slot)
			r = list_place(out, i, SK_PLACE_MEMORY);
		if (i->on_disk && r >= 0)
			r = list_place(out, i, SK_PLACE_DISK);
	}
	return r;
}

static int reply_records(struct sk_msg *msg, struct records *records,
			 int *ret_fd, struct sk_err *err)
{
	int fd = memfd_with(records->v, records->n * records->size, err);

	free(records->v);
	if (fd < 0)
		return fd;
	memset(&msg->body, 0, sizeof(msg->body));
	msg->body.list_reply.n = records->n;
	msg->body.list_reply.record_bytes = (uint32_t)records->size;
	*ret_fd = fd;
	return 0;
}

int query_list(struct agent *a, struct session *s, struct sk_msg *msg,
	       int *ret_fd, struct sk_err *err)
{
	const struct sk_wire_list q = msg->body.list;
	struct records out = { .size = q.what == SK_LIST_IMAGES ?
			       sizeof(struct sk_wire_image) :
			       sizeof(struct sk_wire_snapshot) };
	int r = 0;

	if (q.what != SK_LIST_IMAGES && q.what != SK_LIST_SNAPSHOTS)
		return sk_err_set(err, -EINVAL, "there is no list %u", q.what);
	if (q.id.job[0])
		disk_scan_job(a, q.id.job);
	else
		disk_scan_all(a);
	for (struct sk_cat_job *j = a->cat.jobs; j && r >= 0; j = j->next) {
		if ((q.id.job[0] && strcmp(q.id.job, j->name)) ||
		    !session_may(a, s, j->uid))
			continue;
		for (struct sk_cat_snapshot *t = j->snapshots; t && r >= 0;
		     t = t->next)
			if ((!q.id.run || q.id.run == t->run) &&
			    (q.id.step < 0 || (uint64_t)q.id.step == t->step))
				r = q.what == SK_LIST_IMAGES ?
				    list_images(&out, t, q.id.rank) :
				    list_snapshot(&out, t);
	}
	if (r < 0) {
		free(out.v);
		return sk_err_set(err, r, "out of memory for a list");
	}
	return reply_records(msg, &out, ret_fd, err);
}

/* ---- opened images ---- */

static int open_disk(struct agent *a, const struct sk_cat_image *i,
		     struct sk_err *err)
{
	struct sk_stored f = { .step = i->snapshot->step, .rank = i->rank,
			       .world = i->snapshot->world };

	strcpy(f.job, i->snapshot->job->name);
	strcpy(f.dir, i->dir);
	return sk_store_open_image(a->store, &f, err);
}

static int header_fd(const struct sk_cat_image *i, struct sk_err *err)
{
	const struct sk_layout *l = i->layout;
	const struct sk_stamp stamp = { .run = i->snapshot->run,
					.step = i->snapshot->step,
					.sums = i->sums };
	char *header = malloc(l->header_bytes);
	int fd;

	if (!header)
		return sk_err_set(err, -ENOMEM, "out of memory");
	sk_layout_stamp(l, &stamp, header);
	fd = memfd_with(header, l->header_bytes, err);
	free(header);
	return fd;
}

static int lease(struct session *s, struct sk_cat_image *i)
{
	struct sk_cat_image **v = realloc(s->leases, (s->n_leases + 1) *
					  sizeof(struct sk_cat_image *));

	if (!v)
		return -ENOMEM;
	s->leases = v;
	v[s->n_leases++] = i;
	i->leases++;
	return 0;
}

int query_open(struct agent *a, struct session *s, struct sk_msg *msg,
	       int ret_fds[2], struct sk_err *err)
{
	const struct sk_wire_open q = msg->body.open;
	struct sk_cat_image *i = sk_cat_image_by_id(&a->cat, q.image);
	bool memory = q.place == SK_PLACE_MEMORY;
	int fds[2] = { -1, -1 };

	if (!i || !session_may(a, s, i->snapshot->job->uid) ||
	    (memory ? !i->slot : !i->on_disk))
		return sk_err_set(err, -ENOENT, "there is no image %llu there",
				  (unsigned long long)q.image);
	fds[0] = memory ? sk_slot_reopen_ro(a->os,
			&((struct rank_slot *)i->slot)->memory[i->kind], err) :
		 open_disk(a, i, err);
	if (fds[0] < 0)
		return fds[0];
	fds[1] = header_fd(i, err);
	if (fds[1] < 0 || lease(s, i) < 0) {
		sk_close_fd(fds[0]);
		sk_close_fd(fds[1]);
		return sk_err_set(err, -ENOMEM, "out of memory");
	}
	memset(&msg->body, 0, sizeof(msg->body));
	msg->body.open_reply = (struct sk_wire_open_reply){
		.image_bytes = i->layout->image_bytes,
		.header_bytes = i->layout->header_bytes, .place = q.place };
	ret_fds[0] = fds[0];
	ret_fds[1] = fds[1];
	return 0;
}

int query_close(struct agent *a, struct session *s, uint64_t image)
{
	(void)a;
	for (size_t k = 0; k < s->n_leases; k++)
		if (s->leases[k]->id == image) {
			s->leases[k]->leases--;
			s->leases[k] = s->leases[--s->n_leases];
			return 0;
		}
	return -ENOENT;
}

/* ---- statistics ---- */

static void stat_add(struct records *out, const char *name, int counter,
		     double value, const char *help)
{
	struct sk_wire_stat *r = add_record(out);

	if (!r)
		return;		/* a list without it */
	(void)snprintf(r->name, sizeof(r->name), "shardkeep_%s", name);
	(void)snprintf(r->help, sizeof(r->help), "%s", help);
	r->kind = counter != 0;
	r->value = value;
}

int query_stats(struct agent *a, struct sk_msg *msg, int *ret_fd,
		struct sk_err *err)
{
	struct records out = { .size = sizeof(struct sk_wire_stat) };
	const struct counters *c = &a->count;
	const struct {
		const char *name;
		int counter;
		double value;
		const char *help;
	} all[] = {
		{ "snapshots_sealed_total", 1, (double)c->sealed, "Images of ranks sealed." },
		{ "snapshots_complete_total", 1, (double)c->completed, "Snapshots that became complete." },
		{ "snapshots_durable_total", 1, (double)c->durable, "Snapshots that became durable." },
		{ "images_discarded_total", 1, (double)c->discarded, "Images lost while filling, or refused." },
		{ "images_bad_total", 1, (double)c->bad_images, "Images set aside for a bad checksum." },
		{ "evictions_total", 1, (double)c->evicted, "Images evicted from memory." },
		{ "slot_busy_total", 1, (double)c->busy, "Requests for a slot when none was free." },
		{ "sealed_bytes_total", 1, (double)c->bytes_sealed, "Bytes of sealed images." },
		{ "flushed_bytes_total", 1, (double)c->bytes_flushed, "Bytes made durable." },
		{ "flush_errors_total", 1, (double)c->flush_errors, "Flushes that failed and are tried again." },
		{ "protocol_errors_total", 1, (double)c->protocol_errors, "Messages that were none." },
		{ "connections_total", 1, (double)c->connections, "Connections accepted." },
		{ "connections_refused_total", 1, (double)c->refused, "Connections refused." },
		{ "connections", 0, (double)a->n_sessions, "Connections open." },
		{ "memory_budget_bytes", 0, (double)a->o.memory, "Memory for slots." },
		{ "memory_used_bytes", 0, (double)a->used, "Of it, slots registered." },
		{ "flush_rate_bytes_per_second", 0, c->flush_rate, "Speed of the last flush." },
		{ "durable_age_seconds", 0, c->durable_ns ? (double)(now_ns(a) - c->durable_ns) / 1e9 : -1, "Since a snapshot became durable; -1 none did." },
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(all); i++)
		stat_add(&out, all[i].name, all[i].counter, all[i].value,
			 all[i].help);
	return reply_records(msg, &out, ret_fd, err);
}
