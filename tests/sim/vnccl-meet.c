/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated NCCL: how ranks meet. Whoever makes an id listens at it, as
 * the real one does: each rank says there who it is, hears when all are there
 * and whether they may go together, and has a socket to each other then. All
 * sockets are names without files: they go with the process.
 */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "vnccl.h"

struct hello {
	int version, rank, n;
	int gpu;		/* where on the bus */
	sk_cu_uuid uuid;	/* of the device: instances have their own */
	char host[64];
};

struct verdict {
	sk_nccl_result result;
	char text[200];
};

/* ---- sockets ---- */

/* -1: that of the id itself. */
static socklen_t name_of(const sk_nccl_id *id, int rank,
			 struct sockaddr_un *ret)
{
	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	(void)snprintf(ret->sun_path + 1, sizeof(ret->sun_path) - 1,
		       "vnccl-%.32s-%d", id->internal, rank);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
			   strlen(ret->sun_path + 1));
}

static int listen_at(const sk_nccl_id *id, int rank)
{
	struct sockaddr_un name;
	socklen_t n = name_of(id, rank, &name);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && !bind(fd, (struct sockaddr *)&name, n) &&
	    !listen(fd, VN_RANKS_MAX))
		return fd;
	if (fd >= 0)
		(void)close(fd);
	return -1;
}

static int connect_to(const sk_nccl_id *id, int rank)
{
	struct sockaddr_un name;
	socklen_t n = name_of(id, rank, &name);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && !connect(fd, (struct sockaddr *)&name, n))
		return fd;
	if (fd >= 0)
		(void)close(fd);
	return -1;
}

static bool get(int fd, void *buf, size_t bytes)
{
	return recv(fd, buf, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static bool put(int fd, const void *buf, size_t bytes)
{
	return send(fd, buf, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* ---- the id's thread ---- */

/* From 2.30 on by name; before that two instances of a GPU are one. */
static bool same_gpu(const struct hello *a, const struct hello *b)
{
	if (strcmp(a->host, b->host))
		return false;
	return vn_version() >= SK_NCCL_VERSION(2, 30, 0) ?
	       !memcmp(&a->uuid, &b->uuid, sizeof(a->uuid)) :
	       a->gpu == b->gpu;
}

static struct verdict judge(const struct hello *v, int n)
{
	struct verdict ok = { 0 }, bad = { .result = SK_NCCL_INVALID_USAGE };
	const bool may_share = vn_version() >= SK_NCCL_VERSION(2, 30, 0) &&
			       vn_said("NCCL_MULTI_RANK_GPU_ENABLE", "1");

	for (int i = 1; i < n; i++) {
		for (int k = 0; k < i; k++) {
			if (v[i].rank == v[k].rank)
				vn_misuse("two are rank %d", v[i].rank);
			if (may_share || !same_gpu(&v[i], &v[k]))
				continue;
			(void)snprintf(bad.text, sizeof(bad.text),
				       "Duplicate GPU detected : rank %d and "
				       "rank %d both on CUDA device %d",
				       v[i].rank, v[k].rank, v[i].gpu);
			return bad;
		}
		if (v[i].n != v[0].n)
			vn_misuse("ranks of %d and of %d meet", v[0].n,
				  v[i].n);
		if (v[i].version != v[0].version) {
			(void)snprintf(bad.text, sizeof(bad.text),
				       "Mismatched NCCL version detected");
			return bad;
		}
	}
	return ok;
}

struct root {
	int listener;
};

static void *run_root(void *arg)
{
	struct root *root = arg;
	struct hello v[VN_RANKS_MAX];
	int fds[VN_RANKS_MAX], n = 0;
	struct verdict verdict;

	do {
		int fd = accept4(root->listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0)
			break;
		/* One that died in between never was there. */
		if (!get(fd, &v[n], sizeof(v[n])))
			(void)close(fd);
		else
			fds[n++] = fd;
		/* Those of another world never come together. */
	} while (!n || (n < v[0].n && v[n - 1].n == v[0].n));
	verdict = judge(v, n);
	for (int i = 0; i < n; i++) {
		(void)put(fds[i], &verdict, sizeof(verdict));
		(void)close(fds[i]);
	}
	(void)close(root->listener);
	free(root);
	return NULL;
}

sk_nccl_result vn_new_id(sk_nccl_id *ret)
{
	struct root *root = calloc(1, sizeof(*root));
	unsigned long long number[2];
	pthread_t thread;

	*ret = (sk_nccl_id){ { 0 } };
	if (!root || getrandom(number, sizeof(number), 0) != sizeof(number))
		vn_misuse("no id can be made");
	(void)snprintf(ret->internal, sizeof(ret->internal), "%016llx%016llx",
		       number[0], number[1]);
	root->listener = listen_at(ret, -1);
	if (root->listener < 0 ||
	    pthread_create(&thread, NULL, run_root, root)) {
		free(root);
		return SK_NCCL_SYSTEM_ERROR;
	}
	(void)pthread_detach(thread);
	return SK_NCCL_SUCCESS;
}

/* ---- a rank ---- */

int vn_listen(struct ncclComm *comm)
{
	comm->listener = listen_at(&comm->id, comm->rank);
	return comm->listener;
}

/* Until there is something to read; false: aborted. */
static bool wait_for(const struct ncclComm *comm, int fd)
{
	struct pollfd fds[2] = { { comm->wake, POLLIN, 0 },
				 { fd, POLLIN, 0 } };

	while (poll(fds, 2, -1) < 0 && errno == EINTR)
		;
	return !fds[0].revents;
}

static struct verdict say_hello(const struct ncclComm *comm)
{
	const char *host = getenv("NCCL_HOSTID");
	struct hello hello = { .version = vn_version(), .rank = comm->rank,
			       .n = comm->n };
	struct verdict v = { .result = SK_NCCL_SYSTEM_ERROR,
			     .text = "nobody listens at the id" };
	int fd = connect_to(&comm->id, -1);

	(void)vn_driver()->get_attribute(&hello.gpu, SK_CU_DEVICE_PCI_DOMAIN,
					 comm->device);
	(void)vn_driver()->get_uuid(&hello.uuid, comm->device);
	(void)snprintf(hello.host, sizeof(hello.host), "%s",
		       host ? host : "this");
	if (fd < 0)
		return v;
	v = (struct verdict){ .result = SK_NCCL_REMOTE_ERROR,
			      .text = "whoever made the id is gone" };
	if (put(fd, &hello, sizeof(hello)) && wait_for(comm, fd) &&
	    !get(fd, &v, sizeof(v)))
		v.result = SK_NCCL_REMOTE_ERROR;
	(void)close(fd);
	return v;
}

/* To those before it; those behind it come. A rank that died is a link that
 * nothing comes from. */
static bool link_all(struct ncclComm *comm)
{
	for (int i = 0; i < comm->rank; i++) {
		comm->links[i] = connect_to(&comm->id, i);
		if (comm->links[i] >= 0)
			(void)put(comm->links[i], &comm->rank, sizeof(int));
	}
	for (int i = comm->rank + 1; i < comm->n; i++) {
		int fd, rank;

		if (!wait_for(comm, comm->listener))
			return false;
		fd = accept4(comm->listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0 && wait_for(comm, fd) &&
		    get(fd, &rank, sizeof(rank)) && rank > comm->rank &&
		    rank < comm->n)
			comm->links[rank] = fd;
		else if (fd >= 0)
			(void)close(fd);
	}
	return true;
}

void vn_meet(struct ncclComm *comm)
{
	struct verdict v;

	if (vn_said("VNCCL_INIT", "hang")) {
		(void)wait_for(comm, comm->wake);
		return;
	}
	v = say_hello(comm);
	if (v.result != SK_NCCL_SUCCESS) {
		vn_fail(comm, v.result, "%s", v.text);
		return;
	}
	if (!link_all(comm))
		return;
	(void)pthread_mutex_lock(&comm->lock);
	comm->met = true;
	if (comm->state == SK_NCCL_IN_PROGRESS)
		comm->state = SK_NCCL_SUCCESS;
	(void)pthread_cond_broadcast(&comm->changed);
	(void)pthread_mutex_unlock(&comm->lock);
}
