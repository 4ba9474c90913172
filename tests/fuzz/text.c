/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is read from text: whatever is accepted says the same when it is
 * written and read again, and what is not comes with a sentence. The first byte
 * says which of them it is.
 */
#include "fuzz/fuzz.h"

#include "base/size.h"
#include "store/private.h"
#include "tensor/placement.h"

static void try_size(const char *text)
{
	char buf[SK_SIZE_TEXT];
	uint64_t bytes = 0;
	struct sk_err err = { "" };
	int r = sk_size_parse(text, (uint64_t)1 << 40, &bytes, &err);

	FUZZ_CHECK(r == 0 || ((r == -EINVAL || r == -ERANGE) && err.text[0]));
	FUZZ_CHECK(r < 0 || (bytes && bytes <= SK_SIZE_MOST));
	if (r < 0)
		return;
	/* It is written with one digit after the point, so not exactly. */
	FUZZ_CHECK(strlen(sk_size_format(bytes, buf, sizeof(buf))));
	FUZZ_CHECK(sk_size_parse(buf, 0, &bytes, &err) == 0);
}

static void try_placement(const char *text)
{
	struct sk_placement p = { 0 }, again = { 0 };
	struct sk_err err = { "" };
	char buf[64];

	if (sk_placement_parse(text, &p, &err) < 0) {
		FUZZ_CHECK(err.text[0]);
		return;
	}
	sk_placement_format(&p, buf, sizeof(buf));
	FUZZ_CHECK(sk_placement_parse(buf, &again, &err) == 0);
	FUZZ_CHECK(p.kind == again.kind && p.dim == again.dim &&
		   p.split_factor == again.split_factor);
}

static void try_step_name(const char *text)
{
	char buf[SK_STORE_NAME_MAX];
	struct sk_step_name name, again;

	if (!sk_step_name_parse(text, &name))
		return;
	if (name.displaced)
		sk_step_name_displaced(buf, name.step, name.run, 1);
	else
		sk_step_name_format(buf, name.step);
	FUZZ_CHECK(sk_step_name_parse(buf, &again));
	FUZZ_CHECK(again.step == name.step &&
		   again.displaced == name.displaced);
	FUZZ_CHECK(name.displaced || !strcmp(buf, text));
}

static void try_image_name(const char *text)
{
	char buf[SK_STORE_NAME_MAX];
	int32_t rank, world;

	if (!sk_image_name_parse(text, &rank, &world))
		return;
	FUZZ_CHECK(rank >= 0 && rank < world);
	sk_image_name_format(buf, rank, world);
	FUZZ_CHECK(!strcmp(buf, text));
}

static void try_leftover(const char *text)
{
	struct sk_leftover left;
	uint32_t instance;

	if (sk_leftover_name(text, &left) && left.of)
		FUZZ_CHECK(left.of > text && left.of < text + strlen(text));
	if (sk_alive_name_parse(text, &instance)) {
		char buf[SK_STORE_NAME_MAX];

		sk_alive_name_format(buf, instance);
		FUZZ_CHECK(!strcmp(buf, text));
	}
}

static void try_run(const char *text)
{
	char buf[SK_RUN_TEXT_MAX];
	struct sk_store_run run, again;

	if (!sk_run_text_parse(text, &run))
		return;
	sk_run_text_format(buf, &run);
	FUZZ_CHECK(sk_run_text_parse(buf, &again));
	FUZZ_CHECK(run.number == again.number && run.id == again.id);
}

/* The checksum is not to be guessed: what it says is formatted first. */
static void try_any_run(struct feed *f)
{
	struct sk_store_run run = { .number = feed_u64(f) % SK_RUN_MAX,
				    .id = feed_u64(f) | 1 };
	char buf[SK_RUN_TEXT_MAX];

	sk_run_text_format(buf, &run);
	try_run(buf);
	if (f->left)
		buf[feed_below(f, SK_RUN_TEXT_MAX - 1)] ^= (char)feed_byte(f);
	buf[SK_RUN_TEXT_MAX - 1] = 0;
	try_run(buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const tries[])(const char *text) = {
		try_size, try_placement, try_step_name, try_image_name,
		try_leftover, try_run };
	struct feed f = { data, size };
	unsigned which = feed_below(&f, 7);
	char *text;

	if (which == 6) {
		try_any_run(&f);
		return 0;
	}
	text = strndup((const char *)f.at, f.left);
	FUZZ_CHECK(text);
	tries[which](text);
	free(text);
	return 0;
}
