/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/device-copy.h"

#include <errno.h>
#include <string.h>

#include "conn/memfd.h"

static void forget(struct sk_device_copy *copy)
{
	(void)sk_cuda_share_unmap(copy->share);
	free(copy->extents);
	free(copy->at);
	*copy = (struct sk_device_copy){ 0 };
}

/* Where they lie; false: not within @bytes. */
static bool place(struct sk_device_copy *copy, uint64_t bytes)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < copy->n; i++) {
		const struct sk_extent *p = &copy->extents[i];

		if (p->from >= p->to || at > bytes ||
		    p->to - p->from > bytes - at ||
		    (i && (p->kind < p[-1].kind ||
			   (p->kind == p[-1].kind && p->from < p[-1].to))))
			return false;
		copy->at[i] = at;
		at = sk_extent_next(p, at);
	}
	return true;
}

static int read_extents(const struct sk_os *os, int fd,
			const struct sk_wire_device_open_reply *o,
			struct sk_device_copy *copy)
{
	uint64_t bytes = o->n_extents * sizeof(*copy->extents);
	int r;

	if (!o->n_extents || o->n_extents > SK_EXTENTS_MAX)
		return -EPROTO;
	copy->n = o->n_extents;
	copy->extents = malloc(bytes);
	copy->at = calloc(copy->n, sizeof(*copy->at));
	if (!copy->extents || !copy->at)
		return -ENOMEM;
	r = sk_read_all(os, fd, copy->extents, bytes, o->extents_at);
	return r < 0 ? r : place(copy, o->bytes) ? 0 : -EPROTO;
}

static int ask(struct sk_restoring *rs, const struct sk_cuda_uuid *uuid,
	       struct sk_msg *msg, int *fds, int *n)
{
	int r;

	memcpy(msg->body.device_open.uuid, uuid->bytes, sizeof(uuid->bytes));
	r = sk_conn_call(&rs->conn, msg, NULL, 0, fds, n, sk_until(rs->sk),
			 NULL);
	return r >= 0 && *n != 2 ? -EPROTO : r;
}

int sk_device_copy_open(struct sk_restoring *rs,
			const struct sk_restore_image *image, int gpu,
			struct sk_device_copy *ret_copy)
{
	const struct sk_cuda_device *device = rs->state->gpus.v[gpu].device;
	struct sk_device_copy copy = { .image = image->places[0].id,
				       .kind = image->kind };
	struct sk_msg msg = { .type = SK_MSG_DEVICE_OPEN,
			      .body.device_open.image = copy.image };
	struct sk_cuda_uuid uuid;
	int fds[SK_MSG_FDS], n = 0, r;

	r = sk_cuda_uuid(device, &uuid, NULL);
	if (r >= 0)
		r = ask(rs, &uuid, &msg, fds, &n);
	if (r >= 0)
		r = read_extents(rs->sk->os, fds[1],
				 &msg.body.device_open_reply, &copy);
	if (r >= 0)
		r = sk_cuda_share_map(device, fds[0],
				      msg.body.device_open_reply.bytes, false,
				      &copy.share, NULL);
	sk_close_fds(rs->sk->os, fds, n);
	if (r < 0) {
		forget(&copy);
		return r;
	}
	*ret_copy = copy;
	return 0;
}

void sk_device_copy_close(struct sk_restoring *rs,
			  struct sk_device_copy *copy)
{
	struct sk_msg msg = { .type = SK_MSG_CLOSE, .body.open = {
		.image = copy->image, .place = SK_PLACE_DEVICE } };

	if (!copy->share)
		return;
	forget(copy);
	/* Else the connection is gone, and the lease with it. */
	(void)sk_conn_call(&rs->conn, &msg, NULL, 0, NULL, NULL,
			   sk_until(rs->sk), NULL);
}

uint64_t sk_device_copy_at(const struct sk_device_copy *copy, uint64_t from,
			   uint64_t to)
{
	uint32_t low = 0, high = copy->n;
	const struct sk_extent *p;

	/* The last that begins no later. */
	while (high - low > 1) {
		uint32_t mid = low + (high - low) / 2;

		p = &copy->extents[mid];
		if (p->kind < copy->kind ||
		    (p->kind == copy->kind && p->from <= from))
			low = mid;
		else
			high = mid;
	}
	p = &copy->extents[low];
	if (p->kind != copy->kind || p->from > from || p->to < to)
		return 0;
	return sk_cuda_share_ptr(copy->share) + copy->at[low] +
	       (from - p->from);
}
