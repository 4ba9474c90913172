/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout: where every box of a rank's state lies in its image.
 *
 * An image is a safetensors file, byte for byte (docs/format.md): 8 bytes of
 * header length, JSON padded with spaces so that the data begins on a 4 KiB
 * boundary, then tensors packed without holes, widest dtype first, in the
 * order of description within a width.
 *
 * A layout is immutable once made and may be read from several threads. What
 * differs from snapshot to snapshot (run, step, checksums) stands in the
 * header in fields of fixed width, blank in the layout's own header (the
 * template); stamping fills them. A stamped header has a checksum of its own,
 * so that no flipped bit makes it another snapshot's, or another tensor's.
 */
#ifndef SK_CACHE_LAYOUT_H
#define SK_CACHE_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "layout/nodes.h"
#include "tensor/placement.h"

/** Checksums are taken over pieces of an entry of this many bytes. */
#define SK_SUM_CHUNK ((uint64_t)1 << 20)
/** Longest safetensors header that any reader accepts. */
#define SK_HEADER_MAX 100000000u
/** Longest job name: [A-Za-z0-9._-]+, not starting with a dot. */
#define SK_JOB_MAX 128
/** Keys that begin so are ours; users may not name a tensor so. */
#define SK_RESERVED_PREFIX "shardkeep."
/** Most items of one rank's state. */
#define SK_ITEMS_MAX 1000000u
/**
 * The highest number that a run may be given, and the highest that there is:
 * those between are for numbering on, which no given number may end.
 */
#define SK_RUN_GIVEN_MAX ((uint64_t)1 << 61)
#define SK_RUN_MAX ((uint64_t)1 << 62)

enum sk_image_kind {
	SK_IMAGE_PRIMARY = 0,	/* goes to disk */
	SK_IMAGE_REPLICA = 1,	/* only memory holds it */
};

enum sk_item_kind {
	SK_ITEM_TENSOR = 0,
	SK_ITEM_BLOB,		/* the same on every rank; kept once */
	SK_ITEM_BLOB_LOCAL,	/* this rank's own */
};

/**
 * One tensor or blob as a rank describes it. A blob's spec is 1-d U8 with
 * mesh NULL. boxes: what this rank holds. explicit_boxes: they were said by
 * the owner and are what this rank alone holds (no replica of them exists);
 * else they follow from the placements, and a layout computes them itself.
 */
struct sk_item {
	struct sk_spec spec;
	enum sk_item_kind kind;
	bool explicit_boxes;
	int n_boxes;
	struct sk_box *boxes;
};

/** One box as it lies in an image: dense, row-major. */
struct sk_entry {
	uint32_t item;		/* index into the layout's items */
	uint32_t box_index;	/* which box of that item */
	struct sk_box box;
	uint64_t offset;	/* bytes from the start of the image */
	uint64_t bytes;
	uint32_t first_sum;	/* index of its first checksum */
	uint32_t n_sums;	/* max(1, ceil(bytes / SK_SUM_CHUNK)) */
	uint32_t index;		/* among the image's, of which an outline may
				 * keep a few */
};

/** XXH3-128 of the template. Equal digests mean equal layouts. */
struct sk_digest {
	uint8_t bytes[16];
};

struct sk_layout {
	char job[SK_JOB_MAX + 1];
	int32_t rank;
	int32_t world;
	enum sk_image_kind kind;
	/* Of replicas each node keeps what its ranks hold once among them, if
	 * none of them is primary of it. NULL: each rank keeps all that it
	 * holds. */
	struct sk_nodes *nodes;
	uint32_t n_items;
	struct sk_item *items;	/* all that the rank describes, in order */
	uint32_t n_entries;
	struct sk_entry *entries;	/* by offset; contiguous, where all
					 * of them are kept */
	uint32_t n_sums;
	uint64_t header_bytes;	/* of 8 + JSON + padding, 4 KiB multiple */
	uint64_t image_bytes;	/* header and data; exactly the file */
	struct sk_digest digest;
	/* Of what is described, but for boxes and for the sizes of local
	 * blobs: where two are equal, either rank's items tell which names the
	 * other has, and what they are. */
	uint64_t description;
	const char *header;	/* the template, header_bytes long; NULL: a
				 * sketch, or an outline */
	/* private: */
	struct sk_layout_priv *priv;
};

/**
 * Lays out the @kind image of a rank. Items are copied, names included, mesh
 * references taken.
 *
 * Which holder of a replicated box is primary is arithmetic that all holders
 * agree on without talking: within each group of equal holders, items sorted
 * by (bytes descending, name) go one by one to the holder with the fewest
 * bytes so far (ties: first in mesh order). Empty boxes have no entry, but of
 * a tensor with no elements at all the first rank of its mesh (or rank 0)
 * keeps a zero-size entry so that the file names it.
 *
 * A second and further box of one tensor goes under the key
 * "shardkeep.box.<k>.<name>" (safetensors has one tensor per key). Blobs are
 * "shardkeep.blob.<name>", local ones "shardkeep.local.<rank>.<name>".
 *
 * Errors: -EINVAL with a sentence (duplicate names, reserved names, bad job,
 * rank outside world, bad boxes, overlapping boxes), -E2BIG header too long,
 * or boxes whose overlap cannot be told in time, -ENOMEM.
 */
int sk_layout_new(const char *job, int32_t rank, int32_t world,
		  enum sk_image_kind kind, const struct sk_item *items,
		  uint32_t n_items, struct sk_layout **ret_layout,
		  struct sk_err *err);
/** The same of a job that keeps replicas once per node: those of a node deal
 * what is primary on another one among them, as holders deal who is primary.
 * A reference is taken; NULL: as sk_layout_new(). */
int sk_layout_new_over(const char *job, int32_t rank, int32_t world,
		       enum sk_image_kind kind, struct sk_nodes *nodes,
		       const struct sk_item *items, uint32_t n_items,
		       struct sk_layout **ret_layout, struct sk_err *err);

/**
 * Reads a layout back from an image's first bytes, stamped or the template.
 * @size may be more than the header. The bytes are not trusted: every number
 * and a stamped header's checksum are checked, and @image_bytes (0: not known)
 * must be what it describes.
 * Errors: -EBADMSG with a sentence, -ENODATA a valid safetensors file that is
 * not ours, -ENOMEM.
 */
int sk_layout_parse(const void *header, size_t size, uint64_t image_bytes,
		    struct sk_layout **ret_layout, struct sk_err *err);

/**
 * The @kind image of the rank that @base is an image of: as sk_layout_new() of
 * the same items, at the cost of its entries. It keeps @base, whose items
 * stand in it. @base is whole: no sketch, no outline.
 * Errors: -E2BIG header too long, -ENOMEM.
 */
int sk_layout_other(struct sk_layout *base, enum sk_image_kind kind,
		    struct sk_layout **ret_layout, struct sk_err *err);

/** Another reference; counting is atomic. Returns @layout. */
struct sk_layout *sk_layout_ref(struct sk_layout *layout);
/** Gives a reference back, the last one frees. NULL is fine. */
struct sk_layout *sk_layout_free(struct sk_layout *layout);
SK_DEFINE_CLEANUP(struct sk_layout *, sk_layout_free)
#define _cleanup_layout_ __attribute__((cleanup(sk_layout_freep)))

/**
 * A sketch: what is known of the layout of another rank of @base's
 * description. It takes a few hundred bytes, however many tensors there are:
 * items are those of @base, whose names and specs are its own, but whose boxes
 * are not; there are no entries and no header. Of @like, which is whole, the
 * rest is taken. @base says no boxes one by one. NULL: no memory.
 */
struct sk_layout *sk_layout_sketch(struct sk_layout *base,
				   const struct sk_layout *like);
/** What a sketch needs to know beside its base: it can be kept in a file. */
struct sk_layout_brief {
	int32_t rank;
	uint32_t n_sums;
	uint64_t header_bytes, image_bytes;
	uint64_t description;
	struct sk_digest digest;
	uint32_t n_locals;
	const int64_t *locals;	/* sizes of its local blobs, as described */
};
/** The sketch of a primary image that is said to be so. NULL: @base, which is
 * whole, does not describe the same, or no memory. */
struct sk_layout *sk_layout_sketch_brief(struct sk_layout *base,
					 const struct sk_layout_brief *brief);
/** Whether an outline keeps an entry of @layout. */
typedef bool (*sk_keeps_fn)(const struct sk_layout *layout,
			    const struct sk_entry *entry, void *ctx);
/**
 * An outline: a sketch with entries, those that @keeps says (NULL: all). It
 * takes as many bytes as it keeps entries, so that who reads a tensor of each
 * of many images may know them all. The layout of @rank's image that has this
 * digest, which is of all entries, where it describes the same as @base, which
 * is no sketch, and says no boxes one by one. Errors: -ENOENT its digest is
 * another, or it says boxes; -ENOMEM.
 */
int sk_layout_outline(struct sk_layout *base, int32_t rank,
		      enum sk_image_kind kind, const struct sk_digest *digest,
		      sk_keeps_fn keeps, void *ctx, struct sk_layout **ret);
/** What a layout's rank holds of one of its items, of outlines too: *ret_boxes
 * is malloc'ed. Errors: -ENOMEM. */
int sk_layout_boxes(const struct sk_layout *layout, const struct sk_item *item,
		    struct sk_box **ret_boxes, int *ret_n);
/** How many local blobs it has; their sizes go to @ret_sizes (NULL: nowhere),
 * as they are described. */
uint32_t sk_layout_locals(const struct sk_layout *layout, int64_t *ret_sizes);
/** Whether some items' boxes were said one by one: they are in no other
 * rank's description. */
bool sk_layout_says_boxes(const struct sk_layout *layout);
/** The layout that a sketch or an outline is of, computed; of another layout
 * itself. A reference. Errors: -EBADMSG its digest is not that; -ENOMEM. */
int sk_layout_whole(struct sk_layout *layout, struct sk_layout **ret);

/** Bytes of the heap that it takes, about; a sketch's without its base. */
uint64_t sk_layout_memory(const struct sk_layout *layout);

/** How long a header is that starts with these 8 bytes (8 included), or
 * -EBADMSG. */
int sk_header_bytes(const void *first8, uint64_t *ret_bytes,
		    struct sk_err *err);

/**
 * What a stamp says. sums has layout->n_sums values, in entry order. A run is
 * known by number and id together: the number orders the incarnations of a
 * job, the id is random, never 0, and tells two of one number apart.
 */
struct sk_stamp {
	uint64_t run;
	uint64_t run_id;
	uint64_t step;
	uint64_t *sums;		/* XXH3-64 of each SK_SUM_CHUNK of an entry */
};

/** Writes the header with the stamp filled in and its checksum, header_bytes
 * long, to @dst. */
void sk_layout_stamp(const struct sk_layout *layout,
		     const struct sk_stamp *stamp, void *dst);

/**
 * Reads the stamp of a header whose checksum must be right and which must
 * otherwise equal the template; of a sketch or an outline, have its digest.
 * It is header_bytes long. @header may be memory that somebody else can
 * write: each byte is read once. ret_stamp->sums is the caller's array of
 * n_sums.
 * Errors: -EBADMSG it is not this layout's header, damaged or not stamped;
 * -ENOMEM.
 */
int sk_layout_read_stamp(const struct sk_layout *layout, const void *header,
			 struct sk_stamp *ret_stamp, struct sk_err *err);

/** The entry of @name with a box at @offset, or NULL. O(1). Local blobs:
 * only this layout's own. @kind as sk_item_kind. */
const struct sk_entry *sk_layout_find(const struct sk_layout *layout,
				      enum sk_item_kind kind,
				      const char *name,
				      const int64_t *offset);
/** The entry of that index in the image, or NULL: it has none, or an outline
 * does not keep it. */
const struct sk_entry *sk_layout_entry(const struct sk_layout *layout,
				       uint32_t index);
/** The item of that kind and name, or NULL. O(1). */
const struct sk_item *sk_layout_item(const struct sk_layout *layout,
				     enum sk_item_kind kind,
				     const char *name);
/** The safetensors key of an entry, written to @buf; returns @buf. */
char *sk_layout_key(const struct sk_layout *layout,
		    const struct sk_entry *entry, char *buf, size_t size);

/**
 * Who is primary of each item: which of the ranks that hold what this one
 * holds of it, in mesh order (sk_spec_holder()); -1: this one alone has it, or
 * it has no bytes. @ret_turns has n_items values. The layout is whole. Errors:
 * -ENOMEM.
 */
int sk_layout_turns(const struct sk_layout *layout, int64_t *ret_turns,
		    struct sk_err *err);

bool sk_digest_equal(const struct sk_digest *a, const struct sk_digest *b);
/** 32 hexadecimal digits and a NUL. Returns @buf. */
char *sk_digest_format(const struct sk_digest *d, char buf[33]);

/** 0 or -EINVAL with a sentence. */
int sk_job_check(const char *job, struct sk_err *err);

#endif
