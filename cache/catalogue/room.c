/* SPDX-License-Identifier: Apache-2.0 */
/* Catalogue, room: what slots take, and what may go to make room for others. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "catalogue/pins.h"
#include "catalogue/private.h"
#include "catalogue/told.h"

#define HOLDERS 3

/* Whose slots are counted: all, or one user's. */
struct account {
	const struct sk_cat_user *user;	/* NULL: all */
	struct sk_cat_amount most;	/* 0: any number */
	enum sk_cat_turn until;	/* what goes in a later turn stays */
	const struct sk_cat_job *asker;
};

/* ---- giving back ---- */

/* Others may have its memory: its rank is dead, or has come back as another
 * registration. */
static bool is_dead(const struct sk_cat_state *state)
{
	return !state->living && (!state->awaited || state->replaced);
}

static uint64_t trim_state(struct sk_cat_state *state)
{
	struct sk_cat_slot *slot;
	uint64_t bytes = 0;

	if (!is_dead(state))
		return 0;
	sk_link_each(slot, &state->slots, link) {
		slot->left |= slot->detainer && slot->use == SK_CAT_FREE;
		if (slot->use != SK_CAT_FREE || slot->detainer)
			continue;
		bytes += slot->bytes;
		sk_cat_slot_release(slot);
	}
	return bytes;
}

static uint64_t trim_job(struct sk_cat_job *job)
{
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	uint64_t bytes = 0;

	job->catalogue->visits++;
	sk_link_each(run, &job->runs, link)
	sk_link_each(state, &run->states, link)
		bytes += trim_state(state);
	return bytes;
}

uint64_t sk_cat_trim_free(struct sk_catalogue *cat, struct sk_cat_job *only)
{
	struct sk_cat_job *job;
	uint64_t bytes = 0;

	if (only)
		return trim_job(only);
	sk_link_each(job, &cat->jobs, link)
		bytes += trim_job(job);
	return bytes;
}

/* ---- looking ---- */

/* May this slot of a dead rank be given to somebody else? When, if it has an
 * image; what is pinned on disk, of the job that asks, as for its next step. */
static enum sk_cat_turn turn_of(const struct sk_cat_slot *slot,
				const struct sk_cat_job *asker)
{
	const struct sk_cat_snapshot *s = slot->snapshot;
	enum sk_cat_turn turn;

	if (!is_dead(slot->state) || slot->detainer)
		return SK_CAT_STAYS;
	if (slot->use != SK_CAT_SEALED)
		return slot->use == SK_CAT_FREE ? SK_CAT_FIRST : SK_CAT_STAYS;
	turn = sk_cat_turn(s);
	return turn == SK_CAT_STAYS && s->job == asker &&
	       sk_cat_pinned_on_disk(s) ? SK_CAT_PINNED : turn;
}

static struct sk_cat_amount used_of(const struct sk_catalogue *cat,
				    const struct account *account)
{
	return account->user ? account->user->used :
	       (struct sk_cat_amount){ cat->used, cat->used_fds };
}

static bool is_of(const struct account *account, const struct sk_cat_job *job)
{
	return !account->user || job->user == account->user;
}

static bool goes_before(enum sk_cat_turn turn, const struct sk_cat_slot *slot,
			const struct sk_cat_job *than)
{
	const struct sk_cat_slot *other = than->first_out;

	return !other || turn < than->first_turn ||
	       (turn == than->first_turn && slot->snapshot->created_ns <
					    other->snapshot->created_ns);
}

static void survey_slot(struct sk_cat_job *job, struct sk_cat_slot *slot,
			const struct account *account)
{
	enum sk_cat_turn turn = turn_of(slot, account->asker);

	job->catalogue->visits++;
	if (turn == SK_CAT_STAYS || turn > account->until)
		return;
	job->can_go.bytes += slot->bytes;
	job->can_go.fds += slot->fds;
	if (slot->use != SK_CAT_SEALED || !goes_before(turn, slot, job))
		return;
	job->first_out = slot;
	job->first_turn = turn;
}

/* What of its slots can be had, and of those with an image that can and go
 * first the one with the oldest. Other jobs have no say in it. */
static void survey_job(struct sk_cat_job *job, const struct account *account)
{
	struct sk_cat_state *state;
	struct sk_cat_slot *slot;
	struct sk_cat_run *run;

	job->can_go = (struct sk_cat_amount){ 0 };
	job->first_out = NULL;
	sk_link_each(run, &job->runs, link)
	sk_link_each(state, &run->states, link)
	sk_link_each(slot, &state->slots, link)
		survey_slot(job, slot, account);
}

static void survey(struct sk_catalogue *cat, const struct account *account)
{
	struct sk_cat_job *job;

	sk_link_each(job, &cat->jobs, link) {
		if (is_of(account, job))
			survey_job(job, account);
	}
}

/* They were surveyed, in this as in what follows. */
static struct sk_cat_amount can_go_of(const struct sk_catalogue *cat,
				      const struct account *account)
{
	struct sk_cat_amount all = { 0 };
	const struct sk_cat_job *job;

	sk_link_each(job, &cat->jobs, link) {
		if (!is_of(account, job))
			continue;
		all.bytes += job->can_go.bytes;
		all.fds += job->can_go.fds;
	}
	return all;
}

/* Whose goes first of all; NULL: none can. */
static struct sk_cat_job *first_of(struct sk_catalogue *cat,
				   const struct account *account)
{
	struct sk_cat_job *job, *first = NULL;

	sk_link_each(job, &cat->jobs, link) {
		if (is_of(account, job) && job->first_out &&
		    (!first || goes_before(job->first_turn, job->first_out,
					   first)))
			first = job;
	}
	return first;
}

static bool fits_in(uint64_t used, uint64_t asked, uint64_t most)
{
	return !most || (used <= most && asked <= most - used);
}

static bool fits(const struct sk_catalogue *cat, const struct account *account,
		 const struct sk_cat_amount *asked)
{
	const struct sk_cat_amount *most = &account->most;
	struct sk_cat_amount used = used_of(cat, account);

	return fits_in(used.bytes, asked->bytes, most->bytes) &&
	       fits_in(used.fds, asked->fds, most->fds);
}

/* ---- saying why not ---- */

/* The largest holders, largest first; other users' jobs have no name here. */
static void name_holders(struct sk_catalogue *cat,
			 const struct account *account,
			 const struct sk_cat_job *asker, char *buf,
			 size_t size)
{
	const struct sk_cat_job *job = NULL;
	size_t at = 0;
	char text[32];

	buf[0] = 0;
	for (int i = 0; i < HOLDERS && at < size; i++) {
		job = sk_cat_largest(cat, account->user, job);
		if (!job || !job->used.bytes)
			break;
		at += (size_t)snprintf(buf + at, size - at, "%s%.40s %s",
				       i ? ", " : "",
				       job->uid == asker->uid ?
				       job->name : "another user's job",
				       sk_size_format(job->used.bytes, text,
						      sizeof(text)));
	}
	if (!at)
		(void)snprintf(buf, size, "nobody");
	else if (at < size && !account->user && sk_cat_detained(cat, NULL))
		(void)snprintf(buf + at, size - at, " (%s of it by processes "
			       "that have left and not ended)",
			       sk_size_format(sk_cat_detained(cat, NULL), text,
					      sizeof(text)));
}

static uint64_t left_of(uint64_t most, uint64_t used)
{
	return used < most ? most - used : 0;
}

/* How much can be had, or that there is too much already: the budget may have
 * been larger. */
static void say_left(uint64_t asked, uint64_t kept,
		     const struct account *account, char *buf, size_t size)
{
	uint64_t most = account->most.bytes;
	char all[32], part[32];

	sk_size_format(most, all, sizeof(all));
	sk_size_format(kept > most ? kept : most - kept, part, sizeof(part));
	if (kept > most)
		(void)snprintf(buf, size, "%s, but %s that cannot go are more "
			       "than the %s of %s; held by", asked ? " more" :
			       "", part, account->user ? "share" : "budget", all);
	else if (account->user)
		(void)snprintf(buf, size, " more, but of the %s that one user "
			       "may take only %s can be had; held by", all, part);
	else
		(void)snprintf(buf, size, " more, but of the budget of %s only %s "
			       "can be had; held by", all, part);
}

static int say_bytes(struct sk_catalogue *cat, uint64_t asked, uint64_t kept,
		     const struct account *account,
		     const struct sk_cat_job *job, struct sk_err *err)
{
	char want[32] = "the slots that it had", left[160], holders[280];

	name_holders(cat, account, job, holders, sizeof(holders));
	if (asked)
		sk_size_format(asked, want, sizeof(want));
	say_left(asked, kept, account, left, sizeof(left));
	return sk_err_set(err, account->user ? -EDQUOT : -ENOMEM, "job "
			  "\"%.40s\" asked for %s%s: %s; use fewer "
			  "slots or give %s", job->name, want, left,
			  holders, account->user ? "users more --user-memory" :
			  "the agent more --memory");
}

static int say_fds(uint64_t asked, uint64_t left,
		   const struct account *account,
		   const struct sk_cat_job *job, struct sk_err *err)
{
	return sk_err_set(err, account->user ? -EDQUOT : -EMFILE,
			  "job \"%.40s\" asked for %llu descriptors more, but "
			  "of the %llu that %s only %llu can be had; use fewer "
			  "slots or raise the agent's limit of open files",
			  job->name, (unsigned long long)asked,
			  (unsigned long long)account->most.fds,
			  account->user ? "one user may take" : "slots may take",
			  (unsigned long long)left);
}

/* ---- making room ---- */

/* Whether what can be had suffices; nothing changes. */
static int can_have(struct sk_catalogue *cat, const struct account *account,
		    const struct sk_cat_amount *asked,
		    const struct sk_cat_job *job, struct sk_err *err)
{
	const struct sk_cat_amount *most = &account->most;
	struct sk_cat_amount kept = used_of(cat, account), can_go;

	if (fits(cat, account, asked))
		return 0;
	can_go = can_go_of(cat, account);
	assert(kept.bytes >= can_go.bytes && kept.fds >= can_go.fds);
	kept.bytes -= can_go.bytes;
	kept.fds -= can_go.fds;
	if (!fits_in(kept.bytes, asked->bytes, most->bytes))
		return say_bytes(cat, asked->bytes, kept.bytes, account, job,
				 err);
	if (!fits_in(kept.fds, asked->fds, most->fds))
		return say_fds(asked->fds, left_of(most->fds, kept.fds),
			       account, job, err);
	return 0;
}

static int evict_until_fit(struct sk_catalogue *cat,
			   const struct account *account,
			   const struct sk_cat_amount *asked)
{
	struct sk_cat_job *job;
	int evicted = 0;

	if (fits(cat, account, asked))
		return 0;
	/* Of what has an image none goes with them. */
	(void)sk_cat_trim_free(cat, NULL);
	while (!fits(cat, account, asked) && (job = first_of(cat, account))) {
		sk_cat_slot_clear(job->first_out);
		survey_job(job, account);
		evicted++;
	}
	return evicted;
}

int sk_cat_make_room(struct sk_catalogue *cat, uint64_t bytes, uint64_t fds,
		     enum sk_cat_turn until, const struct sk_cat_job *job,
		     struct sk_err *err)
{
	const struct sk_cat_amount asked = { bytes, fds };
	const struct account all = {
		NULL, { cat->budget, cat->budget_fds }, until, job };
	const struct account user = {
		job->user, { cat->user_budget, cat->user_fds }, until, job };
	bool bounded = job->uid && job->uid != cat->owner;
	bool full = !fits(cat, &all, &asked);
	int evicted = 0, r;

	assert(cat->budget);
	/* Where all fits as it is nobody is asked what could go. */
	if (full || (bounded && !fits(cat, &user, &asked)))
		survey(cat, full ? &all : &user);
	r = bounded ? can_have(cat, &user, &asked, job, err) : 0;
	if (r == 0)
		r = can_have(cat, &all, &asked, job, err);
	if (r < 0)
		return r;
	if (bounded)
		evicted = evict_until_fit(cat, &user, &asked);
	return evicted + evict_until_fit(cat, &all, &asked);
}

/* ---- layouts ---- */

/* Bytes that the layout takes, unless this count has seen it. */
static uint64_t layout_bytes(const struct sk_catalogue *cat,
			     struct sk_cat_layout *layout)
{
	if (!layout || layout->counted == cat->counts)
		return 0;
	layout->counted = cat->counts;
	return sk_layout_memory(layout->layout);
}

static uint64_t layouts_of(struct sk_catalogue *cat, uid_t uid)
{
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	struct sk_cat_job *job;
	uint64_t bytes = 0;

	cat->counts++;
	sk_link_each(job, &cat->jobs, link) {
		cat->visits++;
		if (job->uid != uid)
			continue;
		sk_link_each(run, &job->runs, link)
		sk_link_each(state, &run->states, link) {
			bytes += layout_bytes(cat, state->layouts[0]);
			bytes += layout_bytes(cat, state->layouts[1]);
		}
	}
	return bytes;
}

/* Bytes of those that are not counted already: who registers again, as whoever
 * restored does, describes what it has. */
static uint64_t new_layouts(const struct sk_catalogue *cat,
			    const struct sk_layout *const layouts[2])
{
	const struct sk_cat_layout *known;
	uint64_t bytes = 0;

	for (int kind = 0; kind < 2; kind++) {
		if (!layouts[kind])
			continue;
		known = sk_cat_layout_find(cat, layouts[kind]);
		if (!known || !known->layout->header ||
		    known->counted != cat->counts)
			bytes += sk_layout_memory(layouts[kind]);
	}
	return bytes;
}

/* What waits for ranks that did not come back. */
static void trim_user(struct sk_catalogue *cat, uid_t uid)
{
	struct sk_cat_job *job;

	sk_link_each(job, &cat->jobs, link) {
		cat->visits++;
		if (job->uid != uid)
			continue;
		(void)sk_cat_trim_free(cat, job);
		(void)sk_cat_job_trim(job);
	}
}

int sk_cat_room_for_layouts(struct sk_catalogue *cat, uid_t uid,
			    const struct sk_layout *const layouts[2],
			    struct sk_err *err)
{
	char want[32], most[32], had[32];
	uint64_t asked = 0, used;

	if (!cat->user_layouts || !uid || uid == cat->owner)
		return 0;
	for (int kind = 0; kind < 2; kind++)
		asked += layouts[kind] ? sk_layout_memory(layouts[kind]) : 0;
	/* All users' together are at least as much. */
	if (fits_in(cat->layout_bytes, asked, cat->user_layouts))
		return 0;
	used = layouts_of(cat, uid);
	asked = new_layouts(cat, layouts);
	if (!asked || fits_in(used, asked, cat->user_layouts))
		return 0;
	trim_user(cat, uid);
	used = layouts_of(cat, uid);
	asked = new_layouts(cat, layouts);
	if (fits_in(used, asked, cat->user_layouts))
		return 0;
	return sk_err_set(err, -EDQUOT, "descriptions of tensors would take %s "
			  "more, but of the %s that those of one user may "
			  "take only %s can be had; describe fewer tensors, "
			  "end other ranks, or give users more "
			  "--user-layouts",
			  sk_size_format(asked, want, sizeof(want)),
			  sk_size_format(cat->user_layouts, most,
					 sizeof(most)),
			  sk_size_format(left_of(cat->user_layouts, used),
					 had, sizeof(had)));
}
