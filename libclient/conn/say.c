/* SPDX-License-Identifier: Apache-2.0 */
#include "conn/say.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* The sentence is freed with its thread. */
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Said where there is no memory for a sentence either. */
static const char no_memory[] = "out of memory";

static void drop(void *text)
{
	if (text != no_memory)
		free(text);
}

static void make_key(void)
{
	(void)pthread_key_create(&key, drop);
}

int sk_say_long(int r, char *text)
{
	(void)pthread_once(&once, make_key);
	/* Names in it may be those of what was stored. */
	if (text)
		sk_text_clean(text);
	drop(pthread_getspecific(key));
	(void)pthread_setspecific(key, text ? text : no_memory);
	return r;
}

int sk_say(int r, const struct sk_err *err)
{
	if (r < 0)
		sk_say_long(r, strdup(err->text[0] ? err->text :
				      strerrorname_np(-r)));
	return r;
}

SK_API const char *sk_error(void)
{
	const char *text;

	(void)pthread_once(&once, make_key);
	text = pthread_getspecific(key);
	return text ? text : "";
}

SK_API const char *sk_version(void)
{
	return SK_VERSION;
}
