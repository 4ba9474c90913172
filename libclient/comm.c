/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's comm: ranks of one node meet through their agent. */
#include <string.h>
#include <sys/mman.h>

#include "internal.h"

static int memfd_with(const void *data, size_t bytes)
{
	int fd = memfd_create("shardkeep:gather",
			      MFD_CLOEXEC | MFD_ALLOW_SEALING);
	size_t at = 0;

	while (fd >= 0 && at < bytes) {
		ssize_t n = pwrite(fd, (const char *)data + at, bytes - at,
				   (off_t)at);

		if (n < 0) {
			n = -errno;
			sk_close_fd(fd);
			return (int)n;
		}
		at += (size_t)n;
	}
	return fd < 0 ? -errno : fd;
}

static int read_all(int fd, void *out, size_t bytes)
{
	size_t at = 0;

	while (at < bytes) {
		ssize_t n = pread(fd, (char *)out + at, bytes - at, (off_t)at);

		if (n <= 0)
			return n < 0 ? -errno : -EPROTO;
		at += (size_t)n;
	}
	return 0;
}

static int allgather(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	struct sk_state *state = ctx;
	struct sk_msg msg = { .type = SK_MSG_GATHER };
	struct sk_wire_gather *g = &msg.body.gather;
	int fds[SK_MSG_FDS], n = 0, fd = -1, r;
	struct sk_err err = { "" };

	strcpy(g->id.job, state->job.name);
	g->id.run = state->job.flags & SK_JOB_READER ? SK_RUN_READERS :
							state->run;
	g->id.rank = state->job.rank;
	g->id.world = state->job.world;
	g->round = state->gather_round++;
	g->bytes = (uint32_t)bytes;
	g->timeout_ms = timeout_ms;
	if (bytes <= SK_GATHER_INLINE) {
		memcpy(g->data, in, bytes);
	} else {
		fd = memfd_with(in, bytes);
		if (fd < 0)
			return fd;
	}
	r = sk_call_deferred(state->sk, &msg, &fd, fd >= 0, fds, &n,
			     timeout_ms, &err);
	sk_close_fd(fd);
	if (r < 0)
		return r;
	r = n == 1 ? read_all(fds[0], out,
			      bytes * (size_t)state->job.world) : -EPROTO;
	while (n)
		sk_close_fd(fds[--n]);
	return r;
}

void sk_comm_of_agent(struct sk_state *state, struct sk_comm *ret_comm)
{
	*ret_comm = (struct sk_comm){ .ctx = state, .allgather = allgather };
}
