/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each request of a living agent, with each allocation and each call of the
 * system that answering it takes failed: it is refused in the words of the
 * error, or done, and looked at whether it is; the next one is done. At its
 * end the agent has given everything back (whole.c).
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/whole.h"
#include "base/util.h"
#include "fault-alloc.h"

#define JOB "each"
#define ALONE "alone"
#define ROUNDS_MOST 2000	/* a request that is never done */

struct scene {
	struct whole w;
	struct rank ranks[2];	/* of JOB, whose step 1 is durable */
	struct rank alone;	/* of a job of its own */
	int sock;
	int64_t step;		/* the last that @alone has sealed */
	uint64_t round;		/* of gathers */
	struct sk_msg msg;	/* the last reply */
	struct sk_msg why;	/* an earlier one, with an error */
	uint64_t hits;		/* what was failed until then */
	bool lost;		/* its connection */
};

/* Asks for it and looks at what came: 0, or the status of the refusal. */
typedef int (*request_fn)(struct scene *s);

static void mend(struct scene *s)
{
	sk_fault_alloc_next(0, 0);
	sk_fault_os_forget(s->w.fault);
}

static uint64_t hits_of(const struct scene *s)
{
	return sk_fault_alloc_hits() + sk_fault_os_hits(s->w.fault);
}

/* ---- requests ---- */

static int ask_on(struct scene *s, int sock, const int *send, int n_send,
		  int *fds, int *n_fds)
{
	int r = rig_call(sock, &s->msg, send, n_send, fds, n_fds);

	s->lost = r < 0 && strstr(rig_why(&s->msg), "no reply");
	CHECK(r >= 0 || rig_why(&s->msg)[0], "%d without a sentence", r);
	return r;
}

static int ask(struct scene *s, int sock)
{
	return ask_on(s, sock, NULL, 0, NULL, NULL);
}

/* Records of so many bytes: how many there are. */
static int ask_records(struct scene *s, int sock, void *ret, size_t most,
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

static int list(struct scene *s, uint32_t what, uint32_t flags, void *ret,
		size_t most, uint64_t *ret_n)
{
	const bool parts = what == SK_LIST_PARTS;

	s->msg = (struct sk_msg){ .type = SK_MSG_LIST, .body.list = {
		.id = { .job = JOB, .step = 1, .rank = -1,
			.run = parts ? s->ranks[0].run : 0,
			.run_id = parts ? s->ranks[0].run_id : 0 },
		.what = what, .flags = flags } };
	return ask_records(s, s->sock, ret, most, ret_n);
}

static int list_of_snapshots(struct scene *s)
{
	struct sk_wire_snapshot snapshot = { 0 };
	uint64_t n;
	int r = list(s, SK_LIST_SNAPSHOTS, 0, &snapshot, sizeof(snapshot), &n);

	if (r < 0)
		return r;
	CHECK(n == 1 && snapshot.id.step == 1 && snapshot.id.world == 2 &&
	      snapshot.id.run == s->ranks[0].run &&
	      snapshot.id.run_id == s->ranks[0].run_id &&
	      snapshot.images == 2 && snapshot.tensors == 1,
	      "%d snapshots", (int)n);
	CHECK(snapshot.bytes_memory && snapshot.bytes_disk &&
	      snapshot.created_ns && snapshot.digest && !snapshot.text[0] &&
	      snapshot.uid == geteuid() && snapshot.bad_memory == -1 &&
	      snapshot.bad_disk == -1, "it is another one");
	CHECK(snapshot.flags == (SK_SNAP_COMPLETE | SK_SNAP_DURABLE |
				 SK_SNAP_MEMORY | SK_SNAP_DISK |
				 SK_SNAP_NEWEST | SK_SNAP_RESIDENT),
	      "flags %#x", snapshot.flags);
	return 0;
}

static int list_of_all(struct scene *s)
{
	struct sk_wire_snapshot snapshot = { 0 };
	uint64_t n;
	int r;

	s->msg = (struct sk_msg){ .type = SK_MSG_LIST, .body.list = {
		.id = { .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS } };
	r = ask_records(s, s->sock, &snapshot, sizeof(snapshot), &n);
	CHECK(r < 0 || (n && !strcmp(snapshot.id.job, JOB)),
	      "%d snapshots", (int)n);
	return r;
}

static int list_of_images(struct scene *s, uint32_t flags)
{
	struct sk_wire_image images[4] = { 0 };
	uint64_t n;
	int r = list(s, SK_LIST_IMAGES, flags, images, sizeof(images), &n);

	for (int i = 0; i < 4 && r == 0; i++) {
		const struct sk_wire_image *image = &images[i];
		const struct rank *rank = &s->ranks[i / 2];

		CHECK(image->id.rank == i / 2 && image->id.world == 2 &&
		      image->id.step == 1 && image->id.run == rank->run &&
		      image->image && !image->kind &&
		      image->bytes == rank->layouts[0]->image_bytes &&
		      image->place == (i % 2 ? SK_PLACE_DISK :
					       SK_PLACE_MEMORY) &&
		      image->state == SK_IMAGE_DURABLE,
		      "image %d: rank %d, place %u, state %u", i,
		      image->id.rank, image->place, image->state);
	}
	CHECK(r < 0 || n == 4, "%d images", (int)n);
	return r;
}

static int list_of_images_looked_for(struct scene *s)
{
	return list_of_images(s, 0);
}

static int list_of_images_known(struct scene *s)
{
	return list_of_images(s, SK_LIST_KNOWN);
}

static int list_of_parts(struct scene *s)
{
	struct sk_wire_part parts[4] = { 0 };
	uint64_t n;
	int r = list(s, SK_LIST_PARTS, 0, parts, sizeof(parts), &n);

	for (int i = 0; i < 4 && r == 0; i++) {
		const struct sk_layout *l = s->ranks[i / 2].layouts[0];

		CHECK(parts[i].rank == i / 2 && parts[i].image &&
		      parts[i].bytes == l->image_bytes &&
		      parts[i].description == l->description &&
		      memcmp(&parts[i].digest, &l->digest,
			     sizeof(l->digest)) == 0, "part %d", i);
	}
	CHECK(r < 0 || n == 4, "%d parts", (int)n);
	return r;
}

static int open_at(struct scene *s, enum sk_place place, uint32_t flags)
{
	struct sk_wire_image images[4] = { 0 };
	int fds[SK_MSG_FDS], n_fds = 0, r, i = 0;
	uint32_t word = 0;
	uint64_t n;

	r = list(s, SK_LIST_IMAGES, SK_LIST_KNOWN, images, sizeof(images), &n);
	if (r < 0)
		return r;
	while (i < 3 && images[i].place != place)
		i++;
	s->msg = (struct sk_msg){ .type = SK_MSG_OPEN, .body.open = {
		.image = images[i].image, .place = place, .flags = flags } };
	r = ask_on(s, s->sock, NULL, 0, fds, &n_fds);
	if (r < 0)
		return r;
	CHECK(n_fds == 2, "%d descriptors", n_fds);
	CHECK(pread(fds[0], &word, sizeof(word), (off_t)
		    s->ranks[0].layouts[0]->entries[0].offset) ==
	      sizeof(word) && word == rank_word(images[i].id.rank, 1),
	      "it is another image");
	close(fds[0]);
	close(fds[1]);
	s->msg = (struct sk_msg){ .type = SK_MSG_CLOSE, .body.open = {
		.image = images[i].image, .place = place } };
	return ask(s, s->sock);
}

static int open_memory(struct scene *s)
{
	return open_at(s, SK_PLACE_MEMORY, 0);
}

static int open_disk(struct scene *s)
{
	return open_at(s, SK_PLACE_DISK, 0);
}

static int open_sums(struct scene *s)
{
	return open_at(s, SK_PLACE_DISK, SK_OPEN_SUMS);
}

static int map(struct scene *s)
{
	s->msg = (struct sk_msg){ .type = SK_MSG_MAP, .body.map = {
		.state = s->alone.state, .slot = 1 } };
	return ask(s, s->alone.sock);
}

static int take(struct scene *s)
{
	s->msg = (struct sk_msg){ .type = SK_MSG_SLOT, .body.slot = {
		.state = s->alone.state, .step = s->step + 1 } };
	return ask(s, s->alone.sock);
}

static int give_back(struct scene *s, uint32_t slot)
{
	s->msg = (struct sk_msg){ .type = SK_MSG_DISCARD, .body.seal = {
		.state = s->alone.state, .step = s->step + 1,
		.slot = slot } };
	return ask(s, s->alone.sock);
}

static int take_and_discard(struct scene *s)
{
	int r = take(s);

	return r < 0 ? r : give_back(s, s->msg.body.slot_reply.slot);
}

/* What could not be sealed is the rank's still, or lost: it says so. */
static int take_and_seal(struct scene *s)
{
	uint32_t slot;
	int r = take(s);

	if (r < 0)
		return r;
	slot = s->msg.body.slot_reply.slot;
	rank_fill(&s->alone, (int)slot, s->step + 1);
	s->msg = (struct sk_msg){ .type = SK_MSG_SEAL, .body.seal = {
		.state = s->alone.state, .step = s->step + 1,
		.slot = slot } };
	r = ask(s, s->alone.sock);
	if (r == 0) {
		s->step++;
		return 0;
	}
	s->why = s->msg;
	s->hits = hits_of(s);
	mend(s);
	if (!s->lost)
		(void)give_back(s, slot);
	s->msg = s->why;
	return r;
}

static int await_slot(struct scene *s)
{
	s->msg = (struct sk_msg){ .type = SK_MSG_SLOT_WAIT,
				  .body.slot_wait = {
		.id = { .job = ALONE, .run = s->alone.run },
		.timeout_ms = WAIT_MS } };
	return ask(s, s->sock);
}

static int prepare(struct scene *s)
{
	s->msg = (struct sk_msg){ .type = SK_MSG_PREPARE, .body.prepare = {
		.id = { .job = ALONE, .run = s->alone.run },
		.timeout_ms = WAIT_MS } };
	return ask(s, s->sock);
}

static int await_disk(struct scene *s)
{
	s->msg = (struct sk_msg){ .type = SK_MSG_WAIT, .body.wait = {
		.id = { .job = JOB, .step = 1, .rank = -1 }, .until = 3,
		.timeout_ms = WAIT_MS } };
	return ask(s, s->sock);
}

static void send_gather(struct scene *s, int rank, uint32_t bytes)
{
	static const char data[2 * SK_GATHER_INLINE] = "";
	int fd = memfd_create("gather", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	s->msg = (struct sk_msg){ .type = SK_MSG_GATHER, .body.gather = {
		.id = { .job = JOB, .run = s->ranks[0].run,
			.run_id = s->ranks[0].run_id, .step = -1,
			.rank = rank, .world = 2 },
		.round = s->round, .bytes = bytes, .timeout_ms = WAIT_MS } };
	memset(s->msg.body.gather.data, 'a' + rank, SK_GATHER_INLINE);
	CHECK(fd >= 0 && write(fd, data, bytes) == bytes, "memfd");
	CHECK(pwrite(fd, rank ? "b" : "a", 1, 0) == 1, "memfd");
	CHECK(sk_channel_send(sk_os_linux(), s->ranks[rank].sock, &s->msg,
			      &fd, bytes > SK_GATHER_INLINE) == 0, "send");
	close(fd);
}

static int take_gather(struct scene *s, int rank, uint32_t bytes)
{
	int fds[SK_MSG_FDS], n = 0, r;
	char got[2] = "";

	r = rig_reply(s->ranks[rank].sock, &s->msg, fds, &n);
	s->lost |= r < 0 && strstr(rig_why(&s->msg), "no reply");
	if (r < 0)
		return r;
	CHECK(n == 1 && pread(fds[0], &got[0], 1, 0) == 1 &&
	      pread(fds[0], &got[1], 1, bytes) == 1, "nothing is gathered");
	CHECK(got[0] == 'a' && got[1] == 'b', "%.2s", got);
	close(fds[0]);
	return 0;
}

/* Who is refused asks again, for the other one waits: once is enough. */
static int gather_of(struct scene *s, uint32_t bytes)
{
	struct pollfd p[2];
	int r, refused = 0, status = 0;

	s->lost = false;
	for (int i = 0; i < 2; i++) {
		p[i] = (struct pollfd){ .fd = s->ranks[i].sock,
					.events = POLLIN };
		send_gather(s, i, bytes);
	}
	while (p[0].fd >= 0 || p[1].fd >= 0) {
		int i;

		CHECK(poll(p, 2, WAIT_MS) > 0, "nobody is answered");
		i = p[0].fd >= 0 && p[0].revents ? 0 : 1;
		r = take_gather(s, i, bytes);
		if (r == 0) {
			p[i].fd = -1;
			continue;
		}
		CHECK(!s->lost && ++refused <= 2, "again: %s",
		      rig_why(&s->msg));
		status = r;
		s->hits = hits_of(s);
		s->why = s->msg;
		mend(s);
		send_gather(s, i, bytes);
	}
	s->round++;
	if (status < 0)
		s->msg = s->why;
	return status;
}

static int gather_few(struct scene *s)
{
	return gather_of(s, 8);
}

static int gather_many(struct scene *s)
{
	return gather_of(s, 2 * SK_GATHER_INLINE);
}

static int manage_step(struct scene *s, enum sk_msg_type type)
{
	s->msg = (struct sk_msg){ .type = type, .body.manage = {
		.id = { .job = JOB, .step = 1, .rank = -1 } } };
	return ask(s, s->sock);
}

static int pin_and_unpin(struct scene *s)
{
	int r = manage_step(s, SK_MSG_PIN);

	return r < 0 ? r : manage_step(s, SK_MSG_UNPIN);
}

static int retain(struct scene *s, uint32_t flags)
{
	s->msg = (struct sk_msg){ .type = SK_MSG_RETAIN, .body.retain = {
		.id = { .job = JOB, .step = -1, .rank = -1 },
		.retention = { .keep_last = flags & SK_RETAIN_SET ? 9 : 0 },
		.flags = flags } };
	return ask(s, s->sock);
}

static int retain_and_not(struct scene *s)
{
	int r = retain(s, SK_RETAIN_SET);

	CHECK(r < 0 || s->msg.body.retain.retention.keep_last == 9,
	      "it is not kept");
	return r < 0 ? r : retain(s, SK_RETAIN_DEFAULT);
}

/* What tells some apart is named, and whose they are. */
static void check_stats(const struct sk_wire_stat *stats, uint64_t n)
{
	unsigned apart = 0, of_jobs = 0, told = 0;

	for (uint64_t i = 0; i < n; i++) {
		const struct sk_wire_stat *stat = &stats[i];

		CHECK(!strncmp(stat->name, "shardkeep_", 10) && stat->help[0],
		      "\"%s\" is no figure", stat->name);
		CHECK(stat->key[0] || !stat->word[0],
		      "%s: of no key", stat->name);
		apart += stat->key[0] && stat->word[0];
		of_jobs += !strcmp(stat->job, JOB) && stat->uid == geteuid();
		told += stat->value != 0;
	}
	CHECK(apart && of_jobs && told, "%u apart, %u of the job, %u at all",
	      apart, of_jobs, told);
}

static int tell_stats(struct scene *s)
{
	static struct sk_wire_stat stats[1000];
	uint64_t n;
	int r;

	s->msg = (struct sk_msg){ .type = SK_MSG_STATS };
	r = ask_records(s, s->sock, stats, sizeof(stats), &n);
	CHECK(r < 0 || (n > 50 && n <= SK_ARRAY_SIZE(stats)), "%d figures",
	      (int)n);
	if (r == 0)
		check_stats(stats, n);
	return r;
}

static int tell_status(struct scene *s)
{
	const struct sk_wire_status_reply *reply = &s->msg.body.status_reply;
	struct sk_wire_state state;
	uint64_t n;
	int r;

	s->msg = (struct sk_msg){ .type = SK_MSG_STATUS };
	r = ask_records(s, s->sock, &state, sizeof(state), &n);
	CHECK(r < 0 || (!reply->stopping && reply->uptime_ns &&
			reply->io[0] && !reply->metrics[0]),
	      "it tells something else of itself");
	return r;
}

/* Of another job; it leaves in order. */
static int come_and_go(struct scene *s)
{
	struct rank r;
	int status;

	status = rank_open(&r, &s->w.rig, &(struct rank_options){
		.job = "more", .world = 1 });
	s->msg = r.msg;
	if (status == 0) {
		status = rank_unregister(&r);
		s->msg = r.msg;
	}
	CHECK(status >= 0 || rig_why(&s->msg)[0], "no sentence");
	s->lost = false;
	if (r.sock >= 0)
		rank_close(&r);
	return status;
}

#define ANY UINT_MAX		/* it works in the background as well */

static const struct {
	const char *name;
	request_fn fn;
	unsigned spared;	/* allocations that it can do without, each */
} requests[] = {
	/* What memory has complete is listed whatever the store says. */
	{ "list of snapshots", list_of_snapshots, 8 },
	{ "list of all", list_of_all, 10 },
	{ "list of images", list_of_images_looked_for, 8 },
	{ "list of known images", list_of_images_known, 0 },
	{ "list of parts", list_of_parts, 8 },
	{ "open, in memory", open_memory, 0 },
	{ "open, on disk", open_disk, 0 },
	{ "open, by checksums", open_sums, 0 },
	{ "map", map, 0 },
	{ "a slot, discarded", take_and_discard, 0 },
	{ "a slot, sealed", take_and_seal, 0 },
	{ "wait for a slot", await_slot, 0 },
	{ "wait for memory", prepare, 0 },
	{ "wait for the disk", await_disk, 0 },
	{ "gather in messages", gather_few, 0 },
	{ "gather in memory", gather_many, ANY },
	/* A look at the store that goes on beside it takes some as well. */
	{ "pin", pin_and_unpin, 10 },
	{ "stats", tell_stats, 0 },
	{ "status", tell_status, 0 },
	{ "retain", retain_and_not, ANY },
	{ "register", come_and_go, ANY },
};

/* ---- the scene ---- */

static void begin(struct scene *s)
{
	const struct rank_options o = { .job = JOB, .world = 2 };
	struct rank_options other = o;

	*s = (struct scene){ 0 };
	sk_fault_alloc_share();
	whole_init(&s->w);
	whole_start(&s->w);
	CHECK(s->w.serves, "it did not start: %s", whole_log(&s->w));
	other.rank = 1;
	CHECK_STATUS(rank_open(&s->ranks[0], &s->w.rig, &o), 0,
		     &s->ranks[0].msg);
	CHECK_STATUS(rank_open(&s->ranks[1], &s->w.rig, &other), 0,
		     &s->ranks[1].msg);
	CHECK_STATUS(rank_open(&s->alone, &s->w.rig, &(struct rank_options){
		.job = ALONE, .world = 1, .slots = 4,
		.flush_every = 1u << 20 }), 0, &s->alone.msg);
	for (int i = 0; i < 2; i++)
		rank_snapshot(&s->ranks[i], 1);
	s->sock = rig_connect(&s->w.rig);
	CHECK_STATUS(await_disk(s), 0, &s->msg);
	sk_fault_os_advance(s->w.fault, 1000000);
}

static void end(struct scene *s)
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

/* ---- faults ---- */

static const struct {
	enum sk_fault_op op;
	int error;
	bool refused;		/* there is no other way */
	bool otherwise;		/* it may be told in other words, or none */
} calls[] = {
	{ SK_FAULT_MEMFD_CREATE, EMFILE, true },
	{ SK_FAULT_FTRUNCATE, ENOSPC, true },
	{ SK_FAULT_FCNTL_SEAL, EPERM, true },
	{ SK_FAULT_MMAP, ENOMEM, true },
	{ SK_FAULT_OPENAT, EMFILE }, { SK_FAULT_FSTATAT, EIO },
	{ SK_FAULT_PREAD, EIO }, { SK_FAULT_PWRITE, ENOSPC },
	{ SK_FAULT_FSYNC, EIO }, { SK_FAULT_MKDIRAT, EACCES },
	{ SK_FAULT_RENAMEAT, EROFS }, { SK_FAULT_UNLINKAT, EROFS },
	{ SK_FAULT_GETDENTS, EIO }, { SK_FAULT_FLOCK, ENOLCK },
	{ SK_FAULT_FSTATFS, EIO }, { SK_FAULT_RANDOM, EIO },
	{ SK_FAULT_SENDMSG, EAGAIN },
	{ SK_FAULT_FSTAT, EIO, .otherwise = true },
	{ SK_FAULT_FCNTL, EMFILE, .otherwise = true },
	{ SK_FAULT_EPOLL_CTL, ENOSPC, .otherwise = true },
};

/* How much was failed meanwhile; it is no more. */
static uint64_t meet(struct scene *s, size_t i, int *ret_status)
{
	uint64_t hits;

	s->hits = 0;
	*ret_status = requests[i].fn(s);
	hits = s->hits + hits_of(s);
	mend(s);
	return hits;
}

static void must_go_on(struct scene *s, size_t i)
{
	int r;

	if (s->lost) {
		end(s);
		begin(s);
	}
	r = requests[i].fn(s);
	CHECK(r == 0, "%s: afterwards it is refused: %s", requests[i].name,
	      rig_why(&s->msg));
}

static void test_allocations(struct scene *s, size_t i, uint64_t times,
			     unsigned most_spared)
{
	uint64_t hits = 1;
	unsigned spared = 0;
	int r;

	for (uint64_t n = 1; hits && n < ROUNDS_MOST; n++) {
		sk_fault_alloc_next(n, times);
		hits = meet(s, i, &r);
		/* A connection that cannot be made is none. */
		CHECK(r == 0 || strstr(rig_why(&s->msg), "memory") ||
		      strstr(rig_why(&s->msg), "no reply"),
		      "%s, allocation %d: %d, %s", requests[i].name, (int)n,
		      r, rig_why(&s->msg));
		spared += hits && r == 0;
		must_go_on(s, i);
	}
	CHECK(!hits, "%s has no end", requests[i].name);
	CHECK(spared <= most_spared, "%s does without %u allocations",
	      requests[i].name, spared);
}

static void test_calls(struct scene *s, size_t i, size_t k)
{
	const char *words = strerror(calls[k].error);
	uint64_t hits = 1;
	int r;

	for (uint64_t n = 1; hits && n < ROUNDS_MOST; n++) {
		mend(s);
		sk_fault_os_fail(s->w.fault, calls[k].op, n, 1,
				 calls[k].error);
		hits = meet(s, i, &r);
		CHECK(r == 0 || calls[k].otherwise ||
		      strstr(rig_why(&s->msg), words),
		      "%s, operation %d: %d, %s", requests[i].name,
		      calls[k].op, r, rig_why(&s->msg));
		CHECK(!hits || r < 0 || !calls[k].refused ||
		      requests[i].spared == ANY, "%s, operation %d: nothing "
		      "is told", requests[i].name, calls[k].op);
		must_go_on(s, i);
	}
	CHECK(!hits, "%s has no end", requests[i].name);
}

/* Each descriptor may be 0, and is none the worse for it. */
static void test_zeros(struct scene *s, size_t i)
{
	uint64_t n = 1, calls_made = 1;
	int r;

	for (; n <= calls_made; n++) {
		mend(s);
		sk_fault_os_meddle(s->w.fault, SK_FAULT_ANY, 1,
				   whole_take_zero, NULL);
		sk_fault_os_meddle(s->w.fault, SK_FAULT_OPENAT, n,
				   whole_free_zero, NULL);
		r = requests[i].fn(s);
		calls_made = sk_fault_os_calls(s->w.fault, SK_FAULT_OPENAT);
		CHECK(r == 0, "%s, descriptor 0: %s", requests[i].name,
		      rig_why(&s->msg));
	}
	mend(s);
}

/* Who is refused its own descriptor of what all have been given comes back
 * too late. */
static bool makes_sense(size_t i, size_t k)
{
	return calls[k].op != SK_FAULT_FCNTL ||
	       (requests[i].fn != gather_few && requests[i].fn != gather_many);
}

int main(void)
{
	struct scene s;

	begin(&s);
	for (size_t i = 0; i < SK_ARRAY_SIZE(requests); i++) {
		unsigned spared = requests[i].spared;

		must_go_on(&s, i);
		test_allocations(&s, i, 1, spared);
		test_allocations(&s, i, SK_FAULT_ALLOC_ALWAYS,
				 spared > 2 ? spared : spared / 2);
		for (size_t k = 0; k < SK_ARRAY_SIZE(calls); k++)
			if (makes_sense(i, k))
				test_calls(&s, i, k);
		test_zeros(&s, i);
	}
	end(&s);
	return 0;
}
