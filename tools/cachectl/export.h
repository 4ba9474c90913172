/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot as whole tensors in plain safetensors files, for export.c.
 *
 * Not thread-safe. A file is written under a temporary name and renamed when
 * it is whole and synced.
 */
#ifndef SK_CACHECTL_EXPORT_H
#define SK_CACHECTL_EXPORT_H

#include "cachectl.h"

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

struct export {
	struct context *ctx;
	struct sk_wire_image *records;
	size_t n_records;
	struct export_source *sources;
	size_t n_sources;
	struct export_tensor *tensors;
	size_t n_tensors;
	size_t n_files;
	struct progress progress;
	uint64_t done;
	char *buf;		/* SK_SUM_CHUNK bytes */
};

/** Opens the place in use of a source. */
int export_open(struct export *x, struct export_source *s);
void export_close(struct export *x, struct export_source *s);

/**
 * Writes the tensors [first, last), all of file @path, which replaces what was
 * there. Every byte is verified; a bad image is set aside and another place
 * used. Errors: -EBADMSG no place is left; -ENOSPC; -EIO; -EACCES; -ENOMEM.
 */
int export_write(struct export *x, const char *path, size_t first,
		 size_t last);

#endif
