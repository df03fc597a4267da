/* From a tile of logits to weights and back: softmax with or without gate, and stick-breaking. Rows are queries; a
 * warp's 16 rows are its own. */
#ifndef STATELAB_KERNELS_CUDA_ATTENTION_TILE_CUH
#define STATELAB_KERNELS_CUDA_ATTENTION_TILE_CUH

#include "kernels/cuda/attention.cuh"

#ifdef __CUDACC__

/* Row of this thread's elements e = 0, 1 (half 0) and e = 2, 3 (half 1) of a product, and first column. */
static __device__ inline int own_row(int half)
{
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half;
}

static __device__ inline int own_column(int n)
{
    return 8 * n + threadIdx.x % 4 * 2;
}

static __device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

static __device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Copies the summed gates of 64 tokens, 0 beyond the end. */
static __device__ inline void load_gates(float2 *to, const float2 *from, int rows)
{
    if (threadIdx.x < ATTENTION_BLOCK)
        to[threadIdx.x] = (int)threadIdx.x < rows ? from[threadIdx.x] : make_float2(0, 0);
}

/* Sums of log_gate over j < s <= i. */
static __device__ inline float gate_between(float2 i, float2 j)
{
    return (i.x - j.x) + (i.y - j.y);
}

/* Raw products become logits; those of keys after the query -inf. */
static __device__ inline void finish_logits(float (&s)[8][4], float scale, bool gate, const float2 *gate_q,
                                            const float2 *gate_k, bool diagonal)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = own_row(half);
        float2 i = gate ? gate_q[row] : make_float2(0, 0);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &x = s[n][2 * half + e];
                int col = own_column(n) + e;
                x *= scale;
                if (gate)
                    x += gate_between(i, gate_k[col]);
                if (diagonal && col > row)
                    x = -INFINITY;
            }
    }
}

/* Online softmax: logits become weights relative to the new maximum; o and sum are rescaled. */
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
            for (int e = 0; e < 2; e++) {
                float &x = s[n][2 * half + e];
                x = __expf(x - top);
                total += x;
            }
        sum[half] = sum[half] * factor + total;
#pragma unroll
        for (int n = 0; n < N; n++) {
            o[n][2 * half] *= factor;
            o[n][2 * half + 1] *= factor;
        }
    }
}

/* ---- stick-breaking: two lanes take a row of the warp, 32 keys each ---- */

static __device__ inline int stick_row()
{
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 2;
}

/* log(1 - sigma(z)) */
static __device__ inline float log_rest(float z)
{
    return -(fmaxf(z, 0) + log1pf(__expf(-fabsf(z))));
}

/* The logits of the row become log weights without what the keys of other halves and blocks take; returns the sum of
 * log_rest over this half, and in *right what its own half must add for the half to its right. */
static __device__ inline float stick_logs(float *row, float scale, bool diagonal, float *right)
{
    int half = threadIdx.x % 2, r = stick_row();
    float taken = 0;
    for (int j = 32 * half + 31; j >= 32 * half; j--) {
        float z = row[j] * scale, rest = log_rest(z);
        if (diagonal && j >= r) {
            row[j] = -INFINITY;
            continue;
        }
        row[j] = z + rest + taken;
        taken += rest;
    }
    float other = __shfl_xor_sync(0xffffffffu, taken, 1);
    *right = half == 0 ? other : 0;
    return taken + other;
}

/* Raw products in tile `s` become weights. left: log of the stick left to the right of the tile, and then to its left
 * too. */
static __device__ inline void stick_forward(float *s, float scale, bool diagonal, float &left)
{
    __syncwarp();
    float *row = s + stick_row() * SQUARE_LD, right;
    float taken = stick_logs(row, scale, diagonal, &right);
    int half = threadIdx.x % 2;
    for (int j = 32 * half; j < 32 * half + 32; j++)
        row[j] = __expf(row[j] + left + right);
    left += taken;
    __syncwarp();
}

/* Only what the tile takes of the stick. */
static __device__ inline float stick_taken(const float *s, float scale, bool diagonal)
{
    const float *row = s + stick_row() * SQUARE_LD;
    int half = threadIdx.x % 2, r = stick_row();
    float taken = 0;
    for (int j = 32 * half + 31; j >= 32 * half; j--)
        taken += diagonal && j >= r ? 0 : log_rest(row[j] * scale);
    return taken + __shfl_xor_sync(0xffffffffu, taken, 1);
}

/* Raw products in s become weights A; raw dout . v in ds become scale * dlogits. left as in stick_forward, right of
 * the tile; sum: of A * gradient to the left of the tile, and then with the tile. */
static __device__ inline void stick_backward(float *s, float *ds, float scale, bool diagonal, float left, float delta,
                                             float &sum)
{
    __syncwarp();
    int half = threadIdx.x % 2, r = stick_row();
    float *row = s + r * SQUARE_LD, *drow = ds + r * SQUARE_LD, total = 0;
    float weight[ATTENTION_BLOCK / 2], taken = 0;
    for (int j = 32 * half; j < 32 * half + 32; j++)
        taken += diagonal && j >= r ? 0 : log_rest(row[j] * scale);
    float other = __shfl_xor_sync(0xffffffffu, taken, 1), running = left + (half == 0 ? other : 0);
#pragma unroll
    for (int c = 31; c >= 0; c--) {
        int j = 32 * half + c;
        float z = row[j] * scale, rest = log_rest(z);
        bool counts = !(diagonal && j >= r);
        weight[c] = counts ? __expf(z + rest + running) : 0;
        running += counts ? rest : 0;
        total += weight[c] * (drow[j] - delta);
    }
    float others = __shfl_xor_sync(0xffffffffu, total, 1), before = sum + (half == 1 ? others : 0);
#pragma unroll
    for (int c = 0; c < 32; c++) {
        int j = 32 * half + c;
        float z = row[j] * scale, rest = log_rest(z), gradient = weight[c] * (drow[j] - delta);
        bool counts = !(diagonal && j >= r);
        row[j] = weight[c];
        drow[j] = counts ? scale * (gradient * __expf(rest) - __expf(z + rest) * before) : 0;
        before += gradient;
    }
    sum += total + others;
    __syncwarp();
}

#endif
#endif
