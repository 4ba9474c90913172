/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated NCCL, inside. See README.md.
 *
 * A communicator is a socket to each other rank, and a thread that does what
 * the library does later: it meets, it launches, it ends. What is launched
 * runs on the simulated driver's streams.
 */
#ifndef SK_TESTS_SIM_VNCCL_H
#define SK_TESTS_SIM_VNCCL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "nccl/abi.h"

#define VN_API __attribute__((visibility("default")))
#define VN_RANKS_MAX 64

#define VN_DECLARE(function, since, need, result, params)		\
	VN_API result function params;
SK_NCCL_TABLE(VN_DECLARE)

#define VN_NUMBER(function, since, need, result, params) VN_##function,
enum vn_function { SK_NCCL_TABLE(VN_NUMBER) VN_FUNCTIONS };

/** A send or receive; both sides as this process can touch them. */
struct vn_part {
	struct ncclComm *comm;
	sk_cu_stream stream;
	bool send;
	int peer;
	char *at;
	uint64_t bytes;
	uint64_t head_done, done;	/* bytes of the head, then of it */
	struct vn_head { uint64_t magic, bytes; } head;
};

/** What a group has for one stream. */
struct vn_op {
	struct vn_op *next;
	struct ncclComm *comm;
	sk_cu_stream stream;
	struct vn_part *parts;
	size_t n;
};

struct ncclComm {
	struct ncclComm *next;
	pthread_mutex_t lock;	/* of all that follows */
	pthread_cond_t changed;
	int rank, n, device;
	sk_nccl_id id;
	bool blocking;
	sk_nccl_result state;	/* what it is asked for later */
	char text[256];		/* of the last error */
	bool met, finalizing, finalized, aborted, ending;
	unsigned pending;	/* operations on streams; atomic */
	uint64_t launched;	/* all of them so far; atomic */
	sk_cu_stream last;	/* of them */
	struct vn_op *head, **tail;	/* to be launched */
	pthread_t thread;
	int listener, wake;	/* wake: an eventfd, once aborted */
	int links[VN_RANKS_MAX];
	unsigned refs;		/* the caller's, and one per pending */
	unsigned inside;	/* threads in calls; atomic */
};

/* ---- vnccl.c ---- */

/** The test has done what the library would not survive. */
void vn_misuse(const char *fmt, ...)
	__attribute__((noreturn, format(printf, 1, 2)));
/** What the environment says; of our own variables nothing with
 * $VCUDA_AS_HARDWARE. */
const char *vn_getenv(const char *variable);
bool vn_said(const char *variable, const char *value);
int vn_version(void);
/** Sets the state and the words of an error; the lock is not held. */
void vn_fail(struct ncclComm *comm, sk_nccl_result result, const char *fmt,
	     ...) __attribute__((format(printf, 3, 4)));
/** Lets go of one reference. */
void vn_release(struct ncclComm *comm);
/** Nothing refers to it any more: kept, for its address is not to be another
 * one's. */
void vn_bury(struct ncclComm *comm);
void vn_count(bool sent, uint64_t bytes);

/** The simulated driver's. */
struct vn_driver {
	bool (*enqueue)(sk_cu_stream, void (*)(void *), void *);
	void (*demand)(sk_cu_stream);
	void *(*view)(uintptr_t, size_t, int *);
	sk_cu_result (*get_device)(sk_cu_device *);
	sk_cu_result (*get_attribute)(int *, sk_cu_enum, sk_cu_device);
	sk_cu_result (*get_uuid)(sk_cu_uuid *, sk_cu_device);
};
const struct vn_driver *vn_driver(void);

/* ---- vnccl-meet.c ---- */

/** Makes an id, and the thread where its ranks meet. */
sk_nccl_result vn_new_id(sk_nccl_id *ret);
/** Before the thread begins: where others find this rank. */
int vn_listen(struct ncclComm *comm);
/** On the communicator's thread: meets the others; what came of it is the
 * state. */
void vn_meet(struct ncclComm *comm);

/* ---- vnccl-order.c ---- */

/** The communicator launches an operation; @all are those of the process. */
void vn_note_launch(struct ncclComm *comm, struct ncclComm *all);

/* ---- vnccl-move.c ---- */

/** On a stream's thread: all parts of a struct vn_op, which it frees. */
void vn_run(void *op);

#endif
