/* SPDX-License-Identifier: Apache-2.0 */
/* A data race that is planted: where ThreadSanitizer is on, this program must
 * fail, or the other ones prove nothing. */
#include <pthread.h>

static int shared;

static void *write_it(void *arg)
{
	shared++;
	return arg;
}

int main(void)
{
	pthread_t threads[2];

	for (int i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, write_it, NULL))
			return 0;
	for (int i = 0; i < 2; i++)
		(void)pthread_join(threads[i], NULL);
	return 0;
}
