/* Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
 * Counter-based: a stream of numbers is a pure function of (seed, stream, index), on either side
 * of the bus. Known answers: tests/test_rng.c. */
#ifndef STATELAB_KERNELS_RNG_H
#define STATELAB_KERNELS_RNG_H

#include <stdint.h>

#ifdef __CUDACC__
#define STATELAB_DEVICE __host__ __device__
#else
#define STATELAB_DEVICE
#endif

/* Streams that the harness reserves; evaluation sets have those with the top bit set. */
enum { RNG_STREAM_INIT = 0, RNG_STREAM_TRAIN = 1, RNG_STREAM_VALIDATION = 2, RNG_STREAM_GENERATE = 3 };

struct rng {
    uint32_t key[2];
    uint32_t counter[4]; /* block, stream, index low, index high */
    uint32_t output[4];
    int used; /* words of `output` already handed out */
};

/* One Philox 4x32-10 block: output[4] from counter[4] and key[2]. */
STATELAB_DEVICE static inline void philox_4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t output[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    output[0] = c0;
    output[1] = c1;
    output[2] = c2;
    output[3] = c3;
}

/* The stream of numbers of sequence `index` of `stream` under `seed`. */
STATELAB_DEVICE static inline struct rng rng_make(uint64_t seed, uint32_t stream, uint64_t index)
{
    struct rng rng = { { (uint32_t)seed, (uint32_t)(seed >> 32) },
                       { 0, stream, (uint32_t)index, (uint32_t)(index >> 32) },
                       { 0, 0, 0, 0 },
                       4 };
    return rng;
}

/* Uniform over all 32-bit words. A stream holds 2^34 of them. */
STATELAB_DEVICE static inline uint32_t rng_word(struct rng *rng)
{
    if (rng->used == 4) {
        philox_4x32_10(rng->counter, rng->key, rng->output);
        rng->counter[0]++;
        rng->used = 0;
    }
    return rng->output[rng->used++];
}

/* Uniform over {0, …, n − 1}, n ≥ 1, without bias (Lemire, "Fast random integer generation in an interval", 2019). */
STATELAB_DEVICE static inline uint32_t rng_below(struct rng *rng, uint32_t n)
{
    uint64_t product = (uint64_t)rng_word(rng) * n;
    if ((uint32_t)product < n) {
        uint32_t threshold = (0u - n) % n;
        while ((uint32_t)product < threshold)
            product = (uint64_t)rng_word(rng) * n;
    }
    return (uint32_t)(product >> 32);
}

/* Uniform in [0, 1), a multiple of 2^-32. */
STATELAB_DEVICE static inline double rng_uniform(struct rng *rng)
{
    return rng_word(rng) * (1.0 / 4294967296.0);
}

#endif
