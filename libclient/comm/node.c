/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/node.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "conn/memfd.h"

/* What each brings: nothing, in as many bytes. */
static int make_zeros(const struct sk_os *os, uint32_t bytes)
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
static int ask(struct sk *sk, uint64_t agent, int fd,
	       struct sk_node_share *share, struct sk_err *err)
{
	int r = sk_conn_open_more(sk->os, &sk->conn, sk->socket_path,
				  share->until_ns, &share->conn, err);

	if (r < 0)
		return r;
	if (share->conn.agent.instance != agent)
		return sk_err_set(err, -ECONNRESET, "the agent has been "
				  "killed, and another one is in its place");
	share->msg.body.gather.timeout_ms = sk_wait_ms(sk, share->until_ns);
	return sk_conn_ask(&share->conn, &share->msg, &fd, 1, share->until_ns,
			   err);
}

int sk_node_come(struct sk *sk, const struct sk_node_meeting *who,
		 uint32_t bytes, struct sk_node_share *ret,
		 struct sk_err *err)
{
	int fd, r;

	*ret = (struct sk_node_share){
		.conn = SK_CONN_NULL,
		.msg = { .type = SK_MSG_GATHER, .body.gather = {
			.id = { .run = SK_RUN_READERS, .rank = who->rank,
				.world = who->n },
			.round = who->meeting, .bytes = bytes } },
		.bytes = (uint64_t)bytes * (uint32_t)who->n,
		.until_ns = sk_until_ms(sk->os, who->timeout_ms) };
	assert(who->rank < who->n && bytes > SK_GATHER_INLINE);
	assert(strlen(who->job) <= SK_JOB_MAX);
	strcpy(ret->msg.body.gather.id.job, who->job);
	fd = make_zeros(sk->os, bytes);
	if (fd < 0)
		return sk_err_errno(err, fd, "cannot make memory to share");
	r = ask(sk, who->agent, fd, ret, err);
	(void)sk->os->close(sk->os, fd);
	return r;
}

int sk_node_memory(struct sk *sk, struct sk_node_share *share, void **ret_map,
		   struct sk_err *err)
{
	int fds[SK_MSG_FDS], n = 0, r;

	r = sk_conn_hear(&share->conn, &share->msg, fds, &n, share->until_ns,
			 err);
	if (r < 0)
		return r;
	r = n == 1 ? map_all(sk, fds[0], share->bytes, ret_map, err) :
		     sk_err_set(err, -EPROTO, "the agent gave %d descriptors "
				"for memory", n);
	sk_close_fds(sk->os, fds, n);
	return r;
}

void sk_node_leave(struct sk_node_share *share)
{
	if (share->bytes)
		sk_conn_close(&share->conn);
	*share = (struct sk_node_share)SK_NODE_SHARE_NULL;
}
