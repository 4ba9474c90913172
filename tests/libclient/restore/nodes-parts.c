/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several ranks of a node want of another node comes there once, however
 * they say it: by a mesh, as parallelisms have it, or box by box, the same
 * boxes or such that overlap; and what several nodes want of one source that
 * sends once. 8 ranks on 2 nodes, and on 4; with $SHARDKEEP_LIBNCCL on
 * simulated GPUs, where all of it goes from device to device, but for what all
 * have in host memory. Counted row by row. $SK_WAYS
 * says which, with commas between them; else it is all of them.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "fault-os.h"
#include "libclient/gpu-rank.h"
#include "mesh-comm.h"
#include "tensor/box.h"

#define NODES 4
#define RANKS 8
#define ROWS 640
#define COLUMNS 500
#define ROW ((size_t)COLUMNS * 4)
#define STEP 3
#define NORM 333	/* F32 that each rank has, behind its rows */

static struct mesh_comm links;

static const int home[RANKS] = { 0, 0, 0, 0, 1, 1, 1, 1 },
		 away[RANKS] = { 1, 1, 1, 1, 0, 0, 0, 0 },
		 mixed[RANKS] = { 0, 1, 0, 1, 0, 1, 0, 1 },
		 uneven[RANKS] = { 0, 1, 1, 1, 1, 1, 0, 0 },
		 one[RANKS] = { 1, 1, 1, 0, 1, 1, 1, 1 },
		 wide[RANKS] = { 0, 0, 1, 1, 2, 2, 3, 3 },
		 fresh[RANKS] = { 2, 0, 1, 3, 2, 2, 3, 3 };

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
	LANES,		/* a quarter: even ranks in a mesh, odd in another */
	SKEWED,		/* so, but of the odd ones each has a half */
	SAID,		/* all: ranks 0, 3 and 6 by a box, others by a mesh */
};

struct way {
	const char *name;
	enum how from, to;
	const int *nodes;
	bool lost;		/* node 1 loses its memory in between */
	int on_host;		/* bit per rank that comes back to host
				 * memory */
	int no_norm;		/* and that asks for the rest alone */
};

struct totals {
	uint64_t received, sent, passed, device, disk;
};

struct need {
	uint64_t all, device;
	uint64_t once;		/* by any node */
};

struct side {
	const struct way *way;
	bool load;
	struct totals *totals;
};

static bool is_boxes(enum how how, int rank)
{
	if (how == SAID)
		return rank % 3 == 0;
	return how == EACH || (how >= HALF && how < LANES);
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
	case LANES:
		*from = rank / 2 * (ROWS / 4);
		*to = *from + ROWS / 4;
		break;
	case SKEWED:
		each = rank % 2 ? ROWS / 2 : ROWS / 4;
		*from = rank / 2 % (ROWS / each) * each;
		*to = *from + each;
		break;
	case REPLICATED:
	case ALL:
	case SAID:
		break;
	}
}

static uint32_t value(int64_t row, int64_t column)
{
	return (uint32_t)(row * 100003 + column * 7 + 1);
}

/* Of the ranks that are even, or of those that are odd. */
static struct sk_mesh *lane_of(int rank, int cuts)
{
	int32_t ranks[RANKS / 2];

	for (int i = 0; i < RANKS / 2; i++)
		ranks[i] = 2 * i + rank % 2;
	return mesh_of(RANKS / 2 / cuts, cuts, ranks, NULL);
}

static void place(enum how how, int rank, struct sk_tensor *t,
		  struct sk_mesh **ret)
{
	t->placements[0] = SK_REPLICATE;
	t->placements[1] = SK_SHARD(0);
	if (how == SHARDED)
		t->placements[0] = SK_SHARD(0);
	*ret = how == HYBRID ? mesh_of(2, 4, NULL, NULL) :
	       how == CROSSED ? mesh_of(4, 2, NULL, NULL) :
	       how == LANES ? lane_of(rank, 4) :
	       how == SKEWED ? lane_of(rank, rank % 2 ? 2 : 4) :
				mesh_of(RANKS, 0, NULL, NULL);
	t->mesh = *ret;
}

struct memory {
	struct gpu_rank g;
	bool gpu;		/* it has one; and NCCL */
	bool on_host;		/* but the tensor is in host memory */
	bool no_norm;		/* it is not asked for */
	int64_t from, to;
	char *here;
	sk_cu_ptr there;
};

static size_t rows_bytes(const struct memory *m)
{
	return (size_t)(m->to - m->from) * ROW;
}

static size_t bytes_of(const struct memory *m)
{
	return rows_bytes(m) + NORM * sizeof(uint32_t);
}

/* NCCL is to take two ranks on one GPU for others. */
static void name_host(const int *nodes, int rank)
{
	int near = 0;
	char host[16];

	for (int i = 0; i < RANKS; i++)
		near += nodes[i] == nodes[rank];
	if (near > gpu_devices())
		(void)snprintf(host, sizeof(host), "rank-%d", rank);
	else
		(void)snprintf(host, sizeof(host), "node-%d", nodes[rank]);
	CHECK(!setenv("NCCL_HOSTID", host, 1));
}

static const int *nodes_of(const struct side *s)
{
	return s->load ? s->way->nodes : home;
}

static bool is_on_host(const struct way *w, int rank)
{
	return w->on_host >> rank & 1;
}

/* On the device of its number within its node. */
static void begin(struct memory *m, struct rank *rank)
{
	const struct side *s = rank->arg;
	const int *nodes = nodes_of(s);
	int number = 0;

	m->gpu = getenv("SHARDKEEP_LIBNCCL") != NULL;
	m->on_host = !m->gpu || (s->load && is_on_host(s->way, rank->rank));
	m->here = rank_memory(bytes_of(m), 0xee);
	if (!m->gpu)
		return;
	for (int i = 0; i < rank->rank; i++)
		number += nodes[i] == nodes[rank->rank];
	name_host(nodes, rank->rank);
	gpu_begin(&m->g, rank, number);
	if (m->on_host)
		return;
	m->there = trainer_cuda_alloc(&m->g.cuda, bytes_of(m));
	trainer_cuda_put(&m->g.cuda, m->there, m->here, bytes_of(m));
}

static void describe_as(const struct memory *m, struct sk_tensor *t)
{
	t->memory = m->on_host ? SK_HOST : SK_CUDA;
	t->device = m->on_host ? 0 : m->g.device;
}

static void describe_norm(struct rank *rank, const struct memory *m,
			  char *data)
{
	struct sk_mesh *mesh = mesh_of(RANKS, 0, NULL, NULL);
	struct sk_tensor t = { .name = "norm", .dtype = SK_F32, .ndim = 1,
			       .shape = { NORM }, .mesh = mesh,
			       .placements = { SK_REPLICATE },
			       .data = data + rows_bytes(m) };

	describe_as(m, &t);
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	sk_mesh_release(mesh);
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
	data = m->on_host ? m->here : (void *)(uintptr_t)m->there;
	describe_as(m, &t);
	if (is_boxes(how, rank->rank)) {
		part.box.offset[0] = m->from;
		part.box.size[0] = m->to - m->from;
		part.data = data;
		t.parts = &part;
		t.n_parts = 1;
	} else {
		place(how, rank->rank, &t, &mesh);
		t.data = data;
	}
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	sk_mesh_release(mesh);
	describe_norm(rank, m, data);
}

static uint64_t look(struct memory *m, bool write)
{
	uint32_t *v = (uint32_t *)(void *)m->here;
	uint64_t wrong = 0;

	if (!m->on_host && !write)
		trainer_cuda_get(&m->g.cuda, m->here, m->there, bytes_of(m));
	for (int64_t row = m->from; row < m->to; row++)
		for (int64_t c = 0; c < COLUMNS; c++, v++) {
			wrong += *v != value(row, c);
			if (write)
				*v = value(row, c);
		}
	for (int64_t i = 0; !m->no_norm && i < NORM; i++, v++) {
		wrong += *v != value(ROWS, i);
		if (write)
			*v = value(ROWS, i);
	}
	if (!m->on_host && write)
		trainer_cuda_put(&m->g.cuda, m->there, m->here, bytes_of(m));
	return wrong;
}

static int restore(struct memory *m, struct rank *rank,
		   struct sk_report *ret_report)
{
	const struct side *s = rank->arg;
	struct sk_restore_options o = { .timeout_ms = 30000,
		.flags = s->way->lost ? 0 : SK_RESTORE_MEMORY_ONLY };
	static const char *const names[] = { "w" };
	struct sk_comm comm, nccl;
	int r;

	m->no_norm = s->load && s->way->no_norm >> rank->rank & 1;
	o.names = m->no_norm ? names : NULL;
	o.n_names = m->no_norm;
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

/* What is to be lost is on disk as well: that tells what there was. */
static void save(struct rank *rank)
{
	const struct side *s = rank->arg;
	struct memory m = { .gpu = false };

	describe(&m, rank);
	CHECK(restore(&m, rank, NULL) == -ENOENT, "%s", sk_error());
	(void)look(&m, true);
	CHECK(!sk_snapshot(rank->state, STEP, NULL), "%s", sk_error());
	CHECK(!sk_fence(rank->state), "%s", sk_error());
	CHECK(!sk_wait(rank->state, STEP, SK_SEALED, 60000), "%s",
	      sk_error());
	if (!s->way->lost)
		return;
	CHECK(!sk_flush(rank->state, STEP), "%s", sk_error());
	CHECK(!sk_wait(rank->state, STEP, SK_WRITTEN, 60000), "%s",
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
	__atomic_fetch_add(&s->totals->passed, report.bytes_passed,
			   __ATOMIC_RELAXED);
	__atomic_fetch_add(&s->totals->device, report.bytes_device,
			   __ATOMIC_RELAXED);
	__atomic_fetch_add(&s->totals->disk, report.bytes_disk,
			   __ATOMIC_RELAXED);
}

#define NORM_ROW ROWS	/* the norm, which all of them have */

/* Whether one of these ranks is of the node and has, or wants, the row. */
static bool is_had(enum how how, const int *nodes, int node, int64_t row,
		   int ranks)
{
	int64_t from, to;
	bool has = false;

	for (int r = 0; r < RANKS; r++) {
		rows_of(how, r, &from, &to);
		if (ranks >> r & 1 && nodes[r] == node)
			has |= row == NORM_ROW || (row >= from && row < to);
	}
	return has;
}

/* Whether these ranks of the node want the row, and none there has it. */
static bool is_lacked(const struct way *w, int node, int64_t row, int ranks)
{
	if (row == NORM_ROW)
		ranks &= ~w->no_norm;
	return is_had(w->to, w->nodes, node, row, ranks) &&
	       (!is_had(w->from, home, node, row, -1) || (w->lost && node));
}

/* Of what has these rows: whether it comes to any device, and so by devices to
 * whoever wants it. */
static bool goes_by_devices(const struct way *w, int64_t from, int64_t to)
{
	bool any = false;

	for (int64_t row = from; row < to; row++)
		for (int node = 0; node < NODES; node++)
			any |= is_lacked(w, node, row, ~w->on_host);
	return any;
}

/* Rows that a rank of a node wants and none there has, once per node. */
static struct need needed(const struct way *w)
{
	const bool on[2] = { goes_by_devices(w, 0, ROWS),
			     goes_by_devices(w, NORM_ROW, NORM_ROW + 1) };
	struct need need = { 0 };

	for (int64_t row = 0; row <= NORM_ROW; row++) {
		uint64_t bytes = row == NORM_ROW ? NORM * 4 : ROW;
		bool once = false;

		for (int node = 0; node < NODES; node++) {
			if (!is_lacked(w, node, row, -1))
				continue;
			need.all += bytes;
			need.device += on[row == NORM_ROW] ? bytes : 0;
			once = true;
		}
		need.once += once ? bytes : 0;
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

static void check(const struct way *w, const struct totals *sum)
{
	struct need need = needed(w);

	CHECK(sum->sent == sum->received && !sum->disk, "%s", w->name);
	CHECK(sum->received >= need.all &&
	      sum->received <= need.all + need.all / 20, "%s: %llu received, "
	      "%llu needed", w->name, (unsigned long long)sum->received,
	      (unsigned long long)need.all);
	CHECK(sum->sent - sum->passed >= need.once &&
	      sum->sent - sum->passed <= need.once + need.once / 20,
	      "%s: sources sent %llu of %llu", w->name,
	      (unsigned long long)(sum->sent - sum->passed),
	      (unsigned long long)need.once);
	if (!getenv("SHARDKEEP_LIBNCCL"))
		return;
	CHECK(sum->device == need.device, "%s: %llu by devices, %llu needed",
	      w->name, (unsigned long long)sum->device,
	      (unsigned long long)need.device);
	CHECK(w->on_host || sum->received == sum->device, "%s: %llu by the "
	      "host", w->name,
	      (unsigned long long)(sum->received - sum->device));
}

static void lose(struct scene *node)
{
	scene_stop_agent(node, SIGKILL);
	scene_start_agent(node);
}

static void go(struct scene *scene, const struct way *w,
	       struct totals *totals)
{
	struct side s = { .way = w, .totals = totals };

	*totals = (struct totals){ 0 };
	run(scene, &s, save);
	if (w->lost)
		lose(&scene->nodes[1]);
	s.load = true;
	run(scene, &s, load);
	check(w, totals);
}

static const struct way ways[] = {
	{ "fsdp", SHARDED, SHARDED, away },
	{ "fsdp-to-ddp", SHARDED, REPLICATED, away },
	{ "fsdp-to-hsdp", SHARDED, HYBRID, mixed },
	{ "hsdp-to-tp", HYBRID, CROSSED, mixed },
	{ "tp-to-fsdp", CROSSED, SHARDED, away },
	{ "experts", EACH, EACH, away },
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
	/* Nodes of 3 and 5 ranks, of 1 and 7: */
	{ "fsdp-to-ddp-uneven", SHARDED, REPLICATED, uneven },
	{ "experts-to-windows-uneven", EACH, OVERLAPPING, uneven },
	{ "hsdp-to-tp-one", HYBRID, CROSSED, one },
	{ "fsdp-to-ddp-one", SHARDED, REPLICATED, one },
	/* A node has lost its memory; norms that all have beside the rest. */
	{ "ddp-lost", REPLICATED, REPLICATED, home, .lost = true },
	{ "hsdp-lost", HYBRID, HYBRID, home, .lost = true },
	{ "tp-lost", CROSSED, CROSSED, home, .lost = true },
	/* Some of the ranks that want it have it in host memory. */
	{ "ddp-on-a-host", SHARDED, REPLICATED, away, .on_host = 0x02 },
	{ "tp-on-hosts", HYBRID, CROSSED, mixed, .on_host = 0x12 },
	{ "windows-on-hosts", EACH, OVERLAPPING, away, .on_host = 0x24 },
	{ "some-on-a-host", EACH, SOME, mixed, .on_host = 0x80 },
	/* On nodes that had none of it, too. */
	{ "fsdp-to-ddp-wide", SHARDED, REPLICATED, wide },
	{ "ddp-fresh", REPLICATED, REPLICATED, fresh },
	{ "hsdp-to-tp-fresh", HYBRID, CROSSED, fresh },
	{ "experts-to-all-wide", EACH, ALL, wide },
	{ "halves-to-all-fresh", HALF, ALL, fresh },
	{ "halves-to-ddp-fresh", HALF, REPLICATED, fresh },
	{ "all-to-halves-fresh", ALL, HALF, fresh },
	{ "windows-to-tp-fresh", OVERLAPPING, CROSSED, fresh },
	{ "experts-to-windows-wide", EACH, OVERLAPPING, wide },
	{ "all-on-hosts-wide", EACH, ALL, wide, .on_host = 0x15 },
	{ "halves-on-hosts-fresh", HALF, ALL, fresh, .on_host = 0xc1 },
	/* All of a node have it there, others on devices; then all of all. */
	{ "ddp-host-node-wide", SHARDED, REPLICATED, wide, .on_host = 0xc0 },
	{ "ddp-host-nodes-fresh", REPLICATED, REPLICATED, fresh,
	  .on_host = 0xcb },
	{ "tp-host-node-fresh", HYBRID, CROSSED, fresh, .on_host = 0x31 },
	{ "windows-host-node-wide", EACH, OVERLAPPING, wide, .on_host = 0x0c },
	{ "all-host-node-wide", EACH, ALL, wide, .on_host = 0x30 },
	{ "lanes-host-node-wide", SHARDED, LANES, wide, .on_host = 0xc0 },
	{ "ddp-hosts-wide", SHARDED, REPLICATED, wide, .on_host = 0xff },
	/* Some ask for less than the others. */
	{ "ddp-lost-without-norm", REPLICATED, REPLICATED, home, .lost = true,
	  .no_norm = 0xa5 },
	{ "ddp-fresh-without-norm", REPLICATED, REPLICATED, fresh,
	  .no_norm = 0xc2 },
	{ "all-wide-without-norm", EACH, ALL, wide, .on_host = 0x11,
	  .no_norm = 0x33 },
	/* Ranks of a node say otherwise of whom they share it with. */
	{ "fsdp-to-lanes", SHARDED, LANES, away },
	{ "fsdp-to-skewed", SHARDED, SKEWED, mixed },
	{ "fsdp-to-said", SHARDED, SAID, away },
	{ "experts-to-lanes", EACH, LANES, uneven },
	{ "hsdp-to-lanes-wide", HYBRID, LANES, wide },
	{ "fsdp-to-skewed-fresh", SHARDED, SKEWED, fresh },
	{ "ddp-to-skewed-fresh", REPLICATED, SKEWED, fresh },
	{ "halves-to-skewed-wide", HALF, SKEWED, wide },
	{ "ddp-to-said-fresh", REPLICATED, SAID, fresh },
	{ "lanes-on-hosts", SHARDED, LANES, away, .on_host = 0x12 },
	{ "skewed-on-hosts", SHARDED, SKEWED, mixed, .on_host = 0x81 },
	{ "said-on-hosts-wide", SHARDED, SAID, wide, .on_host = 0x09 },
};

static bool is_chosen(const char *name)
{
	const char *at = getenv("SK_WAYS");
	size_t n = strlen(name);

	for (const char *end; at; at = *end ? end + 1 : NULL) {
		end = strchrnul(at, ',');
		if ((size_t)(end - at) == n && !strncmp(at, name, n))
			return true;
	}
	return !getenv("SK_WAYS");
}

int main(int argc, char **argv)
{
	struct totals *totals = mmap(NULL, sizeof(*totals),
				     PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct scene scene, nodes[NODES];

	CHECK(totals != MAP_FAILED);
	setenv("VCUDA_DEVICES", "7", 0);
	(void)gpu_devices();
	scene_open(&scene, argc, argv);
	CHECK(!setenv("VNCCL_ORDER", scene.dir, 1));
	scene_add_nodes(&scene, nodes, NODES, true);
	for (size_t i = 0; i < SK_ARRAY_SIZE(ways); i += sk_fault_every())
		if (is_chosen(ways[i].name))
			go(&scene, &ways[i], totals);
	scene_close(&scene);
	return 0;
}
