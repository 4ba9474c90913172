/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples: the values of the list at one moment, those of one metric one after
 * the other, as the text format wants them.
 */
#ifndef SK_AGENT_METRICS_SAMPLE_H
#define SK_AGENT_METRICS_SAMPLE_H

#include <stdbool.h>
#include <sys/types.h>

#include "catalogue/catalogue.h"
#include "memory/device.h"
#include "metrics/list.h"

struct agent;

struct sample {
	const struct metric *metric;
	double value;
	char job[SK_JOB_MAX + 1];	/* "": of the agent */
	uid_t uid;			/* the job's */
	const char *key, *word;		/* another label; NULL: none */
	char gpu[DEVICE_NAME];		/* where there is no @word */
};

/** Of its other label. */
static inline const char *sample_word(const struct sample *s)
{
	return s->word ? s->word : s->gpu;
}

struct samples {
	struct sample *v;
	size_t n, room;
	bool failed;			/* no memory: not all are here */
};

#define SAMPLES_NULL { NULL, 0, 0, false }

/** Jobs with samples of their own: those with most memory. */
#define SAMPLES_JOBS 64u
/** GPUs with samples of their own. */
#define SAMPLES_GPUS 64u

/**
 * Takes them; the loop's thread. @only: whose jobs are told of; NULL: all
 * users' are. -ENOMEM. What it costs grows with the jobs that something has
 * happened to since the last time, and with those that are told of.
 */
int samples_take(struct agent *a, const uid_t *only, struct samples *ret);
void samples_free(struct samples *s);

#endif
