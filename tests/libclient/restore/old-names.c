/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An image of an older build, in which U+009B may stand in names of tensors and
 * of a mesh's dimensions: it is read, verified and restored from as before;
 * what is said of it has no control characters.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/restore/common.h"

#define STEP 4

static const char tensor[] = "w\xc2\xa0" "31m", dimension[] = "d\xc2\xa0p";

/* The same as it would have been described by that build. */
static void make_old(const char *name)
{
	char *at = strstr((char *)(uintptr_t)name, "\xc2\xa0");

	CHECK(at);
	at[1] = (char)0x9b;
}

static void describe(struct rank *rank, bool both)
{
	struct sk_mesh *mesh = mesh_of(1, 0, NULL,
				       (const char *[]){ dimension });
	struct sk_tensor t = { .name = "v", .dtype = SK_F32, .ndim = 1,
			       .shape = { 5000 }, .mesh = mesh,
			       .placements = { SK_SHARD(0) } };

	rank_tensor(rank, &t, 0xee);
	t.name = tensor;
	if (both) {
		rank_tensor(rank, &t, 0xee);
		make_old(rank->state->locals[1].item.spec.name);
		make_old(sk_mesh_name(mesh, 0));
	}
	sk_mesh_release(mesh);
}

static void save(struct rank *rank)
{
	describe(rank, true);
	CHECK(rank_restore(rank, SK_LATEST, 0, NULL) == -ENOENT, "%s",
	      sk_error());
	rank_write(rank, STEP);
	rank_snapshot(rank, STEP, SK_DURABLE);
}

/* Who reads what is stored has to ask for it by its name. */
static void read_old(struct rank *rank)
{
	const struct sk_job job = { .name = rank->job, .world = 1,
				    .flags = SK_JOB_READER };
	char name[sizeof(tensor)];
	const char *names[] = { name };
	struct sk_restore_options o = { .names = names, .n_names = 1 };
	struct sk_tensor t = { .name = name, .dtype = SK_F32, .ndim = 1,
			       .shape = { 5000 } };
	struct sk_report report = { 0 };
	struct sk_state *state;

	memcpy(name, tensor, sizeof(name));
	make_old(name);
	t.data = rank_memory(5000 * sizeof(float), 0xee);
	CHECK(!sk_state_create(rank->sk, &job, &state), "%s", sk_error());
	CHECK(!sk_state_tensor(state, &t), "%s", sk_error());
	CHECK(!sk_restore(state, STEP, NULL, &o, &report), "%s", sk_error());
	CHECK(report.tensors == 1 && !report.missing);
	CHECK(report.bytes_verified >= 5000 * sizeof(float));
	sk_state_free(state);
}

static void load(struct rank *rank)
{
	struct sk_report report;

	describe(rank, false);
	CHECK(rank_restore(rank, SK_LATEST, 0, NULL) == -ENOKEY, "%s",
	      sk_error());
	CHECK(strstr(sk_error(), "w??31m"), "%s", sk_error());
	CHECK(!rank_restore(rank, SK_LATEST, SK_RESTORE_EXTRA_OK, &report),
	      "%s", sk_error());
	CHECK(report.step == STEP && report.extra == 1 && !report.damaged);
	CHECK(report.bytes_disk == 5000 * sizeof(float));
	CHECK(report.bytes_verified >= report.bytes_disk);
	CHECK(!rank_wrong(rank, STEP, 0));
	read_old(rank);
}

/* What cachectl prints. */
static void print(const struct scene *scene, const char *what, char *ret,
		  size_t size)
{
	FILE *f = scene_ask(scene, what);
	size_t n;

	n = fread(ret, 1, size - 1, f);
	ret[n] = 0;
	CHECK(!pclose(f), "%s", what);
	CHECK(!strstr(ret, "\xc2\x9b"), "%s: %s", what, ret);
}

int main(int argc, char **argv)
{
	struct scene scene;
	char text[8192];

	scene_open(&scene, argc, argv);
	CHECK(scene.cachectl, "the second argument is PATH-OF-CACHECTL");
	scene_ranks(&scene, "old", 1, save, NULL);
	scene_stop_agent(&scene, SIGKILL);
	scene_start_agent(&scene);
	scene_ranks(&scene, "old", 1, load, NULL);
	CHECK(!setenv("SHARDKEEP_SOCKET", scene.socket, 1));
	print(&scene, "verify old", text, sizeof(text));
	print(&scene, "show old/4", text, sizeof(text));
	CHECK(strstr(text, "w?31m") && strstr(text, "d?p"), "%s", text);
	print(&scene, "show --json old/4", text, sizeof(text));
	CHECK(strstr(text, "\"w\\u009b31m\""), "%s", text);
	print(&scene, "--complete show old/4 ''", text, sizeof(text));
	CHECK(text[0] == 'v' && !strstr(text, "31m"), "%s", text);
	scene_close(&scene);
	return 0;
}
