/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cachectl export: a snapshot as whole tensors, in one safetensors file or,
 * in a directory, in several with an index, as model hubs have them.
 */
#include "export.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <jansson.h>

#include "base/array.h"
#include "tensor/dtype.h"

static const struct column columns[] = {
	{ "file", "FILE" }, { "tensors", "TENSORS" }, { "bytes", "BYTES" },
};

/* ---- sources ---- */

static bool readable(const struct sk_wire_image *m)
{
	return m->kind == SK_IMAGE_PRIMARY && m->state != SK_IMAGE_FILLING &&
	       m->state != SK_IMAGE_BAD;
}

/* Images come by rank. */
static struct export_source *source_of(struct export *x, int32_t rank)
{
	if (x->n_sources && x->sources[x->n_sources - 1].rank == rank)
		return &x->sources[x->n_sources - 1];
	x->sources[x->n_sources] = (struct export_source){
		.rank = rank, .opened.fd = -1 };
	return &x->sources[x->n_sources++];
}

/* Memory first: it is nearer. */
static void add_record(struct export_source *s, const struct sk_wire_image *m)
{
	if (s->n_records == 2)
		return;
	s->records[s->n_records++] = m;
	if (s->n_records == 2 && m->place == SK_PLACE_MEMORY) {
		s->records[1] = s->records[0];
		s->records[0] = m;
	}
}

/* Whether of what was listed a moment ago some has gone since: nobody has the
 * bytes that are only there. */
static int check_there(struct export *x, const struct sk_wire_snapshot *s)
{
	if (x->n_sources >= s->images)
		return 0;
	return sk_err_set(&x->ctx->err, -ENOENT, "of step %" PRId64 " of run %"
			  PRIu64 " of job \"%s\" images went while they were "
			  "looked at", s->id.step, s->id.run, s->id.job);
}

/* Each rank's image stays open: of more than a thousand ranks that is more than
 * most limits are, and less than they may be. */
static void raise_descriptors(const struct sk_os *os)
{
	struct rlimit limit;

	if (os->getrlimit(os, RLIMIT_NOFILE, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	(void)os->setrlimit(os, RLIMIT_NOFILE, &limit);
}

static int open_source(struct export *x, struct export_source *s)
{
	int r = export_open(x, s);

	if (r >= 0 && briefs_add(&x->briefs, &s->opened.layout) < 0)
		r = sk_err_set(&x->ctx->err, -ENOMEM, "out of memory");
	return r;
}

static int open_sources(struct export *x, const struct sk_wire_snapshot *s)
{
	int r = ask_images(x->ctx, &s->id, &x->records, &x->n_records);

	raise_descriptors(x->ctx->os);
	if (r < 0)
		return r;
	x->sources = calloc(x->n_records + 1, sizeof(*x->sources));
	if (!x->sources)
		return sk_err_set(&x->ctx->err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < x->n_records; i++)
		if (readable(&x->records[i]))
			add_record(source_of(x, x->records[i].id.rank),
				   &x->records[i]);
	r = check_there(x, s);
	for (size_t i = 0; i < x->n_sources && r >= 0; i++)
		r = open_source(x, &x->sources[i]);
	return r;
}

/* ---- tensors ---- */

static int add_piece(struct export *x, struct export_tensor *t, size_t source,
		     uint32_t entry)
{
	if (sk_array_fit(t->pieces, t->room, t->n_pieces + 1) < 0)
		return sk_err_set(&x->ctx->err, -ENOMEM, "out of memory");
	t->pieces[t->n_pieces++] = (struct export_piece){ source, entry };
	return 0;
}

/* Objects that the Python package keeps in tensors of bytes (docs/format.md):
 * like blobs, nothing that a reader of weights looks for. */
static bool is_object(const char *name)
{
	static const char *const prefixes[] = {
		"python:", "dcp.bytes.", "dcp.plan.",
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(prefixes); i++)
		if (!strncmp(name, prefixes[i], strlen(prefixes[i])))
			return true;
	return false;
}

/* NULL: not to be exported. A name that is only the prefix stays whole. */
static const char *exported_name(const char *name, const char *prefix)
{
	size_t n = prefix ? strlen(prefix) : 0;

	if (is_object(name) || (n && strncmp(name, prefix, n) != 0))
		return NULL;
	return name[n] ? name + n : name;
}

static int set_bytes(struct export *x, struct export_tensor *t)
{
	uint64_t count = 1;

	for (int d = 0; d < t->spec->ndim; d++)
		if (!sk_mul_u64(count, (uint64_t)t->spec->shape[d], &count))
			return sk_err_set(&x->ctx->err, -EOVERFLOW, "tensor "
					  "%s is larger than any memory",
					  t->name);
	return sk_dtype_bytes(t->spec->dtype, count, &t->bytes, &x->ctx->err);
}

static int add_tensor(struct export *x, const char *name,
		      const struct sk_spec *spec)
{
	struct export_tensor *t;

	if (sk_array_fit(x->tensors, x->room_tensors, x->n_tensors + 1) < 0)
		return sk_err_set(&x->ctx->err, -ENOMEM, "out of memory");
	t = &x->tensors[x->n_tensors++];
	*t = (struct export_tensor){ .name = name, .spec = spec };
	return set_bytes(x, t);
}

static int add_tensors(struct export *x, json_t *index, size_t source,
		       const char *prefix)
{
	const struct sk_layout *l = x->sources[source].opened.layout;
	int r = 0;

	for (uint32_t i = 0; i < l->n_entries && r >= 0; i++) {
		const struct sk_item *item = &l->items[l->entries[i].item];
		const char *name = exported_name(item->spec.name, prefix);
		json_t *known;

		if (item->kind != SK_ITEM_TENSOR || !name)
			continue;
		known = json_object_get(index, name);
		if (!known) {
			known = json_integer((json_int_t)x->n_tensors);
			if (json_object_set_new(index, name, known) < 0)
				return sk_err_set(&x->ctx->err, -ENOMEM,
						  "out of memory");
			r = add_tensor(x, name, &item->spec);
			if (r < 0)
				return r;
		}
		r = add_piece(x, &x->tensors[json_integer_value(known)],
			      source, i);
	}
	return r;
}

/* Widest dtype first, as safetensors' own writer sorts; then by name. */
static int by_width(const void *a, const void *b)
{
	const struct export_tensor *x = a, *y = b;
	unsigned wx = sk_dtype_bits(x->spec->dtype);
	unsigned wy = sk_dtype_bits(y->spec->dtype);

	if (wx != wy)
		return wx < wy ? 1 : -1;
	return strcmp(x->name, y->name);
}

static int collect(struct export *x, const char *prefix)
{
	json_t *index = json_object();
	int r = 0;

	if (!index)
		r = sk_err_set(&x->ctx->err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < x->n_sources && r >= 0; i++)
		r = add_tensors(x, index, i, prefix);
	json_decref(index);
	if (r >= 0 && !x->n_tensors)
		return sk_err_set(&x->ctx->err, -ENOENT, "the snapshot has no "
				  "tensor whose name begins with \"%s\"",
				  prefix ? prefix : "");
	if (r >= 0)
		qsort(x->tensors, x->n_tensors, sizeof(*x->tensors), by_width);
	return r;
}

/* A file ends before the tensor that would make it larger than @most. */
static uint64_t cut_files(struct export *x, uint64_t most)
{
	uint64_t in_file = 0, total = 0;

	x->n_files = 1;
	for (size_t i = 0; i < x->n_tensors; i++) {
		struct export_tensor *t = &x->tensors[i];

		if (in_file && most && in_file + t->bytes > most) {
			x->n_files++;
			in_file = 0;
		}
		t->file = x->n_files - 1;
		t->offset = in_file;
		in_file += t->bytes;
		total += t->bytes;
	}
	return total;
}

/* ---- files ---- */

static int write_one(struct export *x, const char *path, size_t first,
		     size_t *ret_last)
{
	uint64_t bytes = 0;
	size_t last = first;
	int r;

	while (last < x->n_tensors &&
	       x->tensors[last].file == x->tensors[first].file)
		bytes += x->tensors[last++].bytes;
	r = export_write(x, path, first, last);
	if (r < 0)
		return r;
	x->written[x->n_written - 1].tensors = last - first;
	x->written[x->n_written - 1].bytes = bytes;
	*ret_last = last;
	return 0;
}

static int name_all(struct export *x, const char *index)
{
	struct report *report = x->ctx->report;
	int r = export_name(x, index);

	for (size_t i = 0; i < x->n_written && r >= 0; i++) {
		const struct export_file *f = &x->written[i];

		if (!f->tensors)
			continue;
		report_cell_name(report, "%s", f->path);
		report_cell(report, CELL_INT, (int64_t)f->tensors);
		report_cell(report, CELL_BYTES, (int64_t)f->bytes);
	}
	return r;
}

static int write_directory(struct export *x, const char *path, uint64_t total)
{
	_cleanup_free_ char *index = NULL;
	int r = export_enter(x, path);
	size_t first = 0;
	char name[64];

	for (size_t i = 0; i < x->n_files && r >= 0; i++) {
		_cleanup_free_ char *file = NULL;

		export_file_name(x, i, name, sizeof(name));
		if (asprintf(&file, "%s/%s", path, name) < 0)
			return sk_err_set(&x->ctx->err, -ENOMEM,
					  "out of memory");
		r = write_one(x, file, first, &first);
	}
	if (r >= 0 && x->n_files > 1)
		r = asprintf(&index, "%s/" EXPORT_INDEX, path) < 0 ?
			    sk_err_set(&x->ctx->err, -ENOMEM,
				       "out of memory") :
			    export_write_index(x, index, total);
	return r < 0 ? r : name_all(x, index);
}

static int write_file(struct export *x, const char *path)
{
	size_t last;
	int r = write_one(x, path, 0, &last);

	return r < 0 ? r : name_all(x, NULL);
}

/* ---- the command ---- */

static void release(struct export *x)
{
	export_release_files(x);
	for (size_t i = 0; i < x->n_tensors; i++)
		free(x->tensors[i].pieces);
	free(x->tensors);
	for (size_t i = 0; i < x->n_sources; i++)
		export_close(x, &x->sources[i]);
	free(x->sources);
	briefs_release(&x->briefs);
	free(x->records);
}

static bool names_file(const char *path)
{
	size_t n = strlen(path);

	return n > 12 && !strcmp(path + n - 12, ".safetensors");
}

static int export(struct export *x, const struct sk_wire_snapshot *s,
		  const char *path)
{
	bool directory = !names_file(path);
	uint64_t total;
	int r;

	r = open_sources(x, s);
	if (r >= 0)
		r = collect(x, x->ctx->prefix);
	if (r < 0)
		return r;
	total = cut_files(x, directory ? x->ctx->shard_bytes : 0);
	progress_start(&x->progress, "exported", NULL, total);
	r = directory ? write_directory(x, path, total) : write_file(x, path);
	progress_end(&x->progress);
	return r;
}

/* Those that are ignored, as after nohup or in a script's background, are no
 * matter: blocked they would be pending all the same. */
static void find_ending(sigset_t *ret)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction now;

	(void)sigemptyset(ret);
	for (size_t i = 0; i < SK_ARRAY_SIZE(signals); i++)
		if (sigaction(signals[i], NULL, &now) == 0 &&
		    now.sa_handler != SIG_IGN)
			(void)sigaddset(ret, signals[i]);
}

/* What would end this program does so when nothing of it is left. */
static int export_held(struct export *x, const struct sk_wire_snapshot *s,
		       const char *path)
{
	sigset_t before;
	int r;

	find_ending(&x->ending);
	(void)sigprocmask(SIG_BLOCK, &x->ending, &before);
	r = export(x, s, path);
	release(x);
	(void)sigprocmask(SIG_SETMASK, &before, NULL);
	return r;
}

int command_export(struct context *ctx, int argc, char **argv)
{
	_cleanup_free_ char *buf = malloc(SK_SUM_CHUNK);
	struct export x = { .ctx = ctx, .buf = buf };
	struct sk_wire_snapshot s;
	int r;

	(void)argc;
	if (!buf)
		return sk_err_set(&ctx->err, -ENOMEM, "out of memory");
	if (ctx->shard_bytes && names_file(argv[1])) {
		ctx->misused = true;
		return sk_err_set(&ctx->err, -EINVAL, "--shard-size is for a "
				  "directory, %s is one file", argv[1]);
	}
	r = ask_complete(ctx, argv[0], &s);
	if (r < 0)
		return r;
	if (!(s.flags & SK_SNAP_COMPLETE))
		return sk_err_set(&ctx->err, is_damaged(&s) ? -EBADMSG :
				  -EAGAIN, "snapshot %s is not complete: %s",
				  argv[0], s.text);
	s.id.rank = -1;
	report_table(ctx->report, "files", NULL, columns,
		     SK_ARRAY_SIZE(columns));
	return export_held(&x, &s, argv[1]);
}
