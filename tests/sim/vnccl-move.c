/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated NCCL: what a group's sends and receives do when their stream
 * comes to them. All go on together; between two ranks they are in order.
 *
 * A peer that is gone is waited for, until the communicator is aborted. What
 * was to be received is spoilt then.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "vnccl.h"

#define HEAD_MAGIC 0x766e63636c686561u
#define POISON 0xdb

static bool is_over(const struct vn_part *p)
{
	return p->head_done == sizeof(p->head) && p->done == p->bytes;
}

/* It may be long after. */
static void take_notice(void)
{
	const char *said = vn_getenv("VNCCL_DEATH_MS");

	if (said)
		(void)usleep(1000 * (useconds_t)atoi(said));
}

/* 0: would wait, or is gone; then the link is, too. */
static size_t pass(struct ncclComm *comm, struct vn_part *p, char *at,
		   size_t n)
{
	int fd = comm->links[p->peer];
	ssize_t did;

	if (fd < 0)
		return 0;
	did = p->send ? send(fd, at, n, MSG_DONTWAIT | MSG_NOSIGNAL) :
			recv(fd, at, n, MSG_DONTWAIT);
	if (did > 0)
		return (size_t)did;
	if (did < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	comm->links[p->peer] = -1;	/* somebody else's to close */
	(void)close(fd);
	if (vn_said("VNCCL_DEATH", "told")) {
		take_notice();
		vn_fail(comm, SK_NCCL_REMOTE_ERROR, "rank %d is gone",
			p->peer);
	}
	return 0;
}

static void check_head(const struct ncclComm *comm, const struct vn_part *p)
{
	if (p->head.magic != HEAD_MAGIC)
		vn_misuse("rank %d got no beginning from rank %d", comm->rank,
			  p->peer);
	if (p->head.bytes != p->bytes)
		vn_misuse("rank %d receives %llu bytes of rank %d, which "
			  "sends %llu", comm->rank,
			  (unsigned long long)p->bytes, p->peer,
			  (unsigned long long)p->head.bytes);
}

/* As far as it goes at once. */
static void advance(struct ncclComm *comm, struct vn_part *p)
{
	size_t n = 1;

	while (n && p->head_done < sizeof(p->head)) {
		n = pass(comm, p, (char *)&p->head + p->head_done,
			 sizeof(p->head) - p->head_done);
		p->head_done += n;
		if (!p->send && p->head_done == sizeof(p->head))
			check_head(comm, p);
	}
	while (n && p->done < p->bytes) {
		n = pass(comm, p, p->at + p->done, p->bytes - p->done);
		p->done += n;
	}
	if (is_over(p))
		vn_count(p->send, p->bytes);
}

/* One's own: within the group, in order. */
static void pass_to_self(struct vn_op *op)
{
	size_t to = 0;

	for (size_t i = 0; i < op->n; i++) {
		struct vn_part *s = &op->parts[i];

		if (!s->send || s->peer != op->comm->rank)
			continue;
		while (to < op->n && (op->parts[to].send ||
				      op->parts[to].peer != s->peer))
			to++;
		if (to == op->n || op->parts[to].bytes != s->bytes)
			vn_misuse("rank %d sends itself what it does not "
				  "receive", s->peer);
		memmove(op->parts[to].at, s->at, s->bytes);
		s->head_done = op->parts[to].head_done = sizeof(s->head);
		s->done = op->parts[to++].done = s->bytes;
	}
}

/* The first of its peer and direction that is not over. */
static bool is_next(const struct vn_op *op, size_t i)
{
	for (size_t k = 0; k < i; k++)
		if (op->parts[k].peer == op->parts[i].peer &&
		    op->parts[k].send == op->parts[i].send &&
		    !is_over(&op->parts[k]))
			return false;
	return !is_over(&op->parts[i]);
}

/* Waits until one of them may go on, or it is aborted, which is false. */
static bool wait_for(const struct vn_op *op)
{
	struct pollfd *fds = calloc(op->n + 1, sizeof(*fds));
	bool aborted;
	nfds_t n = 1;

	if (!fds)
		vn_misuse("out of memory");
	fds[0] = (struct pollfd){ op->comm->wake, POLLIN, 0 };
	for (size_t i = 0; i < op->n; i++)
		if (is_next(op, i) && op->comm->links[op->parts[i].peer] >= 0)
			fds[n++] = (struct pollfd){
				op->comm->links[op->parts[i].peer],
				op->parts[i].send ? POLLOUT : POLLIN, 0 };
	while (poll(fds, n, -1) < 0 && errno == EINTR)
		;
	aborted = fds[0].revents != 0;
	free(fds);
	return !aborted;
}

static bool advance_all(struct vn_op *op)
{
	bool over = true;

	for (size_t i = 0; i < op->n; i++) {
		if (is_next(op, i))
			advance(op->comm, &op->parts[i]);
		over &= is_over(&op->parts[i]);
	}
	return over;
}

static void poison(struct vn_op *op)
{
	for (size_t i = 0; i < op->n; i++)
		if (!op->parts[i].send && !is_over(&op->parts[i]))
			memset(op->parts[i].at, POISON, op->parts[i].bytes);
}

static bool is_aborted(struct ncclComm *comm)
{
	bool aborted;

	(void)pthread_mutex_lock(&comm->lock);
	aborted = comm->aborted;
	(void)pthread_mutex_unlock(&comm->lock);
	return aborted;
}

void vn_run(void *data)
{
	struct vn_op *op = data;
	struct ncclComm *comm = op->comm;

	for (size_t i = 0; i < op->n; i++)
		op->parts[i].head = (struct vn_head){ HEAD_MAGIC,
						      op->parts[i].bytes };
	if (!is_aborted(comm)) {
		pass_to_self(op);
		while (!advance_all(op) && wait_for(op))
			;
	}
	poison(op);
	free(op->parts);
	free(op);
	(void)pthread_mutex_lock(&comm->lock);
	(void)__atomic_sub_fetch(&comm->pending, 1, __ATOMIC_RELAXED);
	(void)pthread_cond_broadcast(&comm->changed);
	(void)pthread_mutex_unlock(&comm->lock);
	vn_release(comm);
}
