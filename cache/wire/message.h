/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages: what the agent and its clients say to each other. How they travel
 * is wire/channel.h's.
 *
 * Every packet is one struct sk_msg of SK_MSG_BYTES, little-endian, version
 * (wire/version.h) and length checked, with at most SK_MSG_FDS descriptors.
 * Tensor bytes never pass here. What does not fit a message (layouts, lists)
 * is a memfd, sealed against shrinking.
 *
 * A request has a sequence number and gets one reply of the same type and
 * number; status is 0 or a negative errno, and with an error body.text has the
 * sentence. Requests marked "deferred" are answered when the thing happens or
 * its timeout (at most SK_WAIT_MAX_MS) is over; a client asks each on a
 * connection that it uses for nothing else meanwhile, so they never hold up
 * others. What a connection holds
 * (states, leases, waits) ends with it.
 *
 * Reserved bytes are zero and are checked. Nothing in a message is trusted.
 */
#ifndef SK_CACHE_WIRE_MESSAGE_H
#define SK_CACHE_WIRE_MESSAGE_H

#include <assert.h>
#include <stdint.h>

#include "base/error.h"
#include "layout/layout.h"
#include "memory/flags.h"

#define SK_WIRE_MAGIC 0x31574b53u	/* "SKW1" */
#define SK_WIRE_VERSION 6u
#define SK_MSG_BYTES 576u
#define SK_MSG_FDS 4
#define SK_WAIT_MAX_MS 3600000u
#define SK_GATHER_INLINE 256u
#define SK_GATHER_MAX ((uint64_t)256 << 20)
/** Slots of one state, at most. */
#define SK_STATE_SLOTS_MAX 64u

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire and the image format are little-endian"
#endif

enum sk_msg_type {
	SK_MSG_HELLO = 1,
	SK_MSG_REGISTER,
	SK_MSG_PREPARE,		/* deferred */
	SK_MSG_SLOT,
	SK_MSG_SLOT_WAIT,	/* deferred */
	SK_MSG_SEAL,
	SK_MSG_DISCARD,
	SK_MSG_UNREGISTER,
	SK_MSG_WAIT,		/* deferred */
	SK_MSG_GATHER,		/* deferred */
	SK_MSG_LIST,
	SK_MSG_OPEN,
	SK_MSG_CLOSE,
	SK_MSG_REPORT_BAD,
	SK_MSG_PIN,
	SK_MSG_UNPIN,
	SK_MSG_EVICT,
	SK_MSG_FLUSH,
	SK_MSG_STATS,
	SK_MSG_STOP,
	SK_MSG_MAP,
	SK_MSG_RETAIN,
	SK_MSG_TAKEOVER,
	SK_MSG_DEVICE_SLOT,
	SK_MSG_DEVICE_SEAL,
	SK_MSG_STATUS,
	SK_MSG_DEVICE_OPEN,
	SK_MSG_KEEP,
	SK_MSG_TYPE_COUNT,
	/* From the agent to its worker, which answers; of no client. */
	SK_MSG_MAKE_DEVICE_SLOT = SK_MSG_TYPE_COUNT,
	SK_MSG_DRAIN
};

/* Names a snapshot, or a rank in it. */
struct sk_wire_id {
	char job[SK_JOB_MAX + 4];	/* NUL-terminated */
	uint64_t run;			/* 0: the newest that has the step */
	uint64_t run_id;		/* 0: any run of that number */
	int64_t step;			/* -1: the newest */
	int32_t rank;			/* -1: none in particular */
	int32_t world;
};

/* First message of a connection: wire/version.h. */
struct sk_wire_hello {
	uint32_t version;	/* the newest that the client speaks */
	uint32_t flags;
};
struct sk_wire_hello_reply {
	uint64_t instance;	/* random: another value, another agent */
	uint64_t budget_bytes;
	uint64_t used_bytes;
	uint32_t pid;
	uint32_t uid;
	uint32_t has_store;	/* 0 none, 1, 2 one that is not durable */
	uint32_t has_devices;	/* it makes device slots */
	char version[32];
	char store[256];	/* path, cut */
	uint32_t flags;		/* SK_HELLO_... */
	uint32_t wire;		/* the newest version that the agent speaks; 0:
				 * it does not say */
};
/* What this client touches first is charged to another memory cgroup than what
 * the agent does: it touches no memory of a slot before PREPARE says that all
 * of it is there, and has no pages collapsed. */
#define SK_HELLO_AGENT_FAULTS (1u << 0)

/*
 * Registers one rank's state: fd 0 is a memfd with the template headers of
 * the primary image and, behind it, of the replica image (0 bytes: none). With
 * SK_REGISTER_KNOWN there is none, but the digests of those layouts; -ENODATA:
 * the agent has not both of that rank of that job, and wants the headers.
 * state 0: a new one; else the state of this connection whose layout changes
 * (its old images stay, its slots are made anew).
 * Deferred in so far as parsing a large layout may take a moment.
 */
/* No slots yet: the rank restores first, and then registers anew. */
#define SK_REGISTER_LATER (1u << 0)
/* It says what is to stay of the job on disk. */
#define SK_REGISTER_RETAIN (1u << 1)
/* It says what its run began with, since it restored that. */
#define SK_REGISTER_BEGUN (1u << 2)
/* What is newer of the runs before was found incomplete, with what all agents
 * of the job had. */
#define SK_REGISTER_NEWEST (1u << 3)
/* It says by their digests what it describes. */
#define SK_REGISTER_KNOWN (1u << 4)
/* A GPU writes to its slots: for as long as any process has the descriptors of
 * the driver that the rank had, a child of a fork too. */
#define SK_REGISTER_DEVICES (1u << 5)
/* It says what of its run stays on disk, as KEEP does. */
#define SK_REGISTER_KEEP (1u << 6)
/* struct sk_retention. */
struct sk_wire_retention {
	uint32_t keep_last;
	uint32_t keep_every;
	uint64_t keep_age_s;
	uint64_t keep_bytes;
};
/* A snapshot. */
struct sk_wire_begun {
	uint64_t run;
	uint64_t run_id;
	int64_t step;
};
struct sk_wire_register {
	struct sk_wire_id id;	/* job, run (0: number it), run_id (not 0: that
				 * very run, to come back), rank, world */
	uint64_t state;
	uint64_t header_bytes[2];	/* by enum sk_image_kind */
	uint64_t image_bytes[2];
	uint32_t slots;		/* >= 2 */
	uint32_t flush_every;
	int32_t numa_node;
	uint32_t flags;
	struct sk_wire_retention retention;	/* with SK_REGISTER_RETAIN */
	struct sk_wire_begun begun;	/* with SK_REGISTER_BEGUN */
	struct sk_digest known[2];	/* with SK_REGISTER_KNOWN, by kind */
	int64_t keep[2];	/* with SK_REGISTER_KEEP */
};
struct sk_wire_register_reply {
	uint64_t state;
	uint64_t run;
	uint64_t run_id;	/* of all of the run's ranks, and no other's */
	uint64_t slot_bytes;	/* charged to the budget, all slots */
	uint32_t slots;
	uint32_t reserved;
};

/* Answered when all slots of the state are faulted in. */
struct sk_wire_prepare {
	struct sk_wire_id id;	/* job, run, rank */
	uint32_t timeout_ms;
	uint32_t reserved;
};

/*
 * MAP (body.map): the descriptors of a slot of a state of this connection,
 * primary, then replica if it has one.
 *
 * A slot for a step. The reply has the slot's number. The slot is FILLING
 * until SEAL, DISCARD or the end of the connection. -EBUSY: eta_ns in the
 * reply says how long the oldest flush still needs, 0 where nothing is being
 * flushed, or that is not known yet. -EEXIST: (run, step) has a sealed image
 * of this rank.
 */
/* flags: memory/flags.h */
struct sk_wire_slot {
	uint64_t state;
	int64_t step;
	uint32_t flags;
	uint32_t reserved;
};
struct sk_wire_map {
	uint64_t state;
	uint32_t slot;
	uint32_t reserved;
};
struct sk_wire_slot_reply {
	uint64_t eta_ns;	/* with -EBUSY */
	uint32_t slot;
	uint32_t ranks;		/* of the run that this agent serves */
	char text[SK_ERR_MAX];	/* with an error */
	uint32_t no_device;	/* 1: somebody reads the rank's device slot,
				 * which is not to be written to for it */
	uint32_t reserved;
};
/* Answered 0 when SLOT would not say -EBUSY; -ETIMEDOUT. */
struct sk_wire_slot_wait {
	struct sk_wire_id id;	/* job, run, rank */
	uint32_t timeout_ms;
	uint32_t reserved;
};

/* The driver does not page-lock all slots of that state: what GPUs write to
 * them goes through buffers of the driver's own, more slowly. */
#define SK_SEAL_PAGEABLE (1u << 0)

/* The image in @slot is whole: headers stamped, data checksummed. The agent
 * checks the headers against the layout before it believes it. */
struct sk_wire_seal {
	uint64_t state;
	int64_t step;
	uint32_t slot;
	uint32_t flags;		/* SK_SEAL_...; of DISCARD and DEVICE_SEAL 0 */
	uint64_t copied_ns;	/* what the copy took; 0: not known */
	uint64_t stalled_ns;	/* that calls kept the trainer since its last
				 * seal; both are counted, and nothing else */
};
/* Also DISCARD: the slot is FREE again, the loss is counted. */

/*
 * DEVICE_SLOT: memory of a GPU for the extents of this state's images that its
 * tensors on that device fill, one behind the other (memory/extent.h); fd 0 is
 * a memfd of n_extents struct sk_extent. The reply's fd 0 stands for the memory,
 * as the driver exports it. The rank copies them there, and the rest into a
 * slot; when both are done it says so (DEVICE_SEAL, body.seal) and the trainer
 * may go on. Then it copies the extents into the slot and seals it. Where it
 * dies in between, the agent has that done. One at a time: the next snapshot
 * waits, or goes by without it.
 * Errors: -EAGAIN it is being made, ask again; -ENODEV the agent has no device
 * memory to give, -EDQUOT it has given all, -EINVAL, -EIO what makes it
 * failed.
 * With SK_DEVICE_SLOT_ANEW what this rank was given could not be mapped, as of
 * a device that was reset since. Agents that do not know it say -EINVAL.
 */
#define SK_DEVICE_SLOT_ANEW (1u << 0)
struct sk_wire_device_slot {
	uint64_t state;
	uint8_t uuid[16];	/* of the device */
	uint32_t n_extents;
	uint32_t flags;		/* SK_DEVICE_SLOT_... */
};
struct sk_wire_device_slot_reply {
	uint64_t bytes;		/* of the memory */
};
#define SK_EXTENTS_MAX 65536u

/*
 * DEVICE_OPEN: the copy of an image in memory that a device slot of that GPU
 * holds. fd 0 is the device slot, fd 1 a memfd that has, from extents_at on,
 * the extents that stand in it, one behind the other. Until CLOSE, with place
 * SK_PLACE_DEVICE, or the end of the connection nobody writes to it. REPORT_BAD
 * of that place: it is no copy, and the image may be whole. -ENOENT: there is
 * none.
 */
struct sk_wire_device_open {
	uint64_t image;
	uint8_t uuid[16];	/* of the device */
	uint32_t flags;		/* 0 */
	uint32_t reserved;
};
struct sk_wire_device_open_reply {
	uint64_t bytes;		/* of the device slot */
	uint64_t extents_at;
	uint32_t n_extents;
	uint32_t reserved;
};

/* MAKE_DEVICE_SLOT: fd 0 of the answer is the memory. DRAIN: fd 0 is a device
 * slot, 1 a memfd with the templates of the headers and the extents, 2 and 3
 * the slot's images. The extents are copied, and the images' checksums taken
 * and stamped; answers of status SK_WORKER_FURTHER come before the last one,
 * while it gets further. */
#define SK_WORKER_FURTHER 1
struct sk_wire_worker {
	uint8_t uuid[16];
	uint64_t bytes;		/* of the device slot: wanted, and in answers
				 * as it is */
	uint64_t header_bytes[2];
	uint64_t image_bytes[2];
	uint64_t run, run_id;
	int64_t step;
	uint32_t n_extents;
	uint32_t instance;	/* of answers: the device is one of a GPU that
				 * is split, as sk_cuda_is_instance() */
};

/* UNREGISTER: the rank leaves in order; its images stay. body.state. */

struct sk_wire_wait {
	struct sk_wire_id id;	/* rank for until = 1 */
	uint32_t until;		/* enum sk_until of shardkeep.h: 1 sealed,
				 * 2 complete, 3 durable */
	uint32_t timeout_ms;
};

/*
 * All ranks of (job, run) give bytes and get everybody's, in rank order.
 * Calls are matched by @round, which each rank counts from 0 per restore. Up to
 * SK_GATHER_INLINE bytes travel in the message, more in fd 0 (a memfd of
 * exactly @bytes). The reply has a memfd of world * bytes. Every rank must
 * give the same number of bytes, -EINVAL to all otherwise, and name its run and
 * the run's id: -ENOENT to who cannot. A run that this agent does not know at
 * all is met in as it is named: its ranks come from an agent that is gone.
 *
 * Such ranks are a round apart where some heard the answer of the last one and
 * some did not. Those who are ahead say SK_GATHER_MOVED, the round before they
 * had of another agent, and are told -ESTALE: they give what they gave to it
 * once more.
 *
 * Ranks that only read are not registered: they meet as SK_RUN_READERS of the
 * job, and one that dies is noticed when the others' time is over.
 */
#define SK_RUN_READERS ((uint64_t)INT64_MAX)
#define SK_GATHER_MOVED (1u << 0)
struct sk_wire_gather {
	struct sk_wire_id id;	/* job, run, rank, world */
	uint64_t round;
	uint32_t bytes;
	uint32_t timeout_ms;
	uint8_t data[SK_GATHER_INLINE];
	uint32_t flags;		/* SK_GATHER_... */
	uint32_t reserved;
};

enum sk_list { SK_LIST_SNAPSHOTS = 1, SK_LIST_IMAGES, SK_LIST_PARTS };
/* The reply has fd 0: body.list_reply.n records of record_bytes each, which
 * may be more or fewer than the reader knows: wire/version.h. An empty job
 * lists all jobs that the caller may see; step -1, run 0, rank -1: all.
 * Snapshots come newest first: by (job, run, step) descending; of one job, a
 * limit ends the list with so many complete ones, and what is older is not
 * even looked for. Parts are the sealed images of one snapshot, of which all
 * but the rank is given, and what they come to at that moment is said.
 * What of the store could not be read is counted and the first of it named:
 * who finds nothing in the list then knows that it may be there. A store of
 * which nothing could be read is -EIO, unless memory has a complete one.
 * A look at a large store that is seen for the first time takes long. Who says
 * how long it waits for an answer is told then that it goes on, and how many
 * files were looked at since the agent began, and asks again. So is he who
 * asks for some of the newest, where it cannot be told in time whether one of
 * those is complete: he would go on with an older one. He hears no number, for
 * each of his own looks would be taken for progress. */
/* As the last look at the store found it: for who has listed just now. */
#define SK_LIST_KNOWN (1u << 0)
/* Of a job an agent forgets what only the disk has and nothing keeps, but for
 * so many of the newest. */
#define SK_LIST_KNOWN_MOST 64u
struct sk_wire_list {
	struct sk_wire_id id;
	uint32_t what;
	uint32_t flags;
	uint32_t limit;		/* complete snapshots; 0: there is none */
	uint32_t wait_ms;	/* for a look; 0: until it is over, or,
				 * of what is known, some seconds */
};
struct sk_wire_list_reply {
	uint64_t n;
	uint32_t record_bytes;
	uint32_t unreadable;
	char text[SK_ERR_MAX];
	uint32_t flags;		/* of parts: the snapshot's, SK_SNAP_... */
	uint32_t looking;	/* 1: no list yet, and no fd; n are files that
				 * were looked at; text, if any: else what */
};

enum sk_place {
	SK_PLACE_MEMORY = 1,
	SK_PLACE_DISK = 2,
	SK_PLACE_DEVICE = 3	/* DEVICE_OPEN's, and of no list */
};
enum sk_image_state {
	SK_IMAGE_FILLING = 1,
	SK_IMAGE_SEALED,
	SK_IMAGE_DURABLE,	/* in memory, and the same on disk */
	SK_IMAGE_STORED,	/* on disk only */
	SK_IMAGE_BAD		/* a checksum failed: set aside */
};

#define SK_SNAP_COMPLETE (1u << 0)
#define SK_SNAP_DURABLE (1u << 1)	/* complete on disk */
#define SK_SNAP_PINNED (1u << 2)
#define SK_SNAP_MEMORY (1u << 3)	/* some image is in memory */
#define SK_SNAP_DISK (1u << 4)		/* some image is on disk */
#define SK_SNAP_FLUSHING (1u << 5)
#define SK_SNAP_WANTED (1u << 6)	/* is to be flushed */
#define SK_SNAP_NEWEST (1u << 7)	/* newest complete one of its job */
#define SK_SNAP_IN_USE (1u << 8)	/* by a restore */
#define SK_SNAP_FAILED (1u << 9)	/* the last flush failed: see text */
#define SK_SNAP_RESIDENT (1u << 10)	/* complete, all images in memory */
#define SK_SNAP_LOCAL (1u << 11)	/* not complete: all ranks that this
					 * agent knew had sealed it, others
					 * were elsewhere */
#define SK_SNAP_PIN_UNSTORED (1u << 12)	/* pinned in memory, and not on disk
					 * yet; agents of before say nothing
					 * of it */

struct sk_wire_snapshot {
	struct sk_wire_id id;
	uint64_t bytes_memory;
	uint64_t bytes_disk;
	uint64_t created_ns;	/* wall clock, first seal or file time */
	uint64_t flushed_bytes;	/* of bytes to flush, while FLUSHING */
	uint32_t flags;		/* SK_SNAP_... */
	uint32_t uid;
	uint32_t images;	/* ranks whose primary image is there */
	uint32_t tensors;	/* distinct names */
	uint64_t digest;	/* of its primary images: whose, laid out how;
				 * the same wherever they lie */
	int32_t bad_memory;	/* the first rank whose image is set aside */
	int32_t bad_disk;	/* there; -1: none */
	char text[SK_ERR_MAX];	/* what is missing, or why a flush failed */
};

struct sk_wire_image {
	struct sk_wire_id id;
	uint64_t image;		/* for OPEN, within this agent's life */
	uint64_t bytes;
	struct sk_digest digest;
	uint32_t kind;		/* enum sk_image_kind */
	uint32_t place;		/* enum sk_place; both: listed twice */
	uint32_t state;		/* enum sk_image_state */
	uint32_t reserved;
};

/* An image of a snapshot that is known: what a restore needs of each of the
 * world's, in few bytes. */
struct sk_wire_part {
	uint64_t image;
	uint64_t bytes;
	struct sk_digest digest;
	uint64_t description;	/* struct sk_layout's */
	int32_t rank;
	uint8_t kind, place, state;	/* as struct sk_wire_image's */
	uint8_t reserved;
};
static_assert(sizeof(struct sk_wire_part) == 48, "wire part");

/*
 * Opens an image for reading: fd 0 the data (a read-only memfd or file), fd 1
 * the stamped header from the agent's own copy (memfd of header_bytes), or,
 * for who knows the layout by its digest, the stamp's checksums alone (memfd
 * of n_sums numbers). The image is in use until CLOSE or the end of the
 * connection, and not evicted.
 */
#define SK_OPEN_SUMS (1u << 0)
struct sk_wire_open {
	uint64_t image;
	uint32_t place;
	uint32_t flags;
};
struct sk_wire_open_reply {
	uint64_t image_bytes;
	uint64_t header_bytes;
	uint32_t place;
	uint32_t n_sums;
	/* What the header says, too: */
	uint64_t run;
	uint64_t run_id;
	int64_t step;
	int32_t rank;
	uint32_t kind;
	struct sk_digest digest;
};
/* CLOSE: body.open. */

/* REPORT_BAD sets the image aside. */
struct sk_wire_bad {
	uint64_t image;
	uint32_t place;
	uint32_t entry;		/* of its layout, whose checksum failed, and
				 * 1; 0: none in particular */
};

/* PIN, UNPIN, EVICT, FLUSH. FLUSH only asks; WAIT waits. */
#define SK_EVICT_FORCE (1u << 0)
#define SK_EVICT_MEMORY (1u << 1)
#define SK_EVICT_DISK (1u << 2)		/* neither: memory */
struct sk_wire_manage {
	struct sk_wire_id id;
	uint32_t flags;
	uint32_t reserved;
};

/*
 * RETAIN: what is to stay of a job on disk, said by the operator, or by nobody
 * any more (SK_RETAIN_DEFAULT: the job's own word, and the agent's options,
 * hold again). The reply tells what is in force, and by whose word; without a
 * flag that is all.
 */
#define SK_RETAIN_SET (1u << 0)
#define SK_RETAIN_DEFAULT (1u << 1)
struct sk_wire_retain {
	struct sk_wire_id id;		/* job */
	struct sk_wire_retention retention;
	uint32_t flags;
	uint32_t from;		/* the reply's: 0 nobody, 1 the default, 2 the
				 * agent's options, 3 the job, 4 the operator */
};

/*
 * KEEP: a rank says which steps of its run stay on this agent's disk, in the
 * place of what was said before: [0] the newest that all ranks of the job have
 * written, wherever, and [1] the one that they are to agree on next; -1: none.
 * The reply tells what those ranks of the run have written that are registered
 * here: the newest step, and whether it is so of [1].
 */
struct sk_wire_keep {
	struct sk_wire_id id;		/* job, run, run_id, rank */
	int64_t steps[2];
};
struct sk_wire_keep_reply {
	int64_t written;		/* -1: none */
	uint32_t has_next;
	uint32_t reserved;
};

/*
 * STOP: the agent flushes, then ends; an administrator's. Answered at once:
 * body.text, 0 or more characters, says what no store will take. Deferred with
 * SK_STOP_WAIT: answered when the agent ends, 0 or -ENODATA and what is lost;
 * this connection ends when nothing else of the agent's is open any more.
 * A second STOP without it ends the agent at once.
 */
#define SK_STOP_WAIT (1u << 0)
struct sk_wire_stop {
	uint32_t flags;
	uint32_t reserved;
};

/*
 * TAKEOVER: another agent, of an administrator, takes this one's place. It
 * says what it reads; an error, or a reply for each descriptor that is kept,
 * fd 0, until none is left. Nobody else is served meanwhile, for some seconds
 * at most. A second TAKEOVER with SK_TAKEOVER_COMMIT says that it has all;
 * after its reply the agent is no more.
 */
#define SK_TAKEOVER_COMMIT (1u << 0)
struct sk_wire_takeover {
	uint32_t table_version;		/* of the table of slots */
	uint32_t record_bytes;
	uint32_t flags;
	uint32_t reserved;
};
struct sk_wire_kept {
	char name[64];
	uint32_t left;
	uint32_t reserved;
};

/* STATS: reply as LIST, records of struct sk_wire_stat, those of one name one
 * after the other. Of jobs, as many as the agent tells of, those that the
 * caller may see. */
struct sk_wire_stat {
	char name[56];		/* Prometheus form: shardkeep_..._total */
	uint32_t kind;		/* 0 gauge, 1 counter */
	uint32_t uid;		/* of the job */
	double value;
	char help[128];
	char job[SK_JOB_MAX + 4];	/* whose it is; "": the agent's */
	char key[12];		/* what @word tells apart; "": nothing */
	char word[32];		/* and @rest, where it is longer */
	char rest[24];
};
static_assert(sizeof(struct sk_wire_stat) == 400, "wire stat");

/* STATUS: how the agent is; the reply's fd 0 has n records of struct
 * sk_wire_state, one for each thing that is not as it should be. */
struct sk_wire_status_reply {
	uint64_t n;
	uint32_t record_bytes;
	uint32_t stopping;
	uint64_t uptime_ns;
	uint64_t store_free_bytes;	/* and of how many; 0: not known */
	uint64_t store_bytes;
	char metrics[160];		/* where they are served; "": nowhere */
	char io[64];			/* what writes to the store */
};
struct sk_wire_state {
	char name[24];
	char what[SK_ERR_MAX];		/* a sentence */
	char why[SK_ERR_MAX];		/* the error that showed it, or "" */
	char remedy[SK_ERR_MAX];	/* a sentence */
	uint64_t since_ns;		/* how long it has been so */
};
static_assert(sizeof(struct sk_wire_state) == 992, "wire state");

/* A body, and zeros behind it up to the end: an initializer of a union's member
 * says nothing of the bytes that other members have, and what is left out of a
 * message is 0 and no part of anybody's stack. */
#define SK_BODY(type, name)						\
	struct {							\
		type name;						\
		uint8_t name##_rest[SK_MSG_BYTES - 32 - sizeof(type)];	\
	}

struct sk_msg {
	uint32_t magic;
	uint16_t version;
	uint16_t type;		/* enum sk_msg_type */
	uint32_t seq;
	int32_t status;
	uint32_t bytes;		/* SK_MSG_BYTES */
	uint32_t n_fds;
	uint64_t reserved;
	union {
		uint8_t raw[SK_MSG_BYTES - 32];
		char text[SK_ERR_MAX];	/* replies with status < 0; STOP */
		SK_BODY(uint64_t, state);
		SK_BODY(struct sk_wire_hello, hello);
		SK_BODY(struct sk_wire_hello_reply, hello_reply);
		SK_BODY(struct sk_wire_register, reg);
		SK_BODY(struct sk_wire_register_reply, reg_reply);
		SK_BODY(struct sk_wire_prepare, prepare);
		SK_BODY(struct sk_wire_slot, slot);
		SK_BODY(struct sk_wire_map, map);
		SK_BODY(struct sk_wire_slot_reply, slot_reply);
		SK_BODY(struct sk_wire_slot_wait, slot_wait);
		SK_BODY(struct sk_wire_seal, seal);
		SK_BODY(struct sk_wire_device_slot, device_slot);
		SK_BODY(struct sk_wire_device_slot_reply, device_slot_reply);
		SK_BODY(struct sk_wire_device_open, device_open);
		SK_BODY(struct sk_wire_device_open_reply, device_open_reply);
		SK_BODY(struct sk_wire_worker, worker);
		SK_BODY(struct sk_wire_wait, wait);
		SK_BODY(struct sk_wire_gather, gather);
		SK_BODY(struct sk_wire_list, list);
		SK_BODY(struct sk_wire_list_reply, list_reply);
		SK_BODY(struct sk_wire_status_reply, status_reply);
		SK_BODY(struct sk_wire_open, open);
		SK_BODY(struct sk_wire_open_reply, open_reply);
		SK_BODY(struct sk_wire_bad, bad);
		SK_BODY(struct sk_wire_manage, manage);
		SK_BODY(struct sk_wire_retain, retain);
		SK_BODY(struct sk_wire_keep, keep);
		SK_BODY(struct sk_wire_keep_reply, keep_reply);
		SK_BODY(struct sk_wire_stop, stop);
		SK_BODY(struct sk_wire_takeover, takeover);
		SK_BODY(struct sk_wire_kept, kept);
	} body;
};
static_assert(sizeof(struct sk_msg) == SK_MSG_BYTES, "wire size");
static_assert(offsetof(struct sk_wire_status_reply, n) ==
	      offsetof(struct sk_wire_list_reply, n) &&
	      offsetof(struct sk_wire_status_reply, record_bytes) ==
	      offsetof(struct sk_wire_list_reply, record_bytes),
	      "a list is a list");
static_assert(sizeof(struct sk_wire_id) == 168, "wire id");

/** 0 if the strings are terminated, the job name is legal or empty, and the
 * numbers are in range; else -EINVAL with a sentence. */
int sk_wire_check_id(const struct sk_wire_id *id, struct sk_err *err);

const char *sk_msg_type_name(unsigned type);

#endif
