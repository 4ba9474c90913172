/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device slots: snapshots that stand on the GPU first, and what a rank leaves
 * there that is killed before they are in memory.
 */
#include <errno.h>
#include <signal.h>
#include <inttypes.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/pool.h"
#include "conn/client.h"
#include "libclient/gpu-rank.h"
#include "state/state.h"

#define KILL UINT32_MAX		/* as a result: the call kills the process */
#define HANG (UINT32_MAX - 1)	/* or hangs, and its sockets are closed */
#define STOP (UINT32_MAX - 2)	/* or stops the process, until SIGCONT */
#define LATE_US 7000000u	/* the agent keeps a client for 5 s */

static void add_all(struct gpu_rank *g)
{
	gpu_add(g, &(struct sk_tensor){
		.name = "big", .dtype = SK_F32, .ndim = 2,
		.shape = { 700, 1000 }, .device = g->device }, 2800000, 1);
	gpu_add(g, &(struct sk_tensor){
		.name = "rows", .dtype = SK_F32, .ndim = 2,
		.shape = { 50, 10 }, .device = g->device,
		.strides = { 40, 2 } }, 50 * 160, 1);
	gpu_add_host(g, &(struct sk_tensor){
		.name = "offloaded", .dtype = SK_F64, .ndim = 1,
		.shape = { 3000 } }, 24000, 1);
	gpu_add(g, &(struct sk_tensor){
		.name = "small", .dtype = SK_BF16, .ndim = 1,
		.shape = { 33 }, .device = g->device }, 66, 1);
	CHECK(!sk_state_blob_local(g->rank->state, "rng",
				   rank_memory(100, 1), 100));
}

/* Whether a line of that command has both. */
static bool says(struct scene *scene, const char *what, const char *a,
		 const char *b)
{
	FILE *f = scene_ask(scene, what);
	bool found = false;
	char line[512];

	while (fgets(line, sizeof(line), f))
		found |= strstr(line, a) && strstr(line, b);
	(void)pclose(f);	/* 7: something is not as it should be */
	return found;
}

/* All who ask what memory of GPUs is taken hear the same. */
static void figures_are(struct scene *scene, const char *job, uint64_t bytes)
{
	char of_job[200];

	(void)snprintf(of_job, sizeof(of_job), "job=\"%s\"", job);
	CHECK(gpu_figure(scene, "shardkeep_device_memory_budget_bytes") ==
	      64 << 20);
	CHECK(gpu_figure(scene, "shardkeep_device_memory_used_bytes") == bytes);
	CHECK(gpu_figure(scene, "shardkeep_job_device_memory_bytes") == bytes);
	CHECK(gpu_figure(scene, "shardkeep_device_slots") == 1);
	CHECK(says(scene, "stats --prometheus",
		   "shardkeep_job_device_memory_bytes{", of_job));
	CHECK(says(scene, "stats --prometheus", "{gpu=\"GPU-", "\"} "));
	CHECK(says(scene, "status", "GPU-", "64.0 MiB"));
	CHECK(says(scene, "status", "device slots", "1"));
	CHECK(says(scene, "top --count 1", "GPU-", "64.0 MiB"));
}

/* ---- whole ---- */

static void save(struct rank *rank)
{
	struct gpu_rank g;
	uint64_t out, across;
	int64_t step;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	step = gpu_until_served(&g);
	gpu_fill(&g, step + 1);
	out = gpu_count(&g, "out");
	across = gpu_count(&g, "across");
	gpu_complete(&g, step + 1);
	/* Each byte crosses the link once. */
	across = gpu_count(&g, "across") - across;
	out = gpu_count(&g, "out") - out;
	CHECK(!g.cuda.count || across == 2800000 + 2000 + 66);
	CHECK(!g.cuda.count || out == 2800000 + 2000 + 66);
	figures_are(rank->scene, rank->job, gpu_device_bytes(&g));
	rank_ready(rank);
}

static sem_t held;

static void hold_thread(struct sk_task *task, size_t unit)
{
	(void)task;
	(void)unit;
	CHECK(!sem_wait(&held));
}

/* What lies on the GPU is let go of when that has it, while no thread has come
 * to what lies in host memory. */
static void fence_alone(struct rank *rank)
{
	struct sk_task hold = { .units = 1, .run = hold_thread };
	struct gpu_rank g;
	int64_t step;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	step = gpu_until_served(&g);
	gpu_fill(&g, step + 1);
	CHECK(!sem_init(&held, 0, 0));
	CHECK(sk_pool_threads(rank->state->sk->pool) == 1);
	sk_pool_submit(rank->state->sk->pool, &hold);
	CHECK(!gpu_snapshot(&g, step + 1, 0), "%s", sk_error());
	(void)alarm(20);	/* it would wait for itself */
	CHECK(!sk_fence_tensor(rank->state, "big"), "%s", sk_error());
	CHECK(!sk_fence_tensor(rank->state, "small"), "%s", sk_error());
	CHECK(!sem_post(&held));
	CHECK(!sk_fence_tensor(rank->state, "offloaded"), "%s", sk_error());
	CHECK(!sk_wait(rank->state, step + 1, SK_COMPLETE, 60000), "%s",
	      sk_error());
	(void)alarm(0);
}

/* The trainer's kernels have the device to themselves; a restore, beside which
 * nobody trains, is as fast as ever. */
static void save_and_load_beside(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;
	uint64_t overlap;
	int64_t step;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	step = gpu_until_served(&g) + 1;
	gpu_fill(&g, step);
	overlap = gpu_count(&g, "overlap");
	gpu_complete(&g, step);
	overlap = gpu_count(&g, "overlap") - overlap;
	CHECK(!g.cuda.count ||
	      (rank->scene->job_flags & SK_COPY_OVERLAP ?
	       overlap >= 2800000 + 66 : !overlap), "%" PRIu64, overlap);
	gpu_fill(&g, step + 1);
	overlap = gpu_count(&g, "overlap");
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == step && !gpu_wrong(&g, step, rank->rank));
	CHECK(gpu_count(&g, "overlap") == overlap);
}

static void test_policies(struct scene *scene)
{
	static const struct {
		const char *job;
		uint32_t flags;
	} policies[] = { { "fast", SK_COPY_FAST },
			 { "beside", SK_COPY_OVERLAP } };

	for (size_t i = 0; i < 2; i++) {
		scene->job_flags = policies[i].flags;
		scene_ranks(scene, policies[i].job, 1, save_and_load_beside,
			    NULL);
	}
	scene->job_flags = 0;
}

static void load(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(gpu_wrong(&g, report.step, rank->rank) == 0);
}

/* ---- killed when it stands on the device ---- */

#define LAST_STEP INT64_C(1000000000)

static void end_on_the_way_out(struct rank *rank, unsigned how)
{
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	(void)gpu_until_served(&g);
	gpu_fill(&g, LAST_STEP);
	g.cuda.fail("cuMemcpyDtoHAsync", 1, how);
	g.cuda.fail("cuMemcpyBatchAsync", 2, how);
	(void)gpu_snapshot(&g, LAST_STEP, 0);
	for (;;)
		(void)pause();
}

static void die_on_the_way_out(struct rank *rank)
{
	end_on_the_way_out(rank, KILL);
}

static void hang_on_the_way_out(struct rank *rank)
{
	(void)alarm(0);		/* whoever began it ends it */
	end_on_the_way_out(rank, HANG);
}

static void load_last(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step == LAST_STEP, "step %" PRId64, report.step);
	CHECK(gpu_wrong(&g, report.step, rank->rank) == 0);
}

static void load_the_one_before(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	CHECK(report.step < LAST_STEP);
	CHECK(gpu_wrong(&g, report.step, rank->rank) == 0);
}

static void run_and_die(struct scene *scene, const char *job)
{
	pid_t pid;
	int status;

	scene_ranks_start(scene, job, 1, die_on_the_way_out, NULL, &pid);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status), "status %#x", status);
}

/* ---- it left heirs ---- */

static void begin_heir(int end)
{
	pid_t heir = fork();

	CHECK(heir >= 0);
	if (!heir) {
		(void)alarm(60);
		for (;;)
			(void)pause();
	}
	CHECK(write(end, &heir, sizeof(heir)) == sizeof(heir));
}

static void die_with_an_heir(struct rank *rank)
{
	begin_heir(*(const int *)rank->arg);
	end_on_the_way_out(rank, KILL);
}

/* A child that it has forked, as a data loader does, has the driver's
 * descriptors, and the connection's: what stood on the GPU is brought out all
 * the same. */
static void test_heirs(struct scene *scene)
{
	uint64_t drains = gpu_figure(scene, "shardkeep_device_drains_total");
	int ends[2], status;
	pid_t pid, heir;

	CHECK(!pipe(ends));
	scene_ranks_start(scene, "heirs", 1, die_with_an_heir, &ends[1], &pid);
	CHECK(read(ends[0], &heir, sizeof(heir)) == sizeof(heir));
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	scene_ranks(scene, "heirs", 1, load_last, NULL);
	CHECK(gpu_figure(scene, "shardkeep_device_drains_total") == drains + 1);
	CHECK(!kill(heir, SIGKILL));
	CHECK(!close(ends[0]) && !close(ends[1]));
}

/* A model that is on the host when it is described first, and snapshotted, and
 * then moves. Killed while its GPU writes to a slot. */
static void move_and_die_with_an_heir(struct rank *rank)
{
	struct gpu_tensor *x;
	struct gpu_rank g;

	begin_heir(*(const int *)rank->arg);
	gpu_begin(&g, rank, 0);
	x = gpu_add_host(&g, &(struct sk_tensor){
		.name = "x", .dtype = SK_U8, .ndim = 1,
		.shape = { 3000000 } }, 3000000, 1);
	gpu_complete(&g, 1);
	x->device = 0;
	x->there = trainer_cuda_alloc(&g.cuda, x->bytes);
	gpu_describe(&g, x, true);
	g.cuda.fail("cuMemcpyDtoHAsync", 1, KILL);
	g.cuda.fail("cuMemcpyBatchAsync", 1, KILL);
	CHECK(!gpu_snapshot(&g, 2, 0), "%s", sk_error());
	(void)sk_fence(rank->state);
	CHECK(false, "it lives");
}

/* Its child has the driver's descriptors, and the GPU may write on: the agent
 * knows that it has one now. */
static void test_moved(struct scene *scene)
{
	uint64_t before = gpu_figure(scene, "shardkeep_quarantines_total");
	int ends[2], status, tries = 100;
	pid_t pid, heir;

	CHECK(!pipe(ends));
	scene_ranks_start(scene, "moved", 1, move_and_die_with_an_heir,
			  &ends[1], &pid);
	CHECK(read(ends[0], &heir, sizeof(heir)) == sizeof(heir));
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	while (gpu_figure(scene, "shardkeep_quarantines_total") == before)
		CHECK(--tries, "its slot is given to others");
	CHECK(!kill(heir, SIGKILL));
	while (gpu_figure(scene, "shardkeep_quarantined_bytes"))
		;
	CHECK(!close(ends[0]) && !close(ends[1]));
}

static void kill_rank(pid_t pid)
{
	int status;

	CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
}

/* Its process has not ended: a GPU may still write where its image stands.
 * Nobody touches that, and nobody gets its slots, until it has. */
static void test_hangs(struct scene *scene)
{
	uint64_t lost = gpu_figure(scene, "shardkeep_device_lost_total");
	uint64_t seals = gpu_figure(scene, "shardkeep_device_seals_total");
	/* What the dead have left stands there as copies. */
	uint64_t used = gpu_figure(scene, "shardkeep_device_memory_used_bytes");
	int status;
	pid_t pid;

	scene_ranks_start(scene, "hangs", 1, hang_on_the_way_out, NULL, &pid);
	while (gpu_figure(scene, "shardkeep_device_seals_total") == seals)
		CHECK(waitpid(pid, &status, WNOHANG) == 0, "it has ended");
	scene_ranks(scene, "hangs", 1, load_the_one_before, NULL);
	CHECK(gpu_figure(scene, "shardkeep_device_lost_total") == lost + 1);
	CHECK(gpu_figure(scene, "shardkeep_quarantined_bytes") > 0);
	/* Nobody's, and taken all the same. */
	CHECK(gpu_figure(scene, "shardkeep_device_memory_used_bytes") > used);
	kill_rank(pid);
	while (gpu_figure(scene, "shardkeep_quarantined_bytes"))
		;
	CHECK(gpu_figure(scene, "shardkeep_device_memory_used_bytes") == used);
	CHECK(says(scene, "status", "lost on GPUs", "1"));
}

static void stop_on_the_way_out(struct rank *rank)
{
	end_on_the_way_out(rank, STOP);
}

/* Until the rank is stopped there. */
static pid_t start_and_stop(struct scene *scene, const char *job, rank_fn fn)
{
	int status;
	pid_t pid;

	scene_ranks_start(scene, job, 1, fn, NULL, &pid);
	CHECK(waitpid(pid, &status, WUNTRACED) == pid);
	CHECK(WIFSTOPPED(status), "status %#x", status);
	return pid;
}

/* What the dead has left takes longer to bring out than the agent lets a client
 * wait: the rank's next life is no other job, and comes in when it is there. */
static void test_takes_long(struct scene *scene)
{
	pid_t pid = start_and_stop(scene, "slow", stop_on_the_way_out);

	CHECK(gpu_workers(scene, SIGSTOP));
	kill_rank(pid);
	scene_ranks_start(scene, "slow", 1, load_last, NULL, &pid);
	(void)usleep(LATE_US);
	CHECK(gpu_workers(scene, SIGCONT));
	scene_ranks_end("slow", 1, &pid);
}

/* ---- the agent killed, or another in its place, in that very moment ---- */

/* Whatever it is told of that snapshot: it goes on, and what stood on the
 * device is in memory, byte for byte. */
static void go_on(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;
	int r;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	(void)gpu_until_served(&g);
	gpu_fill(&g, LAST_STEP);
	g.cuda.fail("cuMemcpyDtoHAsync", 1, STOP);
	g.cuda.fail("cuMemcpyBatchAsync", 2, STOP);
	CHECK(!gpu_snapshot(&g, LAST_STEP, 0), "%s", sk_error());
	/* It may have been stopped before this was asked. */
	r = sk_fence(rank->state);
	CHECK(r == 0 || r == -ECONNRESET, "%d: %s", r, sk_error());
	(void)sk_wait(rank->state, LAST_STEP, SK_COMPLETE, 60000);
	g.cuda.fail("cuMemcpyDtoHAsync", 0, 0);
	g.cuda.fail("cuMemcpyBatchAsync", 0, 0);
	gpu_fill(&g, LAST_STEP + 1);
	do {
		r = gpu_snapshot(&g, LAST_STEP + 1, 0);
		CHECK(r == 0 || r == -ECONNRESET, "%s", sk_error());
	} while (r < 0);
	CHECK(!sk_wait(rank->state, LAST_STEP + 1, SK_COMPLETE, 60000), "%s",
	      sk_error());
	CHECK(!rank_restore(rank, LAST_STEP, 0, &report), "%s", sk_error());
	CHECK(gpu_wrong(&g, LAST_STEP, rank->rank) == 0);
}

static void save_once_more(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	(void)gpu_until_served(&g);
}

static void test_outlives(struct scene *scene, const char *job,
			  void (*lose_agent)(struct scene *scene))
{
	pid_t pid = start_and_stop(scene, job, stop_on_the_way_out);

	lose_agent(scene);
	kill_rank(pid);
	scene_ranks(scene, job, 1, load_last, NULL);
	CHECK(gpu_figure(scene, "shardkeep_device_drains_total") == 1);
}

static void test_goes_on(struct scene *scene, const char *job,
			 void (*lose_agent)(struct scene *scene))
{
	pid_t pid = start_and_stop(scene, job, go_on);

	lose_agent(scene);
	while (!gpu_figure(scene, "shardkeep_device_drains_total"))
		;
	CHECK(!kill(pid, SIGCONT));
	scene_ranks_end(job, 1, &pid);
}

/* The next agent's worker fails: that step is lost, and nothing else. */
static void test_lost_after(struct scene *scene, const char *job)
{
	pid_t pid = start_and_stop(scene, job, stop_on_the_way_out);

	gpu_lose_agent(scene);
	kill_rank(pid);
	scene_ranks(scene, job, 1, load_the_one_before, NULL);
	CHECK(gpu_figure(scene, "shardkeep_device_lost_total") == 1);
	CHECK(gpu_figure(scene, "shardkeep_device_drains_total") == 0);
	scene_ranks(scene, job, 1, save_once_more, NULL);
}

static void test_keeper(struct scene *scene)
{
	scene_stop_agent(scene, SIGTERM);
	scene->keeper = true;
	scene_start_agent(scene);
	test_outlives(scene, "killed", gpu_lose_agent);
	test_goes_on(scene, "goes-on", gpu_lose_agent);
	test_outlives(scene, "taken", gpu_replace_agent);
	test_goes_on(scene, "taken-on", gpu_replace_agent);
	CHECK(!setenv("VCUDA_FAILS", "cuMemcpyDtoHAsync", 1));
	scene_stop_agent(scene, SIGTERM);
	scene_start_agent(scene);
	CHECK(!unsetenv("VCUDA_FAILS"));
	test_lost_after(scene, "lost-after");
}

/* ---- another takes over, with less memory of the device, or none: what is
 * there is brought out, and the device is let go of ---- */

static void replace_by_less(struct scene *scene)
{
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "1M", 1));
	gpu_replace_agent(scene);
}

static void replace_by_none(struct scene *scene)
{
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "0", 1));
	gpu_replace_agent(scene);
}

static void restart(struct scene *scene, const char *memory)
{
	scene_stop_agent(scene, SIGTERM);
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", memory, 1));
	scene_start_agent(scene);
}

static void test_less(struct scene *scene, const char *jobs[2],
		      void (*replace)(struct scene *scene))
{
	restart(scene, "64M");
	test_outlives(scene, jobs[0], replace);
	restart(scene, "64M");
	test_goes_on(scene, jobs[1], replace);
	CHECK(!gpu_figure(scene, "shardkeep_device_memory_used_bytes"));
}

/* ---- without ---- */

/* Another user of the device has all of it. */
static void none_left(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	for (int64_t step = 1; step < 4; step++) {
		gpu_fill(&g, step);
		gpu_complete(&g, step);
		CHECK(!gpu_device_bytes(&g));
	}
}

/* Another job's rank has all that the agent gives, and leaves: the next one is
 * served when it asks again, a minute later, without being started anew. */
static void room_later(struct rank *rank)
{
	struct sk_device_slot *d = &rank->state->device_slot;
	const struct sk_job job = { .name = "room-first", .world = 1 };
	struct rank other = *rank;
	struct gpu_rank first, g;

	CHECK(!sk_state_create(rank->sk, &job, &other.state), "%s",
	      sk_error());
	gpu_begin(&first, &other, 0);
	add_all(&first);
	(void)gpu_until_served(&first);
	gpu_begin(&g, rank, 0);
	add_all(&g);
	for (int64_t step = 1; step < 4; step++) {
		gpu_fill(&g, step);
		gpu_complete(&g, step);
		CHECK(!gpu_device_bytes(&g));
	}
	CHECK(d->again.refusals == 1, "asked %u times", d->again.refusals);
	sk_state_free(other.state);
	CHECK(d->again.at_ns > 1 && d->again.at_ns < SK_FOREVER);
	d->again.at_ns = 1;
	(void)gpu_until_served(&g);
	CHECK(!d->again.refusals);
}

static void take_again(struct gpu_rank *g, int64_t step)
{
	struct sk_device_slot *d = &g->rank->state->device_slot;

	d->again.at_ns = d->again.at_ns > 1 ? 1 : d->again.at_ns;
	gpu_fill(g, step);
	gpu_complete(g, step);
}

/* The trainer has all of the device. A worker that is begun to see that takes
 * of it what its context takes, each time: once, and then not before the rank
 * sees that there is room. */
static void full_for_now(struct rank *rank)
{
	static const char failed[] = "shardkeep_device_slots_failed_total";
	struct sk_device_slot *d = &rank->state->device_slot;
	size_t left, all;
	struct gpu_rank g;
	int64_t step = 0;
	sk_cu_ptr hog;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	CHECK(!g.cuda.driver.cuMemGetInfo(&left, &all));
	hog = trainer_cuda_alloc(&g.cuda, left - (2 << 20));
	while (d->again.refusals < 2)
		take_again(&g, ++step);
	CHECK(gpu_figure(rank->scene, failed) == 1);
	CHECK(!g.cuda.driver.cuMemFree(hog));
	while (!gpu_device_bytes(&g))
		take_again(&g, ++step);
}

/* Of the device's bytes the agent's workers know what others have. */
static void test_full(struct scene *scene)
{
	char dir[] = "/tmp/vcuda-session-XXXXXX", command[64];

	CHECK(mkdtemp(dir));
	CHECK(!setenv("VCUDA_SESSION", dir, 1));
	CHECK(!setenv("VCUDA_MEM", "4294967296", 1));
	restart(scene, "64M");
	scene_ranks(scene, "full", 1, full_for_now, NULL);
	scene_stop_agent(scene, SIGTERM);
	CHECK(!unsetenv("VCUDA_SESSION") && !unsetenv("VCUDA_MEM"));
	(void)snprintf(command, sizeof(command), "rm -rf %s", dir);
	CHECK(!system(command));
	scene_start_agent(scene);
}

/* Snapshots, and then something else is described: the rank is registered
 * anew, long before a worker has begun. */
static void described_anew(struct rank *rank)
{
	struct gpu_rank g;
	int64_t step = 0;

	gpu_begin(&g, rank, 0);
	add_all(&g);
	for (int i = 0; i < 40 && !gpu_device_bytes(&g); i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "more%d", i);
		CHECK(!sk_state_blob_local(rank->state, name,
					   rank_memory(100, 1), 100));
		for (int k = 0; k < 3; k++) {
			gpu_complete(&g, ++step);
			(void)usleep(30000);
		}
	}
	CHECK(gpu_device_bytes(&g), "none was made");
}

static void test_anew(struct scene *scene)
{
	CHECK(!setenv("VCUDA_SLOW", "500", 1));
	restart(scene, "64M");
	CHECK(!unsetenv("VCUDA_SLOW"));
	scene_ranks(scene, "anew", 1, described_anew, NULL);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "64M", 1));
	scene_open(&scene, argc, argv);
	scene_ranks_killed(&scene, "saved", 1, save, NULL);
	CHECK(gpu_figure(&scene, "shardkeep_device_seals_total") == 1);
	scene_ranks(&scene, "saved", 1, load, NULL);
	scene_ranks(&scene, "fenced", 1, fence_alone, NULL);
	test_policies(&scene);
	if (t.calls) {
		run_and_die(&scene, "died");
		scene_ranks(&scene, "died", 1, load_last, NULL);
		CHECK(gpu_figure(&scene, "shardkeep_device_drains_total") == 1);
		test_moved(&scene);
		test_heirs(&scene);
		test_hangs(&scene);
		test_takes_long(&scene);
		test_keeper(&scene);
		test_less(&scene, (const char *[]){ "less", "less-on" },
			  replace_by_less);
		test_less(&scene, (const char *[]){ "none", "none-on" },
			  replace_by_none);
		scene.keeper = false;
		/* Where the worker fails, too, that step is lost. */
		CHECK(!setenv("VCUDA_FAILS", "cuMemcpyDtoHAsync", 1));
		restart(&scene, "64M");
		CHECK(!unsetenv("VCUDA_FAILS"));
		run_and_die(&scene, "lost");
		scene_ranks(&scene, "lost", 1, load_the_one_before, NULL);
		CHECK(gpu_figure(&scene, "shardkeep_device_lost_total") == 1);
	}
	restart(&scene, "1M");
	scene_ranks(&scene, "none", 1, none_left, NULL);
	CHECK(gpu_figure(&scene, "shardkeep_device_slots_refused_total") > 0);
	CHECK(!gpu_figure(&scene, "shardkeep_device_memory_used_bytes"));
	if (t.calls) {
		test_anew(&scene);
		restart(&scene, "1M");
		test_full(&scene);
		/* Of 2.8 MB each, in granules. */
		restart(&scene, "4M");
		scene_ranks(&scene, "room", 1, room_later, NULL);
	}
	scene_close(&scene);
	return 0;
}
