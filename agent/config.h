/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of options: lines "name = value", and comments, which begin with #
 * at the beginning of a line or after a space. What a value could not have, it
 * has in quotation marks: "...", where \\, \" and \xHH stand for one byte.
 */
#ifndef SK_AGENT_CONFIG_H
#define SK_AGENT_CONFIG_H

#include <stddef.h>

#include "base/os.h"

/** Where it is looked for: /etc/shardkeep/shardkeepd.conf for root, else
 * $XDG_CONFIG_HOME/shardkeep/shardkeepd.conf, else below ~/.config; "": there
 * is no such place. */
void config_usual(char *ret, size_t size);
/**
 * Reads @path and calls @set with each name and value ("": the line has none),
 * until it says no. What is wrong is said on standard error, by file and line.
 * 0; -ENOENT: there is none, which is not said; -EINVAL, or what @set returned;
 * errors of reading.
 */
int config_read(const struct sk_os *os, const char *path,
		int (*set)(void *ctx, const char *name, const char *value,
			   int line),
		void *ctx);
/** @value as a line of the file has it, that config_read() reads as the same:
 * bare where that may be, with no byte that a terminal would obey. The caller's;
 * NULL: no memory. */
char *config_written(const char *value);

#endif
