/* SPDX-License-Identifier: Apache-2.0 */
/* What a living agent is asked for of a GPU, on the simulated driver: memory
 * of it, the copies that stand there, and what the dead have left there. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/each.h"
#include "base/util.h"
#include "cuda/share.h"
#include "memory/extent.h"

#define JOB "device"
#define DEAD "dead"
#define SECOND UINT64_C(1000000000)

/* By this process's own driver: the agent has none. */
static const struct sk_cuda_uuid *device_name(void)
{
	static struct sk_cuda_uuid known;
	static bool asked;
	struct sk_cuda_device *device;
	struct sk_cuda *cuda = NULL;

	if (!asked) {
		CHECK(sk_cuda_new(sk_os_linux(), &cuda, NULL) == 0 &&
		      sk_cuda_device(cuda, 0, &device, NULL) == 0 &&
		      sk_cuda_uuid(device, &known, NULL) == 0, "no device");
		(void)sk_cuda_free(cuda);
		asked = true;
	}
	return &known;
}

/* All of its image but the header; asked for until it is made. */
static int ask_slot_of(struct scene *s, const struct rank *r,
		       const struct sk_cuda_uuid *device)
{
	const struct sk_layout *l = r->layouts[0];
	const struct sk_extent all = { .from = l->header_bytes,
				       .to = l->image_bytes };
	int fd = memfd_create("extents", MFD_CLOEXEC), fds[SK_MSG_FDS], n = 0;
	uint64_t until = await_until();
	int status = -EAGAIN;

	CHECK(fd >= 0 && write(fd, &all, sizeof(all)) == sizeof(all),
	      "memfd");
	while (status == -EAGAIN && !await_late(until)) {
		s->msg = (struct sk_msg){ .type = SK_MSG_DEVICE_SLOT,
					  .body.device_slot = {
			.state = r->state, .n_extents = 1 } };
		memcpy(s->msg.body.device_slot.uuid, device,
		       sizeof(s->msg.body.device_slot.uuid));
		status = ask_on(s, r->sock, &fd, 1, fds, &n);
		if (status == -EAGAIN && strstr(rig_why(&s->msg), "failed"))
			sk_fault_os_advance(s->w.fault, 10 * SECOND);
		else if (status == -EAGAIN)
			(void)usleep(1000);
	}
	CHECK(status < 0 || (n == 1 && s->msg.body.device_slot_reply.bytes),
	      "%d descriptors", n);
	while (n)
		close(fds[--n]);
	close(fd);
	return status;
}

static int ask_slot(struct scene *s, const struct rank *r)
{
	return ask_slot_of(s, r, device_name());
}

static int come(struct scene *s, struct rank *r, const char *job)
{
	int status = rank_open(r, &s->w.rig, &(struct rank_options){
		.job = job, .world = 1, .rows = 1,
		.flush_every = 1u << 20 });

	s->msg = r->msg;
	return status == 0 ? ask_slot(s, r) : status;
}

/* It leaves in order where all went well; @status is kept. */
static int leave(struct scene *s, struct rank *r, int status)
{
	if (status == 0) {
		status = rank_unregister(r);
		s->msg = r->msg;
	}
	s->lost = false;
	if (r->sock >= 0)
		rank_close(r);
	return status;
}

static int make_one(struct scene *s)
{
	struct rank r;

	return leave(s, &r, come(s, &r, JOB));
}

/* The agent's children are its workers; what cannot be read, lives. */
static void kill_workers(const struct scene *s)
{
	char path[64];
	FILE *f;
	int pid;

	(void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children",
		       (int)s->w.rig.agent, (int)s->w.rig.agent);
	f = fopen(path, "r");
	while (f && fscanf(f, "%d", &pid) == 1)
		(void)kill(pid, SIGKILL);
	if (f)
		fclose(f);
}

/* Another one is begun, and the order given again. */
static int make_anew(struct scene *s)
{
	kill_workers(s);
	return make_one(s);
}

/* What its worker says of an order that it cannot do is told to the rank. */
static int make_nowhere(struct scene *s)
{
	struct sk_cuda_uuid none;
	struct rank r;
	int status = rank_open(&r, &s->w.rig, &(struct rank_options){
		.job = "nowhere", .world = 1, .rows = 1 });

	s->msg = r.msg;
	if (status < 0)
		return leave(s, &r, status);
	memset(&none, 0xee, sizeof(none));
	status = ask_slot_of(s, &r, &none);
	CHECK(status < 0, "a device that is not there has memory");
	if (status == -ENODEV && strstr(rig_why(&s->msg), "no CUDA device"))
		status = 0;
	return leave(s, &r, status);
}

/* ---- a copy ---- */

static int seal_on_device(struct scene *s, struct rank *r, int slot,
			  int64_t step)
{
	s->msg = (struct sk_msg){ .type = SK_MSG_DEVICE_SEAL, .body.seal = {
		.state = r->state, .step = step, .slot = (uint32_t)slot } };
	return ask(s, r->sock);
}

static int take_one(struct scene *s, struct rank *r, int64_t step)
{
	int slot = rank_slot(r, step, 0), status = slot;

	s->msg = r->msg;
	if (slot < 0)
		return slot;
	rank_fill(r, slot, step);
	status = seal_on_device(s, r, slot, step);
	if (status < 0)
		return status;
	status = rank_seal(r, slot, step);
	s->msg = r->msg;
	return status;
}

/* Nobody writes there while it is read. */
static int read_copy(struct scene *s, struct rank *r, int64_t step)
{
	struct sk_wire_image image = { 0 };
	int fds[SK_MSG_FDS], n = 0, status;
	uint64_t images;

	s->msg = (struct sk_msg){ .type = SK_MSG_LIST, .body.list = {
		.id = { .job = JOB, .step = step, .rank = -1 },
		.what = SK_LIST_IMAGES, .flags = SK_LIST_KNOWN } };
	status = ask_records(s, r->sock, &image, sizeof(image), &images);
	if (status < 0)
		return status;
	CHECK(images == 1 && image.image, "%d images", (int)images);
	s->msg = (struct sk_msg){ .type = SK_MSG_DEVICE_OPEN,
				  .body.device_open.image = image.image };
	memcpy(s->msg.body.device_open.uuid, device_name(),
	       sizeof(s->msg.body.device_open.uuid));
	status = ask_on(s, r->sock, NULL, 0, fds, &n);
	if (status < 0)
		return status;
	CHECK(n == 2 && s->msg.body.device_open_reply.n_extents == 1,
	      "%d descriptors", n);
	close(fds[0]);
	close(fds[1]);
	s->msg = (struct sk_msg){ .type = SK_MSG_CLOSE, .body.open = {
		.image = image.image, .place = SK_PLACE_DEVICE } };
	return ask(s, r->sock);
}

static int evict(struct scene *s, int sock, const char *job, int64_t step,
		 uint32_t flags)
{
	s->msg = (struct sk_msg){ .type = SK_MSG_EVICT, .body.manage = {
		.id = { .step = step, .rank = -1 },
		.flags = flags | SK_EVICT_FORCE } };
	strcpy(s->msg.body.manage.id.job, job);
	return ask(s, sock);
}

static int copy(struct scene *s)
{
	int64_t step = ++s->jobs;
	struct rank r;
	int status = come(s, &r, JOB);

	if (status == 0)
		status = take_one(s, &r, step);
	if (status == 0)
		status = read_copy(s, &r, step);
	if (status == 0)
		status = evict(s, r.sock, JOB, step, SK_EVICT_MEMORY);
	return leave(s, &r, status);
}

/* ---- the dead ---- */

/* A process that ends when its step stands on the GPU alone. Its status, 0 or
 * not. */
static void die_early(struct scene *s, int64_t step)
{
	struct rank r;
	int status = come(s, &r, DEAD), slot;
	uint64_t until = await_until();

	/* The one before may not be known to be dead yet. */
	while (status < 0 && strstr(rig_why(&s->msg), "lives already") &&
	       !await_late(until)) {
		rank_close(&r);
		(void)usleep(1000);
		status = come(s, &r, DEAD);
	}
	if (status == 0) {
		slot = rank_slot(&r, step, 0);
		s->msg = r.msg;
		status = slot < 0 ? slot : 0;
		if (slot >= 0)
			rank_fill(&r, slot, step);
		if (slot >= 0)
			status = seal_on_device(s, &r, slot, step);
	}
	if (status < 0)
		fprintf(stderr, "%s\n", rig_why(&s->msg));
	_exit(status < 0);
}

/* What it left is brought to memory, or lost where that fails. */
static int rescue(struct scene *s)
{
	int64_t step = ++s->jobs;
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0, "fork");
	if (!pid)
		die_early(s, step);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "%#x",
	      status);
	s->lost = false;
	if (WEXITSTATUS(status)) {
		CHECK(hits_of(s), "it could not");
		return 0;
	}
	/* The agent waits for its end a few seconds of its clock. Then the
	 * disk has it as soon as it can. */
	status = await_step(s, DEAD, step, 2, 1000);
	if (status == 0)
		status = await_step(s, DEAD, step, 3, 1);
	if (status == 0)
		status = evict(s, s->sock, DEAD, step,
			       SK_EVICT_MEMORY | SK_EVICT_DISK);
	return status < 0 && hits_of(s) ? 0 : status;
}

static const struct asked all[] = {
	{ "a device slot", make_one, ANY, .keeps = true },
	{ "a device slot, by another worker", make_anew, ANY, .keeps = true },
	{ "a device slot of no device", make_nowhere, ANY, .keeps = true,
	  .most = 3 },
	{ "a copy on a device", copy, ANY, .keeps = true },
	{ "what the dead left", rescue, ANY, .keeps = true, .most = 25 },
};

const struct asked_set asked_for = { all, SK_ARRAY_SIZE(all) };
const struct asked_set asked_to = { NULL, 0 };
