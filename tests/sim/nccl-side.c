/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl-side.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "items.h"

/* Nobody says when: it is asked. */
sk_nccl_result side_settled(struct side *s)
{
	const struct timespec t = { 0, 1000000 };
	sk_nccl_result r;

	for (;;) {
		IS(0, s->n.lib.ncclCommGetAsyncError(s->comm, &r));
		if (r != SK_NCCL_IN_PROGRESS)
			return r;
		(void)nanosleep(&t, NULL);
	}
}

void side_begun(sk_nccl_result r)
{
	CHECK(r == SK_NCCL_SUCCESS || r == SK_NCCL_IN_PROGRESS);
}

/* After the fork: an id may come with threads, which no child has. */
static void share_id(struct side *s, const int ends[2], sk_nccl_id *id)
{
	if (!s->rank) {
		IS(0, s->n.lib.ncclGetUniqueId(id));
		CHECK(write(ends[1], id, sizeof(*id)) == sizeof(*id));
	} else {
		CHECK(read(ends[0], id, sizeof(*id)) == sizeof(*id));
	}
}

void side_begin(struct side *s, bool one_gpu, const char *const *names)
{
	int ends[2], devices;
	char host[16];

	CHECK(!pipe(ends));
	s->child = fork();
	CHECK(s->child >= 0);
	s->rank = !s->child;
	(void)alarm(item_seconds(60));
	if (s->rank)
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (names)
		(void)setenv("CUDA_VISIBLE_DEVICES", names[s->rank], 1);
	devices = trainer_cuda_devices();
	if (!one_gpu && devices < 2) {
		(void)snprintf(host, sizeof(host), "host-%d", s->rank);
		(void)setenv("NCCL_HOSTID", host, 1);
	}
	CHECK(trainer_nccl_open(&s->n, NULL) == 0);
	trainer_cuda_begin(&s->t, one_gpu ? 0 : s->rank % devices);
	IS(0, s->t.cuStreamCreate(&s->stream, SK_CU_STREAM_NON_BLOCKING));
	IS(0, s->t.driver.cuEventCreate(&s->done,
					SK_CU_EVENT_DISABLE_TIMING));
	s->bytes = s->bytes ? s->bytes : SIDE_BYTES;
	s->a = trainer_cuda_alloc(&s->t, s->bytes);
	s->b = trainer_cuda_alloc(&s->t, s->bytes);
	s->host = malloc(s->bytes);
	CHECK(s->host);
	share_id(s, ends, &s->id);
	share_id(s, ends, &s->second);
}

void side_init(struct side *s)
{
	sk_nccl_config config = trainer_nccl_config();

	side_begun(s->n.lib.ncclCommInitRankConfig(&s->comm, 2, s->id, s->rank,
					      &config));
}

void side_begin_both(struct side *s)
{
	*s = (struct side){ .bytes = s->bytes };
	side_begin(s, false, NULL);
	side_init(s);
	IS(0, side_settled(s));
}

void side_end(struct side *s)
{
	int status;

	if (s->rank)
		_exit(0);
	CHECK(waitpid(s->child, &status, 0) == s->child && !status);
}

void side_end_comm(struct side *s)
{
	side_begun(s->n.lib.ncclCommFinalize(s->comm));
	IS(0, side_settled(s));
	IS(0, s->n.lib.ncclCommDestroy(s->comm));
}

sk_nccl_result side_put(struct side *s, sk_cu_ptr at, size_t n)
{
	return s->n.lib.ncclSend((void *)(uintptr_t)at, n, SK_NCCL_UINT8,
				 !s->rank, s->comm, s->stream);
}

sk_nccl_result side_get(struct side *s, sk_cu_ptr at, size_t n)
{
	return s->n.lib.ncclRecv((void *)(uintptr_t)at, n, SK_NCCL_UINT8,
				 !s->rank, s->comm, s->stream);
}

void side_launch(struct side *s)
{
	side_begun(s->n.lib.ncclGroupEnd());
	IS(0, side_settled(s));
	IS(0, s->t.driver.cuEventRecord(s->done, s->stream));
}

int side_look(bool *ret_simulated)
{
	bool *simulated = mmap(NULL, sizeof(*simulated),
			       PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid = fork();
	int status;

	if (!pid) {
		struct sk_err err = { "" };
		struct trainer_cuda t;
		struct trainer_nccl n;

		if (trainer_nccl_open(&n, &err) < 0 ||
		    trainer_cuda_open(&t, &err) < 0 || t.driver.cuInit(0)) {
			fprintf(stderr, "%s\n", err.text);
			_exit(77);
		}
		*simulated = n.calls != NULL;
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return 1;
	*ret_simulated = *simulated;
	return WEXITSTATUS(status);
}
