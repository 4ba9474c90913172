/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent has: lists of it, and images opened. */
#ifndef SK_LIBCLIENT_CONN_LIST_H
#define SK_LIBCLIENT_CONN_LIST_H

#include "conn/conn.h"

/**
 * Sends @msg, LIST, STATS or STATUS, and reads the records that the reply
 * brings; malloc'ed, *ret_n of them, @record_bytes each. Where the agent's
 * are longer, what is beyond is passed over; where shorter, the rest is 0.
 * Errors: as sk_conn_call(); -EPROTO records of no length that makes sense, or
 * a list that is cut short; -EAGAIN a look takes longer than the LIST waits;
 * -ENOMEM.
 */
int sk_list_read(struct sk_conn *conn, struct sk_msg *msg,
		 size_t record_bytes, uint64_t until_ns, void *ret_records,
		 size_t *ret_n, struct sk_err *err);

/** What the store may have beyond a list: directories and files that could
 * not be read, and why the first could not. */
struct sk_list_gaps {
	uint32_t n;
	char first[SK_ERR_MAX];
};

/** LIST of snapshots, newest first, and of images, that @id names. Who finds
 * nothing in them may say so only if there are no gaps. @limit: it ends with
 * so many complete ones, of the one job; 0: all. @flags: SK_LIST_KNOWN, for
 * who has listed the snapshots just now.
 * A store that the agent sees for the first time may take it longer than
 * @until_ns: while it looks at more and more files the list waits, for half an
 * hour at most; -ETIMEDOUT then, or where it does not. */
int sk_list_snapshots(struct sk_conn *conn, const struct sk_wire_id *id,
		      uint32_t limit, uint64_t until_ns,
		      struct sk_wire_snapshot **ret, size_t *ret_n,
		      struct sk_list_gaps *ret_gaps, struct sk_err *err);
int sk_list_images(struct sk_conn *conn, const struct sk_wire_id *id,
		   uint32_t flags, uint64_t until_ns,
		   struct sk_wire_image **ret, size_t *ret_n,
		   struct sk_err *err);
/** LIST of the images of the one snapshot that @id names, by whoever has
 * listed the snapshots just now. *ret_flags, if wanted: what they come to,
 * SK_SNAP_COMPLETE, _DURABLE, _RESIDENT and _LOCAL; it may be less than it
 * was when the snapshots were listed. */
int sk_list_parts(struct sk_conn *conn, const struct sk_wire_id *id,
		  uint64_t until_ns, struct sk_wire_part **ret, size_t *ret_n,
		  uint32_t *ret_flags, struct sk_err *err);
/** The error of who finds nothing of @what where there are gaps; 0: none. */
int sk_list_gaps_error(const struct sk_list_gaps *gaps, const char *what,
		       struct sk_err *err);

/** An image that is open for reading; both descriptors are the caller's. It
 * stays in use until CLOSE or the end of the connection. */
struct sk_opened_image {
	int data, header;
	uint64_t image_bytes, header_bytes;
};

/** OPEN. Errors: as sk_conn_call(); -EPROTO a reply that cannot be. */
int sk_image_open(struct sk_conn *conn, uint64_t image, enum sk_place place,
		  uint64_t until_ns, struct sk_opened_image *ret,
		  struct sk_err *err);

/** OPEN for who knows the layout, as a request of sk_conn_call_all(). */
struct sk_msg sk_image_ask_sums(uint64_t image, enum sk_place place);
/** Of its reply in @msg: the descriptors that came, which are *ret_data and
 * *ret_sums then, or closed. -EPROTO a reply that cannot be. */
int sk_image_take_sums(struct sk_conn *conn, const struct sk_msg *msg,
		       int *fds, int n_fds, int *ret_data, int *ret_sums,
		       struct sk_err *err);

/** OPEN for who knows the layout: *ret_reply says whose image it is, *ret_data
 * is its descriptor, *ret_sums that of its n_sums checksums, to be read as
 * they are needed; both are the caller's. Errors: as sk_conn_call(); -EPROTO
 * a reply that cannot be. */
int sk_image_open_sums(struct sk_conn *conn, uint64_t image,
		       enum sk_place place, uint64_t until_ns,
		       struct sk_wire_open_reply *ret_reply, int *ret_data,
		       int *ret_sums, struct sk_err *err);

#endif
