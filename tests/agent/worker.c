/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's worker and orders that make no sense: each is refused in a sentence,
 * and it ends in order, as after any that fails. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"
#include "cuda/share.h"
#include "worker/worker.h"

#define BYTES (UINT64_C(1) << 20)
#define HEADER 4096u

struct hired {
	pid_t pid;
	int sock;
};

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

/* Its answer is in @msg, what comes with it in *ret_fd. */
static int order(const struct hired *h, struct sk_msg *msg, const int *fds,
		 int n_fds, int *ret_fd)
{
	const struct sk_os *os = sk_os_linux();
	int got[SK_MSG_FDS], n = 0;

	CHECK(sk_channel_send(os, h->sock, msg, fds, n_fds) == 0, "send");
	CHECK(sk_channel_wait(os, h->sock, os->now_ns(os) +
			      WAIT_MS * UINT64_C(1000000)) == 0, "wait");
	CHECK(sk_channel_recv(os, h->sock, msg, got, &n) == 0,
	      "it ended without an answer");
	CHECK(n == (ret_fd && msg->status >= 0), "%d descriptors", n);
	if (n)
		*ret_fd = got[0];
	return msg->status;
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

static int make_slot(void)
{
	struct sk_msg msg = message(SK_MSG_MAKE_DEVICE_SLOT);
	struct hired h = hire();
	int fd = -1;

	CHECK_STATUS(order(&h, &msg, NULL, 0, &fd), 0, &msg);
	CHECK(fd >= 0 && msg.body.worker.bytes >= BYTES, "too small");
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
	int fds[3] = { make_slot() };

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

int main(int argc, char **argv)
{
	struct sk_msg msg;

	if (argc == 3 && strcmp(argv[1], "--gpu-worker") == 0)
		return worker_run(sk_os_linux(), atoi(argv[2]));
	refused(message(SK_MSG_PIN), NULL, 0, "is no order");
	for (int drains = 0; drains < 2; drains++) {
		msg = message(drains ? SK_MSG_DRAIN : SK_MSG_MAKE_DEVICE_SLOT);
		memset(msg.body.worker.uuid, 0xee,
		       sizeof(msg.body.worker.uuid));
		refused(msg, NULL, 0, "no CUDA device");
	}
	test_drain();
	return 0;
}
