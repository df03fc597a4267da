/* Tiles of 64 tokens in shared memory and their products on tensor cores (mma.sync; ldmatrix for bf16). A warp owns 16
 * rows of a product. fp32 is kept as floats and multiplied as three tf32 products of the operands' upper and lower
 * halves; tf32 as two bf16 halves, whose sum has 16 bits, and three bf16 products; bf16 as it is. */
#ifndef STATELAB_KERNELS_CUDA_ATTENTION_TILE_CUH
#define STATELAB_KERNELS_CUDA_ATTENTION_TILE_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/ptx.cuh"

#ifdef __CUDACC__

template <int P> struct tile_format {
    using element = uint16_t;
    static constexpr int PARTS = P == PRECISION_TF32 ? 2 : 1;
};
template <> struct tile_format<PRECISION_FP32> {
    using element = float;
    static constexpr int PARTS = 1;
};

/* What may not be rounded to bf16: errors in path's operators go into all later blocks. Gradients may. */
template <int P> static constexpr int EXACT = P == PRECISION_BF16 ? PRECISION_TF32 : P;

/* HEIGHT x WIDTH in shared memory: PARTS planes whose rows are LD elements apart (16 bytes more than WIDTH, against
 * bank conflicts). Packed in device memory the same planes lie without gaps, in at most HEIGHT * WIDTH floats. */
template <int PRECISION, int TILE_WIDTH, int TILE_HEIGHT = ATTENTION_BLOCK> struct tile {
    using element = typename tile_format<PRECISION>::element;
    static constexpr int P = PRECISION, WIDTH = TILE_WIDTH, HEIGHT = TILE_HEIGHT, PARTS = tile_format<P>::PARTS;
    static constexpr int LD = WIDTH + 16 / (int)sizeof(element), PLANE = HEIGHT * LD;
    static constexpr size_t BYTES = PARTS * PLANE * sizeof(element);
    element *at;
};

/* Squares of floats in shared memory: rows that neither rows nor columns of threads meet in a bank with. */
enum { SQUARE_LD = ATTENTION_BLOCK + 4, SQUARE_BYTES = ATTENTION_BLOCK * SQUARE_LD * (int)sizeof(float) };

/* Two stages of so many bytes where they leave room for other blocks of threads, otherwise one. */
template <size_t BYTES> static constexpr int STAGES = 2 * BYTES <= 64 * 1024 ? 2 : 1;

/* Lays out shared memory: the next tile or array from *base on. */
template <typename Tile> static __device__ inline Tile carve_tile(char *&base)
{
    Tile made = { reinterpret_cast<typename Tile::element *>(base) };
    base += Tile::BYTES;
    return made;
}
template <typename T> static __device__ inline T *carve_array(char *&base, size_t count)
{
    T *made = reinterpret_cast<T *>(base);
    base += count * sizeof(T);
    return made;
}

/* ---- asynchronous copies ---- */

/* All groups of the block but the last AHEAD have arrived. */
template <int AHEAD> static __device__ inline void copies_wait()
{
    copies_arrive<AHEAD>();
    __syncthreads();
}

static __device__ inline void copies_done()
{
    copies_commit();
    copies_wait<0>();
}

/* Starts copying a packed matrix. */
template <int THREADS = ATTENTION_THREADS, typename Tile>
static __device__ inline void load_packed(Tile to, const float *from)
{
    constexpr int PER = 16 / (int)sizeof(typename Tile::element), LINE = Tile::WIDTH / PER;
    const typename Tile::element *source = reinterpret_cast<const typename Tile::element *>(from);
    for (int chunk = threadIdx.x; chunk < Tile::PARTS * Tile::HEIGHT * LINE; chunk += THREADS)
        copy_async<16>(to.at + chunk / LINE * Tile::LD + chunk % LINE * PER, source + (size_t)chunk * PER);
}

/* ---- conversion ---- */

/* What rounding to bf16 left over. */
static __device__ inline uint32_t rest_bf16x2(uint32_t high, float first, float second)
{
    return to_bf16x2(first - __uint_as_float(high << 16), second - __uint_as_float(high & 0xffff0000u));
}

/* Two neighbours into a plane of shared or device memory; the planes are `plane` elements apart. */
template <int P>
static __device__ inline void put_pair(typename tile_format<P>::element *to, size_t plane, float first, float second)
{
    if constexpr (P == PRECISION_FP32) {
        *reinterpret_cast<float2 *>(to) = make_float2(first, second);
    } else {
        uint32_t high = to_bf16x2(first, second);
        *reinterpret_cast<uint32_t *>(to) = high;
        if constexpr (P == PRECISION_TF32)
            *reinterpret_cast<uint32_t *>(to + plane) = rest_bf16x2(high, first, second);
    }
}

template <int P>
static __device__ inline void put_eight(typename tile_format<P>::element *to, size_t plane, const float (&x)[8])
{
    if constexpr (P == PRECISION_FP32) {
        reinterpret_cast<float4 *>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
        reinterpret_cast<float4 *>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else {
        uint4 high = { to_bf16x2(x[0], x[1]), to_bf16x2(x[2], x[3]), to_bf16x2(x[4], x[5]), to_bf16x2(x[6], x[7]) };
        *reinterpret_cast<uint4 *>(to) = high;
        if constexpr (P == PRECISION_TF32)
            *reinterpret_cast<uint4 *>(to + plane) = { rest_bf16x2(high.x, x[0], x[1]), rest_bf16x2(high.y, x[2], x[3]),
                                                       rest_bf16x2(high.z, x[4], x[5]),
                                                       rest_bf16x2(high.w, x[6], x[7]) };
    }
}

/* Eight floats of a row, at any address. */
static __device__ inline void load_eight(float (&x)[8], const float *from, bool vector)
{
    if (vector) {
        float4 first = reinterpret_cast<const float4 *>(from)[0], second = reinterpret_cast<const float4 *>(from)[1];
        x[0] = first.x, x[1] = first.y, x[2] = first.z, x[3] = first.w;
        x[4] = second.x, x[5] = second.y, x[6] = second.z, x[7] = second.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = from[i];
    }
}

/* f(row, column, x[8]) for the `rows` rows of floats at `from`, ld apart, and for zeros in the rest of the 64. A thread
 * asks for up to four pieces before it waits for the first. */
template <int WIDTH, int THREADS, typename F>
static __device__ inline void each_eight(const float *from, int ld, int rows, F f)
{
    constexpr int LINE = WIDTH / 8, COUNT = ATTENTION_BLOCK * LINE / THREADS, BATCH = COUNT < 4 ? COUNT : 4;
    static_assert(COUNT >= 1 && COUNT % BATCH == 0);
    bool vector = ld % 4 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
#pragma unroll 1
    for (int first = threadIdx.x; first < ATTENTION_BLOCK * LINE; first += BATCH * THREADS) {
        float x[BATCH][8] = {};
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            int row = (first + n * THREADS) / LINE, col = (first + n * THREADS) % LINE * 8;
            if (row < rows)
                load_eight(x[n], from + (size_t)row * ld + col, vector);
        }
#pragma unroll
        for (int n = 0; n < BATCH; n++)
            f((first + n * THREADS) / LINE, (first + n * THREADS) % LINE * 8, x[n]);
    }
}

/* Asks for rows of floats that will be loaded later. */
template <int WIDTH, int THREADS> static __device__ inline void prefetch_rows(const float *from, int ld, int rows)
{
    constexpr int LINE = WIDTH < 32 ? 1 : WIDTH / 32; /* of 128 bytes */
    for (int at = threadIdx.x; at < rows * LINE; at += THREADS)
        prefetch(from + (size_t)(at / LINE) * ld + at % LINE * 32);
}

/* Rows of floats become a packed matrix, and a tile too. */
template <int P, int WIDTH, int THREADS = ATTENTION_THREADS>
static __device__ inline void pack_rows(float *packed, const float *from, int ld, int rows)
{
    auto *to = reinterpret_cast<typename tile_format<P>::element *>(packed);
    each_eight<WIDTH, THREADS>(from, ld, rows, [&](int row, int col, const float(&x)[8]) {
        put_eight<P>(to + row * WIDTH + col, ATTENTION_BLOCK * WIDTH, x);
    });
}
template <int THREADS = ATTENTION_THREADS, typename Tile>
static __device__ inline void load_rows(Tile tile, const float *from, int ld, int rows, float *packed = nullptr)
{
    auto *to = reinterpret_cast<typename Tile::element *>(packed);
    each_eight<Tile::WIDTH, THREADS>(from, ld, rows, [&](int row, int col, const float(&x)[8]) {
        put_eight<Tile::P>(tile.at + row * Tile::LD + col, Tile::PLANE, x);
        if (to)
            put_eight<Tile::P>(to + row * Tile::WIDTH + col, ATTENTION_BLOCK * Tile::WIDTH, x);
    });
}

/* Contiguous floats [HEIGHT, WIDTH], HEIGHT a multiple of 64 or less than it, become a tile. */
template <int THREADS = ATTENTION_THREADS, typename Tile>
static __device__ inline void load_floats(Tile tile, const float *from)
{
    for (int first = 0; first < Tile::HEIGHT; first += ATTENTION_BLOCK)
        each_eight<Tile::WIDTH, THREADS>(from + (size_t)first * Tile::WIDTH, Tile::WIDTH, Tile::HEIGHT - first,
                                         [&](int row, int col, const float(&x)[8]) {
                                             if (row + first < Tile::HEIGHT)
                                                 put_eight<Tile::P>(tile.at + (row + first) * Tile::LD + col,
                                                                    Tile::PLANE, x);
                                         });
}

/* ---- products ---- */

/* How an operand lies in a tile: x(row, depth) in row `row` and column `depth`, or the other way round. */
enum layout { ROWS, COLUMNS };

/* 16 rows of the left operand at one step of depth: STEP columns of it. Of fp32's eight, lane (g, t) holds depths 2t
 * and 2t + 1, so that the elements of a product can be used as they are. */
template <int P> struct left_fragment {
    static constexpr int STEP = P == PRECISION_FP32 ? 8 : 16;
    uint32_t high[4], low[4];
};

static __device__ inline void split_tf32(uint32_t &high, uint32_t &low, float value)
{
    high = to_tf32(value);
    low = to_tf32(value - __uint_as_float(high));
}

template <enum layout LAYOUT, typename Tile>
static __device__ inline void left_load(left_fragment<Tile::P> &left, Tile a, int row, int depth)
{
    int lane = threadIdx.x % 32;
    if constexpr (Tile::P == PRECISION_FP32) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + lane / 4 + i % 2 * 8, d = depth + lane % 4 * 2 + i / 2;
            split_tf32(left.high[i], left.low[i], LAYOUT == ROWS ? a.at[r * Tile::LD + d] : a.at[d * Tile::LD + r]);
        }
    } else {
        const uint16_t *at = LAYOUT == ROWS
                                 ? a.at + (row + lane % 16) * Tile::LD + depth + lane / 16 * 8
                                 : a.at + (depth + lane / 16 * 8 + lane % 8) * Tile::LD + row + lane / 8 % 2 * 8;
        load_matrices<LAYOUT == COLUMNS>(left.high, at);
        if constexpr (Tile::PARTS == 2)
            load_matrices<LAYOUT == COLUMNS>(left.low, at + Tile::PLANE);
    }
}

/* From the elements of a product whose columns are the depth. */
template <int P, int N>
static __device__ inline void left_take(left_fragment<P> &left, const float (&a)[N][4], int depth)
{
    if constexpr (P == PRECISION_FP32) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            split_tf32(left.high[i], left.low[i], a[depth / 8][i % 2 * 2 + i / 2]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *pair = &a[depth / 8 + i / 2][i % 2 * 2];
            left.high[i] = to_bf16x2(pair[0], pair[1]);
            if constexpr (P == PRECISION_TF32)
                left.low[i] = rest_bf16x2(left.high[i], pair[0], pair[1]);
        }
    }
}

/* sum += left * B^T over one step of depth. */
template <enum layout LAYOUT, typename Tile, int N>
static __device__ inline void multiply_step(float (&sum)[N][4], const left_fragment<Tile::P> &left, Tile b, int depth)
{
    int lane = threadIdx.x % 32;
    if constexpr (Tile::P == PRECISION_FP32) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t high[2], low[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int r = 8 * n + lane / 4, d = depth + lane % 4 * 2 + i;
                split_tf32(high[i], low[i], LAYOUT == ROWS ? b.at[r * Tile::LD + d] : b.at[d * Tile::LD + r]);
            }
            /* The tensor core's own additions cut off: long sums are rounded outside it. */
            float part[4] = {};
            mma<false>(part, left.low, high[0], high[1]);
            mma<false>(part, left.high, low[0], low[1]);
            mma<false>(part, left.high, high[0], high[1]);
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[n][e] += part[e];
        }
    } else {
        const uint16_t *at = LAYOUT == ROWS ? b.at + (lane / 16 * 8 + lane % 8) * Tile::LD + depth + lane / 8 % 2 * 8
                                            : b.at + (depth + lane % 16) * Tile::LD + lane / 16 * 8;
        constexpr int GROUP = N % 4 == 0 ? 4 : 2; /* products in flight, none of which waits for another */
#pragma unroll
        for (int n = 0; n < N; n += GROUP) {
            uint32_t high[GROUP / 2][4], low[GROUP / 2][4];
#pragma unroll
            for (int m = 0; m < GROUP / 2; m++) {
                const uint16_t *here = at + (LAYOUT == ROWS ? 8 * (n + 2 * m) * Tile::LD : 8 * (n + 2 * m));
                load_matrices<LAYOUT == COLUMNS>(high[m], here);
                if constexpr (Tile::PARTS == 2)
                    load_matrices<LAYOUT == COLUMNS>(low[m], here + Tile::PLANE);
            }
            if constexpr (Tile::PARTS == 2) {
#pragma unroll
                for (int m = 0; m < GROUP; m++)
                    mma<true>(sum[n + m], left.low, high[m / 2][m % 2 * 2], high[m / 2][m % 2 * 2 + 1]);
#pragma unroll
                for (int m = 0; m < GROUP; m++)
                    mma<true>(sum[n + m], left.high, low[m / 2][m % 2 * 2], low[m / 2][m % 2 * 2 + 1]);
            }
#pragma unroll
            for (int m = 0; m < GROUP; m++)
                mma<true>(sum[n + m], left.high, high[m / 2][m % 2 * 2], high[m / 2][m % 2 * 2 + 1]);
        }
    }
}

/* Where the left operand of a product may differ from 0: everywhere, at depths up to the row, or from the row on. */
enum part { WHOLE, LOWER, UPPER };

/* sum [16, 8N] += A B^T: A [16, DEPTH] is 16 rows of tile `a` from `row` on, B [8N, DEPTH] tile `b` from its first row
 * (in that layout). Element sum[n][e] of lane (g, t) is row g + e/2*8, column 8n + 2t + e%2. */
template <enum layout LEFT, enum layout RIGHT, int DEPTH, enum part PART = WHOLE, typename TileA, typename TileB, int N>
static __device__ inline void multiply(float (&sum)[N][4], TileA a, int row, TileB b)
{
    static_assert(TileA::P == TileB::P);
    constexpr int UNROLLED = TileA::P == PRECISION_FP32 ? 2 : DEPTH;
#pragma unroll UNROLLED
    for (int depth = 0; depth < DEPTH; depth += left_fragment<TileA::P>::STEP) {
        if ((PART == LOWER && depth > row + 15) || (PART == UPPER && depth + left_fragment<TileA::P>::STEP <= row))
            continue;
        left_fragment<TileA::P> left;
        left_load<LEFT>(left, a, row, depth);
        multiply_step<RIGHT>(sum, left, b, depth);
    }
}

/* The same where A is the warp's part of another product. */
template <enum layout RIGHT, typename Tile, int N, int M>
static __device__ inline void multiply_kept(float (&sum)[N][4], const float (&a)[M][4], Tile b)
{
#pragma unroll
    for (int depth = 0; depth < 8 * M; depth += left_fragment<Tile::P>::STEP) {
        left_fragment<Tile::P> left;
        left_take<Tile::P>(left, a, depth);
        multiply_step<RIGHT>(sum, left, b, depth);
    }
}

/* ---- the warp's part of a product ---- */

/* The tile from column `first` of the right operand on. */
template <enum layout LAYOUT, typename Tile> static __device__ inline Tile shift(Tile tile, int first)
{
    tile.at += LAYOUT == ROWS ? first * Tile::LD : first;
    return tile;
}

/* The warp's first row. Of more than four warps some share their rows; every fourth, which run on the same quarter of
 * the processor, have different ones, because triangular products give some rows more work. */
static __device__ inline int warp_row()
{
    return (threadIdx.x / 32 + threadIdx.x / ATTENTION_THREADS) % 4 * 16;
}

/* Row of this thread's elements e = 0, 1 (half 0) and e = 2, 3 (half 1), and their first column. */
static __device__ inline int own_row(int half)
{
    return warp_row() + threadIdx.x % 32 / 4 + 8 * half;
}

static __device__ inline int own_column(int n)
{
    return 8 * n + threadIdx.x % 4 * 2;
}

/* f(row, column, first, second) for each pair of neighbours. */
template <int N, typename F> static __device__ inline void each_pair(float (&x)[N][4], F f)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        f(own_row(0), own_column(n), x[n][0], x[n][1]);
        f(own_row(1), own_column(n), x[n][2], x[n][3]);
    }
}

/* Over the four threads that share a row. */
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

template <int N> static __device__ inline void clear(float (&x)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
        x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
}

template <int N> static __device__ inline void negate(float (&x)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[n][e] = -x[n][e];
}

/* Zeroes what lies above the diagonal of a square of which x begins with column `from`; with offset -1 the diagonal
 * too.
 */
template <int N> static __device__ inline void keep_lower(float (&x)[N][4], int offset, int from = 0)
{
    each_pair(x, [&](int row, int col, float &first, float &second) {
        first = from + col <= row + offset ? first : 0;
        second = from + col + 1 <= row + offset ? second : 0;
    });
}

template <typename Tile, int N> static __device__ inline void store_tile(Tile to, float (&x)[N][4])
{
    each_pair(x, [&](int row, int col, float &first, float &second) {
        put_pair<Tile::P>(to.at + row * Tile::LD + col, Tile::PLANE, first, second);
    });
}

/* Into a packed [64, WIDTH], from column `from` on. */
template <int P, int WIDTH, int N>
static __device__ inline void store_packed(float *packed, float (&x)[N][4], int from = 0)
{
    auto *to = reinterpret_cast<typename tile_format<P>::element *>(packed);
    each_pair(x, [&](int row, int col, float &first, float &second) {
        put_pair<P>(to + row * WIDTH + from + col, ATTENTION_BLOCK * WIDTH, first, second);
    });
}

/* Floats, rows ld apart, ld even. */
template <int N> static __device__ inline void store_floats(float *to, int ld, float (&x)[N][4])
{
    each_pair(x, [&](int row, int col, float &first, float &second) {
        *reinterpret_cast<float2 *>(to + (size_t)row * ld + col) = make_float2(first, second);
    });
}

/* The first `rows` rows of a slice whose ld may be odd. */
template <int N> static __device__ inline void store_slice(float *to, int ld, float (&x)[N][4], int rows)
{
    each_pair(x, [&](int row, int col, float &first, float &second) {
        if (row >= rows)
            return;
        to[(size_t)row * ld + col] = first;
        to[(size_t)row * ld + col + 1] = second;
    });
}

/* x += from, rows ld apart, ld even. */
template <int N> static __device__ inline void add_floats(float (&x)[N][4], const float *from, int ld)
{
    each_pair(x, [&](int row, int col, float &first, float &second) {
        float2 pair = *reinterpret_cast<const float2 *>(from + (size_t)row * ld + col);
        first += pair.x;
        second += pair.y;
    });
}

/* x += the first `rows` rows of a slice whose ld may be odd. */
template <int N> static __device__ inline void add_slice(float (&x)[N][4], const float *from, int ld, int rows)
{
    each_pair(x, [&](int row, int col, float &first, float &second) {
        if (row >= rows)
            return;
        first += from[(size_t)row * ld + col];
        second += from[(size_t)row * ld + col + 1];
    });
}

#endif
#endif
