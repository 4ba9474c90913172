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
};

/* One round; it lives as long as somebody waits in it. */
struct gather {
	struct sk_link link;		/* in agent->gathers */
	const struct sk_os *os;
	uid_t uid;
	char job[SK_JOB_MAX + 1];
	uint64_t run, run_id;		/* of the readers: no id */
	uint64_t round;
	uint32_t bytes;
	int32_t world;
	int32_t here;			/* ranks that wait */
	struct gather_rank **ranks;	/* by rank; NULL: has not come */
	char *map;			/* of the memfd */
	int fd;
};

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
		      const struct sk_cat_run *run,
		      struct gather **ret, struct sk_err *err)
{
	uint64_t bytes = (uint64_t)in->id.world *
			 (in->bytes + sizeof(struct gather_rank *));
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
	g->run = run ? run->number : SK_RUN_READERS;
	g->run_id = run ? run->id : 0;
	g->round = in->round;
	g->bytes = in->bytes;
	g->world = in->id.world;
	g->ranks = calloc((size_t)g->world, sizeof(struct gather_rank *));
	r = g->ranks ? make_memory(g, err) :
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
				  const struct sk_cat_run *run)
{
	uint64_t number = run ? run->number : SK_RUN_READERS;
	uint64_t id = run ? run->id : 0;
	struct gather *g;

	sk_link_each(g, &a->gathers, link) {
		if (g->uid == uid && g->run == number && g->run_id == id &&
		    g->round == in->round && strcmp(g->job, in->id.job) == 0)
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

/* Asked when the time is over: says who did not come. */
static int rank_outcome(struct request *q, struct sk_err *err)
{
	const struct gather_rank *w = sk_link_object(q, struct gather_rank,
						     request);
	const struct gather *g = w->gather;
	int32_t first = 0;

	assert(g && g->here < g->world);
	while (g->ranks[first])
		first++;
	return sk_err_set(err, -EAGAIN, "%" PRId32 " of %" PRId32 " ranks of "
			  "job \"%.40s\" did not come to round %" PRIu64
			  " in time, the first of them rank %" PRId32,
			  g->world - g->here, g->world, g->job, g->round,
			  first);
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

static int check_readers(struct call *c, const struct sk_wire_gather *in,
			 const struct gather *g)
{
	if (!in->id.job[0] || in->id.rank < 0 ||
	    in->id.rank >= in->id.world)
		return sk_err_set(&c->err, -EINVAL, "rank %" PRId32 " of %"
				  PRId32 " cannot be", in->id.rank,
				  in->id.world);
	if (g && g->world != in->id.world)
		return sk_err_set(&c->err, -EINVAL, "rank %" PRId32 " reads "
				  "job \"%s\" with %" PRId32 " ranks, others "
				  "with %" PRId32, in->id.rank, in->id.job,
				  in->id.world, g->world);
	return 0;
}

static int check_ranks(struct call *c, const struct sk_wire_gather *in,
		       const struct sk_cat_run **ret_run)
{
	const struct sk_cat_run *run;
	struct sk_cat_job *job;
	int r;

	r = call_job(c, &in->id, &job);
	if (r < 0)
		return r;
	/* Who cannot name its run exactly is no rank of it. */
	run = in->id.run && in->id.run_id ?
	      sk_cat_run_find(job, in->id.run, in->id.run_id) : NULL;
	if (!run)
		return sk_err_set(&c->err, -ENOENT, "job \"%s\" has no run %"
				  PRIu64 " here; register first", job->name,
				  in->id.run);
	if (in->id.world != run->world || in->id.rank < 0 ||
	    in->id.rank >= run->world)
		return sk_err_set(&c->err, -EINVAL, "rank %" PRId32 " of %"
				  PRId32 " gathers in a run of %" PRId32
				  " ranks", in->id.rank, in->id.world,
				  run->world);
	*ret_run = run;
	return 0;
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
	g->ranks[in->id.rank] = w;
	g->here++;
	return 0;
}

int call_gather(struct call *c)
{
	const struct sk_wire_gather *in = &c->in->body.gather;
	bool readers = in->id.run == SK_RUN_READERS;
	const struct session *s = c->session;
	const struct sk_cat_run *run = NULL;
	struct gather *g;
	int r;

	r = readers ? sk_wire_check_id(&in->id, &c->err) :
		      check_ranks(c, in, &run);
	if (r < 0)
		return r;
	g = gather_find(c->agent, s->uid, in, run);
	r = readers ? check_readers(c, in, g) : 0;
	if (r < 0)
		return r;
	if (g && g->bytes != in->bytes) {
		r = sk_err_set(&c->err, -EINVAL, "rank %" PRId32 " gives %"
			       PRIu32 " bytes to round %" PRIu64 ", others "
			       "give %" PRIu32, in->id.rank, in->bytes,
			       in->round, g->bytes);
		fail_all(g, r, &c->err);
		return r;
	}
	if (!g) {
		r = gather_new(c->agent, s, in, run, &g, &c->err);
		if (r < 0)
			return r;
	}
	r = join(c, in, g);
	if (r < 0) {
		if (!g->here)
			gather_free(g);
		return r;
	}
	if (g->here == g->world)
		give_all(g);
	return CALL_LATER;
}
