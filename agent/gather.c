/* SPDX-License-Identifier: Apache-2.0 */
/* GATHER: every rank of a run gives bytes and gets everybody's. */
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "agent.h"

/* One round; it lives as long as somebody waits in it. */
struct gather {
	struct sk_link link;
	struct agent *agent;
	uid_t uid;
	char job[SK_JOB_MAX + 1];
	uint64_t run, round;
	uint32_t bytes;
	int32_t world;
	int32_t here;			/* ranks that wait */
	struct request **ranks;
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
		munmap(g->map, gather_bytes(g));
	sk_close_fd(g->fd);
	sk_link_remove(&g->link);
	free(g->ranks);
	free(g);
}

static int make_memory(struct gather *g, struct sk_err *err)
{
	uint64_t bytes = gather_bytes(g);

	g->fd = memfd_create("shardkeep:gather", MFD_CLOEXEC |
			     MFD_ALLOW_SEALING);
	if (g->fd < 0 || ftruncate(g->fd, (off_t)bytes) < 0)
		return sk_err_errno(err, -errno, "cannot make %" PRIu64
				    " bytes for a gather", bytes);
	if (fcntl(g->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		return sk_err_errno(err, -errno, "cannot seal a gather");
	if (!bytes)
		return 0;
	g->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd,
		      0);
	if (g->map != MAP_FAILED)
		return 0;
	g->map = NULL;
	return sk_err_errno(err, -errno, "cannot map a gather");
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
		      const struct sk_wire_gather *in, uint64_t run,
		      struct gather **ret, struct sk_err *err)
{
	uint64_t bytes = (uint64_t)in->id.world *
			 (in->bytes + sizeof(struct request *));
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
	g->agent = a;
	g->uid = s->uid;
	memcpy(g->job, in->id.job, sizeof(g->job));
	g->run = run;
	g->round = in->round;
	g->bytes = in->bytes;
	g->world = in->id.world;
	g->ranks = calloc((size_t)g->world, sizeof(struct request *));
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

static struct gather *find(const struct agent *a, uid_t uid,
			   const char *job, uint64_t run, uint64_t round)
{
	struct gather *g;

	sk_link_each(g, &a->gathers, link) {
		if (g->uid == uid && g->run == run && g->round == round &&
		    strcmp(g->job, job) == 0)
			return g;
	}
	return NULL;
}

/* ---- the end of a round ---- */

static void fail_all(struct gather *g, int status, const struct sk_err *err)
{
	for (int32_t i = 0; i < g->world; i++) {
		struct request *q = g->ranks[i];

		g->ranks[i] = NULL;
		if (!q)
			continue;
		q->drop = NULL;
		request_answer(q, status, NULL, NULL, 0, err);
	}
	gather_free(g);
}

static void give_all(struct gather *g)
{
	struct sk_err err = { "" };

	for (int32_t i = 0; i < g->world; i++) {
		struct request *q = g->ranks[i];
		struct sk_msg msg = { 0 };
		int fd = fcntl(g->fd, F_DUPFD_CLOEXEC, 3);

		g->ranks[i] = NULL;
		q->drop = NULL;
		msg.body.gather = q->msg.body.gather;
		memset(msg.body.gather.data, 0, sizeof(msg.body.gather.data));
		if (fd >= 0)
			request_answer(q, 0, &msg, &fd, 1, &err);
		else
			request_answer(q, -EMFILE, NULL, NULL, 0, &err);
	}
	gather_free(g);
}

/* One who waited no longer does: what it gave is withdrawn. */
static void withdraw(struct request *q)
{
	struct gather *g = q->thing;

	g->ranks[q->msg.body.gather.id.rank] = NULL;
	if (--g->here == 0)
		gather_free(g);
}

/* Asked when the time is over: says who did not come. */
static int look(struct request *q, struct sk_err *err)
{
	const struct gather *g = q->thing;
	int32_t missing = 0, first = -1;

	for (int32_t i = 0; i < g->world; i++) {
		if (g->ranks[i])
			continue;
		missing++;
		if (first < 0)
			first = i;
	}
	sk_err_set(err, 0, "%" PRId32 " of %" PRId32 " ranks of job \"%.40s\" "
		   "did not come to round %" PRIu64 " in time, the first of "
		   "them rank %" PRId32, missing, g->world, g->job, g->round,
		   first);
	return -EAGAIN;
}

void gather_rank_gone(struct agent *a, const struct sk_cat_run *run,
		      int32_t rank)
{
	struct sk_err err;
	struct gather *g;

	sk_link_each(g, &a->gathers, link) {
		if (g->uid != run->job->uid || g->run != run->number ||
		    strcmp(g->job, run->job->name) != 0)
			continue;
		sk_err_set(&err, 0, "rank %" PRId32 " of job \"%.40s\" is gone "
			   "and will not come to round %" PRIu64, rank,
			   g->job, g->round);
		fail_all(g, -ETIMEDOUT, &err);
	}
}

/* ---- the call ---- */

static int take_bytes(struct call *c, const struct sk_wire_gather *in,
		      struct gather *g)
{
	char *to = g->map ? g->map + (uint64_t)in->id.rank * g->bytes : NULL;
	uint32_t at = 0;
	struct stat st;

	if (!c->n_fds && g->bytes <= SK_GATHER_INLINE) {
		if (to)
			memcpy(to, in->data, g->bytes);
		return 0;
	}
	/* A file could hold us up; memory does not. */
	if (c->n_fds != 1 || fcntl(c->fds[0], F_GET_SEALS) < 0 ||
	    fstat(c->fds[0], &st) < 0 || st.st_size != g->bytes)
		return sk_err_set(&c->err, -EINVAL, "%" PRIu32 " bytes to "
				  "gather must come in a memfd of that size",
				  g->bytes);
	while (at < g->bytes) {
		ssize_t n = pread(c->fds[0], to + at, g->bytes - at, at);

		if (n <= 0)
			return sk_err_set(&c->err, -EINVAL, "the bytes to "
					  "gather cannot be read");
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

static int check(struct call *c, const struct sk_wire_gather *in,
		 uint64_t *ret_run)
{
	const struct sk_cat_run *run;
	struct sk_cat_job *job;
	int r;

	r = call_job(c, &in->id, &job);
	if (r < 0)
		return r;
	run = sk_cat_run_find(job, in->id.run ? in->id.run : job->newest_run);
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
	*ret_run = run->number;
	return 0;
}

static int join(struct call *c, const struct sk_wire_gather *in,
		struct gather *g)
{
	struct request *q;
	int r;

	if (g->ranks[in->id.rank])
		return sk_err_set(&c->err, -EEXIST, "rank %" PRId32 " waits "
				  "already in round %" PRIu64, in->id.rank,
				  g->round);
	r = take_bytes(c, in, g);
	if (r < 0)
		return r;
	q = request_new(c, in->timeout_ms ? in->timeout_ms : 1);
	if (!q)
		return -EBUSY;
	q->thing = g;
	q->drop = withdraw;
	q->look = look;
	g->ranks[in->id.rank] = q;
	g->here++;
	return 0;
}

int call_gather(struct call *c)
{
	const struct sk_wire_gather *in = &c->in->body.gather;
	bool readers = in->id.run == SK_RUN_READERS;
	const struct session *s = c->session;
	uint64_t run = in->id.run;
	struct gather *g;
	int r;

	r = readers ? sk_wire_check_id(&in->id, &c->err) : check(c, in, &run);
	if (r < 0)
		return r;
	g = find(c->agent, s->uid, in->id.job, run, in->round);
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
