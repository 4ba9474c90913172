/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What we rely on of NCCL, one by one, each by two processes of its own.
 *
 * The same program runs on the simulation and on the real library: where they
 * differ, the simulation is mended. Without $SHARDKEEP_LIBNCCL it takes the
 * machine's, and is skipped where there is none, or no GPU. On one GPU the
 * ranks are told that they are on different hosts. What only the simulation
 * promises is left out then.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "items.h"
#include "nccl-side.h"
#include "support/files.h"

#define BYTES SIDE_BYTES

static void begin(struct side *s, bool one_gpu)
{
	side_begin(s, one_gpu, NULL);
}

static void begin_both(struct side *s)
{
	*s = (struct side){ 0 };
	side_begin_both(s);
}

static void fill(struct side *s, sk_cu_ptr at, int salt)
{
	for (size_t i = 0; i < BYTES; i++)
		s->host[i] = (char)((i >> 3) * 7 + (size_t)salt);
	trainer_cuda_put(&s->t, at, s->host, BYTES);
}

static bool holds(struct side *s, sk_cu_ptr at, size_t n, int salt)
{
	trainer_cuda_get(&s->t, s->host, at, n);
	for (size_t i = 0; i < n; i++)
		if (s->host[i] != (char)((i >> 3) * 7 + (size_t)salt))
			return false;
	return true;
}

/* ---- what both do ---- */

static void ids(void)
{
	struct trainer_nccl n;
	sk_nccl_id a, b;

	CHECK(trainer_nccl_open(&n, NULL) == 0);
	CHECK(n.lib.version >= SK_NCCL_VERSION_LEAST);
	IS(0, n.lib.ncclGetUniqueId(&a));
	IS(0, n.lib.ncclGetUniqueId(&b));
	CHECK(memcmp(&a, &b, sizeof(a)) != 0);
	CHECK(n.lib.ncclGetErrorString(SK_NCCL_INVALID_USAGE)[0]);
	CHECK(n.lib.ncclGetErrorString(SK_NCCL_IN_PROGRESS)[0]);
}

static void both_ways(void)
{
	struct side s;

	begin_both(&s);
	fill(&s, s.a, s.rank);
	fill(&s, s.b, 99);
	for (int i = 0; i < 3; i++) {
		IS(0, s.n.lib.ncclGroupStart());
		side_begun(side_put(&s, s.a, BYTES));
		side_begun(side_get(&s, s.b, BYTES));
		side_launch(&s);
		IS(0, s.t.driver.cuEventSynchronize(s.done));
		CHECK(holds(&s, s.b, BYTES, !s.rank));
	}
	side_end_comm(&s);
	side_end(&s);
}

/* Between two ranks they are taken as they are asked for. */
static void in_order(void)
{
	struct side s;

	begin_both(&s);
	fill(&s, s.a, 5);
	fill(&s, s.b, 99);
	IS(0, s.n.lib.ncclGroupStart());
	for (size_t i = 0; i < 8; i++) {
		if (s.rank)
			side_begun(side_get(&s, s.b + i * 4096, 1000 + i));
		else
			side_begun(side_put(&s, s.a + i * 4096, 1000 + i));
	}
	side_launch(&s);
	IS(0, s.t.driver.cuEventSynchronize(s.done));
	trainer_cuda_get(&s.t, s.host, s.b, BYTES);
	for (size_t i = 0; s.rank && i < 8 * 4096; i++) {
		bool within = i % 4096 < 1000 + i / 4096;

		CHECK(s.host[i] == (char)((i >> 3) * 7 +
					  (within ? 5u : 99u)));
	}
	side_end_comm(&s);
	side_end(&s);
}

static void nothing_to_do(void)
{
	struct side s;

	begin_both(&s);
	IS(0, s.n.lib.ncclGroupStart());
	side_begun(s.n.lib.ncclGroupEnd());
	IS(0, side_settled(&s));
	IS(SK_NCCL_INVALID_ARGUMENT,
	   s.n.lib.ncclSend((void *)(uintptr_t)s.a, 1, SK_NCCL_UINT8, 7,
			    s.comm, s.stream));
	IS(0, s.n.lib.ncclCommAbort(s.comm));
	side_end(&s);
}

/* ---- what does not come ---- */

static void missing_rank(void)
{
	struct side s = { 0 };
	sk_nccl_result r;

	begin(&s, false);
	if (s.rank)
		_exit(0);
	side_init(&s);
	IS(0, s.n.lib.ncclCommGetAsyncError(s.comm, &r));
	IS(SK_NCCL_IN_PROGRESS, r);
	IS(SK_NCCL_INVALID_ARGUMENT, side_put(&s, s.a, 8));
	IS(0, s.n.lib.ncclCommAbort(s.comm));
	side_end(&s);
}

/* Rank 0, which wants bytes of rank 1, which is dead. They had something to do
 * with each other before: only then are they connected. */
static void want_of_the_dead(struct side *s)
{
	int status;

	begin_both(s);
	IS(0, s->n.lib.ncclGroupStart());
	side_begun(side_put(s, s->a, 8));
	side_begun(side_get(s, s->b, 8));
	side_launch(s);
	IS(0, s->t.driver.cuEventSynchronize(s->done));
	if (s->rank)
		(void)raise(SIGKILL);
	CHECK(waitpid(s->child, &status, 0) == s->child);
	IS(0, s->n.lib.ncclGroupStart());
	side_begun(side_get(s, s->b, BYTES));
	side_begun(s->n.lib.ncclGroupEnd());
}

/* What waits for the dead goes on waiting, until it is aborted; then its
 * stream is free. */
static void dead_peer(void)
{
	struct side s;

	want_of_the_dead(&s);
	(void)side_settled(&s);
	IS(0, s.t.driver.cuEventRecord(s.done, s.stream));
	IS(SK_CU_NOT_READY, s.t.driver.cuEventQuery(s.done));
	IS(0, s.n.lib.ncclCommAbort(s.comm));
	IS(0, s.t.driver.cuEventSynchronize(s.done));
}

static void one_gpu(void)
{
	struct side s = { 0 };

	(void)setenv("NCCL_HOSTID", "one", 1);
	begin(&s, true);
	if (s.n.lib.version >= SK_NCCL_VERSION(2, 30, 0) &&
	    getenv("NCCL_MULTI_RANK_GPU_ENABLE"))
		side_end(&s);
	side_init(&s);
	IS(SK_NCCL_INVALID_USAGE, side_settled(&s));
	if (s.n.lib.ncclGetLastError)
		CHECK(strstr(s.n.lib.ncclGetLastError(s.comm),
			     "Duplicate GPU detected"));
	IS(0, s.n.lib.ncclCommAbort(s.comm));
	side_end(&s);
}

/* Each rank has an instance of one GPU. */
static void two_instances(const char *version, sk_nccl_result expected)
{
	static const char *const names[] = {
		"MIG-76637564-6120-6f66-2061-206e6f640000",
		"MIG-76637564-6120-6f66-2061-206e6f640100" };
	struct side s = { 0 };

	(void)setenv("VCUDA_MIG", "2", 1);
	(void)setenv("VCUDA_DEVICES", "1", 1);
	(void)setenv("VNCCL_VERSION", version, 1);
	side_begin(&s, true, names);
	side_init(&s);
	IS(expected, side_settled(&s));
	IS(0, s.n.lib.ncclCommAbort(s.comm));
	side_end(&s);
}

static void instances_by_bus(void)
{
	two_instances("22809", SK_NCCL_INVALID_USAGE);
}

static void instances_by_name(void)
{
	two_instances("23007", SK_NCCL_SUCCESS);
}

static void bad_config(void)
{
	sk_nccl_config config = trainer_nccl_config();
	struct side s = { 0 };

	begin(&s, false);
	config.magic = 1;
	IS(SK_NCCL_INVALID_ARGUMENT,
	   s.n.lib.ncclCommInitRankConfig(&s.comm, 2, s.id, s.rank, &config));
	config = trainer_nccl_config();
	IS(SK_NCCL_INVALID_ARGUMENT,
	   s.n.lib.ncclCommInitRankConfig(&s.comm, 2, s.id, 2, &config));
	side_end(&s);
}

/* ---- of the simulation alone ---- */

static void told_of_death(void)
{
	struct side s;

	(void)setenv("VNCCL_DEATH", "told", 1);
	want_of_the_dead(&s);
	IS(0, s.t.driver.cuEventRecord(s.done, s.stream));
	(void)s.t.driver.cuEventQuery(s.done);
	for (sk_nccl_result r = 0; r != SK_NCCL_REMOTE_ERROR;) {
		r = side_settled(&s);
		CHECK(!r || r == SK_NCCL_REMOTE_ERROR);
		(void)s.t.cuStreamQuery(s.stream);
	}
	IS(0, s.n.lib.ncclCommAbort(s.comm));
}

static void failures(void)
{
	struct side s;

	begin_both(&s);
	s.n.fail("ncclGroupEnd", 1, SK_NCCL_SYSTEM_ERROR);
	IS(0, s.n.lib.ncclGroupStart());
	side_begun(side_put(&s, s.a, 8));
	IS(SK_NCCL_SYSTEM_ERROR, s.n.lib.ncclGroupEnd());
	s.n.wreck(SK_NCCL_INTERNAL_ERROR);
	IS(SK_NCCL_INTERNAL_ERROR, side_settled(&s));
	CHECK(s.n.count("comms") == 1);
	IS(0, s.n.lib.ncclCommAbort(s.comm));
	CHECK(s.n.count("comms") == 0);
	side_end(&s);
}

/* Host memory that is not page-locked, and the other GPU's. */
static void wrong_memory(void)
{
	struct side s;

	begin_both(&s);
	IS(SK_NCCL_INVALID_ARGUMENT, side_put(&s, (uintptr_t)s.host, 8));
	IS(SK_NCCL_INVALID_ARGUMENT, side_put(&s, s.a + BYTES - 4, 8));
	IS(0, s.n.lib.ncclCommAbort(s.comm));
	side_end(&s);
}

static void misuse_sizes(void)
{
	struct side s;

	begin_both(&s);
	IS(0, s.n.lib.ncclGroupStart());
	if (s.rank)
		side_begun(side_put(&s, s.a, 100));
	else
		side_begun(side_get(&s, s.b, 200));
	side_launch(&s);
	(void)s.t.driver.cuEventSynchronize(s.done);
	if (s.rank)
		for (;;)
			pause();
}

static void misuse_no_device(void)
{
	struct side s = { 0 };

	begin(&s, false);
	IS(0, s.t.cuCtxSetCurrent(NULL));
	side_init(&s);
}

static void misuse_destroy(void)
{
	struct side s = { 0 };

	begin(&s, false);
	if (s.rank)
		_exit(0);
	side_init(&s);
	(void)s.n.lib.ncclCommDestroy(s.comm);
}

/* ---- two communicators on one device ---- */

/* Both sides, each on a stream of its own. */
static void begin_two(struct side *s, struct side *t)
{
	begin_both(s);
	*t = *s;
	t->id = s->second;
	t->comm = NULL;
	side_init(t);
	IS(0, side_settled(t));
	IS(0, t->t.cuStreamCreate(&t->stream, SK_CU_STREAM_NON_BLOCKING));
}

/* A send and a receive, which are launched and not waited for. */
static void swap_later(struct side *s, size_t at)
{
	IS(0, s->n.lib.ncclGroupStart());
	side_begun(side_put(s, s->a + at, 1000));
	side_begun(side_get(s, s->b + at, 1000));
	side_begun(s->n.lib.ncclGroupEnd());
	IS(0, side_settled(s));
}

static void two_in_one_order(void)
{
	struct side s, t;

	begin_two(&s, &t);
	for (size_t i = 0; i < 3; i++) {
		swap_later(&s, i * 8000);
		swap_later(&t, i * 8000 + 4000);
	}
	IS(0, s.t.driver.cuCtxSynchronize());
	side_end_comm(&s);
	side_end_comm(&t);
	side_end(&s);
}

/* Whatever becomes of it this time. */
static void misuse_order(void)
{
	struct trainer_gate gate;
	struct side s, t;
	int ends[2];
	char byte = 0;

	CHECK(!pipe(ends));
	begin_two(&s, &t);
	if (s.rank) {
		swap_later(&t, 0);
		swap_later(&s, 4000);
		CHECK(write(ends[1], &byte, 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(ends[0], &byte, 1) == 1);
	/* So that the first is still under way at the second. */
	trainer_gate_init(&gate);
	trainer_gate_hold(&s.t, &gate, s.stream);
	swap_later(&s, 0);
	swap_later(&t, 4000);
}

/* ---- all of them ---- */

static const struct item items[] = {
	{ "ids, without a device", ids, ITEM_ANY },
	{ "both ways", both_ways, ITEM_ANY },
	{ "in order", in_order, ITEM_ANY },
	{ "nothing to do, nobody to send to", nothing_to_do, ITEM_ANY },
	{ "a rank that does not come", missing_rank, ITEM_ANY },
	{ "a peer that died", dead_peer, ITEM_ANY },
	{ "two ranks on one GPU", one_gpu, ITEM_ANY },
	{ "two communicators, in one order", two_in_one_order, ITEM_ANY },
	{ "configs and ranks that are wrong", bad_config, ITEM_ANY },
	{ "deaths that are told", told_of_death, ITEM_SIM },
	{ "two instances of one GPU, by the bus", instances_by_bus, ITEM_SIM },
	{ "two instances of one GPU, by name", instances_by_name, ITEM_SIM },
	{ "failures", failures, ITEM_SIM },
	{ "memory that is none", wrong_memory, ITEM_SIM },
	{ "misuse: sizes that differ", misuse_sizes, ITEM_MISUSE },
	{ "misuse: no current device", misuse_no_device, ITEM_MISUSE },
	{ "misuse: two communicators, in two orders", misuse_order,
	  ITEM_MISUSE },
	{ "misuse: destroyed before it was", misuse_destroy, ITEM_MISUSE },
};

int main(void)
{
	char orders[] = "/tmp/shardkeep-orders-XXXXXX";
	bool simulated = false;
	int failed = side_look(&simulated);

	if (failed)
		return failed == 77 && getenv("SHARDKEEP_LIBNCCL") ? 1 :
								     failed;
	if (!mkdtemp(orders) || setenv("VNCCL_ORDER", orders, 1))
		return 1;
	failed = items_run(items, sizeof(items) / sizeof(items[0]), simulated);
	return remove_tree(orders) || failed;
}
