/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/gpu-rank.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/agent.h"

void gpu_use_device(struct gpu_rank *g, int device)
{
	sk_cu_context context;

	if (device < 0)
		return;
	CHECK(!g->cuda.driver.cuDevicePrimaryCtxRetain(&context, device));
	CHECK(!g->cuda.cuCtxSetCurrent(context));
}

int gpu_devices(void)
{
	static int known;
	pid_t pid;
	int status;

	if (known)
		return known;
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		_exit(trainer_cuda_devices());
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
	known = WEXITSTATUS(status);
	return known;
}

void gpu_begin(struct gpu_rank *g, struct rank *rank, int number)
{
	*g = (struct gpu_rank){ .rank = rank,
				.devices = trainer_cuda_devices() };
	g->device = number % g->devices;
	trainer_cuda_begin(&g->cuda, g->device);
	CHECK(!g->cuda.cuStreamCreate(&g->stream, SK_CU_STREAM_NON_BLOCKING));
}

void gpu_describe(struct gpu_rank *g, struct gpu_tensor *x, bool there)
{
	there = there && x->device >= 0;
	x->t.memory = there ? SK_CUDA : SK_HOST;
	x->t.device = x->device < 0 ? 0 : x->device;
	x->t.data = there ? (void *)(uintptr_t)x->there : x->here;
	CHECK(!sk_state_tensor(g->rank->state, &x->t), "%s", sk_error());
}

void gpu_describe_all(struct gpu_rank *g, bool there)
{
	for (int i = 0; i < g->n; i++)
		gpu_describe(g, &g->tensors[i], there);
}

static struct gpu_tensor *add(struct gpu_rank *g, const struct sk_tensor *t,
			      size_t bytes, int fill, int device)
{
	struct gpu_tensor *x = &g->tensors[g->n++];

	CHECK(g->n <= GPU_TENSORS);
	*x = (struct gpu_tensor){ .t = *t, .bytes = bytes, .device = device };
	if (bytes)
		x->here = rank_memory(bytes, fill);
	if (bytes && device >= 0) {
		gpu_use_device(g, device);
		x->there = trainer_cuda_alloc(&g->cuda, bytes);
		trainer_cuda_put(&g->cuda, x->there, x->here, bytes);
		gpu_use_device(g, g->device);
	}
	gpu_describe(g, x, true);
	return x;
}

struct gpu_tensor *gpu_add(struct gpu_rank *g, const struct sk_tensor *t,
			   size_t bytes, int fill)
{
	return add(g, t, bytes, fill, t->device);
}

struct gpu_tensor *gpu_add_host(struct gpu_rank *g, const struct sk_tensor *t,
				size_t bytes, int fill)
{
	return add(g, t, bytes, fill, -1);
}

/* Between all devices' tensors and their doubles. */
static void exchange(struct gpu_rank *g, bool put)
{
	for (int i = 0; i < g->n; i++) {
		const struct gpu_tensor *x = &g->tensors[i];

		if (!x->bytes || x->device < 0)
			continue;
		gpu_use_device(g, x->device);
		if (put)
			trainer_cuda_put(&g->cuda, x->there, x->here,
					 x->bytes);
		else
			trainer_cuda_get(&g->cuda, x->here, x->there,
					 x->bytes);
	}
	gpu_use_device(g, g->device);
}

struct name {
	char text[24];
};

uint64_t gpu_describe_many(struct rank *rank, sk_cu_ptr slab, size_t n,
			   size_t each)
{
	struct sk_tensor *tensors = calloc(n, sizeof(*tensors));
	struct name *names = calloc(n, sizeof(*names));
	uint64_t bytes = 0;

	CHECK(tensors && names);
	for (size_t i = 0; i < n; i++) {
		(void)snprintf(names[i].text, sizeof(names[i].text), "t%zu",
			       i);
		tensors[i] = (struct sk_tensor){
			.name = names[i].text, .dtype = SK_U8, .ndim = 1,
			.shape = { 17 + (int64_t)(i % 64) },
			.memory = SK_CUDA,
			.data = (void *)(uintptr_t)(slab + i * each) };
		bytes += 17 + i % 64;
	}
	CHECK(!sk_state_tensors(rank->state, tensors, n), "%s", sk_error());
	free(tensors);
	free(names);
	return bytes;
}

void gpu_fill(struct gpu_rank *g, int64_t step)
{
	gpu_describe_all(g, false);
	rank_write(g->rank, step);
	exchange(g, true);
	gpu_describe_all(g, true);
}

uint64_t gpu_wrong(struct gpu_rank *g, int64_t step, int owner)
{
	uint64_t n;

	exchange(g, false);
	gpu_describe_all(g, false);
	n = rank_wrong(g->rank, step, owner);
	gpu_describe_all(g, true);
	return n;
}

int gpu_snapshot(struct gpu_rank *g, int64_t step, uint32_t flags)
{
	/* The slot of one that failed comes back a moment later. */
	struct sk_snapshot_options o = {
		.flags = flags, .stream = (uintptr_t)g->stream,
		.wait_ms = 60000 };

	return sk_snapshot(g->rank->state, step, &o);
}

void gpu_complete(struct gpu_rank *g, int64_t step)
{
	CHECK(!gpu_snapshot(g, step, 0), "%s", sk_error());
	CHECK(!sk_fence(g->rank->state), "%s", sk_error());
	CHECK(!sk_wait(g->rank->state, step, SK_COMPLETE, 60000), "%s",
	      sk_error());
}

uint64_t gpu_count(const struct gpu_rank *g, const char *what)
{
	return g->cuda.count ? g->cuda.count(what) : 0;
}

uint64_t gpu_device_bytes(struct gpu_rank *g)
{
	struct sk_status status;

	CHECK(!sk_status(g->rank->state, &status));
	return status.device_bytes;
}

int64_t gpu_until_served(struct gpu_rank *g)
{
	struct sk_status status;
	int64_t step;

	/* What is sealed is not taken again. */
	CHECK(!sk_status(g->rank->state, &status));
	step = status.step > 0 ? status.step : 0;
	do {
		gpu_fill(g, ++step);
		gpu_complete(g, step);
	} while (!gpu_device_bytes(g));
	return step;
}

void gpu_begin_big(struct gpu_rank *g, struct rank *rank)
{
	gpu_begin(g, rank, 0);
	gpu_add(g, &(struct sk_tensor){
		.name = "big", .dtype = SK_F32, .ndim = 2,
		.shape = { 700, 1000 }, .device = g->device }, GPU_BIG, 1);
	gpu_add_host(g, &(struct sk_tensor){
		.name = "offloaded", .dtype = SK_F64, .ndim = 1,
		.shape = { 3000 } }, 24000, 1);
}

/* ---- the agent ---- */

uint64_t gpu_figure(const struct scene *scene, const char *name)
{
	FILE *f = scene_ask(scene, "stats --prometheus");
	size_t length = strlen(name);
	uint64_t sum = 0, value;
	char line[512];

	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, name, length) &&
		    (line[length] == ' ' || line[length] == '{') &&
		    sscanf(strrchr(line, ' '), " %" SCNu64, &value) == 1)
			sum += value;
	CHECK(!pclose(f));
	return sum;
}

int gpu_workers(const struct scene *scene, int sig)
{
	char path[64];
	int pid, n = 0;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children",
		       (int)scene->agent, (int)scene->agent);
	f = fopen(path, "re");
	CHECK(f);
	while (fscanf(f, "%d", &pid) == 1)
		n += !kill(pid, sig);
	CHECK(!fclose(f));
	return n;
}

void gpu_lose_agent(struct scene *scene)
{
	pid_t agent = agent_of_keeper(scene->agent);

	CHECK(agent > 0 && !kill(agent, SIGKILL), "agent %d", (int)agent);
}

void gpu_replace_agent(struct scene *scene)
{
	const char *const args[] = {
		scene->program, "--socket", scene->socket, "--takeover",
		"--log-level", "error", "--idle-exit", "60",
		scene->keeper ? "--keeper" : NULL, NULL };
	pid_t next = agent_start(args);

	CHECK(next > 0, "it was not taken over");
	CHECK(waitpid(scene->agent, NULL, 0) == scene->agent);
	scene->agent = next;
}
