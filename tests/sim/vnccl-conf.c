/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated NCCL: its files of variables, which it puts into the
 * environment of the process, where that does not say them.
 */
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vnccl-private.h"

#define OF_ALL "/etc/nccl.conf"

static void read_file(const char *path)
{
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t room = 0;
	ssize_t n;

	if (!file)
		return;
	while ((n = getline(&line, &room, file)) > 0) {
		char *equals = strchr(line, '=');

		if (line[n - 1] == '\n')
			line[n - 1] = '\0';
		if (line[0] == '#' || !equals)
			continue;
		*equals = '\0';
		(void)setenv(line, equals + 1, 0);
	}
	free(line);
	(void)fclose(file);
}

static void read_all(void)
{
	const char *said = getenv("NCCL_CONF_FILE");
	const struct passwd *user = getpwuid(getuid());
	char path[1024];

	if (said && *said) {
		read_file(said);
	} else if (user) {
		(void)snprintf(path, sizeof(path), "%s/.nccl.conf",
			       user->pw_dir);
		read_file(path);
	}
	read_file(OF_ALL);
}

void vn_read_conf(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	(void)pthread_once(&once, read_all);
}
