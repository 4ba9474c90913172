/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks of several nodes tell each other of layouts, the proof that their
 * images are the whole, and what they say of what they give each other: by what
 * a rank computes, keeps and says in worlds of two sizes. The comm is a script:
 * all others say what this one says, but for the bits of one of them. $SK_WORLD
 * and $SK_TENSORS have it say what that takes.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/util.h"
#include "fault-alloc.h"
#include "restore/agree.h"
#include "restore/open.h"
#include "restore/tell.h"
#include "restore/whole.h"
#include "tensor/mesh.h"

#define TENSORS 96
#define RANK 5		/* who is played */
#define OTHER 9
#define ROWS 8

struct scene {
	struct sk sk;
	struct sk_state state;
	struct sk_restoring rs;
	struct sk_layout *first;
	struct sk_mesh *mesh;
	int32_t doubter;	/* says of its image that it does not
				 * follow; 0: nobody */
	uint64_t told;		/* bytes of a rank's words */
	size_t sends;		/* of the last exchange */
	bool sending;		/* there is one */
	unsigned gathers;
};

static int allgather(void *ctx, const void *in, size_t bytes, void *out,
		     uint32_t timeout_ms)
{
	struct scene *s = ctx;
	size_t world = (size_t)s->state.job.world;

	(void)timeout_ms;
	for (size_t k = 0; k < world; k++)
		memcpy((char *)out + k * bytes, in, bytes);
	/* Words, lengths, words, and then a bit for each image. */
	if (s->doubter && bytes < sizeof(uint64_t))
		((char *)out)[(size_t)s->doubter * bytes] |= 1;
	s->told += bytes;
	s->gathers++;
	return 0;
}

static int exchange(void *ctx, const struct sk_comm_part *sends,
		    size_t n_sends, const struct sk_comm_part *receives,
		    size_t n_receives, uint32_t timeout_ms)
{
	struct scene *s = ctx;

	(void)sends;
	(void)receives;
	(void)timeout_ms;
	cr_assert(!n_receives);
	s->sends = n_sends;
	return s->sending ? 0 : -ENOTCONN;	/* there is nothing to tell */
}

/* ---- a world that describes the same, on one mesh ---- */

static struct sk_layout *lay_out(const struct scene *s, int32_t rank,
				 uint32_t tensors)
{
	_cleanup_free_ struct sk_item *items = calloc(tensors, sizeof(*items));
	_cleanup_free_ char *names = calloc(tensors, 24);
	int32_t world = s->state.job.world;
	struct sk_layout *l;

	cr_assert(items && names);
	for (uint32_t i = 0; i < tensors; i++) {
		(void)snprintf(&names[i * 24], 24, "layers.%u", i);
		items[i].spec = (struct sk_spec){
			.name = &names[i * 24], .dtype = SK_F32, .ndim = 2,
			.shape = { (int64_t)world * ROWS, 4 },
			.mesh = s->mesh, .placements = { SK_SHARD(0) } };
	}
	cr_assert_eq(sk_layout_new("job", rank, world, SK_IMAGE_PRIMARY, items,
				   tensors, &l, NULL), 0);
	return l;
}

/* What rank 0 had is here, and has told what all describe; all else is
 * elsewhere. */
static struct scene *new_scene(int32_t world, uint32_t tensors)
{
	struct scene *s = calloc(1, sizeof(*s));
	struct sk_restoring *rs = &s->rs;

	cr_assert(s);
	s->sk.os = sk_os_linux();
	s->sk.recall = sk_recall_new();
	s->state.job.name = "job";
	s->state.job.world = world;
	s->state.job.rank = RANK;
	s->state.said = calloc((size_t)world, SK_SAID_BYTES);
	rs->sk = &s->sk;
	rs->state = &s->state;
	rs->apart = true;
	rs->world = world;
	rs->comm = (struct sk_comm){ .ctx = s, .allgather = allgather,
				     .exchange = exchange };
	rs->n_images = (uint32_t)world;
	rs->images = calloc((size_t)world, sizeof(*rs->images));
	cr_assert(rs->images && s->sk.recall && s->state.said);
	cr_assert_eq(sk_mesh_new(1, &(int64_t){ world }, NULL, NULL, &s->mesh,
				 NULL), 0);
	for (int32_t i = 0; i < world; i++) {
		struct sk_layout *l = lay_out(s, i, tensors);
		struct sk_restore_image *image = &rs->images[i];
		uint32_t place = i ? SK_PLACE_OTHERS : 0;

		image->rank = i;
		image->kind = SK_IMAGE_PRIMARY;
		image->digest = l->digest;
		image->description = l->description;
		image->bytes = l->image_bytes;
		image->places[place].listed = true;
		image->places[place].there = true;
		if (!i)
			image->layout = l;
		else
			sk_layout_free(l);
	}
	return s;
}

static void free_scene(struct scene *s)
{
	sk_restore_unlearn(&s->rs);
	for (uint32_t i = 0; i < s->rs.n_images; i++)
		sk_layout_free(s->rs.images[i].layout);
	free(s->rs.images);
	free(s->state.said);
	sk_mesh_unref(s->mesh);
	sk_recall_free(s->sk.recall);
	free(s);
}

static uint32_t count_known(const struct scene *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->rs.n_images; i++)
		n += s->rs.images[i].layout != NULL;
	return n;
}

/* ---- what it takes ---- */

struct taken {
	uint64_t allocations, peak, told;
	double cpu_ms;
	uint32_t known;
	unsigned gathers;
};

static double cpu_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static struct taken prove(int32_t world, uint32_t tensors)
{
	struct scene *s = new_scene(world, tensors);
	struct taken t = { .cpu_ms = cpu_ms() };

	sk_fault_alloc_fail(0, 0);
	cr_assert_eq(sk_restore_tell(&s->rs), 0, "%s", s->rs.err.text);
	cr_assert_eq(sk_restore_whole(&s->rs), 0, "%s", s->rs.err.text);
	t.cpu_ms = cpu_ms() - t.cpu_ms;
	t.allocations = sk_fault_alloc_calls();
	t.peak = sk_fault_alloc_peak();
	(void)sk_fault_alloc_end(NULL);
	t.told = s->told;
	t.gathers = s->gathers;
	t.known = count_known(s);
	free_scene(s);
	return t;
}

/* What a rank computes and keeps is the same in any world; what it says is a
 * bit for each image of its share; what it has room for besides, where that is
 * not the state's, are some bytes an image. */
Test(tell, does_not_grow_with_the_world, .timeout = 300)
{
	struct taken few = prove(64, TENSORS), many = prove(1024, TENSORS);

	cr_assert_eq(many.known, few.known);
	cr_assert_leq(many.known, 2);
	cr_assert_eq(many.gathers, few.gathers);
	cr_assert_eq(many.told, few.told);
	cr_assert_leq(many.allocations, few.allocations + 8);
	cr_assert_leq(many.peak, few.peak + 960 * 128);
}

/* Nor with the tensors of others. */
Test(tell, takes_room_for_one_description)
{
	struct taken few = prove(256, 10), many = prove(256, 100);

	cr_assert_eq(many.told, few.told);
	cr_assert_leq(many.peak, few.peak + 90 * 2048);
}

Test(tell, figures, .timeout = 300)
{
	const char *world = getenv("SK_WORLD"), *n = getenv("SK_TENSORS");
	struct taken t;

	if (!world)
		return;
	t = prove(atoi(world), n ? (uint32_t)atoi(n) : TENSORS);
	printf("%s ranks: %.2f ms of CPU, %llu KiB, %llu allocations, "
	       "%u layouts, %llu bytes said in %u gathers\n", world, t.cpu_ms,
	       (unsigned long long)t.peak >> 10,
	       (unsigned long long)t.allocations, t.known,
	       (unsigned long long)t.told, t.gathers);
}

/* Who has something for two ranks says two lengths, however many there are. */
static uint64_t told_in_trade(int32_t world)
{
	struct scene *s = new_scene(world, 1);
	struct sk_restore_parcel *out = calloc((size_t)world, sizeof(*out));
	struct sk_restore_parcel *in = NULL;
	char word[] = "word";
	uint64_t told;

	cr_assert(out);
	s->sending = true;
	out[1] = out[OTHER] = (struct sk_restore_parcel){ word, 5 };
	out[RANK] = (struct sk_restore_parcel){ word, 3 };
	cr_assert_eq(sk_restore_trade(&s->rs, 0, out, &in), 0);
	cr_assert_eq(s->sends, 2);
	for (int32_t k = 0; k < world; k++)
		cr_assert_eq(in[k].bytes, k == RANK ? 3u : 0u);
	cr_assert(!memcmp(in[RANK].data, word, 3));
	told = s->told;
	free(in);
	free(out);
	free_scene(s);
	return told;
}

Test(trade, says_what_it_gives)
{
	cr_assert_eq(told_in_trade(1024), told_in_trade(16));
}

/* ---- and an incomplete snapshot is none ---- */

static int outcome(struct scene *s)
{
	int r = sk_restore_tell(&s->rs);

	return r < 0 ? r : sk_restore_whole(&s->rs);
}

Test(tell, an_image_that_is_gone)
{
	struct scene *s = new_scene(64, TENSORS);

	s->rs.images[37].places[SK_PLACE_OTHERS].there = false;
	cr_assert_eq(outcome(s), -ENODATA);
	cr_assert(strstr(s->rs.err.text, "rank 37"), "%s", s->rs.err.text);
	free_scene(s);
}

/* What it held nobody knows: it is lost to who asks for it, and the rest no
 * whole snapshot for who names a part. */
Test(tell, a_rank_without_an_image)
{
	const char *const names[] = { "w" };

	for (int named = 0; named < 2; named++) {
		struct scene *s = new_scene(64, TENSORS);

		s->rs.n_images--;
		s->rs.names = named ? names : NULL;
		cr_assert_eq(outcome(s), named ? -ENODATA : 0);
		cr_assert_eq(s->rs.n_lost, !named);
		cr_assert(named ? strstr(s->rs.err.text, "rank 63") != NULL :
				  s->rs.first_lost == 63, "%s",
			  s->rs.err.text);
		s->rs.n_images++;
		free_scene(s);
	}
}

/* One whose layout is another one than arithmetic says, whoever has seen it,
 * and that nobody can tell. */
Test(tell, an_image_that_does_not_follow)
{
	for (int i = 0; i < 2; i++) {
		struct scene *s = new_scene(64, TENSORS);
		int32_t odd = i ? OTHER : RANK;

		s->rs.images[odd].digest.bytes[3] ^= 1;
		s->doubter = i ? OTHER : 0;
		cr_assert_eq(outcome(s), -ENODATA);
		cr_assert(!s->rs.follow);
		cr_assert(strstr(s->rs.err.text, "have no image"), "%s",
			  s->rs.err.text);
		free_scene(s);
	}
}
