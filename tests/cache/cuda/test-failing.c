/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each call of the driver that the deeds of this room make, failed: who asked
 * is told in the driver's words, nothing is left of it, the thread has the
 * context that it had, and the next one succeeds.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda/gather.h"
#include "cuda/hash.h"
#include "cuda/private.h"
#include "sim/trainer.h"

#define ROOM ((size_t)1 << 20)
#define FAILED 304		/* CUDA_ERROR_OPERATING_SYSTEM breaks nothing */

struct fixture {
	struct trainer_cuda t;
	struct sk_cuda *cuda;
	struct sk_cuda_device *device, *other;
	struct sk_cuda_lane *lane, *far;
	struct sk_cuda_mark *mark;
	struct sk_cuda_hash *hash;
	sk_cu_stream stream;
	sk_cu_ptr there;
	char *here;
	struct sk_cuda_lock *lock;
	uint64_t pending;	/* when the lane had been waited for */
};

static struct fixture *f;

static void set_up(void)
{
	f = calloc(1, sizeof(*f));
	cr_assert_not_null(f);
	setenv("VCUDA_DEVICES", "2", 0);
	/* What nobody waits for is under way still. */
	setenv("VCUDA_SCHED", "late", 0);
	trainer_cuda_begin(&f->t, 0);
	cr_assert_eq(f->t.cuStreamCreate(&f->stream, 1), 0);
	f->there = trainer_cuda_alloc(&f->t, ROOM);
	cr_assert_eq(sk_cuda_new(sk_os_linux(), &f->cuda, NULL), 0);
	cr_assert_eq(sk_cuda_device(f->cuda, 0, &f->device, NULL), 0);
	cr_assert_eq(sk_cuda_device(f->cuda, 1, &f->other, NULL), 0);
	cr_assert_eq(sk_cuda_lane_new(f->device, &f->lane, NULL), 0);
	cr_assert_eq(sk_cuda_lane_new(f->other, &f->far, NULL), 0);
	cr_assert_eq(sk_cuda_mark_new(f->device, &f->mark, NULL), 0);
	cr_assert_eq(sk_cuda_hash_new(f->device, &f->hash, NULL), 0);
	f->here = mmap(NULL, ROOM, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(f->here, MAP_FAILED);
	cr_assert_eq(sk_cuda_lock(f->device, f->here, ROOM, ROOM / 2, &f->lock,
				  NULL), 0);
}

static void tear_down(void)
{
	(void)sk_cuda_hash_free(f->hash);
	sk_cuda_unlock(f->lock);
	sk_cuda_mark_free(f->mark);
	sk_cuda_lane_free(f->far);
	sk_cuda_lane_free(f->lane);
	sk_cuda_free(f->cuda);
	munmap(f->here, ROOM);
	free(f);
}

static void set_up_12_0(void)
{
	setenv("VCUDA_VERSION", "12000", 1);
	set_up();
}

TestSuite(failing, .init = set_up, .fini = tear_down);
TestSuite(failing_12_0, .init = set_up_12_0, .fini = tear_down);

/* ---- deeds ---- */

static int new_lane(struct sk_err *err)
{
	struct sk_cuda_lane *lane = NULL;
	int r = sk_cuda_lane_new(f->device, &lane, err);

	sk_cuda_lane_free(lane);
	return r;
}

static int follow(struct sk_err *err)
{
	return sk_cuda_lane_follow(f->lane, (uintptr_t)f->stream, err);
}

static int follow_default(struct sk_err *err)
{
	return sk_cuda_lane_follow(f->lane, 0, err);
}

static int follow_other(struct sk_err *err)
{
	return sk_cuda_lane_follow(f->far, (uintptr_t)f->stream, err);
}

/* The @ith run of a byte, of every second one. */
static int copy_byte(int i, enum sk_cuda_way way, struct sk_err *err)
{
	char *here = f->here + 2 * i;
	void *there = (void *)(uintptr_t)(f->there + 2 * (sk_cu_ptr)i);
	struct sk_copy c;

	cr_assert_eq(sk_copy_init(&c, 8, 0, NULL, way == SK_CUDA_OUT ?
				  here : there, NULL,
				  way == SK_CUDA_OUT ? there :
				  way == SK_CUDA_IN ? here :
				  (char *)there + ROOM / 2, NULL, NULL), 0);
	return way == SK_CUDA_ACROSS ?
	       sk_cuda_lane_across(f->lane, &c, 0, 1, err) :
	       (way == SK_CUDA_IN ? sk_cuda_lane_in : sk_cuda_lane_out)(
		       f->lane, &c, 0, 1, f->lock, err);
}

/* What is asked for late is told late. */
static int finish(int r, struct sk_err *err)
{
	int finished = sk_cuda_lane_finish(f->lane, r < 0 ? NULL : err);

	f->pending = f->t.count("pending");
	return r < 0 ? r : finished;
}

static int copy(int n, enum sk_cuda_way way, struct sk_err *err)
{
	int r = 0;

	for (int i = 0; i < n && r >= 0; i++)
		r = copy_byte(i, way, err);
	return finish(r, err);
}

/* The second way has what waits of the first asked for: where that fails,
 * it is told here, for nothing of it waits any more. */
static int copy_two_ways(struct sk_err *err)
{
	int r = copy_byte(0, SK_CUDA_OUT, err);

	if (r >= 0)
		r = copy_byte(1, SK_CUDA_ACROSS, err);
	return finish(r, err);
}

static int copy_out(struct sk_err *err)
{
	return copy(1, SK_CUDA_OUT, err);
}

static int copy_in(struct sk_err *err)
{
	return copy(1, SK_CUDA_IN, err);
}

static int copy_across(struct sk_err *err)
{
	return copy(1, SK_CUDA_ACROSS, err);
}

static int copy_few(struct sk_err *err)
{
	return copy(5, SK_CUDA_OUT, err);
}

static int copy_few_across(struct sk_err *err)
{
	return copy(5, SK_CUDA_ACROSS, err);
}

static int copy_few_in(struct sk_err *err)
{
	return copy(5, SK_CUDA_IN, err);
}

/* A copy of which half is there, the other half here. */
static struct sk_copy half(bool out, int ndim, const int64_t *size,
			   const int64_t *gaps)
{
	void *there = (void *)(uintptr_t)f->there;
	int64_t dense[3];
	struct sk_copy c;

	sk_dense_strides(ndim, size, dense);
	cr_assert_eq(sk_copy_init(&c, 8, ndim, size, out ? f->here : there,
				  dense, out ? there : f->here,
				  gaps ? gaps : dense, NULL), 0);
	return c;
}

/* Calls of 256 KiB at most, of which the first is not the side's turn. */
static int by_turns(bool out, int ndim, const int64_t *size,
		    const int64_t *gaps, struct sk_err *err)
{
	const uint64_t chunk = f->lane->chunk;
	const uint64_t waits = f->t.calls("cuStreamWaitEvent");
	struct sk_copy c = half(out, ndim, size, gaps);
	int r;

	f->lane->chunk = (uint64_t)256 << 10;
	f->lane->is_side = true;
	r = (out ? sk_cuda_lane_out : sk_cuda_lane_in)(
		f->lane, &c, 0, c.bytes, f->lock, err);
	r = finish(r, err);
	cr_assert(r < 0 || f->t.calls("cuStreamWaitEvent") >= waits + 2);
	f->lane->chunk = chunk;
	return r;
}

static int long_out(struct sk_err *err)
{
	return by_turns(true, 1, (int64_t[]){ ROOM }, NULL, err);
}

static int long_in(struct sk_err *err)
{
	return by_turns(false, 1, (int64_t[]){ ROOM }, NULL, err);
}

static int rows_out(struct sk_err *err)
{
	return by_turns(true, 2, (int64_t[]){ 900, 1000 },
			(int64_t[]){ 1100, 1 }, err);
}

static int rows_in(struct sk_err *err)
{
	return by_turns(false, 2, (int64_t[]){ 900, 1000 },
			(int64_t[]){ 1000, 1 }, err);
}

static int planes_out(struct sk_err *err)
{
	return by_turns(true, 3, (int64_t[]){ 8, 60, 1000 },
			(int64_t[]){ 80 * 1010, 1010, 1 }, err);
}

/* Small ones, which a kernel makes, and long ones of the same batch. */
static int copy_mixed(bool out, struct sk_err *err)
{
	const uint64_t each = SK_CUDA_GATHER_MOST_HOST, chunk = f->lane->chunk;
	struct sk_copy c = half(out, 1, (int64_t[]){ ROOM }, NULL);
	int r = 0;

	f->lane->chunk = ROOM;
	f->lane->is_side = false;
	for (uint64_t i = 0; i < 8 && r >= 0; i++)
		r = (out ? sk_cuda_lane_out : sk_cuda_lane_in)(
			f->lane, &c, i * each,
			i % 4 ? i * each + 10 : i * each + each, f->lock,
			err);
	r = finish(r, err);
	f->lane->chunk = chunk;
	return r;
}

static int mixed_out(struct sk_err *err)
{
	return copy_mixed(true, err);
}

static int mixed_in(struct sk_err *err)
{
	return copy_mixed(false, err);
}

static int mark_new(struct sk_err *err)
{
	struct sk_cuda_mark *mark = NULL;
	int r = sk_cuda_mark_new(f->device, &mark, err);

	sk_cuda_mark_free(mark);
	return r;
}

static int mark_set(struct sk_err *err)
{
	return sk_cuda_mark_set(f->mark, f->lane, err);
}

static int mark_hold(struct sk_err *err)
{
	return sk_cuda_mark_hold(f->mark, (uintptr_t)f->stream, err);
}

static int mark_reached(struct sk_err *err)
{
	bool reached;

	return sk_cuda_mark_reached(f->mark, &reached, err);
}

static int mark_wait(struct sk_err *err)
{
	return sk_cuda_mark_wait(f->mark, err);
}

static int allocate(struct sk_err *err)
{
	uint64_t ptr = 0;
	int r = sk_cuda_alloc(f->device, 100, &ptr, err);

	sk_cuda_release(f->device, ptr);
	return r;
}

static int find(struct sk_err *err)
{
	struct sk_cuda_range range;

	return sk_cuda_find(f->device, f->there, &range, err);
}

static int lock_and_unlock(struct sk_err *err)
{
	static char map[3 * SK_PAGE] __attribute__((aligned(SK_PAGE)));
	struct sk_cuda_lock *lock = NULL;
	int r = sk_cuda_lock(f->device, map, sizeof(map), SK_PAGE, &lock, err);

	sk_cuda_unlock(lock);
	return r;
}

static int settle(struct sk_err *err)
{
	return sk_cuda_settle(f->device, err);
}

static int new_hash(struct sk_err *err)
{
	struct sk_cuda_hash *hash = NULL;
	int r = sk_cuda_hash_new(f->device, &hash, err);

	(void)sk_cuda_hash_free(hash);
	return r;
}

static int hash(struct sk_err *err)
{
	const struct sk_cuda_span span = { f->there, 1000 };
	uint64_t sum;

	return sk_cuda_hash_run(f->hash, f->lane, &span, 1, &sum, err);
}

static const struct deed {
	const char *name;
	int (*fn)(struct sk_err *err);
	unsigned ends;		/* times that it enters to give back, or for
				 * what it can do without */
	const char *without;	/* a call that may fail */
} deeds[] = {
	{ "a lane", new_lane, 1 },
	{ "following", follow }, { "following the default", follow_default },
	{ "following another device's", follow_other },
	{ "a copy out", copy_out }, { "a copy in", copy_in },
	{ "a copy across", copy_across }, { "copies out", copy_few },
	{ "copies across", copy_few_across },
	{ "copies of two ways", copy_two_ways },
	{ "copies in", copy_few_in },
	{ "long ones out", long_out }, { "long ones in", long_in },
	{ "rows out", rows_out }, { "rows in", rows_in },
	{ "planes out", planes_out },
	{ "small and long ones out", mixed_out },
	{ "small and long ones in", mixed_in },
	{ "a mark", mark_new, 1 }, { "setting it", mark_set },
	{ "holding by it", mark_hold }, { "asking for it", mark_reached },
	{ "waiting for it", mark_wait },
	{ "memory", allocate, 1 }, { "finding it", find },
	{ "locking", lock_and_unlock, 1 }, { "settling", settle },
	{ "a hash", new_hash, 5, "cuMemHostRegister" }, { "hashing", hash },
};

/* ---- what they call ---- */

/* Whose failure nobody can do anything about, or is no failure of a deed. */
static const char *const spared[] = {
	"cuCtxPopCurrent", "cuEventDestroy", "cuGetErrorName", "cuMemFree",
	"cuMemHostUnregister", "cuStreamDestroy",
	"cuThreadExchangeStreamCaptureMode",
};

static bool is_spared(const char *function)
{
	for (size_t i = 0; i < SK_ARRAY_SIZE(spared); i++)
		if (strcmp(spared[i], function) == 0)
			return true;
	return false;
}

#define NAME(function, exported, version, need, params) #function,

static const char *const functions[] = { SK_CUDA_TABLE(NAME) };
static const char *const counts[] = { "events", "streams", "memory",
				      "locked" };

#define N_COUNTS SK_ARRAY_SIZE(counts)

/* What there is of the driver's things, and whose turn it is. */
struct held {
	uint64_t n[N_COUNTS];
	sk_cu_context context;
	sk_cu_enum mode, was;
};

static struct held held_now(void)
{
	struct held h = { .mode = 0 };

	for (size_t i = 0; i < N_COUNTS; i++)
		h.n[i] = f->t.count(counts[i]);
	cr_assert_eq(f->t.cuCtxGetCurrent(&h.context), 0);
	h.was = h.mode;
	cr_assert_eq(f->t.driver.cuThreadExchangeStreamCaptureMode(&h.was),
		     0);
	h.mode = h.was;
	cr_assert_eq(f->t.driver.cuThreadExchangeStreamCaptureMode(&h.was),
		     0);
	return h;
}

static void check_held(const struct held *before, const char *deed,
		       const char *function)
{
	const struct held now = held_now();

	for (size_t i = 0; i < N_COUNTS; i++)
		cr_assert_eq(now.n[i], before->n[i], "%s, %s: %d %s, not %d",
			     deed, function, (int)now.n[i], counts[i],
			     (int)before->n[i]);
	cr_assert_eq(now.context, before->context, "%s, %s: the context",
		     deed, function);
	cr_assert_eq(now.mode, before->mode, "%s, %s: the mode", deed,
		     function);
}

static void go_on(const struct deed *d)
{
	struct sk_err err = { "" };

	cr_assert_eq(d->fn(&err), 0, "%s: %s", d->name, err.text);
}

/* Each of the calls of that function that the deed makes; how many. */
static uint64_t fail_each(const struct deed *d, const char *function)
{
	uint64_t n, made = f->t.calls(function);
	struct held before = held_now();

	go_on(d);
	check_held(&before, d->name, function);
	/* What looks at it has called some itself. */
	made = f->t.calls(function);
	go_on(d);
	made = f->t.calls(function) - made;
	/* Where it cannot enter to give back, that goes with the process. */
	if (strcmp(function, "cuCtxPushCurrent") == 0)
		made -= d->ends;
	if (d->without && strcmp(function, d->without) == 0)
		return 0;
	for (n = 1; n <= made && !is_spared(function); n++) {
		struct sk_err err = { "" };
		int r;

		before = held_now();
		cr_assert_eq(sk_cuda_settle(f->device, NULL), 0);
		cr_assert_eq(sk_cuda_settle(f->other, NULL), 0);
		f->pending = 0;
		f->t.fail(function, n, FAILED);
		r = d->fn(&err);
		f->t.fail(function, 0, 0);
		cr_assert_eq(r, -EIO, "%s, call %d of %s: %d", d->name, (int)n,
			     function, r);
		cr_assert(strstr(err.text, "CUDA: "), "%s, %s: \"%s\"",
			  d->name, function, err.text);
		/* Who cannot enter cannot wait either. */
		cr_assert(!f->pending || strcmp(function,
						"cuCtxPushCurrent") == 0,
			  "%s, call %d of %s: is under way", d->name, (int)n,
			  function);
		check_held(&before, d->name, function);
		go_on(d);
	}
	return n - 1;
}

#define N_FUNCTIONS SK_ARRAY_SIZE(functions)

/* Those that the deed calls at all. */
static uint64_t fail_those_of(const struct deed *d)
{
	uint64_t made[N_FUNCTIONS], n = 0;

	/* What is made late is there by now. */
	go_on(d);
	for (size_t k = 0; k < N_FUNCTIONS; k++)
		made[k] = f->t.calls(functions[k]);
	go_on(d);
	for (size_t k = 0; k < N_FUNCTIONS; k++)
		made[k] = f->t.calls(functions[k]) - made[k];
	for (size_t k = 0; k < N_FUNCTIONS; k++)
		n += made[k] ? fail_each(d, functions[k]) : 0;
	return n;
}

static void fail_all(void)
{
	uint64_t n = 0;

	if (!f->t.fail)
		cr_skip_test("real hardware fails when it likes");
	for (size_t i = 0; i < SK_ARRAY_SIZE(deeds); i++)
		n += fail_those_of(&deeds[i]);
	cr_assert_gt(n, 50);
}

Test(failing, each_call_of_each_deed)
{
	fail_all();
}

Test(failing_12_0, each_call_of_each_deed)
{
	fail_all();
}
