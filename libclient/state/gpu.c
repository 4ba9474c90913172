/* SPDX-License-Identifier: Apache-2.0 */
#include "state/gpu.h"

#include <assert.h>
#include <sys/stat.h>

#include "base/util.h"
#include "state/state.h"

/* ---- devices ---- */

static int make(struct sk_state *state, struct sk_gpu *gpu, int ordinal,
		struct sk_err *err)
{
	int r = sk_cuda_device(state->sk->cuda, ordinal, &gpu->device, err);

	if (r >= 0)
		r = sk_cuda_lane_new(gpu->device, &gpu->lane, err);
	if (r >= 0)
		r = sk_cuda_mark_new(gpu->device, &gpu->copied, err);
	if (r < 0) {
		gpu->lane = sk_cuda_lane_free(gpu->lane);
		return r;
	}
	gpu->ordinal = ordinal;
	return 0;
}

int sk_gpu_use(struct sk_state *state, int ordinal, struct sk_err *err)
{
	struct sk_gpus *g = &state->gpus;
	int r = 0;

	for (int i = 0; i < g->n; i++)
		if (g->v[i].ordinal == ordinal)
			return i;
	if (g->n == SK_GPUS_MAX)
		return sk_err_set(err, -E2BIG, "rank %d has tensors on more "
				  "than %d CUDA devices", state->job.rank,
				  SK_GPUS_MAX);
	if (!g->pool)
		r = sk_pool_new(1, -1, "shardkeep-gpu", &g->pool, err);
	if (r >= 0)
		r = make(state, &g->v[g->n], ordinal, err);
	return r < 0 ? r : __atomic_fetch_add(&g->n, 1, __ATOMIC_RELEASE);
}

int sk_gpus_numa_node(const struct sk_state *state)
{
	const struct sk_gpus *g = &state->gpus;
	int node = -1;

	for (int i = 0; i < g->n && node < 0; i++)
		node = sk_cuda_numa_node(state->sk->os, g->v[i].device);
	return node;
}

void sk_gpus_init(struct sk_state *state)
{
	(void)pthread_mutex_init(&state->gpus.locking, NULL);
}

void sk_gpus_free(struct sk_state *state)
{
	struct sk_gpus *g = &state->gpus;

	g->pool = sk_pool_free(g->pool);
	for (int i = 0; i < g->n; i++) {
		(void)sk_cuda_mark_free(g->v[i].copied);
		(void)sk_cuda_lane_free(g->v[i].lane);
	}
	g->n = 0;
	free(g->known.v);
	g->known = (struct sk_gpu_known){ 0 };
	(void)pthread_mutex_destroy(&g->locking);
}

/* ---- streams ---- */

int sk_gpus_follow(const struct sk_state *state, uint32_t used,
		   uint64_t stream, struct sk_err *err)
{
	int r = 0;

	for (int i = 0; i < SK_GPUS_MAX && r >= 0; i++)
		if (used >> i & 1)
			r = sk_cuda_lane_follow(state->gpus.v[i].lane, stream,
						err);
	return r;
}

void sk_gpus_warm(const struct sk_state *state)
{
	int n = __atomic_load_n(&state->gpus.n, __ATOMIC_ACQUIRE);

	for (int i = 0; i < n; i++)
		sk_cuda_warm(state->gpus.v[i].lane);
}

/* ---- slots ---- */

/* One image that is locked is better than none. */
static void lock_slot(struct sk_state *state, struct sk_slot_map *map)
{
	const struct sk_os *os = state->sk->os;
	bool all = true;

	map->lock_tried = true;
	for (int k = 0; k < 2; k++) {
		if (!map->map[k] || map->lock[k])
			continue;
		if (sk_cuda_lock(state->gpus.v[0].device, map->map[k],
				 state->layouts[k]->image_bytes,
				 SK_CUDA_PIECE, &map->lock[k], NULL) >= 0)
			__atomic_fetch_add(&state->gpus.locked_bytes,
					   state->layouts[k]->image_bytes,
					   __ATOMIC_RELAXED);
		else
			all = false;
	}
	__atomic_store_n(&map->lock_refused, !all, __ATOMIC_RELAXED);
	if (all)
		sk_again_never(&map->lock_again);
	else
		sk_again_refused(&map->lock_again, os->now_ns(os));
}

void sk_gpus_lock_again(struct sk_state *state, uint32_t slot)
{
	struct sk_slot_map *map = &state->slots[slot];
	const struct sk_os *os = state->sk->os;
	struct sk_gpus *g = &state->gpus;

	assert(slot < state->n_slots);
	if (!__atomic_load_n(&g->n, __ATOMIC_ACQUIRE))
		return;
	(void)pthread_mutex_lock(&g->locking);
	if (map->lock_tried &&
	    sk_again_is_due(&map->lock_again, os->now_ns(os)))
		lock_slot(state, map);
	(void)pthread_mutex_unlock(&g->locking);
}

bool sk_gpus_will_lock(struct sk_state *state, uint32_t slot)
{
	struct sk_gpus *g = &state->gpus;
	bool tried;

	assert(slot < state->n_slots);
	(void)pthread_mutex_lock(&g->locking);
	tried = state->slots[slot].lock_tried;
	(void)pthread_mutex_unlock(&g->locking);
	return !tried && __atomic_load_n(&g->n, __ATOMIC_ACQUIRE);
}

bool sk_gpus_are_refused_locks(const struct sk_state *state)
{
	bool refused = false;

	for (uint32_t i = 0; i < state->n_slots; i++)
		refused |= __atomic_load_n(&state->slots[i].lock_refused,
					   __ATOMIC_RELAXED);
	return refused;
}

void sk_gpus_lock_slot(struct sk_state *state, uint32_t slot)
{
	struct sk_gpus *g = &state->gpus;

	assert(slot < state->n_slots);
	if (!__atomic_load_n(&g->n, __ATOMIC_ACQUIRE))
		return;
	(void)pthread_mutex_lock(&g->locking);
	if (!state->slots[slot].lock_tried)
		lock_slot(state, &state->slots[slot]);
	(void)pthread_mutex_unlock(&g->locking);
}

static bool is_of(const struct sk_slot_map *map, int kind,
		  const struct stat *st)
{
	const struct sk_slot_file *file = &map->file[kind];

	return map->lock[kind] && file->number &&
	       file->number == st->st_ino && file->device == st->st_dev;
}

const struct sk_cuda_lock *sk_gpus_find_locked(struct sk_state *state, int fd,
					       int kind, uint64_t bytes,
					       void **ret_map)
{
	const struct sk_layout *layout = state->layouts[kind];
	const struct sk_os *os = state->sk->os;
	struct sk_slot_map *found = NULL;
	struct stat st;

	if (!layout || layout->image_bytes != bytes ||
	    os->fstat(os, fd, &st) < 0 ||
	    pthread_mutex_trylock(&state->gpus.locking))
		return NULL;
	for (uint32_t i = 0; i < state->n_slots && !found; i++)
		if (is_of(&state->slots[i], kind, &st))
			found = &state->slots[i];
	(void)pthread_mutex_unlock(&state->gpus.locking);
	if (!found)
		return NULL;
	*ret_map = found->map[kind];
	return found->lock[kind];
}

void sk_gpus_unlock_slot(struct sk_state *state, uint32_t slot)
{
	struct sk_slot_map *map = &state->slots[slot];

	for (int k = 0; k < 2; k++) {
		if (map->lock[k])
			__atomic_fetch_sub(&state->gpus.locked_bytes,
					   state->layouts[k]->image_bytes,
					   __ATOMIC_RELAXED);
		map->lock[k] = sk_cuda_unlock(map->lock[k]);
	}
	map->lock_tried = false;
	__atomic_store_n(&map->lock_refused, false, __ATOMIC_RELAXED);
	map->lock_again = (struct sk_again){ 0 };
}
