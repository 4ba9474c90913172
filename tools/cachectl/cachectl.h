/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the commands of cachectl share: the command table, the connection,
 * arguments that name snapshots, lists from the agent.
 *
 * Every command returns 0 or a negative errno with its sentence in ctx->err;
 * main.c turns that into the exit code.
 */
#ifndef SK_CACHECTL_H
#define SK_CACHECTL_H

#include <stdbool.h>
#include <stdint.h>

#include "internal.h"
#include "report.h"

enum exit_code {
	EXIT_FINE = 0,
	EXIT_REFUSED = 1,	/* refused, or failed */
	EXIT_USAGE = 2,
	EXIT_NO_AGENT = 3,
	EXIT_NOT_FOUND = 4,
	EXIT_DAMAGED = 5,	/* verification found bad bytes */
};

struct context {
	const char *socket;	/* option, or NULL */
	enum output output;
	bool colour;
	bool verbose;
	bool force, memory, disk, wait;
	const char *prefix;	/* of names, or NULL */
	uint64_t shard_bytes;	/* most of one file; 0: no limit */
	uint32_t timeout_ms;
	char path[108];		/* of the socket that answered */
	struct sk_conn conn;
	struct report *report;
	struct sk_err err;
};

struct command {
	const char *name;
	const char *arguments;
	const char *summary;	/* one line */
	const char *help;	/* more, for `cachectl COMMAND --help` */
	const char *options;	/* letters of the options it takes */
	int min_args, max_args;
	int (*run)(struct context *ctx, int argc, char **argv);
};

extern const struct command commands[];
extern const size_t n_commands;

/* ---- ask.c ---- */

/** Connects; -ENOTCONN when no agent answers. */
int ask_connect(struct context *ctx);
/** One request; fds as sk_conn_call. */
int ask(struct context *ctx, struct sk_msg *msg, int *ret_fds,
	int *ret_n_fds);
/** A deferred request on a connection of its own. */
int ask_deferred(struct context *ctx, struct sk_msg *msg,
		 uint32_t timeout_ms);

/** Parses JOB, JOB/STEP or JOB@RUN/STEP; STEP may be "latest". */
int ask_parse_snapshot(struct context *ctx, const char *text,
		       struct sk_wire_id *ret_id);

/** Records of a list, malloc'ed. -EPROTO if the agent's do not fit. */
int ask_snapshots(struct context *ctx, const struct sk_wire_id *id,
		  struct sk_wire_snapshot **ret, size_t *ret_n);
int ask_images(struct context *ctx, const struct sk_wire_id *id,
	       struct sk_wire_image **ret, size_t *ret_n);

/** The agent's counters and gauges, malloc'ed. */
int ask_stats(struct context *ctx, struct sk_wire_stat **ret, size_t *ret_n);

/** The one snapshot that @text names, newest where it leaves it open;
 * -ENOENT with a sentence. */
int ask_snapshot(struct context *ctx, const char *text,
		 struct sk_wire_snapshot *ret);

/** An image opened for reading: its layout, stamp and data. */
struct opened {
	struct sk_layout *layout;
	struct sk_stamp stamp;	/* sums are owned */
	int fd;
	uint64_t image_bytes;
};
int ask_open(struct context *ctx, const struct sk_wire_image *image,
	     struct opened *ret);
void ask_close(struct context *ctx, const struct sk_wire_image *image,
	       struct opened *opened);

/** All of @bytes. Errors: -ENODATA it is shorter; -EIO, ... */
int ask_read(int fd, char *buf, uint64_t bytes, uint64_t offset);

/** "complete durable newest" of SK_SNAP_ flags. Returns @buf. */
char *snapshot_words(const struct sk_wire_snapshot *s, char *buf,
		     size_t size);
const char *image_state_word(uint32_t state);

/* ---- progress.c ---- */

/** A line on stderr that is rewritten, shown only on a terminal and only for
 * what takes over a second. */
struct progress {
	uint64_t started_ns, shown_ns, total;
	const char *verb;
};
void progress_start(struct progress *p, const char *verb, uint64_t total);
void progress_at(struct progress *p, uint64_t done);
void progress_end(struct progress *p);

/* ---- draw.c ---- */

struct draw_part {
	struct sk_box box;
	int32_t rank;
};
/** Draws which rank holds which part of a tensor into the report. Dimensions
 * beyond the second are taken at their first index. */
void draw_tensor(struct report *r, const char *name, int ndim,
		 const int64_t *shape, const struct draw_part *parts,
		 size_t n);

/* ---- the commands ---- */

int command_list(struct context *ctx, int argc, char **argv);
int command_show(struct context *ctx, int argc, char **argv);
int command_verify(struct context *ctx, int argc, char **argv);
int command_pin(struct context *ctx, int argc, char **argv);
int command_unpin(struct context *ctx, int argc, char **argv);
int command_evict(struct context *ctx, int argc, char **argv);
int command_flush(struct context *ctx, int argc, char **argv);
int command_export(struct context *ctx, int argc, char **argv);
int command_stats(struct context *ctx, int argc, char **argv);
int command_version(struct context *ctx, int argc, char **argv);
int command_stop(struct context *ctx, int argc, char **argv);

#endif
