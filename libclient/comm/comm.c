/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm.h"

#include <assert.h>
#include <string.h>

#include "conn/memfd.h"

static int call(struct sk_agent_comm *c, struct sk_msg *msg, int fd,
		void *out, uint64_t out_bytes, uint32_t timeout_ms)
{
	uint64_t until = sk_until_ms(c->sk->os, timeout_ms);
	int fds[SK_MSG_FDS], n = 0, r;
	struct sk_err err = { "" };

	r = sk_call_deferred(c->sk, msg, &fd, fd >= 0, fds, &n, until, &err);
	if (r < 0)
		return r;
	r = n == 1 ? sk_read_all(c->sk->os, fds[0], out, out_bytes, 0) :
		     -EPROTO;
	sk_close_fds(c->sk->os, fds, n);
	return r == -ENODATA ? -EPROTO : r;
}

static int allgather(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	struct sk_agent_comm *c = ctx;
	const struct sk_os *os = c->sk->os;
	const struct iovec part = { (void *)in, bytes };
	struct sk_msg msg = { .type = SK_MSG_GATHER, .body.gather = {
		.id = c->id, .round = c->round++,
		.bytes = (uint32_t)bytes } };
	int fd = -1, r;

	assert(c->id.rank >= 0 && c->id.rank < c->id.world);
	if (bytes > SK_GATHER_MAX)
		return -EMSGSIZE;
	if (bytes <= SK_GATHER_INLINE) {
		memcpy(msg.body.gather.data, in, bytes);
	} else {
		fd = sk_memfd_with(os, "shardkeep:gather", &part, 1);
		if (fd < 0)
			return fd;
	}
	r = call(c, &msg, fd, out, bytes * (size_t)c->id.world, timeout_ms);
	if (fd >= 0)
		(void)os->close(os, fd);
	return r;
}

void sk_comm_of_agent(struct sk_agent_comm *ctx, struct sk_comm *ret_comm)
{
	*ret_comm = (struct sk_comm){ .ctx = ctx, .allgather = allgather };
}
