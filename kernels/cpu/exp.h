/* exp as a polynomial, so that loops over it vectorise; in double, libm's. */
#ifndef STATELAB_KERNELS_CPU_EXP_H
#define STATELAB_KERNELS_CPU_EXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/real.h"

#ifdef STATELAB_DOUBLE

static inline real fast_exp(real x)
{
    return exp(x);
}

#else

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* To 1.1 ulp; exact at 0, -inf, +inf and NaN; subnormal results included. x = n ln 2 + r with |r| <= ln(2)/2, then
 * Cephes' polynomial (Moshier, expf.c) for e^r and two factors for 2^n, each a normal number. */
static inline real fast_exp(real x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float shifted = x * 1.44269504089f + magic;
    float n = shifted - magic;
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t exponent = bits_of_float(shifted) - bits_of_float(magic) + 254;
    uint32_t half = exponent >> 1;
    return p * float_of_bits(half << 23) * float_of_bits((exponent - half) << 23);
}

#endif

static inline real sigmoid(real x)
{
    return 1 / (1 + fast_exp(-x));
}

/* log sigma(x), without overflow. */
static inline real log_sigmoid(real x)
{
    real tail = fast_exp(x < 0 ? x : -x);
#ifdef STATELAB_DOUBLE
    return (x < 0 ? x : 0) - log1p(tail);
#else
    return (x < 0 ? x : 0) - log1pf(tail);
#endif
}

#endif
