/* What kernels/cuda/ptx.cuh says in PTX, for the emulator. The layouts of fragments are those of NVIDIA's PTX manual,
 * "Matrix fragments for mma.m16n8k16" and "mma.m16n8k8". */
#ifndef STATELAB_TESTS_EMULATOR_PTX_CUH
#define STATELAB_TESTS_EMULATOR_PTX_CUH

#include "cuda_bf16.h"

template <int BYTES> static inline void copy_async(void *to, const void *from, int there = BYTES)
{
    emulator::copy(to, from, BYTES, there);
}

static inline void copies_commit()
{
    emulator::commit();
}

template <int AHEAD> static inline void copies_arrive()
{
    emulator::arrive(AHEAD);
}

static inline void prefetch(const void *)
{
}

/* To 10 bits of mantissa, ties away from 0. */
static inline uint32_t to_tf32(float x)
{
    uint32_t bits = __float_as_uint(x);
    return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & 0xffffe000;
}

static inline uint32_t to_bf16x2(float low, float high)
{
    return emulator::round_bf16(low) | (uint32_t)emulator::round_bf16(high) << 16;
}

namespace emulator
{

struct matrix_row {
    const uint16_t *at; /* lane 8m + r: row r of matrix m */
    uint32_t *x;
};

template <bool TRANSPOSED> static void load_lanes(brought &of)
{
    for (int lane = 0; lane < WARP; lane++)
        for (int m = 0; m < 4; m++) {
            uint16_t pair[2];
            for (int i = 0; i < 2; i++) {
                int row = TRANSPOSED ? lane % 4 * 2 + i : lane / 4, column = TRANSPOSED ? lane / 4 : lane % 4 * 2 + i;
                pair[i] = static_cast<matrix_row *>(of[8 * m + row])->at[column];
            }
            static_cast<matrix_row *>(of[lane])->x[m] = pair[0] | (uint32_t)pair[1] << 16;
        }
}

/* Those of lane (g, t). */
struct fragments {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

template <bool BF16> static void multiply_lanes(brought &of)
{
    constexpr int DEPTH = BF16 ? 16 : 8;
    float a[16][DEPTH], b[DEPTH][8], c[16][8];
    auto put = [](float *to, int stride, uint32_t bits) {
        to[0] = BF16 ? widen_bf16((uint16_t)bits) : __uint_as_float(bits & 0xffffe000);
        if (BF16)
            to[stride] = widen_bf16((uint16_t)(bits >> 16));
    };
    for (int lane = 0; lane < WARP; lane++) {
        const fragments &from = *static_cast<fragments *>(of[lane]);
        int g = lane / 4, t = lane % 4 * (BF16 ? 2 : 1);
        for (int i = 0; i < 4; i++) {
            put(&a[g + i % 2 * 8][t + i / 2 * (DEPTH / 2)], 1, from.a[i]);
            c[g + i / 2 * 8][lane % 4 * 2 + i % 2] = from.c[i];
        }
        for (int i = 0; i < 2; i++)
            put(&b[t + i * (DEPTH / 2)][g], 8, from.b[i]);
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < DEPTH; k++)
            for (int n = 0; n < 8; n++)
                c[row][n] += a[row][k] * b[k][n];
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++)
            static_cast<fragments *>(of[lane])->c[i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

} // namespace emulator

template <bool TRANSPOSED> static inline void load_matrices(uint32_t (&x)[4], const uint16_t *at)
{
    emulator::matrix_row mine = { at, x };
    emulator::meet(emulator::meeting::LOAD_MATRICES, &mine, emulator::load_lanes<TRANSPOSED>);
}

template <bool BF16> static inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulator::fragments mine = { c, a, { b0, b1 } };
    emulator::meet(emulator::meeting::MULTIPLY, &mine, emulator::multiply_lanes<BF16>);
}

#endif
