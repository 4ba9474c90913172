/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library must not do, whatever it is asked: each was done once.
 * Argument: path of shardkeepd.
 */
#include "libclient/restore/common.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "conn/client.h"
#include "conn/list.h"

#define STRANGER 65534
#define MANY 300

/* ---- descriptions ---- */

static void describe_one(struct rank *rank, const char *name, char *data)
{
	CHECK(!sk_state_tensor(rank->state, &(struct sk_tensor){ .name = name,
		.dtype = SK_U8, .ndim = 1, .shape = { 16 }, .data = data }),
	      "%s", sk_error());
}

/* A snapshot counts the tensors that it knew. */
static void fence_of_later_tensors(struct rank *rank)
{
	char *data = rank_memory(16, 1), name[16];

	describe_one(rank, "first", data);
	CHECK(!sk_snapshot(rank->state, 1, NULL), "%s", sk_error());
	for (int i = 0; i < MANY; i++) {
		(void)snprintf(name, sizeof(name), "t%d", i);
		describe_one(rank, name, data);
	}
	for (int i = 0; i < MANY; i++) {
		(void)snprintf(name, sizeof(name), "t%d", i);
		CHECK(!sk_fence_tensor(rank->state, name), "%s", sk_error());
	}
	CHECK(!sk_wait(rank->state, 1, SK_COMPLETE, 20000), "%s", sk_error());
}

/* Fences look for names while others describe. */
static void *fence_names(void *arg)
{
	struct rank *rank = arg;
	char name[16];
	int r;

	for (int i = 0; i < 20 * MANY; i++) {
		(void)snprintf(name, sizeof(name), "t%d", i % MANY);
		r = sk_fence_tensor(rank->state, name);
		CHECK(!r || r == -ENOENT, "%d: %s", r, sk_error());
	}
	return NULL;
}

static void fences_beside_descriptions(struct rank *rank)
{
	char *data = rank_memory(16, 1), name[16];
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, fence_names, rank));
	for (int i = 0; i < MANY; i++) {
		(void)snprintf(name, sizeof(name), "t%d", i);
		describe_one(rank, name, data);
	}
	for (int i = 0; i < MANY; i += 2) {
		(void)snprintf(name, sizeof(name), "t%d", i);
		CHECK(!sk_state_remove(rank->state, name), "%s", sk_error());
	}
	CHECK(!sk_state_clear(rank->state));
	CHECK(!pthread_join(thread, NULL));
}

/* One name, one thing: what stood there is not dropped in silence. */
static void names_are_one_space(struct rank *rank)
{
	char *data = rank_memory(16, 1);

	describe_one(rank, "x", data);
	CHECK(sk_state_blob(rank->state, "x", data, 16) == -EEXIST);
	CHECK(strstr(sk_error(), "\"x\"") && strstr(sk_error(), "tensor"),
	      "%s", sk_error());
	CHECK(sk_state_blob_local(rank->state, "x", data, 16) == -EEXIST);
	CHECK(!sk_state_blob(rank->state, "y", data, 16), "%s", sk_error());
	CHECK(sk_state_blob_local(rank->state, "y", data, 16) == -EEXIST);
	CHECK(strstr(sk_error(), "\"y\""), "%s", sk_error());
	CHECK(sk_state_tensor(rank->state, &(struct sk_tensor){ .name = "y",
		.dtype = SK_U8, .ndim = 1, .shape = { 16 }, .data = data }) ==
	      -EEXIST);
	CHECK(!sk_state_remove(rank->state, "x"), "%s", sk_error());
	CHECK(!sk_state_blob(rank->state, "x", data, 16), "%s", sk_error());
	CHECK(!sk_state_blob(rank->state, "y", data, 8), "%s", sk_error());
}

/* Rank 2 of a mesh of a job of two ranks does not exist. */
static void mesh_beyond_the_world(struct rank *rank)
{
	const int32_t beyond[] = { 0, 2 };
	struct sk_mesh *mesh = mesh_of(2, 0, beyond, NULL);
	struct sk_tensor t = { .name = "w", .dtype = SK_U8, .ndim = 1,
			       .shape = { 16 }, .mesh = mesh,
			       .placements = { SK_SHARD(0) },
			       .data = rank_memory(16, 1) };

	CHECK(sk_state_tensor(rank->state, &t) == -EINVAL);
	CHECK(strstr(sk_error(), "\"w\"") && strstr(sk_error(), "rank 2"),
	      "%s", sk_error());
	sk_mesh_release(mesh);
}

/* ---- described again ---- */

static void check_step(struct rank *rank, int64_t step, const int *data,
		       int n, int want)
{
	CHECK(!sk_snapshot(rank->state, step, &(struct sk_snapshot_options){
		.wait_ms = 20000 }), "%s", sk_error());
	CHECK(!sk_wait(rank->state, step, SK_COMPLETE, 20000), "%s",
	      sk_error());
	memset((void *)data, 0, (size_t)n * sizeof(*data));
	CHECK(!sk_restore(rank->state, step, NULL, NULL, NULL), "%s",
	      sk_error());
	for (int i = 0; i < n; i++)
		CHECK(data[i] == want, "%d is %d, step %d", i, data[i],
		      (int)step);
}

static int *full(int n, int value)
{
	int *data = (int *)rank_memory((size_t)n * sizeof(*data), 0);

	for (int i = 0; i < n; i++)
		data[i] = value;
	return data;
}

/* Another pointer, other strides, another box: what counts is what was said
 * last. What was said before may be gone. */
static void described_again(struct rank *rank)
{
	struct sk_tensor t = { .name = "w", .dtype = SK_I32, .ndim = 1,
			       .shape = { 1000 } };
	struct sk_part parts[2] = {
		{ .box = { { 0 }, { 400 } } }, { .box = { { 400 }, { 600 } } },
	};
	int *a = full(1000, 1), *b = full(1000, 2), *c = full(1000, 3);

	t.data = a;
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	check_step(rank, 1, a, 1000, 1);
	t.data = b;
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	memset(a, 9, 4000);
	check_step(rank, 2, b, 1000, 2);
	/* Each lies alone. */
	parts[0].data = c;
	parts[1].data = full(600, 3);
	t.parts = parts;
	t.n_parts = 2;
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	check_step(rank, 3, c, 400, 3);
	check_step(rank, 4, parts[1].data, 600, 3);
	/* As many boxes, others, of the same bytes in all. */
	b = full(700, 4);
	parts[0].box = (struct sk_box){ { 0 }, { 700 } };
	parts[1].box = (struct sk_box){ { 700 }, { 300 } };
	parts[0].data = b;
	parts[1].data = full(300, 4);
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	check_step(rank, 5, b, 700, 4);
	check_step(rank, 6, parts[1].data, 300, 4);
}

/* ---- what must be zero ---- */

static void refused_for(int r, const char *field)
{
	CHECK(r == -EINVAL, "%s: %d", field, r);
	CHECK(strstr(sk_error(), field), "%s: %s", field, sk_error());
}

/* A flag or a field that this version does not know may mean something to
 * the next: it is refused, and named. */
static void reserved_fields(struct rank *rank)
{
	struct sk_options o = { .socket = rank->scene->socket };
	struct sk_job job = { .name = "x", .world = 1 };
	struct sk_tensor t = { .name = "w", .dtype = SK_U8, .ndim = 1,
			       .shape = { 16 }, .data = rank_memory(16, 1) };
	struct sk_snapshot_options s = { 0 };
	struct sk_restore_options ro = { 0 };
	struct sk_comm comm = { 0 };
	struct sk_state *state = NULL;
	struct sk *sk = NULL;

	o.reserved[SK_ARRAY_SIZE(o.reserved) - 1] = 1;
	refused_for(sk_open(&o, &sk), "sk_options.reserved");
	o.reserved[SK_ARRAY_SIZE(o.reserved) - 1] = 0;
	o.reserved_ = 1;
	refused_for(sk_open(&o, &sk), "sk_options.reserved_");
	o.reserved_ = 0;
	o.flags = 1u << 31;
	refused_for(sk_open(&o, &sk), "sk_options.flags");
	job.reserved[0] = 1;
	refused_for(sk_state_create(rank->sk, &job, &state),
		    "sk_job.reserved");
	job.reserved[0] = 0;
	job.reserved_ = 1;
	refused_for(sk_state_create(rank->sk, &job, &state),
		    "sk_job.reserved_");
	t.reserved[SK_ARRAY_SIZE(t.reserved) - 1] = 1;
	refused_for(sk_state_tensor(rank->state, &t), "sk_tensor.reserved");
	t.reserved[SK_ARRAY_SIZE(t.reserved) - 1] = 0;
	t.flags = 1;
	refused_for(sk_state_tensor(rank->state, &t), "sk_tensor.flags");
	t.flags = 0;
	CHECK(!sk_state_tensor(rank->state, &t), "%s", sk_error());
	s.reserved[SK_ARRAY_SIZE(s.reserved) - 1] = 1;
	refused_for(sk_snapshot(rank->state, 1, &s),
		    "sk_snapshot_options.reserved");
	s.reserved[SK_ARRAY_SIZE(s.reserved) - 1] = 0;
	s.flags = 1u << 31;
	refused_for(sk_snapshot(rank->state, 1, &s),
		    "sk_snapshot_options.flags");
	ro.reserved[SK_ARRAY_SIZE(ro.reserved) - 1] = 1;
	refused_for(sk_restore(rank->state, 1, NULL, &ro, NULL),
		    "sk_restore_options.reserved");
	comm.reserved[SK_ARRAY_SIZE(comm.reserved) - 1] = &comm;
	refused_for(sk_restore(rank->state, 1, &comm, NULL, NULL),
		    "sk_comm.reserved");
	comm.reserved[SK_ARRAY_SIZE(comm.reserved) - 1] = NULL;
	refused_for(sk_restore(rank->state, 1, &comm, NULL, NULL),
		    "sk_comm.allgather");
}

/* ---- what makes no sense ---- */

static void bad_names(struct rank *rank)
{
	const char *const odd[] = { "\xff", "a\nb", "", ("\xc2\x9b" "31m") };
	struct sk_tensor t = { .name = "__metadata__", .dtype = SK_U8,
			       .ndim = 1, .shape = { 16 },
			       .data = rank_memory(16, 1) };
	struct sk_mesh *mesh = NULL, *child = NULL;

	refused_for(sk_state_tensor(rank->state, &t), "__metadata__");
	for (size_t i = 0; i < SK_ARRAY_SIZE(odd); i++) {
		CHECK(sk_mesh_create(1, (int64_t[]){ 1 }, NULL, &odd[i],
				     &mesh) == -EINVAL, "%s", odd[i]);
		t.name = odd[i];
		CHECK(sk_state_tensor(rank->state, &t) == -EINVAL);
		CHECK(sk_state_blob(rank->state, odd[i], t.data, 16) ==
		      -EINVAL);
	}
	mesh = mesh_of(1, 0, NULL, (const char *[]){ "dp" });
	refused_for(sk_mesh_child(mesh, 0, (const char *[]){ NULL }, 1,
				  &child), "null pointer");
	sk_mesh_release(mesh);
}

/* What is refused when it is said, and not when it is too late. */
static void bad_descriptions(struct rank *rank)
{
	char *data = rank_memory(64, 1);
	struct sk_part part = { .box = { { 0, 0 }, { 4, 8 } },
				.strides = { 0, 1 }, .data = data };
	struct sk_tensor t = { .name = "w", .dtype = SK_U8, .ndim = 2,
			       .shape = { 4, 8 }, .strides = { 0, 1 },
			       .data = data };

	refused_for(sk_state_tensor(rank->state, &t), "stride 0");
	memset(t.strides, 0, sizeof(t.strides));
	t.data = NULL;
	t.parts = &part;
	t.n_parts = 1;
	refused_for(sk_state_tensor(rank->state, &t), "stride 0");
	t = (struct sk_tensor){ .name = "w", .dtype = SK_U8, .ndim = 2,
				.shape = { INT64_MAX, INT64_MAX },
				.data = data };
	CHECK(sk_state_tensor(rank->state, &t) == -EOVERFLOW, "%s",
	      sk_error());
	t = (struct sk_tensor){ .name = "w", .dtype = SK_U8, .ndim = 2,
				.shape = { 4, 8 }, .data = data,
				.strides = { INT64_MAX / 2, 1 } };
	CHECK(sk_state_tensor(rank->state, &t) == -EFAULT, "%s",
	      sk_error());
	CHECK(sk_state_tensors(rank->state, &t, SIZE_MAX) == -E2BIG, "%s",
	      sk_error());
}

/* A sentence says of what it is, and what there may be. */
static void bad_blobs_and_worlds(struct rank *rank)
{
	struct sk_job job = { .name = "x", .world = INT32_MAX };
	struct sk_options o = { .threads = 100000 };
	struct sk_state *state = NULL;
	struct sk *sk = NULL;
	char c = 1;

	refused_for(sk_state_blob(rank->state, NULL, &c, 1), "a blob");
	CHECK(sk_state_blob(rank->state, "b", &c, SIZE_MAX / 2) == -EOVERFLOW);
	CHECK(strstr(sk_error(), "blob \"b\""), "%s", sk_error());
	refused_for(sk_state_create(rank->sk, &job, &state), "at most");
	job.world = 0;
	refused_for(sk_state_create(rank->sk, &job, &state), "at least 1");
	job.world = job.rank = 2;
	refused_for(sk_state_create(rank->sk, &job, &state), "0 to 1");
	refused_for(sk_open(&o, &sk), "sk_options.threads");
}

static void contradictions(struct rank *rank)
{
	struct sk_options o = { .socket = "" };
	struct sk_job job = { .name = "x", .world = 1, .slots = 65 };
	struct sk_snapshot_options s = { .flags = SK_SNAPSHOT_FLUSH |
						  SK_SNAPSHOT_NO_FLUSH };
	struct sk_state *state = NULL;
	struct sk *sk = NULL;

	bad_names(rank);
	bad_descriptions(rank);
	bad_blobs_and_worlds(rank);
	refused_for(sk_open(&o, &sk), "sk_options.socket");
	refused_for(sk_state_create(rank->sk, &job, &state), "65 slots");
	CHECK(!sk_state_blob(rank->state, "b", rank_memory(8, 1), 8), "%s",
	      sk_error());
	refused_for(sk_snapshot(rank->state, 1, &s), "not to be flushed");
}

/* ---- whose agent it is ---- */

/* Takes connections and says nothing, as @uid, until it is killed. */
static pid_t listen_as(uid_t uid, const char *dir, const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int ready[2], sock;
	pid_t pid;
	char c;

	CHECK(!pipe(ready));
	CHECK(strlen(path) < sizeof(a.sun_path));
	strcpy(a.sun_path, path);
	fflush(NULL);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		CHECK(!setuid(uid));
		CHECK(!dir || !mkdir(dir, 0755));
		sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		(void)umask(0);
		CHECK(!bind(sock, (struct sockaddr *)&a, sizeof(a)));
		CHECK(!listen(sock, 8));
		CHECK(write(ready[1], "", 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(ready[0], &c, 1) == 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

static void end(pid_t pid)
{
	CHECK(!kill(pid, SIGKILL));
	CHECK(waitpid(pid, NULL, 0) == pid);
}

/* A stranger made the directory of the private agent before we did. */
static void strangers_directory(struct scene *scene)
{
	struct sk_options o = { .timeout_ms = 20000 };
	char run[128], dir[160], path[192];
	struct sk *sk = NULL;
	pid_t pid;

	(void)snprintf(run, sizeof(run), "%s/run", scene->dir);
	(void)snprintf(dir, sizeof(dir), "%s/shardkeep", run);
	(void)snprintf(path, sizeof(path), "%s/agent.sock", dir);
	CHECK(!chmod(scene->dir, 0711) && !mkdir(run, 0777));
	CHECK(!chmod(run, 0777));
	pid = listen_as(STRANGER, dir, path);
	CHECK(!setenv("XDG_RUNTIME_DIR", run, 1));
	CHECK(!unsetenv("SHARDKEEP_SOCKET"));
	CHECK(sk_open(&o, &sk) == -EACCES, "%s", sk_error());
	CHECK(strstr(sk_error(), dir), "%s", sk_error());
	CHECK(!unsetenv("XDG_RUNTIME_DIR"));
	end(pid);
}

/* The private agent's place is said by the environment: that it cannot be
 * there is said in its words, and of no other variable. */
static void no_place(void)
{
	struct sk_options o = { .timeout_ms = 20000 };
	struct sk *sk = NULL;
	char far[6000];

	CHECK(!unsetenv("SHARDKEEP_SOCKET"));
	for (size_t n = 100; n < sizeof(far); n += 5000) {
		memset(far, 'x', n);
		far[0] = '/';
		far[n] = '\0';
		CHECK(!setenv("XDG_RUNTIME_DIR", far, 1));
		CHECK(sk_open(&o, &sk) == -ENAMETOOLONG, "%s", sk_error());
		CHECK(strstr(sk_error(), "XDG_RUNTIME_DIR"), "%s", sk_error());
	}
	CHECK(!setenv("XDG_RUNTIME_DIR", "/proc/none", 1));
	CHECK(sk_open(&o, &sk) == -ENOENT, "%s", sk_error());
	CHECK(strstr(sk_error(), "XDG_RUNTIME_DIR"), "%s", sk_error());
	CHECK(!unsetenv("XDG_RUNTIME_DIR"));
}

/* A stranger listens at the path that we were given. */
static void strangers_socket(struct scene *scene)
{
	struct sk_options o = { .timeout_ms = 20000 };
	char path[128];
	struct sk *sk = NULL;
	pid_t pid;

	(void)snprintf(path, sizeof(path), "%s/run/strange.sock", scene->dir);
	pid = listen_as(STRANGER, NULL, path);
	o.socket = path;
	CHECK(sk_open(&o, &sk) == -EACCES, "%s", sk_error());
	CHECK(strstr(sk_error(), "65534"), "%s", sk_error());
	end(pid);
}

/* Root's agent serves everybody. */
static void roots_agent(struct scene *scene)
{
	pid_t pid;
	int status;

	fflush(NULL);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		struct sk_options o = { .socket = scene->socket,
					.timeout_ms = 20000 };
		struct sk *sk = NULL;

		CHECK(!setuid(STRANGER));
		CHECK(!sk_open(&o, &sk), "%s", sk_error());
		sk_close(sk);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && !status);
}

/* ---- descriptors ---- */

/* The sentence of a client that is out of descriptors says so. */
static void out_of_descriptors(struct rank *rank)
{
	struct rlimit limit, few;
	char *json = NULL;
	rlim_t next;
	int r;

	describe_one(rank, "w", rank_memory(16, 1));
	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	next = (rlim_t)fcntl(0, F_DUPFD_CLOEXEC, 0);
	close((int)next);
	for (rlim_t more = 0; more < 2; more++) {
		/* Those that are open; then one connection more. */
		few = limit;
		few.rlim_cur = next + more;
		CHECK(!setrlimit(RLIMIT_NOFILE, &few));
		r = sk_snapshots(rank->sk, NULL, &json);
		CHECK(r == -EMFILE, "%d: %s", r, sk_error());
		CHECK(strstr(sk_error(), "Too many open files"), "%s",
		      sk_error());
	}
	few.rlim_cur = next;
	CHECK(!setrlimit(RLIMIT_NOFILE, &few));
	r = sk_snapshot(rank->state, 1, NULL);
	CHECK(r == -EMFILE, "%d: %s", r, sk_error());
	CHECK(strstr(sk_error(), "Too many open files"), "%s", sk_error());
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	CHECK(!sk_snapshots(rank->sk, NULL, &json), "%s", sk_error());
	free(json);
	CHECK(!sk_snapshot(rank->state, 1, NULL), "%s", sk_error());
	CHECK(!sk_wait(rank->state, 1, SK_COMPLETE, 20000), "%s", sk_error());
}

/* ---- what is sealed ---- */

static sigjmp_buf faulted;

static void on_fault(int sig)
{
	siglongjmp(faulted, sig);
}

/* Whether a store faults, of each image that is mapped. */
static bool store_faults(const struct sk_slot_map *slot)
{
	struct sigaction action = { .sa_handler = on_fault }, before;
	volatile char *at = slot->map[0];
	volatile bool faults = true;

	CHECK(!sigaction(SIGSEGV, &action, &before));
	if (!sigsetjmp(faulted, 1)) {
		at[100] = at[100];
		faults = false;
	}
	CHECK(!sigaction(SIGSEGV, &before, NULL));
	return faults;
}

/* A stray pointer of the trainer's faults, and does not spoil a snapshot. */
static void sealed_slots(struct rank *rank)
{
	struct sk_report report;
	uint32_t n = 0;

	rank_tensor(rank, &(struct sk_tensor){ .name = "w", .dtype = SK_F32,
		.ndim = 1, .shape = { 300000 } }, 0);
	for (int64_t step = 1; step <= 5; step++) {
		rank_write(rank, step);
		rank_snapshot(rank, step, SK_COMPLETE);
		n = 0;
		for (uint32_t i = 0; i < rank->state->n_slots; i++)
			n += store_faults(&rank->state->slots[i]);
		CHECK(n == (step > 1 ? 2 : 1), "%u slots, step %d", n,
		      (int)step);
		rank_write(rank, 99);
		CHECK(!rank_restore(rank, step, SK_RESTORE_MEMORY_ONLY,
				    &report), "%s", sk_error());
		CHECK(!rank_wrong(rank, step, -1));
	}
}

/* ---- what is durable ---- */

/* A byte of the image, behind its header, is another. */
static void flip_sealed(struct rank *rank, int64_t step)
{
	const struct sk_os *os = sk_os_linux();
	struct sk_wire_id id = { .step = step, .rank = 0 };
	struct sk_conn conn = SK_CONN_NULL;
	struct sk_wire_image *images;
	struct sk_opened_image o;
	struct sk_err err = { "" };
	char path[64], byte;
	size_t n = 0;
	int fd;

	strcpy(id.job, rank->job);
	CHECK(!sk_conn_open(os, rank->scene->socket, sk_until_ms(os, 10000),
			    &conn, &err), "%s", err.text);
	CHECK(!sk_list_images(&conn, &id, 0, sk_until_ms(os, 10000), &images,
			      &n, &err) && n == 1, "%s", err.text);
	CHECK(!sk_image_open(&conn, images[0].image,
			     (enum sk_place)images[0].place,
			     sk_until_ms(os, 10000), &o, &err), "%s",
	      err.text);
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", o.data);
	fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	CHECK(pread(fd, &byte, 1, (off_t)o.image_bytes - 10) == 1);
	byte ^= 4;
	CHECK(pwrite(fd, &byte, 1, (off_t)o.image_bytes - 10) == 1);
	close(fd);
	close(o.data);
	close(o.header);
	free(images);
	sk_conn_close(&conn);
}

/* What changed after the seal never becomes durable, and no file bears its
 * name; what comes after it does. */
static void changed_after_seal(struct rank *rank)
{
	char path[256];

	rank_tensor(rank, &(struct sk_tensor){ .name = "w", .dtype = SK_F32,
		.ndim = 1, .shape = { 1000000 } }, 0);
	rank_tensor(rank, &(struct sk_tensor){ .name = "v", .dtype = SK_BF16,
		.ndim = 1, .shape = { 77 } }, 0);
	rank_write(rank, 1);
	rank_snapshot(rank, 1, SK_COMPLETE);
	flip_sealed(rank, 1);
	CHECK(!sk_flush(rank->state, 1), "%s", sk_error());
	CHECK(sk_wait(rank->state, 1, SK_DURABLE, 20000) < 0);
	(void)snprintf(path, sizeof(path), "%s/%s/step-000000000001/"
		       "rank-00000-of-00001.safetensors", rank->scene->store,
		       rank->job);
	CHECK(access(path, F_OK) < 0 && errno == ENOENT);
	rank_write(rank, 2);
	rank_snapshot(rank, 2, SK_DURABLE);
}

/* ---- a trainer that is faster than the disk ---- */

/* Both slots are to be flushed, which takes for ever: it is said how long, as
 * soon as anything is known of that. */
static void busy(struct rank *rank)
{
	struct sk_state *state;
	struct sk_status status;
	char *data = rank_memory(1 << 20, 1);
	bool known;
	int r = 0;

	CHECK(!sk_state_create(rank->sk, &(struct sk_job){ .name = "slow",
		.world = 1 }, &state), "%s", sk_error());
	CHECK(!sk_state_blob(state, "b", data, 1 << 20), "%s", sk_error());
	for (int64_t step = 1; step < 4 && r >= 0; step++) {
		r = sk_snapshot(state, step, NULL);
		CHECK(!sk_status(state, &status));
		CHECK(r == -EBUSY || !status.busy_ns);
		if (r >= 0)
			CHECK(!sk_wait(state, step, SK_COMPLETE, 20000), "%s",
			      sk_error());
	}
	CHECK(r == -EBUSY, "%d: %s", r, sk_error());
	known = strstr(sk_error(), "the oldest flush needs");
	CHECK(known == (status.busy_ns > 0), "%s", sk_error());
	CHECK(known || strstr(sk_error(), "is not known yet"), "%s",
	      sk_error());
	sk_state_free(state);
}

static void slow_disk(struct scene *scene)
{
	scene_stop_agent(scene, SIGTERM);
	scene->flush_rate = "10K";
	scene_start_agent(scene);
	scene_ranks(scene, "busy", 1, busy, NULL);
	scene_stop_agent(scene, SIGKILL);
	scene->flush_rate = NULL;
	scene_start_agent(scene);
}

/* ---- a refusal is not for ever ---- */

static struct sk_state *hold(struct rank *rank, const char *job, size_t bytes)
{
	struct sk_state *state;

	CHECK(!sk_state_create(rank->sk, &(struct sk_job){ .name = job,
		.world = 1, .flush_every = SK_FLUSH_NEVER }, &state), "%s",
	      sk_error());
	CHECK(!sk_state_blob(state, "b", rank_memory(bytes, 1), bytes), "%s",
	      sk_error());
	return state;
}

/* Restores first, as is said everywhere; then there is no memory for a while,
 * and then there is. The same when what it holds becomes larger. */
static void memory_comes_back(struct rank *rank)
{
	struct sk_state *other = hold(rank, "other", 3 << 20), *mine;
	size_t bytes = 2 << 20;

	CHECK(!sk_prepare(other, 0), "%s", sk_error());
	mine = hold(rank, "mine", bytes);
	CHECK(sk_restore(mine, SK_LATEST, NULL, NULL, NULL) == -ENOENT);
	for (int i = 0; i < 3; i++)
		CHECK(sk_snapshot(mine, 1, NULL) == -ENOMEM, "%s",
		      sk_error());
	sk_state_free(other);
	CHECK(!sk_snapshot(mine, 1, NULL), "%s", sk_error());
	CHECK(!sk_wait(mine, 1, SK_COMPLETE, 20000), "%s", sk_error());
	CHECK(!sk_state_blob(mine, "c", rank_memory(9 << 20, 1), 9 << 20));
	for (int i = 0; i < 3; i++)
		CHECK(sk_snapshot(mine, 2, NULL) == -ENOMEM, "%s",
		      sk_error());
	CHECK(!sk_state_remove(mine, "c"), "%s", sk_error());
	CHECK(!sk_snapshot(mine, 3, NULL), "%s", sk_error());
	CHECK(!sk_wait(mine, 3, SK_COMPLETE, 20000), "%s", sk_error());
	sk_state_free(mine);
}

/* A rank that came too early, and alone, meets the others all the same when
 * it comes again. */
static void came_too_early(struct rank *rank)
{
	struct sk_restore_options o = { .timeout_ms = 300 };
	const int *go = rank->arg;
	char c = 0;
	int r;

	describe_one(rank, "w", rank_memory(16, 1));
	if (rank->rank == 0) {
		CHECK(sk_restore(rank->state, SK_LATEST, NULL, &o, NULL) ==
		      -ETIMEDOUT, "%s", sk_error());
		CHECK(write(go[1], &c, 1) == 1);
	} else {
		CHECK(!close(go[1]) && read(go[0], &c, 1) == 1);
	}
	o.timeout_ms = 20000;
	r = sk_restore(rank->state, SK_LATEST, NULL, &o, NULL);
	CHECK(r == -ENOENT, "%d: %s", r, sk_error());
}

static void little_memory(struct scene *scene)
{
	scene_stop_agent(scene, SIGKILL);
	scene->memory = "8M";
	scene_start_agent(scene);
	scene_ranks(scene, "little", 1, memory_comes_back, NULL);
	scene_stop_agent(scene, SIGKILL);
	scene->memory = NULL;
	scene_start_agent(scene);
}

static void early(struct scene *scene)
{
	pid_t pids[2];
	int go[2];

	CHECK(!pipe(go));
	scene_ranks_start(scene, "early", 2, came_too_early, go, pids);
	CHECK(!close(go[0]) && !close(go[1]));
	scene_ranks_end("early", 2, pids);
}

int main(int argc, char **argv)
{
	struct scene scene;

	scene_open(&scene, argc, argv);
	scene_ranks(&scene, "later", 1, fence_of_later_tensors, NULL);
	scene_ranks(&scene, "beside", 1, fences_beside_descriptions, NULL);
	scene_ranks(&scene, "names", 1, names_are_one_space, NULL);
	scene_ranks(&scene, "again", 1, described_again, NULL);
	scene_ranks(&scene, "mesh", 2, mesh_beyond_the_world, NULL);
	scene_ranks(&scene, "reserved", 1, reserved_fields, NULL);
	scene_ranks(&scene, "no-sense", 1, contradictions, NULL);
	scene_ranks(&scene, "descriptors", 1, out_of_descriptors, NULL);
	scene_ranks(&scene, "sealed", 1, sealed_slots, NULL);
	scene_ranks(&scene, "changed", 1, changed_after_seal, NULL);
	early(&scene);
	little_memory(&scene);
	slow_disk(&scene);
	no_place();
	if (!geteuid()) {	/* else nobody can be another user */
		strangers_directory(&scene);
		strangers_socket(&scene);
		roots_agent(&scene);
	}
	scene_close(&scene);
	return 0;
}
