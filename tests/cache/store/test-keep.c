/* SPDX-License-Identifier: Apache-2.0 */
/* Pins, and what is said to stay: who pins and who deletes meet at every call,
 * and either is killed at every call. */
#include "common.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#define STEP "step-000000000005"

static int retire(struct sk_store *store)
{
	const struct sk_store_run run = run_named(1);

	return sk_store_retire(store, "job", STEP, &run, NULL);
}

static int pin(struct sk_store *store, bool pinned)
{
	const struct sk_store_run run = run_named(1);

	return sk_store_pin(store, "job", STEP, &run, pinned, NULL);
}

Test(keep, a_pinned_step_is_not_retired)
{
	struct sk_stored *images = NULL;
	struct sk_store *store;
	struct place p;

	store = make_store(&p, NULL);
	cr_assert_eq(pin(store, true), -ENOENT);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(pin(store, true), 0);
	cr_assert_eq(pin(store, true), 0, "once more");
	cr_assert_eq(retire(store), -EBUSY);
	cr_assert_eq(scan(store, &images), 1);
	cr_assert(images[0].pinned);
	free(images);
	/* A newer run's step does not take it along. */
	cr_assert_eq(put(store, 2, 5, 0), 0);
	cr_assert_eq(settle(store, "job", 5, 2), 0);
	cr_assert(holds(store, 1, 5, 0));
	cr_assert_eq(pin(store, false), -ESTALE, "the name is run 2's");
	cr_assert_eq(delete(store, "job", STEP, 2, NULL), 0);
	sk_store_close(store);
	place_remove(&p);
}

/* Nothing is said of a job that is not there, nor of one that is. */
Test(keep, nothing_is_said_at_first)
{
	struct sk_retention got = { .keep_last = 77 };
	enum sk_retention_from from = SK_RETENTION_OPERATOR;
	struct sk_err err = { "" };
	struct sk_store *store;
	struct place p;

	store = make_store(&p, NULL);
	for (int there = 0; there < 2; there++) {
		cr_assert_eq(sk_store_retention(store, "job", &from, &got,
						&err), 0, "%s", err.text);
		cr_assert_eq(from, SK_RETENTION_NONE);
		cr_assert_eq(got.keep_last, 77);
		cr_assert_eq(put(store, 1, 5, 0), 0);
	}
	sk_store_close(store);
	place_remove(&p);
}

Test(keep, what_is_pinned_no_more_goes)
{
	struct sk_store *store;
	struct place p;

	store = make_store(&p, NULL);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(pin(store, true), 0);
	cr_assert_eq(pin(store, false), 0);
	cr_assert_eq(pin(store, false), 0, "once more");
	cr_assert_eq(retire(store), 0);
	cr_assert_not(exists(&p, "job/" STEP));
	sk_store_close(store);
	place_remove(&p);
}

struct other {
	struct sk_store *store;
	int (*fn)(struct sk_store *store);
	int r;
};

static void meddle(void *ctx)
{
	struct other *other = ctx;

	other->r = other->fn(other->store);
}

static int pin_it(struct sk_store *store)
{
	return pin(store, true);
}

/* The other comes before call @n. False: there were not so many. */
static bool meet(int (*fn)(struct sk_store *store),
		 int (*its)(struct sk_store *store), uint64_t n)
{
	struct other other = { .fn = its, .r = -EINPROGRESS };
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;
	int r, pinned, gone;

	store = make_store(&p, &fault);
	other.store = open_store(sk_os_linux(), &p);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	sk_fault_os_init(&fault, sk_os_linux());
	sk_fault_os_meddle(&fault, SK_FAULT_ANY, n, meddle, &other);
	r = fn(store);
	fault.rule_count = 0;
	if (other.r != -EINPROGRESS) {
		pinned = fn == pin_it ? r : other.r;
		gone = fn == retire ? r : other.r;
		cr_assert((pinned == 0) != (gone == 0), "call %d: %d, %d",
			  (int)n, pinned, gone);
		/* As of one that went before. */
		cr_assert(pinned == 0 || pinned == -ENOENT, "call %d: %d",
			  (int)n, pinned);
		cr_assert_eq(holds(store, 1, 5, 0), pinned == 0, "call %d",
			     (int)n);
	}
	sk_store_close(other.store);
	sk_store_close(store);
	place_remove(&p);
	return other.r != -EINPROGRESS;
}

Test(keep, a_pin_holds_or_its_owner_is_told, .timeout = 300)
{
	uint64_t n;

	for (n = 1; meet(retire, pin_it, n); n++)
		;
	cr_assert_gt(n, 10);
	for (n = 1; meet(pin_it, retire, n); n++)
		;
	cr_assert_gt(n, 5);
}

/* Who pins stops before a call of its own until who retires comes to one of
 * its. */
struct crossing {
	struct sk_fault_os fault;
	struct sk_store *store;
	sem_t stopped, go;
	pthread_t thread;
	bool stops, joined;
	int r;
};

static int sync_none(const struct sk_os *os, int fd)
{
	(void)os;
	(void)fd;
	return 0;
}

/* There are hundreds of crossings. */
static void init_unsynced(struct sk_fault_os *fault)
{
	sk_fault_os_init(fault, sk_os_linux());
	fault->os.fsync = sync_none;
}

static void stop(void *ctx)
{
	struct crossing *c = ctx;

	c->stops = true;
	sem_post(&c->stopped);
	sem_wait(&c->go);
}

static void *pin_and_stop(void *ctx)
{
	struct crossing *c = ctx;

	c->r = pin(c->store, true);
	sem_post(&c->stopped);
	return NULL;
}

static void go_on(void *ctx)
{
	struct crossing *c = ctx;

	sem_post(&c->go);
	cr_assert_eq(pthread_join(c->thread, NULL), 0);
	c->joined = true;
}

/* What came of a pin and a deletion, of which neither was alone. */
static void check_crossed(const struct crossing *c, int retired, int at[2])
{
	cr_assert(c->r == 0 || c->r == -ENOENT, "calls %d and %d: %d", at[0],
		  at[1], c->r);
	cr_assert(c->r < 0 || retired == -EBUSY, "calls %d and %d: %d",
		  at[0], at[1], retired);
	cr_assert_eq(holds(c->store, 1, 5, 0), retired < 0, "calls %d and %d",
		     at[0], at[1]);
}

/* Bits: whether there was a call @at[0] of the pin, one @at[1] of the other. */
static int cross(int at[2])
{
	struct crossing c = { .r = -EINPROGRESS };
	struct sk_fault_os fault;
	struct sk_store *store;
	struct place p;
	int retired;

	place_make(&p);
	init_unsynced(&fault);
	store = open_store(&fault.os, &p);
	init_unsynced(&c.fault);
	c.store = open_store(&c.fault.os, &p);
	init_unsynced(&c.fault);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	sem_init(&c.stopped, 0, 0);
	sem_init(&c.go, 0, 0);
	sk_fault_os_meddle(&c.fault, SK_FAULT_ANY, (uint64_t)at[0], stop, &c);
	cr_assert_eq(pthread_create(&c.thread, NULL, pin_and_stop, &c), 0);
	sem_wait(&c.stopped);
	init_unsynced(&fault);
	sk_fault_os_meddle(&fault, SK_FAULT_ANY, (uint64_t)at[1], go_on, &c);
	retired = retire(store);
	fault.rule_count = 0;
	if (!c.joined) {
		go_on(&c);
		c.joined = false;
	}
	c.fault.rule_count = 0;
	if (c.stops && c.joined)
		check_crossed(&c, retired, at);
	sem_destroy(&c.stopped);
	sem_destroy(&c.go);
	sk_store_close(c.store);
	sk_store_close(store);
	place_remove(&p);
	return c.stops | c.joined << 1;
}

Test(keep, a_pin_that_crosses_a_deletion_is_told, .timeout = 300)
{
	int at[2], were = 3;

	for (at[0] = 1; were & 1; at[0]++) {
		were = 3;
		for (at[1] = 1; were == 3; at[1]++)
			were = cross(at);
		cr_assert(!(were & 1) || at[1] > 10);
	}
	cr_assert_gt(at[0], 5);
}

/* Killed at any call, and what it left is cleaned up: the step is whole, or
 * nothing of it is there. */
Test(keep, who_retires_is_killed_anywhere, .timeout = 300)
{
	bool gone = false;
	uint64_t n;

	for (n = 1; !gone; n++) {
		struct sk_store *store, *third;
		struct sk_fault_os fault;
		struct place p;
		size_t left;

		store = make_store(&p, &fault);
		cr_assert_eq(put(store, 1, 5, 0), 0);
		cr_assert_eq(put(store, 1, 5, 1), 0);
		sk_fault_os_init(&fault, sk_os_linux());
		sk_fault_os_fail(&fault, SK_FAULT_ANY, n, SK_FAULT_ALWAYS,
				 EIO);
		gone = retire(store) == 0;
		fault.rule_count = 0;
		kill_store(store);
		third = open_store(sk_os_linux(), &p);
		left = scan(third, NULL);
		cr_assert(left == 0 || (left == 2 && !gone), "call %d: %zu",
			  (int)n, left);
		cr_assert_eq(exists(&p, "job/" STEP), left == 2, "call %d",
			     (int)n);
		sk_store_close(third);
		place_remove(&p);
	}
	cr_assert_gt(n, 10);
}

/* ---- what is said ---- */

Test(keep, what_is_said_is_read_back)
{
	const struct sk_retention said = {
		.keep_last = 3, .keep_every = 1000, .keep_age_s = 86400,
		.keep_bytes = UINT64_C(1) << 41,
	};
	enum sk_retention_from from = SK_RETENTION_JOB;
	struct sk_retention read = { 0 };
	struct sk_err err = { "" };
	struct sk_store *store;
	struct place p;

	store = make_store(&p, NULL);
	cr_assert_eq(sk_store_set_retention(store, "job", SK_RETENTION_JOB,
					    &said, &err), -ENOENT);
	cr_assert_eq(sk_store_retention(store, "job", &from, &read, &err), 0);
	cr_assert_eq(from, SK_RETENTION_NONE);
	/* Nor has a job that is there said anything yet. */
	cr_assert_eq(put(store, 1, 5, 0), 0);
	cr_assert_eq(sk_store_retention(store, "job", &from, &read, &err), 0,
		     "%s", err.text);
	cr_assert_eq(from, SK_RETENTION_NONE);
	for (from = SK_RETENTION_DEFAULT; from <= SK_RETENTION_OPERATOR;
	     from++) {
		enum sk_retention_from back;

		cr_assert_eq(sk_store_set_retention(store, "job", from, &said,
						    &err), 0, "%s", err.text);
		cr_assert_eq(sk_store_retention(store, "job", &back, &read,
						&err), 0, "%s", err.text);
		cr_assert_eq(back, from);
		cr_assert(sk_retention_equal(&read, &said));
	}
	cr_assert_eq(sk_store_set_retention(store, "job", SK_RETENTION_NONE,
					    &said, &err), 0);
	cr_assert_not(exists(&p, "job/.retain"));
	sk_store_close(store);
	place_remove(&p);
}

#define REST "\"keep_every\":0,\"keep_age_s\":0,\"keep_bytes\":0}\n"

Test(keep, what_makes_no_sense_is_named)
{
	static const char *const texts[] = {
		"", "\n", "[]\n", "7\n", "{\"version\":1}\n",
		"{\"version\":2,\"from\":\"job\",\"keep_last\":1," REST,
		"{\"version\":1,\"from\":\"him\",\"keep_last\":1," REST,
		"{\"version\":1,\"from\":\"nobody\",\"keep_last\":1," REST,
		"{\"version\":1,\"from\":\"job\",\"keep_last\":-1," REST,
		"{\"version\":1,\"from\":\"job\",\"keep_last\":1.5," REST,
		"{\"version\":1,\"from\":\"job\",\"keep_last\":4294967296,"
		REST,
		"{\"version\":1,\"from\":\"job\",\"keep_last\":1,"
		"\"keep_last\":2," REST,
		"{\"version\":1,\"from\":\"job\",\"keep_last\":1,\"more\":2,"
		REST,
		/* Torn: the end of the line is missing. */
		"{\"version\":1,\"from\":\"job\",\"keep_last\":1,\"keep_ever",
	};
	struct sk_store *store;
	struct place p;

	store = make_store(&p, NULL);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		enum sk_retention_from from = SK_RETENTION_NONE;
		struct sk_retention read;
		struct sk_err err = { "" };

		make_file(&p, "job/.retain", texts[i]);
		cr_assert_eq(sk_store_retention(store, "job", &from, &read,
						&err), -EBADMSG, "text %zu",
			     i);
		cr_assert(strstr(err.text, "job/.retain") &&
			  strstr(err.text, "cachectl retain"), "%s",
			  err.text);
	}
	sk_store_close(store);
	place_remove(&p);
}

Test(keep, a_directory_in_its_place_is_to_be_removed)
{
	const struct sk_retention keep = { .keep_last = 1 };
	struct sk_store *store;
	struct sk_err err;
	struct place p;

	store = make_store(&p, NULL);
	cr_assert_eq(put(store, 1, 5, 0), 0);
	make_dir(&p, "job/.retain");
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(sk_store_set_retention(
			store, "job", i ? SK_RETENTION_OPERATOR :
			SK_RETENTION_NONE, &keep, &err), -EISDIR, "%s",
			err.text);
		cr_assert(strstr(err.text, "job/.retain is a directory: "
				 "remove it"), "%s", err.text);
	}
	sk_store_close(store);
	place_remove(&p);
}
