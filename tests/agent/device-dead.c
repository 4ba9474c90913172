/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that die with a step on their GPU, when the worker has brought it into
 * memory: what the agent's loop itself reads of it is the same whatever the
 * image's tensors, and while others read it the agent goes on. What was pinned
 * there goes to disk.
 */
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/on-device.h"
#include "agent/whole.h"
#include "worker/worker.h"

#define JOB "dead"
#define FEW 400			/* tensors; their header is a long one */
#define MANY 1600
#define LONG 32768		/* bytes, what is read at once is shorter */
#define TURNS 30

/* Shared with the agent. */
struct shared {
	atomic_ulong loop;	/* bytes that its loop read */
	atomic_uint held;	/* others who read and wait to be let */
	atomic_bool hold;	/* they have to */
	sem_t let;		/* one of them go */
};
static struct shared *shared;

static ssize_t (*read_on)(const struct sk_os *os, int fd, void *buf,
			  size_t bytes, uint64_t at);

/* Of its other threads this one reads long headers alone. */
static ssize_t note(const struct sk_os *os, int fd, void *buf, size_t bytes,
		    uint64_t at)
{
	if (gettid() == getpid()) {
		atomic_fetch_add(&shared->loop, bytes);
	} else if (bytes > LONG && atomic_load(&shared->hold)) {
		atomic_fetch_add(&shared->held, 1);
		/* Who is counted now is let go. */
		if (atomic_load(&shared->hold))
			(void)sem_wait(&shared->let);
	}
	return read_on(os, fd, buf, bytes, at);
}

static void start(struct whole *w)
{
	whole_init(w);
	w->options.level = LOG_LEVEL_INFO;
	w->options.device_memory = 64u << 20;
	w->options.memory = 256u << 20;
	read_on = w->fault->os.pread;
	w->fault->os.pread = note;
	whole_start(w);
	CHECK(w->serves, "%s", whole_log(w));
}

static struct rank_options options(unsigned tensors)
{
	return (struct rank_options){ .job = JOB, .world = 1, .rows = 1,
				      .more = tensors,
				      .flush_every = 1u << 20 };
}

/* A rank's process, whose step 1 stands on the device. */
static pid_t stand(struct whole *w, const struct rank_options *o)
{
	int stands[2];
	char c;
	pid_t pid;

	CHECK(pipe(stands) == 0, "pipe");
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		struct rank r;

		(void)on_device_stand(&r, &w->rig, o, 1);
		CHECK(o->more < FEW || r.layouts[0]->header_bytes > LONG,
		      "a short header");
		CHECK(write(stands[1], "", 1) == 1, "write");
		pause();
	}
	close(stands[1]);
	CHECK(read(stands[0], &c, 1) == 1, "it does not stand there");
	close(stands[0]);
	return pid;
}

static void kill_rank(pid_t pid)
{
	int status;

	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid,
	      "kill");
}

/* A step of a rank of so many tensors stands on the device, and it dies. */
static void stand_and_die(struct whole *w, unsigned tensors, bool hold)
{
	const struct rank_options o = options(tensors);
	pid_t pid = stand(w, &o);

	CHECK(sem_init(&shared->let, 1, 0) == 0, "sem_init");
	atomic_store(&shared->held, 0);
	atomic_store(&shared->hold, hold);
	atomic_store(&shared->loop, 0);
	kill_rank(pid);
}

static bool is_sealed(int sock)
{
	return snapshot_flags(sock, JOB, 1) & SK_SNAP_COMPLETE;
}

static unsigned long loop_reads(unsigned tensors)
{
	unsigned long bytes;
	struct whole w;
	int sock;

	start(&w);
	stand_and_die(&w, tensors, false);
	sock = rig_connect(&w.rig);
	AWAIT(stat_value(sock, "shardkeep_device_drains_total") == 1 &&
	      stat_value(sock, "shardkeep_images_sealed_total") == 1,
	      "it is lost: %s", whole_log(&w));
	bytes = atomic_load(&shared->loop);
	CHECK(is_sealed(sock), "it is not whole");
	close(sock);
	CHECK(rig_stop(&w.rig) == 0, "exit status: %s", whole_log(&w));
	whole_remove(&w);
	return bytes;
}

static void test_growth(void)
{
	unsigned long few = loop_reads(FEW), many = loop_reads(MANY);

	CHECK(few == many, "its loop read %lu bytes for %d tensors, %lu for "
	      "%d", few, FEW, many, MANY);
}

/* ---- while it is read ---- */

static int begin_held(struct whole *w)
{
	int sock;

	start(w);
	sock = rig_connect(&w->rig);
	stand_and_die(w, FEW, true);
	AWAIT(atomic_load(&shared->held), "nobody reads it");
	rig_turns(sock, TURNS);
	CHECK(stat_value(sock, "shardkeep_images_sealed_total") == 0,
	      "unread");
	return sock;
}

static void let_go(void)
{
	atomic_store(&shared->hold, false);
	for (unsigned n = atomic_load(&shared->held); n; n--)
		(void)sem_post(&shared->let);
}

/* The next life of the rank waits for it, and finds it. */
static void test_next_life(void)
{
	const struct rank_options o = options(FEW);
	struct whole w;
	int sock = begin_held(&w), status;
	pid_t pid = fork();

	CHECK(pid >= 0, "fork");
	if (!pid) {
		struct rank r;

		CHECK_STATUS(rank_open(&r, &w.rig, &o), 0, &r.msg);
		CHECK(is_sealed(r.sock), "it is lost");
		_exit(0);
	}
	rig_turns(sock, TURNS);
	CHECK(waitpid(pid, &status, WNOHANG) == 0, "it did not wait");
	let_go();
	CHECK(waitpid(pid, &status, 0) == pid && !status, "%#x", status);
	close(sock);
	CHECK(rig_stop(&w.rig) == 0, "exit status: %s", whole_log(&w));
	whole_remove(&w);
}

/* An agent that is told to stop writes it first. */
static void test_stop(void)
{
	struct whole w;
	int sock = begin_held(&w);

	CHECK(kill(w.rig.agent, SIGTERM) == 0, "kill");
	rig_turns(sock, TURNS);
	CHECK(!whole_ended(&w), "without it");
	let_go();
	CHECK(whole_wait(&w) == 0, "exit status: %s", whole_log(&w));
	close(sock);
	CHECK(strstr(whole_log(&w), "it is in memory now"), "%s",
	      whole_log(&w));
	whole_remove(&w);
}

/* One that is told twice does not; what is under way comes back. */
static void test_stop_at_once(void)
{
	struct whole w;
	int sock = begin_held(&w);

	CHECK(kill(w.rig.agent, SIGTERM) == 0, "kill");
	rig_turns(sock, TURNS);
	CHECK(kill(w.rig.agent, SIGTERM) == 0, "kill");
	AWAIT(strstr(whole_log(&w), "stopping at once"), "%s", whole_log(&w));
	let_go();
	(void)whole_wait(&w);
	CHECK(!strstr(whole_log(&w), "not freed"), "%s", whole_log(&w));
	close(sock);
	whole_remove(&w);
}

/* ---- pinned ---- */

static bool is_pinned_on_disk(const struct whole *w, int sock)
{
	const uint32_t both = SK_SNAP_DURABLE | SK_SNAP_PINNED;
	char path[200];

	(void)snprintf(path, sizeof(path), "%s/" JOB "/step-%012d/.pinned",
		       w->rig.store, 1);
	return (snapshot_flags(sock, JOB, 1) & both) == both &&
	       access(path, F_OK) == 0;
}

/* Where the GPU alone has a rank's part, that goes to memory, and on to disk
 * with the others': a living one's, who asked for no such thing. */
static void test_pinned(void)
{
	struct rank_options o = options(0);
	struct sk_msg msg;
	struct whole w;
	struct rank r;
	pid_t pid;

	start(&w);
	o.world = 2;
	o.rank = 1;
	CHECK_STATUS(rank_open(&r, &w.rig, &o), 0, &r.msg);
	o.rank = 0;
	pid = stand(&w, &o);
	CHECK_STATUS(manage(r.sock, SK_MSG_PIN, JOB, 1, 0, &msg), 0, &msg);
	rank_snapshot(&r, 1);
	CHECK(!(snapshot_flags(r.sock, JOB, 1) & SK_SNAP_COMPLETE), "all");
	kill_rank(pid);
	AWAIT(is_pinned_on_disk(&w, r.sock), "%s", whole_log(&w));
	CHECK(stat_value(r.sock, "shardkeep_device_drains_total") == 1,
	      "by whom?");
	rank_close(&r);
	CHECK(rig_stop(&w.rig) == 0, "exit status: %s", whole_log(&w));
	whole_remove(&w);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "--gpu-worker") == 0)
		return worker_run(sk_os_linux(), atoi(argv[2]));
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED, "mmap");
	on_device_init();
	test_growth();
	test_next_life();
	test_stop();
	test_stop_at_once();
	test_pinned();
	return 0;
}
