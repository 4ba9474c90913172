/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/restore/common.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/util.h"
#include "bytes/checksum.h"
#include "conn/client.h"
#include "conn/list.h"
#include "support/agent.h"
#include "support/files.h"
#include "support/misuse.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

#define BOUND_S 600	/* of one process, so that nothing hangs for good */
#define RANKS_MAX 16

void scene_fail(const char *file, int line, const char *what,
		const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "%s:%d: %s:", file, line, what);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\n");
	exit(1);
}

/* ---- the agent ---- */

void scene_start_agent(struct scene *scene)
{
	const char *const args[] = {
		scene->program, "--socket", scene->socket, "--memory",
		scene->memory ? scene->memory : "1G", "--log-level", "error",
		scene->keeper ? "--keeper" : "--no-keeper",
		/* Where the keeper is killed with the test, it is alone. */
		"--idle-exit", scene->keeper ? "60" : "0",
		scene->store[0] ? "--store" : NULL, scene->store,
		scene->flush_rate ? "--flush-rate" :
		scene->scrub_rate ? "--scrub-rate" : NULL,
		scene->flush_rate ? scene->flush_rate : scene->scrub_rate,
		scene->flush_rate && scene->scrub_rate ? "--scrub-rate" : NULL,
		scene->scrub_rate, NULL
	};

	scene->agent = agent_start(args);
	CHECK(scene->agent > 0, "the agent did not start");
}

static struct scene *opened;
static pid_t opener;		/* the process: forked ones leave it */

/* However the process ends, short of a signal. */
static void remove_scene(void)
{
	if (getpid() != opener || !opened)
		return;
	for (int i = 0; i <= opened->n_nodes; i++) {
		const struct scene *s = i ? &opened->nodes[i - 1] : opened;

		if (s->agent < 0 || (i && s->agent == opened->agent))
			continue;
		(void)kill(s->agent, SIGKILL);
		(void)waitpid(s->agent, NULL, 0);
	}
	(void)remove_tree(opened->dir);
}

void scene_open(struct scene *scene, int argc, char **argv)
{
	*scene = (struct scene){ .agent = -1 };
	(void)alarm(BOUND_S);
	scene->program = argc > 1 ? argv[1] : getenv("SHARDKEEP_AGENT");
	scene->cachectl = argc > 2 ? argv[2] : NULL;
	CHECK(scene->program, "usage: %s PATH-OF-SHARDKEEPD", argv[0]);
	strcpy(scene->dir, "/tmp/shardkeep-restore-XXXXXX");
	CHECK(mkdtemp(scene->dir));
	opened = scene;
	opener = getpid();
	CHECK(!atexit(remove_scene));
	(void)snprintf(scene->socket, sizeof(scene->socket), "%s/agent.sock",
		       scene->dir);
	(void)snprintf(scene->store, sizeof(scene->store), "%s/store",
		       scene->dir);
	misuse_watch(scene->dir);
	scene_start_agent(scene);
}

void scene_add_nodes(struct scene *scene, struct scene *nodes, int n,
		     bool own_stores)
{
	scene->nodes = nodes;
	nodes[0] = *scene;
	nodes[0].nodes = NULL;
	for (int i = 1; i < n; i++) {
		nodes[i] = (struct scene){ .agent = -1,
					   .program = scene->program,
					   .cachectl = scene->cachectl };
		strcpy(nodes[i].dir, scene->dir);
		(void)snprintf(nodes[i].socket, sizeof(nodes[i].socket),
			       "%.60s/node-%d.sock", scene->dir, i);
		(void)snprintf(nodes[i].store, sizeof(nodes[i].store),
			       "%.60s/store-%d", scene->dir, i);
		if (!own_stores)
			strcpy(nodes[i].store, scene->store);
		scene_start_agent(&nodes[i]);
		scene->n_nodes = i + 1;
	}
}

void scene_stop_agent(struct scene *scene, int sig)
{
	int status;

	if (scene->agent < 0)
		return;
	CHECK(!kill(scene->agent, sig));
	CHECK(waitpid(scene->agent, &status, 0) == scene->agent);
	scene->agent = -1;
	CHECK(sig == SIGKILL || (WIFEXITED(status) && !WEXITSTATUS(status)),
	      "the agent ended with status %#x", status);
}

/* By variables: the shell takes no path apart. */
FILE *scene_ask(const struct scene *scene, const char *words)
{
	char command[256];
	FILE *f;

	CHECK(scene->cachectl, "the second argument is PATH-OF-CACHECTL");
	CHECK(!setenv("SK_TEST_CACHECTL", scene->cachectl, 1));
	CHECK(!setenv("SK_TEST_SOCKET", scene->socket, 1));
	CHECK(snprintf(command, sizeof(command),
		       "SHARDKEEP_SOCKET=$SK_TEST_SOCKET; "
		       "export SHARDKEEP_SOCKET; "
		       "exec \"$SK_TEST_CACHECTL\" %s", words) <
	      (int)sizeof(command));
	f = popen(command, "r");
	CHECK(f, "%s", command);
	return f;
}

void scene_close(struct scene *scene)
{
	for (int i = 1; i < scene->n_nodes; i++)
		scene_stop_agent(&scene->nodes[i], SIGTERM);
	if (scene->n_nodes)
		*scene = scene->nodes[0];
	scene_stop_agent(scene, SIGTERM);
	CHECK(!misuse_in(scene->dir), "misuse: %s", misuse_in(scene->dir));
	remove_scene();
	opened = NULL;	/* it ends with the caller */
}

/* ---- ranks ---- */

static int ready_pipe = -1;

void rank_ready(struct rank *rank)
{
	char byte = (char)rank->rank;

	CHECK(write(ready_pipe, &byte, 1) == 1);
	for (;;)
		pause();
}

static void **memory;	/* of the tensors of this process's rank */
static size_t n_memory;

char *rank_memory(size_t bytes, int fill)
{
	char *p;

	if (!bytes)
		return NULL;
	p = malloc(bytes);
	memory = realloc(memory, (n_memory + 1) * sizeof(*memory));
	CHECK(p && memory);
	memory[n_memory++] = p;
	memset(p, fill, bytes);
	return p;
}

static void open_state(struct rank *rank)
{
	struct sk_options opts = { .socket = rank->scene->socket,
				   .threads = rank->scene->has_threads ? 0 : 1,
				   .timeout_ms = 60000 };
	struct sk_job job = { .name = rank->job, .rank = rank->rank,
			      .world = rank->world,
			      .flush_every = SK_FLUSH_NEVER,
			      .flags = rank->scene->job_flags,
			      .slots = rank->scene->slots };

	CHECK(!sk_open(&opts, &rank->sk), "%s", sk_error());
	CHECK(!sk_state_create(rank->sk, &job, &rank->state), "%s",
	      sk_error());
}

static void run_rank(struct scene *scene, const char *job, int world, int i,
		     rank_fn fn, const void *arg)
{
	struct rank rank = { .scene = scene, .rank = i, .world = world,
			     .job = job, .arg = arg };

	/* A test that fails leaves none of its ranks behind. */
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)alarm(BOUND_S);
	for (int k = 0; k < scene->n_nodes; k++)
		scene->nodes[k].job_flags = scene->job_flags;
	if (scene->n_nodes)
		rank.scene = &scene->nodes[scene->node_of ? scene->node_of[i] :
					   i * scene->n_nodes / world];
	open_state(&rank);
	fn(&rank);
	sk_state_free(rank.state);
	sk_close(rank.sk);
	while (n_memory)
		free(memory[--n_memory]);
	free(memory);
	exit(0);
}

void rank_whole(struct rank *rank)
{
	static const int32_t first[] = { 0 };
	static char own[32];
	struct sk_mesh *mesh = mesh_of(1, 0, first, NULL);

	rank_tensor(rank, &(struct sk_tensor){
		.name = "w", .dtype = SK_F32, .ndim = 2, .shape = { 60, 90 },
		.mesh = mesh, .placements = { SK_REPLICATE } }, 0xee);
	CHECK(!sk_state_blob_local(rank->state, "rng", own, sizeof(own)));
	sk_mesh_release(mesh);
}

void scene_ranks_start(struct scene *scene, const char *job, int world,
		       rank_fn fn, const void *arg, pid_t *pids)
{
	fflush(NULL);
	for (int i = 0; i < world; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0);
		if (!pids[i])
			run_rank(scene, job, world, i, fn, arg);
	}
}

void scene_ranks_end(const char *job, int world, const pid_t *pids)
{
	int failed = 0;

	for (int i = 0; i < world; i++) {
		int status;

		CHECK(waitpid(pids[i], &status, 0) == pids[i]);
		failed += status != 0;
	}
	CHECK(!failed, "%d of %d ranks of job %s failed", failed, world, job);
}

void scene_ranks(struct scene *scene, const char *job, int world, rank_fn fn,
		 const void *arg)
{
	pid_t pids[RANKS_MAX];

	scene_ranks_start(scene, job, world, fn, arg, pids);
	scene_ranks_end(job, world, pids);
}

void scene_ranks_killed(struct scene *scene, const char *job, int world,
			rank_fn fn, const void *arg)
{
	pid_t pids[RANKS_MAX];
	int ends[2], n = 0;
	char byte;

	CHECK(!pipe(ends));
	ready_pipe = ends[1];
	scene_ranks_start(scene, job, world, fn, arg, pids);
	close(ends[1]);
	while (n < world && read(ends[0], &byte, 1) == 1)
		n++;
	close(ends[0]);
	for (int i = 0; i < world; i++) {
		(void)kill(pids[i], SIGKILL);
		CHECK(waitpid(pids[i], NULL, 0) == pids[i]);
	}
	CHECK(n == world, "%d of %d ranks became ready", n, world);
}

/* ---- tensors ---- */

/* The elements of the local tensor: its boxes together. */
static uint64_t local_elements(const struct rank *rank,
			       const struct sk_tensor *t)
{
	struct sk_spec spec = { .name = t->name,
				.dtype = (enum sk_dtype)t->dtype,
				.ndim = t->ndim, .mesh = t->mesh };
	struct sk_err err = { "" };
	struct sk_box *boxes;
	uint64_t elements = 0;
	int n;

	memcpy(spec.shape, t->shape, sizeof(spec.shape));
	memcpy(spec.placements, t->placements, sizeof(spec.placements));
	CHECK(!sk_spec_normalize(&spec, &err), "%s", err.text);
	CHECK(!sk_spec_boxes(&spec, rank->rank, &boxes, &n, &err), "%s",
	      err.text);
	for (int i = 0; i < n; i++)
		elements += (uint64_t)sk_box_volume(t->ndim, &boxes[i]);
	free(boxes);
	return elements;
}

uint64_t rank_bytes(const struct rank *rank, const struct sk_tensor *tensor)
{
	return local_elements(rank, tensor) *
	       sk_dtype_bits((enum sk_dtype)tensor->dtype) / 8;
}

char *rank_tensor(struct rank *rank, const struct sk_tensor *tensor, int fill)
{
	struct sk_tensor t = *tensor;

	t.data = rank_memory(rank_bytes(rank, tensor), fill);
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	return t.data;
}

void rank_model(struct rank *rank, int64_t rows)
{
	static char own[32];
	struct sk_mesh *mesh = mesh_of(rank->world, 0, NULL, NULL);

	rank_tensor(rank, &(struct sk_tensor){
		.name = "wq", .dtype = SK_F32, .ndim = 2,
		.shape = { rows, 900 }, .mesh = mesh,
		.placements = { SK_SHARD(0) } }, 0xee);
	rank_tensor(rank, &(struct sk_tensor){
		.name = "norm", .dtype = SK_F32, .ndim = 1,
		.shape = { 900 }, .mesh = mesh,
		.placements = { SK_REPLICATE } }, 0xee);
	CHECK(!sk_state_blob_local(rank->state, "rng", own, sizeof(own)));
	sk_mesh_release(mesh);
}

/* What all values of the tensor have in common. */
static uint64_t seed_of(const struct sk_local *local, int64_t step, int owner)
{
	const char *name = local->item.spec.name;
	uint64_t seed = sk_xxh3(name, strlen(name)) + (uint64_t)step * 1000003;

	if (local->item.kind == SK_ITEM_BLOB_LOCAL)
		seed += (uint64_t)owner * 77777;
	return seed;
}

/* Whether the element was another one. By constant sizes, which sanitizers
 * let pass without a call: some tensors are large. */
#define ONE(type) do {							\
	type want = (type)v, is;					\
	if (write)							\
		memcpy(p, &want, sizeof(want));				\
	memcpy(&is, p, sizeof(is));					\
	return is != want;						\
} while (0)

static bool one_value(char *p, uint64_t v, unsigned size, bool write)
{
	v *= 0x9e3779b97f4a7c15u;
	v ^= v >> 29;
	switch (size) {
	case 1: ONE(uint8_t);
	case 2: ONE(uint16_t);
	case 4: ONE(uint32_t);
	case 8: ONE(uint64_t);
	default: CHECK(false, "elements of %u bytes", size);
	}
}

/* Writes the values of a part, or counts those that are others. */
static uint64_t part_values(const struct sk_local *local,
			    const struct sk_part *part, int64_t step,
			    int owner, bool write)
{
	const struct sk_spec *s = &local->item.spec;
	int64_t size = sk_dtype_bits(s->dtype) / 8;
	int64_t n = sk_box_volume(s->ndim, &part->box);
	int last = s->ndim - 1;
	int64_t row = last < 0 ? 1 : part->box.size[last];
	int64_t stride = last < 0 ? 0 : part->strides[last] * size;
	uint64_t seed = seed_of(local, step, owner), wrong = 0;

	for (int64_t i = 0; i < n; i += row) {
		int64_t rest = i, index = 0, at[SK_MAX_DIMS];
		char *p = part->data;

		for (int d = last; d >= 0; d--) {
			at[d] = rest % part->box.size[d];
			rest /= part->box.size[d];
			p += at[d] * part->strides[d] * size;
		}
		for (int d = 0; d <= last; d++)
			index = index * s->shape[d] + at[d] +
				part->box.offset[d];
		for (int64_t k = 0; k < row; k++, p += stride)
			wrong += one_value(p, seed + (uint64_t)(index + k),
					   (unsigned)size, write);
	}
	return wrong;
}

static uint64_t all_values(struct rank *rank, int64_t step, int owner,
			   bool write)
{
	uint64_t wrong = 0;

	for (uint32_t i = 0; i < rank->state->n_locals; i++) {
		const struct sk_local *local = &rank->state->locals[i];

		if (local->item.kind == SK_ITEM_BLOB_LOCAL && owner < 0)
			continue;
		for (int b = 0; b < local->item.n_boxes; b++)
			wrong += part_values(local, &local->parts[b], step,
					     owner, write);
	}
	return wrong;
}

void rank_write(struct rank *rank, int64_t step)
{
	all_values(rank, step, rank->rank, true);
}

uint64_t rank_wrong(struct rank *rank, int64_t step, int local)
{
	return all_values(rank, step, local, false);
}

/* Whose values a part has, if those of one of the steps until @most. */
static int64_t step_in(const struct sk_local *local,
		       const struct sk_part *part, int owner, int64_t most)
{
	for (int64_t step = 0; step <= most; step++)
		if (!part_values(local, part, step, owner, false))
			return step;
	return -1;
}

#define STEPS_MORE 100	/* than the one that should be there */

void rank_tell_wrong(const struct rank *rank, int64_t step, int owner)
{
	for (uint32_t i = 0; i < rank->state->n_locals; i++) {
		const struct sk_local *local = &rank->state->locals[i];
		const struct sk_spec *s = &local->item.spec;

		if (local->item.kind == SK_ITEM_BLOB_LOCAL && owner < 0)
			continue;
		for (int b = 0; b < local->item.n_boxes; b++) {
			const struct sk_part *part = &local->parts[b];
			uint64_t wrong = part_values(local, part, step, owner,
						     false);

			fprintf(stderr, "rank %d: %s, box %d: %llu of %lld "
				"elements are not those of step %lld; all are "
				"those of step %lld\n", rank->rank, s->name, b,
				(unsigned long long)wrong,
				(long long)sk_box_volume(s->ndim, &part->box),
				(long long)step,
				(long long)step_in(local, part, owner,
						   step + STEPS_MORE));
		}
	}
}

uint64_t rank_wrong_in(struct rank *rank, int64_t step, const char *name)
{
	int64_t at = sk_state_find(rank->state, name);
	const struct sk_local *local;
	uint64_t wrong = 0;

	CHECK(at >= 0, "%s", name);
	local = &rank->state->locals[at];
	for (int b = 0; b < local->item.n_boxes; b++)
		wrong += part_values(local, &local->parts[b], step,
				     rank->rank, false);
	return wrong;
}

void rank_snapshot(struct rank *rank, int64_t step, int until)
{
	CHECK(!sk_snapshot(rank->state, step, NULL), "%s", sk_error());
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_wait(rank->state, step,
		       until == SK_SEALED ? SK_SEALED : SK_COMPLETE, 60000),
	      "%s", sk_error());
	if (until == SK_DURABLE) {
		CHECK(!sk_flush(rank->state, step), "%s", sk_error());
		CHECK(!sk_wait(rank->state, step, SK_DURABLE, 60000), "%s",
		      sk_error());
	}
}

static struct sk_wire_snapshot find(struct sk_conn *conn, struct rank *rank,
				    int64_t step)
{
	struct sk_wire_id id = { .step = step, .rank = -1 };
	struct sk_wire_snapshot *listed = NULL, found;
	struct sk_list_gaps gaps = { 0 };
	struct sk_err err = { "" };
	size_t n = 0;

	(void)snprintf(id.job, sizeof(id.job), "%s", rank->job);
	CHECK(!sk_list_snapshots(conn, &id, 0, sk_until(rank->sk), &listed, &n,
				 &gaps, &err), "%s", err.text);
	CHECK(n == 1, "%zu snapshots of step %lld", n, (long long)step);
	found = listed[0];
	free(listed);
	return found;
}

static void meet_agent(struct rank *rank, struct sk_conn *conn)
{
	struct sk_err err = { "" };

	CHECK(!sk_conn_open(sk_os_linux(), rank->scene->socket,
			    sk_until(rank->sk), conn, &err), "%s", err.text);
}

uint32_t rank_flags_of(struct rank *rank, int64_t step)
{
	struct sk_conn conn = SK_CONN_NULL;
	uint32_t flags;

	meet_agent(rank, &conn);
	flags = find(&conn, rank, step).flags;
	sk_conn_close(&conn);
	return flags;
}

void rank_manage(struct rank *rank, int64_t step, uint32_t type,
		 uint32_t flags)
{
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_msg msg = { .type = type, .body.manage.flags = flags };
	struct sk_err err = { "" };

	meet_agent(rank, &conn);
	msg.body.manage.id = find(&conn, rank, step).id;
	CHECK(!sk_conn_call(&conn, &msg, NULL, 0, NULL, NULL,
			    sk_until(rank->sk), &err), "%s", err.text);
	sk_conn_close(&conn);
}

void rank_evict(struct rank *rank, int64_t step)
{
	rank_manage(rank, step, SK_MSG_EVICT, SK_EVICT_FORCE);
}

int rank_restore(struct rank *rank, int64_t step, uint32_t flags,
		 struct sk_report *ret_report)
{
	struct sk_restore_options o = { .flags = flags };

	return sk_restore(rank->state, step, NULL, &o, ret_report);
}

struct sk_mesh *mesh_of(int64_t a, int64_t b, const int32_t *ranks,
			const char *const *names)
{
	const int64_t shape[] = { a, b };
	struct sk_mesh *mesh;

	CHECK(!sk_mesh_create(b ? 2 : 1, shape, ranks, names, &mesh), "%s",
	      sk_error());
	return mesh;
}
