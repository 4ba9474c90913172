/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any mesh to any mesh over several nodes: agents of their own, each with what
 * its ranks saved. Ranks come back on other nodes, and take from each other's
 * what their own does not have: nothing twice for one node, nothing that no
 * rank there wants. With $SHARDKEEP_LIBNCCL tensors lie on GPUs and on the
 * host, other ones before and after, and NCCL goes beside the comm. With
 * $SK_GRID there are up to 8 ranks on 2 nodes, else up to 4 on 3. $SK_CASES
 * says how many cases, $SK_SEED which is the first.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fault-os.h"
#include "libclient/gpu-rank.h"
#include "libclient/restore/random.h"
#include "mesh-comm.h"
#include "tensor/dtype.h"

#define NODES 3
#define CASES 16
#define BLOCK 20	/* cases that one process and its agents see: each
			 * process has a bound, and agents gather jobs */

static int most_nodes(void)
{
	return getenv("SK_GRID") ? 2 : NODES;
}

static int most_ranks(void)
{
	return getenv("SK_GRID") ? RANDOM_RANKS : 4;
}

/* Of those that are forked next; each joins its copy. */
static struct mesh_comm links;

/* Of all ranks together; the processes share it. */
struct totals {
	uint64_t received, sent, need, device, device_need;
	uint64_t wanted;	/* once per node, wherever it is */
	uint64_t all;		/* by devices, in all cases */
};

struct trial {
	struct random_test test;
	int side;
	struct totals *totals;
};

static void draw_nodes(const struct random_test *test, int side,
		       int *node_of);

/* ---- on GPUs, or not ---- */

static bool on_gpus(void)
{
	return getenv("SHARDKEEP_LIBNCCL") != NULL;
}

static int devices;		/* that each rank's process sees */

/* Its device is that of its number, as if all were of one host. */
static void begin(struct gpu_rank *g, struct rank *rank)
{
	char host[16];

	*g = (struct gpu_rank){ .rank = rank };
	if (!on_gpus())
		return;
	/* Where they share one, NCCL is to take them for others. */
	(void)snprintf(host, sizeof(host), "rank-%d", rank->rank);
	if (devices < rank->world)
		CHECK(!setenv("NCCL_HOSTID", host, 1));
	gpu_begin(g, rank, rank->rank);
}

enum where { ON_DEVICE, ON_HOST, ON_ANOTHER };

/* Of 64 in some trials 2 are elsewhere, in others 20 or 60: where one of the
 * ranks has it on its device, all of them get it by devices. */
static enum where where_is(const struct random_test *test, int side, int rank,
			   int i)
{
	static const uint64_t elsewhere[4] = { 2, 20, 20, 60 };
	uint64_t draw = (test->seed * 31 + (uint64_t)i) * 31 +
			(uint64_t)(rank * 2 + side);

	draw *= 0x9e3779b97f4a7c15u;
	if (draw >> 58 >= elsewhere[test->seed / 2 % 4])
		return ON_DEVICE;
	if (draw >> 32 & 3)
		return ON_HOST;
	return devices > 1 ? ON_ANOTHER : ON_DEVICE;
}

static void add(struct rank *rank, const struct sk_tensor *t, int i,
		void *ctx)
{
	const struct trial *trial = rank->arg;
	struct gpu_rank *g = ctx;
	struct sk_tensor at = *t;

	if (!on_gpus()) {
		rank_tensor(rank, t, 0xee);
		return;
	}
	switch (where_is(&trial->test, trial->side, rank->rank, i)) {
	case ON_HOST:
		gpu_add_host(g, &at, rank_bytes(rank, t), 0xee);
		return;
	case ON_ANOTHER:
		at.device = (g->device + 1) % g->devices;
		break;
	case ON_DEVICE:
		at.device = g->device;
		break;
	}
	gpu_add(g, &at, rank_bytes(rank, t), 0xee);
}

static void fill(struct gpu_rank *g, int64_t step)
{
	if (on_gpus())
		gpu_fill(g, step);
	else
		rank_write(g->rank, step);
}

static uint64_t wrong(struct gpu_rank *g, int64_t step, int owner)
{
	return on_gpus() ? gpu_wrong(g, step, owner) :
			   rank_wrong(g->rank, step, owner);
}

/* In every third one no node has more of what several ranks hold than it must,
 * in another third each node once what its own hold: no less than by each. */
static bool is_bare(const struct random_test *test)
{
	return test->seed % 3 == 2;
}

/* In every other trial an exchange takes so long that more is to go at once. */
#define ROUND_BYTES (((uint64_t)3 << 20) - 100)

static bool is_slow(const struct random_test *test)
{
	return test->seed % 2;
}

static int restore(struct gpu_rank *g, int64_t step, uint32_t flags,
		   struct sk_report *ret_report)
{
	struct sk_restore_options o = { .flags = flags, .timeout_ms = 20000 };
	struct rank *rank = g->rank;
	struct sk_comm comm, nccl;
	int r;

	mesh_comm_join(&links, rank->rank, &comm);
	/* One who says so counts for all. */
	if (!rank->rank && is_slow(&((const struct trial *)rank->arg)->test))
		comm.round_bytes = ROUND_BYTES;
	if (!on_gpus())
		return sk_restore(rank->state, step, &comm, &o, ret_report);
	CHECK(!sk_comm_nccl(rank->sk, &comm, rank->rank, rank->world,
			    g->device, &nccl), "%s", sk_error());
	r = sk_restore(rank->state, step, &nccl, &o, ret_report);
	CHECK(!sk_comm_nccl_why(&nccl)[0], "%s", sk_comm_nccl_why(&nccl));
	sk_comm_nccl_free(&nccl);
	return r;
}

/* In one run with the others, whose number they all agree on. */
static void save(struct rank *rank)
{
	const struct trial *t = rank->arg;
	struct gpu_rank g;

	begin(&g, rank);
	random_describe(rank, &t->test, 0, add, &g);
	CHECK(restore(&g, SK_LATEST, 0, NULL) == -ENOENT, "%s", sk_error());
	for (int64_t step = 10; step <= 11; step++) {
		fill(&g, step);
		rank_snapshot(rank, step, SK_SEALED);
	}
}

/* ---- what is needed, element by element ---- */

#define DEVICES 2	/* beside the sides: nodes where some rank has it on
			 * its device, after */

struct elements {
	const struct random_test *test;
	int side, world;
	int node_of[RANDOM_RANKS];
	uint8_t *nodes[RANDOM_TENSORS][3];	/* bit per node that has it */
	int64_t n[RANDOM_TENSORS];
	unsigned size[RANDOM_TENSORS];
};

static void mark(uint8_t *nodes, const struct sk_spec *s,
		 const struct sk_box *box, int node)
{
	int64_t n = sk_box_volume(s->ndim, box);

	for (int64_t i = 0; i < n; i++) {
		int64_t rest = i, index = 0, in[SK_MAX_DIMS];

		for (int d = s->ndim - 1; d >= 0; d--) {
			in[d] = rest % box->size[d];
			rest /= box->size[d];
		}
		for (int d = 0; d < s->ndim; d++)
			index = index * s->shape[d] + in[d] + box->offset[d];
		nodes[index] |= (uint8_t)(1 << node);
	}
}

/* What rank @r has of tensor @i, by its own mesh. */
static void mark_rank(struct elements *e, const struct sk_spec *t, int i,
		      int r)
{
	struct sk_mesh *mesh = random_mesh(e->test, e->side, i, r);
	struct sk_spec s = *t;
	struct sk_box *boxes;
	int n;

	s.mesh = mesh;
	CHECK(!sk_spec_normalize(&s, NULL));
	CHECK(!sk_spec_boxes(&s, r, &boxes, &n, NULL));
	for (int b = 0; b < n; b++)
		mark(e->nodes[i][e->side], &s, &boxes[b], e->node_of[r]);
	for (int b = 0; e->side && b < n; b++)
		if (where_is(e->test, 1, r, i) == ON_DEVICE)
			mark(e->nodes[i][DEVICES], &s, &boxes[b],
			     e->node_of[r]);
	free(boxes);
	sk_mesh_release(mesh);
}

static void mark_all(struct rank *rank, const struct sk_tensor *t, int i,
		     void *ctx)
{
	struct elements *e = ctx;
	struct sk_spec s = { .name = t->name,
			     .dtype = (enum sk_dtype)t->dtype,
			     .ndim = t->ndim };
	struct sk_box whole;

	(void)rank;
	memcpy(s.shape, t->shape, sizeof(s.shape));
	memcpy(s.placements, t->placements, sizeof(s.placements));
	whole = sk_box_whole(s.ndim, s.shape);
	e->n[i] = sk_box_volume(s.ndim, &whole);
	e->size[i] = sk_dtype_bits(s.dtype) / 8;
	e->nodes[i][e->side] = calloc(1, (size_t)e->n[i] + 1);
	if (e->side)
		e->nodes[i][DEVICES] = calloc(1, (size_t)e->n[i] + 1);
	for (int r = 0; r < e->world; r++)
		mark_rank(e, &s, i, r);
}

/* Bytes that some rank wants, of which its node has none; once per node. Of a
 * tensor of which any comes to a device all do. */
static void count_need(struct rank *rank, const struct random_test *test,
		       struct totals *totals)
{
	struct elements e = { .test = test };

	for (e.side = 0; e.side < 2; e.side++) {
		e.world = test->world[e.side];
		draw_nodes(test, e.side, e.node_of);
		random_describe(rank, test, e.side, mark_all, &e);
	}
	for (int i = 0; i < RANDOM_TENSORS; i++) {
		uint64_t need = 0;
		bool by_devices = false;

		for (int64_t k = 0; k < e.n[i]; k++) {
			unsigned nodes = e.nodes[i][1][k] & ~e.nodes[i][0][k];

			need += (uint64_t)__builtin_popcount(nodes) *
				e.size[i];
			totals->wanted += (uint64_t)__builtin_popcount(
						e.nodes[i][1][k]) * e.size[i];
			by_devices |= (nodes & e.nodes[i][DEVICES][k]) != 0;
		}
		totals->need += need;
		totals->device_need += by_devices ? need : 0;
		for (int k = 0; k < 3; k++)
			free(e.nodes[i][k]);
	}
}

static void add_up(const struct trial *t, const struct sk_report *report)
{
	__atomic_fetch_add(&t->totals->received, report->bytes_received,
			   __ATOMIC_RELAXED);
	__atomic_fetch_add(&t->totals->sent, report->bytes_sent,
			   __ATOMIC_RELAXED);
	__atomic_fetch_add(&t->totals->device, report->bytes_device,
			   __ATOMIC_RELAXED);
	CHECK(report->staging_bytes <= 108 << 20, "%llu",
	      (unsigned long long)report->staging_bytes);
	if (on_gpus() || !report->staging_bytes)
		return;
	/* Two windows to send from, four to receive into, and their tables. */
	CHECK(is_slow(&t->test) ? report->staging_bytes >= 2 * ROUND_BYTES :
				  report->staging_bytes <= 8 << 20,
	      "seed %d: %llu", (int)t->test.seed,
	      (unsigned long long)report->staging_bytes);
}

/* ---- any mesh to any mesh ---- */

/* Mostly where ranks come back, for who is nowhere near what it needs has to
 * do without. */
static void draw_nodes(const struct random_test *test, int side, int *node_of)
{
	uint64_t v = test->seed * 0x9e3779b97f4a7c15u;
	int there[RANDOM_RANKS];

	for (int i = 0; i < RANDOM_RANKS; i++)
		there[i] = (int)((v >> (8 + 4 * i)) %
				 (uint64_t)most_nodes());
	for (int i = 0; i < RANDOM_RANKS; i++)
		node_of[i] = side ? there[i] : test->seed % 4 ?
			there[(v >> (32 + 4 * i)) % (uint64_t)test->world[1]] :
			(int)((v >> (24 + 4 * i)) % (uint64_t)most_nodes());
}

/* Whether a node that has images has no rank. */
static bool is_out_of_reach(const struct random_test *test)
{
	int saved[RANDOM_RANKS], there[RANDOM_RANKS];
	bool far = false;

	draw_nodes(test, 0, saved);
	draw_nodes(test, 1, there);
	for (int i = 0; i < test->world[0]; i++) {
		bool near = false;

		for (int k = 0; k < test->world[1]; k++)
			near |= there[k] == saved[i];
		far |= !near;
	}
	return far;
}

static void load(struct rank *rank)
{
	const struct trial *t = rank->arg;
	const struct random_test *test = &t->test;
	int owner = rank->rank < test->world[0] ? rank->rank : -1;
	struct sk_report report;
	struct gpu_rank g;
	int r;

	begin(&g, rank);
	random_describe(rank, test, 1, add, &g);
	r = restore(&g, SK_LATEST, SK_RESTORE_MEMORY_ONLY, &report);
	/* What is out of reach may be what nobody asks for. */
	if (is_out_of_reach(test) && r == -ENOENT)
		return;
	CHECK(!r, "seed %d: %s", (int)test->seed, sk_error());
	CHECK(report.step == 11 && report.world == test->world[0]);
	CHECK(!wrong(&g, 11, owner), "seed %d, %d to %d ranks",
	      (int)test->seed, test->world[0], test->world[1]);
	CHECK(!report.bytes_disk);
	add_up(t, &report);
	if (!rank->rank)
		count_need(rank, test, t->totals);
}

static void run_side(struct scene *scene, struct trial *t, const char *job,
		     rank_fn fn)
{
	int world = t->test.world[t->side];
	const uint32_t kept[] = { 0, SK_JOB_NODE_REPLICAS,
				  SK_JOB_NO_REPLICAS };
	int node_of[RANDOM_RANKS];

	draw_nodes(&t->test, t->side, node_of);
	scene->job_flags = kept[t->test.seed % 3];
	scene->node_of = node_of;
	CHECK(!mesh_comm_new(&links, world));
	scene_ranks(scene, job, world, fn, t);
	mesh_comm_free(&links);
	scene->node_of = NULL;
}

/* Two blobs are not counted. */
static void check_totals(const struct trial *t)
{
	const struct totals *sum = t->totals;
	bool bare = is_bare(&t->test);
	uint64_t most = bare ? sum->wanted : sum->need + sum->need / 20;

	CHECK(sum->sent == sum->received, "seed %d: %llu sent, %llu received",
	      (int)t->test.seed, (unsigned long long)sum->sent,
	      (unsigned long long)sum->received);
	CHECK(sum->received >= sum->need &&
	      sum->received <= most + 130 * RANDOM_RANKS,
	      "seed %d: %llu received, %llu needed, %llu wanted",
	      (int)t->test.seed, (unsigned long long)sum->received,
	      (unsigned long long)sum->need, (unsigned long long)sum->wanted);
	/* All that can goes so: of what any rank has on its device. */
	CHECK(!on_gpus() ? !sum->device : bare ||
	      sum->device == sum->device_need,
	      "seed %d: %llu by devices, %llu wanted", (int)t->test.seed,
	      (unsigned long long)sum->device,
	      (unsigned long long)sum->device_need);
}

static void test_property(struct scene *scene, uint64_t first,
			  uint64_t cases, struct totals *totals)
{
	for (uint64_t seed = first; seed < first + cases; seed++) {
		struct trial t = { .totals = totals };
		char job[32];

		random_test_of(&t.test, seed, most_ranks());
		(void)snprintf(job, sizeof(job), "nodes-%d", (int)seed);
		run_side(scene, &t, job, save);
		t.side = 1;
		*totals = (struct totals){ .all = totals->all };
		run_side(scene, &t, job, load);
		check_totals(&t);
		totals->all += totals->device;
	}
}

static void run_block(int argc, char **argv, uint64_t first, uint64_t cases,
		      struct totals *totals)
{
	struct scene scene, nodes[NODES];

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	scene_open(&scene, argc, argv);
	scene_add_nodes(&scene, nodes, most_nodes(), true);
	test_property(&scene, first, cases, totals);
	scene_close(&scene);
	exit(0);
}

/* In a process, for it has a bound, and agents of its own. */
static void fork_block(int argc, char **argv, uint64_t first, uint64_t cases,
		       struct totals *totals)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid)
		run_block(argc, argv, first, cases, totals);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(!status, "seeds %d to %d: status %#x", (int)first,
	      (int)(first + cases - 1), status);
}

int main(int argc, char **argv)
{
	const char *cases = getenv("SK_CASES"), *first = getenv("SK_SEED");
	uint64_t left = cases ? strtoull(cases, NULL, 10) : CASES, n;
	uint64_t seed = first ? strtoull(first, NULL, 10) : 1;
	struct totals *totals = mmap(NULL, sizeof(*totals),
				     PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(totals != MAP_FAILED);
	left = (left + sk_fault_every() - 1) / sk_fault_every();
	setenv("VCUDA_DEVICES", "8", 0);
	devices = on_gpus() ? gpu_devices() : 0;
	for (; left; left -= n, seed += n) {
		n = left < BLOCK ? left : BLOCK;
		fork_block(argc, argv, seed, n, totals);
	}
	CHECK(!on_gpus() == !totals->all, "%llu bytes went from device to "
	      "device", (unsigned long long)totals->all);
	return 0;
}
