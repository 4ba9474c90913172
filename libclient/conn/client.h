/* SPDX-License-Identifier: Apache-2.0 */
/* The handle: what sk_open() gives. */
#ifndef SK_LIBCLIENT_CONN_CLIENT_H
#define SK_LIBCLIENT_CONN_CLIENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/os.h"
#include "base/pool.h"
#include "conn/conn.h"
#include "cuda/cuda.h"
#include "layout/recall.h"
#include "shardkeep.h"

struct sk {
	const struct sk_os *os;
	pid_t pid;			/* of the opener: fork is noticed */
	char *socket_path;		/* the one that answered */
	uint32_t timeout_ms;
	struct sk_pool *pool;		/* copies, hashes */
	bool threads_said;		/* how many it has, by the user */
	unsigned cpus;			/* that this process may use */
	bool hash_is_free;		/* in step with a copy, on this CPU */
	struct sk_cuda *cuda;		/* opened by the first device */
	bool cuda_stays;		/* a thread may come back to it */
	struct sk_recall *recall;	/* layouts, from a list to a restore */
	struct sk_conn conn;		/* short requests; states live here */
	struct sk_conn apart;		/* kept for requests of their own */
	atomic_bool apart_taken;	/* by whoever asks something there */
	unsigned states;		/* not freed yet; atomic */
};

/** sk_open() on that table of operations, which must outlive the handle. */
int sk_open_on(const struct sk_os *os, const struct sk_options *opts,
	       struct sk **ret_sk);

/** -EINVAL: NULL; -EOWNERDEAD: in a forked child. */
int sk_check(const struct sk *sk, struct sk_err *err);

/** The deadline of a request that begins now. */
static inline uint64_t sk_until(const struct sk *sk)
{
	return sk_until_ms(sk->os, sk->timeout_ms);
}

/** A request on a connection that nobody else uses meanwhile; else as
 * sk_conn_call(). For those that are answered later. One such connection is
 * kept for the next. */
int sk_call_apart(struct sk *sk, struct sk_msg *msg, const int *fds,
		  int n_fds, int *ret_fds, int *ret_n_fds, uint64_t until_ns,
		  struct sk_err *err);

/** The timeout of a request that the agent answers later: it gives up first,
 * for it says more than we could, and in time for its answer to be here by
 * @until_ns. */
uint32_t sk_wait_ms(const struct sk *sk, uint64_t until_ns);

/**
 * The same of PREPARE, SLOT_WAIT or WAIT, whose timeout is set here, as by
 * sk_wait_ms(). Beyond @until_ns nothing is waited for; what is left when the
 * agent gives up it is asked for anew.
 */
int sk_call_deferred(struct sk *sk, struct sk_msg *msg, const int *fds,
		     int n_fds, int *ret_fds, int *ret_n_fds,
		     uint64_t until_ns, struct sk_err *err);

#endif
