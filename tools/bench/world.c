/* SPDX-License-Identifier: Apache-2.0 */
/* One world after the other, each with an agent and a store of its own. */
#include "world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

/* Worlds begin here, and are doubled. */
#define LEAST 64
/* Ranks that are processes while the step is saved. */
#define SAVERS 2
#define WORLDS_MAX 128

/* ---- processes ---- */

static pid_t start(struct world *w, int (*body)(struct world *w, int arg),
		   int arg)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!body(w, arg))
		_exit(0);
	if (!w->figures->failed[0])
		(void)world_fail(w, "a process failed");
	_exit(1);
}

static int finish(pid_t pid)
{
	int status = 1;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status ? -1 : 0;
}

int world_apart(struct world *w, int (*body)(struct world *w, int arg),
		int arg)
{
	pid_t pid = start(w, body, arg);

	return pid < 0 ? -1 : finish(pid);
}

static int simulate(struct world *w, int arg)
{
	(void)arg;
	return world_simulate(w);
}

static int list(struct world *w, int arg)
{
	(void)arg;
	return world_list(w);
}

static int list_next(struct world *w, int arg)
{
	(void)arg;
	return world_list_next(w);
}

enum { NEAR, DISK, HALF };

static int restore(struct world *w, int which)
{
	struct world_figures *f = w->figures;

	switch (which) {
	case NEAR:
		return world_restore(w, w->model.world, 0, &f->near);
	case DISK:
		return world_restore(w, w->model.world, SK_RESTORE_DISK_ONLY,
				     &f->disk);
	default:
		return world_restore(w, w->model.world / 2,
				     SK_RESTORE_DISK_ONLY, &f->half);
	}
}

/* ---- one world ---- */

/* One that fails ends its end of the pipe. */
static int await_savers(struct world *w)
{
	char byte;

	close(w->sealed[1]);
	for (int i = 0; i < SAVERS; i++)
		if (read(w->sealed[0], &byte, 1) != 1)
			return -1;
	return 0;
}

static int save(struct world *w)
{
	pid_t pids[SAVERS];
	int r;

	if (pipe(w->sealed) || pipe(w->go))
		return world_fail(w, "no pipe: %s", strerror(errno));
	for (int i = 0; i < SAVERS; i++)
		pids[i] = start(w, world_save, i);
	r = await_savers(w);
	if (!r)
		r = world_apart(w, simulate, 0);
	close(w->go[1]);
	for (int i = 0; i < SAVERS; i++)
		if (pids[i] < 0 || finish(pids[i]))
			r = -1;
	close(w->sealed[0]);
	close(w->go[0]);
	return r;
}

static int measure(struct world *w)
{
	int r = save(w);

	if (!r)
		r = world_apart(w, list, 0);
	for (int which = NEAR; which <= HALF && !r; which++)
		r = world_apart(w, restore, which);
	w->figures->agent_bytes = peak_bytes(w->bench->agent);
	if (!r && (agent_stop(w->bench) || agent_start(w->bench)))
		r = world_fail(w, "the agent failed");
	return r ? r : world_apart(w, list_next, 0);
}

int world_open(struct world *w)
{
	w->figures = share(sizeof(*w->figures));
	w->run = share(sizeof(*w->run));
	return w->figures && w->run ? 0 : -1;
}

static int run_world(struct world *w)
{
	struct bench *b = w->bench;
	int r;

	(void)snprintf(w->job, sizeof(w->job), "%s-%s-%d",
		       model_name((int)w->model.kind),
		       model_mesh_name((int)w->model.mesh), w->model.world);
	note("a world of %d ranks, %s on %s, %d tensors", w->model.world,
	     model_name((int)w->model.kind),
	     model_mesh_name((int)w->model.mesh), w->model.tensors);
	if (world_open(w) || agent_start(b))
		return -1;
	r = measure(w);
	if (r)
		note("%s: %s", w->job, w->figures->failed[0] ?
					       w->figures->failed :
					       "a process was killed");
	if (agent_stop(b) && !r)
		r = world_fail(w, "the agent failed");
	remove_tree(b->store);
	return r;
}

/* ---- all of them ---- */

/* The worlds of one model on one mesh: halves of the largest. */
static int add_worlds(struct bench *b, int kind, int mesh,
		      struct world *worlds, int n)
{
	int32_t first = b->o.world;

	while (first / 2 >= LEAST && first % (4 * MODEL_ROW) == 0)
		first /= 2;
	for (int32_t world = first; world <= b->o.world && n < WORLDS_MAX;
	     world *= 2)
		worlds[n++] = (struct world){ .bench = b, .steps = 1, .model = {
			.kind = (enum model_kind)kind,
			.mesh = (enum model_mesh)mesh, .world = world,
			.tensors = b->o.tensors, .bytes = b->o.bytes } };
	return n;
}

int phase_world(struct bench *b)
{
	static struct world worlds[WORLDS_MAX];
	int n = 0, r = 0;

	for (int kind = 0; kind < MODEL_KINDS; kind++)
		for (int mesh = 0; mesh < MESH_KINDS; mesh++)
			if (list_has(b->o.models, model_name(kind)) &&
			    list_has(b->o.meshes, model_mesh_name(mesh)))
				n = add_worlds(b, kind, mesh, worlds, n);
	for (int i = 0; i < n; i++)
		r |= run_world(&worlds[i]);
	return world_print(b, worlds, n) ? -1 : r;
}
