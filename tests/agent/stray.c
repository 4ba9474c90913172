/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the system does not tell when a process has ended, as before Linux 5.3
 * or in another namespace: whose connection ends may still write to its slots,
 * and nobody else gets them.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/whole.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#define IMAGE 65536u	/* of rig.h's ranks, beside the header */
#define STRAY 0xab

static int no_peer(const struct sk_os *os, int fd, int level, int name,
		   void *value, socklen_t *size)
{
	const struct sk_os *real = sk_os_linux();

	(void)os;
	return name == SO_PEERPIDFD ? -ENOPROTOOPT :
		real->getsockopt(real, fd, level, name, value, size);
}

static int no_pidfd(const struct sk_os *os, pid_t pid)
{
	(void)os;
	(void)pid;
	return -ENOSYS;
}

static void open_rank(struct rank *r, const struct whole *w)
{
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = "stray", .world = 1 }), 0, &r->msg);
}

static void scribble(const struct rank *r)
{
	for (unsigned i = 0; i < r->slots; i++)
		memset(r->maps[i][0], STRAY, IMAGE);
}

static void check_apart(const struct rank *r)
{
	for (unsigned i = 0; i < r->slots; i++)
		for (unsigned k = 0; k < IMAGE; k++)
			CHECK((unsigned char)r->maps[i][0][k] != STRAY,
			      "slot %u is another's as well", i);
}

int main(void)
{
	struct rank stray, next;
	struct whole w;

	whole_init(&w);
	w.fault->os.getsockopt = no_peer;
	w.fault->os.pidfd_open = no_pidfd;
	whole_start(&w);
	CHECK(w.serves, "it did not start: %s", whole_log(&w));
	open_rank(&stray, &w);
	rank_snapshot(&stray, 1);
	close(stray.sock);
	open_rank(&next, &w);
	rank_snapshot(&next, 2);
	rank_snapshot(&next, 3);
	scribble(&stray);
	check_apart(&next);
	rank_close(&next);
	CHECK(kill(w.rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(&w) == 0, "exit status: %s", whole_log(&w));
	whole_remove(&w);
	return 0;
}
