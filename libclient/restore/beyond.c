/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/beyond.h"

#include <inttypes.h>
#include <string.h>

#include "conn/list.h"
#include "restore/images.h"
#include "restore/keys.h"
#include "restore/open.h"
#include "state/layout.h"
#include "state/names.h"
#include "state/register.h"

static const struct sk_wire_snapshot *
find(const struct sk_restoring *rs, const struct sk_wire_snapshot *all,
     size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (all[i].id.run == rs->run && all[i].id.step == rs->step)
			return &all[i];
	return NULL;
}

static int list(struct sk_restoring *rs, struct sk_restore_offer *ret,
		uint32_t *ret_images)
{
	_cleanup_free_ struct sk_wire_snapshot *all = NULL;
	struct sk_wire_id id = { .run = rs->run, .step = rs->step,
				 .rank = -1 };
	const struct sk_wire_snapshot *found;
	size_t n = 0;
	int r;

	strcpy(id.job, rs->state->job.name);
	r = sk_list_snapshots(&rs->conn, &id, 0, sk_until(rs->sk), &all,
			      &n, &rs->gaps, &rs->err);
	if (r < 0)
		return r;
	found = find(rs, all, n);
	if (!found)
		r = sk_list_gaps_error(&rs->gaps, "such a snapshot",
				       &rs->err);
	if (!found && r >= 0)
		r = sk_err_set(&rs->err, -ENOENT, "job \"%s\" has no "
			       "snapshot of step %" PRId64 " of run %"
			       PRIu64, id.job, rs->step, rs->run);
	if (r < 0)
		return r;
	*ret = (struct sk_restore_offer){ .run = found->id.run,
					  .run_id = found->id.run_id,
					  .step = found->id.step,
					  .world = found->id.world };
	*ret_images = found->images;
	return 0;
}

/* Whether of @n ranks' images, as listed a moment ago, some have gone since:
 * what they alone describe would not be told. */
static int check_there(struct sk_restoring *rs, uint32_t n)
{
	int32_t last = -1;
	uint32_t there = 0;

	for (uint32_t i = 0; i < rs->n_images; i++) {
		const struct sk_restore_image *image = &rs->images[i];

		if (image->kind != SK_IMAGE_PRIMARY || image->rank == last)
			continue;
		last = image->rank;
		there++;
	}
	if (there >= n)
		return 0;
	return sk_err_set(&rs->err, -ENOENT, "of step %" PRId64 " of run %"
			  PRIu64 " images went while they were looked at",
			  rs->report.step, rs->report.run);
}

/* Mostly in the order in which it was saved. */
static bool is_described(const struct sk_state *state, uint32_t i,
			 const char *name)
{
	if (i < state->n_locals &&
	    !strcmp(state->locals[i].item.spec.name, name))
		return true;
	return sk_state_find(state, name) >= 0;
}

static int tell(struct sk_restoring *rs, const struct sk_beyond *to)
{
	int r = 0;

	if (rs->unlearnt)
		return sk_err_set(&rs->err, -EBADMSG, "what rank %" PRId32
				  " saved at step %" PRId64 " of run %" PRIu64
				  " cannot be told: no image that describes it "
				  "can be read", rs->unlearnt->rank,
				  rs->report.step, rs->report.run);
	for (uint32_t i = 0; i < rs->n_keys && r >= 0; i++) {
		const struct sk_item *item = rs->keys[i].item;

		if (!is_described(rs->state, i, item->spec.name))
			r = to->name(to->ctx, item, rs->keys[i].mine);
	}
	return r;
}

/* Known by its digest, it is not read where images are indexed. */
static int expect(struct sk_restoring *rs, struct sk_layout **ret)
{
	int r = sk_state_layout(rs->state, ret, &rs->err);

	if (r >= 0)
		sk_recall_add(rs->sk->recall, *ret);
	return r;
}

/* Descriptions are equal whatever sizes local blobs have. */
static bool locals_fit(const struct sk_restoring *rs)
{
	for (uint32_t i = 0; i < rs->n_keys; i++) {
		const struct sk_item *theirs = rs->keys[i].item;
		int64_t at;

		if (theirs->kind != SK_ITEM_BLOB_LOCAL || !rs->keys[i].mine)
			continue;
		at = sk_state_find(rs->state, theirs->spec.name);
		if (at < 0 || rs->state->locals[at].item.spec.shape[0] !=
				      theirs->spec.shape[0])
			return false;
	}
	return true;
}

/* Whether @mine is this rank's in the snapshot, and all others' follow. */
static bool is_same(const struct sk_restoring *rs,
		    const struct sk_layout *mine)
{
	bool there = false;

	for (uint32_t i = 0; i < rs->n_images; i++) {
		if (rs->images[i].description != mine->description)
			return false;
		there |= rs->images[i].rank == mine->rank;
	}
	return there && rs->world == mine->world && locals_fit(rs);
}

static int look(struct sk_restoring *rs, const struct sk_beyond *to)
{
	_cleanup_layout_ struct sk_layout *mine = NULL;
	struct sk_restore_offer offer;
	uint32_t images = 0;
	int r = to->same ? expect(rs, &mine) : 0;

	if (r >= 0)
		r = list(rs, &offer, &images);
	if (r < 0)
		return r;
	rs->report.run = offer.run;
	rs->report.run_id = offer.run_id;
	rs->report.step = offer.step;
	r = sk_restore_images(rs, &offer);
	if (r >= 0)
		r = check_there(rs, images);
	if (r >= 0)
		r = sk_restore_index(rs);
	if (r >= 0)
		r = tell(rs, to);
	if (r >= 0 && mine)
		*to->same = is_same(rs, mine);
	return r == -ENODATA ? -ENOENT : r;
}

static void release(struct sk_restoring *rs)
{
	sk_restore_release_images(rs);
	sk_restore_forget_keys(rs);
	sk_restore_unlearn(rs);
	sk_conn_close(&rs->conn);
}

static int look_at(struct sk_restoring *rs, const struct sk_beyond *to)
{
	int r;

	for (int k = 0; k < 2; k++)
		sk_recall_add(rs->sk->recall, rs->state->layouts[k]);
	r = sk_conn_open_more(rs->sk->os, &rs->sk->conn, rs->sk->socket_path,
			      sk_until(rs->sk), &rs->conn, &rs->err);
	return r < 0 ? r : look(rs, to);
}

int sk_restore_beyond(struct sk_state *state, uint64_t run, int64_t step,
		      const struct sk_beyond *to, int32_t *ret_world,
		      struct sk_err *err)
{
	struct sk_restoring rs;
	int r, agents = 0;

	pthread_mutex_lock(&state->lock);
	do {	/* nothing is told before all is there */
		rs = (struct sk_restoring){ .state = state, .sk = state->sk,
					    .run = run, .step = step,
					    .conn = SK_CONN_NULL };
		r = look_at(&rs, to);
		if (r >= 0)
			*ret_world = rs.world;
		else
			*err = rs.err;
		release(&rs);
	} while (r == -ECONNRESET && ++agents < SK_AGENTS_MOST);
	pthread_mutex_unlock(&state->lock);
	return r;
}

int sk_restore_announce(struct sk_state *state, struct sk_announced *ret,
			struct sk_err *err)
{
	int r, agents = 0;

	pthread_mutex_lock(&state->lock);
	do
		r = sk_state_register(state, false, sk_until(state->sk), err);
	while (r == -ECONNRESET && ++agents < SK_AGENTS_MOST);
	if (r >= 0)
		*ret = (struct sk_announced){ state->instance, state->run,
					      state->run_id };
	pthread_mutex_unlock(&state->lock);
	return r;
}
