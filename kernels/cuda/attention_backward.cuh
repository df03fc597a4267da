/* What the backward kernels share: how one block of threads lays out its memory, and where a slab keeps what goes from
 * attention_rows.cu to attention_keys.cu. */
#ifndef STATELAB_KERNELS_CUDA_ATTENTION_BACKWARD_CUH
#define STATELAB_KERNELS_CUDA_ATTENTION_BACKWARD_CUH

#include "kernels/cuda/attention_tile.cuh"

/* The memory of a block of threads: tiles q and dout; k and v, which also hold one square or D x D tile; squares. */
struct backward_memory {
    float *q, *dout, *k, *v, *p, *ds, *row, *delta;
    float2 *gate_q, *gate_k;
};

template <int D>
static constexpr int PAIR = 2 * ATTENTION_BLOCK *(D + 4) > SQUARE ? 2 * ATTENTION_BLOCK *(D + 4) : SQUARE;

template <int D> static constexpr size_t backward_shared()
{
    return 2 * ATTENTION_BLOCK * (D + 4) + PAIR<D> + 2 * SQUARE + 6 * ATTENTION_BLOCK;
}

template <int D> static __device__ inline struct backward_memory backward_memory_find(float *base)
{
    constexpr int tile = ATTENTION_BLOCK * (D + 4);
    float *k = base + 2 * tile, *p = k + PAIR<D>, *row = p + 2 * SQUARE;
    float2 *gates = reinterpret_cast<float2 *>(row + 2 * ATTENTION_BLOCK);
    return {
        base, base + tile, k, k + tile, p, p + SQUARE, row, row + ATTENTION_BLOCK, gates, gates + ATTENTION_BLOCK
    };
}

/* Slot of query block `block` (of this slab) and key block j. */
static __device__ inline size_t slab_slot(const struct attention_call &call, int bh, int block, int j)
{
    return ((size_t)bh * call.slab + (block - call.slab_first)) * call.blocks + j;
}

/* Where the rows of one query head begin, in matrices of D columns for each of H or K heads. */
struct head_rows {
    const float *q, *k, *v, *dout;
    const float2 *gates;
};

static __device__ inline struct head_rows find_rows(const struct attention_call &call, int bh)
{
    int bk = key_head(call, bh), ldo = call.H * call.D;
    return { call.in.q + token_offset(call, bh, call.H, 0, call.in.ldq),
             call.in.k + token_offset(call, bk, call.K, 0, call.in.ldk),
             call.in.v + token_offset(call, bk, call.K, 0, call.in.ldv),
             call.dout + token_offset(call, bh, call.H, 0, ldo), call.cumulative + (size_t)bh * call.T };
}

/* Raw products s and dp become weights in p and scale * dlogits in ds; softmax. Keys after the query get 0. */
static __device__ inline void softmax_backward(float (&s)[8][4], float (&dp)[8][4], const struct attention_call &call,
                                               const struct backward_memory &m, bool diagonal)
{
    finish_logits(s, call.scale, call.gate, m.gate_q, m.gate_k, diagonal);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float row = m.row[own_row(half)], delta = m.delta[own_row(half)];
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                s[n][e] = __expf(s[n][e] - row);
                dp[n][e] = call.scale * s[n][e] * (dp[n][e] - delta);
            }
    }
}

/* m.row and m.delta of a query block; beyond the end of the sequence weights become 0. */
static __device__ inline void load_statistics(const struct attention_call &call, const struct backward_memory &m,
                                              int bh, int first, int rows)
{
    if (threadIdx.x < ATTENTION_BLOCK) {
        bool inside = (int)threadIdx.x < rows;
        m.row[threadIdx.x] = inside ? call.row[(size_t)bh * call.T + first + threadIdx.x] : INFINITY;
        m.delta[threadIdx.x] = inside ? call.delta[(size_t)bh * call.T + first + threadIdx.x] : 0;
    }
}

#endif
