/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's index, changed by the input and its checksum made right again:
 * whatever it says, what is known after a look is what is there.
 */
#include "fuzz/fuzz.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bytes/checksum.h"
#include "store/private.h"
#include "support/fault-os.h"
#include "support/files.h"

#define STEPS 3
#define SUM_AT 8		/* of the file: its checksum and its length */
#define BYTES_AT 16

struct desk {
	char dir[64], index[128];
	struct sk_fault_os fault;	/* its clock is an hour ahead */
	struct sk_store *store;
	uint8_t *file;			/* a good index */
	size_t bytes;
};

static void desk_close(struct desk *d)
{
	sk_store_close(d->store);
	FUZZ_CHECK(!remove_tree(d->dir));
	free(d->file);
}

static void make_steps(const struct desk *d)
{
	const struct sk_store_run run = { .number = 1, .id = 9 };
	char path[256], name[SK_STORE_NAME_MAX], text[SK_RUN_TEXT_MAX + 1];
	FILE *f;

	(void)snprintf(path, sizeof(path), "%s/job", d->dir);
	FUZZ_CHECK(!mkdir(path, 0700));
	sk_run_text_format(text, &run);
	for (unsigned i = 0; i < STEPS; i++) {
		sk_step_name_format(name, i);
		if (i == STEPS - 1)
			sk_step_name_displaced(name, i, 1, 1);
		(void)snprintf(path, sizeof(path), "%s/job/%s", d->dir, name);
		FUZZ_CHECK(!mkdir(path, 0700));
		strcat(path, "/" SK_RUN_FILE);
		f = fopen(path, "we");
		FUZZ_CHECK(f && fprintf(f, "%s\n", text) > 0 && !fclose(f));
	}
}

/* What is there is known, and nothing else. */
static void check_known(const struct sk_history *h)
{
	FUZZ_CHECK(sk_history_count(h) == STEPS);
	for (size_t i = 0; i < STEPS; i++) {
		const struct sk_history_step *s = sk_history_by_name(h, i);

		FUZZ_CHECK(s->step == i);
		FUZZ_CHECK(s->run.number == 1 && s->run.id == 9);
	}
}

static void look(struct desk *d, bool save)
{
	struct sk_history *h = sk_history_new("job");
	struct sk_err err = { "" };

	FUZZ_CHECK(h && !sk_history_look(h, d->store, &err));
	FUZZ_CHECK(!save || !sk_history_save(h, d->store, &err));
	/* What the checksum lets through may name other runs: nobody but the
	 * agent's own user writes there. It must not end anything. */
	if (save)
		check_known(h);
	sk_history_free(h);
}

static void read_index(struct desk *d)
{
	struct stat st;
	FILE *f;

	(void)snprintf(d->index, sizeof(d->index), "%s/%s/job", d->dir,
		       SK_INDEX_DIR);
	f = fopen(d->index, "re");
	FUZZ_CHECK(f && !fstat(fileno(f), &st));
	d->bytes = (size_t)st.st_size;
	d->file = malloc(d->bytes);
	FUZZ_CHECK(d->file && fread(d->file, 1, d->bytes, f) == d->bytes);
	fclose(f);
}

static void write_index(const struct desk *d, const uint8_t *file, size_t n)
{
	FILE *f = fopen(d->index, "we");

	FUZZ_CHECK(f && fwrite(file, 1, n, f) == n && !fclose(f));
}

static struct desk *desk_open(void)
{
	struct desk *d = calloc(1, sizeof(*d));
	struct sk_err err = { "" };
	struct timespec now;
	int is_volatile;

	FUZZ_CHECK(d && !clock_gettime(CLOCK_REALTIME, &now));
	strcpy(d->dir, "/tmp/shardkeep-fuzz-XXXXXX");
	FUZZ_CHECK(mkdtemp(d->dir));
	sk_fault_os_init(&d->fault, sk_os_linux());
	sk_fault_os_clock(&d->fault, 1,
			  ((uint64_t)now.tv_sec + 3600) * 1000000000);
	FUZZ_CHECK(!sk_store_open(&d->fault.os, d->dir, 60, &d->store,
				  &is_volatile, &err));
	make_steps(d);
	look(d, true);
	read_index(d);
	return d;
}

/* Bytes of it are changed, each at a place; it may be shorter, or longer. */
static size_t change(struct feed *f, const struct desk *d, uint8_t *file)
{
	unsigned end = feed_byte(f);
	size_t n = d->bytes;

	memcpy(file, d->file, n);
	memset(file + n, 0, 256);
	if (end >= 240)
		n += end;
	else if (end >= 200)
		n -= n * (end - 200) / 40;
	while (f->left) {
		size_t at = feed_byte(f) | (size_t)feed_byte(f) << 8;

		file[at % d->bytes] = feed_byte(f);
	}
	return n;
}

static void make_right(uint8_t *file, uint64_t n)
{
	uint64_t sum = 0;

	if (n < BYTES_AT + 8)
		return;
	memcpy(file + BYTES_AT, &n, 8);
	memcpy(file + SUM_AT, &sum, 8);
	sum = sk_xxh3(file, n);
	memcpy(file + SUM_AT, &sum, 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct feed f = { data, size };
	struct desk *d = desk_open();
	bool right = feed_byte(&f) & 1;
	uint8_t *file = malloc(d->bytes + 256);
	size_t n;

	FUZZ_CHECK(file);
	n = change(&f, d, file);
	if (right)
		make_right(file, n);
	write_index(d, file, n);
	look(d, false);
	free(file);
	desk_close(d);
	free(d);
	return 0;
}
