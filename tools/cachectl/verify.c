/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cachectl verify: hashes every entry of every image, in memory and on disk,
 * against the checksums that the agent keeps.
 */
#include "cachectl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bytes/checksum.h"
#include "lists.h"

static const struct column columns[] = {
	{ "job", "JOB" }, { "run", "RUN" }, { "step", "STEP" },
	{ "rank", "RANK" }, { "kind", "KIND" }, { "place", "PLACE" },
	{ "bytes", "BYTES" }, { "entries", "ENTRIES" },
	{ "result", "RESULT" }, { "bad", NULL },
};

/* What changes each time that it is looked at cannot be verified. */
#define LOOKS_MAX 4
#define NAMED 3u			/* of bad parts */

/* Those that were not what was listed when they were opened. */
struct gone {
	struct sk_wire_image *images;
	size_t n;
	struct listed listed;	/* the same ones */
};

struct verify {
	struct context *ctx;
	struct progress progress;
	uint64_t done;
	size_t images, bad_images;
	char *buf;		/* SK_SUM_CHUNK bytes */
};

/* 1 it is what it was, 0 it is not (or cannot be read, which is as bad). */
static int entry_good(struct verify *v, const struct opened *o,
		      const struct sk_entry *e)
{
	for (uint32_t i = 0; i < e->n_sums; i++) {
		uint64_t at = i * SK_SUM_CHUNK;
		uint64_t n = e->bytes - at < SK_SUM_CHUNK ? e->bytes - at :
							    SK_SUM_CHUNK;

		if (sk_read_all(v->ctx->os, o->fd, v->buf, n,
				e->offset + at) < 0 ||
		    sk_xxh3(v->buf, n) != o->stamp.sums[e->first_sum + i])
			return 0;
		v->done += n;
		progress_at(&v->progress, v->done);
	}
	return 1;
}

/* The header where the bytes lie, against the one that the agent keeps. */
static bool header_good(struct verify *v, const struct opened *o)
{
	uint64_t n = o->layout->header_bytes;
	_cleanup_free_ char *kept = malloc(n), *there = malloc(n);

	if (!kept || !there ||
	    sk_read_all(v->ctx->os, o->fd, there, n, 0) < 0)
		return false;
	sk_layout_stamp(o->layout, &o->stamp, kept);
	return memcmp(kept, there, n) == 0;
}

static void add_row(struct verify *v, const struct sk_wire_image *m,
		    uint32_t entries, uint32_t bad, const char *names)
{
	struct report *r = v->ctx->report;

	report_cell_name(r, "%s", m->id.job);
	report_cell(r, CELL_INT, (int64_t)m->id.run);
	report_cell(r, CELL_INT, m->id.step);
	report_cell(r, CELL_INT, m->id.rank);
	report_cell_text(r, "%s", m->kind == SK_IMAGE_PRIMARY ? "primary" :
								"replica");
	report_cell_text(r, "%s", m->place == SK_PLACE_MEMORY ? "memory" :
								"disk");
	report_cell(r, CELL_BYTES, (int64_t)m->bytes);
	report_cell(r, CELL_INT, entries);
	report_cell_text(r, "%s%s", bad ? "BAD: " : "good", names);
	report_cell(r, CELL_INT, bad);
}

/* How many parts of it are bad, the names of a few, and the first of its
 * entries, from 1 on; 0: none. */
static uint32_t find_bad(struct verify *v, struct opened *o, char *names,
			 size_t size, uint32_t *ret_first)
{
	uint32_t bad = 0, n = o->layout->n_entries;
	char key[SK_ERR_MAX];

	*ret_first = 0;
	if (!header_good(v, o)) {
		(void)snprintf(names, size, "the header");
		bad++;
	}
	for (uint32_t i = 0; i < n; i++) {
		const struct sk_entry *e = &o->layout->entries[i];
		size_t at = strlen(names);

		if (entry_good(v, o, e))
			continue;
		*ret_first = *ret_first ? *ret_first : i + 1;
		if (bad++ < NAMED)
			(void)snprintf(names + at, size - at, "%s%s",
				       at ? ", " : "",
				       sk_layout_key(o->layout, e, key,
						     sizeof(key)));
	}
	if (bad > NAMED)
		(void)snprintf(names + strlen(names), size - strlen(names),
			       ", ...");
	return bad;
}

static int verify_image(struct verify *v, const struct sk_wire_image *m)
{
	char names[200] = "";
	uint32_t bad, first;
	struct opened o;
	int r = ask_open(v->ctx, m, &o);

	if (r < 0)
		return r;
	bad = find_bad(v, &o, names, sizeof(names), &first);
	r = bad ? ask_report_bad(v->ctx, m, &o, first) : 0;
	if (r == 0) {
		v->images++;
		v->bad_images += bad > 0;
		add_row(v, m, o.layout->n_entries, bad, names);
	}
	ask_close(v->ctx, m, &o);
	return r;
}

static bool can_verify(const struct sk_wire_image *m)
{
	return m->state == SK_IMAGE_SEALED || m->state == SK_IMAGE_DURABLE ||
	       m->state == SK_IMAGE_STORED || m->state == SK_IMAGE_BAD;
}

/* Images that the argument names: of one snapshot, of a job, or all. */
static int find_images(struct context *ctx, const char *text,
		       struct sk_wire_image **ret, size_t *ret_n)
{
	struct sk_wire_id id = { .step = -1, .rank = -1 };
	struct sk_wire_snapshot latest;
	int r = 0;

	if (text)
		r = ask_parse_snapshot(ctx, text, &id);
	if (r >= 0 && text && ask_is_latest(text)) {
		r = ask_snapshot(ctx, text, &latest);
		if (r >= 0) {
			id.run = latest.id.run;
			id.step = latest.id.step;
		}
	}
	if (r >= 0)
		r = ask_images(ctx, &id, ret, ret_n);
	if (r >= 0 && text && !*ret_n)
		return sk_err_set(&ctx->err, -ENOENT,
				  "there is no snapshot %s", text);
	return r;
}

static bool is_one_of(const struct gone *gone, const struct sk_wire_image *m)
{
	struct listed_walk walk = listed_find(&gone->listed, &m->id);
	const struct sk_wire_image *g;

	while ((g = listed_next(&walk)))
		if (g->id.run == m->id.run && g->id.run_id == m->id.run_id &&
		    g->kind == m->kind && g->place == m->place)
			return true;
	return false;
}

static void gone_free(struct gone *gone)
{
	listed_free(&gone->listed);
	free(gone->images);
}

/* Of those listed, what was @gone before, all at the first look; what is gone
 * now. */
static int verify_listed(struct verify *v, struct gone *gone, bool all,
			 const struct sk_wire_image *images, size_t n)
{
	struct gone now = { .images = calloc(n + 1, sizeof(*images)) };
	int r = 0;

	if (!now.images)
		return sk_err_set(&v->ctx->err, -ENOMEM, "out of memory");
	for (size_t i = 0; r >= 0 && i < n; i++) {
		if (!can_verify(&images[i]) ||
		    (!all && !is_one_of(gone, &images[i])))
			continue;
		r = verify_image(v, &images[i]);
		/* Another agent has other numbers for them. */
		if (r != -ENOENT && r != -ECONNRESET)
			continue;
		now.images[now.n++] = images[i];
		r = 0;
	}
	if (listed_note(&now.listed, now.images, sizeof(*now.images),
			now.n) < 0)
		r = sk_err_set(&v->ctx->err, -ENOMEM, "out of memory");
	gone_free(gone);
	*gone = now;
	return r;
}

static int look(struct verify *v, const char *text, struct gone *gone,
		bool all)
{
	_cleanup_free_ struct sk_wire_image *images = NULL;
	uint64_t total = 0;
	size_t n = 0;
	int r = find_images(v->ctx, text, &images, &n);

	for (size_t i = 0; r >= 0 && i < n; i++)
		total += all || is_one_of(gone, &images[i]) ? images[i].bytes :
							      0;
	progress_start(&v->progress, "verified", NULL, total);
	v->done = 0;
	if (r >= 0)
		r = verify_listed(v, gone, all, images, n);
	progress_end(&v->progress);
	return r;
}

/* One that is not what was listed is gone, or another one by now, which is
 * there to be verified. */
static int verify_some(struct verify *v, const char *text)
{
	struct gone gone = { 0 };
	int r = look(v, text, &gone, true);

	for (int i = 1; r >= 0 && gone.n && i < LOOKS_MAX; i++) {
		r = look(v, text, &gone, false);
		if (r == -ENOENT)	/* all of them */
			gone.n = 0;
		r = r == -ENOENT ? 0 : r;
	}
	if (r >= 0 && gone.n)
		r = sk_err_set(&v->ctx->err, -EBUSY, "%zu images are not "
			       "verified, of rank %" PRId32 " of step %" PRId64
			       " first: they were replaced each time that they "
			       "were opened", gone.n, gone.images[0].id.rank,
			       gone.images[0].id.step);
	gone_free(&gone);
	return r;
}

/* What lies on disk as an image and is none is in no list of images. */
static int verify_all_of(struct verify *v, const char *text)
{
	struct sk_wire_id id = { .step = -1, .rank = -1 };
	int found = verify_some(v, text), r = 0;

	if (found < 0 && found != -ENOENT)
		return found;
	if (text)
		r = ask_parse_snapshot(v->ctx, text, &id);
	if (r >= 0)
		r = ask_gaps(v->ctx, &id);
	return r < 0 ? r : found;
}

struct verdict {
	int r;
	struct sk_err err;
};

/* One that is not there, or damaged, hides no other. */
static int verify_next(struct verify *v, const char *text,
		       struct verdict *verdict)
{
	int r = verify_all_of(v, text);

	if (r >= 0 || (r != -ENOENT && r != -EBUSY && r != -EBADMSG))
		return r;
	/* Damage is the worst of it. */
	if (verdict->r == 0 || (r == -EBADMSG && verdict->r != r))
		*verdict = (struct verdict){ r, v->ctx->err };
	return 0;
}

static int tell(struct verify *v, const struct verdict *verdict)
{
	struct sk_err *err = &v->ctx->err;

	v->ctx->found = v->images || verdict->r == -EBADMSG;
	if (v->bad_images)
		return sk_err_set(err, -EBADMSG, "%zu of %zu images have bytes "
				  "that are not what was sealed; they are set "
				  "aside%s%s", v->bad_images, v->images,
				  verdict->r < 0 ? "; " : "",
				  verdict->err.text);
	*err = verdict->err;
	return verdict->r;
}

int command_verify(struct context *ctx, int argc, char **argv)
{
	struct verdict verdict = { 0 };
	_cleanup_free_ char *buf = malloc(SK_SUM_CHUNK);
	struct verify v = { .ctx = ctx, .buf = buf };
	struct sk_wire_id id;
	int r = 0;

	if (!buf)
		return sk_err_set(&ctx->err, -ENOMEM, "out of memory");
	report_table(ctx->report, "images", NULL, columns,
		     SK_ARRAY_SIZE(columns));
	for (int i = 0; i < argc && r >= 0; i++)	/* all, or none */
		r = ask_parse_snapshot(ctx, argv[i], &id);
	for (int i = 0; r >= 0 && (i < argc || !i); i++)
		r = verify_next(&v, argc ? argv[i] : NULL, &verdict);
	return r < 0 ? r : tell(&v, &verdict);
}
