/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is charged for a slot, by real cgroups: an agent in one group, a rank in
 * another whose limit leaves no room for slots. Ends with 77, and says why,
 * where this machine lets nobody make groups. Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cgroup.h"

#define MIB (UINT64_C(1) << 20)
#define TENSOR (64 * MIB)
#define SLOTS 2
/* Beside the tensor: the program, and sanitizers' memory of it; the one of
 * threads notes much of each byte that is touched. */
#ifdef __SANITIZE_THREAD__
#define BESIDE (4096 * MIB)
#else
#define BESIDE (96 * MIB)
#endif
/* What a rank writes into of the agent's beside slots: rings, windows. */
#define LITTLE (8 * MIB)
#define SKIP 77

struct group {
	char dir[SK_CGROUP_ROOM + 96];
	unsigned version;
};

/* ---- groups ---- */

static int put(const struct group *g, const char *file, const char *text)
{
	char path[sizeof(g->dir) + 32];
	ssize_t n;
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%s", g->dir, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	n = write(fd, text, strlen(text));
	close(fd);
	return n < 0 ? -errno : 0;
}

static const char *root_of(unsigned version)
{
	return version == 1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
}

/* Whether groups below this one, of version 2, have memory of their own. */
static bool hands_memory_on(const char *group)
{
	char path[SK_CGROUP_ROOM + 96], names[512] = "";
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s%s/cgroup.subtree_control",
		       root_of(2), group);
	f = fopen(path, "re");
	if (!f)
		return false;
	(void)!fgets(names, sizeof(names), f);
	fclose(f);
	return strstr(names, "memory") != NULL;
}

/* Of version 2, groups have memory where the one above says so, which one that
 * has processes may not: the next above ours that does, as the slice does that
 * a session lies in; else ours, which says so if it may. */
static void find_parent(struct sk_cgroup *group)
{
	struct sk_cgroup at = *group;
	struct group ours = { .version = 2 };
	char *slash;

	while (!hands_memory_on(at.path) && (slash = strrchr(at.path, '/')))
		*slash = 0;
	if (hands_memory_on(at.path)) {
		*group = at;
		return;
	}
	(void)snprintf(ours.dir, sizeof(ours.dir), "%s%s", root_of(2),
		       group->path);
	(void)put(&ours, "cgroup.subtree_control", "+memory");
}

static int make_group(struct group *g, const char *name)
{
	struct sk_cgroup above;

	if (sk_cgroup_of(sk_os_linux(), "self", &above) < 0 || !above.version)
		return -ENOENT;
	if (above.version == 2)
		find_parent(&above);
	*g = (struct group){ .version = above.version };
	(void)snprintf(g->dir, sizeof(g->dir), "%s%s/shardkeep-%d-%s",
		       root_of(g->version), above.path, (int)getpid(), name);
	if (mkdir(g->dir, 0755) < 0)
		return -errno;
	return 0;
}

static int limit(const struct group *g, uint64_t bytes)
{
	char text[32];

	(void)snprintf(text, sizeof(text), "%" PRIu64, bytes);
	return put(g, g->version == 1 ? "memory.limit_in_bytes" :
		   "memory.max", text);
}

static void enter(const struct group *g)
{
	CHECK(put(g, "cgroup.procs", "0") == 0, "%s: %s", g->dir,
	      strerror(errno));
}

/* Shared memory, of which slots are, that is charged to it. */
static uint64_t charged(const struct group *g)
{
	char path[sizeof(g->dir) + 32], line[256];
	uint64_t bytes = UINT64_MAX;
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/memory.stat", g->dir);
	f = fopen(path, "re");
	CHECK(f, "%s", path);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "shmem %" SCNu64, &bytes) == 1)
			break;
	fclose(f);
	CHECK(bytes != UINT64_MAX, "%s does not say it", path);
	return bytes;
}

/* ---- the rank ---- */

static void snapshots(struct rank *rank)
{
	const struct sk_snapshot_options options = { .wait_ms = 60000 };
	const struct group *g = rank->arg;
	char *data;

	data = mmap(NULL, TENSOR, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(data != MAP_FAILED);
	CHECK(!sk_state_tensor(rank->state, &(struct sk_tensor){ .name = "w",
		.dtype = SK_U8, .ndim = 1, .shape = { TENSOR },
		.data = data }), "%s", sk_error());
	/* The first comes before anything can have been faulted in. */
	for (int step = 1; step <= 3 * SLOTS; step++) {
		memset(data, step, TENSOR);
		CHECK(!sk_snapshot(rank->state, step, &options), "%s",
		      sk_error());
		CHECK(!sk_fence(rank->state), "%s", sk_error());
		CHECK(!sk_wait(rank->state, step, SK_SEALED, 60000), "%s",
		      sk_error());
	}
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
	memset(data, 0, TENSOR);
	CHECK(!rank_restore(rank, SK_LATEST, 0, NULL), "%s", sk_error());
	for (uint64_t i = 0; i < TENSOR; i++)
		CHECK(data[i] == 3 * SLOTS, "byte %" PRIu64, i);
	CHECK(charged(g) < LITTLE, "%" PRIu64 " bytes of shared memory are "
	      "charged to the rank", charged(g));
}

/* ---- groups that differ, and one group ---- */

static void remove_group(const struct group *g)
{
	/* Whatever was charged there is nobody's soon. */
	if (rmdir(g->dir) < 0 && errno != ENOENT)
		fprintf(stderr, "%s: %s\n", g->dir, strerror(errno));
}

static void apart(struct scene *scene, const struct group *agent,
		  const struct group *rank)
{
	uint64_t bytes;
	int status;
	pid_t pid;

	CHECK(limit(rank, TENSOR + BESIDE) == 0, "a limit");
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		enter(rank);
		scene_ranks(scene, "apart", 1, snapshots, rank);
		exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(!status, "the rank ended with status %#x", status);
	bytes = charged(agent);
	CHECK(bytes >= SLOTS * TENSOR, "%" PRIu64 " bytes are charged to the "
	      "agent", bytes);
	printf("agent %" PRIu64 " MiB, rank %" PRIu64 " MiB\n", bytes / MIB,
	       charged(rank) / MIB);
}

static int begin(struct group *agent, struct group *rank)
{
	int r = make_group(agent, "agent");

	if (r == 0)
		r = make_group(rank, "rank");
	if (r == 0)
		r = limit(rank, UINT64_C(1) << 40);
	if (r == 0)
		return 0;
	remove_group(agent);
	remove_group(rank);
	printf("no memory cgroups can be made here: %s\n", strerror(-r));
	return SKIP;
}

int main(int argc, char **argv)
{
	struct group agent = { "" }, rank = { "" };
	struct scene scene;
	int status;
	pid_t pid;

	if (begin(&agent, &rank))
		return SKIP;
	/* The groups can go when all that was in them has ended. */
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		enter(&agent);
		scene_open(&scene, argc, argv);
		apart(&scene, &agent, &rank);
		scene_close(&scene);
		exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	remove_group(&rank);
	remove_group(&agent);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "status %#x", status);
	return 0;
}
