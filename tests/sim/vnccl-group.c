/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated NCCL: groups. What is asked for within one is launched at its
 * end, all of a stream's as one operation; a communicator that does not block
 * launches it a moment later.
 */
#include <stdlib.h>
#include <string.h>

#include "vnccl-private.h"

#define PARTS_MAX 1024

/* The thread's group. */
static _Thread_local struct {
	unsigned depth;
	sk_nccl_result failed;
	struct vn_part parts[PARTS_MAX];
	size_t n;
} group;

/* ---- launching ---- */

/* Takes those of the first's communicator and stream. */
static struct vn_op *take(void)
{
	struct vn_op *op = calloc(1, sizeof(*op));
	size_t left = 0;

	if (op)
		op->parts = calloc(group.n, sizeof(*op->parts));
	if (!op || !op->parts)
		vn_misuse("out of memory");
	op->comm = group.parts[0].comm;
	op->stream = group.parts[0].stream;
	for (size_t i = 0; i < group.n; i++) {
		const struct vn_part p = group.parts[i];

		if (p.comm == op->comm && p.stream == op->stream)
			op->parts[op->n++] = p;
		else
			group.parts[left++] = p;
	}
	group.n = left;
	return op;
}

/* What is received is written in no order: nothing else may lie there. */
static void check_apart(const struct vn_op *op)
{
	for (size_t i = 0; i < op->n; i++) {
		const struct vn_part *to = &op->parts[i];

		for (size_t k = 0; k < op->n && !to->send; k++) {
			const struct vn_part *p = &op->parts[k];

			if (k != i && p->at < to->at + to->bytes &&
			    to->at < p->at + p->bytes)
				vn_misuse("a group receives %llu bytes where "
					  "another part of it has its own",
					  (unsigned long long)to->bytes);
		}
	}
}

/* Whether it is done when the call returns. */
static bool submit(struct vn_op *op)
{
	struct ncclComm *comm = op->comm;
	bool blocking = comm->blocking;

	check_apart(op);
	vn_launch(comm);
	(void)pthread_mutex_lock(&comm->lock);
	if (comm->pending && comm->last != op->stream)
		vn_misuse("one communicator on two streams at once");
	(void)__atomic_add_fetch(&comm->pending, 1, __ATOMIC_RELAXED);
	comm->refs++;
	comm->last = op->stream;
	if (!blocking) {
		comm->state = SK_NCCL_IN_PROGRESS;
		*comm->tail = op;
		comm->tail = &op->next;
		(void)pthread_cond_broadcast(&comm->changed);
	}
	(void)pthread_mutex_unlock(&comm->lock);
	if (blocking && !vn_driver()->enqueue(op->stream, vn_run, op))
		vn_misuse("a group on what is no stream");
	return blocking;
}

static sk_nccl_result end_group(void)
{
	sk_nccl_result r = group.failed;

	if (r != SK_NCCL_SUCCESS)
		group.n = 0;
	group.failed = SK_NCCL_SUCCESS;
	while (group.n)
		if (!submit(take()))
			r = SK_NCCL_IN_PROGRESS;
	return r;
}

sk_nccl_result ncclGroupStart(void)
{
	VN_ENTER(ncclGroupStart);
	group.depth++;
	return SK_NCCL_SUCCESS;
}

/* It ends even where it fails. */
sk_nccl_result ncclGroupEnd(void)
{
	sk_nccl_result r = vn_enter(VN_ncclGroupEnd);

	if (!group.depth)
		return SK_NCCL_INVALID_USAGE;
	if (r != SK_NCCL_SUCCESS)
		group.failed = r;
	return --group.depth ? r : end_group();
}

/* ---- parts ---- */

/* One that is still at something else takes nothing. */
static sk_nccl_result check_ready(struct ncclComm *comm)
{
	sk_nccl_result r;

	(void)pthread_mutex_lock(&comm->lock);
	r = comm->state;
	if (comm->finalizing)
		vn_misuse("a group on a communicator that was finalized");
	(void)pthread_mutex_unlock(&comm->lock);
	return r == SK_NCCL_IN_PROGRESS ? SK_NCCL_INVALID_ARGUMENT : r;
}

static sk_nccl_result add(struct vn_part *p, const void *at)
{
	int device;

	if (p->peer < 0 || p->peer >= p->comm->n)
		return SK_NCCL_INVALID_ARGUMENT;
	if (p->peer == p->comm->rank && !group.depth)
		return SK_NCCL_INVALID_USAGE;
	p->at = vn_driver()->view((uintptr_t)at, p->bytes, &device);
	if (p->bytes && (!p->at || (device >= 0 &&
				    device != p->comm->device)))
		return SK_NCCL_INVALID_ARGUMENT;
	if (group.n == PARTS_MAX)
		vn_misuse("a group of more than %d", PARTS_MAX);
	group.parts[group.n++] = *p;
	return SK_NCCL_SUCCESS;
}

static sk_nccl_result ask(bool send, const void *at, size_t n,
			  sk_nccl_enum type, int peer, struct ncclComm *comm,
			  sk_cu_stream stream)
{
	struct vn_part p = { .comm = comm, .stream = stream, .send = send,
			     .peer = peer, .bytes = n };
	sk_nccl_result r;

	if (type > SK_NCCL_UINT8)
		vn_misuse("only bytes are simulated");
	VN_INSIDE(comm);
	r = check_ready(comm);
	if (r == SK_NCCL_SUCCESS)
		r = add(&p, at);
	VN_OUTSIDE(comm);
	if (r != SK_NCCL_SUCCESS && group.failed == SK_NCCL_SUCCESS)
		group.failed = group.depth ? r : SK_NCCL_SUCCESS;
	if (r != SK_NCCL_SUCCESS)
		return r;
	/* Of one that does not block, any call may say that it is on its
	 * way. */
	return !group.depth ? end_group() :
	       comm->blocking ? SK_NCCL_SUCCESS : SK_NCCL_IN_PROGRESS;
}

sk_nccl_result ncclSend(const void *from, size_t n, sk_nccl_enum type,
			int peer, sk_nccl_comm comm, sk_cu_stream stream)
{
	VN_ENTER(ncclSend);
	return ask(true, from, n, type, peer, comm, stream);
}

sk_nccl_result ncclRecv(void *to, size_t n, sk_nccl_enum type, int peer,
			sk_nccl_comm comm, sk_cu_stream stream)
{
	VN_ENTER(ncclRecv);
	return ask(false, to, n, type, peer, comm, stream);
}
