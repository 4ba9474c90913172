/* SPDX-License-Identifier: Apache-2.0 */
/* shardkeepd: starting, and going to the background. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "agent.h"

/* The log goes beside the socket, and standard input and output nowhere. */
static int move_output(const struct place *place)
{
	const char *slash = strrchr(place->path, '/');
	int log, null, dir = slash ? (int)(slash - place->path) + 1 : 0;
	char path[sizeof(place->path) + 16];

	(void)snprintf(path, sizeof(path), "%.*sagent.log", dir, place->path);
	log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
	null = open("/dev/null", O_RDWR);
	if (log < 0 || null < 0 || dup2(null, STDIN_FILENO) < 0 ||
	    dup2(null, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0)
		return -errno;
	if (log > STDERR_FILENO)
		close(log);
	if (null > STDERR_FILENO)
		close(null);
	return 0;
}

/* The parent ends; the child belongs to no terminal. */
static int detach(const struct place *place)
{
	pid_t pid = fork();
	int r;

	if (pid < 0)
		return -errno;
	if (pid)
		_exit(0);
	if (setsid() < 0)
		return -errno;
	r = move_output(place);
	return r < 0 ? r : chdir("/") < 0 ? -errno : 0;
}

/* A relative store must not move with the working directory. */
static int fix_store(struct options *o)
{
	char here[PATH_MAX], *path;

	if (!o->store || o->store[0] == '/')
		return 0;
	if (!getcwd(here, sizeof(here)))
		return -errno;
	if (asprintf(&path, "%s/%s", here, o->store) < 0)
		return -ENOMEM;
	free(o->store);
	o->store = path;
	return 0;
}

/* The asker waits for a byte, and another agent is as good as ours. */
static int other_serves(const struct options *o, const struct place *place)
{
	fprintf(stderr, "shardkeepd: another agent serves on %s\n",
		place->path);
	if (o->ready_fd >= 0 && write(o->ready_fd, "1", 1) != 1)
		return 1;
	return 0;
}

int main(int argc, char **argv)
{
	struct options o = { 0 };
	struct place place;
	struct sk_err err = { "" };
	int r, status = 1;

	r = options_parse(argc, argv, &o);
	if (r)
		return r < 0 ? 2 : 0;
	(void)umask(077);
	r = fix_store(&o);
	if (r < 0)
		sk_err_errno(&err, r, "cannot find the store %s", o.store);
	else
		r = place_take(o.socket, &place, &err);
	if (r == 0 && o.detach) {
		r = detach(&place);
		if (r < 0)
			sk_err_errno(&err, r, "cannot go to the background");
	}
	if (r < 0)
		fprintf(stderr, "shardkeepd: %s\n", err.text);
	else
		status = r ? other_serves(&o, &place) :
			     agent_run(&o, &place);
	options_free(&o);
	return status;
}
