/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/links.h"

#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"

/* As many ranks speak each to each, whatever they say. */
#define NEAR 4
/* Bytes of words that may leave by rank 0's link at once. */
#define THROUGH_ONE ((size_t)16 << 20)

/* One part's way, and how much of it is done. */
struct sk_half {
	struct sk_comm_part part;
	uint64_t done;
	bool send;
};

static ssize_t move_some(const struct sk_os *os, int fd, void *data,
			 size_t bytes, bool send)
{
	struct iovec part = { data, bytes };
	struct msghdr msg = { .msg_iov = &part, .msg_iovlen = 1 };
	ssize_t n = send ? os->sendmsg(os, fd, &msg, MSG_NOSIGNAL) :
			   os->recvmsg(os, fd, &msg, 0);

	if (n == -EAGAIN || n == -EWOULDBLOCK)
		return 0;
	return n == -EPIPE || !n ? -ECONNRESET : n;
}

static int step(const struct sk_links *l, struct sk_half *h)
{
	ssize_t n = move_some(l->os, l->fds[h->part.rank],
			      (char *)h->part.data + h->done,
			      h->part.bytes - h->done, h->send);

	if (n > 0)
		h->done += (uint64_t)n;
	return n < 0 ? (int)n : 0;
}

/* A socket once, whatever is to go by it: poll() takes no more than the process
 * may have open. */
static nfds_t list_undone(const struct sk_links *l, size_t n)
{
	nfds_t k = 0;

	for (size_t i = 0; i < n; i++) {
		const struct sk_half *h = &l->halves[i];

		if (h->done < h->part.bytes)
			l->events[h->part.rank] |= h->send ? POLLOUT : POLLIN;
	}
	for (size_t i = 0; i < n; i++) {
		int32_t rank = l->halves[i].part.rank;

		if (l->events[rank])
			l->polls[k++] = (struct pollfd){
				.fd = l->fds[rank],
				.events = l->events[rank] };
		l->events[rank] = 0;
	}
	return k;
}

/* Of whom something is to come rather than who takes nothing: that one may
 * wait himself. */
static int32_t first_undone(const struct sk_links *l, size_t n)
{
	int32_t rank = -1;

	for (size_t i = 0; i < n; i++) {
		const struct sk_half *h = &l->halves[i];

		if (h->done == h->part.bytes)
			continue;
		if (!h->send)
			return h->part.rank;
		if (rank < 0)
			rank = h->part.rank;
	}
	return rank;
}

static int run(struct sk_links *l, size_t n, uint64_t until)
{
	for (;;) {
		int r = 0;
		nfds_t k;

		for (size_t i = 0; i < n && r >= 0; i++) {
			if (l->halves[i].done == l->halves[i].part.bytes)
				continue;
			r = step(l, &l->halves[i]);
			l->missed = r < 0 && !sk_links_failed(l) ?
				    l->halves[i].part.rank : -1;
		}
		k = r < 0 ? 0 : list_undone(l, n);
		if (!k)
			return r;
		r = l->os->poll(l->os, l->polls, k, until);
		if (r < 0) {
			l->missed = first_undone(l, n);
			return r;
		}
	}
}

static int begin(const struct sk_links *l)
{
	/* In a forked child they are the parent's. */
	if (l->pid != getpid())
		return -EOWNERDEAD;
	return sk_links_failed(l) ? -EIO : 0;
}

static int end(struct sk_links *l, int r)
{
	if (r < 0)
		sk_links_abort(l);
	return r;
}

static void add(struct sk_links *l, size_t *n, int32_t rank, bool send,
		const void *data, size_t bytes)
{
	l->halves[(*n)++] = (struct sk_half){
		.part = { .rank = rank, .data = (void *)data, .bytes = bytes },
		.send = send };
}

/* ---- words ---- */

/* Each to each is one way long, and as many messages as there are pairs of
 * ranks; by rank 0 it is two ways, and two messages a rank, but all of what
 * everybody is told leaves by one link. */
static bool by_rank_0(const struct sk_links *l, size_t bytes)
{
	size_t world = (size_t)l->world;

	return world > NEAR && bytes <= THROUGH_ONE / world / world;
}

static int gather_each(struct sk_links *l, const void *in, size_t bytes,
		       char *out, uint64_t until)
{
	size_t n = 0;

	for (int32_t i = 0; i < l->world; i++) {
		if (i == l->rank)
			continue;
		add(l, &n, i, true, in, bytes);
		add(l, &n, i, false, out + (size_t)i * bytes, bytes);
	}
	return run(l, n, until);
}

static int gather_by_rank_0(struct sk_links *l, const void *in, size_t bytes,
			    char *out, uint64_t until)
{
	size_t n = 0, all = (size_t)l->world * bytes;
	int r;

	if (l->rank) {
		add(l, &n, 0, true, in, bytes);
		add(l, &n, 0, false, out, all);
		return run(l, n, until);
	}
	for (int32_t i = 1; i < l->world; i++)
		add(l, &n, i, false, out + (size_t)i * bytes, bytes);
	r = run(l, n, until);
	n = 0;
	for (int32_t i = 1; i < l->world; i++)
		add(l, &n, i, true, out, all);
	return r < 0 ? r : run(l, n, until);
}

static int allgather(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	struct sk_links *l = ctx;
	uint64_t until = sk_until_ms(l->os, timeout_ms);
	int r = begin(l);

	if (r < 0 || !bytes)
		return r;
	memmove((char *)out + (size_t)l->rank * bytes, in, bytes);
	l->passes = by_rank_0(l, bytes);
	return end(l, l->passes ?
			      gather_by_rank_0(l, in, bytes, out, until) :
			      gather_each(l, in, bytes, out, until));
}

/* A binomial tree: whoever has it gives it to as many as there are further
 * halvings of the ranks behind it. */
int sk_links_broadcast(struct sk_links *l, int32_t root, void *data,
		       size_t bytes, uint32_t timeout_ms)
{
	uint64_t until = sk_until_ms(l->os, timeout_ms);
	int64_t at = (l->rank - root + l->world) % l->world, bit = 1;
	size_t n = 0;
	int r = begin(l);

	if (r < 0 || !bytes)
		return r;
	while (bit < l->world && !(at & bit))
		bit <<= 1;
	if (at) {
		add(l, &n, (int32_t)((at - bit + root) % l->world), false,
		    data, bytes);
		r = run(l, n, until);
	}
	n = 0;
	for (bit >>= 1; bit; bit >>= 1)
		if (at + bit < l->world)
			add(l, &n, (int32_t)((at + bit + root) % l->world),
			    true, data, bytes);
	return end(l, r < 0 ? r : run(l, n, until));
}

/* ---- bytes ---- */

/* What the caller says is not believed: it may be anybody's code. */
static int take_parts(struct sk_links *l, const struct sk_comm_part *parts,
		      size_t n, bool send, size_t from)
{
	if (n >= (size_t)l->world)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		const struct sk_comm_part *p = &parts[i];

		if (p->rank < 0 || p->rank >= l->world || p->rank == l->rank)
			return -EINVAL;
		l->halves[from + i] = (struct sk_half){ .part = *p,
							.send = send };
	}
	return 0;
}

static int exchange(void *ctx, const struct sk_comm_part *sends,
		    size_t n_sends, const struct sk_comm_part *receives,
		    size_t n_receives, uint32_t timeout_ms)
{
	struct sk_links *l = ctx;
	int r = begin(l);

	if (r < 0)
		return r;
	l->passes = false;
	r = take_parts(l, sends, n_sends, true, 0);
	if (r >= 0)
		r = take_parts(l, receives, n_receives, false, n_sends);
	if (r >= 0)
		r = run(l, n_sends + n_receives,
			sk_until_ms(l->os, timeout_ms));
	return end(l, r);
}

/* ---- life ---- */

bool sk_links_failed(const struct sk_links *l)
{
	return __atomic_load_n(&l->failed, __ATOMIC_RELAXED);
}

void sk_links_abort(struct sk_links *l)
{
	if (l->pid != getpid())
		return;
	__atomic_store_n(&l->failed, true, __ATOMIC_RELAXED);
	for (int32_t i = 0; i < l->world; i++)
		if (l->fds[i] >= 0)
			(void)l->os->shutdown(l->os, l->fds[i], SHUT_RDWR);
}

static void abort_all(void *ctx)
{
	sk_links_abort(ctx);
}

int sk_links_new(const struct sk_os *os, int32_t rank, int32_t world,
		 struct sk_links **ret_links)
{
	struct sk_links *l = calloc(1, sizeof(*l));

	assert(rank >= 0 && rank < world);
	if (!l)
		return -ENOMEM;
	*l = (struct sk_links){
		.os = os, .pid = getpid(), .rank = rank, .world = world,
		.missed = -1,
		.fds = malloc((size_t)world * sizeof(*l->fds)),
		.halves = calloc(2 * (size_t)world, sizeof(*l->halves)),
		.polls = calloc((size_t)world, sizeof(*l->polls)),
		.events = calloc((size_t)world, sizeof(*l->events)) };
	for (int32_t i = 0; l->fds && i < world; i++)
		l->fds[i] = -1;
	if (!l->fds || !l->halves || !l->polls || !l->events) {
		sk_links_free(l);
		return -ENOMEM;
	}
	*ret_links = l;
	return 0;
}

void sk_links_free(struct sk_links *l)
{
	if (!l)
		return;
	for (int32_t i = 0; l->fds && i < l->world; i++)
		if (l->fds[i] >= 0)
			(void)l->os->close(l->os, l->fds[i]);
	free(l->fds);
	free(l->halves);
	free(l->polls);
	free(l->events);
	free(l);
}

void sk_links_comm(struct sk_links *l, struct sk_comm *ret_comm)
{
	int on = 1;

	/* Words of a few bytes do not wait for more; slower without. */
	for (int32_t i = 0; i < l->world; i++)
		if (l->fds[i] >= 0)
			(void)l->os->setsockopt(l->os, l->fds[i],
						    IPPROTO_TCP, TCP_NODELAY,
						    &on, sizeof(on));
	*ret_comm = (struct sk_comm){ .ctx = l, .allgather = allgather,
				      .exchange = exchange,
				      .abort = abort_all,
				      .world = l->world, .rank = l->rank };
}

struct sk_links *sk_links_of(const struct sk_comm *comm)
{
	return comm->allgather == allgather ? comm->ctx : NULL;
}

int32_t sk_links_missed(const struct sk_comm *comm, bool *ret_passes)
{
	const struct sk_links *l = sk_links_of(comm);

	*ret_passes = l && l->passes && l->rank && !l->missed;
	return l ? l->missed : -1;
}

/* ---- one socket ---- */

static int move_all(const struct sk_os *os, int fd, char *data, size_t bytes,
		    bool send, uint64_t until)
{
	for (size_t done = 0; done < bytes;) {
		ssize_t n = move_some(os, fd, data + done, bytes - done, send);
		struct pollfd p = { fd, send ? POLLOUT : POLLIN, 0 };
		int r;

		if (n < 0)
			return (int)n;
		done += (size_t)n;
		r = n ? 0 : os->poll(os, &p, 1, until);
		if (r < 0)
			return r;
	}
	return 0;
}

int sk_link_send(const struct sk_os *os, int fd, const void *data,
		 size_t bytes, uint64_t until_ns)
{
	return move_all(os, fd, (char *)data, bytes, true, until_ns);
}

int sk_link_receive(const struct sk_os *os, int fd, void *ret_data,
		    size_t bytes, uint64_t until_ns)
{
	return move_all(os, fd, ret_data, bytes, false, until_ns);
}
