/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that are hashed whole while a part of them is stored, beside a copy
 * byte by byte; and an image that is written to between copy and hash. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bytes/checksum.h"
#include "restore/passing.h"

#define MOST ((size_t)5 << 20)
#define ROUNDS 400

static uint64_t random_state = 11;

static int64_t below(int64_t n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963u;
	return (int64_t)(random_state >> 33) % n;
}

/* A box in an entry, of bytes. Rows of all lengths that are told apart. */
struct scene {
	struct sk_item item;
	struct sk_entry entry;
	struct sk_box box;
	uint64_t bytes;		/* of the box */
};

static void draw_dim(struct scene *s, int d, int64_t size)
{
	s->entry.box.offset[d] = below(100);
	s->entry.box.size[d] = size;
	s->box.size[d] = 1 + below(size);
	s->box.offset[d] = s->entry.box.offset[d] +
			   below(size - s->box.size[d] + 1);
}

static struct scene draw(void)
{
	static const int64_t rows[] = { 9, 200, 1500, 9000, 1100000 };
	int64_t row = rows[below(5)], left = (int64_t)MOST / row;
	struct scene s = { .item.spec = { .ndim = 1 + (int)below(3),
					  .dtype = SK_U8 } };
	int last = s.item.spec.ndim - 1;

	s.entry.bytes = s.bytes = 1;
	for (int d = 0; d <= last; d++) {
		int64_t size = d == last ? row :
			       d ? 1 + below(4) : 1 + below(left / 4);

		draw_dim(&s, d, size);
		s.entry.bytes *= (uint64_t)size;
		s.bytes *= (uint64_t)s.box.size[d];
	}
	return s;
}

/* A chunk that has some of the box, and how much of that. */
static bool draw_chunk(const struct scene *s, struct sk_passing *p)
{
	uint64_t chunk = (uint64_t)below((int64_t)(s->entry.bytes /
						   SK_SUM_CHUNK) + 1);
	uint64_t from, to;

	p->from = chunk * SK_SUM_CHUNK;
	p->to = p->from + SK_SUM_CHUNK < s->entry.bytes ?
			p->from + SK_SUM_CHUNK : s->entry.bytes;
	if (p->from >= p->to)
		return false;
	from = sk_restore_before(&p->shape, p->from);
	to = sk_restore_before(&p->shape, p->to);
	if (from == to)
		return false;
	p->first = from + (uint64_t)below(2) * (uint64_t)below((int64_t)
							(to - from));
	p->last = below(2) ? to : p->first + 1 +
		  (uint64_t)below((int64_t)(to - p->first));
	return true;
}

static void run_one(const char *image, char *got, char *wanted)
{
	struct scene s = draw();
	struct sk_passing p = { .base = image, .shared = below(2) };
	uint64_t skip, sum = 0;

	cr_assert_eq(sk_restore_pack(&s.item, &s.entry, &s.box, got, &p.copy,
				     &skip, NULL), 0);
	p.copy.src = image + skip;
	sk_restore_shape(&s.item, &s.entry, &s.box, &p.shape);
	if (!draw_chunk(&s, &p))
		return;
	memset(got, 0x55, s.bytes);
	memset(wanted, 0x55, s.bytes);
	for (uint64_t i = p.first; i < p.last; i++)
		wanted[i] = image[sk_restore_position(&p.shape, i)];
	cr_assert_eq(sk_passing_run(&p, &sum, NULL), 0);
	cr_assert_eq(memcmp(got, wanted, s.bytes), 0);
	cr_assert_eq(sum, sk_xxh3(image + p.from, p.to - p.from));
}

Test(passing, a_part_of_a_chunk_is_stored_and_all_of_it_hashed)
{
	char *image = malloc(MOST), *got = malloc(MOST), *wanted = malloc(MOST);

	cr_assert(image && got && wanted);
	for (size_t i = 0; i < MOST; i++)
		image[i] = (char)below(256);
	for (int i = 0; i < ROUNDS; i++)
		run_one(image, got, wanted);
	free(image);
	free(got);
	free(wanted);
}

/* ---- an image that changes under the copy ---- */

#define PAGE ((size_t)4096)
#define PAGES 4u	/* copied at once */

static const unsigned image_pages[PAGES] = { 0, 1, 2, 3 };
/* The copy of each pair writes to a page of the image that it has read before,
 * in the one pair where pages are copied upwards, in the other downwards. */
static const unsigned buffer_pages[PAGES] = { 4, 0, 3, 5 };

static char *map_pages(int fd, const unsigned *pages)
{
	char *at = mmap(NULL, PAGES * PAGE, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	cr_assert_neq(at, MAP_FAILED);
	for (unsigned i = 0; i < PAGES; i++)
		cr_assert_neq(mmap(at + i * PAGE, PAGE, PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_FIXED, fd,
				   (off_t)(pages[i] * PAGE)), MAP_FAILED);
	return at;
}

Test(passing, what_was_gathered_is_hashed_and_not_where_it_came_from)
{
	int fd = memfd_create("image", MFD_CLOEXEC);
	char *image, *buffer;
	uint64_t sum;

	if (sysconf(_SC_PAGESIZE) != (long)PAGE)
		cr_skip_test("pages of another size");
	cr_assert(fd >= 0 && !ftruncate(fd, 6 * PAGE));
	image = map_pages(fd, image_pages);
	buffer = map_pages(fd, buffer_pages);
	for (size_t i = 0; i < PAGES * PAGE; i++)
		image[i] = (char)below(256);
	sum = sk_passing_gather_hashed(buffer, image, PAGES * PAGE);
	cr_assert_neq(sk_xxh3(image, PAGES * PAGE),
		      sk_xxh3(buffer, PAGES * PAGE), "nothing has changed");
	cr_assert_eq(sum, sk_xxh3(buffer, PAGES * PAGE));
	(void)munmap(image, PAGES * PAGE);
	(void)munmap(buffer, PAGES * PAGE);
	close(fd);
}
