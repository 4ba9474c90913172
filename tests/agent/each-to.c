/* SPDX-License-Identifier: Apache-2.0 */
/* What a living agent is to do: slots, gathers, waits, and what is kept. */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/each.h"
#include "base/util.h"
#include "store/private.h"
#include "support/files.h"

#define SECOND UINT64_C(1000000000)

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
		.id = { .job = EACH_ALONE, .run = s->alone.run },
		.timeout_ms = WAIT_MS } };
	return ask(s, s->sock);
}

static int prepare(struct scene *s)
{
	s->msg = (struct sk_msg){ .type = SK_MSG_PREPARE, .body.prepare = {
		.id = { .job = EACH_ALONE, .run = s->alone.run },
		.timeout_ms = WAIT_MS } };
	return ask(s, s->sock);
}

static int await_disk(struct scene *s)
{
	s->msg = (struct sk_msg){ .type = SK_MSG_WAIT, .body.wait = {
		.id = { .job = EACH_JOB, .step = 1, .rank = -1 }, .until = 3,
		.timeout_ms = WAIT_MS } };
	return ask(s, s->sock);
}

static void send_gather(struct scene *s, int rank, uint32_t bytes)
{
	static const char data[2 * SK_GATHER_INLINE] = "";
	int fd = memfd_create("gather", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	s->msg = (struct sk_msg){ .type = SK_MSG_GATHER, .body.gather = {
		.id = { .job = EACH_JOB, .run = s->ranks[0].run,
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
		.id = { .job = EACH_JOB, .step = 1, .rank = -1 } } };
	return ask(s, s->sock);
}

static int pin_and_unpin(struct scene *s)
{
	int r = manage_step(s, SK_MSG_PIN);

	if (r == 0)
		return manage_step(s, SK_MSG_UNPIN);
	s->why = s->msg;
	s->hits = hits_of(s);
	mend(s);
	CHECK(s->lost || !(snapshot_flags(s->sock, EACH_JOB, 1) &
			   SK_SNAP_PINNED), "it was refused: %s",
	      rig_why(&s->why));
	s->msg = s->why;
	return r;
}

static int retain(struct scene *s, uint32_t flags)
{
	s->msg = (struct sk_msg){ .type = SK_MSG_RETAIN, .body.retain = {
		.id = { .job = EACH_JOB, .step = -1, .rank = -1 },
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

/* A job that only the disk knows, each time another one. It goes on behind
 * what is there. */
static int come_back(struct scene *s)
{
	const struct sk_store_run seven = { 7, 777 };
	char job[32], path[160], name[256], text[SK_RUN_TEXT_MAX];
	struct rank r;
	int status;
	FILE *f;

	(void)snprintf(job, sizeof(job), "back-%u", s->jobs++);
	(void)snprintf(path, sizeof(path), "%s/%s", s->w.rig.store, job);
	CHECK(mkdir(path, 0700) == 0, "mkdir");
	(void)snprintf(name, sizeof(name), "%s/step-000000000009", path);
	CHECK(mkdir(name, 0700) == 0, "mkdir");
	(void)strcat(name, "/.run");
	sk_run_text_format(text, &seven);
	f = fopen(name, "w");
	CHECK(f && fprintf(f, "%s\n", text) > 0 && fclose(f) == 0, "run");
	status = rank_open(&r, &s->w.rig, &(struct rank_options){
		.job = job, .world = 1, .rows = 1 });
	s->msg = r.msg;
	CHECK(status < 0 || r.run > 7, "run %d after 7; "
	      "operation %d failed", (int)r.run,
	      sk_fault_os_hits(s->w.fault) ? (int)sk_fault_os_hit(s->w.fault) :
					     -1);
	if (status == 0) {
		status = rank_unregister(&r);
		s->msg = r.msg;
	}
	s->lost = false;
	if (r.sock >= 0)
		rank_close(&r);
	remove_tree(path);
	return status;
}

/* The process lives on when its connection ends: nobody knows whether it
 * writes into its slots any more. */
static int leave_a_process(struct scene *s)
{
	int ready[2], go[2], status = 0;
	struct sk_msg *said = mmap(NULL, sizeof(*said), PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct rank r;
	pid_t pid;
	char c;

	CHECK(said != MAP_FAILED && pipe(ready) == 0 && pipe(go) == 0,
	      "pipe");
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		close(go[1]);
		status = rank_open(&r, &s->w.rig, &(struct rank_options){
			.job = "left", .world = 1, .rows = 1 });
		*said = r.msg;
		if (r.sock >= 0)
			rank_close(&r);
		CHECK(write(ready[1], "1", 1) == 1 && read(go[0], &c, 1) == 0,
		      "read");
		_exit(status < 0);
	}
	close(ready[1]);
	close(go[0]);
	CHECK(read(ready[0], &c, 1) == 1, "it ended");
	s->msg = (struct sk_msg){ .type = SK_MSG_STATUS };
	(void)ask(s, s->sock);
	if (s->lost) {
		close(s->sock);
		s->sock = -1;
	}
	close(go[1]);
	close(ready[0]);
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "%#x",
	      status);
	status = WEXITSTATUS(status) ? -EIO : 0;
	if (status < 0)
		s->msg = *said;
	munmap(said, sizeof(*said));
	return status;
}

/* It is looked for on disk first. */
static int pin_nothing(struct scene *s)
{
	int r;

	s->msg = (struct sk_msg){ .type = SK_MSG_PIN, .body.manage = {
		.id = { .job = EACH_JOB, .step = 99, .rank = -1 } } };
	r = ask(s, s->sock);
	CHECK(r < 0, "a step that is not there is pinned");
	return r == -ENOENT && strstr(rig_why(&s->msg), "no snapshot") ? 0 : r;
}

/* One that does not read its answer holds up nobody else's. */
static int beside_who_does_not_read(struct scene *s)
{
	int slow = rig_try_connect(&s->w.rig, &s->msg);
	struct sk_msg msg = { .type = SK_MSG_STATS };
	int r;

	if (slow < 0)
		return slow;
	rig_send(slow, &msg);
	s->msg = msg;
	r = ask(s, s->sock);
	close(slow);
	return r;
}

static int count_of(const struct scene *s)
{
	char path[64];
	DIR *dir;
	int n = 0;

	(void)snprintf(path, sizeof(path), "/proc/%d/fd",
		       (int)s->w.rig.agent);
	dir = opendir(path);
	CHECK(dir, "%s", path);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* A connection that ends for what it sent is not kept for what it has not
 * read, where that has no descriptor. */
static int end_by_nonsense(struct scene *s)
{
	int n = count_of(s), sock = rig_try_connect(&s->w.rig, &s->msg);
	struct sk_msg msg = { .type = SK_MSG_MAP,
			      .body.map.state = 77 };
	struct pollfd p = { .fd = sock, .events = POLLIN };

	if (sock < 0)
		return sock;
	rig_send(sock, &msg);
	CHECK(poll(&p, 1, WAIT_MS) == 1, "no answer");
	CHECK(write(sock, "?", 1) == 1, "write");
	AWAIT(count_of(s) <= n, "%d descriptors, not %d", count_of(s), n);
	close(sock);
	return 0;
}

static int evict(struct scene *s, uint32_t flags)
{
	s->msg = (struct sk_msg){ .type = SK_MSG_EVICT, .body.manage = {
		.id = { .job = EACH_ALONE, .step = s->step, .rank = -1 },
		.flags = flags } };
	return ask(s, s->sock);
}

/* What could not be written is tried again, for good, and told once. */
static int await_durable(struct scene *s)
{
	int r = await_step(s, EACH_ALONE, s->step, 3, 1), again = r;

	if (r == 0)
		return 0;
	s->why = s->msg;
	s->hits = hits_of(s);
	mend(s);
	for (int i = 0; i < 1000 && again < 0 && !s->lost; i++) {
		sk_fault_os_advance(s->w.fault, SECOND);
		again = await_step(s, EACH_ALONE, s->step, 3, 1);
	}
	CHECK(again == 0 || s->lost, "it is never written: %s",
	      rig_why(&s->msg));
	/* There may have been no memory to say it in. */
	s->msg = s->why;
	return strstr(rig_why(&s->msg), "could not be flushed") ? 0 : r;
}

/* Sealed, written, and evicted of both places. */
static int live_and_die(struct scene *s)
{
	int r = take_and_seal(s), gone;

	if (r < 0)
		return r;
	s->msg = (struct sk_msg){ .type = SK_MSG_FLUSH, .body.manage = {
		.id = { .job = EACH_ALONE, .step = s->step, .rank = -1 } } };
	r = ask(s, s->sock);
	if (r < 0)
		return r;
	r = await_durable(s);
	s->why = s->msg;
	gone = s->lost ? 0 : evict(s, SK_EVICT_MEMORY | SK_EVICT_DISK |
				   SK_EVICT_FORCE);
	if (r < 0)
		s->msg = s->why;
	return r < 0 ? r : gone;
}

static const struct asked all[] = {
	{ "map", map, 0 },
	{ "a slot, discarded", take_and_discard, 0 },
	{ "a slot, sealed", take_and_seal, 0 },
	{ "wait for a slot", await_slot, 0 },
	{ "wait for memory", prepare, 0 },
	{ "wait for the disk", await_disk, 0 },
	{ "gather in messages", gather_few, 0, true },
	{ "gather in memory", gather_many, ANY, true },
	/* A look at the store that goes on beside it takes some as well. */
	{ "pin", pin_and_unpin, 10 },
	{ "retain", retain_and_not, ANY },
	{ "register", come_and_go, ANY },
	{ "register, known on disk", come_back, ANY },
	{ "leave a process", leave_a_process, ANY },
	{ "pin nothing", pin_nothing, 10 },
	{ "beside who does not read", beside_who_does_not_read, ANY },
	{ "end by nonsense", end_by_nonsense, ANY },
	{ "a step's life", live_and_die, ANY, .keeps = true },
};

const struct asked_set asked_to = { all, SK_ARRAY_SIZE(all) };
