/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program as a stranger writes it, against what is installed alone: it
 * compiles as C11 and as C++11, finds or starts the user's agent, takes a
 * snapshot and comes back from it.
 */
#include <shardkeep.h>

#include <stdio.h>
#include <string.h>

#define N 4096

static int check(int r, const char *what)
{
	if (r < 0)
		fprintf(stderr, "%s: %d: %s\n", what, r, sk_error());
	return r < 0;
}

static int describe(struct sk *sk, float *data, struct sk_state **ret_state)
{
	const char *names[] = { "dp" };
	const int64_t shape[] = { 1 };
	struct sk_placement cut = SK_SHARD(0);
	struct sk_mesh *mesh = NULL;
	struct sk_tensor tensor;
	struct sk_job job;
	int bad;

	memset(&job, 0, sizeof(job));
	job.name = "installed";
	job.world = 1;
	if (check(sk_state_create(sk, &job, ret_state), "sk_state_create"))
		return 1;
	if (check(sk_mesh_create(1, shape, NULL, names, &mesh),
		  "sk_mesh_create"))
		return 1;
	memset(&tensor, 0, sizeof(tensor));
	tensor.name = "w";
	tensor.dtype = SK_F32;
	tensor.ndim = 1;
	tensor.shape[0] = N;
	tensor.mesh = mesh;
	tensor.placements[0] = cut;
	tensor.data = data;
	bad = check(sk_state_tensor(*ret_state, &tensor), "sk_state_tensor");
	sk_mesh_release(mesh);
	return bad;
}

static int round_trip(struct sk_state *state, float *data)
{
	struct sk_report report;

	for (int i = 0; i < N; i++)
		data[i] = (float)i;
	if (check(sk_snapshot(state, 7, NULL), "sk_snapshot") ||
	    check(sk_wait(state, 7, SK_COMPLETE, 30000), "sk_wait"))
		return 1;
	memset(data, 0, N * sizeof(*data));
	if (check(sk_restore(state, SK_LATEST, NULL, NULL, &report),
		  "sk_restore"))
		return 1;
	for (int i = 0; i < N; i++) {
		if (data[i] < (float)i || data[i] > (float)i) {
			fprintf(stderr, "element %d came back wrong\n", i);
			return 1;
		}
	}
	printf("%s %lld\n", sk_version(), (long long)report.step);
	return 0;
}

int main(void)
{
	static float data[N];
	struct sk_state *state = NULL;
	struct sk *sk = NULL;
	int bad;

	if (check(sk_open(NULL, &sk), "sk_open"))
		return 1;
	bad = describe(sk, data, &state) || round_trip(state, data);
	sk_state_free(state);
	sk_close(sk);
	return bad;
}
