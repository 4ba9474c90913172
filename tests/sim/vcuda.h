/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver, inside. See README.md.
 *
 * All of a process's state hangs on one struct, under one lock; what a thread
 * has (its stack of contexts, its capture mode) is the thread's own.
 */
#ifndef SK_TESTS_SIM_VCUDA_H
#define SK_TESTS_SIM_VCUDA_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cuda/abi.h"
#include "more.h"

#define VCU_API __attribute__((visibility("default")))
#define VCU_DEVICES_MAX 16
/** In place of a device: none, and a node of the host. */
#define VCU_NO_DEVICE (-1)
#define VCU_NODE (-2)
/** A thread that said nothing, and a capture that forbids others as well. */
#define VCU_CAPTURE_MODE_GLOBAL 0

#define VCU_DECLARE(function, exported, version, need, params)		\
	VCU_API sk_cu_result exported params;
SK_CUDA_TABLE(VCU_DECLARE)
VCUDA_MORE(VCU_DECLARE)

VCU_API sk_cu_result cuMemcpyBatchAsync SK_CU_BATCH_12080;
VCU_API sk_cu_result cuDeviceGetUuid(sk_cu_uuid *uuid, sk_cu_device device);

/** A number for each function, for counting. */
#define VCU_NUMBER(function, exported, version, need, params)		\
	VCU_##function,
enum vcu_function {
	SK_CUDA_TABLE(VCU_NUMBER)
	VCUDA_MORE(VCU_NUMBER)
	VCU_FUNCTIONS
};

/** A primary context, which is also its handle. */
struct CUctx_st {
	int device;
	unsigned refs;			/* 0: not active */
	unsigned resets;		/* of the device, when it became so;
					 * atomic */
	sk_cu_result sticky;		/* what broke it */
	struct CUstream_st *legacy;	/* its default stream, or NULL */
	struct vcu_file *room;		/* that it takes of the device */
	int room_fd;
};

/** A point of a stream: reached when so many of its operations are done. */
struct vcu_point {
	struct CUstream_st *stream;	/* NULL: reached */
	uint64_t number;
};

/** Code that was loaded: our own (cuda/kernels.cl), and no other. */
struct CUmod_st {
	struct CUmod_st *next;
	struct CUctx_st *context;
	struct CUfunc_st *functions;	/* of it, or NULL */
	bool gone;			/* kept: who uses it is told */
};

enum vcu_kind { VCU_COPY, VCU_SET, VCU_WAIT, VCU_HOST, VCU_MARK };

/** One operation of a stream. Rows are copied or set; both sides are memory
 * that this process can touch. */
struct vcu_op {
	struct vcu_op *next;
	enum vcu_kind kind;
	char *dst;
	const char *src;
	size_t dst_pitch, src_pitch, width, height;
	unsigned char byte;
	bool locked;			/* of VCU_COPY: one side is */
	bool race;			/* of VCU_SET: is meant to */
	struct vcu_point after;		/* of VCU_WAIT */
	vcu_host_function function;
	bool trainers;			/* it is: one at a time, and no calls */
	bool kernel;			/* or a kernel, which ends */
	void *data;
	char *staged;			/* what @src is, of the driver's own */
};

enum vcu_capture { VCU_NONE, VCU_ACTIVE, VCU_INVALIDATED };

/** Streams are never freed: points name them. */
struct CUstream_st {
	struct CUstream_st *next;
	struct CUstream_st *next_ended;	/* kept: points may name it */
	struct CUctx_st *context;
	bool blocking;			/* with the legacy stream */
	bool destroyed;
	unsigned waiters;		/* threads within a wait for it */
	enum vcu_capture capture;
	sk_cu_enum capture_mode;
	pthread_t capturer;		/* whose capture it is */
	struct vcu_op *head, **tail;
	bool running;			/* the head is */
	uint64_t queued, done;		/* operations */
	uint64_t demanded;		/* that somebody waits for */
	uint64_t random;
	pthread_t thread;
	pthread_cond_t work;		/* for its thread alone */
};

/** Never freed either: whoever uses one that is gone is told. */
struct CUevent_st {
	struct CUevent_st *next_gone;
	bool gone;
	struct CUctx_st *context;
	bool sleeps;			/* who waits for it does */
	unsigned waiters;		/* threads that do, now */
	struct vcu_point point;
};

/** Device memory: the pointer that the application has faults in its hands;
 * the driver's own view of the same bytes does not. */
struct vcu_memory {
	struct vcu_memory *next;
	char *base, *view;
	size_t bytes, room;
	int device;
	uint64_t id;			/* no other ever has it */
	bool freed;			/* kept: its address is given again */
	bool shared;			/* mapped from a handle, in a range */
	sk_cu_enum access;		/* the same: SK_CU_ACCESS_..., or 0 */
	int fd;				/* that others can open; -1: none */
	struct vcu_file *file;		/* NULL: another process's */
	struct vcu_peer *peer;		/* whose it is; NULL: ours */
};

/** Another process, of which something is open. */
struct vcu_peer {
	pid_t pid;
	int process;			/* a descriptor of it */
	int fd;				/* of the memory */
	uint64_t id;			/* that it has there */
	uintptr_t base;			/* and the address */
	unsigned refs;
	bool spoilt;			/* its bytes are others now */
};

/** A memory file, and who of this process has it. */
struct vcu_file {
	struct vcu_file *next;
	uint64_t number;		/* its inode */
	size_t bytes;
	int device;
	unsigned refs;
};

/** Memory without an address. */
struct vcu_handle {
	struct vcu_handle *next;
	sk_cu_handle id;		/* no other ever has it */
	int fd;
	struct vcu_file *file;
	size_t bytes;
	int device;
	bool exports;
	bool gone;			/* kept: who uses it is told */
};

/** Addresses that are reserved. What is mapped side by side in it lies side by
 * side in the driver's view as well. */
struct vcu_range {
	struct vcu_range *next;
	char *base, *map, *view;
	size_t bytes;
};

/** Page-locked host memory. */
struct vcu_locked {
	struct vcu_locked *next;
	char *base;
	size_t bytes;
	bool forked;			/* a child may have got the pages */
	bool read_only;			/* to devices as well */
	unsigned flying;		/* operations that touch it */
};

/** A call that shall fail. */
struct vcu_failure {
	uint64_t left;			/* calls until then; 0: none */
	sk_cu_result result;
};

/** One of the machine's devices, as this process sees it. */
struct vcu_seen {
	int gpu;			/* from $VCUDA_FIRST on */
	int instance;			/* of it; -1: it is whole */
};

struct vcu {
	pthread_mutex_t lock;
	pthread_cond_t changed;		/* a stream got further */
	bool initialized;
	pid_t pid;			/* that initialized it */
	sk_cu_result sticky;		/* what no call gets past; atomic */
	uint64_t child_calls;		/* that a fork has made; atomic */
	int n_devices;
	struct vcu_seen seen[VCU_DEVICES_MAX];
	struct CUctx_st contexts[VCU_DEVICES_MAX];
	struct CUstream_st *streams, *ended;
	struct vcu_memory *memory;
	struct vcu_locked *locked;
	struct vcu_handle *handles;
	struct vcu_file *files;
	struct vcu_range *ranges;
	struct CUmod_st *modules;
	int mode_fd;			/* of $VCUDA_EXCLUSIVE; 0: not open */
	uint64_t ids;
	uint64_t pageable;		/* copies that were not async */
	uint64_t bytes_out, bytes_in;	/* that crossed the link */
	uint64_t bytes_across;		/* within devices */
	uint64_t bytes_overlap;		/* that keep off kernels */
	uint64_t bytes_hashed;		/* on devices */
	uint64_t lazy;			/* launches that loaded their code */
	uint64_t busy;			/* waits that keep a CPU busy */
	int64_t live_events, live_streams;
	struct CUevent_st *gone;	/* events */
	bool race;			/* what is set races on purpose */
	struct vcu_failure failures[VCU_FUNCTIONS];
	uint64_t calls[VCU_FUNCTIONS];	/* atomic */
};

/* ---- for the simulated NCCL, by dlsym() ---- */

VCU_API bool vcudaEnqueue(sk_cu_stream handle, void (*function)(void *),
			  void *data);
VCU_API void vcudaDemand(sk_cu_stream handle);
VCU_API void *vcudaView(uintptr_t ptr, size_t bytes, int *ret_device);

/* ---- entry.c ---- */

struct vcu *vcu(void);
void vcu_lock(void);
void vcu_unlock(void);

/** What the environment says; of most nothing with $VCUDA_AS_HARDWARE, which no
 * variable of ours makes another one. */
const char *vcu_getenv(const char *variable);
/** What $VCUDA_MODE says. */
bool vcu_mode(const char *mode);
bool vcu_said(const char *variable, const char *value);
/** A number of the environment. */
long vcu_setting(const char *name, long otherwise);

/** Counts the call; what it returns if the driver is in no state for it. */
sk_cu_result vcu_enter(enum vcu_function function);
/** The same, and the thread has a context that is not broken. */
sk_cu_result vcu_enter_context(enum vcu_function function);

/** What has broken this process's context of the device, if anything has:
 * whatever it asks for there says that, with a context or without. */
sk_cu_result vcu_broken(int device);
/** A context is broken from here on, and with it all that the process has of
 * the driver; what of that a driver writes into the kernel's log is written
 * down. */
void vcu_spoil(struct CUctx_st *context, sk_cu_result result);

#define VCU_ENTER(function) do {					\
	sk_cu_result r_ = vcu_enter(VCU_##function);			\
	if (r_ != SK_CU_SUCCESS)					\
		return r_;						\
} while (0)
/** What asks for work, or lets go of it, and needs no context. */
#define VCU_ENTER_WORK(function) do {					\
	sk_cu_result r_ = vcu_enter(VCU_##function);			\
	if (r_ == SK_CU_SUCCESS)					\
		r_ = __atomic_load_n(&vcu()->sticky, __ATOMIC_RELAXED); \
	if (r_ != SK_CU_SUCCESS)					\
		return r_;						\
} while (0)
#define VCU_ENTER_CONTEXT(function) do {				\
	sk_cu_result r_ = vcu_enter_context(VCU_##function);		\
	if (r_ != SK_CU_SUCCESS)					\
		return r_;						\
} while (0)

/** What it returns where captures forbid it. */
#define VCU_UNSAFE() do {						\
	sk_cu_result r_ = vcu_check_unsafe_now();			\
	if (r_ != SK_CU_SUCCESS)					\
		return r_;						\
} while (0)

/** The test has done what a driver would not survive, or would let pass and
 * must not be relied on: says so and ends the process. */
void vcu_misuse(const char *fmt, ...)
	__attribute__((noreturn, format(printf, 1, 2)));

/* ---- device.c ---- */

struct CUctx_st *vcu_current(void);
/* ---- memory.c; all with the lock held ---- */

/** The memory that [ptr, ptr + bytes) lies in, or begins in where what is
 * mapped goes on side by side; or NULL. */
struct vcu_memory *vcu_memory(uintptr_t ptr, size_t bytes);
/** Whether a thread of the device may read all of that, or write to it. */
bool vcu_may(uintptr_t ptr, size_t bytes, bool write);
/** Addresses for @room bytes, which are "freed" still; or NULL. */
struct vcu_memory *vcu_reserve(size_t room);
/** The addresses that were reserved together, or NULL. */
struct vcu_range *vcu_range(const char *base, size_t bytes);
struct vcu_locked *vcu_locked(const char *ptr, size_t bytes);
sk_cu_result vcu_lock_pages(char *ptr, size_t bytes, bool read_only);
/** What begins there is locked no more; whether any was. */
bool vcu_forget_locked(const char *ptr);
/** Whether all of it is mapped, to be written to or not. */
bool vcu_is_mapped(const char *ptr, size_t bytes, bool write);
/** Whether any of it is. */
bool vcu_touches_locked(const char *ptr, size_t bytes);

/* ---- forks.c ---- */

/** Has what is page-locked and copied on write noted, from now on, when the
 * process forks. Once, without the lock. */
void vcu_watch_forks(void);

/* ---- kernel.c ---- */

/** How often the calling thread has had code loaded. */
uint64_t vcu_loads(void);
/** Calls of this thread's that wait for what a device does. */
uint64_t vcu_waits(void);

/* ---- mode.c ---- */

/** Whether a device takes contexts of one process at a time. */
bool vcu_exclusive(void);
/** This process has a context of the device; false: another one has, and it
 * takes one process. With the lock held. */
bool vcu_take(int device);
/** It has none any more. With the lock held. */
void vcu_let_go(int device);

/* ---- seen.c ---- */

/** Instances that each device is split into; 0: none is. */
int vcu_instances(void);
/** Writes down what this process sees; how many. */
int vcu_look(struct vcu_seen ret[VCU_DEVICES_MAX]);
/** The machine's number of the GPU that one of this process's devices is, or
 * is an instance of. */
int vcu_physical(int device);
/** What tells its memory from all other memory of the machine. */
int vcu_unit(int device);
/** The name of one of this process's devices; @whole: of its GPU. */
sk_cu_uuid vcu_uuid(int device, bool whole);

/* ---- backing.c; all with the lock held ---- */

/** A memory file of a device, or of VCU_NODE, of zeros; -1: it has no room. */
int vcu_backing(int device, size_t bytes);
/** Who has such a file counts it, once: what a device has to give is less by
 * it while anybody has. NULL: no memory. */
struct vcu_file *vcu_file_take(int fd, int device);
void vcu_file_again(struct vcu_file *file);
void vcu_file_drop(struct vcu_file *file);
/** The device that such a file is of, for this process; VCU_NO_DEVICE. */
int vcu_backing_device(int fd);
/** How often a device of the session was reset; without the lock as well. */
unsigned vcu_resets(int device);
/** A line of the session's file of records: error @xid of the device, and
 * whose it was. */
void vcu_record(int device, int xid);
/** What a device has, and what of it is used, by this process or by all of
 * the session. */
uint64_t vcu_memory_bytes(void);
uint64_t vcu_memory_used(int device);

/* ---- ipc.c; all with the lock held ---- */

/** Whether memory of that size can be given to others. */
bool vcu_ipc_keeps(size_t bytes);
/** It is freed. */
void vcu_ipc_end(struct vcu_memory *memory);
/** It is used. */
void vcu_ipc_touch(struct vcu_memory *memory);

/* ---- capture.c ---- */

/** The stream of a handle, for an operation: 0 where it is none, or captures.
 * With the lock held. */
sk_cu_result vcu_stream(sk_cu_stream handle, struct CUstream_st **ret);
/** What is unsafe while a stream captures: 900, and the captures that forbid it
 * are spoilt. With the lock held, or without. */
sk_cu_result vcu_check_unsafe(void);
sk_cu_result vcu_check_unsafe_now(void);
/** The same of what is asked of the whole current context, which no capture in
 * it survives. With the lock held. */
sk_cu_result vcu_check_whole(void);

/* ---- stream.c ---- */

/** The stream of a handle, of which the current context has its own for some;
 * NULL: it is none. With the lock held. */
struct CUstream_st *vcu_lookup(sk_cu_stream handle);
bool vcu_is_stream(const struct CUstream_st *stream);
/** Appends a copy of @op; the point where it is done. With the lock held. */
struct vcu_point vcu_append(struct CUstream_st *stream,
			    const struct vcu_op *op);
/** Waits for it, with the lock held, which is given up meanwhile. */
void vcu_reach(struct vcu_point point);
bool vcu_reached(struct vcu_point point);
/** Waits for all of a context's streams. With the lock held. */
void vcu_drain(const struct CUctx_st *context);
/** Memory goes whose bytes the driver sees there, and waits for nobody: a
 * context that has still to do with it is broken. With the lock held. */
void vcu_vanish(const char *view, size_t bytes);
/** Nothing of a context that is broken is still under way. With the lock held,
 * which is given up meanwhile. */
void vcu_settle(const struct CUctx_st *context);
/** The calling thread runs a trainer's function for a stream. */
bool vcu_is_inside(void);
/** The operations of a stream are over: what they touched is free again. With
 * the lock held. */
void vcu_landed(const struct vcu_op *op);

#endif
