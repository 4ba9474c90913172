/* SPDX-License-Identifier: Apache-2.0 */
/* What a living agent is asked for: lists, images, figures. */
#include <string.h>
#include <unistd.h>

#include "agent/each.h"
#include "base/util.h"

#define STORED "stored"		/* its step 1 is on disk alone */
#define LONG_NS UINT64_C(31000000000)	/* what was opened is forgotten */

static int list(struct scene *s, uint32_t what, uint32_t flags, void *ret,
		size_t most, uint64_t *ret_n)
{
	const bool parts = what == SK_LIST_PARTS;

	s->msg = (struct sk_msg){ .type = SK_MSG_LIST, .body.list = {
		.id = { .job = EACH_JOB, .step = 1, .rank = -1,
			.run = parts ? s->ranks[0].run : 0,
			.run_id = parts ? s->ranks[0].run_id : 0 },
		.what = what, .flags = flags } };
	return ask_records(s, s->sock, ret, most, ret_n);
}

static int list_of_snapshots(struct scene *s)
{
	struct sk_wire_snapshot snapshot = { 0 };
	uint64_t n;
	int r = list(s, SK_LIST_SNAPSHOTS, 0, &snapshot, sizeof(snapshot), &n);

	if (r < 0)
		return r;
	CHECK(n == 1 && snapshot.id.step == 1 && snapshot.id.world == 2 &&
	      snapshot.id.run == s->ranks[0].run &&
	      snapshot.id.run_id == s->ranks[0].run_id &&
	      snapshot.images == 2 && snapshot.tensors == 1,
	      "%d snapshots", (int)n);
	CHECK(snapshot.bytes_memory && snapshot.bytes_disk &&
	      snapshot.created_ns && snapshot.digest && !snapshot.text[0] &&
	      snapshot.uid == geteuid() && snapshot.bad_memory == -1 &&
	      snapshot.bad_disk == -1, "it is another one");
	CHECK(snapshot.flags == (SK_SNAP_COMPLETE | SK_SNAP_DURABLE |
				 SK_SNAP_MEMORY | SK_SNAP_DISK |
				 SK_SNAP_NEWEST | SK_SNAP_RESIDENT),
	      "flags %#x", snapshot.flags);
	return 0;
}

static int list_of_all(struct scene *s)
{
	struct sk_wire_snapshot snapshot = { 0 };
	uint64_t n;
	int r;

	s->msg = (struct sk_msg){ .type = SK_MSG_LIST, .body.list = {
		.id = { .step = -1, .rank = -1 },
		.what = SK_LIST_SNAPSHOTS } };
	r = ask_records(s, s->sock, &snapshot, sizeof(snapshot), &n);
	CHECK(r < 0 || (n && !strcmp(snapshot.id.job, EACH_JOB)),
	      "%d snapshots", (int)n);
	return r;
}

static int list_of_images(struct scene *s, uint32_t flags)
{
	struct sk_wire_image images[4] = { 0 };
	uint64_t n;
	int r = list(s, SK_LIST_IMAGES, flags, images, sizeof(images), &n);

	for (int i = 0; i < 4 && r == 0; i++) {
		const struct sk_wire_image *image = &images[i];
		const struct rank *rank = &s->ranks[i / 2];

		CHECK(image->id.rank == i / 2 && image->id.world == 2 &&
		      image->id.step == 1 && image->id.run == rank->run &&
		      image->image && !image->kind &&
		      image->bytes == rank->layouts[0]->image_bytes &&
		      image->place == (i % 2 ? SK_PLACE_DISK :
					       SK_PLACE_MEMORY) &&
		      image->state == SK_IMAGE_DURABLE,
		      "image %d: rank %d, place %u, state %u", i,
		      image->id.rank, image->place, image->state);
	}
	CHECK(r < 0 || n == 4, "%d images", (int)n);
	return r;
}

static int list_of_images_looked_for(struct scene *s)
{
	return list_of_images(s, 0);
}

static int list_of_images_known(struct scene *s)
{
	return list_of_images(s, SK_LIST_KNOWN);
}

static int list_of_parts(struct scene *s)
{
	struct sk_wire_part parts[4] = { 0 };
	uint64_t n;
	int r = list(s, SK_LIST_PARTS, 0, parts, sizeof(parts), &n);

	for (int i = 0; i < 4 && r == 0; i++) {
		const struct sk_layout *l = s->ranks[i / 2].layouts[0];

		CHECK(parts[i].rank == i / 2 && parts[i].image &&
		      parts[i].bytes == l->image_bytes &&
		      parts[i].description == l->description &&
		      memcmp(&parts[i].digest, &l->digest,
			     sizeof(l->digest)) == 0, "part %d", i);
	}
	CHECK(r < 0 || n == 4, "%d parts", (int)n);
	return r;
}

static int open_image(struct scene *s, const struct sk_wire_image *image,
		      uint32_t flags)
{
	int fds[SK_MSG_FDS], n = 0, r;
	uint32_t word = 0;

	s->msg = (struct sk_msg){ .type = SK_MSG_OPEN, .body.open = {
		.image = image->image, .place = image->place,
		.flags = flags } };
	r = ask_on(s, s->sock, NULL, 0, fds, &n);
	if (r < 0)
		return r;
	CHECK(n == 2, "%d descriptors", n);
	CHECK(pread(fds[0], &word, sizeof(word), (off_t)
		    s->ranks[0].layouts[0]->entries[0].offset) ==
	      sizeof(word) && word == rank_word(image->id.rank, 1),
	      "it is another image");
	close(fds[0]);
	close(fds[1]);
	s->msg = (struct sk_msg){ .type = SK_MSG_CLOSE, .body.open = {
		.image = image->image, .place = image->place } };
	return ask(s, s->sock);
}

static int open_at(struct scene *s, enum sk_place place, uint32_t flags)
{
	struct sk_wire_image images[4] = { 0 };
	int r, i = 0;
	uint64_t n;

	r = list(s, SK_LIST_IMAGES, SK_LIST_KNOWN, images, sizeof(images), &n);
	if (r < 0)
		return r;
	while (i < 3 && images[i].place != place)
		i++;
	return open_image(s, &images[i], flags);
}

static int open_memory(struct scene *s)
{
	return open_at(s, SK_PLACE_MEMORY, 0);
}

static int open_disk(struct scene *s)
{
	return open_at(s, SK_PLACE_DISK, 0);
}

static int open_sums(struct scene *s)
{
	return open_at(s, SK_PLACE_DISK, SK_OPEN_SUMS);
}

/* A job whose memory has gone. */
static void store_one(struct scene *s)
{
	struct rank r;

	CHECK_STATUS(rank_open(&r, &s->w.rig, &(struct rank_options){
		.job = STORED, .world = 1 }), 0, &r.msg);
	rank_snapshot(&r, 1);
	CHECK_STATUS(await_step(s, STORED, 1, 3, 1), 0, &s->msg);
	CHECK_STATUS(manage(r.sock, SK_MSG_EVICT, STORED, 1, SK_EVICT_MEMORY |
			    SK_EVICT_FORCE, &s->msg), 0, &s->msg);
	CHECK_STATUS(rank_unregister(&r), 0, &r.msg);
	rank_close(&r);
	s->stored = true;
}

/* The first has its checksums from the file, and the next from the first,
 * unless that is long ago. */
static int open_stored(struct scene *s, uint32_t flags)
{
	struct sk_wire_image image = { 0 };
	uint64_t n;
	int r;

	if (!s->stored)
		store_one(s);
	s->msg = (struct sk_msg){ .type = SK_MSG_LIST, .body.list = {
		.id = { .job = STORED, .step = 1, .rank = -1 },
		.what = SK_LIST_IMAGES, .flags = SK_LIST_KNOWN } };
	r = ask_records(s, s->sock, &image, sizeof(image), &n);
	if (r < 0)
		return r;
	CHECK(n == 1 && image.place == SK_PLACE_DISK, "%d images, place %u",
	      (int)n, image.place);
	return open_image(s, &image, flags);
}

static int open_stored_whole(struct scene *s)
{
	return open_stored(s, 0);
}

static int open_stored_sums(struct scene *s)
{
	return open_stored(s, SK_OPEN_SUMS);
}

static int open_stored_anew(struct scene *s)
{
	int r = open_stored(s, 0);

	s->why = s->msg;
	s->hits = hits_of(s);
	mend(s);
	sk_fault_os_advance(s->w.fault, LONG_NS);
	s->msg = s->why;
	return r;
}

/* What tells some apart is named, and whose they are. */
static void check_stats(const struct sk_wire_stat *stats, uint64_t n)
{
	unsigned apart = 0, of_jobs = 0, told = 0;

	for (uint64_t i = 0; i < n; i++) {
		const struct sk_wire_stat *stat = &stats[i];

		CHECK(!strncmp(stat->name, "shardkeep_", 10) && stat->help[0],
		      "\"%s\" is no figure", stat->name);
		CHECK(stat->key[0] || !stat->word[0],
		      "%s: of no key", stat->name);
		apart += stat->key[0] && stat->word[0];
		of_jobs += !strcmp(stat->job, EACH_JOB) &&
			   stat->uid == geteuid();
		told += stat->value != 0;
	}
	CHECK(apart && of_jobs && told, "%u apart, %u of the job, %u at all",
	      apart, of_jobs, told);
}

static int tell_stats(struct scene *s)
{
	static struct sk_wire_stat stats[1000];
	uint64_t n;
	int r;

	s->msg = (struct sk_msg){ .type = SK_MSG_STATS };
	r = ask_records(s, s->sock, stats, sizeof(stats), &n);
	CHECK(r < 0 || (n > 50 && n <= SK_ARRAY_SIZE(stats)), "%d figures",
	      (int)n);
	if (r == 0)
		check_stats(stats, n);
	return r;
}

static int tell_status(struct scene *s)
{
	const struct sk_wire_status_reply *reply = &s->msg.body.status_reply;
	struct sk_wire_state state;
	uint64_t n;
	int r;

	s->msg = (struct sk_msg){ .type = SK_MSG_STATUS };
	r = ask_records(s, s->sock, &state, sizeof(state), &n);
	CHECK(r < 0 || (!reply->stopping && reply->uptime_ns &&
			reply->io[0] && !reply->metrics[0]),
	      "it tells something else of itself");
	return r;
}

static const struct asked all[] = {
	/* What memory has complete is listed whatever the store says. */
	{ "list of snapshots", list_of_snapshots, 8 },
	{ "list of all", list_of_all, 10 },
	{ "list of images", list_of_images_looked_for, 8 },
	{ "list of known images", list_of_images_known, 0 },
	{ "list of parts", list_of_parts, 8 },
	{ "open, in memory", open_memory, 0 },
	{ "open, on disk", open_disk, 0 },
	{ "open, by checksums", open_sums, 0 },
	{ "open, on disk alone", open_stored_whole, 0 },
	{ "open, on disk alone, by checksums", open_stored_sums, 0 },
	{ "open, on disk alone, anew", open_stored_anew, ANY },
	{ "stats", tell_stats, 0 },
	{ "status", tell_status, 0 },
};

const struct asked_set asked_for = { all, SK_ARRAY_SIZE(all) };
