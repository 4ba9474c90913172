/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent, in a thread, and clients that say to it what the input says: ranks
 * in order and out of it, messages that never come so, descriptors of any kind.
 * In the end it still serves, and stops when it is told to.
 */
#include "fuzz/fuzz.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/rig.h"
#include "loop/endpoint.h"
#include "server.h"
#include "support/files.h"

#define CLIENTS 3
#define TURNS_MOST 48
#define WAIT_MOST_MS 5u		/* of what is deferred */

struct scene {
	struct rig rig;
	struct options options;
	struct endpoint endpoint;
	pthread_t thread;
	struct rank ranks[CLIENTS];
	bool open[CLIENTS], registered[CLIENTS];
};

static void *serve(void *arg)
{
	struct scene *s = arg;

	(void)agent_run(sk_os_linux(), &s->options, &s->endpoint, NULL);
	return NULL;
}

static struct scene *scene_open(bool store)
{
	struct scene *s = calloc(1, sizeof(*s));
	struct sk_err err = { "" };
	int ready[2];
	char c;

	FUZZ_CHECK(s && !pipe2(ready, O_CLOEXEC));
	rig_init(&s->rig, "none");
	s->options = (struct options){
		.store = store ? s->rig.store : NULL, .memory = 4u << 20,
		.admin_uid = (uid_t)-1, .level = LOG_LEVEL_ERROR,
		.stop_timeout_s = 5, .ready_fd = ready[1], .worker_fd = -1,
		.user_layouts = 1u << 20, .backend = SK_IO_THREADS,
		.hangs_s = NEVER_HANGS_S,
	};
	FUZZ_CHECK(!endpoint_open(sk_os_linux(), s->rig.socket, &s->endpoint,
				  &err));
	FUZZ_CHECK(!pthread_create(&s->thread, NULL, serve, s));
	FUZZ_CHECK(TEMP_FAILURE_RETRY(read(ready[0], &c, 1)) == 1);
	close(ready[0]);
	return s;
}

static void leave(struct scene *s, unsigned who)
{
	if (s->open[who])
		rank_close(&s->ranks[who]);
	s->open[who] = s->registered[who] = false;
}

static void scene_close(struct scene *s)
{
	struct sk_msg msg = { .type = SK_MSG_STOP };
	int sock;

	for (unsigned i = 0; i < CLIENTS; i++)
		leave(s, i);
	sock = rig_connect(&s->rig);
	FUZZ_CHECK(rig_call(sock, &msg, NULL, 0, NULL, NULL) == 0);
	close(sock);
	FUZZ_CHECK(!pthread_join(s->thread, NULL));
	FUZZ_CHECK(!remove_tree(s->rig.dir));
	free(s);
}

/* ---- what clients do in order ---- */

static void enter(struct feed *f, struct scene *s, unsigned who)
{
	static const char *const jobs[] = { "a", "b" };
	unsigned how = feed_byte(f);
	struct rank_options o = {
		.job = jobs[how & 1], .rank = (int32_t)feed_below(f, 2),
		.world = 1 + (how >> 1 & 1), .rows = 1 + (how >> 2 & 7),
		.replicated = how >> 5 & 1, .slots = 2 + (how >> 6 & 1),
		.flush_every = feed_below(f, 3),
		.keep_last = feed_below(f, 3), .more = how >> 7,
	};

	if (o.rank >= o.world)
		o.rank = 0;
	leave(s, who);
	s->registered[who] = rank_open(&s->ranks[who], &s->rig, &o) == 0;
	s->open[who] = s->ranks[who].sock >= 0;
}

static void fill(struct feed *f, struct scene *s, unsigned who)
{
	struct rank *r = &s->ranks[who];
	int64_t step = feed_below(f, 6);
	int slot;

	if (!s->registered[who])
		return;
	slot = rank_slot(r, step, feed_below(f, 4));
	if (slot < 0 || (uint32_t)slot >= r->slots)
		return;
	rank_fill(r, slot, step);
	/* It may have other bytes than it says, and another step. */
	if (feed_byte(f) & 1)
		r->maps[slot][0][feed_byte(f) * 16] ^= 1;
	(void)rank_seal(r, slot, step);
}

static void seal_any(struct feed *f, struct scene *s, unsigned who)
{
	if (s->registered[who])
		(void)rank_seal(&s->ranks[who], (int)feed_below(f, 4),
				feed_below(f, 6));
}

static void manage_any(struct feed *f, struct scene *s, unsigned who)
{
	static const enum sk_msg_type types[] = {
		SK_MSG_PIN, SK_MSG_UNPIN, SK_MSG_EVICT, SK_MSG_FLUSH };
	enum sk_msg_type type = types[feed_below(f, 4)];
	struct sk_msg msg;

	if (s->open[who])
		(void)manage(s->ranks[who].sock, type,
			     feed_byte(f) & 1 ? "a" : "b", feed_below(f, 6),
			     feed_below(f, 8), &msg);
}

/* ---- and out of it ---- */

/* What is deferred is not waited for, nor is the agent told to end. */
static void bound(struct sk_msg *msg)
{
	switch (msg->type) {
	case SK_MSG_STOP:
	case SK_MSG_TAKEOVER:
		msg->type = SK_MSG_LIST;
		break;
	case SK_MSG_WAIT:
		msg->body.wait.timeout_ms %= WAIT_MOST_MS;
		break;
	case SK_MSG_GATHER:
		msg->body.gather.timeout_ms %= WAIT_MOST_MS;
		break;
	case SK_MSG_PREPARE:
	case SK_MSG_SLOT_WAIT:
		msg->body.prepare.timeout_ms %= WAIT_MOST_MS;
		break;
	default:
		break;
	}
}

/* A body in which most is 0: its bytes, each with its place. */
static void take_body(struct feed *f, struct sk_msg *msg)
{
	if (feed_byte(f) & 1)
		strcpy((char *)msg->body.raw, feed_byte(f) & 1 ? "a" : "b");
	for (unsigned n = feed_below(f, 24); n; n--) {
		size_t at = feed_byte(f) | (size_t)feed_byte(f) << 8;

		msg->body.raw[at % sizeof(msg->body.raw)] = feed_byte(f);
	}
}

/* As it described itself, by digests. */
static void put_known(const struct rank *r, struct sk_wire_register *q)
{
	*q = (struct sk_wire_register){
		.id = { .rank = r->rank, .world = r->world },
		.state = r->state, .slots = 2, .flags = SK_REGISTER_KNOWN,
		.numa_node = -1,
	};
	strcpy(q->id.job, r->job);
	for (int k = 0; k < 2 && r->layouts[k]; k++) {
		q->header_bytes[k] = r->layouts[k]->header_bytes;
		q->image_bytes[k] = r->layouts[k]->image_bytes;
		q->known[k] = r->layouts[k]->digest;
	}
}

static void say_anything(struct feed *f, struct scene *s, unsigned who)
{
	struct sk_msg msg = { .type = (uint16_t)feed_below(f,
						SK_MSG_TYPE_COUNT + 2) };
	int fds[SK_MSG_FDS], n = 0, r;

	if (!s->open[who]) {
		enter(f, s, who);
		if (!s->open[who])
			return;
	}
	if (msg.type == SK_MSG_REGISTER && s->ranks[who].layouts[0])
		put_known(&s->ranks[who], &msg.body.reg);
	take_body(f, &msg);
	bound(&msg);
	for (unsigned k = feed_byte(f); n < SK_MSG_FDS && k & 1; k >>= 1)
		fds[n++] = some_fd(feed_below(f, SOME_FDS),
				   feed_byte(f) * 64);
	r = rig_call(s->ranks[who].sock, &msg, fds, n, NULL, NULL);
	while (n)
		sk_close_fd(fds[--n]);
	if (r == -EPIPE || r == -ECONNRESET)
		leave(s, who);
	FUZZ_CHECK(r != -ETIMEDOUT || msg.type == SK_MSG_WAIT ||
		   msg.type == SK_MSG_GATHER || msg.type == SK_MSG_PREPARE ||
		   msg.type == SK_MSG_SLOT_WAIT);
}

static void turn(struct feed *f, struct scene *s)
{
	unsigned who = feed_below(f, CLIENTS);

	switch (feed_below(f, 7)) {
	case 0:
		enter(f, s, who);
		break;
	case 1:
	case 2:
		fill(f, s, who);
		break;
	case 3:
		seal_any(f, s, who);
		break;
	case 4:
		manage_any(f, s, who);
		break;
	case 5:
		leave(s, who);
		break;
	default:
		say_anything(f, s, who);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };
	struct scene *s = scene_open(feed_byte(&f) & 1);

	for (int i = 0; i < TURNS_MOST && f.left; i++)
		turn(&f, s);
	scene_close(s);
	return 0;
}
