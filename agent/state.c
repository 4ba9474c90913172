/* SPDX-License-Identifier: Apache-2.0 */
/* Registered ranks: runs, the budget, slots and faulting them in. */
#include "agent.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define POPULATE_PIECE ((uint64_t)32 << 20)

/* ---- faulting slots in ---- */

/* Owned jointly by the state and the task; whoever is last frees it. */
struct populate {
	struct sk_task task;
	struct agent *agent;
	struct sk_slot *slots;		/* copies of what is faulted in */
	size_t n;
	size_t pieces_of_one;		/* pieces of a slot: the largest */
	atomic_bool done, abandoned;
};

static void populate_piece(struct sk_task *task, size_t unit)
{
	struct populate *p = (struct populate *)task;
	/* All slots' first pieces first: each is useful soon. */
	struct sk_slot *slot = &p->slots[unit % p->n];
	uint64_t from = unit / p->n * POPULATE_PIECE, to = from + POPULATE_PIECE;

	if (from >= slot->bytes || atomic_load(&p->abandoned))
		return;
	/* No memory now: the slot is colder, a later store would fault. */
	(void)sk_slot_populate(p->agent->os, slot, from,
			       to < slot->bytes ? to : slot->bytes, NULL);
}

static void populate_done(struct sk_task *task)
{
	struct populate *p = (struct populate *)task;

	atomic_store(&p->done, true);
	wake(p->agent);
}

static struct populate *populate_start(struct agent *a, struct state *st)
{
	struct populate *p = calloc(1, sizeof(*p));
	uint64_t largest = 0;

	if (!p)
		return NULL;
	p->slots = calloc(2 * st->n_slots, sizeof(*p->slots));
	if (!p->slots) {
		free(p);
		return NULL;
	}
	for (uint32_t i = 0; i < st->n_slots; i++)
		for (int k = 0; k < 2; k++)
			if (st->slots[i].memory[k].fd >= 0) {
				p->slots[p->n] = st->slots[i].memory[k];
				if (p->slots[p->n].bytes > largest)
					largest = p->slots[p->n].bytes;
				p->n++;
			}
	p->agent = a;
	p->task.units = p->n * ((largest + POPULATE_PIECE - 1) /
				POPULATE_PIECE);
	p->task.run = populate_piece;
	p->task.done = populate_done;
	sk_pool_submit(a->pool, &p->task);
	return p;
}

bool state_ready(const struct state *st)
{
	return !st->populate || atomic_load(&st->populate->done);
}

/* ---- slots ---- */

void slot_release(struct agent *a, struct rank_slot *slot)
{
	for (int k = 0; k < 2; k++) {
		struct sk_cat_image *image = slot->image[k];

		slot->image[k] = NULL;
		if (!image)
			continue;
		image->slot = NULL;
		if (!image->on_disk)
			(void)sk_cat_drop_image(image);
	}
	slot->status = SLOT_FREE;
	(void)a;
}

static uint64_t slot_cost(const struct sk_layout *l)
{
	return l ? sk_round_up(l->image_bytes, SK_PAGE) : 0;
}

static int create_slots(struct agent *a, struct state *st, int numa_node,
			struct sk_err *err)
{
	char name[64];
	int r = 0;

	st->slots = calloc(st->n_slots, sizeof(*st->slots));
	if (!st->slots)
		return sk_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < st->n_slots; i++) {
		st->slots[i].state = st;
		st->slots[i].memory[0] = (struct sk_slot)SK_SLOT_NULL;
		st->slots[i].memory[1] = (struct sk_slot)SK_SLOT_NULL;
	}
	for (uint32_t i = 0; i < st->n_slots && r >= 0; i++)
		for (int k = 0; k < 2 && r >= 0; k++) {
			if (!st->layouts[k])
				continue;
			(void)snprintf(name, sizeof(name),
				       "shardkeep:%.24s:%d:%u%c",
				       st->job->name, st->rank, i,
				       k ? 'r' : 'p');
			r = sk_slot_create(a->os, name,
					   st->layouts[k]->image_bytes,
					   numa_node,
					   &st->slots[i].memory[k], err);
		}
	return r;
}

static void state_free(struct agent *a, struct state *st)
{
	if (st->populate) {
		atomic_store(&st->populate->abandoned, true);
		while (!atomic_load(&st->populate->done))
			usleep(1000);	/* the piece under way */
		free(st->populate->slots);
		free(st->populate);
	}
	for (uint32_t i = 0; st->slots && i < st->n_slots; i++)
		for (int k = 0; k < 2; k++)
			sk_slot_destroy(a->os, &st->slots[i].memory[k]);
	free(st->slots);
	sk_layout_free(st->layouts[0]);
	sk_layout_free(st->layouts[1]);
	a->used -= st->charged;
	free(st);
}

/* ---- the budget ---- */

static void format_bytes(uint64_t n, char *buf, size_t size)
{
	if (n >= 1u << 30)
		(void)snprintf(buf, size, "%.1f GiB",
			       (double)n / (1u << 30));
	else
		(void)snprintf(buf, size, "%.1f MiB",
			       (double)n / (1u << 20));
}

/* "llama 3.0 GiB, ..." of the jobs that hold most. */
static void name_holders(const struct agent *a, char *buf, size_t size)
{
	const struct sk_cat_job *told[3] = { 0 };
	size_t at = 0;

	buf[0] = 0;
	for (int i = 0; i < 3; i++) {
		const struct sk_cat_job *most = NULL;
		uint64_t most_bytes = 0;
		char amount[32];

		for (struct sk_cat_job *j = a->cat.jobs; j; j = j->next) {
			uint64_t bytes = 0;

			for (struct state *s = a->states; s; s = s->next)
				bytes += s->job == j ? s->charged : 0;
			if (bytes > most_bytes && j != told[0] && j != told[1]) {
				most = j;
				most_bytes = bytes;
			}
		}
		if (!most || at >= size)
			return;
		told[i] = most;
		format_bytes(most_bytes, amount, sizeof(amount));
		at += (size_t)snprintf(buf + at, size - at, "%s%.40s %s",
				       at ? ", " : "", most->name, amount);
	}
}

static int admit(struct agent *a, uint64_t bytes, struct sk_err *err)
{
	char asked[32], left[32], all[32], holders[160];

	state_collect(a);
	while (bytes > a->o.memory - a->used && bytes <= a->o.memory &&
	       snapshot_evict_oldest(a))
		state_collect(a);
	if (bytes <= a->o.memory - a->used)
		return 0;
	format_bytes(bytes, asked, sizeof(asked));
	format_bytes(a->o.memory - a->used, left, sizeof(left));
	format_bytes(a->o.memory, all, sizeof(all));
	name_holders(a, holders, sizeof(holders));
	return sk_err_set(err, -ENOMEM, "%s of slots were asked for, %s of "
			  "the agent's %s are free%s%s; raise --memory or "
			  "evict", asked, left, all,
			  holders[0] ? "; held by " : "", holders);
}

/* ---- runs ---- */

struct state *state_of_rank(struct agent *a, const char *job, uint64_t run,
			    int32_t rank)
{
	struct state *found = NULL;

	for (struct state *st = a->states; st; st = st->next)
		if (!strcmp(st->job->name, job) && st->run == run &&
		    st->rank == rank && (!found || st->session))
			found = st;
	return found;
}

/* The newest run may be joined by a rank that was never in it, while none of
 * its ranks has died or left. */
static bool may_join(struct agent *a, const struct sk_cat_job *job,
		     int32_t rank, int32_t world)
{
	bool any = false;

	for (struct state *st = a->states; st; st = st->next) {
		if (st->job != job || st->run != job->newest_run)
			continue;
		if (!st->session || st->world != world || st->rank == rank)
			return false;
		any = true;
	}
	return any;
}

static int choose_run(struct agent *a, struct sk_cat_job *job,
		      const struct sk_wire_id *id, uint64_t *ret,
		      struct sk_err *err)
{
	uint64_t run = id->run;
	struct state *st;

	if (!run)
		run = may_join(a, job, id->rank, id->world) ?
		      job->newest_run : job->newest_run + 1;
	st = state_of_rank(a, job->name, run, id->rank);
	if (st && st->session)
		return sk_err_set(err, -EEXIST, "rank %d of job \"%s\", run "
				  "%llu, is alive in process %d; are there "
				  "two jobs of one name?", id->rank, job->name,
				  (unsigned long long)run, st->session->pid);
	for (st = a->states; st && run < job->newest_run; st = st->next)
		if (st->job == job && st->session && st->run > run)
			return sk_err_set(err, -ESTALE, "run %llu of job "
					  "\"%s\" is over: run %llu is alive",
					  (unsigned long long)run, job->name,
					  (unsigned long long)st->run);
	*ret = run;
	return 0;
}

/* ---- registering ---- */

static int parse_layouts(const struct sk_wire_register *q, int fd,
			 struct sk_layout *ret[2], struct sk_err *err)
{
	uint64_t total = q->header_bytes[0] + q->header_bytes[1];
	struct stat st;
	char *map;
	int r = 0;

	if (q->header_bytes[0] < 8 || q->header_bytes[0] > SK_HEADER_MAX + 8 ||
	    q->header_bytes[1] > SK_HEADER_MAX + 8 || fstat(fd, &st) < 0 ||
	    (uint64_t)st.st_size < total)
		return sk_err_set(err, -EINVAL, "a layout of %llu bytes",
				  (unsigned long long)q->header_bytes[0]);
	/* A private copy: whoever sent it may go on writing, or shrink it. */
	map = malloc(total);
	if (!map)
		return sk_err_set(err, -ENOMEM, "out of memory for a layout");
	for (uint64_t at = 0; at < total && r >= 0;) {
		ssize_t n = pread(fd, map + at, total - at, (off_t)at);

		if (n <= 0)
			r = sk_err_set(err, -EINVAL, "a layout cannot be "
				       "read");
		else
			at += (uint64_t)n;
	}
	if (r >= 0)
		r = sk_layout_parse(map, q->header_bytes[0],
				    q->image_bytes[0], &ret[0], err);
	if (r >= 0 && q->header_bytes[1])
		r = sk_layout_parse(map + q->header_bytes[0],
				    q->header_bytes[1], q->image_bytes[1],
				    &ret[1], err);
	free(map);
	return r;
}

static bool is_of(const struct sk_layout *l, const struct sk_wire_id *id,
		  enum sk_image_kind kind)
{
	return !l || (!strcmp(l->job, id->job) && l->rank == id->rank &&
		      l->world == id->world && l->kind == kind);
}

static int check_register(struct agent *a, struct session *s,
			  const struct sk_wire_register *q,
			  struct sk_err *err)
{
	unsigned n = 0;

	if (!q->id.job[0] || q->id.rank < 0 || q->id.rank >= q->id.world)
		return sk_err_set(err, -EINVAL, "rank %d of %d of job \"%s\"",
				  q->id.rank, q->id.world, q->id.job);
	if (q->slots < 2 || q->slots > SLOTS_MAX)
		return sk_err_set(err, -EINVAL, "%u slots, there may be 2 to "
				  "%d", q->slots, SLOTS_MAX);
	for (struct state *st = a->states; st; st = st->next)
		n += st->uid == s->uid;
	if (n >= STATES_PER_UID_MAX)
		return sk_err_set(err, -EUSERS, "user %d has %u states "
				  "registered already", s->uid, n);
	return 0;
}

static int job_of(struct agent *a, struct session *s, const char *name,
		  struct sk_cat_job **ret, struct sk_err *err)
{
	struct sk_cat_job *job;

	disk_scan_job(a, name);
	job = sk_cat_job(&a->cat, name, s->uid);
	if (!job)
		return sk_err_set(err, -ENOMEM, "out of memory");
	if (job->uid != s->uid && s->uid != 0)
		return sk_err_set(err, -EEXIST, "the job name \"%s\" is "
				  "another user's", name);
	*ret = job;
	return 0;
}

static int state_fill(struct agent *a, struct state *st,
		      const struct sk_wire_register *q, struct sk_err *err)
{
	uint64_t bytes = st->n_slots * (slot_cost(st->layouts[0]) +
					slot_cost(st->layouts[1]));
	int r = admit(a, bytes, err);

	if (r < 0)
		return r;
	st->charged = bytes;
	a->used += bytes;
	r = create_slots(a, st, q->numa_node, err);
	if (r < 0)
		return r;
	st->populate = populate_start(a, st);
	return 0;
}

int state_register(struct agent *a, struct session *s, struct sk_msg *msg,
		   int fd, struct sk_err *err)
{
	const struct sk_wire_register q = msg->body.reg;
	struct state *old = q.state ? state_find(a, s, q.state) : NULL;
	struct state *st;
	int r = check_register(a, s, &q, err);

	if (r < 0)
		return r;
	st = calloc(1, sizeof(*st));
	if (!st)
		return sk_err_set(err, -ENOMEM, "out of memory");
	st->session = s;
	st->uid = s->uid;
	st->rank = q.id.rank;
	st->world = q.id.world;
	st->flush_every = q.flush_every ? q.flush_every : 1;
	st->n_slots = q.slots;
	r = parse_layouts(&q, fd, st->layouts, err);
	if (r >= 0 && (!is_of(st->layouts[0], &q.id, SK_IMAGE_PRIMARY) ||
		       !is_of(st->layouts[1], &q.id, SK_IMAGE_REPLICA)))
		r = sk_err_set(err, -EINVAL, "the layout is of another rank");
	if (r >= 0)
		r = job_of(a, s, q.id.job, &st->job, err);
	if (r >= 0 && old) {
		/* Described anew: the same rank of the same run. */
		st->run = old->run;
		old->session = NULL;
	} else if (r >= 0) {
		r = choose_run(a, st->job, &q.id, &st->run, err);
	}
	if (r >= 0)
		r = state_fill(a, st, &q, err);
	if (r < 0) {
		if (old)
			old->session = s;
		state_free(a, st);
		return r;
	}
	if (st->run > st->job->newest_run)
		st->job->newest_run = st->run;
	st->id = ++a->next_state;
	st->next = a->states;
	a->states = st;
	say(a, 2, "rank %d of %d of job \"%s\", run %llu, registered by "
	    "process %d: %u slots of %llu bytes", st->rank, st->world,
	    st->job->name, (unsigned long long)st->run, s->pid, st->n_slots,
	    (unsigned long long)(st->charged / st->n_slots));
	memset(&msg->body, 0, sizeof(msg->body));
	msg->body.reg_reply = (struct sk_wire_register_reply){
		.state = st->id, .run = st->run, .slot_bytes = st->charged,
		.slots = st->n_slots };
	return 0;
}

struct state *state_find(struct agent *a, const struct session *s,
			 uint64_t id)
{
	for (struct state *st = a->states; st; st = st->next)
		if (st->id == id && st->session == s)
			return st;
	return NULL;
}

/* ---- leaving ---- */

static bool run_alive(struct agent *a, const struct sk_cat_job *job,
		      uint64_t run)
{
	for (struct state *st = a->states; st; st = st->next)
		if (st->job == job && st->run == run && st->session)
			return true;
	return false;
}

void state_leave(struct agent *a, struct state *st, bool in_order)
{
	st->session = NULL;
	for (uint32_t i = 0; i < st->n_slots; i++)
		if (st->slots[i].status == SLOT_FILLING) {
			st->slots[i].status = SLOT_FREE;
			a->count.discarded++;
			say(a, 1, "rank %d of job \"%s\" left while it filled "
			    "step %llu; that image is discarded", st->rank,
			    st->job->name,
			    (unsigned long long)st->slots[i].step);
		}
	say(a, 2, "rank %d of job \"%s\", run %llu, %s", st->rank,
	    st->job->name, (unsigned long long)st->run,
	    in_order ? "left" : "is gone");
	if (!run_alive(a, st->job, st->run))
		job_ended(a, st->job, st->run);
}

static bool useless(const struct state *st)
{
	if (st->session)
		return false;
	for (uint32_t i = 0; i < st->n_slots; i++)
		if (st->slots[i].status != SLOT_FREE)
			return false;
	return true;
}

void state_collect(struct agent *a)
{
	struct state **at = &a->states;

	while (*at) {
		struct state *st = *at;

		if (!useless(st)) {
			at = &st->next;
			continue;
		}
		*at = st->next;
		state_free(a, st);
	}
}
