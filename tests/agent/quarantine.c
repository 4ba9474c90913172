/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank closes its connection, lives on, and goes on writing into what it has
 * mapped, as a GPU does for a process that is being killed: nobody else gets
 * that memory until the process is gone, and the budget counts it.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rig.h"

#define IMAGE 65536u	/* of rig.h's ranks, beside the header */

/* A process that was a rank, and what it is told by. */
struct stray {
	pid_t pid;
	int tell, told;
};

static void scribble(const struct rank *r)
{
	for (unsigned i = 0; i < r->slots; i++)
		memset(r->maps[i][0], 0xab, IMAGE);
}

/* Ends only by a signal. */
static void be_stray(const struct rig *rig, const struct rank_options *o,
		     int from, int to)
{
	struct rank r;
	char byte = 0;

	CHECK_STATUS(rank_open(&r, rig, o), 0, &r.msg);
	rank_snapshot(&r, 1);
	CHECK(rank_slot(&r, 2, 0) >= 0, "%s", rig_why(&r.msg));
	close(r.sock);
	CHECK(write(to, &byte, 1) == 1, "write");
	while (read(from, &byte, 1) == 1) {
		scribble(&r);
		CHECK(write(to, &byte, 1) == 1, "write");
	}
	_exit(0);
}

static void hear(const struct stray *s)
{
	char byte;

	CHECK(read(s->told, &byte, 1) == 1, "the stray is gone");
}

static struct stray stray_begin(const struct rig *rig,
				const struct rank_options *o)
{
	int to[2], from[2];
	struct stray s;

	CHECK(!pipe(to) && !pipe(from), "pipe");
	s = (struct stray){ fork(), to[1], from[0] };
	if (!s.pid) {
		close(to[1]);
		close(from[0]);
		be_stray(rig, o, to[0], from[1]);
	}
	close(to[0]);
	close(from[1]);
	hear(&s);
	return s;
}

static void stray_write(const struct stray *s)
{
	CHECK(write(s->tell, "", 1) == 1, "write");
	hear(s);
}

static void stray_end(const struct stray *s)
{
	CHECK(!kill(s->pid, SIGKILL), "kill");
	CHECK(waitpid(s->pid, NULL, 0) == s->pid, "wait");
	close(s->tell);
	close(s->told);
}

static void await_stat(int sock, const char *name, double value)
{
	AWAIT(stat_value(sock, name) == value, "%s is %f", name,
	      stat_value(sock, name));
}

static void test_nobody_else(const char *program)
{
	const struct rank_options o = { .job = "stray", .world = 1 };
	struct stray s;
	struct rank r;
	struct rig rig;
	double used;
	int sock;

	rig_init(&rig, program);
	rig_start(&rig, NULL);
	s = stray_begin(&rig, &o);
	sock = rig_connect(&rig);
	await_stat(sock, "shardkeep_quarantines_total", 1);
	used = stat_value(sock, "shardkeep_memory_used_bytes");
	CHECK(stat_value(sock, "shardkeep_quarantined_bytes") == used,
	      "not all is kept back");
	CHECK_STATUS(rank_open(&r, &rig, &o), 0, &r.msg);
	CHECK(stat_value(sock, "shardkeep_memory_used_bytes") == 2 * used,
	      "its slots are not counted beside the new ones");
	rank_snapshot(&r, 11);
	rank_snapshot(&r, 12);
	stray_write(&s);
	for (unsigned i = 0; i < r.slots; i++)
		for (unsigned k = 0; k < IMAGE; k++)
			CHECK((unsigned char)r.maps[i][0][k] != 0xab,
			      "slot %u is the stray's", i);
	stray_end(&s);
	await_stat(sock, "shardkeep_quarantined_bytes", 0);
	rank_close(&r);
	close(sock);
	CHECK(!rig_stop(&rig), "the agent");
	rig_remove(&rig);
}

/* Where there is no other memory, it is waited for, and had once its process
 * has gone; a process that comes back itself has it at once. */
static void test_no_room(const char *program)
{
	const struct rank_options o = { .job = "stray", .world = 1 };
	struct stray s;
	struct rank r;
	struct rig rig;
	int sock;

	rig_init(&rig, program);
	rig_start(&rig, "--memory", "200K", NULL);
	s = stray_begin(&rig, &o);
	sock = rig_connect(&rig);
	await_stat(sock, "shardkeep_quarantines_total", 1);
	CHECK_STATUS(rank_open(&r, &rig, &o), -ENOMEM, &r.msg);
	CHECK(strstr(rig_why(&r.msg), "not ended"), "%s", rig_why(&r.msg));
	stray_end(&s);
	CHECK_STATUS(rank_open(&r, &rig, &o), 0, &r.msg);
	rank_snapshot(&r, 21);
	close(r.sock);
	CHECK_STATUS(rank_open(&r, &rig, &o), 0, &r.msg);
	rank_close(&r);
	close(sock);
	CHECK(!rig_stop(&rig), "the agent");
	rig_remove(&rig);
}

/* What a process that has ended had is its rank's next life's, not a second
 * time beside it. */
static void test_next_life(const char *program)
{
	const struct rank_options o = { .job = "next", .world = 1 };
	struct rank r;
	struct rig rig;
	double used;
	int sock, status;
	pid_t pid;

	rig_init(&rig, program);
	rig_start(&rig, NULL);
	sock = rig_connect(&rig);
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		CHECK_STATUS(rank_open(&r, &rig, &o), 0, &r.msg);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && !status, "%#x", status);
	await_stat(sock, "shardkeep_rank_deaths_total", 1);
	await_stat(sock, "shardkeep_quarantined_bytes", 0);
	used = stat_value(sock, "shardkeep_memory_used_bytes");
	CHECK(used > 0, "nothing is left");
	CHECK_STATUS(rank_open(&r, &rig, &o), 0, &r.msg);
	CHECK(stat_value(sock, "shardkeep_memory_used_bytes") == used,
	      "%.0f bytes, not %.0f",
	      stat_value(sock, "shardkeep_memory_used_bytes"), used);
	rank_snapshot(&r, 1);
	rank_close(&r);
	close(sock);
	CHECK(!rig_stop(&rig), "the agent");
	rig_remove(&rig);
}

/* A rank that fills a slot, begins another process by a fork, as a data loader
 * does, and is killed. That process, which has its descriptors. */
static pid_t leave_heir(const struct rig *rig, const struct rank_options *o)
{
	int ends[2], status;
	pid_t pid, heir;
	struct rank r;

	CHECK(!pipe(ends), "pipe");
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		CHECK_STATUS(rank_open(&r, rig, o), 0, &r.msg);
		rank_snapshot(&r, 1);
		CHECK(rank_slot(&r, 2, 0) >= 0, "%s", rig_why(&r.msg));
		heir = fork();
		CHECK(heir >= 0, "fork");
		if (!heir) {
			(void)alarm(60);	/* whoever began it fails */
			for (;;)
				pause();
		}
		CHECK(write(ends[1], &heir, sizeof(heir)) == sizeof(heir),
		      "write");
		(void)raise(SIGKILL);
	}
	CHECK(read(ends[0], &heir, sizeof(heir)) == sizeof(heir), "read");
	CHECK(waitpid(pid, &status, 0) == pid, "wait");
	close(ends[0]);
	close(ends[1]);
	return heir;
}

/* Whether what it was filling is kept back until the last who has its
 * descriptors has ended; what was sealed is not. */
static void test_heirs(const char *program)
{
	struct rank_options o = { .job = "heirs", .world = 1 };
	double used;
	struct rig rig;
	pid_t heir;
	int sock;

	rig_init(&rig, program);
	rig_start(&rig, NULL);
	sock = rig_connect(&rig);
	heir = leave_heir(&rig, &o);
	await_stat(sock, "shardkeep_rank_deaths_total", 1);
	CHECK(stat_value(sock, "shardkeep_quarantined_bytes") == 0,
	      "no GPU writes there");
	CHECK(!kill(heir, SIGKILL), "kill");
	o.job = "of-devices";
	o.on_devices = true;
	used = stat_value(sock, "shardkeep_memory_used_bytes");
	heir = leave_heir(&rig, &o);
	await_stat(sock, "shardkeep_rank_deaths_total", 2);
	used = stat_value(sock, "shardkeep_memory_used_bytes") - used;
	CHECK(stat_value(sock, "shardkeep_quarantined_bytes") == used / 2,
	      "%f", stat_value(sock, "shardkeep_quarantined_bytes"));
	CHECK(!kill(heir, SIGKILL), "kill");
	await_stat(sock, "shardkeep_quarantined_bytes", 0);
	close(sock);
	CHECK(!rig_stop(&rig), "the agent");
	rig_remove(&rig);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2, "usage: quarantine AGENT");
	test_nobody_else(argv[1]);
	test_no_room(argv[1]);
	test_next_life(argv[1]);
	test_heirs(argv[1]);
	return 0;
}
