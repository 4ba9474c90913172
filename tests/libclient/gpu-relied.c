/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this rank's GPU finds wrong in memory, though another rank has verified
 * it for all a moment before, is not delivered as verified.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "libclient/gpu-rank.h"
#include "state/slots.h"
#include "support/await.h"
#include "support/mesh-comm.h"

#define RANKS 2
#define COLUMNS 1000
#define ROWS 1000
#define BYTES ((size_t)4 * ROWS * COLUMNS)
/* Of two neighbours each rank verifies one. */
#define CHUNKS RANKS
#define NEVER 1000000u

/* What ranks know of each other. */
struct shared {
	unsigned entered;	/* calls of rank 1's comm */
	bool delivered;		/* it has all */
	bool flipped;
};

static struct shared *shared;

static struct mesh_comm mesh;

/* One per process: */
static struct gpu_rank gpu;
static char *now, *wanted;	/* BYTES each */
static char *at;		/* of rank 0: what is to change */
static unsigned calls;

static int (*meet)(void *ctx, const void *in, size_t bytes, void *out,
		   uint32_t timeout_ms);

static bool is_delivered(void)
{
	trainer_cuda_get(&gpu.cuda, now, gpu.tensors[0].there, BYTES);
	return !memcmp(now, wanted, BYTES);
}

/* Rank 0 goes on from each word once rank 1 has come to the next one: it has
 * moved its part, where that is between the two. */
static void let_rank_1_go_ahead(void)
{
	AWAIT(__atomic_load_n(&shared->entered, __ATOMIC_ACQUIRE) > calls,
	      "rank 1 does not come");
	if (!at || !__atomic_load_n(&shared->delivered, __ATOMIC_ACQUIRE))
		return;
	*at ^= 1;
	at = NULL;
	shared->flipped = true;
}

static int meet_in_turn(void *ctx, const void *in, size_t bytes, void *out,
			uint32_t timeout_ms)
{
	bool first = !gpu.rank->rank;
	int r;

	calls++;
	if (!first && !shared->delivered && is_delivered())
		__atomic_store_n(&shared->delivered, true, __ATOMIC_RELEASE);
	if (!first)
		__atomic_store_n(&shared->entered, calls, __ATOMIC_RELEASE);
	r = meet(ctx, in, bytes, out, timeout_ms);
	if (first)
		let_rank_1_go_ahead();
	return r;
}

/* Chunk @chunk of the tensor, which this rank's image has, in the slot of the
 * last snapshot. */
static char *find(unsigned chunk)
{
	struct sk_state *state = gpu.rank->state;
	const struct sk_entry *e = &state->layouts[0]->entries[0];
	size_t skip = chunk * (size_t)SK_SUM_CHUNK;

	CHECK(state->layouts[0]->n_entries == 1 && e->bytes == BYTES);
	for (uint32_t i = 0; i < state->n_slots; i++) {
		char *slot = (char *)state->slots[i].map[0] + e->offset;

		if (memcmp(slot, wanted, BYTES) != 0)
			continue;
		CHECK(!sk_slot_unprotect(state, i, NULL));
		return slot + skip;
	}
	CHECK(false, "no slot has it");
	return NULL;
}

static void describe(struct rank *rank)
{
	int64_t world = RANKS;
	struct sk_mesh *m;

	gpu_begin(&gpu, rank, 0);
	CHECK(!sk_mesh_create(1, &world, NULL, NULL, &m));
	gpu_add(&gpu, &(struct sk_tensor){
		.name = "common", .dtype = SK_F32, .ndim = 2,
		.shape = { ROWS, COLUMNS }, .mesh = m,
		.placements = { { .kind = SK_PLACEMENT_REPLICATE } } },
		BYTES, 1);
	sk_mesh_release(m);
	CHECK(!sk_prepare(rank->state, 60000), "%s", sk_error());
}

static void take(int64_t step)
{
	gpu_fill(&gpu, step);
	memcpy(wanted, gpu.tensors[0].here, BYTES);
	gpu_complete(&gpu, step);
}

static void changes(struct rank *rank)
{
	unsigned chunk = *(const unsigned *)rank->arg;
	struct sk_report report;
	struct sk_comm comm;

	now = rank_memory(BYTES, 0);
	wanted = rank_memory(BYTES, 0);
	describe(rank);
	take(1);
	take(2);
	at = rank->rank ? NULL : find(chunk);
	gpu_fill(&gpu, 77);
	mesh_comm_join(&mesh, rank->rank, &comm);
	meet = comm.allgather;
	comm.allgather = meet_in_turn;
	CHECK(!sk_restore(rank->state, SK_LATEST, &comm, NULL, &report), "%s",
	      sk_error());
	if (rank->rank)
		__atomic_store_n(&shared->entered, NEVER, __ATOMIC_RELEASE);
	CHECK(gpu_wrong(&gpu, report.step, rank->rank) == 0, "rank %d, step "
	      "%lld", rank->rank, (long long)report.step);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	scene_open(&scene, argc, argv);
	scene.job_flags = SK_JOB_NO_REPLICAS;
	for (unsigned chunk = 0; chunk < CHUNKS; chunk++) {
		*shared = (struct shared){ 0 };
		CHECK(!mesh_comm_new(&mesh, RANKS));
		scene_ranks(&scene, "relied", RANKS, changes, &chunk);
		mesh_comm_free(&mesh);
		CHECK(shared->flipped, "chunk %u: too late", chunk);
	}
	scene_close(&scene);
	CHECK(!munmap(shared, sizeof(*shared)));
	return 0;
}
