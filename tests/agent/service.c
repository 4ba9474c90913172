/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent as a service: this test is the manager, with a descriptor store as
 * systemd's. What it holds outlives a kill, and a restart.
 */
#include "agent/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper/kept.h"

struct manager {
	struct rig rig;
	char address[100];
	int sock;
	struct kept kept;
};

static void manager_open(struct manager *m, const char *program)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	*m = (struct manager){ 0 };
	rig_init(&m->rig, program);
	snprintf(m->address, sizeof(m->address), "%s/notify", m->rig.dir);
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", m->address);
	m->sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK(m->sock >= 0 && bind(m->sock, (struct sockaddr *)&addr,
				   sizeof(addr)) == 0, "notify socket");
}

static bool line_of(const char *text, const char *begin, char *value,
		    size_t size)
{
	const char *at = strstr(text, begin);

	if (at)
		snprintf(value, size, "%.*s",
			 (int)strcspn(at + strlen(begin), "\n"),
			 at + strlen(begin));
	return at;
}

/* One message; false: there is none, or none that is not waited for. */
static bool hear(struct manager *m, int flags, bool *ret_ready)
{
	union {
		char buf[CMSG_SPACE(4 * sizeof(int))];
		struct cmsghdr align;
	} control;
	char text[512], name[KEPT_NAME] = "";
	struct iovec iov = { text, sizeof(text) - 1 };
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1,
			    .msg_control = control.buf,
			    .msg_controllen = sizeof(control.buf) };
	ssize_t n = recvmsg(m->sock, &h, flags | MSG_CMSG_CLOEXEC);
	int fd;

	if (n < 0)
		return false;
	text[n] = 0;
	(void)line_of(text, "FDNAME=", name, sizeof(name));
	if (strstr(text, "FDSTORE=1")) {
		CHECK(CMSG_FIRSTHDR(&h), "%s", text);
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof(fd));
		CHECK(kept_add(sk_os_linux(), &m->kept, name, fd) == 0, "kept");
	}
	if (strstr(text, "FDSTOREREMOVE=1"))
		close(kept_take(&m->kept, name));
	*ret_ready |= !!strstr(text, "READY=1");
	return true;
}

/* As it is given: from 3 on, with their names. */
static void give_kept(const struct manager *m)
{
	char names[8192] = "", text[32];
	int n = 0;

	/* Out of the way first. */
	for (size_t i = 0; i < m->kept.n; i++) {
		if (m->kept.v[i].fd >= 0)
			m->kept.v[i].fd = fcntl(m->kept.v[i].fd, F_DUPFD, 500);
	}
	for (size_t i = 0; i < m->kept.n; i++) {
		if (m->kept.v[i].fd < 0)
			continue;
		CHECK(dup2(m->kept.v[i].fd, 3 + n) == 3 + n, "dup2");
		CHECK(strlen(names) + KEPT_NAME + 1 < sizeof(names), "names");
		strcat(strcat(names, n++ ? ":" : ""), m->kept.v[i].name);
	}
	snprintf(text, sizeof(text), "%d", n);
	setenv("LISTEN_FDS", text, 1);
	setenv("LISTEN_FDNAMES", names, 1);
	snprintf(text, sizeof(text), "%d", (int)getpid());
	setenv("LISTEN_PID", text, 1);
}

static void begin(struct manager *m)
{
	bool ready = false;

	m->rig.agent = fork();
	CHECK(m->rig.agent >= 0, "fork");
	if (!m->rig.agent) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		setenv("NOTIFY_SOCKET", m->address, 1);
		unsetenv("SHARDKEEP_STORE");
		unsetenv("SHARDKEEP_MEMORY");
		give_kept(m);
		execl(m->rig.program, m->rig.program, "--socket",
		      m->rig.socket, "--log-level", "error", "--seal-writes",
		      (char *)NULL);
		_exit(127);
	}
	while (!ready)
		CHECK(hear(m, 0, &ready), "recvmsg: %s", strerror(errno));
}

/* What it had said is heard before it begins again. */
static void end(struct manager *m, int sig, int status)
{
	bool ready = false;

	CHECK(kill(m->rig.agent, sig) == 0, "kill");
	CHECK(rig_wait(&m->rig) == status, "status");
	while (hear(m, MSG_DONTWAIT, &ready))
		;
}

static void check_there(const struct manager *m, int64_t step)
{
	int sock = rig_connect(&m->rig);
	uint32_t flags = snapshot_flags(sock, "service", step);

	CHECK(flags & SK_SNAP_COMPLETE && flags & SK_SNAP_RESIDENT,
	      "step %d: %#x", (int)step, flags);
	CHECK(stat_value(sock, "shardkeep_keeper") == 2, "systemd keeps it");
	CHECK(stat_value(sock, "shardkeep_images_not_revived_total") == 0,
	      "nothing was lost");
	close(sock);
}

static size_t count_kept(const struct manager *m)
{
	size_t n = 0;

	for (size_t i = 0; i < m->kept.n; i++)
		n += m->kept.v[i].fd >= 0;
	return n;
}

int main(int argc, char **argv)
{
	struct rank_options o = { .job = "service", .world = 1 };
	struct sk_msg msg;
	struct manager m;
	struct rank r;
	int sock;

	manager_open(&m, argc > 1 ? argv[1] : NULL);
	begin(&m);
	CHECK_STATUS(rank_open(&r, &m.rig, &o), 0, &r.msg);
	rank_snapshot(&r, 1);
	end(&m, SIGKILL, 128 + SIGKILL);
	CHECK(count_kept(&m) == 3 + 2, "listener, lock, table, two slots");
	/* Who connects meanwhile waits, and is served. */
	sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	{
		struct sockaddr_un addr = { .sun_family = AF_UNIX };

		strcpy(addr.sun_path, m.rig.socket);
		CHECK(connect(sock, (struct sockaddr *)&addr,
			      sizeof(addr)) == 0, "connect");
	}
	begin(&m);
	msg = (struct sk_msg){ .type = SK_MSG_HELLO,
			       .body.hello.version = SK_WIRE_VERSION };
	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, NULL, NULL), 0, &msg);
	close(sock);
	check_there(&m, 1);
	/* The rank's slots are sealed against writes: it gets others. */
	o.run = r.run;
	o.run_id = r.run_id;
	rank_close(&r);
	CHECK_STATUS(rank_open(&r, &m.rig, &o), 0, &r.msg);
	rank_snapshot(&r, 2);
	check_there(&m, 2);
	/* "systemctl restart": the service ends in order, and is begun. */
	end(&m, SIGTERM, 0);
	begin(&m);
	check_there(&m, 2);
	rank_close(&r);
	end(&m, SIGTERM, 0);
	close(m.sock);
	kept_clear(sk_os_linux(), &m.kept);
	rig_remove(&m.rig);
	return 0;
}
