/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads, with a socket between each two: what they say comes
 * to all, in as few messages as it is told, and who fails fails alone only for
 * a moment. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "comm/links.h"

#define MOST 9
#define WAIT_MS 60000

struct member;
typedef void act(struct member *m);

struct world {
	int n;
	size_t bytes;
	int32_t root;		/* of a broadcast; or who fails */
	struct sk_links *links[MOST];
	struct member {
		pthread_t thread;
		struct world *w;
		act *act;
		int rank;
	} members[MOST];
	char *sent, *expected;	/* what all say; by rank */
};

/* ---- messages, counted ---- */

static int messages;
static struct sk_os counting;

static ssize_t count_sendmsg(const struct sk_os *os, int fd,
			     const struct msghdr *msg, int flags)
{
	ssize_t n = sk_os_linux()->sendmsg(os, fd, msg, flags);

	if (n > 0)
		__atomic_fetch_add(&messages, 1, __ATOMIC_RELAXED);
	return n;
}

/* ---- worlds ---- */

static void link_two(struct world *w, int a, int b)
{
	int fds[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds),
		     0);
	w->links[a]->fds[b] = fds[0];
	w->links[b]->fds[a] = fds[1];
}

static void world_open(struct world *w, int n, size_t bytes)
{
	*w = (struct world){ .n = n, .bytes = bytes,
			     .sent = malloc((size_t)n * bytes) };
	counting = *sk_os_linux();
	counting.sendmsg = count_sendmsg;
	messages = 0;
	cr_assert_not_null(w->sent);
	for (size_t i = 0; i < (size_t)n * bytes; i++)
		w->sent[i] = (char)(i * 7 + i / bytes);
	for (int i = 0; i < n; i++)
		cr_assert_eq(sk_links_new(&counting, i, n, &w->links[i]), 0);
	for (int a = 0; a < n; a++)
		for (int b = 0; b < a; b++)
			link_two(w, a, b);
}

static void world_close(struct world *w)
{
	for (int i = 0; i < w->n; i++)
		sk_links_free(w->links[i]);
	free(w->sent);
}

static void *be_one(void *arg)
{
	struct member *m = arg;

	m->act(m);
	return NULL;
}

static void all_do(struct world *w, act *what)
{
	for (int i = 0; i < w->n; i++) {
		w->members[i] = (struct member){ .w = w, .act = what,
						 .rank = i };
		cr_assert_eq(pthread_create(&w->members[i].thread, NULL,
					    be_one, &w->members[i]), 0);
	}
	for (int i = 0; i < w->n; i++)
		cr_assert_eq(pthread_join(w->members[i].thread, NULL), 0);
}

static struct sk_comm comm_of(const struct member *m)
{
	struct sk_comm comm;

	sk_links_comm(m->w->links[m->rank], &comm);
	return comm;
}

/* ---- words ---- */

static void gather(struct member *m)
{
	struct sk_comm comm = comm_of(m);
	size_t bytes = m->w->bytes, all = (size_t)m->w->n * bytes;
	_cleanup_free_ char *out = malloc(all);

	cr_assert_not_null(out);
	memset(out, 0x55, all);
	cr_assert_eq(comm.allgather(comm.ctx, m->w->sent +
				    (size_t)m->rank * bytes, bytes, out,
				    WAIT_MS), 0);
	cr_assert_arr_eq(out, m->w->sent, all);
}

Test(links, gathered_by_any_number_of_ranks)
{
	const size_t sizes[] = { 1, 700, 300000 };

	for (int n = 1; n <= MOST; n++)
		for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
			struct world w;

			world_open(&w, n, sizes[i]);
			all_do(&w, gather);
			all_do(&w, gather);
			world_close(&w);
		}
}

/* What fits a socket goes in one message. */
/* What a rank says to each other and hears of it is more than poll() takes, of
 * who may have as many descriptors as there are links. */
Test(links, no_more_is_polled_than_may_be_open)
{
	const struct rlimit few = { MOST - 1, MOST - 1 };
	struct world w;

	world_open(&w, MOST, 300000);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	all_do(&w, gather);
	world_close(&w);
}

Test(links, two_messages_a_rank)
{
	struct world w;

	world_open(&w, MOST, 64);
	all_do(&w, gather);
	cr_assert_eq(messages, 2 * (MOST - 1));
	world_close(&w);
}

/* Rank 0's link has to carry all of it no more than to itself. */
Test(links, much_goes_from_each_to_each)
{
	struct world w;

	world_open(&w, MOST, 300000);
	messages = 0;
	all_do(&w, gather);
	cr_assert_geq(messages, MOST * (MOST - 1));
	world_close(&w);
}

static void hear_root(struct member *m)
{
	_cleanup_free_ char *mine = malloc(m->w->bytes);

	cr_assert_not_null(mine);
	memset(mine, 0x55, m->w->bytes);
	if (m->rank == m->w->root)
		memcpy(mine, m->w->sent, m->w->bytes);
	cr_assert_eq(sk_links_broadcast(m->w->links[m->rank], m->w->root, mine,
					m->w->bytes, WAIT_MS), 0);
	cr_assert_arr_eq(mine, m->w->sent, m->w->bytes);
}

Test(links, told_by_any_root)
{
	for (int n = 1; n <= MOST; n++)
		for (int32_t root = 0; root < n; root++) {
			struct world w;

			world_open(&w, n, 500);
			w.root = root;
			all_do(&w, hear_root);
			cr_assert_eq(messages, n - 1);
			world_close(&w);
		}
}

/* ---- ends ---- */

/* No caller aborts anything: who has failed does it. */
static void lose_one(struct member *m)
{
	struct sk_links *l = m->w->links[m->rank];
	struct sk_comm comm = comm_of(m);
	char out[MOST * 8];

	if (m->rank == m->w->root) {
		for (int i = 0; i < m->w->n; i++)
			if (l->fds[i] >= 0)
				(void)shutdown(l->fds[i], SHUT_RDWR);
		return;
	}
	cr_assert_eq(comm.allgather(comm.ctx, "12345678", 8, out, UINT32_MAX),
		     -ECONNRESET);
	cr_assert(sk_links_failed(l));
	cr_assert_eq(comm.allgather(comm.ctx, "12345678", 8, out, UINT32_MAX),
		     -EIO);
}

Test(links, one_that_is_gone_keeps_nobody_waiting)
{
	for (int32_t gone = 0; gone < MOST; gone++) {
		struct world w;

		world_open(&w, MOST, 8);
		w.root = gone;
		all_do(&w, lose_one);
		world_close(&w);
	}
}

static void stay_silent(struct member *m)
{
	struct sk_comm comm = comm_of(m);
	char out[MOST * 8];
	bool passes;
	int32_t missed;
	int r;

	if (m->rank == m->w->root)
		return;
	r = comm.allgather(comm.ctx, "12345678", 8, out, 200);
	cr_assert(r == -ETIMEDOUT || r == -ECONNRESET, "%d", r);
	/* The others hear of rank 0 alone, which hears of who is gone when
	 * another has given up before it. */
	missed = sk_links_missed(&comm, &passes);
	cr_assert(m->rank ? !missed && passes :
		  !passes && (r == -ECONNRESET || missed == m->w->root), "%d",
		  missed);
}

Test(links, one_that_says_nothing_is_not_waited_for)
{
	struct world w;

	world_open(&w, MOST, 8);
	w.root = 3;
	all_do(&w, stay_silent);
	world_close(&w);
}

/* Tells when somebody waits. */
struct waited {
	struct sk_os os;
	const struct sk_os *real;
	sem_t waits;
	struct sk_links *links;
};

static int poll_and_tell(const struct sk_os *os, struct pollfd *fds, nfds_t n,
			 uint64_t until_ns)
{
	struct waited *w = (struct waited *)os;

	(void)sem_post(&w->waits);
	return w->real->poll(w->real, fds, n, until_ns);
}

static void *abort_what_waits(void *arg)
{
	struct waited *w = arg;

	while (sem_wait(&w->waits))
		;
	sk_links_abort(w->links);
	return NULL;
}

/* From another thread, while a call waits. */
Test(links, aborted_while_it_waits)
{
	struct waited waited = { .os = *sk_os_linux(), .real = sk_os_linux() };
	struct member m = { .rank = 1 };
	struct sk_comm comm;
	pthread_t thread;
	struct world w;
	char byte = 0, out[2];

	world_open(&w, 2, 1);
	m.w = &w;
	comm = comm_of(&m);
	waited.os.poll = poll_and_tell;
	waited.links = w.links[1];
	cr_assert_eq(sem_init(&waited.waits, 0, 0), 0);
	w.links[1]->os = &waited.os;
	cr_assert_eq(pthread_create(&thread, NULL, abort_what_waits, &waited),
		     0);
	cr_assert_eq(comm.allgather(comm.ctx, &byte, 1, out, UINT32_MAX),
		     -ECONNRESET);
	cr_assert_eq(pthread_join(thread, NULL), 0);
	world_close(&w);
	(void)sem_destroy(&waited.waits);
}

/* A child of fork() has copies of the sockets, and leaves them alone. */
Test(links, of_the_parent_alone)
{
	struct world w;
	int status;
	pid_t pid;

	world_open(&w, MOST, 8);
	pid = fork();
	if (!pid) {
		char out[MOST];
		int r = sk_links_broadcast(w.links[1], 1, out, 1, WAIT_MS);

		sk_links_abort(w.links[0]);
		_exit(r != -EOWNERDEAD);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
	all_do(&w, gather);
	world_close(&w);
}
