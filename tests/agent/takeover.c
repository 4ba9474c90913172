/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takeovers that do not go as they should: the taker reads slowly, the agent
 * before it ends half way, or what is taken is not what was sealed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"
#include "keeper/kept.h"
#include "keeper/standby.h"
#include "keeper/table.h"
#include "takeover.h"
#include "wire/version.h"

#define RANKS 40
#define SLOTS 8
#define TRIES 5
#define KEPT_SLOTS 8
#define KEPT_JOBS 60
#define STILL_MS 1500		/* longer than a bound, by its clock */

/* ---- a taker that reads slowly ---- */

static int bytes_in(int sock)
{
	int n = 0;

	CHECK(ioctl(sock, FIONREAD, &n) == 0, "FIONREAD");
	return n;
}

/* Until the socket is full, or all is in it: nothing more comes for a while.
 * Whatever has come, what follows must be so. */
static void let_fill(int sock)
{
	int last = 0;

	for (int still = 0; still < 50; still++) {
		int n = bytes_in(sock);

		if (n != last)
			still = 0;
		last = n;
		(void)usleep(2000);
	}
}

static void ask_for_all(int sock)
{
	struct sk_msg msg = { .type = SK_MSG_TAKEOVER, .body.takeover = {
		.table_version = TABLE_VERSION,
		.record_bytes = sizeof(struct table_record) } };

	rig_send(sock, &msg);
}

/* How many descriptors come; 0: it hung up before the last. */
static uint32_t take_all(int sock)
{
	struct sk_msg msg;
	uint32_t n = 0;
	int r;

	do {
		r = rig_reply(sock, &msg, NULL, NULL);
		n++;
	} while (r == 0 && msg.body.kept.left);
	return r == 0 ? n : 0;
}

static uint32_t take_slowly(const struct rig *rig)
{
	int sock = rig_connect(rig);
	uint32_t n;

	ask_for_all(sock);
	let_fill(sock);
	n = take_all(sock);
	close(sock);
	return n;
}

/* All of it comes to who is not as quick, and the agent goes on where nobody
 * says that he has it. It bounds for how long others wait, so that a machine
 * that stands still has another try. */
static void test_slow(const char *program)
{
	struct rank r[RANKS];
	struct rig rig;
	uint32_t n = 0;

	rig_init(&rig, program);
	rig_start(&rig, "--keeper", "--memory", "64M", "--idle-exit", "60",
		  NULL);
	for (int i = 0; i < RANKS; i++)
		CHECK_STATUS(rank_open(&r[i], &rig, &(struct rank_options){
			.job = "slow", .rank = i, .world = RANKS,
			.slots = SLOTS, .rows = 1 }), 0, &r[i].msg);
	for (int i = 0; i < TRIES && !n; i++)
		n = take_slowly(&rig);
	CHECK(n >= RANKS * SLOTS, "%u descriptors", n);
	for (int i = 0; i < RANKS; i++)
		rank_snapshot(&r[i], 1);
	CHECK_STATUS(rank_wait(&r[0], 1, 2, WAIT_MS), 0, &r[0].msg);
	for (int i = 0; i < RANKS; i++)
		rank_close(&r[i]);
	CHECK(rig_stop(&rig) == 0, "status");
	rig_remove(&rig);
}

/* ---- an agent that ends half way ---- */

static int listen_at(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strcpy(addr.sun_path, path);
	CHECK(sock >= 0 && bind(sock, (struct sockaddr *)&addr,
				sizeof(addr)) == 0 && listen(sock, 4) == 0,
	      "listen: %s", strerror(errno));
	return sock;
}

static struct sk_msg hear(int sock, uint16_t type)
{
	const struct sk_os *os = sk_os_linux();
	int fds[SK_MSG_FDS], n = 0;
	struct sk_msg msg;

	CHECK(sk_channel_wait(os, sock, os->now_ns(os) +
			      WAIT_MS * UINT64_C(1000000)) == 0 &&
	      sk_channel_recv(os, sock, &msg, fds, &n) == 0, "no message");
	CHECK(msg.type == type, "message %u", msg.type);
	while (n)
		close(fds[--n]);
	return msg;
}

static void answer(int sock, struct sk_msg *msg, int fd)
{
	CHECK(sk_channel_send(sk_os_linux(), sock, msg, &fd, fd >= 0) == 0,
	      "send");
}

static void greet(int sock)
{
	struct sk_msg msg = hear(sock, SK_MSG_HELLO);

	memset(&msg.body, 0, sizeof(msg.body));
	msg.body.hello_reply = (struct sk_wire_hello_reply){
		.instance = 1, .pid = (uint32_t)getpid(),
		.wire = SK_WIRE_VERSION };
	answer(sock, &msg, -1);
}

/* The first of several, and then no more. */
static void hand_one_over(int sock)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct sk_msg msg;

	greet(sock);
	msg = hear(sock, SK_MSG_TAKEOVER);
	memset(&msg.body, 0, sizeof(msg.body));
	msg.body.kept.left = 3;
	strcpy(msg.body.kept.name, KEPT_LISTENER);
	answer(sock, &msg, fd);
	close(fd);
	close(sock);
}

/* The taker says what happened, and does not begin. */
static void test_half(const char *program)
{
	char text[4096] = "";
	struct rig rig;
	int out[2], listener, sock, status;
	ssize_t got;
	size_t n = 0;
	pid_t pid;

	rig_init(&rig, program);
	listener = listen_at(rig.socket);
	CHECK(pipe2(out, O_CLOEXEC) == 0, "pipe");
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)dup2(out[1], STDERR_FILENO);
		execl(program, program, "--socket", rig.socket, "--takeover",
		      "--idle-exit", "60", (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	sock = accept(listener, NULL, NULL);
	CHECK(sock >= 0, "accept");
	hand_one_over(sock);
	while ((got = read(out[0], text + n, sizeof(text) - 1 - n)) > 0)
		n += (size_t)got;
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
	      WEXITSTATUS(status) == 1, "status %#x", status);
	CHECK(strstr(text, "did not hand all over"), "%s", text);
	close(out[0]);
	close(listener);
	CHECK(unlink(rig.socket) == 0, "unlink");
	rig_remove(&rig);
}

/* ---- what outlives it is not what was sealed ---- */

static pid_t agent_pid(const struct rig *rig)
{
	struct sk_msg msg;
	int sock = rig_try_connect(rig, &msg);

	CHECK(sock >= 0, "connect: %s", strerror(-sock));
	close(sock);
	return (pid_t)msg.body.hello_reply.pid;
}

/* A rank that writes another header over what it has sealed: of the same size,
 * in other words. The next agent does not give it out under those. */
static void test_other_header(const char *program)
{
	struct rank_options o = { .job = "header", .world = 1, .more = 1,
				  .salt = 5 };
	struct rank r, like;
	struct rig rig;
	int slot, sock;
	uint32_t flags;

	rig_init(&rig, program);
	rig_start(&rig, "--keeper", "--memory", "64M", "--idle-exit", "60",
		  NULL);
	CHECK_STATUS(rank_open(&r, &rig, &o), 0, &r.msg);
	o.salt = 6;
	/* It is refused, for there is one; its layout is wanted. */
	CHECK(rank_open(&like, &rig, &o) < 0, "twice");
	CHECK(like.layouts[0]->image_bytes == r.layouts[0]->image_bytes,
	      "another size");
	slot = rank_slot(&r, 1, 0);
	CHECK(slot >= 0, "%s", rig_why(&r.msg));
	rank_fill(&r, slot, 1);
	CHECK_STATUS(rank_seal(&r, slot, 1), 0, &r.msg);
	like.maps[slot][0] = r.maps[slot][0];
	like.run = r.run;
	like.run_id = r.run_id;
	rank_fill(&like, slot, 1);
	like.maps[slot][0] = NULL;
	CHECK(kill(agent_pid(&rig), SIGKILL) == 0, "kill");
	AWAIT((sock = rig_try_connect(&rig, &like.msg)) >= 0, "the next one");
	flags = snapshot_flags(sock, "header", 1);
	CHECK(!(flags & SK_SNAP_RESIDENT), "it is given out: %#x", flags);
	CHECK(stat_value(sock, "shardkeep_images_not_revived_total") == 1,
	      "it is not told of");
	close(sock);
	rank_close(&like);
	rank_close(&r);
	CHECK(rig_stop(&rig) == 0, "status");
	rig_remove(&rig);
}

/* ---- what the keeper has not ---- */

static size_t fds_of(pid_t pid)
{
	struct dirent *e;
	char path[64];
	size_t n = 0;
	DIR *d;

	(void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = opendir(path);
	CHECK(d, "%s: %s", path, strerror(errno));
	while ((e = readdir(d)))
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

/* Jobs, until the keeper, which stands still, takes no more. */
static unsigned fill_keeper(const struct rig *rig, struct rank *r)
{
	unsigned n = 0;

	do {
		char job[16];

		(void)snprintf(job, sizeof(job), "job-%u", n);
		CHECK_STATUS(rank_open(&r[n], rig, &(struct rank_options){
			.job = job, .world = 1, .slots = KEPT_SLOTS,
			.rows = 1 }), 0, &r[n].msg);
		rank_snapshot(&r[n], 1);
	} while (stat_value(r[n++].sock, "shardkeep_slots_unkept_total") == 0 &&
		 n < KEPT_JOBS);
	CHECK(stat_value(r[0].sock, "shardkeep_slots_unkept_total") > 0,
	      "it takes all");
	return n;
}

static void check_resident(int sock, unsigned n)
{
	char job[16];

	for (unsigned i = 0; i < n; i++) {
		(void)snprintf(job, sizeof(job), "job-%u", i);
		CHECK(snapshot_flags(sock, job, 1) & SK_SNAP_RESIDENT,
		      "%s is lost", job);
	}
	CHECK(stat_value(sock, "shardkeep_images_not_revived_total") == 0,
	      "some are lost");
}

/* One that stood still for a while has all of it soon after. */
static void test_keeper_stood_still(const char *program)
{
	struct rank *r = calloc(KEPT_JOBS, sizeof(*r));
	struct sk_msg msg;
	struct rig rig;
	unsigned n;
	int sock;

	CHECK(r, "no memory");
	rig_init(&rig, program);
	rig_start(&rig, "--keeper", "--memory", "512M", NULL);
	rig_freeze(&rig);
	n = fill_keeper(&rig, r);
	rig_thaw(&rig);
	AWAIT(fds_of(rig.agent) > (size_t)n * KEPT_SLOTS, "it has not all");
	CHECK(kill(agent_pid(&rig), SIGKILL) == 0, "kill");
	AWAIT((sock = rig_try_connect(&rig, &msg)) >= 0, "the next one");
	check_resident(sock, n);
	close(sock);
	for (unsigned i = 0; i < n; i++)
		rank_close(&r[i]);
	CHECK(rig_stop(&rig) == 0, "status");
	rig_remove(&rig);
	free(r);
}

/* ---- one that stands still ---- */

/* The times of this are over in no time: real waits are on the real clock. */
static uint64_t past_ns(const struct sk_os *os)
{
	(void)os;
	return sk_os_linux()->now_ns(sk_os_linux()) - UINT64_C(9900000000);
}

static void take(const char *path, int tell)
{
	struct standby standby = STANDBY_NULL;
	struct kept kept = { 0 };
	struct sk_os os = *sk_os_linux();
	struct sk_err err = { "" };
	int r;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	os.now_ns = past_ns;
	r = takeover(&os, NULL, path, &kept, &standby, &err);
	if (r < 0)
		fprintf(stderr, "%s\n", err.text);
	standby_dismiss(&os, &standby);
	CHECK(write(tell, r < 0 ? "-" : "+", 1) == 1, "a pipe");
	_exit(0);
}

static bool has_word(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, ms) == 1;
}

/* One that has handed all over, and has not said that it ends, has it still:
 * whoever waits longer than any bound takes nothing. */
static void test_stands_still(const char *program)
{
	struct table table = TABLE_NULL;
	struct sk_err err = { "" };
	struct rig rig;
	int listener, sock, told[2], status;
	struct sk_msg msg;
	pid_t pid;
	char word;

	rig_init(&rig, program);
	listener = listen_at(rig.socket);
	CHECK(pipe2(told, O_CLOEXEC) == 0 &&
	      table_new(sk_os_linux(), &table, &err) == 0, "%s", err.text);
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid)
		take(rig.socket, told[1]);
	sock = accept(listener, NULL, NULL);
	CHECK(sock >= 0, "accept");
	greet(sock);
	msg = hear(sock, SK_MSG_TAKEOVER);
	memset(&msg.body, 0, sizeof(msg.body));
	strcpy(msg.body.kept.name, KEPT_TABLE);
	answer(sock, &msg, table.fd);
	msg = hear(sock, SK_MSG_TAKEOVER);
	CHECK(msg.body.takeover.flags == SK_TAKEOVER_COMMIT, "%#x",
	      msg.body.takeover.flags);
	CHECK(!has_word(told[0], STILL_MS), "it took what was another's");
	answer(sock, &msg, -1);
	CHECK(has_word(told[0], WAIT_MS) && read(told[0], &word, 1) == 1 &&
	      word == '+', "it took nothing");
	CHECK(waitpid(pid, &status, 0) == pid && !status, "%#x", status);
	table_close(sk_os_linux(), &table);
	close(told[0]);
	close(told[1]);
	close(sock);
	close(listener);
	CHECK(unlink(rig.socket) == 0, "unlink");
	rig_remove(&rig);
}

/* ---- one that takes long to end ---- */

/* It is held where a disk that hangs would hold it: with all that it has still
 * open. Those whose leases it had know by then that they end. */
static void test_hangs_up(const char *program)
{
	struct sk_msg msg = { .type = SK_MSG_TAKEOVER,
			      .body.takeover.flags = SK_TAKEOVER_COMMIT };
	int taker, other, status;
	struct rig rig;
	pid_t pid;
	char c;

	rig_init(&rig, program);
	rig_start(&rig, "--keeper", "--memory", "64M", "--idle-exit", "60",
		  NULL);
	pid = agent_pid(&rig);
	other = rig_connect(&rig);
	taker = rig_connect(&rig);
	ask_for_all(taker);
	CHECK(take_all(taker), "nothing came");
	CHECK(ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_TRACEEXIT) == 0,
	      "ptrace: %m");
	rig_send(taker, &msg);
	CHECK(waitpid(pid, &status, __WALL) == pid &&
	      status >> 8 == (SIGTRAP | PTRACE_EVENT_EXIT << 8), "%#x",
	      status);
	CHECK(recv(other, &c, 1, MSG_DONTWAIT) == 0, "%m");
	CHECK_STATUS(rig_reply(taker, &msg, NULL, NULL), 0, &msg);
	CHECK(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0, "ptrace: %m");
	close(other);
	close(taker);
	CHECK(rig_wait(&rig) == 0, "status");
	rig_remove(&rig);
}

int main(int argc, char **argv)
{
	const char *program = argc > 1 ? argv[1] : NULL;

	test_slow(program);
	test_half(program);
	test_other_header(program);
	test_keeper_stood_still(program);
	test_stands_still(program);
	test_hangs_up(program);
	return 0;
}
