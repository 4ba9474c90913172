/* SPDX-License-Identifier: Apache-2.0 */
/* The calling thread's sentence. Freed with the thread. */
#include <string.h>

#include "internal.h"

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_key(void)
{
	(void)pthread_key_create(&key, free);
}

int sk_say_long(int r, char *text)
{
	(void)pthread_once(&once, make_key);
	free(pthread_getspecific(key));
	(void)pthread_setspecific(key, text);
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
	return "0.1.0";
}
