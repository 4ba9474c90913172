/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libshardkeep: snapshots of a training job's sharded state into memory that
 * the job cannot take with it, and back, on the same mesh or another one.
 *
 * Overview
 *
 *   sk_open()            find, or start, this node's agent
 *   sk_state_create()    one rank of one job
 *   sk_state_tensor()    describe each tensor once
 *   sk_restore()         come back; -ENOENT on the first run
 *   sk_snapshot()        returns at once, copies beside training
 *   sk_fence()           before the tensors are overwritten
 *
 * Errors
 *
 * Functions return 0, or a negative errno that is listed at each; outputs are
 * set on success only. sk_error() has the sentence of the calling thread's
 * last failure: what, which object, how much, what to do. NULL where something
 * is needed is -EINVAL; no descriptor left, of any call, -EMFILE or -ENFILE. No
 * function aborts, exits, prints, installs a signal handler or waits without a
 * bound. A failed snapshot is no reason to stop training: try at the next step.
 *
 * Threads
 *
 * A struct sk, and everything made from it, may be used from several threads.
 * Calls that change one state (describe, snapshot, restore, free) exclude
 * each other; sk_fence(), sk_fence_tensor(), sk_wait() and sk_status() may
 * run beside them and beside each other. Nothing may run beside sk_close(),
 * beside sk_state_free() of the same state, or in a signal handler. In a child
 * of fork() every call on what the parent opened returns -EOWNERDEAD; after
 * setuid() what needs it anew says -EACCES. dlclose() unloads nothing.
 *
 * Memory
 *
 * The library borrows tensors, and reads them only between sk_snapshot() and
 * the fence, and writes them only in sk_restore(). Everything else it is given
 * is copied. All structs may be zeroed: 0 and NULL mean the default.
 */
#ifndef SHARDKEEP_H
#define SHARDKEEP_H

#include <stddef.h>
#include <stdint.h>

#include "shardkeep-types.h"
#include "shardkeep-version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors and the version ------------------------------------------- */

/** The version of the library that runs, "0.1.0", as SK_VERSION is that of the
 * header. The string is the library's. */
const char *sk_version(void);

/**
 * The sentence that explains the calling thread's last failed call; "" if
 * none failed. The string is the library's, and valid until the thread's next
 * call into it. Lists that a restore refuses for stand in it whole; of names
 * that are not saved up to 256 KiB of a rank's, and it says where there is more.
 */
const char *sk_error(void);

/* ---- the agent -------------------------------------------------------- */

struct sk;

/** Do not start an agent where none runs: -ENOENT instead. */
#define SK_OPEN_NO_START (1u << 0)

struct sk_options {
	const char *socket;	/**< path; NULL: $SHARDKEEP_SOCKET, then
				 * /run/shardkeep/agent.sock, then
				 * $XDG_RUNTIME_DIR/shardkeep/agent.sock, and
				 * else a private agent is started there (in
				 * /tmp/shardkeep-UID without the variable) */
	uint32_t flags;		/**< SK_OPEN_... */
	uint32_t threads;	/**< that copy, <= 1024; 0: half the CPUs, <= 8,
				 * to restore a rank's part of all, <= 16 */
	uint32_t timeout_ms;	/**< bound of every request; 0: 10,000. Who
				 * asks what there is waits for longer while
				 * the agent looks at more and more files of
				 * the store: half an hour at most */
	uint32_t reserved_;
	uint64_t reserved[8];	/**< 0 */
};

/**
 * Connects to this node's agent. @opts may be NULL. A private agent is looked
 * for as $SHARDKEEP_AGENT, beside this library, and on the PATH; it takes
 * $SHARDKEEP_STORE and $SHARDKEEP_MEMORY from the environment, outlives this
 * process, and has none of its descriptors. Where a socket is named, none is
 * started; a relative path is from here. *ret_sk is for sk_close(). After 0,
 * sk_error() is "", or says which of the two variables a running one ignores.
 *
 * Errors: -ENOENT, -ECONNREFUSED no agent answers, or the one that was
 * started ended, with its reason; -EPROTO its version of the
 * protocol and ours are more than one apart: the sentence has both;
 * -ETIMEDOUT it does not answer in time; -EACCES the private agent's directory
 * is not this user's alone, or the agent that answers is run by somebody who is
 * neither this user nor root nor the owner of /run/shardkeep; -ENAMETOOLONG,
 * -ENOTDIR the path of the socket; -EMFILE, -ENFILE no descriptor is left;
 * -EAGAIN no thread can be started; -EINVAL options that make no sense;
 * -ENOMEM.
 */
int sk_open(const struct sk_options *opts, struct sk **ret_sk);

/** Waits for copies under way and closes; the agent stays, with all that it
 * holds. States must be freed before. NULL is fine. */
void sk_close(struct sk *sk);

/* ---- meshes ----------------------------------------------------------- */

/**
 * A mesh of @ndim dimensions of @shape, over @ranks (row-major, any distinct
 * global ranks; NULL: 0, 1, 2, ...), with one unique name per dimension or
 * @names NULL. All is copied; *ret_mesh is the caller's, for
 * sk_mesh_release(). A mesh never changes, and needs no agent: any thread may
 * use it, in states of several handles too.
 *
 * Errors: -EINVAL sizes, ranks or names that make no mesh; -ENOMEM.
 */
int sk_mesh_create(int ndim, const int64_t *shape, const int32_t *ranks,
		   const char *const *names, struct sk_mesh **ret_mesh);

/**
 * The child of @mesh over @n named dimensions, in mesh order, that holds
 * @rank: of ranks 0..7 as (dp 2, tp 4), "dp" of rank r is r%4, r%4 + 4.
 * *ret_mesh is the caller's; @mesh may be released before it.
 *
 * Errors: -EINVAL no such name, one twice, or not in mesh order; -ENOENT @rank
 * is not in the mesh; -ENOMEM.
 */
int sk_mesh_child(const struct sk_mesh *mesh, int32_t rank,
		  const char *const *names, int n, struct sk_mesh **ret_mesh);

/** Gives the caller's reference back; states hold their own. NULL is fine. */
void sk_mesh_release(struct sk_mesh *mesh);

/* ---- state ------------------------------------------------------------ */

struct sk_state;

/** Keep no image of what another rank stores as primary: saves memory and
 * copying; what a rank that died did not save, no other rank's memory has. */
#define SK_JOB_NO_REPLICAS (1u << 0)
/** Every snapshot in verification mode (SK_SNAPSHOT_VERIFY). */
#define SK_JOB_VERIFY (1u << 1)
/** Restores only: takes none of the agent's memory, and may stand beside the
 * job's living ranks. Its snapshots are refused with -EROFS. */
#define SK_JOB_READER (1u << 2)
/** Keep it once per node, among its ranks, as the last restore found them. */
#define SK_JOB_NODE_REPLICAS (1u << 3)
/** Copies from GPUs as fast as may be, by kernels too; so it is without. */
#define SK_COPY_FAST (1u << 4)
/** By copy engines alone, beside the trainer's kernels: slower, or much so. */
#define SK_COPY_OVERLAP (1u << 5)

/** sk_job.flush_every: only when asked, when the job ends, or at shutdown. */
#define SK_FLUSH_NEVER UINT32_MAX
/** sk_job.keep_last: everything. */
#define SK_KEEP_ALL UINT32_MAX

struct sk_job {
	const char *name;	/**< [A-Za-z0-9._-]{1,128}, not a dot first */
	int32_t rank;
	int32_t world;		/**< ranks in the job, at most 2^24 */
	uint64_t run;		/**< this incarnation, at most 2^61, larger
				 * than all before it; 0: $SHARDKEEP_RUN, else
				 * the agent numbers it: ranks that come after
				 * a death form the next run together */
	uint32_t slots;		/**< snapshots a rank can hold in memory, at
				 * least 2, at most 64; 0: 2 */
	uint32_t flush_every;	/**< snapshots of steps that are multiples of
				 * it go to disk, where the agent has a store;
				 * 0: about two a minute do, as the agent's
				 * --flush-interval says, and those that
				 * sk_wait() is asked for with SK_DURABLE */
	uint32_t flags;		/**< SK_JOB_..., SK_COPY_... */
	/* What is to stay of the job on disk. All 0: nothing is said of it, and
	 * what the job said before holds, else the agent's options ("cachectl
	 * retain JOB --default" takes back what was said). Whatever is said,
	 * the newest complete snapshot stays, and what is pinned, in use, or
	 * not durable yet. What the operator says ("cachectl retain") goes
	 * before it. */
	uint32_t keep_last;	/**< the newest complete snapshots, so many;
				 * SK_KEEP_ALL, or 0 where one of the others is
				 * given: any number */
	uint32_t keep_every;	/**< and those of steps that are multiples of
				 * it; 0: none */
	uint32_t reserved_;
	uint64_t keep_age_s;	/**< none that is older than the newest
				 * complete one by so much; 0: any */
	uint64_t keep_bytes;	/**< no more in all, the newest first; 0: any */
	uint64_t reserved[5];	/**< 0 */
};

/**
 * Creates the state of one rank, with nothing described; the agent does not
 * hear of it yet. @job is copied; *ret_state is the caller's, for
 * sk_state_free(), and must not outlive @sk.
 *
 * Errors: -EINVAL the name, rank, world, run, slots or flags, or what
 * $SHARDKEEP_RUN says; -ENOMEM; -EOWNERDEAD @sk was opened before a fork().
 */
int sk_state_create(struct sk *sk, const struct sk_job *job,
		    struct sk_state **ret_state);

/** Waits for its snapshot to be sealed, bounded by timeout_ms of the handle,
 * and lets go; its images stay with the agent. NULL is fine. */
void sk_state_free(struct sk_state *state);

/** Where tensor data lies. */
enum sk_memory {
	SK_HOST = 0,
	SK_CUDA = 1		/**< a CUDA device's; data is its pointer */
};

/** A box of a tensor with data of its own, where placements cannot say it. */
struct sk_part {
	struct sk_box box;
	void *data;
	int64_t strides[SK_MAX_DIMS];	/**< elements; all 0: dense */
};

struct sk_tensor {
	const char *name;	/**< the FQN, unique within the rank: 1 to 1023
				 * bytes of UTF-8, no control characters;
				 * names of blobs as well */
	int32_t dtype;		/**< enum sk_dtype */
	int32_t ndim;
	int64_t shape[SK_MAX_DIMS];	/**< of the whole tensor */
	const struct sk_mesh *mesh;	/**< NULL: every rank holds it whole,
					 * and placements that cut it are
					 * refused where there are several */
	struct sk_placement placements[SK_MAX_DIMS];	/**< per mesh dim;
					 * further ones mean nothing, as where
					 * the mesh is one of fewer dimensions
					 * than was meant: @local_shape tells */
	void *data;		/**< this rank's part; NULL if it is empty */
	int64_t strides[SK_MAX_DIMS];	/**< of @data, in elements;
					 * all 0: dense, row-major */
	const int64_t *local_shape;	/**< of @data as the trainer has it;
					 * checked against the placements and
					 * refused where it differs. NULL: not
					 * checked */
	const struct sk_part *parts;	/**< what this rank alone holds, said
					 * box by box instead of by placements
					 * and @data; NULL: placements */
	uint32_t n_parts;
	int32_t memory;		/**< enum sk_memory */
	int32_t device;		/**< CUDA ordinal, of SK_CUDA */
	uint32_t flags;		/**< 0 */
	uint64_t reserved[4];	/**< 0 */
};

/**
 * Describes a tensor. The same name again replaces the description: a new
 * pointer costs nothing, a new shape or placement makes the next snapshot
 * register the state anew. A rank that is not in the mesh may describe the
 * tensor too: it holds nothing of it. Everything but the data is copied; the
 * data is borrowed as long as the tensor is described. Waits for the fence of
 * a snapshot under way.
 *
 * Errors: -EINVAL the description makes no sense, or differs from local_shape
 * (the sentence names the tensor and both shapes); -EOVERFLOW it has more bytes
 * than can be counted; -EEXIST a blob bears the name (and a tensor where a blob
 * is described: the one must be removed first); -ENODEV it is on a CUDA device,
 * and there is no driver (the first such tensor opens it), or no such device;
 * -EFAULT its data is no memory of that device, or its strides lead out of all
 * memory; -E2BIG more than 16 devices, or tensors than can be counted;
 * -EIO the driver failed; -EAGAIN no thread can be started for that device;
 * -ENOMEM; -EOWNERDEAD.
 */
int sk_state_tensor(struct sk_state *state, const struct sk_tensor *tensor);
/** The same for an array of @n at once, all or none: cheaper for many.
 *
 * Errors: those of sk_state_tensor(). */
int sk_state_tensors(struct sk_state *state, const struct sk_tensor *tensors,
		     size_t n);

/** @size bytes that are the same on every rank (schedulers, configuration):
 * kept once, restored to all. The size is part of the description, @data is
 * borrowed as a tensor's.
 *
 * Errors: those of sk_state_tensor(). */
int sk_state_blob(struct sk_state *state, const char *name, void *data,
		  size_t size);
/** @size bytes of this rank alone (random state, data loader): restored to
 * the same rank number; left alone, and counted as missing, where the snapshot
 * had none.
 *
 * Errors: those of sk_state_tensor(). */
int sk_state_blob_local(struct sk_state *state, const char *name, void *data,
			size_t size);

/** Forgets one description; its data is borrowed no more. The last one takes
 * its place in the order of description. Waits for the fence of a snapshot
 * under way.
 *
 * Errors: -ENOENT nothing of that name is described; -ENOMEM; -EOWNERDEAD.
 */
int sk_state_remove(struct sk_state *state, const char *name);
/** Forgets all descriptions, as sk_state_remove() forgets one.
 *
 * Errors: -EOWNERDEAD. */
int sk_state_clear(struct sk_state *state);

/**
 * Registers with the agent, a request as any other, and then waits until the
 * slots are faulted in, at most @timeout_ms, so that the first snapshot is as
 * fast as the others; with 0 it waits for nothing, and faulting goes on in the
 * background. Optional: without it the first snapshot registers, and where the
 * agent alone may fault in (this process is in another memory cgroup) it waits
 * for that.
 *
 * Errors: -ENOMEM over the agent's budget (the sentence says what was asked,
 * what is free, who holds the rest); -EEXIST a living rank of this number
 * stands in this run, or another job of this name lives; -ESTALE the run asked
 * for has been already, or a newer one lives; -EIO the store cannot be read,
 * and nobody knows what it has of this job; -ETIMEDOUT the slots are not
 * faulted in yet, or the agent does not answer; -EDQUOT this user has as many
 * ranks as it may; -EMFILE, -ENFILE no descriptor is left; -EINVAL the agent
 * refuses the description; -E2BIG it is more than a header of 100 MB can say;
 * -EFBIG, or more than this process may write to a file (ulimit -f), which in
 * sk_restore() it may be as well; -ESHUTDOWN the agent is stopping;
 * -ECONNRESET it is gone; -EROFS a reader has no slots; -EOWNERDEAD.
 */
int sk_prepare(struct sk_state *state, uint32_t timeout_ms);

/* ---- snapshots -------------------------------------------------------- */

/** To disk whatever flush_every says. */
#define SK_SNAPSHOT_FLUSH (1u << 0)
/** To memory only, whatever flush_every says. */
#define SK_SNAPSHOT_NO_FLUSH (1u << 1)
/**
 * Verification mode: hashes the tensors before returning, compares after the
 * copy and at the fence: after all that sk_fence_stream()'s stream has, else
 * the default ones. What changed before is named, and the snapshot refused.
 */
#define SK_SNAPSHOT_VERIFY (1u << 2)

struct sk_snapshot_options {
	uint32_t flags;		/**< SK_SNAPSHOT_... */
	uint32_t wait_ms;	/**< how long to wait for a slot; 0: not */
	uint64_t stream;	/**< CUDA stream on which the tensors were last
				 * written (a CUstream or cudaStream_t as a
				 * number), 0 the default one of each device;
				 * of host memory it has no meaning */
	uint64_t reserved[3];	/**< 0 */
};

/**
 * Takes a snapshot: gets a slot, starts copying in the background, returns.
 * From here to the fence the tensors may be read but not written. One
 * snapshot of a state copies at a time: another call waits for the copy (not
 * for the seal) of the one before. Of tensors on CUDA devices it has what the
 * stream has been asked for until now, and no stream is waited for. @opts may
 * be NULL.
 *
 * Errors: -EBUSY no slot is free (the sentence and sk_status.busy_ns say how
 * long the oldest flush still needs), or the CUDA stream captures a graph;
 * -EFAULT a tensor's device memory was freed since it was described; -EEXIST
 * this step is there already, from this run (all ranks that go back to an older
 * one free their states, and go on with new ones); -EINVAL @step is negative,
 * nothing is described, or something without its data, boxes of a tensor
 * overlap or end inside a byte, or @opts contradict each other; -ECANCELED the
 * tensors of the previous snapshot changed before their fence, and no fence and
 * no wait has said so; -EROFS this is a reader; those of sk_prepare().
 */
int sk_snapshot(struct sk_state *state, int64_t step,
		const struct sk_snapshot_options *opts);

/**
 * Waits until the last snapshot has let go of the tensors. 0 at once if there
 * is none. An error is what became of that snapshot, and each fence says it
 * until the next one is taken: sk_status.failed tells whether it is a new one.
 * The tensors may be overwritten after an error as well. Those of CUDA devices
 * have been copied when it returns: what the device is asked for afterwards is
 * not in it.
 *
 * Errors: -ECANCELED in verification mode a tensor changed (the sentence names
 * it); -EIO, also where the CUDA driver failed; -ENOMEM; -ECONNRESET the agent
 * is gone; -ETIMEDOUT it does not answer, and whether the snapshot is sealed
 * sk_wait() tells later; -EOWNERDEAD.
 */
int sk_fence(struct sk_state *state);
/**
 * The same for tensors on CUDA devices, without the caller waiting for them:
 * what is asked of @stream (as in sk_snapshot_options) from here on comes
 * after the copies. For tensors and blobs in host memory it waits, as it does
 * until the copies have been asked for, and in verification mode for all. With
 * tensors on several devices, a stream that is not 0 waits for all of them.
 *
 * Errors: -EBUSY the stream captures a graph: sk_fence() waits without it;
 * those of sk_fence().
 */
int sk_fence_stream(struct sk_state *state, uint64_t stream);
/** The same for one tensor or blob: a trainer that updates in order of
 * description waits only for the next. In verification mode it waits for all.
 *
 * Errors: -ENOENT nothing of that name is described; those of sk_fence().
 */
int sk_fence_tensor(struct sk_state *state, const char *name);

enum sk_until {
	SK_SEALED = 1,		/**< this rank's image is whole */
	SK_COMPLETE = 2,	/**< every rank's is: it can be restored */
	SK_DURABLE = 3,		/**< every primary image is on disk, synced */
	SK_WRITTEN = 4		/**< this rank's is: where several agents serve
				 * the job, none of them knows of the others'
				 * images, and it is durable when this is so
				 * on every rank */
};

/**
 * Waits until the snapshot of @step is @until (enum sk_until), at most
 * @timeout_ms; 0 is to look once, for which the agent has half a second. Any
 * rank may ask, not only one that took it. Where @step is that of this state's
 * last snapshot, it is a fence as well, and an error of that snapshot is the
 * answer; of another step it answers alone, whatever became of the last. Where
 * flush_every is 0, waiting for SK_DURABLE or SK_WRITTEN has this agent's part
 * of the snapshot written now.
 *
 * Errors: those of sk_fence(), of the last snapshot's step; -ETIMEDOUT;
 * -ENOENT no such snapshot (discarded, evicted), or it will not be @until;
 * -ENOTCONN one of those was asked for and the agent has no store; -EIO the
 * last try to flush failed (it is tried again: wait again); -EINVAL @step is
 * negative, or @until not known; -ECONNRESET the agent is gone; -EOWNERDEAD.
 */
int sk_wait(struct sk_state *state, int64_t step, int until,
	    uint32_t timeout_ms);

/** Has the agent flush the snapshot of @step now, whatever flush_every says;
 * waits for nothing: sk_wait() does.
 *
 * Errors: those of sk_wait().
 */
int sk_flush(struct sk_state *state, int64_t step);

/** What the ranks of a state's agent have on its disk. */
struct sk_kept {
	int64_t written;	/**< the newest step that all of them have, of
				 * their run; -1: none */
	int32_t next;		/**< 1: so it is of @next; 0: not yet; -1: they
				 * have a newer one, and not that */
	uint32_t reserved;
};

/**
 * Where several agents serve the job, each with a store of its own, none knows
 * what the others have, and retention goes by what is whole of its own ranks:
 * if one cannot write for long, the rest delete the last step that all had. So
 * one rank of each agent says which steps of this run stay there, in the place
 * of what was said before: @step the newest that all ranks have written, as
 * they have told each other (sk_wait(), SK_WRITTEN), and @next one that they
 * are to agree on; -1: none yet. Until a @step is said, what the run began with
 * stays, and what was said before it, by runs before it as well: it stands in
 * the store. It changes nothing where a newer one is complete on the disk.
 *
 * Errors: -ENOENT the rank is in no run yet, or its agent is another one, which
 * hears of it at the next snapshot; those of the store, as -ENOSPC: what was
 * said before holds; -EOPNOTSUPP the agent is an older one; -EINVAL a step is
 * below -1; -ECONNRESET the agent is gone; -ETIMEDOUT; -EOWNERDEAD.
 */
int sk_keep(struct sk_state *state, int64_t step, int64_t next,
	    struct sk_kept *ret_kept);

/** The last snapshot's times, nanoseconds from the call; 0: not yet. */
struct sk_status {
	uint64_t run;		/**< its run; before the first one, that in
				 * which this rank stands, 0: in none yet */
	int64_t step;		/**< -1: none yet */
	uint64_t bytes;		/**< of tensors and blobs copied */
	uint64_t returned_ns;
	uint64_t copied_ns;	/**< safe to overwrite */
	uint64_t sealed_ns;
	int32_t result;		/**< 0, or why it failed */
	uint32_t slots;		/**< of this rank now; 0 before sk_prepare() or
				 * the first snapshot */
	uint64_t slot_bytes;	/**< their memory */
	uint64_t taken;		/**< snapshots sealed by this state */
	uint64_t failed;
	uint64_t busy_ns;	/**< where sk_snapshot() said -EBUSY last: what
				 * the oldest flush still needed, 0: unknown */
	uint64_t locked_bytes;	/**< of slot_bytes, page-locked for CUDA
				 * devices; what is not is copied through the
				 * driver's own buffers, more slowly */
	uint64_t device_bytes;	/**< of the agent's memory on this rank's CUDA
				 * device, where snapshots are safe to
				 * overwrite first; 0: none, they go to the
				 * slots at once */
	uint64_t reserved[1];
};

/** Copies out what the state knows of its last snapshot; asks and waits for
 * nobody.
 *
 * Errors: -EOWNERDEAD.
 */
int sk_status(struct sk_state *state, struct sk_status *ret_status);

/* ---- restore ---------------------------------------------------------- */

/** What one rank gives to another, or gets from it, in an exchange. */
struct sk_comm_part {
	int32_t rank;		/**< the other; never the caller's own */
	uint32_t reserved;	/**< 0 */
	void *data;		/**< host memory; of a send it is only read */
	uint64_t bytes;		/**< at least 1, the same on both sides */
};

/**
 * A comm that moves the memory of a CUDA device as well has this, its ctx the
 * comm's; sk_comm_nccl() makes one. What other nodes have of tensors that any
 * rank has there goes from device to device, to one rank of a node, which sends
 * it on to all others there that want it, wherever they have it. Where the comm
 * of one rank has none, all do without. Functions are called as the comm's are.
 */
struct sk_comm_device {
	int32_t ordinal;	/**< whose memory: this rank's device */
	uint32_t reserved;	/**< 0 */
	/** Once in a restore, by all ranks, before anything is exchanged.
	 * -ENODEV on all of them: it is done without, and the comm is as good
	 * as before; any other error ends the comm. */
	int (*begin)(void *ctx, uint32_t timeout_ms);
	/** As sk_comm.exchange, of parts in that device's memory, which nobody
	 * else reads or writes meanwhile; but between two ranks may go
	 * several, in the same order on both, and the same bytes may go to
	 * several ranks. When it returns 0, they are there. */
	int (*exchange)(void *ctx, const struct sk_comm_part *sends,
			size_t n_sends, const struct sk_comm_part *receives,
			size_t n_receives, uint32_t timeout_ms);
	/** After each begin() that returned 0, whatever came of the restore.
	 * Not 0: it may still touch memory that it was given, which is then
	 * never freed. */
	int (*end)(void *ctx);
};

/**
 * How the ranks of a job exchange bytes during a restore. NULL where a comm is
 * asked for: the agent's, for jobs whose ranks are all on this node. A node is
 * what one agent serves: which ranks share one is found out by the restore.
 *
 * All ranks make the same calls in the same order, from the thread that called
 * sk_restore() and never two at once. The struct and its ctx are borrowed for
 * that call. Each function returns 0 or a negative errno (what is above 0, as
 * the codes of MPI and NCCL, is taken for -EPROTO), and must give up
 * after @timeout_ms: then the restore ends with -ETIMEDOUT on every rank. What
 * it has been given is the caller's again when it returns. @exchange is needed
 * where ranks take bytes out of other nodes' memory; without it each restores
 * from what its own agent can reach. All ranks must have the same functions.
 * What fails on one rank, a wrong call included, but in the comm itself, is
 * told by @allgather: all end with its error, and none waits for its timeout.
 */
struct sk_comm {
	void *ctx;
	/** Every rank gives @bytes; @out has world * @bytes in rank order. */
	int (*allgather)(void *ctx, const void *in, size_t bytes, void *out,
			 uint32_t timeout_ms);
	/** NULL, or: sends and receives all of the parts together, as if by
	 * non-blocking calls that are waited for at the end. No two sends and
	 * no two receives are of one rank; ranks without parts do not call.
	 * Where it fails it may leave some under way: their memory is not
	 * freed, nor used again, by this process. */
	int (*exchange)(void *ctx, const struct sk_comm_part *sends,
			size_t n_sends, const struct sk_comm_part *receives,
			size_t n_receives, uint32_t timeout_ms);
	/** NULL (@exchange then does it), or: @data of rank @root, on all. */
	int (*broadcast)(void *ctx, int32_t root, void *data, size_t bytes,
			 uint32_t timeout_ms);
	/** NULL, or: called once one of the above has failed, or @allgather is
	 * lacking; then none is called. Has what others wait for fail soon. */
	void (*abort)(void *ctx);
	/** NULL, or: for the memory of devices; as long as the comm. */
	const struct sk_comm_device *device;
	/** Bytes that an exchange should move for a rank, that it is worth
	 * what it costs whatever it moves: up to 4 MiB. 0: 1 MiB, for which
	 * what passes stays in the caches. Of all ranks' the most counts. */
	uint64_t round_bytes;
	/** How many ranks it joins and which this one is. @world 0: the caller
	 * answers for both. If not the job's, -EINVAL: another rank on all
	 * ranks, another world after @abort. A job of one rank has any. */
	int32_t world, rank;
	void *reserved[1];	/**< NULL */
};

/**
 * A comm that moves what goes to tensors on CUDA device @device by NCCL, and
 * all else by @base, which is any comm that has allgather and exchange. Ranks
 * are those of @base, and the job's. *ret_comm is the caller's, for
 * sk_comm_nccl_free(); @sk, and what @base refers to, must outlive it.
 * Thread-safety: as any comm, one restore at a time.
 *
 * Nothing is opened here. Each restore that has use for it makes a
 * communicator of its own, whose id travels by @base, and ends it; so it is
 * to be called where the trainer's communicators are idle. The library is the
 * one that the process has open already, else libnccl.so.2, 2.18 or later; on
 * all ranks the same version. Where a rank has none, or ranks share a device,
 * or it does not begin within half of the restore's timeout, all ranks do
 * without, through @base and host memory; sk_comm_nccl_why() says why. A rank
 * that dies, or does not come, ends the restore as with any comm; one that
 * fails in NCCL tells the others by @base.
 *
 * Errors: -EINVAL no such rank or device, or @base is no such comm; -ENOMEM;
 * -EOWNERDEAD.
 */
int sk_comm_nccl(struct sk *sk, const struct sk_comm *base, int32_t rank,
		 int32_t world, int32_t device, struct sk_comm *ret_comm);

/** Why the last restore did without NCCL, or could not go on with it: the
 * comm's until its next restore. "": nothing is wrong with it, or it is a comm
 * of another kind. */
const char *sk_comm_nccl_why(const struct sk_comm *comm);

/** Not while a restore has it. NULL, and one that was freed, are fine; a comm
 * of another kind is left alone. */
void sk_comm_nccl_free(struct sk_comm *comm);

/** How ranks find each other that nothing but a launcher (srun, ssh, torchrun)
 * has started. */
struct sk_meeting {
	/** "HOST:PORT" or "[ADDRESS]:PORT": rank 0 listens at that port, of
	 * all addresses of its node; a port that nobody else has, so not
	 * torchrun's own MASTER_PORT. The others may have several such
	 * places, with commas between them, that are tried in turn. Or
	 * "/PATH": a file, not there yet, in a directory that all nodes see,
	 * by which rank 0 tells where it is, and which goes when they have
	 * met. Or, where the launcher has another way to pass a word, "HOST:0"
	 * or "*:0" with @tell, of rank 0. */
	const char *at;
	/** Of up to 63 bytes, the same on all ranks: who does not have it is
	 * not let in. It is said in the clear, so it keeps out other jobs,
	 * older runs and whoever tries ports, and nobody who can read what
	 * passes between the nodes, or stands in rank 0's place. Best it
	 * names the attempt. NULL: none; with "/PATH" there is always one, in
	 * the file, which its user alone can read. */
	const char *secret;
	int32_t rank, world;
	uint32_t timeout_ms;	/**< to meet; 0: 60,000 */
	uint32_t reserved_;	/**< 0 */
	/** Of rank 0, NULL or: called once, with @tell_ctx, when it listens; at
	 * port 0, one that is free. @at is what the other ranks are to have as
	 * theirs, valid during the call: all addresses of its node, the one
	 * that speaks to HOST first (any host that the other nodes reach as
	 * well; "*": none), loopback last. Not 0: a negative errno, which ends
	 * the meeting. It is not waited for by the meeting's timeout. */
	int (*tell)(void *ctx, const char *at);
	void *tell_ctx;
	/** Of which interfaces, "eth0" or "eth0,ib0"; NULL: of all. */
	const char *interfaces;
	void *reserved[1];	/**< NULL */
};

/**
 * A comm of sockets, one between each two ranks, by which every restore over
 * several nodes can be done. All ranks call it with the same meeting but for
 * their rank, and for where rank 0 tells it. *ret_comm is the caller's, for
 * sk_comm_meet_free(). No agent has a part in it: @sk may be NULL, and is not
 * needed any more when it has returned. It can be the base of sk_comm_nccl().
 * IPv4 and IPv6; ports other than rank 0's are any free ones; each rank listens
 * at all addresses of its node while they meet. What passes is neither
 * encrypted nor signed.
 *
 * Either all have met, or all are told that they have not, and why: a rank that
 * does not come, leaves, comes twice, or counts another world. Strangers are
 * let go and keep nobody waiting. No call waits longer than told, but for the
 * address of a name. A rank that dies later is -ECONNRESET, while a child has
 * its copy -ETIMEDOUT, and once a call has failed the comm is of no more use.
 *
 * Thread-safety: as any comm. A child of fork() can only free its copy.
 *
 * Errors: -EINVAL the meeting makes no sense, or ranks counted another world;
 * -EEXIST a rank came twice, or the file is there and no meeting's; -EADDRINUSE
 * rank 0's port is another's; -EADDRNOTAVAIL no address of those interfaces;
 * -ETIMEDOUT somebody did not come, or left before all had met; -ENOMEM;
 * -EOWNERDEAD; what the system says of file, port or descriptors.
 */
int sk_comm_meet(struct sk *sk, const struct sk_meeting *meeting,
		 struct sk_comm *ret_comm);

/** Not while a restore has it. The other ranks need not do so as well. NULL,
 * and one that was freed, are fine; a comm of another kind is left alone. */
void sk_comm_meet_free(struct sk_comm *comm);

/** The newest step that is complete. */
#define SK_LATEST (-1)

/** Keys that it lacks, and local blobs that are lost, are left alone. */
#define SK_RESTORE_MISSING_OK (1u << 0)
/** Keys that no rank asked for are ignored, not an error. */
#define SK_RESTORE_EXTRA_OK (1u << 1)
#define SK_RESTORE_PARTIAL (SK_RESTORE_MISSING_OK | SK_RESTORE_EXTRA_OK)
/** Only what is in memory; only what is on disk. A snapshot that is not whole
 * there is passed over. */
#define SK_RESTORE_MEMORY_ONLY (1u << 2)
#define SK_RESTORE_DISK_ONLY (1u << 3)
/** Do not verify checksums. For measuring what they cost. */
#define SK_RESTORE_NO_VERIFY (1u << 4)

struct sk_restore_options {
	uint32_t flags;		/**< SK_RESTORE_... */
	uint32_t timeout_ms;	/**< to agree with the other ranks; 0: 60,000 */
	const char *const *names;	/**< only these; implies EXTRA_OK.
					 * NULL: everything described */
	size_t n_names;
	uint64_t run;		/**< of this run; 0: the newest that has it */
	uint64_t run_id;	/**< and, where two runs were given one
				 * number, of this one; 0: either */
	uint64_t reserved[7];	/**< 0 */
};

struct sk_report {
	uint64_t run;		/**< of the snapshot that was restored */
	int64_t step;
	int32_t world;		/**< ranks that saved it */
	uint32_t tensors;	/**< restored, blobs included */
	uint32_t missing;	/**< left alone: not in the snapshot */
	uint32_t extra;		/**< in the snapshot, asked for by no rank */
	uint32_t damaged;	/**< images set aside for a bad checksum */
	uint32_t reserved_;
	uint64_t bytes_memory;	/**< from this node's memory */
	uint64_t bytes_remote;	/**< from other nodes' memory */
	uint64_t bytes_disk;
	uint64_t bytes_verified;
	uint64_t agree_ns;	/**< waiting for other ranks included */
	uint64_t plan_ns;
	uint64_t copy_ns;
	uint64_t total_ns;
	uint64_t run_id;	/**< random: no other run has it */
	uint64_t bytes_sent;	/**< by this rank to other nodes, what it
				 * passes on included */
	uint64_t bytes_received;	/**< by it from other nodes, for all
				 * ranks of its own: each byte once */
	uint64_t staging_bytes;	/**< of its memory that they went through,
				 * a device's included */
	uint64_t bytes_device;	/**< of bytes_received, from device to
				 * device */
	uint64_t bytes_device_slot;	/**< of bytes_memory, from device slots
				 * on the tensors' own GPU: they did not
				 * cross the link */
	uint64_t bytes_passed;	/**< of bytes_sent, what it had received
				 * itself: several nodes want it */
	uint64_t reserved[1];
};

/**
 * Brings the described tensors back from a snapshot of this job by any mesh,
 * from the nearest memory that holds each piece, else from the store. A box
 * that is all of its tensor comes from this rank's own image, wherever it is,
 * else from the first that has one. Every rank of the job must call it, also
 * one that has described nothing, and all restore the same step: a step, a run
 * or a place that one asks for is everybody's, checksums are left out where all
 * leave them out. @comm, @opts, @ret_report may be NULL. SK_LATEST passes over
 * an incomplete or damaged snapshot for the next older one. It blocks until
 * this rank's tensors are back; none is written to before all have agreed. It
 * waits first for all that the tensors' CUDA devices have been asked to do.
 * Errors are the same on all ranks, but for those of a rank's own memory and
 * reads. The sentence has the tensors that may have been overwritten.
 *
 * Errors: -ENOENT nothing to restore: a first run where SK_LATEST was asked for
 * and nothing else, and no reason to begin anew where a step, a run or a place
 * was (the sentence has them, and names what is missing where something was
 * there); -ENOKEY keys missing on either side, or named in @opts and described
 * by no rank (sk_error() lists them); -EINVAL dtype or global shape differs,
 * options that contradict each other or those of other ranks, ranks of several
 * jobs or worlds, a name that none can be, or a comm of other ranks than the
 * job's; -EEXIST two jobs of one name; -EBADMSG a checksum failed, now or
 * before, and no other holder is left; -ETIMEDOUT a rank did not come; -EIO,
 * also where nothing was found and a part of the store is damaged or not to be
 * read, or SK_LATEST was asked for and all that there is went before it was
 * read, again and again: that is no first run; -EPROTO the comm does not bring
 * back what it is given; -EDQUOT, -EMFILE, -ENFILE more images than may be
 * open; -ENODEV, -EFAULT a tensor is on a CUDA device that is not reached, or
 * in freed memory of one; -EBUSY one of its streams captures a graph, which is
 * spoilt: all of it is waited for; -ENOMEM; -E2BIG a million ranks, no @comm;
 * -ESHUTDOWN, -ESTALE as sk_prepare(); -ECONNRESET gone for good; -EOWNERDEAD.
 */
int sk_restore(struct sk_state *state, int64_t step,
	       const struct sk_comm *comm,
	       const struct sk_restore_options *opts,
	       struct sk_report *ret_report);

/* ---- what there is ---------------------------------------------------- */

/**
 * The snapshots that the agent knows, of @job or, where it is NULL, of all the
 * caller's jobs; newest first. *ret_json, the caller's to free(), is an array
 * of {"job", "run", "run_id": 16 hexadecimal digits, "step", "world",
 * "complete", "local": it is not, but to what this agent knows, "durable",
 * "newest", "pinned", "memory_bytes", "disk_bytes", "note"}.
 *
 * Errors: -EINVAL @job is no job's name; -EIO the store cannot be read;
 * -ENOMEM; -ECONNRESET the agent is gone; -ETIMEDOUT; -EPROTO what it said
 * makes no sense; -EOWNERDEAD.
 */
int sk_snapshots(struct sk *sk, const char *job, char **ret_json);

/** Leaves out meshes, placements, explicit and boxes: it is sooner there. */
#define SK_INSPECT_BRIEF (1u << 0)

/**
 * What one snapshot of @job holds: SK_LATEST is the newest complete one; @run
 * 0 the newest that has @step. *ret_json, the caller's to free(), is such an
 * object with "ranks": [first, last] of each row of those that have an image,
 * "meshes": [{"shape", "ranks", "names"}] and "tensors": in order, {"name",
 * "kind": "tensor", "blob" or "local", "rank" of a local blob (else -1),
 * "dtype", "shape", "mesh": index into meshes or null, "placements",
 * "explicit": whether boxes were said, "boxes": [{"rank", "offset", "size"}] of
 * primary images, each once}. @flags: SK_INSPECT_... Bytes are not read.
 *
 * Errors: -ENOENT there is no such job or snapshot; -EBADMSG none is complete,
 * and one is damaged; -EIO the store cannot be read; -EPROTO what the agent
 * said makes no sense; -ECONNRESET it is gone; -EINVAL; -ENOMEM; -ETIMEDOUT;
 * -EOWNERDEAD.
 */
int sk_inspect(struct sk *sk, const char *job, int64_t step, uint64_t run,
	       uint32_t flags, char **ret_json);

#ifdef __cplusplus
}
#endif

#endif
