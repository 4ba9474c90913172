/* SPDX-License-Identifier: Apache-2.0 */
#include "conn/agent.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "base/cgroup.h"
#include "base/size.h"
#include "base/util.h"

/* Between two tries to reach an agent that is being started. */
#define RETRY_MS 20u

/* ---- where it listens ---- */

static int private_socket(char *path, struct sk_err *err)
{
	const char *run = getenv("XDG_RUNTIME_DIR");
	size_t most = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
	int n;

	if (run && *run == '/')
		n = snprintf(path, SK_PATH_ROOM, "%s/shardkeep/agent.sock",
			     run);
	else
		n = snprintf(path, SK_PATH_ROOM,
			     "/tmp/shardkeep-%u/agent.sock",
			     (unsigned)getuid());
	if (n >= 0 && (size_t)n <= most)
		return 0;
	return sk_err_set(err, -ENAMETOOLONG, "the path of a private agent's "
			  "socket, %.200s, is longer than %zu bytes; let "
			  "XDG_RUNTIME_DIR be a shorter one, or set "
			  "SHARDKEEP_SOCKET", path, most);
}

const char *sk_agent_named(const char *option)
{
	const char *env = getenv("SHARDKEEP_SOCKET");

	return option && *option ? option : env && *env ? env : NULL;
}

static bool is_nobody(int r)
{
	return r == -ENOENT || r == -ECONNREFUSED;
}

/* Who makes the directory first must not be given the snapshots. */
static int check_private_dir(const struct sk_os *os, const char *socket_path,
			     struct sk_err *err)
{
	char dir[SK_PATH_ROOM];
	struct stat st;
	int r;

	(void)snprintf(dir, sizeof(dir), "%s", socket_path);
	*strrchr(dir, '/') = 0;
	r = os->fstatat(os, AT_FDCWD, dir, AT_SYMLINK_NOFOLLOW, &st);
	if (r == -ENOENT)
		return r;
	if (r < 0)
		return sk_err_errno(err, r, "cannot look at %s", dir);
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
	    st.st_mode & 0022)
		return sk_err_set(err, -EACCES, "%s is not a directory that "
				  "this user alone can write to", dir);
	return 0;
}

static int connect_private(const struct sk_os *os, const char *path,
			   sk_conn_opener open, uint64_t until_ns,
			   struct sk_conn *ret_conn, struct sk_err *err)
{
	int r = open == sk_conn_open_any ? 0 :
		check_private_dir(os, path, err);

	return r < 0 ? r : open(os, path, until_ns, ret_conn, err);
}

int sk_agent_connect(const struct sk_os *os, const char *option,
		     sk_conn_opener open, uint64_t until_ns, char *ret_path,
		     struct sk_conn *ret_conn, struct sk_err *err)
{
	const char *named = sk_agent_named(option);
	int r;

	if (named) {
		(void)snprintf(ret_path, SK_PATH_ROOM, "%s", named);
		return open(os, named, until_ns, ret_conn, err);
	}
	(void)snprintf(ret_path, SK_PATH_ROOM, "%s", SK_SYSTEM_SOCKET);
	r = open(os, ret_path, until_ns, ret_conn, err);
	/* One that hangs is this node's agent all the same; one that is not
	 * for this user is not. */
	if (r >= 0 || (!is_nobody(r) && r != -EACCES && r != -EPERM))
		return r;
	r = private_socket(ret_path, err);
	if (r < 0)
		return r;
	r = connect_private(os, ret_path, open, until_ns, ret_conn, err);
	/* Reset: another process has just started one, which ended. Ours will
	 * tell why. */
	if (!is_nobody(r) && r != -ECONNRESET)
		return r;
	return sk_err_set(err, -ENOENT, "no agent answers at %s or %s; start "
			  "shardkeepd, or set SHARDKEEP_SOCKET",
			  SK_SYSTEM_SOCKET, ret_path);
}

/* ---- what it is asked to be ---- */

static bool same_dir(const char *a, const char *b)
{
	_cleanup_free_ char *real_a = realpath(a, NULL);
	_cleanup_free_ char *real_b = realpath(b, NULL);

	return strcmp(real_a ? real_a : a, real_b ? real_b : b) == 0;
}

/* What an agent tells of a long path is its beginning. */
static bool begins_so(const char *path, const char *has)
{
	_cleanup_free_ char *real = realpath(path, NULL);
	size_t n = strlen(has);

	return n == sizeof(((struct sk_wire_hello_reply *)0)->store) - 1 &&
	       (strncmp(path, has, n) == 0 ||
		(real && strncmp(real, has, n) == 0));
}

/* Parts of the sentence, or NULL; also where there is no memory for it, which
 * keeps nobody from its agent. */
static char *store_differs(const struct sk_wire_hello_reply *agent,
			   const char *socket_path)
{
	const char *want = getenv("SHARDKEEP_STORE");
	int n = (int)sizeof(agent->store);
	char has[sizeof(agent->store) + 1], *ret;

	(void)snprintf(has, sizeof(has), "%.*s", n, agent->store);
	if (!want || !*want || (agent->has_store &&
				(same_dir(want, has) || begins_so(want, has))))
		return NULL;
	return asprintf(&ret, "SHARDKEEP_STORE is %s, but the agent that runs "
			"already, at %s, %s%s", want, socket_path,
			agent->has_store ? "writes to " : "has no store",
			agent->has_store ? has : "") < 0 ? NULL : ret;
}

static char *memory_differs(const struct sk_os *os,
			    const struct sk_wire_hello_reply *agent,
			    const char *socket_path)
{
	const char *want = getenv("SHARDKEEP_MEMORY");
	char has[SK_SIZE_TEXT], *ret;
	uint64_t bytes;
	int r;

	if (!want || !*want)
		return NULL;
	r = sk_size_parse(want, sk_memory_total(os), &bytes, NULL);
	if (r >= 0 && bytes == agent->budget_bytes)
		return NULL;
	return asprintf(&ret, "SHARDKEEP_MEMORY is %s%s, but the agent that "
			"runs already, at %s, has a budget of %s", want,
			r < 0 ? ", which is no size" : "", socket_path,
			sk_size_format(agent->budget_bytes, has,
				       sizeof(has))) < 0 ? NULL : ret;
}

char *sk_agent_differs(const struct sk_os *os,
		       const struct sk_wire_hello_reply *agent,
		       const char *socket_path)
{
	_cleanup_free_ char *store = store_differs(agent, socket_path);
	_cleanup_free_ char *memory = memory_differs(os, agent, socket_path);
	char *ret;

	if (!store && !memory)
		return NULL;
	return asprintf(&ret, "%s%s%s; stop it, or ask for that",
			store ? store : "", store && memory ? "; and " : "",
			memory ? memory : "") < 0 ? NULL : ret;
}

/* ---- starting ---- */

/* Beside the library, where it is installed or built. */
static bool near_library(const struct sk_os *os, char *path)
{
	static const char *const dirs[] = {
		"", "bin/", "../bin/", "../../bin/", "../libexec/", "../agent/",
	};
	char real[SK_PATH_ROOM], *slash;
	Dl_info info;

	if (!dladdr((void *)near_library, &info) || !info.dli_fname ||
	    !realpath(info.dli_fname, real))
		return false;
	slash = strrchr(real, '/');
	slash[1] = 0;
	for (size_t i = 0; i < SK_ARRAY_SIZE(dirs); i++) {
		int n = snprintf(path, SK_PATH_ROOM, "%s%sshardkeepd", real,
				 dirs[i]);

		if (n < (int)SK_PATH_ROOM &&
		    os->faccessat(os, AT_FDCWD, path, X_OK) >= 0)
			return true;
	}
	return false;
}

static const char *agent_program(const struct sk_os *os, char *buf)
{
	const char *env = getenv("SHARDKEEP_AGENT");

	if (env && *env)
		return env;
	return near_library(os, buf) ? buf : "shardkeepd";
}

static int make_private_dir(const struct sk_os *os, const char *socket_path,
			    struct sk_err *err)
{
	char dir[SK_PATH_ROOM];
	int r;

	(void)snprintf(dir, sizeof(dir), "%s", socket_path);
	*strrchr(dir, '/') = 0;
	r = os->mkdirat(os, AT_FDCWD, dir, 0700);
	/* Whatever the umask. */
	if (r == 0)
		(void)os->fchmodat(os, AT_FDCWD, dir, 0700);
	if (r < 0 && r != -EEXIST)
		return sk_err_errno(err, r, "cannot make %s for a private "
				    "agent; let XDG_RUNTIME_DIR be a directory "
				    "that is there, or set SHARDKEEP_SOCKET",
				    dir);
	return check_private_dir(os, socket_path, err);
}

/* It detaches: what we started ends at once, but its disk may hang. A trainer
 * that takes all children's ends itself has taken this one as well. */
static void reap(const struct sk_os *os, pid_t pid, uint64_t until_ns)
{
	struct pollfd p = { .fd = os->pidfd_open(os, pid), .events = POLLIN };
	int r = 1, status;

	if (p.fd >= 0) {
		r = os->poll(os, &p, 1, until_ns);
		(void)os->close(os, p.fd);
	}
	if (r > 0)
		(void)os->waitpid(os, pid, &status);
}

static int spawn_agent(const struct sk_os *os, const char *path, int ready,
		       uint64_t until_ns, struct sk_err *err)
{
	char program[SK_PATH_ROOM], fd[16];
	const char *agent = agent_program(os, program);
	char *argv[] = { (char *)agent, (char *)"--detach",
			 (char *)"--socket", (char *)path,
			 (char *)"--ready-fd", fd, NULL };
	int pid;

	(void)snprintf(fd, sizeof(fd), "%d", SK_SPAWN_FD);
	pid = os->spawn(os, agent, argv, ready);
	if (pid < 0)
		return sk_err_errno(err, pid, "cannot start the agent %s; set "
				    "SHARDKEEP_AGENT to its path", agent);
	reap(os, pid, until_ns);
	return 0;
}

enum start { START_SERVES, START_ENDED, START_LATE };

/* It says one byte when it, or another, serves. */
static enum start wait_ready(const struct sk_os *os, int fd, uint64_t until_ns)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char c;

	if (os->poll(os, &p, 1, until_ns) <= 0)
		return START_LATE;
	return os->read(os, fd, &c, 1) == 1 ? START_SERVES : START_ENDED;
}

/* ---- why it did not ---- */

/* The log of a private agent, beside its socket; its length. */
static off_t log_of(const struct sk_os *os, const char *socket, char *ret)
{
	struct stat st;

	(void)snprintf(ret, SK_PATH_ROOM, "%.*s/agent.log",
		       (int)(strrchr(socket, '/') - socket), socket);
	return os->fstatat(os, AT_FDCWD, ret, AT_SYMLINK_NOFOLLOW, &st) < 0 ?
	       0 : st.st_size;
}

/* The last line that came to a log since @from; "" where none did. */
static void last_line(const struct sk_os *os, const char *path, off_t from,
		      char *ret, size_t size)
{
	_cleanup_close_ int fd = os->openat(os, AT_FDCWD, path,
					    O_RDONLY | O_NOFOLLOW, 0);
	char tail[512], *line;
	struct stat st;
	ssize_t n = 0;

	*ret = 0;
	if (fd < 0 || os->fstat(os, fd, &st) < 0 || st.st_size <= from)
		return;
	if (st.st_size - from > (off_t)sizeof(tail) - 1)
		from = st.st_size - (off_t)sizeof(tail) + 1;
	n = os->pread(os, fd, tail, sizeof(tail) - 1, (uint64_t)from);
	if (n <= 0)
		return;
	tail[n - (tail[n - 1] == '\n')] = 0;
	line = strrchr(tail, '\n');
	line = line ? line + 1 : tail;
	/* Its time and level are the log's own. */
	line = strstr(line, ": ") ? strstr(line, ": ") + 2 : line;
	line[strnlen(line, size - 1)] = 0;
	strcpy(ret, line);
}

static int say_why(const struct sk_os *os, const char *log, off_t from,
		   struct sk_err *err)
{
	char why[200];

	last_line(os, log, from, why, sizeof(why));
	if (!*why)
		return sk_err_set(err, -ECONNREFUSED, "the agent that was "
				  "started ended at once; its standard error "
				  "or %.80s says why; are SHARDKEEP_MEMORY "
				  "and SHARDKEEP_STORE right?", log);
	return sk_err_set(err, -ECONNREFUSED, "the agent that was started "
			  "ended: %s; see %.80s", why, log);
}

static int connect_started(const struct sk_os *os, const char *path,
			   uint64_t until_ns, struct sk_conn *ret_conn,
			   struct sk_err *err)
{
	for (;;) {
		int r = sk_conn_open(os, path, until_ns, ret_conn, err);

		if (!is_nobody(r) || os->now_ns(os) >= until_ns)
			return r;
		(void)os->poll(os, NULL, 0, sk_until_ms(os, RETRY_MS));
	}
}

/* What came of one; of several that are started at once another may serve. */
static int reach_started(const struct sk_os *os, const char *path,
			 const char *log, off_t from, enum start start,
			 uint64_t until_ns, struct sk_conn *ret_conn,
			 struct sk_err *err)
{
	int r;

	if (start == START_LATE)
		return sk_err_set(err, -ETIMEDOUT, "the agent that was started "
				  "does not serve yet: it waits for a disk, or "
				  "has no CPU; %.100s has what it said", log);
	if (start == START_SERVES)
		return connect_started(os, path, until_ns, ret_conn, err);
	r = sk_conn_open(os, path, until_ns, ret_conn, err);
	return r < 0 ? say_why(os, log, from, err) : r;
}

int sk_agent_start(const struct sk_os *os, const char *path,
		   uint64_t until_ns, struct sk_conn *ret_conn,
		   struct sk_err *err)
{
	int ready[2], r = make_private_dir(os, path, err);
	char log[SK_PATH_ROOM];
	off_t from;

	if (r < 0)
		return r;
	from = log_of(os, path, log);
	r = os->pipe(os, ready);
	if (r < 0)
		return sk_err_errno(err, r, "cannot make a pipe");
	r = spawn_agent(os, path, ready[1], until_ns, err);
	(void)os->close(os, ready[1]);
	if (r >= 0)
		r = reach_started(os, path, log, from,
				  wait_ready(os, ready[0], until_ns), until_ns,
				  ret_conn, err);
	(void)os->close(os, ready[0]);
	return r;
}
