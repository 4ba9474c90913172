/* SPDX-License-Identifier: Apache-2.0 */
/* The budget, other users, gathers, pins, and what the command line says. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"

#define NOBODY 65534

/* Rows are a page each: 1000 of them and the header make an image of a bit
 * more than 4 MB. */
#define ROWS 1000

static void test_budget(struct rig *rig)
{
	struct rank_options o = { .job = "first", .world = 1, .rows = ROWS };
	struct rank first, second, third;
	double used;

	CHECK_STATUS(rank_open(&first, rig, &o), 0, &first.msg);
	used = stat_value(first.sock, "shardkeep_memory_used_bytes");
	CHECK(used >= 2 * ROWS * 4096 && used < 2.1 * ROWS * 4096, "used %f",
	      used);
	o.job = "second";
	o.slots = 4;
	CHECK_STATUS(rank_open(&second, rig, &o), -ENOMEM, &second.msg);
	CHECK(strstr(rig_why(&second.msg), "asked for 15.6 MiB") &&
	      strstr(rig_why(&second.msg), "first 7.8 MiB") &&
	      strstr(rig_why(&second.msg), "20.0 MiB"), "%s",
	      rig_why(&second.msg));
	rank_close(&second);
	CHECK(stat_value(first.sock, "shardkeep_memory_used_bytes") == used,
	      "a refused rank holds memory");
	CHECK(stat_value(first.sock, "shardkeep_registrations_refused_memory"
			 "_total") == 1, "it is not counted");
	o.slots = 2;
	CHECK_STATUS(rank_open(&second, rig, &o), 0, &second.msg);
	rank_snapshot(&second, 1);
	rank_snapshot(&second, 2);
	rank_close(&second);
	/* The old images of the dead make room, but for the newest. */
	o.job = "third";
	CHECK_STATUS(rank_open(&third, rig, &o), 0, &third.msg);
	CHECK(!snapshot_flags(first.sock, "second", 1), "step 1 is there");
	CHECK(snapshot_flags(first.sock, "second", 2) & SK_SNAP_COMPLETE,
	      "step 2 is gone");
	rank_close(&third);
	/* The same rank again takes its old slot, image and all. */
	o.job = "fourth";
	CHECK_STATUS(rank_open(&third, rig, &o), 0, &third.msg);
	o.job = "second";
	CHECK_STATUS(rank_open(&second, rig, &o), -ENOMEM, &second.msg);
	rank_close(&second);
	rank_close(&third);
	CHECK_STATUS(rank_open(&second, rig, &o), 0, &second.msg);
	CHECK(snapshot_flags(first.sock, "second", 2) & SK_SNAP_COMPLETE,
	      "step 2 is gone");
	rank_snapshot(&second, 3);
	rank_snapshot(&second, 4);
	rank_close(&second);
	rank_close(&first);
}

/* Pinned ones stay until they are not. */
static void test_pin(struct rig *rig)
{
	struct sk_msg msg;
	struct rank r;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "pin", .world = 1 }), 0, &r.msg);
	rank_snapshot(&r, 1);
	CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "pin", 1, 0, &msg), 0, &msg);
	rank_snapshot(&r, 2);
	CHECK_STATUS(rank_slot(&r, 3, 0), -EBUSY, &r.msg);
	CHECK(strstr(rig_why(&r.msg), "pinned"), "%s", rig_why(&r.msg));
	CHECK_STATUS(manage(r.sock, SK_MSG_EVICT, "pin", 1, 0, &msg), -EBUSY,
		     &msg);
	CHECK_STATUS(manage(r.sock, SK_MSG_UNPIN, "pin", 1, 0, &msg), 0,
		     &msg);
	rank_snapshot(&r, 3);
	CHECK_STATUS(manage(r.sock, SK_MSG_FLUSH, "pin", 3, 0, &msg),
		     -ENOTCONN, &msg);
	CHECK_STATUS(manage(r.sock, SK_MSG_EVICT, "pin", 3, SK_EVICT_FORCE,
			    &msg), 0, &msg);
	CHECK_STATUS(manage(r.sock, SK_MSG_PIN, "pin", 3, 0, &msg), -ENOENT,
		     &msg);
	rank_close(&r);
}

/* ---- other users ---- */

static void as_nobody(struct rig *rig)
{
	struct sk_msg msg = { .type = SK_MSG_STOP };
	struct rank r;
	size_t n;
	int sock;

	CHECK(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 &&
	      setuid(NOBODY) == 0, "setuid");
	sock = rig_connect(rig);
	free(list_snapshots(sock, "", &n));
	CHECK(n == 0, "sees %zu snapshots of others", n);
	CHECK_STATUS(manage(sock, SK_MSG_PIN, "mine", 1, 0, &msg), -ENOENT,
		     &msg);
	/* Image ids are no secret, images are. */
	for (uint64_t id = 1; id < 200; id++) {
		msg = (struct sk_msg){ .type = SK_MSG_OPEN, .body.open = {
			.image = id, .place = SK_PLACE_MEMORY } };
		CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL),
			     -ENOENT, &msg);
	}
	msg = (struct sk_msg){ .type = SK_MSG_STOP };
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), -EPERM, &msg);
	/* A job of the same name is another one. */
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "mine", .world = 1 }), 0, &r.msg);
	CHECK(r.run == 1, "run %d", (int)r.run);
	rank_snapshot(&r, 7);
	free(list_snapshots(sock, "", &n));
	CHECK(n == 1, "%zu snapshots", n);
	/* Who holds the memory is not told by name. */
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "big", .world = 1, .rows = 100 * ROWS }), -ENOMEM,
		&r.msg);
	CHECK(!strstr(rig_why(&r.msg), "hidden"), "%s", rig_why(&r.msg));
	_exit(0);
}

static void test_users(struct rig *rig)
{
	struct rank r, hidden;
	int status;
	size_t n;
	pid_t pid;

	if (geteuid() != 0)
		return;
	CHECK_STATUS(rank_open(&hidden, rig, &(struct rank_options){
		.job = "hidden", .world = 1 }), 0, &hidden.msg);
	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = "mine", .world = 1 }), 0, &r.msg);
	rank_snapshot(&r, 1);
	pid = fork();
	if (!pid)
		as_nobody(rig);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "nobody failed");
	/* Root sees both. */
	free(list_snapshots(r.sock, "mine", &n));
	CHECK(n == 2, "%zu snapshots", n);
	rank_close(&r);
	rank_close(&hidden);
}

/* ---- gathers ---- */

/* As that rank of the run, whichever @world it says to have. */
static void send_gather(int sock, const struct rank *as, int rank, int world,
			uint64_t round, uint32_t bytes, uint32_t timeout_ms)
{
	struct sk_msg msg = { .type = SK_MSG_GATHER, .body.gather = {
		.id = { .run = as->run, .run_id = as->run_id, .rank = rank,
			.world = world, .step = -1 },
		.round = round, .bytes = bytes, .timeout_ms = timeout_ms } };
	int fd = -1;

	strcpy(msg.body.gather.id.job, "gather");
	if (bytes <= SK_GATHER_INLINE) {
		memset(msg.body.gather.data, 'a' + rank, bytes);
	} else {
		char *data = malloc(bytes);

		memset(data, 'a' + rank, bytes);
		fd = memfd_create("gather", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		CHECK(write(fd, data, bytes) == (ssize_t)bytes, "write");
		free(data);
	}
	CHECK(sk_channel_send(sk_os_linux(), sock, &msg, &fd, fd >= 0) == 0, "send");
	if (fd >= 0)
		close(fd);
}

static void check_gathered(int sock, int world, uint32_t bytes)
{
	struct sk_msg msg;
	int fds[SK_MSG_FDS], n = 0;
	char *data = malloc((size_t)world * bytes);

	CHECK_STATUS(rig_reply(sock, &msg, fds, &n), 0, &msg);
	CHECK(n == 1, "%d descriptors", n);
	CHECK(pread(fds[0], data, (size_t)world * bytes, 0) ==
	      (ssize_t)world * bytes, "short");
	for (int i = 0; i < world; i++)
		CHECK(data[(size_t)i * bytes] == 'a' + i &&
		      data[(size_t)(i + 1) * bytes - 1] == 'a' + i,
		      "bytes of rank %d", i);
	close(fds[0]);
	free(data);
}

static void test_gather(struct rig *rig)
{
	static const uint32_t sizes[] = { 1, 100, SK_GATHER_INLINE,
					  SK_GATHER_INLINE + 1, 1 << 20 };
	struct rank r[3], stranger;
	struct sk_msg msg;
	int socks[3];

	for (int i = 0; i < 3; i++) {
		CHECK_STATUS(rank_open(&r[i], rig, &(struct rank_options){
			.job = "gather", .rank = i, .world = 3 }), 0,
			&r[i].msg);
		socks[i] = rig_connect(rig);
	}
	for (uint32_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
		for (int i = 2; i >= 0; i--)
			send_gather(socks[i], &r[0], i, 3, k, sizes[k],
				    WAIT_MS);
		for (int i = 0; i < 3; i++)
			check_gathered(socks[i], 3, sizes[k]);
	}
	/* One is missing: the others are told who. */
	send_gather(socks[0], &r[0], 0, 3, 9, 8, 50);
	CHECK_STATUS(rig_reply(socks[0], &msg, NULL, NULL), -ETIMEDOUT, &msg);
	CHECK(strstr(rig_why(&msg), "rank 1"), "%s", rig_why(&msg));
	/* Unequal: everybody hears of it. */
	send_gather(socks[0], &r[0], 0, 3, 10, 8, WAIT_MS);
	send_gather(socks[1], &r[0], 1, 3, 10, 9, WAIT_MS);
	CHECK_STATUS(rig_reply(socks[0], &msg, NULL, NULL), -EINVAL, &msg);
	CHECK_STATUS(rig_reply(socks[1], &msg, NULL, NULL), -EINVAL, &msg);
	/* Too much, and of another world. */
	send_gather(socks[0], &r[0], 0, 4, 11, 8, WAIT_MS);
	CHECK_STATUS(rig_reply(socks[0], &msg, NULL, NULL), -EINVAL, &msg);
	/* Who does not know the run's id disturbs nobody who does. */
	stranger = r[0];
	stranger.run_id = 0;
	send_gather(socks[0], &r[0], 0, 3, 12, 8, WAIT_MS);
	send_gather(socks[1], &stranger, 1, 3, 12, 9, WAIT_MS);
	CHECK_STATUS(rig_reply(socks[1], &msg, NULL, NULL), -ENOENT, &msg);
	stranger = r[0];
	stranger.run = 0;
	send_gather(socks[1], &stranger, 1, 3, 12, 9, WAIT_MS);
	CHECK_STATUS(rig_reply(socks[1], &msg, NULL, NULL), -ENOENT, &msg);
	for (int i = 1; i < 3; i++)
		send_gather(socks[i], &r[0], i, 3, 12, 8, WAIT_MS);
	for (int i = 0; i < 3; i++)
		check_gathered(socks[i], 3, 8);
	/* A rank dies: nobody waits for it. */
	send_gather(socks[0], &r[0], 0, 3, 13, 8, WAIT_MS);
	rank_close(&r[2]);
	CHECK_STATUS(rig_reply(socks[0], &msg, NULL, NULL), -ETIMEDOUT, &msg);
	CHECK(strstr(rig_why(&msg), "rank 2"), "%s", rig_why(&msg));
	for (int i = 0; i < 3; i++)
		close(socks[i]);
	rank_close(&r[0]);
	rank_close(&r[1]);
}

/* ---- the command line ---- */

static int run(const char *program, const char *a, const char *b)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		int null = open("/dev/null", O_RDWR);

		dup2(null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		execl(program, program, a, b, NULL);
		_exit(127);
	}
	CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_options(struct rig *rig)
{
	CHECK(run(rig->program, "--help", NULL) == 0, "help");
	CHECK(run(rig->program, "--version", NULL) == 0, "version");
	CHECK(run(rig->program, "--memory", "many") == 2, "memory");
	CHECK(run(rig->program, "--memory", "101%") == 2, "memory");
	CHECK(run(rig->program, "--memory", "-5G") == 2, "memory");
	CHECK(run(rig->program, "--backend", "tape") == 2, "backend");
	CHECK(run(rig->program, "--what", NULL) == 2, "unknown");
	CHECK(run(rig->program, "more", NULL) == 2, "argument");
	/* A second agent on the same socket leaves the first alone. */
	CHECK(run(rig->program, "--socket", rig->socket) == 0, "second");
	close(rig_connect(rig));
}

int main(int argc, char **argv)
{
	struct sk_msg msg = { .type = SK_MSG_STOP };
	struct rig rig;
	int sock;

	rig_init(&rig, argc > 1 ? argv[1] : NULL);
	/* Other users of a test must reach the socket. */
	rig_start(&rig, "--memory", "20M", NULL);
	test_budget(&rig);
	CHECK(rig_stop(&rig) == 0, "exit status");
	/* A dead agent's socket does not keep the next one from starting. */
	rig_start(&rig, "--memory", "64M", NULL);
	kill(rig.agent, SIGKILL);
	CHECK(rig_wait(&rig) == 128 + SIGKILL, "kill");
	rig_start(&rig, "--memory", "64M", NULL);
	test_pin(&rig);
	test_users(&rig);
	test_gather(&rig);
	test_options(&rig);
	sock = rig_connect(&rig);
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	CHECK(rig_wait(&rig) == 0, "stopped by a client");
	close(sock);
	rig_remove(&rig);
	return 0;
}
