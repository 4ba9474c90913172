/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What we rely on of the driver that runs our own code on a device; as
 * conformance.c, on the simulated driver and on a real one unchanged.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bytes/checksum.h"
#include "cuda/kernels.h"
#include "items.h"
#include "trainer.h"

#define BYTES ((size_t)3 << 20)
#define CHUNK ((size_t)1 << 20)

#define KERNELS 4
#define SPANS 15
#define BLOCKS_MOST (BYTES / 1024)	/* of a span */

static const char *const names[KERNELS] = {
	"sk_parts", "sk_lanes", "sk_merge", "sk_copies" };

/* As kernels.cl has them. */
struct span {
	uint64_t at, bytes;
};

struct copy {
	uint64_t dst, src, bytes;
};

struct loaded {
	struct trainer_cuda t;
	sk_cu_module module;
	sk_cu_function functions[KERNELS];
	sk_cu_stream stream;
	sk_cu_ptr bytes, table, parts, sums, ret;
	char *here;
};

static void begin(struct loaded *l)
{
	trainer_cuda_begin(&l->t, 0);
	IS(0, l->t.driver.cuModuleLoadData(&l->module, sk_cuda_kernels_text));
	for (int i = 0; i < KERNELS; i++)
		IS(0, l->t.driver.cuModuleGetFunction(&l->functions[i],
						      l->module, names[i]));
	IS(0, l->t.cuStreamCreate(&l->stream, SK_CU_STREAM_NON_BLOCKING));
	l->bytes = trainer_cuda_alloc(&l->t, BYTES);
	l->table = trainer_cuda_alloc(&l->t, 4096);
	l->parts = trainer_cuda_alloc(&l->t, SPANS * BLOCKS_MOST * 64);
	l->sums = trainer_cuda_alloc(&l->t, 4096);
	l->ret = trainer_cuda_alloc(&l->t, 4096);
	l->here = malloc(BYTES);
	CHECK(l->here);
	for (size_t i = 0; i < BYTES; i++)
		l->here[i] = (char)(i * i >> 9);
	trainer_cuda_put(&l->t, l->bytes, l->here, BYTES);
}

/* Whether the driver has put it off or not. */
static void loading(void)
{
	struct loaded l;

	begin(&l);
	if (!l.t.driver.cuFuncLoad)
		return;		/* before 12.4 */
	for (int i = 0; i < KERNELS; i++)
		IS(0, l.t.driver.cuFuncLoad(l.functions[i]));
	IS(0, l.t.driver.cuFuncLoad(l.functions[0]));
}

static unsigned launch(const struct loaded *l, int which, unsigned blocks,
		       unsigned threads, void **params)
{
	return l->t.driver.cuLaunchKernel(l->functions[which], blocks, 1, 1,
					  threads, 1, 1, 0, l->stream, params,
					  NULL);
}

/* All of them, of the spans in the table. */
static void hash(const struct loaded *l, uint64_t n)
{
	sk_cu_ptr table = l->table, sums = l->sums, ret = l->ret;
	sk_cu_ptr parts = l->parts;
	uint64_t most = BLOCKS_MOST;
	void *of_parts[] = { &table, &n, &parts, &most };
	void *of_sums[] = { &table, &n, &sums, &parts, &most };
	void *of_ret[] = { &table, &n, &sums, &ret };

	IS(0, launch(l, 0, (unsigned)(n * most * 4 / 256 + 1), 256,
		     of_parts));
	IS(0, launch(l, 1, (unsigned)n, 32, of_sums));
	IS(0, launch(l, 2, 1, 32, of_ret));
	/* They are read in the call. */
	table = sums = ret = parts = 0;
	n = most = 1u << 30;
}

static void modules(void)
{
	static const char broken[] =
		".version 4.0\n.target sm_50\n.address_size 64\n"
		".visible .entry sk_lanes() { nonsense; }\n";
	struct loaded l;
	sk_cu_function f;
	sk_cu_module other;

	begin(&l);
	IS(SK_CU_NOT_FOUND, l.t.driver.cuModuleGetFunction(&f, l.module,
							   "sk_nothing"));
	IS(SK_CU_INVALID_PTX, l.t.driver.cuModuleLoadData(&other, broken));
	/* It may be loaded twice, and one let go of. */
	IS(0, l.t.driver.cuModuleLoadData(&other, sk_cuda_kernels_text));
	IS(0, l.t.driver.cuModuleUnload(other));
	IS(0, l.t.driver.cuModuleGetFunction(&f, l.module, names[0]));
	IS(0, l.t.driver.cuModuleUnload(l.module));
}

static void checksums(void)
{
	static const uint64_t bytes[] = { CHUNK, CHUNK - 1, 5000, 241, 240,
					  129, 128, 17, 16, 9, 8, 4, 3, 1, 0 };
	struct span spans[SPANS];
	uint64_t sums[SPANS];
	struct loaded l;

	begin(&l);
	for (size_t i = 0; i < SPANS; i++)
		spans[i] = (struct span){ l.bytes + i * 1000, bytes[i] };
	/* At any address. */
	spans[2].at += 3;
	trainer_cuda_put(&l.t, l.table, spans, sizeof(spans));
	hash(&l, SPANS);
	IS(0, l.t.driver.cuStreamSynchronize(l.stream));
	trainer_cuda_get(&l.t, sums, l.ret, sizeof(sums));
	for (size_t i = 0; i < SPANS; i++)
		CHECK(sums[i] == sk_xxh3(l.here + (spans[i].at - l.bytes),
					 bytes[i]));
}

/* A kernel comes after what its stream had before, and before what comes. */
static void order(void)
{
	sk_cu_ptr copy;
	struct loaded l;
	struct span span;
	uint64_t sum;

	begin(&l);
	copy = trainer_cuda_alloc(&l.t, BYTES);
	span = (struct span){ copy, BYTES };
	trainer_cuda_put(&l.t, l.table, &span, sizeof(span));
	IS(0, l.t.driver.cuMemcpyDtoDAsync(copy, l.bytes, BYTES, l.stream));
	hash(&l, 1);
	IS(0, l.t.cuMemsetD8Async(copy, 0, BYTES, l.stream));
	IS(0, l.t.driver.cuStreamSynchronize(l.stream));
	trainer_cuda_get(&l.t, &sum, l.ret, sizeof(sum));
	CHECK(sum == sk_xxh3(l.here, BYTES));
}

static void copies(void)
{
	struct copy table[3];
	uint64_t n = 3, slices = CHUNK >> 16;
	sk_cu_ptr to;
	struct loaded l;
	char *got = malloc(BYTES);

	begin(&l);
	CHECK(got);
	to = trainer_cuda_alloc(&l.t, BYTES);
	trainer_cuda_put(&l.t, to, l.here + CHUNK, BYTES - CHUNK);
	table[0] = (struct copy){ to, l.bytes, 4096 };
	table[1] = (struct copy){ to + 4099, l.bytes + 4097, 777 };
	table[2] = (struct copy){ to + 8192, l.bytes + 8192, CHUNK };
	trainer_cuda_put(&l.t, l.table, table, sizeof(table));
	IS(0, launch(&l, 3, 2, 256, (void *[]){ &l.table, &n,
							 &slices }));
	IS(0, l.t.driver.cuStreamSynchronize(l.stream));
	trainer_cuda_get(&l.t, got, to, BYTES);
	CHECK(!memcmp(got, l.here, 4096));
	CHECK(!memcmp(got + 4096, l.here + CHUNK + 4096, 3));
	CHECK(!memcmp(got + 4099, l.here + 4097, 777));
	CHECK(!memcmp(got + 4876, l.here + CHUNK + 4876, 8192 - 4876));
	CHECK(!memcmp(got + 8192, l.here + 8192, CHUNK));
}

/* What is no memory of the device breaks the context, and is not done. */
static void beyond(void)
{
	struct span span = { 0x10, 4096 };
	struct loaded l;
	uint64_t n = 1, most = 0;

	begin(&l);
	trainer_cuda_put(&l.t, l.table, &span, sizeof(span));
	/* One alone: the next call may be told already. */
	IS(0, launch(&l, 1, 1, 32, (void *[]){ &l.table, &n, &l.sums, &l.parts,
					       &most }));
	IS(SK_CU_ILLEGAL_ADDRESS, l.t.driver.cuStreamSynchronize(l.stream));
	IS(SK_CU_ILLEGAL_ADDRESS,
	   l.t.driver.cuMemcpyDtoDAsync(l.bytes, l.bytes + CHUNK, 64,
					l.stream));
}

/* ---- what is written down of that ---- */

#define LOG_LOOKS 500	/* of 10 ms, for a line of the kernel's */

/* Up to the end of what there is: lines of error 31, a fault of memory; and
 * whether anything is the driver's. A line of the kernel's is a read. */
static int faults(int fd, bool *ret_told)
{
	char text[8192];
	int n = 0;
	ssize_t got;

	for (;;) {
		got = read(fd, text, sizeof(text) - 1);
		if (got < 0 && errno == EPIPE)	/* some were overwritten */
			continue;
		if (got <= 0)
			return n;
		text[got] = '\0';
		*ret_told |= strstr(text, "NVRM") != NULL;
		for (char *at = text; (at = strstr(at, "Xid (")); at += 5)
			n += strstr(at, "): 31,") != NULL;
	}
}

/* In a process of its own, which begins when it is told to: the driver of this
 * one is there by then. */
static pid_t begin_beyond(void)
{
	pid_t pid = fork();
	int status = 0;

	CHECK(pid >= 0);
	if (!pid) {
		(void)raise(SIGSTOP);
		beyond();
		_exit(0);
	}
	CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
	return pid;
}

/* Ends it, as if nobody had been there. */
static void go_beyond(pid_t pid)
{
	int status = 0;

	CHECK(!kill(pid, SIGCONT) && waitpid(pid, &status, 0) == pid);
	CHECK(!status);
}

/* No other process is told, and memory of theirs is as before. */
static void nobody_else_is_told(void)
{
	char word[8] = "ours";
	pid_t pid = begin_beyond();
	struct trainer_cuda t;
	sk_cu_ptr p;

	trainer_cuda_begin(&t, 0);
	p = trainer_cuda_alloc(&t, BYTES);
	trainer_cuda_put(&t, p, word, sizeof(word));
	go_beyond(pid);
	memset(word, 0, sizeof(word));
	trainer_cuda_get(&t, word, p, sizeof(word));
	CHECK(!strcmp(word, "ours"));
}

/* Where the kernel's log is ours to read, it says so; of a simulated device
 * its own does. */
static void is_written_down(void)
{
	char dir[] = "/tmp/vcuda-session-XXXXXX", path[64];
	int kernel = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC), own;
	bool told = false;

	if (kernel >= 0)
		(void)faults(kernel, &told);
	CHECK(mkdtemp(dir));
	(void)setenv("VCUDA_SESSION", dir, 1);
	go_beyond(begin_beyond());
	(void)snprintf(path, sizeof(path), "%s/xid", dir);
	own = open(path, O_RDONLY | O_CLOEXEC);
	(void)snprintf(path, sizeof(path), "rm -rf %s", dir);
	CHECK(!system(path));
	if (own >= 0) {
		CHECK(faults(own, &told) == 1);
		return;
	}
	if (kernel < 0)
		item_lacks("the kernel's log is not ours to read");
	for (int i = 0; i < LOG_LOOKS; i++) {
		if (faults(kernel, &told))
			return;
		(void)usleep(10000);
	}
	CHECK(!told);
	item_lacks("the kernel's log has nothing of this driver");
}

static void misuse_unloaded(void)
{
	struct loaded l;
	void *params[8] = { 0 };
	uint64_t nothing = 0;

	begin(&l);
	for (int i = 0; i < 8; i++)
		params[i] = &nothing;
	IS(0, l.t.driver.cuModuleUnload(l.module));
	(void)launch(&l, 0, 1, 256, params);
}

static void misuse_unloaded_twice(void)
{
	struct loaded l;

	begin(&l);
	IS(0, l.t.driver.cuModuleUnload(l.module));
	(void)l.t.driver.cuModuleUnload(l.module);
}

static const struct item items[] = {
	{ "modules", modules, ITEM_ANY },
	{ "kernels are loaded ahead", loading, ITEM_ANY },
	{ "checksums on the device", checksums, ITEM_ANY },
	{ "kernels in the order of their stream", order, ITEM_ANY },
	{ "copies by a kernel", copies, ITEM_ANY },
	{ "an address that is none", beyond, ITEM_ANY },
	{ "nobody else is told of that", nobody_else_is_told, ITEM_ANY },
	{ "the log is", is_written_down, ITEM_ANY },
	{ "misuse: code that was unloaded", misuse_unloaded, ITEM_MISUSE },
	{ "misuse: unloaded twice", misuse_unloaded_twice, ITEM_MISUSE },
};

int main(void)
{
	return cuda_items_main(items, sizeof(items) / sizeof(items[0]), false);
}
