/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher: forks the ranks, waits, kills them where it was told to. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "seat.h"
#include "trainer.h"

static const char help[] =
"usage: shardkeep-trainer [OPTION...]\n"
"\n"
"Trains a character-level language model on processes of this machine.\n"
"\n"
"  -m, --mesh RxC     mesh of processes, dimensions dp and tp; or just R (2x2)\n"
"  -s, --steps N      train until this many steps are done (150)\n"
"  -l, --log FILE     losses, one line per step (loss.txt)\n"
"  -j, --job NAME     of the snapshots (demo)\n"
"  -N, --node SOCKET  an agent; of several, each gets as many ranks in a row\n"
"  -f, --flush-every N  snapshots that go to disk (25)\n"
"  -k, --kill-at N    kill all ranks in the middle of step N\n"
"  -n, --no-snapshots train alone\n"
"  -t, --text FILE    to learn (/usr/share/common-licenses/GPL-3)\n"
"  -S, --sample       write some text at the end\n"
"  -h, --help\n"
"\n"
"Exit codes: 0 done, 1 failed, 2 usage, 137 killed as asked.";

static const struct option long_options[] = {
	{ "mesh", 1, NULL, 'm' }, { "steps", 1, NULL, 's' },
	{ "log", 1, NULL, 'l' }, { "job", 1, NULL, 'j' },
	{ "node", 1, NULL, 'N' },
	{ "flush-every", 1, NULL, 'f' }, { "kill-at", 1, NULL, 'k' },
	{ "no-snapshots", 0, NULL, 'n' }, { "text", 1, NULL, 't' },
	{ "sample", 0, NULL, 'S' }, { "help", 0, NULL, 'h' },
	{ NULL, 0, NULL, 0 },
};

static int parse_mesh(const char *text, struct options *o)
{
	int end = 0;

	o->columns = 0;
	if (sscanf(text, "%dx%d%n", &o->rows, &o->columns, &end) < 1 ||
	    (end && text[end]) || o->rows < 1 || o->columns < 0)
		return -1;
	o->ranks = o->rows * (o->columns ? o->columns : 1);
	return o->ranks > RANKS_MAX ? -1 : 0;
}

static int parse_node(const char *socket, struct options *o)
{
	if (o->n_nodes == NODES_MAX)
		return -1;
	o->nodes[o->n_nodes++] = socket;
	return 0;
}

static int parse(int argc, char **argv, struct options *o)
{
	int c, r = 0;

	while (!r && (c = getopt_long(argc, argv, "m:s:l:j:N:f:k:nt:Sh",
				      long_options, NULL)) != -1)
		switch (c) {
		case 'm': r = parse_mesh(optarg, o); break;
		case 's': o->steps = strtoull(optarg, NULL, 10); break;
		case 'l': o->log = optarg; break;
		case 'j': o->job = optarg; break;
		case 'N': r = parse_node(optarg, o); break;
		case 'f': o->flush_every = (unsigned)atoi(optarg); break;
		case 'k': o->kill_at = atoll(optarg); break;
		case 'n': o->snapshots = false; break;
		case 't': o->path = optarg; break;
		case 'S': o->sample = true; break;
		case 'h': exit(puts(help) < 0 || fflush(stdout));
		default: return -1;
		}
	return r || optind != argc ? -1 : 0;
}

static void kill_all(const pid_t *pids, int n)
{
	for (int i = 0; i < n; i++)
		kill(pids[i], SIGKILL);
	for (int i = 0; i < n; i++)
		while (waitpid(pids[i], NULL, 0) < 0 && errno == EINTR)
			;
}

/* Why it failed a rank says itself, if it can. */
static void say_killed(const pid_t *pids, int n, pid_t pid, int status)
{
	for (int i = 0; i < n; i++)
		if (pids[i] == pid && WIFSIGNALED(status))
			fprintf(stderr, "shardkeep-trainer: rank %d was killed: "
				"%s\n", i, strsignal(WTERMSIG(status)));
}

/* 0 all done, 1 one failed (the others are killed), 137 as asked. */
static int wait_all(struct shared *s, const pid_t *pids, int n)
{
	int left = n;

	while (left) {
		int status;
		pid_t pid = waitpid(-1, &status, WNOHANG);

		if (pid > 0 && !status)
			left--;
		else if (pid > 0) {
			say_killed(pids, n, pid, status);
			kill_all(pids, n);
			return 1;
		}
		if (__atomic_load_n(&s->at_kill, __ATOMIC_SEQ_CST) ==
		    (unsigned)n) {
			kill_all(pids, n);
			return 137;
		}
		if (pid == 0)
			usleep(2000);
	}
	return 0;
}

static struct shared *share(int ranks)
{
	size_t n = sizeof(struct shared) +
		   (1 + MICRO) * parameter_count() * sizeof(float);
	struct shared *s = mmap(NULL, n, PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_barrierattr_t attr;

	if (s == MAP_FAILED)
		return NULL;
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&s->barrier, &attr, (unsigned)ranks);
	pthread_barrierattr_destroy(&attr);
	return s;
}

int main(int argc, char **argv)
{
	struct options o = {
		.ranks = 4, .rows = 2, .columns = 2, .steps = 150,
		.kill_at = -1, .log = "loss.txt", .job = "demo",
		.path = "/usr/share/common-licenses/GPL-3",
		.snapshots = true, .flush_every = 25,
	};
	pid_t pids[RANKS_MAX], launcher = getpid();
	struct seats *seats;
	struct shared *s;
	struct text text;

	if (parse(argc, argv, &o)) {
		fputs("shardkeep-trainer --help shows how\n", stderr);
		return 2;
	}
	if (text_load(o.path, &text)) {
		fprintf(stderr, "shardkeep-trainer: cannot read %s\n", o.path);
		return 1;
	}
	s = share(o.ranks);
	seats = seats_new(&o);
	if (!s || !seats)
		return 1;
	for (int i = 0; i < o.ranks; i++) {
		pids[i] = fork();
		if (pids[i] < 0) {
			kill_all(pids, i);
			return 1;
		}
		if (!pids[i]) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != launcher)
				exit(1);
			exit(rank_run(&o, s, &text, seats, i));
		}
	}
	return wait_all(s, pids, o.ranks);
}
