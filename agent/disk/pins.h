/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of a job that turned out to be pinned on disk when they were to go, and
 * of which the catalogue knows nothing. Each is believed as long as its
 * directory was not written to, which whoever unpins it does.
 *
 * Thread-safety: none.
 */
#ifndef SK_AGENT_DISK_PINS_H
#define SK_AGENT_DISK_PINS_H

#include "catalogue/retention.h"

struct pins_step {
	uint64_t run_id;
	int64_t step;
	uint64_t written_ns;	/* when its directory was */
};

/** Zeroed: none. */
struct pins {
	struct pins_step *v;	/* by (run_id, step) */
	size_t n, room;
};

/** Without memory it is not known, and will be tried again. */
void pins_note(struct pins *pins, const struct sk_retain_step *step);
void pins_forget(struct pins *pins, uint64_t run_id, int64_t step);
/** The same; without memory, none. */
struct pins pins_copy(const struct pins *pins);
/** Says of those @n steps which are pinned. */
void pins_mark(const struct pins *pins, struct sk_retain_step *steps, size_t n);
void pins_free(struct pins *pins);

#endif
