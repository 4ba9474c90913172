/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NCCL will take a variable of its own for: the environment's word, else
 * that of its files, which it puts into the environment when a process first
 * makes an id or a communicator. Before that nobody else can see them there.
 */
#ifndef SK_CACHE_NCCL_CONF_H
#define SK_CACHE_NCCL_CONF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/os.h"

struct sk_nccl_said {
	int64_t value;
	char file[512];		/* that says so; "": the environment alone */
};

/**
 * The number that @variable is for NCCL: of the environment, else of the file
 * that $NCCL_CONF_FILE names, or without that of ~/.nccl.conf, else of
 * /etc/nccl.conf. False: nobody says one; what is no number is 0 there, and
 * here. A file that cannot be read says nothing.
 */
bool sk_nccl_conf(const struct sk_os *os, const char *variable,
		  struct sk_nccl_said *ret);

#endif
