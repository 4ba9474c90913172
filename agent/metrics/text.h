/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus' text exposition format, version 0.0.4, of samples. */
#ifndef SK_AGENT_METRICS_TEXT_H
#define SK_AGENT_METRICS_TEXT_H

#include <stddef.h>

struct samples;

/** malloc'ed, the caller's; NULL: no memory. Any thread. */
char *metrics_text(const struct samples *s, size_t *ret_bytes);

#endif
