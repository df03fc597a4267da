/* Softmax and stick-breaking (arXiv 2410.17980, in log space) over one row of logits; see attention_weights.h. */
#include "kernels/cpu/attention_weights.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/exp.h"

enum { CHUNK = 64 };

/* A weight whose logarithm is less counts as 0. */
#ifdef STATELAB_DOUBLE
#define LOG_LEAST (-708.0)
#else
#define LOG_LEAST (-87.0)
#endif

void attention_gate_row(real *row, const double *cumulative, int i)
{
    double last = cumulative[i];
#pragma omp simd
    for (int j = 0; j <= i; j++)
        row[j] += (real)(last - cumulative[j]);
}

/* log(1 + y) for 0 <= y <= 1, as 2 atanh(y / (2 + y)). */
static inline real log_one_plus(real y)
{
#ifdef STATELAB_DOUBLE
    return log1p(y);
#else
    real t = y / (2 + y), s = t * t;
    real p = 1 / 15.0f;
    p = p * s + 1 / 13.0f;
    p = p * s + 1 / 11.0f;
    p = p * s + 1 / 9.0f;
    p = p * s + 1 / 7.0f;
    p = p * s + 1 / 5.0f;
    p = p * s + 1 / 3.0f;
    return 2 * t + 2 * t * s * p;
#endif
}

static void softmax_row(real *row, int n)
{
    real most = row[0], sum = 0;
#pragma omp simd reduction(max : most)
    for (int j = 0; j < n; j++)
        most = row[j] > most ? row[j] : most;
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < n; j++) {
        row[j] = fast_exp(row[j] - most);
        sum += row[j];
    }
    real scale = 1 / sum;
#pragma omp simd
    for (int j = 0; j < n; j++)
        row[j] *= scale;
}

/* The mean of dweights is taken relative to that of the dominant weight, if there is one: its own difference from the
 * mean would otherwise be lost to rounding. */
static void softmax_row_backward(const real *weights, real *dweights, int n)
{
    int top = 0;
    for (int j = 0; j < n; j++)
        top = weights[j] > (real)0.5 ? j : top;
    real base = dweights[top], mean = 0;
#pragma omp simd reduction(+ : mean)
    for (int j = 0; j < n; j++)
        mean += weights[j] * (dweights[j] - base);
#pragma omp simd
    for (int j = 0; j < n; j++)
        dweights[j] = weights[j] * (dweights[j] - base - mean);
}

/* log A_ij = log sigma(z_ij) + sum_{j<s<i} log sigma(-z_is), from the last key to the first. */
static void stick_breaking_row(real *row, int n, bool remainder)
{
    double left = 0; /* log of what is left of the stick */
    for (int end = n; end > 0; end -= CHUNK) {
        if (left < LOG_LEAST) {
            memset(row, 0, (size_t)end * sizeof *row);
            break;
        }
        int first = end > CHUNK ? end - CHUNK : 0, count = end - first;
        real *z = row + first, tail[CHUNK];
#pragma omp simd
        for (int j = 0; j < count; j++)
            tail[j] = log_one_plus(fast_exp(z[j] < 0 ? z[j] : -z[j]));
        for (int j = count - 1; j >= 0; j--) {
            double before = left;
            left -= (double)(z[j] > 0 ? z[j] : 0) + tail[j];
            z[j] = (z[j] < 0 ? z[j] : 0) - tail[j] + (real)before;
        }
#pragma omp simd
        for (int j = 0; j < count; j++)
            z[j] = fast_exp(z[j]);
    }
    row[n] = remainder ? fast_exp((real)left) : 0;
}

/* With g_j = A_j dA_j: dz_j = g_j (1 - sigma(z_j)) - sigma(z_j) (sum_{s<j} g_s + the remainder's g). */
static void stick_breaking_row_backward(const real *logits, const real *weights, real *dweights, int n)
{
    double before = (double)weights[n] * dweights[n];
    int start = 0; /* keys that the stick does not reach have no gradient */
    while (weights[n] == 0 && start < n && weights[start] == 0)
        dweights[start++] = 0;
    for (int first = start; first < n; first += CHUNK) {
        int count = n - first < CHUNK ? n - first : CHUNK;
        const real *z = logits + first, *a = weights + first;
        real *dz = dweights + first, prefix[CHUNK];
        for (int j = 0; j < count; j++) {
            prefix[j] = (real)before;
            before += (double)a[j] * dz[j];
        }
#pragma omp simd
        for (int j = 0; j < count; j++) {
            real y = fast_exp(z[j] < 0 ? z[j] : -z[j]), p = 1 / (1 + y), q = y * p;
            real sigma = z[j] > 0 ? p : q, rest = z[j] > 0 ? q : p;
            dz[j] = a[j] * dz[j] * rest - sigma * prefix[j];
        }
    }
    dweights[n] = 0;
}

void attention_weights_row(const struct attention_shape *shape, real *row, int i)
{
    if (shape->weights == ATTENTION_STICK_BREAKING)
        stick_breaking_row(row, i, shape->remainder);
    else
        softmax_row(row, i + 1);
}

void attention_weights_row_backward(const struct attention_shape *shape, const real *logits, const real *weights,
                                    real *dweights, int i)
{
    if (shape->weights == ATTENTION_STICK_BREAKING)
        stick_breaking_row_backward(logits, weights, dweights, i);
    else
        softmax_row_backward(weights, dweights, i + 1);
}
