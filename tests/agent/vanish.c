/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store, or a step in it, goes between any two calls of a flush: what is
 * called durable is there, all of it.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/whole.h"
#include "base/util.h"

#define SECOND UINT64_C(1000000000)
#define WORLD_MOST 3
#define LOOKS 600
#define STEP "step-000000000001"

static void take_store(void *ctx)
{
	const char *store = ctx;
	char aside[128];

	snprintf(aside, sizeof(aside), "%s.aside", store);
	(void)rename(store, aside);
	(void)mkdir(store, 0700);
}

/* As another agent does that deletes it. */
static void take_step(void *ctx)
{
	const char *store = ctx;
	char step[160], aside[128];

	snprintf(step, sizeof(step), "%s/gone/" STEP, store);
	snprintf(aside, sizeof(aside), "%s.aside", store);
	(void)rename(step, aside);
}

/* The flush may have failed before it is waited for, and is tried anew when
 * time has passed: it passes while nobody answers. */
static int wait_once(struct whole *w, struct rank *r)
{
	struct pollfd p = { .fd = r->sock, .events = POLLIN };

	rank_send_wait(r, 1, 3, WAIT_MS);
	for (int i = 0; i < LOOKS && poll(&p, 1, 100) == 0; i++)
		sk_fault_os_advance(w->fault, SECOND);
	return rig_reply(r->sock, &r->msg, NULL, NULL);
}

/* Until it is durable; failures in between are tried anew by themselves. */
static void wait_durable(struct whole *w, struct rank *r, uint64_t n)
{
	int status = -EIO;

	for (int i = 0; i < 9 && (status == -EIO || status == -ETIMEDOUT);
	     i++) {
		status = wait_once(w, r);
		sk_fault_os_advance(w->fault, 2 * SECOND);
	}
	CHECK(status == 0, "call %d: %d %s: %s", (int)n, status,
	      rig_why(&r->msg), whole_log(w));
}

static void check_files(const struct whole *w, int world, uint64_t n)
{
	char path[192];

	for (int i = 0; i < world; i++) {
		snprintf(path, sizeof(path), "%s/gone/" STEP
			 "/rank-%05d-of-%05d.safetensors", w->rig.store, i,
			 world);
		CHECK(access(path, F_OK) == 0, "call %d: %s is called durable "
		      "and is not there", (int)n, path);
	}
}

static uint64_t flush_once(int world, enum sk_fault_op op, uint64_t n,
			   void (*take)(void *store))
{
	struct rank r[WORLD_MOST];
	struct whole w;
	uint64_t hits;

	whole_init(&w);
	whole_start(&w);
	CHECK(w.serves, "it did not start: %s", whole_log(&w));
	for (int i = 0; i < world; i++)
		CHECK_STATUS(rank_open(&r[i], &w.rig, &(struct rank_options){
			.job = "gone", .rank = i, .world = world }), 0,
			&r[i].msg);
	sk_fault_os_meddle(w.fault, op, sk_fault_os_calls(w.fault, op) + n,
			   take, w.rig.store);
	for (int i = 0; i < world; i++)
		rank_snapshot(&r[i], 1);
	wait_durable(&w, &r[0], n);
	hits = sk_fault_os_hits(w.fault);
	/* Whatever comes after the word is another story. */
	if (hits)
		check_files(&w, world, n);
	/* A race with another agent is no failure, and is not waited for. */
	if (take == take_step)
		CHECK(stat_value(r[0].sock, "shardkeep_flush_errors_total") ==
		      0, "call %d: %s", (int)n, whole_log(&w));
	for (int i = 0; i < world; i++)
		rank_close(&r[i]);
	/* What is flushed at the end may have to be tried again as well. */
	CHECK(kill(w.rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(&w) == 0, "exit status: %s", whole_log(&w));
	whole_remove(&w);
	return hits;
}

static void flush_all(int world, enum sk_fault_op op, void (*take)(void *store))
{
	uint64_t n = 1;

	while (flush_once(world, op, n, take))
		n++;
	CHECK(n > 1, "only %d calls", (int)n);
}

int main(void)
{
	static const enum sk_fault_op ops[] = {
		SK_FAULT_FSYNC, SK_FAULT_RENAMEAT, SK_FAULT_FALLOCATE,
	};

	for (size_t i = 0; i < SK_ARRAY_SIZE(ops); i++) {
		for (int world = 1; world <= WORLD_MOST; world += 2) {
			flush_all(world, ops[i], take_store);
			flush_all(world, ops[i], take_step);
		}
	}
	return 0;
}
