/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long the agent waits for a worker, on a clock that the test moves: as
 * long as it gets further, and no longer than that. The worker is this program,
 * and does what the test tells it; no driver is needed.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/whole.h"
#include "worker/worker.h"

#define SECOND UINT64_C(1000000000)
#define PLAY "SK_TEST_PLAY"	/* where it lies */
#define TURNS 30

/* In a file that the workers know by the environment; atomic. */
struct play {
	unsigned workers;	/* that have an order */
	unsigned wanted, said;	/* words that they get further */
	bool answer;
};
static struct play *play;

static void map_play(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && ftruncate(fd, sizeof(*play)) == 0, "%s", path);
	play = mmap(NULL, sizeof(*play), PROT_READ | PROT_WRITE, MAP_SHARED,
		    fd, 0);
	CHECK(play != MAP_FAILED, "mmap");
	close(fd);
}

/* ---- a worker ---- */

static void send_word(int sock, struct sk_msg *msg, int status)
{
	msg->status = status;
	CHECK(sk_channel_send(sk_os_linux(), sock, msg, NULL, 0) == 0,
	      "send");
}

/* Until it has answered, or nobody listens. */
static int be_worker(int sock)
{
	struct pollfd p = { .fd = sock, .events = POLLIN };
	int fds[SK_MSG_FDS], n;
	struct sk_msg msg;

	map_play(getenv(PLAY));
	CHECK(sk_channel_recv(sk_os_linux(), sock, &msg, fds, &n) == 0,
	      "no order");
	__atomic_fetch_add(&play->workers, 1, __ATOMIC_SEQ_CST);
	while (poll(&p, 1, 1) == 0) {
		if (__atomic_load_n(&play->wanted, __ATOMIC_SEQ_CST) >
		    __atomic_load_n(&play->said, __ATOMIC_SEQ_CST)) {
			send_word(sock, &msg, SK_WORKER_FURTHER);
			__atomic_fetch_add(&play->said, 1, __ATOMIC_SEQ_CST);
		}
		if (__atomic_load_n(&play->answer, __ATOMIC_SEQ_CST)) {
			strcpy(msg.body.text, "as it was told");
			send_word(sock, &msg, -EIO);
			return 1;
		}
	}
	return 0;
}

static unsigned seen(const unsigned *what)
{
	return __atomic_load_n(what, __ATOMIC_SEQ_CST);
}

/* ---- a rank that wants a device slot ---- */

static int ask_slot(struct rank *r)
{
	static const uint8_t any[16];

	return rank_device_slot(r, any);
}

static void begin(struct whole *w, struct rank *r)
{
	char path[128];

	whole_init(w);
	w->options.device_memory = 8u << 20;
	(void)snprintf(path, sizeof(path), "%s/play", w->rig.dir);
	map_play(path);
	CHECK(setenv(PLAY, path, 1) == 0, "setenv");
	whole_start(w);
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = "still", .world = 1 }), 0, &r->msg);
	CHECK_STATUS(ask_slot(r), -EAGAIN, &r->msg);
	AWAIT(seen(&play->workers) == 1, "none is begun");
}

static void end(struct whole *w, struct rank *r)
{
	rank_close(r);
	CHECK(rig_stop(&w->rig) == 0, "exit status: %s", whole_log(w));
	whole_remove(w);
	CHECK(munmap(play, sizeof(*play)) == 0, "munmap");
}

/* The agent has seen the clock, and what has come before. */
static void pass(struct whole *w, const struct rank *r, uint64_t seconds)
{
	rig_turns(r->sock, TURNS);
	sk_fault_os_advance(w->fault, seconds * SECOND);
	rig_turns(r->sock, TURNS);
}

/* Ten minutes, a word each minute. */
static void test_gets_further(void)
{
	struct whole w;
	struct rank r;
	int status;

	begin(&w, &r);
	for (unsigned i = 1; i <= 10; i++) {
		__atomic_store_n(&play->wanted, i, __ATOMIC_SEQ_CST);
		AWAIT(seen(&play->said) == i, "it says nothing");
		pass(&w, &r, WORKER_STILL_S);
		CHECK_STATUS(ask_slot(&r), -EAGAIN, &r.msg);
		CHECK(seen(&play->workers) == 1, "another one is begun");
	}
	__atomic_store_n(&play->answer, true, __ATOMIC_SEQ_CST);
	AWAIT((status = ask_slot(&r)) != -EAGAIN, "no answer");
	CHECK(status == -EIO && strstr(rig_why(&r.msg), "as it was told"),
	      "%d, \"%s\"", status, rig_why(&r.msg));
	end(&w, &r);
}

/* Twice, for the first may have been about to end. */
static void test_hangs(void)
{
	struct whole w;
	struct rank r;
	int status;

	begin(&w, &r);
	pass(&w, &r, WORKER_STILL_S);
	CHECK_STATUS(ask_slot(&r), -EAGAIN, &r.msg);
	pass(&w, &r, 6);
	AWAIT(seen(&play->workers) == 2, "no other one is begun");
	pass(&w, &r, WORKER_STILL_S + 6);
	AWAIT((status = ask_slot(&r)) != -EAGAIN, "it is waited for");
	CHECK(status == -EIO && strstr(rig_why(&r.msg), "in time"),
	      "%d, \"%s\"", status, rig_why(&r.msg));
	end(&w, &r);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "--gpu-worker") == 0)
		return be_worker(atoi(argv[2]));
	test_gets_further();
	test_hangs();
	return 0;
}
