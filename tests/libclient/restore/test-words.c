/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words of ranks that fail, and of some that cannot take what the others say,
 * once more or in a row: all end with one status, and sentences are those of
 * the ranks that they name. Ranks are threads; the comm is the agent's as the
 * library sees it, which ends for all when one gives another length than the
 * others, or has left.
 */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "restore/agree.h"
#include "support/random.h"

#define WORLD 3
#define STEPS_MOST 6
#define BYTES_MOST 256
#define MISSES_MOST 4

/* ---- the comm ---- */

struct place {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int here, gone;
	unsigned round;
	int status;			/* of the round before, */
	size_t bytes[WORLD];		/* and what was given in it */
	char given[WORLD][BYTES_MOST];
	char all[WORLD * BYTES_MOST];
};

struct rank {
	struct place *place;
	struct sk sk;
	struct sk_state state;
	struct sk_restoring rs;
	const struct script *script;
	unsigned gathers;
	int result;
	bool ended;			/* together with the others */
};

static void end_round(struct place *p)
{
	size_t n = p->bytes[0];

	p->status = p->gone ? -ETIMEDOUT : 0;
	for (int k = 0; k < WORLD && !p->status; k++) {
		p->status = p->bytes[k] == n ? 0 : -EINVAL;
		memcpy(p->all + (size_t)k * n, p->given[k], n);
	}
	p->here = 0;
	p->round++;
	pthread_cond_broadcast(&p->changed);
}

static int meet(struct place *p, int rank, const void *in, size_t bytes,
		void *out)
{
	unsigned round;
	int r;

	cr_assert(bytes <= BYTES_MOST);
	pthread_mutex_lock(&p->lock);
	round = p->round;
	p->bytes[rank] = bytes;
	memcpy(p->given[rank], in, bytes);
	if (++p->here + p->gone == WORLD)
		end_round(p);
	while (p->round == round)
		pthread_cond_wait(&p->changed, &p->lock);
	r = p->status;
	if (!r)
		memcpy(out, p->all, WORLD * bytes);
	pthread_mutex_unlock(&p->lock);
	return r;
}

static void leave(struct place *p)
{
	pthread_mutex_lock(&p->lock);
	p->gone++;
	if (p->here && p->here + p->gone == WORLD)
		end_round(p);
	pthread_mutex_unlock(&p->lock);
}

/* ---- what ranks do ---- */

struct script {
	int steps;
	bool gathers[STEPS_MOST];	/* longer things, or a word */
	int fails_at[WORLD];		/* before that step, the end the last;
					 * -1: never */
	int status[WORLD];		/* with that, */
	int begins[WORLD];		/* and misses what gathers bring */
	int misses[WORLD];		/* from here on, so many */
	bool foreign;			/* by a comm of the caller's */
};

/* The one whose comm's ctx that is. */
static struct rank *rank_of(void *ctx)
{
	struct sk_restoring *rs =
		(void *)((char *)ctx - offsetof(struct sk_restoring,
						agent_comm));

	return (void *)((char *)rs - offsetof(struct rank, rs));
}

static int allgather(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	struct rank *me = rank_of(ctx);
	int rank = me->state.job.rank, since;
	int r = meet(me->place, rank, in, bytes, out);

	(void)timeout_ms;
	since = (int)me->gathers++ - me->script->begins[rank];
	me->rs.agent_comm.met = !r;
	if (r || since < 0 || since >= me->script->misses[rank])
		return r;
	memset(out, 0xee, WORLD * bytes);
	return -EMFILE;
}

static int allgather_of_rank(void *ctx, const void *in, size_t bytes,
			     void *out, uint32_t timeout_ms)
{
	struct rank *me = ctx;

	(void)timeout_ms;
	return meet(me->place, me->state.job.rank, in, bytes, out);
}

static int fail(struct rank *me, int step, int r)
{
	int rank = me->state.job.rank;

	if (r < 0 || me->script->fails_at[rank] != step)
		return r;
	return sk_err_set(&me->rs.err, me->script->status[rank], "what is "
			  "wrong at step %d of rank %d is said here, in more "
			  "words than one portion of a sentence has room for",
			  step, rank);
}

static int go_on(struct rank *me)
{
	uint64_t mine = (uint64_t)me->state.job.rank;
	int r = 0;

	for (int step = 0; step < me->script->steps; step++) {
		_cleanup_free_ uint64_t *all = NULL;
		uint64_t given[] = { mine, 1, 2 };

		r = fail(me, step, r);
		if (!me->script->gathers[step]) {
			r = sk_restore_agreed(&me->rs, r);
			continue;
		}
		r = sk_restore_gather(&me->rs, r, given, sizeof(given), &all);
		for (uint64_t k = 0; r >= 0 && k < WORLD; k++)
			cr_assert_eq(all[3 * k], k);
	}
	return sk_restore_told(&me->rs, fail(me, me->script->steps, r));
}

static void *run(void *arg)
{
	struct rank *me = arg;

	me->result = go_on(me);
	me->ended = !me->rs.broken;
	leave(me->place);
	return NULL;
}

static void begin(struct rank *me, struct place *place,
		  const struct script *script, int rank)
{
	*me = (struct rank){ .place = place, .script = script };
	me->sk.os = sk_os_linux();
	me->state.job.name = "job";
	me->state.job.world = WORLD;
	me->state.job.rank = rank;
	me->state.said = calloc(WORLD, SK_SAID_BYTES);
	cr_assert(me->state.said);
	me->rs.sk = &me->sk;
	me->rs.state = &me->state;
	sk_comm_of_agent(&me->rs.agent_comm, &me->rs.comm);
	me->rs.comm.allgather = allgather;
	if (script->foreign)
		me->rs.comm = (struct sk_comm){
			.ctx = me, .allgather = allgather_of_rank };
}

static void play_each(const struct script *const *of, struct rank *ranks)
{
	struct place place = { .lock = PTHREAD_MUTEX_INITIALIZER,
			       .changed = PTHREAD_COND_INITIALIZER };
	pthread_t threads[WORLD];

	for (int i = 0; i < WORLD; i++)
		begin(&ranks[i], &place, of[i], i);
	for (int i = 0; i < WORLD; i++)
		cr_assert(!pthread_create(&threads[i], NULL, run, &ranks[i]));
	for (int i = 0; i < WORLD; i++) {
		cr_assert(!pthread_join(threads[i], NULL));
		free(ranks[i].state.said);
	}
}

static void play(const struct script *script, struct rank *ranks)
{
	play_each((const struct script *[]){ script, script, script }, ranks);
}

/* ---- what has to come of it ---- */

/* But for portions of it that the rank could not take. */
static bool is_said(const char *said, const char *whole, bool missed)
{
	const char *gap = strstr(said, "...");
	size_t n = gap ? (size_t)(gap - said) : strlen(said);

	if (!gap)
		return !strcmp(said, whole);
	if (!missed || strncmp(said, whole, n) != 0)
		return false;
	while (!strncmp(gap, "...", 3))
		gap += 3;
	return !*gap || strstr(whole + n, gap) ||
	       strstr(gap, "...");	/* and so on */
}

/* "rank 1: " and that rank's sentence; or one's own. */
static void expect_sentence(const struct rank *me, const struct script *s,
			    const char *what)
{
	const char *text = me->rs.err.text, *said = text;
	int of = me->state.job.rank, length = 0;
	char whole[SK_ERR_MAX];

	(void)sscanf(text, "rank %d: %n", &of, &length);
	cr_assert(of >= 0 && of < WORLD, "%s: \"%s\"", what, text);
	if (strstr(text, "cannot take what the other ranks say"))
		return;
	said += length;
	(void)snprintf(whole, sizeof(whole), "what is wrong at step %d of "
		       "rank %d is said here, in more words than one portion "
		       "of a sentence has room for", s->fails_at[of], of);
	cr_assert(is_said(said, whole, s->misses[me->state.job.rank]),
		  "%s: rank %d has \"%s\"", what, me->state.job.rank, text);
	cr_assert_eq(me->result, s->status[of], "%s: %d of \"%s\"", what,
		     me->result, text);
}

static void expect_one_end(const struct script *s, const struct rank *ranks,
			   int status, const char *what)
{
	for (int i = 0; i < WORLD; i++) {
		cr_assert(ranks[i].ended, "%s: rank %d: %s", what, i,
			  ranks[i].rs.err.text);
		cr_assert_eq(ranks[i].result, status, "%s: rank %d has %d: %s",
			     what, i, ranks[i].result, ranks[i].rs.err.text);
		if (status < 0)
			expect_sentence(&ranks[i], s, what);
	}
}

static const struct script calm = {
	.steps = 3, .fails_at = { -1, -1, -1 },
	.status = { -ENOMEM, -ENOMEM, -ENOMEM },
};

Test(words, all_go_on_where_nothing_fails)
{
	struct script s = calm;
	struct rank ranks[WORLD];

	s.gathers[1] = true;
	play(&s, ranks);
	expect_one_end(&s, ranks, 0, "calm");
}

/* One is at the end, where the others come to their next word with the very
 * same error: it is heard by all all the same. */
Test(words, one_that_is_at_the_end_hears_with_those_who_are_not)
{
	for (int last = 0; last < WORLD; last++)
		for (int foreign = 0; foreign < 2; foreign++) {
			struct script others = calm, sooner;
			const struct script *of[WORLD];
			struct rank ranks[WORLD];

			others.foreign = foreign;
			sooner = others;
			sooner.steps = 2;
			for (int i = 0; i < WORLD; i++) {
				others.fails_at[i] = sooner.fails_at[i] = 2;
				of[i] = i == last ? &sooner : &others;
			}
			play_each(of, ranks);
			expect_one_end(&others, ranks, -ENOMEM, "the end");
			for (int i = 0; i < WORLD; i++)
				cr_assert(!strncmp(ranks[i].rs.err.text,
						   "rank 0: ", 8), "%s",
					  ranks[i].rs.err.text);
		}
}

/* Each own sentence stays where all have the same at the end. */
Test(words, what_all_have_is_not_said)
{
	struct script s = calm;
	struct rank ranks[WORLD];

	for (int i = 0; i < WORLD; i++)
		s.fails_at[i] = 3;
	for (int foreign = 0; foreign < 2; foreign++) {
		s.foreign = foreign;
		play(&s, ranks);
		expect_one_end(&s, ranks, -ENOMEM, "all");
		for (int i = 0; i < WORLD; i++)
			cr_assert(!strncmp(ranks[i].rs.err.text,
					   "what is wrong", 13), "%s",
				  ranks[i].rs.err.text);
	}
}

/* The one that fails cannot take the answer, as where it has no descriptor
 * left for either: its second failure is told no worse than its first. */
Test(words, who_fails_twice_in_a_row_is_heard)
{
	for (int misses = 1; misses <= MISSES_MOST; misses++)
		for (int at = 0; at <= 3; at++)
			for (int i = 0; i < WORLD; i++) {
				struct script s = calm;
				struct rank ranks[WORLD];
				char what[64];

				(void)snprintf(what, sizeof(what), "rank %d, "
					       "step %d, %d times", i, at,
					       misses);
				s.fails_at[i] = at;
				s.status[i] = -EMFILE;
				s.begins[i] = at;
				s.misses[i] = misses;
				/* Others come to it before their end. */
				s.steps = at == 3 ? 3 : 4;
				if (at == 3)
					for (int k = 0; k < WORLD; k++) {
						s.fails_at[k] = 3;
						s.status[k] = -EMFILE;
					}
				play(&s, ranks);
				expect_one_end(&s, ranks, -EMFILE, what);
			}
}

/* Another one fails where one cannot take the words. */
Test(words, who_misses_a_word_hears_what_follows)
{
	for (int i = 0; i < WORLD; i++)
		for (int other = 0; other < WORLD; other++) {
			struct script s = calm;
			struct rank ranks[WORLD];

			if (other == i)
				continue;
			s.fails_at[other] = 1;
			s.begins[i] = 1;
			s.misses[i] = 1;
			play(&s, ranks);
			expect_one_end(&s, ranks, -ENOMEM, "another one");
		}
}

/* Nobody fails, but it: they go on to what is longer than a word. */
Test(words, who_misses_a_word_is_in_what_follows)
{
	for (int i = 0; i < WORLD; i++) {
		struct script s = calm;
		struct rank ranks[WORLD];

		s.gathers[1] = true;
		s.begins[i] = 1;
		s.misses[i] = 1;
		play(&s, ranks);
		expect_one_end(&s, ranks, -EMFILE, "longer");
	}
}

/* Anything fails anywhere, and one rank misses things; but not the very last
 * word of ranks that are all well, which nobody could tell it. What is longer
 * than a word ends for all where one misses that another has failed. */
Test(words, at_random_all_end_with_one_status)
{
	const char *text = getenv("SK_CASES");
	long cases = text ? atol(text) : 3000;

	for (long n = 0; n < cases; n++) {
		uint64_t seed = (uint64_t)n;
		struct rank ranks[WORLD];
		struct script s = { .steps = 3 };
		int misser = (int)draw(&seed, WORLD);
		bool longer = draw(&seed, 2), failed = false;
		char what[32];

		(void)snprintf(what, sizeof(what), "case %ld", n);
		for (int k = 0; k < s.steps; k++)
			s.gathers[k] = longer && draw(&seed, 2);
		for (int i = 0; i < WORLD; i++) {
			s.fails_at[i] = (int)draw(&seed, 8) - 1;
			s.status[i] = draw(&seed, 2) ? -EMFILE : -EIO;
			failed |= s.fails_at[i] >= 0 && s.fails_at[i] < 3;
		}
		if (!failed)
			s.fails_at[draw(&seed, WORLD)] = (int)draw(&seed, 3);
		s.begins[misser] = (int)draw(&seed, 16);
		s.misses[misser] = (int)draw(&seed, MISSES_MOST);
		play(&s, ranks);
		for (int i = 0; i < WORLD; i++)
			cr_assert(ranks[i].result < 0, "%s: rank %d", what, i);
		if (!longer)
			expect_one_end(&s, ranks, ranks[0].result, what);
	}
}
