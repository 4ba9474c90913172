/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores out of device slots: what a rank left on its GPU goes to its next
 * life from device to device, verified there, and to nobody unverified.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "conn/list.h"
#include "libclient/gpu-rank.h"
#include "state/slots.h"

#define KILL UINT32_MAX		/* as a result: the call kills the process */
#define HANG (UINT32_MAX - 1)	/* or hangs, and its sockets are closed */
#define STOP (UINT32_MAX - 2)	/* or stops it */
#define LAST_STEP INT64_C(1000000000)
#define MIB ((uint64_t)1 << 20)
#define BIG ((uint64_t)2800000)
#define SMALL ((uint64_t)66)
#define ROWS ((uint64_t)2000)
/* What a chunk's checksum takes of the link: whose, and what it is. */
#define IN 16u
#define OUT 8u
/* And what a small copy does where the driver takes no batches. */
/* Of BIG, SMALL and ROWS. */
#define CHUNKS 5u
#define ALL (BIG + SMALL + ROWS)

static bool simulated;

static void add_all(struct gpu_rank *g)
{
	gpu_add(g, &(struct sk_tensor){
		.name = "big", .dtype = SK_F32, .ndim = 2,
		.shape = { 700, 1000 }, .device = g->device }, BIG, 1);
	gpu_add(g, &(struct sk_tensor){
		.name = "rows", .dtype = SK_F32, .ndim = 2,
		.shape = { 50, 10 }, .device = g->device,
		.strides = { 40, 2 } }, 50 * 160, 1);
	gpu_add_host(g, &(struct sk_tensor){
		.name = "offloaded", .dtype = SK_F64, .ndim = 1,
		.shape = { 3000 } }, 24000, 1);
	gpu_add(g, &(struct sk_tensor){
		.name = "small", .dtype = SK_BF16, .ndim = 1,
		.shape = { 33 }, .device = g->device }, SMALL, 1);
	CHECK(!sk_state_blob_local(g->rank->state, "rng",
				   rank_memory(100, 1), 100));
}

static void begin(struct gpu_rank *g, struct rank *rank)
{
	gpu_begin(g, rank, 0);
	add_all(g);
}

/* Until the agent has made it. Returns the last step, which went by it. */
static int64_t take_by_device(struct gpu_rank *g)
{
	int64_t step = gpu_until_served(g);

	gpu_fill(g, ++step);
	gpu_complete(g, step);
	return step;
}

/* ---- restoring ---- */

/* What a restore is to come to. */
struct want {
	uint64_t by_device;	/* of ALL */
	uint64_t hashed;	/* chunks, on the device */
	uint64_t gathered;	/* bytes of them, in memory of its own */
	uint64_t failed;	/* to be */
	uint32_t damaged, flags;
	int64_t step;		/* 0: any */
	const char *variable, *value;	/* of the simulation */
};

static void restore(struct gpu_rank *g, const struct want *w)
{
	uint64_t in = gpu_count(g, "in"), out = gpu_count(g, "out");
	uint64_t across = gpu_count(g, "across");
	struct sk_report report;

	CHECK(!rank_restore(g->rank, SK_LATEST, w->flags, &report), "%s",
	      sk_error());
	in = gpu_count(g, "in") - in;
	out = gpu_count(g, "out") - out;
	across = gpu_count(g, "across") - across;
	CHECK(!w->step || report.step == w->step, "step %" PRId64,
	      report.step);
	CHECK(gpu_wrong(g, report.step, g->rank->rank) == 0);
	CHECK(report.bytes_device_slot == w->by_device, "%" PRIu64,
	      report.bytes_device_slot);
	CHECK(report.damaged == w->damaged, "%u", report.damaged);
	CHECK(report.bytes_memory == ALL + 24000 + 100);
	if (!(w->flags & SK_RESTORE_NO_VERIFY))
		CHECK(report.bytes_verified == report.bytes_memory);
	if (!simulated)
		return;
	/* Nothing that came from there crossed the link. */
	CHECK(in == ALL - w->by_device + (w->hashed + w->failed) * IN, "%" PRIu64, in);
	CHECK(out == w->hashed * OUT, "%" PRIu64, out);
	CHECK(w->damaged || w->failed || across == w->by_device + w->gathered,
	      "%" PRIu64, across);
}

static void load(struct rank *rank)
{
	const struct want *w = rank->arg;
	struct gpu_rank g;

	if (w->variable)
		CHECK(!setenv(w->variable, w->value, 1));
	begin(&g, rank);
	restore(&g, w);
}

static const struct want all_by_device = { .by_device = ALL,
					   .hashed = CHUNKS,
					   .gathered = ROWS };
static const struct want all_by_host = { 0 };

static void expect(struct scene *scene, const char *job, struct want w)
{
	scene_ranks(scene, job, 1, load, &w);
}

/* ---- killed ---- */

static void save(struct rank *rank)
{
	struct gpu_rank g;

	begin(&g, rank);
	(void)take_by_device(&g);
	rank_ready(rank);
}

static void test_killed(struct scene *scene)
{
	uint64_t reads = gpu_figure(scene, "shardkeep_device_reads_total");

	scene_ranks_killed(scene, "killed", 1, save, NULL);
	expect(scene, "killed", all_by_device);
	/* Whoever reads it does not use it up. */
	expect(scene, "killed", all_by_device);
	CHECK(gpu_figure(scene, "shardkeep_device_reads_total") == reads + 2);
	expect(scene, "killed", (struct want){
		.by_device = ALL, .flags = SK_RESTORE_NO_VERIFY });
}

/* Who has no kernel for small copies asks for each. */
static void save_without(struct rank *rank)
{
	const struct want *lack = rank->arg;

	CHECK(!setenv(lack->variable, lack->value, 1));
	save(rank);
}

static void test_saved_without(struct scene *scene)
{
	static const struct want lack[] = {
		{ .variable = "VCUDA_MODE", .value = "no-compiler" },
		{ .variable = "VCUDA_FAILS", .value = "cuLaunchKernel" } };
	char job[32];

	for (size_t i = 0; i < SK_ARRAY_SIZE(lack); i++) {
		(void)snprintf(job, sizeof(job), "saved-without-%zu", i);
		scene_ranks_killed(scene, job, 1, save_without, &lack[i]);
		expect(scene, job, all_by_device);
	}
}

/* Who cannot verify there reads memory; who need not goes on without. */
static void test_without(struct scene *scene)
{
	struct want w = { .variable = "VCUDA_MODE", .value = "no-compiler" };

	expect(scene, "killed", w);
	w.flags = SK_RESTORE_NO_VERIFY;
	w.by_device = ALL;
	expect(scene, "killed", w);
	expect(scene, "killed", (struct want){
		.variable = "VCUDA_MISSING", .value = "cuLaunchKernel" });
	expect(scene, "killed", (struct want){
		.variable = "VCUDA_MISSING", .value = "cuMemMap" });
	expect(scene, "killed", (struct want){
		.failed = CHUNKS,
		.variable = "VCUDA_FAILS", .value = "cuLaunchKernel" });
	CHECK(!setenv("VCUDA_VERSION", "12000", 1));
	expect(scene, "killed", (struct want){
		.variable = "VCUDA_FAILS", .value = "cuMemcpyDtoDAsync" });
	CHECK(!unsetenv("VCUDA_VERSION"));
	/* The oldest driver has all that it takes. */
	expect(scene, "killed", (struct want){
		.by_device = ALL, .hashed = CHUNKS, .gathered = ROWS,
		.variable = "VCUDA_VERSION", .value = "12000" });
}

/* The doctor says so. */
static void test_doctor(struct scene *scene, const char *mode,
			const char *want)
{
	char all[8192] = "";
	size_t n;
	FILE *f;

	CHECK(!setenv("VCUDA_MODE", mode, 1));
	f = scene_ask(scene, "doctor --json");
	CHECK(!unsetenv("VCUDA_MODE"));
	n = fread(all, 1, sizeof(all) - 1, f);
	all[n] = 0;
	(void)pclose(f);	/* something may always be better */
	CHECK(strstr(all, want), "%s", all);
	CHECK(!strstr(all, "takes none") == !strstr(want, "takes none"));
}

static void load_elsewhere(struct rank *rank)
{
	struct gpu_rank g;

	CHECK(!setenv("VCUDA_DEVICES", "2", 1));
	gpu_begin(&g, rank, 1);
	add_all(&g);
	restore(&g, &all_by_host);
}

/* ---- alive ---- */

static void restore_itself(struct rank *rank)
{
	struct gpu_rank g;

	begin(&g, rank);
	(void)take_by_device(&g);
	gpu_fill(&g, 77);
	restore(&g, &all_by_device);
	/* And it goes on to use it. */
	gpu_fill(&g, LAST_STEP);
	gpu_complete(&g, LAST_STEP);
	restore(&g, &all_by_device);
}

/* Whoever describes more is registered anew; what stood there stands. */
static void restore_anew(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;
	int64_t step;

	begin(&g, rank);
	step = take_by_device(&g);
	gpu_add_host(&g, &(struct sk_tensor){
		.name = "more", .dtype = SK_F32, .ndim = 1,
		.shape = { 7 } }, 28, 1);
	CHECK(!rank_restore(rank, step, SK_RESTORE_PARTIAL, &report), "%s",
	      sk_error());
	CHECK(report.bytes_device_slot == ALL, "%" PRIu64,
	      report.bytes_device_slot);
	CHECK(report.missing == 1);
	do {
		gpu_fill(&g, ++step);
		gpu_complete(&g, step);
	} while (!gpu_device_bytes(&g));
	gpu_fill(&g, ++step);
	gpu_complete(&g, step);
	CHECK(!rank_restore(rank, step, 0, &report), "%s", sk_error());
	CHECK(gpu_wrong(&g, step, rank->rank) == 0);
	CHECK(report.bytes_device_slot == ALL, "%" PRIu64,
	      report.bytes_device_slot);
}

/* ---- the copy is none ---- */

static void save_and_spoil(struct rank *rank)
{
	struct gpu_rank g;

	begin(&g, rank);
	(void)take_by_device(&g);
	/* One byte of the second chunk. */
	CHECK(!g.cuda.cuMemsetD8Async(
		sk_cuda_share_ptr(rank->state->device_slot.share) + MIB + 5,
		0x5a, 1, 0));
	CHECK(!g.cuda.driver.cuCtxSynchronize());
	rank_ready(rank);
}

static void test_spoilt(struct scene *scene)
{
	scene_ranks_killed(scene, "spoilt", 1, save_and_spoil, NULL);
	expect(scene, "spoilt", (struct want){
		.by_device = ALL - MIB, .hashed = CHUNKS,
		.damaged = 1 });
	/* Set aside: what is in memory is whole. */
	expect(scene, "spoilt", all_by_host);
}

/* ---- read while the next snapshot comes ---- */

static uint64_t image_of(struct sk_conn *conn, const char *job)
{
	struct sk_wire_id id = { .step = -1, .rank = 0 };
	struct sk_wire_image *images;
	uint64_t image;
	size_t n;

	(void)snprintf(id.job, sizeof(id.job), "%s", job);
	CHECK(!sk_list_images(conn, &id, 0, UINT64_MAX, &images, &n, NULL));
	CHECK(n >= 1);
	image = images[0].image;
	for (size_t i = 1; i < n; i++)
		if (images[i].image > image)
			image = images[i].image;
	free(images);
	return image;
}

static int open_copy(struct sk_conn *conn, struct gpu_rank *g, uint64_t image)
{
	struct sk_msg msg = { .type = SK_MSG_DEVICE_OPEN,
			      .body.device_open.image = image };
	int fds[SK_MSG_FDS], n = 0, r;
	struct sk_cuda_uuid uuid;

	CHECK(!sk_cuda_uuid(g->rank->state->gpus.v[0].device, &uuid, NULL));
	memcpy(msg.body.device_open.uuid, uuid.bytes, sizeof(uuid.bytes));
	r = sk_conn_call(conn, &msg, NULL, 0, fds, &n, UINT64_MAX, NULL);
	for (int i = 0; i < n; i++)
		close(fds[i]);
	return r;
}

static int close_copy(struct sk_conn *conn, uint64_t image)
{
	struct sk_msg msg = { .type = SK_MSG_CLOSE, .body.open = {
		.image = image, .place = SK_PLACE_DEVICE } };

	return sk_conn_call(conn, &msg, NULL, 0, NULL, NULL, UINT64_MAX,
			    NULL);
}

/* Bytes that the snapshot moves within the device. */
static uint64_t taken(struct gpu_rank *g, int64_t step)
{
	uint64_t across = gpu_count(g, "across");

	gpu_fill(g, step);
	gpu_complete(g, step);
	return gpu_count(g, "across") - across;
}

static void take(struct gpu_rank *g, int64_t step, uint64_t expected)
{
	uint64_t across = taken(g, step);

	CHECK(!simulated || across == expected, "%" PRIu64 " of %" PRIu64,
	      across, expected);
}

static void read_and_go_on(struct rank *rank)
{
	const uint64_t by_device = ALL;
	struct sk_conn conn, other;
	struct gpu_rank g;
	uint64_t image;
	int64_t step;

	begin(&g, rank);
	step = take_by_device(&g);
	CHECK(!sk_conn_open(sk_os_linux(), rank->scene->socket, UINT64_MAX,
			    &conn, NULL));
	CHECK(!sk_conn_open(sk_os_linux(), rank->scene->socket, UINT64_MAX,
			    &other, NULL));
	image = image_of(&conn, rank->job);
	CHECK(open_copy(&conn, &g, 0) == -ENOENT);
	CHECK(open_copy(&conn, &g, image + 1000) == -ENOENT);
	CHECK(close_copy(&conn, image) == -ENOENT);
	CHECK(!open_copy(&conn, &g, image) && !open_copy(&other, &g, image));
	/* Twice by one connection is closed twice. */
	CHECK(!open_copy(&conn, &g, image) && !close_copy(&conn, image));
	/* Straight to the slot, while somebody reads. */
	take(&g, ++step, 0);
	CHECK(!open_copy(&conn, &g, image) && !close_copy(&conn, image));
	CHECK(!close_copy(&conn, image));
	/* A lease ends with its connection; the next snapshot waits for a slot
	 * until it has. */
	sk_conn_close(&other);
	take(&g, ++step, by_device);
	CHECK(open_copy(&conn, &g, image) == -ENOENT);
	CHECK(image_of(&conn, rank->job) != image);
	CHECK(!open_copy(&conn, &g, image_of(&conn, rank->job)));
	sk_conn_close(&conn);
}

/* ---- killed on the way out ---- */

static void end_on_the_way_out(struct rank *rank, unsigned how)
{
	struct gpu_rank g;

	begin(&g, rank);
	(void)take_by_device(&g);
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

static void stop_on_the_way_out(struct rank *rank)
{
	end_on_the_way_out(rank, STOP);
}

/* Until it is dead, or stopped, there. */
static pid_t run_until(struct scene *scene, const char *job, rank_fn fn)
{
	pid_t pid;
	int status;

	scene_ranks_start(scene, job, 1, fn, NULL, &pid);
	CHECK(waitpid(pid, &status, WUNTRACED) == pid);
	CHECK(WIFSIGNALED(status) || WIFSTOPPED(status), "status %#x",
	      status);
	return pid;
}

/* A worker has brought it to memory, and it stands on the GPU still. */
static void test_drained(struct scene *scene)
{
	struct want w = all_by_device;

	(void)run_until(scene, "drained", die_on_the_way_out);
	w.step = LAST_STEP;
	expect(scene, "drained", w);
}

/* ---- its process does not end ---- */

static void hang(struct rank *rank)
{
	struct gpu_rank g;

	(void)alarm(0);		/* whoever began it ends it */
	begin(&g, rank);
	(void)take_by_device(&g);
	g.cuda.fail("cuCtxSynchronize", 1, HANG);
	(void)g.cuda.driver.cuCtxSynchronize();
}

/* Nobody reads what a process may still write to; then it is a copy again. */
static void test_hangs(struct scene *scene)
{
	int status;
	pid_t pid;

	scene_ranks_start(scene, "hangs", 1, hang, NULL, &pid);
	while (!gpu_figure(scene, "shardkeep_quarantined_bytes"))
		CHECK(waitpid(pid, &status, WNOHANG) == 0, "it has ended");
	expect(scene, "hangs", all_by_host);
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
	while (gpu_figure(scene, "shardkeep_quarantined_bytes"))
		;
	expect(scene, "hangs", all_by_device);
}

/* ---- handed down, and made room for ---- */

/* There is no room for another one, and so it is the very one. */
static void take_over(struct rank *rank)
{
	struct gpu_rank g;

	begin(&g, rank);
	restore(&g, &all_by_device);
	gpu_fill(&g, 1001);
	gpu_complete(&g, 1001);
	CHECK(gpu_device_bytes(&g) > 0);
	take(&g, 1002, ALL);
	restore(&g, &all_by_device);
	rank_ready(rank);
}

static void restart(struct scene *scene, const char *memory)
{
	scene_stop_agent(scene, SIGTERM);
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", memory, 1));
	scene_start_agent(scene);
}

static void test_budget(struct scene *scene)
{
	restart(scene, "5M");
	scene_ranks_killed(scene, "first", 1, save, NULL);
	scene_ranks_killed(scene, "first", 1, take_over, NULL);
	expect(scene, "first", all_by_device);
	/* Who needs it gets it. */
	scene_ranks_killed(scene, "second", 1, save, NULL);
	expect(scene, "second", all_by_device);
	expect(scene, "first", all_by_host);
}

/* ---- the agent is another one ---- */

/* The rank lives, and finds its own image on its GPU; its next snapshots go by
 * the same memory, of which there is no more. */
static void lose_agent_and_restore(struct rank *rank)
{
	uint64_t used;
	struct gpu_rank g;
	int64_t step;

	begin(&g, rank);
	step = take_by_device(&g);
	used = gpu_figure(rank->scene, "shardkeep_device_memory_used_bytes");
	gpu_lose_agent(rank->scene);
	while (rank_restore(rank, step, 0, NULL) < 0)
		;
	restore(&g, &all_by_device);
	do {
		gpu_fill(&g, ++step);
		if (gpu_snapshot(&g, step, 0) < 0)
			continue;
		CHECK(!sk_wait(rank->state, step, SK_COMPLETE, 60000), "%s",
		      sk_error());
	} while (!gpu_device_bytes(&g));
	take(&g, ++step, ALL);
	CHECK(gpu_figure(rank->scene, "shardkeep_device_memory_used_bytes") ==
	      used);
	restore(&g, &all_by_device);
}

/* What is known to be bad is so to the next agent. */
static void test_keeps_nothing_bad(struct scene *scene)
{
	scene_ranks_killed(scene, "spoilt-kept", 1, save_and_spoil, NULL);
	expect(scene, "spoilt-kept", (struct want){
		.by_device = ALL - MIB, .hashed = CHUNKS,
		.damaged = 1 });
	gpu_lose_agent(scene);
	expect(scene, "spoilt-kept", all_by_host);
}

/* A process that does not end has been let write nothing since the seal: what
 * the agent before waited for, the next one need not. */
static void test_hangs_and_kept(struct scene *scene)
{
	int status;
	pid_t pid;

	scene_ranks_start(scene, "hangs-kept", 1, hang, NULL, &pid);
	while (!gpu_figure(scene, "shardkeep_quarantined_bytes"))
		CHECK(waitpid(pid, &status, WNOHANG) == 0, "it has ended");
	gpu_lose_agent(scene);
	expect(scene, "hangs-kept", all_by_device);
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
}

/* The next agent knows what stands on the GPU, and so does the one after
 * that; what it brings to memory itself it knows as well. */
static void test_keeper(struct scene *scene)
{
	struct want w = all_by_device;
	pid_t pid;

	scene_stop_agent(scene, SIGTERM);
	scene->keeper = true;
	scene_start_agent(scene);
	scene_ranks_killed(scene, "kept", 1, save, NULL);
	for (int i = 0; i < 3; i++) {
		(i == 1 ? gpu_replace_agent : gpu_lose_agent)(scene);
		expect(scene, "kept", all_by_device);
	}
	CHECK(gpu_figure(scene, "shardkeep_device_memory_used_bytes") >= ALL);
	scene_ranks(scene, "lives", 1, lose_agent_and_restore, NULL);
	pid = run_until(scene, "brought", stop_on_the_way_out);
	gpu_lose_agent(scene);
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
	w.step = LAST_STEP;
	expect(scene, "brought", w);
	gpu_lose_agent(scene);
	expect(scene, "brought", w);
	test_keeps_nothing_bad(scene);
	test_hangs_and_kept(scene);
	scene_stop_agent(scene, SIGTERM);
	scene->keeper = false;
	scene_start_agent(scene);
}

/* ---- other meshes ---- */

#define W_ROWS 600
#define W_COLUMNS 1008
#define W_BYTES ((uint64_t)W_ROWS * W_COLUMNS * 4)

/* How a side has them: @dim is what "w" is cut along. */
static void add_sharded(struct gpu_rank *g, int dim)
{
	struct sk_mesh *mesh = mesh_of(g->rank->world, 0, NULL, NULL);
	struct sk_tensor w = {
		.name = "w", .dtype = SK_F32, .ndim = 2,
		.shape = { W_ROWS, W_COLUMNS }, .device = g->device,
		.mesh = mesh, .placements = { SK_SHARD(dim) } };

	gpu_add(g, &w, rank_bytes(g->rank, &w), 1);
	gpu_add(g, &(struct sk_tensor){
		.name = "norm", .dtype = SK_F32, .ndim = 1,
		.shape = { 1000 }, .device = g->device, .mesh = mesh,
		.placements = { SK_REPLICATE } }, 4000, 1);
	sk_mesh_release(mesh);
}

#define STEPS 4096

/* Of each step, in memory of all ranks: how many have taken it, and how many of
 * those have a device slot. */
struct together {
	atomic_int taken[STEPS], served[STEPS];
};

/* A step is complete when all ranks have it: they take the same ones. */
/* Until so many ranks have one. */
static void take_together(struct gpu_rank *g, struct together *all, int ranks)
{
	int step = 0;

	do {
		CHECK(++step < STEPS);
		gpu_fill(g, step);
		gpu_complete(g, step);
		all->served[step] += gpu_device_bytes(g) > 0;
		all->taken[step]++;
		while (all->taken[step] < g->rank->world)
			(void)sched_yield();
	} while (all->served[step] < ranks);
	gpu_fill(g, ++step);
	gpu_complete(g, step);
}

static void save_sharded(struct rank *rank)
{
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_sharded(&g, 0);
	take_together(&g, (struct together *)(uintptr_t)rank->arg,
		      rank->world);
	rank_ready(rank);
}

/* Of the link nothing but checksums: what ranks verify for each other is in
 * host memory, and hashed there. */
#define SUMS_MOST ((uint64_t)64 * (IN + OUT))

struct turned {
	int dim;
	bool transposed;	/* in the trainer's memory */
};

static void transpose(struct gpu_rank *g)
{
	struct gpu_tensor *w = &g->tensors[0];
	int64_t rows = W_ROWS, columns = W_COLUMNS / g->rank->world;

	w->t.strides[0] = 1;
	w->t.strides[1] = rows;
	CHECK(w->bytes == (uint64_t)(rows * columns) * 4);
	gpu_describe(g, w, true);
}

/* All that the ranks of one GPU had is found there, on whatever mesh. */
static void load_sharded(struct rank *rank)
{
	const struct turned *t = rank->arg;
	uint64_t wanted = W_BYTES / (uint64_t)rank->world + 4000, in;
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_sharded(&g, t->dim);
	if (t->transposed)
		transpose(&g);
	in = gpu_count(&g, "in");
	CHECK(!rank_restore(rank, SK_LATEST, 0, &report), "%s", sk_error());
	in = gpu_count(&g, "in") - in;
	CHECK(gpu_wrong(&g, report.step, rank->rank) == 0);
	CHECK(report.bytes_device_slot == wanted, "%" PRIu64 " of %" PRIu64,
	      report.bytes_device_slot, wanted);
	CHECK(report.bytes_memory == wanted && report.damaged == 0);
	CHECK(!simulated || in <= SUMS_MOST, "%" PRIu64, in);
}

static void test_meshes(struct scene *scene)
{
	static const struct turned turned[] = {
		{ 0, false }, { 1, false }, { 1, true } };
	struct together *together = mmap(NULL, sizeof(*together),
					 PROT_READ | PROT_WRITE,
					 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(together != MAP_FAILED);
	scene_ranks_killed(scene, "meshes", 2, save_sharded, together);
	for (size_t i = 0; i < SK_ARRAY_SIZE(turned); i++)
		for (int world = 1; world <= 3; world++)
			scene_ranks(scene, "meshes", world, load_sharded,
				    &turned[i]);
	CHECK(!munmap(together, sizeof(*together)));
}

/* ---- what others rely on ---- */

#define COMMON_ROWS 512
#define COMMON_BYTES ((uint64_t)COMMON_ROWS * 4096)

/* Which chunk of what the first rank has for all is wrong, in memory alone. */
struct relied {
	struct together *all;
	uint64_t chunk;
};

static void add_common(struct gpu_rank *g, bool there)
{
	struct sk_mesh *mesh = mesh_of(g->rank->world, 0, NULL, NULL);
	struct sk_tensor common = {
		.name = "common", .dtype = SK_F32, .ndim = 2,
		.shape = { COMMON_ROWS, 1024 }, .device = g->device,
		.mesh = mesh, .placements = { SK_REPLICATE } };

	(there ? gpu_add : gpu_add_host)(g, &common, COMMON_BYTES, 1);
	sk_mesh_release(mesh);
}

/* In each slot of the rank that has it as it is now. */
static void spoil_memory(struct gpu_rank *g, uint64_t chunk)
{
	struct sk_state *state = g->rank->state;
	const struct sk_entry *e = &state->layouts[0]->entries[0];
	int n = 0;

	CHECK(e->bytes == COMMON_BYTES);
	for (uint32_t i = 0; i < state->n_slots; i++) {
		char *at = (char *)state->slots[i].map[0] + e->offset;

		if (memcmp(at, g->tensors[0].here, e->bytes) != 0)
			continue;
		CHECK(!sk_slot_unprotect(state, i, NULL));
		at[chunk * MIB + 5] ^= 1;
		n++;
	}
	CHECK(n == 1, "%d slots", n);
}

static void save_relied(struct rank *rank)
{
	const struct relied *relied = rank->arg;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_common(&g, true);
	take_together(&g, relied->all, 1);
	if (rank->rank == 0)
		spoil_memory(&g, relied->chunk);
	rank_ready(rank);
}

/* One has all of it from its GPU, and the other one reads memory, where the
 * first one has verified some of it for both. */
static void load_relied(struct rank *rank)
{
	struct sk_report report;
	struct gpu_rank g;

	gpu_begin(&g, rank, 0);
	add_common(&g, rank->rank == 0);
	CHECK(rank_restore(rank, SK_LATEST, 0, &report) < 0 ||
	      gpu_wrong(&g, report.step, rank->rank) == 0);
}

static void test_relied(struct scene *scene)
{
	struct relied relied = { .all = mmap(NULL, sizeof(*relied.all),
					     PROT_READ | PROT_WRITE,
					     MAP_SHARED | MAP_ANONYMOUS, -1,
					     0) };

	CHECK(relied.all != MAP_FAILED);
	scene->job_flags = SK_JOB_NO_REPLICAS;
	for (; relied.chunk < 2; relied.chunk++) {
		const char *job = relied.chunk ? "relied-1" : "relied-0";

		memset(relied.all, 0, sizeof(*relied.all));
		scene_ranks_killed(scene, job, 2, save_relied, &relied);
		scene_ranks(scene, job, 2, load_relied, NULL);
	}
	scene->job_flags = 0;
	CHECK(!munmap(relied.all, sizeof(*relied.all)));
}

/* ---- many ---- */

#define MANY 5000
#define EACH ((size_t)96)

static uint64_t snapshot_calls(struct gpu_rank *g, int64_t step)
{
	uint64_t before = gpu_count(g, "calls");

	gpu_complete(g, step);
	return gpu_count(g, "calls") - before;
}

/* What moves bytes, whatever else is asked. */
static uint64_t copies(const struct gpu_rank *g)
{
	static const char *const names[] = {
		"cuMemcpyDtoDAsync", "cuMemcpyBatchAsync", "cuLaunchKernel",
		"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpy2DAsync",
		"cuMemcpy3DAsync" };
	uint64_t n = 0;

	for (size_t i = 0; simulated && i < SK_ARRAY_SIZE(names); i++)
		n += g->cuda.calls(names[i]);
	return n;
}

static bool is_gap(size_t i)
{
	return i % EACH >= 17 + i / EACH % 64;
}

/* What is described elsewhere is taken from there. */
static void many_elsewhere(struct gpu_rank *g, int64_t step, sk_cu_ptr before)
{
	size_t bytes = MANY * EACH;
	sk_cu_ptr slab = trainer_cuda_alloc(&g->cuda, bytes);
	char *here = rank_memory(bytes, 6), *back = rank_memory(bytes, 7);

	trainer_cuda_put(&g->cuda, slab, here, bytes);
	(void)gpu_describe_many(g->rank, slab, MANY, EACH);
	CHECK(gpu_device_bytes(g));
	gpu_complete(g, ++step);
	trainer_cuda_put(&g->cuda, slab, back, bytes);
	trainer_cuda_put(&g->cuda, before, back, bytes);
	CHECK(!rank_restore(g->rank, step, 0, NULL), "%s", sk_error());
	trainer_cuda_get(&g->cuda, here, slab, bytes);
	for (size_t i = 0; i < bytes; i++)
		CHECK(here[i] == (is_gap(i) ? 7 : 6), "byte %zu", i);
}

/* Into the device slot and out of it again by few calls, whatever the driver
 * has for that. */
static void many(struct rank *rank)
{
	size_t bytes = MANY * EACH;
	char *here = rank_memory(bytes, 0), *back = rank_memory(bytes, 5);
	uint64_t before, all, few, in;
	struct sk_report report;
	struct gpu_rank g;
	sk_cu_ptr slab;
	int64_t step = 0;

	if (rank->arg)
		CHECK(!setenv("VCUDA_VERSION", rank->arg, 1));
	gpu_begin(&g, rank, 0);
	slab = trainer_cuda_alloc(&g.cuda, bytes);
	all = gpu_describe_many(rank, slab, MANY, EACH);
	do {
		few = snapshot_calls(&g, ++step);
	} while (!gpu_device_bytes(&g));
	for (size_t i = 0; i < bytes; i++)
		here[i] = (char)(i * 31 >> 5);
	trainer_cuda_put(&g.cuda, slab, here, bytes);
	few = snapshot_calls(&g, ++step);
	CHECK(!simulated || few < (rank->arg ? 100 : 70), "%" PRIu64 " calls",
	      few);
	in = gpu_count(&g, "in");
	few = snapshot_calls(&g, ++step);
	CHECK(!simulated || few < (rank->arg ? 70 : 50), "%" PRIu64 " calls",
	      few);
	/* The device has not been told which, but once. */
	CHECK(gpu_count(&g, "in") == in);
	trainer_cuda_put(&g.cuda, slab, back, bytes);
	before = copies(&g);
	CHECK(!rank_restore(rank, step, 0, &report), "%s", sk_error());
	few = copies(&g) - before;
	CHECK(!simulated || few < 25, "%" PRIu64 " calls", few);
	CHECK(report.bytes_device_slot == all, "%" PRIu64,
	      report.bytes_device_slot);
	trainer_cuda_get(&g.cuda, back, slab, bytes);
	for (size_t i = 0; i < bytes; i++)
		CHECK(back[i] == (is_gap(i) ? 5 : here[i]), "byte %zu", i);
	many_elsewhere(&g, step, slab);
}

/* ---- elements that lie apart ---- */

#define SIDE 1000

/* How a rank has none of its device slot, or no kernel. */
struct lack {
	const char *variable, *value;
	bool slow;
};

static uint64_t snapshot_copies(struct gpu_rank *g, int64_t step)
{
	uint64_t before;

	gpu_fill(g, step);
	before = copies(g);
	gpu_complete(g, step);
	return copies(g) - before;
}

/* A transposed matrix goes by few calls, into its device slot, to memory and
 * back, and not by one for each of its rows. */
static void turned(struct rank *rank)
{
	const struct lack *lack = rank->arg;
	struct sk_report report;
	struct gpu_rank g;
	uint64_t n;
	int64_t step = 1;

	if (lack)
		CHECK(!setenv(lack->variable, lack->value, 1));
	gpu_begin(&g, rank, 0);
	gpu_add(&g, &(struct sk_tensor){
		.name = "turned", .dtype = SK_F32, .ndim = 2,
		.shape = { SIDE, SIDE }, .device = g.device,
		.strides = { 1, SIDE } }, 4 * SIDE * SIDE, 1);
	if (lack)
		(void)snapshot_copies(&g, step);
	else
		step = gpu_until_served(&g);
	n = snapshot_copies(&g, ++step);
	CHECK(!simulated || (n < 20) == !(lack && lack->slow),
	      "%" PRIu64 " calls to save it", n);
	gpu_fill(&g, step + 1);
	n = copies(&g);
	CHECK(!rank_restore(rank, step, 0, &report), "%s", sk_error());
	n = copies(&g) - n;
	CHECK(!simulated || (n < 40) == !(lack && lack->slow),
	      "%" PRIu64 " calls to bring it back", n);
	CHECK((report.bytes_device_slot > 0) == !lack);
	CHECK(gpu_wrong(&g, step, rank->rank) == 0);
}

static void test_turned(struct scene *scene)
{
	static const struct lack slot = { "VCUDA_MISSING", "cuMemMap", false },
				 kernel = { "VCUDA_MISSING", "cuLaunchKernel",
					    true };

	scene_ranks(scene, "turned", 1, turned, NULL);
	if (!simulated)
		return;
	scene_ranks(scene, "turned-link", 1, turned, &slot);
	CHECK(!setenv("VCUDA_MODE", "no-share", 1));
	scene_ranks(scene, "turned-slow", 1, turned, &kernel);
	CHECK(!unsetenv("VCUDA_MODE"));
}

/* Its other half: with "kept", what has to do with agents that end, and with
 * how much there is. */
static void test_kept(struct scene *scene)
{
	test_turned(scene);
	if (simulated)
		test_keeper(scene);
	test_budget(scene);
}

static void test_all_others(struct scene *scene)
{
	test_killed(scene);
	scene_ranks(scene, "alive", 1, restore_itself, NULL);
	scene_ranks(scene, "anew", 1, restore_anew, NULL);
	test_spoilt(scene);
	scene_ranks(scene, "read", 1, read_and_go_on, NULL);
	test_meshes(scene);
	test_relied(scene);
	scene_ranks(scene, "many", 1, many, NULL);
	if (!simulated)
		return;
	scene_ranks(scene, "old", 1, many, "12000");
	test_without(scene);
	test_saved_without(scene);
	test_doctor(scene, "", "the driver is of CUDA 13.0");
	test_doctor(scene, "no-compiler", "CUDA 13.0, and takes none of our "
		    "code");
	scene_ranks(scene, "killed", 1, load_elsewhere, NULL);
	test_drained(scene);
	test_hangs(scene);
}

int main(int argc, char **argv)
{
	struct trainer_cuda t;
	struct scene scene;

	if (trainer_cuda_open(&t, NULL) < 0 && !getenv("SHARDKEEP_LIBCUDA"))
		return 77;
	simulated = t.calls;
	CHECK(!setenv("SHARDKEEP_DEVICE_MEMORY", "64M", 1));
	scene_open(&scene, argc, argv);
	if (argc > 3 && !strcmp(argv[3], "kept"))
		test_kept(&scene);
	else
		test_all_others(&scene);
	scene_close(&scene);
	return 0;
}
