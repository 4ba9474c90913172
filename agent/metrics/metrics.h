/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics for Prometheus: at a port, and in a file.
 *
 * Whoever scrapes never holds up the loop: it is asked for the figures, takes
 * them between two turns, and the server's thread makes the text. A loop that
 * does not come to it within a second is answered for by its last figures.
 */
#ifndef SK_AGENT_METRICS_METRICS_H
#define SK_AGENT_METRICS_METRICS_H

#include "base/error.h"

struct agent;

/** As the options say. A port that is taken is no error: it is tried again.
 * A negative errno comes with a sentence. */
int metrics_open(struct agent *a, struct sk_err *err);
/** NULL is fine. Work may still be out. */
void metrics_close(struct agent *a);
/** After the last work has come back. */
void metrics_free(struct agent *a);
/** Where they are served, for people; "": nowhere. */
const char *metrics_address(const struct agent *a);

#endif
