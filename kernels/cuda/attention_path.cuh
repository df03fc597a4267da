/* What the two kernels for path inside a block of 64 tokens share: how warps divide its products, the block's place,
 * and its transform. In the comments G = W W^T, M = I + tril(diag(beta) G, -1), R = M^-1, T = R diag(beta),
 * C = tril(W K^T, -1), X = T^T W, A = tril(Q W^T). */
#ifndef STATELAB_KERNELS_CUDA_ATTENTION_PATH_CUH
#define STATELAB_KERNELS_CUDA_ATTENTION_PATH_CUH

#include "kernels/cuda/attention_tile.cuh"

#ifdef __CUDACC__

/* A warp owns 16 rows and, of COUNT warps to the same rows, its share of the columns: N pairs of quads of a matrix of D
 * columns, M of one of 64. */
template <int D> struct share {
    static constexpr int COUNT = D >= 64 ? 4 : D >= 32 ? 2 : 1, THREADS = COUNT * ATTENTION_THREADS;
    /* On a processor at once: what 128 registers a thread allow, and 256 where a thread has more to keep. */
    static constexpr int BLOCKS = D >= 32 ? 512 / THREADS : 2;
    static constexpr int N = D / 8 / COUNT, M = ATTENTION_BLOCK / 8 / COUNT;
    /* The warp's first column. */
    static __device__ int wide()
    {
        return threadIdx.x / ATTENTION_THREADS * 8 * N;
    }
    static __device__ int square()
    {
        return threadIdx.x / ATTENTION_THREADS * 8 * M;
    }
};

/* A square, as a tile or as floats. */
template <int E>
static constexpr size_t SLOT_BYTES =
    tile<E, ATTENTION_BLOCK>::BYTES > SQUARE_BYTES ? tile<E, ATTENTION_BLOCK>::BYTES : SQUARE_BYTES;

/* The block's place, and its tokens; bk counts key-value heads. */
struct path_place {
    int bk, block, first, rows, ldw;
    const float *w, *k;
};

static __device__ inline struct path_place find_place(const struct attention_call &call)
{
    struct path_place at;
    at.bk = blockIdx.x / call.blocks;
    at.block = blockIdx.x % call.blocks;
    at.first = at.block * ATTENTION_BLOCK;
    at.rows = block_rows(call, at.block);
    at.ldw = call.K * call.D;
    at.w = call.in.w + token_offset(call, at.bk, call.K, at.first, at.ldw);
    at.k = call.in.k + token_offset(call, at.bk, call.K, at.first, call.in.ldk);
    return at;
}

/* Offset of query head bh's tokens of the block in rows ldq apart. */
static __device__ inline size_t query_offset(const struct attention_call &call, const struct path_place &at, int bh)
{
    return token_offset(call, bh, call.H, at.first, call.in.ldq);
}

/* Where beta of token `row` of the block lies, in an array like in.beta. */
static __device__ inline size_t beta_index(const struct attention_call &call, const struct path_place &at, int row)
{
    return ((size_t)(at.bk / call.K) * call.T + at.first + row) * call.K + at.bk % call.K;
}

static __device__ inline void load_beta(const struct attention_call &call, const struct path_place &at, float *beta)
{
    if (threadIdx.x < ATTENTION_BLOCK)
        beta[threadIdx.x] = (int)threadIdx.x < at.rows ? call.in.beta[beta_index(call, at, threadIdx.x)] : 0;
}

/* sum += A B^T, a square of which only what is not above the diagonal is wanted: warps above it do nothing. */
template <enum layout LEFT, enum layout RIGHT, int DEPTH, enum part PART = WHOLE, typename TileA, typename TileB, int M>
static __device__ inline void multiply_lower(float (&sum)[M][4], TileA a, TileB b, int square)
{
    if (square < warp_row() + 16)
        multiply<LEFT, RIGHT, DEPTH, PART>(sum, a, warp_row(), shift<RIGHT>(b, square));
}

/* C, of tiles; not before all threads are done with c. */
template <int D, typename Tile, typename Square> static __device__ inline void keys_across(Square c, Tile w, Tile k)
{
    float across[share<D>::M][4] = {};
    int square = share<D>::square();
    multiply_lower<ROWS, ROWS, D>(across, w, k, square);
    keep_lower(across, -1, square);
    store_tile(shift<COLUMNS>(c, square), across);
}

/* Zeroes what tokens of one sequence would have with those of another. */
template <int M> static __device__ inline void keep_span(float (&x)[M][4], const struct attention_call &call, int from)
{
    int start[2] = { span_start(call, own_row(0)), span_start(call, own_row(1)) };
    each_pair(x, [&](int row, int col, float &first, float &second) {
        int least = start[row != own_row(0)];
        first = from + col >= least ? first : 0;
        second = from + col + 1 >= least ? second : 0;
    });
}

/* -A, of tiles; not before all threads are done with a. */
template <int D, typename Tile, typename Square>
static __device__ inline void queries_along(const struct attention_call &call, Square a, Tile q, Tile w)
{
    float along[share<D>::M][4] = {};
    int square = share<D>::square();
    multiply_lower<ROWS, ROWS, D>(along, q, w, square);
    keep_lower(along, 0, square);
    keep_span(along, call, square);
    negate(along);
    store_tile(shift<COLUMNS>(a, square), along);
}

/* T, from the warp's part of R. */
template <int D, typename Square>
static __device__ inline void store_transform(Square t, float (&inverse)[share<D>::M][4], const float *beta)
{
    int square = share<D>::square();
    each_pair(inverse, [&](int, int col, float &first, float &second) {
        first *= beta[square + col];
        second *= beta[square + col + 1];
    });
    store_tile(shift<COLUMNS>(t, square), inverse);
}

#endif
#endif
