/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power is lost after any call of any short history of a store, and whatever
 * no fsync covered may be lost in any combination. What was said to be durable
 * is there, nothing that is there is torn, and the store works.
 *
 * SK_STATES in the environment: how many states (3000).
 */
#include "common.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/random.h"
#include "support/record-os.h"

#define DEEDS 6
#define STATES_A_HISTORY 60
#define RUNS 3
#define STEPS 2
#define RANKS 2

/* TOGETHER: those of a step that was deleted, all or none of them. */
enum answer { NOT_SAID, DURABLE, TOGETHER, ANY };

/* What was said of each image, and of pins, after so many events. */
struct said {
	size_t events;
	enum answer image[RUNS + 1][STEPS][RANKS];
	enum answer pinned[RUNS + 1][STEPS];
};

struct history {
	struct place place;
	struct sk_record_os *rec;
	struct sk_store *store;
	struct sk_io *io;
	struct said said[2 * DEEDS + 1];
	int n_said;
	uint64_t run;		/* the newest */
};

static int (*recorded_fsync)(const struct sk_os *os, int fd);

static struct said *say(struct history *h)
{
	struct said *s = &h->said[h->n_said];

	if (h->n_said)
		*s = s[-1];
	s->events = h->rec->n;
	h->n_said++;
	return s;
}

/* What is put now may be there before that is said. */
static void forget_deleted(struct history *h, uint64_t step)
{
	struct said *s = say(h);

	for (int rank = 0; rank < RANKS; rank++)
		if (s->image[h->run][step][rank] == TOGETHER)
			s->image[h->run][step][rank] = ANY;
}

/* An agent is killed when a name is given, and before that is durable: whose
 * directory has the name of a step, and is no more than being made. */
static int die_before_fsync(const struct sk_os *os, int fd)
{
	char link[40], path[256] = "";

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	cr_assert_gt(readlink(link, path, sizeof(path) - 1), 0);
	return strncmp(strrchr(path, '/'), "/step-", 6) == 0 ?
	       0 : recorded_fsync(os, fd);
}

/* Of all that the next agent finds it says that it is durable. */
static void say_found(struct history *h)
{
	struct sk_stored *images = NULL;
	struct sk_err err = { "" };
	size_t n = 0;

	cr_assert_eq(sk_store_scan(h->store, "job", &images, &n, &err), 0,
		     "%s", err.text);
	(void)say(h);
	for (size_t i = 0; i < n; i++)
		h->said[h->n_said - 1].image[images[i].run.number]
			[images[i].step][images[i].rank] = DURABLE;
	free(images);
}

static void put_one(struct history *h, uint64_t *dice)
{
	uint64_t step = draw(dice, STEPS);
	int32_t rank = (int32_t)draw(dice, RANKS);
	bool dies = !draw(dice, 3);
	struct image image;
	int r;

	if (h->run < RUNS && !draw(dice, 3))
		h->run++;
	forget_deleted(h, step);
	image_make(&image, h->run, step, rank);
	image.put.world = RANKS;
	recorded_fsync = h->rec->os.fsync;
	if (dies)
		h->rec->os.fsync = die_before_fsync;
	r = sk_store_put_image(h->store, h->io, &image.put, NULL);
	h->rec->os.fsync = recorded_fsync;
	image_free(&image);
	if (dies)
		say_found(h);
	else if (r == 0)
		say(h)->image[h->run][step][rank] = DURABLE;
}

static void delete_one(struct history *h, uint64_t *dice)
{
	uint64_t step = draw(dice, STEPS);
	char dir[SK_STORE_NAME_MAX];
	struct said *s = say(h);

	for (uint64_t run = 1; run <= RUNS; run++) {
		for (int rank = 0; rank < RANKS; rank++)
			if (s->image[run][step][rank] == DURABLE)
				s->image[run][step][rank] = TOGETHER;
		s->pinned[run][step] = ANY;
	}
	sk_step_name_format(dir, step);
	for (uint64_t run = h->run; run; run--)
		if (delete(h->store, "job", dir, run, NULL) == 0)
			break;
	(void)say(h);
}

static void pin_one(struct history *h, uint64_t *dice)
{
	const struct sk_store_run run = run_named(h->run);
	uint64_t step = draw(dice, STEPS);
	bool pinned = draw(dice, 3);
	char dir[SK_STORE_NAME_MAX];

	sk_step_name_format(dir, step);
	say(h)->pinned[h->run][step] = ANY;
	if (sk_store_pin(h->store, "job", dir, &run, pinned, NULL) == 0)
		say(h)->pinned[h->run][step] = pinned ? DURABLE : ANY;
}

static struct sk_store *store_at(const struct sk_os *os, const char *path)
{
	struct sk_store *store = NULL;
	struct sk_err err = { "" };

	cr_assert_eq(sk_store_open(os, path, 0, &store, NULL, &err), 0, "%s",
		     err.text);
	return store;
}

/* Says it did. */
static int forget_fsync(const struct sk_os *os, int fd)
{
	(void)os;
	(void)fd;
	return 0;
}

static void make_history(struct history *h, uint64_t *dice, bool forgetful)
{
	*h = (struct history){ .run = 1, .rec = calloc(1, sizeof(*h->rec)) };
	cr_assert(h->rec);
	strcpy(h->place.path, "/dev/shm/shardkeep-power-XXXXXX");
	cr_assert(mkdtemp(h->place.path));
	(void)snprintf(h->place.store, sizeof(h->place.store), "%s/store",
		       h->place.path);
	cr_assert_eq(mkdir(h->place.store, 0700), 0);
	sk_record_os_init(h->rec, sk_os_linux(), h->place.store);
	if (forgetful)
		h->rec->os.fsync = forget_fsync;
	h->store = store_at(&h->rec->os, h->place.store);
	h->io = make_io(&h->rec->os, SK_IO_THREADS);
	(void)say(h);
	for (int i = 0; i < DEEDS; i++) {
		uint64_t deed = draw(dice, 6);

		if (deed < 4)
			put_one(h, dice);
		else if (deed < 5)
			pin_one(h, dice);
		else
			delete_one(h, dice);
	}
	cr_assert_not(h->rec->full);
}

static void end_history(struct history *h)
{
	sk_io_free(h->io);
	sk_store_close(h->store);
	sk_record_os_free(h->rec);
	free(h->rec);
	place_remove(&h->place);
}

/* What had been said when so many events had happened. */
static const struct said *said_by(const struct history *h, size_t events)
{
	int at = 0;

	while (at + 1 < h->n_said && h->said[at + 1].events <= events)
		at++;
	return &h->said[at];
}

static bool is_there(struct sk_store *store, const struct sk_stored *images,
		     size_t n, uint64_t run, uint64_t step, int32_t rank)
{
	for (size_t i = 0; i < n; i++)
		if (images[i].step == step && images[i].rank == rank &&
		    images[i].run.number == run)
			return run_of(store, &images[i]) == run;
	return false;
}

/* Whether all of a run's step is there that must be, and no half of it. */
static bool keeps_step(const struct said *said, struct sk_store *store,
		       const struct sk_stored *images, size_t n, uint64_t run,
		       uint64_t step)
{
	int together = 0, there = 0;

	for (int32_t rank = 0; rank < RANKS; rank++) {
		enum answer a = said->image[run][step][rank];
		bool is = is_there(store, images, n, run, step, rank);

		if (a == DURABLE && !is)
			return false;
		together += a == TOGETHER;
		there += a == TOGETHER && is;
	}
	return !there || there == together;
}

/* And whether nothing is torn. */
static bool keeps_images(const struct history *h, size_t events,
			 struct sk_store *store)
{
	const struct said *said = said_by(h, events);
	struct sk_stored *images = NULL;
	struct sk_err err = { "" };
	bool good = true;
	size_t n = 0;

	cr_assert_eq(sk_store_scan(store, "job", &images, &n, &err), 0, "%s",
		     err.text);
	for (size_t i = 0; i < n; i++)
		good = good && images[i].file.bytes == IMAGE_BYTES &&
		       run_of(store, &images[i]);
	for (uint64_t run = 1; run <= RUNS; run++)
		for (uint64_t step = 0; step < STEPS; step++)
			good = good && keeps_step(said, store, images, n, run,
						  step);
	free(images);
	return good;
}

/* In the step's own directory, or in one that a newer run moved aside. */
static bool is_pinned(const char *path, uint64_t run, uint64_t step)
{
	char name[256], dir[SK_STORE_NAME_MAX];

	for (unsigned i = 0; i <= 2; i++) {
		if (i)
			sk_step_name_displaced(dir, step, run, i);
		else
			sk_step_name_format(dir, step);
		(void)snprintf(name, sizeof(name), "%s/job/%s/" SK_PINNED_FILE,
			       path, dir);
		if (access(name, F_OK) == 0)
			return true;
	}
	return false;
}

static bool keeps_pins(const struct history *h, size_t events,
		       const char *path)
{
	const struct said *s = said_by(h, events);

	for (uint64_t run = 1; run <= RUNS; run++)
		for (uint64_t step = 0; step < STEPS; step++)
			if (s->pinned[run][step] == DURABLE &&
			    !is_pinned(path, run, step))
				return false;
	return true;
}

/* Nothing is left but what somebody may want: looked at by name. */
static int check_clean(void *ctx, int fd, const char *name)
{
	struct sk_leftover left;

	cr_assert_not(sk_leftover_name(name, &left), "\"%s\" is left", name);
	(void)fd;
	(void)ctx;
	return 0;
}

static void check_job(const char *path)
{
	char job[128];
	int fd;

	(void)snprintf(job, sizeof(job), "%s/job", path);
	fd = open(job, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return;
	cr_assert_eq(sk_dir_each(sk_os_linux(), fd, check_clean, NULL), 0);
	close(fd);
}

/* Whether it keeps its word in one state. */
static bool try_state(const struct history *h, size_t events, uint64_t seed)
{
	char path[96];
	struct sk_store *store;
	uint64_t dice = seed;
	bool good;

	(void)snprintf(path, sizeof(path), "%s/state", h->place.path);
	cr_assert_eq(mkdir(path, 0700), 0);
	cr_assert_eq(sk_record_os_state(h->rec, events, &dice, path), 0);
	store = store_at(sk_os_linux(), path);
	good = keeps_images(h, events, store) && keeps_pins(h, events, path);
	check_job(path);
	cr_assert_eq(put(store, RUNS + 1, STEPS, 0), 0,
		     "seed %llu: nothing can be written after %zu events",
		     (unsigned long long)seed, events);
	sk_store_close(store);
	cr_assert_eq(sk_dir_remove(sk_os_linux(), AT_FDCWD, path), 0);
	return good;
}

Test(power, keeps_its_word_when_it_is_lost, .timeout = 7200)
{
	const char *many = getenv("SK_STATES");
	uint64_t states = many ? strtoull(many, NULL, 10) : 3000;
	uint64_t dice = 20261122, seed;

	for (uint64_t done = 0; done < states;) {
		struct history h;

		make_history(&h, &dice, false);
		for (int i = 0; i < STATES_A_HISTORY && done < states; i++) {
			size_t events = draw(&dice, h.rec->n + 1);

			seed = draw_any(&dice);
			cr_assert(try_state(&h, events, seed), "state %llu, "
				  "seed %llu, after %zu of %zu events",
				  (unsigned long long)done,
				  (unsigned long long)seed, events, h.rec->n);
			done++;
		}
		end_history(&h);
	}
}

/* That states are as bad as they can be: a store that syncs nothing is found
 * out by a few. */
Test(power, takes_what_no_fsync_covers)
{
	uint64_t dice = 7;
	int lost = 0;

	for (int i = 0; i < 5; i++) {
		struct history h;

		make_history(&h, &dice, true);
		for (int k = 0; k < STATES_A_HISTORY; k++)
			lost += !try_state(&h, h.rec->n, draw_any(&dice));
		end_history(&h);
	}
	cr_assert_gt(lost, 100, "only %d of %d were noticed", lost,
		     5 * STATES_A_HISTORY);
}
