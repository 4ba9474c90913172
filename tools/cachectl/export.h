/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot as whole tensors in plain safetensors files, for export.c.
 *
 * Not thread-safe. Files are written under temporary names, and get their own
 * when all are whole and synced.
 */
#ifndef SK_CACHECTL_EXPORT_H
#define SK_CACHECTL_EXPORT_H

#include <signal.h>

#include "briefs.h"
#include "cachectl.h"

#define EXPORT_INDEX "model.safetensors.index.json"

/** One box of a tensor: entry @entry of the image of @rank. */
struct export_piece {
	size_t source;		/* index into export.sources */
	uint32_t entry;
};

/** One tensor, whole. */
struct export_tensor {
	const char *name;	/* in the file: without the prefix */
	const struct sk_spec *spec;	/* in a source's layout */
	uint64_t bytes;
	uint64_t offset;	/* in the data of its file */
	size_t file;
	struct export_piece *pieces;
	size_t n_pieces, room;
};

/** The primary image of a rank, in the places where it lies. */
struct export_source {
	int32_t rank;
	const struct sk_wire_image *records[2];
	int n_records, at;	/* the place in use */
	struct opened opened;
};

/** A file that is whole, until it has its name. */
struct export_file {
	char *path;
	char *temporary;	/* NULL: it has its name */
	size_t tensors;		/* 0: the index */
	uint64_t bytes;
};

struct export {
	struct context *ctx;
	struct sk_wire_image *records;
	size_t n_records;
	struct export_source *sources;
	size_t n_sources;
	struct briefs briefs;	/* of their layouts */
	struct export_tensor *tensors;
	size_t n_tensors, room_tensors;
	size_t n_files;		/* without the index */
	struct export_file *written;
	size_t n_written, room_written;
	struct progress progress;
	uint64_t done;
	char *buf;		/* SK_SUM_CHUNK bytes */
	sigset_t ending;	/* signals that end it, blocked */
};

/** Opens the place in use of a source. */
int export_open(struct export *x, struct export_source *s);
void export_close(struct export *x, struct export_source *s);

/**
 * Writes the tensors [first, last), all of file @path, beside it, to be named
 * by export_name(). Every byte is verified; a bad image is set aside and
 * another place used. The signals x->ending, which the caller has blocked, end
 * it. Errors: -EBADMSG no place is left; -EINTR; -ENOSPC; -EFBIG; -EIO;
 * -EACCES; -ENOMEM.
 */
int export_write(struct export *x, const char *path, size_t first,
		 size_t last);

/** The same of a text. */
int export_write_text(struct export *x, const char *path, const char *text);

/* ---- export-names.c ---- */

/** What file @file of n_files is called in a directory. */
void export_file_name(const struct export *x, size_t file, char *ret,
		      size_t size);

/** The index of a directory, beside @path, of @total bytes of tensors. */
int export_write_index(struct export *x, const char *path, uint64_t total);

/** Makes @directory where there is none. Errors: -EEXIST it has weights that
 * this export does not replace; -EIO. */
int export_enter(struct export *x, const char *directory);

/** @temporary is whole, and to become @path. It is taken over. */
int export_add_file(struct export *x, const char *path, char *temporary);

/** Names all that was added, in that order; @index, which may be NULL, is taken
 * away before the first, and is to be the last. Errors: -EIO; -ENOMEM. */
int export_name(struct export *x, const char *index);

/** Takes away what has no name yet. */
void export_release_files(struct export *x);

#endif
