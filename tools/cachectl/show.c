/* SPDX-License-Identifier: Apache-2.0 */
/* cachectl show: a snapshot's summary and images; the rest is others'. */
#include "show.h"

#include <stdio.h>
#include <string.h>

static const struct column image_columns[] = {
	{ "rank", "RANK" }, { "kind", "KIND" }, { "place", "PLACE" },
	{ "state", "STATE" }, { "bytes", "BYTES" }, { "layout", "LAYOUT" },
};

void images_free(struct images *im)
{
	free(im->records);
}

int images_list(struct context *ctx, const struct sk_wire_id *id,
		struct images *im)
{
	return ask_images(ctx, id, &im->records, &im->n);
}

static bool readable(const struct sk_wire_image *image)
{
	return image->state != SK_IMAGE_FILLING &&
	       image->state != SK_IMAGE_BAD;
}

int images_each(struct context *ctx, const struct images *im,
		int (*fn)(void *data, const struct sk_wire_image *record,
			  const struct opened *opened), void *data)
{
	const struct sk_wire_image *last[2] = { NULL };	/* by kind */
	struct progress p;
	int r = 0;

	progress_start(&p, "looked at", "images", im->n);
	for (size_t i = 0; i < im->n && r >= 0; i++) {
		const struct sk_wire_image *m = &im->records[i], **before;
		struct opened opened;

		progress_at(&p, i);
		before = &last[m->kind != SK_IMAGE_PRIMARY];
		/* Another place of the same one stands beside it. */
		if (!readable(m) || (*before && (*before)->id.rank ==
				     m->id.rank))
			continue;
		r = ask_open(ctx, m, &opened);
		if (r < 0)
			break;
		*before = m;
		if (fn(data, m, &opened) < 0)
			r = sk_err_set(&ctx->err, -ENOMEM, "out of memory");
		ask_close(ctx, m, &opened);
	}
	progress_end(&p);
	return r;
}

static int add_row_of(void *data, const struct sk_wire_image *record,
		      const struct opened *opened)
{
	return rows_add(data, opened->layout,
			record->kind == SK_IMAGE_PRIMARY);
}

int rows_collect(struct context *ctx, const struct images *im,
		 struct rows *rows)
{
	return images_each(ctx, im, add_row_of, rows);
}

static int show_tensors(struct context *ctx, const struct images *im)
{
	struct rows rows = { 0 };
	int r = rows_collect(ctx, im, &rows);

	if (r >= 0)
		rows_report(&rows, ctx->report);
	rows_free(&rows);
	return r;
}

static void show_summary(struct context *ctx,
			 const struct sk_wire_snapshot *s)
{
	struct report *r = ctx->report;
	char words[160];

	report_text(r, "job", "job", "%s", s->id.job);
	report_number(r, "run", "run", CELL_INT, (int64_t)s->id.run);
	report_text(r, "run_id", "run id", "%016llx",
		    (unsigned long long)s->id.run_id);
	report_number(r, "step", "step", CELL_INT, s->id.step);
	report_number(r, "world", "ranks", CELL_INT, s->id.world);
	report_words(r, "state", "state",
		     snapshot_words(s, words, sizeof(words)));
	report_number(r, "memory_bytes", "memory", CELL_BYTES,
		      (int64_t)s->bytes_memory);
	report_number(r, "disk_bytes", "disk", CELL_BYTES,
		      (int64_t)s->bytes_disk);
	report_text(r, "note", s->text[0] ? "note" : NULL, "%s", s->text);
}

const char *image_kind_word(const struct sk_wire_image *m)
{
	return m->kind == SK_IMAGE_PRIMARY ? "primary" : "replica";
}

static void show_images(struct context *ctx, const struct images *im)
{
	char digest[33];

	report_table(ctx->report, "images", "Images", image_columns,
		     SK_ARRAY_SIZE(image_columns));
	for (size_t i = 0; i < im->n; i++) {
		const struct sk_wire_image *m = &im->records[i];

		report_cell(ctx->report, CELL_INT, m->id.rank);
		report_cell_text(ctx->report, "%s", image_kind_word(m));
		report_cell_text(ctx->report, "%s",
				 m->place == SK_PLACE_MEMORY ? "memory" :
							       "disk");
		report_cell_text(ctx->report, "%s",
				 image_state_word(m->state));
		report_cell(ctx->report, CELL_BYTES, (int64_t)m->bytes);
		report_cell_text(ctx->report, "%.12s",
				 sk_digest_format(&m->digest, digest));
	}
}

int command_show(struct context *ctx, int argc, char **argv)
{
	struct sk_wire_snapshot s;
	struct images im = { 0 };
	int r = ask_snapshot(ctx, argv[0], &s);

	if (r < 0)
		return r;
	show_summary(ctx, &s);
	r = images_list(ctx, &s.id, &im);
	if (r >= 0)
		r = argc > 1 ? show_tensor(ctx, &im, argv[1]) :
			       show_tensors(ctx, &im);
	if (r >= 0 || r == -ENOENT)
		show_images(ctx, &im);
	images_free(&im);
	return r;
}
