/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/sums.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/link.h"
#include "base/table.h"

#define MOST_BYTES (UINT64_C(64) << 20)

struct kept {
	struct sk_link link;		/* longest unused first */
	struct sums_key key;
	struct sk_layout *whole;	/* a reference, or NULL */
	uint64_t bytes;
	uint32_t n;
	uint64_t values[];
};

struct sums {
	pthread_mutex_t lock;		/* guards all */
	struct sk_table table;		/* of struct kept, by file */
	struct sk_link order;
	uint64_t bytes;
};

struct sums *sums_new(void)
{
	struct sums *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	pthread_mutex_init(&s->lock, NULL);
	sk_link_init(&s->order);
	return s;
}

static uint64_t hash_file(const struct sk_file_id *file)
{
	return sk_hash_bytes(sk_hash_seed(), file, sizeof(*file));
}

static void drop(struct sums *s, struct kept *k)
{
	(void)sk_table_remove(&s->table, hash_file(&k->key.file),
			      (uintptr_t)k);
	sk_link_remove(&k->link);
	s->bytes -= k->bytes;
	sk_layout_free(k->whole);
	free(k);
}

/* Down to so much. */
static void trim(struct sums *s, uint64_t most)
{
	while (s->bytes > most)
		drop(s, sk_link_object(s->order.next, struct kept, link));
}

void sums_clear(struct sums *s)
{
	pthread_mutex_lock(&s->lock);
	trim(s, 0);
	pthread_mutex_unlock(&s->lock);
}

struct sums *sums_free(struct sums *s)
{
	if (!s)
		return NULL;
	trim(s, 0);
	sk_table_free(&s->table);
	pthread_mutex_destroy(&s->lock);
	free(s);
	return NULL;
}

static struct kept *find(const struct sums *s, const struct sk_file_id *file)
{
	struct sk_table_walk walk = sk_table_find(&s->table, hash_file(file));
	uintptr_t at;

	while (sk_table_next(&walk, &at)) {
		struct kept *k = (struct kept *)at;

		if (sk_file_id_equal(&k->key.file, file))
			return k;
	}
	return NULL;
}

static bool is_of(const struct kept *k, const struct sums_key *key, uint32_t n)
{
	return k->n == n && sk_digest_equal(&k->key.digest, &key->digest) &&
	       memcmp(k->key.content, key->content, sizeof(key->content)) == 0;
}

bool sums_find(struct sums *s, const struct sums_key *key, uint64_t *ret_sums,
	       uint32_t n, struct sk_layout **ret_whole)
{
	struct kept *k;
	bool found;

	pthread_mutex_lock(&s->lock);
	k = find(s, &key->file);
	found = k && is_of(k, key, n) && (!ret_whole || k->whole);
	if (found) {
		memcpy(ret_sums, k->values, n * sizeof(*ret_sums));
		if (ret_whole)
			*ret_whole = sk_layout_ref(k->whole);
		sk_link_remove(&k->link);
		sk_link_insert(&s->order, &k->link);
	}
	pthread_mutex_unlock(&s->lock);
	return found;
}

/* NULL: no memory. */
static struct kept *new_kept(const struct sums_key *key,
			     const uint64_t *values, uint32_t n,
			     struct sk_layout *whole)
{
	uint64_t bytes = sizeof(struct kept) + n * sizeof(*values);
	struct kept *k = malloc(bytes);

	if (!k)
		return NULL;
	*k = (struct kept){
		.key = *key, .n = n,
		.whole = whole ? sk_layout_ref(whole) : NULL,
		.bytes = bytes + (whole ? sk_layout_memory(whole) : 0),
	};
	memcpy(k->values, values, n * sizeof(*values));
	return k;
}

void sums_keep(struct sums *s, const struct sums_key *key,
	       const uint64_t *values, uint32_t n, struct sk_layout *whole)
{
	struct kept *k = new_kept(key, values, n, whole), *old;

	/* Without it, it is read again. */
	if (!k)
		return;
	pthread_mutex_lock(&s->lock);
	old = find(s, &key->file);
	if (old)
		drop(s, old);
	sk_link_insert(&s->order, &k->link);
	s->bytes += k->bytes;
	if (sk_table_add(&s->table, hash_file(&key->file), (uintptr_t)k) < 0)
		drop(s, k);
	trim(s, MOST_BYTES);
	pthread_mutex_unlock(&s->lock);
}
