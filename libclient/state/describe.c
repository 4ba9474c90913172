/* SPDX-License-Identifier: Apache-2.0 */
/* Describing tensors and blobs; forgetting them again. */
#include <assert.h>
#include <string.h>

#include "base/array.h"
#include "base/util.h"
#include "conn/check.h"
#include "conn/say.h"
#include "state/describe.h"
#include "state/names.h"
#include "state/state.h"

/* Bits of more are not counted. */
#define BLOB_MOST ((size_t)1 << 60)

/* Whoever changes a description waits for its copy, and excludes the fences
 * that look for a name meanwhile. */
static int begin(struct sk_state *state, struct sk_err *err)
{
	int r = sk_state_check(state, err);

	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&state->lock);
	/* What became of that snapshot is told by the next one. */
	(void)sk_fence_wait(&state->fences, SK_FENCE_ALL, SK_FOREVER, NULL);
	sk_fences_lock(&state->fences);
	return 0;
}

static void end(struct sk_state *state)
{
	sk_fences_unlock(&state->fences);
	(void)pthread_mutex_unlock(&state->lock);
}

/* Room for @n more, before anything is changed: all or none. */
static int reserve(struct sk_state *state, size_t n, struct sk_err *err)
{
	size_t room = state->n_locals + n;

	assert(state->n_locals <= state->room_locals);
	if (room > INT32_MAX)
		return sk_err_set(err, -E2BIG, "a state of %zu tensors", room);
	if (sk_array_fit(state->locals, state->room_locals, room) < 0)
		return sk_err_set(err, -ENOMEM, "no memory for %zu "
				  "descriptions", room);
	if (sk_names_reserve(state, (uint32_t)n) < 0)
		return sk_err_set(err, -ENOMEM, "no memory for %zu names",
				  room);
	return 0;
}

static const char *kind_word(enum sk_item_kind kind)
{
	return kind == SK_ITEM_TENSOR ? "tensor" :
	       kind == SK_ITEM_BLOB ? "blob" : "blob of this rank";
}

/* What stands under a name is not dropped for something else. */
static int check_kind(const struct sk_state *state, const struct sk_local *l,
		      struct sk_err *err)
{
	const char *name = l->item.spec.name;
	int64_t at = sk_state_find_as(state, l);

	assert(name);
	if (at < 0 || state->locals[at].item.kind == l->item.kind)
		return 0;
	return sk_err_set(err, -EEXIST, "\"%s\" is described as a %s; remove "
			  "it before it is described as a %s", name,
			  kind_word(state->locals[at].item.kind),
			  kind_word(l->item.kind));
}

/* Takes what @l owns. */
static void keep(struct sk_state *state, struct sk_local *l)
{
	int64_t at = sk_state_find_as(state, l);

	state->moved = true;
	sk_gpus_forget_known(state);
	if (at >= 0) {
		state->changed |= !sk_local_same_boxes(&state->locals[at], l);
		sk_local_clear(&state->locals[at]);
		state->locals[at] = *l;
	} else {
		assert(state->n_locals < state->room_locals);
		state->locals[state->n_locals] = *l;
		sk_names_put(state, state->n_locals++);
		state->changed = true;
	}
	*l = (struct sk_local){ 0 };
}

/* The first ones: their array becomes the state's, and each one moves to its
 * place in it, which is not behind its own. */
static void keep_first(struct sk_state *state, struct sk_describing *d)
{
	struct sk_local *made = sk_take_ptr(d->made);

	assert(!state->n_locals && d->n <= d->room);
	free(state->locals);
	state->locals = made;
	state->room_locals = (uint32_t)d->room;
	for (size_t i = 0; i < d->n; i++) {
		struct sk_local l = made[i];

		made[i] = (struct sk_local){ 0 };
		keep(state, &l);
	}
}

static int keep_all(struct sk_state *state, struct sk_describing *d,
		    struct sk_err *err)
{
	int r = begin(state, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < d->n && r >= 0; i++)
		r = check_kind(state, &d->made[i], err);
	if (r >= 0)
		r = reserve(state, d->n, err);
	if (r >= 0 && !state->n_locals)
		keep_first(state, d);
	for (size_t i = 0; d->made && i < d->n && r >= 0; i++)
		keep(state, &d->made[i]);
	end(state);
	return r;
}

/* Devices of those that lie on one; the first may take a second. */
static int find_devices(struct sk_state *state, struct sk_local *made,
			size_t n, struct sk_err *err)
{
	int r = 0;

	for (size_t i = 0; i < n && r >= 0; i++) {
		if (made[i].memory != SK_CUDA)
			continue;
		(void)pthread_mutex_lock(&state->lock);
		r = sk_gpu_describe(state, &made[i], err);
		(void)pthread_mutex_unlock(&state->lock);
	}
	return r;
}

int sk_describe_begin(struct sk_state *state, size_t n,
		      struct sk_describing *ret, struct sk_err *err)
{
	int r = sk_state_check(state, err);

	*ret = (struct sk_describing){ .state = state };
	if (r < 0)
		return r;
	if (n >= INT32_MAX)
		return sk_err_set(err, -E2BIG, "%zu tensors are more than a "
				  "state can have", n);
	/* The array becomes the state's: a few more come without moving it,
	 * and what is not used is never touched. */
	ret->room = n + n / 64 + 1;
	ret->made = calloc(ret->room, sizeof(*ret->made));
	return ret->made ? 0 : sk_err_set(err, -ENOMEM, "out of memory");
}

int sk_describe_more(struct sk_describing *d, const struct sk_tensor *tensors,
		     size_t n, enum sk_item_kind kind, struct sk_err *err)
{
	int r = 0;

	assert(d->made && d->n + n < d->room);
	for (size_t i = 0; i < n && r >= 0; i++)
		r = sk_local_make(&tensors[i], kind, &d->state->job,
				  &d->made[d->n++], err);
	return r;
}

int sk_describe_end(struct sk_describing *d, struct sk_err *err)
{
	int r = find_devices(d->state, d->made, d->n, err);

	return r < 0 ? r : keep_all(d->state, d, err);
}

void sk_describe_free(struct sk_describing *d)
{
	for (size_t i = 0; d->made && i < d->n; i++)
		sk_local_clear(&d->made[i]);
	free(d->made);
	*d = (struct sk_describing){ 0 };
}

static int describe(struct sk_state *state, const struct sk_tensor *tensors,
		    size_t n, enum sk_item_kind kind)
{
	struct sk_describing d = { 0 };
	struct sk_err err = { "" };
	int r = sk_state_check(state, &err);

	if (r >= 0 && n && !tensors)
		r = sk_err_set(&err, -EINVAL, "%zu tensors, and no list of "
			       "them", n);
	if (r >= 0)
		r = sk_describe_begin(state, n, &d, &err);
	if (r >= 0)
		r = sk_describe_more(&d, tensors, n, kind, &err);
	if (r >= 0)
		r = sk_describe_end(&d, &err);
	sk_describe_free(&d);
	return sk_say(r, &err);
}

SK_API int sk_state_tensors(struct sk_state *state,
			    const struct sk_tensor *tensors, size_t n)
{
	return describe(state, tensors, n, SK_ITEM_TENSOR);
}

SK_API int sk_state_tensor(struct sk_state *state,
			   const struct sk_tensor *tensor)
{
	return describe(state, tensor, 1, SK_ITEM_TENSOR);
}

static int blob(struct sk_state *state, const char *name, void *data,
		size_t size, enum sk_item_kind kind)
{
	const struct sk_tensor t = {
		.name = name, .dtype = SK_U8, .ndim = 1,
		.shape = { (int64_t)size }, .data = data,
	};
	struct sk_err err = { "" };
	int r = sk_state_check(state, &err);

	if (r >= 0)
		r = sk_local_check_name(&state->job, name, "blob", &err);
	if (r < 0)
		return sk_say(r, &err);
	if (size > BLOB_MOST)
		return sk_say(sk_err_set(&err, -EOVERFLOW, "blob \"%s\" has %zu "
					 "bytes, more than can be counted",
					 name, size), &err);
	return describe(state, &t, 1, kind);
}

SK_API int sk_state_blob(struct sk_state *state, const char *name, void *data,
			 size_t size)
{
	return blob(state, name, data, size, SK_ITEM_BLOB);
}

SK_API int sk_state_blob_local(struct sk_state *state, const char *name,
			       void *data, size_t size)
{
	return blob(state, name, data, size, SK_ITEM_BLOB_LOCAL);
}

/* The last one takes its place: moving all that come after it would make
 * dropping many quadratic. */
static void drop_local(struct sk_state *state, uint32_t at)
{
	uint32_t last = state->n_locals - 1;

	assert(at < state->n_locals);
	sk_names_take(state, at);
	sk_local_clear(&state->locals[at]);
	if (at != last) {
		sk_names_take(state, last);
		state->locals[at] = state->locals[last];
		sk_names_put(state, at);
	}
	state->n_locals = last;
	state->changed = state->moved = true;
	sk_gpus_forget_known(state);
}

SK_API int sk_state_remove(struct sk_state *state, const char *name)
{
	struct sk_err err = { "" };
	int64_t at;
	int r = sk_state_check(state, &err);

	if (r >= 0)
		r = sk_check_name(name, &err);
	if (r >= 0)
		r = begin(state, &err);
	if (r < 0)
		return sk_say(r, &err);
	at = sk_state_find(state, name);
	if (at >= 0)
		drop_local(state, (uint32_t)at);
	else
		r = sk_err_set(&err, -ENOENT, "nothing named \"%s\" is "
			       "described", name);
	end(state);
	return sk_say(r, &err);
}

SK_API int sk_state_clear(struct sk_state *state)
{
	struct sk_err err = { "" };
	int r = begin(state, &err);

	if (r < 0)
		return sk_say(r, &err);
	while (state->n_locals)
		sk_local_clear(&state->locals[--state->n_locals]);
	sk_names_clear(state);
	state->changed = state->moved = true;
	sk_gpus_forget_known(state);
	end(state);
	return 0;
}
