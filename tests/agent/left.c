/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who asks for something and leaves while the background is at it: that is
 * done or let go of, and whoever asks the same next is answered. At its end the
 * agent has given everything back (whole.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/whole.h"
#include "base/util.h"

#define JOB "left"
#define CLIENTS "shardkeep_clients"
#define MOST 64			/* more than a connection may have waiting */

struct scene {
	struct whole w;
	struct rank r;		/* its steps 1 and 2 are durable */
	uint64_t image;		/* of step 2 */
	int sock;
	int held[2];		/* what the agent is held by */
};

static void begin(struct scene *s)
{
	struct sk_wire_image *images;
	size_t n;

	/* Of both processes. */
	CHECK(pipe(s->held) == 0, "pipe");
	whole_init(&s->w);
	whole_start(&s->w);
	CHECK(s->w.serves, "it did not start: %s", whole_log(&s->w));
	CHECK_STATUS(rank_open(&s->r, &s->w.rig, &(struct rank_options){
		.job = JOB, .world = 1 }), 0, &s->r.msg);
	for (int64_t step = 1; step <= 2; step++) {
		rank_snapshot(&s->r, step);
		CHECK_STATUS(rank_wait(&s->r, step, 3, WAIT_MS), 0,
			     &s->r.msg);
	}
	s->sock = rig_connect(&s->w.rig);
	images = list_images(s->sock, JOB, 2, &n);
	CHECK(n == 2, "%zu images", n);
	s->image = images[0].image;
	free(images);
}

static void end(struct scene *s)
{
	close(s->sock);
	rank_close(&s->r);
	CHECK(kill(s->w.rig.agent, SIGTERM) == 0, "kill");
	CHECK(whole_wait(&s->w) == 0, "exit status: %s", whole_log(&s->w));
	whole_remove(&s->w);
	close(s->held[0]);
	close(s->held[1]);
}

/* ---- what is asked ---- */

static struct sk_msg about(enum sk_msg_type type, int64_t step, uint32_t flags)
{
	return (struct sk_msg){ .type = (uint16_t)type, .body.manage = {
		.id = { .job = JOB, .step = step, .rank = -1 },
		.flags = flags } };
}

static void delete_step(const struct scene *s, int sock)
{
	struct sk_msg msg = about(SK_MSG_EVICT, 1, SK_EVICT_DISK |
				  SK_EVICT_FORCE);

	(void)s;
	rig_send(sock, &msg);
}

static void pin(const struct scene *s, int sock)
{
	struct sk_msg msg = about(SK_MSG_PIN, 2, 0);

	(void)s;
	rig_send(sock, &msg);
}

static void open_image(const struct scene *s, int sock)
{
	struct sk_msg msg = { .type = SK_MSG_OPEN, .body.open = {
		.image = s->image, .place = SK_PLACE_DISK } };

	rig_send(sock, &msg);
}

static void list(const struct scene *s, int sock)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .job = JOB, .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS } };

	(void)s;
	rig_send(sock, &msg);
}

static void send_register(const struct rank *r, const char *job, int sock)
{
	const struct sk_layout *l = r->layouts[0];
	struct sk_msg msg = { .type = SK_MSG_REGISTER, .body.reg = {
		.id = { .rank = 0, .world = 1 },
		.header_bytes = { l->header_bytes },
		.image_bytes = { l->image_bytes }, .slots = 2,
		.numa_node = -1 } };
	int fd = memfd_create("layouts", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	strcpy(msg.body.reg.id.job, job);
	CHECK(fd >= 0 && write(fd, l->header, l->header_bytes) ==
	      (ssize_t)l->header_bytes &&
	      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0, "layouts");
	CHECK(sk_channel_send(sk_os_linux(), sock, &msg, &fd, 1) == 0,
	      "send");
	close(fd);
}

/* Another rank, as far as it gets. */
static void come(const struct scene *s, int sock)
{
	send_register(&s->r, "other", sock);
}

static const struct asked {
	const char *name;
	void (*ask)(const struct scene *s, int sock);
	enum sk_fault_op op;	/* that the background is held in */
	int status, or_status;	/* of whoever asks next */
} all[] = {
	{ "a pin", pin, SK_FAULT_OPENAT, 0, 0 },
	{ "an image", open_image, SK_FAULT_OPENAT, 0, 0 },
	{ "a list", list, SK_FAULT_OPENAT, 0, 0 },
	/* The layout is another job's. */
	{ "a rank", come, SK_FAULT_PREAD, -EINVAL, -EBADMSG },
	{ "a deletion", delete_step, SK_FAULT_OPENAT, 0, -ENOENT },
};

/* ---- who leaves ---- */

static void hold(void *ctx)
{
	char c;

	/* Until the test lets go of it. */
	(void)!read(*(int *)ctx, &c, 1);
}

static void test(struct scene *s, const struct asked *q)
{
	double clients = stat_value(s->sock, CLIENTS);
	int sock = rig_connect(&s->w.rig), next, status;
	struct sk_msg msg = { 0 };

	next = rig_connect(&s->w.rig);
	sk_fault_os_forget(s->w.fault);
	sk_fault_os_meddle(s->w.fault, q->op, 1, hold, &s->held[0]);
	q->ask(s, sock);
	AWAIT(sk_fault_os_hits(s->w.fault), "%s: nobody is at it", q->name);
	close(sock);
	AWAIT(stat_value(s->sock, CLIENTS) == clients + 1, "%s: it stays",
	      q->name);
	q->ask(s, next);
	/* It has been heard. */
	(void)stat_value(s->sock, CLIENTS);
	CHECK(write(s->held[1], "", 1) == 1, "write");
	status = rig_reply(next, &msg, NULL, NULL);
	CHECK(status == q->status || status == q->or_status, "%s: %d, %s",
	      q->name, status, status < 0 ? rig_why(&msg) : "");
	close(next);
	AWAIT(stat_value(s->sock, CLIENTS) == clients, "%s: it stays",
	      q->name);
}

/* ---- who comes back ---- */

#define LONG "long"		/* its headers are read in the background */
#define TURNS 200		/* that it may take to be refused */

static void send_seal(struct rank *r, int slot, int64_t step)
{
	struct sk_msg msg = { .type = SK_MSG_SEAL, .body.seal = {
		.state = r->state, .step = step, .slot = (uint32_t)slot } };

	rig_send(r->sock, &msg);
}

/* A rank dies while its step is being sealed, and its next life is there before
 * that is over: it waits, and the step is sealed all the same. */
static void test_next_life(struct scene *s)
{
	int next = rig_connect(&s->w.rig), slot, status;
	struct sk_msg msg = { 0 };
	struct rank r;

	CHECK_STATUS(rank_open(&r, &s->w.rig, &(struct rank_options){
		.job = LONG, .world = 1, .rows = 1, .more = 2000,
		.flush_every = 1000 }), 0, &r.msg);
	slot = rank_slot(&r, 1, 0);
	CHECK(slot >= 0, "no slot: %s", rig_why(&r.msg));
	rank_fill(&r, slot, 1);
	sk_fault_os_forget(s->w.fault);
	sk_fault_os_meddle(s->w.fault, SK_FAULT_PREAD, 1, hold, &s->held[0]);
	send_seal(&r, slot, 1);
	AWAIT(sk_fault_os_hits(s->w.fault), "nobody reads its header");
	CHECK(shutdown(r.sock, SHUT_RDWR) == 0, "it goes");
	send_register(&r, LONG, next);
	for (int i = 0; i < TURNS; i++)
		(void)stat_value(s->sock, CLIENTS);
	CHECK(write(s->held[1], "", 1) == 1, "write");
	status = rig_reply(next, &msg, NULL, NULL);
	CHECK_STATUS(status, 0, &msg);
	CHECK(snapshot_flags(s->sock, LONG, 1) & SK_SNAP_COMPLETE,
	      "it is not sealed");
	close(next);
	rank_close(&r);
}

/* What is refused, since as many wait as may, leaves nothing either. */
static void test_busy(struct scene *s)
{
	struct sk_msg msg = { .type = SK_MSG_RETAIN, .body.retain = {
		.id = { .job = JOB, .step = -1, .rank = -1 },
		.flags = SK_RETAIN_DEFAULT } };

	CHECK(rank_slot(&s->r, 3, 0) >= 0, "no slot: %s", rig_why(&s->r.msg));
	for (int i = 0; i < MOST; i++)
		rank_send_wait(&s->r, 3, 1, WAIT_MS);
	msg.seq = 1;
	rig_send(s->r.sock, &msg);
	do
		CHECK_STATUS(rig_reply(s->r.sock, &msg, NULL, NULL), -EBUSY,
			     &msg);
	while (msg.type != SK_MSG_RETAIN);
}

int main(void)
{
	struct scene s;

	begin(&s);
	for (size_t i = 0; i < SK_ARRAY_SIZE(all); i++)
		test(&s, &all[i]);
	CHECK(snapshot_flags(s.sock, JOB, 2) & SK_SNAP_PINNED, "the pin");
	CHECK(!(snapshot_flags(s.sock, JOB, 1) & SK_SNAP_DISK),
	      "step 1 is there");
	test_next_life(&s);
	test_busy(&s);
	end(&s);
	return 0;
}
