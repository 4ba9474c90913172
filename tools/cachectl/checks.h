/* SPDX-License-Identifier: Apache-2.0 */
/* What doctor's checks are given, and say. */
#ifndef SK_CACHECTL_CHECKS_H
#define SK_CACHECTL_CHECKS_H

#include "cachectl.h"

enum verdict { VERDICT_OK, VERDICT_WARN, VERDICT_FAIL };

struct doctor {
	struct context *ctx;
	bool has_agent;		/* ctx->conn.agent is its word */
	const char *store;	/* NULL: none */
	bool store_cut;		/* that is only its beginning */
	uint64_t budget;	/* bytes; 0: not known */
	char pid[16];		/* of /proc whose limits count */
	enum verdict worst;
};

/** One line of the report. @remedy: a sentence; NULL where all is well. */
void doctor_say(struct doctor *d, const char *check, enum verdict verdict,
		const char *remedy, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
/** A small file's text in @buf; NULL: it cannot be read. */
char *doctor_text(struct doctor *d, const char *path, char *buf, size_t size);
/** Its first line. */
char *doctor_read(struct doctor *d, const char *path, char *buf, size_t size);

/* ---- doctor-system.c ---- */
void check_kernel(struct doctor *d);
void check_memlock(struct doctor *d);
void check_files(struct doctor *d);
void check_pages(struct doctor *d);
void check_uring(struct doctor *d);
void check_memory(struct doctor *d);
void check_numa(struct doctor *d);
void check_gpus(struct doctor *d);
void check_clock(struct doctor *d);
/* ---- doctor-cgroup.c ---- */
void check_cgroup(struct doctor *d);
/* ---- doctor-store.c ---- */
void check_store(struct doctor *d);
void check_room(struct doctor *d);

#endif
