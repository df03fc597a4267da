/* From the logits of a tile to weights and back, in registers: softmax with or without gate, and stick-breaking. Rows
 * are queries; four lanes of a warp share a row and hold neighbouring pairs of its columns. */
#ifndef STATELAB_KERNELS_CUDA_ATTENTION_WEIGHTS_CUH
#define STATELAB_KERNELS_CUDA_ATTENTION_WEIGHTS_CUH

#include "kernels/cuda/attention_tile.cuh"

#ifdef __CUDACC__

/* ---- gates ---- */

/* Starts copying the summed gates of a block's tokens, 0 beyond the end. */
static __device__ inline void load_gates(float2 *to, const float2 *from, int rows)
{
    int t = threadIdx.x;
    if (t < ATTENTION_BLOCK)
        copy_async<8>(to + t, t < rows ? from + t : from, t < rows ? 8 : 0);
}

/* Those of the thread's two rows. */
static __device__ inline void own_gates(float2 (&gates)[2], const float2 *from, int rows)
{
#pragma unroll
    for (int half = 0; half < 2; half++)
        gates[half] = own_row(half) < rows ? from[own_row(half)] : make_float2(0, 0);
}

/* Raw products become logits: scaled, with the sums of log_gate over j < s <= i; keys after the query and
 * those of other sequences get -inf. */
static __device__ inline void finish_logits(float (&s)[8][4], const struct attention_call &call,
                                            const float2 (&row_gates)[2], const float2 *key_gates, bool diagonal)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float &x = s[n][e];
            int col = own_column(n) + e % 2;
            x *= call.scale;
            if (call.gate) {
                float2 i = row_gates[e / 2], j = key_gates[col];
                x += (i.x - j.x) + (i.y - j.y);
            }
            if (diagonal && (col > own_row(e / 2) || col < span_start(call, own_row(e / 2))))
                x = -INFINITY;
        }
}

/* ---- softmax ---- */

/* One step of online softmax: logits become weights relative to the new maximum; o and sum are rescaled. sum: of this
 * thread's columns only. */
template <int N>
static __device__ inline void softmax_step(float (&s)[8][4], float (&most)[2], float (&sum)[2], float (&o)[N][4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = most[half];
#pragma unroll
        for (int n = 0; n < 8; n++)
            top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        top = quad_max(top);
        float factor = __expf(most[half] - top), total = 0;
        most[half] = top;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                s[n][e] = __expf(s[n][e] - top);
                total += s[n][e];
            }
        sum[half] = sum[half] * factor + total;
#pragma unroll
        for (int n = 0; n < N; n++) {
            o[n][2 * half] *= factor;
            o[n][2 * half + 1] *= factor;
        }
    }
}

/* What backward knows of the thread's two rows. row: log-sum-exp, or the log of what is left of the stick. */
struct row_statistics {
    float row[2], delta[2];
    float2 gates[2];
};

/* Logits become weights, and products dout . v become scale * dlogits. */
static __device__ inline void softmax_backward(float (&s)[8][4], float (&dp)[8][4], float scale,
                                               const struct row_statistics &rows)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = __expf(s[n][e] - rows.row[e / 2]);
            dp[n][e] = scale * s[n][e] * (dp[n][e] - rows.delta[e / 2]);
        }
}

/* ---- stick-breaking ---- */

/* log(1 - sigma(z)) */
template <int P> static __device__ inline float log_rest(float z)
{
    float e = __expf(-fabsf(z));
    return -(fmaxf(z, 0) + (P == PRECISION_FP32 ? log1pf(e) : __logf(1 + e)));
}

/* The columns that the thread's row `half` may take from: from first to last - 1. */
struct stick_range {
    int first, last;
};

static __device__ inline struct stick_range find_range(const struct attention_call &call, bool diagonal, int half)
{
    int row = own_row(half);
    return diagonal ? stick_range{ span_start(call, row), row } : stick_range{ 0, ATTENTION_BLOCK };
}

static __device__ inline bool is_within(const struct stick_range &range, int col)
{
    return col >= range.first && col < range.last;
}

/* rest: log_rest of each raw product in s; 0 where the key is not before the query. */
template <int P>
static __device__ inline void stick_rests(float (&rest)[8][4], const float (&s)[8][4],
                                          const struct attention_call &call, bool diagonal)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        struct stick_range range = find_range(call, diagonal, half);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                rest[n][2 * half + e] =
                    is_within(range, own_column(n) + e) ? log_rest<P>(s[n][2 * half + e] * call.scale) : 0;
    }
}

/* Sum of x over the lanes of the quad that hold columns to the right (direction 1) or to the left (-1); total: over
 * all.
 */
static __device__ inline float quad_scan(float x, int direction, float &total)
{
    float a = __shfl_xor_sync(0xffffffffu, x, 1), b = __shfl_xor_sync(0xffffffffu, x, 2);
    float far = b + __shfl_xor_sync(0xffffffffu, x, 3);
    int lane = direction > 0 ? threadIdx.x % 4 : 3 - threadIdx.x % 4;
    total = (x + a) + far;
    return (lane % 2 == 0 ? a : 0) + (lane < 2 ? far : 0);
}

/* Raw products become weights. left: log of the stick left to the right of the tile, and then to its left too. */
static __device__ inline void stick_weights(float (&s)[8][4], const float (&rest)[8][4],
                                            const struct attention_call &call, bool diagonal, float (&left)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        struct stick_range range = find_range(call, diagonal, half);
#pragma unroll
        for (int n = 7; n >= 0; n--) {
            float &first = s[n][2 * half], &second = s[n][2 * half + 1];
            float rest_first = rest[n][2 * half], rest_second = rest[n][2 * half + 1];
            float total, right = left[half] + quad_scan(rest_first + rest_second, 1, total);
            int col = own_column(n);
            second = is_within(range, col + 1) ? __expf(second * call.scale + rest_second + right) : 0;
            first = is_within(range, col) ? __expf(first * call.scale + rest_first + (right + rest_second)) : 0;
            left[half] += total;
        }
    }
}

/* Only what the tile takes of the stick. */
static __device__ inline void stick_take(const float (&rest)[8][4], float (&left)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = 0;
#pragma unroll
        for (int n = 0; n < 8; n++)
            sum += rest[n][2 * half] + rest[n][2 * half + 1];
        left[half] += quad_sum(sum);
    }
}

/* From weights in s, their rests and dp = dout . v: dp becomes scale * dlogits. sums: of weight * gradient to the left
 * of the tile, and then with the tile. */
static __device__ inline void stick_gradients(const float (&s)[8][4], float (&dp)[8][4], const float (&rest)[8][4],
                                              const struct attention_call &call, bool diagonal, const float (&delta)[2],
                                              float (&sums)[2])
{
    float scale = call.scale;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        struct stick_range range = find_range(call, diagonal, half);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float &first = dp[n][2 * half], &second = dp[n][2 * half + 1];
            float gradient_first = s[n][2 * half] * (first - delta[half]);
            float gradient_second = s[n][2 * half + 1] * (second - delta[half]);
            float total, before = sums[half] + quad_scan(gradient_first + gradient_second, -1, total);
            int col = own_column(n);
            /* 1 - sigma = exp(rest) */
            float other_first = __expf(rest[n][2 * half]), other_second = __expf(rest[n][2 * half + 1]);
            first = is_within(range, col) ? scale * (gradient_first * other_first - (1 - other_first) * before) : 0;
            second = is_within(range, col + 1)
                         ? scale * (gradient_second * other_second - (1 - other_second) * (before + gradient_first))
                         : 0;
            sums[half] += total;
        }
    }
}

#endif
#endif
