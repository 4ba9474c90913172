/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attack.h"
#include "base/size.h"
#include "bytes/copy.h"
#include "model.h"
#include "shardkeep.h"

#define NODES_BYTES (64u << 20)	/* of each rank, for each node has all once */

static const char help[] =
"usage: shardkeep-bench [OPTION...]\n"
"\n"
"Measures each phase of a checkpoint beside its ceiling, in one run. Starts a\n"
"private agent and removes all that it wrote.\n"
"\n"
"  -r, --ranks N      processes that snapshot (2)\n"
"  -b, --bytes SIZE   state of each, K/M/G (1G)\n"
"  -t, --tensors N    that the state is cut into (64)\n"
"  -n, --rounds N     of every phase (5)\n"
"  -T, --threads N    that copy, per rank (half the CPUs, 1 to 8: the library's)\n"
"  -m, --step-ms N    length of a compute step (1000)\n"
"  -d, --dir DIR      filesystem to measure (.)\n"
"  -a, --agent PATH   shardkeepd (beside this program, else on the PATH)\n"
"  -p, --phases LIST  of small,snapshot,many,step,restore,nodes (all); snapshot\n"
"                     goes with restore\n"
"  -N, --nodes N      agents that nodes spreads the ranks over, up to 16 (2),\n"
"                     and more meshes; without -p that phase alone, of -b (64M)\n"
"                     and of 2 ranks for each agent, of 1 from 9 agents on\n"
"  -w, --world N      instead: simulate worlds of up to N ranks, each half of\n"
"                     the next, and measure what grows; of -t (96) tensors and\n"
"                     -b (1M) per rank; N is a multiple of 16\n"
"  -M, --models LIST  of llama,experts (all)\n"
"  -x, --meshes LIST  of fsdp,hsdp,tp (all)\n"
"  -s, --spread N     instead: restore on N nodes, up to 16, a model of -b and\n"
"                     -t that one of them has; what each rank sends\n"
"  -A, --attack N     instead: snapshots of a job, of -b (64M), beside N processes\n"
"                     that keep its agent busy in one way after the other\n"
"  -k, --kept N       instead: restarts of 8 ranks, and their snapshots, with 10\n"
"                     steps kept on disk, 100, and so on up to N\n"
"  -J, --jobs N       instead: the same beside 10 other jobs, 100, and so on\n"
"                     up to N\n"
"  -c, --crowd N      instead: N ranks of one job, up to 64, of -t (1000) tensors\n"
"                     and -b (1M): what a snapshot takes of the agent, and what\n"
"                     it takes when all come back; N is a multiple of 8\n"
"  -j, --json         one JSON document; with --spread one for each round\n"
"  -h, --help         this\n"
"\n"
"Progress goes to stderr. Exit codes: 0 measured, 1 a phase failed, 2 usage.";

static const struct option long_options[] = {
	{ "ranks", 1, NULL, 'r' }, { "bytes", 1, NULL, 'b' },
	{ "tensors", 1, NULL, 't' }, { "rounds", 1, NULL, 'n' },
	{ "threads", 1, NULL, 'T' }, { "step-ms", 1, NULL, 'm' },
	{ "dir", 1, NULL, 'd' }, { "agent", 1, NULL, 'a' },
	{ "phases", 1, NULL, 'p' }, { "world", 1, NULL, 'w' },
	{ "models", 1, NULL, 'M' }, { "meshes", 1, NULL, 'x' },
	{ "spread", 1, NULL, 's' }, { "nodes", 1, NULL, 'N' },
	{ "attack", 1, NULL, 'A' }, { "kept", 1, NULL, 'k' },
	{ "jobs", 1, NULL, 'J' }, { "crowd", 1, NULL, 'c' }, { "json", 0, NULL, 'j' },
	{ "help", 0, NULL, 'h' }, { NULL, 0, NULL, 0 },
};

static const struct {
	const char *name;
	int (*run)(struct bench *b);
} phases[] = {
	{ "small", phase_small },
	{ "snapshot", phase_snapshot },
	{ "many", phase_many },
	{ "step", phase_step },
	{ "restore", phase_restore },
	{ "nodes", phase_nodes },
};

static const char *phase_name(int i)
{
	return i < (int)(sizeof(phases) / sizeof(*phases)) ? phases[i].name :
							     NULL;
}

/* What is restored has to be there. */
static bool is_wanted(const char *list, const char *name)
{
	return list_has(list, name) || (!strcmp(name, "snapshot") &&
					list_has(list, "restore"));
}

static int parse_int(const char *text, int min, int max, int *ret)
{
	char *end;
	long v = strtol(text, &end, 10);

	if (end == text || *end || v < min || v > max)
		return -EINVAL;
	*ret = (int)v;
	return 0;
}

static int parse(int argc, char **argv, struct options *o,
		 const char **ret_phases)
{
	int c, r = 0, v;

	while (!r && (c = getopt_long(argc, argv, "r:b:t:n:T:m:d:a:p:w:M:x:s:N:A:k:J:c:jh",
				      long_options, NULL)) != -1) {
		switch (c) {
		case 'r': r = parse_int(optarg, 1, BENCH_RANKS_MAX, &o->ranks); break;
		case 'b': r = sk_size_parse(optarg, 0, &o->bytes, NULL); break;
		case 't': r = parse_int(optarg, 1, 1000000, &o->tensors); break;
		case 'n': r = parse_int(optarg, 1, BENCH_ROUNDS_MAX / 2, &o->rounds); break;
		case 'T': r = parse_int(optarg, 1, 64, &v); o->threads = (uint32_t)v; break;
		case 'm': r = parse_int(optarg, 1, 60000, &v); o->step_ms = (unsigned)v; break;
		case 'd': o->dir = optarg; break;
		case 'a': o->agent = optarg; break;
		case 'p': *ret_phases = optarg; break;
		case 'w': r = parse_int(optarg, 16, 1 << 20, &o->world); break;
		case 'M': o->models = optarg; break;
		case 'x': o->meshes = optarg; break;
		case 's': r = parse_int(optarg, 2, BENCH_RANKS_MAX, &o->spread); break;
		case 'N': r = parse_int(optarg, 2, BENCH_RANKS_MAX, &o->nodes); break;
		case 'A': r = parse_int(optarg, 1, ATTACKERS_MAX - 1, &o->attack); break;
		case 'k': r = parse_int(optarg, 10, 1000000, &o->kept); break;
		case 'J': r = parse_int(optarg, 10, 1000000, &o->jobs); break;
		case 'c': r = parse_int(optarg, 8, BENCH_PROCESSES_MAX, &o->crowd); break;
		case 'j': o->json = true; break;
		case 'h': exit(puts(help) < 0 || fflush(stdout));
		default: return -EINVAL;
		}
		if (r)
			note("\"%s\" is not a value for -%c", optarg, c);
	}
	if (!r)
		r = list_check(*ret_phases, 'p', phase_name);
	if (!r)
		r = list_check(o->models, 'M', model_name);
	if (!r)
		r = list_check(o->meshes, 'x', model_mesh_name);
	if (!r && o->world % 16) {
		note("%d ranks are no multiple of 16", o->world);
		return -EINVAL;
	}
	if (!r && o->nodes && o->ranks % o->nodes) {
		note("%d ranks are not on %d nodes alike", o->ranks, o->nodes);
		return -EINVAL;
	}
	if (!r && o->crowd % 8) {
		note("%d ranks are no multiple of 8", o->crowd);
		return -EINVAL;
	}
	if (!r && o->kept && o->jobs) {
		note("--kept and --jobs are measured one after the other");
		return -EINVAL;
	}
	return r || optind != argc ? -EINVAL : 0;
}

static int usual_ranks(int nodes)
{
	if (!nodes)
		return 2;
	return 2 * nodes <= BENCH_RANKS_MAX ? 2 * nodes : nodes;
}

static uint64_t usual_bytes(const struct options *o)
{
	if (o->world || o->crowd)
		return 1ull << 20;
	if (o->kept || o->jobs)
		return 64ull << 10;
	return o->attack ? 64ull << 20 : 1ull << 30;
}

static int usual_tensors(const struct options *o)
{
	if (o->world)
		return 96;
	if (o->kept || o->jobs)
		return 16;
	return o->crowd ? 1000 : 64;
}

/* What was not asked for, by what is measured. */
static void fill_in(struct options *o)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	if (!o->ranks)
		o->ranks = usual_ranks(o->nodes);
	o->more_meshes = o->nodes;
	if (!o->nodes)
		o->nodes = 2;
	if (!o->bytes)
		o->bytes = usual_bytes(o);
	if (!o->tensors)
		o->tensors = usual_tensors(o);
	if (!o->threads)
		o->threads = (uint32_t)(cpus < 2 ? 1 : cpus / 2 > 8 ? 8 :
							  cpus / 2);
}

static const char *default_agent(char *buf, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", buf, size - 32);
	char *slash;

	if (n <= 0)
		return "shardkeepd";
	buf[n] = 0;
	slash = strrchr(buf, '/');
	strcpy(slash, "/shardkeepd");
	if (!access(buf, X_OK))
		return buf;
	strcpy(slash, "/../../agent/shardkeepd");	/* the build tree */
	return access(buf, X_OK) ? "shardkeepd" : buf;
}

/* The best block and depth of this filesystem, for both ceilings. */
static int find_write_ceiling(struct bench *b)
{
	static const unsigned blocks[] = { 1 << 20, 4 << 20 };
	static const unsigned depths[] = { 4, 8, 16 };
	uint64_t bytes = 256 << 20, best = UINT64_MAX;
	void *buf = warm_memfd(bytes);
	char path[400];
	int r = 0;

	(void)snprintf(path, sizeof(path), "%s/ceiling", b->dir);
	for (size_t i = 0; i < 2 && !r; i++)
		for (size_t k = 0; k < 3 && !r; k++) {
			uint64_t start = now_ns(), ns;

			r = file_pass(path, buf, bytes, true, blocks[i],
				      depths[k]);
			ns = now_ns() - start;
			if (ns >= best)
				continue;
			best = ns;
			b->write_block = blocks[i];
			b->write_depth = depths[k];
		}
	(void)remove(path);
	munmap(buf, bytes);
	return r;
}

static int measure(struct bench *b, const char *wanted)
{
	int r = is_wanted(wanted, "snapshot") ? find_write_ceiling(b) : 0;

	if (r) {
		note("direct I/O on %s: %s", b->o.dir, strerror(-r));
		return r;
	}
	r = agent_start(b);
	for (size_t i = 0; i < sizeof(phases) / sizeof(*phases) && !r; i++)
		if (is_wanted(wanted, phases[i].name))
			r = phases[i].run(b);
	if (b->agent && agent_stop(b) && !r)
		r = -EIO;
	return r;
}

static volatile sig_atomic_t measuring;	/* the child */

static void end_measuring(int number)
{
	(void)kill((pid_t)measuring, number);
}

/* Measures in a child, so that whatever ends it the directory is removed. */
static int measure_apart(struct bench *b, const char *wanted)
{
	int status = 0;
	pid_t pid = fork();

	if (pid < 0)
		return 1;
	if (!pid && b->o.world)
		exit(phase_world(b) != 0);
	if (!pid && b->o.spread)
		exit(phase_spread(b) != 0);
	if (!pid && (b->o.kept || b->o.jobs))
		exit(phase_growth(b) != 0);
	if (!pid && b->o.crowd)
		exit(phase_crowd(b) != 0);
	if (!pid && b->o.attack)
		exit(phase_attacked(b) != 0);
	if (!pid)
		exit(measure(b, wanted) || print_results(b));
	measuring = (sig_atomic_t)pid;
	(void)signal(SIGINT, SIG_IGN);	/* the child has the default */
	(void)signal(SIGTERM, end_measuring);
	/* But for one that nohup has begun. */
	if (signal(SIGHUP, end_measuring) == SIG_IGN)
		(void)signal(SIGHUP, SIG_IGN);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
	static struct bench b;
	static char agent[512];
	const char *wanted = NULL;
	int r;

	b.o = (struct options){ .rounds = 5, .step_ms = 1000, .dir = "." };
	if (parse(argc, argv, &b.o, &wanted)) {
		fputs("shardkeep-bench --help shows how\n", stderr);
		return 2;
	}
	if (b.o.nodes && !wanted) {
		wanted = "nodes";
		b.o.bytes = b.o.bytes ? b.o.bytes : NODES_BYTES;
	}
	fill_in(&b.o);
	/* Ceilings go by the fastest copy of this CPU, too. */
	sk_copy_measure(sk_os_linux());
	if (!b.o.agent)
		b.o.agent = default_agent(agent, sizeof(agent));
	(void)snprintf(b.dir, sizeof(b.dir), "%s/shardkeep-bench-XXXXXX",
		       b.o.dir);
	if (!mkdtemp(b.dir)) {
		note("cannot make a directory in %s: %s", b.o.dir,
		     strerror(errno));
		return 1;
	}
	(void)snprintf(b.store, sizeof(b.store), "%s/store", b.dir);
	(void)snprintf(b.socket, sizeof(b.socket), "%s/agent.sock", b.dir);
	b.shared = share(sizeof(*b.shared));
	if (!b.shared)
		return 1;
	r = measure_apart(&b, wanted);
	remove_tree(b.dir);
	return r;
}
