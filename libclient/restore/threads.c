/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/threads.h"

/* Each more adds less: memory is what they wait for. */
#define MOST 16u

unsigned sk_restore_threads(const struct sk_restoring *rs)
{
	unsigned own = sk_pool_threads(rs->sk->pool);
	unsigned ranks = rs->n_near > 1 ? (unsigned)rs->n_near : 1;
	unsigned n = rs->sk->cpus / ranks;

	n = n < MOST ? n : MOST;
	return rs->sk->threads_said || n < own ? own : n;
}

void sk_restore_run(struct sk_restoring *rs, struct sk_task *task)
{
	unsigned n = sk_restore_threads(rs), own;
	struct sk_pool *pool = NULL;

	own = sk_pool_threads(rs->sk->pool);
	n = task->units < n ? (unsigned)task->units : n;
	/* Where there can be no more, those that there are do. */
	if (n > own)
		(void)sk_pool_new(n, -1, "sk-restore", &pool, NULL);
	sk_pool_run(pool ? pool : rs->sk->pool, task);
	(void)sk_pool_free(pool);
}
