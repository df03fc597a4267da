/* Decoding (section 3.4): every cached key is reflected by the new H_t, then decoded as ordinary attention. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_weights.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/cpu.h"

/* The cache of one sequence and key-value head. */
struct cache {
    double *cumulative; /* gate: per query head of the group, [T] */
    real *keys;         /* [T, D] */
    real *values;       /* [T, D] */
    real *row;          /* [T + 1] logits of the query being decoded */
};

static size_t cache_gates(const struct attention_shape *shape)
{
    return shape->gate ? (size_t)(shape->H / shape->K) * shape->T * (sizeof(double) / sizeof(real)) : 0;
}

/* Even, so that the doubles of the next one are aligned. */
static size_t cache_size(const struct attention_shape *shape)
{
    return (cache_gates(shape) + 2 * (size_t)shape->T * shape->D + shape->T + 2) / 2 * 2;
}

size_t cpu_attention_cache(const struct attention_shape *shape)
{
    return (size_t)shape->B * shape->K * cache_size(shape);
}

static struct cache find_cache(const struct attention_shape *shape, real *cache, int pair)
{
    real *base = cache + pair * cache_size(shape), *keys = base + cache_gates(shape);
    size_t size = (size_t)shape->T * shape->D;
    return (struct cache){ (void *)base, keys, keys + size, keys + 2 * size };
}

/* k <- H k for t keys. */
static void reflect(real *keys, int t, int D, const real *w, real beta)
{
    for (int j = 0; j < t; j++) {
        real *k = keys + (size_t)j * D, dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int d = 0; d < D; d++)
            dot += k[d] * w[d];
        dot *= beta;
#pragma omp simd
        for (int d = 0; d < D; d++)
            k[d] -= dot * w[d];
    }
}

static void decode_head(const struct attention_shape *shape, const struct cache *cache, const real *q, real log_gate,
                        int g, int t, real *o)
{
    int D = shape->D;
    gemm(CblasNoTrans, CblasTrans, 1, t + 1, D, (real)(1 / sqrt((double)D)), q, D, cache->keys, D, 0, cache->row,
         t + 1);
    if (shape->gate) {
        double *cumulative = cache->cumulative + (size_t)g * shape->T;
        cumulative[t] = (t > 0 ? cumulative[t - 1] : 0) + log_gate;
        attention_gate_row(cache->row, cumulative, t);
    }
    attention_weights_row(shape, cache->row, t);
    gemm(CblasNoTrans, CblasNoTrans, 1, D, t + 1, 1, cache->row, t + 1, cache->values, D, 0, o, D);
}

void cpu_attention_decode(struct device *device, const struct attention_shape *shape, const struct attention_inputs *in,
                          int t, real *o, real *cache)
{
    int D = shape->D, K = shape->K, H = shape->H, group = H / K;
#pragma omp parallel for num_threads(cpu_threads(device, (size_t)shape->B *K *D *(t + 1)))
    for (int pair = 0; pair < shape->B * K; pair++) {
        int b = pair / K, kv = pair % K;
        struct cache own = find_cache(shape, cache, pair);
        if (shape->path)
            reflect(own.keys, t, D, in->w + (size_t)pair * D, in->beta[pair]);
        memcpy(own.keys + (size_t)t * D, in->k + (size_t)b * in->ldk + (size_t)kv * D, (size_t)D * sizeof(real));
        memcpy(own.values + (size_t)t * D, in->v + (size_t)b * in->ldv + (size_t)kv * D, (size_t)D * sizeof(real));
        for (int g = 0; g < group; g++) {
            size_t head = (size_t)b * H + kv * group + g;
            decode_head(shape, &own, in->q + (size_t)b * in->ldq + (size_t)(kv * group + g) * D,
                        shape->gate ? in->log_gate[head] : 0, g, t, o + head * D);
        }
    }
}
