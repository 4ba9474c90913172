/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Embedding, two hidden layers, softmax. Sums run in a fixed order, eight
 * lanes at a time, so that a loss is the same number wherever it is computed.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer.h"

enum { EMBEDDING, W1, B1, W2, B2, W3, B3 };

#define AT_W1 (VOCABULARY * EMBED)
#define AT_B1 (AT_W1 + INPUT * HIDDEN)
#define AT_W2 (AT_B1 + HIDDEN)
#define AT_B2 (AT_W2 + HIDDEN * HIDDEN)
#define AT_W3 (AT_B2 + HIDDEN)
#define AT_B3 (AT_W3 + HIDDEN * VOCABULARY)

const struct tensor tensors[TENSORS] = {
	[EMBEDDING] = { "embedding", 2, { VOCABULARY, EMBED }, 0 },
	[W1] = { "layers.0.weight", 2, { INPUT, HIDDEN }, AT_W1 },
	[B1] = { "layers.0.bias", 1, { HIDDEN }, AT_B1 },
	[W2] = { "layers.1.weight", 2, { HIDDEN, HIDDEN }, AT_W2 },
	[B2] = { "layers.1.bias", 1, { HIDDEN }, AT_B2 },
	[W3] = { "head.weight", 2, { HIDDEN, VOCABULARY }, AT_W3 },
	[B3] = { "head.bias", 1, { VOCABULARY }, AT_B3 },
};

size_t parameter_count(void)
{
	return AT_B3 + VOCABULARY;
}

static uint64_t mix(uint64_t x)		/* splitmix64 */
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

int text_load(const char *path, struct text *ret)
{
	FILE *f = fopen(path, "re");
	uint8_t *v = NULL;
	size_t n = 0;
	int c;

	if (!f)
		return -1;
	v = malloc(1 << 20);
	while (v && n < 1 << 20 && (c = getc(f)) != EOF)
		v[n++] = (uint8_t)(c == '\n' ? 95 : c >= 32 && c < 127 ?
				   c - 32 : 0);
	fclose(f);
	if (!v || n < 2 * CONTEXT) {
		free(v);
		return -1;
	}
	*ret = (struct text){ v, n };
	return 0;
}

char text_char(uint8_t index)
{
	return index == 95 ? '\n' : (char)(index + 32);
}

void model_init(float *p)
{
	for (int t = 0; t < TENSORS; t++) {
		const struct tensor *w = &tensors[t];
		int64_t n = w->shape[0] * (w->ndim > 1 ? w->shape[1] : 1);
		float scale = w->ndim < 2 ? 0 : t == EMBEDDING ? 0.5f :
			      1.0f / sqrtf((float)w->shape[0]);

		for (int64_t i = 0; i < n; i++) {
			uint64_t r = mix((uint64_t)t << 32 | (uint64_t)i);

			p[w->at + (size_t)i] = scale *
				((float)(r >> 40) / 8388608.0f - 1.0f);
		}
	}
}

/* y += x * w, row by row of w[n][m]. */
static void forward(const float *x, const float *w, int n, int m, float *y)
{
	for (int i = 0; i < n; i++)
		for (int j = 0; j < m; j++)
			y[j] += x[i] * w[i * m + j];
}

static float dot(const float *a, const float *b, int n)
{
	float lane[8] = { 0 }, sum = 0;

	for (int j = 0; j < n; j += 8)
		for (int k = 0; k < 8; k++)
			lane[k] += a[j + k] * b[j + k];
	for (int k = 0; k < 8; k++)
		sum += lane[k];
	return sum;
}

/* Gradients of y = x * w: of w added to dw, of x set to dx. */
static void backward(const float *x, const float *w, const float *dy, int n,
		     int m, float *dw, float *dx)
{
	for (int i = 0; i < n; i++) {
		for (int j = 0; j < m; j++)
			dw[i * m + j] += x[i] * dy[j];
		dx[i] = dot(w + i * m, dy, m);
	}
}

struct activations {
	float x[INPUT], h1[HIDDEN], h2[HIDDEN], p[VOCABULARY];
};

static void tanh_all(float *v, int n)
{
	for (int i = 0; i < n; i++)
		v[i] = tanhf(v[i]);
}

static void run(const float *w, const uint8_t *context, struct activations *a)
{
	float most = -INFINITY, sum = 0;

	for (int i = 0; i < CONTEXT; i++)
		memcpy(a->x + i * EMBED, w + context[i] * EMBED,
		       EMBED * sizeof(float));
	memcpy(a->h1, w + AT_B1, sizeof(a->h1));
	forward(a->x, w + AT_W1, INPUT, HIDDEN, a->h1);
	tanh_all(a->h1, HIDDEN);
	memcpy(a->h2, w + AT_B2, sizeof(a->h2));
	forward(a->h1, w + AT_W2, HIDDEN, HIDDEN, a->h2);
	tanh_all(a->h2, HIDDEN);
	memcpy(a->p, w + AT_B3, sizeof(a->p));
	forward(a->h2, w + AT_W3, HIDDEN, VOCABULARY, a->p);
	for (int j = 0; j < VOCABULARY; j++)
		most = fmaxf(most, a->p[j]);
	for (int j = 0; j < VOCABULARY; j++)
		sum += a->p[j] = expf(a->p[j] - most);
	for (int j = 0; j < VOCABULARY; j++)
		a->p[j] /= sum;
}

static float learn(const float *w, const uint8_t *context, float *g)
{
	float d1[HIDDEN], d2[HIDDEN], dx[INPUT], dy[VOCABULARY];
	struct activations a;
	uint8_t next = context[CONTEXT];

	run(w, context, &a);
	for (int j = 0; j < VOCABULARY; j++) {
		dy[j] = (a.p[j] - (j == next)) / (MICRO * SAMPLES);
		g[AT_B3 + j] += dy[j];
	}
	backward(a.h2, w + AT_W3, dy, HIDDEN, VOCABULARY, g + AT_W3, d2);
	for (int j = 0; j < HIDDEN; j++) {
		d2[j] *= 1 - a.h2[j] * a.h2[j];
		g[AT_B2 + j] += d2[j];
	}
	backward(a.h1, w + AT_W2, d2, HIDDEN, HIDDEN, g + AT_W2, d1);
	for (int j = 0; j < HIDDEN; j++) {
		d1[j] *= 1 - a.h1[j] * a.h1[j];
		g[AT_B1 + j] += d1[j];
	}
	backward(a.x, w + AT_W1, d1, INPUT, HIDDEN, g + AT_W1, dx);
	for (int i = 0; i < CONTEXT; i++)
		for (int k = 0; k < EMBED; k++)
			g[context[i] * EMBED + k] += dx[i * EMBED + k];
	return -logf(fmaxf(a.p[next], 1e-20f));
}

float model_gradient(const float *w, const struct text *text, uint64_t step,
		     int micro, float *g)
{
	float loss = 0;

	memset(g, 0, parameter_count() * sizeof(*g));
	for (int s = 0; s < SAMPLES; s++) {
		uint64_t r = mix(step * MICRO * SAMPLES +
				 (uint64_t)(micro * SAMPLES + s));

		loss += learn(w, text->v + r % (text->n - CONTEXT - 1), g);
	}
	return loss / SAMPLES;
}

void model_sample(const float *w, const struct text *text, char *out, int n)
{
	uint8_t context[CONTEXT];
	struct activations a;

	memcpy(context, text->v + text->n / 2, CONTEXT);
	for (int i = 0; i < n; i++) {
		float r = (float)(mix((uint64_t)i) >> 40) / 16777216.0f;
		int c = 0;

		run(w, context, &a);
		while (c < VOCABULARY - 1 && (r -= a.p[c]) > 0)
			c++;
		out[i] = text_char((uint8_t)c);
		memmove(context, context + 1, CONTEXT - 1);
		context[CONTEXT - 1] = (uint8_t)c;
	}
	out[n] = 0;
}
