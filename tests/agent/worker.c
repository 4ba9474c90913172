/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's worker and orders that make no sense: each is refused in a sentence,
 * and it ends in order, as after any that fails. It has as long as it takes,
 * while it gets further; where it does not, the kernel ends it. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"
#include "base/token.h"
#include "cuda/share.h"
#include "memory/extent.h"
#include "memory/slot.h"
#include "worker/drain.h"
#include "worker/worker.h"

#define BYTES (UINT64_C(1) << 20)
#define HEADER 4096u
#define TOLD "SK_TEST_TOLD"	/* where it is; workers may begin anew */
#define STEPS 3u		/* of a long drain, and some more */
#define LONG (STEPS * DRAIN_STEP + 2 * BYTES)	/* whole grains */

struct hired {
	pid_t pid;
	int sock;
};

/* What workers have the kernel told, in memory of all. */
struct told {
	unsigned alarms;	/* that were set */
	bool hangs;		/* the driver, in the second copy */
	bool stops;		/* the worker, there */
};
static struct told *told;

/* ---- a worker ---- */

/* In the worker: a minute is over at once where the driver hangs for good. */
static int tell_alarm(const struct sk_os *os, unsigned seconds)
{
	const struct sk_os *inner = sk_os_linux();

	(void)os;
	if (seconds) {
		told->alarms++;
		CHECK(seconds == WORKER_STILL_S, "%u s", seconds);
	}
	return inner->alarm(inner, seconds && told->hangs ? 1 : seconds);
}

static int be_worker(const char *fd)
{
	const char *memory = getenv(TOLD);
	void (*fail)(const char *, uint64_t, unsigned);
	struct sk_os os = *sk_os_linux();
	void *lib;

	CHECK(memory, "not of a test");
	told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED,
		    atoi(memory), 0);
	CHECK(told != MAP_FAILED, "mmap");
	os.alarm = tell_alarm;
	if (told->hangs || told->stops) {
		lib = dlopen(getenv("SHARDKEEP_LIBCUDA"), RTLD_NOW);
		fail = lib ? (void (*)(const char *, uint64_t, unsigned))
			     dlsym(lib, "vcudaFail") : NULL;
		CHECK(fail, "%s", dlerror());
		fail("cuMemcpyDtoHAsync", 2, UINT32_MAX - 1 - told->stops);
	}
	return worker_run(&os, atoi(fd));
}

static void share_told(void)
{
	int fd = memfd_create("told", 0);
	char number[16];

	CHECK(fd >= 0 && ftruncate(fd, sizeof(*told)) == 0, "memfd");
	told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED,
		    fd, 0);
	CHECK(told != MAP_FAILED, "mmap");
	(void)snprintf(number, sizeof(number), "%d", fd);
	CHECK(setenv(TOLD, number, 1) == 0, "setenv");
}

static struct hired hire(void)
{
	struct hired h;
	char number[16];
	int ends[2];

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "sockets");
	(void)snprintf(number, sizeof(number), "%d", ends[1]);
	h = (struct hired){ .pid = fork(), .sock = ends[0] };
	CHECK(h.pid >= 0, "fork");
	if (h.pid == 0) {
		close(ends[0]);
		execl("/proc/self/exe", "worker", "--gpu-worker", number,
		      NULL);
		_exit(127);
	}
	close(ends[1]);
	return h;
}

/* It is in @msg, what comes with it in *ret_fd. */
static int answer(const struct hired *h, struct sk_msg *msg, int *ret_fd)
{
	const struct sk_os *os = sk_os_linux();
	int got[SK_MSG_FDS], n = 0;

	CHECK(sk_channel_wait(os, h->sock, os->now_ns(os) +
			      WAIT_MS * UINT64_C(1000000)) == 0, "wait");
	CHECK(sk_channel_recv(os, h->sock, msg, got, &n) == 0,
	      "it ended without an answer");
	CHECK(n == (ret_fd && msg->status >= 0), "%d descriptors", n);
	if (n)
		*ret_fd = got[0];
	return msg->status;
}

static int order(const struct hired *h, struct sk_msg *msg, const int *fds,
		 int n_fds, int *ret_fd)
{
	CHECK(sk_channel_send(sk_os_linux(), h->sock, msg, fds, n_fds) == 0,
	      "send");
	return answer(h, msg, ret_fd);
}

/* Its exit status. */
static int dismiss(const struct hired *h)
{
	int status;

	close(h->sock);
	CHECK(waitpid(h->pid, &status, 0) == h->pid, "waitpid");
	CHECK(WIFEXITED(status), "it was ended by signal %d",
	      WTERMSIG(status));
	return WEXITSTATUS(status);
}

static struct sk_msg message(enum sk_msg_type type)
{
	struct sk_msg msg = { .type = (uint16_t)type, .body.worker = {
		.bytes = BYTES } };
	struct sk_cuda_device *device;
	struct sk_cuda *cuda = NULL;
	struct sk_cuda_uuid uuid;

	CHECK(sk_cuda_new(sk_os_linux(), &cuda, NULL) == 0 &&
	      sk_cuda_device(cuda, 0, &device, NULL) == 0 &&
	      sk_cuda_uuid(device, &uuid, NULL) == 0, "no device");
	(void)sk_cuda_free(cuda);
	memcpy(msg.body.worker.uuid, uuid.bytes, sizeof(uuid.bytes));
	return msg;
}

static int make_slot(uint64_t bytes)
{
	struct sk_msg msg = message(SK_MSG_MAKE_DEVICE_SLOT);
	struct hired h = hire();
	int fd = -1;

	msg.body.worker.bytes = bytes;
	CHECK_STATUS(order(&h, &msg, NULL, 0, &fd), 0, &msg);
	CHECK(fd >= 0 && msg.body.worker.bytes >= bytes, "too small");
	CHECK(dismiss(&h) == 0, "nobody needs it any more");
	return fd;
}

static void refused(struct sk_msg msg, const int *fds, int n_fds,
		    const char *words)
{
	struct hired h = hire();
	int status = order(&h, &msg, fds, n_fds, NULL);

	CHECK(status < 0 && strstr(rig_why(&msg), words), "%d, \"%s\" does "
	      "not say \"%s\"", status, status < 0 ? rig_why(&msg) : "",
	      words);
	CHECK(dismiss(&h) == 1, "it goes on");
}

/* A slot's memory, and a header of zeros for it. */
static void test_drain(void)
{
	struct sk_msg msg = message(SK_MSG_DRAIN);
	int fds[3] = { make_slot(BYTES) };

	for (int i = 1; i < 3; i++) {
		fds[i] = memfd_create("drain", MFD_CLOEXEC);
		CHECK(fds[i] >= 0 && ftruncate(fds[i], BYTES) == 0, "memfd");
	}
	refused(msg, fds, 1, "1 descriptors to drain");
	msg.body.worker.header_bytes[0] = HEADER;
	msg.body.worker.image_bytes[0] = BYTES;
	refused(msg, fds, 2, "2 descriptors to drain");
	refused(msg, fds, 3, "header");
	msg.body.worker.n_extents = UINT32_MAX;
	refused(msg, fds, 3, "extents");
	for (int i = 0; i < 3; i++)
		close(fds[i]);
}

/* ---- a long one ---- */

struct long_drain {
	struct sk_layout *layout;
	struct sk_msg msg;
	int fds[3];
	struct sk_slot slot;
};

static struct sk_layout *one_tensor(void)
{
	struct sk_item item = { .spec = {
		.name = "w", .dtype = SK_U8, .ndim = 1, .shape = { LONG },
		.placements = { SK_SHARD(0) } } };
	struct sk_layout *layout = NULL;
	struct sk_mesh *mesh = NULL;
	struct sk_err err = { "" };

	CHECK(sk_mesh_new(1, (int64_t[]){ 1 }, NULL, NULL, &mesh, &err) == 0,
	      "%s", err.text);
	item.spec.mesh = mesh;
	CHECK(sk_layout_new("long", 0, 1, SK_IMAGE_PRIMARY, &item, 1, &layout,
			    &err) == 0, "%s", err.text);
	sk_mesh_unref(mesh);
	return layout;
}

/* Out of the device's memory that @fd stands for, which is its own from here
 * on. */
static void begin_long(struct long_drain *l, int fd)
{
	struct sk_extent all = { 0 };
	struct sk_err err = { "" };

	*l = (struct long_drain){ .layout = one_tensor(),
				  .msg = message(SK_MSG_DRAIN) };
	all.from = l->layout->header_bytes;
	all.to = all.from + LONG;
	CHECK(sk_slot_create(sk_os_linux(), "long", l->layout->image_bytes,
			     -1, &l->slot, &err) == 0, "%s", err.text);
	l->fds[0] = fd;
	l->fds[1] = memfd_create("long", MFD_CLOEXEC);
	CHECK(l->fds[1] >= 0 &&
	      write(l->fds[1], l->layout->header, l->layout->header_bytes) ==
	      (ssize_t)l->layout->header_bytes &&
	      write(l->fds[1], &all, sizeof(all)) == sizeof(all), "memfd");
	l->fds[2] = l->slot.fd;
	l->msg.body.worker.bytes = LONG;
	l->msg.body.worker.n_extents = 1;
	l->msg.body.worker.header_bytes[0] = l->layout->header_bytes;
	l->msg.body.worker.image_bytes[0] = l->layout->image_bytes;
	*told = (struct told){ 0 };
}

static void end_long(struct long_drain *l)
{
	close(l->fds[0]);
	close(l->fds[1]);
	sk_slot_destroy(sk_os_linux(), &l->slot);
	sk_layout_free(l->layout);
}

/* To its end; what came of it. */
static int drain_long(struct long_drain *l, unsigned *ret_words)
{
	struct hired h = hire();
	int status = order(&h, &l->msg, l->fds, 3, NULL);

	for (*ret_words = 0; status == SK_WORKER_FURTHER; ++*ret_words)
		status = answer(&h, &l->msg, NULL);
	CHECK(dismiss(&h) == (status < 0), "its exit status");
	return status;
}

/* The agent and the kernel wait on with each step, of copies and of sums. */
static void test_long_drain(void)
{
	struct long_drain l;
	unsigned words;

	begin_long(&l, make_slot(LONG));
	CHECK_STATUS(drain_long(&l, &words), 0, &l.msg);
	CHECK(words == 2 * STEPS, "%u words", words);
	/* Those, the order's, and that of its name. */
	CHECK(told->alarms == words + 2, "%u alarms", told->alarms);
	end_long(&l);
}

static void test_hung_driver(void)
{
	struct long_drain l;
	struct hired h;
	int status;

	begin_long(&l, make_slot(LONG));
	told->hangs = true;
	h = hire();
	CHECK(sk_channel_send(sk_os_linux(), h.sock, &l.msg, l.fds, 3) == 0,
	      "send");
	CHECK(waitpid(h.pid, &status, 0) == h.pid, "waitpid");
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM, "%#x",
	      status);
	close(h.sock);
	end_long(&l);
}

/* ---- one that holds what it made ---- */

/* Its agent is gone. */
static struct hired make_held(struct sk_msg msg, uint64_t bytes, int *ret_fd)
{
	struct hired h = hire();

	msg.body.worker.bytes = bytes;
	CHECK_STATUS(order(&h, &msg, NULL, 0, ret_fd), 0, &msg);
	return h;
}

static void test_holds(void)
{
	struct long_drain l;
	struct sk_msg msg;
	unsigned words;
	int fd, n = 0, got[SK_MSG_FDS];
	struct hired h = make_held(message(SK_MSG_MAKE_DEVICE_SLOT), LONG,
				   &fd);

	begin_long(&l, fd);
	CHECK_STATUS(drain_long(&l, &words), 0, &l.msg);
	CHECK(words == 2 * STEPS, "%u words", words);
	/* It cannot open what it holds: another one is asked. Where this is
	 * slow it has nothing to do but to hold by now. */
	(void)sk_channel_send(sk_os_linux(), h.sock, &l.msg, l.fds, 3);
	CHECK(sk_channel_wait(sk_os_linux(), h.sock, SK_FOREVER) == 0, "wait");
	CHECK(sk_channel_recv(sk_os_linux(), h.sock, &msg, got, &n) < 0,
	      "it takes the order");
	close(h.sock);
	CHECK_STATUS(drain_long(&l, &words), 0, &l.msg);
	CHECK(waitpid(h.pid, NULL, WNOHANG) == 0, "it has ended");
	end_long(&l);
	CHECK(dismiss(&h) == 0, "nobody needs it any more");
}

/* It ends before all has come out of what it held. */
static void test_holds_no_more(void)
{
	struct long_drain l;
	struct hired holder, h;
	int fd, status;

	holder = make_held(message(SK_MSG_MAKE_DEVICE_SLOT), LONG, &fd);
	begin_long(&l, fd);
	told->stops = true;
	h = hire();
	CHECK(sk_channel_send(sk_os_linux(), h.sock, &l.msg, l.fds, 3) == 0,
	      "send");
	CHECK(waitpid(h.pid, &status, WUNTRACED) == h.pid &&
	      WIFSTOPPED(status), "it does not stop");
	CHECK(kill(holder.pid, SIGKILL) == 0 &&
	      waitpid(holder.pid, NULL, 0) == holder.pid, "kill");
	CHECK(kill(h.pid, SIGCONT) == 0, "kill");
	do
		status = answer(&h, &l.msg, NULL);
	while (status == SK_WORKER_FURTHER);
	CHECK(status == -EIO && strstr(rig_why(&l.msg), "has ended"), "%d: %s",
	      status, rig_why(&l.msg));
	CHECK(dismiss(&h) == 1, "it goes on");
	close(holder.sock);
	end_long(&l);
}

/* An agent of its own, which hands what it was given on, and waits to be
 * killed. */
static void be_agent(struct sk_msg msg, int end)
{
	struct hired h;
	int fd;

	h = make_held(msg, LONG, &fd);
	msg.body.worker.run = (uint64_t)h.pid;
	CHECK(sk_channel_send(sk_os_linux(), end, &msg, &fd, 1) == 0, "send");
	for (;;)
		(void)pause();
}

struct agent {
	pid_t pid, holder;
	int fd;			/* of what it was given */
	int output;		/* of both of them, a pipe */
};

static struct agent begin_agent(void)
{
	struct sk_msg msg = message(SK_MSG_MAKE_DEVICE_SLOT);
	const struct sk_os *os = sk_os_linux();
	int ends[2], output[2], fds[SK_MSG_FDS], n = 0;
	struct agent a;

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0 &&
	      pipe(output) == 0, "sockets");
	a.pid = fork();
	CHECK(a.pid >= 0, "fork");
	if (!a.pid) {
		(void)dup2(output[1], STDOUT_FILENO);
		close(output[0]);
		close(output[1]);
		be_agent(msg, ends[1]);
	}
	close(ends[1]);
	close(output[1]);
	a.output = output[0];
	CHECK(sk_channel_wait(os, ends[0], SK_FOREVER) == 0 &&
	      sk_channel_recv(os, ends[0], &msg, fds, &n) == 0 && n == 1,
	      "nothing is made");
	close(ends[0]);
	a.holder = (pid_t)msg.body.worker.run;
	a.fd = fds[0];
	return a;
}

/* It comes out, and was held until then. */
static void check_is_held(const struct agent *a)
{
	struct long_drain l;
	unsigned words;

	begin_long(&l, dup(a->fd));
	CHECK_STATUS(drain_long(&l, &words), 0, &l.msg);
	end_long(&l);
}

/* It outlives its agent; but not where all of a service are told to end, and
 * then as long as that has something to bring out. */
static void test_agent_ends(bool told_to)
{
	struct agent a = begin_agent();

	if (told_to)
		CHECK(kill(a.holder, SIGTERM) == 0, "kill");
	check_is_held(&a);
	CHECK(kill(a.pid, SIGKILL) == 0 && waitpid(a.pid, NULL, 0) == a.pid,
	      "kill");
	if (!told_to) {
		char byte;

		/* Whoever read what the agent said has it all. */
		CHECK(read(a.output, &byte, 1) == 0, "somebody has its output");
		check_is_held(&a);
		/* Its agent's end is past. */
		CHECK(kill(a.holder, SIGTERM) == 0, "kill");
	}
	sk_token_await(sk_os_linux(), a.fd, SK_FOREVER);
	CHECK(sk_token_is_void(sk_os_linux(), a.fd), "it is held still");
	close(a.fd);
	close(a.output);
}

int main(int argc, char **argv)
{
	struct sk_msg msg;

	if (argc == 3 && strcmp(argv[1], "--gpu-worker") == 0)
		return be_worker(argv[2]);
	share_told();
	refused(message(SK_MSG_PIN), NULL, 0, "is no order");
	for (int drains = 0; drains < 2; drains++) {
		msg = message(drains ? SK_MSG_DRAIN : SK_MSG_MAKE_DEVICE_SLOT);
		memset(msg.body.worker.uuid, 0xee,
		       sizeof(msg.body.worker.uuid));
		refused(msg, NULL, 0, "no CUDA device");
	}
	test_drain();
	test_long_drain();
	test_hung_driver();
	CHECK(setenv("SHARDKEEP_CUDA_DESCRIPTORS", "0", 1) == 0 &&
	      setenv("VCUDA_IPC", "undefined", 1) == 0, "setenv");
	test_holds();
	test_holds_no_more();
	test_agent_ends(false);
	test_agent_ends(true);
	return 0;
}
