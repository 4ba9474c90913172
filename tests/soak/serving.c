/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/soak.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>

#include "support/agent.h"

static uint64_t now_ms(void)
{
	struct timespec ts;

	CHECK(!clock_gettime(CLOCK_MONOTONIC, &ts));
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

void serving_keep(struct scene *scene)
{
	if (scene->keeper)
		return;
	scene_stop_agent(scene, SIGTERM);
	scene->keeper = true;
	scene_start_agent(scene);
}

pid_t serving(const struct scene *scene, struct tally *tally)
{
	struct sk_options opts = { .socket = scene->socket, .threads = 1,
				   .flags = SK_OPEN_NO_START,
				   .timeout_ms = 60000 };
	uint64_t began = now_ms(), took;
	struct sk *sk;
	pid_t pid;

	CHECK(!sk_open(&opts, &sk), "%s", sk_error());
	took = now_ms() - began;
	pid = (pid_t)sk->conn.agent.pid;
	sk_close(sk);
	if (took > tally->longest_ms)
		tally->longest_ms = took;
	tally->slow += took >= 500;
	return pid;
}

void serving_kill(struct scene *scene, pid_t pid, struct dice *dice,
		  struct tally *tally)
{
	pid_t next;

	CHECK(!kill(pid, SIGKILL));
	tally->agent_kills++;
	if (dice_below(dice, 3))
		return;
	/* When it is killed is what is tried: while it is being born, too. */
	(void)usleep((useconds_t)dice_below(dice, 30000));
	next = agent_of_keeper(scene->agent);
	if (next && next != pid && !kill(next, SIGKILL))
		tally->agent_kills++;
}

void serving_hand_over(struct scene *scene, pid_t pid, struct dice *dice,
		       struct tally *tally)
{
	const char *const args[] = {
		scene->program, "--socket", scene->socket, "--memory", "1G",
		"--log-level", "error", "--takeover", "--idle-exit", "60",
		"--store", scene->store,
		scene->scrub_rate ? "--scrub-rate" : NULL, scene->scrub_rate,
		NULL };
	bool killed = dice_below(dice, 2);
	uint64_t delay_us = dice_below(dice, 60000);
	pid_t killer = killed ? fork() : -1, next;
	int status;

	if (!killer) {
		(void)usleep((useconds_t)delay_us);
		_exit(kill(pid, SIGKILL) != 0);
	}
	next = agent_start(args);
	if (killer > 0)
		CHECK(waitpid(killer, &status, 0) == killer);
	tally->agent_kills += killer > 0 && !status;
	CHECK(killed || next > 0, "nobody was killed, and it did not take "
	      "over");
	if (next < 0)
		return;
	CHECK(waitpid(scene->agent, &status, 0) == scene->agent);
	/* One that is killed when it has handed over has done its part. */
	CHECK(WIFEXITED(status) && (killed || !WEXITSTATUS(status)), "the "
	      "keeper of the agent that handed over ended with %#x", status);
	scene->agent = next;
	tally->takeovers++;
}
