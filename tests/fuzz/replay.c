/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fuzz target without libFuzzer: it is given what is in the corpus, and
 * mutants of that, which are the same each time.
 *
 * Usage: TARGET [--mutants N] [--seed N] FILE-OR-DIRECTORY...
 */
#include <dirent.h>
#include <getopt.h>
#include <sys/stat.h>

#include "fuzz/fuzz.h"
#include "support/random.h"

#define BYTES_MOST ((size_t)1 << 16)
#define INPUTS_MOST 4096

struct input {
	uint8_t *bytes;
	size_t n;
};

struct corpus {
	struct input inputs[INPUTS_MOST];
	size_t n;
};

static void corpus_add(struct corpus *c, const char *path)
{
	FILE *f = fopen(path, "re");
	struct input *in = &c->inputs[c->n];

	if (!f || c->n == INPUTS_MOST) {
		fprintf(stderr, "cannot take %s\n", path);
		exit(2);
	}
	in->bytes = malloc(BYTES_MOST);
	FUZZ_CHECK(in->bytes);
	in->n = fread(in->bytes, 1, BYTES_MOST, f);
	fclose(f);
	c->n++;
}

static void corpus_take(struct corpus *c, const char *path)
{
	struct dirent **entries;
	struct stat st;
	char *name;
	int n;

	if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode)) {
		corpus_add(c, path);
		return;
	}
	n = scandir(path, &entries, NULL, alphasort);
	FUZZ_CHECK(n >= 0);
	for (int i = 0; i < n; i++) {
		FUZZ_CHECK(asprintf(&name, "%s/%s", path,
				    entries[i]->d_name) > 0);
		if (entries[i]->d_name[0] != '.')
			corpus_add(c, name);
		free(name);
		free(entries[i]);
	}
	free(entries);
}

/* A stretch of another input over what is there from @at on. */
static void splice(const struct corpus *c, struct input *in, size_t at,
		   uint64_t *dice)
{
	const struct input *other = &c->inputs[draw(dice, c->n)];
	size_t from = draw(dice, other->n + 1), n = other->n - from;

	if (n > BYTES_MOST - at)
		n = BYTES_MOST - at;
	if (n)
		memcpy(in->bytes + at, other->bytes + from, n);
	if (in->n < at + n)
		in->n = at + n;
}

static void mutate(const struct corpus *c, struct input *in, uint64_t *dice)
{
	size_t at = draw(dice, in->n + 1), n;

	switch (draw(dice, 6)) {
	case 0:
		if (at < in->n)
			in->bytes[at] ^= (uint8_t)(1u << draw(dice, 8));
		break;
	case 1:
		if (at < in->n)
			in->bytes[at] = (uint8_t)draw(dice, 256);
		break;
	case 2:		/* less */
		n = draw(dice, 9) < in->n - at ? draw(dice, 9) : in->n - at;
		n = n < in->n - at ? n : in->n - at;
		memmove(in->bytes + at, in->bytes + at + n, in->n - at - n);
		in->n -= n;
		break;
	case 3:		/* more */
		n = draw(dice, 9);
		if (in->n + n > BYTES_MOST)
			break;
		memmove(in->bytes + at + n, in->bytes + at, in->n - at);
		for (size_t i = 0; i < n; i++)
			in->bytes[at + i] = (uint8_t)draw(dice, 256);
		in->n += n;
		break;
	case 4:
		in->n = at;
		break;
	default:
		splice(c, in, at, dice);
	}
}

static void try_mutants(const struct corpus *c, uint64_t n, uint64_t dice)
{
	struct input in = { .bytes = malloc(BYTES_MOST) };

	FUZZ_CHECK(in.bytes);
	for (uint64_t i = 0; i < n; i++) {
		const struct input *of = &c->inputs[draw(&dice, c->n)];

		memcpy(in.bytes, of->bytes, of->n);
		in.n = of->n;
		for (uint64_t k = 1 + draw(&dice, 4); k; k--)
			mutate(c, &in, &dice);
		(void)LLVMFuzzerTestOneInput(in.bytes, in.n);
	}
	free(in.bytes);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "mutants", required_argument, NULL, 'm' },
		{ "seed", required_argument, NULL, 's' },
		{ 0 },
	};
	struct corpus *c = calloc(1, sizeof(*c));
	uint64_t mutants = 0, seed = 1;
	int o;

	FUZZ_CHECK(c);
	while ((o = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (o == '?')
			return 2;
		*(o == 'm' ? &mutants : &seed) = strtoull(optarg, NULL, 10);
	}
	for (int i = optind; i < argc; i++)
		corpus_take(c, argv[i]);
	if (!c->n) {
		fprintf(stderr, "usage: %s [--mutants N] [--seed N] "
			"FILE-OR-DIRECTORY...\n", argv[0]);
		return 2;
	}
	for (size_t i = 0; i < c->n; i++)
		(void)LLVMFuzzerTestOneInput(c->inputs[i].bytes,
					     c->inputs[i].n);
	try_mutants(c, mutants, seed);
	printf("%zu inputs, %llu mutants\n", c->n,
	       (unsigned long long)mutants);
	for (size_t i = 0; i < c->n; i++)
		free(c->inputs[i].bytes);
	free(c);
	return 0;
}
