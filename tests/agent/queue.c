/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many that wait for the disk at once: what the agent looks at for each of them
 * is counted, where they are few and where they are many.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "agent/whole.h"

#define FEW 10
#define MANY 100
#define SECOND UINT64_C(1000000000)

static void join(struct whole *w, struct rank *r, int i)
{
	char name[16];

	(void)snprintf(name, sizeof(name), "job-%d", i);
	CHECK_STATUS(rank_open(r, &w->rig, &(struct rank_options){
		.job = name, .world = 1, .rows = 1 }), 0, &r->msg);
}

/* All fail once, and wait for a second, which begins with each so much after
 * that of the one before. */
static void fail_all(struct whole *w, struct rank *r, int n, int sock,
		     uint64_t apart_ns)
{
	sk_fault_os_fail(w->fault, SK_FAULT_RENAMEAT, 1, SK_FAULT_ALWAYS, EIO);
	for (int i = 0; i < n; i++) {
		rank_snapshot(&r[i], 1);
		if (!apart_ns)
			continue;
		AWAIT(stat_value(sock, "shardkeep_flush_errors_total") == i + 1,
		      "it does not fail");
		sk_fault_os_advance(w->fault, apart_ns);
	}
	AWAIT(stat_value(sock, "shardkeep_flush_errors_total") == n,
	      "not all fail");
	sk_fault_os_forget(w->fault);
}

/* A job's, once all can be written: at the same time, or one after the other. */
static double visits_to_write(int n, uint64_t apart_ns)
{
	struct rank *r = calloc((size_t)n, sizeof(*r));
	struct whole w;
	struct rig_since since;
	double visits;
	int sock;

	CHECK(r, "no memory");
	whole_init(&w);
	whole_start(&w);
	CHECK(w.serves, "it did not start: %s", whole_log(&w));
	sock = rig_connect(&w.rig);
	for (int i = 0; i < n; i++)
		join(&w, &r[i], i);
	fail_all(&w, r, n, sock, apart_ns);
	AWAIT(rig_is_quiet(sock), "something goes on");
	since = rig_since(sock);
	sk_fault_os_advance(w.fault, SECOND - (uint64_t)n * apart_ns);
	for (int i = 0; i < n; i++) {
		sk_fault_os_advance(w.fault, apart_ns ? apart_ns : SECOND);
		CHECK_STATUS(rank_wait(&r[i], 1, 3, WAIT_MS), 0, &r[i].msg);
	}
	AWAIT(rig_is_quiet(sock), "something goes on");
	visits = rig_visits(sock, since);
	for (int i = 0; i < n; i++)
		rank_close(&r[i]);
	close(sock);
	CHECK(kill(w.rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(&w) == 0, "exit status: %s", whole_log(&w));
	whole_remove(&w);
	free(r);
	return visits / n;
}

int main(void)
{
	static const uint64_t apart_ns[] = { 0, SECOND / 1000 };

	for (int i = 0; i < 2; i++) {
		double few = visits_to_write(FEW, apart_ns[i]);
		double many = visits_to_write(MANY, apart_ns[i]);

		CHECK(many < 2 * few, "%g visits each where %d wait, %g where "
		      "%d do, %g s apart", few, FEW, many, MANY,
		      (double)apart_ns[i] / 1e9);
	}
	return 0;
}
