/* Tensor cores by mma.sync (sm_80 and up): copies into shared memory, rounding, and the product of fragments. */
#ifndef STATELAB_KERNELS_CUDA_MMA_CUH
#define STATELAB_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/device.cuh"

/* Copies 4 floats of which the first `valid` exist and the rest become 0. */
template <bool VECTOR> static __device__ inline void copy_async(float *shared, const float *global, int valid)
{
    unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    if constexpr (VECTOR) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(4 * valid) : "memory");
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + 4 * i),
                         "l"(i < valid ? global + i : global), "r"(i < valid ? 4 : 0)
                         : "memory");
    }
}

static __device__ inline uint32_t to_tf32(float x)
{
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

static __device__ inline uint32_t to_bf16x2(float low, float high)
{
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

/* c [16, 8] += a b: m16n8k16 of bf16, or m16n8k8 of tf32. */
template <bool BF16> static __device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
