/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of two nodes list what there is; then it goes from both, since there is
 * a newer one, and an older one stays, which is pinned. They list again and
 * have the newer one; where that happens each time, they are told so, and
 * nothing older comes back without a word.
 * Argument: path of shardkeepd.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "conn/client.h"
#include "libclient/restore/common.h"
#include "mesh-comm.h"
#include "support/await.h"

#define RANKS 2
#define PINNED 10
#define FIRST 20
#define TIMEOUT_MS 30000u

/* Steps that have been asked for and are there, by rank; -1: no more. */
struct shared {
	_Atomic(int64_t) wanted, there[RANKS];
	_Atomic(int) listed[RANKS];	/* times */
};

struct plan {
	int times;		/* that something newer comes after a list */
	int result;
	int64_t got;
};

/* Of those that are forked next; each joins its copy. */
static struct mesh_comm links;
static struct shared *shared;
static struct rank *self;
static const struct plan *plan;
static int done;		/* times so far */

/* ---- who trains ---- */

static void snapshot(struct rank *rank, int64_t step)
{
	rank_write(rank, step);
	rank_snapshot(rank, step, SK_SEALED);
	atomic_store(&shared->there[rank->rank], step);
}

static void train(struct rank *rank)
{
	struct sk_comm comm;
	int64_t step = FIRST;

	rank_whole(rank);
	mesh_comm_join(&links, rank->rank, &comm);
	CHECK(sk_restore(rank->state, SK_LATEST, &comm, NULL, NULL) == -ENOENT,
	      "%s", sk_error());
	snapshot(rank, PINNED);
	rank_manage(rank, PINNED, SK_MSG_PIN, 0);
	do {
		snapshot(rank, step++);
		AWAIT(atomic_load(&shared->wanted) == step ||
		      atomic_load(&shared->wanted) < 0, "nobody reads");
	} while (atomic_load(&shared->wanted) >= 0);
}

/* ---- who reads ---- */

static ssize_t send_noted(const struct sk_os *os, int fd,
			  const struct msghdr *h, int flags)
{
	const struct sk_msg *msg = h->msg_iov[0].iov_base;

	if (msg->type == SK_MSG_LIST &&
	    msg->body.list.what == SK_LIST_SNAPSHOTS)
		atomic_fetch_add(&shared->listed[self->rank], 1);
	return sk_os_linux()->sendmsg(os, fd, h, flags);
}

/* Each agent has the next one before the one that was listed goes. */
static void replace(int64_t old)
{
	int64_t none = old;

	(void)atomic_compare_exchange_strong(&shared->wanted, &none, old + 1);
	for (int i = 0; i < RANKS; i++)
		AWAIT(atomic_load(&shared->there[i]) == old + 1, "%d: no step",
		      i);
	rank_evict(self, old);
}

static int (*meet)(void *ctx, const void *in, size_t bytes, void *out,
		   uint32_t timeout_ms);

/* Both have listed where they have met once since. */
static int replace_and_meet(void *ctx, const void *in, size_t bytes, void *out,
			    uint32_t timeout_ms)
{
	int r;

	if (done == plan->times ||
	    atomic_load(&shared->listed[self->rank]) == done)
		return meet(ctx, in, bytes, out, timeout_ms);
	r = meet(ctx, in, bytes, out, timeout_ms);
	replace(FIRST + done++);
	return r;
}

static void load(struct rank *rank)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MEMORY_ONLY,
					.timeout_ms = TIMEOUT_MS };
	static struct sk_os noted;	/* threads use it to the end */
	struct sk_report report = { 0 };
	struct sk_comm comm;
	int r;

	self = rank;
	plan = rank->arg;
	rank_whole(rank);
	mesh_comm_join(&links, rank->rank, &comm);
	meet = comm.allgather;
	comm.allgather = replace_and_meet;
	noted = *rank->sk->os;
	noted.sendmsg = send_noted;
	rank->sk->os = &noted;
	r = sk_restore(rank->state, SK_LATEST, &comm, &o, &report);
	CHECK(r == plan->result, "rank %d: %d, step %lld: %s", rank->rank, r,
	      (long long)report.step, sk_error());
	CHECK(done == plan->times, "%d times", done);
	if (r < 0) {
		CHECK(strstr(sk_error(), " times"), "%s", sk_error());
		return;
	}
	CHECK(report.step == plan->got, "step %lld", (long long)report.step);
	CHECK(!rank_wrong(rank, report.step, -1), "rank %d", rank->rank);
}

/* ---- both ---- */

static void meet_anew(void)
{
	mesh_comm_free(&links);
	CHECK(!mesh_comm_new(&links, RANKS));
}

static void try(struct scene *scene, const char *job, const struct plan *p)
{
	pid_t trainers[RANKS];

	atomic_store(&shared->wanted, FIRST);
	for (int i = 0; i < RANKS; i++) {
		atomic_store(&shared->there[i], 0);
		atomic_store(&shared->listed[i], 0);
	}
	scene->job_flags = 0;
	meet_anew();
	scene_ranks_start(scene, job, RANKS, train, NULL, trainers);
	for (int i = 0; i < RANKS; i++)
		AWAIT(atomic_load(&shared->there[i]) == FIRST, "no step");
	scene->job_flags = SK_JOB_READER;
	meet_anew();
	scene_ranks(scene, job, RANKS, load, p);
	atomic_store(&shared->wanted, -1);
	scene_ranks_end(job, RANKS, trainers);
}

int main(int argc, char **argv)
{
	struct scene scene, nodes[2];

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	CHECK(!mesh_comm_new(&links, RANKS));
	scene_open(&scene, argc, argv);
	scene_add_nodes(&scene, nodes, 2, true);
	for (int i = 0; i < 2; i++)
		nodes[i].slots = 4;
	try(&scene, "once", &(struct plan){ .times = 1, .got = FIRST + 1 });
	try(&scene, "each", &(struct plan){ .times = 9, .result = -EIO });
	mesh_comm_free(&links);
	scene_close(&scene);
	CHECK(!munmap(shared, sizeof(*shared)));
	return 0;
}
