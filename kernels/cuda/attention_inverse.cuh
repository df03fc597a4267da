/* The inverse of a unit lower triangular matrix [64, 64] in shared memory, by one block of threads, in float32. */
#ifndef STATELAB_KERNELS_CUDA_ATTENTION_INVERSE_CUH
#define STATELAB_KERNELS_CUDA_ATTENTION_INVERSE_CUH

#include "kernels/cuda/attention_tile.cuh"

#ifdef __CUDACC__

enum { INVERSE_BLOCK = 16 };

/* The four blocks of 16 on the diagonal, a thread to a column. */
static __device__ inline void invert_diagonal(float *m)
{
    if (threadIdx.x >= ATTENTION_BLOCK)
        return;
    int own = threadIdx.x % INVERSE_BLOCK, first = threadIdx.x - own;
    float *block = m + first * SQUARE_LD + first, column[INVERSE_BLOCK];
#pragma unroll
    for (int i = 0; i < INVERSE_BLOCK; i++) {
        float sums[2] = { i == own ? 1.0f : 0.0f, 0 };
#pragma unroll
        for (int k = 0; k < i; k++)
            sums[k % 2] -= block[i * SQUARE_LD + k] * column[k];
        column[i] = sums[0] + sums[1];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < INVERSE_BLOCK; i++)
        block[i * SQUARE_LD + own] = column[i];
}

/* sum over k in [from, to) of left[k] * right[k][0..3] */
static __device__ inline float4 row_times(const float *left, const float *right, int from, int to)
{
    float4 sum = {};
#pragma unroll 4
    for (int k = from; k < to; k++) {
        float by = left[k];
        float4 row = *reinterpret_cast<const float4 *>(right + k * SQUARE_LD);
        sum.x += by * row.x, sum.y += by * row.y, sum.z += by * row.z, sum.w += by * row.w;
    }
    return sum;
}

/* From the inverses of pairs of blocks, P and S on the diagonal with L below P, to those of the blocks twice as
 * large, -S L P below P. L P passes through the place right of P; sums leave out what lies above the diagonal. */
template <int THREADS, int HALF> static __device__ inline void invert_pairs(float *m)
{
    constexpr int LINE = HALF / 4, COUNT = ATTENTION_BLOCK / (2 * HALF) * HALF * LINE;
    for (int step = 0; step < 2; step++) {
        for (int at = threadIdx.x; at < COUNT; at += THREADS) {
            int first = at / (HALF * LINE) * 2 * HALF, i = at / LINE % HALF, j = at % LINE * 4;
            int below = (first + HALF + i) * SQUARE_LD + first, beside = (first + i) * SQUARE_LD + first + HALF + j;
            int diagonal = j / INVERSE_BLOCK * INVERSE_BLOCK, reach = (i / INVERSE_BLOCK + 1) * INVERSE_BLOCK;
            if (step == 0) {
                float4 sum = row_times(m + below, m + first * SQUARE_LD + first + j, diagonal, HALF);
                *reinterpret_cast<float4 *>(m + beside) = sum;
            } else {
                float4 sum = row_times(m + below + HALF, m + first * SQUARE_LD + first + HALF + j, 0, reach);
                *reinterpret_cast<float4 *>(m + below + j) = make_float4(-sum.x, -sum.y, -sum.z, -sum.w);
            }
        }
        __syncthreads();
    }
}

/* What lies above the diagonal (and is taken as 0) is spoiled. Begins and ends with all threads together. */
template <int THREADS> static __device__ inline void invert(float *m)
{
    __syncthreads();
    invert_diagonal(m);
    __syncthreads();
    invert_pairs<THREADS, INVERSE_BLOCK>(m);
    invert_pairs<THREADS, 2 * INVERSE_BLOCK>(m);
}

#endif
#endif
