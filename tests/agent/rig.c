/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/rig.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bytes/checksum.h"
#include "memory/extent.h"
#include "tensor/mesh.h"
#include "base/util.h"
#include "support/agent.h"
#include "support/files.h"
#include "support/misuse.h"

#define COLUMNS 1024	/* of F32: a page a row */
#define MAX_ARGS 32

/* ---- the agent ---- */

void rig_init(struct rig *rig, const char *program)
{
	*rig = (struct rig){ .program = program };
	strcpy(rig->dir, "/tmp/shardkeep-agent-XXXXXX");
	CHECK(program, "the agent's path is the first argument");
	CHECK(mkdtemp(rig->dir), "mkdtemp: %s", strerror(errno));
	/* Other users of a test come through it. */
	CHECK(chmod(rig->dir, 0755) == 0, "chmod");
	snprintf(rig->socket, sizeof(rig->socket), "%s/agent.sock", rig->dir);
	snprintf(rig->store, sizeof(rig->store), "%s/store", rig->dir);
	misuse_watch(rig->dir);
}

void rig_start(struct rig *rig, ...)
{
	const char *log = getenv("SK_TEST_LOG");
	const char *args[MAX_ARGS] = { rig->program, "--socket", rig->socket,
				       "--log-level", log ? log : "warning" };
	va_list ap;
	int n = 5;

	if (!rig->retains) {
		args[n++] = "--keep-last";
		args[n++] = "0";
	}
	va_start(ap, rig);
	while ((args[n] = va_arg(ap, const char *)))
		n++;
	va_end(ap);
	rig->agent = agent_start(args);
	CHECK(rig->agent > 0, "the agent did not start");
}

void rig_freeze(const struct rig *rig)
{
	int status;

	CHECK(kill(rig->agent, SIGSTOP) == 0 &&
	      waitpid(rig->agent, &status, WUNTRACED) == rig->agent &&
	      WIFSTOPPED(status), "stop");
}

void rig_thaw(const struct rig *rig)
{
	CHECK(kill(rig->agent, SIGCONT) == 0, "go on");
}

int rig_wait(struct rig *rig)
{
	int status;

	CHECK(waitpid(rig->agent, &status, 0) == rig->agent, "waitpid");
	rig->agent = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) :
				   128 + WTERMSIG(status);
}

int rig_stop(struct rig *rig)
{
	CHECK(kill(rig->agent, SIGTERM) == 0, "kill");
	return rig_wait(rig);
}

void rig_remove(struct rig *rig)
{
	CHECK(!rig->agent, "the agent still runs");
	CHECK(!misuse_in(rig->dir), "misuse: %s", misuse_in(rig->dir));
	CHECK(remove_tree(rig->dir) == 0, "cannot remove %s", rig->dir);
}

/* ---- the wire ---- */

static unsigned spoken;

void rig_speak(unsigned version)
{
	spoken = version;
}

int rig_try_connect(const struct rig *rig, struct sk_msg *ret_msg)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), r;
	const struct timeval wait = { .tv_sec = 2 * WAIT_MS / 1000 };

	/* What is not taken fails, and does not hang. */
	(void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	*ret_msg = (struct sk_msg){ .type = SK_MSG_HELLO,
		.body.hello.version = spoken ? spoken : SK_WIRE_VERSION };
	strcpy(addr.sun_path, rig->socket);
	r = connect(sock, (struct sockaddr *)&addr, sizeof(addr)) < 0 ?
	    -errno : rig_call(sock, ret_msg, NULL, 0, NULL, NULL);
	if (r == 0)
		return sock;
	close(sock);
	return r;
}

int rig_connect(const struct rig *rig)
{
	struct sk_msg msg;
	int sock = rig_try_connect(rig, &msg);

	CHECK(sock >= 0, "connect: %s", strerror(-sock));
	return sock;
}

void rig_send(int sock, struct sk_msg *msg)
{
	CHECK(sk_channel_send(sk_os_linux(), sock, msg, NULL, 0) == 0, "send");
}

int rig_reply(int sock, struct sk_msg *msg, int *fds, int *n_fds)
{
	const struct sk_os *os = sk_os_linux();
	int got[SK_MSG_FDS], n = 0, r;

	r = sk_channel_wait(os, sock, os->now_ns(os) +
			    WAIT_MS * UINT64_C(2000000));
	if (r == 0)
		r = sk_channel_recv(os, sock, msg, got, &n);
	if (r < 0) {
		msg->type = SK_MSG_HELLO;
		snprintf(msg->body.text, SK_ERR_MAX, "no reply: %s",
			 strerror(-r));
		return r;
	}
	for (int i = 0; i < n && !fds; i++)
		close(got[i]);
	if (fds)
		memcpy(fds, got, sizeof(int) * (size_t)n);
	if (n_fds)
		*n_fds = n;
	return msg->status;
}

int rig_call(int sock, struct sk_msg *msg, const int *send, int n_send,
	     int *fds, int *n_fds)
{
	static const uint32_t seq = 77;

	msg->seq = seq;
	msg->status = 0;
	if (spoken)
		msg->version = (uint16_t)spoken;
	if (sk_channel_send(sk_os_linux(), sock, msg, send, n_send) < 0) {
		msg->type = SK_MSG_HELLO;
		strcpy(msg->body.text, "no reply: it is closed");
		return -EPIPE;
	}
	return rig_reply(sock, msg, fds, n_fds);
}

const char *rig_why(const struct sk_msg *msg)
{
	return msg->type == SK_MSG_SLOT ? msg->body.slot_reply.text :
					  msg->body.text;
}

/* ---- ranks ---- */

static struct sk_item *make_items(const struct rank_options *o,
				  struct sk_mesh *mesh, uint32_t *ret_n)
{
	int64_t rows = o->rows ? o->rows : 16;
	const struct sk_item first[2] = {
		{ .spec = { .name = "w", .dtype = SK_F32, .ndim = 2,
			    .shape = { rows * o->world, COLUMNS },
			    .placements = { SK_SHARD(0) } } },
		{ .spec = { .name = "r", .dtype = SK_F32, .ndim = 1,
			    .shape = { o->wide ? o->wide : COLUMNS } } },
	};
	uint32_t n = o->replicated ? 2 : 1;
	struct sk_item *items = calloc(n + o->more, sizeof(*items));

	CHECK(items, "no memory");
	memcpy(items, first, n * sizeof(*items));
	items[0].spec.mesh = mesh;
	for (unsigned i = 0; i < o->more; i++) {
		char *name = NULL;

		CHECK(asprintf(&name, "%u.layers.%u.weight", o->salt, i) > 0,
		      "no memory");
		items[n++] = (struct sk_item){ .spec = {
			.name = name, .dtype = SK_F32, .ndim = 1,
			.shape = { 1 } } };
	}
	*ret_n = n;
	return items;
}

static void make_layouts(struct rank *r, const struct rank_options *o)
{
	struct sk_err err = { "" };
	struct sk_item *items;
	struct sk_mesh *mesh;
	uint32_t n;
	int e;

	e = sk_mesh_new(1, (int64_t[]){ o->world }, NULL, NULL, &mesh, &err);
	CHECK(e == 0, "mesh: %s", err.text);
	items = make_items(o, mesh, &n);
	for (int kind = 0; kind < (o->replicated ? 2 : 1); kind++) {
		e = sk_layout_new(o->job, o->rank, o->world,
				  (enum sk_image_kind)kind, items, n,
				  &r->layouts[kind], &err);
		CHECK(e == 0, "layout: %s", err.text);
	}
	for (uint32_t i = n - o->more; i < n; i++)
		free((char *)items[i].spec.name);
	free(items);
	sk_mesh_unref(mesh);
	if (r->layouts[1] && !r->layouts[1]->n_entries)
		r->layouts[1] = sk_layout_free(r->layouts[1]);
}

static int headers_fd(const struct rank *r)
{
	int fd = memfd_create("layouts", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	for (int kind = 0; kind < 2; kind++) {
		const struct sk_layout *l = r->layouts[kind];

		CHECK(!l || write(fd, l->header, l->header_bytes) ==
		      (ssize_t)l->header_bytes, "write");
	}
	CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0, "seal");
	return fd;
}

static int map_slot(struct rank *r, uint32_t slot)
{
	struct sk_msg msg = { .type = SK_MSG_MAP,
			      .body.map = { .state = r->state,
					    .slot = slot } };
	int fds[SK_MSG_FDS], n = 0, status;

	status = rig_call(r->sock, &msg, NULL, 0, fds, &n);
	if (status < 0) {
		r->msg = msg;
		return status;
	}
	CHECK(n == 1 + !!r->layouts[1], "%d descriptors", n);
	for (int i = 0; i < n; i++) {
		r->maps[slot][i] = mmap(NULL, r->layouts[i]->image_bytes,
					PROT_READ | PROT_WRITE, MAP_SHARED,
					fds[i], 0);
		CHECK(r->maps[slot][i] != MAP_FAILED, "mmap");
		close(fds[i]);
	}
	return 0;
}

/* REGISTER, of the state that it is already if there is one. */
static void put_begun(const struct rank_options *o,
		      struct sk_wire_register *reg)
{
#if SK_WIRE_VERSION >= 6
	reg->flags |= o->on_devices ? SK_REGISTER_DEVICES : 0;
	if (!o->of)
		return;
	reg->flags |= SK_REGISTER_BEGUN | (o->newest ? SK_REGISTER_NEWEST : 0);
	reg->begun = (struct sk_wire_begun){ o->of->run, o->of->run_id,
					     o->begun };
#else
	CHECK(!o->of, "nobody can say so");
	(void)reg;
#endif
}

static int do_register(struct rank *r, const struct rank_options *o,
		       uint32_t flags)
{
	struct sk_wire_register *reg = &r->msg.body.reg;
	int fd, status;

	r->msg = (struct sk_msg){ 0 };
	make_layouts(r, o);
	reg->state = r->state;
	reg->flags = flags;
	r->msg.type = SK_MSG_REGISTER;
	reg->id = (struct sk_wire_id){ .run = o->run, .run_id = o->run_id,
				       .rank = o->rank,
				       .world = o->world };
	snprintf(reg->id.job, sizeof(reg->id.job), "%s", o->job);
	for (int kind = 0; kind < 2 && r->layouts[kind]; kind++) {
		reg->header_bytes[kind] = r->layouts[kind]->header_bytes;
		reg->image_bytes[kind] = r->layouts[kind]->image_bytes;
	}
	reg->slots = o->slots ? o->slots : 2;
	reg->flush_every = o->flush_every || o->by_cadence ? o->flush_every :
							     1;
	reg->retention.keep_last = o->keep_last;
	reg->flags |= o->keep_last ? SK_REGISTER_RETAIN : 0;
	reg->numa_node = -1;
	put_begun(o, reg);
	fd = headers_fd(r);
	status = rig_call(r->sock, &r->msg, &fd, 1, NULL, NULL);
	close(fd);
	if (status < 0)
		return status;
	r->state = r->msg.body.reg_reply.state;
	r->run = r->msg.body.reg_reply.run;
	r->run_id = r->msg.body.reg_reply.run_id;
	r->slots = r->msg.body.reg_reply.slots;
	return 0;
}

int rank_open(struct rank *r, const struct rig *rig,
	      const struct rank_options *o)
{
	int status;

	*r = (struct rank){ .rank = o->rank, .world = o->world };
	snprintf(r->job, sizeof(r->job), "%s", o->job);
	r->sock = rig_try_connect(rig, &r->msg);
	if (r->sock < 0)
		return r->sock;
	status = do_register(r, o, 0);
	if (status < 0)
		return status;
	CHECK(r->slots <= 8, "%u slots", r->slots);
	for (uint32_t i = 0; i < r->slots && status == 0; i++)
		status = map_slot(r, i);
	return status;
}

static void unmap_slots(struct rank *r)
{
	for (uint32_t i = 0; i < r->slots; i++) {
		for (int kind = 0; kind < 2; kind++) {
			if (r->maps[i][kind])
				munmap(r->maps[i][kind],
				       r->layouts[kind]->image_bytes);
			r->maps[i][kind] = NULL;
		}
	}
	r->slots = 0;
	r->layouts[0] = sk_layout_free(r->layouts[0]);
	r->layouts[1] = sk_layout_free(r->layouts[1]);
}

int rank_again(struct rank *r, const struct rank_options *o)
{
	unmap_slots(r);
	return do_register(r, o, SK_REGISTER_LATER);
}

void rank_close(struct rank *r)
{
	close(r->sock);
	unmap_slots(r);
}

int rank_unregister(struct rank *r)
{
	r->msg = (struct sk_msg){ .type = SK_MSG_UNREGISTER,
				  .body.state = r->state };
	return rig_call(r->sock, &r->msg, NULL, 0, NULL, NULL);
}

int rank_device_slot(struct rank *r, const uint8_t uuid[16])
{
	const struct sk_layout *l = r->layouts[0];
	const struct sk_extent all = { .from = l->header_bytes,
				       .to = l->image_bytes };
	int fd = memfd_create("extents", MFD_CLOEXEC), status;

	CHECK(fd >= 0 && write(fd, &all, sizeof(all)) == sizeof(all),
	      "memfd");
	r->msg = (struct sk_msg){ .type = SK_MSG_DEVICE_SLOT,
				  .body.device_slot = { .state = r->state,
							.n_extents = 1 } };
	memcpy(r->msg.body.device_slot.uuid, uuid, 16);
	status = rig_call(r->sock, &r->msg, &fd, 1, NULL, NULL);
	close(fd);
	/* Who asks again is not to outrun the thread that closes what it
	 * gives. */
	for (int i = 0; i < 30 && status == -EAGAIN; i++) {
		struct sk_msg other = { .type = SK_MSG_STATUS };

		CHECK_STATUS(rig_call(r->sock, &other, NULL, 0, NULL, NULL), 0,
			     &other);
	}
	return status;
}

int rank_slot(struct rank *r, int64_t step, uint32_t flags)
{
	int status;

	r->msg = (struct sk_msg){ .type = SK_MSG_SLOT,
				  .body.slot = { .state = r->state,
						 .step = step,
						 .flags = flags } };
	status = rig_call(r->sock, &r->msg, NULL, 0, NULL, NULL);
	return status < 0 ? status : (int)r->msg.body.slot_reply.slot;
}

uint32_t rank_word(int32_t rank, int64_t step)
{
	return (uint32_t)(rank * 1000003 + step * 7 + 1);
}

static void fill_image(const struct rank *r, const struct sk_layout *l,
		       char *image, int64_t step)
{
	struct sk_stamp stamp = { .run = r->run, .run_id = r->run_id,
				  .step = (uint64_t)step };

	stamp.sums = calloc(l->n_sums + 1u, sizeof(uint64_t));
	for (uint32_t i = 0; i < l->n_entries; i++) {
		const struct sk_entry *e = &l->entries[i];
		uint32_t *words = (uint32_t *)(image + e->offset);

		for (uint64_t w = 0; w < e->bytes / 4; w++)
			words[w] = rank_word(r->rank, step);
		for (uint32_t k = 0; k < e->n_sums; k++) {
			uint64_t at = k * SK_SUM_CHUNK;
			uint64_t left = e->bytes - at;

			stamp.sums[e->first_sum + k] =
				sk_xxh3(image + e->offset + at,
					left < SK_SUM_CHUNK ? left :
							      SK_SUM_CHUNK);
		}
	}
	sk_layout_stamp(l, &stamp, image);
	free(stamp.sums);
}

void rank_fill(struct rank *r, int slot, int64_t step)
{
	for (int kind = 0; kind < 2 && r->layouts[kind]; kind++)
		fill_image(r, r->layouts[kind], r->maps[slot][kind], step);
}

int rank_seal(struct rank *r, int slot, int64_t step)
{
	r->msg = (struct sk_msg){ .type = SK_MSG_SEAL,
				  .body.seal = { .state = r->state,
						 .step = step,
						 .slot = (uint32_t)slot } };
	return rig_call(r->sock, &r->msg, NULL, 0, NULL, NULL);
}

void rank_snapshot(struct rank *r, int64_t step)
{
	int slot = rank_slot(r, step, 0);

	CHECK(slot >= 0, "rank %d step %lld: no slot: %d %s", r->rank,
	      (long long)step, slot, rig_why(&r->msg));
	rank_fill(r, slot, step);
	CHECK_STATUS(rank_seal(r, slot, step), 0, &r->msg);
}

static void make_wait(struct rank *r, int64_t step, uint32_t until,
		      uint32_t timeout_ms)
{
	r->msg = (struct sk_msg){ .type = SK_MSG_WAIT, .body.wait = {
		.id = { .step = step, .rank = r->rank }, .until = until,
		.timeout_ms = timeout_ms } };
	strcpy(r->msg.body.wait.id.job, r->job);
}

int rank_wait(struct rank *r, int64_t step, uint32_t until,
	      uint32_t timeout_ms)
{
	make_wait(r, step, until, timeout_ms);
	return rig_call(r->sock, &r->msg, NULL, 0, NULL, NULL);
}

void rank_write_steps(const struct rig *rig, const char *job, int steps)
{
	struct rank r;

	CHECK_STATUS(rank_open(&r, rig, &(struct rank_options){
		.job = job, .world = 1, .rows = 1 }), 0, &r.msg);
	for (int64_t step = 1; step <= steps; step++) {
		CHECK_STATUS(rank_await_slot(&r), 0, &r.msg);
		rank_snapshot(&r, step);
		CHECK_STATUS(rank_wait(&r, step, 3, WAIT_MS), 0, &r.msg);
	}
	rank_close(&r);
}

void rank_send_wait(struct rank *r, int64_t step, uint32_t until,
		    uint32_t timeout_ms)
{
	make_wait(r, step, until, timeout_ms);
	rig_send(r->sock, &r->msg);
}

int rank_await_slot(struct rank *r)
{
	r->msg = (struct sk_msg){ .type = SK_MSG_SLOT_WAIT,
				  .body.slot_wait = {
		.id = { .run = r->run, .run_id = r->run_id, .step = -1,
			.rank = r->rank }, .timeout_ms = WAIT_MS } };
	strcpy(r->msg.body.slot_wait.id.job, r->job);
	return rig_call(r->sock, &r->msg, NULL, 0, NULL, NULL);
}

/* ---- lists ---- */

static void *read_list(int sock, struct sk_msg *msg, size_t size, size_t *n)
{
	int fds[SK_MSG_FDS], n_fds = 0;
	char *all;

	CHECK_STATUS(rig_call(sock, msg, NULL, 0, fds, &n_fds), 0, msg);
	CHECK(n_fds == 1, "%d descriptors", n_fds);
	CHECK(msg->body.list_reply.record_bytes == size, "record size");
	*n = msg->body.list_reply.n;
	all = malloc(*n * size + 1);
	CHECK(pread(fds[0], all, *n * size, 0) == (ssize_t)(*n * size),
	      "short list");
	close(fds[0]);
	return all;
}

struct sk_wire_snapshot *list_snapshots(int sock, const char *job, size_t *n)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS } };

	strcpy(msg.body.list.id.job, job);
	return read_list(sock, &msg, sizeof(struct sk_wire_snapshot), n);
}

static struct sk_wire_image *images_of(int sock, const char *job,
				       int64_t step, uint32_t flags, size_t *n)
{
	struct sk_msg msg = { .type = SK_MSG_LIST, .body.list = {
		.id = { .step = step, .rank = -1 },
		.what = SK_LIST_IMAGES, .flags = flags } };

	strcpy(msg.body.list.id.job, job);
	return read_list(sock, &msg, sizeof(struct sk_wire_image), n);
}

struct sk_wire_image *list_images(int sock, const char *job, int64_t step,
				  size_t *n)
{
	return images_of(sock, job, step, 0, n);
}

struct sk_wire_image *list_known(int sock, const char *job, int64_t step,
				 size_t *n)
{
	return images_of(sock, job, step, SK_LIST_KNOWN, n);
}

uint32_t snapshot_flags(int sock, const char *job, int64_t step)
{
	struct sk_wire_snapshot *all;
	uint32_t flags = 0;
	size_t n;

	all = list_snapshots(sock, job, &n);
	for (size_t i = 0; i < n && !flags; i++) {
		if (all[i].id.step == step)
			flags = all[i].flags | 1u << 31;
	}
	free(all);
	return flags;
}

static unsigned long asked;	/* for figures */

double stat_value(int sock, const char *name)
{
	struct sk_msg msg = { .type = SK_MSG_STATS };
	struct sk_wire_stat *all;
	double value = -1;
	size_t n;

	asked++;
	all = read_list(sock, &msg, sizeof(struct sk_wire_stat), &n);
	for (size_t i = 0; i < n; i++) {
		if (strcmp(all[i].name, name) == 0)
			value = all[i].value;
	}
	free(all);
	return value;
}

static double visits_so_far(int sock)
{
	return stat_value(sock, "shardkeep_visits_total");
}

struct rig_since rig_since(int sock)
{
	double visits = visits_so_far(sock);

	return (struct rig_since){ visits, asked };
}

/* Between two the agent's loop may turn once, or twice, and look at a job each
 * time. */
#define ASKS 20

double rig_visits_to_ask(int sock)
{
	double before = visits_so_far(sock), now = before;

	for (int i = 0; i < ASKS; i++)
		now = visits_so_far(sock);
	return (now - before) / ASKS;
}

double rig_visits(int sock, struct rig_since since)
{
	struct rig_since now = rig_since(sock);
	double asking = (double)(now.asked - since.asked) *
			rig_visits_to_ask(sock);
	double all = now.visits - since.visits;

	/* One that was asked while there was less to tell took less. */
	return all > asking ? all - asking : 0;
}

bool rig_is_quiet(int sock)
{
	double before = visits_so_far(sock), least = 0, most = 0;

	for (int i = 0; i <= ASKS; i++) {
		double now = visits_so_far(sock), each = now - before;

		before = now;
		least = !i || each < least ? each : least;
		most = !i || each > most ? each : most;
		if (most > least + 2)
			return false;
	}
	return true;
}

void rig_turns(int sock, unsigned n)
{
	double first = stat_value(sock, "shardkeep_turns_total");

	while (stat_value(sock, "shardkeep_turns_total") <= first + n)
		;
}

struct rig_state rig_state(int sock, const char *name)
{
	struct sk_msg msg = { .type = SK_MSG_STATUS };
	int fds[SK_MSG_FDS], n_fds = 0;
	struct sk_wire_state state;
	struct rig_state ret = { .on = false };

	CHECK_STATUS(rig_call(sock, &msg, NULL, 0, fds, &n_fds), 0, &msg);
	CHECK(n_fds == 1 && msg.body.status_reply.record_bytes ==
	      sizeof(state), "reply");
	for (uint64_t i = 0; i < msg.body.status_reply.n; i++) {
		CHECK(pread(fds[0], &state, sizeof(state),
			    (off_t)(i * sizeof(state))) == sizeof(state),
		      "state %d", (int)i);
		CHECK(state.name[0] && state.what[0] && state.remedy[0],
		      "a state without a sentence");
		if (strcmp(state.name, name) != 0)
			continue;
		ret.on = true;
		(void)snprintf(ret.why, sizeof(ret.why), "%s", state.why);
	}
	close(fds[0]);
	return ret;
}

bool is_degraded(int sock, const char *name)
{
	return rig_state(sock, name).on;
}

int manage(int sock, enum sk_msg_type type, const char *job, int64_t step,
	   uint32_t flags, struct sk_msg *ret_msg)
{
	*ret_msg = (struct sk_msg){ .type = (uint16_t)type, .body.manage = {
		.id = { .step = step, .rank = -1 }, .flags = flags } };
	strcpy(ret_msg->body.manage.id.job, job);
	return rig_call(sock, ret_msg, NULL, 0, NULL, NULL);
}
