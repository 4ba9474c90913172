/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a system may lack or take away, at an agent that is real: no io_uring,
 * no O_DIRECT, little locked memory, no keeper, no socket. `cachectl status`
 * and doctor name the state, snapshots go on to memory and disk, and the state
 * ends with its cause.
 *
 * argv: shardkeepd, cachectl.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/whole.h"
#include "support/agent.h"

#define SECOND UINT64_C(1000000000)
#define JOB "without"
#define DEGRADED 7	/* cachectl's exit status */
#define NOBODY 65534

static const char *shardkeepd, *cachectl;

/* ---- what cachectl says ---- */

/* Its exit status; what it said is in @text. */
static int ask(const struct rig *rig, const char *command, char *text,
	       size_t size)
{
	size_t n = 0;
	int out[2], status;
	ssize_t got;
	pid_t pid;

	CHECK(pipe2(out, O_CLOEXEC) == 0, "pipe");
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		(void)dup2(out[1], STDOUT_FILENO);
		execl(cachectl, cachectl, "--socket", rig->socket, command,
		      (char *)NULL);
		_exit(127);
	}
	close(out[1]);
	while ((got = read(out[0], text + n, size - 1 - n)) > 0)
		n += (size_t)got;
	text[n] = 0;
	close(out[0]);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status),
	      "cachectl %s", command);
	return WEXITSTATUS(status);
}

static bool says(const struct rig *rig, const char *command,
		 const char *state)
{
	char text[16384];
	int status = ask(rig, command, text, sizeof(text));
	bool named = strstr(text, state);

	CHECK(!named || status >= DEGRADED, "%s: exit status %d: %s", command,
	      status, text);
	return named;
}

/* The agent looks every two seconds: where its clock is ours, it moves. */
static bool becomes(struct whole *w, const char *state, bool on)
{
	if (w->fault)
		sk_fault_os_advance(w->fault, SECOND);
	return says(&w->rig, "status", state) == on;
}

#define AWAIT_STATE(w, state, on)					\
	AWAIT(becomes(w, state, on), "%s %s", state,			\
	      on ? "is not told" : "stays")

static bool is_durable(struct whole *w, int sock, int64_t step)
{
	if (w->fault)
		sk_fault_os_advance(w->fault, SECOND);
	return snapshot_flags(sock, JOB, step) & SK_SNAP_DURABLE;
}

/* A snapshot, to memory and to disk, whatever is missing. */
static void train(struct whole *w, struct rank *r, int64_t step)
{
	rank_snapshot(r, step);
	CHECK(snapshot_flags(r->sock, JOB, step) & SK_SNAP_COMPLETE,
	      "memory stands still");
	AWAIT(is_durable(w, r->sock, step), "step %d", (int)step);
}

static void begin(struct whole *w, struct rank *r)
{
	whole_start(w);
	CHECK(w->serves, "it did not start: %s", whole_log(w));
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = JOB, .world = 1 }), 0, &r->msg);
}

static void end(struct whole *w, struct rank *r)
{
	rank_close(r);
	CHECK(kill(w->rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(w) == 0, "exit status: %s", whole_log(w));
}

/* ---- no io_uring ---- */

static void forbid_uring(void *ctx)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K,
			 SECCOMP_RET_ERRNO | (unsigned)*(int *)ctx),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(*code), code };

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0,
	      "seccomp: %s", strerror(errno));
}

static bool has_uring(void)
{
	struct io_uring_params p = { 0 };
	int fd = (int)syscall(SYS_io_uring_setup, 1, &p);

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* As seccomp profiles of containers and the sysctl forbid it. */
static void test_no_uring(int error)
{
	struct whole w;
	struct rank r;

	fprintf(stderr, "no io_uring: %s\n", strerror(error));
	whole_init(&w);
	w.before = forbid_uring;
	w.ctx = &error;
	begin(&w, &r);
	AWAIT_STATE(&w, "no-io-uring", true);
	CHECK(says(&w.rig, "doctor", "no-io-uring"), "doctor");
	train(&w, &r, 1);
	end(&w, &r);
	/* Allowed again, a restart has it. */
	w.before = NULL;
	begin(&w, &r);
	CHECK(!has_uring() || !says(&w.rig, "status", "no-io-uring"),
	      "it stays");
	CHECK(snapshot_flags(r.sock, JOB, 1) & SK_SNAP_DURABLE, "step 1");
	train(&w, &r, 2);
	end(&w, &r);
	whole_remove(&w);
}

/* ---- no O_DIRECT ---- */

/* A system whose files take no O_DIRECT while @indirect, and where @locked
 * bytes may be locked; shared with the agent. */
struct poor {
	struct sk_os os;
	int indirect;
	int locked;
};

static int poor_fcntl(const struct sk_os *os, int fd, int command, long arg)
{
	const struct poor *poor = os->ctx;

	if (command == F_SETFL && (arg & O_DIRECT) &&
	    __atomic_load_n(&poor->indirect, __ATOMIC_SEQ_CST))
		return -EINVAL;
	return sk_os_linux()->fcntl(sk_os_linux(), fd, command, arg);
}

static int poor_getrlimit(const struct sk_os *os, int which,
			  struct rlimit *ret_limit)
{
	const struct poor *poor = os->ctx;
	int r = sk_os_linux()->getrlimit(sk_os_linux(), which, ret_limit);

	if (which == RLIMIT_MEMLOCK)
		ret_limit->rlim_cur = (rlim_t)__atomic_load_n(&poor->locked,
							__ATOMIC_SEQ_CST);
	return r;
}

static struct poor *poor_init(void)
{
	struct poor *poor = mmap(NULL, sizeof(*poor), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(poor != MAP_FAILED, "mmap");
	poor->os = *sk_os_linux();
	poor->os.fcntl = poor_fcntl;
	poor->os.getrlimit = poor_getrlimit;
	poor->os.ctx = poor;
	poor->locked = 1 << 20;
	return poor;
}

static bool takes_direct(const struct rig *rig)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/probe", rig->dir);
	fd = open(path, O_CREAT | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
	(void)unlink(path);
	return fd >= 0 && close(fd) == 0;
}

static void test_no_direct(void)
{
	struct poor *poor = poor_init();
	struct whole w;
	struct rank r;

	whole_init(&w);
	w.fault->inner = &poor->os;
	begin(&w, &r);
	if (takes_direct(&w.rig)) {
		train(&w, &r, 1);
		CHECK(!says(&w.rig, "status", "no-direct-io"), "no reason");
		__atomic_store_n(&poor->indirect, 1, __ATOMIC_SEQ_CST);
		train(&w, &r, 2);
		AWAIT_STATE(&w, "no-direct-io", true);
		CHECK(says(&w.rig, "doctor", "no-direct-io"), "doctor");
		__atomic_store_n(&poor->indirect, 0, __ATOMIC_SEQ_CST);
		train(&w, &r, 3);
		AWAIT_STATE(&w, "no-direct-io", false);
	}
	end(&w, &r);
	whole_remove(&w);
	munmap(poor, sizeof(*poor));
}

/* ---- little locked memory ---- */

/* Root is not bound by it. */
static void be_nobody(void *ctx)
{
	const struct whole *w = ctx;

	if (geteuid() != 0)
		return;
	CHECK(chown(w->rig.dir, NOBODY, NOBODY) == 0 &&
	      setresgid(NOBODY, NOBODY, NOBODY) == 0 &&
	      setresuid(NOBODY, NOBODY, NOBODY) == 0, "nobody: %s",
	      strerror(errno));
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void test_memlock(void)
{
	struct poor *poor = poor_init();
	struct whole w;
	struct rank r;

	whole_init(&w);
	w.fault->inner = &poor->os;
	w.before = be_nobody;
	w.ctx = &w;
	begin(&w, &r);
	AWAIT_STATE(&w, "memlock", true);
	train(&w, &r, 1);
	CHECK(says(&w.rig, "doctor", "memlock"), "doctor");
	__atomic_store_n(&poor->locked, 64 << 20, __ATOMIC_SEQ_CST);
	AWAIT_STATE(&w, "memlock", false);
	train(&w, &r, 2);
	end(&w, &r);
	whole_remove(&w);
	munmap(poor, sizeof(*poor));
}

/* ---- the socket's file is gone ---- */

/* Something else stands in its place: who is connected goes on. */
static void test_socket(void)
{
	struct sk_msg msg;
	struct whole w;
	struct rank r;
	int sock;

	whole_init(&w);
	begin(&w, &r);
	CHECK(unlink(w.rig.socket) == 0 && mkdir(w.rig.socket, 0700) == 0,
	      "socket");
	AWAIT((sk_fault_os_advance(w.fault, SECOND),
	       is_degraded(r.sock, "socket-lost")), "it is not told: %s",
	      whole_log(&w));
	train(&w, &r, 1);
	CHECK(rmdir(w.rig.socket) == 0, "rmdir");
	AWAIT((sk_fault_os_advance(w.fault, SECOND),
	       (sock = rig_try_connect(&w.rig, &msg)) >= 0), "not there");
	close(sock);
	AWAIT_STATE(&w, "socket-lost", false);
	train(&w, &r, 2);
	/* A cleaner takes it: it is there again, and nothing was wrong. */
	CHECK(unlink(w.rig.socket) == 0, "unlink");
	AWAIT((sk_fault_os_advance(w.fault, SECOND),
	       (sock = rig_try_connect(&w.rig, &msg)) >= 0), "not there");
	close(sock);
	CHECK(!says(&w.rig, "status", "socket-lost"), "no reason");
	train(&w, &r, 3);
	end(&w, &r);
	whole_remove(&w);
}

/* ---- the keeper is gone ---- */

static void test_keeper(void)
{
	const struct rank_options o = { .job = JOB, .world = 1 };
	const struct rank_options late = { .job = "late", .world = 1 };
	struct whole w = { 0 };	/* a program, on the system's clock */
	struct rank r, later;
	struct sk_msg msg;
	pid_t next;
	int sock;

	rig_init(&w.rig, shardkeepd);
	rig_start(&w.rig, "--keeper", "--store", w.rig.store, NULL);
	CHECK_STATUS(rank_open(&r, &w.rig, &o), 0, &r.msg);
	train(&w, &r, 1);
	CHECK(!says(&w.rig, "status", "keeper-gone"), "no reason");
	CHECK(kill(w.rig.agent, SIGKILL) == 0 &&
	      rig_wait(&w.rig) == 128 + SIGKILL, "kill");
	AWAIT_STATE(&w, "keeper-gone", true);
	CHECK(says(&w.rig, "doctor", "keeper-gone"), "doctor");
	train(&w, &r, 2);
	/* The keeper has nothing of that job. */
	CHECK_STATUS(rank_open(&later, &w.rig, &late), 0, &later.msg);
	rank_snapshot(&later, 1);
	/* The remedy. */
	next = agent_start((const char *[]){ shardkeepd, "--socket",
		w.rig.socket, "--keeper", "--takeover", "--store",
		w.rig.store, "--keep-last", "0", "--log-level", "error",
		NULL });
	CHECK(next > 0, "it was not taken over");
	w.rig.agent = next;
	AWAIT_STATE(&w, "keeper-gone", false);
	sock = rig_try_connect(&w.rig, &msg);
	CHECK(sock >= 0 && snapshot_flags(sock, JOB, 2) & SK_SNAP_RESIDENT,
	      "step 2");
	CHECK(snapshot_flags(sock, "late", 1) & SK_SNAP_RESIDENT,
	      "what the keeper had not is lost");
	close(sock);
	rank_close(&later);
	rank_close(&r);
	CHECK(rig_stop(&w.rig) == 0, "status");
	rig_remove(&w.rig);
}

/* ---- another store ---- */

static bool is_pinned_there(int sock, int64_t step)
{
	const uint32_t flags = SK_SNAP_PINNED | SK_SNAP_DURABLE;

	return (snapshot_flags(sock, JOB, step) & flags) == flags;
}

/* What is pinned goes to the one that the next agent is given, though the last
 * one had it on disk; where that is the same it is not written once more. */
static void test_store(bool same)
{
	const struct rank_options o = { .job = JOB, .world = 1 };
	struct rig rig;
	struct sk_msg msg;
	struct rank r;
	char other[160];
	pid_t next;
	int sock;

	rig_init(&rig, shardkeepd);
	rig_start(&rig, "--keeper", "--store", rig.store, NULL);
	(void)snprintf(other, sizeof(other), "%s/other", rig.dir);
	CHECK_STATUS(rank_open(&r, &rig, &o), 0, &r.msg);
	for (int64_t step = 1; step <= 2; step++) {
		rank_snapshot(&r, step);
		CHECK_STATUS(rank_wait(&r, step, 3, WAIT_MS), 0, &r.msg);
		CHECK_STATUS(manage(r.sock, SK_MSG_PIN, JOB, step, 0, &msg), 0,
			     &msg);
		AWAIT(is_pinned_there(r.sock, step), "step %d", (int)step);
	}
	next = agent_start((const char *[]){ shardkeepd, "--socket",
		rig.socket, "--keeper", "--takeover", "--store", same ?
		rig.store : other, "--keep-last", "0", "--log-level", "error",
		NULL });
	CHECK(next > 0 && rig_wait(&rig) == 0, "it was not taken over");
	rig.agent = next;
	sock = rig_connect(&rig);
	for (int64_t step = 1; step <= 2; step++)
		AWAIT(is_pinned_there(sock, step), "step %d is in memory alone",
		      (int)step);
	AWAIT(rig_is_quiet(sock), "it is not quiet");
	CHECK((stat_value(sock, "shardkeep_bytes_flushed_total") == 0) == same,
	      "%.0f bytes are written to %s store",
	      stat_value(sock, "shardkeep_bytes_flushed_total"),
	      same ? "the same" : "another");
	close(sock);
	rank_close(&r);
	CHECK(rig_stop(&rig) == 0, "status");
	rig_remove(&rig);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3, "shardkeepd, cachectl");
	shardkeepd = argv[1];
	cachectl = argv[2];
	test_no_uring(ENOSYS);
	test_no_uring(EPERM);
	test_no_direct();
	test_memlock();
	test_socket();
	test_keeper();
	test_store(true);
	test_store(false);
	return 0;
}
