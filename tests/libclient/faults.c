/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library with every system call failing in turn, and every allocation:
 * whatever it meets, a call says so with a sentence, nothing hangs, nothing is
 * left open or allocated, and the next try works.
 *
 * Arguments: path of shardkeepd, and "calls" or "memory".
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "conn/client.h"
#include "fault-alloc.h"
#include "fault-os.h"
#include "support/files.h"

#define LIVES_OF_AGENT 32
#define ROUNDS_MOST 20000	/* a life that never goes well */

/* One life of a rank, from sk_open() to sk_close(). */
struct life {
	const struct sk_os *os;
	struct scene *scene;
	bool memory;		/* it is allocations that fail */
	bool damaged;		/* what fails may be taken for damage */
	char job[32];
	struct sk *sk;
	struct sk_mesh *mesh;
	struct sk_state *state;
	int64_t step;
	float w[60][50];
	char blob[300], local[70];
	int failed;		/* calls that said no */
};

/* ---- what a rank does ---- */

static int do_open(struct life *l)
{
	return sk_open_on(l->os, &(struct sk_options){
		.socket = l->scene->socket, .threads = 2 }, &l->sk);
}

static int do_mesh(struct life *l)
{
	return sk_mesh_create(1, &(int64_t){ 1 }, NULL,
			      (const char *const[]){ "dp" }, &l->mesh);
}

static int do_create(struct life *l)
{
	return sk_state_create(l->sk, &(struct sk_job){ .name = l->job,
		.world = 1, .flags = SK_JOB_VERIFY }, &l->state);
}

static int do_describe(struct life *l)
{
	const struct sk_part parts[2] = {
		{ .box = { { 0 }, { 10 } }, .data = l->w[30] },
		{ .box = { { 10 }, { 10 } }, .data = l->w[40] },
	};
	const struct sk_tensor tensors[2] = {
		{ .name = "w", .dtype = SK_F32, .ndim = 2,
		  .shape = { 60, 50 }, .mesh = l->mesh,
		  .placements = { SK_SHARD(0) }, .data = l->w },
		{ .name = "p", .dtype = SK_F32, .ndim = 1, .shape = { 20 },
		  .parts = parts, .n_parts = 2 },
	};

	return sk_state_tensors(l->state, tensors, 2);
}

static int do_blobs(struct life *l)
{
	int r = sk_state_blob(l->state, "config", l->blob, sizeof(l->blob));

	return r < 0 ? r : sk_state_blob_local(l->state, "rng", l->local,
					       sizeof(l->local));
}

static int do_prepare(struct life *l)
{
	return sk_prepare(l->state, 20000);
}

/* The copy goes on in the background: it is over when this returns. */
static int do_snapshot(struct life *l)
{
	const struct sk_snapshot_options o = { .wait_ms = 20000,
		.flags = SK_SNAPSHOT_NO_FLUSH };
	int r = sk_snapshot(l->state, ++l->step, &o);

	if (r >= 0)
		r = sk_fence(l->state);
	return r < 0 ? r : sk_wait(l->state, l->step, SK_COMPLETE, 20000);
}

static int do_restore(struct life *l)
{
	struct sk_report report;
	int r;

	memset(l->w, 0, sizeof(l->w));
	r = sk_restore(l->state, SK_LATEST, NULL, NULL, &report);
	/* Who could not look does not say that there is nothing. */
	CHECK(r != -ENOENT && r != -ENOKEY, "%s", sk_error());
	if (r >= 0)
		CHECK(l->w[59][49] == 7 && report.bytes_verified);
	/* Nor does it go back further than it must. */
	if (r >= 0 && !l->damaged)
		CHECK(report.step == l->step, "step %d of %d",
		      (int)report.step, (int)l->step);
	for (int i = 0; i < 3000; i++)
		((float *)l->w)[i] = 7;
	return r;
}

static int do_inspect(struct life *l)
{
	char *json = NULL;
	int r = sk_inspect(l->sk, l->job, SK_LATEST, 0, 0, &json);

	CHECK(r != -ENOENT, "%s", sk_error());
	if (r >= 0)
		CHECK(strstr(json, "config") && strstr(json, "boxes"));
	free(json);
	return r;
}

static int do_snapshots(struct life *l)
{
	char *json = NULL;
	int r = sk_snapshots(l->sk, l->job, &json);

	if (r >= 0)
		CHECK(strstr(json, l->job));
	free(json);
	return r;
}

static const struct {
	const char *name;
	int (*run)(struct life *life);
} deeds[] = {
	{ "open", do_open },		{ "mesh", do_mesh },
	{ "create", do_create },	{ "describe", do_describe },
	{ "blobs", do_blobs },		{ "prepare", do_prepare },
	{ "snapshot", do_snapshot },	{ "again", do_snapshot },
	{ "restore", do_restore },	{ "once more", do_snapshot },
	{ "inspect", do_inspect },	{ "snapshots", do_snapshots },
};

static void mend(const struct life *l)
{
	if (l->memory)
		sk_fault_alloc_mend();
}

/* What failed once goes well when nothing fails; the second time at the
 * latest, for the first may tell how the one before it ended. */
static void do_deed(struct life *l, size_t i)
{
	int r = deeds[i].run(l);

	if (r >= 0)
		return;
	CHECK(sk_error()[0], "%s said %d without a sentence", deeds[i].name,
	      r);
	l->failed++;
	mend(l);
	if (deeds[i].run(l) >= 0)
		return;
	r = deeds[i].run(l);
	CHECK(r >= 0, "%s fails for good: %d, %s", deeds[i].name, r,
	      sk_error());
}

static void live(struct life *l)
{
	for (int i = 0; i < 3000; i++)
		((float *)l->w)[i] = 7;
	for (size_t i = 0; i < SK_ARRAY_SIZE(deeds); i++)
		do_deed(l, i);
	mend(l);	/* what is given back is given back */
	sk_state_free(l->state);
	sk_mesh_release(l->mesh);
	sk_close(l->sk);
}

/* A job of its own each, and now and then an agent that holds no others. */
static struct life *new_life(struct scene *scene, uint64_t n)
{
	static unsigned serial;
	struct life *l = calloc(1, sizeof(*l));

	CHECK(l);
	(void)alarm(240);
	if (n % LIVES_OF_AGENT == 0) {
		scene_stop_agent(scene, SIGKILL);
		scene_start_agent(scene);
	}
	l->os = sk_os_linux();
	l->scene = scene;
	(void)snprintf(l->job, sizeof(l->job), "faults-%u", ++serial);
	return l;
}

/* ---- system calls ---- */

static bool is_mapped(const char *what)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	bool found = false;

	CHECK(f);
	while (!found && fgets(line, sizeof(line), f))
		found = strstr(line, what);
	(void)fclose(f);
	return found;
}

/* One call fails, once: what follows goes well. */
static uint64_t fail_call(struct scene *scene, uint64_t n, int error)
{
	struct sk_fault_os fault;
	struct life *l = new_life(scene, n);
	int fds = count_fds();

	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_fail(&fault, SK_FAULT_ANY, n, 1, error);
	l->os = &fault.os;
	l->damaged = error == EIO;
	live(l);
	CHECK(!is_mapped("memfd:shardkeep"), "call %llu: something is mapped",
	      (unsigned long long)n);
	CHECK(count_fds() == fds, "call %llu: %d descriptors, %d before",
	      (unsigned long long)n, count_fds(), fds);
	free(l);
	return sk_fault_os_hits(&fault);
}

static void fail_calls(struct scene *scene, int error)
{
	uint64_t n = 1;

	while (fail_call(scene, n, error))
		CHECK((n += sk_fault_every()) < ROUNDS_MOST);
	CHECK(n > 100, "only %llu calls", (unsigned long long)n);
}

/* A little at a time is no failure. */
static void shorten_calls(struct scene *scene)
{
	static const enum sk_fault_op ops[] = { SK_FAULT_PREAD,
						SK_FAULT_PWRITE };

	for (size_t i = 0; i < SK_ARRAY_SIZE(ops); i++) {
		struct life *l = new_life(scene, 100000 + i);
		struct sk_fault_os fault;

		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_shorten(&fault, ops[i], 1, SK_FAULT_ALWAYS, 77);
		l->os = &fault.os;
		live(l);
		CHECK(!l->failed, "%d calls failed", l->failed);
		CHECK(sk_fault_os_hits(&fault) > 10);
		free(l);
	}
}

/* ---- memory ---- */

static uint64_t fail_allocation(struct scene *scene, uint64_t n,
				uint64_t times)
{
	struct life *l = new_life(scene, n);
	uint64_t hits, left;

	l->memory = true;
	sk_fault_alloc_fail(n, times);
	live(l);
	hits = sk_fault_alloc_end(&left);
	/* The thread's last sentence stays. */
	CHECK(left <= 1, "allocation %llu: %llu left", (unsigned long long)n,
	      (unsigned long long)left);
	free(l);
	return hits;
}

static void fail_allocations(struct scene *scene, uint64_t times)
{
	uint64_t n = 1;

	while (fail_allocation(scene, n, times))
		CHECK((n += sk_fault_every()) < ROUNDS_MOST);
	CHECK(n > 100, "only %llu allocations", (unsigned long long)n);
}

int main(int argc, char **argv)
{
	struct scene scene;

	CHECK(argc == 3, "usage: %s PATH-OF-SHARDKEEPD calls|memory",
	      argv[0]);
	scene_open(&scene, argc, argv);
	if (!strcmp(argv[2], "calls")) {
		fail_calls(&scene, EIO);
		fail_calls(&scene, EMFILE);
		shorten_calls(&scene);
	} else {
		/* These too: the wrapped ones, of this program. */
		json_set_alloc_funcs(malloc, free);
		fail_allocations(&scene, 1);
		fail_allocations(&scene, SK_FAULT_ALLOC_ALWAYS);
	}
	scene_stop_agent(&scene, SIGKILL);
	scene_close(&scene);
	return 0;
}
