/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restore without an agent: images made here, ranks as threads, the agent's
 * part played by a few functions. What moves is compared element by element.
 */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tensor/box.h"
#include "bytes/checksum.h"
#include "tensor/dtype.h"
#include "base/util.h"
#include "bytes/copy.h"
#include "comm/comm.h"
#include "state/register.h"

#define JOB "property"
#define RANKS_MAX 4
#define IMAGES_MAX 64

/* ---- random numbers ---- */

static uint64_t seed_state;

static uint64_t any(void)
{
	seed_state ^= seed_state << 13;
	seed_state ^= seed_state >> 7;
	seed_state ^= seed_state << 17;
	return seed_state * 0x2545f4914f6cdd1du;
}

static int64_t below(int64_t n)
{
	return (int64_t)(any() >> 11) % n;
}

static bool one_in(int n)
{
	return !below(n);
}

/* ---- the agent's part ---- */

struct image {
	struct sk_layout *layout;
	uint64_t run, run_id;
	int64_t step;
	int memory, disk, header;	/* -1: not there */
	bool reported[2];
};

static struct {
	pthread_mutex_t lock;
	struct image images[IMAGES_MAX];
	int n;
	bool incomplete;
	uint64_t run_id;	/* of the runs that are saved */
	unsigned unreadable;	/* of the store */
	unsigned opens;
	size_t records;		/* of lists, told to one rank */
	unsigned lists;
} agent = { .lock = PTHREAD_MUTEX_INITIALIZER };

int sk_check(const struct sk *sk, struct sk_err *err)
{
	(void)sk;
	(void)err;
	return 0;
}

int sk_state_register(struct sk_state *state, bool slots, uint64_t until_ns,
		      struct sk_err *err)
{
	(void)slots;
	(void)until_ns;
	(void)err;
	state->run = 99;
	return 0;
}

void sk_state_unregister(struct sk_state *state)
{
	(void)state;
}

void sk_comm_of_agent(struct sk_agent_comm *ctx, struct sk_comm *ret_comm)
{
	(void)ctx;
	*ret_comm = (struct sk_comm){ 0 };
}

int sk_conn_open(const struct sk_os *os, const char *socket_path,
		 uint64_t until_ns, struct sk_conn *ret_conn,
		 struct sk_err *err)
{
	(void)socket_path;
	(void)until_ns;
	(void)err;
	ret_conn->os = os;
	ret_conn->sock = -1;
	ret_conn->agent.instance = 7;
	return 0;
}

void sk_conn_close(struct sk_conn *conn)
{
	(void)conn;
}

static int memfd_of(const void *data, size_t bytes)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	cr_assert(fd >= 0);
	cr_assert(pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
	cr_assert(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	return fd;
}

static bool is_listed(const struct image *i, int place)
{
	return (place ? i->disk : i->memory) >= 0 && !i->reported[place];
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

static int list_images(struct sk_msg *msg)
{
	const struct sk_wire_id id = msg->body.list.id;
	struct sk_wire_image w[2 * IMAGES_MAX] = { 0 };
	size_t n = 0;

	for (int i = 0; i < agent.n; i++)
		for (int place = 0; place < 2; place++) {
			if (!is_listed(&agent.images[i], place) ||
			    !is_asked(&id, &agent.images[i]))
				continue;
			give_id(&w[n].id, &agent.images[i]);
			w[n].image = (uint64_t)i + 1;
			w[n].bytes = agent.images[i].layout->image_bytes;
			w[n].digest = agent.images[i].layout->digest;
			w[n].kind = agent.images[i].layout->kind;
			w[n].place = place ? SK_PLACE_DISK : SK_PLACE_MEMORY;
			w[n++].state = SK_IMAGE_SEALED;
		}
	agent.lists++;
	agent.records += n;
	msg->body.list_reply.n = n;
	msg->body.list_reply.record_bytes = sizeof(w[0]);
	return memfd_of(w, n * sizeof(w[0]));
}

static int list_snapshots(struct sk_msg *msg)
{
	struct sk_wire_snapshot s[IMAGES_MAX] = { 0 };
	size_t n = 0;

	for (int i = 0; i < agent.n; i++) {
		size_t k = 0;

		while (k < n && (s[k].id.run != agent.images[i].run ||
				 s[k].id.run_id != agent.images[i].run_id ||
				 s[k].id.step != agent.images[i].step))
			k++;
		give_id(&s[k].id, &agent.images[i]);
		s[k].flags = agent.incomplete ? 0 : SK_SNAP_COMPLETE;
		s[k].flags |= SK_SNAP_MEMORY | SK_SNAP_DISK;
		if (agent.incomplete)
			strcpy(s[k].text, "wq [0:4] of rank 1 is missing");
		s[k].bad_memory = s[k].bad_disk = -1;
		s[k].digest += agent.images[i].layout->digest.bytes[0] + 1u;
		n += k == n;
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

static int answer(struct sk_msg *msg, int *ret_fds, int *ret_n,
		  struct sk_err *err)
{
	const struct sk_wire_open o = msg->body.open;
	int place = o.place == SK_PLACE_DISK;
	struct image *i;

	if (msg->type == SK_MSG_LIST) {
		ret_fds[0] = msg->body.list.what == SK_LIST_IMAGES ?
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
	if (!is_listed(i, place))
		return sk_err_set(err, -ENOENT, "no such image");
	msg->body.open_reply.image_bytes = i->layout->image_bytes;
	msg->body.open_reply.header_bytes = i->layout->header_bytes;
	ret_fds[0] = reopen(place ? i->disk : i->memory);
	ret_fds[1] = reopen(i->header);
	*ret_n = 2;
	return 0;
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

static void forget_images(void)
{
	for (int i = 0; i < agent.n; i++) {
		sk_close_fd(agent.images[i].memory);
		sk_close_fd(agent.images[i].disk);
		sk_close_fd(agent.images[i].header);
		sk_layout_free(agent.images[i].layout);
	}
	agent.n = 0;
	agent.incomplete = false;
	agent.opens = agent.lists = 0;
	agent.records = 0;
}

/* ---- values: a function of the name and the global index ---- */

static uint64_t salt;	/* another one for another step */

static void put_value(char *to, const char *name, int64_t index, unsigned size)
{
	uint64_t v = sk_xxh3(name, strlen(name)) + (uint64_t)index + salt;

	v *= 0x9e3779b97f4a7c15u;
	v ^= v >> 29;
	memcpy(to, &v, size);
}

static int64_t global_index(int ndim, const int64_t *shape,
			    const int64_t *at)
{
	int64_t i = 0;

	for (int d = 0; d < ndim; d++)
		i = i * shape[d] + at[d];
	return i;
}

/* Calls back for each element of a box, in row-major order. */
static void each(const struct sk_spec *s, const struct sk_box *box,
		 void (*fn)(void *ctx, int64_t index, const int64_t *in_box),
		 void *ctx)
{
	int64_t n = sk_box_volume(s->ndim, box), at[SK_MAX_DIMS],
		in[SK_MAX_DIMS];

	for (int64_t i = 0; i < n; i++) {
		int64_t rest = i;

		for (int d = s->ndim - 1; d >= 0; d--) {
			in[d] = rest % box->size[d];
			at[d] = in[d] + box->offset[d];
			rest /= box->size[d];
		}
		fn(ctx, global_index(s->ndim, s->shape, at), in);
	}
}

struct filling {
	char *to;
	const char *name;
	unsigned size;
};

static void fill_one(void *ctx, int64_t index, const int64_t *in)
{
	struct filling *f = ctx;

	(void)in;
	put_value(f->to, f->name, index, f->size);
	f->to += f->size;
}

/* ---- images ---- */

static char own_name[RANKS_MAX][32];

static const char *value_name(const struct sk_layout *l,
			      const struct sk_item *item)
{
	if (item->kind != SK_ITEM_BLOB_LOCAL)
		return item->spec.name;
	(void)snprintf(own_name[l->rank], sizeof(own_name[0]), "%s@%d",
		       item->spec.name, l->rank);
	return own_name[l->rank];
}

static void fill_entry(const struct sk_layout *l, const struct sk_entry *e,
		       char *data, uint64_t *sums)
{
	const struct sk_item *item = &l->items[e->item];
	struct filling f = {
		.to = data + e->offset,
		.name = value_name(l, item),
		.size = sk_dtype_bits(item->spec.dtype) / 8,
	};

	each(&item->spec, &e->box, fill_one, &f);
	for (uint64_t k = 0; k < e->n_sums; k++) {
		uint64_t from = k * SK_SUM_CHUNK;
		uint64_t n = e->bytes - from;

		n = n < SK_SUM_CHUNK ? n : SK_SUM_CHUNK;
		sums[e->first_sum + k] = sk_xxh3(data + e->offset + from, n);
	}
}

static void add_image(struct sk_layout *l, uint64_t run, int64_t step,
		      bool memory, bool disk)
{
	struct sk_stamp stamp = { .run = run, .run_id = agent.run_id,
				  .step = (uint64_t)step };
	struct image *i = &agent.images[agent.n++];
	char *data = calloc(1, l->image_bytes);

	cr_assert(agent.n <= IMAGES_MAX);
	stamp.sums = calloc(l->n_sums + 1, sizeof(*stamp.sums));
	for (uint32_t k = 0; k < l->n_entries; k++)
		fill_entry(l, &l->entries[k], data, stamp.sums);
	sk_layout_stamp(l, &stamp, data);
	*i = (struct image){
		.layout = l, .run = run, .run_id = agent.run_id, .step = step,
		.memory = memory ? memfd_of(data, l->image_bytes) : -1,
		.disk = disk ? memfd_of(data, l->image_bytes) : -1,
		.header = memfd_of(data, l->header_bytes),
	};
	free(stamp.sums);
	free(data);
}

/* ---- a case ---- */

struct tensor {
	char name[32];
	struct sk_spec source, target;
	bool everywhere[2];	/* ranks out of the mesh describe it too */
	struct sk_box *boxes;	/* not NULL: explicit, by owner */
	int *owners;
	int n_boxes;
	bool explicit_source, explicit_target;
};

struct test {
	int world[2];
	struct tensor tensors[5];
	int n;
	bool strided;
};

static struct sk_mesh *random_mesh(int world)
{
	int32_t ranks[RANKS_MAX];
	int64_t shape[2] = { 1, 1 };
	struct sk_mesh *mesh;
	int n = 1 + (int)below(world), ndim;

	for (int i = 0; i < world; i++)
		ranks[i] = i;
	for (int i = 0; i < world; i++) {
		int k = (int)below(world);
		int32_t r = ranks[i];

		ranks[i] = ranks[k];
		ranks[k] = r;
	}
	shape[0] = n;
	ndim = 1 + (n > 1 && one_in(2));
	if (ndim == 2) {
		shape[0] = n % 2 ? 1 : 2;
		shape[1] = n / shape[0];
	}
	cr_assert(!sk_mesh_new(ndim, shape, ranks, NULL, &mesh, NULL));
	return mesh;
}

static void place(struct sk_spec *s, int world)
{
	s->mesh = one_in(6) ? NULL : random_mesh(world);
	for (int m = 0; s->mesh && m < sk_mesh_ndim(s->mesh); m++) {
		int d = s->ndim ? (int)below(s->ndim) : 0;

		if (!s->ndim || one_in(3))
			s->placements[m] = SK_REPLICATE;
		else if (one_in(5))
			s->placements[m] =
				SK_STRIDED_SHARD(d, 1 + below(3));
		else
			s->placements[m] = SK_SHARD(d);
	}
}

/* Cuts the whole into two, those into two, ... */
static void cut_boxes(struct tensor *t, int world)
{
	t->boxes = calloc(8, sizeof(*t->boxes));
	t->owners = calloc(8, sizeof(*t->owners));
	t->boxes[t->n_boxes++] = sk_box_whole(t->source.ndim, t->source.shape);
	while (t->n_boxes < 8 && !one_in(4)) {
		struct sk_box *b = &t->boxes[below(t->n_boxes)], c = *b;
		int d = (int)below(t->source.ndim);
		int64_t at;

		if (b->size[d] < 2)
			continue;
		at = 1 + below(b->size[d] - 1);
		c.offset[d] += at;
		c.size[d] -= at;
		b->size[d] = at;
		t->boxes[t->n_boxes++] = c;
	}
	for (int i = 0; i < t->n_boxes; i++)
		t->owners[i] = (int)below(world);
}

static void random_tensor(struct test *test, struct tensor *t, int i)
{
	static const enum sk_dtype types[] = { SK_U8, SK_BF16, SK_F32,
					       SK_F64 };
	bool large = one_in(12);
	int64_t count = 1;

	*t = (struct tensor){ .everywhere = { one_in(2), one_in(2) } };
	(void)snprintf(t->name, sizeof(t->name), "layers.%d.w", i);
	t->source.name = t->name;
	t->source.dtype = types[below(4)];
	t->source.ndim = large ? 2 : (int)below(4);
	for (int d = 0; d < t->source.ndim; d++) {
		t->source.shape[d] = large ? 500 + below(300) : below(10);
		count *= t->source.shape[d];
	}
	t->target = t->source;
	place(&t->source, test->world[0]);
	place(&t->target, test->world[1]);
	if (!t->source.ndim || !count || !one_in(5))
		return;
	t->explicit_source = one_in(2);
	t->explicit_target = !t->explicit_source || one_in(2);
	cut_boxes(t, test->world[0] < test->world[1] ? test->world[0] :
							test->world[1]);
}

static bool describes(const struct tensor *t, const struct sk_spec *s,
		      bool everywhere, int rank)
{
	int64_t coords[SK_MAX_DIMS];

	(void)t;
	return everywhere || !s->mesh || !sk_mesh_coords(s->mesh, rank, coords);
}

static void free_test(struct test *test)
{
	for (int i = 0; i < test->n; i++) {
		sk_mesh_unref((struct sk_mesh *)test->tensors[i].source.mesh);
		sk_mesh_unref((struct sk_mesh *)test->tensors[i].target.mesh);
		free(test->tensors[i].boxes);
		free(test->tensors[i].owners);
	}
	forget_images();
}

/* ---- saving ---- */

static int own_boxes(const struct tensor *t, int rank, struct sk_box *boxes)
{
	int n = 0;

	for (int i = 0; i < t->n_boxes; i++)
		if (t->owners[i] == rank)
			boxes[n++] = t->boxes[i];
	return n;
}

static struct sk_item blob_item(const char *name, enum sk_item_kind kind,
				int64_t size)
{
	return (struct sk_item){
		.spec = { .name = name, .dtype = SK_U8, .ndim = 1,
			  .shape = { size } },
		.kind = kind,
	};
}

static int items_of(const struct test *test, int rank, struct sk_item *items,
		    struct sk_box (*boxes)[8])
{
	int n = 0;

	for (int i = 0; i < test->n; i++) {
		const struct tensor *t = &test->tensors[i];
		struct sk_item item = { .spec = t->source };

		if (t->explicit_source) {
			item.n_boxes = own_boxes(t, rank, boxes[i]);
			item.boxes = boxes[i];
			item.explicit_boxes = true;
		} else if (!describes(t, &t->source, t->everywhere[0],
				      rank)) {
			continue;
		}
		items[n++] = item;
	}
	items[n++] = blob_item("config", SK_ITEM_BLOB, 100);
	items[n++] = blob_item("rng", SK_ITEM_BLOB_LOCAL, 40);
	return n;
}

static void save(const struct test *test, uint64_t run, int64_t step,
		 int where)
{
	for (int rank = 0; rank < test->world[0]; rank++) {
		struct sk_box boxes[5][8];
		struct sk_item items[8];
		int n = items_of(test, rank, items, boxes);

		for (int kind = 0; kind < 2; kind++) {
			struct sk_layout *l = NULL;
			struct sk_err err = { "" };
			bool disk = !kind && where, memory = where != 2;

			if (!kind && where == 3 && one_in(3))
				memory = false;
			cr_assert(!sk_layout_new(JOB, rank, test->world[0],
						 (enum sk_image_kind)kind,
						 items, (uint32_t)n, &l, &err),
				  "%s", err.text);
			if ((kind && !l->n_entries) || (!memory && !disk))
				sk_layout_free(l);
			else
				add_image(l, run, step, memory, disk);
		}
	}
}

/* ---- ranks ---- */

struct meeting {
	pthread_barrier_t barrier;
	int world;
	char *all;
};

struct rank {
	pthread_t thread;
	const struct test *test;
	struct meeting *meeting;
	int rank;
	int64_t step;
	const struct sk_restore_options *opts;
	struct sk sk;
	struct sk_state *state;
	char *memory[8];
	int n_memory;
	int result;
	char text[4096];
	struct sk_report report;
	void (*more)(struct rank *r);	/* describes more, or otherwise */
};

static int allgather(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	struct rank *r = ctx;
	struct meeting *m = r->meeting;

	(void)timeout_ms;
	if (!r->rank)
		m->all = malloc(bytes * (size_t)m->world);
	pthread_barrier_wait(&m->barrier);
	memcpy(m->all + bytes * (size_t)r->rank, in, bytes);
	pthread_barrier_wait(&m->barrier);
	memcpy(out, m->all, bytes * (size_t)m->world);
	pthread_barrier_wait(&m->barrier);
	if (!r->rank)
		free(m->all);
	return 0;
}

static char *take_memory(struct rank *r, size_t bytes)
{
	char *p = malloc(bytes ? bytes : 1);

	memset(p, 0xee, bytes);
	r->memory[r->n_memory++] = p;
	return p;
}

static void describe_parts(struct rank *r, const struct tensor *t,
			   struct sk_tensor *st)
{
	struct sk_part parts[8] = { 0 };
	struct sk_box boxes[8];
	unsigned size = sk_dtype_bits(t->source.dtype) / 8;
	char *data;

	st->n_parts = (uint32_t)own_boxes(t, r->rank, boxes);
	data = take_memory(r, (size_t)size * 1000000);
	for (uint32_t i = 0; i < st->n_parts; i++) {
		parts[i].box = boxes[i];
		parts[i].data = data;
		data += (size_t)size *
			(size_t)sk_box_volume(st->ndim, &boxes[i]);
	}
	st->parts = parts;
	cr_assert(!sk_state_tensor(r->state, st), "%s", sk_error());
}

/* Sometimes with gaps between rows, sometimes transposed. */
static void choose_strides(struct rank *r, struct sk_tensor *st,
			   const struct sk_box *box, uint64_t *elements)
{
	int64_t padded[SK_MAX_DIMS];

	*elements = 1;
	for (int d = 0; d < st->ndim; d++) {
		padded[d] = box->size[d] + d % 2 + 1;
		*elements *= (uint64_t)padded[d];
	}
	sk_dense_strides(st->ndim, padded, st->strides);
	if (st->ndim == 2 && r->rank % 2) {
		st->strides[0] = 1;
		st->strides[1] = padded[0];
	}
}

static void describe_tensor(struct rank *r, const struct tensor *t)
{
	unsigned size = sk_dtype_bits(t->source.dtype) / 8;
	struct sk_tensor st = {
		.name = t->name, .dtype = (int32_t)t->target.dtype,
		.ndim = t->target.ndim, .mesh = t->target.mesh,
	};
	uint64_t elements = 0;
	struct sk_box *boxes;
	int n;

	memcpy(st.shape, t->target.shape, sizeof(st.shape));
	memcpy(st.placements, t->target.placements, sizeof(st.placements));
	if (t->explicit_target) {
		describe_parts(r, t, &st);
		return;
	}
	if (!describes(t, &t->target, t->everywhere[1], r->rank))
		return;
	cr_assert(!sk_spec_boxes(&t->target, r->rank, &boxes, &n, NULL));
	for (int i = 0; i < n; i++)
		elements += (uint64_t)sk_box_volume(st.ndim, &boxes[i]);
	if (elements && n == 1 && st.ndim && r->test->strided)
		choose_strides(r, &st, &boxes[0], &elements);
	free(boxes);
	if (elements)
		st.data = take_memory(r, elements * size);
	cr_assert(!sk_state_tensor(r->state, &st), "%s", sk_error());
}

static void describe_all(struct rank *r)
{
	for (int i = 0; i < r->test->n; i++)
		describe_tensor(r, &r->test->tensors[i]);
	cr_assert(!sk_state_blob(r->state, "config", take_memory(r, 100),
				 100));
	cr_assert(!sk_state_blob_local(r->state, "rng", take_memory(r, 40),
				       40));
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	struct sk_comm comm = { .ctx = r, .allgather = allgather };

	r->result = sk_restore(r->state, r->step, &comm, r->opts, &r->report);
	if (r->result < 0)
		(void)snprintf(r->text, sizeof(r->text), "%s", sk_error());
	return NULL;
}

static void open_rank(struct rank *r, const struct test *test, int rank,
		      struct meeting *m)
{
	struct sk_job job = { .name = JOB, .rank = rank,
			      .world = test->world[1] };

	r->test = test;
	r->rank = rank;
	r->meeting = m;
	r->sk.os = sk_os_linux();
	r->sk.pid = getpid();
	cr_assert(!sk_pool_new(2, -1, "test", &r->sk.pool, NULL));
	r->sk.recall = sk_recall_new();
	cr_assert(r->sk.recall);
	cr_assert(!sk_state_create(&r->sk, &job, &r->state));
	describe_all(r);
	if (r->more)
		r->more(r);
}

/* All ranks call sk_restore(); results stay in @ranks. */
static void restore(const struct test *test, struct rank *ranks)
{
	struct meeting m = { .world = test->world[1] };

	pthread_barrier_init(&m.barrier, NULL, (unsigned)m.world);
	for (int i = 0; i < m.world; i++)
		open_rank(&ranks[i], test, i, &m);
	for (int i = 0; i < m.world; i++)
		pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]);
	for (int i = 0; i < m.world; i++)
		pthread_join(ranks[i].thread, NULL);
	pthread_barrier_destroy(&m.barrier);
}

static void close_ranks(const struct test *test, struct rank *ranks)
{
	for (int i = 0; i < test->world[1]; i++) {
		sk_state_free(ranks[i].state);
		sk_pool_free(ranks[i].sk.pool);
		sk_recall_free(ranks[i].sk.recall);
		for (int k = 0; k < ranks[i].n_memory; k++)
			free(ranks[i].memory[k]);
	}
}

/* ---- comparing ---- */

struct comparing {
	const struct sk_part *part;
	const char *name;
	unsigned size;
	int ndim;
	uint64_t wrong;
};

static void compare_one(void *ctx, int64_t index, const int64_t *in)
{
	struct comparing *c = ctx;
	const char *at = c->part->data;
	char value[8];

	for (int d = 0; d < c->ndim; d++)
		at += in[d] * c->part->strides[d] * (int64_t)c->size;
	put_value(value, c->name, index, c->size);
	c->wrong += memcmp(at, value, c->size) != 0;
}

static uint64_t wrong_in(const struct rank *r, const struct sk_local *local)
{
	char name[64];
	struct comparing c = {
		.name = local->item.spec.name,
		.size = sk_dtype_bits(local->item.spec.dtype) / 8,
		.ndim = local->item.spec.ndim,
	};

	if (local->item.kind == SK_ITEM_BLOB_LOCAL) {
		if (r->rank >= r->test->world[0])
			return 0;
		(void)snprintf(name, sizeof(name), "%s@%d", c.name, r->rank);
		c.name = name;
	}
	for (int i = 0; i < local->item.n_boxes; i++) {
		c.part = &local->parts[i];
		each(&local->item.spec, &c.part->box, compare_one, &c);
	}
	return c.wrong;
}

static uint64_t wrong_elements(const struct test *test, struct rank *ranks)
{
	uint64_t wrong = 0;

	for (int i = 0; i < test->world[1]; i++)
		for (uint32_t k = 0; k < ranks[i].state->n_locals; k++)
			wrong += wrong_in(&ranks[i],
					  &ranks[i].state->locals[k]);
	return wrong;
}

static void random_test(struct test *test, uint64_t seed)
{
	*test = (struct test){ 0 };
	seed_state = seed * 0x9e3779b97f4a7c15u + 1;
	any();
	salt = 0;
	test->world[0] = 1 + (int)below(RANKS_MAX);
	test->world[1] = 1 + (int)below(RANKS_MAX);
	test->strided = one_in(3);
	test->n = 1 + (int)below(5);
	for (int i = 0; i < test->n; i++)
		random_tensor(test, &test->tensors[i], i);
}

static void run_property(uint64_t seed, int where, uint32_t flags)
{
	struct sk_restore_options o = {
		.flags = flags | SK_RESTORE_EXTRA_OK,
	};
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	random_test(&test, seed);
	save(&test, 1, 10, where);
	for (int i = 0; i < RANKS_MAX; i++) {
		ranks[i].step = SK_LATEST;
		ranks[i].opts = &o;
	}
	restore(&test, ranks);
	for (int i = 0; i < test.world[1]; i++)
		cr_assert(!ranks[i].result, "seed %" PRIu64 ", %d to %d ranks,"
			  " rank %d: %s", seed, test.world[0], test.world[1],
			  i, ranks[i].text);
	cr_assert(!wrong_elements(&test, ranks),
		  "seed %" PRIu64 ", %d to %d ranks: wrong elements", seed,
		  test.world[0], test.world[1]);
	close_ranks(&test, ranks);
	free_test(&test);
}

Test(restore, any_mesh_to_any_mesh_from_memory)
{
	for (uint64_t seed = 1; seed <= 300; seed++)
		run_property(seed, 0, 0);
}

Test(restore, any_mesh_to_any_mesh_from_disk)
{
	for (uint64_t seed = 1000; seed < 1200; seed++)
		run_property(seed, 2, 0);
}

Test(restore, any_mesh_to_any_mesh_from_both)
{
	for (uint64_t seed = 2000; seed < 2200; seed++)
		run_property(seed, 3, 0);
}

Test(restore, any_mesh_to_any_mesh_unverified)
{
	for (uint64_t seed = 3000; seed < 3100; seed++)
		run_property(seed, seed % 2 ? 2 : 0, SK_RESTORE_NO_VERIFY);
}

/* ---- what goes wrong ---- */

static void flip(int fd, uint64_t at)
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

/* A bit of one image, at one place. */
static void damage_one(void)
{
	struct image *i = &agent.images[below(agent.n)];
	uint64_t data = i->layout->image_bytes - i->layout->header_bytes;
	int fd = i->memory >= 0 ? i->memory : i->disk;

	if (data)
		flip(fd, i->layout->header_bytes + (uint64_t)below(
							(int64_t)data));
}

static unsigned count_reported(void)
{
	unsigned n = 0;

	for (int i = 0; i < agent.n; i++)
		n += agent.images[i].reported[0] + agent.images[i].reported[1];
	return n;
}

static int one_result(const struct test *test, const struct rank *ranks,
		      uint64_t seed)
{
	for (int i = 1; i < test->world[1]; i++)
		cr_assert(ranks[i].result == ranks[0].result,
			  "seed %" PRIu64 ": rank 0 has %d, rank %d %d", seed,
			  ranks[0].result, i, ranks[i].result);
	return ranks[0].result;
}

/* Right values or an error, the same on all ranks; never wrong values. */
static int run_damaged(uint64_t seed, int where)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_EXTRA_OK };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;
	int r;

	random_test(&test, seed);
	save(&test, 1, 10, where);
	damage_one();
	for (int i = 0; i < RANKS_MAX; i++) {
		ranks[i].step = SK_LATEST;
		ranks[i].opts = &o;
	}
	restore(&test, ranks);
	r = one_result(&test, ranks, seed);
	cr_assert(r == 0 || r == -EBADMSG, "seed %" PRIu64 ": %s", seed,
		  ranks[0].text);
	cr_assert(r || !wrong_elements(&test, ranks), "seed %" PRIu64, seed);
	cr_assert(r != -EBADMSG || count_reported() == 1, "seed %" PRIu64,
		  seed);
	cr_assert(r != -EBADMSG || strstr(ranks[0].text, "overwritten") ||
		  test.world[1] > 1, "seed %" PRIu64 ": %s", seed,
		  ranks[0].text);
	close_ranks(&test, ranks);
	free_test(&test);
	return r;
}

Test(restore, a_damaged_image_is_never_restored)
{
	int refused = 0;

	for (uint64_t seed = 4000; seed < 4200; seed++)
		refused += run_damaged(seed, seed % 2 ? 2 : 0) < 0;
	cr_assert(refused > 20);
}

Test(restore, the_disk_copy_of_a_damaged_image_is_taken)
{
	for (uint64_t seed = 5000; seed < 5200; seed++) {
		struct sk_restore_options o = {
			.flags = SK_RESTORE_EXTRA_OK };
		struct rank ranks[RANKS_MAX] = { 0 };
		struct test test;
		struct image *i;

		random_test(&test, seed);
		save(&test, 1, 10, 1);
		i = &agent.images[0];	/* a primary one: both places */
		if (i->layout->image_bytes > i->layout->header_bytes)
			flip(i->memory, i->layout->image_bytes - 1);
		for (int k = 0; k < RANKS_MAX; k++) {
			ranks[k].step = 10;
			ranks[k].opts = &o;
		}
		restore(&test, ranks);
		cr_assert(!one_result(&test, ranks, seed), "seed %" PRIu64
			  ": %s", seed, ranks[0].text);
		cr_assert(!wrong_elements(&test, ranks), "seed %" PRIu64,
			  seed);
		cr_assert(ranks[0].report.damaged == count_reported());
		close_ranks(&test, ranks);
		free_test(&test);
	}
}

/* One tensor of 1024 x 1024 F32 in rows over the source ranks. */
static void plain_test(struct test *test, int from, int to)
{
	struct tensor *t = &test->tensors[0];

	*test = (struct test){ .world = { from, to }, .n = 1 };
	forget_images();
	salt = 0;
	strcpy(t->name, "wq");
	t->source = (struct sk_spec){
		.name = t->name, .dtype = SK_F32, .ndim = 2,
		.shape = { 1024, 1024 }, .placements = { SK_SHARD(0) },
	};
	t->target = t->source;
	cr_assert(!sk_mesh_new(1, (const int64_t[]){ from }, NULL, NULL,
			       (struct sk_mesh **)&t->source.mesh, NULL));
	cr_assert(!sk_mesh_new(1, (const int64_t[]){ to }, NULL, NULL,
			       (struct sk_mesh **)&t->target.mesh, NULL));
}

static int run_plain(struct test *test, struct rank *ranks, int64_t step,
		     const struct sk_restore_options *o)
{
	for (int i = 0; i < test->world[1]; i++) {
		ranks[i].step = step;
		ranks[i].opts = o;
	}
	restore(test, ranks);
	return one_result(test, ranks, 0);
}

Test(restore, the_newest_that_is_whole_is_taken)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;
	int n;

	plain_test(&test, 2, 2);
	save(&test, 3, 10, 0);
	n = agent.n;
	salt = 1;
	save(&test, 3, 20, 0);
	flip(agent.images[n].memory, agent.images[n].layout->image_bytes - 1);
	salt = 0;
	cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
		  ranks[0].text);
	cr_assert(ranks[1].report.step == 10);
	cr_assert(ranks[1].report.run == 3);
	cr_assert(!wrong_elements(&test, ranks));
	close_ranks(&test, ranks);
	memset(ranks, 0, sizeof(ranks));
	agent.images[n].reported[0] = false;
	cr_assert(run_plain(&test, ranks, 20, NULL) == -EBADMSG);
	cr_assert(strstr(ranks[0].text, "wq"), "%s", ranks[0].text);
	cr_assert(strstr(ranks[0].text, "overwritten"), "%s", ranks[0].text);
	close_ranks(&test, ranks);
	free_test(&test);
}

/* Images are listed of what is tried, however much else there is. */
Test(restore, a_history_is_not_gone_through)
{
	size_t records[2];

	for (int k = 0; k < 2; k++) {
		struct rank ranks[RANKS_MAX] = { 0 };
		struct test test;

		plain_test(&test, 2, 2);
		for (int64_t step = 1; step <= (k ? 10 : 2); step++)
			save(&test, 1, step, 0);
		cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
			  ranks[0].text);
		records[k] = agent.records;
		cr_assert(agent.lists == 2, "%u", agent.lists);
		close_ranks(&test, ranks);
		free_test(&test);
	}
	cr_assert(records[0] && records[0] == records[1], "%zu, then %zu",
		  records[0], records[1]);
}

Test(restore, a_run_that_is_newer_comes_first)
{
	struct sk_restore_options o = { .run = 4 };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 1, 1);
	save(&test, 4, 900, 0);
	save(&test, 5, 100, 0);
	cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL));
	cr_assert(ranks[0].report.step == 100);
	close_ranks(&test, ranks);
	memset(ranks, 0, sizeof(ranks));
	cr_assert(!run_plain(&test, ranks, SK_LATEST, &o));
	cr_assert(ranks[0].report.step == 900);
	close_ranks(&test, ranks);
	free_test(&test);
}

/* Two lives of one number: each is restored from its own images alone. */
Test(restore, lives_of_one_number_are_not_mixed)
{
	struct sk_restore_options o = { .run = 1, .run_id = 11 };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	agent.run_id = 11;
	save(&test, 1, 10, 0);
	agent.run_id = 12;
	salt = 1;
	save(&test, 1, 10, 0);
	agent.run_id = 0;
	cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
		  ranks[0].text);
	cr_assert(ranks[0].report.run_id == 12 &&
		  ranks[1].report.run_id == 12);
	cr_assert(!wrong_elements(&test, ranks));
	close_ranks(&test, ranks);
	memset(ranks, 0, sizeof(ranks));
	salt = 0;
	cr_assert(!run_plain(&test, ranks, SK_LATEST, &o), "%s",
		  ranks[0].text);
	cr_assert(ranks[0].report.run_id == 11);
	cr_assert(!wrong_elements(&test, ranks));
	close_ranks(&test, ranks);
	free_test(&test);
}

/* Where the store could not be read, nobody says that there is nothing. */
Test(restore, what_cannot_be_read_is_not_nothing)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	agent.unreadable = 1;
	cr_assert(run_plain(&test, ranks, SK_LATEST, NULL) == -EIO);
	cr_assert(strstr(ranks[0].text, "cannot read /store/job"), "%s",
		  ranks[0].text);
	close_ranks(&test, ranks);
	memset(ranks, 0, sizeof(ranks));
	save(&test, 1, 10, 0);
	cr_assert(run_plain(&test, ranks, 11, NULL) == -EIO);
	close_ranks(&test, ranks);
	memset(ranks, 0, sizeof(ranks));
	/* What is there is restored all the same. */
	cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
		  ranks[0].text);
	close_ranks(&test, ranks);
	agent.unreadable = 0;
	free_test(&test);
}

Test(restore, nothing_to_restore_says_so)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	cr_assert(run_plain(&test, ranks, SK_LATEST, NULL) == -ENOENT);
	cr_assert(strstr(ranks[0].text, "first run"), "%s", ranks[0].text);
	close_ranks(&test, ranks);
	memset(ranks, 0, sizeof(ranks));
	save(&test, 1, 10, 0);
	agent.incomplete = true;
	cr_assert(run_plain(&test, ranks, SK_LATEST, NULL) == -ENOENT);
	cr_assert(strstr(ranks[0].text, "wq [0:4] of rank 1"), "%s",
		  ranks[0].text);
	close_ranks(&test, ranks);
	memset(ranks, 0, sizeof(ranks));
	agent.incomplete = false;
	cr_assert(run_plain(&test, ranks, 11, NULL) == -ENOENT);
	cr_assert(strstr(ranks[1].text, "step 11"), "%s", ranks[1].text);
	close_ranks(&test, ranks);
	free_test(&test);
}

/* Each byte that several ranks of a node read is verified by one of them. */
Test(restore, ranks_share_the_verification)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	uint64_t bytes = 0, verified = 0, most = 0;
	struct test test;

	plain_test(&test, 2, 4);
	test.tensors[0].target.placements[0] = SK_REPLICATE;
	save(&test, 1, 10, 0);
	cr_assert(!run_plain(&test, ranks, SK_LATEST, NULL), "%s",
		  ranks[0].text);
	cr_assert(!wrong_elements(&test, ranks));
	for (int i = 0; i < agent.n; i++)
		for (uint32_t k = 0; k < agent.images[i].layout->n_entries; k++)
			bytes += agent.images[i].layout->entries[k].bytes;
	for (int i = 0; i < 4; i++) {
		uint64_t v = ranks[i].report.bytes_verified;

		verified += v;
		most = v > most ? v : most;
	}
	/* The blobs come on top of the tensor's 4 MiB. */
	cr_assert(verified >= (4 << 20) && verified <= bytes,
		  "%" PRIu64 " of %" PRIu64, verified, bytes);
	cr_assert(most <= 3 << 20, "one rank verified %" PRIu64, most);
	close_ranks(&test, ranks);
	free_test(&test);
}

/* ---- names ---- */

static char extra_memory[64];

static void describe_another(struct rank *r)
{
	if (r->rank == 1)
		cr_assert(!sk_state_blob(r->state, "scheduler", extra_memory,
					 16));
	if (r->rank == 0)
		cr_assert(!sk_state_blob(r->state, "loader", extra_memory,
					 16));
}

static void describe_less(struct rank *r)
{
	cr_assert(!sk_state_remove(r->state, "config"));
	if (r->rank)
		cr_assert(!sk_state_remove(r->state, "wq"));
}

static void describe_another_size(struct rank *r)
{
	cr_assert(!sk_state_blob(r->state, "config", r->memory[0], 99));
}

static void describe_another_dtype(struct rank *r)
{
	struct sk_tensor t = { .name = "wq", .dtype = SK_BF16, .ndim = 2,
			       .shape = { 1024, 512 } };

	if (r->rank != 1)
		return;
	t.data = take_memory(r, 1024 * 512 * 2);
	cr_assert(!sk_state_tensor(r->state, &t));
}

static void describe_without_memory(struct rank *r)
{
	struct sk_tensor t = { .name = "wq", .dtype = SK_F32, .ndim = 2,
			       .shape = { 1024, 1024 } };

	cr_assert(!sk_state_tensor(r->state, &t));
}

static int run_with(struct test *test, struct rank *ranks,
		    void (*more)(struct rank *),
		    const struct sk_restore_options *o)
{
	memset(ranks, 0, RANKS_MAX * sizeof(*ranks));
	for (int i = 0; i < RANKS_MAX; i++)
		ranks[i].more = more;
	return run_plain(test, ranks, SK_LATEST, o);
}

Test(restore, missing_names_are_all_listed_on_all_ranks)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_MISSING_OK };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	cr_assert(run_with(&test, ranks, describe_another, NULL) == -ENOKEY);
	for (int i = 0; i < 2; i++) {
		cr_assert(strstr(ranks[i].text, "loader, scheduler"), "%s",
			  ranks[i].text);
		cr_assert(!strstr(ranks[i].text, "overwritten"));
	}
	close_ranks(&test, ranks);
	cr_assert(!run_with(&test, ranks, describe_another, &o), "%s",
		  ranks[0].text);
	cr_assert(ranks[0].report.missing == 1);
	cr_assert(ranks[0].report.tensors == 3);
	cr_assert(!wrong_in(&ranks[0], &ranks[0].state->locals[0]));
	close_ranks(&test, ranks);
	free_test(&test);
}

Test(restore, names_that_no_rank_asked_for_are_listed)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_EXTRA_OK };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	cr_assert(run_with(&test, ranks, describe_less, NULL) == -ENOKEY);
	/* wq is asked for by rank 0. */
	for (int i = 0; i < 2; i++)
		cr_assert(strstr(ranks[i].text, "by no rank: config;"), "%s",
			  ranks[i].text);
	close_ranks(&test, ranks);
	cr_assert(!run_with(&test, ranks, describe_less, &o));
	cr_assert(ranks[0].report.extra == 1);
	close_ranks(&test, ranks);
	free_test(&test);
}

Test(restore, other_sizes_and_types_are_refused_everywhere)
{
	struct sk_restore_options o = { .flags = SK_RESTORE_PARTIAL };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	cr_assert(run_with(&test, ranks, describe_another_size, &o) ==
		  -EINVAL);
	cr_assert(strstr(ranks[1].text, "\"config\" has 100 bytes"), "%s",
		  ranks[1].text);
	close_ranks(&test, ranks);
	cr_assert(run_with(&test, ranks, describe_another_dtype, &o) ==
		  -EINVAL);
	cr_assert(strstr(ranks[0].text, "rank 1"), "%s", ranks[0].text);
	cr_assert(strstr(ranks[0].text, "F32 [1024, 1024]"), "%s",
		  ranks[0].text);
	cr_assert(strstr(ranks[0].text, "BF16 [1024, 512]"), "%s",
		  ranks[0].text);
	close_ranks(&test, ranks);
	free_test(&test);
}

Test(restore, only_what_is_named_needs_memory)
{
	const char *names[] = { "config" };
	const char *wrong[] = { "config", "confog" };
	struct sk_restore_options o = { .names = names, .n_names = 1 };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	cr_assert(run_with(&test, ranks, describe_without_memory, NULL) ==
		  -EINVAL);
	cr_assert(strstr(ranks[0].text, "wq"), "%s", ranks[0].text);
	close_ranks(&test, ranks);
	cr_assert(!run_with(&test, ranks, describe_without_memory, &o), "%s",
		  ranks[0].text);
	cr_assert(ranks[0].report.tensors == 1);
	cr_assert(!wrong_in(&ranks[0], &ranks[0].state->locals[1]));
	close_ranks(&test, ranks);
	o.names = wrong;
	o.n_names = 2;
	cr_assert(run_with(&test, ranks, NULL, &o) == -ENOKEY);
	cr_assert(strstr(ranks[0].text, "confog"), "%s", ranks[0].text);
	close_ranks(&test, ranks);
	free_test(&test);
}

/* ---- comms that lie ---- */

static void spoil(char *bytes, size_t n)
{
	for (uint64_t i = 1 + below(8); n && i-- > 0;)
		bytes[below(n)] ^= (char)(1u << below(8));
}

/* Rank 1 says what rank 0 does, but for a few bits; the end is all ones. */
static int garbled(void *ctx, const void *in, size_t bytes, void *out,
		   uint32_t timeout_ms)
{
	char *theirs = (char *)out + bytes;

	(void)ctx;
	(void)timeout_ms;
	memcpy(out, in, bytes);
	memcpy(theirs, in, bytes);
	if (one_in(3))
		spoil(theirs, bytes);
	if (one_in(3))
		memset(theirs + below(bytes), 0xff, 1);
	if (one_in(6))
		memset(theirs, 0xff, bytes);
	return 0;
}

/* Nobody's part arrives, one's own neither. */
static int forgets(void *ctx, const void *in, size_t bytes, void *out,
		   uint32_t timeout_ms)
{
	(void)ctx;
	(void)in;
	(void)timeout_ms;
	memset(out, 0, 2 * bytes);
	return 0;
}

static int restore_over(const struct test *test,
			int (*fn)(void *, const void *, size_t, void *,
				  uint32_t), bool another)
{
	struct sk_comm comm = { .allgather = fn };
	struct rank r = { .more = another ? describe_another : NULL };
	int result;

	open_rank(&r, test, 0, NULL);
	result = sk_restore(r.state, SK_LATEST, &comm, NULL, NULL);
	if (result < 0)
		cr_assert(sk_error()[0]);
	close_ranks(&(struct test){ .world = { 1, 1 } }, &r);
	return result;
}

Test(restore, a_broken_comm_is_an_error_and_no_more)
{
	struct test test;
	int failed = 0;

	seed_state = 7;
	plain_test(&test, 2, 2);
	save(&test, 1, 10, 0);
	cr_assert(restore_over(&test, forgets, false) == -EPROTO, "%s",
		  sk_error());
	for (int i = 0; i < 200; i++)
		failed += restore_over(&test, garbled, i % 2) < 0;
	cr_assert(failed > 100, "%d of 200 failed", failed);
	free_test(&test);
}

/* ---- options ---- */

Test(restore, options_that_make_no_sense)
{
	struct sk_restore_options both = {
		.flags = SK_RESTORE_MEMORY_ONLY | SK_RESTORE_DISK_ONLY };
	struct sk_restore_options unknown = { .flags = 1u << 30 };
	struct rank ranks[RANKS_MAX] = { 0 };
	struct test test;

	plain_test(&test, 1, 1);
	save(&test, 1, 10, 0);
	cr_assert(run_plain(&test, ranks, SK_LATEST, &both) == -EINVAL);
	close_ranks(&test, ranks);
	memset(ranks, 0, sizeof(ranks));
	cr_assert(run_plain(&test, ranks, SK_LATEST, &unknown) == -EINVAL);
	close_ranks(&test, ranks);
	memset(ranks, 0, sizeof(ranks));
	cr_assert(run_plain(&test, ranks, -2, NULL) == -EINVAL);
	close_ranks(&test, ranks);
	free_test(&test);
}
