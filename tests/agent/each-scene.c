/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/each.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "fault-alloc.h"

#define DEVICE_BYTES (UINT64_C(8) << 20)
#define TICK_NS UINT64_C(50000000)

void mend(struct scene *s)
{
	sk_fault_alloc_next(0, 0);
	sk_fault_os_forget(s->w.fault);
}

uint64_t hits_of(const struct scene *s)
{
	return sk_fault_alloc_hits() + sk_fault_os_hits(s->w.fault);
}

int ask_on(struct scene *s, int sock, const int *send, int n_send, int *fds,
	   int *n_fds)
{
	int r = rig_call(sock, &s->msg, send, n_send, fds, n_fds);

	s->lost = r < 0 && strstr(rig_why(&s->msg), "no reply");
	CHECK(r >= 0 || rig_why(&s->msg)[0], "%d without a sentence", r);
	return r;
}

int ask(struct scene *s, int sock)
{
	return ask_on(s, sock, NULL, 0, NULL, NULL);
}

int ask_records(struct scene *s, int sock, void *ret, size_t most,
		       uint64_t *ret_n)
{
	int fds[SK_MSG_FDS], n = 0, r;

	r = ask_on(s, sock, NULL, 0, fds, &n);
	if (r < 0)
		return r;
	CHECK(n == 1, "%d descriptors", n);
	*ret_n = s->msg.body.list_reply.n;
	CHECK(pread(fds[0], ret, most, 0) >= 0, "a list cannot be read");
	close(fds[0]);
	return 0;
}

int await_step(struct scene *s, const char *job, int64_t step, uint32_t until,
	       int patience_ms)
{
	struct pollfd p = { .fd = s->sock, .events = POLLIN };
	int r;

	s->msg = (struct sk_msg){ .type = SK_MSG_WAIT, .body.wait = {
		.id = { .step = step, .rank = -1 }, .until = until,
		.timeout_ms = WAIT_MS } };
	strcpy(s->msg.body.wait.id.job, job);
	rig_send(s->sock, &s->msg);
	if (poll(&p, 1, patience_ms) == 0)
		while (poll(&p, 1, 1) == 0)
			sk_fault_os_advance(s->w.fault, TICK_NS);
	r = rig_reply(s->sock, &s->msg, NULL, NULL);
	s->lost = r < 0 && strstr(rig_why(&s->msg), "no reply");
	return r;
}

void begin(struct scene *s)
{
	const struct rank_options o = { .job = EACH_JOB, .world = 2 };
	struct rank_options other = o;

	*s = (struct scene){ 0 };
	sk_fault_alloc_share();
	whole_init(&s->w);
	s->w.options.device_memory = DEVICE_BYTES;
	whole_start(&s->w);
	CHECK(s->w.serves, "it did not start: %s", whole_log(&s->w));
	other.rank = 1;
	CHECK_STATUS(rank_open(&s->ranks[0], &s->w.rig, &o), 0,
		     &s->ranks[0].msg);
	CHECK_STATUS(rank_open(&s->ranks[1], &s->w.rig, &other), 0,
		     &s->ranks[1].msg);
	CHECK_STATUS(rank_open(&s->alone, &s->w.rig, &(struct rank_options){
		.job = EACH_ALONE, .world = 1, .slots = 4,
		.flush_every = 1u << 20 }), 0, &s->alone.msg);
	for (int i = 0; i < 2; i++)
		rank_snapshot(&s->ranks[i], 1);
	s->sock = rig_connect(&s->w.rig);
	CHECK_STATUS(await_step(s, EACH_JOB, 1, 3, 1), 0, &s->msg);
	sk_fault_os_advance(s->w.fault, 1000000);
}

void end(struct scene *s)
{
	for (int i = 0; i < 2; i++)
		rank_close(&s->ranks[i]);
	rank_close(&s->alone);
	s->msg = (struct sk_msg){ .type = SK_MSG_STOP,
				  .body.stop.flags = SK_STOP_WAIT };
	rig_send(s->sock, &s->msg);
	CHECK(whole_wait(&s->w) == 0, "its end: %s", whole_log(&s->w));
	CHECK_STATUS(rig_reply(s->sock, &s->msg, NULL, NULL), 0, &s->msg);
	close(s->sock);
	whole_remove(&s->w);
}
