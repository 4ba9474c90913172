/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NCCL's rules are, one by one, each by two processes of its own: of
 * configs, groups, and whoever breaks them. As conformance-nccl.c: on the
 * simulation and on the real library; what that lets pass, or hangs in, is the
 * simulation's alone.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "items.h"
#include "nccl-side.h"

#define LONG (SIDE_BYTES / 4)

static void begin_both(struct side *s)
{
	*s = (struct side){ 0 };
	side_begin_both(s);
}

static void fill(struct side *s, sk_cu_ptr at, int byte)
{
	memset(s->host, byte, s->bytes);
	trainer_cuda_put(&s->t, at, s->host, s->bytes);
}

static bool are(struct side *s, sk_cu_ptr at, size_t n, int byte)
{
	trainer_cuda_get(&s->t, s->host, at, n);
	for (size_t i = 0; i < n; i++)
		if (s->host[i] != (char)byte)
			return false;
	return true;
}

static void give_up(struct side *s)
{
	IS(0, s->n.lib.ncclCommAbort(s->comm));
	side_end(s);
}

/* ---- configs ---- */

static void configs(void)
{
	sk_nccl_config config = trainer_nccl_config();
	struct side s = { 0 };

	side_begin(&s, false, NULL);
	config.blocking = 2;
	IS(SK_NCCL_INVALID_ARGUMENT,
	   s.n.lib.ncclCommInitRankConfig(&s.comm, 2, s.id, s.rank, &config));
	config = trainer_nccl_config();
	IS(SK_NCCL_INVALID_ARGUMENT,
	   s.n.lib.ncclCommInitRankConfig(&s.comm, 2, s.id, -1, &config));
	IS(SK_NCCL_INVALID_ARGUMENT,
	   s.n.lib.ncclCommInitRankConfig(&s.comm, 0, s.id, 0, &config));
	IS(SK_NCCL_INVALID_ARGUMENT,
	   s.n.lib.ncclCommInitRankConfig(NULL, 2, s.id, s.rank, &config));
	if (s.n.calls) {
		config.size = 16;
		IS(SK_NCCL_INVALID_ARGUMENT,
		   s.n.lib.ncclCommInitRankConfig(&s.comm, 2, s.id, s.rank,
						  &config));
	}
	side_end(&s);
}

/* The environment's word is the last. */
static void environment_blocks(void)
{
	sk_nccl_config config = trainer_nccl_config();
	struct side s = { 0 };
	sk_nccl_result r;

	(void)setenv("NCCL_COMM_BLOCKING", "1", 1);
	side_begin(&s, false, NULL);
	IS(0, s.n.lib.ncclCommInitRankConfig(&s.comm, 2, s.id, s.rank,
					     &config));
	IS(0, s.n.lib.ncclCommGetAsyncError(s.comm, &r));
	IS(0, r);
	give_up(&s);
}

static void environment_does_not(void)
{
	sk_nccl_config config = trainer_nccl_config();
	struct side s = { 0 };

	(void)setenv("NCCL_COMM_BLOCKING", "0", 1);
	side_begin(&s, false, NULL);
	config.blocking = 1;
	IS(SK_NCCL_IN_PROGRESS,
	   s.n.lib.ncclCommInitRankConfig(&s.comm, 2, s.id, s.rank, &config));
	IS(0, side_settled(&s));
	give_up(&s);
}

/* Each call says so, and none waits. */
static void under_way(void)
{
	sk_nccl_config config = trainer_nccl_config();
	struct side s = { 0 };

	side_begin(&s, false, NULL);
	IS(SK_NCCL_IN_PROGRESS,
	   s.n.lib.ncclCommInitRankConfig(&s.comm, 2, s.id, s.rank, &config));
	IS(0, side_settled(&s));
	IS(0, s.n.lib.ncclGroupStart());
	IS(SK_NCCL_IN_PROGRESS, side_put(&s, s.a, 8));
	IS(SK_NCCL_IN_PROGRESS, side_get(&s, s.b, 8));
	IS(SK_NCCL_IN_PROGRESS, s.n.lib.ncclGroupEnd());
	IS(0, side_settled(&s));
	IS(0, s.t.driver.cuStreamSynchronize(s.stream));
	IS(SK_NCCL_IN_PROGRESS, s.n.lib.ncclCommFinalize(s.comm));
	IS(0, side_settled(&s));
	IS(0, s.n.lib.ncclCommDestroy(s.comm));
	side_end(&s);
}

/* ---- who may go together ---- */

static void of_two_versions(void)
{
	sk_nccl_config config = trainer_nccl_config();
	struct side s = { 0 };

	side_begin(&s, false, NULL);
	if (s.rank)
		(void)setenv("VNCCL_VERSION", "22703", 1);
	side_begun(s.n.lib.ncclCommInitRankConfig(&s.comm, 2, s.id, s.rank,
						  &config));
	IS(SK_NCCL_INVALID_USAGE, side_settled(&s));
	CHECK(strstr(s.n.lib.ncclGetLastError(s.comm), "Mismatched"));
	give_up(&s);
}

/* From 2.30 on, if it is asked for. */
static void share_a_gpu(void)
{
	struct side s = { 0 };

	(void)setenv("NCCL_HOSTID", "one", 1);
	(void)setenv("VNCCL_VERSION", "23007", 1);
	(void)setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
	side_begin(&s, true, NULL);
	side_init(&s);
	IS(0, side_settled(&s));
	give_up(&s);
}

static void may_not_share_before(void)
{
	struct side s = { 0 };

	(void)setenv("NCCL_HOSTID", "one", 1);
	(void)setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
	side_begin(&s, true, NULL);
	side_init(&s);
	IS(SK_NCCL_INVALID_USAGE, side_settled(&s));
	give_up(&s);
}

/* ---- groups ---- */

/* What is asked for begins when the outermost ends. */
static void within_each_other(void)
{
	struct side s;

	begin_both(&s);
	fill(&s, s.a, 3 + s.rank);
	fill(&s, s.b, 99);
	IS(0, s.n.lib.ncclGroupStart());
	IS(0, s.n.lib.ncclGroupStart());
	side_begun(side_put(&s, s.a, 1000));
	side_begun(s.n.lib.ncclGroupEnd());
	IS(0, s.t.driver.cuEventRecord(s.done, s.stream));
	IS(0, s.t.driver.cuEventSynchronize(s.done));
	side_begun(side_get(&s, s.b, 1000));
	side_launch(&s);
	IS(0, s.t.driver.cuEventSynchronize(s.done));
	CHECK(are(&s, s.b, 1000, 4 - s.rank));
	side_end_comm(&s);
	side_end(&s);
}

/* Also where each takes its time. */
static void one_behind_the_other(void)
{
	struct side s;

	begin_both(&s);
	for (int i = 0; i < 4; i++) {
		memset(s.host, 10 * (s.rank + 1) + i, LONG);
		trainer_cuda_put(&s.t, s.a + (size_t)i * LONG, s.host, LONG);
	}
	fill(&s, s.b, 99);
	IS(0, s.n.lib.ncclGroupStart());
	for (size_t i = 0; i < 4; i++) {
		side_begun(side_get(&s, s.b + i * LONG, LONG));
		side_begun(side_put(&s, s.a + i * LONG, LONG));
	}
	side_launch(&s);
	IS(0, s.t.driver.cuEventSynchronize(s.done));
	for (int i = 0; i < 4; i++)
		CHECK(are(&s, s.b + (size_t)i * LONG, LONG,
			  10 * (2 - s.rank) + i));
	side_end_comm(&s);
	side_end(&s);
}

static void to_itself(void)
{
	struct side s;

	begin_both(&s);
	fill(&s, s.a, 5);
	fill(&s, s.b, 99);
	if (s.n.calls)
		IS(SK_NCCL_INVALID_USAGE,
		   s.n.lib.ncclSend((void *)(uintptr_t)s.a, 1000,
				    SK_NCCL_UINT8, s.rank, s.comm, s.stream));
	IS(0, s.n.lib.ncclGroupStart());
	side_begun(s.n.lib.ncclSend((void *)(uintptr_t)s.a, 1000,
				    SK_NCCL_UINT8, s.rank, s.comm, s.stream));
	side_begun(s.n.lib.ncclRecv((void *)(uintptr_t)s.b, 1000,
				    SK_NCCL_UINT8, s.rank, s.comm, s.stream));
	side_launch(&s);
	IS(0, s.t.driver.cuEventSynchronize(s.done));
	CHECK(are(&s, s.b, 1000, 5) && are(&s, s.b + 1000, 1000, 99));
	side_end_comm(&s);
	side_end(&s);
}

static void no_group_to_end(void)
{
	struct side s;

	begin_both(&s);
	IS(SK_NCCL_INVALID_USAGE, s.n.lib.ncclGroupEnd());
	give_up(&s);
}

/* A group that fails takes nothing along, and is over. */
static void nothing_of_what_failed(void)
{
	struct side s;

	begin_both(&s);
	fill(&s, s.b, 99);
	IS(0, s.n.lib.ncclGroupStart());
	side_begun(side_get(&s, s.b, 1000));
	IS(SK_NCCL_INVALID_ARGUMENT,
	   s.n.lib.ncclSend((void *)(uintptr_t)s.a, 8, SK_NCCL_UINT8, 2,
			    s.comm, s.stream));
	IS(SK_NCCL_INVALID_ARGUMENT, s.n.lib.ncclGroupEnd());
	IS(0, s.t.driver.cuStreamSynchronize(s.stream));
	CHECK(are(&s, s.b, 1000, 99));
	give_up(&s);
}

/* What never came is no bytes that anybody sent, nor those from before. */
static void what_never_came(void)
{
	struct side s;

	begin_both(&s);
	if (s.rank)
		for (;;)
			(void)pause();
	fill(&s, s.b, 99);
	side_begun(side_get(&s, s.b, 1000));
	IS(0, side_settled(&s));
	IS(0, s.n.lib.ncclCommAbort(s.comm));
	IS(0, s.t.driver.cuStreamSynchronize(s.stream));
	CHECK(!are(&s, s.b, 1, 99) && !are(&s, s.b + 999, 1, 99));
	CHECK(are(&s, s.b + 1000, 1000, 99));
	IS(0, (unsigned)kill(s.child, SIGKILL));
}

/* ---- an abort beside calls of another thread ---- */

struct beside {
	struct side *s;
	bool over;		/* atomic */
};

static void *ask_on(void *data)
{
	struct beside *b = data;
	sk_nccl_result r;

	while (!__atomic_load_n(&b->over, __ATOMIC_RELAXED))
		IS(0, b->s->n.lib.ncclCommGetAsyncError(b->s->comm, &r));
	return NULL;
}

static void *abort_it(void *data)
{
	struct side *s = data;
	sk_cu_context context;

	IS(0, s->t.driver.cuDevicePrimaryCtxRetain(&context, 0));
	IS(0, s->t.cuCtxSetCurrent(context));
	IS(0, s->n.lib.ncclCommAbort(s->comm));
	return NULL;
}

/* Only then are they connected. */
static void swap(struct side *s)
{
	IS(0, s->n.lib.ncclGroupStart());
	side_begun(side_put(s, s->a, 1000));
	side_begun(side_get(s, s->b, 1000));
	side_launch(s);
	IS(0, s->t.driver.cuEventSynchronize(s->done));
}

/* Of one that does not block, another thread may end what hangs. */
static void aborted_by_another_thread(void)
{
	pthread_t thread;
	struct side s;

	begin_both(&s);
	swap(&s);
	if (s.rank)
		for (;;)
			(void)pause();
	IS(0, s.n.lib.ncclGroupStart());
	side_begun(side_get(&s, s.b, 1000));
	side_launch(&s);
	IS(SK_CU_NOT_READY, s.t.driver.cuEventQuery(s.done));
	CHECK(!pthread_create(&thread, NULL, abort_it, &s));
	IS(0, s.t.driver.cuEventSynchronize(s.done));
	CHECK(!pthread_join(thread, NULL));
	IS(0, (unsigned)kill(s.child, SIGKILL));
}

/* Any number of threads may ask how it is. */
static void asked_by_another_thread(void)
{
	struct beside b = { 0 };
	pthread_t thread;
	struct side s;

	begin_both(&s);
	b.s = &s;
	CHECK(!pthread_create(&thread, NULL, ask_on, &b));
	for (int i = 0; i < 20; i++) {
		IS(0, s.n.lib.ncclGroupStart());
		side_begun(side_put(&s, s.a, 1000));
		side_begun(side_get(&s, s.b, 1000));
		side_launch(&s);
	}
	IS(0, s.t.driver.cuEventSynchronize(s.done));
	__atomic_store_n(&b.over, true, __ATOMIC_RELAXED);
	CHECK(!pthread_join(thread, NULL));
	side_end_comm(&s);
	side_end(&s);
}

/* ---- what nobody may do ---- */

/* Only what the first one does is looked at. */
static void leave_to_rank_0(struct side *s)
{
	begin_both(s);
	if (s->rank)
		for (;;)
			(void)pause();
}

static void misuse_one_rank_twice(void)
{
	sk_nccl_config config = trainer_nccl_config();
	struct side s = { 0 };

	side_begin(&s, false, NULL);
	side_begun(s.n.lib.ncclCommInitRankConfig(&s.comm, 2, s.id, s.rank,
						  &config));
	(void)s.n.lib.ncclCommInitRankConfig(&s.comm, 2, s.id, s.rank,
					     &config);
}

static void misuse_of_three(void)
{
	sk_nccl_config config = trainer_nccl_config();
	struct side s = { 0 };

	side_begin(&s, false, NULL);
	side_begun(s.n.lib.ncclCommInitRankConfig(&s.comm, 2 + s.rank, s.id,
						  s.rank, &config));
	(void)side_settled(&s);
	(void)pause();		/* the one where they meet is told */
}

static void *put_on(void *data)
{
	struct side *s = data;

	for (;;)
		(void)side_put(s, s->a, (size_t)1 << 40);
	return NULL;
}

static void misuse_two_threads(void)
{
	pthread_t thread;
	struct side s;

	leave_to_rank_0(&s);
	CHECK(!pthread_create(&thread, NULL, put_on, &s));
	(void)put_on(&s);
}

static void misuse_two_streams(void)
{
	struct side s;

	leave_to_rank_0(&s);
	side_begun(side_get(&s, s.b, 1000));
	IS(0, side_settled(&s));
	IS(0, s.t.cuStreamCreate(&s.stream, SK_CU_STREAM_NON_BLOCKING));
	(void)side_put(&s, s.a, 1000);
}

static void misuse_after_the_end(void)
{
	struct side s;

	leave_to_rank_0(&s);
	side_begun(s.n.lib.ncclCommFinalize(s.comm));
	(void)side_settled(&s);
	(void)side_put(&s, s.a, 1000);
}

static void misuse_two_ends(void)
{
	struct side s;

	leave_to_rank_0(&s);
	side_begun(s.n.lib.ncclCommFinalize(s.comm));
	(void)side_settled(&s);
	(void)s.n.lib.ncclCommFinalize(s.comm);
}

static void misuse_aborted(void)
{
	struct side s;

	leave_to_rank_0(&s);
	IS(0, s.n.lib.ncclCommAbort(s.comm));
	(void)side_put(&s, s.a, 1000);
}

static void misuse_aborted_twice(void)
{
	struct side s;

	leave_to_rank_0(&s);
	IS(0, s.n.lib.ncclCommAbort(s.comm));
	(void)s.n.lib.ncclCommAbort(s.comm);
}

static void misuse_received_onto(void)
{
	struct side s;

	leave_to_rank_0(&s);
	IS(0, s.n.lib.ncclGroupStart());
	side_begun(side_get(&s, s.a, 1000));
	side_begun(side_put(&s, s.a + 999, 1000));
	(void)s.n.lib.ncclGroupEnd();
}

static void misuse_of_no_stream(void)
{
	struct side s;

	leave_to_rank_0(&s);
	IS(0, s.t.driver.cuStreamDestroy(s.stream));
	(void)side_get(&s, s.b, 1000);
	(void)side_settled(&s);
}

static void misuse_while_capturing(void)
{
	struct side s;

	leave_to_rank_0(&s);
	IS(0, s.t.cuStreamBeginCapture(s.stream, 0));
	(void)side_get(&s, s.b, 1000);
	(void)side_settled(&s);
}

/* ---- all of them ---- */

static const struct item items[] = {
	{ "configs that are wrong", configs, ITEM_ANY },
	{ "an environment that has it block", environment_blocks, ITEM_ANY },
	{ "an environment that has it not", environment_does_not, ITEM_SIM },
	{ "calls say that they are under way", under_way, ITEM_SIM },
	{ "two versions", of_two_versions, ITEM_SIM },
	{ "two ranks on one GPU, from 2.30 on", share_a_gpu, ITEM_SIM },
	{ "two ranks on one GPU, before", may_not_share_before, ITEM_SIM },
	{ "groups within groups", within_each_other, ITEM_ANY },
	{ "one behind the other", one_behind_the_other, ITEM_ANY },
	{ "to itself", to_itself, ITEM_ANY },
	{ "no group to end", no_group_to_end, ITEM_SIM },
	{ "a group that fails", nothing_of_what_failed, ITEM_SIM },
	{ "what never came", what_never_came, ITEM_SIM },
	{ "aborted by another thread", aborted_by_another_thread, ITEM_ANY },
	{ "asked by another thread", asked_by_another_thread, ITEM_ANY },
	{ "misuse: one rank twice", misuse_one_rank_twice, ITEM_MISUSE },
	{ "misuse: ranks of two worlds", misuse_of_three, ITEM_MISUSE },
	{ "misuse: two threads in a communicator", misuse_two_threads,
	  ITEM_MISUSE },
	{ "misuse: two streams at once", misuse_two_streams, ITEM_MISUSE },
	{ "misuse: a group after the end", misuse_after_the_end,
	  ITEM_MISUSE },
	{ "misuse: two ends", misuse_two_ends, ITEM_MISUSE },
	{ "misuse: aborted and used", misuse_aborted, ITEM_MISUSE },
	{ "misuse: aborted twice", misuse_aborted_twice, ITEM_MISUSE },
	{ "misuse: received onto what is sent", misuse_received_onto,
	  ITEM_MISUSE },
	{ "misuse: a stream that is gone", misuse_of_no_stream, ITEM_MISUSE },
	{ "misuse: a stream that captures", misuse_while_capturing,
	  ITEM_MISUSE },
};

int main(void)
{
	bool simulated = false;
	int failed = side_look(&simulated);

	if (failed)
		return failed == 77 && getenv("SHARDKEEP_LIBNCCL") ? 1 :
								     failed;
	return items_run(items, sizeof(items) / sizeof(items[0]), simulated);
}
