/* PaTH's queries inside their own block of 64 tokens (arXiv 2505.16381, section 3.3), and the gradients of that: the
 * logits of the block, S = Q K^T - A Y with A = tril(Q W^T), and the queries at its left edge, Q - A U. Y and U come
 * from attention_path.cu. */
#include "kernels/cuda/attention_tile.cuh"

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

/* a = -tril(Q W^T), of tiles. */
template <int D, typename Tile> static __device__ inline void queries_along(float (&a)[8][4], Tile q, Tile w)
{
    multiply<ROWS, ROWS, D>(a, q, warp_row(), w);
    keep_lower(a, 0);
    negate(a);
}

/* ---- forward ---- */

template <int E, int D> static constexpr size_t queries_shared()
{
    return 2 * tile<E, D>::BYTES + tile<E, ATTENTION_BLOCK>::BYTES;
}

template <int E, int D>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    queries_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    extern __shared__ float4 shared[];
    char *base = reinterpret_cast<char *>(shared);
    auto q = carve_tile<tile<E, D>>(base), x = carve_tile<tile<E, D>>(base); /* x: W, K, U */
    auto local = carve_tile<tile<E, ATTENTION_BLOCK>>(base);
    struct place at = find_place(call);
    float a[8][4] = {}, s[8][4] = {}, edge[D / 8][4] = {};
    load_rows(q, at.q, call.in.ldq, at.rows);
    load_rows(x, at.w, at.ldw, at.rows);
    load_floats(local, block_matrix(call, call.local, at.bk, at.block, ATTENTION_BLOCK));
    __syncthreads();
    queries_along<D>(a, q, x);
    __syncthreads();
    load_rows(x, at.k, call.in.ldk, at.rows);
    __syncthreads();
    multiply<ROWS, ROWS, D>(s, q, warp_row(), x);
    multiply_kept<COLUMNS>(s, a, local);
    store_floats(block_matrix(call, call.logits, at.bh, at.block, ATTENTION_BLOCK), ATTENTION_BLOCK, s);
    __syncthreads();
    load_floats(x, block_matrix(call, call.update, at.bk, at.block, D));
    __syncthreads();
    multiply_kept<COLUMNS>(edge, a, x);
    add_slice(edge, at.q, call.in.ldq, at.rows);
    store_floats(block_matrix(call, call.edge, at.bh, at.block, D), D, edge);
}

/* ---- backward ---- */

template <int E, int D> static constexpr size_t queries_backward_shared()
{
    return 2 * tile<E, D>::BYTES + 2 * tile<E, ATTENTION_BLOCK>::BYTES;
}

/* What the queries give the keys, U and Y of their block. a: as the tile, -A. */
template <int D, typename Tile, typename Square>
static __device__ inline void to_operators(const struct attention_call &call, const struct place &at, Tile q,
                                           Tile dedge, Square a, Square ds)
{
    {
        float dlocal[8][4] = {};
        multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(dlocal, a, warp_row(), ds);
        store_floats(block_matrix(call, call.dlocal, at.bh, at.block, ATTENTION_BLOCK), ATTENTION_BLOCK, dlocal);
    }
    float sum[D / 8][4] = {};
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(sum, ds, warp_row(), q);
    store_floats(block_matrix(call, call.dk, at.bh, at.block, D), D, sum);
    clear(sum);
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(sum, a, warp_row(), dedge);
    store_floats(block_matrix(call, call.dupdate, at.bh, at.block, D), D, sum);
}

template <int E, int D>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    queries_backward_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int N = D / 8;
    extern __shared__ float4 shared[];
    char *base = reinterpret_cast<char *>(shared);
    auto q = carve_tile<tile<E, D>>(base), x = carve_tile<tile<E, D>>(base); /* x: W, dedge, U, W, K */
    auto a = carve_tile<tile<E, ATTENTION_BLOCK>>(base), ds = carve_tile<tile<E, ATTENTION_BLOCK>>(base);
    struct place at = find_place(call);
    const float *dedge = block_matrix(call, call.dedge, at.bh, at.block, D);
    float along[8][4] = {}, dq[N][4] = {};
    load_rows(q, at.q, call.in.ldq, at.rows);
    load_rows(x, at.w, at.ldw, at.rows);
    load_floats(ds, block_matrix(call, call.dlogits, at.bh, at.block, ATTENTION_BLOCK));
    __syncthreads();
    queries_along<D>(along, q, x);
    store_tile(a, along);
    __syncthreads();
    load_floats(x, dedge);
    __syncthreads();
    to_operators<D>(call, at, q, x, a, ds);
    __syncthreads();
    /* along = -dA = -tril(dedge U^T + dS Y^T), a: Y */
    load_floats(x, block_matrix(call, call.update, at.bk, at.block, D));
    load_floats(a, block_matrix(call, call.local, at.bk, at.block, ATTENTION_BLOCK));
    add_floats(dq, dedge, D);
    __syncthreads();
    clear(along);
    multiply_kept<ROWS>(along, dq, x);
    multiply<ROWS, ROWS, ATTENTION_BLOCK>(along, ds, warp_row(), a);
    keep_lower(along, 0);
    negate(along);
    __syncthreads();
    store_tile(a, along);
    load_rows(x, at.w, at.ldw, at.rows);
    __syncthreads();
    multiply_kept<COLUMNS>(dq, along, x);
    {
        float dw[N][4] = {};
        multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(dw, a, warp_row(), q);
        store_floats(block_matrix(call, call.dw, at.bh, at.block, D), D, dw);
    }
    __syncthreads();
    load_rows(x, at.k, call.in.ldk, at.rows);
    __syncthreads();
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK>(dq, ds, warp_row(), x);
    store_slice(call.out.dq + token_offset(call, at.bh, call.H, at.first, call.in.ldq), call.in.ldq, dq, at.rows);
}

/* ---- launching ---- */

void cuda_path_queries(struct cuda_device *cuda, const struct attention_call *call)
{
    with_precision(cuda, "attention", call->D, [&](auto precision, auto width) {
        constexpr int E = EXACT<decltype(precision)::P>, D = decltype(width)::D;
        attention_launch(cuda, "attention", queries_kernel<E, D>, (size_t)call->B * call->H * call->blocks,
                         queries_shared<E, D>(), call);
    });
}

void cuda_path_queries_backward(struct cuda_device *cuda, const struct attention_call *call)
{
    with_precision(cuda, "attention backward", call->D, [&](auto precision, auto width) {
        constexpr int E = EXACT<decltype(precision)::P>, D = decltype(width)::D;
        attention_launch(cuda, "attention backward", queries_backward_kernel<E, D>,
                         (size_t)call->B * call->H * call->blocks, queries_backward_shared<E, D>(), call);
    });
}
