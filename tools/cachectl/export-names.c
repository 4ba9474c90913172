/* SPDX-License-Identifier: Apache-2.0 */
/* The files of an export, which get their names when all of them are whole. */
#include "export.h"

#include <dirent.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "base/array.h"

#define WHOLE "model.safetensors"
#define SHARD "model-%05zu-of-%05zu.safetensors"

static int no_memory(struct export *x)
{
	return sk_err_set(&x->ctx->err, -ENOMEM, "out of memory");
}

/* Not found is said of snapshots. */
static int failed(struct export *x, const char *what, const char *path)
{
	sk_err_errno(&x->ctx->err, -errno, "cannot %s %s", what, path);
	return -EIO;
}

void export_file_name(const struct export *x, size_t file, char *ret,
		      size_t size)
{
	if (x->n_files == 1)
		(void)snprintf(ret, size, WHOLE);
	else
		(void)snprintf(ret, size, SHARD, file + 1, x->n_files);
}

/* ---- the index ---- */

/* NULL: out of memory. */
static char *index_text(const struct export *x, uint64_t total)
{
	json_t *root, *map = json_object();
	char name[64], *text;

	for (size_t i = 0; i < x->n_tensors; i++) {
		export_file_name(x, x->tensors[i].file, name, sizeof(name));
		json_object_set_new(map, x->tensors[i].name,
				    json_string(name));
	}
	root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
			 (json_int_t)total, "weight_map", map);
	text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
	json_decref(root);
	return text;
}

int export_write_index(struct export *x, const char *path, uint64_t total)
{
	_cleanup_free_ char *text = index_text(x, total);

	return text ? export_write_text(x, path, text) :
		      sk_err_set(&x->ctx->err, -ENOMEM, "out of memory");
}

/* ---- the directory ---- */

/* What a loader of weights takes; 0 in @ret_of: not one of several. */
static bool is_weights(const char *name, size_t *ret_of)
{
	char again[64];
	size_t i = 0, n = 0;

	*ret_of = 0;
	if (!strcmp(name, WHOLE) || !strcmp(name, EXPORT_INDEX))
		return true;
	if (sscanf(name, "model-%zu-of-%zu.safetensors", &i, &n) != 2)
		return false;
	(void)snprintf(again, sizeof(again), SHARD, i, n);
	*ret_of = n;
	return !strcmp(name, again);
}

static bool is_ours(const struct export *x, const char *name, size_t of)
{
	if (x->n_files == 1)
		return !strcmp(name, WHOLE);
	return of == x->n_files || !strcmp(name, EXPORT_INDEX);
}

int export_enter(struct export *x, const char *directory)
{
	const struct dirent *e;
	int r = 0;
	size_t of;
	DIR *dir;

	if (mkdir(directory, 0777) < 0 && errno != EEXIST)
		return failed(x, "make the directory", directory);
	dir = opendir(directory);
	if (!dir)
		return failed(x, "open the directory", directory);
	while (r >= 0 && (e = readdir(dir)))
		if (is_weights(e->d_name, &of) && !is_ours(x, e->d_name, of))
			r = sk_err_set(&x->ctx->err, -EEXIST, "%s has %s of "
				       "another export, which would be loaded "
				       "with this one or instead of it: remove "
				       "it, or give another directory",
				       directory, e->d_name);
	(void)closedir(dir);
	return r;
}

/* ---- names ---- */

int export_add_file(struct export *x, const char *path, char *temporary)
{
	char *copy = strdup(path);

	if (!copy || sk_array_fit(x->written, x->room_written,
				  x->n_written + 1) < 0) {
		free(copy);
		(void)unlink(temporary);
		free(temporary);
		return no_memory(x);
	}
	x->written[x->n_written++] =
		(struct export_file){ .path = copy, .temporary = temporary };
	return 0;
}

static int sync_directory(struct export *x, const char *path)
{
	_cleanup_free_ char *copy = strdup(path);
	_cleanup_close_ int fd = -1;

	if (!copy)
		return no_memory(x);
	fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 || fsync(fd) < 0 ?
		       failed(x, "sync the directory of", path) : 0;
}

int export_name(struct export *x, const char *index)
{
	/* No index ever leads to files of two exports. */
	if (index && unlink(index) < 0 && errno != ENOENT)
		return failed(x, "replace", index);
	for (size_t i = 0; i < x->n_written; i++) {
		struct export_file *f = &x->written[i];

		if (rename(f->temporary, f->path) < 0)
			return failed(x, "name", f->path);
		free(sk_take_ptr(f->temporary));
	}
	return sync_directory(x, x->written[0].path);
}

void export_release_files(struct export *x)
{
	for (size_t i = 0; i < x->n_written; i++) {
		if (x->written[i].temporary)
			(void)unlink(x->written[i].temporary);
		free(x->written[i].temporary);
		free(x->written[i].path);
	}
	free(x->written);
}
