/* SPDX-License-Identifier: Apache-2.0 */
#include "stub-agent.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "comm/comm.h"
#include "comm/node.h"
#include "state/register.h"

struct stub_agent agent = { .lock = PTHREAD_MUTEX_INITIALIZER };

int sk_check(const struct sk *sk, struct sk_err *err)
{
	(void)sk;
	(void)err;
	return 0;
}

/* Whether the agent is gone once more. */
static bool is_gone(unsigned *times)
{
	bool gone;

	pthread_mutex_lock(&agent.lock);
	gone = *times > 0;
	*times -= gone;
	pthread_mutex_unlock(&agent.lock);
	return gone;
}

int sk_state_register(struct sk_state *state, bool slots, uint64_t until_ns,
		      struct sk_err *err)
{
	_cleanup_free_ struct sk_item *items =
		calloc(state->n_locals + 1u, sizeof(*items));
	int r = 0;

	(void)slots;
	(void)until_ns;
	if (is_gone(&agent.deaf))
		return sk_err_set(err, -ECONNRESET, "the agent is gone");
	state->run = 99;
	cr_assert(items);
	for (uint32_t i = 0; i < state->n_locals; i++)
		items[i] = state->locals[i].item;
	for (int kind = 0; kind < 2 && r >= 0; kind++)
		if (!state->layouts[kind])
			r = sk_layout_new(state->job.name, state->job.rank,
					  state->job.world,
					  (enum sk_image_kind)kind, items,
					  state->n_locals,
					  &state->layouts[kind], err);
	return r;
}

int sk_state_register_bare(struct sk_state *state, uint64_t until_ns)
{
	(void)state;
	(void)until_ns;
	return -ECONNRESET;
}

void sk_state_unregister(struct sk_state *state)
{
	for (int kind = 0; kind < 2; kind++)
		state->layouts[kind] = sk_layout_free(state->layouts[kind]);
}

void sk_comm_of_agent(struct sk_agent_comm *ctx, struct sk_comm *ret_comm)
{
	(void)ctx;
	*ret_comm = (struct sk_comm){ 0 };
}

void sk_agent_comm_leave(struct sk_agent_comm *ctx)
{
	(void)ctx;
}

void sk_agent_comm_free(struct sk_agent_comm *ctx)
{
	(void)ctx;
}

int sk_node_come(struct sk *sk, const struct sk_node_meeting *who,
		 uint32_t bytes, struct sk_node_share *ret,
		 struct sk_err *err)
{
	(void)sk;
	(void)who;
	(void)bytes;
	(void)ret;
	return sk_err_set(err, -ENOSYS, "this agent has one node");
}

int sk_node_memory(struct sk *sk, struct sk_node_share *share, void **ret_map,
		   struct sk_err *err)
{
	(void)sk;
	(void)share;
	(void)ret_map;
	return sk_err_set(err, -ENOSYS, "this agent has one node");
}

void sk_node_leave(struct sk_node_share *share)
{
	(void)share;
}

int sk_conn_open_more(const struct sk_os *os, struct sk_conn *handle,
		      const char *socket_path, uint64_t until_ns,
		      struct sk_conn *ret_conn, struct sk_err *err)
{
	(void)handle;
	(void)socket_path;
	(void)until_ns;
	if (is_gone(&agent.away))
		return sk_err_set(err, -ECONNRESET, "the agent is gone");
	ret_conn->os = os;
	ret_conn->sock = -1;
	ret_conn->agent.instance = 7;
	return 0;
}

void sk_conn_leave(struct sk_conn *conn)
{
	(void)conn;
}

bool sk_conn_stands(struct sk_conn *conn)
{
	(void)conn;
	return true;
}

void sk_conn_close(struct sk_conn *conn)
{
	(void)conn;
}

int memfd_of(const void *data, size_t bytes)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	cr_assert(fd >= 0);
	cr_assert(pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
	cr_assert(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	return fd;
}

void flip(int fd, uint64_t at)
{
	char path[64], byte;
	int w;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	w = open(path, O_RDWR | O_CLOEXEC);
	cr_assert(w >= 0);
	cr_assert(pread(w, &byte, 1, (off_t)at) == 1);
	byte ^= 0x10;
	cr_assert(pwrite(w, &byte, 1, (off_t)at) == 1);
	close(w);
}

static bool is_listed(const struct image *i, int place)
{
	return (place ? i->disk : i->memory) >= 0;
}

/* Whether it counts for its rank. */
static bool is_there(const struct image *i)
{
	return i->layout->kind == SK_IMAGE_PRIMARY &&
	       ((is_listed(i, 0) && !i->reported[0]) ||
		(is_listed(i, 1) && !i->reported[1]));
}

static void give_id(struct sk_wire_id *id, const struct image *i)
{
	strcpy(id->job, JOB);
	id->run = i->run;
	id->run_id = i->run_id;
	id->step = i->step;
	id->rank = i->layout->rank;
	id->world = i->layout->world;
}

static bool is_asked(const struct sk_wire_id *id, const struct image *i)
{
	return (!id->run || id->run == i->run) &&
	       (!id->run_id || id->run_id == i->run_id) &&
	       (id->step < 0 || id->step == i->step);
}

/* What a place has is the whole, or is taken for it, where all lie there. */
static uint32_t whole_flags(const struct sk_wire_id *id)
{
	uint32_t flags = SK_SNAP_COMPLETE | SK_SNAP_RESIDENT | SK_SNAP_DURABLE;
	bool any = false;

	for (int i = 0; i < agent.n; i++) {
		if (!is_asked(id, &agent.images[i]))
			continue;
		any = true;
		if (!is_listed(&agent.images[i], 0))
			flags &= ~SK_SNAP_RESIDENT;
		if (!is_listed(&agent.images[i], 1))
			flags &= ~SK_SNAP_DURABLE;
	}
	return any && !agent.incomplete ? flags : 0;
}

static int list_images(struct sk_msg *msg)
{
	const struct sk_wire_id id = msg->body.list.id;
	struct sk_wire_part w[2 * IMAGES_MAX] = { 0 };
	int first = agent.leaving > 0;
	size_t n = 0;

	agent.leaving -= (unsigned)first;
	for (int i = first; i < agent.n; i++)
		for (int place = 0; place < 2; place++) {
			if (!is_listed(&agent.images[i], place) ||
			    !is_asked(&id, &agent.images[i]))
				continue;
			w[n].rank = agent.images[i].layout->rank;
			w[n].image = (uint64_t)i + 1;
			w[n].bytes = agent.images[i].layout->image_bytes;
			w[n].digest = agent.images[i].layout->digest;
			w[n].description = agent.images[i].layout->description;
			w[n].kind = agent.images[i].layout->kind;
			w[n].place = place ? SK_PLACE_DISK : SK_PLACE_MEMORY;
			w[n++].state = agent.images[i].reported[place] ?
					       SK_IMAGE_BAD : SK_IMAGE_SEALED;
		}
	agent.lists++;
	agent.records += n;
	msg->body.list_reply.n = n;
	msg->body.list_reply.record_bytes = sizeof(w[0]);
	msg->body.list_reply.flags = whole_flags(&id);
	return memfd_of(w, n * sizeof(w[0]));
}

static int newest_first(const void *a, const void *b)
{
	const struct sk_wire_snapshot *x = a, *y = b;

	if (x->id.run != y->id.run)
		return x->id.run < y->id.run ? 1 : -1;
	return (x->id.step < y->id.step) - (x->id.step > y->id.step);
}

static int list_snapshots(struct sk_msg *msg)
{
	struct sk_wire_snapshot s[IMAGES_MAX] = { 0 };
	uint32_t limit = msg->body.list.limit;
	size_t n = 0;

	agent.snapshot_lists++;

	for (int i = 0; i < agent.n; i++) {
		size_t k = 0;

		while (k < n && (s[k].id.run != agent.images[i].run ||
				 s[k].id.run_id != agent.images[i].run_id ||
				 s[k].id.step != agent.images[i].step))
			k++;
		give_id(&s[k].id, &agent.images[i]);
		if (agent.restless && s[k].id.step != agent.standing)
			s[k].id.step += agent.snapshot_lists;
		s[k].flags = agent.incomplete ? 0 : SK_SNAP_COMPLETE;
		s[k].flags |= SK_SNAP_MEMORY | SK_SNAP_DISK;
		s[k].images += is_there(&agent.images[i]);
		if (agent.incomplete)
			strcpy(s[k].text, "wq [0:4] of rank 1 is missing");
		s[k].bad_memory = s[k].bad_disk = -1;
		s[k].digest += agent.images[i].layout->digest.bytes[0] + 1u;
		n += k == n;
	}
	if (limit && !agent.incomplete && n > limit) {
		qsort(s, n, sizeof(s[0]), newest_first);
		n = limit;
	}
	msg->body.list_reply.n = n;
	msg->body.list_reply.record_bytes = sizeof(s[0]);
	msg->body.list_reply.unreadable = agent.unreadable;
	if (agent.unreadable)
		strcpy(msg->body.list_reply.text, "cannot read /store/job");
	return memfd_of(s, n * sizeof(s[0]));
}

static int reopen(int fd)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDONLY | O_CLOEXEC);
}

static void open_image(const struct image *i, const struct sk_wire_open *o,
		       struct sk_msg *msg, int *ret_fds)
{
	bool lies = o->image == (uint64_t)agent.liar;
	bool sums = o->flags & SK_OPEN_SUMS;

	msg->body.open_reply = (struct sk_wire_open_reply){
		.image_bytes = i->layout->image_bytes,
		.header_bytes = i->layout->header_bytes,
		.place = o->place, .n_sums = i->layout->n_sums,
		.run = i->run, .run_id = i->run_id, .step = i->step + lies,
		.rank = i->layout->rank, .kind = i->layout->kind,
		.digest = i->layout->digest,
	};
	agent.header_bytes += sums ? 0 : i->layout->header_bytes;
	ret_fds[0] = reopen(o->place == SK_PLACE_DISK ? i->disk : i->memory);
	ret_fds[1] = reopen(sums || lies ? i->sums : i->header);
}

static int answer(struct sk_msg *msg, int *ret_fds, int *ret_n,
		  struct sk_err *err)
{
	const struct sk_wire_open o = msg->body.open;
	int place = o.place == SK_PLACE_DISK;
	struct image *i;

	if (msg->type == SK_MSG_LIST) {
		ret_fds[0] = msg->body.list.what == SK_LIST_PARTS ?
				     list_images(msg) : list_snapshots(msg);
		*ret_n = 1;
		return 0;
	}
	i = &agent.images[o.image - 1];
	if (msg->type == SK_MSG_REPORT_BAD) {
		i->reported[place] = true;
		return 0;
	}
	cr_assert(msg->type == SK_MSG_OPEN);
	agent.opens++;
	if (!is_listed(i, place) || o.image == (uint64_t)agent.gone)
		return sk_err_set(err, -ENOENT, "no such image");
	open_image(i, &o, msg, ret_fds);
	*ret_n = 2;
	return 0;
}

bool sk_conn_makes_device_slots(struct sk_conn *conn)
{
	(void)conn;
	return false;
}

int sk_conn_call(struct sk_conn *conn, struct sk_msg *msg, const int *fds,
		 int n_fds, int *ret_fds, int *ret_n_fds, uint64_t until_ns,
		 struct sk_err *err)
{
	int r;

	(void)conn;
	(void)fds;
	(void)n_fds;
	(void)until_ns;
	pthread_mutex_lock(&agent.lock);
	r = answer(msg, ret_fds, ret_n_fds, err);
	pthread_mutex_unlock(&agent.lock);
	return r;
}

int sk_conn_call_all(struct sk_conn *conn, struct sk_conn_request *asks, int n,
		     uint64_t until_ns, struct sk_err *err)
{
	(void)err;
	cr_assert(n && n <= SK_CONN_AT_ONCE);
	for (int i = n; i-- > 0;)	/* in whichever order */
		asks[i].r = sk_conn_call(conn, &asks[i].msg, NULL, 0,
					 asks[i].fds, &asks[i].n_fds,
					 until_ns, &asks[i].err);
	pthread_mutex_lock(&agent.lock);
	agent.together++;
	pthread_mutex_unlock(&agent.lock);
	return 0;
}

static bool is_nowhere(const struct image *image)
{
	return image->memory < 0 && image->disk < 0;
}

void lose_images(bool (*goes)(const struct image *image))
{
	int n = 0;

	for (int i = 0; i < agent.n; i++) {
		struct image *image = &agent.images[i];

		if (!goes(image)) {
			agent.images[n++] = *image;
			continue;
		}
		sk_close_fd(image->memory);
		sk_close_fd(image->disk);
		sk_close_fd(image->header);
		sk_close_fd(image->sums);
		sk_layout_free(image->layout);
	}
	agent.n = n;
}

void lose_memory(bool (*goes)(const struct image *image))
{
	for (int i = 0; i < agent.n; i++)
		if (goes(&agent.images[i]))
			agent.images[i].memory =
				sk_close_fd(agent.images[i].memory);
	lose_images(is_nowhere);
}

static bool goes(const struct image *image)
{
	(void)image;
	return true;
}

void forget_images(void)
{
	lose_images(goes);
	agent.incomplete = agent.restless = false;
	agent.standing = 0;
	agent.together = 0;
	agent.opens = agent.lists = agent.snapshot_lists = 0;
	agent.records = 0;
	agent.header_bytes = 0;
	agent.leaving = 0;
	agent.gone = agent.liar = 0;
	agent.deaf = agent.away = 0;
}
