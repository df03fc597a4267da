/* What one key block brings to the loops over key blocks (forward, and backward's rows), and the ring in which the next
 * one is fetched while this one is used. */
#ifndef STATELAB_KERNELS_CUDA_ATTENTION_STAGE_CUH
#define STATELAB_KERNELS_CUDA_ATTENTION_STAGE_CUH

#include "kernels/cuda/attention_weights.cuh"

#ifdef __CUDACC__

/* Path brings the block's change too; with CHAIN also the queries at its right edge, which backward keeps. */
template <int P, int D, int KIND, bool CHAIN> struct stage {
    static constexpr bool PATH = KIND == KIND_PATH;
    static constexpr size_t BYTES = (2 + (PATH && CHAIN)) * tile<P, D>::BYTES + (PATH ? tile<P, D, D>::BYTES : 0) +
                                    ATTENTION_BLOCK * sizeof(float2);
    tile<P, D> k, v, q;
    tile<P, D, D> change;
    float2 *gates;
};

/* The stages of one query block. */
template <int P, int D, int KIND, bool CHAIN> struct stage_ring {
    using Stage = stage<P, D, KIND, CHAIN>;
    static constexpr int COUNT = STAGES<Stage::BYTES>;
    static constexpr size_t BYTES = COUNT * Stage::BYTES;
    char *base;
    int bh, bk, block; /* query head, key-value head, query block */

    __device__ Stage at(int index) const
    {
        char *next = base + index % COUNT * Stage::BYTES;
        Stage made = {};
        made.gates = carve_array<float2>(next, ATTENTION_BLOCK);
        made.k = carve_tile<tile<P, D>>(next);
        made.v = carve_tile<tile<P, D>>(next);
        if constexpr (Stage::PATH)
            made.change = carve_tile<tile<P, D, D>>(next);
        if constexpr (Stage::PATH && CHAIN)
            made.q = carve_tile<tile<P, D>>(next);
        return made;
    }

    /* Starts fetching key block j. Of path's own block only the values are wanted: its logits are in call.logits. */
    __device__ void fetch(const struct attention_call &call, int index, int j) const
    {
        Stage to = at(index);
        bool own = j == block;
        load_packed(to.v, block_matrix(call, call.values, bk, j, D));
        if (!Stage::PATH || !own)
            load_packed(to.k, block_matrix(call, call.keys, bk, j, D));
        if constexpr (Stage::PATH)
            if (!own && j > 0)
                load_packed(to.change, block_matrix(call, call.change, bk, j, D, D));
        if constexpr (Stage::PATH && CHAIN)
            if (!own)
                load_packed(to.q, call.chain + slab_slot(call, bh, block, j) * ATTENTION_BLOCK * D);
        if (call.gate)
            load_gates(to.gates, call.cumulative + (size_t)bh * call.T + j * ATTENTION_BLOCK, block_rows(call, j));
    }

    /* The first key block. */
    __device__ void start(const struct attention_call &call, int j) const
    {
        fetch(call, 0, j);
        copies_commit();
    }

    /* The index-th key block, there for all threads. `next` comes after it, if more. */
    __device__ Stage take(const struct attention_call &call, int index, int next, bool more) const
    {
        if (COUNT == 2 && more)
            fetch(call, index + 1, next);
        copies_commit();
        copies_wait<COUNT - 1>();
        return at(index);
    }

    /* All threads are done with it. */
    __device__ void release(const struct attention_call &call, int index, int next, bool more) const
    {
        __syncthreads();
        if (COUNT == 1 && more)
            fetch(call, index + 1, next);
    }
};

#endif
#endif
