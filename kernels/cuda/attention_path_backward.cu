/* The gradients of PaTH inside one block of 64 tokens (see attention_path.cu): from those of the logits and of the
 * queries at the left edge, for each query head, and from those of the keys at the right edge and of the block product,
 * to those of q, k, w and beta. */
#include "kernels/cuda/attention_path.cuh"

/* The memory of a block of threads. The gradient of the product lies where keys and edges do. */
template <int E, int D> struct path_backward_memory {
    tile<E, D> w, x, k, y; /* x: Q, then -X; y: gradients of edges, then of keys; k: K, then the gradient of X */
    tile<E, D, D> dchange;
    tile<E, ATTENTION_BLOCK> transform, b, c;
    float *beta, *dbeta; /* dbeta: a part for each of the warps that share rows */
    static constexpr size_t PAIR = 2 * tile<E, D>::BYTES;
    static_assert(tile<E, D, D>::BYTES <= PAIR);
    static constexpr size_t BYTES = 2 * tile<E, D>::BYTES + PAIR + 3 * tile<E, ATTENTION_BLOCK>::BYTES +
                                    (1 + share<D>::COUNT) * ATTENTION_BLOCK * sizeof(float);
};

template <int E, int D> static __device__ inline struct path_backward_memory<E, D> carve_memory(char *base) {
    struct path_backward_memory<E, D> memory;
    memory.w = carve_tile<tile<E, D>>(base);
    memory.x = carve_tile<tile<E, D>>(base);
    memory.dchange.at = reinterpret_cast<typename tile<E, D, D>::element *>(base);
    memory.k = carve_tile<tile<E, D>>(base);
    memory.y = carve_tile<tile<E, D>>(base);
    memory.transform = carve_tile<tile<E, ATTENTION_BLOCK>>(base);
    memory.b = carve_tile<tile<E, ATTENTION_BLOCK>>(base);
    memory.c = carve_tile<tile<E, ATTENTION_BLOCK>>(base);
    memory.beta = carve_array<float>(base, ATTENTION_BLOCK);
    memory.dbeta = carve_array<float>(base, share<D>::COUNT *ATTENTION_BLOCK);
    return memory;
}

/* The warp's part of the gradients of W, K, C and T. */
template <int D>
struct path_sums {
    float dw[share<D>::N][4], dk[share<D>::N][4], dacross[share<D>::M][4], dtransform[share<D>::M][4];
};

/* Query head bh: its dq, and what its logits S = Q K^T - A' C and edge = Q - A' W, A' = A T, give the others.
 * Begins and ends with all threads together. */
template <int E, int D>
static __device__ inline void queries_backward(const struct attention_call &call, const struct path_place &at,
                                               const struct path_backward_memory<E, D> &memory,
                                               struct path_sums<D> &sums, int bh)
{
    constexpr int N = share<D>::N, M = share<D>::M, THREADS = share<D>::THREADS;
    int wide = share<D>::wide(), square = share<D>::square();
    const float *dedge = block_matrix(call, call.dedge, bh, at.block, D);
    float moved[M][4] = {}, dmoved[M][4] = {}, dq[N][4] = {};
    load_rows<THREADS>(memory.x, call.in.q + query_offset(call, at, bh), call.in.ldq, at.rows);
    load_floats<THREADS>(memory.y, dedge);
    load_floats<THREADS>(memory.b, block_matrix(call, call.dlogits, bh, at.block, ATTENTION_BLOCK));
    add_floats(dq, dedge + wide, D);
    __syncthreads();
    queries_along<D>(call, memory.c, memory.x, memory.w);
    multiply_lower<ROWS, ROWS, D>(dmoved, memory.y, memory.w, square);
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(sums.dk, memory.b, warp_row(), shift<COLUMNS>(memory.x, wide));
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(dq, memory.b, warp_row(), shift<COLUMNS>(memory.k, wide));
    __syncthreads();
    multiply_lower<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(moved, memory.c, memory.transform, square); /* -A' */
    __syncthreads();
    keys_across<D>(memory.c, memory.w, memory.k);
    __syncthreads();
    multiply_lower<ROWS, ROWS, ATTENTION_BLOCK, LOWER>(dmoved, memory.b, memory.c, square); /* the gradient of -A' */
    __syncthreads();
    store_tile(shift<COLUMNS>(memory.c, square), moved);
    __syncthreads();
    multiply_lower<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(sums.dacross, memory.c, memory.b, square);
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(sums.dw, memory.c, warp_row(), shift<COLUMNS>(memory.y, wide));
    __syncthreads();
    store_tile(shift<COLUMNS>(memory.b, square), dmoved);
    queries_along<D>(call, memory.c, memory.x, memory.w);
    __syncthreads();
    multiply_lower<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(sums.dtransform, memory.c, memory.b, square);
    clear(moved);
    multiply_lower<ROWS, ROWS, ATTENTION_BLOCK, LOWER>(moved, memory.b, memory.transform, square);
    keep_lower(moved, 0, square);
    negate(moved);
    __syncthreads();
    store_tile(shift<COLUMNS>(memory.c, square), moved); /* the gradient of A */
    __syncthreads();
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(dq, memory.c, warp_row(), shift<COLUMNS>(memory.w, wide));
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(sums.dw, memory.c, warp_row(), shift<COLUMNS>(memory.x, wide));
    store_slice(call.out.dq + query_offset(call, at, bh) + wide, call.in.ldq, dq, at.rows);
    __syncthreads();
}

/* C = tril(W K^T, -1), whose gradient is complete: to those of K, which is written, and W. Begins with all threads
 * together; ends with memory.c in use. */
template <int E, int D>
static __device__ inline void across_backward(const struct attention_call &call, const struct path_place &at,
                                              const struct path_backward_memory<E, D> &memory,
                                              struct path_sums<D> &sums, bool met)
{
    int wide = share<D>::wide(), square = share<D>::square();
    keep_lower(sums.dacross, -1, square);
    store_tile(shift<COLUMNS>(memory.c, square), sums.dacross);
    if (met)
        add_floats(sums.dk, block_matrix(call, call.dkeys, at.bk, at.block, D) + wide, D);
    __syncthreads();
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(sums.dk, memory.c, warp_row(), shift<COLUMNS>(memory.w, wide));
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(sums.dw, memory.c, warp_row(), shift<COLUMNS>(memory.k, wide));
    store_slice(call.out.dk + token_offset(call, at.bk, call.K, at.first, call.in.ldk) + wide, call.in.ldk, sums.dk,
                at.rows);
}

/* Keys at the right edge, K - C^T X, and the product's -X^T W, where later blocks meet them; X = T^T W. Begins with all
 * threads together. */
template <int E, int D>
static __device__ inline void edges_backward(const struct attention_call &call, const struct path_place &at,
                                             const struct path_backward_memory<E, D> &memory, struct path_sums<D> &sums)
{
    constexpr int N = share<D>::N, THREADS = share<D>::THREADS;
    int wide = share<D>::wide(), square = share<D>::square();
    float x[N][4] = {};
    load_floats<THREADS>(memory.y, block_matrix(call, call.dkeys, at.bk, at.block, D));
    keys_across<D>(memory.b, memory.w, memory.k);
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(x, memory.transform, warp_row(), shift<COLUMNS>(memory.w, wide));
    negate(x);
    store_tile(shift<COLUMNS>(memory.x, wide), x);
    __syncthreads();
    multiply_lower<ROWS, ROWS, D>(sums.dacross, memory.x, memory.y, square);
    clear(x);
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(x, memory.b, warp_row(), shift<COLUMNS>(memory.y, wide));
    across_backward(call, at, memory, sums, true);
    __syncthreads();
    if (at.block > 0) {
        load_floats<THREADS>(memory.dchange, block_matrix(call, call.dchange, at.bk, at.block, D, D));
        __syncthreads();
        multiply<ROWS, ROWS, D>(x, memory.w, warp_row(), shift<ROWS>(memory.dchange, wide));
        multiply<ROWS, COLUMNS, D>(sums.dw, memory.x, warp_row(), shift<COLUMNS>(memory.dchange, wide));
        __syncthreads();
    }
    negate(x);
    store_tile(shift<COLUMNS>(memory.k, wide), x); /* the gradient of X */
    __syncthreads();
    multiply_lower<ROWS, ROWS, D>(sums.dtransform, memory.w, memory.k, square);
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(sums.dw, memory.transform, warp_row(),
                                                    shift<COLUMNS>(memory.k, wide));
}

/* dbeta of the thread's row: its parts, added in their order. */
static __device__ inline void store_dbeta(const struct attention_call &call, const struct path_place &at,
                                          const float *parts, int count)
{
    int row = threadIdx.x;
    if (row >= at.rows)
        return;
    float sum = 0;
    for (int part = 0; part < count; part++)
        sum += parts[part * ATTENTION_BLOCK + row];
    call.out.dbeta[beta_index(call, at, row)] = sum;
}

/* T = M^-1 diag(beta): with Z = R^T dT, dM = -Z T^T, and beta gets the diagonal of Z and the row sums of dM * G. */
template <int E, int D>
static __device__ inline void inverse_backward(const struct attention_call &call, const struct path_place &at,
                                               const struct path_backward_memory<E, D> &memory,
                                               struct path_sums<D> &sums)
{
    constexpr int M = share<D>::M;
    int square = share<D>::square();
    float own[M][4] = {}, gram[M][4] = {}, dbeta[2] = {};
    add_floats(own, block_matrix(call, call.inverse, at.bk, at.block, ATTENTION_BLOCK) + square, ATTENTION_BLOCK);
    store_tile(shift<COLUMNS>(memory.b, square), own);
    keep_lower(sums.dtransform, 0, square);
    multiply_lower<ROWS, ROWS, D>(gram, memory.w, memory.w, square);
    __syncthreads();
    store_tile(shift<COLUMNS>(memory.c, square), sums.dtransform);
    __syncthreads();
    clear(own);
    multiply_lower<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(own, memory.b, memory.c, square); /* Z */
    __syncthreads();
    store_tile(shift<COLUMNS>(memory.b, square), own);
    each_pair(own, [&](int row, int col, float &first, float &second) {
        int half = row != own_row(0);
        dbeta[half] += square + col == row ? first : square + col + 1 == row ? second : 0;
    });
    __syncthreads();
    clear(own);
    multiply_lower<ROWS, ROWS, ATTENTION_BLOCK, LOWER>(own, memory.b, memory.transform, square); /* -dM */
    negate(own);
    keep_lower(own, -1, square);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            dbeta[e / 2] += own[m][e] * gram[m][e];
            own[m][e] *= memory.beta[own_row(e / 2)];
        }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = quad_sum(dbeta[half]);
        memory.dbeta[threadIdx.x / ATTENTION_THREADS * ATTENTION_BLOCK + own_row(half)] = sum;
    }
    store_tile(shift<COLUMNS>(memory.c, square), own); /* the gradient of G */
    __syncthreads();
    store_dbeta(call, at, memory.dbeta, share<D>::COUNT);
    int wide = share<D>::wide();
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(sums.dw, memory.c, warp_row(), shift<COLUMNS>(memory.w, wide));
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(sums.dw, memory.c, warp_row(), shift<COLUMNS>(memory.w, wide));
}

/* Asks for what is read after W. */
template <int D>
static __device__ inline void prefetch_inputs(const struct attention_call &call, const struct path_place &at)
{
    constexpr int THREADS = share<D>::THREADS;
    int bh = query_head(call, at.bk, 0);
    bool met = at.block < call.blocks - 1;
    prefetch_rows<D, THREADS>(at.k, call.in.ldk, at.rows);
    prefetch_rows<D, THREADS>(call.in.q + query_offset(call, at, bh), call.in.ldq, at.rows);
    prefetch_rows<D, THREADS>(block_matrix(call, call.dedge, bh, at.block, D), D, ATTENTION_BLOCK);
    prefetch_rows<ATTENTION_BLOCK, THREADS>(block_matrix(call, call.dlogits, bh, at.block, ATTENTION_BLOCK),
                                            ATTENTION_BLOCK, ATTENTION_BLOCK);
    if (met)
        prefetch_rows<D, THREADS>(block_matrix(call, call.dkeys, at.bk, at.block, D), D, ATTENTION_BLOCK);
    if (met && at.block > 0)
        prefetch_rows<D, THREADS>(block_matrix(call, call.dchange, at.bk, at.block, D, D), D, D);
}

template <int E, int D>
static __global__ void __launch_bounds__(share<D>::THREADS, share<D>::BLOCKS)
    path_backward_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int THREADS = share<D>::THREADS;
    extern __shared__ float4 shared[];
    struct path_backward_memory<E, D> memory = carve_memory<E, D>(reinterpret_cast<char *>(shared));
    struct path_place at = find_place(call);
    path_sums<D> sums = {};
    int wide = share<D>::wide(), square = share<D>::square();
    prefetch_inputs<D>(call, at);
    load_rows<THREADS>(memory.w, at.w, at.ldw, at.rows);
    load_rows<THREADS>(memory.k, at.k, call.in.ldk, at.rows);
    load_beta(call, at, memory.beta);
    __syncthreads();
    {
        float inverse[share<D>::M][4] = {};
        add_floats(inverse, block_matrix(call, call.inverse, at.bk, at.block, ATTENTION_BLOCK) + square,
                   ATTENTION_BLOCK);
        store_transform<D>(memory.transform, inverse, memory.beta);
    }
    for (int g = 0; g < call.group; g++)
        queries_backward(call, at, memory, sums, query_head(call, at.bk, g));
    if (at.block < call.blocks - 1)
        edges_backward(call, at, memory, sums);
    else
        across_backward(call, at, memory, sums, false);
    inverse_backward(call, at, memory, sums);
    store_slice(call.out.dw + token_offset(call, at.bk, call.K, at.first, at.ldw) + wide, at.ldw, sums.dw, at.rows);
}

/* In EXACT, or in P where that asks for more shared memory than the card has: gradients may be rounded. */
void cuda_path_backward(struct cuda_device *cuda, const struct attention_call *call)
{
    with_precision(cuda, "attention backward", call->D, [&](auto precision, auto width) {
        constexpr int P = decltype(precision)::P, D = decltype(width)::D;
        constexpr size_t exact = path_backward_memory<EXACT<P>, D>::BYTES, plain = path_backward_memory<P, D>::BYTES;
        size_t blocks = (size_t)call->B * call->K * call->blocks;
        if (exact <= (size_t)cuda->shared_limit)
            attention_launch(cuda, "attention backward", path_backward_kernel<EXACT<P>, D>, blocks, exact, call,
                             share<D>::THREADS);
        else
            attention_launch(cuda, "attention backward", path_backward_kernel<P, D>, blocks, plain, call,
                             share<D>::THREADS);
    });
}
