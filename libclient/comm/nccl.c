/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another comm, and NCCL beside it for the memory of devices.
 *
 * The communicator is made when a restore first needs it and ends with that
 * restore: it is never there beside the trainer's own. It does not block:
 * each call is begun, and asked about until it is over or the time is; how it
 * ends is nccl-end.c.
 */
#include "comm/nccl.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "comm/nccl-end.h"
#include "comm/nccl-say.h"
#include "conn/check.h"
#include "conn/say.h"
#include "nccl/conf.h"

/* Looks at what is under way before it sleeps between them. */
#define EAGER_LOOKS 64u
#define PAUSE_NS 50000u
/* For which a rank waits in an exchange before it asks whether all are well. */
#define WAIT_NS (UINT64_C(500) * 1000000u)

static int keep(struct sk_nccl_comm *c, int r, const struct sk_err *err)
{
	if (r < 0)
		c->why = *err;
	return r;
}

/* Whether a call was taken: of a communicator that does not block, any may say
 * that it is on its way. */
static bool is_taken(sk_nccl_result r)
{
	return r == SK_NCCL_SUCCESS || r == SK_NCCL_IN_PROGRESS;
}

/* ---- waiting ---- */

struct waiting {
	const char *what;
	uint64_t until;
	uint64_t asks;		/* when the others are; 0: never */
	uint32_t ask_ms;	/* and for how long; 0: until then */
	unsigned looks;
};

static uint32_t left_ms(const struct sk_os *os, uint64_t until)
{
	uint64_t now = os->now_ns(os);

	return now < until ? (uint32_t)((until - now) / 1000000u) + 1 : 1;
}

/* A little longer, unless it is too late, or one of the others has failed. */
static int wait_on(struct sk_nccl_comm *c, struct waiting *w,
		   struct sk_err *err)
{
	const struct sk_os *os = c->sk->os;
	uint64_t now = os->now_ns(os);
	int r;

	if (now >= w->until)
		return sk_err_set(err, -ETIMEDOUT, "NCCL: %s has not ended in "
				  "time", w->what);
	if (w->asks && now >= w->asks) {
		r = sk_nccl_say_waiting(c, w->ask_ms ? w->ask_ms :
					left_ms(os, w->until));
		if (r < 0) {
			*err = c->why;
			return r;
		}
		w->asks = os->now_ns(os) + WAIT_NS;
	}
	if (w->looks++ >= EAGER_LOOKS)
		(void)os->poll(os, NULL, 0, os->now_ns(os) + PAUSE_NS);
	return 0;
}

/* Within the device's context or not. */
static int ask(struct sk_nccl_comm *c, const char *what, bool *ret_busy,
	       struct sk_err *err)
{
	sk_nccl_result state = SK_NCCL_SUCCESS, r;

	r = c->lib.ncclCommGetAsyncError(c->comm, &state);
	*ret_busy = r == SK_NCCL_SUCCESS && state == SK_NCCL_IN_PROGRESS;
	if (*ret_busy)
		return 0;
	r = r == SK_NCCL_SUCCESS ? state : r;
	return r == SK_NCCL_SUCCESS ? 0 :
	       sk_nccl_failed(&c->lib, r, c->comm, what, err);
}

/* Until the communicator has done what it was asked for. */
static int settle(struct sk_nccl_comm *c, struct waiting *w,
		  struct sk_err *err)
{
	for (;;) {
		bool busy;
		int r = ask(c, w->what, &busy, err);

		if (r >= 0 && busy)
			r = wait_on(c, w, err);
		if (r < 0 || !busy)
			return r;
	}
}

/* Until the stream has come to the end of what was launched. */
static int reach(struct sk_nccl_comm *c, struct waiting *w,
		 struct sk_err *err)
{
	int r = sk_cuda_mark_set(c->mark, c->lane, err);

	while (r >= 0) {
		bool reached = false, busy;

		r = sk_cuda_mark_reached(c->mark, &reached, err);
		if (r >= 0 && !reached)
			r = ask(c, w->what, &busy, err);
		if (r < 0 || reached)
			return r;
		r = wait_on(c, w, err);
	}
	return r;
}

/* ---- its beginning ---- */

/* The library takes the word of its environment and its files for that, and
 * not ours. */
static int check_blocking(const struct sk_os *os, struct sk_err *err)
{
	struct sk_nccl_said said;

	if (!sk_nccl_conf(os, "NCCL_COMM_BLOCKING", &said) || said.value != 1)
		return 0;
	if (!*said.file)
		return sk_err_set(err, -ENODEV, "NCCL_COMM_BLOCKING=1 has "
				  "NCCL wait without end for a rank that does "
				  "not come; unset it");
	return sk_err_set(err, -ENODEV, "NCCL_COMM_BLOCKING=1 has NCCL wait "
			  "without end for a rank that does not come; take "
			  "it out of \"%.100s\"", said.file);
}

static int open_local(struct sk_nccl_comm *c, struct sk_err *err)
{
	int r;

	if (sk_nccl_is_lost())
		return sk_err_set(err, -ENODEV, "an earlier communicator of "
				  "NCCL never ended in this process");
	r = check_blocking(c->sk->os, err);
	if (r >= 0 && !c->lib.version)
		r = sk_nccl_open(c->sk->os, NULL, &c->lib, err);
	if (r >= 0)
		r = sk_cuda_device(c->sk->cuda, c->device.ordinal, &c->gpu,
				   err);
	if (r >= 0 && !c->lane)
		r = sk_cuda_lane_new(c->gpu, &c->lane, err);
	if (r >= 0 && !c->mark)
		r = sk_cuda_mark_new(c->gpu, &c->mark, err);
	return r;
}

static int make_id(struct sk_nccl_comm *c, sk_nccl_id *ret, struct sk_err *err)
{
	sk_nccl_result r;

	if (c->rank)
		return 0;
	r = c->lib.ncclGetUniqueId(ret);
	return r == SK_NCCL_SUCCESS ? 0 :
	       sk_nccl_failed(&c->lib, r, NULL, "ncclGetUniqueId", err);
}

static int init(struct sk_nccl_comm *c, const sk_nccl_id *id, uint64_t until,
		struct sk_err *err)
{
	sk_nccl_config config = {
		.size = sizeof(config), .magic = SK_NCCL_MAGIC,
		.version = SK_NCCL_CONFIG_VERSION, .blocking = 0,
		.cga_cluster_size = SK_NCCL_UNDEF, .min_ctas = SK_NCCL_UNDEF,
		.max_ctas = SK_NCCL_UNDEF, .split_share = 0,
		.traffic_class = SK_NCCL_UNDEF };
	struct waiting w = { "the beginning of a communicator", until,
			     c->sk->os->now_ns(c->sk->os) + WAIT_NS,
			     c->timeout_ms, 0 };
	struct sk_cuda_scope scope;
	sk_nccl_result result;
	int r = sk_cuda_enter(c->gpu, &scope, err);

	if (r < 0)
		return r;
	result = c->lib.ncclCommInitRankConfig(&c->comm, c->world, *id,
					       c->rank, &config);
	sk_cuda_leave(&scope);
	if (!is_taken(result)) {
		r = sk_nccl_failed(&c->lib, result, NULL,
				   "ncclCommInitRankConfig", err);
		c->comm = NULL;
		return r;
	}
	return settle(c, &w, err);
}

/* Half of the time for NCCL: the rest is for saying that it did not come. */
static int begin_all(struct sk_nccl_comm *c, uint32_t timeout_ms)
{
	uint64_t until = sk_until_ms(c->sk->os, timeout_ms / 2);
	struct sk_nccl_word word = { 0 };
	const struct sk_nccl_word *all;
	struct sk_err err = { "" };
	sk_nccl_id id;
	int r;

	assert(!c->comm);
	c->why.text[0] = '\0';
	c->told = false;
	c->under_way = false;
	c->timeout_ms = timeout_ms;
	r = open_local(c, &err);
	if (r >= 0)
		r = make_id(c, &word.id, &err);
	r = sk_nccl_say(c, keep(c, r, &err), &word, &all, timeout_ms);
	if (r < 0)
		return r;
	id = all[0].id;
	r = keep(c, init(c, &id, until, &err), &err);
	word = (struct sk_nccl_word){ 0 };
	if (r >= 0)
		r = sk_nccl_say_done(c, timeout_ms);
	else if (!c->told)
		r = sk_nccl_say(c, r, &word, NULL, timeout_ms);
	/* The others go on meanwhile, and do not wait for ever. */
	if (r < 0)
		sk_nccl_end_by(c, c->lib.ncclCommAbort,
			       sk_until_ms(c->sk->os, timeout_ms / 4));
	return r;
}

static int begin(void *ctx, uint32_t timeout_ms)
{
	struct sk_nccl_comm *c = ctx;
	int r = begin_all(c, timeout_ms);

	if (r < 0)
		(void)sk_nccl_let_go(c);
	return r;
}

/* ---- bytes ---- */

/* Within the device's context. A group that was begun is ended. */
static sk_nccl_result ask_all(struct sk_nccl_comm *c,
			      const struct sk_comm_part *sends, size_t n_sends,
			      const struct sk_comm_part *receives,
			      size_t n_receives)
{
	sk_cu_stream stream =
		(sk_cu_stream)(uintptr_t)sk_cuda_lane_stream(c->lane);
	sk_nccl_result r = c->lib.ncclGroupStart(), ended;

	if (!is_taken(r))
		return r;
	for (size_t i = 0; i < n_receives && is_taken(r); i++)
		r = c->lib.ncclRecv(receives[i].data, receives[i].bytes,
				    SK_NCCL_UINT8, receives[i].rank, c->comm,
				    stream);
	for (size_t i = 0; i < n_sends && is_taken(r); i++)
		r = c->lib.ncclSend(sends[i].data, sends[i].bytes,
				    SK_NCCL_UINT8, sends[i].rank, c->comm,
				    stream);
	ended = c->lib.ncclGroupEnd();
	return is_taken(r) ? ended : r;
}

static int exchange_all(struct sk_nccl_comm *c,
			const struct sk_comm_part *sends, size_t n_sends,
			const struct sk_comm_part *receives, size_t n_receives,
			struct waiting *w, struct sk_err *err)
{
	struct sk_cuda_scope scope;
	sk_nccl_result result;
	int r = sk_cuda_enter(c->gpu, &scope, err);

	if (r < 0)
		return r;
	c->under_way = true;
	result = ask_all(c, sends, n_sends, receives, n_receives);
	sk_cuda_leave(&scope);
	if (!is_taken(result))
		return sk_nccl_failed(&c->lib, result, c->comm, w->what, err);
	r = settle(c, w, err);
	if (r >= 0)
		r = reach(c, w, err);
	c->under_way = r < 0;
	return r;
}

static int exchange_device(void *ctx, const struct sk_comm_part *sends,
			   size_t n_sends, const struct sk_comm_part *receives,
			   size_t n_receives, uint32_t timeout_ms)
{
	struct sk_nccl_comm *c = ctx;
	const struct sk_os *os = c->sk->os;
	struct waiting w = { "an exchange", sk_until_ms(os, timeout_ms),
			     os->now_ns(os) + WAIT_NS, 0, 0 };
	struct sk_err err = { "" };
	int r;

	assert(c->comm);
	c->timeout_ms = timeout_ms;
	r = exchange_all(c, sends, n_sends, receives, n_receives, &w, &err);
	return keep(c, r == -ENODEV ? -EIO : r, &err);
}

/* Half of the time for a good end, and what is left for one that is not: a
 * peer may have died, or hang. */
static int end(void *ctx)
{
	struct sk_nccl_comm *c = ctx;
	struct sk_err err = { "" };

	if (c->comm) {
		uint64_t until = sk_until_ms(c->sk->os, c->timeout_ms);
		struct waiting w = { "the end of a communicator",
			sk_until_ms(c->sk->os, c->timeout_ms / 2), 0, 0, 0 };
		sk_nccl_result r = c->lib.ncclCommFinalize(c->comm);
		bool well = is_taken(r);

		if (well)
			well = settle(c, &w, &err) >= 0;
		sk_nccl_end_by(c, well ? c->lib.ncclCommDestroy :
				 c->lib.ncclCommAbort, until);
	}
	return sk_nccl_let_go(c);
}

/* ---- the other comm ---- */

/* One that has failed is of no use to say anything by. */
static int note(struct sk_nccl_comm *c, int r)
{
	c->told |= r != 0;
	return r;
}

static int allgather(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	struct sk_nccl_comm *c = ctx;
	int r = c->comm ? sk_nccl_say_done(c, timeout_ms) : 0;

	if (r < 0)
		return r == -ENODEV ? -EIO : r;
	return note(c, c->base.allgather(c->base.ctx, in, bytes, out,
					 timeout_ms));
}

static int exchange(void *ctx, const struct sk_comm_part *sends,
		    size_t n_sends, const struct sk_comm_part *receives,
		    size_t n_receives, uint32_t timeout_ms)
{
	struct sk_nccl_comm *c = ctx;

	return note(c, c->base.exchange(c->base.ctx, sends, n_sends, receives,
					n_receives, timeout_ms));
}

static int broadcast(void *ctx, int32_t root, void *data, size_t bytes,
		     uint32_t timeout_ms)
{
	struct sk_nccl_comm *c = ctx;

	return note(c, c->base.broadcast(c->base.ctx, root, data, bytes,
					 timeout_ms));
}

/* The others first: this one's own may take its time. */
static void abort_all(void *ctx)
{
	struct sk_nccl_comm *c = ctx;
	uint64_t until = sk_until_ms(c->sk->os, c->timeout_ms);

	if (c->comm)
		sk_nccl_say_failed(c, c->timeout_ms / 2);
	if (c->base.abort)
		c->base.abort(c->base.ctx);
	sk_nccl_end_by(c, c->lib.ncclCommAbort, until);
}

/* ---- life ---- */

static int check(const struct sk *sk, const struct sk_comm *base, int32_t rank,
		 int32_t world, int32_t device, struct sk_err *err)
{
	int r = sk_check(sk, err);

	if (r < 0)
		return r;
	if (!base || !base->allgather || !base->exchange || base->device)
		return sk_err_set(err, -EINVAL, "sk_comm_nccl() needs a comm "
				  "that has allgather and exchange, and moves "
				  "no memory of devices itself");
	if (world < 1 || rank < 0 || rank >= world)
		return sk_err_set(err, -EINVAL, "there is no rank %d of %d",
				  rank, world);
	if (base->world && (base->world != world || base->rank != rank))
		return sk_err_set(err, -EINVAL, "the base of the comm of rank "
				  "%d of %d is that of rank %d of %d", rank,
				  world, base->rank, base->world);
	return device >= 0 ? 0 :
	       sk_err_set(err, -EINVAL, "there is no CUDA device %d", device);
}

SK_API int sk_comm_nccl(struct sk *sk, const struct sk_comm *base,
			int32_t rank, int32_t world, int32_t device,
			struct sk_comm *ret_comm)
{
	struct sk_err err = { "" };
	struct sk_nccl_comm *c;
	int r = check(sk, base, rank, world, device, &err);

	if (r >= 0)
		r = sk_check_result(ret_comm, "a comm", &err);
	if (r < 0)
		return sk_say(r, &err);
	c = calloc(1, sizeof(*c));
	if (c)
		c->said = calloc((size_t)world, sizeof(*c->said));
	if (!c || !c->said) {
		free(c);
		return sk_say(sk_err_set(&err, -ENOMEM, "out of memory"),
			      &err);
	}
	c->sk = sk;
	c->base = *base;
	c->rank = rank;
	c->world = world;
	c->device = (struct sk_comm_device){
		.ordinal = device, .begin = begin,
		.exchange = exchange_device, .end = end };
	*ret_comm = (struct sk_comm){
		.ctx = c, .allgather = allgather, .exchange = exchange,
		.broadcast = base->broadcast ? broadcast : NULL,
		.abort = abort_all, .device = &c->device,
		.round_bytes = base->round_bytes,
		.world = world, .rank = rank };
	return 0;
}

/* NULL of any other: the one below, which a trainer fell back on. */
static struct sk_nccl_comm *nccl_of(const struct sk_comm *comm)
{
	return comm && comm->allgather == allgather ? comm->ctx : NULL;
}

void sk_comm_nccl_note(const struct sk_comm *comm, const struct sk_err *why)
{
	struct sk_nccl_comm *c = nccl_of(comm);

	if (c)
		c->why = why ? *why : (struct sk_err){ "" };
}

SK_API const char *sk_comm_nccl_why(const struct sk_comm *comm)
{
	const struct sk_nccl_comm *c = nccl_of(comm);

	return c ? c->why.text : "";
}

SK_API void sk_comm_nccl_free(struct sk_comm *comm)
{
	struct sk_nccl_comm *c = nccl_of(comm);

	if (!c)
		return;
	assert(!c->comm);
	free(c->said);
	free(c);
	*comm = (struct sk_comm){ 0 };
}
