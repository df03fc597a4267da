/* What the kernels for path inside a block share: how eight warps share its products where heads are wide. */
#ifndef STATELAB_KERNELS_CUDA_ATTENTION_PATH_CUH
#define STATELAB_KERNELS_CUDA_ATTENTION_PATH_CUH

#include "kernels/cuda/attention_tile.cuh"

/* A warp owns 16 rows and, of COUNT warps to the same rows, its share of the columns: N pairs of quads of a matrix of D
 * columns, M of one of 64. */
template <int D> struct share {
    static constexpr int COUNT = D >= 64 ? 2 : 1, THREADS = COUNT * ATTENTION_THREADS;
    static constexpr int N = D / 8 / COUNT, M = ATTENTION_BLOCK / 8 / COUNT;
#ifdef __CUDACC__
    /* The warp's first column. */
    static __device__ int wide()
    {
        return threadIdx.x / ATTENTION_THREADS * 8 * N;
    }
    static __device__ int square()
    {
        return threadIdx.x / ATTENTION_THREADS * 8 * M;
    }
#endif
};

#endif
