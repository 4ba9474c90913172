/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/whole.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "fault-alloc.h"
#include "loop/endpoint.h"
#include "metrics/http.h"
#include "server.h"
#include "store/store.h"
#include "support/await.h"
#include "support/files.h"

#define MS UINT64_C(1000000)
#define TICK_NS (500 * MS)
#define TICKS 4000		/* of some milliseconds each */
#define JOB "whole"

/* ThreadSanitizer has one of its own, once there are others. */
#ifdef __SANITIZE_THREAD__
#define THREADS_MORE 1
#else
#define THREADS_MORE 0
#endif

void whole_init(struct whole *w)
{
	*w = (struct whole){ 0 };
	rig_init(&w->rig, "none");
	w->fault = mmap(NULL, sizeof(*w->fault), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(w->fault != MAP_FAILED, "mmap");
	sk_fault_os_init(w->fault, sk_os_linux());
	sk_fault_os_clock(w->fault, 1000000 * MS, 1700000000000 * MS);
	w->options = (struct options){
		.store = w->rig.store, .memory = 64u << 20,
		.admin_uid = (uid_t)-1, .level = LOG_LEVEL_WARNING,
		.stop_timeout_s = 300,
		.hangs_s = NEVER_HANGS_S,
	};
}

void whole_metrics(struct whole *w)
{
	(void)snprintf(w->metrics[0], sizeof(w->metrics[0]), "%s/m.prom",
		       w->rig.dir);
	(void)snprintf(w->metrics[1], sizeof(w->metrics[1]), "%s/m.sock",
		       w->rig.dir);
	w->options.metrics_file = w->metrics[0];
	w->options.metrics = http_built() ? w->metrics[1] : NULL;
}

static void log_path(const struct whole *w, char *path, size_t size)
{
	snprintf(path, size, "%s/log", w->rig.dir);
}

static void redirect_log(const struct whole *w)
{
	char path[128];
	int fd;

	log_path(w, path, sizeof(path));
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && dup2(fd, STDERR_FILENO) >= 0, "log");
}

/* What it had of the system is given back, whatever it has met. */
static void check_held(const struct held *before)
{
	struct held now;
	uint64_t live;

	/* A test may have had it closed. */
	whole_take_zero(NULL);
	now = held_now();
	/* It has told whoever started it, and closed that. */
	CHECK(now.fds <= before->fds - 1 &&
	      now.threads <= before->threads + THREADS_MORE &&
	      now.maps == before->maps, "it ended with %d descriptors, "
	      "%d threads, %d maps of files; it had begun with %d, %d, %d",
	      now.fds, now.threads, now.maps, before->fds, before->threads,
	      before->maps);
	(void)sk_fault_alloc_end(&live);
	CHECK(!live, "%llu allocations are not freed",
	      (unsigned long long)live);
}

static void run_agent(struct whole *w)
{
	const struct sk_os *os = &w->fault->os;
	struct held before;
	struct sk_err err = { "" };
	struct endpoint endpoint;
	int r, null;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	redirect_log(w);
	null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	CHECK(null >= 0 && dup2(null, STDIN_FILENO) == STDIN_FILENO, "null");
	close(null);
	/* Counts; who fails some says so after it. */
	sk_fault_alloc_fail(0, 0);
	if (w->before)
		w->before(w->ctx);
	before = held_now();
	r = endpoint_open(os, w->rig.socket, &endpoint, &err);
	if (r < 0) {
		fprintf(stderr, "refused: %s\n", err.text);
		_exit(err.text[0] ? 1 : 99);
	}
	r = agent_run(os, &w->options, &endpoint, NULL);
	/* On this clock it waits for no closing. */
	if (!w->hangs)
		AWAIT(held_now().threads <= before.threads + THREADS_MORE,
		      "threads are left");
	if (w->after)
		w->after(w->ctx);
	if (!w->hangs)
		check_held(&before);
	_exit(r);
}

void whole_start(struct whole *w)
{
	struct sk_msg msg;
	int ready[2], sock;
	char c;

	CHECK(pipe2(ready, O_CLOEXEC) == 0, "pipe");
	w->options.ready_fd = ready[1];
	w->rig.agent = fork();
	CHECK(w->rig.agent >= 0, "fork");
	if (!w->rig.agent)
		run_agent(w);
	close(ready[1]);
	w->serves = read(ready[0], &c, 1) == 1;
	close(ready[0]);
	if (w->serves)
		return;
	/* The byte itself may have failed. */
	sock = rig_try_connect(&w->rig, &msg);
	w->serves = sock >= 0;
	if (sock >= 0)
		close(sock);
}

bool whole_ended(struct whole *w)
{
	siginfo_t info = { 0 };

	CHECK(waitid(P_PID, (id_t)w->rig.agent, &info,
		     WEXITED | WNOHANG | WNOWAIT) == 0, "waitid");
	return info.si_pid == w->rig.agent;
}

/* The end itself is waited for, but on a clock that somebody has to move. */
void whole_pass(struct whole *w, uint64_t tick_ns)
{
	int fd = (int)syscall(SYS_pidfd_open, w->rig.agent, 0);
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int i;

	CHECK(fd >= 0, "pidfd_open");
	for (i = 0; i < TICKS && poll(&p, 1, i < 50 ? 1 : 10) == 0; i++)
		sk_fault_os_advance(w->fault, tick_ns);
	CHECK(i < TICKS, "the agent hangs: %s", whole_log(w));
	close(fd);
}

int whole_wait(struct whole *w)
{
	whole_pass(w, TICK_NS);
	return rig_wait(&w->rig);
}

/* Not by the C library: to ThreadSanitizer a descriptor that another thread
 * had is a race, and this one is nobody's. */
void whole_free_zero(void *ctx)
{
	struct stat st;

	(void)ctx;
	/* Unless it is the agent's by now. */
	if (fstat(0, &st) == 0 && S_ISCHR(st.st_mode) &&
	    st.st_rdev == makedev(1, 3))
		(void)syscall(SYS_close, 0);
}

void whole_take_zero(void *ctx)
{
	int fd = (int)syscall(SYS_openat, AT_FDCWD, "/dev/null",
			      O_RDONLY | O_CLOEXEC);

	(void)ctx;
	if (fd > 0)
		(void)syscall(SYS_close, fd);
}

void whole_remove(struct whole *w)
{
	rig_remove(&w->rig);
	munmap(w->fault, sizeof(*w->fault));
}

const char *whole_log(const struct whole *w)
{
	static char text[65536];
	char path[128];
	ssize_t n;
	int fd;

	log_path(w, path, sizeof(path));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	text[n < 0 ? 0 : n] = 0;
	sk_close_fd(fd);
	return text;
}

/* ---- the story ---- */

/* A refusal says why, or the connection is gone. */
static bool went(struct story *story, int status, const struct sk_msg *msg,
		 const char *what)
{
	size_t n = strlen(story->said);

	CHECK(status >= 0 || rig_why(msg)[0], "%s: %d without a sentence",
	      what, status);
	CHECK(status >= 0 || !strstr(rig_why(msg), "no reply: Connection "
				     "timed"), "%s: no answer", what);
	if (status < 0)
		(void)snprintf(story->said + n, sizeof(story->said) - n,
			       "%s: %s\n", what, rig_why(msg));
	return status >= 0;
}

/* Waits while the clock goes on. */
static int wait_moving(struct whole *w, struct rank *r, uint32_t until)
{
	struct pollfd p = { .fd = r->sock, .events = POLLIN };

	r->msg = (struct sk_msg){ .type = SK_MSG_WAIT, .body.wait = {
		.id = { .job = JOB, .step = 1, .rank = 0 },
		.until = until, .timeout_ms = 20000 } };
	if (sk_channel_send(sk_os_linux(), r->sock, &r->msg, NULL, 0) < 0)
		return -EPIPE;
	for (int i = 0; i < TICKS && poll(&p, 1, 2) == 0; i++)
		sk_fault_os_advance(w->fault, TICK_NS / 10);
	return rig_reply(r->sock, &r->msg, NULL, NULL);
}

static bool holds_words(const struct rank *r, int fd)
{
	const struct sk_layout *l = r->layouts[0];
	uint32_t word = 0;

	return pread(fd, &word, sizeof(word),
		     (off_t)l->entries[0].offset) == sizeof(word) &&
	       word == rank_word(0, 1);
}

/* Opens whatever is listed; what can be opened must be the image. */
static bool read_back(struct rank *r, struct story *story)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .job = JOB, .step = 1, .rank = -1 },
		.what = SK_LIST_IMAGES } };
	struct sk_wire_image image;
	int fds[SK_MSG_FDS], n = 0, status;
	bool good;

	status = rig_call(r->sock, &msg, NULL, 0, fds, &n);
	if (!went(story, status, &msg, "list") || !n)
		return false;
	good = pread(fds[0], &image, sizeof(image), 0) == sizeof(image);
	close(fds[0]);
	if (!good)
		return false;
	msg = (struct sk_msg){ .type = SK_MSG_OPEN, .body.open = {
		.image = image.image, .place = image.place } };
	status = rig_call(r->sock, &msg, NULL, 0, fds, &n);
	if (!went(story, status, &msg, "open"))
		return false;
	CHECK(n == 2 && holds_words(r, fds[0]), "it opened something else");
	close(fds[0]);
	close(fds[1]);
	return true;
}

static void live(struct whole *w, struct rank *r, struct story *story)
{
	int slot;

	slot = rank_slot(r, 1, 0);
	if (!went(story, slot, &r->msg, "slot"))
		return;
	rank_fill(r, slot, 1);
	story->sealed = went(story, rank_seal(r, slot, 1), &r->msg, "seal");
	if (!story->sealed)
		return;
	story->durable = went(story, wait_moving(w, r, 3), &r->msg, "wait");
	story->restored = read_back(r, story);
}

/* By eyes that no fault dims. */
static bool on_disk(const struct whole *w)
{
	struct sk_stored *images = NULL;
	struct sk_store *store;
	int is_volatile;
	size_t n = 0;

	if (sk_store_open(sk_os_linux(), w->rig.store, 3600, &store,
			  &is_volatile, NULL) < 0)
		return false;
	(void)sk_store_scan(store, JOB, &images, &n, NULL);
	free(images);
	sk_store_close(store);
	return n == 1;
}

static void stop(struct whole *w)
{
	struct sk_msg msg = { 0 };
	int sock = rig_try_connect(&w->rig, &msg);

	msg = (struct sk_msg){ .type = SK_MSG_STOP };
	if (sock < 0 || rig_call(sock, &msg, NULL, 0, NULL, NULL) < 0)
		(void)kill(w->rig.agent, SIGTERM);
	if (sock >= 0)
		close(sock);
}

struct story whole_story(struct whole *w)
{
	struct story story = { 0 };
	struct rank r = { .sock = -1 };
	int status = -EPIPE;
	size_t n;

	if (w->serves) {
		status = rank_open(&r, &w->rig, &(struct rank_options){
			.job = JOB, .world = 1 });
		story.registered = went(&story, status, &r.msg, "register");
	}
	if (story.registered)
		live(w, &r, &story);
	if (r.sock >= 0)
		rank_close(&r);
	if (w->serves)
		stop(w);
	story.status = whole_wait(w);
	CHECK(story.status == 0 || story.status == 1, "it ended with %d: %s",
	      story.status, whole_log(w));
	CHECK(story.status == 0 || whole_log(w)[0], "no sentence");
	n = strlen(story.said);
	(void)snprintf(story.said + n, sizeof(story.said) - n, "%s",
		       whole_log(w));
	CHECK(!story.durable || on_disk(w), "it is not durable");
	CHECK(story.status || !story.sealed || on_disk(w),
	      "it ended in order and lost the snapshot: %s", whole_log(w));
	return story;
}
