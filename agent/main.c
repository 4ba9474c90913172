/* SPDX-License-Identifier: Apache-2.0 */
/* shardkeepd: options, socket, the loop, shutdown. */
#include "agent.h"

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>

static const char help[] =
"usage: shardkeepd [OPTION...]\n"
"\n"
"Shardkeep's agent: owns the memory that checkpoints are copied into, and\n"
"writes them to disk. One runs per node; clients start a private one where\n"
"none runs.\n"
"\n"
"  -s, --socket PATH       where it answers; else /run/shardkeep/agent.sock as\n"
"                          root, $XDG_RUNTIME_DIR/shardkeep/agent.sock, or\n"
"                          /tmp/shardkeep-UID/agent.sock\n"
"  -d, --store DIR         where snapshots go on disk ($SHARDKEEP_STORE);\n"
"                          without it they stay in memory\n"
"  -m, --memory SIZE       budget of all slots: K, M, G, T or % of the node's\n"
"                          memory ($SHARDKEEP_MEMORY; 50%)\n"
"      --flush-rate SIZE   bytes per second to disk at most\n"
"      --no-direct         never O_DIRECT\n"
"      --backend NAME      uring or threads (uring where it is to be had)\n"
"      --stop-timeout S    how long a stop may flush (300)\n"
"      --detach            run in the background, log to agent.log beside the\n"
"                          socket\n"
"      --ready-fd N        write a byte to this descriptor when serving\n"
"      --log-level NAME    error, warning, info, debug (info)\n"
"  -h, --help, -V, --version\n"
"\n"
"SIGTERM flushes the newest complete snapshot of every job, then ends: exit\n"
"code 0, or 1 if something could not be made durable. A second one ends at\n"
"once.";

enum { OPT_RATE = 256, OPT_NO_DIRECT, OPT_BACKEND, OPT_TIMEOUT, OPT_DETACH,
       OPT_READY, OPT_LOG };

static const struct option long_options[] = {
	{ "socket", 1, NULL, 's' }, { "store", 1, NULL, 'd' },
	{ "memory", 1, NULL, 'm' }, { "flush-rate", 1, NULL, OPT_RATE },
	{ "no-direct", 0, NULL, OPT_NO_DIRECT },
	{ "backend", 1, NULL, OPT_BACKEND },
	{ "stop-timeout", 1, NULL, OPT_TIMEOUT },
	{ "detach", 0, NULL, OPT_DETACH },
	{ "ready-fd", 1, NULL, OPT_READY },
	{ "log-level", 1, NULL, OPT_LOG }, { "help", 0, NULL, 'h' },
	{ "version", 0, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

static const char *const levels[] = { "error", "warning", "info", "debug" };

void say(const struct agent *a, int level, const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	if (level > a->o.log_level)
		return;
	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	/* The journal reads the level from the number in front. */
	fprintf(stderr, "%sshardkeepd: %s\n", !getenv("JOURNAL_STREAM") ? "" :
		level == 0 ? "<3>" : level == 1 ? "<4>" : level == 2 ? "<6>" :
		"<7>", line);
}

void wake(struct agent *a)
{
	uint64_t one = 1;

	if (write(a->event_fd, &one, sizeof(one)) < 0)
		return;		/* full: it is awake already */
}

uint64_t now_ns(const struct agent *a)
{
	return a->os->now_ns(a->os);
}

/* ---- options ---- */

static int parse_number(const char *text, uint64_t max, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	return errno || end == text || *end || *ret > max ? -EINVAL : 0;
}

static uint64_t node_memory(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) *
	       (uint64_t)sysconf(_SC_PAGESIZE);
}

static int parse_size(const char *text, uint64_t *ret)
{
	static const char units[] = "KMGT";
	char *end;
	uint64_t v;
	const char *unit;

	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno || end == text || *text == '-' || !v)
		return -EINVAL;
	if (!strcmp(end, "%")) {
		*ret = node_memory() / 100 * v;
		return v <= 100 ? 0 : -EINVAL;
	}
	unit = *end ? strchr(units, *end) : NULL;
	if (*end && (!unit || end[1]))
		return -EINVAL;
	return sk_mul_u64(v, unit ? 1024ull << (10 * (unit - units)) : 1, ret) ?
	       0 : -EINVAL;
}

static int parse_level(const char *text, int *ret)
{
	for (int i = 0; i < 4; i++)
		if (!strcmp(text, levels[i])) {
			*ret = i;
			return 0;
		}
	return -EINVAL;
}

static int parse_backend(const char *text, enum sk_io_backend *ret)
{
	if (strcmp(text, "uring") && strcmp(text, "threads"))
		return -EINVAL;
	*ret = *text == 'u' ? SK_IO_URING : SK_IO_THREADS;
	return 0;
}

static int bad_value(const char *what, const char *text)
{
	fprintf(stderr, "shardkeepd: \"%s\" is not a value for %s; "
		"shardkeepd --help\n", text, what);
	return -EINVAL;
}

static int parse_one(struct agent_options *o, int c, const char *text)
{
	uint64_t v = 0;
	int r = 0;

	switch (c) {
	case 's': o->socket = text; break;
	case 'd': o->store = text; break;
	case 'm': r = parse_size(text, &o->memory); break;
	case OPT_RATE: r = parse_size(text, &o->flush_rate); break;
	case OPT_NO_DIRECT: o->no_direct = true; break;
	case OPT_BACKEND: r = parse_backend(text, &o->backend); break;
	case OPT_TIMEOUT:
		r = parse_number(text, 86400, &v);
		o->stop_timeout_s = (unsigned)v;
		break;
	case OPT_DETACH: o->detach = true; break;
	case OPT_READY:
		r = parse_number(text, 1 << 20, &v);
		o->ready_fd = (int)v;
		break;
	case OPT_LOG: r = parse_level(text, &o->log_level); break;
	case 'h': puts(help); exit(0);
	case 'V': puts("0.1.0"); exit(0);
	default: return -EINVAL;
	}
	return r;
}

static int parse_options(struct agent_options *o, int argc, char **argv)
{
	const char *memory = getenv("SHARDKEEP_MEMORY");
	const char *store = getenv("SHARDKEEP_STORE");
	int c, at = 0;

	*o = (struct agent_options){ .memory = node_memory() / 2,
				     .stop_timeout_s = 300, .ready_fd = -1,
				     .log_level = 2,
				     .store = store && *store ? store : NULL };
	if (memory && *memory && parse_size(memory, &o->memory))
		return bad_value("SHARDKEEP_MEMORY", memory);
	while ((c = getopt_long(argc, argv, "s:d:m:hV", long_options, &at)) !=
	       -1) {
		if (c == '?')
			return -EINVAL;
		if (parse_one(o, c, optarg))
			return bad_value(c < 256 ? argv[optind - 1] :
					 long_options[at].name, optarg);
	}
	if (optind == argc)
		return 0;
	fprintf(stderr, "shardkeepd: what is \"%s\"? shardkeepd --help\n",
		argv[optind]);
	return -EINVAL;
}

/* ---- socket ---- */

static const char *default_socket(char *buf, size_t size)
{
	const char *run = getenv("XDG_RUNTIME_DIR");

	if (geteuid() == 0)
		(void)snprintf(buf, size, "/run/shardkeep/agent.sock");
	else if (run && *run == '/')
		(void)snprintf(buf, size, "%s/shardkeep/agent.sock", run);
	else
		(void)snprintf(buf, size, "/tmp/shardkeep-%u/agent.sock",
			       geteuid());
	return buf;
}

static int fail(const char *what, const char *path)
{
	fprintf(stderr, "shardkeepd: %s %s: %s\n", what, path,
		strerror(errno));
	return -errno;
}

static int make_dir(const char *socket_path, char *dir, size_t size)
{
	char *slash;

	(void)snprintf(dir, size, "%s", socket_path);
	slash = strrchr(dir, '/');
	if (!slash) {
		(void)snprintf(dir, size, ".");
		return 0;
	}
	*slash = 0;
	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return fail("cannot make", dir);
	return 0;
}

/* One agent per directory. 1: another one is there. */
static int lock_dir(struct agent *a, const char *dir)
{
	char path[4200];

	(void)snprintf(path, sizeof(path), "%s/agent.lock", dir);
	a->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
			  0600);
	if (a->lock_fd < 0)
		return fail("cannot open", path);
	if (flock(a->lock_fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	if (errno != EWOULDBLOCK)
		return fail("cannot lock", path);
	fprintf(stderr, "shardkeepd: another agent serves %s already\n", dir);
	return 1;
}

static int listen_on(struct agent *a, const char *path)
{
	struct sockaddr_un sa = { .sun_family = AF_UNIX };

	if (strlen(path) >= sizeof(sa.sun_path)) {
		errno = ENAMETOOLONG;
		return fail("cannot listen on", path);
	}
	strcpy(sa.sun_path, path);
	a->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC |
			      SOCK_NONBLOCK, 0);
	/* Under the lock: what lies there is of a dead agent. */
	if (a->listen_fd < 0 || (unlink(path) < 0 && errno != ENOENT) ||
	    bind(a->listen_fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 ||
	    chmod(path, geteuid() ? 0600 : 0666) < 0 ||
	    listen(a->listen_fd, 256) < 0)
		return fail("cannot listen on", path);
	return 0;
}

static int detach(const char *dir)
{
	char path[4200];
	int log, null;
	pid_t pid = fork();

	if (pid < 0)
		return fail("cannot", "fork");
	if (pid)
		_exit(0);
	(void)setsid();
	(void)snprintf(path, sizeof(path), "%s/agent.log", dir);
	log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC |
		   O_NOFOLLOW, 0600);
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null >= 0) {
		(void)dup2(null, 0);
		(void)dup2(null, 1);
		(void)dup2(log >= 0 ? log : null, 2);
	}
	return 0;
}

/* ---- setting up ---- */

static int watch(struct agent *a, int fd, void *tag)
{
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = tag };

	return epoll_ctl(a->epoll_fd, EPOLL_CTL_ADD, fd, &e) < 0 ?
	       fail("cannot watch", "a descriptor") : 0;
}

static int set_up_events(struct agent *a)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	(void)sigprocmask(SIG_BLOCK, &set, NULL);
	(void)signal(SIGPIPE, SIG_IGN);
	a->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	a->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	a->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (a->signal_fd < 0 || a->event_fd < 0 || a->epoll_fd < 0)
		return fail("cannot make", "descriptors");
	if (watch(a, a->signal_fd, &a->signal_fd) ||
	    watch(a, a->event_fd, &a->event_fd) ||
	    watch(a, a->listen_fd, &a->listen_fd))
		return -EIO;
	return 0;
}

static int set_up(struct agent *a)
{
	struct rlimit files;
	struct sk_err err = { "" };
	int r = 0;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	(void)a->os->random(a->os, &a->instance, sizeof(a->instance));
	if (a->o.store)
		r = sk_store_open(a->os, a->o.store, 3600, &a->store,
				  &a->store_volatile, &err);
	if (r >= 0)
		r = sk_pool_new(2, -1, "sk-populate", &a->pool, &err);
	if (r >= 0)
		r = flush_start(a, &err);
	if (r < 0)
		say(a, 0, "%s", err.text);
	else if (a->store_volatile)
		say(a, 1, "the store %s is on memory: what is called durable "
		    "there does not survive the node", a->o.store);
	return r;
}

/* ---- the loop ---- */

static void stop(struct agent *a)
{
	if (a->stopping) {
		say(a, 1, "asked to stop again: ending at once");
		_exit(1);
	}
	a->stopping = true;
	a->stop_deadline_ns = now_ns(a) + a->o.stop_timeout_s * 1000000000ull;
	for (struct sk_cat_job *j = a->cat.jobs; j && a->store; j = j->next) {
		struct sk_cat_snapshot *s = sk_cat_newest_complete(j);

		if (s && !sk_cat_durable(s)) {
			s->wanted = true;
			s->retry_ns = 0;
		}
	}
	say(a, 2, "stopping");
	flush_queue(a);
}

/* Jobs whose newest complete snapshot is not on disk. */
static int not_durable(struct agent *a, bool tell)
{
	int n = 0;

	for (struct sk_cat_job *j = a->cat.jobs; j && a->store; j = j->next) {
		struct sk_cat_snapshot *s = sk_cat_newest_complete(j);

		if (!s || sk_cat_durable(s))
			continue;
		n++;
		if (tell)
			say(a, 0, "job \"%s\", step %llu is lost: %s", j->name,
			    (unsigned long long)s->step, s->text);
	}
	return n;
}

static bool may_end(struct agent *a)
{
	if (!a->stopping || !flush_idle(a))
		return false;
	return !not_durable(a, false) || now_ns(a) >= a->stop_deadline_ns;
}

static uint64_t earliest(uint64_t a, uint64_t b)
{
	return !a || (b && b < a) ? b : a;
}

static int timeout_ms(struct agent *a)
{
	uint64_t at = earliest(waits_next_ns(a), flush_next_ns(a));
	uint64_t now = now_ns(a);

	if (a->stopping)
		at = earliest(at, a->stop_deadline_ns);
	if (!at)
		return -1;
	if (at <= now)
		return 0;
	return at - now > 3600000000000ull ? 3600000 :
	       (int)((at - now) / 1000000 + 1);
}

static void drain(int fd)
{
	struct signalfd_siginfo info;
	char buf[sizeof(info)];

	while (read(fd, buf, sizeof(buf)) > 0)
		;
}

static void dispatch(struct agent *a, const struct epoll_event *e)
{
	if (e->data.ptr == &a->listen_fd) {
		session_accept(a);
	} else if (e->data.ptr == &a->event_fd) {
		drain(a->event_fd);
	} else if (e->data.ptr == &a->signal_fd) {
		drain(a->signal_fd);
		stop(a);
	} else if (!((struct session *)e->data.ptr)->gone) {
		session_serve(a, e->data.ptr);
	}
}

static void loop(struct agent *a)
{
	struct epoll_event events[64];

	while (!may_end(a)) {
		int n = epoll_wait(a->epoll_fd, events, 64, timeout_ms(a));

		for (int i = 0; i < n; i++)
			dispatch(a, &events[i]);
		flush_results(a);
		waits_check(a);
		session_reap(a);
		state_collect(a);
	}
}

static int serve_until_stopped(struct agent *a, const char *path)
{
	int lost;

	say(a, 2, "serving %s, %llu MiB for slots, store %s", path,
	    (unsigned long long)(a->o.memory >> 20),
	    a->o.store ? a->o.store : "none");
	if (a->o.ready_fd >= 0) {
		if (write(a->o.ready_fd, "1", 1) < 0)
			say(a, 1, "nobody waits on descriptor %d: %m",
			    a->o.ready_fd);
		sk_close_fd(a->o.ready_fd);
	}
	loop(a);
	lost = not_durable(a, true);
	flush_stop(a);
	(void)unlink(path);
	while (a->sessions) {
		session_close(a, a->sessions);
		session_reap(a);
	}
	for (struct state *st = a->states; st; st = st->next)
		for (uint32_t i = 0; i < st->n_slots; i++)
			slot_release(a, &st->slots[i]);
	state_collect(a);
	sk_pool_free(a->pool);
	sk_cat_free(&a->cat);
	sk_store_close(a->store);
	return lost ? 1 : 0;
}

int main(int argc, char **argv)
{
	static struct agent a;
	char path[4096], dir[4096];
	int r;

	if (parse_options(&a.o, argc, argv))
		return 2;
	a.os = sk_os_linux();
	a.listen_fd = a.lock_fd = -1;
	if (!a.o.socket)
		a.o.socket = default_socket(path, sizeof(path));
	if (make_dir(a.o.socket, dir, sizeof(dir)))
		return 1;
	if (a.o.detach && detach(dir))
		return 1;
	r = lock_dir(&a, dir);
	if (r)
		return r > 0 ? 0 : 1;
	if (listen_on(&a, a.o.socket) || set_up_events(&a) || set_up(&a) < 0)
		return 1;
	return serve_until_stopped(&a, a.o.socket);
}
