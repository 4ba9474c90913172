/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seats of the demo over several nodes: an agent for each, and a GPU for each
 * rank, which are simulated where $SHARDKEEP_LIBCUDA says so. Where there are
 * fewer GPUs than ranks on a node, they share.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mesh-comm.h"
#include "seat.h"
#include "sim/trainer.h"

#define TENSORS_MAX 32

struct seats {
	struct mesh_comm links;
};

struct twin {
	void *here;
	sk_cu_ptr there;
	size_t bytes;
};

struct seat {
	struct trainer_cuda cuda;
	sk_cu_stream stream;
	const char *socket;
	struct sk_comm base, nccl;
	bool has_nccl;
	int rank, world, device;
	struct twin twins[TENSORS_MAX];
	int n;
};

struct seats *seats_new(const struct options *o)
{
	struct seats *seats = calloc(1, sizeof(*seats));

	if (!o->n_nodes || o->ranks % o->n_nodes) {
		fprintf(stderr, "demo-gpus: %d ranks on %d nodes?\n", o->ranks,
			o->n_nodes);
		free(seats);
		return NULL;
	}
	if (!seats || mesh_comm_new(&seats->links, o->ranks)) {
		fputs("demo-gpus: no sockets between ranks\n", stderr);
		free(seats);
		return NULL;
	}
	return seats;
}

/* Each node has its own GPUs, which its agent and its ranks see. */
static void enter_node(const struct options *o, int node)
{
	const char *socket = o->nodes[node];
	const char *end = strrchr(socket, '/');
	char session[256], host[32];

	(void)snprintf(session, sizeof(session), "%.*s/gpus",
		       end ? (int)(end - socket) : 1, end ? socket : ".");
	(void)snprintf(host, sizeof(host), "node-%d", node);
	(void)setenv("VCUDA_SESSION", session, 1);
	(void)setenv("NCCL_HOSTID", host, 1);
}

/* NCCL takes two ranks on one GPU for a mistake, but not on two hosts. */
static void share_gpu(int rank)
{
	char host[32];

	(void)snprintf(host, sizeof(host), "rank-%d", rank);
	(void)setenv("NCCL_HOSTID", host, 1);
}

struct seat *seat_take(struct seats *seats, const struct options *o, int rank)
{
	int on_node = o->ranks / o->n_nodes, node = rank / on_node, devices;
	struct seat *seat = calloc(1, sizeof(*seat));

	if (!seat)
		exit(1);
	enter_node(o, node);
	devices = trainer_cuda_devices();
	if (on_node > devices)
		share_gpu(rank);
	seat->rank = rank;
	seat->world = o->ranks;
	seat->socket = o->nodes[node];
	seat->device = rank % on_node % devices;
	trainer_cuda_begin(&seat->cuda, seat->device);
	if (seat->cuda.cuStreamCreate(&seat->stream,
				      SK_CU_STREAM_NON_BLOCKING)) {
		fputs("demo-gpus: no stream\n", stderr);
		exit(1);
	}
	mesh_comm_join(&seats->links, rank, &seat->base);
	return seat;
}

const char *seat_socket(const struct seat *seat)
{
	return seat->socket;
}

void seat_tensor(struct seat *seat, struct sk_tensor *tensor, size_t bytes)
{
	struct twin *twin = &seat->twins[seat->n];

	tensor->memory = SK_CUDA;
	tensor->device = seat->device;
	if (!bytes) {
		tensor->data = NULL;
		return;
	}
	if (seat->n++ == TENSORS_MAX)
		exit(1);
	*twin = (struct twin){ tensor->data,
			       trainer_cuda_alloc(&seat->cuda, bytes), bytes };
	tensor->data = (void *)(uintptr_t)twin->there;
}

/* As an optimizer's kernels do, on a stream of the trainer's: who snapshots is
 * told that stream, and waits for nothing. */
uint64_t seat_put(struct seat *seat)
{
	for (int i = 0; i < seat->n; i++)
		if (seat->cuda.driver.cuMemcpyHtoDAsync(
			    seat->twins[i].there, seat->twins[i].here,
			    seat->twins[i].bytes, seat->stream)) {
			fputs("demo-gpus: a copy to a GPU failed\n", stderr);
			exit(1);
		}
	return (uintptr_t)seat->stream;
}

void seat_get(struct seat *seat)
{
	for (int i = 0; i < seat->n; i++)
		trainer_cuda_get(&seat->cuda, seat->twins[i].here,
				 seat->twins[i].there, seat->twins[i].bytes);
}

const struct sk_comm *seat_comm(struct seat *seat, struct sk *sk)
{
	if (!seat->has_nccl)
		seat->has_nccl = !sk_comm_nccl(sk, &seat->base, seat->rank,
					       seat->world, seat->device,
					       &seat->nccl);
	return seat->has_nccl ? &seat->nccl : &seat->base;
}

const char *seat_why(const struct seat *seat)
{
	return seat->has_nccl ? sk_comm_nccl_why(&seat->nccl) : "";
}
