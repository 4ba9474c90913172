/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh-comm.h"

/* What these hold is promised in every build. */
#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ms(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

int mesh_comm_new(struct mesh_comm *m, int world)
{
	size_t n = (size_t)world;

	*m = (struct mesh_comm){ .world = world, .rank = -1 };
	m->fds = malloc(n * n * sizeof(int));
	m->sent = calloc(n, sizeof(*m->sent));
	assert(m->fds && m->sent);
	for (size_t i = 0; i < n * n; i++)
		m->fds[i] = -1;
	for (size_t a = 0; a < n; a++)
		for (size_t b = a + 1; b < n; b++) {
			int ends[2];

			if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC |
				       SOCK_NONBLOCK, 0, ends) < 0)
				return -1;
			m->fds[a * n + b] = ends[0];
			m->fds[b * n + a] = ends[1];
		}
	return 0;
}

void mesh_comm_free(struct mesh_comm *m)
{
	for (int i = 0; m->fds && i < m->world * m->world; i++)
		if (m->fds[i] >= 0)
			(void)close(m->fds[i]);
	free(m->fds);
	free(m->sent);
	*m = (struct mesh_comm){ 0 };
}

static int end_of(const struct mesh_comm *m, int other)
{
	return m->fds[m->rank * m->world + other];
}

/* ---- parts, together ---- */

struct half {
	struct sk_comm_part part;
	uint64_t done;
	bool send;
};

static int step(const struct mesh_comm *m, struct half *h)
{
	char *at = (char *)h->part.data + h->done;
	size_t left = h->part.bytes - h->done;
	int fd = end_of(m, h->part.rank);
	ssize_t n = h->send ? send(fd, at, left, MSG_NOSIGNAL) :
			      recv(fd, at, left, 0);

	if (n > 0)
		h->done += (uint64_t)n;
	if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
		return 0;
	return n ? -errno : -ECONNRESET;
}

static int wait_for(const struct mesh_comm *m, struct half *h, size_t n,
		    uint64_t until)
{
	struct pollfd fds[128];
	nfds_t k = 0;
	uint64_t now = now_ms();

	assert(n <= 128);
	for (size_t i = 0; i < n; i++)
		if (h[i].done < h[i].part.bytes)
			fds[k++] = (struct pollfd){
				end_of(m, h[i].part.rank),
				h[i].send ? POLLOUT : POLLIN, 0 };
	if (now >= until)
		return -ETIMEDOUT;
	return poll(fds, k, (int)(until - now)) < 0 && errno != EINTR ?
		       -errno : 0;
}

static int run(const struct mesh_comm *m, struct half *h, size_t n,
	       uint32_t timeout_ms)
{
	uint64_t until = now_ms() + timeout_ms;

	for (;;) {
		bool done = true;
		int r = 0;

		for (size_t i = 0; i < n && r >= 0; i++) {
			if (h[i].done < h[i].part.bytes)
				r = step(m, &h[i]);
			done &= h[i].done == h[i].part.bytes;
		}
		if (r < 0 || done)
			return r;
		r = wait_for(m, h, n, until);
		if (r < 0)
			return r;
	}
}

/* As the header says: one of each kind per rank, none of one's own. */
static void check_parts(const struct mesh_comm *m,
			const struct sk_comm_part *parts, size_t n)
{
	uint64_t seen = 0;

	for (size_t i = 0; i < n; i++) {
		assert(parts[i].rank >= 0 && parts[i].rank < m->world);
		assert(parts[i].rank != m->rank && parts[i].bytes);
		assert(!(seen >> parts[i].rank & 1) && !parts[i].reserved);
		seen |= UINT64_C(1) << parts[i].rank;
	}
}

#define MPI_FAILED 16	/* MPI_ERR_OTHER, of most of them */

/* What a rank that goes wrong does. */
static void misbehave(struct mesh_comm *m)
{
	const struct timespec late = { m->slow_ms / 1000,
				       m->slow_ms % 1000 * 1000000L };

	m->calls++;
	if (m->slow_ms)
		(void)nanosleep(&late, NULL);
	if (m->calls == m->kill_at)
		(void)kill(m->victim, SIGKILL);
	if (m->calls == m->die_at)
		(void)raise(SIGKILL);
	if (m->calls == m->stop_at)
		(void)raise(SIGSTOP);
}

static int exchange(void *ctx, const struct sk_comm_part *sends,
		    size_t n_sends, const struct sk_comm_part *receives,
		    size_t n_receives, uint32_t timeout_ms)
{
	struct mesh_comm *m = ctx;
	struct half h[128];
	int r;

	assert(n_sends + n_receives && n_sends + n_receives <= 128);
	assert(!m->failed && !m->aborted);
	check_parts(m, sends, n_sends);
	check_parts(m, receives, n_receives);
	misbehave(m);
	if (m->calls == m->odd_at)
		return m->failed = MPI_FAILED;
	for (size_t i = 0; i < n_sends; i++) {
		h[i] = (struct half){ sends[i], 0, true };
		m->sent[sends[i].rank] += sends[i].bytes;
		if (m->lies && sends[i].bytes > 4096)
			((char *)sends[i].data)[1000] ^= 4;
	}
	for (size_t i = 0; i < n_receives; i++)
		h[n_sends + i] = (struct half){ receives[i], 0, false };
	r = run(m, h, n_sends + n_receives, timeout_ms);
	m->failed = r < 0 ? r : 0;
	return r;
}

static int allgather(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	struct mesh_comm *m = ctx;
	struct half h[128];
	size_t n = 0;
	int r;

	assert(2 * m->world <= 128 && !m->failed && !m->aborted);
	misbehave(m);
	if (m->calls == m->odd_at)
		return m->failed = MPI_FAILED;
	if (bytes)
		memcpy((char *)out + (size_t)m->rank * bytes, in, bytes);
	for (int i = 0; i < m->world; i++) {
		if (i == m->rank)
			continue;
		h[n++] = (struct half){ { i, 0, (void *)in, bytes }, 0,
					true };
		h[n++] = (struct half){ { i, 0, (char *)out +
						(size_t)i * bytes, bytes },
					0, false };
	}
	r = run(m, h, n, timeout_ms);
	if (m->calls == m->lose_at)
		r = -EIO;
	m->failed = r < 0 ? r : 0;
	return r;
}

static void abort_all(void *ctx)
{
	struct mesh_comm *m = ctx;

	assert(!m->aborted);
	m->aborted = true;
	for (int i = 0; i < m->world; i++)
		if (i != m->rank)
			(void)shutdown(end_of(m, i), SHUT_RDWR);
}

void mesh_comm_join(struct mesh_comm *m, int rank, struct sk_comm *ret)
{
	m->rank = rank;
	for (int i = 0; i < m->world * m->world; i++)
		if (i / m->world != rank && m->fds[i] >= 0) {
			(void)close(m->fds[i]);
			m->fds[i] = -1;
		}
	*ret = (struct sk_comm){ .ctx = m, .allgather = allgather,
				 .exchange = exchange, .abort = abort_all };
}
