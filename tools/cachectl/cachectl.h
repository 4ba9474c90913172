/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the commands of cachectl share: the connection, arguments that name
 * snapshots, lists from the agent.
 *
 * Every command returns 0 or a negative errno with its sentence in ctx->err;
 * main.c turns that into the exit code.
 */
#ifndef SK_CACHECTL_H
#define SK_CACHECTL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/util.h"
#include "conn/agent.h"
#include "conn/conn.h"
#include "conn/memfd.h"
#include "draw.h"
#include "layout/layout.h"
#include "shardkeep.h"
#include "report.h"

enum exit_code {
	EXIT_FINE = 0,
	EXIT_REFUSED = 1,	/* refused, or failed */
	EXIT_USAGE = 2,
	EXIT_NO_AGENT = 3,
	EXIT_NOT_FOUND = 4,
	EXIT_DAMAGED = 5,	/* bytes, files, what is to stay of a job */
	EXIT_LOST = 6,		/* the agent ended, and something with it */
	EXIT_DEGRADED = 7,	/* something is not as it should be */
	EXIT_UNFIT = 8,		/* doctor: something does not work */
};

struct context {
	const char *socket;	/* option, or NULL */
	enum output output;
	struct style style;
	bool verbose;
	bool misused;		/* what was asked makes no sense: exit code 2 */
	bool unreachable;	/* no agent answered: exit code 3 */
	bool lost;		/* something was, with the agent: exit code 6 */
	bool degraded, unfit;	/* exit codes 7 and 8 */
	bool found;		/* what is gathered is shown, whatever failed */
	bool force, memory, disk, wait;
	const char *prefix;	/* of names, or NULL */
	struct sk_wire_retention keep;	/* what was said of it */
	bool keeps, keep_default;
	uint64_t interval_s;	/* between looks; 0: the command's own */
	uint64_t count;		/* of looks or events; 0: no end */
	uint64_t shard_bytes;	/* most of one file; 0: no limit */
	uint32_t timeout_ms;
	const struct sk_os *os;
	char path[SK_PATH_ROOM];	/* of the socket that answered */
	struct sk_conn conn;
	struct report *report;
	struct sk_err err;
};

/* ---- ask.c ---- */

/** Connects; -ENOTCONN when no agent answers, and ctx->unreachable: an agent
 * without a store says -ENOTCONN as well. */
int ask_connect(struct context *ctx);
/** One request without descriptors. -ECONNRESET: the agent ended before it
 * answered; the next request goes to the one in its place. */
int ask(struct context *ctx, struct sk_msg *msg);
/** Agents that may end at one request before we are thought to be why. */
#define AGAIN_MOST 3
/** The same of what may be said twice: where an agent ends before it answers,
 * the next one is asked, and @ret_again set: the first may have done it. */
int ask_again(struct context *ctx, struct sk_msg *msg, bool *ret_again);
/** A deferred request on a connection of its own. */
int ask_deferred(struct context *ctx, struct sk_msg *msg,
		 uint32_t timeout_ms);

/** Parses JOB, JOB/STEP or JOB@RUN/STEP; STEP may be "latest". */
int ask_parse_snapshot(struct context *ctx, const char *text,
		       struct sk_wire_id *ret_id);
/** Whether it ends so: one snapshot, where a job alone may be all of its. */
bool ask_is_latest(const char *text);

/** Records of a list, malloc'ed, of the agent that answers: where one ends
 * before it does, the one in its place is asked. -EPROTO if the agent's do not
 * fit. */
int ask_records(struct context *ctx, struct sk_msg *msg, size_t record_bytes,
		void *ret, size_t *ret_n);
int ask_snapshots(struct context *ctx, const struct sk_wire_id *id,
		  struct sk_wire_snapshot **ret, size_t *ret_n);
/** The same, of a job, down to the newest complete one: what is older is not
 * looked for, however much there is of it. */
int ask_newest(struct context *ctx, const struct sk_wire_id *id,
	       struct sk_wire_snapshot **ret, size_t *ret_n);
/** -EBADMSG: parts of the store, as far as it is asked about, are damaged or
 * cannot be read, and are in no list. */
int ask_gaps(struct context *ctx, const struct sk_wire_id *id);
int ask_images(struct context *ctx, const struct sk_wire_id *id,
	       struct sk_wire_image **ret, size_t *ret_n);

/** The agent's counters and gauges, malloc'ed. */
int ask_stats(struct context *ctx, struct sk_wire_stat **ret, size_t *ret_n);

/* ---- status.c ---- */

/** How the agent is, and what is not as it should be; malloc'ed. */
int ask_status(struct context *ctx, struct sk_wire_status_reply *ret,
	       struct sk_wire_state **ret_states, size_t *ret_n);

/* ---- ask.c ---- */

/** The one snapshot that @text names, newest where it leaves it open;
 * -ENOENT with a sentence. */
int ask_snapshot(struct context *ctx, const char *text,
		 struct sk_wire_snapshot *ret);

/** Also where somebody noticed it before. */
bool is_damaged(const struct sk_wire_snapshot *s);
/** As ask_snapshot(), but where no step is named the newest complete one, and
 * a line where that is not the newest: one that ranks are still at is nobody's
 * yet. What is damaged is no such one. */
int ask_complete(struct context *ctx, const char *text,
		 struct sk_wire_snapshot *ret);

/** An image opened for reading: its layout, stamp and data. */
struct opened {
	struct sk_layout *layout;
	struct sk_stamp stamp;	/* sums are owned */
	int fd;
	uint64_t image_bytes;
	uint64_t generation;	/* of the connection that has the lease */
};
int ask_open(struct context *ctx, const struct sk_wire_image *image,
	     struct opened *ret);
/** What was read is not what was sealed; @entry as struct sk_wire_bad's. The
 * agent may refuse to hear it. -ECONNRESET: it ended, and the lease with it, so
 * that others may have written there: nothing is known of the image. */
int ask_report_bad(struct context *ctx, const struct sk_wire_image *image,
		   const struct opened *opened, uint32_t entry);
void ask_close(struct context *ctx, const struct sk_wire_image *image,
	       struct opened *opened);

/** "complete durable newest" of SK_SNAP_ flags. Returns @buf. */
char *snapshot_words(const struct sk_wire_snapshot *s, char *buf,
		     size_t size);
const char *image_state_word(uint32_t state);
const char *image_kind_word(const struct sk_wire_image *image);

/* ---- retain.c ---- */

/** What is to stay of the job, and by whose word. -ENOTCONN: the agent has no
 * store. */
int ask_retention(struct context *ctx, const char *job,
		  struct sk_wire_retain *ret);
/** "the newest 3, every 1000th". Returns @buf. */
char *retention_words(const struct sk_wire_retention *keep, char *buf,
		      size_t size);
/** "the job". */
const char *retention_from(uint32_t from);

/* ---- main.c ---- */

/** Colour and width, of the output as it is now. */
struct style choose_style(void);

/* ---- top.c ---- */

/** Until the next look, as --interval says. */
void live_wait(struct context *ctx, uint64_t otherwise_ns);
/** One look of several, at once. */
int live_print(struct context *ctx, const struct report *r);

/* ---- progress.c ---- */

/** A line on stderr that is rewritten, shown only on a terminal and only for
 * what takes over a second. */
struct progress {
	uint64_t started_ns, shown_ns, total;
	const char *verb, *what;
};
/** "@verb 3 of 8 @what"; @what NULL: bytes, and how fast; @total 0: no more
 * than "@verb @what" and for how long. */
void progress_start(struct progress *p, const char *verb, const char *what,
		    uint64_t total);
void progress_at(struct progress *p, uint64_t done);
void progress_end(struct progress *p);

/** The same for an answer that keeps us waiting: "@what, 12 s". */
struct waiting {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t over;
	bool running, ended, shown;
	const char *what;
};
void waiting_begin(struct waiting *w, const char *what);
void waiting_end(struct waiting *w);

/* ---- the commands ---- */

int command_list(struct context *ctx, int argc, char **argv);
int command_show(struct context *ctx, int argc, char **argv);
int command_verify(struct context *ctx, int argc, char **argv);
int command_pin(struct context *ctx, int argc, char **argv);
int command_unpin(struct context *ctx, int argc, char **argv);
int command_evict(struct context *ctx, int argc, char **argv);
int command_flush(struct context *ctx, int argc, char **argv);
int command_retain(struct context *ctx, int argc, char **argv);
int command_export(struct context *ctx, int argc, char **argv);
int command_status(struct context *ctx, int argc, char **argv);
int command_top(struct context *ctx, int argc, char **argv);
int command_watch(struct context *ctx, int argc, char **argv);
int command_doctor(struct context *ctx, int argc, char **argv);
int command_stats(struct context *ctx, int argc, char **argv);
int command_version(struct context *ctx, int argc, char **argv);
int command_stop(struct context *ctx, int argc, char **argv);

#endif
