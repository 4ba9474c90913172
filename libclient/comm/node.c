/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/node.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "conn/memfd.h"

int sk_node_bring(const struct sk_os *os, uint32_t bytes)
{
	int fd, r = sk_file_check(os, bytes);

	if (r < 0)
		return r;
	fd = os->memfd_create(os, "shardkeep:node", MFD_ALLOW_SEALING);
	if (fd < 0)
		return fd;
	r = os->ftruncate(os, fd, bytes);
	if (r < 0)
		(void)os->close(os, fd);
	return r < 0 ? r : fd;
}

static int map_all(struct sk *sk, int fd, uint64_t bytes, void **ret_map,
		   struct sk_err *err)
{
	struct stat st;
	int r = sk->os->fstat(sk->os, fd, &st);

	if (r >= 0 && (uint64_t)st.st_size != bytes)
		return sk_err_set(err, -EPROTO, "the agent gave memory of %llu "
				  "bytes for %llu",
				  (unsigned long long)st.st_size,
				  (unsigned long long)bytes);
	if (r >= 0)
		r = sk->os->mmap(sk->os, NULL, bytes, PROT_READ | PROT_WRITE,
				 MAP_SHARED, fd, 0, ret_map);
	return r < 0 ? sk_err_errno(err, r, "cannot map memory that ranks "
				    "share") : 0;
}

/* At that very agent. */
static int meet(struct sk *sk, const struct sk_node_meeting *who,
		struct sk_msg *msg, int fd, int *fds, int *n,
		struct sk_err *err)
{
	uint64_t until = sk_until_ms(sk->os, who->timeout_ms);
	struct sk_conn conn = SK_CONN_NULL;
	int r = sk_conn_open_more(sk->os, &sk->conn, sk->socket_path, until,
				  &conn, err);

	if (r < 0)
		return r;
	msg->body.gather.timeout_ms = sk_wait_ms(sk, until);
	r = conn.agent.instance == who->agent ?
	    sk_conn_call(&conn, msg, &fd, 1, fds, n, until, err) :
	    sk_err_set(err, -ECONNRESET, "the agent has been killed, and "
		       "another one is in its place");
	sk_conn_close(&conn);
	return r;
}

int sk_node_memory(struct sk *sk, const struct sk_node_meeting *who,
		   int fd, uint32_t bytes, void **ret_map, struct sk_err *err)
{
	struct sk_msg msg = { .type = SK_MSG_GATHER, .body.gather = {
		.id = { .run = SK_RUN_READERS, .rank = who->rank,
			.world = who->n },
		.round = who->meeting, .bytes = bytes } };
	int fds[SK_MSG_FDS], n = 0, r;

	assert(who->rank < who->n && bytes > SK_GATHER_INLINE);
	assert(strlen(who->job) <= SK_JOB_MAX);
	strcpy(msg.body.gather.id.job, who->job);
	r = meet(sk, who, &msg, fd, fds, &n, err);
	if (r < 0)
		return r;
	r = n == 1 ? map_all(sk, fds[0], (uint64_t)bytes * (uint32_t)who->n,
			     ret_map, err) :
		     sk_err_set(err, -EPROTO, "the agent gave %d descriptors "
				"for memory", n);
	sk_close_fds(sk->os, fds, n);
	return r;
}
