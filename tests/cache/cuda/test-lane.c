/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes, page-locking and pointers, on the simulated driver or a real one.
 * Strided copies are compared with those of the host, byte for byte.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/gather.h"
#include "cuda/private.h"
#include "sim/trainer.h"

#define ROOM ((size_t)1 << 18)
#define PIECE ((uint64_t)8192)

struct fixture {
	struct trainer_cuda t;
	struct sk_cuda *cuda;
	struct sk_cuda_device *device;
	struct sk_cuda_lane *lane;
	sk_cu_stream stream;
	sk_cu_ptr there;		/* ROOM bytes */
	char *here;			/* the same, page-locked in pieces */
	struct sk_cuda_lock *lock;
};

static struct fixture *f;

static void set_up(void)
{
	f = calloc(1, sizeof(*f));
	cr_assert_not_null(f);
	setenv("VCUDA_DEVICES", "2", 0);
	trainer_cuda_begin(&f->t, 0);
	cr_assert_eq(f->t.cuStreamCreate(&f->stream, 1), 0);
	f->there = trainer_cuda_alloc(&f->t, ROOM);
	cr_assert_eq(sk_cuda_new(sk_os_linux(), &f->cuda, NULL), 0);
	cr_assert_eq(sk_cuda_device(f->cuda, 0, &f->device, NULL), 0);
	cr_assert_eq(sk_cuda_lane_new(f->device, &f->lane, NULL), 0);
	f->here = mmap(NULL, ROOM, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(f->here, MAP_FAILED);
	cr_assert_eq(sk_cuda_lock(f->device, f->here, ROOM, PIECE, &f->lock,
				  NULL), 0);
}

static void tear_down(void)
{
	sk_cuda_unlock(f->lock);
	sk_cuda_lane_free(f->lane);
	sk_cuda_free(f->cuda);
	free(f);
}

/* Drivers that have batches of the older form, and none. */
static void set_up_12_8(void)
{
	setenv("VCUDA_VERSION", "12080", 1);
	set_up();
}

static void set_up_12_0(void)
{
	setenv("VCUDA_VERSION", "12000", 1);
	set_up();
}

static uint64_t calls(const char *function)
{
	return f->t.calls ? f->t.calls(function) : 0;
}

TestSuite(lane, .init = set_up, .fini = tear_down);
TestSuite(lane_12_8, .init = set_up_12_8, .fini = tear_down);
TestSuite(lane_12_0, .init = set_up_12_0, .fini = tear_down);

static uint64_t random_state = 1;

static int64_t below(int64_t n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963u;
	return (int64_t)(random_state >> 33) % n;
}

/* ---- copies ---- */

/* A shape, dense on one side, with gaps on the other; both within ROOM. */
struct shape {
	int ndim;
	unsigned bytes;			/* of an element */
	int64_t size[4], dense[4], wide[4];
	uint64_t shift;			/* of the dense side */
};

static struct shape random_shape(void)
{
	static const unsigned widths[] = { 1, 2, 4, 8 };
	struct shape s = { .ndim = (int)below(5) };
	int64_t stride = 1;
	int order[4] = { 0, 1, 2, 3 };

	s.bytes = widths[below(4)];
	for (int d = 0; d < s.ndim; d++)
		s.size[d] = 1 + below(d == s.ndim - 1 ? 40 : 9);
	/* Now and then transposed. */
	if (s.ndim > 1 && !below(3)) {
		order[s.ndim - 1] = s.ndim - 2;
		order[s.ndim - 2] = s.ndim - 1;
	}
	for (int i = s.ndim - 1; i >= 0; i--) {
		int d = order[i];

		s.wide[d] = stride;
		stride *= s.size[d] + (below(2) ? below(3) : 0);
	}
	sk_dense_strides(s.ndim, s.size, s.dense);
	s.shift = (uint64_t)below((int64_t)PIECE * 3);
	return s;
}

static struct sk_copy copy_of(const struct shape *s, bool out, void *device,
			      void *host)
{
	struct sk_copy copy;

	host = (char *)host + s->shift;
	cr_assert_eq(out ? sk_copy_init(&copy, s->bytes * 8, s->ndim, s->size,
					host, s->dense, device, s->wide,
					NULL) :
			   sk_copy_init(&copy, s->bytes * 8, s->ndim, s->size,
					device, s->wide, host, s->dense,
					NULL), 0);
	return copy;
}

static void noise(char *p)
{
	for (size_t i = 0; i < ROOM; i++)
		p[i] = (char)below(256);
}

/* The bytes [from, to) of a copy, one way, by the device and by the host. */
static void compare(const struct shape *s, bool out, char *device_double,
		    char *host_double)
{
	void *there = (void *)(uintptr_t)f->there;
	struct sk_copy copy = copy_of(s, out, there, f->here);
	struct sk_copy same = copy_of(s, out, device_double, host_double);
	uint64_t from = (uint64_t)below((int64_t)copy.bytes + 1), to;
	struct sk_err err = { "" };
	int r;

	to = from + (uint64_t)below((int64_t)(copy.bytes - from) + 1);
	if (!below(2)) {
		from = 0;
		to = copy.bytes;
	}
	noise(device_double);
	noise(f->here);
	memcpy(host_double, f->here, ROOM);
	trainer_cuda_put(&f->t, f->there, device_double, ROOM);
	r = (out ? sk_cuda_lane_out : sk_cuda_lane_in)(
		f->lane, &copy, from, to, f->lock, &err);
	cr_assert_eq(r, 0, "%s", err.text);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	sk_copy_run_range(&same, from, to);
	cr_assert_eq(memcmp(f->here, host_double, ROOM), 0);
	if (out)
		return;
	trainer_cuda_get(&f->t, host_double, f->there, ROOM);
	cr_assert_eq(memcmp(device_double, host_double, ROOM), 0);
}

static void compare_many(void)
{
	char *device_double = malloc(ROOM), *host_double = malloc(ROOM);

	cr_assert(device_double && host_double);
	for (int i = 0; i < 60; i++) {
		struct shape s = random_shape();

		compare(&s, i % 2, device_double, host_double);
	}
	free(device_double);
	free(host_double);
}

Test(lane, copies_are_those_of_the_host)
{
	compare_many();
}

Test(lane_12_8, copies_are_those_of_the_host)
{
	compare_many();
}

Test(lane_12_0, copies_are_those_of_the_host)
{
	compare_many();
}

/* Within the device, from dense to wide, beside the same on the host. */
static void compare_across(const struct shape *s, sk_cu_ptr dense, char *from,
			   char *to, char *result)
{
	struct sk_copy copy, same;
	uint64_t begin, end;

	cr_assert_eq(sk_copy_init(&copy, s->bytes * 8, s->ndim, s->size,
				  (void *)(uintptr_t)f->there, s->wide,
				  (void *)(uintptr_t)(dense + s->shift),
				  s->dense, NULL), 0);
	cr_assert_eq(sk_copy_init(&same, s->bytes * 8, s->ndim, s->size, to,
				  s->wide, from + s->shift, s->dense, NULL),
		     0);
	begin = (uint64_t)below((int64_t)copy.bytes + 1);
	end = begin + (uint64_t)below((int64_t)(copy.bytes - begin) + 1);
	noise(from);
	noise(to);
	trainer_cuda_put(&f->t, dense, from, ROOM);
	trainer_cuda_put(&f->t, f->there, to, ROOM);
	cr_assert_eq(sk_cuda_lane_across(f->lane, &copy, begin, end, NULL),
		     0);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	sk_copy_run_range(&same, begin, end);
	trainer_cuda_get(&f->t, result, f->there, ROOM);
	cr_assert_eq(memcmp(to, result, ROOM), 0);
}

static void compare_many_across(void)
{
	char *from = malloc(ROOM), *to = malloc(ROOM), *result = malloc(ROOM);
	uint64_t dense, in, out;

	cr_assert(from && to && result);
	cr_assert_eq(sk_cuda_alloc(f->device, ROOM, &dense, NULL), 0);
	for (int i = 0; i < 30; i++) {
		struct shape s = random_shape();

		compare_across(&s, dense, from, to, result);
	}
	in = f->t.count ? f->t.count("in") : 0;
	out = f->t.count ? f->t.count("out") : 0;
	in -= f->t.count ? 60 * ROOM : 0;
	/* Our own kernel reads 24 bytes for each copy; that of boxes
	 * nothing. */
	cr_assert_eq(in % 24, 0);
	cr_assert_eq(out, f->t.count ? 30 * ROOM : 0);
	sk_cuda_release(f->device, dense);
	free(from);
	free(to);
	free(result);
}

Test(lane, copies_across_are_those_of_the_host)
{
	compare_many_across();
}

Test(lane_12_0, copies_across_are_those_of_the_host)
{
	compare_many_across();
}

/* Rows and planes of them that no kernel takes, where the driver refuses rows
 * within the device, as it may. */
static void compare_without_rows(void)
{
	char *from = malloc(ROOM), *to = malloc(ROOM), *result = malloc(ROOM);
	struct shape s = { .ndim = 3, .bytes = 1, .size = { 6, 5, 300 },
			   .wide = { 7 * 400, 400, 1 } };
	uint64_t dense;

	cr_assert(from && to && result);
	cr_assert_eq(sk_cuda_alloc(f->device, ROOM, &dense, NULL), 0);
	sk_dense_strides(s.ndim, s.size, s.dense);
	setenv("VCUDA_MODE", "pitches", 1);
	for (int i = 0; i < 10; i++)
		compare_across(&s, dense, from, to, result);
	cr_assert(!f->t.calls || (calls("cuMemcpy2DAsync") &&
				  calls("cuMemcpy3DAsync")));
	sk_cuda_release(f->device, dense);
	free(from);
	free(to);
	free(result);
}

Test(lane, rows_that_are_refused)
{
	compare_without_rows();
}

Test(lane_12_0, rows_that_are_refused)
{
	compare_without_rows();
}

Test(lane, memory_that_there_is_not)
{
	struct sk_err err = { "" };
	uint64_t ptr = 7;

	if (!f->t.fail)
		return;
	f->t.fail("cuMemAlloc", 1, SK_CU_OUT_OF_MEMORY);
	cr_assert_eq(sk_cuda_alloc(f->device, ROOM, &ptr, &err), -ENOMEM);
	cr_assert(strstr(err.text, "cuMemAlloc"), "%s", err.text);
	sk_cuda_release(f->device, 0);
}

/* What is contiguous is a call, whatever its shape; rows are one as well; and
 * where a piece of locked memory ends, another begins. */
Test(lane_12_0, calls_are_few)
{
	const int64_t size[] = { 10, 20, 5 }, gaps[] = { 200, 10, 1 };
	int64_t dense[3];
	struct sk_copy copy;

	if (!f->t.calls)
		return;		/* hardware counts none */
	sk_dense_strides(3, size, dense);
	cr_assert_eq(sk_copy_init(&copy, 32, 3, size, f->here, dense,
				  (void *)(uintptr_t)f->there, dense, NULL),
		     0);
	cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, copy.bytes, f->lock,
				      NULL), 0);
	cr_assert_eq(calls("cuMemcpyDtoHAsync"), 1);
	cr_assert_eq(sk_copy_init(&copy, 32, 3, size, f->here, dense,
				  (void *)(uintptr_t)f->there, gaps, NULL),
		     0);
	cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, copy.bytes, f->lock,
				      NULL), 0);
	cr_assert_eq(calls("cuMemcpyDtoHAsync"), 1);
	cr_assert_eq(calls("cuMemcpy2DAsync"), 1);
	cr_assert_eq(sk_copy_init(&copy, 8, 0, NULL, f->here + PIECE - 1,
				  NULL, (void *)(uintptr_t)f->there, NULL,
				  NULL), 0);
	cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, 1, f->lock, NULL),
		     0);
	cr_assert_eq(calls("cuMemcpyDtoHAsync"), 2);
	cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, 0, f->lock, NULL),
		     0);
	cr_assert_eq(calls("cuMemcpyDtoHAsync"), 2);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	cr_assert_eq(f->t.count ? f->t.count("pageable") : 0, 0);
}

/* ---- elements that lie apart ---- */

#define SIDE ((int64_t)700)
#define MATRIX ((size_t)(4 * SIDE * SIDE))
#define MATRIX_ROOM ((MATRIX + SK_PAGE - 1) / SK_PAGE * SK_PAGE)

/* A transposed matrix on the device, and the same on the host, page-locked. */
struct matrix {
	sk_cu_ptr there, other;
	char *here, *turned, *spare;
	struct sk_cuda_lock *lock;
};

static struct matrix matrix(void)
{
	struct matrix m = { .there = trainer_cuda_alloc(&f->t, MATRIX),
			    .other = trainer_cuda_alloc(&f->t, MATRIX),
			    .here = aligned_alloc(SK_PAGE, MATRIX_ROOM),
			    .turned = malloc(MATRIX),
			    .spare = malloc(MATRIX) };
	uint32_t *turned = (uint32_t *)(void *)m.turned;

	cr_assert(m.here && m.turned && m.spare);
	for (int64_t i = 0; i < SIDE * SIDE; i++)
		turned[i] = (uint32_t)(i % SIDE * SIDE + i / SIDE);
	memset(m.here, 0, MATRIX);
	trainer_cuda_put(&f->t, m.there, m.turned, MATRIX);
	cr_assert_eq(sk_cuda_lock(f->device, m.here, MATRIX_ROOM,
				  (uint64_t)1 << 20, &m.lock, NULL), 0);
	return m;
}

static void free_matrix(struct matrix *m)
{
	sk_cuda_unlock(m->lock);
	free(m->here);
	free(m->turned);
	free(m->spare);
}

static struct sk_copy turn(void *dst, bool dst_turned, void *src)
{
	const int64_t size[] = { SIDE, SIDE }, dense[] = { SIDE, 1 };
	const int64_t turned[] = { 1, SIDE };
	struct sk_copy copy;

	cr_assert_eq(sk_copy_init(&copy, 32, 2, size, dst,
				  dst_turned ? turned : dense, src,
				  dst_turned ? dense : turned, NULL), 0);
	return copy;
}

static uint64_t all_calls(void)
{
	static const char *const functions[] = {
		"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync",
		"cuMemcpy2DAsync", "cuMemcpy3DAsync", "cuMemcpyBatchAsync",
		"cuLaunchKernel" };
	uint64_t n = 0;

	for (size_t i = 0; i < SK_ARRAY_SIZE(functions); i++)
		n += calls(functions[i]);
	return n;
}

/* Out of the device, within it and back, asked for in parts that begin in the
 * middle of rows; the calls that it took. */
static uint64_t there_and_back(struct matrix *m)
{
	struct sk_copy out = turn(m->here, false, (void *)(uintptr_t)m->there),
		       across = turn((void *)(uintptr_t)m->other, true,
				     (void *)(uintptr_t)m->there),
		       in = turn((void *)(uintptr_t)m->there, true, m->here);
	uint64_t before = all_calls(), part = MATRIX / 3 + 4;
	const uint32_t *here = (const uint32_t *)(void *)m->here;
	struct sk_err err = { "" };

	for (uint64_t at = 0; at < MATRIX; at += part)
		cr_assert_eq(sk_cuda_lane_out(f->lane, &out, at, at + part,
					      m->lock, &err), 0, "%s",
			     err.text);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	for (int64_t i = 0; i < SIDE * SIDE; i++)
		cr_assert_eq(here[i], (uint32_t)i);
	cr_assert_eq(sk_cuda_lane_across(f->lane, &across, 0, MATRIX, NULL),
		     0);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	trainer_cuda_get(&f->t, m->spare, m->other, MATRIX);
	cr_assert_eq(memcmp(m->spare, m->here, MATRIX), 0);
	memset(m->spare, 0, MATRIX);
	trainer_cuda_put(&f->t, m->there, m->spare, MATRIX);
	for (uint64_t at = 0; at < MATRIX; at += part)
		cr_assert_eq(sk_cuda_lane_in(f->lane, &in, at, at + part,
					     m->lock, NULL), 0);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	return all_calls() - before;
}

static void is_back(struct matrix *m)
{
	trainer_cuda_get(&f->t, m->spare, m->there, MATRIX);
	cr_assert_eq(memcmp(m->spare, m->turned, MATRIX), 0);
	free_matrix(m);
}

/* Whatever has come with the driver, or not. */
static void turned_is_few_calls(void)
{
	struct matrix m = matrix();
	uint64_t n;

	(void)there_and_back(&m);	/* makes what it takes */
	n = there_and_back(&m);
	cr_assert(n < 45, "%d calls", (int)n);
	is_back(&m);
}

Test(lane, turned_is_few_calls)
{
	turned_is_few_calls();
}

Test(lane_12_0, turned_is_few_calls)
{
	turned_is_few_calls();
}

/* Columns of a wider matrix, as another mesh's image has them: what lies
 * between them crosses the link as well, and goes nowhere. */
Test(lane, turned_from_columns_is_few_calls)
{
	const int64_t size[] = { 300, 300 }, wide[] = { 2 * 300, 1 };
	const int64_t turned[] = { 1, 300 };
	struct matrix m = matrix();
	struct sk_copy copy, same;
	uint64_t n;

	for (size_t i = 0; i < MATRIX / 4; i++)
		((uint32_t *)(void *)m.here)[i] = (uint32_t)(i * 7);
	cr_assert_eq(sk_copy_init(&copy, 32, 2, size,
				  (void *)(uintptr_t)m.there, turned,
				  m.here + 400, wide, NULL), 0);
	cr_assert_eq(sk_copy_init(&same, 32, 2, size, m.turned, turned,
				  m.here + 400, wide, NULL), 0);
	n = all_calls();
	cr_assert_eq(sk_cuda_lane_in(f->lane, &copy, 2, copy.bytes - 5,
				     m.lock, NULL), 0);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	n = all_calls() - n;
	cr_assert(n < 10, "%d calls", (int)n);
	sk_copy_run_range(&same, 2, copy.bytes - 5);
	is_back(&m);
}

/* More calls, and as right: without a compiler, and without memory. */
Test(lane, turned_without_a_kernel)
{
	struct matrix m;

	if (!f->t.calls)
		cr_skip_test("on a simulated driver only");
	setenv("VCUDA_MODE", "no-compiler", 1);
	m = matrix();
	cr_assert(there_and_back(&m) > (uint64_t)SIDE);
	cr_assert_eq(calls("cuLaunchKernel"), 0);
	is_back(&m);
}

Test(lane, turned_without_memory)
{
	struct matrix m = matrix();

	if (!f->t.fail)
		cr_skip_test("on a simulated driver only");
	f->t.fail("cuMemAlloc", 1, SK_CU_OUT_OF_MEMORY);
	cr_assert(there_and_back(&m) > (uint64_t)SIDE);
	is_back(&m);
}

/* Planes whose distance is one of rows are a call with all of their rows, and
 * others one each. */
Test(lane_12_0, planes_are_a_call)
{
	const int64_t size[] = { 3, 4, 5 }, gaps[] = { 60, 10, 1 };
	const int64_t odd[] = { 61, 10, 1 };
	int64_t dense[3];
	struct sk_copy copy;

	sk_dense_strides(3, size, dense);
	cr_assert_eq(sk_copy_init(&copy, 32, 3, size, f->here, dense,
				  (void *)(uintptr_t)f->there, gaps, NULL),
		     0);
	cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, copy.bytes, f->lock,
				      NULL), 0);
	cr_assert_eq(calls("cuMemcpy3DAsync"), f->t.calls ? 1 : 0);
	cr_assert_eq(calls("cuMemcpy2DAsync"), 0);
	cr_assert_eq(calls("cuMemcpyDtoHAsync"), 0);
	cr_assert_eq(sk_copy_init(&copy, 32, 3, size, f->here, dense,
				  (void *)(uintptr_t)f->there, odd, NULL), 0);
	cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, copy.bytes, f->lock,
				      NULL), 0);
	cr_assert_eq(calls("cuMemcpy3DAsync"), f->t.calls ? 1 : 0);
	cr_assert_eq(calls("cuMemcpy2DAsync"), f->t.calls ? 3 : 0);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
}

/* Calls for that many bytes, contiguous or in rows of 64, where one may move
 * 1,000. */
static uint64_t calls_for(uint64_t bytes, bool rows)
{
	const int64_t size[] = { (int64_t)bytes / 64, 64 };
	const int64_t here[] = { 64, 1 }, there[] = { rows ? 100 : 64, 1 };
	const char *const names[] = { "cuMemcpyDtoHAsync", "cuMemcpy2DAsync",
				      "cuMemcpyBatchAsync" };
	uint64_t before = 0, after = 0;
	struct sk_copy copy;

	f->lane->chunk = 1000;
	cr_assert_eq(sk_copy_init(&copy, 8, 2, size, f->here, here,
				  (void *)(uintptr_t)f->there, there, NULL),
		     0);
	for (int i = 0; i < 3; i++)
		before += calls(names[i]);
	cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, copy.bytes, f->lock,
				      NULL), 0);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	for (int i = 0; i < 3; i++)
		after += calls(names[i]);
	return after - before;
}

/* A long copy lets others pass on its way. */
Test(lane, no_call_holds_the_link)
{
	if (!f->t.calls)
		return;
	cr_assert_eq(calls_for(64 * 15, false), 1);	/* 960 */
	cr_assert_eq(calls_for(64 * 50, false), 4);	/* 3,200 */
	cr_assert_eq(calls_for(64 * 50, true), 4);	/* 15 rows each */
}

Test(lane, copies_in_chunks_are_those_of_the_host)
{
	f->lane->chunk = 100;
	compare_many();
}

/* ---- where devices are ---- */

static const char *node_file;	/* in place of the one that is asked for */

static int open_other(const struct sk_os *os, int dir, const char *path,
		      int flags, mode_t mode)
{
	const struct sk_os *real = sk_os_linux();

	(void)os;
	cr_assert(strstr(path, "/sys/bus/pci/devices/"), "%s", path);
	cr_assert(strstr(path, "/numa_node"), "%s", path);
	return real->openat(real, dir, node_file, flags, mode);
}

static int node_by_file(const char *text)
{
	struct sk_os os = *sk_os_linux();
	char path[] = "/tmp/shardkeep-test-XXXXXX";
	int node, fd = mkstemp(path);

	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	os.openat = open_other;
	node_file = path;
	node = sk_cuda_numa_node(&os, f->device);
	unlink(path);
	return node;
}

/* The driver's word goes first, the bus is for those before 12.2. */
Test(lane, nearest_node)
{
	if (!f->t.calls)
		return;
	cr_assert_eq(sk_cuda_numa_node(sk_os_linux(), f->device), -1);
	cr_assert_eq(node_by_file("2\n"), 2);
	setenv("VCUDA_NUMA", "5", 1);
	cr_assert_eq(node_by_file("2\n"), 5);
}

Test(lane_12_0, nearest_node)
{
	if (!f->t.calls)
		return;
	setenv("VCUDA_NUMA", "5", 1);
	cr_assert_eq(node_by_file("2\n"), 2);
	cr_assert_eq(node_by_file("0\n"), 0);
	cr_assert_eq(node_by_file("2147483647\n"), 2147483647);
	cr_assert_eq(node_by_file("2147483648\n"), -1);
	cr_assert_eq(node_by_file("-1\n"), -1);
	cr_assert_eq(node_by_file("none\n"), -1);
	cr_assert_eq(node_by_file(""), -1);
}

/* @n copies of a byte each, every second one. */
static void copy_bytes(int n)
{
	for (int i = 0; i < n; i++) {
		struct sk_copy copy;

		cr_assert_eq(sk_copy_init(&copy, 8, 0, NULL, f->here + 2 * i,
					  NULL, (void *)(uintptr_t)
					  (f->there + 2 * i), NULL, NULL), 0);
		cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, 1, f->lock,
					      NULL), 0);
	}
}

/* Within the device: by one call for thousands, whatever the driver has. */
static void small_ones_within(const char *function, uint64_t n_calls)
{
	const int n = 3 * SK_CUDA_BATCH_MAX;
	sk_cu_ptr to = trainer_cuda_alloc(&f->t, ROOM);
	char *here = malloc(ROOM);
	uint64_t before;

	cr_assert_eq(f->t.cuMemsetD8Async(to, 7, ROOM, f->stream), 0);
	for (size_t i = 0; i < ROOM; i++)
		here[i] = (char)(i * i >> 5);
	trainer_cuda_put(&f->t, f->there, here, ROOM);
	before = f->t.count ? f->t.count("calls") : 0;
	for (int i = 0; i < n; i++) {
		struct sk_copy copy;
		int64_t bytes = 1 + i % 2;

		cr_assert_eq(sk_copy_init(&copy, 8, 1, &bytes,
					  (void *)(uintptr_t)(to + 3 * i),
					  (int64_t[]){ 1 }, (void *)(uintptr_t)
					  (f->there + 3 * i),
					  (int64_t[]){ 1 }, NULL), 0);
		cr_assert_eq(sk_cuda_lane_across(f->lane, &copy, 0, bytes,
						 NULL), 0);
	}
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	if (f->t.count) {
		cr_assert_eq(calls(function), n_calls);
		cr_assert(n_calls > 9 || f->t.count("calls") - before < 100,
			  "%d calls", (int)(f->t.count("calls") - before));
	}
	trainer_cuda_get(&f->t, here, to, 3 * n);
	for (int i = 0; i < 3 * n; i++)
		cr_assert_eq(here[i], i % 3 <= i / 3 % 2 ?
				 (char)((size_t)i * i >> 5) : 7, "%d", i);
	free(here);
}

/* By a kernel of ours; more tables than there are, too. */
static void small_ones_by_kernel(void)
{
	small_ones_within("cuLaunchKernel", 3);
	if (!f->t.count)
		return;
	for (uint64_t n = 6; n <= 12; n += 3)
		small_ones_within("cuLaunchKernel", n);
	cr_assert_eq(calls("cuModuleLoadData"), 1);
	cr_assert_eq(calls("cuMemcpyBatchAsync"), 0);
}

Test(lane, small_ones_within)
{
	small_ones_by_kernel();
}

Test(lane_12_8, small_ones_within)
{
	small_ones_by_kernel();
}

Test(lane_12_0, small_ones_within)
{
	small_ones_by_kernel();
}

/* Without a compiler the driver's batches do. */
Test(lane, small_ones_within_without_a_kernel)
{
	if (!f->t.calls)
		cr_skip_test("on a simulated driver only");
	setenv("VCUDA_MODE", "no-compiler", 1);
	small_ones_within("cuMemcpyBatchAsync", 3);
}

/* Over the link by a kernel as well, from when its code is there. */
static void small_ones_over_the_link(uint64_t launches)
{
	const int n = 3 * SK_CUDA_BATCH_MAX;
	char *back = malloc(ROOM);

	cr_assert_not_null(back);
	for (int i = 0; i < 2 * n; i++)
		f->here[i] = (char)(i * 7 >> 2);
	for (int out = 0; out < 2; out++) {
		for (int i = 0; i < n; i++) {
			void *there = (void *)(uintptr_t)(f->there + 2 * i);
			char *here = f->here + 2 * i;
			const struct sk_copy copy = {
				.dst = out ? here : there,
				.src = out ? there : here,
				.run = 1, .bytes = 1 };

			cr_assert_eq((out ? sk_cuda_lane_out :
					    sk_cuda_lane_in)(
				f->lane, &copy, 0, 1, f->lock, NULL), 0);
		}
		cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
		memcpy(back, f->here, 2 * n);
		for (int i = 0; i < n; i++)
			f->here[2 * i] = 99;
	}
	for (int i = 0; i < 2 * n; i++)
		cr_assert_eq(back[i], (char)(i * 7 >> 2), "%d", i);
	if (f->t.calls)
		cr_assert_eq(calls("cuLaunchKernel"), launches);
	free(back);
}

Test(lane, small_ones_over_the_link)
{
	small_ones_over_the_link(0);
	if (f->t.calls)
		cr_assert_eq(calls("cuMemcpyBatchAsync"), 6);
	sk_cuda_warm(f->lane);
	small_ones_over_the_link(6);
	if (f->t.calls)
		cr_assert_eq(calls("cuMemcpyBatchAsync"), 6);
}

Test(lane_12_0, small_ones_over_the_link)
{
	sk_cuda_warm(f->lane);
	small_ones_over_the_link(6);
}

/* Four, that are neighbours. */
static void small_ones_to_the_device(uint64_t each)
{
	char *back = malloc(4 * each);

	cr_assert_not_null(back);
	cr_assert_leq(4 * each, ROOM);
	for (size_t i = 0; i < 4 * each; i++)
		f->here[i] = (char)((i + each) * 7 >> 2);
	for (uint64_t i = 0; i < 4; i++) {
		const struct sk_copy copy = {
			.dst = (char *)(uintptr_t)(f->there + i * each),
			.src = f->here + i * each,
			.run = each, .bytes = each };

		cr_assert_eq(sk_cuda_lane_in(f->lane, &copy, 0, each, f->lock,
					     NULL), 0);
	}
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	trainer_cuda_get(&f->t, back, f->there, 4 * each);
	cr_assert_arr_eq(back, f->here, 4 * each);
	free(back);
}

static void lock_all(void)
{
	sk_cuda_unlock(f->lock);
	cr_assert_eq(sk_cuda_lock(f->device, f->here, ROOM, ROOM, &f->lock,
				  NULL), 0);
}

/* The longer ones by a batch of the driver's, whose copy engine is faster than
 * a kernel that reads the host's memory. */
Test(lane_12_8, small_ones_to_the_device)
{
	sk_cuda_warm(f->lane);
	lock_all();
	small_ones_to_the_device(SK_CUDA_GATHER_MOST_IN - 8);
	if (f->t.calls)
		cr_assert_eq(calls("cuLaunchKernel"), 1);
	small_ones_to_the_device(SK_CUDA_GATHER_MOST_IN);
	if (!f->t.calls)
		return;
	cr_assert_eq(calls("cuLaunchKernel"), 1);
	cr_assert_eq(calls("cuMemcpyBatchAsync"), 1);
}

Test(lane_12_0, small_ones_to_the_device)
{
	sk_cuda_warm(f->lane);
	lock_all();
	small_ones_to_the_device(SK_CUDA_GATHER_MOST_IN);
	if (f->t.calls)
		cr_assert_eq(calls("cuLaunchKernel"), 1);
}

/* The longer what was asked for before, the longer is the next: as many calls
 * as the driver takes without waiting for them. */
Test(lane, long_ones_grow)
{
	const struct sk_copy copy = {
		.dst = f->here, .src = (char *)(uintptr_t)f->there,
		.run = ROOM, .bytes = ROOM };

	if (!f->t.calls)
		cr_skip_test("on a simulated driver only");
	f->lane->chunk = ROOM / 256;
	for (uint64_t round = 1; round < 4; round++) {
		cr_assert_eq(sk_cuda_lane_follow(f->lane,
						 (uintptr_t)f->stream, NULL),
			     0);
		cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, ROOM, f->lock,
					      NULL), 0);
		cr_assert_leq(calls("cuMemcpyDtoHAsync"), 80 * round);
		cr_assert_geq(calls("cuMemcpyDtoHAsync"), 60 * round);
	}
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
}

/* Long ones leave each other the link: two streams, each after the other. */
Test(lane, long_ones_take_turns)
{
	const struct sk_copy copy = {
		.dst = f->here, .src = (char *)(uintptr_t)f->there,
		.run = ROOM, .bytes = ROOM };
	struct sk_cuda_mark *mark = NULL;
	uint64_t waits;

	cr_assert_eq(sk_cuda_mark_new(f->device, &mark, NULL), 0);
	f->lane->chunk = ROOM / 8;
	for (int round = 0; round < 20; round++) {
		cr_assert_eq(f->t.cuMemsetD8Async(f->there, (uint8_t)round,
						  ROOM, f->stream), 0);
		cr_assert_eq(sk_cuda_lane_follow(f->lane,
						 (uintptr_t)f->stream, NULL),
			     0);
		waits = f->t.calls ? calls("cuStreamWaitEvent") : 0;
		cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, ROOM, f->lock,
					      NULL), 0);
		if (f->t.calls)
			cr_assert_eq(calls("cuStreamWaitEvent") - waits, 8);
		cr_assert_eq(sk_cuda_mark_set(mark, f->lane, NULL), 0);
		/* Who waits for the mark has waited for both. */
		cr_assert_eq(sk_cuda_mark_hold(mark, (uintptr_t)f->stream,
					       NULL), 0);
		cr_assert_eq(f->t.cuMemsetD8Async(f->there, 200, ROOM,
						  f->stream), 0);
		cr_assert_eq(sk_cuda_mark_wait(mark, NULL), 0);
		for (size_t i = 0; i < ROOM; i++)
			cr_assert_eq(f->here[i], round);
	}
	sk_cuda_mark_free(mark);
}

/* But where one keeps the link to itself. */
Test(lane, one_that_keeps_the_link)
{
	const struct sk_copy copy = {
		.dst = (char *)(uintptr_t)f->there, .src = f->here,
		.run = ROOM, .bytes = ROOM };
	uint64_t waits;

	if (!f->t.calls)
		return;		/* hardware counts none */
	f->lane->chunk = ROOM / 8;
	for (int keep = 1; keep >= 0; keep--) {
		waits = calls("cuStreamWaitEvent");
		sk_cuda_lane_keep(f->lane, keep);
		cr_assert_eq(sk_cuda_lane_in(f->lane, &copy, 0, ROOM, f->lock,
					     NULL), 0);
		cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
		cr_assert_eq(calls("cuStreamWaitEvent") > waits, !keep);
	}
}

#define APART ((uint64_t)100)

/* Small ones, and one that is none. */
static void copy_beside_kernels(int (*ask)(struct sk_cuda_lane *lane,
					   const struct sk_copy *copy,
					   uint64_t from, uint64_t to,
					   struct sk_err *err),
				char *to)
{
	for (uint64_t i = 0; i < 20; i++) {
		const struct sk_copy copy = {
			.dst = to + 3 * i * APART,
			.src = (char *)(uintptr_t)(f->there + 3 * i * APART),
			.run = APART, .bytes = APART };

		cr_assert_eq(ask(f->lane, &copy, 0, APART, NULL), 0);
	}
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
}

static int out_of_it(struct sk_cuda_lane *lane, const struct sk_copy *copy,
		     uint64_t from, uint64_t to, struct sk_err *err)
{
	return sk_cuda_lane_out(lane, copy, from, to, f->lock, err);
}

static void assert_arrived(const char *at)
{
	for (uint64_t i = 0; i < 60 * APART; i++)
		cr_assert_eq(at[i], i / APART % 3 ? 0 : 7, "%d", at[i]);
}

/* As fast as may be, or beside the kernels of others: then by none of ours, and
 * so is one copy within the device. */
Test(lane, copies_leave_kernels_to_others)
{
	sk_cu_ptr other = trainer_cuda_alloc(&f->t, ROOM);
	uint64_t launches, flagged;
	const struct sk_copy one = {
		.dst = (char *)(uintptr_t)other,
		.src = (char *)(uintptr_t)f->there, .run = ROOM / 2,
		.bytes = ROOM / 2 };

	sk_cuda_warm(f->lane);
	for (int overlap = 0; overlap < 2; overlap++) {
		cr_assert_eq(f->t.cuMemsetD8Async(f->there, 7, ROOM,
						  f->stream), 0);
		cr_assert_eq(f->t.cuMemsetD8Async(other, 0, ROOM, f->stream),
			     0);
		cr_assert_eq(sk_cuda_lane_follow(f->lane,
						 (uintptr_t)f->stream, NULL),
			     0);
		memset(f->here, 0, ROOM);
		sk_cuda_lane_overlap(f->lane, overlap);
		launches = calls("cuLaunchKernel");
		flagged = trainer_is_told() ? f->t.count("overlap") : 0;
		copy_beside_kernels(out_of_it, f->here);
		copy_beside_kernels(sk_cuda_lane_across,
				    (char *)(uintptr_t)other);
		assert_arrived(f->here);
		trainer_cuda_get(&f->t, f->here, other, 60 * APART);
		assert_arrived(f->here);
		cr_assert_eq(sk_cuda_lane_across(f->lane, &one, 0, ROOM / 2,
						 NULL), 0);
		cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
		if (!trainer_is_told())
			continue;
		cr_assert_eq(calls("cuLaunchKernel") > launches, !overlap);
		cr_assert_eq(f->t.count("overlap") - flagged,
			     overlap ? 2 * 20 * APART + ROOM / 2 : 0);
	}
}

/* What lies outside of what is locked no kernel of ours may reach. */
Test(lane, small_ones_beside_what_is_locked)
{
	char beside[64] = { 0 };

	sk_cuda_warm(f->lane);
	cr_assert_eq(f->t.cuMemsetD8Async(f->there, 1, ROOM, f->stream), 0);
	cr_assert_eq(sk_cuda_lane_follow(f->lane, (uintptr_t)f->stream, NULL),
		     0);
	for (size_t i = 0; i < sizeof(beside); i++) {
		const struct sk_copy copy = {
			.dst = beside + i,
			.src = (char *)(uintptr_t)(f->there + i),
			.run = 1, .bytes = 1 };

		cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, 1, f->lock,
					      NULL), 0);
	}
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	for (size_t i = 0; i < sizeof(beside); i++)
		cr_assert_eq(beside[i], 1);
	cr_assert_eq(calls("cuLaunchKernel"), 0);
}

/* The last piece is shorter than the others: a copy goes on behind it. */
Test(lane, beyond_what_is_locked)
{
	const struct sk_copy copy = {
		.dst = f->here, .src = (char *)(uintptr_t)f->there,
		.run = ROOM, .bytes = ROOM };

	sk_cuda_unlock(f->lock);
	cr_assert_eq(sk_cuda_lock(f->device, f->here, ROOM / 2 + SK_PAGE,
				  ROOM / 2, &f->lock, NULL), 0);
	cr_assert_eq(f->t.cuMemsetD8Async(f->there, 1, ROOM, f->stream), 0);
	cr_assert_eq(sk_cuda_lane_follow(f->lane, (uintptr_t)f->stream, NULL),
		     0);
	cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, ROOM, f->lock, NULL),
		     0);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	for (size_t i = 0; i < ROOM; i++)
		cr_assert_eq(f->here[i], 1, "%zu", i);
}

/* A table is read when the stream comes to it, and not written before. */
Test(lane, more_batches_than_there_are_tables)
{
	const size_t n = 40 * 5;
	char *here = malloc(ROOM);

	cr_assert_not_null(here);
	sk_cuda_warm(f->lane);
	for (size_t i = 0; i < ROOM; i++)
		here[i] = (char)(i < ROOM / 2 ? i * i >> 3 : 0);
	trainer_cuda_put(&f->t, f->there, here, ROOM);
	for (size_t i = 0; i < n; i++) {
		const struct sk_copy copy = {
			.dst = (char *)(uintptr_t)(f->there + ROOM / 2 +
						   24 * i),
			.src = (char *)(uintptr_t)(f->there + 24 * i),
			.run = 24, .bytes = 24 };

		cr_assert_eq(sk_cuda_lane_across(f->lane, &copy, 0, 24, NULL),
			     0);
		if (i % 5 == 4)
			cr_assert_eq(sk_cuda_batch_flush(f->lane, NULL), 0);
	}
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	cr_assert_eq(calls("cuLaunchKernel"), f->t.calls ? n / 5 : 0);
	trainer_cuda_get(&f->t, here + ROOM / 2, f->there + ROOM / 2,
			 24 * n);
	cr_assert_eq(memcmp(here, here + ROOM / 2, 24 * n), 0);
	free(here);
}

static void copy_out(size_t at, uint64_t bytes)
{
	const struct sk_copy copy = {
		.dst = f->here + at, .src = (char *)(uintptr_t)(f->there + at),
		.run = bytes, .bytes = bytes };

	cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, bytes, f->lock, NULL),
		     0);
}

/* However many long ones are among them, small ones are one launch: else who
 * asks for them would wait for tables, and whoever waits for all to be asked
 * for with it. */
static void small_ones_among_long_ones(void)
{
	const uint64_t bytes = SK_CUDA_GATHER_MOST_HOST + 8;
	struct trainer_gate gate;

	sk_cuda_warm(f->lane);
	lock_all();
	f->lane->chunk = bytes + 1;	/* it grows, not to twice as many */
	cr_assert_eq(f->t.cuMemsetD8Async(f->there, 1, ROOM, f->stream), 0);
	trainer_gate_init(&gate);
	trainer_gate_hold(&f->t, &gate, f->stream);
	cr_assert_eq(sk_cuda_lane_follow(f->lane, (uintptr_t)f->stream, NULL),
		     0);
	for (size_t i = 0; i < 150; i++)
		copy_out(i % 5 ? bytes + 2 * i : 0, i % 5 ? 1 : bytes);
	trainer_gate_open(&gate);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	for (size_t i = 0; i < bytes + 2 * 150; i++)
		cr_assert_eq(f->here[i], i < bytes || (i % 2 == 0 &&
						       (i - bytes) / 2 % 5),
			     "%zu", i);
	if (f->t.calls)
		cr_assert_eq(calls("cuLaunchKernel"), 1);
}

Test(lane, small_ones_among_long_ones, .timeout = 60)
{
	small_ones_among_long_ones();
}

Test(lane_12_8, small_ones_among_long_ones, .timeout = 60)
{
	small_ones_among_long_ones();
}

/* The table is written again, when others may have its pages as well. */
Test(lane_12_0, small_ones_after_a_fork)
{
	pid_t child;

	small_ones_within("cuLaunchKernel", 3);
	child = trainer_fork();
	small_ones_within("cuLaunchKernel", 6);
	trainer_reap(child);
}

/* What is long goes by itself. */
Test(lane_12_0, long_ones_within)
{
	int64_t bytes = SK_CUDA_GATHER_MOST;
	sk_cu_ptr to = trainer_cuda_alloc(&f->t, 4 * (size_t)bytes);
	struct sk_copy copy;

	for (int i = 0; i < 2; i++) {
		cr_assert_eq(sk_copy_init(&copy, 8, 1, &bytes,
					  (void *)(uintptr_t)(to + i * bytes),
					  (int64_t[]){ 1 }, (void *)(uintptr_t)
					  (to + (2 + i) * bytes),
					  (int64_t[]){ 1 }, NULL), 0);
		cr_assert_eq(sk_cuda_lane_across(f->lane, &copy, 0, bytes,
						 NULL), 0);
	}
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	cr_assert_eq(calls("cuLaunchKernel"), 0);
	cr_assert_eq(calls("cuMemcpyDtoDAsync"), f->t.calls ? 2 : 0);
}

/* Without a compiler each is a call, and as right. */
Test(lane_12_0, small_ones_without_a_kernel)
{
	if (!f->t.calls)
		cr_skip_test("on a simulated driver only");
	setenv("VCUDA_MODE", "no-compiler", 1);
	small_ones_within("cuMemcpyDtoDAsync", 3 * SK_CUDA_BATCH_MAX);
	cr_assert_eq(calls("cuModuleLoadData"), 1);
}

/* A launch that fails is told by whoever waits, and the next may do. */
Test(lane_12_0, a_launch_that_fails)
{
	if (!f->t.calls)
		cr_skip_test("on a simulated driver only");
	for (int i = 0; i < 4; i++) {
		struct sk_copy copy;
		int64_t bytes = 8;

		cr_assert_eq(sk_copy_init(&copy, 8, 1, &bytes,
					  (void *)(uintptr_t)
					  (f->there + 512 + 64 * i),
					  (int64_t[]){ 1 }, (void *)(uintptr_t)
					  (f->there + 64 * i),
					  (int64_t[]){ 1 }, NULL), 0);
		cr_assert_eq(sk_cuda_lane_across(f->lane, &copy, 0, bytes,
						 NULL), 0);
	}
	f->t.fail("cuLaunchKernel", 1, 304);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), -EIO);
	small_ones_within("cuLaunchKernel", 4);
}

static void small_ones_go_together(void)
{
	uint64_t before;

	cr_assert_eq(f->t.cuMemsetD8Async(f->there, 1, ROOM, f->stream), 0);
	cr_assert_eq(sk_cuda_lane_follow(f->lane, (uintptr_t)f->stream, NULL),
		     0);
	before = f->t.count ? f->t.count("calls") : 0;
	copy_bytes(3 * SK_CUDA_BATCH_MAX + 1);
	cr_assert_eq(calls("cuMemcpyBatchAsync"), f->t.calls ? 3 : 0);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	/* The one that is left needs no batch. */
	cr_assert_eq(calls("cuMemcpyBatchAsync"), f->t.calls ? 3 : 0);
	cr_assert_eq(calls("cuMemcpyDtoHAsync"), f->t.calls ? 1 : 0);
	cr_assert(!f->t.count || f->t.count("calls") - before < 40);
	for (int i = 0; i < 2 * (3 * SK_CUDA_BATCH_MAX + 1); i++)
		cr_assert_eq(f->here[i], i % 2 == 0);
}

Test(lane, small_ones_go_together)
{
	small_ones_go_together();
}

Test(lane_12_8, small_ones_go_together)
{
	small_ones_go_together();
}

static void set_up_other_addresses(void)
{
	setenv("VCUDA_MODE", "no-host-pointers", 1);
	set_up();
}

/* Where devices have other addresses for page-locked memory, copies to it go
 * one by one, and those within a device as ever. */
Test(lane, small_ones_go_alone_to_other_addresses,
     .init = set_up_other_addresses)
{
	if (!f->t.calls)
		cr_skip_test("on a simulated driver only");
	cr_assert_eq(f->t.cuMemsetD8Async(f->there, 1, ROOM, f->stream), 0);
	cr_assert_eq(sk_cuda_lane_follow(f->lane, (uintptr_t)f->stream, NULL),
		     0);
	copy_bytes(50);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	cr_assert_eq(calls("cuMemcpyBatchAsync"), 0);
	cr_assert_eq(calls("cuMemcpyDtoHAsync"), 50);
	for (int i = 0; i < 100; i++)
		cr_assert_eq(f->here[i], i % 2 == 0);
	small_ones_within("cuLaunchKernel", 3);
	small_ones_over_the_link(3);
	cr_assert_eq(calls("cuMemcpyBatchAsync"), 0);
}

Test(lane, a_batch_that_is_not_supported_goes_one_by_one)
{
	if (!f->t.fail)
		cr_skip_test("on a simulated driver only");
	cr_assert_eq(f->t.cuMemsetD8Async(f->there, 1, ROOM, f->stream), 0);
	cr_assert_eq(sk_cuda_lane_follow(f->lane, (uintptr_t)f->stream, NULL),
		     0);
	f->t.fail("cuMemcpyBatchAsync", 1, SK_CU_NOT_SUPPORTED);
	copy_bytes(50);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	cr_assert_eq(calls("cuMemcpyDtoHAsync"), 50);
	for (int i = 0; i < 100; i++)
		cr_assert_eq(f->here[i], i % 2 == 0);
}

Test(lane, a_batch_that_fails_is_told_and_forgotten)
{
	struct sk_err err = { "" };

	if (!f->t.fail)
		cr_skip("real hardware fails when it likes");
	f->t.fail("cuMemcpyBatchAsync", 1, SK_CU_OUT_OF_MEMORY);
	copy_bytes(5);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, &err), -ENOMEM);
	cr_assert(strstr(err.text, "OUT_OF_MEMORY"), "%s", err.text);
	copy_bytes(5);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
}

/* ---- streams ---- */

Test(lane, follows_the_trainer_and_holds_up_nobody)
{
	struct sk_cuda_mark *mark, *never;
	struct trainer_gate gate;
	struct sk_copy copy;

	trainer_gate_init(&gate);
	cr_assert_eq(sk_cuda_mark_new(f->device, &mark, NULL), 0);
	cr_assert_eq(sk_cuda_mark_new(f->device, &never, NULL), 0);
	cr_assert_eq(sk_cuda_mark_wait(never, NULL), 0);
	cr_assert_eq(sk_copy_init(&copy, 8, 1, (int64_t[]){ 5000 }, f->here,
				  (int64_t[]){ 1 },
				  (void *)(uintptr_t)f->there,
				  (int64_t[]){ 1 }, NULL), 0);
	trainer_gate_hold(&f->t, &gate, f->stream);
	cr_assert_eq(f->t.cuMemsetD8Async(f->there, 7, ROOM, f->stream), 0);
	cr_assert_eq(sk_cuda_lane_follow(f->lane, (uintptr_t)f->stream, NULL),
		     0);
	cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, copy.bytes, f->lock,
				      NULL), 0);
	cr_assert_eq(sk_cuda_mark_set(mark, f->lane, NULL), 0);
	cr_assert_eq(f->t.cuStreamQuery(f->stream), SK_CU_NOT_READY);
	cr_assert_eq(f->here[0], 0);
	trainer_gate_open(&gate);
	cr_assert_eq(sk_cuda_mark_wait(mark, NULL), 0);
	cr_assert_eq(f->here[0], 7);
	cr_assert_eq(f->here[4999], 7);
	sk_cuda_mark_free(mark);
	sk_cuda_mark_free(never);
}

/* A stream of another device, and the default one of this. */
Test(lane, follows_streams_of_other_devices)
{
	struct sk_cuda_device *other;
	struct trainer_gate gate;
	struct sk_cuda_lane *lane;
	struct sk_cuda_mark *mark;
	uint64_t events;

	if (sk_cuda_device(f->cuda, 1, &other, NULL) < 0)
		cr_skip("one device");
	trainer_gate_init(&gate);
	cr_assert_eq(sk_cuda_lane_new(other, &lane, NULL), 0);
	cr_assert_eq(sk_cuda_mark_new(other, &mark, NULL), 0);
	events = f->t.count ? f->t.count("events") : 0;
	trainer_gate_hold(&f->t, &gate, f->stream);
	cr_assert_eq(sk_cuda_lane_follow(lane, (uintptr_t)f->stream, NULL),
		     0);
	cr_assert_eq(sk_cuda_lane_follow(lane, 0, NULL), 0);
	cr_assert_eq(sk_cuda_mark_set(mark, lane, NULL), 0);
	trainer_gate_open(&gate);
	cr_assert_eq(sk_cuda_mark_wait(mark, NULL), 0);
	cr_assert_eq(f->t.count ? f->t.count("events") : 0, events);
	sk_cuda_mark_free(mark);
	sk_cuda_lane_free(lane);
}

Test(lane, refuses_while_a_stream_captures)
{
	struct sk_err err = { "" };
	sk_cu_stream blocking;
	vcu_graph graph;

	cr_assert_eq(f->t.cuStreamCreate(&blocking, 0), 0);
	cr_assert_eq(f->t.cuStreamBeginCapture(blocking, 0), 0);
	cr_assert_eq(sk_cuda_lane_follow(f->lane, (uintptr_t)blocking, &err),
		     -EBUSY);
	cr_assert(strstr(err.text, "captur"), "%s", err.text);
	/* The default stream is its neighbour. */
	cr_assert_eq(sk_cuda_lane_follow(f->lane, 0, NULL), -EBUSY);
	/* Another stream is not; and what we do meanwhile spoils nothing. */
	cr_assert_eq(sk_cuda_lane_follow(f->lane, (uintptr_t)f->stream, NULL),
		     0);
	cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), 0);
	sk_cuda_unlock(f->lock);
	cr_assert_eq(sk_cuda_lock(f->device, f->here, ROOM, PIECE, &f->lock,
				  NULL), 0);
	cr_assert_eq(f->t.cuStreamEndCapture(blocking, &graph), 0);
}

/* ---- page-locking ---- */

Test(lane, locking_is_all_or_nothing)
{
	struct sk_cuda_lock *lock = NULL;
	struct sk_err err = { "" };
	char *p;

	if (!f->t.fail)
		cr_skip("real hardware fails when it likes");
	sk_cuda_unlock(f->lock);
	f->lock = NULL;
	cr_assert_eq(f->t.count("locked"), 0);
	p = f->here;
	for (uint64_t n = 1; n <= ROOM / PIECE; n++) {
		f->t.fail("cuMemHostRegister", n, SK_CU_OUT_OF_MEMORY);
		cr_assert_eq(sk_cuda_lock(f->device, p, ROOM, PIECE, &lock,
					  &err), -ENOMEM);
		cr_assert_eq(f->t.count("locked"), 0);
	}
	/* The last piece is what is left. */
	cr_assert_eq(sk_cuda_lock(f->device, p, 3 * PIECE + 5, PIECE, &lock,
				  NULL), 0);
	cr_assert_eq(f->t.count("locked"), 3 * PIECE + 5);
	sk_cuda_unlock(lock);
	cr_assert_eq(f->t.count("locked"), 0);
	cr_assert_eq(sk_cuda_lock(f->device, p, 0, PIECE, &lock, NULL), 0);
	sk_cuda_unlock(lock);
}

/* ---- pointers ---- */

Test(lane, allocations_are_found)
{
	struct sk_cuda_range a, b;

	cr_assert_eq(sk_cuda_find(f->device, f->there + 5, &a, NULL), 0);
	cr_assert_eq(a.from, f->there);
	cr_assert_geq(a.to, f->there + ROOM);
	cr_assert_eq(sk_cuda_find(f->device, (uintptr_t)f->here, &b, NULL),
		     -EFAULT);
	cr_assert_eq(sk_cuda_find(f->device, (uintptr_t)&b, &b, NULL),
		     -EFAULT);
	cr_assert_eq(sk_cuda_find(f->device, 0, &b, NULL), -EFAULT);
	cr_assert_eq(f->t.driver.cuMemFree(f->there), 0);
	cr_assert_eq(sk_cuda_find(f->device, f->there, &b, NULL), -EFAULT);
	f->there = trainer_cuda_alloc(&f->t, ROOM);
	cr_assert_eq(sk_cuda_find(f->device, f->there, &b, NULL), 0);
	cr_assert_neq(a.id, b.id);
}

/* ---- asking ---- */

/* Copies take long, and the trainer's threads want the CPUs. */
Test(lane, who_waits_sleeps)
{
	struct sk_cuda_mark *mark = NULL;
	struct sk_copy copy;

	if (!f->t.count)
		cr_skip_test("on a simulated driver only");
	cr_assert_eq(sk_cuda_mark_new(f->device, &mark, NULL), 0);
	cr_assert_eq(sk_copy_init(&copy, 8, 0, NULL, f->here, NULL,
				  (void *)(uintptr_t)f->there, NULL, NULL), 0);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, 1, f->lock,
					      NULL), 0);
		cr_assert_eq(sk_cuda_mark_set(mark, f->lane, NULL), 0);
		cr_assert_eq(i ? sk_cuda_mark_wait(mark, NULL) :
				 sk_cuda_lane_finish(f->lane, NULL), 0);
	}
	cr_assert_eq(f->t.count("busy"), 0);
	sk_cuda_mark_free(mark);
}

/* What was asked for may write to what somebody lets go of then. */
Test(lane, who_cannot_wait_by_an_event_waits_all_the_same)
{
	static const char *const names[] = { "cuEventRecord",
					     "cuEventSynchronize" };
	const struct sk_copy copy = {
		.dst = f->here, .src = (const char *)(uintptr_t)f->there,
		.run = PIECE, .bytes = PIECE };

	if (!f->t.calls)
		cr_skip_test("on a simulated driver only");
	for (size_t i = 0; i < SK_ARRAY_SIZE(names); i++) {
		f->t.fail(names[i], 1, 999);
		cr_assert_eq(sk_cuda_lane_out(f->lane, &copy, 0, PIECE,
					      f->lock, NULL), 0);
		cr_assert_eq(sk_cuda_lane_finish(f->lane, NULL), -EIO);
		cr_assert_eq(f->t.count("pending"), 0, "%s", names[i]);
	}
}

Test(lane, a_mark_is_asked_whether_it_is_reached)
{
	struct trainer_gate gate;
	struct sk_cuda_mark *mark;
	bool reached = false;

	trainer_gate_init(&gate);
	cr_assert_eq(sk_cuda_mark_new(f->device, &mark, NULL), 0);
	cr_assert_eq(sk_cuda_mark_reached(mark, &reached, NULL), 0);
	cr_assert(reached);
	trainer_gate_hold(&f->t, &gate, (sk_cu_stream)(uintptr_t)
			  sk_cuda_lane_stream(f->lane));
	cr_assert_eq(sk_cuda_mark_set(mark, f->lane, NULL), 0);
	cr_assert_eq(sk_cuda_mark_reached(mark, &reached, NULL), 0);
	cr_assert(!reached);
	trainer_gate_open(&gate);
	cr_assert_eq(sk_cuda_mark_wait(mark, NULL), 0);
	cr_assert_eq(sk_cuda_mark_reached(mark, &reached, NULL), 0);
	cr_assert(reached);
	if (f->t.fail) {
		f->t.fail("cuEventQuery", 1, SK_CU_LAUNCH_FAILED);
		cr_assert_eq(sk_cuda_mark_reached(mark, &reached, NULL),
			     -EIO);
	}
	sk_cuda_mark_free(mark);
}
