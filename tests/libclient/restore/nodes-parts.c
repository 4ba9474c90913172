/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several ranks of a node want of another node comes there once, however
 * they say it: by a mesh, as parallelisms have it, or box by box, the same
 * boxes or such that overlap. 2 nodes of 4 ranks; by NCCL, with
 * $SHARDKEEP_LIBNCCL, on simulated GPUs. Counted row by row.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "libclient/gpu-rank.h"
#include "mesh-comm.h"
#include "tensor/box.h"

#define NODES 2
#define RANKS 8
#define ROWS 640
#define COLUMNS 500
#define ROW ((size_t)COLUMNS * 4)
#define STEP 3

static struct mesh_comm links;

static const int home[RANKS] = { 0, 0, 0, 0, 1, 1, 1, 1 },
		 away[RANKS] = { 1, 1, 1, 1, 0, 0, 0, 0 },
		 mixed[RANKS] = { 0, 1, 0, 1, 0, 1, 0, 1 };

/* How the ranks of a side have the rows. */
enum how {
	SHARDED,	/* over all */
	EACH,		/* the same, each its own box */
	REPLICATED,	/* all of them, everywhere: DDP */
	HYBRID,		/* HSDP: cut over 4, twice */
	CROSSED,	/* TP over 2 within DP over 4 */
	HALF,		/* boxes: one half for even ranks, the other for odd */
	OVERLAPPING,	/* boxes: each a quarter, half of it the next one's */
	ALL,		/* a box: all of it */
	SOME,		/* a box: what the others of a node have least of */
};

struct way {
	const char *name;
	enum how from, to;
	const int *nodes;
	bool disjoint;		/* what each rank wants: it all goes by
				 * devices, where there are any */
};

struct totals {
	uint64_t received, sent, device;
};

struct side {
	const struct way *way;
	bool load;
	struct totals *totals;
};

static bool is_boxes(enum how how)
{
	return how == EACH || how >= HALF;
}

/* Rows [from, to) that the rank has. */
static void rows_of(enum how how, int rank, int64_t *from, int64_t *to)
{
	int64_t each = ROWS / RANKS;

	*from = 0;
	*to = ROWS;
	switch (how) {
	case SHARDED:
	case EACH:
		*from = rank * each;
		*to = *from + each;
		break;
	case HYBRID:
		*from = rank % 4 * (ROWS / 4);
		*to = *from + ROWS / 4;
		break;
	case CROSSED:
	case HALF:
		*from = rank % 2 * (ROWS / 2);
		*to = *from + ROWS / 2;
		break;
	case OVERLAPPING:
		*from = rank * each;
		*to = *from + 2 * each < ROWS ? *from + 2 * each : ROWS;
		break;
	case SOME:
		*from = rank % 4 * 7;
		*to = ROWS - rank % 3 * 11;
		break;
	case REPLICATED:
	case ALL:
		break;
	}
}

static uint32_t value(int64_t row, int64_t column)
{
	return (uint32_t)(row * 100003 + column * 7 + 1);
}

static void place(enum how how, struct sk_tensor *t, struct sk_mesh **ret)
{
	t->placements[0] = SK_REPLICATE;
	t->placements[1] = SK_SHARD(0);
	if (how == SHARDED)
		t->placements[0] = SK_SHARD(0);
	*ret = how == HYBRID ? mesh_of(2, 4, NULL, NULL) :
	       how == CROSSED ? mesh_of(4, 2, NULL, NULL) :
				mesh_of(RANKS, 0, NULL, NULL);
	t->mesh = *ret;
}

struct memory {
	struct gpu_rank g;
	bool gpu;
	int64_t from, to;
	char *here;
	sk_cu_ptr there;
};

static size_t bytes_of(const struct memory *m)
{
	return (size_t)(m->to - m->from) * ROW;
}

static const int *nodes_of(const struct side *s)
{
	return s->load ? s->way->nodes : home;
}

/* On the device of its number within its node. */
static void begin(struct memory *m, struct rank *rank)
{
	const int *nodes = nodes_of(rank->arg);
	int number = 0;
	char host[16];

	m->gpu = getenv("SHARDKEEP_LIBNCCL") != NULL;
	m->here = rank_memory(bytes_of(m), 0xee);
	if (!m->gpu)
		return;
	(void)snprintf(host, sizeof(host), "node-%d", nodes[rank->rank]);
	CHECK(!setenv("NCCL_HOSTID", host, 1));
	for (int i = 0; i < rank->rank; i++)
		number += nodes[i] == nodes[rank->rank];
	gpu_begin(&m->g, rank, number);
	m->there = trainer_cuda_alloc(&m->g.cuda, bytes_of(m));
	trainer_cuda_put(&m->g.cuda, m->there, m->here, bytes_of(m));
}

static void describe(struct memory *m, struct rank *rank)
{
	const struct side *s = rank->arg;
	enum how how = s->load ? s->way->to : s->way->from;
	struct sk_tensor t = { .name = "w", .dtype = SK_F32, .ndim = 2,
			       .shape = { ROWS, COLUMNS } };
	struct sk_part part = { .box.size = { 0, COLUMNS } };
	struct sk_mesh *mesh = NULL;
	void *data;

	rows_of(how, rank->rank, &m->from, &m->to);
	begin(m, rank);
	data = m->gpu ? (void *)(uintptr_t)m->there : m->here;
	t.memory = m->gpu ? SK_CUDA : SK_HOST;
	t.device = m->gpu ? m->g.device : 0;
	if (is_boxes(how)) {
		part.box.offset[0] = m->from;
		part.box.size[0] = m->to - m->from;
		part.data = data;
		t.parts = &part;
		t.n_parts = 1;
	} else {
		place(how, &t, &mesh);
		t.data = data;
	}
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	sk_mesh_release(mesh);
}

static uint64_t look(struct memory *m, bool write)
{
	uint32_t *v = (uint32_t *)(void *)m->here;
	uint64_t wrong = 0;

	if (m->gpu && !write)
		trainer_cuda_get(&m->g.cuda, m->here, m->there, bytes_of(m));
	for (int64_t row = m->from; row < m->to; row++)
		for (int64_t c = 0; c < COLUMNS; c++, v++) {
			wrong += *v != value(row, c);
			if (write)
				*v = value(row, c);
		}
	if (m->gpu && write)
		trainer_cuda_put(&m->g.cuda, m->there, m->here, bytes_of(m));
	return wrong;
}

static int restore(struct memory *m, struct rank *rank,
		   struct sk_report *ret_report)
{
	struct sk_restore_options o = { .timeout_ms = 30000,
					.flags = SK_RESTORE_MEMORY_ONLY };
	struct sk_comm comm, nccl;
	int r;

	mesh_comm_join(&links, rank->rank, &comm);
	if (!m->gpu)
		return sk_restore(rank->state, SK_LATEST, &comm, &o,
				  ret_report);
	CHECK(!sk_comm_nccl(rank->sk, &comm, rank->rank, rank->world,
			    m->g.device, &nccl), "%s", sk_error());
	r = sk_restore(rank->state, SK_LATEST, &nccl, &o, ret_report);
	CHECK(!sk_comm_nccl_why(&nccl)[0], "%s", sk_comm_nccl_why(&nccl));
	sk_comm_nccl_free(&nccl);
	return r;
}

static void save(struct rank *rank)
{
	struct memory m = { .gpu = false };

	describe(&m, rank);
	CHECK(restore(&m, rank, NULL) == -ENOENT, "%s", sk_error());
	(void)look(&m, true);
	CHECK(!sk_snapshot(rank->state, STEP, NULL), "%s", sk_error());
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_wait(rank->state, STEP, SK_SEALED, 60000), "%s",
	      sk_error());
}

static void load(struct rank *rank)
{
	const struct side *s = rank->arg;
	struct memory m = { .gpu = false };
	struct sk_report report;

	describe(&m, rank);
	CHECK(!restore(&m, rank, &report), "%s: %s", s->way->name, sk_error());
	CHECK(!look(&m, false), "%s, rank %d", s->way->name, rank->rank);
	__atomic_fetch_add(&s->totals->received, report.bytes_received,
			   __ATOMIC_RELAXED);
	__atomic_fetch_add(&s->totals->sent, report.bytes_sent,
			   __ATOMIC_RELAXED);
	__atomic_fetch_add(&s->totals->device, report.bytes_device,
			   __ATOMIC_RELAXED);
}

/* Rows that a rank of a node wants and none there has, once per node. */
static uint64_t needed(const struct way *w)
{
	uint64_t need = 0;
	int64_t from, to;

	for (int node = 0; node < NODES; node++)
		for (int64_t row = 0; row < ROWS; row++) {
			bool has = false, wants = false;

			for (int r = 0; r < RANKS; r++) {
				rows_of(w->from, r, &from, &to);
				has |= home[r] == node && row >= from &&
				       row < to;
				rows_of(w->to, r, &from, &to);
				wants |= w->nodes[r] == node && row >= from &&
					 row < to;
			}
			need += wants && !has ? ROW : 0;
		}
	return need;
}

static void run(struct scene *scene, struct side *s, rank_fn fn)
{
	scene->node_of = nodes_of(s);
	CHECK(!mesh_comm_new(&links, RANKS));
	scene_ranks(scene, s->way->name, RANKS, fn, s);
	mesh_comm_free(&links);
	scene->node_of = NULL;
}

static void go(struct scene *scene, const struct way *w,
	       struct totals *totals)
{
	struct side s = { .way = w, .totals = totals };
	uint64_t need = needed(w);

	*totals = (struct totals){ 0 };
	run(scene, &s, save);
	s.load = true;
	run(scene, &s, load);
	CHECK(totals->sent == totals->received);
	CHECK(totals->received >= need &&
	      totals->received <= need + need / 20, "%s: %llu received, %llu "
	      "needed, %llu of them by devices", w->name,
	      (unsigned long long)totals->received, (unsigned long long)need,
	      (unsigned long long)totals->device);
	CHECK(!w->disjoint || !getenv("SHARDKEEP_LIBNCCL") ||
	      totals->device == totals->received, "%s: %llu of %llu by "
	      "devices", w->name, (unsigned long long)totals->device,
	      (unsigned long long)totals->received);
}

static const struct way ways[] = {
	{ "fsdp", SHARDED, SHARDED, away, true },
	{ "fsdp-to-ddp", SHARDED, REPLICATED, away },
	{ "fsdp-to-hsdp", SHARDED, HYBRID, mixed },
	{ "hsdp-to-tp", HYBRID, CROSSED, mixed },
	{ "tp-to-fsdp", CROSSED, SHARDED, away, true },
	{ "experts", EACH, EACH, away, true },
	{ "experts-to-ddp", EACH, REPLICATED, away },
	{ "experts-to-tp", EACH, CROSSED, mixed },
	{ "fsdp-to-halves", SHARDED, HALF, away },
	{ "experts-to-halves", EACH, HALF, mixed },
	{ "fsdp-to-all", SHARDED, ALL, mixed },
	{ "experts-to-all", EACH, ALL, away },
	{ "fsdp-to-windows", SHARDED, OVERLAPPING, away },
	{ "experts-to-windows", EACH, OVERLAPPING, mixed },
	{ "experts-to-some", EACH, SOME, mixed },
	{ "tp-to-windows", CROSSED, OVERLAPPING, away },
	{ "halves-to-all", HALF, ALL, away },
};

int main(int argc, char **argv)
{
	struct totals *totals = mmap(NULL, sizeof(*totals),
				     PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct scene scene, nodes[NODES];

	CHECK(totals != MAP_FAILED);
	setenv("VCUDA_DEVICES", "4", 0);
	scene_open(&scene, argc, argv);
	scene_add_nodes(&scene, nodes, NODES, true);
	for (size_t i = 0; i < SK_ARRAY_SIZE(ways); i++)
		go(&scene, &ways[i], totals);
	scene_close(&scene);
	return 0;
}
