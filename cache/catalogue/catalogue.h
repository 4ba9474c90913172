/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catalogue: which jobs, runs, ranks, slots, snapshots and images there are,
 * and the rules by which they come and go.
 *
 * A pure data structure: no input or output, no clock, no threads. The agent
 * alone owns one, in memory of its own. What a slot's memory really is stands
 * behind a pointer that the catalogue hands back when the slot is released.
 *
 *   catalogue
 *     job (uid, name)
 *       run (number, id)         incarnations known since the agent started
 *         state (rank)           one registration, living or dead
 *           slot                 memory for one primary and one replica image
 *       snapshot (run, step)     newest first
 *         image (rank, kind)     in a slot, on disk, or both
 *
 * Two users may have a job of one name; they do not see each other's. Two runs
 * of one number and other ids are strangers: agents that could not see each
 * other gave them the number. Nothing of one counts for the other.
 */
#ifndef SK_CACHE_CATALOGUE_H
#define SK_CACHE_CATALOGUE_H

#include <sys/types.h>

#include "base/error.h"
#include "base/file-id.h"
#include "base/link.h"
#include "base/process.h"
#include "base/staying.h"
#include "base/table.h"
#include "base/tree.h"
#include "catalogue/begun.h"
#include "catalogue/cadence.h"
#include "catalogue/fault.h"
#include "layout/layout.h"

/** Most verdicts that are kept of a job, the last asked for. */
#define SK_CAT_VERDICTS 1024u
#define SK_CAT_DIR_MAX 64u

/** A layout, shared by all that have the same digest. */
struct sk_cat_layout {
	struct sk_catalogue *catalogue;
	struct sk_layout *layout;
	uint32_t refs;
	uint32_t id;
	uint64_t counted;		/* room.c: which count has seen it */
	uint64_t marks[2][2];		/* verdict.c: absent, present */
};

enum sk_cat_slot_use { SK_CAT_FREE = 0, SK_CAT_FILLING, SK_CAT_SEALED };

/* In which turn memory of a snapshot goes, the lowest first. */
enum sk_cat_turn {
	SK_CAT_STAYS = 0,
	SK_CAT_FIRST,			/* it is passed over */
	SK_CAT_AS_OLD,			/* the oldest first */
	SK_CAT_LAST,			/* a run began with it: where nothing
					 * else is to be had */
	SK_CAT_PINNED,			/* on disk: room.c, for its own job */
	SK_CAT_FOLLOWED			/* that run has something here by now:
					 * only for more of it */
};

struct sk_cat_slot {
	struct sk_link link;		/* in its state */
	struct sk_cat_state *state;
	struct sk_cat_snapshot *snapshot;	/* unless FREE */
	struct sk_cat_image *images[2];		/* by kind, when SEALED */
	enum sk_cat_slot_use use;
	uint32_t number;		/* within its state */
	uint32_t flags;			/* SK_SLOT_... while FILLING */
	uint64_t fill;			/* a number for each time that it is */
	uint64_t bytes;			/* charged to the budget */
	uint32_t fds;			/* the same: one for each kind */
	uint64_t kind_bytes[2];
	void *memory;			/* the owner's */
	void *detainer;			/* the owner's: whoever wrote to it may
					 * still; NULL: detain.c */
	struct sk_link detained;	/* in the catalogue, while it is so */
	bool left;			/* given back once it is not detained */
};

struct sk_cat_state {
	struct sk_link link;		/* in its run */
	struct sk_cat_run *run;
	uint64_t id;			/* 0: dead, or replaced */
	uint64_t serial;		/* not 0; a later one's is higher */
	int32_t rank;
	bool living;
	bool awaited;			/* its rank is not dead: the agent was,
					 * and it may be back */
	bool replaced;			/* by the rank's next registration */
	bool on_devices;		/* a GPU writes to its slots */
	bool pageable;			/* not all are page-locked for it */
	uint32_t flush_every;
	int32_t numa_node;
	struct sk_cat_layout *layouts[2];
	struct sk_link slots;
	uint32_t n_slots;
	uint32_t next_number;
	int64_t last_step;		/* newest step that got a slot; -1 */
	int64_t lost_step;		/* last one discarded or refused; -1 */
	struct sk_process process;	/* the owner's: who registered it */
	void *owner;			/* the agent's connection */
	struct sk_link owned;		/* in a list of its owner's, while it
					 * lives: sk_cat_state_own() */
};

struct sk_cat_run {
	struct sk_link link;		/* in its job, newest first */
	struct sk_cat_job *job;
	uint64_t number;
	uint64_t id;			/* random */
	int32_t world;
	bool ended;			/* one of its ranks died or left */
	bool awaited;			/* it outlived an agent: its ranks may
					 * come back */
	uint32_t note;			/* its owner's; 0 */
	struct sk_process process;	/* a rank's, or zeros; its owner's */
	bool has_local, apart;		/* a snapshot was local; several were:
					 * its other ranks are elsewhere */
	int64_t local_step;		/* of the first */
	uint64_t changes;		/* of its ranks */
	size_t n_snapshots;		/* of its job, that are its own */
	int64_t *kept;			/* its steps that were left to the
					 * disk, ascending */
	size_t n_kept, room_kept;
	struct sk_link states;
};

/** Where the disk has an image. */
struct sk_cat_stored {
	char dir[SK_CAT_DIR_MAX];	/* "": nowhere */
	uint64_t serial;		/* catalogue's when it was added */
	uint32_t seen;			/* its owner's, of its last look */
	struct sk_file_id file;		/* as it was when it was read */
};

struct sk_cat_image {
	struct sk_link link;		/* in its snapshot, by rank and kind */
	struct sk_cat_snapshot *snapshot;
	uint64_t id;
	int32_t rank;
	enum sk_image_kind kind;
	struct sk_cat_layout *layout;
	uint64_t *sums;			/* of the stamp, while a slot has it */
	uint64_t content[2];		/* hash of them */
	struct sk_cat_slot *slot;	/* NULL: not in memory */
	struct sk_cat_stored stored;
	unsigned leases;
	unsigned device_leases;		/* of them, of a copy on a GPU */
	bool bad_memory, bad_disk;	/* a checksum failed there */
	uint32_t bad_entry[2];		/* of the layout, and 1; 0: not known;
					 * memory, disk */
};

/** What is known of a snapshot, as far as somebody asked: coverage.c. */
struct sk_cat_known {
	bool fresh, disk_fresh;		/* the answers below are */
	bool complete;			/* somewhere */
	bool local;			/* all ranks known to this agent
					 * sealed it; others are elsewhere */
	bool undecided;			/* neither is known yet */
	bool on_disk;			/* complete there alone */
	bool disk_undecided;
	bool announce;			/* sealed since it was complete */
	bool hopeless;			/* when the job's changes were */
	uint64_t hope_at;
	uint64_t ranks_at, disk_ranks_at;	/* the run's changes then */
};

struct sk_cat_snapshot {
	struct sk_link link;		/* in its job, newest first */
	struct sk_link live;		/* in its job, while slots hold it */
	struct sk_link undecided;	/* in its job, while it is */
	struct sk_link failing;		/* in the catalogue, while it failed */
	struct sk_cat_job *job;
	uint64_t run;			/* number and id: whose it is */
	uint64_t run_id;
	int64_t step;
	int32_t world;
	struct sk_link images;
	/* The same ones, in the same order. */
	struct sk_cat_image **by_rank;
	size_t n_images, room_images;
	unsigned filling, sealed;	/* slots */
	unsigned leases;		/* sum over its images */
	bool revived;			/* it outlived its agent, which may have
					 * written it to disk as well */
	bool elsewhere;			/* it is local, or was when its ranks
					 * were known last: others had the
					 * rest */
	bool shared;			/* its owner's: others have written into
					 * its directory as well */
	uint64_t created_ns;		/* wall clock; 0: nothing sealed yet */
	struct sk_cat_known known;	/* ask sk_cat_complete() and others */
	bool pinned;
	unsigned pins;			/* times that its owner had it so */
	bool unpinning;			/* so its owner does, on disk */
	unsigned pinning;		/* times that it does, and until then */
	bool was_pinned;		/* whether it was, before those */
	bool pin_stored;		/* on disk, as far as is known */
	uint32_t pin_stored_at;		/* its owner's look that may have missed
					 * it there */
	uint32_t unpinned_at;		/* its owner's look that may have seen
					 * the pin last; 0: none */
	bool pin_settling;		/* its owner writes it there */
	bool pin_failed;		/* and could not, the last time */
	bool wanted;			/* on disk */
	bool wanted_by_pin;		/* and by nothing else: pins.c */
	bool by_cadence;		/* nobody said whether it is to be: */
	bool cadence_due;		/* it is, when it is sealed */
	bool flushing;			/* sk_cat_flushing() sets it */
	bool failed;			/* the last flush; see text */
	bool no_room;			/* it found none; its owner's */
	bool store_failed;		/* by the store's fault; its owner's */
	bool hopeless_on_disk;		/* a flush would not help */
	bool displaced;			/* an older run's was in its place on
					 * disk; its owner's */
	unsigned failures;		/* in a row */
	uint64_t failures_total;
	uint64_t retry_ns;		/* the agent's clock */
	char *text;			/* why: sk_cat_failure() */
};

struct sk_cat_question;

/** What has become of a job's snapshots; the owner's figures, of which the
 * catalogue knows nothing. Times of the owner's clock, 0: never. */
struct sk_cat_figures {
	uint64_t sealed, bytes_sealed;	/* images */
	uint64_t copied_ns, stalled_ns;	/* in all */
	uint64_t completed, durable;	/* snapshots */
	uint64_t bytes_flushed, flush_ns, flush_errors;
	uint64_t refused_slots, lost;	/* images, with who filled them */
	uint64_t sealed_ns, completed_ns, durable_ns;	/* the last time */
	int64_t sealed_step, completed_step, durable_step;
};

/** Of slots. */
struct sk_cat_amount {
	uint64_t bytes, fds;
};

/** In the queue to the disk: queue.c. */
#define SK_CAT_QUEUE_KEY 6
struct sk_cat_queued {
	struct sk_tree_node node;
	uint64_t key[SK_CAT_QUEUE_KEY];	/* that it stands there by */
};

/** Who has jobs here. */
struct sk_cat_user {
	struct sk_link link;
	uid_t uid;
	size_t n_jobs;
	unsigned n_living;		/* ranks */
	unsigned n_unread;		/* of its jobs */
	struct sk_cat_amount used;	/* by slots of its jobs */
	struct sk_tree by_bytes;	/* jobs, by their slots: told.c */
	uint64_t flush_turn;		/* the owner's count of flushes, when
					 * the last one of any of them began */
	struct sk_tree queue;		/* jobs that have something to write */
	struct sk_cat_queued queued;	/* in the catalogue's, while some have */
};

/** What goes on from what changes, each by a list of the jobs of which
 * something has since it looked at them: awake.c. */
enum sk_cat_duty {
	SK_CAT_DECIDE = 0,		/* sk_cat_refresh(), and what follows */
	SK_CAT_WRITE,			/* which snapshot is written next */
	SK_CAT_FINISH,			/* what is to be written before the
					 * owner ends */
	SK_CAT_TRIM,			/* sk_cat_job_trim() */
	SK_CAT_LEAVE,			/* sk_cat_stored_leave(); who has a new
					 * snapshot is awake for it */
	SK_CAT_TELL,			/* sk_cat_tell() */
	SK_CAT_HELD,			/* sk_cat_state_held() */
	SK_CAT_DUTIES
};

struct sk_cat_job {
	struct sk_link link;
	struct sk_tree_node ordered;	/* in the catalogue */
	struct sk_tree_node by_bytes[2];	/* there, and of its user */
	struct sk_link awake[SK_CAT_DUTIES];	/* in the catalogue's */
	struct sk_catalogue *catalogue;
	char name[SK_JOB_MAX + 1];
	uid_t uid;
	struct sk_cat_user *user;
	struct sk_cat_amount used;	/* by its slots */
	struct sk_cat_amount unread;	/* of that what outlived another agent,
					 * and is not here yet: revive.c */
	bool is_unread;
	uint64_t awaited_ns;		/* the owner's: until when its ranks are
					 * that another agent had */
	bool ended_unseen;		/* the owner's: none of those can come,
					 * and that was seen */
	bool unread_asked;		/* the owner's: somebody waits for it */
	unsigned n_living;		/* ranks */
	unsigned n_to_write;		/* snapshots: sk_cat_tell() */
	uint64_t newest_run;		/* in memory or on disk */
	struct sk_link runs;
	struct sk_link snapshots;
	size_t n_snapshots;
	struct sk_table by_step;	/* snapshots */
	struct sk_cat_snapshot *met;	/* the last that was made; NULL */
	struct sk_link *leaves;		/* of snapshots: whose turn it is to be
					 * left to the disk; NULL: the oldest's,
					 * once there are too many */
	struct sk_link cursors;		/* that stand on its snapshots */
	struct sk_link live;		/* snapshots that slots hold */
	struct sk_link undecided;	/* snapshots */
	struct sk_table verdicts;	/* by set: verdict.c */
	struct sk_link verdict_order;	/* longest unused first */
	struct sk_cat_question *question;	/* that is out, or NULL */
	uint64_t changes;		/* of slots, images and ranks */
	struct sk_cadence cadence;	/* of ranks that say none */
	uint64_t flushed_ns;		/* when its last flush began, or its
					 * first step; the agent's clock */
	uint64_t flush_took_ns;		/* the last one */
	uint64_t flush_turn;		/* the owner's count of flushes, when
					 * its last one began; 0: none did */
	uint64_t flush_came;		/* the same, when it had one to wait
					 * for first */
	bool flush_due;			/* the newest one, when it is known */
	struct sk_cat_queued queued;	/* in its user's queue, with */
	struct sk_cat_snapshot *next_out;	/* what is written next of it;
					 * NULL: it is not in it */
	/* room.c, while it makes room: what can go, which of it goes first, if
	 * it has an image, and in which turn */
	struct sk_cat_amount can_go;
	struct sk_cat_slot *first_out;
	enum sk_cat_turn first_turn;
	struct sk_cat_begun begun;	/* by the newest run that says so */
	struct sk_staying staying;	/* on disk, as ranks say */
	void *owner;			/* the agent's: what it knows of disk */
	struct sk_cat_figures figures;
	struct sk_cat_fault fault;
};

struct sk_catalogue {
	struct sk_link jobs;
	struct sk_link users;
	struct sk_link awake[SK_CAT_DUTIES];	/* jobs */
	struct sk_link detained;	/* slots */
	struct sk_link failing;		/* snapshots whose last flush failed */
	struct sk_link faults;		/* jobs: sk_cat_fault, oldest first */
	struct sk_tree queue;		/* users whose jobs have something to
					 * write */
	struct sk_table by_name;	/* jobs, of all users */
	struct sk_tree ordered;		/* the same, as they are listed */
	struct sk_tree by_bytes;	/* the same, by their slots: told.c */
	size_t n_snapshots;		/* of all jobs */
	unsigned n_living;		/* ranks */
	unsigned n_unread;		/* jobs */
	size_t n_to_write;		/* snapshots: sk_cat_tell() */
	struct sk_table states;		/* by id, those that have one */
	struct sk_table layouts;	/* by digest */
	struct sk_table images;		/* by id */
	uint64_t next_id;		/* of states, images and fills */
	uint32_t next_layout;
	uint64_t serial;
	uint64_t budget;		/* bytes of slots */
	uint64_t used;
	uint64_t budget_fds;		/* of slots; 0: any number */
	uint64_t used_fds;
	/* Most that one user may take of either, but for uid 0 and @owner;
	 * 0: as much as there is. */
	uint64_t user_budget, user_fds;
	uint64_t user_layouts;		/* the same of bytes of ranks' layouts */
	uint64_t layout_bytes;		/* of all layouts */
	uint64_t counts;		/* see sk_cat_layout.counted */
	uid_t owner;
	bool has_store;
	uint64_t coverage_checks;	/* that no verdict answered */
	/** Jobs, snapshots, ranks and images that were looked at to decide:
	 * tests tell by it how work grows. */
	uint64_t visits;
	/**
	 * What sets of images cover, where that takes longer than a client
	 * may be kept waiting. Who is asked has sk_cat_question_run() called
	 * on any thread, and then sk_cat_question_end() where the catalogue
	 * lives, both before the catalogue is destroyed. At most one question
	 * of each job is out. -ENOMEM: it cannot be asked now. NULL: it is
	 * answered at once.
	 */
	int (*ask)(void *ctx, struct sk_cat_question *question);
	/** The slot's use is another, or its state is; it is called before
	 * anybody can be told, and not when the slot leaves. NULL is fine. */
	void (*noted)(void *ctx, const struct sk_cat_slot *slot);
	/** The snapshot has become complete by what was sealed. */
	void (*completed)(void *ctx, const struct sk_cat_snapshot *snapshot);
	/** The slot leaves the catalogue; its memory is the owner's again. */
	void (*release)(void *ctx, struct sk_cat_slot *slot);
	/** The run leaves the catalogue. NULL is fine. */
	void (*forget_run)(void *ctx, struct sk_cat_run *run);
	/** The job leaves the catalogue. */
	void (*forget)(void *ctx, struct sk_cat_job *job);
	void *ctx;
};

/* ---- catalogue.c, snapshot.c, image.c: the objects ---- */

void sk_cat_init(struct sk_catalogue *cat);
void sk_cat_destroy(struct sk_catalogue *cat);

/** Orders (run, step), and strangers of one number by their id, so that all
 * agents order alike: < 0, 0, > 0. */
int sk_cat_order(uint64_t run, uint64_t run_id, int64_t step,
		 const struct sk_cat_snapshot *snapshot);

/** The job of that name and owner, or NULL. */
struct sk_cat_job *sk_cat_job_find(const struct sk_catalogue *cat,
				   const char *name, uid_t uid);
/** A walk through the jobs of one name, whoever's they are, or all. None comes
 * or goes meanwhile. */
struct sk_cat_jobs {
	const struct sk_catalogue *cat;
	const char *name;		/* NULL: all */
	struct sk_table_walk named;
	const struct sk_link *at;	/* of all */
};

/** @name "": all of them. It is borrowed. */
struct sk_cat_jobs sk_cat_jobs_named(const struct sk_catalogue *cat,
				     const char *name);
/** The next one, in no set order; NULL: no more. */
struct sk_cat_job *sk_cat_jobs_next(struct sk_cat_jobs *walk);
/** The job that comes next after that one, be it there or not, in the order in
 * which they are listed: by name and user, descending. @name NULL: the first of
 * all. NULL: no more. */
struct sk_cat_job *sk_cat_job_after(const struct sk_catalogue *cat,
				    const char *name, uid_t uid);
/** Finds or makes it; NULL: no memory. */
struct sk_cat_job *sk_cat_job_get(struct sk_catalogue *cat, const char *name,
				  uid_t uid);
/** Forgets runs, and the job, of which nothing is left: no living rank, no
 * slot, no snapshot; and what replaced ranks leave behind. True: the job is
 * gone. It is for the jobs that are awake for it. */
bool sk_cat_job_trim(struct sk_cat_job *job);

/** @number 0: the newest; @id 0: the last that was opened of that number. */
struct sk_cat_run *sk_cat_run_find(const struct sk_cat_job *job,
				   uint64_t number, uint64_t id);
struct sk_cat_state *sk_cat_state_find(const struct sk_cat_run *run,
				       int32_t rank);
/** The state that has that id, or NULL. */
struct sk_cat_state *sk_cat_state_by_id(const struct sk_catalogue *cat,
					uint64_t id);
/** Whether a step of the run was left to the disk, where it is complete. */
bool sk_cat_run_kept(const struct sk_cat_run *run, int64_t step);
bool sk_cat_run_living(const struct sk_cat_run *run);
/** How many of its ranks live; of all that the user's jobs have. */
uint32_t sk_cat_run_ranks(const struct sk_cat_run *run);
unsigned sk_cat_user_ranks(const struct sk_catalogue *cat, uid_t uid);
/** NULL: that user has no jobs. */
struct sk_cat_user *sk_cat_user_find(const struct sk_catalogue *cat,
				     uid_t uid);

/**
 * A place among a job's snapshots that stays good while they come and go: what
 * takes long goes on from it. It is on the newest after sk_cat_cursor_begin(),
 * and to be ended. All zero: ended.
 */
struct sk_cat_cursor {
	struct sk_link link;		/* in its job */
	struct sk_cat_job *job;		/* NULL: ended, or the job has gone */
	struct sk_link *at;		/* of a snapshot, or the job's list */
};

void sk_cat_cursor_begin(struct sk_cat_cursor *cursor, struct sk_cat_job *job);
void sk_cat_cursor_end(struct sk_cat_cursor *cursor);
/** Where it stands; NULL: past the oldest, or the job has gone. */
struct sk_cat_snapshot *sk_cat_cursor_at(const struct sk_cat_cursor *cursor);
/** To the next older one; it stands on one. */
void sk_cat_cursor_next(struct sk_cat_cursor *cursor);

/** @run 0: the newest run that has @step; @run_id 0: any of that number;
 * @step -1: the newest complete snapshot, else the newest. NULL: none. */
struct sk_cat_snapshot *sk_cat_snapshot_find(const struct sk_cat_job *job,
					     uint64_t run, uint64_t run_id,
					     int64_t step);
/** Finds or makes it; NULL: no memory. */
struct sk_cat_snapshot *sk_cat_snapshot_get(struct sk_cat_job *job,
					    uint64_t run, uint64_t run_id,
					    int64_t step, int32_t world);
struct sk_cat_image *sk_cat_image_find(const struct sk_cat_snapshot *snapshot,
				       int32_t rank, enum sk_image_kind kind);
struct sk_cat_image *sk_cat_image_by_id(const struct sk_catalogue *cat,
					uint64_t id);

/** Takes @layout over (freed if an equal one is known) and counts one
 * reference. NULL: no memory, @layout is freed. */
struct sk_cat_layout *sk_cat_layout_take(struct sk_catalogue *cat,
					 struct sk_layout *layout);
/** The layout of that digest, with its header, that rank @rank has registered
 * in a run of @job that is here, or that one of its last snapshots has: never
 * another job's, whose owner may have made it up. Borrowed; NULL. */
struct sk_layout *sk_cat_layout_known(const struct sk_cat_job *job,
				      int32_t rank, enum sk_image_kind kind,
				      const struct sk_digest *digest);
/** NULL is fine in both. */
struct sk_cat_layout *sk_cat_layout_ref(struct sk_cat_layout *layout);
void sk_cat_layout_unref(struct sk_cat_layout *layout);

/* ---- awake.c: who has changed ---- */

/**
 * The job is awake: every duty looks at it once more. The catalogue does so
 * itself where slots, ranks, images, what is known of coverage, or a flush
 * change; for its owner it is to do so where what the owner sets makes a
 * snapshot one that can be written, or no more (wanted, hopeless_on_disk,
 * retry_ns), or has the newest one written (flush_due).
 */
void sk_cat_wake(struct sk_cat_job *job);
/** For one duty alone. Also while its list is walked. */
void sk_cat_wake_for(struct sk_cat_job *job, enum sk_cat_duty duty);
/** There is nothing for the duty to do with it before it is awake again. */
void sk_cat_sleep(struct sk_cat_job *job, enum sk_cat_duty duty);
/** Takes those that are awake for the duty over into @ret, from which jobs may
 * go meanwhile; who wakes from then on is for the next time. */
void sk_cat_awake_take(struct sk_catalogue *cat, enum sk_cat_duty duty,
		       struct sk_link *ret);
/** The next of them, asleep now; NULL: no more. */
struct sk_cat_job *sk_cat_awake_next(struct sk_link *taken,
				     enum sk_cat_duty duty);

/* ---- run.c, rank.c: how runs and ranks come and go ---- */

/** Who asks to be let into which run. */
struct sk_cat_ask {
	uint64_t run;		/* 0: the rules number it */
	uint64_t run_id;	/* not 0: this very run, which the rank was in
				 * before its agent or connection was lost */
	uint64_t fresh_id;	/* random, not 0: of a run that is made */
	int32_t rank, world;
};

/**
 * The run that a rank registers in. A run that does not exist yet is made. A
 * number without an id begins a run, or is one that still gathers its ranks:
 * once one of them has gone, or it is only known from the disk, the number
 * is used up.
 * Errors: -EINVAL the run has another world, or its number is out of range;
 * -EEXIST the rank lives in it, or another job of that name lives; -ESTALE a
 * newer run lives, or the number is used up; -EOVERFLOW the numbers are;
 * -ENOMEM.
 */
int sk_cat_run_open(struct sk_cat_job *job, const struct sk_cat_ask *ask,
		    struct sk_cat_run **ret_run, struct sk_err *err);
/** A run that was met, whatever is left of it: later ones are newer. */
void sk_cat_run_seen(struct sk_cat_job *job, uint64_t number);

/** Takes the references of @layouts (the replica's may be NULL) over. NULL:
 * no memory, nothing was taken. */
struct sk_cat_state *sk_cat_state_new(struct sk_cat_run *run, int32_t rank,
				      struct sk_cat_layout *const layouts[2]);

/** The living rank is @owner's from now on, and in that list of its, which may
 * be walked: who ends or is replaced is in it no more. */
void sk_cat_state_own(struct sk_cat_state *state, void *owner,
		      struct sk_link *list);

/**
 * The rank has left or died: what it was filling is FREE, and free slots stay
 * for its successor until they are trimmed. Returns how many images it was
 * filling.
 */
unsigned sk_cat_state_end(struct sk_cat_state *state);
/** Gives its free slots back; it may get others. */
void sk_cat_state_empty(struct sk_cat_state *state);
/** The registration came to nothing: as if it had not been, but for images
 * in slots that it adopted. */
void sk_cat_state_cancel(struct sk_cat_state *state);
/** The same rank goes on with another layout, as @next. What it was filling is
 * let go of, and still expected of it: it has more to save. */
unsigned sk_cat_state_replace(struct sk_cat_state *state,
			      struct sk_cat_state *next);

/** Adds a free slot with that memory and charges the budget. NULL: no
 * memory. */
struct sk_cat_slot *sk_cat_slot_add(struct sk_cat_state *state,
				    const uint64_t kind_bytes[2],
				    void *memory);
/** Bytes that one slot of these image sizes is charged. */
uint64_t sk_cat_slot_bytes(const uint64_t image_bytes[2],
			   uint64_t ret_kind_bytes[2]);

/** A free slot of those sizes that a dead state of the rank left behind
 * moves to @state; NULL: none. @usable may refuse one; NULL: all will do. */
struct sk_cat_slot *
sk_cat_slot_inherit(struct sk_cat_state *state, const uint64_t kind_bytes[2],
		    bool (*usable)(const struct sk_cat_slot *slot));
/** The same for a sealed one, whose image stays in it. */
struct sk_cat_slot *
sk_cat_slot_adopt(struct sk_cat_state *state, const uint64_t kind_bytes[2],
		  bool (*usable)(const struct sk_cat_slot *slot));
/** Gives the free slots of dead states back; of @job or, if NULL, of all.
 * Returns the bytes. */
uint64_t sk_cat_trim_free(struct sk_catalogue *cat, struct sk_cat_job *job);

/** Makes room for slots of @bytes and @fds in all, within the budgets and the
 * user's share of them: free slots of the dead, then the oldest images of the
 * dead that the rules let go, turn by turn up to @until. Nothing is let go if
 * that does not suffice.
 * Returns how many images went, or with the sentence -ENOMEM: the budget,
 * -EMFILE: the descriptors, -EDQUOT: the user's share of one of them. */
int sk_cat_make_room(struct sk_catalogue *cat, uint64_t bytes, uint64_t fds,
		     enum sk_cat_turn until, const struct sk_cat_job *job,
		     struct sk_err *err);

/** Whether ranks of the user may have @layouts (either may be NULL) as well,
 * beside those that they have, living and dead. Where they may not, what waits
 * for dead ranks to come back goes first; then -EDQUOT with the sentence. */
int sk_cat_room_for_layouts(struct sk_catalogue *cat, uid_t uid,
			    const struct sk_layout *const layouts[2],
			    struct sk_err *err);

/* ---- detain.c: slots whose writer may not be gone yet ---- */

/** The state's slots are given to no other state, and not given back, until
 * sk_cat_detain_end() of the same @detainer, which is not NULL. */
void sk_cat_state_detain(struct sk_cat_state *state, void *detainer);
/** The same of those alone that are being filled; whether any was. */
bool sk_cat_filling_detain(struct sk_cat_state *state, void *detainer);
void sk_cat_detain_end(struct sk_catalogue *cat, const void *detainer);
/** Bytes of slots that @detainer, or (NULL) any, keeps. */
uint64_t sk_cat_detained(const struct sk_catalogue *cat, const void *detainer);
/** Whether slots of that rank's earlier lives are. */
bool sk_cat_rank_detained(const struct sk_cat_job *job, int32_t rank);

/* ---- revive.c: ranks of before come back (revive.h) ---- */

/** A slot of those sizes that the awaited rank had in this very run moves to
 * @state, which is its next registration there, with what is in it; NULL:
 * none. @usable as in sk_cat_slot_inherit(). */
struct sk_cat_slot *
sk_cat_slot_return(struct sk_cat_state *state, const uint64_t kind_bytes[2],
		   bool (*usable)(const struct sk_cat_slot *slot));
/** Who has not come back by now is dead. Returns how many those are. */
unsigned sk_cat_await_no_more(struct sk_cat_job *job);
/** Some of the run's ranks live, or are awaited. */
bool sk_cat_run_awaited(const struct sk_cat_run *run);

/* ---- verdict.c: what sets of images cover ---- */

/** Answers it; touches nothing but the question. */
void sk_cat_question_run(struct sk_cat_question *question);
/** Its verdict is known from now on: sk_cat_refresh() tells what follows, and
 * its job is awake. Frees the question. False: there was no memory to answer
 * it. */
bool sk_cat_question_end(struct sk_cat_question *question);
/** Whose it is; of a job that is there. */
uid_t sk_cat_question_uid(const struct sk_cat_question *question);
const char *sk_cat_question_job(const struct sk_cat_question *question);

/* ---- coverage.c: what is complete. Decided when asked, and kept until
 * something happens to the snapshot ---- */

/** Its images cover all, wherever they are. False also where that is not known
 * yet: see sk_cat_undecided(). */
bool sk_cat_complete(const struct sk_cat_snapshot *snapshot);
/** All ranks that this agent knows have sealed it, but others are elsewhere. */
bool sk_cat_local(const struct sk_cat_snapshot *snapshot);
/** What the disk has covers all; while it is being flushed not before all that
 * is to be written is. False also where that is not known yet. */
bool sk_cat_on_disk(const struct sk_cat_snapshot *snapshot);
/** Whether it is complete, or so on disk, is still to be told: a question is
 * out, or there was no memory to ask it. */
bool sk_cat_undecided(const struct sk_cat_snapshot *snapshot);
/** Why it is not complete: -ENODATA with the sentence of coverage, which says
 * where ranks that never came here had the rest, -EAGAIN a rank is awaited,
 * -EINPROGRESS that is not known yet, -ENOMEM. 0: it is. */
int sk_cat_missing(const struct sk_cat_snapshot *snapshot, struct sk_err *err);
/** Why it is not so on disk, as sk_cat_missing() without those awaited. */
int sk_cat_missing_on_disk(const struct sk_cat_snapshot *snapshot,
			   struct sk_err *err);
/** A question of the job is out: what is undecided will be known. */
bool sk_cat_asking(const struct sk_cat_job *job);

/* ---- rules, slot, disk: how snapshots come and go ---- */

/** Why memory of it must not be let go, or NULL. */
const char *sk_cat_protected(const struct sk_cat_snapshot *snapshot);
/** When it is let go of where others need that memory. */
enum sk_cat_turn sk_cat_turn(const struct sk_cat_snapshot *snapshot);
/**
 * The newest complete snapshot, or NULL. A local one counts as well where the
 * run's other ranks are known to be elsewhere, and where there is no other:
 * who comes first after a restart must not cost what all had. But for those
 * that are passed over.
 */
struct sk_cat_snapshot *sk_cat_newest(const struct sk_cat_job *job);
/** The run began with it; one without a say, or an older one, changes nothing.
 * It is kept until a snapshot of that run, or of a later one, is the newest. */
void sk_cat_run_began(const struct sk_cat_run *run,
		      const struct sk_cat_begun *with);
/** A run has begun with it, and has nothing of its own yet. */
bool sk_cat_begun_with(const struct sk_cat_snapshot *snapshot);
/** It is of a life before, and incomplete as far as this agent can tell; who
 * restored found it so with what all nodes had: nobody goes back to it. */
bool sk_cat_passed_over(const struct sk_cat_snapshot *snapshot);
/** Complete, and no image of it is on disk alone. */
bool sk_cat_whole_in_memory(const struct sk_cat_snapshot *snapshot);
/** True if it can no longer become complete; false where that is not known
 * yet. */
bool sk_cat_hopeless(const struct sk_cat_snapshot *snapshot);
/** Whether the rank, which has no image of it, may still bring one. */
bool sk_cat_may_seal(const struct sk_cat_snapshot *snapshot, int32_t rank);

/**
 * A slot for (@state's run, @step): a free one, else that of this rank's
 * oldest image which is not protected; *ret_evicted = 1 then. The slot is
 * FILLING. @dry: only say whether there would be one.
 * Errors: -EEXIST this rank has sealed or fills that step, -EBUSY with a
 * sentence, -ENOMEM.
 */
int sk_cat_slot_take(struct sk_cat_state *state, int64_t step, uint32_t flags,
		     bool dry, struct sk_cat_slot **ret_slot,
		     unsigned *ret_evicted, struct sk_err *err);

/** The image is whole: @sums (by kind, malloc'ed) are taken over. @content:
 * their hashes, which take long where there are many; NULL: they are made here.
 * -ENOMEM: nothing happened. */
int sk_cat_slot_seal(struct sk_cat_slot *slot, uint64_t *const sums[2],
		     uint64_t (*content)[2], uint64_t wall_ns);
/** FILLING: the image is lost. SEALED: it is let go. The slot is FREE, or
 * gone where its state is dead. The snapshot may be gone. */
void sk_cat_slot_clear(struct sk_cat_slot *slot);

/** Lets go of what memory holds of a snapshot, whatever the rules say;
 * returns how many images. The snapshot may be gone after it. */
unsigned sk_cat_evict_memory(struct sk_cat_snapshot *snapshot);

/** An image as it is found on disk, beside its layout and checksums. */
struct sk_cat_found {
	uint64_t run, run_id;
	int64_t step;
	const char *dir;
	struct sk_file_id file;
	uint64_t content[2];	/* sk_cat_hash_sums() */
};

/** An image is on disk; a reference of @layout is taken over.
 * Errors: -ESTALE it differs from the one known, -EINVAL of another world or a
 * run that cannot be, -ENOMEM. */
int sk_cat_stored_add(struct sk_cat_job *job, const struct sk_cat_found *found,
		      struct sk_cat_layout *layout, struct sk_err *err);
/** What is kept of checksums that only the disk still has: the same anywhere
 * and at any time. */
void sk_cat_hash_sums(const struct sk_layout *layout, const uint64_t *sums,
		      uint64_t ret[2]);
/** Whether the image is that: the same layout, the same bytes. */
bool sk_cat_same_content(const struct sk_cat_image *image,
			 const struct sk_layout *layout,
			 const uint64_t content[2]);
/** Leaves snapshots to the disk that only it has, but for the @most newest and
 * what has to stay: @at_once at most, the oldest first. A run knows which steps
 * of its own went. Returns how many; @job->leaves: the rest have a turn yet. */
unsigned sk_cat_stored_leave(struct sk_cat_job *job, size_t most,
			     unsigned at_once);
/** The disk has lost it. The image and its snapshot may be gone after it. */
void sk_cat_stored_remove(struct sk_cat_image *image);
/** Decides anew what is undecided. Returns how many still are. */
unsigned sk_cat_refresh(struct sk_cat_job *job);

/** Sets the image aside in memory or on disk. @entry: of its layout, whose
 * checksum failed, and 1; 0: none in particular. */
void sk_cat_image_bad(struct sk_cat_image *image, bool disk, uint32_t entry);
/** Name of the tensor or blob that is damaged there; NULL: not known. */
const char *sk_cat_damaged(const struct sk_cat_image *image, bool disk);
/** Adds or ends uses; the last may end the image and its snapshot. */
void sk_cat_lease(struct sk_cat_image *image, int count);

/** Begins or ends a flush of it. */
void sk_cat_flushing(struct sk_cat_snapshot *snapshot, bool flushing);
/** The sentence of its last flush, which failed. NULL: it did not. */
void sk_cat_set_failure(struct sk_cat_snapshot *snapshot, const char *text);
/** That, or "". */
const char *sk_cat_failure(const struct sk_cat_snapshot *snapshot);
/** The rank has not lost the step that it was refused: it waits. */
void sk_cat_state_waits(struct sk_cat_state *state);
/** Drops it if nothing of it is left; true: it is gone. */
bool sk_cat_snapshot_trim(struct sk_cat_snapshot *snapshot);

/** Is to be written, and can be. */
bool sk_cat_flushable(const struct sk_cat_snapshot *snapshot);

#endif
