/* PaTH's queries inside their own block of 64 tokens (arXiv 2505.16381, section 3.3), and the gradients of that: the
 * logits of the block, S = Q K^T - A Y with A = tril(Q W^T), and the queries at its left edge, Q - A U. Y and U come
 * from attention_path.cu. */
#include "kernels/cuda/attention_path.cuh"

/* The block's place, and its tokens. */
struct place {
    int bh, bk, block, first, rows, ldw;
    const float *q, *k, *w;
};

static __device__ inline struct place find_place(const struct attention_call &call)
{
    struct place at;
    at.bh = blockIdx.x / call.blocks;
    at.bk = key_head(call, at.bh);
    at.block = blockIdx.x % call.blocks;
    at.first = at.block * ATTENTION_BLOCK;
    at.rows = block_rows(call, at.block);
    at.ldw = call.K * call.D;
    at.q = call.in.q + token_offset(call, at.bh, call.H, at.first, call.in.ldq);
    at.k = call.in.k + token_offset(call, at.bk, call.K, at.first, call.in.ldk);
    at.w = call.in.w + token_offset(call, at.bk, call.K, at.first, at.ldw);
    return at;
}

/* a = -tril(Q W^T), of tiles; not before all threads are done with a. */
template <int D, typename Tile, typename Square> static __device__ inline void queries_along(Square a, Tile q, Tile w)
{
    float along[share<D>::M][4] = {};
    int square = share<D>::square();
    multiply<ROWS, ROWS, D>(along, q, warp_row(), shift<ROWS>(w, square));
    keep_lower(along, 0, square);
    negate(along);
    store_tile(shift<COLUMNS>(a, square), along);
}

template <int E, int D> static constexpr size_t queries_shared()
{
    return 2 * tile<E, D>::BYTES + 2 * tile<E, ATTENTION_BLOCK>::BYTES;
}

/* ---- forward ---- */

template <int E, int D>
static __global__ void __launch_bounds__(share<D>::THREADS)
    queries_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int THREADS = share<D>::THREADS;
    extern __shared__ float4 shared[];
    char *base = reinterpret_cast<char *>(shared);
    auto q = carve_tile<tile<E, D>>(base), x = carve_tile<tile<E, D>>(base); /* x: W, K, U */
    auto local = carve_tile<tile<E, ATTENTION_BLOCK>>(base), a = carve_tile<tile<E, ATTENTION_BLOCK>>(base);
    struct place at = find_place(call);
    int wide = share<D>::wide(), square = share<D>::square();
    float s[share<D>::M][4] = {}, edge[share<D>::N][4] = {};
    load_rows<THREADS>(q, at.q, call.in.ldq, at.rows);
    load_rows<THREADS>(x, at.w, at.ldw, at.rows);
    load_floats<THREADS>(local, block_matrix(call, call.local, at.bk, at.block, ATTENTION_BLOCK));
    __syncthreads();
    queries_along<D>(a, q, x);
    __syncthreads();
    load_rows<THREADS>(x, at.k, call.in.ldk, at.rows);
    __syncthreads();
    multiply<ROWS, ROWS, D>(s, q, warp_row(), shift<ROWS>(x, square));
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK>(s, a, warp_row(), shift<COLUMNS>(local, square));
    store_floats(block_matrix(call, call.logits, at.bh, at.block, ATTENTION_BLOCK) + square, ATTENTION_BLOCK, s);
    __syncthreads();
    load_floats<THREADS>(x, block_matrix(call, call.update, at.bk, at.block, D));
    __syncthreads();
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK>(edge, a, warp_row(), shift<COLUMNS>(x, wide));
    add_slice(edge, at.q + wide, call.in.ldq, at.rows);
    store_floats(block_matrix(call, call.edge, at.bh, at.block, D) + wide, D, edge);
}

/* ---- backward ---- */

/* What the queries give the keys, U and Y of their block. a: -A. */
template <int D, typename Tile, typename Square>
static __device__ inline void to_operators(const struct attention_call &call, const struct place &at, Tile q,
                                           Tile dedge, Square a, Square ds)
{
    int wide = share<D>::wide(), square = share<D>::square();
    float dlocal[share<D>::M][4] = {}, dk[share<D>::N][4] = {}, dupdate[share<D>::N][4] = {};
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(dlocal, a, warp_row(), shift<COLUMNS>(ds, square));
    store_floats(block_matrix(call, call.dlocal, at.bh, at.block, ATTENTION_BLOCK) + square, ATTENTION_BLOCK, dlocal);
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(dk, ds, warp_row(), shift<COLUMNS>(q, wide));
    store_floats(block_matrix(call, call.dk, at.bh, at.block, D) + wide, D, dk);
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(dupdate, a, warp_row(), shift<COLUMNS>(dedge, wide));
    store_floats(block_matrix(call, call.dupdate, at.bh, at.block, D) + wide, D, dupdate);
}

/* a = -dA = -tril(dedge U^T + dS Y^T). */
template <int D, typename Tile, typename Square>
static __device__ inline void along_backward(Square a, Tile dedge, Tile update, Square ds, Square local)
{
    float along[share<D>::M][4] = {};
    int square = share<D>::square();
    multiply<ROWS, ROWS, D>(along, dedge, warp_row(), shift<ROWS>(update, square));
    multiply<ROWS, ROWS, ATTENTION_BLOCK>(along, ds, warp_row(), shift<ROWS>(local, square));
    keep_lower(along, 0, square);
    negate(along);
    __syncthreads();
    store_tile(shift<COLUMNS>(a, square), along);
}

template <int E, int D>
static __global__ void __launch_bounds__(share<D>::THREADS)
    queries_backward_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int N = share<D>::N, THREADS = share<D>::THREADS;
    extern __shared__ float4 shared[];
    char *base = reinterpret_cast<char *>(shared);
    auto x = carve_tile<tile<E, D>>(base), y = carve_tile<tile<E, D>>(base);
    auto a = carve_tile<tile<E, ATTENTION_BLOCK>>(base), ds = carve_tile<tile<E, ATTENTION_BLOCK>>(base);
    struct place at = find_place(call);
    int wide = share<D>::wide();
    const float *dedge = block_matrix(call, call.dedge, at.bh, at.block, D);
    float dq[N][4] = {}, dw[N][4] = {};
    load_rows<THREADS>(x, at.q, call.in.ldq, at.rows);
    load_rows<THREADS>(y, at.w, at.ldw, at.rows);
    load_floats<THREADS>(ds, block_matrix(call, call.dlogits, at.bh, at.block, ATTENTION_BLOCK));
    __syncthreads();
    queries_along<D>(a, x, y);
    __syncthreads();
    load_floats<THREADS>(y, dedge);
    __syncthreads();
    to_operators<D>(call, at, x, y, a, ds);
    __syncthreads();
    load_floats<THREADS>(x, block_matrix(call, call.update, at.bk, at.block, D));
    load_floats<THREADS>(a, block_matrix(call, call.local, at.bk, at.block, ATTENTION_BLOCK));
    __syncthreads();
    along_backward<D>(a, y, x, ds, a);
    __syncthreads();
    load_rows<THREADS>(x, at.w, at.ldw, at.rows);
    load_rows<THREADS>(y, at.q, call.in.ldq, at.rows);
    add_floats(dq, dedge + wide, D);
    __syncthreads();
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK>(dq, a, warp_row(), shift<COLUMNS>(x, wide));
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(dw, a, warp_row(), shift<COLUMNS>(y, wide));
    store_floats(block_matrix(call, call.dw, at.bh, at.block, D) + wide, D, dw);
    __syncthreads();
    load_rows<THREADS>(x, at.k, call.in.ldk, at.rows);
    __syncthreads();
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK>(dq, ds, warp_row(), shift<COLUMNS>(x, wide));
    store_slice(call.out.dq + token_offset(call, at.bh, call.H, at.first, call.in.ldq) + wide, call.in.ldq, dq,
                at.rows);
}

/* ---- launching ---- */

void cuda_path_queries(struct cuda_device *cuda, const struct attention_call *call)
{
    with_precision(cuda, "attention", call->D, [&](auto precision, auto width) {
        constexpr int E = EXACT<decltype(precision)::P>, D = decltype(width)::D;
        attention_launch(cuda, "attention", queries_kernel<E, D>, (size_t)call->B * call->H * call->blocks,
                         queries_shared<E, D>(), call, share<D>::THREADS);
    });
}

void cuda_path_queries_backward(struct cuda_device *cuda, const struct attention_call *call)
{
    with_precision(cuda, "attention backward", call->D, [&](auto precision, auto width) {
        constexpr int E = decltype(precision)::P, D = decltype(width)::D;
        attention_launch(cuda, "attention backward", queries_backward_kernel<E, D>,
                         (size_t)call->B * call->H * call->blocks, queries_shared<E, D>(), call, share<D>::THREADS);
    });
}
