/* SPDX-License-Identifier: Apache-2.0 */
/* GATHER: every rank of a run gives bytes and gets everybody's. */
#include "calls/gather.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "calls/call.h"
#include "session/request.h"

#define MAX_GATHER_BYTES ((uint64_t)1 << 30)	/* unfinished, of one user */

/* A rank that waits in a round. */
struct gather_rank {
	struct request request;
	struct gather *gather;		/* NULL: the round is over */
	int32_t rank;
	bool moved;			/* it had the last round elsewhere */
};

/* One round; it lives as long as somebody waits in it. */
struct gather {
	struct sk_link link;		/* in agent->gathers */
	const struct sk_os *os;
	uid_t uid;
	char job[SK_JOB_MAX + 1];
	uint64_t run, run_id;		/* as named; of the readers: no id */
	uint64_t round;
	uint32_t bytes;
	int32_t world;
	int32_t here;			/* ranks that wait */
	struct gather_rank **ranks;	/* by rank; NULL: does not wait */
	bool *left;			/* by rank: its time was over before */
	char *map;			/* of the memfd */
	int fd;
};

/* Readers have none. */
static uint64_t run_id_of(const struct sk_wire_gather *in)
{
	return in->id.run == SK_RUN_READERS ? 0 : in->id.run_id;
}

static uint64_t gather_bytes(const struct gather *g)
{
	return (uint64_t)g->world * g->bytes;
}

static void gather_free(struct gather *g)
{
	if (g->map)
		(void)g->os->munmap(g->os, g->map, gather_bytes(g));
	sk_close_fd(g->fd);
	sk_link_remove(&g->link);
	free(g->ranks);
	free(g->left);
	free(g);
}

static int make_memory(struct gather *g, struct sk_err *err)
{
	const struct sk_os *os = g->os;
	uint64_t bytes = gather_bytes(g);
	void *map = NULL;
	int r;

	g->fd = os->memfd_create(os, "shardkeep:gather", MFD_ALLOW_SEALING);
	r = g->fd < 0 ? g->fd : os->ftruncate(os, g->fd, bytes);
	if (r < 0)
		return sk_err_errno(err, r, "cannot make %" PRIu64
				    " bytes for a gather", bytes);
	r = os->fcntl_seal(os, g->fd, F_SEAL_SHRINK | F_SEAL_GROW);
	if (r < 0)
		return sk_err_errno(err, r, "cannot seal a gather");
	if (!bytes)
		return 0;
	r = os->mmap(os, NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
		     g->fd, 0, &map);
	if (r < 0)
		return sk_err_errno(err, r, "cannot map a gather");
	g->map = map;
	return 0;
}

static uint64_t bytes_of(const struct agent *a, uid_t uid)
{
	uint64_t bytes = 0;
	struct gather *g;

	sk_link_each(g, &a->gathers, link) {
		if (g->uid == uid)
			bytes += gather_bytes(g);
	}
	return bytes;
}

static int gather_new(struct agent *a, const struct session *s,
		      const struct sk_wire_gather *in,
		      struct gather **ret, struct sk_err *err)
{
	uint64_t bytes = (uint64_t)in->id.world *
			 (in->bytes + sizeof(struct gather_rank *) + 1);
	struct gather *g;
	int r;

	if (bytes > SK_GATHER_MAX ||
	    bytes + bytes_of(a, s->uid) > MAX_GATHER_BYTES)
		return sk_err_set(err, -E2BIG, "%" PRId32 " ranks with %"
				  PRIu32 " bytes each are more than the agent "
				  "gathers (%" PRIu64 " bytes)", in->id.world,
				  in->bytes, SK_GATHER_MAX);
	g = calloc(1, sizeof(*g));
	if (!g)
		return sk_err_set(err, -ENOMEM, "no memory for a gather");
	sk_link_init(&g->link);
	g->fd = -1;
	g->os = a->os;
	g->uid = s->uid;
	memcpy(g->job, in->id.job, sizeof(g->job));
	g->run = in->id.run;
	g->run_id = run_id_of(in);
	g->round = in->round;
	g->bytes = in->bytes;
	g->world = in->id.world;
	g->ranks = calloc((size_t)g->world, sizeof(struct gather_rank *));
	g->left = calloc((size_t)g->world, sizeof(*g->left));
	r = g->ranks && g->left ? make_memory(g, err) :
	    sk_err_set(err, -ENOMEM, "no memory for a gather");
	if (r < 0) {
		gather_free(g);
		return r;
	}
	sk_link_insert(&a->gathers, &g->link);
	*ret = g;
	return 0;
}

static struct gather *gather_find(const struct agent *a, uid_t uid,
				  const struct sk_wire_gather *in,
				  uint64_t round)
{
	struct gather *g;

	sk_link_each(g, &a->gathers, link) {
		if (g->uid == uid && g->run == in->id.run &&
		    g->run_id == run_id_of(in) && g->round == round &&
		    strcmp(g->job, in->id.job) == 0)
			return g;
	}
	return NULL;
}

/* ---- the end of a round ---- */

/* Takes the rank out; NULL: it has not come. */
static struct gather_rank *take_rank(struct gather *g, int32_t rank)
{
	struct gather_rank *w = g->ranks[rank];

	if (!w)
		return NULL;
	assert(w->gather == g && g->here > 0);
	g->ranks[rank] = NULL;
	g->here--;
	w->gather = NULL;
	return w;
}

static void fail_all(struct gather *g, int status, const struct sk_err *err)
{
	for (int32_t i = 0; i < g->world; i++) {
		struct gather_rank *w = take_rank(g, i);

		if (w)
			request_answer(&w->request, status, NULL, NULL, 0,
				       err);
	}
	assert(!g->here);
	gather_free(g);
}

static void give(const struct gather *g, struct gather_rank *w)
{
	struct sk_msg msg = { 0 };
	struct sk_err err = { "" };
	int fd = g->os->fcntl(g->os, g->fd, F_DUPFD_CLOEXEC, 3);

	if (fd < 0) {
		(void)sk_err_errno(&err, fd, "cannot hand a gather out; raise "
				   "the agent's limit of open files");
		request_answer(&w->request, fd, NULL, NULL, 0, &err);
		return;
	}
	msg.body.gather = w->request.msg.body.gather;
	memset(msg.body.gather.data, 0, sizeof(msg.body.gather.data));
	request_answer(&w->request, 0, &msg, &fd, 1, &err);
}

static void give_all(struct gather *g)
{
	assert(g->here == g->world);
	for (int32_t i = 0; i < g->world; i++)
		give(g, take_rank(g, i));
	gather_free(g);
}

/* One who waited no longer does: what it gave is withdrawn. */
static void rank_release(struct request *q)
{
	struct gather_rank *w = sk_link_object(q, struct gather_rank,
					       request);
	struct gather *g = w->gather;

	if (g) {
		(void)take_rank(g, w->rank);
		if (!g->here)
			gather_free(g);
	}
	free(w);
}

/* It has been in the run, and is in it no more: it may come back until the time
 * is over. */
static bool is_gone(const struct agent *a, const struct gather *g,
		    int32_t rank)
{
	const struct sk_cat_job *job = sk_cat_job_find(&a->cat, g->job,
						       g->uid);
	const struct sk_cat_run *run = job ? sk_cat_run_find(job, g->run,
							     g->run_id) : NULL;
	const struct sk_cat_state *state;

	if (!run || g->run == SK_RUN_READERS)
		return false;
	state = sk_cat_state_find(run, rank);
	return state && !state->living && !state->awaited;
}

/* The first that has not been in the round, and how many have not. */
static int32_t count_absent(const struct gather *g, int32_t *ret_first)
{
	int32_t n = 0;

	for (int32_t i = g->world; i-- > 0;) {
		if (g->ranks[i] || g->left[i])
			continue;
		*ret_first = i;
		n++;
	}
	return n;
}

/* Asked when the time is over: says who did not come. Of ranks that come one
 * after the other the first's time is over first. */
static int rank_outcome(struct request *q, struct sk_err *err)
{
	const struct gather_rank *w = sk_link_object(q, struct gather_rank,
						     request);
	struct gather *g = w->gather;
	int32_t first = 0, absent;

	assert(g && g->here < g->world);
	g->left[w->rank] = true;
	absent = count_absent(g, &first);
	if (!absent)
		return sk_err_set(err, -EAGAIN, "the %" PRId32 " ranks of job "
				  "\"%.40s\" came to round %" PRIu64 " so far "
				  "apart that the time of some was over",
				  g->world, g->job, g->round);
	return sk_err_set(err, -EAGAIN, "%" PRId32 " of %" PRId32 " ranks of "
			  "job \"%.40s\" did not come to round %" PRIu64
			  " in time, the first of them rank %" PRId32 "%s",
			  absent, g->world, g->job, g->round, first,
			  is_gone(q->agent, g, first) ? ", which is gone" :
							"");
}

static const struct request_kind rank_kind = {
	.outcome = rank_outcome,
	.release = rank_release,
};

void gather_rank_gone(struct agent *a, const struct sk_cat_run *run,
		      int32_t rank)
{
	struct sk_err err;
	struct gather *g;

	sk_link_each(g, &a->gathers, link) {
		if (g->uid != run->job->uid || g->run != run->number ||
		    g->run_id != run->id ||
		    strcmp(g->job, run->job->name) != 0)
			continue;
		sk_err_set(&err, 0, "rank %" PRId32 " of job \"%.40s\" is gone "
			   "and will not come to round %" PRIu64, rank,
			   g->job, g->round);
		fail_all(g, -ETIMEDOUT, &err);
	}
}

/* ---- a newer run ---- */

static int is_followed(const char *job, uint64_t run, uint64_t by,
		       struct sk_err *err)
{
	return sk_err_set(err, -ENOENT, "run %" PRIu64 " of job \"%.40s\" is "
			  "followed by run %" PRIu64 ", where ranks of it may "
			  "be", run, job, by);
}

void gather_run_entered(struct agent *a, const struct sk_cat_run *run)
{
	struct sk_err err = { "" };
	struct gather *g;

	sk_link_each(g, &a->gathers, link) {
		if (g->uid != run->job->uid || g->round ||
		    g->run >= run->number ||
		    strcmp(g->job, run->job->name) != 0)
			continue;
		fail_all(g, is_followed(g->job, g->run, run->number, &err),
			 &err);
	}
}

/* Before its ranks have met, who waits in an older one waits for nobody. */
static int check_newest(struct call *c, const struct sk_wire_gather *in,
			const struct sk_cat_job *job)
{
	const struct sk_cat_run *run;

	if (in->round || !job)
		return 0;
	sk_link_each(run, &job->runs, link) {
		if (run->number > in->id.run && sk_cat_run_living(run))
			return is_followed(in->id.job, in->id.run,
					   run->number, &c->err);
	}
	return 0;
}

/* ---- ranks that are a round apart ---- */

static int go_back(const struct sk_wire_gather *in, struct sk_err *err)
{
	return sk_err_set(err, -ESTALE, "ranks of job \"%.40s\" have not had "
			  "round %" PRIu64 ", which an agent before this one "
			  "ended", in->id.job, in->round);
}

/* Of the round before: somebody waits in it, and not this rank. */
static bool is_ahead(const struct agent *a, uid_t uid,
		     const struct sk_wire_gather *in)
{
	const struct gather *g;

	if (!(in->flags & SK_GATHER_MOVED) || !in->round)
		return false;
	g = gather_find(a, uid, in, in->round - 1);
	return g && g->world == in->id.world && !g->ranks[in->id.rank];
}

/* Who waits in the round after is needed here first. */
static void call_back(const struct agent *a, uid_t uid,
		      const struct sk_wire_gather *in)
{
	struct gather *g = gather_find(a, uid, in, in->round + 1);
	struct sk_err err = { "" };

	if (!g || g->world != in->id.world || g->ranks[in->id.rank])
		return;
	(void)go_back(in, &err);
	for (int32_t i = 0; i < g->world; i++) {
		struct gather_rank *w = g->ranks[i];

		if (w && w->moved)
			request_answer(&take_rank(g, i)->request, -ESTALE,
				       NULL, NULL, 0, &err);
	}
	if (!g->here)
		gather_free(g);
}

/* ---- the call ---- */

static int check_memfd(struct call *c, const struct gather *g)
{
	const struct sk_os *os = c->agent->os;
	struct stat st;

	/* A file could hold us up; memory does not. */
	if (c->n_fds == 1 && os->fcntl(os, c->fds[0], F_GET_SEALS, 0) >= 0 &&
	    os->fstat(os, c->fds[0], &st) == 0 && st.st_size == g->bytes)
		return 0;
	return sk_err_set(&c->err, -EINVAL, "%" PRIu32 " bytes to gather must "
			  "come in a memfd of that size", g->bytes);
}

static int take_bytes(struct call *c, const struct sk_wire_gather *in,
		      struct gather *g)
{
	const struct sk_os *os = c->agent->os;
	char *to = g->map ? g->map + (uint64_t)in->id.rank * g->bytes : NULL;
	uint32_t at = 0;
	int r;

	if (!c->n_fds && g->bytes <= SK_GATHER_INLINE) {
		if (to)
			memcpy(to, in->data, g->bytes);
		return 0;
	}
	r = check_memfd(c, g);
	if (r < 0)
		return r;
	while (at < g->bytes) {
		ssize_t n = os->pread(os, c->fds[0], to + at, g->bytes - at,
				      at);

		if (n <= 0)
			return sk_err_errno(&c->err, n < 0 ? (int)n : -EINVAL,
					    "the bytes to gather cannot be "
					    "read");
		at += (uint32_t)n;
	}
	return 0;
}

static int check_rank(struct call *c, const struct sk_wire_gather *in)
{
	int r = sk_wire_check_id(&in->id, &c->err);

	if (r == 0 && (!in->id.job[0] || in->id.rank < 0 ||
		       in->id.rank >= in->id.world))
		r = sk_err_set(&c->err, -EINVAL, "rank %" PRId32 " of %"
			       PRId32 " cannot be", in->id.rank,
			       in->id.world);
	return r;
}

/* Who cannot name its run exactly is no rank of it. */
static int check_run(struct call *c, const struct sk_wire_gather *in)
{
	const struct sk_cat_run *run = NULL;
	const struct sk_cat_job *job =
		sk_cat_job_find(&c->agent->cat, in->id.job, c->session->uid);

	if (in->id.run == SK_RUN_READERS)
		return 0;
	if (job)
		run = sk_cat_run_find(job, in->id.run, in->id.run_id);
	if (!in->id.run || !in->id.run_id ||
	    (!run && job && sk_cat_run_find(job, in->id.run, 0)))
		return sk_err_set(&c->err, -ENOENT, "job \"%s\" has no run %"
				  PRIu64 " here; register first", in->id.job,
				  in->id.run);
	if (run && run->world != in->id.world)
		return sk_err_set(&c->err, -EINVAL, "rank %" PRId32 " of %"
				  PRId32 " gathers in a run of %" PRId32
				  " ranks", in->id.rank, in->id.world,
				  run->world);
	return check_newest(c, in, job);
}

static int join(struct call *c, const struct sk_wire_gather *in,
		struct gather *g)
{
	struct gather_rank *w;
	int r;

	if (g->ranks[in->id.rank])
		return sk_err_set(&c->err, -EEXIST, "rank %" PRId32 " waits "
				  "already in round %" PRIu64, in->id.rank,
				  g->round);
	r = take_bytes(c, in, g);
	if (r < 0)
		return r;
	w = calloc(1, sizeof(*w));
	if (!w)
		return sk_err_set(&c->err, -ENOMEM, "no memory for a request");
	/* 0 is to look once, not to wait for ever. */
	r = request_init(&w->request, &rank_kind, c->session, c->in,
			 in->timeout_ms ? in->timeout_ms : 1, &c->err);
	if (r < 0) {
		free(w);
		return r;
	}
	w->gather = g;
	w->rank = in->id.rank;
	w->moved = in->flags & SK_GATHER_MOVED;
	g->ranks[in->id.rank] = w;
	g->left[in->id.rank] = false;
	g->here++;
	return 0;
}

/* That it gives what the others of the round do. */
static int check_round(struct call *c, const struct sk_wire_gather *in,
		       struct gather *g)
{
	int r;

	if (g->world == in->id.world && g->bytes == in->bytes)
		return 0;
	r = g->world != in->id.world ?
	    sk_err_set(&c->err, -EINVAL, "rank %" PRId32 " reads job \"%s\" "
		       "with %" PRId32 " ranks, others with %" PRId32,
		       in->id.rank, in->id.job, in->id.world, g->world) :
	    sk_err_set(&c->err, -EINVAL, "rank %" PRId32 " gives %" PRIu32
		       " bytes to round %" PRIu64 ", others give %" PRIu32,
		       in->id.rank, in->bytes, in->round, g->bytes);
	fail_all(g, r, &c->err);
	return r;
}

int call_gather(struct call *c)
{
	const struct sk_wire_gather *in = &c->in->body.gather;
	const struct session *s = c->session;
	struct gather *g;
	int r;

	r = check_rank(c, in);
	if (r == 0)
		r = check_run(c, in);
	if (r < 0)
		return r;
	if (is_ahead(c->agent, s->uid, in))
		return go_back(in, &c->err);
	g = gather_find(c->agent, s->uid, in, in->round);
	r = g ? check_round(c, in, g) :
		gather_new(c->agent, s, in, &g, &c->err);
	if (r < 0)
		return r;
	r = join(c, in, g);
	if (r < 0) {
		if (!g->here)
			gather_free(g);
		return r;
	}
	if (g->here == g->world)
		give_all(g);
	else
		call_back(c->agent, s->uid, in);
	return CALL_LATER;
}
