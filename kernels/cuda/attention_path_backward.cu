/* The gradients of PaTH inside one block of 64 tokens (see attention_path.cu): from those of the logits and of the
 * queries at the left edge, for each query head, and from those of the keys at the right edge and of the block product,
 * to those of q, k, w and beta. */
#include "kernels/cuda/attention_path.cuh"

/* The memory of a block of threads. The gradient of the product lies where keys and edges do. TIGHT: these and Q take
 * turns in one place, and X lies where c does. */
template <int E, int D, bool TIGHT> struct path_backward_memory {
    tile<E, D> w, x, q, k, y; /* x: -X; y: gradients of edges, then of keys; k: K, then the gradient of X */
    tile<E, D, D> dchange;
    tile<E, ATTENTION_BLOCK> transform, b, c;
    float *beta, *dbeta; /* dbeta: a part for each of the warps that share rows */
    static constexpr size_t WIDE = tile<E, D>::BYTES, SQUARE_TILE = tile<E, ATTENTION_BLOCK>::BYTES;
    static constexpr size_t TURNS = TIGHT ? WIDE : 2 * WIDE;
    static constexpr size_t BYTES =
        (TIGHT ? 1 : 2) * WIDE + TURNS + 3 * SQUARE_TILE + (1 + share<D>::COUNT) * ATTENTION_BLOCK * sizeof(float);
};

template <int E, int D, bool TIGHT>
static __device__ inline struct path_backward_memory<E, D, TIGHT> carve_memory(char *base) {
    using Memory = path_backward_memory<E, D, TIGHT>;
    static_assert((tile<E, D, D>::BYTES <= Memory::TURNS) && (!TIGHT || Memory::WIDE <= Memory::SQUARE_TILE));
    Memory memory;
    auto at = [&](size_t offset) {
        return tile<E, D>{ reinterpret_cast<typename tile<E, D>::element *>(base + offset) };
    };
    memory.k = at(0);
    memory.y = at(TIGHT ? 0 : Memory::WIDE);
    memory.dchange.at = memory.k.at;
    base += Memory::TURNS;
    memory.w = carve_tile<tile<E, D>>(base);
    memory.q = TIGHT ? memory.k : carve_tile<tile<E, D>>(base);
    memory.transform = carve_tile<tile<E, ATTENTION_BLOCK>>(base);
    memory.b = carve_tile<tile<E, ATTENTION_BLOCK>>(base);
    memory.c.at = reinterpret_cast<typename tile<E, ATTENTION_BLOCK>::element *>(base);
    memory.x = TIGHT ? at(0) : memory.q;
    base += Memory::SQUARE_TILE;
    memory.beta = carve_array<float>(base, ATTENTION_BLOCK);
    memory.dbeta = carve_array<float>(base, share<D>::COUNT *ATTENTION_BLOCK);
    return memory;
}

/* Rows that take their turn: TIGHT, after all threads are done with those before, and there for all afterwards. */
template <bool TIGHT, int D, typename Tile>
static __device__ inline void take_turn(Tile to, const float *from, int ld, int rows)
{
    if (!TIGHT)
        return;
    __syncthreads();
    load_rows<share<D>::THREADS>(to, from, ld, rows);
    __syncthreads();
}

/* The warp's part of the gradients of W, K, C and T. */
template <int D> struct path_sums {
    float dw[share<D>::N][4], dk[share<D>::N][4], dacross[share<D>::M][4], dtransform[share<D>::M][4];
};

/* Query head bh: its dq, and what its logits S = Q K^T - A' C and edge = Q - A' W, A' = A T, give the others.
 * Begins and ends with all threads together. */
template <int E, int D, bool TIGHT>
static __device__ inline void queries_backward(const struct attention_call &call, const struct path_place &at,
                                               const struct path_backward_memory<E, D, TIGHT> &memory,
                                               struct path_sums<D> &sums, int bh)
{
    constexpr int N = share<D>::N, M = share<D>::M, THREADS = share<D>::THREADS;
    int wide = share<D>::wide(), square = share<D>::square();
    const float *dedge = block_matrix(call, call.dedge, bh, at.block, D), *q = call.in.q + query_offset(call, at, bh);
    float moved[M][4] = {}, dmoved[M][4] = {}, dq[N][4] = {};
    if (TIGHT) {
        load_rows<THREADS>(memory.k, at.k, call.in.ldk, at.rows);
    } else {
        load_rows<THREADS>(memory.q, q, call.in.ldq, at.rows);
        load_floats<THREADS>(memory.y, dedge);
    }
    load_floats<THREADS>(memory.b, block_matrix(call, call.dlogits, bh, at.block, ATTENTION_BLOCK));
    add_floats(dq, dedge + wide, D);
    __syncthreads();
    keys_across<D>(memory.c, memory.w, memory.k);
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(dq, memory.b, warp_row(), shift<COLUMNS>(memory.k, wide));
    __syncthreads();
    multiply_lower<ROWS, ROWS, ATTENTION_BLOCK, LOWER>(dmoved, memory.b, memory.c, square); /* the gradient of -A' */
    take_turn<TIGHT, D>(memory.q, q, call.in.ldq, at.rows);
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(sums.dk, memory.b, warp_row(), shift<COLUMNS>(memory.q, wide));
    __syncthreads();
    queries_along<D>(call, memory.c, memory.q, memory.w);
    take_turn<TIGHT, D>(memory.y, dedge, D, ATTENTION_BLOCK);
    multiply_lower<ROWS, ROWS, D>(dmoved, memory.y, memory.w, square);
    __syncthreads();
    multiply_lower<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(moved, memory.c, memory.transform, square); /* -A' */
    __syncthreads();
    store_tile(shift<COLUMNS>(memory.c, square), moved);
    __syncthreads();
    multiply_lower<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(sums.dacross, memory.c, memory.b, square);
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(sums.dw, memory.c, warp_row(), shift<COLUMNS>(memory.y, wide));
    __syncthreads();
    store_tile(shift<COLUMNS>(memory.b, square), dmoved);
    take_turn<TIGHT, D>(memory.q, q, call.in.ldq, at.rows);
    queries_along<D>(call, memory.c, memory.q, memory.w);
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
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(sums.dw, memory.c, warp_row(), shift<COLUMNS>(memory.q, wide));
    store_slice(call.out.dq + query_offset(call, at, bh) + wide, call.in.ldq, dq, at.rows);
    __syncthreads();
}

/* C = tril(W K^T, -1), whose gradient is complete: to those of K, which is written, and W. Begins with all threads done
 * with memory.b; ends with it in use. */
template <int E, int D, bool TIGHT>
static __device__ inline void across_backward(const struct attention_call &call, const struct path_place &at,
                                              const struct path_backward_memory<E, D, TIGHT> &memory,
                                              struct path_sums<D> &sums, bool met)
{
    int wide = share<D>::wide(), square = share<D>::square();
    keep_lower(sums.dacross, -1, square);
    store_tile(shift<COLUMNS>(memory.b, square), sums.dacross);
    if (met)
        add_floats(sums.dk, block_matrix(call, call.dkeys, at.bk, at.block, D) + wide, D);
    take_turn<TIGHT, D>(memory.k, at.k, call.in.ldk, at.rows);
    __syncthreads();
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(sums.dk, memory.b, warp_row(), shift<COLUMNS>(memory.w, wide));
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(sums.dw, memory.b, warp_row(), shift<COLUMNS>(memory.k, wide));
    store_slice(call.out.dk + token_offset(call, at.bk, call.K, at.first, call.in.ldk) + wide, call.in.ldk, sums.dk,
                at.rows);
}

/* Keys at the right edge, K - C^T X, and the product's -X^T W, where later blocks meet them; X = T^T W. Begins with all
 * threads together. */
template <int E, int D, bool TIGHT>
static __device__ inline void edges_backward(const struct attention_call &call, const struct path_place &at,
                                             const struct path_backward_memory<E, D, TIGHT> &memory,
                                             struct path_sums<D> &sums)
{
    constexpr int N = share<D>::N, THREADS = share<D>::THREADS;
    int wide = share<D>::wide(), square = share<D>::square();
    const float *dkeys = block_matrix(call, call.dkeys, at.bk, at.block, D);
    float x[N][4] = {};
    if (!TIGHT)
        load_floats<THREADS>(memory.y, dkeys);
    take_turn<TIGHT, D>(memory.k, at.k, call.in.ldk, at.rows);
    keys_across<D>(memory.b, memory.w, memory.k);
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(x, memory.transform, warp_row(), shift<COLUMNS>(memory.w, wide));
    negate(x);
    store_tile(shift<COLUMNS>(memory.x, wide), x);
    take_turn<TIGHT, D>(memory.y, dkeys, D, ATTENTION_BLOCK);
    __syncthreads();
    multiply_lower<ROWS, ROWS, D>(sums.dacross, memory.x, memory.y, square);
    clear(x);
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(x, memory.b, warp_row(), shift<COLUMNS>(memory.y, wide));
    __syncthreads();
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

/* T = M^-1 diag(beta): with Z = R^T dT, dM = -Z T^T, and beta gets the diagonal of Z and the row sums of dM * G. Begins
 * with all threads done with memory.c. */
template <int E, int D, bool TIGHT>
static __device__ inline void inverse_backward(const struct attention_call &call, const struct path_place &at,
                                               const struct path_backward_memory<E, D, TIGHT> &memory,
                                               struct path_sums<D> &sums)
{
    constexpr int M = share<D>::M;
    int square = share<D>::square();
    float own[M][4] = {}, gram[M][4] = {}, dbeta[2] = {};
    add_floats(own, block_matrix(call, call.inverse, at.bk, at.block, ATTENTION_BLOCK) + square, ATTENTION_BLOCK);
    store_tile(shift<COLUMNS>(memory.c, square), own);
    keep_lower(sums.dtransform, 0, square);
    multiply_lower<ROWS, ROWS, D>(gram, memory.w, memory.w, square);
    __syncthreads();
    store_tile(shift<COLUMNS>(memory.b, square), sums.dtransform);
    __syncthreads();
    clear(own);
    multiply_lower<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(own, memory.c, memory.b, square); /* Z */
    __syncthreads();
    store_tile(shift<COLUMNS>(memory.c, square), own);
    each_pair(own, [&](int row, int col, float &first, float &second) {
        int half = row != own_row(0);
        dbeta[half] += square + col == row ? first : square + col + 1 == row ? second : 0;
    });
    __syncthreads();
    clear(own);
    multiply_lower<ROWS, ROWS, ATTENTION_BLOCK, LOWER>(own, memory.c, memory.transform, square); /* -dM */
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
        if (threadIdx.x % 4 == 0)
            memory.dbeta[threadIdx.x / ATTENTION_THREADS * ATTENTION_BLOCK + own_row(half)] = sum;
    }
    store_tile(shift<COLUMNS>(memory.b, square), own); /* the gradient of G */
    __syncthreads();
    store_dbeta(call, at, memory.dbeta, share<D>::COUNT);
    int wide = share<D>::wide();
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK, LOWER>(sums.dw, memory.b, warp_row(), shift<COLUMNS>(memory.w, wide));
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK, UPPER>(sums.dw, memory.b, warp_row(), shift<COLUMNS>(memory.w, wide));
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

template <int E, int D, bool TIGHT>
static __global__ void __launch_bounds__(share<D>::THREADS, share<D>::BLOCKS)
    path_backward_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int THREADS = share<D>::THREADS;
    extern __shared__ float4 shared[];
    auto memory = carve_memory<E, D, TIGHT>(reinterpret_cast<char *>(shared));
    struct path_place at = find_place(call);
    path_sums<D> sums = {};
    int wide = share<D>::wide(), square = share<D>::square();
    prefetch_inputs<D>(call, at);
    load_rows<THREADS>(memory.w, at.w, at.ldw, at.rows);
    if (!TIGHT)
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

template <int E, int D, bool TIGHT> static void launch(struct cuda_device *cuda, const struct attention_call *call)
{
    attention_launch(cuda, "attention backward", path_backward_kernel<E, D, TIGHT>,
                     (size_t)call->B * call->K * call->blocks, path_backward_memory<E, D, TIGHT>::BYTES, call,
                     share<D>::THREADS);
}

/* In EXACT; in P where that asks for more shared memory than the card has and no turns help: gradients may be rounded.
 */
void cuda_path_backward(struct cuda_device *cuda, const struct attention_call *call)
{
    with_precision(cuda, "attention backward", call->D, [&](auto precision, auto width) {
        constexpr int P = decltype(precision)::P, E = EXACT<P>, D = decltype(width)::D;
        constexpr size_t roomy = path_backward_memory<E, D, false>::BYTES;
        if constexpr (D <= ATTENTION_BLOCK)
            with_room<roomy>(cuda, [&](auto room) { launch<E, D, decltype(room)::TIGHT>(cuda, call); });
        else if (roomy <= (size_t)cuda->shared_limit)
            launch<E, D, false>(cuda, call);
        else
            launch<P, D, false>(cuda, call);
    });
}
