/* Asynchronous copies of floats that may lie at any address. */
#ifndef STATELAB_KERNELS_CUDA_COPY_CUH
#define STATELAB_KERNELS_CUDA_COPY_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/ptx.cuh"

#ifdef __CUDACC__

/* Copies 4 floats of which the first `valid` exist and the rest become 0; as one VECTOR where `global` is aligned. */
template <bool VECTOR> static __device__ inline void copy_four(float *shared, const float *global, int valid)
{
    if constexpr (VECTOR) {
        copy_async<16>(shared, global, 4 * valid);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            copy_async<4>(shared + i, i < valid ? global + i : global, i < valid ? 4 : 0);
    }
}

#endif
#endif
