/* SPDX-License-Identifier: Apache-2.0 */
/* Seats of one node, in host memory. */
#include <stdio.h>
#include <stdlib.h>

#include "seat.h"

struct seats {
	char none;
};

struct seat {
	char none;
};

struct seats *seats_new(const struct options *o)
{
	if (o->n_nodes) {
		fputs("shardkeep-trainer: this one knows no nodes; the tests' "
		      "demo-gpus does\n", stderr);
		return NULL;
	}
	return calloc(1, sizeof(struct seats));
}

struct seat *seat_take(struct seats *seats, const struct options *o, int rank)
{
	(void)o;
	(void)rank;
	return (struct seat *)seats;
}

const char *seat_socket(const struct seat *seat)
{
	(void)seat;
	return NULL;
}

void seat_tensor(struct seat *seat, struct sk_tensor *tensor, size_t bytes)
{
	(void)seat;
	(void)tensor;
	(void)bytes;
}

uint64_t seat_put(struct seat *seat)
{
	(void)seat;
	return 0;
}

void seat_get(struct seat *seat)
{
	(void)seat;
}

const struct sk_comm *seat_comm(struct seat *seat, struct sk *sk)
{
	(void)seat;
	(void)sk;
	return NULL;
}

const char *seat_why(const struct seat *seat)
{
	(void)seat;
	return "";
}
