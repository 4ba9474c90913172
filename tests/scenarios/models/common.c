/* SPDX-License-Identifier: Apache-2.0 */
#include "scenarios/models/common.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tensor/box.h"

#define BOXES_MAX 64		/* of one tensor, over all files */

/* ---- parameters ---- */

struct sk_tensor tensor_of(const struct param *param,
			   const struct sk_mesh *mesh)
{
	return (struct sk_tensor){
		.name = param->name, .dtype = SK_F32,
		.ndim = param->columns ? 2 : 1,
		.shape = { param->rows, param->columns }, .mesh = mesh,
		.placements = { param->placements[0], param->placements[1] },
	};
}

void rank_param(struct rank *rank, const struct param *param,
		const struct sk_mesh *mesh, int fill)
{
	struct sk_tensor t = tensor_of(param, mesh);
	char name[256];

	rank_tensor(rank, &t, fill);
	t.name = name;
	(void)snprintf(name, sizeof(name), "optim.state.%s.exp_avg",
		       param->name);
	rank_tensor(rank, &t, fill);
	(void)snprintf(name, sizeof(name), "optim.state.%s.step",
		       param->name);
	t.ndim = 0;
	for (int m = 0; m < 2; m++)
		t.placements[m] = SK_REPLICATE;
	rank_tensor(rank, &t, fill);
}

int64_t chunk_of(int64_t n, int64_t k, int64_t i)
{
	int64_t c = (n + k - 1) / k, from = i * c < n ? i * c : n;

	return from + c < n ? c : n - from;
}

/* ---- what lies on disk ---- */

static struct sk_layout *read_layout(const char *path)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct sk_layout *layout = NULL;
	_cleanup_free_ char *head = NULL;
	struct sk_err err = { "" };
	uint64_t bytes = 0;
	struct stat st;
	char first[8];

	CHECK(fd >= 0 && !fstat(fd, &st), "%s", path);
	CHECK(pread(fd, first, 8, 0) == 8 &&
	      !sk_header_bytes(first, &bytes, &err), "%s: %s", path, err.text);
	head = malloc(bytes);
	CHECK(head && pread(fd, head, bytes, 0) == (ssize_t)bytes, "%s", path);
	CHECK(!sk_layout_parse(head, bytes, (uint64_t)st.st_size, &layout,
			       &err), "%s: %s", path, err.text);
	return layout;
}

void stored_open(const struct scene *scene, const char *job, int64_t step,
		 int world, struct stored *ret)
{
	ret->world = world;
	ret->layouts = calloc((size_t)world, sizeof(*ret->layouts));
	CHECK(ret->layouts);
	for (int r = 0; r < world; r++) {
		char path[512];

		(void)snprintf(path, sizeof(path), "%s/%s/step-%012lld/"
			       "rank-%05d-of-%05d.safetensors", scene->store,
			       job, (long long)step, r, world);
		ret->layouts[r] = read_layout(path);
		CHECK(ret->layouts[r]->rank == r &&
		      ret->layouts[r]->kind == SK_IMAGE_PRIMARY);
	}
}

void stored_close(struct stored *stored)
{
	for (int r = 0; r < stored->world; r++)
		sk_layout_free(stored->layouts[r]);
	free(stored->layouts);
	*stored = (struct stored){ 0 };
}

const struct sk_item *stored_item(const struct stored *stored, int rank,
				  const char *name)
{
	return sk_layout_item(stored->layouts[rank], SK_ITEM_TENSOR, name);
}

uint64_t stored_bytes(const struct stored *stored, int rank)
{
	const struct sk_layout *l = stored->layouts[rank];

	return l->image_bytes - l->header_bytes;
}

/* The entries of one name, over the files of all ranks. */
static int collect(const struct stored *stored, const char *name,
		   struct sk_box boxes[BOXES_MAX])
{
	int n = 0;

	for (int r = 0; r < stored->world; r++) {
		const struct sk_layout *l = stored->layouts[r];

		for (uint32_t e = 0; e < l->n_entries; e++) {
			if (strcmp(l->items[l->entries[e].item].spec.name,
				   name))
				continue;
			CHECK(n < BOXES_MAX, "%s", name);
			boxes[n++] = l->entries[e].box;
		}
	}
	return n;
}

/* Boxes that share no element and whose volumes add up are a tiling. */
static void check_tiled(const struct sk_spec *s, const struct sk_box *boxes,
			int n)
{
	struct sk_box whole = sk_box_whole(s->ndim, s->shape), common;
	int64_t sum = 0;

	for (int i = 0; i < n; i++) {
		for (int k = 0; k < i; k++)
			CHECK(!sk_box_intersect(s->ndim, &boxes[i], &boxes[k],
						&common),
			      "an element of %s is stored twice", s->name);
		sum += sk_box_volume(s->ndim, &boxes[i]);
	}
	CHECK(sum == sk_box_volume(s->ndim, &whole), "%lld elements of %s",
	      (long long)sum, s->name);
}

static bool known_before(const struct stored *stored, int rank,
			 const char *name)
{
	for (int r = 0; r < rank; r++)
		if (stored_item(stored, r, name))
			return true;
	return false;
}

void stored_check_once(const struct stored *stored)
{
	for (int r = 0; r < stored->world; r++) {
		const struct sk_layout *l = stored->layouts[r];

		for (uint32_t i = 0; i < l->n_items; i++) {
			const struct sk_spec *s = &l->items[i].spec;
			struct sk_box boxes[BOXES_MAX];

			if (l->items[i].kind != SK_ITEM_TENSOR ||
			    known_before(stored, r, s->name))
				continue;
			check_tiled(s, boxes, collect(stored, s->name, boxes));
		}
	}
}

/* ---- what an operator sees ---- */

static pid_t start_cachectl(const struct scene *scene, const char *command,
			    const char *a, int out)
{
	pid_t pid;

	CHECK(scene->cachectl, "the second argument is PATH-OF-CACHECTL");
	fflush(NULL);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		(void)dup2(out, STDOUT_FILENO);
		execl(scene->cachectl, scene->cachectl, "--socket",
		      scene->socket, command, a, NULL);
		_exit(127);
	}
	return pid;
}

void cachectl(const struct scene *scene, const char *command, const char *a,
	      char *buf, size_t size)
{
	int ends[2], status;
	size_t n = 0;
	ssize_t got;
	pid_t pid;

	CHECK(!pipe2(ends, O_CLOEXEC));
	pid = start_cachectl(scene, command, a, ends[1]);
	close(ends[1]);
	while (n < size - 1 &&
	       (got = read(ends[0], buf + n, size - 1 - n)) > 0)
		n += (size_t)got;
	close(ends[0]);
	buf[n] = 0;
	CHECK(waitpid(pid, &status, 0) == pid && !status,
	      "cachectl %s %s ended with status %#x", command, a, status);
}
