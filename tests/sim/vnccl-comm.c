/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated NCCL: communicators, from their init to their end. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "vnccl-private.h"

#define DELAY_NS 200000

void vn_fail(struct ncclComm *comm, sk_nccl_result result, const char *fmt,
	     ...)
{
	va_list ap;

	(void)pthread_mutex_lock(&comm->lock);
	if (comm->state == SK_NCCL_SUCCESS ||
	    comm->state == SK_NCCL_IN_PROGRESS) {
		va_start(ap, fmt);
		(void)vsnprintf(comm->text, sizeof(comm->text), fmt, ap);
		va_end(ap);
		comm->state = result;
	}
	(void)pthread_cond_broadcast(&comm->changed);
	(void)pthread_mutex_unlock(&comm->lock);
}

void vn_release(struct ncclComm *comm)
{
	bool last;

	(void)pthread_mutex_lock(&comm->lock);
	last = !--comm->refs;
	(void)pthread_mutex_unlock(&comm->lock);
	if (!last)
		return;
	for (int i = 0; i < comm->n; i++)
		if (comm->links[i] >= 0)
			(void)close(comm->links[i]);
	(void)close(comm->listener);
	(void)close(comm->wake);
	(void)pthread_cond_destroy(&comm->changed);
	(void)pthread_mutex_destroy(&comm->lock);
	vn_bury(comm);
}

/* ---- the communicator's thread ---- */

static void launch(struct ncclComm *comm, struct vn_op *op)
{
	if (!vn_driver()->enqueue(op->stream, vn_run, op))
		vn_misuse("a group on what is no stream");
	(void)pthread_mutex_lock(&comm->lock);
	if (comm->state == SK_NCCL_IN_PROGRESS && !comm->head)
		comm->state = SK_NCCL_SUCCESS;
	(void)pthread_cond_broadcast(&comm->changed);
	(void)pthread_mutex_unlock(&comm->lock);
}

/* Whoever does not ask whether it is done is found out. */
static void delay(void)
{
	const struct timespec t = { 0, DELAY_NS };

	if (!vn_said("VCUDA_SCHED", "eager"))
		(void)nanosleep(&t, NULL);
}

/* Later is now: all that was launched is over. */
static void finalize(struct ncclComm *comm)
{
	bool hangs = vn_said("VNCCL_FINALIZE", "hang");

	if (comm->pending)
		vn_driver()->demand(comm->last);
	while ((comm->pending || hangs) && !comm->aborted)
		(void)pthread_cond_wait(&comm->changed, &comm->lock);
	comm->finalized = true;
	if (comm->state == SK_NCCL_IN_PROGRESS)
		comm->state = SK_NCCL_SUCCESS;
	(void)pthread_cond_broadcast(&comm->changed);
}

static void *run(void *arg)
{
	struct ncclComm *comm = arg;

	vn_meet(comm);
	(void)pthread_mutex_lock(&comm->lock);
	while (!comm->ending) {
		struct vn_op *op = comm->head;

		if (op) {
			comm->head = op->next;
			if (!comm->head)
				comm->tail = &comm->head;
			(void)pthread_mutex_unlock(&comm->lock);
			delay();
			launch(comm, op);
			(void)pthread_mutex_lock(&comm->lock);
		} else if (comm->finalizing && !comm->finalized) {
			finalize(comm);
		} else {
			(void)pthread_cond_wait(&comm->changed, &comm->lock);
		}
	}
	(void)pthread_mutex_unlock(&comm->lock);
	return NULL;
}

/* ---- init ---- */

static bool config_is_right(const sk_nccl_config *config)
{
	if (config->magic != SK_NCCL_MAGIC ||
	    config->size < offsetof(sk_nccl_config, traffic_class))
		return false;
	return config->blocking == SK_NCCL_UNDEF || config->blocking == 0 ||
	       config->blocking == 1;
}

/* The environment's word counts for more than the config. */
static bool would_block(const sk_nccl_config *config)
{
	const char *said = getenv("NCCL_COMM_BLOCKING");
	long long value = -1;

	errno = 0;
	if (said && *said)
		value = strtoll(said, NULL, 0);
	if (!errno && (value == 0 || value == 1))
		return value;
	/* What one of that version cannot have meant is not looked at. */
	return !config || config->version < SK_NCCL_VERSION(2, 14, 0) ||
	       config->blocking != 0;
}

static struct ncclComm *new_comm(int n, sk_nccl_id id, int rank, int device,
				 bool blocking)
{
	struct ncclComm *comm = calloc(1, sizeof(*comm));

	if (!comm)
		vn_misuse("out of memory");
	comm->n = n;
	comm->rank = rank;
	comm->id = id;
	comm->device = device;
	comm->blocking = blocking;
	comm->state = SK_NCCL_IN_PROGRESS;
	comm->refs = 1;
	comm->tail = &comm->head;
	comm->wake = eventfd(0, EFD_CLOEXEC);
	(void)pthread_mutex_init(&comm->lock, NULL);
	(void)pthread_cond_init(&comm->changed, NULL);
	for (int i = 0; i < VN_RANKS_MAX; i++)
		comm->links[i] = -1;
	return comm;
}

static sk_nccl_result settle(struct ncclComm *comm)
{
	sk_nccl_result state;

	(void)pthread_mutex_lock(&comm->lock);
	while (comm->blocking && comm->state == SK_NCCL_IN_PROGRESS)
		(void)pthread_cond_wait(&comm->changed, &comm->lock);
	state = comm->state;
	(void)pthread_mutex_unlock(&comm->lock);
	return comm->blocking ? state : SK_NCCL_IN_PROGRESS;
}

sk_nccl_result ncclCommInitRankConfig(sk_nccl_comm *ret, int n, sk_nccl_id id,
				      int rank, sk_nccl_config *config)
{
	sk_cu_device device;

	VN_ENTER(ncclCommInitRankConfig);
	if (!ret || n < 1 || n > VN_RANKS_MAX || rank < 0 || rank >= n ||
	    (config && !config_is_right(config)))
		return SK_NCCL_INVALID_ARGUMENT;
	vn_read_conf();
	if (vn_driver()->get_device(&device) != SK_CU_SUCCESS)
		vn_misuse("a communicator is made on a thread without a "
			  "device");
	*ret = new_comm(n, id, rank, device, would_block(config));
	vn_list(*ret);
	if (vn_listen(*ret) < 0)
		vn_misuse("two are rank %d, or the id is another's", rank);
	if (pthread_create(&(*ret)->thread, NULL, run, *ret))
		return SK_NCCL_SYSTEM_ERROR;
	return settle(*ret);
}

sk_nccl_result ncclCommGetAsyncError(sk_nccl_comm comm, sk_nccl_result *ret)
{
	VN_ENTER(ncclCommGetAsyncError);
	VN_COMM(comm);
	if (!ret)
		return SK_NCCL_INVALID_ARGUMENT;
	(void)pthread_mutex_lock(&comm->lock);
	*ret = comm->state;
	(void)pthread_mutex_unlock(&comm->lock);
	return SK_NCCL_SUCCESS;
}

const char *ncclGetLastError(sk_nccl_comm comm)
{
	(void)vn_enter(VN_ncclGetLastError);
	return comm ? comm->text : "";
}

/* ---- its end ---- */

static void end(struct ncclComm *comm)
{
	(void)pthread_mutex_lock(&comm->lock);
	comm->ending = true;
	(void)pthread_cond_broadcast(&comm->changed);
	(void)pthread_mutex_unlock(&comm->lock);
	(void)pthread_join(comm->thread, NULL);
	/* Of groups that are never launched. */
	while (comm->head) {
		struct vn_op *op = comm->head;

		comm->head = op->next;
		free(op->parts);
		free(op);
		vn_release(comm);
	}
	vn_unlist(comm);
	vn_release(comm);
}

sk_nccl_result ncclCommAbort(sk_nccl_comm comm)
{
	const uint64_t one = 1;

	VN_ENTER(ncclCommAbort);
	VN_COMM(comm);
	/* Documentation has it of those alone that block. */
	if (comm->blocking && __atomic_load_n(&comm->inside, __ATOMIC_RELAXED))
		vn_misuse("a communicator that blocks is aborted while "
			  "another thread is in it");
	if (vn_said("VNCCL_ABORT", "hang"))
		vn_hang();
	(void)pthread_mutex_lock(&comm->lock);
	comm->aborted = true;
	(void)pthread_cond_broadcast(&comm->changed);
	(void)pthread_mutex_unlock(&comm->lock);
	if (write(comm->wake, &one, sizeof(one)) != sizeof(one))
		vn_misuse("cannot abort");
	end(comm);
	return SK_NCCL_SUCCESS;
}

/* With the lock held. */
static sk_nccl_result begin_end(struct ncclComm *comm)
{
	if (comm->finalizing)
		vn_misuse("finalized twice");
	if (comm->state == SK_NCCL_IN_PROGRESS)
		return SK_NCCL_INVALID_ARGUMENT;
	comm->finalizing = true;
	if (comm->state == SK_NCCL_SUCCESS)
		comm->state = SK_NCCL_IN_PROGRESS;
	(void)pthread_cond_broadcast(&comm->changed);
	return SK_NCCL_SUCCESS;
}

sk_nccl_result ncclCommFinalize(sk_nccl_comm comm)
{
	sk_nccl_result r;

	VN_ENTER(ncclCommFinalize);
	VN_INSIDE(comm);
	(void)pthread_mutex_lock(&comm->lock);
	r = begin_end(comm);
	(void)pthread_mutex_unlock(&comm->lock);
	VN_OUTSIDE(comm);
	return r == SK_NCCL_SUCCESS ? settle(comm) : r;
}

sk_nccl_result ncclCommDestroy(sk_nccl_comm comm)
{
	VN_ENTER(ncclCommDestroy);
	VN_COMM(comm);
	(void)pthread_mutex_lock(&comm->lock);
	if (!comm->met)
		vn_misuse("what never was a communicator is destroyed, and "
			  "not aborted");
	comm->finalizing = true;
	(void)pthread_cond_broadcast(&comm->changed);
	while (!comm->finalized)
		(void)pthread_cond_wait(&comm->changed, &comm->lock);
	(void)pthread_mutex_unlock(&comm->lock);
	end(comm);
	return SK_NCCL_SUCCESS;
}
