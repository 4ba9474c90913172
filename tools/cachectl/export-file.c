/* SPDX-License-Identifier: Apache-2.0 */
/* Writing one file: header, fallocate, copies into a mapping, fsync. */
#include "export.h"

#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <jansson.h>

#include "bytes/checksum.h"
#include "bytes/copy.h"
#include "tensor/dtype.h"

/* ---- sources ---- */

int export_open(struct export *x, struct export_source *s)
{
	return ask_open(x->ctx, s->records[s->at], &s->opened);
}

void export_close(struct export *x, struct export_source *s)
{
	if (s->opened.layout)
		ask_close(x->ctx, s->records[s->at], &s->opened);
}

/* What another place holds has the same layout, so entries stay what they
 * are; specs that tensors point at are of the first layout, which is kept. */
static int next_place(struct export *x, struct export_source *s,
		      const struct export_tensor *t, uint32_t entry)
{
	struct sk_layout *first = s->opened.layout;
	int r = ask_report_bad(x->ctx, s->records[s->at], &s->opened,
			       entry + 1);

	if (r < 0)
		return r;
	if (s->at + 1 == s->n_records)
		return sk_err_set(&x->ctx->err, -EBADMSG, "\"%.100s\" of rank "
				  "%d is damaged: its bytes are not what was "
				  "sealed, and its image lies nowhere else",
				  t->name, s->rank);
	s->opened.layout = NULL;
	sk_close_fd(s->opened.fd);
	free(s->opened.stamp.sums);
	s->at++;
	r = export_open(x, s);
	if (r < 0) {
		s->opened.layout = first;
		s->opened.fd = -1;
		s->opened.stamp.sums = NULL;
		return r;
	}
	sk_layout_free(s->opened.layout);
	s->opened.layout = first;
	return 0;
}

/* ---- one tensor ---- */

static int prepare_copy(struct export *x, const struct export_tensor *t,
			const struct sk_entry *e, char *data,
			struct sk_copy *ret)
{
	unsigned bits = sk_dtype_bits(t->spec->dtype);
	int64_t whole[SK_MAX_DIMS], dense[SK_MAX_DIMS], at = 0;
	int n = t->spec->ndim, r;

	sk_dense_strides(n, t->spec->shape, whole);
	sk_dense_strides(n, e->box.size, dense);
	for (int d = 0; d < n; d++)
		at += e->box.offset[d] * whole[d];
	r = sk_copy_init(ret, bits, n, e->box.size,
			 data + t->offset + (uint64_t)at * bits / 8, whole,
			 x->buf, dense, &x->ctx->err);
	return r < 0 ? sk_err_prefix(&x->ctx->err, r, "tensor %s", t->name) :
		       0;
}

/* Signals that end a program wait until what has no name yet is gone. */
static bool interrupted(const struct export *x)
{
	sigset_t pending;

	return sigpending(&pending) == 0 &&
	       sigandset(&pending, &pending, &x->ending) == 0 &&
	       !sigisemptyset(&pending);
}

/* 1: all of it was what was sealed; 0: not, or it cannot be read; -EINTR. */
static int copy_entry(struct export *x, const struct export_source *s,
		      const struct sk_entry *e, const struct sk_copy *whole)
{
	for (uint32_t i = 0; i < e->n_sums; i++) {
		uint64_t at = i * SK_SUM_CHUNK;
		uint64_t n = e->bytes - at < SK_SUM_CHUNK ? e->bytes - at :
							    SK_SUM_CHUNK;
		struct sk_copy copy = *whole;

		if (interrupted(x))
			return sk_err_set(&x->ctx->err, -EINTR, "interrupted");
		if (sk_read_all(x->ctx->os, s->opened.fd, x->buf, n,
				e->offset + at) < 0 ||
		    sk_xxh3(x->buf, n) !=
			    s->opened.stamp.sums[e->first_sum + i])
			return 0;
		/* The buffer stands for the bytes [at, at + n) alone. */
		copy.src = (const char *)((uintptr_t)x->buf - at);
		sk_copy_run_range(&copy, at, at + n);
		x->done += n;
		progress_at(&x->progress, x->done);
	}
	return 1;
}

static int copy_tensor(struct export *x, const struct export_tensor *t,
		       char *data)
{
	for (size_t i = 0; i < t->n_pieces; i++) {
		struct export_source *s = &x->sources[t->pieces[i].source];
		const struct sk_entry *e =
			&s->opened.layout->entries[t->pieces[i].entry];
		struct sk_copy copy;
		int r;

		if (!e->bytes)
			continue;
		r = prepare_copy(x, t, e, data, &copy);
		while (r >= 0 && (r = copy_entry(x, s, e, &copy)) == 0)
			r = next_place(x, s, t, t->pieces[i].entry);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- the header ---- */

static json_t *shape_json(const struct sk_spec *spec)
{
	json_t *array = json_array();

	for (int d = 0; d < spec->ndim; d++)
		json_array_append_new(array, json_integer(spec->shape[d]));
	return array;
}

/* Format: u64 length, JSON padded with spaces to whole 8 bytes, data. */
static char *make_header(const struct export *x, size_t first, size_t last,
			 size_t *ret_bytes, uint64_t *ret_data)
{
	json_t *root = json_object();
	uint64_t data = 0, length;
	char *text, *header;
	size_t n;

	json_object_set_new(root, "__metadata__",
			    json_pack("{s:s}", "format", "pt"));
	for (size_t i = first; i < last; i++) {
		const struct export_tensor *t = &x->tensors[i];
		uint64_t end = t->offset + t->bytes;

		json_object_set_new(root, t->name, json_pack(
			"{s:s, s:o, s:[I, I]}", "dtype",
			sk_dtype_name(t->spec->dtype), "shape",
			shape_json(t->spec), "data_offsets",
			(json_int_t)t->offset, (json_int_t)end));
		data = end > data ? end : data;
	}
	text = json_dumps(root, JSON_COMPACT);
	json_decref(root);
	if (!text)
		return NULL;
	n = sk_round_up(strlen(text), 8);
	header = malloc(n + 8);
	if (header) {
		length = htole64(n);
		memcpy(header, &length, 8);
		memset(header + 8, ' ', n);
		/* No string: its length stands before it.
		 * NOLINTNEXTLINE(bugprone-not-null-terminated-result) */
		memcpy(header + 8, text, strlen(text));
		*ret_bytes = n + 8;
		*ret_data = data;
	}
	free(text);
	return header;
}

/* ---- the file ---- */

static int fill(struct export *x, int fd, const char *path, size_t first,
		size_t last)
{
	size_t header_bytes = 0;
	uint64_t data_bytes = 0, bytes;
	_cleanup_free_ char *header = make_header(x, first, last,
						  &header_bytes, &data_bytes);
	char *map;
	int r;

	if (!header)
		return sk_err_set(&x->ctx->err, -ENOMEM, "out of memory");
	bytes = header_bytes + data_bytes;
	/* A full disk is told here, not by a signal. */
	r = -posix_fallocate(fd, 0, (off_t)bytes);
	if (r < 0)
		return sk_err_errno(&x->ctx->err, r, "cannot reserve %" PRIu64
				    " bytes for %s", bytes, path);
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return sk_err_errno(&x->ctx->err, -errno, "cannot map %s",
				    path);
	memcpy(map, header, header_bytes);
	for (size_t i = first; i < last && r >= 0; i++)
		r = copy_tensor(x, &x->tensors[i], map + header_bytes);
	munmap(map, bytes);
	return r;
}

/* Beside @path. Not found is said of snapshots. */
static int make_temporary(struct export *x, const char *path,
			  char **ret_temporary)
{
	int fd;

	if (asprintf(ret_temporary, "%s.partial.XXXXXX", path) < 0) {
		*ret_temporary = NULL;
		return sk_err_set(&x->ctx->err, -ENOMEM, "out of memory");
	}
	fd = mkostemp(*ret_temporary, O_CLOEXEC);
	if (fd < 0) {
		sk_err_errno(&x->ctx->err, -errno, "cannot make %s", path);
		free(sk_take_ptr(*ret_temporary));
		return -EIO;
	}
	return fd;
}

/* What was written so far came to @r. */
static int finish(struct export *x, const char *path, int fd, char *temporary,
		  int r)
{
	if (r >= 0 && (fsync(fd) < 0 || fchmod(fd, 0644) < 0))
		r = sk_err_errno(&x->ctx->err, -errno, "cannot write %s",
				 path);
	sk_close_fd(fd);
	if (r >= 0)
		return export_add_file(x, path, temporary);
	(void)unlink(temporary);
	free(temporary);
	return r;
}

int export_write(struct export *x, const char *path, size_t first, size_t last)
{
	char *temporary;
	int fd = make_temporary(x, path, &temporary);

	return fd < 0 ? fd : finish(x, path, fd, temporary,
				    fill(x, fd, path, first, last));
}

int export_write_text(struct export *x, const char *path, const char *text)
{
	char *temporary;
	int fd = make_temporary(x, path, &temporary), r = 0;

	if (fd < 0)
		return fd;
	if (dprintf(fd, "%s", text) < 0)
		r = sk_err_errno(&x->ctx->err, -errno, "cannot write %s",
				 path);
	return finish(x, path, fd, temporary, r);
}
