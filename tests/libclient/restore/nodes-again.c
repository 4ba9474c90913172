/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one node list what it has at moments between which some of it goes:
 * they see other images, and must not go on by them at odds with each other.
 * All list again, and end alike.
 * Argument: path of shardkeepd.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "conn/client.h"
#include "libclient/restore/common.h"
#include "mesh-comm.h"

#define RANKS 3
#define OLD 10
#define NEW 20
#define TIMEOUT_MS 30000u

/* Of those that are forked next; each joins its copy. */
static struct mesh_comm links;

static const int home[RANKS] = { 0, 0, 1 };

static void save(struct rank *rank)
{
	struct sk_comm comm;

	rank_whole(rank);
	mesh_comm_join(&links, rank->rank, &comm);
	CHECK(sk_restore(rank->state, SK_LATEST, &comm, NULL, NULL) == -ENOENT,
	      "%s", sk_error());
	for (int64_t step = OLD; step <= NEW; step += NEW - OLD) {
		rank_write(rank, step);
		rank_snapshot(rank, step, SK_SEALED);
		/* Nothing that is being written can be evicted. */
		CHECK(!sk_flush(rank->state, step), "%s", sk_error());
		CHECK(!sk_wait(rank->state, step, SK_WRITTEN, 60000), "%s",
		      sk_error());
	}
}

/* ---- what goes between two lists ---- */

/* That it is gone; the ranks share it. */
static bool *gone;

static struct rank *self;
static bool listed;		/* this rank has asked for a list of images */

/* Rank 1 asks when it is gone. */
static ssize_t send_late(const struct sk_os *os, int fd,
			 const struct msghdr *h, int flags)
{
	const struct sk_msg *msg = h->msg_iov[0].iov_base;

	if (msg->type == SK_MSG_LIST && msg->body.list.what == SK_LIST_PARTS) {
		listed = true;
		while (self->rank == 1 &&
		       !__atomic_load_n(gone, __ATOMIC_ACQUIRE))
			(void)os->poll(os, NULL, 0, os->now_ns(os) + 1000000);
	}
	return sk_os_linux()->sendmsg(os, fd, h, flags);
}

static int (*meet)(void *ctx, const void *in, size_t bytes, void *out,
		   uint32_t timeout_ms);

/* Rank 0 has its list by then. */
static int evict_and_meet(void *ctx, const void *in, size_t bytes, void *out,
			  uint32_t timeout_ms)
{
	if (!self->rank && listed && !*gone) {
		rank_evict(self, NEW);
		__atomic_store_n(gone, true, __ATOMIC_RELEASE);
	}
	return meet(ctx, in, bytes, out, timeout_ms);
}

static void load(struct rank *rank)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MEMORY_ONLY,
					.timeout_ms = TIMEOUT_MS };
	static struct sk_os late;	/* threads use it to the end */
	struct sk_report report = { 0 };
	struct sk_comm comm;
	int r;

	self = rank;
	rank_whole(rank);
	mesh_comm_join(&links, rank->rank, &comm);
	meet = comm.allgather;
	comm.allgather = evict_and_meet;
	late = *rank->sk->os;
	late.sendmsg = send_late;
	rank->sk->os = &late;
	r = sk_restore(rank->state, SK_LATEST, &comm, &o, &report);
	CHECK(!r, "rank %d: %d: %s", rank->rank, r, sk_error());
	CHECK(*gone && report.step == OLD, "step %lld",
	      (long long)report.step);
	CHECK(!rank_wrong(rank, OLD, rank->rank), "rank %d", rank->rank);
}

static void run(struct scene *scene, rank_fn fn)
{
	CHECK(!mesh_comm_new(&links, RANKS));
	scene_ranks(scene, "again", RANKS, fn, NULL);
	mesh_comm_free(&links);
}

int main(int argc, char **argv)
{
	struct scene scene, nodes[2];

	gone = mmap(NULL, sizeof(*gone), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(gone != MAP_FAILED);
	scene_open(&scene, argc, argv);
	scene_add_nodes(&scene, nodes, 2, true);
	scene.node_of = home;
	run(&scene, save);
	run(&scene, load);
	scene_close(&scene);
	CHECK(!munmap(gone, sizeof(*gone)));
	return 0;
}
