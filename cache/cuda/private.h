/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share. */
#ifndef SK_CACHE_CUDA_PRIVATE_H
#define SK_CACHE_CUDA_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/again.h"
#include "cuda/cuda.h"
#include "cuda/driver.h"

/** Most devices of a node that a process can use. */
#define SK_CUDA_DEVICES_MAX 64

struct sk_cuda_device {
	const struct sk_os *os;
	const struct sk_cuda_driver *driver;
	int ordinal;
	sk_cu_device id;
	sk_cu_context context;	/* the primary one, retained */
	bool host_pointers;	/* serve for page-locked memory */
	struct sk_cuda_kernels *kernels;	/* kernels.h; loaded late */
	atomic_bool stuck;	/* what waits for all of it waits for good */
};

struct sk_cuda {
	const struct sk_os *os;
	pthread_mutex_t lock;	/* of all that follows */
	bool ready;		/* the driver is open, and initialized */
	struct sk_cuda_driver driver;
	struct sk_cuda_device *devices[SK_CUDA_DEVICES_MAX];
};

/** Opens and initializes the driver, if that was not done yet. */
int sk_cuda_ready(struct sk_cuda *cuda, struct sk_err *err);

/** Whether contexts of one process at a time are taken; no context is made. */
bool sk_cuda_takes_one(const struct sk_cuda_driver *driver, int ordinal);

struct sk_cuda_lock {
	const struct sk_cuda_device *device;
	char *map;
	uint64_t bytes, piece;
};

/** Copies of one batch. */
#define SK_CUDA_BATCH_MAX 4096

/** Which way a copy goes: to the device, out of it, or within it. */
enum sk_cuda_way { SK_CUDA_IN, SK_CUDA_OUT, SK_CUDA_ACROSS };

/** Contiguous copies that wait to be asked for together. */
struct sk_cuda_batch {
	sk_cu_ptr dsts[SK_CUDA_BATCH_MAX], srcs[SK_CUDA_BATCH_MAX];
	size_t sizes[SK_CUDA_BATCH_MAX];
	size_t n;
	uint64_t bytes;		/* of those that the driver is to have */
	enum sk_cuda_way way;
};

struct sk_cuda_lane {
	const struct sk_cuda_device *device;
	sk_cu_stream stream;
	uint64_t chunk;		/* SK_CUDA_CHUNK */
	uint64_t asked;		/* bytes over the link, lately; atomic */
	bool keeps;		/* the link to itself; atomic */
	bool overlaps;		/* others' kernels; atomic */
	pthread_mutex_t lock;	/* of what follows */
	sk_cu_stream side;	/* turn.c */
	sk_cu_event there, back;	/* from one stream to the other */
	bool is_side;		/* whose turn it was */
	sk_cu_event follow;	/* on the trainer's stream */
	sk_cu_event end;	/* of what was asked for */
	struct sk_cuda_batch batch;
	struct sk_cuda_gather *gather;	/* gather.h; made late */
	struct sk_again gather_again;	/* when it may be tried */
	struct sk_cuda_table *table;	/* table.h; made late */
	struct sk_again table_again;	/* the same */
	uint64_t tables;		/* that it has had */
	pthread_mutex_t stage_lock;	/* of what follows; taken first */
	uint64_t stage;		/* strided.c: device memory; made late */
	struct sk_again stage_again;	/* when there may be room */
};

static inline bool sk_cuda_overlaps(const struct sk_cuda_lane *lane)
{
	return __atomic_load_n(&lane->overlaps, __ATOMIC_RELAXED);
}

/** Whether the driver takes batches. */
static inline bool sk_cuda_has_batches(const struct sk_cuda_lane *lane)
{
	const struct sk_cuda_driver *driver = lane->device->driver;

	return driver->cuMemcpyBatchAsync || driver->cuMemcpyBatchAsync_12080;
}

/** The same for copies to and from page-locked memory: where devices have other
 * addresses for that, as under Windows and where they are shared out among
 * guests, a batch takes the host's for theirs, and breaks the context. */
static inline bool sk_cuda_has_host_batches(const struct sk_cuda_lane *lane)
{
	return lane->device->host_pointers && sk_cuda_has_batches(lane);
}

/** Bytes that one call moves over the link now. */
uint64_t sk_cuda_chunk(const struct sk_cuda_lane *lane);
/** What has been asked for so far is done, or another time's. */
void sk_cuda_chunk_anew(struct sk_cuda_lane *lane);

/**
 * Where a copy of @bytes over the link is to be asked for, which
 * sk_cuda_turn_end() follows, whatever came of it; with the lane's lock held,
 * within the device's context. The order of the lane is as if it had one stream.
 * -EIO: nowhere.
 */
int sk_cuda_turn_begin(struct sk_cuda_lane *lane, uint64_t bytes,
		       sk_cu_stream *ret_stream, struct sk_err *err);
int sk_cuda_turn_end(struct sk_cuda_lane *lane, sk_cu_stream stream,
		     struct sk_err *err);

/** Adds a copy of @bytes, contiguous on both sides; a batch that is full is
 * asked for. Both sides are addresses. */
int sk_cuda_batch_add(struct sk_cuda_lane *lane, enum sk_cuda_way way,
		      uint64_t dst, uint64_t src, size_t bytes,
		      struct sk_err *err);
/** Puts what a kernel is to copy, of what has been added, behind the rest, and
 * returns how many the rest are. With the lane's lock held. */
size_t sk_cuda_batch_sort(struct sk_cuda_lane *lane);
/** "a copy to the device", and so on. */
const char *sk_cuda_way_name(enum sk_cuda_way way);

/** Asks for what has been added. Within the device's context or not. */
int sk_cuda_batch_flush(struct sk_cuda_lane *lane, struct sk_err *err);

#endif
