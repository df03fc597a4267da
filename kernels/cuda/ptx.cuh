/* The instructions of sm_80 and up that CUDA C++ has no name for: asynchronous copies into shared memory, rounding, and
 * tensor cores. The only file with PTX; tests/emulator has one of the same name that says the same in plain C++. */
#ifndef STATELAB_KERNELS_CUDA_PTX_CUH
#define STATELAB_KERNELS_CUDA_PTX_CUH

#include <stdint.h>

#ifdef __CUDACC__

/* ---- asynchronous copies ---- */

/* Copies BYTES (4, 8 or 16, as both addresses are aligned to) into shared memory: the first `there` of them, and zeros
 * for the rest. */
template <int BYTES> static __device__ inline void copy_async(void *to, const void *from, int there = BYTES)
{
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(there) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(BYTES), "r"(there)
                     : "memory");
}

/* Ends a group of this thread's copies. */
static __device__ inline void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All of this thread's groups but the last AHEAD have arrived. Other threads' copies: __syncthreads() after it. */
template <int AHEAD> static __device__ inline void copies_arrive()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD) : "memory");
}

/* Asks for the 128 bytes around an address that will be read later. */
static __device__ inline void prefetch(const void *from)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/* ---- rounding ---- */

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

/* ---- tensor cores: by all lanes of a warp together ---- */

/* Four matrices of 8 x 8 bf16, lane 8m + r giving the address of row r of matrix m: lane (g, t) receives elements 2t
 * and 2t + 1 of row g of each, or of column g if TRANSPOSED. */
template <bool TRANSPOSED> static __device__ inline void load_matrices(uint32_t (&x)[4], const uint16_t *at)
{
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(at));
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(address)
                     : "memory");
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
#endif
