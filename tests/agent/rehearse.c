/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is tried in a child before another agent hands over: it can be done, it
 * cannot, or nobody hears of it, for the store's filesystem hangs.
 */
#include "rehearse.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/whole.h"

static struct sk_os os;

static int hang(const struct sk_os *o, int fd, const char *name)
{
	(void)o;
	(void)fd;
	(void)name;
	while (pause() < 0)
		;
	return 0;
}

/* As much time as there is goes by at once. */
static int be_late(const struct sk_os *o, struct pollfd *fds, nfds_t n,
		   uint64_t until_ns)
{
	(void)o;
	(void)fds;
	(void)n;
	(void)until_ns;
	return -ETIMEDOUT;
}

static int try(const struct whole *w, struct sk_err *err)
{
	char socket[128];

	*err = (struct sk_err){ "" };
	(void)snprintf(socket, sizeof(socket), "%s/other.sock", w->rig.dir);
	return rehearse(&os, &w->options, socket, err);
}

int main(void)
{
	char none[] = "/proc/none";
	struct sk_err err;
	struct whole w;

	whole_init(&w);
	os = *sk_os_linux();
	CHECK(try(&w, &err) == 0, "%s", err.text);
	w.options.store = none;
	CHECK(try(&w, &err) < 0 && strstr(err.text, "/proc/none"), "%s",
	      err.text);
	w.options.store = w.rig.store;
	os.fremovexattr = hang;
	os.poll = be_late;
	CHECK(try(&w, &err) == -ETIMEDOUT && strstr(err.text, "hang"), "%s",
	      err.text);
	whole_remove(&w);
	return 0;
}
