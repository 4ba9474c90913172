/* SPDX-License-Identifier: Apache-2.0 */
/* One option: its name, its help, and what its value means. */
#ifndef SK_AGENT_OPTION_H
#define SK_AGENT_OPTION_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>

#include "options.h"

enum {
	OPTION_SOCKET = 256, OPTION_STORE, OPTION_MEMORY, OPTION_DEVICE,
	OPTION_WORKER, OPTION_USER, OPTION_LAYOUTS, OPTION_ADMIN, OPTION_SEAL,
	OPTION_RATE, OPTION_NO_DIRECT, OPTION_BACKEND, OPTION_STOP,
	OPTION_DETACH, OPTION_READY, OPTION_IDLE, OPTION_LEVEL, OPTION_KEEPER,
	OPTION_NO_KEEPER, OPTION_TAKEOVER, OPTION_VERSION, OPTION_KEEP_LAST,
	OPTION_KEEP_EVERY, OPTION_KEEP_AGE, OPTION_KEEP_BYTES, OPTION_INTERVAL,
	OPTION_SCRUB, OPTION_METRICS, OPTION_METRICS_PUBLIC,
	OPTION_METRICS_FILE, OPTION_CONFIG, OPTION_CHECK_CONFIG, OPTION_HELP,
	OPTION_COUNT = OPTION_HELP - OPTION_SOCKET + 1,
};

/** All of them, in the order of the help, as getopt_long(3) wants them. */
extern const struct option option_list[];

/** Takes over what @arg says (NULL: it has no value). 0; 1 done (help,
 * version); -EINVAL said why; -ENOMEM. OPTION_CONFIG and OPTION_CHECK_CONFIG
 * are the caller's. */
int option_set(int option, const char *arg, struct options *o);

/** A flag that a line before said, and that is not to be. */
void option_unset(int option, struct options *o);

/** As option_set() for values that have another name, @what, where they come
 * from: bytes, with a suffix (a small number alone lacks it) or where @percent
 * is set a share of this machine's memory, and a path, which is freed and made
 * anew. */
int option_size(const char *what, const char *text, bool percent,
		uint64_t *ret);
/** The same, where 0 is to have none of it, or no bound, whatever else says. */
int option_size_or_none(const char *what, const char *text, bool percent,
			uint64_t *ret);
int option_text(char **to, const char *what, const char *text);
/** The same of a path that a socket can have. */
int option_socket(char **to, const char *what, const char *text);

/** Says that @value of @what makes no sense and what would; -EINVAL. */
int option_complain(const char *what, const char *value, const char *want);

#endif
