/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a simulated world that is a process. */
#include <stdlib.h>

#include "world.h"

/* Memory for what the rank holds of a tensor: its boxes are known only when it
 * is described, so each gets what the model gives a rank, twice over where
 * half the ranks hold it all. */
static int give_memory(struct world_member *m, uint64_t bytes)
{
	bytes = (bytes / (uint64_t)m->tensors.n + 4096) / 64 * 64;
	m->memory = calloc((size_t)m->tensors.n, bytes);
	for (int i = 0; m->memory && i < m->tensors.n; i++)
		m->tensors.v[i].data = m->memory + (size_t)i * bytes;
	return m->memory ? 0 : -1;
}

int world_member_open(struct world *w, int rank, int32_t ranks,
		      struct world_member *m)
{
	struct sk_options o = { .socket = w->bench->socket, .threads = 1,
				.timeout_ms = WORLD_WAIT_MS };
	struct sk_job job = { .name = w->job, .rank = rank, .world = ranks,
			      .flush_every = SK_FLUSH_NEVER,
			      .keep_last = w->keep_last };
	uint64_t began;

	if (model_make(&w->model, ranks, &m->tensors) ||
	    give_memory(m, w->model.bytes * (uint64_t)(w->model.world /
						       ranks)))
		return world_fail(w, "no memory, or %s", sk_error());
	if (sk_open(&o, &m->sk) || sk_state_create(m->sk, &job, &m->state))
		return world_fail(w, "%s", sk_error());
	began = cpu_ns();
	if (sk_state_tensors(m->state, m->tensors.v, (size_t)m->tensors.n))
		return world_fail(w, "%s", sk_error());
	m->describe_ns = cpu_ns() - began;
	return 0;
}

void world_member_close(struct world_member *m)
{
	sk_state_free(m->state);
	sk_close(m->sk);
	model_free(&m->tensors);
	free(m->memory);
	*m = (struct world_member){ 0 };
}
