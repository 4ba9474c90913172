/* SPDX-License-Identifier: Apache-2.0 */
#include "paths.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define SOCKET_MOST (sizeof(((struct sockaddr_un *)0)->sun_path) - 1)

char *path_from(const char *here, const char *path)
{
	char *ret;

	if (*path == '/' || !here)
		return strdup(path);
	return asprintf(&ret, "%s/%s", strcmp(here, "/") ? here : "",
			path) < 0 ? NULL : ret;
}

static int fix(const struct options *o, const char *what, char **path)
{
	char *fixed;

	if (!*path || **path == '/')
		return 0;
	if (!o->here) {
		fprintf(stderr, "shardkeepd: cannot find the %s %s: %s\n",
			what, *path, strerror(ENOENT));
		return -EINVAL;
	}
	fixed = path_from(o->here, *path);
	if (!fixed)
		return -ENOMEM;
	free(*path);
	*path = fixed;
	return 0;
}

static int fix_socket(struct options *o)
{
	char *fixed;

	if (!o->socket)
		return 0;
	fixed = path_from(o->here, o->socket);
	if (!fixed)
		return -ENOMEM;
	if (strlen(fixed) > SOCKET_MOST) {
		free(fixed);
		return 0;
	}
	free(o->socket);
	o->socket = fixed;
	return 0;
}

int paths_fix(struct options *o)
{
	int r = fix_socket(o);

	if (r == 0)
		r = fix(o, "store", &o->store);
	return r ? r : fix(o, "file of the metrics", &o->metrics_file);
}
