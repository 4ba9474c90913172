/* SPDX-License-Identifier: Apache-2.0 */
/*
 * REGISTER: the layouts are read and checked in the background, then the
 * disk is asked for older runs, then the rank gets its run and its slots.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "agent.h"

#define TRIM_NS (UINT64_C(120) * 1000000000)	/* what a restart may take */

struct registration {
	struct work work;
	struct request *request;
	struct sk_wire_register reg;
	int fd;
	struct sk_layout *layouts[2];
	int result;
	struct sk_err err;
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
				  "an image of %" PRIu64 " bytes, its layout "
				  "has %" PRIu64, l->rank,
				  reg->image_bytes[kind], l->image_bytes);
	return 0;
}

static int read_layout(struct registration *g, int kind, uint64_t at)
{
	const struct sk_os *os = g->work.agent->os;
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
	r = sk_recall_get(g->work.agent->recall, g->reg.id.job,
			  g->reg.id.rank, (enum sk_image_kind)kind, header,
			  bytes, g->reg.image_bytes[kind], &g->layouts[kind],
			  &g->err);
	if (r < 0)
		return sk_err_prefix(&g->err, r, "the layout of rank %" PRId32
				     " of job \"%.40s\"", g->reg.id.rank,
				     g->reg.id.job);
	return check_layout(&g->reg, kind, g->layouts[kind], &g->err);
}

static void parse(struct work *work)
{
	struct registration *g = sk_link_object(work, struct registration,
						work);
	int r;

	r = read_layout(g, SK_IMAGE_PRIMARY, 0);
	if (r == 0 && g->reg.header_bytes[1])
		r = read_layout(g, SK_IMAGE_REPLICA, g->reg.header_bytes[0]);
	g->result = r;
}

static void registration_free(struct registration *g)
{
	sk_close_fd(g->fd);
	sk_layout_free(g->layouts[0]);
	sk_layout_free(g->layouts[1]);
	free(g);
}

/* ---- the slots ---- */

static bool fit_for_others(const struct sk_cat_slot *slot)
{
	const struct memory *m = slot->memory;

	/* Its writer alone has it mapped, and nobody else can. */
	return !m->sealed_writes && !m->result;
}

static int new_slot(struct agent *a, struct sk_cat_state *state,
		    const uint64_t kind_bytes[2], struct sk_err *err)
{
	struct memory *m;
	char name[64];
	int r;

	(void)snprintf(name, sizeof(name), "shardkeep:%.40s:%" PRId32,
		       state->run->job->name, state->rank);
	r = memory_new(a, name, kind_bytes, state->numa_node,
		       state->n_slots, &m, err);
	if (r < 0)
		return r;
	if (sk_cat_slot_add(state, kind_bytes, m))
		return 0;
	memory_release(m);
	return sk_err_set(err, -ENOMEM, "no memory for a slot");
}

/*
 * Free slots of the rank's last life first, then new ones, for which old
 * images must make room, and last of all slots whose old image still stands
 * in them: they serve when newer images are complete.
 */
static int get_slots(struct agent *a, struct sk_cat_state *state,
		     const struct sk_wire_register *reg, struct sk_err *err)
{
	uint64_t kinds[2], bytes = sk_cat_slot_bytes(reg->image_bytes, kinds);
	uint64_t asked;
	int r;

	while (state->n_slots < reg->slots &&
	       sk_cat_slot_inherit(state, kinds, fit_for_others))
		;
	if (!sk_mul_u64(bytes, reg->slots - state->n_slots, &asked))
		asked = UINT64_MAX;
	r = sk_cat_make_room(&a->cat, asked, state->run->job, err);
	if (r > 0)
		a->counts.evictions += (uint64_t)r;
	while (r < 0 && state->n_slots < reg->slots &&
	       sk_cat_slot_adopt(state, kinds, fit_for_others)) {
		asked = bytes * (reg->slots - state->n_slots);
		r = sk_cat_make_room(&a->cat, asked, state->run->job, err);
	}
	for (; r >= 0 && state->n_slots < reg->slots; )
		r = new_slot(a, state, kinds, err);
	if (r == -ENOMEM)
		a->counts.refused_memory++;
	return r < 0 ? r : 0;
}

/* ---- the state ---- */

static unsigned states_of(const struct agent *a, uid_t uid)
{
	struct sk_cat_state *state;
	struct sk_cat_run *run;
	struct sk_cat_job *job;
	unsigned n = 0;

	sk_link_each(job, &a->cat.jobs, link) {
		if (job->uid != uid)
			continue;
		sk_link_each(run, &job->runs, link)
		sk_link_each(state, &run->states, link)
			n += state->living;
	}
	return n;
}

static int take_layouts(struct agent *a, struct registration *g,
			struct sk_cat_layout *ret[2], struct sk_err *err)
{
	ret[0] = sk_cat_layout_take(&a->cat, sk_take_ptr(g->layouts[0]));
	ret[1] = NULL;
	if (ret[0] && g->layouts[1]) {
		ret[1] = sk_cat_layout_take(&a->cat,
					    sk_take_ptr(g->layouts[1]));
		if (!ret[1]) {
			sk_cat_layout_unref(ret[0]);
			ret[0] = NULL;
		}
	}
	return ret[0] ? 0 : sk_err_set(err, -ENOMEM, "no memory for a layout");
}

/* The state that the connection registers anew, or a run for a new one. */
static int find_run(struct agent *a, struct session *s,
		    const struct sk_wire_register *reg,
		    struct sk_cat_state **ret_old, struct sk_cat_run **ret_run,
		    struct sk_err *err)
{
	struct sk_cat_state *old = NULL;
	struct sk_cat_job *job;

	if (reg->state) {
		old = session_state(s, reg->state);
		if (!old || old->rank != reg->id.rank ||
		    old->run->world != reg->id.world ||
		    strcmp(old->run->job->name, reg->id.job) != 0)
			return sk_err_set(err, -ENOENT, "state %" PRIu64 " is "
					  "not rank %" PRId32 " of job \"%s\" "
					  "of this connection", reg->state,
					  reg->id.rank, reg->id.job);
		*ret_old = old;
		*ret_run = old->run;
		return 0;
	}
	if (states_of(a, s->uid) >= MAX_STATES)
		return sk_err_set(err, -EDQUOT, "uid %u has %u ranks here "
				  "already", (unsigned)s->uid, MAX_STATES);
	job = sk_cat_job_get(&a->cat, reg->id.job, s->uid);
	if (!job)
		return sk_err_set(err, -ENOMEM, "no memory for a job");
	*ret_old = NULL;
	return sk_cat_run_open(job, reg->id.run, reg->id.rank, reg->id.world,
			       ret_run, err);
}

static int enter(struct agent *a, struct session *s, struct registration *g,
		 struct sk_cat_state **ret_state, struct sk_err *err)
{
	const struct sk_wire_register *reg = &g->reg;
	struct sk_cat_state *old, *state;
	struct sk_cat_layout *layouts[2];
	struct sk_cat_run *run;
	int r;

	if (a->stopping)
		return sk_err_set(err, -ESHUTDOWN, "the agent is stopping");
	r = find_run(a, s, reg, &old, &run, err);
	if (r == 0)
		r = take_layouts(a, g, layouts, err);
	if (r < 0)
		return r;
	state = sk_cat_state_new(run, reg->id.rank, layouts);
	if (!state) {
		sk_cat_layout_unref(layouts[0]);
		sk_cat_layout_unref(layouts[1]);
		return sk_err_set(err, -ENOMEM, "no memory for a rank");
	}
	state->owner = s;
	state->flush_every = reg->flush_every;
	state->numa_node = reg->numa_node;
	if (old)
		a->counts.discarded_client += sk_cat_state_replace(old, state);
	r = reg->flags & SK_REGISTER_LATER ? 0 :
					     get_slots(a, state, reg, err);
	if (r < 0) {
		sk_cat_state_cancel(state);
		return r;
	}
	*ret_state = state;
	return 0;
}

static void trim_left(struct timer *timer)
{
	struct agent *a = sk_link_object(timer, struct agent, trim_timer);
	char text[32];
	uint64_t bytes = sk_cat_trim_free(&a->cat, NULL);

	if (bytes)
		log_info(a, "gave back %s of ranks that did not come back",
			 sk_cat_bytes(bytes, text, sizeof(text)));
	agent_changed(a);
}

/* ---- the call ---- */

static void answer(struct request *q, int r, const struct sk_err *why)
{
	struct registration *g = q->thing;
	struct agent *a = q->agent;
	struct sk_cat_state *state = NULL;
	struct sk_msg msg = { 0 };
	struct sk_err err = { "" };
	char bytes[32];

	if (why)
		err = *why;
	if (r == 0 && q->session)
		r = enter(a, q->session, g, &state, &err);
	if (r < 0)
		log_warning(a, "refused rank %" PRId32 " of job \"%s\": %s",
			    g->reg.id.rank, g->reg.id.job, err.text);
	if (state) {
		struct sk_cat_run *run = state->run;

		msg.body.reg_reply.state = state->id;
		msg.body.reg_reply.run = run->number;
		msg.body.reg_reply.slots = state->n_slots;
		msg.body.reg_reply.slot_bytes = state->n_slots *
			sk_cat_slot_bytes(g->reg.image_bytes,
					  (uint64_t[2]){ 0 });
		log_info(a, "rank %" PRId32 " of %" PRId32 " of job \"%s\" "
			 "registered in run %" PRIu64 ": %" PRIu32 " slots, "
			 "%s", state->rank, run->world, run->job->name,
			 run->number, state->n_slots,
			 sk_cat_bytes(msg.body.reg_reply.slot_bytes, bytes,
				      sizeof(bytes)));
		/* A restore may take long; its rank still wants the slots. */
		a->trim_timer.fire = trim_left;
		if (state->n_slots)
			(void)timer_set(&a->timers, &a->trim_timer,
					agent_now(a) + TRIM_NS);
	}
	registration_free(g);
	request_answer(q, r, r == 0 ? &msg : NULL, NULL, 0, &err);
	memory_populate(a);
	agent_changed(a);
}

/* A store that cannot be read must not keep anybody from training. */
static void scanned(struct request *q, int r, const struct sk_err *err)
{
	if (r < 0 && r != -EACCES && r != -ESHUTDOWN) {
		log_warning(q->agent, "runs on the store are not known: %s",
			    err->text);
		r = 0;
	}
	answer(q, r, r < 0 ? err : NULL);
}

static void parsed(struct work *work)
{
	struct registration *g = sk_link_object(work, struct registration,
						work);
	struct request *q = g->request;

	q->busy = false;
	if (!q->session || g->result < 0) {
		answer(q, g->result, &g->err);
		return;
	}
	stored_scan(q->agent, q, g->reg.id.job, q->session->uid, false);
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
	if (reg->slots < 2 || reg->slots > MAX_SLOTS)
		return sk_err_set(err, -EINVAL, "%" PRIu32 " slots; a rank has "
				  "2 to %u", reg->slots, MAX_SLOTS);
	if (reg->flags & ~SK_REGISTER_LATER)
		return sk_err_set(err, -EINVAL, "registration flags %#x are "
				  "not known", reg->flags);
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

/* The memory must hold still in length while it is read. */
static int check_memory(struct call *c, const struct sk_wire_register *reg)
{
	uint64_t want = reg->header_bytes[0] + reg->header_bytes[1];
	struct stat st;
	int seals;

	if (c->n_fds != 1)
		return sk_err_set(&c->err, -EINVAL, "a registration comes "
				  "with 1 descriptor, not %d", c->n_fds);
	seals = fcntl(c->fds[0], F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK) ||
	    fstat(c->fds[0], &st) < 0 || st.st_size < 0 ||
	    (uint64_t)st.st_size < want)
		return sk_err_set(&c->err, -EINVAL, "the layouts must come in "
				  "a memfd of at least %" PRIu64 " bytes that "
				  "is sealed against shrinking", want);
	return 0;
}

int call_register(struct call *c)
{
	const struct sk_wire_register *reg = &c->in->body.reg;
	struct registration *g;
	struct request *q;
	int r;

	r = sk_wire_check_id(&reg->id, &c->err);
	if (r == 0)
		r = check_numbers(c, reg);
	if (r == 0)
		r = check_memory(c, reg);
	if (r < 0)
		return r;
	g = calloc(1, sizeof(*g));
	if (!g)
		return sk_err_set(&c->err, -ENOMEM, "no memory for a rank");
	q = request_new(c, 0);
	if (!q) {
		free(g);
		return -EBUSY;
	}
	g->request = q;
	g->reg = *reg;
	g->fd = sk_take_fd(&c->fds[0]);
	g->work.run = parse;
	g->work.finish = parsed;
	q->thing = g;
	q->busy = true;
	q->scanned = scanned;
	work_submit(c->agent, c->agent->slow, &g->work);
	return CALL_LATER;
}
