/* bf16 on the CPU: what Statelab uses of CUDA's cuda_bf16.h. */
#ifndef STATELAB_TESTS_EMULATOR_CUDA_BF16_H
#define STATELAB_TESTS_EMULATOR_CUDA_BF16_H

#include "cuda_runtime.h"

namespace emulator
{
/* The upper half of the bits, to the nearest, ties to even; NaN stays NaN. */
static inline uint16_t round_bf16(float x)
{
    uint32_t bits = __float_as_uint(x);
    if (x != x)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float widen_bf16(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}
} // namespace emulator

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float x) : bits(emulator::round_bf16(x))
    {
    }
    explicit operator float() const
    {
        return emulator::widen_bf16(bits);
    }
};

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return __nv_bfloat16(x);
}

static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return { __nv_bfloat16(x), __nv_bfloat16(y) };
}

#endif
