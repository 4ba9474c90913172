/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong between nodes: ranks that die or stop in any call of the
 * comm, bytes that change on their way, images that are spoilt, nodes that
 * come back with less than they had.
 */
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/util.h"
#include "conn/list.h"
#include "libclient/restore/common.h"
#include "mesh-comm.h"

#define NODES 3
#define ROWS 900	/* of 900 F32: 3 MiB, and more than a chunk a rank */

/* Of those that are forked next; each joins its copy. */
static struct mesh_comm links;

/* Of all ranks together; the processes share it. */
struct sums {
	uint64_t damaged, disk;
	int calls;		/* of rank 1's comm */
};

/* Of a comm, in a restore that takes from other nodes. */
#define CALLS_LEAST 22

static const int home[4] = { 0, 0, 1, 1 }, away[4] = { 0, 1, 2, 1 };

struct going_wrong {
	int64_t from, to;	/* steps to save, where it is that side */
	bool write;		/* and to wait for on disk */
	int culprit;		/* rank; -1: none */
	int die_at, stop_at, odd_at;
	int lose_at;		/* the culprit alone fails by it */
	bool lies;
	uint32_t timeout_ms, flags;
	int result;
	const char *words;
	int64_t got;
	struct sums *sums;
};

static int restore_wrong(struct rank *rank, const struct going_wrong *g,
			 struct sk_report *ret_report)
{
	struct sk_restore_options o = { .flags = g->flags,
		.timeout_ms = g->timeout_ms ? g->timeout_ms : 20000 };
	struct sk_comm comm;

	mesh_comm_join(&links, rank->rank, &comm);
	if (rank->rank == g->culprit) {
		links.die_at = g->die_at;
		links.stop_at = g->stop_at;
		links.odd_at = g->odd_at;
		links.lose_at = g->lose_at;
		links.lies = g->lies;
	}
	return sk_restore(rank->state, SK_LATEST, &comm, &o, ret_report);
}

static void save_steps(struct rank *rank)
{
	const struct going_wrong *g = rank->arg;

	rank_model(rank, ROWS);
	(void)restore_wrong(rank, g, NULL);
	for (int64_t step = g->from; step <= g->to; step++) {
		rank_write(rank, step);
		rank_snapshot(rank, step, SK_SEALED);
		if (!g->write)
			continue;
		CHECK(!sk_flush(rank->state, step), "%s", sk_error());
		CHECK(!sk_wait(rank->state, step, SK_WRITTEN, 60000), "%s",
		      sk_error());
	}
}

static void load_wrong(struct rank *rank)
{
	const struct going_wrong *g = rank->arg;
	bool well = g->lose_at && rank->rank != g->culprit;
	int r, wanted = well ? 0 : g->result;
	struct sk_report report = { 0 };

	rank_model(rank, ROWS);
	r = restore_wrong(rank, g, &report);
	CHECK(r == wanted, "rank %d: %d, wanted %d: %s", rank->rank, r,
	      wanted, sk_error());
	if (r < 0) {
		CHECK(!g->words || strstr(sk_error(), g->words), "%s",
		      sk_error());
		return;
	}
	CHECK(links.calls >= CALLS_LEAST, "%d", links.calls);
	CHECK(report.step == g->got, "step %lld", (long long)report.step);
	CHECK(!rank_wrong(rank, g->got, rank->rank));
	__atomic_fetch_add(&g->sums->damaged, report.damaged, __ATOMIC_RELAXED);
	__atomic_fetch_add(&g->sums->disk, report.bytes_disk,
			   __ATOMIC_RELAXED);
	if (rank->rank == 1)
		g->sums->calls = links.calls;
}

/* The culprit ends by a signal, or is ended when the others have. */
static void end_wrong(const struct going_wrong *g, const pid_t *pids)
{
	int failed = 0, status;

	for (int i = 0; i < 4; i++) {
		if (i == g->culprit && (g->die_at || g->stop_at))
			continue;
		CHECK(waitpid(pids[i], &status, 0) == pids[i]);
		failed += status != 0;
	}
	if (g->culprit >= 0 && (g->die_at || g->stop_at)) {
		(void)kill(pids[g->culprit], SIGKILL);
		CHECK(waitpid(pids[g->culprit], &status, 0) ==
		      pids[g->culprit]);
		CHECK(WIFSIGNALED(status), "it was never so far");
	}
	CHECK(!failed, "%d ranks failed", failed);
}

static void run_wrong(struct scene *scene, const char *job,
		      struct going_wrong *g, rank_fn fn)
{
	pid_t pids[4];

	scene->node_of = fn == save_steps ? home : away;
	CHECK(!mesh_comm_new(&links, 4));
	scene_ranks_start(scene, job, 4, fn, g, pids);
	mesh_comm_free(&links);
	end_wrong(g, pids);
	scene->node_of = NULL;
}

static void save_on_two(struct scene *scene, const char *job, int64_t from,
			int64_t to)
{
	struct going_wrong g = { .from = from, .to = to, .culprit = -1 };

	run_wrong(scene, job, &g, save_steps);
}

/* Whoever dies or stops, wherever: the others end, and alike. */
static void test_gone(struct scene *scene)
{
	save_on_two(scene, "gone", 10, 11);
	for (int at = 1; at <= CALLS_LEAST; at += 3) {
		struct going_wrong g = { .culprit = at % 2 ? 2 : 1,
					 .die_at = at, .result = -ETIMEDOUT };

		run_wrong(scene, "gone", &g, load_wrong);
		g = (struct going_wrong){ .culprit = at % 2, .stop_at = at,
					  .timeout_ms = 400,
					  .result = -ETIMEDOUT };
		run_wrong(scene, "gone", &g, load_wrong);
	}
}

/* A code that is no errno is no success: nothing is taken for having come. */
static void test_odd(struct scene *scene)
{
	save_on_two(scene, "odd", 10, 11);
	for (int at = 1; at <= CALLS_LEAST; at++) {
		struct going_wrong g = { .culprit = at % 4, .odd_at = at,
					 .result = -ETIMEDOUT };

		run_wrong(scene, "odd", &g, load_wrong);
	}
}

/* Who alone does not hear the last word has all its bytes, and says so: no word
 * follows by which the others could be told. */
static void test_last_word(struct scene *scene, struct sums *sums)
{
	struct going_wrong g = { .culprit = -1, .got = 11, .sums = sums };

	save_on_two(scene, "last", 10, 11);
	run_wrong(scene, "last", &g, load_wrong);
	g.culprit = 1;
	g.lose_at = sums->calls;
	g.result = -ETIMEDOUT;
	g.words = "of the others nobody can tell: restore again on all";
	run_wrong(scene, "last", &g, load_wrong);
	g = (struct going_wrong){ .culprit = -1, .got = 11, .sums = sums };
	run_wrong(scene, "last", &g, load_wrong);
}

/* Bytes that change on their way are seen where both ends are verified, and
 * nothing is seen where none does. */
static void test_lies(struct scene *scene, struct sums *sums)
{
	struct going_wrong honest = { .culprit = -1, .got = 11, .sums = sums };
	struct going_wrong g = { .culprit = 0, .lies = true,
				 .result = -EBADMSG,
				 .words = "came to rank" };

	scene->job_flags = SK_JOB_VERIFY;
	save_on_two(scene, "lies", 10, 11);
	run_wrong(scene, "lies", &honest, load_wrong);
	run_wrong(scene, "lies", &g, load_wrong);
	scene->job_flags = 0;
}

static void flip_last(const char *path, uint64_t bytes)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	char byte;

	CHECK(fd >= 0 && pread(fd, &byte, 1, (off_t)bytes - 1) == 1);
	byte ^= 4;
	CHECK(pwrite(fd, &byte, 1, (off_t)bytes - 1) == 1);
	close(fd);
}

/* The last byte of an image in the memory of a node. */
static void flip(const struct scene *node, const char *job, int64_t step,
		 int rank)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_wire_id id = { .step = step, .rank = rank };
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_wire_image *images;
	struct sk_opened_image o;
	struct sk_err err = { "" };
	char path[64];
	size_t n, flipped = 0;

	strcpy(id.job, job);
	CHECK(!sk_conn_open(os, node->socket, sk_until_ms(os, 10000), &conn,
			    &err), "%s", err.text);
	CHECK(!sk_list_images(&conn, &id, 0, sk_until_ms(os, 10000), &images,
			      &n, &err), "%s", err.text);
	for (size_t i = 0; i < n; i++) {
		if (images[i].place != SK_PLACE_MEMORY ||
		    images[i].kind != SK_IMAGE_PRIMARY)
			continue;
		CHECK(!sk_image_open(&conn, images[i].image, images[i].place,
				     sk_until_ms(os, 10000), &o, &err), "%s",
		      err.text);
		(void)snprintf(path, sizeof(path), "/proc/self/fd/%d",
			       o.data);
		flip_last(path, images[i].bytes);
		sk_close_fd(o.data);
		sk_close_fd(o.header);
		flipped++;
	}
	free(images);
	sk_conn_close(&conn);
	CHECK(flipped == 1, "%zu images", flipped);
}

/* And on its disk: of rank 1, of step 11. */
static int flip_file(const char *path, const struct stat *st, int type,
		     struct FTW *ftw)
{
	if (type == FTW_F && strstr(path, "step-000000000011/") &&
	    !strncmp(path + ftw->base, "rank-00001-", 11))
		flip_last(path, (uint64_t)st->st_size);
	return 0;
}

static void restart(struct scene *node, int sig)
{
	scene_stop_agent(node, sig);
	scene_start_agent(node);
}

/* What one holder has spoilt, and no other has, is taken from before. */
static void test_damage(struct scene *scene, struct sums *sums)
{
	struct going_wrong g = { .culprit = -1, .got = 10, .sums = sums };

	/* No flush is to find it first. */
	for (int i = 0; i < NODES; i++) {
		scene->nodes[i].store[0] = '\0';
		restart(&scene->nodes[i], SIGKILL);
	}
	scene->agent = scene->nodes[0].agent;
	for (int rank = 0; rank < 4; rank++) {
		char job[16];

		(void)snprintf(job, sizeof(job), "damage-%d", rank);
		save_on_two(scene, job, 10, 11);
		flip(&scene->nodes[home[rank]], job, 11, rank);
		*sums = (struct sums){ 0 };
		run_wrong(scene, job, &g, load_wrong);
		CHECK(sums->damaged, "nobody set an image aside");
	}
}

/* What was found spoilt in memory is looked at again on the same node's disk,
 * and is as spoilt there. Rank 1 comes back on another node. */
static void test_damaged_twice(struct scene *scene, struct sums *sums)
{
	struct going_wrong g = { .from = 10, .to = 11, .write = true,
				 .culprit = -1 };

	run_wrong(scene, "twice", &g, save_steps);
	flip(&scene->nodes[0], "twice", 11, 1);
	CHECK(!nftw(scene->nodes[0].store, flip_file, 16, FTW_PHYS));
	*sums = (struct sums){ 0 };
	g = (struct going_wrong){ .culprit = -1, .got = 10, .sums = sums };
	run_wrong(scene, "twice", &g, load_wrong);
	CHECK(sums->damaged >= 2, "%llu images set aside",
	      (unsigned long long)sums->damaged);
}

/* A node that was stopped has what it wrote, and one that was killed has not:
 * then what both have of before serves. */
static void test_lost(struct scene *scene, struct sums *sums)
{
	struct going_wrong g = { .culprit = -1, .got = 11, .sums = sums };

	save_on_two(scene, "lost", 10, 11);
	/* The next one dies before it has written what its ranks leave. */
	scene->nodes[1].flush_rate = "1K";
	restart(&scene->nodes[1], SIGTERM);
	*sums = (struct sums){ 0 };
	run_wrong(scene, "lost", &g, load_wrong);
	CHECK(sums->disk, "nothing came from a disk");
	restart(&scene->nodes[0], SIGTERM);
	scene->agent = scene->nodes[0].agent;
	save_on_two(scene, "lost", 12, 13);
	scene->nodes[1].flush_rate = NULL;
	restart(&scene->nodes[1], SIGKILL);
	run_wrong(scene, "lost", &g, load_wrong);
}

static void test_wrong(struct scene *scene)
{
	struct sums *sums = mmap(NULL, sizeof(*sums),
				     PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(sums != MAP_FAILED);
	test_gone(scene);
	test_odd(scene);
	test_last_word(scene, sums);
	test_lies(scene, sums);
	test_damaged_twice(scene, sums);
	test_lost(scene, sums);
	test_damage(scene, sums);
	CHECK(!munmap(sums, sizeof(*sums)));
}

int main(int argc, char **argv)
{
	struct scene scene, nodes[NODES];

	scene_open(&scene, argc, argv);
	scene_add_nodes(&scene, nodes, NODES, true);
	test_wrong(&scene);
	scene_close(&scene);
	return 0;
}
