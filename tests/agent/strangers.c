/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of strangers, limits that were inherited, and users who ask for
 * much: others are served all the while.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/rig.h"

#define LINGER_S 60	/* how long a close() of such a socket takes */
#define SOON_S 20
#define MANY 253
#define FEW 256
#define STRANGER 65534

/* ---- a socket that takes long to close ---- */

static int listener;
static struct sockaddr_in listener_addr;

static void open_listener(void)
{
	socklen_t size = sizeof(listener_addr);

	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	listener_addr = (struct sockaddr_in){ .sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK(bind(listener, (struct sockaddr *)&listener_addr, size) == 0,
	      "bind");
	CHECK(listen(listener, 64) == 0, "listen");
	CHECK(getsockname(listener, (struct sockaddr *)&listener_addr,
			  &size) == 0, "getsockname");
}

/* It has unsent data that nobody will read. */
static int lingering_socket(void)
{
	const struct linger linger = { .l_onoff = 1, .l_linger = LINGER_S };
	int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	static char junk[1 << 16];

	CHECK(connect(sock, (struct sockaddr *)&listener_addr,
		      sizeof(listener_addr)) == 0, "connect");
	CHECK(setsockopt(sock, SOL_SOCKET, SO_LINGER, &linger,
			 sizeof(linger)) == 0, "linger");
	CHECK(fcntl(sock, F_SETFL, O_NONBLOCK) == 0, "fcntl");
	while (write(sock, junk, sizeof(junk)) > 0)
		;
	CHECK(fcntl(sock, F_SETFL, 0) == 0, "fcntl");
	return sock;
}

static time_t now_s(void)
{
	struct timespec ts;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &ts) == 0, "clock");
	return ts.tv_sec;
}

/* Sends @n descriptors, among them one that lingers, whose last holder the
 * agent is then; the socket that they were sent on. */
static int send_lingering(const struct rig *rig, uint16_t type, int n)
{
	union {
		char buf[CMSG_SPACE(MANY * sizeof(int))];
		struct cmsghdr align;
	} control = { .buf = { 0 } };
	struct sk_msg msg = { .magic = SK_WIRE_MAGIC,
			      .version = SK_WIRE_VERSION, .type = type,
			      .bytes = SK_MSG_BYTES, .n_fds = (uint32_t)n };
	struct iovec iov = { .iov_base = &msg, .iov_len = sizeof(msg) };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1,
			    .msg_control = control.buf,
			    .msg_controllen = CMSG_SPACE((size_t)n *
							 sizeof(int)) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	int sock = rig_connect(rig), fds[MANY];

	for (int i = 0; i < n - 1; i++)
		fds[i] = listener;
	fds[n - 1] = lingering_socket();
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, (size_t)n * sizeof(int));
	/* While it stands still, ours is not the last one: closing it does
	 * not linger. */
	rig_freeze(rig);
	CHECK(sendmsg(sock, &h, 0) == SK_MSG_BYTES, "sendmsg: %s",
	      strerror(errno));
	close(fds[n - 1]);
	rig_thaw(rig);
	return sock;
}

static void served(struct rank *other, int64_t step, time_t since,
		   const char *what)
{
	rank_snapshot(other, step);
	CHECK(now_s() - since < SOON_S, "%s: another job waited %d s", what,
	      (int)(now_s() - since));
}

static void test_lingering(struct rig *rig, struct rank *other)
{
	time_t since = now_s();
	int socks[5], n = 0;

	/* Where none belong, too many, and where one belongs. */
	socks[n++] = send_lingering(rig, SK_MSG_STATS, 1);
	served(other, 1, since, "a message without use for it");
	socks[n++] = send_lingering(rig, SK_MSG_STATS, MANY);
	served(other, 2, since, "more than a message carries");
	socks[n++] = send_lingering(rig, SK_MSG_GATHER, 1);
	served(other, 3, since, "a gather");
	socks[n++] = send_lingering(rig, SK_MSG_REGISTER, 1);
	served(other, 4, since, "a registration");
	/* In a message that is never read, for the connection ends first. */
	socks[n++] = send_lingering(rig, 0, 1);
	(void)send_lingering(rig, 0, 1);
	served(other, 5, since, "messages that are not read");
	while (n)
		close(socks[--n]);
	served(other, 6, since, "connections that end");
}

/* ---- descriptors where none belong ---- */

static void test_refused_fds(struct rig *rig)
{
	struct sk_msg msg = { .type = SK_MSG_STATS };
	int sock = rig_connect(rig);

	CHECK_STATUS(rig_call(sock, &msg, &listener, 1, NULL, NULL), -EINVAL,
		     &msg);
	CHECK(strstr(rig_why(&msg), "at most 0 descriptors"), "%s",
	      rig_why(&msg));
	close(sock);
}

/* ---- limits of whoever started the agent ---- */

static void test_file_size_limit(struct rig *rig)
{
	struct rlimit was, limit;
	struct rank r;

	CHECK(getrlimit(RLIMIT_FSIZE, &was) == 0, "getrlimit");
	limit = (struct rlimit){ .rlim_cur = 1 << 16,
				 .rlim_max = was.rlim_max };
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
	rig_start(rig, "--memory", "256M", "--store", rig->store, NULL);
	CHECK(setrlimit(RLIMIT_FSIZE, &was) == 0, "setrlimit");
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "large", .world = 1, .rows = 500 }), 0, &r.msg);
	rank_snapshot(&r, 1);
	CHECK_STATUS(rank_wait(&r, 1, 3, WAIT_MS), 0, &r.msg);
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
}

/* It cannot be raised: refused with a sentence, not the end. */
static void test_hard_limit(struct rig *rig)
{
	const struct rlimit limit = { .rlim_cur = 1 << 16,
				      .rlim_max = 1 << 16 };
	struct rank r;
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0, "fork");
	if (pid) {
		CHECK(waitpid(pid, &status, 0) == pid && status == 0,
		      "status %#x", status);
		return;
	}
	(void)signal(SIGXFSZ, SIG_IGN);
	CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
	rig_start(rig, "--memory", "256M", NULL);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "large", .world = 1, .rows = 500 }), -EFBIG, &r.msg);
	CHECK(strstr(rig_why(&r.msg), "limit of file sizes"), "%s",
	      rig_why(&r.msg));
	rank_close(&r);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "small", .world = 1, .rows = 1 }), 0, &r.msg);
	rank_snapshot(&r, 1);
	rank_close(&r);
	CHECK(rig_stop(rig) == 0, "exit status");
	_exit(0);
}

/* ---- descriptors ---- */

/* In a process of its own, with an agent that may have so many open. */
static void with_few(struct rig *rig, void (*fn)(struct rig *rig))
{
	const struct rlimit limit = { .rlim_cur = FEW, .rlim_max = FEW };
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0, "fork");
	if (pid) {
		CHECK(waitpid(pid, &status, 0) == pid && status == 0,
		      "status %#x", status);
		return;
	}
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
	rig_start(rig, "--memory", "256M", "--log-level", "error", NULL);
	fn(rig);
	CHECK(rig_stop(rig) == 0, "exit status");
	_exit(0);
}

/* They run out before memory does: refused, and to be had again when those
 * who had them are gone. */
static void test_descriptors(struct rig *rig)
{
	struct rank ranks[32], r;
	int n;

	for (int life = 0; life < 3; life++) {
		for (n = 0; n < 24; n++) {
			if (rank_open(&ranks[n], rig, &(struct rank_options){
				.job = "greedy", .world = 32, .rank = n,
				.rows = 1, .slots = 8 }) < 0)
				break;
			rank_snapshot(&ranks[n], life + 1);
		}
		CHECK(n > 4 && n < 24, "%d ranks", n);
		CHECK_STATUS(ranks[n].msg.status, -EMFILE, &ranks[n].msg);
		CHECK(strstr(rig_why(&ranks[n].msg), "open files"), "%s",
		      rig_why(&ranks[n].msg));
		for (int i = 0; i <= n; i++)
			rank_close(&ranks[i]);
		/* Who comes after them has all that they left. */
		CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
			.job = "modest", .world = 1, .rows = 1, .slots = 8 }),
			0, &r.msg);
		rank_snapshot(&r, life + 1);
		CHECK_STATUS(rank_wait(&r, life + 1, 2, WAIT_MS), 0, &r.msg);
		rank_close(&r);
	}
}

/* Connects until it is refused; how often it was not. */
static int connect_all(const struct rig *rig, int socks[FEW])
{
	struct sk_msg msg;
	int n = 0;

	while (n < FEW && (socks[n] = rig_try_connect(rig, &msg)) >= 0)
		n++;
	return n;
}

/* A user takes half of the agent's connections: others still have theirs. */
static void test_connections(struct rig *rig)
{
	int status, n, socks[FEW], n_mine, mine[FEW];
	pid_t pid;

	if (geteuid())		/* nobody can be another user */
		return;
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		CHECK(setuid(STRANGER) == 0, "setuid");
		n = connect_all(rig, socks);
		for (int i = 0; i < n; i++)
			close(socks[i]);
		_exit(n);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "wait");
	n = WEXITSTATUS(status);
	n_mine = connect_all(rig, mine);
	CHECK(n > 4 && n_mine > n, "%d and %d connections", n, n_mine);
	while (n_mine)
		close(mine[--n_mine]);
}

/* ---- a disk that fails ---- */

/* Every step is to go to disk and none does: memory goes on, newest first. */
static void test_disk_fails(struct rig *rig)
{
	char path[sizeof(rig->store) + 16];
	struct rank r;
	int fd;

	CHECK(mkdir(rig->store, 0700) == 0 || errno == EEXIST, "mkdir");
	snprintf(path, sizeof(path), "%s/unlucky", rig->store);
	/* A file where the job's directory should be. */
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	CHECK(fd >= 0, "open");
	close(fd);
	rig_start(rig, "--memory", "256M", "--store", rig->store,
		  "--stop-timeout", "1", NULL);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "unlucky", .world = 1 }), 0, &r.msg);
	for (int64_t step = 1; step <= 12; step++) {
		int slot;

		/* Only while a flush of the oldest is under way. */
		while ((slot = rank_slot(&r, step, 0)) == -EBUSY)
			CHECK_STATUS(rank_await_slot(&r), 0, &r.msg);
		CHECK(slot >= 0, "step %d: %s", (int)step, rig_why(&r.msg));
		rank_fill(&r, slot, step);
		CHECK_STATUS(rank_seal(&r, slot, step), 0, &r.msg);
		CHECK(snapshot_flags(r.sock, "unlucky", step) &
		      SK_SNAP_NEWEST, "step %d", (int)step);
		CHECK(!(snapshot_flags(r.sock, "unlucky", step) &
			SK_SNAP_DURABLE), "step %d", (int)step);
	}
	rank_close(&r);
	(void)rig_stop(rig);
	CHECK(unlink(path) == 0, "unlink");
}

int main(int argc, char **argv)
{
	struct rank other;
	struct rig rig;

	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	open_listener();
	rig_start(&rig, "--memory", "256M", "--log-level", "error", NULL);
	CHECK_STATUS(rank_open(&other, &rig, &(struct rank_options){
		.job = "other", .world = 1 }), 0, &other.msg);
	test_lingering(&rig, &other);
	test_refused_fds(&rig);
	rank_close(&other);
	CHECK(rig_stop(&rig) == 0, "exit status");
	test_file_size_limit(&rig);
	test_hard_limit(&rig);
	with_few(&rig, test_descriptors);
	with_few(&rig, test_connections);
	test_disk_fails(&rig);
	rig_remove(&rig);
	return 0;
}
