/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a job's snapshots lose by others who keep its agent busy: beside each
 * attack as many processes that take as much of the cores, one for each
 * attacker and one for the agent's loop, and ask for nothing.
 */
#include "attack.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/util.h"
#include "report.h"
#include "state.h"
#include "world.h"

#define WAIT_MS 300000
#define BAR 0.95
#define ATTACKS_MAX 16
#define SETTLE_MS 100		/* until all attackers are at it, or are gone */

static const struct column columns[] = {
	{ "attack", "ATTACK" }, { "fair_per_s", "BESIDE, 1/S" },
	{ "attacked_per_s", "ATTACKED, 1/S" }, { "ratio", NULL },
	{ NULL, "RATIO" }, { "fair_slowest_ms", NULL },
	{ NULL, "SLOWEST BESIDE" }, { "slowest_ms", NULL },
	{ NULL, "ATTACKED" }, { "fair_restore_ms", NULL },
	{ NULL, "RESTORE BESIDE" }, { "restore_ms", NULL },
	{ NULL, "ATTACKED" }, { "agent_cores", NULL }, { NULL, "AGENT" },
	{ "bar", "BAR" }, { "met", "MET" },
};

/* Lies in memory that all share. */
struct window {
	int steps;			/* of each window */
	uint64_t slowest[BENCH_RANKS_MAX];
};
static struct window *window;

static struct figures {
	struct series fair, attacked;		/* ns a snapshot */
	struct series fair_restore, restore;	/* ns, of the last one */
	struct series agent;			/* cores that it took */
	uint64_t fair_slowest, slowest;		/* ns */
} figures[ATTACKS_MAX];

/* ---- the ranks ---- */

static int snapshots(struct bench *b, int rank, struct rank_state *s, int n,
		     int64_t *step)
{
	struct sk_snapshot_options o = { .flags = SK_SNAPSHOT_NO_FLUSH,
					 .wait_ms = WAIT_MS };

	window->slowest[rank] = 0;
	for (int i = 0; i < n; i++) {
		uint64_t began = now_ns(), took;

		if (sk_snapshot(s->state, ++*step, &o) ||
		    sk_wait(s->state, *step, SK_COMPLETE, WAIT_MS))
			return fail(b, rank, "snapshot: %s", sk_error());
		took = now_ns() - began;
		if (took > window->slowest[rank])
			window->slowest[rank] = took;
	}
	return 0;
}

/* Where they restart as well. */
static int restore(struct bench *b, int rank, struct rank_state *s)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MEMORY_ONLY,
					.timeout_ms = WAIT_MS };

	if (sk_restore(s->state, SK_LATEST, NULL, &o, NULL))
		return fail(b, rank, "restore: %s", sk_error());
	return 0;
}

/* As many as take the window's time where nobody else is. */
static int calibrate(struct bench *b, int rank, struct rank_state *s,
		     int64_t *step)
{
	const int tries = 20;
	uint64_t began, each;

	meet(b);
	began = now_ns();
	if (snapshots(b, rank, s, tries, step))
		return -1;
	each = (now_ns() - began) / (uint64_t)tries + 1;
	if (!rank)
		window->steps = (int)(b->o.step_ms * 1000000ull / each) + 1;
	meet(b);
	return 0;
}

static int rank_attacked(struct bench *b, int rank)
{
	struct rank_state s;
	int64_t step = 0;
	int windows = 0;

	while (attack_at(windows))
		windows++;
	windows *= 2 * b->o.rounds;
	if (state_open(b, rank, b->o.ranks, "attacked",
		       b->o.bytes * (uint64_t)b->o.ranks, b->o.tensors,
		       CUT_ROWS, &s) ||
	    calibrate(b, rank, &s, &step))
		return -1;
	while (windows--) {
		meet(b);
		mark_start(b, rank);
		if (snapshots(b, rank, &s, window->steps, &step))
			return -1;
		mark_end(b, rank);
		meet(b);
		meet(b);
		mark_start(b, rank);
		if (restore(b, rank, &s))
			return -1;
		mark_end(b, rank);
		meet(b);
		meet(b);
	}
	state_close(&s);
	return 0;
}

/* ---- who attacks them ---- */

static void settle(void)
{
	const struct timespec pause = { .tv_nsec = SETTLE_MS * 1000000L };

	(void)nanosleep(&pause, NULL);
}

static void one_window(struct bench *b, int ranks, const struct attack *attack,
		       int n, struct series *took, uint64_t *slowest,
		       struct series *restored, struct series *agent)
{
	struct attackers attackers;
	uint64_t cpu;
	double ns;

	if (attackers_start(b, attack, n, &attackers))
		note("not all %d of the attackers began: %s", n,
		     strerror(errno));
	settle();
	cpu = agent_cpu_ns(b);
	meet(b);
	meet(b);
	cpu = agent_cpu_ns(b) - cpu;
	ns = marked(b, ranks);
	meet(b);
	meet(b);
	attackers_end(&attackers);
	series_add(restored, marked(b, ranks));
	series_add(took, ns / window->steps);
	if (agent)
		series_add(agent, (double)cpu / ns);
	for (int i = 0; i < ranks; i++)
		if (window->slowest[i] > *slowest)
			*slowest = window->slowest[i];
	settle();
	meet(b);
}

static void lead_attacked(struct bench *b, int ranks)
{
	const struct attack *attack;

	meet(b);
	meet(b);
	note("%d snapshots at a time", window->steps);
	for (int i = 0; (attack = attack_at(i)); i++) {
		struct figures *f = &figures[i];

		note("%s", attack->name);
		for (int k = 0; k < b->o.rounds; k++) {
			one_window(b, ranks, &attack_none, b->o.attack + 1,
				   &f->fair, &f->fair_slowest,
				   &f->fair_restore, NULL);
			one_window(b, ranks, attack, b->o.attack, &f->attacked,
				   &f->slowest, &f->restore, &f->agent);
		}
	}
}

/* ---- the table ---- */

static void cell_ms(struct report *r, uint64_t ns)
{
	report_cell_real(r, (double)ns / 1e6);
	report_cell_text(r, "%.1f ms", (double)ns / 1e6);
}

static void add_attack(struct report *r, const char *name,
		       const struct figures *f)
{
	double ratio = series_ratio(&f->fair, &f->attacked);

	report_cell_text(r, "%s", name);
	report_cell_real(r, 1e9 / series_median(&f->fair));
	report_cell_real(r, 1e9 / series_median(&f->attacked));
	report_cell_real(r, ratio);
	report_cell_text(r, "%.2f x", ratio);
	cell_ms(r, f->fair_slowest);
	cell_ms(r, f->slowest);
	cell_ms(r, (uint64_t)series_median(&f->fair_restore));
	cell_ms(r, (uint64_t)series_median(&f->restore));
	report_cell_real(r, series_median(&f->agent));
	report_cell_text(r, "%.2f cores", series_median(&f->agent));
	report_cell_text(r, ">= %g x", BAR);
	report_cell_text(r, "%s", ratio >= BAR ? "yes" : "NO");
}

static int print(const struct bench *b)
{
	_cleanup_report_ struct report *r = report_new();
	const struct attack *attack;

	if (!r)
		return -ENOMEM;
	report_number(r, "ranks", "ranks", CELL_INT, b->o.ranks);
	report_number(r, "bytes_per_rank", "bytes per rank", CELL_BYTES,
		      (int64_t)b->o.bytes);
	report_number(r, "attackers", "attackers", CELL_INT, b->o.attack);
	report_number(r, "rounds", "rounds", CELL_INT, b->o.rounds);
	report_table(r, "attacks", NULL, columns, SK_ARRAY_SIZE(columns));
	for (int i = 0; (attack = attack_at(i)); i++)
		add_attack(r, attack->name, &figures[i]);
	return report_print(r, b->o.json ? OUTPUT_JSON : OUTPUT_TABLE,
			    &(struct style){ .columns = 170 }, stdout);
}

int phase_attacked(struct bench *b)
{
	int r;

	window = share(sizeof(*window));
	if (!window)
		return -ENOMEM;
	/* It would say of each of the attackers what it was let go for. */
	b->log_level = "error";
	r = agent_start(b);
	if (!r)
		r = run_ranks(b, b->o.ranks, rank_attacked, lead_attacked);
	if (agent_stop(b) && !r)
		r = -EIO;
	return r ? r : print(b);
}
