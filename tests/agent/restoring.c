/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retention, and ranks that come to restore, or open an image, while it is at
 * work: at the same agent, which is held right before it renames a step, and at
 * another one on the same store.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/forked.h"
#include "agent/rig.h"
#include "base/util.h"
#include "fault-os.h"

/* Where the agent stops, and what it waits for. */
struct pause {
	int arrived[2], go[2];
};

static void hold(void *ctx)
{
	const struct pause *pause = ctx;
	char c = 0;

	CHECK(write(pause->arrived[1], "", 1) == 1, "write");
	CHECK(read(pause->go[0], &c, 1) == 1, "read");
}

/* ---- what there is ---- */

static bool has(const struct rig *rig, const char *job, int64_t step)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s/step-%012lld", rig->store, job,
		 (long long)step);
	return access(path, F_OK) == 0;
}

static void await_gone(const struct rig *rig, const struct rank *r,
		       const char *job, int64_t step)
{
	AWAIT((stat_value(r->sock, "shardkeep_clients"),
	       !has(rig, job, step)), "step %d", (int)step);
}

static void open_rank(struct rank *r, const struct rig *rig, const char *job)
{
	CHECK_STATUS(rank_open(r, rig, &(struct rank_options){
		.job = job, .world = 1, .rows = 1 }), 0, &r->msg);
}

/* As a restore registers. */
static void come_again(struct rank *r)
{
	CHECK_STATUS(rank_again(r, &(struct rank_options){
		.job = r->job, .world = 1, .rows = 1 }), 0, &r->msg);
}

/* Durable steps, one after the other. */
static void go(struct rank *r, int64_t first, int64_t last)
{
	for (int64_t step = first; step <= last; step++) {
		rank_snapshot(r, step);
		CHECK_STATUS(rank_wait(r, step, 3, WAIT_MS), 0, &r->msg);
	}
}

/* What is to stay of it, as an operator says it. */
static void retain(struct rank *r, uint32_t keep_last)
{
	struct sk_msg msg = { .type = SK_MSG_RETAIN, .body.retain = {
		.retention.keep_last = keep_last, .flags = SK_RETAIN_SET } };

	strcpy(msg.body.retain.id.job, r->job);
	CHECK_STATUS(rig_call(r->sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
}

/* Whatever was under way of any job is over. */
static void end_passes(const struct rig *rig)
{
	struct rank r;

	open_rank(&r, rig, "other");
	retain(&r, 2);
	go(&r, 1, 4);
	await_gone(rig, &r, "other", 1);
	await_gone(rig, &r, "other", 2);
	rank_close(&r);
}

/* ---- at one agent ---- */

static uint64_t renames(const struct sk_fault_os *fault)
{
	return sk_fault_os_calls(fault, SK_FAULT_RENAMEAT);
}

/* It has judged that step 1 need not stay, and is about to rename it. */
static void test_judged(struct rig *rig, struct sk_fault_os *fault)
{
	struct pause pause;
	uint64_t before;
	struct rank r;
	char c = 0;

	CHECK(!pipe(pause.arrived) && !pipe(pause.go), "pipe");
	forked_start(rig, fault, "--keep-last=2");
	open_rank(&r, rig, "judged");
	go(&r, 1, 1);
	before = renames(fault);
	go(&r, 2, 2);
	before = renames(fault) - before;
	sk_fault_os_forget(fault);
	sk_fault_os_meddle(fault, SK_FAULT_RENAMEAT, before + 1, hold, &pause);
	go(&r, 3, 3);
	CHECK(read(pause.arrived[0], &c, 1) == 1, "nobody deletes");
	CHECK(has(rig, "judged", 1), "it has gone already");
	come_again(&r);
	CHECK(write(pause.go[1], &c, 1) == 1, "go");
	end_passes(rig);
	CHECK(has(rig, "judged", 1), "it was about to be restored");
	rank_close(&r);
	open_rank(&r, rig, "judged");
	await_gone(rig, &r, "judged", 1);
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
	for (int i = 0; i < 2; i++)
		CHECK(!close(pause.arrived[i]) && !close(pause.go[i]),
		      "close");
}

/* OPEN, or CLOSE: in between it is in use. */
static void use(struct rank *r, enum sk_msg_type type, uint64_t image)
{
	struct sk_msg msg = { .type = (uint16_t)type, .body.open = {
		.image = image, .place = SK_PLACE_DISK } };

	CHECK_STATUS(rig_call(r->sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
}

static uint64_t stored_image(struct rank *r, int64_t step)
{
	size_t n;
	struct sk_wire_image *images = list_images(r->sock, r->job, step, &n);
	uint64_t id = 0;

	for (size_t i = 0; i < n; i++)
		if (images[i].place == SK_PLACE_DISK)
			id = images[i].image;
	free(images);
	CHECK(id, "step %d is not on disk", (int)step);
	return id;
}

/* It has judged that neither step 1 nor step 2 need stay, is about to rename
 * the one, and somebody opens the other. */
static void test_opened(struct rig *rig, struct sk_fault_os *fault)
{
	struct pause pause;
	uint64_t before, image;
	struct rank r;
	char c = 0;

	CHECK(!pipe(pause.arrived) && !pipe(pause.go), "pipe");
	forked_start(rig, fault, "--keep-last=50");
	open_rank(&r, rig, "opened");
	go(&r, 1, 4);
	image = stored_image(&r, 2);
	before = renames(fault);
	retain(&r, 40);
	before = renames(fault) - before;
	sk_fault_os_forget(fault);
	sk_fault_os_meddle(fault, SK_FAULT_RENAMEAT, before + 1, hold, &pause);
	retain(&r, 2);
	CHECK(read(pause.arrived[0], &c, 1) == 1, "nobody deletes");
	CHECK(has(rig, "opened", 1) && has(rig, "opened", 2), "one has gone");
	use(&r, SK_MSG_OPEN, image);
	CHECK(write(pause.go[1], &c, 1) == 1, "go");
	await_gone(rig, &r, "opened", 1);
	end_passes(rig);
	CHECK(has(rig, "opened", 2), "it is in use");
	use(&r, SK_MSG_CLOSE, image);
	go(&r, 5, 5);
	await_gone(rig, &r, "opened", 2);
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
	for (int i = 0; i < 2; i++)
		CHECK(!close(pause.arrived[i]) && !close(pause.go[i]),
		      "close");
}

/* ---- at two agents, one store ---- */

static void start_two(struct rig *a, struct rig *b)
{
	rig_init(b, a->program);
	rig_start(a, "--store", a->store, "--keep-last", "2", NULL);
	rig_start(b, "--store", a->store, NULL);
}

/* Who restores there is heard of here, until it has slots or is gone. */
static void test_elsewhere(struct rig *rig)
{
	struct rig b;
	struct rank r, other;

	start_two(rig, &b);
	open_rank(&r, rig, "elsewhere");
	go(&r, 1, 2);
	for (int way = 0; way < 2; way++) {
		int64_t step = 1 + 4 * way;

		open_rank(&other, &b, "elsewhere");
		come_again(&other);
		go(&r, step + 2, step + 5);
		end_passes(rig);
		for (int64_t s = step; s < step + 6; s++)
			CHECK(has(rig, "elsewhere", s), "step %d", (int)s);
		if (way == 0)
			rank_close(&other);
		else
			CHECK(kill(b.agent, SIGKILL) == 0, "kill");
		await_gone(rig, &r, "elsewhere", step);
		await_gone(rig, &r, "elsewhere", step + 3);
	}
	CHECK(rig_wait(&b) == 128 + SIGKILL, "killed");
	rank_close(&other);
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
	rig_remove(&b);
}

int main(int argc, char **argv)
{
	struct sk_fault_os *fault;
	struct rig rig;

	fault = mmap(NULL, sizeof(*fault), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(fault != MAP_FAILED, "mmap");
	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	test_judged(&rig, fault);
	rig_remove(&rig);
	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	test_opened(&rig, fault);
	rig_remove(&rig);
	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	test_elsewhere(&rig);
	rig_remove(&rig);
	CHECK(!munmap(fault, sizeof(*fault)), "munmap");
	return 0;
}
