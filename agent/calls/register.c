/* SPDX-License-Identifier: Apache-2.0 */
/*
 * REGISTER: the layouts are read and checked in the background, unless the
 * rank names what it has here already; then the disk is asked for older runs,
 * then the rank gets its run and its slots.
 */
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "calls/call.h"
#include "calls/device.h"
#include "calls/enter.h"
#include "calls/quarantine.h"
#include "disk/restoring.h"
#include "disk/retain.h"
#include "disk/stored.h"
#include "memory/heap.h"
#include "memory/memory.h"
#include "session/request.h"

#define TRIM_NS (UINT64_C(120) * 1000000000)	/* what a restart may take */
/* Clients take an agent for dead that says nothing for longer. */
#define DRAIN_MS 5000u
#define PARSING 4u				/* times the header, of heap */
#define MAX_WAITING 512u			/* of one user */

struct registration {
	struct request request;
	struct lane_work work;
	struct stored_wish wish;
	struct sk_wire_register reg;
	uid_t uid;
	bool comes;		/* restoring_came() is owed */
	int fd;			/* the layouts' memory, a client's */
	struct sk_layout *layouts[2];
	int result;		/* of reading them; then of the look */
	struct sk_err err;
	struct sk_err unended;	/* why it waited in vain; "": it did not */
};

/* ---- in the background: the layouts ---- */

static int read_all(const struct sk_os *os, int fd, void *buf, size_t size,
		    uint64_t at)
{
	char *to = buf;

	while (size) {
		ssize_t n = os->pread(os, fd, to, size, at);

		if (n <= 0)
			return n < 0 ? (int)n : -ENODATA;
		to += n;
		at += (uint64_t)n;
		size -= (size_t)n;
	}
	return 0;
}

static int check_layout(const struct sk_wire_register *reg, int kind,
			const struct sk_layout *l, struct sk_err *err)
{
	if (strcmp(l->job, reg->id.job) != 0 || l->rank != reg->id.rank ||
	    l->world != reg->id.world || (int)l->kind != kind)
		return sk_err_set(err, -EINVAL, "a layout of job \"%.40s\", "
				  "rank %" PRId32 " of %" PRId32 ", came with "
				  "the registration of job \"%.40s\", rank %"
				  PRId32 " of %" PRId32, l->job, l->rank,
				  l->world, reg->id.job, reg->id.rank,
				  reg->id.world);
	if (l->header_bytes != reg->header_bytes[kind] ||
	    l->image_bytes != reg->image_bytes[kind])
		return sk_err_set(err, -EINVAL, "rank %" PRId32 " registers "
				  "%" PRIu64 " bytes of header and %" PRIu64
				  " of image, its layout has %" PRIu64
				  " and %" PRIu64, l->rank,
				  reg->header_bytes[kind],
				  reg->image_bytes[kind], l->header_bytes,
				  l->image_bytes);
	return 0;
}

static int read_layout(struct registration *g, int kind, uint64_t at)
{
	const struct sk_os *os = g->request.agent->os;
	uint64_t bytes = g->reg.header_bytes[kind];
	_cleanup_free_ void *header = malloc(bytes);
	int r;

	if (!header)
		return sk_err_set(&g->err, -ENOMEM, "no memory for a header of "
				  "%" PRIu64 " bytes", bytes);
	/* A copy of our own: the client can write to the memory. */
	r = read_all(os, g->fd, header, bytes, at);
	if (r < 0)
		return sk_err_errno(&g->err, r, "cannot read the layout of "
				    "rank %" PRId32, g->reg.id.rank);
	r = sk_recall_get(g->request.agent->recall, g->reg.id.job,
			  g->reg.id.rank, (enum sk_image_kind)kind, header,
			  bytes, g->reg.image_bytes[kind], &g->layouts[kind],
			  &g->err);
	if (r < 0)
		return sk_err_prefix(&g->err, r, "the layout of rank %" PRId32
				     " of job \"%.40s\"", g->reg.id.rank,
				     g->reg.id.job);
	return check_layout(&g->reg, kind, g->layouts[kind], &g->err);
}

static void parse(struct lane_work *work)
{
	struct registration *g = sk_link_object(work, struct registration,
						work);
	int r;

	r = read_layout(g, SK_IMAGE_PRIMARY, 0);
	if (r == 0 && g->reg.header_bytes[1])
		r = read_layout(g, SK_IMAGE_REPLICA, g->reg.header_bytes[0]);
	g->result = r;
}

/* ---- the answer ---- */

static void registration_release(struct request *q)
{
	struct registration *g = sk_link_object(q, struct registration,
						request);

	if (g->comes)
		restoring_came(q->agent, g->reg.id.job, g->uid);
	if (!(g->reg.flags & SK_REGISTER_KNOWN)) {
		closer_close(q->agent->closer, g->uid, g->fd);
		heap_freed(q->agent, PARSING * (g->reg.header_bytes[0] +
						g->reg.header_bytes[1]));
	}
	sk_layout_free(g->layouts[0]);
	sk_layout_free(g->layouts[1]);
	free(g);
}

static int registration_outcome(struct request *q, struct sk_err *err);
static void registration_drained(struct request *q, int status,
				 const struct sk_err *err);

/* The lane has it until it wishes for something. */
static bool registration_take_back(struct request *q)
{
	struct registration *g = sk_link_object(q, struct registration,
						request);

	return g->wish.granted && stored_unwish(&g->wish);
}

static const struct request_kind registration_kind = {
	.outcome = registration_outcome,
	.answer = registration_drained,
	.take_back = registration_take_back,
	.release = registration_release,
};

static void trim_left(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, trim_timer);
	char text[32];
	uint64_t bytes = sk_cat_trim_free(&a->cat, NULL);

	if (bytes)
		log_info(a, "gave back %s of ranks that did not come back",
			 sk_size_format(bytes, text, sizeof(text)));
	agent_changed(a);
}

static void fill_reply(const struct registration *g,
		       const struct sk_cat_state *state, struct sk_msg *msg)
{
	struct sk_wire_register_reply *reply = &msg->body.reg_reply;

	reply->state = state->id;
	reply->run = state->run->number;
	reply->run_id = state->run->id;
	reply->slots = state->n_slots;
	reply->slot_bytes = state->n_slots *
		sk_cat_slot_bytes(g->reg.image_bytes, (uint64_t[2]){ 0 });
}

static void rank_entered(struct agent *a, const struct sk_cat_state *state,
			 uint64_t slot_bytes)
{
	const struct sk_cat_run *run = state->run;
	char bytes[32];

	log_info(a, "rank %" PRId32 " of %" PRId32 " of job \"%s\" registered "
		 "in run %" PRIu64 ": %" PRIu32 " slots, %s", state->rank,
		 run->world, run->job->name, run->number, state->n_slots,
		 sk_size_format(slot_bytes, bytes, sizeof(bytes)));
	/* A restore may take long; its rank still wants the slots. */
	a->trim_timer.fire = trim_left;
	if (state->n_slots)
		timer_set(&a->loop.timers, &a->trim_timer,
			  agent_now(a) + TRIM_NS);
}

/* What is to stay on disk; where nothing is said of it, what an agent before
 * this one has left undone goes all the same. */
static void keep(const struct registration *g, struct sk_cat_job *job)
{
	const struct sk_wire_retention *w = &g->reg.retention;
	const struct sk_retention said = {
		.keep_last = w->keep_last, .keep_every = w->keep_every,
		.keep_age_s = w->keep_age_s, .keep_bytes = w->keep_bytes,
	};

	if (g->reg.flags & SK_REGISTER_RETAIN)
		retain_by_job(g->request.agent, job, &said);
	else
		retain_due(g->request.agent, job);
}

static int enter(struct registration *g, struct sk_msg *msg,
		 struct sk_err *err)
{
	struct agent *a = g->request.agent;
	struct sk_cat_state *state;
	int r;

	r = rank_enter(g->request.session, &g->reg, g->layouts, &state, err);
	/* It is no other job that has its place: it may come again. */
	if (r == -EEXIST && g->unended.text[0])
		return sk_err_set(err, -EAGAIN, "%s", g->unended.text);
	if (r < 0)
		return r;
	keep(g, state->run->job);
	fill_reply(g, state, msg);
	rank_entered(a, state, msg->body.reg_reply.slot_bytes);
	return 0;
}

/* @r < 0: it is refused, with that sentence. */
static void registration_answer(struct registration *g, int r,
				const struct sk_err *why)
{
	struct agent *a = g->request.agent;
	struct sk_msg msg = { 0 };
	struct sk_err err = { "" };

	g->request.busy = false;
	if (r < 0)
		err = *why;
	else if (g->request.session)
		r = enter(g, &msg, &err);
	if (r < 0)
		log_warning(a, "refused rank %" PRId32 " of job \"%s\": %s",
			    g->reg.id.rank, g->reg.id.job, err.text);
	request_answer(&g->request, r, r == 0 ? &msg : NULL, NULL, 0, &err);
	agent_changed(a);
}

/* The runs that the disk names, as far as it could be read. Where nothing of
 * it could, memory alone may know the job; a job that nobody knows might be
 * there, and must not begin again. */
static int learn_runs(struct registration *g, int r, struct sk_err *err)
{
	const struct stored_wish *w = &g->wish;
	struct agent *a = g->request.agent;
	struct sk_cat_job *job = sk_cat_job_find(&a->cat, w->job, w->uid);

	if (r == 0 && w->newest_run) {
		job = sk_cat_job_get(&a->cat, w->job, w->uid);
		if (!job)
			return sk_err_set(err, -ENOMEM, "no memory for a job");
		sk_cat_run_seen(job, w->newest_run);
	}
	if (r == 0 && w->unreadable && !w->newest_run) {
		*err = w->first;
		r = -EIO;
	}
	if (r != -EIO)
		return r;
	if (job && job->newest_run) {
		log_warning(a, "runs on the store are not known: %s",
			    err->text);
		return 0;
	}
	return sk_err_prefix(err, r, "job \"%.40s\" may have run before, and "
			     "the store cannot be read", w->job);
}

/* What it asked for last may still be under way, or its end not heard yet. */
static bool last_life_ends(const struct sk_cat_job *job, int32_t rank)
{
	const struct sk_cat_state *state;
	const struct sk_cat_run *run;

	sk_link_each(run, &job->runs, link) {
		state = sk_cat_state_find(run, rank);
		if (state && state->living && state->owner &&
		    session_is_ending(state->owner))
			return true;
	}
	return false;
}

/* The rank's last life may still have its place in the run. */
static int registration_outcome(struct request *q, struct sk_err *err)
{
	const struct registration *g = sk_link_object(q, struct registration,
						      request);
	const struct sk_cat_job *job;

	quarantine_forgive(q->agent, q->session);
	job = sk_cat_job_find(&q->agent->cat, g->reg.id.job, q->session->uid);
	if (job && sk_cat_rank_detained(job, g->reg.id.rank))
		return sk_err_set(err, -EAGAIN, "the process of the rank's last "
				  "life has not ended yet");
	if (job && last_life_ends(job, g->reg.id.rank))
		return sk_err_set(err, -EAGAIN, "the rank's last life is being "
				  "ended");
	if (!job || !device_draining(q->agent, job))
		return 0;
	return sk_err_set(err, -EAGAIN, "what a rank left on a GPU is still "
			  "being brought to memory");
}

static void registration_drained(struct request *q, int status,
				 const struct sk_err *err)
{
	struct registration *g = sk_link_object(q, struct registration,
						request);

	struct sk_err why = g->err;
	int r;

	/* It was waited for as long as a client can be kept waiting. */
	(void)status;
	(void)err;
	if (q->session)
		(void)registration_outcome(q, &g->unended);
	/* The job may have gone with its last life, and be another one now. */
	r = learn_runs(g, g->result, &why);
	registration_answer(g, r, &why);
}

static void registration_granted(struct stored_wish *wish, int r,
				 const struct sk_err *why)
{
	struct registration *g = sk_link_object(wish, struct registration,
						wish);
	struct sk_err err = *why;

	g->result = r;
	g->err = *why;
	r = learn_runs(g, r, &err);
	if (r < 0 || !g->request.session ||
	    registration_outcome(&g->request, &err) == 0) {
		registration_answer(g, r, &err);
		return;
	}
	g->request.busy = false;
	request_await_change_for(&g->request, DRAIN_MS);
}

/* On to the disk: its runs have numbers too. */
static void ask_disk(struct registration *g)
{
	if (g->reg.flags & SK_REGISTER_LATER && g->request.agent->store)
		g->comes = restoring_comes(g->request.agent, g->reg.id.job,
					   g->uid);
	g->wish = (struct stored_wish){
		.granted = registration_granted,
		.party = g->request.session->chore.party,
		.range = { .step = -1 }, .enters = true,
		.uid = g->request.session->uid, .restores = g->comes,
	};
	memcpy(g->wish.job, g->reg.id.job, sizeof(g->wish.job));
	stored_scan(g->request.agent, &g->wish);
}

/* Back from the background. */
static void layouts_parsed(struct lane_work *work)
{
	struct registration *g = sk_link_object(work, struct registration,
						work);

	if (!g->request.session || g->result < 0)
		registration_answer(g, g->result, &g->err);
	else
		ask_disk(g);
}

/* ---- the call ---- */

/* Of images of both kinds; replicas need not be. */
static int check_sizes(const struct sk_wire_register *reg, struct sk_err *err)
{
	for (int kind = 0; kind < 2; kind++) {
		uint64_t head = reg->header_bytes[kind];
		uint64_t image = reg->image_bytes[kind];

		if (kind && !head && !image)
			continue;
		if (head < SK_PAGE || head % SK_PAGE ||
		    head > SK_HEADER_MAX + 2 * SK_PAGE || image < head ||
		    image > INT64_MAX / 2)
			return sk_err_set(err, -EINVAL, "an image of %" PRIu64
					  " bytes with a header of %" PRIu64
					  " cannot be", image, head);
	}
	return 0;
}

static int check_numbers(struct call *c, const struct sk_wire_register *reg)
{
	struct sk_err *err = &c->err;

	if (!reg->id.job[0] || reg->id.rank < 0 || reg->id.world < 1 ||
	    reg->id.rank >= reg->id.world)
		return sk_err_set(err, -EINVAL, "rank %" PRId32 " of %" PRId32
				  " of job \"%s\" cannot be", reg->id.rank,
				  reg->id.world, reg->id.job);
	if (reg->id.run == SK_RUN_READERS)
		return sk_err_set(err, -EINVAL, "run %" PRIu64 " is kept for "
				  "readers", reg->id.run);
	if (reg->retention.keep_age_s > INT64_MAX ||
	    reg->retention.keep_bytes > INT64_MAX)
		return sk_err_set(err, -EINVAL, "an age or a number of bytes "
				  "to keep is beyond 2^63");
	if (reg->flags & SK_REGISTER_BEGUN &&
	    (!reg->begun.run || reg->begun.run > SK_RUN_MAX ||
	     reg->begun.step < 0))
		return sk_err_set(err, -EINVAL, "step %" PRId64 " of run %"
				  PRIu64 ", which it began with, cannot be",
				  reg->begun.step, reg->begun.run);
	if (reg->flags & SK_REGISTER_KEEP &&
	    (reg->keep[0] < -1 || reg->keep[1] < -1))
		return sk_err_set(err, -EINVAL, "steps %" PRId64 " and %"
				  PRId64 " to keep cannot be", reg->keep[0],
				  reg->keep[1]);
	if (reg->slots < 2 || reg->slots > SK_STATE_SLOTS_MAX)
		return sk_err_set(err, -EINVAL, "%" PRIu32 " slots; a rank has "
				  "2 to %u", reg->slots, SK_STATE_SLOTS_MAX);
	return check_sizes(reg, err);
}

/* The memory must hold still in length while it is read. */
static int check_memory(struct call *c, const struct sk_wire_register *reg)
{
	const struct sk_os *os = c->agent->os;
	uint64_t want = reg->header_bytes[0] + reg->header_bytes[1];
	struct stat st;
	int seals;

	if (reg->flags & SK_REGISTER_KNOWN)
		return !c->n_fds ? 0 :
		       sk_err_set(&c->err, -EINVAL, "a registration by digests "
				  "comes with no descriptor");
	if (c->n_fds != 1)
		return sk_err_set(&c->err, -EINVAL, "a registration comes "
				  "with 1 descriptor, not %d", c->n_fds);
	seals = os->fcntl(os, c->fds[0], F_GET_SEALS, 0);
	if (seals < 0 || !(seals & F_SEAL_SHRINK) ||
	    os->fstat(os, c->fds[0], &st) < 0 || st.st_size < 0 ||
	    (uint64_t)st.st_size < want)
		return sk_err_set(&c->err, -EINVAL, "the layouts must come in "
				  "a memfd of at least %" PRIu64 " bytes that "
				  "is sealed against shrinking", want);
	return 0;
}

/* What this very rank had registered, or saved, before. */
static int find_layouts(struct call *c, struct registration *g)
{
	const struct sk_wire_register *reg = &g->reg;
	const struct sk_cat_job *job = sk_cat_job_find(&c->agent->cat,
						       reg->id.job, g->uid);
	struct sk_layout *l;
	int r = 0;

	for (int kind = 0; kind < 2 && r == 0; kind++) {
		if (!reg->header_bytes[kind])
			continue;
		l = job ? sk_cat_layout_known(job, reg->id.rank,
					      (enum sk_image_kind)kind,
					      &reg->known[kind]) : NULL;
		if (!l)
			return sk_err_set(&c->err, -ENODATA, "nothing that "
					  "rank %" PRId32 " of job \"%s\" has "
					  "here is described like that",
					  reg->id.rank, reg->id.job);
		g->layouts[kind] = sk_layout_ref(l);
		r = check_layout(reg, kind, l, &c->err);
	}
	return r;
}

static struct registration *new_registration(struct call *c, bool known,
					     int *ret)
{
	struct registration *g = calloc(1, sizeof(*g));

	if (!g) {
		*ret = sk_err_set(&c->err, -ENOMEM, "no memory for a rank");
		return NULL;
	}
	g->reg = c->in->body.reg;
	g->uid = c->session->uid;
	*ret = known ? find_layouts(c, g) : 0;
	if (*ret == 0)
		*ret = request_init(&g->request, &registration_kind,
				    c->session, c->in, 0, &c->err);
	if (*ret == 0)
		return g;
	sk_layout_free(g->layouts[0]);
	sk_layout_free(g->layouts[1]);
	free(g);
	return NULL;
}

static void go_on_parsing(struct call *c, struct registration *g)
{
	g->fd = sk_take_fd(&c->fds[0]);
	g->work.run = parse;
	g->work.finish = layouts_parsed;
	lanes_submit(&c->agent->lanes, g->uid, g->reg.id.job, &g->work);
}

int call_register(struct call *c)
{
	const struct sk_wire_register *reg = &c->in->body.reg;
	bool known = reg->flags & SK_REGISTER_KNOWN;
	struct registration *g;
	int r;

	r = sk_wire_check_id(&reg->id, &c->err);
	if (r == 0)
		r = check_numbers(c, reg);
	if (r == 0)
		r = check_memory(c, reg);
	if (r < 0)
		return r;
	if (!known &&
	    lanes_waiting(&c->agent->lanes, c->session->uid) >= MAX_WAITING)
		return sk_err_set(&c->err, -EBUSY, "%u registrations of uid %u "
				  "wait already; try again later", MAX_WAITING,
				  (unsigned)c->session->uid);
	g = new_registration(c, known, &r);
	if (!g)
		return r;
	g->request.busy = true;
	if (known)
		ask_disk(g);	/* which may be over by then, and it gone */
	else
		go_on_parsing(c, g);
	return CALL_LATER;
}
