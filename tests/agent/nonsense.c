/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that make no sense: each is refused at once, for its own reason and
 * in a sentence, and changes nothing for who asks for what there is. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "agent/rig.h"
#include "base/util.h"

#define JOB "sense"
#define FILLING 5		/* the step whose slot is being filled */
#define NONE UINT64_C(0x5eed)	/* a number that nothing has */

struct row {
	int status;
	const char *words;
	struct sk_msg msg;
	bool own;		/* of the rank's own state */
	bool filling;		/* of the slot that it fills */
};

#define ID(rank_, step_, ...)						\
	.id = { .job = JOB, .rank = (rank_), .step = (step_), __VA_ARGS__ }

static const struct row rows[] = {
	/* States and slots. */
	{ -ENOENT, "state", { .type = SK_MSG_SLOT, .body.slot = {
		.state = NONE, .step = 9 } } },
	{ -EINVAL, "step -1 is negative", { .type = SK_MSG_SLOT,
		.body.slot = { .step = -1 } }, true },
	{ -EEXIST, "step 2", { .type = SK_MSG_SLOT, .body.slot = {
		.step = 2 } }, true },
	{ -ENOENT, "state", { .type = SK_MSG_MAP, .body.map = {
		.state = NONE } } },
	{ -EINVAL, "no slot 2", { .type = SK_MSG_MAP, .body.map = {
		.slot = 2 } }, true },
	{ -ENOENT, "state", { .type = SK_MSG_SEAL, .body.seal = {
		.state = NONE } } },
	{ -EINVAL, "no slot 2", { .type = SK_MSG_SEAL, .body.seal = {
		.slot = 2 } }, true },
	{ -EINVAL, "slot", { .type = SK_MSG_SEAL, .body.seal = {
		.step = FILLING + 1 } }, true, true },
	{ -ENOENT, "state", { .type = SK_MSG_DISCARD, .body.seal = {
		.state = NONE } } },
	{ -EINVAL, "no slot 2", { .type = SK_MSG_DISCARD, .body.seal = {
		.slot = 2 } }, true },
	{ -EINVAL, "slot", { .type = SK_MSG_DISCARD, .body.seal = {
		.step = FILLING + 1 } }, true, true },
	{ -ENOENT, "state", { .type = SK_MSG_DEVICE_SEAL, .body.seal = {
		.state = NONE } } },
	{ -EINVAL, "no slot 2", { .type = SK_MSG_DEVICE_SEAL, .body.seal = {
		.slot = 2 } }, true },
	{ -EINVAL, "slot", { .type = SK_MSG_DEVICE_SEAL, .body.seal = {
		.step = FILLING + 1 } }, true, true },
	{ -EINVAL, "no device slot", { .type = SK_MSG_DEVICE_SEAL,
		.body.seal = { .step = FILLING } }, true, true },
	{ -ENODEV, "--device-memory", { .type = SK_MSG_DEVICE_SLOT,
		.body.device_slot = { .n_extents = 1 } }, true },
	{ -ENOENT, "state", { .type = SK_MSG_UNREGISTER,
		.body.state = NONE } },
	/* Lists and images. */
	{ -EINVAL, "no list 0", { .type = SK_MSG_LIST, .body.list = {
		ID(-1, -1) } } },
	{ -EINVAL, "no list 4", { .type = SK_MSG_LIST, .body.list = {
		ID(-1, -1), .what = SK_LIST_PARTS + 1 } } },
	{ -EINVAL, "parts are listed", { .type = SK_MSG_LIST, .body.list = {
		.id = { .run = 1, .run_id = 1, .step = 1, .rank = -1 },
		.what = SK_LIST_PARTS } } },
	{ -EINVAL, "parts are listed", { .type = SK_MSG_LIST, .body.list = {
		ID(-1, 1, .run_id = 1), .what = SK_LIST_PARTS } } },
	{ -EINVAL, "parts are listed", { .type = SK_MSG_LIST, .body.list = {
		ID(-1, 1, .run = 1), .what = SK_LIST_PARTS } } },
	{ -EINVAL, "parts are listed", { .type = SK_MSG_LIST, .body.list = {
		ID(-1, -1, .run = 1, .run_id = 1), .what = SK_LIST_PARTS } } },
	{ -EINVAL, "a list has a limit", { .type = SK_MSG_LIST, .body.list = {
		.id = { .step = -1, .rank = -1 }, .what = SK_LIST_SNAPSHOTS,
		.limit = 1 } } },
	{ -ENOENT, "there is no image", { .type = SK_MSG_OPEN, .body.open = {
		.image = NONE, .place = SK_PLACE_MEMORY } } },
	{ -ENOENT, "is not open", { .type = SK_MSG_CLOSE, .body.open = {
		.image = NONE, .place = SK_PLACE_MEMORY } } },
	{ -ENOENT, "there is no image", { .type = SK_MSG_REPORT_BAD,
		.body.bad = { .image = NONE, .place = SK_PLACE_MEMORY } } },
	/* Waiting. */
	{ -EINVAL, "one cannot wait for 0", { .type = SK_MSG_WAIT,
		.body.wait = { ID(-1, 2), .until = 0 } } },
	{ -EINVAL, "one cannot wait for 5", { .type = SK_MSG_WAIT,
		.body.wait = { ID(-1, 2), .until = 5 } } },
	{ -ENOENT, "no job", { .type = SK_MSG_WAIT, .body.wait = {
		.id = { .job = "no", .step = 1, .rank = 0 }, .until = 2 } } },
	{ -ENOENT, "no snapshot of step 77", { .type = SK_MSG_WAIT,
		.body.wait = { ID(-1, 77), .until = 2,
			       .timeout_ms = WAIT_MS } } },
	{ -ENOENT, "no job", { .type = SK_MSG_PREPARE, .body.prepare = {
		.id = { .job = "no" } } } },
	{ -ENOENT, "is not registered", { .type = SK_MSG_PREPARE,
		.body.prepare = { ID(7, -1), .timeout_ms = WAIT_MS } } },
	{ -ENOENT, "is not registered", { .type = SK_MSG_SLOT_WAIT,
		.body.slot_wait = { ID(7, -1), .timeout_ms = WAIT_MS } } },
	/* Gathering. */
	{ -ENOENT, "run", { .type = SK_MSG_GATHER, .body.gather = {
		ID(0, -1, .world = 1), .bytes = 1 } } },
	{ -ENOENT, "run", { .type = SK_MSG_GATHER, .body.gather = {
		ID(0, -1, .world = 1, .run = 1, .run_id = 7),
		.bytes = 1 } } },
	{ -E2BIG, "more than the agent gathers", { .type = SK_MSG_GATHER,
		.body.gather = { ID(0, -1, .world = 2, .run = SK_RUN_READERS),
				 .bytes = UINT32_MAX } } },
	{ -EINVAL, "must come in a memfd", { .type = SK_MSG_GATHER,
		.body.gather = { ID(0, -1, .world = 1, .run = SK_RUN_READERS),
				 .bytes = SK_GATHER_INLINE + 1 } } },
	/* What is managed. */
	{ -ENOENT, "no job", { .type = SK_MSG_PIN, .body.manage = {
		.id = { .job = "no", .step = 1, .rank = -1 } } } },
	{ -ENOENT, "step 77", { .type = SK_MSG_PIN, .body.manage = {
		ID(-1, 77) } } },
	{ -ENOENT, "step 77", { .type = SK_MSG_UNPIN, .body.manage = {
		ID(-1, 77) } } },
	{ -ENOENT, "step 77", { .type = SK_MSG_FLUSH, .body.manage = {
		ID(-1, 77) } } },
	{ -ENOENT, "step 77", { .type = SK_MSG_EVICT, .body.manage = {
		ID(-1, 77) } } },
	{ -ENOENT, "on disk", { .type = SK_MSG_EVICT, .body.manage = {
		ID(-1, 2), .flags = SK_EVICT_DISK } } },
	{ -EBUSY, "--force", { .type = SK_MSG_EVICT, .body.manage = {
		ID(-1, 2), .flags = SK_EVICT_MEMORY } } },
	{ -EINVAL, "said or left", { .type = SK_MSG_RETAIN, .body.retain = {
		ID(-1, -1), .flags = SK_RETAIN_SET | SK_RETAIN_DEFAULT } } },
};

static void check(const struct row *row, struct rank *r, int sock, int slot)
{
	struct sk_msg msg = row->msg;
	const bool own = row->own;
	int status;

	if (own)
		msg.body.state = r->state;
	if (row->filling)
		msg.body.seal.slot = (uint32_t)slot;
	status = rig_call(own ? r->sock : sock, &msg, NULL, 0, NULL, NULL);
	CHECK(status == row->status, "row %d: %d: %s", (int)(row - rows),
	      status, status < 0 ? rig_why(&msg) : "");
	CHECK(strstr(rig_why(&msg), row->words), "row %d: \"%s\" does not say "
	      "\"%s\"", (int)(row - rows), rig_why(&msg), row->words);
}

/* ---- too many at once ---- */

#define MOST 64			/* more than a connection may have waiting */

static void send_waits(struct rank *r, int64_t step)
{
	for (int i = 0; i < MOST; i++)
		rank_send_wait(r, step, 1, WAIT_MS);
}

/* Those beyond the bound are refused; the others wait on. */
static int take_refusals(struct rank *r)
{
	struct sk_msg msg = { .type = SK_MSG_MAP, .body.map = {
		.state = r->state } };
	int n = 0;

	/* Answered behind all of them. */
	msg.seq = 1;
	rig_send(r->sock, &msg);
	for (;;) {
		int status = rig_reply(r->sock, &msg, NULL, NULL);

		if (msg.type == SK_MSG_MAP)
			return n;
		CHECK_STATUS(status, -EBUSY, &msg);
		n++;
	}
}

static void check_busy(struct rank *r, struct sk_msg msg)
{
	int status = rig_call(r->sock, &msg, NULL, 0, NULL, NULL);

	CHECK(status == -EBUSY && strstr(rig_why(&msg), "wait already"),
	      "%s: %d, %s", sk_msg_type_name(msg.type), status,
	      status < 0 ? rig_why(&msg) : "");
}

/* A connection that has as many requests waiting as it may have: what cannot
 * be answered at once is refused, all else is answered. */
static void test_busy(struct rig *rig)
{
	struct sk_wire_image *images;
	struct rank r;
	size_t n;
	int fd;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = JOB, .world = 1 }), 0, &r.msg);
	rank_snapshot(&r, 10);
	CHECK_STATUS(rank_wait(&r, 10, 3, WAIT_MS), 0, &r.msg);
	fd = rig_connect(rig);
	images = list_images(fd, JOB, 10, &n);
	CHECK(n == 2, "%d images", (int)n);
	close(fd);
	CHECK(rank_slot(&r, 11, 0) >= 0, "no slot: %s", rig_why(&r.msg));
	send_waits(&r, 11);
	CHECK(take_refusals(&r) > 0, "it takes any number");
	check_busy(&r, (struct sk_msg){ .type = SK_MSG_WAIT, .body.wait = {
		ID(0, 11), .until = 1, .timeout_ms = WAIT_MS } });
	check_busy(&r, (struct sk_msg){ .type = SK_MSG_LIST, .body.list = {
		ID(-1, 10), .what = SK_LIST_SNAPSHOTS } });
	check_busy(&r, (struct sk_msg){ .type = SK_MSG_OPEN, .body.open = {
		.image = images[0].image, .place = SK_PLACE_DISK } });
	check_busy(&r, (struct sk_msg){ .type = SK_MSG_GATHER, .body.gather = {
		ID(0, -1, .world = 2, .run = SK_RUN_READERS), .bytes = 1,
		.timeout_ms = WAIT_MS } });
	check_busy(&r, (struct sk_msg){ .type = SK_MSG_RETAIN, .body.retain = {
		ID(-1, -1), .flags = SK_RETAIN_DEFAULT } });
	check_busy(&r, (struct sk_msg){ .type = SK_MSG_WAIT, .body.wait = {
		ID(-1, 77), .until = 2, .timeout_ms = WAIT_MS } });
	check_busy(&r, (struct sk_msg){ .type = SK_MSG_STOP, .body.stop = {
		.flags = SK_STOP_WAIT } });
	check_busy(&r, (struct sk_msg){ .type = SK_MSG_PIN, .body.manage = {
		ID(-1, 10) } });
	check_busy(&r, (struct sk_msg){ .type = SK_MSG_EVICT, .body.manage = {
		ID(-1, 10), .flags = SK_EVICT_FORCE | SK_EVICT_DISK } });
	CHECK_STATUS(rank_again(&r, &(struct rank_options){
		.job = JOB, .world = 1 }), -EBUSY, &r.msg);
	free(images);
	rank_close(&r);
}

/* ---- ranks that an agent before this one has left a round apart ---- */

static void meet(int sock, int32_t rank, uint64_t round, uint32_t flags)
{
	struct sk_msg msg = { .type = SK_MSG_GATHER, .body.gather = {
		.id = { .job = "elsewhere", .run = 5, .run_id = 9,
			.rank = rank, .world = 2 },
		.round = round, .bytes = 4, .timeout_ms = WAIT_MS,
		.flags = flags } };

	rig_send(sock, &msg);
}

static void expect(int sock, int status)
{
	struct sk_msg msg;
	int fds[SK_MSG_FDS], n = 0;

	CHECK_STATUS(rig_reply(sock, &msg, fds, &n), status, &msg);
	while (n)
		close(fds[--n]);
}

/* Those who are ahead are told to go back, whoever comes first, and nobody is
 * who had the last round of this agent. Nobody has registered here. */
static void test_apart(const struct rig *rig)
{
	int a = rig_connect(rig), b = rig_connect(rig);

	meet(a, 0, 1, SK_GATHER_MOVED);
	meet(b, 1, 0, 0);
	expect(a, -ESTALE);
	meet(a, 0, 1, SK_GATHER_MOVED);
	expect(a, -ESTALE);
	/* That it is there itself is no reason. */
	meet(a, 1, 1, SK_GATHER_MOVED);
	meet(a, 0, 0, 0);
	expect(a, 0);
	expect(b, 0);
	meet(b, 0, 1, 0);
	expect(a, 0);
	expect(b, 0);
	close(a);
	close(b);
	a = rig_connect(rig);
	b = rig_connect(rig);
	meet(a, 0, 1, 0);
	meet(b, 1, 0, SK_GATHER_MOVED);
	meet(b, 1, 1, 0);
	expect(a, 0);
	expect(b, 0);
	close(a);
	close(b);
}

int main(int argc, char **argv)
{
	struct rig rig;
	struct rank r;
	int sock, slot;

	CHECK(argc == 2, "which agent?");
	rig_init(&rig, argv[1]);
	rig_start(&rig, "--store", rig.store, NULL);
	sock = rig_connect(&rig);
	CHECK_STATUS(rank_open(&r, &rig, &(struct rank_options){
		.job = JOB, .world = 1, .flush_every = 1u << 20 }), 0, &r.msg);
	rank_snapshot(&r, 1);
	rank_snapshot(&r, 2);
	slot = rank_slot(&r, FILLING, 0);
	CHECK(slot >= 0, "no slot: %s", rig_why(&r.msg));
	for (size_t i = 0; i < SK_ARRAY_SIZE(rows); i++)
		check(&rows[i], &r, sock, slot);
	/* It fills its slot still. */
	rank_fill(&r, slot, FILLING);
	CHECK_STATUS(rank_seal(&r, slot, FILLING), 0, &r.msg);
	close(sock);
	rank_close(&r);
	test_busy(&rig);
	test_apart(&rig);
	CHECK(rig_stop(&rig) == 0, "its end");
	rig_remove(&rig);
	return 0;
}
