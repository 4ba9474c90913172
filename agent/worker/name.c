/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/name.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire/channel.h"

#define VISIBLE "CUDA_VISIBLE_DEVICES"
#define NAME_SIZE 41		/* "GPU-01234567-89ab-...", and the end */

static void write_name(const char *kind, const struct sk_cuda_uuid *uuid,
		       char ret[NAME_SIZE])
{
	char *at = ret + sprintf(ret, "%s", kind);

	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%s%02x", i == 0 || i == 4 || i == 6 ||
			      i == 8 || i == 10 ? "-" : "", uuid->bytes[i]);
}

/* By which of its names it was asked for so far. */
static bool is_named(const char *kind, const struct sk_cuda_uuid *uuid)
{
	const char *said = getenv(VISIBLE);
	char name[NAME_SIZE];

	write_name(kind, uuid, name);
	return said && strcmp(said, name) == 0;
}

/* What the next order is about; it stays where it is. */
static bool peek(const struct sk_os *os, int sock, struct sk_cuda_uuid *ret)
{
	struct sk_msg msg;
	struct iovec iov = { .iov_base = &msg, .iov_len = sizeof(msg) };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (os->recvmsg(os, sock, &h, MSG_PEEK) != (ssize_t)sizeof(msg))
		return false;
	memcpy(ret->bytes, msg.body.worker.uuid, sizeof(ret->bytes));
	return true;
}

static void begin_anew(const struct sk_os *os, int sock, const char *kind,
		       const struct sk_cuda_uuid *uuid)
{
	char number[16], name[NAME_SIZE];
	char *argv[] = { (char *)"shardkeepd", (char *)"--gpu-worker", number,
			 NULL };

	write_name(kind, uuid, name);
	(void)snprintf(number, sizeof(number), "%d", sock);
	/* What the driver has opened is closed by the kernel. */
	if (setenv(VISIBLE, name, 1) == 0 &&
	    os->fcntl(os, sock, F_SETFD, 0) >= 0)
		(void)execv("/proc/self/exe", argv);
}

void worker_name(const struct sk_os *os, int sock, struct sk_cuda *cuda,
		 uint64_t until_ns)
{
	struct sk_cuda_uuid uuid;

	if (sk_channel_wait(os, sock, until_ns) < 0 ||
	    !peek(os, sock, &uuid) || sk_cuda_sees(cuda, &uuid, NULL) >= 0 ||
	    is_named("GPU", &uuid))
		return;
	begin_anew(os, sock, is_named("MIG", &uuid) ? "GPU" : "MIG", &uuid);
}

int worker_sees_none(const struct sk_cuda_uuid *uuid, struct sk_err *err)
{
	struct sk_err why = *err;
	char name[NAME_SIZE];

	if (!is_named("GPU", uuid))
		return -ENODEV;
	write_name("GPU", uuid, name);
	return sk_err_set(err, -ENODEV, "there is no CUDA device %s, and no "
			  "instance of one: %.150s", name, why.text);
}
