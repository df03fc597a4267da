/* PaTH's operators inside one block of 64 tokens (arXiv 2505.16381, section 3.3), and the gradients of that: triangular
 * inverse, keys to the right edge, block product. See kernels/cpu/attention_path.c for the formulas; G = W W^T,
 * C = tril(W K^T, -1), T = transform, U = update = T W, Y = local = T C. */
#include "kernels/cuda/attention_path.cuh"

/* The block's place, and its tokens. */
struct place {
    int bk, block, first, rows, ldw;
    const float *w, *k, *v;
};

static __device__ inline struct place find_place(const struct attention_call &call)
{
    struct place at;
    at.bk = blockIdx.x / call.blocks;
    at.block = blockIdx.x % call.blocks;
    at.first = at.block * ATTENTION_BLOCK;
    at.rows = block_rows(call, at.block);
    at.ldw = call.K * call.D;
    at.w = call.in.w + token_offset(call, at.bk, call.K, at.first, at.ldw);
    at.k = call.in.k + token_offset(call, at.bk, call.K, at.first, call.in.ldk);
    at.v = call.in.v + token_offset(call, at.bk, call.K, at.first, call.in.ldv);
    return at;
}

/* Where beta of token `row` of the block lies, in an array like in.beta. */
static __device__ inline size_t beta_index(const struct attention_call &call, const struct place &at, int row)
{
    return ((size_t)(at.bk / call.K) * call.T + at.first + row) * call.K + at.bk % call.K;
}

static __device__ inline void load_beta(const struct attention_call &call, const struct place &at, float *beta)
{
    if (threadIdx.x < ATTENTION_BLOCK)
        beta[threadIdx.x] = (int)threadIdx.x < at.rows ? call.in.beta[beta_index(call, at, threadIdx.x)] : 0;
}

/* ---- triangular solves: a thread keeps a column in registers; rows of m are read by all threads at once ---- */

/* Column of (I + tril(m, -1))^-1 rhs, or with UPPER of (I + triu(m, 1))^-1 rhs; rhs(i) is its i-th element. */
template <bool UPPER, typename Right>
static __device__ inline void solve(float (&column)[ATTENTION_BLOCK], const float *m, Right rhs)
{
#pragma unroll
    for (int n = 0; n < ATTENTION_BLOCK; n++) {
        int i = UPPER ? ATTENTION_BLOCK - 1 - n : n;
        float sums[4] = { rhs(i), 0, 0, 0 };
#pragma unroll
        for (int first = 0; first < ATTENTION_BLOCK; first += 4) {
            if (UPPER ? first + 3 <= i : first >= i)
                continue;
            float4 four = *reinterpret_cast<const float4 *>(m + i * SQUARE_LD + first);
            const float row[4] = { four.x, four.y, four.z, four.w };
#pragma unroll
            for (int u = 0; u < 4; u++)
                if (UPPER ? first + u > i : first + u < i)
                    sums[u] -= row[u] * column[first + u];
        }
        column[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
}

/* Writes the columns of the first 64 threads to a square that all of them have read. */
static __device__ inline void write_columns(float *square, const float (&column)[ATTENTION_BLOCK])
{
    __syncthreads();
    if (threadIdx.x < ATTENTION_BLOCK) {
#pragma unroll
        for (int i = 0; i < ATTENTION_BLOCK; i++)
            square[i * SQUARE_LD + threadIdx.x] = column[i];
    }
    __syncthreads();
}

/* ---- forward ---- */

template <int E, int D> static constexpr size_t operators_shared()
{
    return 2 * tile<E, D>::BYTES + tile<E, ATTENTION_BLOCK>::BYTES + SQUARE_BYTES + ATTENTION_BLOCK * sizeof(float);
}

/* change = -W^T U, in the format of P. */
template <int P, int D, typename Tile>
static __device__ inline void store_change(const struct attention_call &call, const struct place &at, Tile w, Tile u)
{
    auto *to =
        reinterpret_cast<typename tile_format<P>::element *>(block_matrix(call, call.change, at.bk, at.block, D, D));
    int from = share<D>::wide();
    for (int first = 0; first + warp_row() < D; first += ATTENTION_BLOCK) {
        float product[share<D>::N][4] = {};
        multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(product, w, first + warp_row(), shift<COLUMNS>(u, from));
        each_pair(product, [&](int row, int col, float &left, float &right) {
            put_pair<P>(to + (first + row) * D + from + col, D * D, -left, -right);
        });
    }
}

/* The transform, as floats in m; and C as a tile. */
template <int D, typename Tile, typename Square>
static __device__ inline void find_transform(Tile w, Tile k, Square c, float *m, const float *beta)
{
    int from = share<D>::square(), own = threadIdx.x;
    float gram[share<D>::M][4] = {}, cross[share<D>::M][4] = {}, column[ATTENTION_BLOCK];
    multiply<ROWS, ROWS, D>(gram, w, warp_row(), shift<ROWS>(w, from));
    each_pair(gram, [&](int row, int, float &first, float &second) {
        first *= beta[row];
        second *= beta[row];
    });
    store_floats(m + from, SQUARE_LD, gram);
    multiply<ROWS, ROWS, D>(cross, w, warp_row(), shift<ROWS>(k, from));
    keep_lower(cross, -1, from);
    store_tile(shift<COLUMNS>(c, from), cross);
    __syncthreads();
    if (own < ATTENTION_BLOCK)
        solve<false>(column, m, [&](int i) { return i == own ? beta[i] : 0.0f; });
    write_columns(m, column);
}

template <int P, int D>
static __global__ void __launch_bounds__(share<D>::THREADS)
    operators_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int E = EXACT<P>, N = share<D>::N, M = share<D>::M, THREADS = share<D>::THREADS;
    extern __shared__ float4 shared[];
    char *base = reinterpret_cast<char *>(shared);
    auto w = carve_tile<tile<E, D>>(base), x = carve_tile<tile<E, D>>(base); /* x: K, then U */
    auto c = carve_tile<tile<E, ATTENTION_BLOCK>>(base);                     /* C, then Y */
    float *m = carve_array<float>(base, SQUARE_BYTES / sizeof(float)),
          *beta = carve_array<float>(base, ATTENTION_BLOCK);
    struct place at = find_place(call);
    int wide = share<D>::wide(), square = share<D>::square();
    load_rows<THREADS>(w, at.w, at.ldw, at.rows);
    load_rows<THREADS>(x, at.k, call.in.ldk, at.rows);
    load_beta(call, at, beta);
    pack_rows<P, D, THREADS>(block_matrix(call, call.values, at.bk, at.block, D), at.v, call.in.ldv, at.rows);
    __syncthreads();
    find_transform<D>(w, x, c, m, beta);
    float transform[8][4] = {}, update[N][4] = {}, local[M][4] = {};
    add_floats(transform, m, SQUARE_LD);
    if (square == 0)
        store_floats(block_matrix(call, call.transform, at.bk, at.block, ATTENTION_BLOCK), ATTENTION_BLOCK, transform);
    multiply_kept<COLUMNS>(update, transform, shift<COLUMNS>(w, wide));
    store_floats(block_matrix(call, call.update, at.bk, at.block, D) + wide, D, update);
    multiply_kept<COLUMNS>(local, transform, shift<COLUMNS>(c, square));
    store_floats(block_matrix(call, call.local, at.bk, at.block, ATTENTION_BLOCK) + square, ATTENTION_BLOCK, local);
    __syncthreads();
    store_tile(shift<COLUMNS>(x, wide), update);
    store_tile(shift<COLUMNS>(c, square), local);
    __syncthreads();
    float keys[N][4] = {};
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(keys, c, warp_row(), shift<COLUMNS>(w, wide));
    negate(keys);
    add_slice(keys, at.k + wide, call.in.ldk, at.rows);
    store_packed<P, D>(block_matrix(call, call.keys, at.bk, at.block, D), keys, wide);
    store_change<P, D>(call, at, w, x);
}

/* ---- backward ---- */

/* Where the gradient of the block product and two matrices [64, D] may lie in turn. */
template <int E, int D>
static constexpr size_t PAIR_BYTES =
    tile<E, D, D>::BYTES > 2 * tile<E, D>::BYTES ? tile<E, D, D>::BYTES : 2 * tile<E, D>::BYTES;

/* A square, as a tile or as floats. */
template <int E>
static constexpr size_t SLOT_BYTES =
    tile<E, ATTENTION_BLOCK>::BYTES > SQUARE_BYTES ? tile<E, ATTENTION_BLOCK>::BYTES : SQUARE_BYTES;

template <int E, int D> static constexpr size_t operators_backward_shared()
{
    return tile<E, D>::BYTES + PAIR_BYTES<E, D> + 2 * SLOT_BYTES<E> + tile<E, ATTENTION_BLOCK>::BYTES +
           ATTENTION_BLOCK * sizeof(float);
}

/* The memory of a block of threads. change lies where x and y do; m and z, as floats, where s0 and s1 do. */
template <int E, int D> struct backward_memory {
    tile<E, D> w, x, y;
    tile<E, D, D> change;
    tile<E, ATTENTION_BLOCK> s0, s1, s2;
    float *m, *z, *beta;
};

template <int E, int D> static __device__ inline struct backward_memory<E, D> carve_memory(char *base) {
    struct backward_memory<E, D> memory;
    memory.w = carve_tile<tile<E, D>>(base);
    char *pair = base;
    base += PAIR_BYTES<E, D>;
    memory.change.at = reinterpret_cast<typename tile<E, D, D>::element *>(pair);
    memory.x = carve_tile<tile<E, D>>(pair);
    memory.y = carve_tile<tile<E, D>>(pair);
    memory.m = reinterpret_cast<float *>(base);
    memory.s0.at = reinterpret_cast<typename tile<E, ATTENTION_BLOCK>::element *>(base);
    base += SLOT_BYTES<E>;
    memory.z = reinterpret_cast<float *>(base);
    memory.s1.at = reinterpret_cast<typename tile<E, ATTENTION_BLOCK>::element *>(base);
    base += SLOT_BYTES<E>;
    memory.s2 = carve_tile<tile<E, ATTENTION_BLOCK>>(base);
    memory.beta = carve_array<float>(base, ATTENTION_BLOCK);
    return memory;
}

/* From the gradients of change and keys, and those that the queries give: dw (a part), dupdate, dlocal. */
template <int E, int D>
static __device__ inline void edges_backward(const struct attention_call &call, const struct place &at,
                                             const struct backward_memory<E, D> &m, float (&dw)[share<D>::N][4],
                                             float (&dupdate)[share<D>::N][4], float (&dlocal)[share<D>::M][4])
{
    constexpr int THREADS = share<D>::THREADS;
    int wide = share<D>::wide(), square = share<D>::square();
    bool keys = at.block < call.blocks - 1, change = keys && at.block > 0; /* do they meet a query? */
    if (change) {                                                          /* -W^T U */
        float update[D / 8][4] = {};
        load_floats<THREADS>(m.change, block_matrix(call, call.dchange, at.bk, at.block, D, D));
        add_floats(update, block_matrix(call, call.update, at.bk, at.block, D), D);
        __syncthreads();
        multiply_kept<ROWS>(dw, update, shift<ROWS>(m.change, wide));
        multiply<ROWS, COLUMNS, D>(dupdate, m.w, warp_row(), shift<COLUMNS>(m.change, wide));
        __syncthreads();
    }
    if (keys) { /* K - Y^T W */
        float local[8][4] = {};
        load_floats<THREADS>(m.x, block_matrix(call, call.dkeys, at.bk, at.block, D));
        add_floats(local, block_matrix(call, call.local, at.bk, at.block, ATTENTION_BLOCK), ATTENTION_BLOCK);
        __syncthreads();
        multiply_kept<COLUMNS>(dw, local, shift<COLUMNS>(m.x, wide));
        multiply<ROWS, ROWS, D>(dlocal, m.w, warp_row(), shift<ROWS>(m.x, square));
        __syncthreads();
    }
    negate(dw);
    negate(dupdate);
    negate(dlocal);
    for (int g = 0; g < call.group; g++) {
        int bh = query_head(call, at.bk, g);
        add_floats(dw, block_matrix(call, call.dw, bh, at.block, D) + wide, D);
        add_floats(dupdate, block_matrix(call, call.dupdate, bh, at.block, D) + wide, D);
        add_floats(dlocal, block_matrix(call, call.dlocal, bh, at.block, ATTENTION_BLOCK) + square, ATTENTION_BLOCK);
    }
}

/* U = T W and Y = T C: adds to dw, writes dk, and dtransform. */
template <int E, int D>
static __device__ inline void transform_backward(const struct attention_call &call, const struct place &at,
                                                 const struct backward_memory<E, D> &m, float (&dw)[share<D>::N][4],
                                                 float (&dupdate)[share<D>::N][4], float (&dlocal)[share<D>::M][4],
                                                 float (&dtransform)[share<D>::M][4])
{
    constexpr int THREADS = share<D>::THREADS;
    int wide = share<D>::wide(), square = share<D>::square();
    float cross[share<D>::M][4] = {}, dk[share<D>::N][4] = {};
    store_tile(shift<COLUMNS>(m.x, wide), dupdate);
    store_tile(shift<COLUMNS>(m.s0, square), dlocal);
    load_rows<THREADS>(m.y, at.k, call.in.ldk, at.rows);
    load_floats<THREADS>(m.s2, block_matrix(call, call.transform, at.bk, at.block, ATTENTION_BLOCK));
    __syncthreads();
    multiply<ROWS, ROWS, D>(cross, m.w, warp_row(), shift<ROWS>(m.y, square));
    keep_lower(cross, -1, square);
    store_tile(shift<COLUMNS>(m.s1, square), cross);
    __syncthreads();
    multiply<ROWS, ROWS, D>(dtransform, m.x, warp_row(), shift<ROWS>(m.w, square));
    multiply<ROWS, ROWS, ATTENTION_BLOCK>(dtransform, m.s0, warp_row(), shift<ROWS>(m.s1, square));
    keep_lower(dtransform, 0, square);
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(dw, m.s2, warp_row(), shift<COLUMNS>(m.x, wide));
    clear(cross);
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(cross, m.s2, warp_row(), shift<COLUMNS>(m.s0, square)); /* dC */
    keep_lower(cross, -1, square);
    __syncthreads();
    store_tile(shift<COLUMNS>(m.s1, square), cross);
    __syncthreads();
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK>(dw, m.s1, warp_row(), shift<COLUMNS>(m.y, wide));
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(dk, m.s1, warp_row(), shift<COLUMNS>(m.w, wide));
    if (at.block < call.blocks - 1)
        add_floats(dk, block_matrix(call, call.dkeys, at.bk, at.block, D) + wide, D);
    for (int g = 0; g < call.group; g++)
        add_floats(dk, block_matrix(call, call.dk, query_head(call, at.bk, g), at.block, D) + wide, D);
    store_slice(call.out.dk + token_offset(call, at.bk, call.K, at.first, call.in.ldk) + wide, call.in.ldk, dk,
                at.rows);
    __syncthreads();
}

/* dbeta of the thread's rows: from the diagonal of Z, and parts [64][2] of the sum over the columns of dM * G. */
static __device__ inline void store_dbeta(const struct attention_call &call, const struct place &at, const float *z,
                                          const float *parts, int count)
{
    int row = threadIdx.x;
    if (row >= at.rows)
        return;
    float sum = z[row * SQUARE_LD + row];
    for (int part = 0; part < count; part++)
        sum += parts[part * ATTENTION_BLOCK + row];
    call.out.dbeta[beta_index(call, at, row)] = sum;
}

/* T = M^-1 diag(beta), M = I + tril(diag(beta) G, -1): Z = M^-T dT, dM = -Z T^T. Adds to dw, writes dbeta. */
template <int E, int D>
static __device__ inline void inverse_backward(const struct attention_call &call, const struct place &at,
                                               const struct backward_memory<E, D> &m, float (&dw)[share<D>::N][4],
                                               float (&dtransform)[share<D>::M][4])
{
    __shared__ float parts[share<D>::COUNT * ATTENTION_BLOCK];
    int wide = share<D>::wide(), square = share<D>::square();
    float gram[share<D>::M][4] = {}, dgram[share<D>::M][4] = {}, dbeta[2] = {};
    multiply<ROWS, ROWS, D>(gram, m.w, warp_row(), shift<ROWS>(m.w, square));
    each_pair(gram, [&](int row, int col, float &first, float &second) {
        int at = square + col;
        *reinterpret_cast<float2 *>(m.m + row * SQUARE_LD + at) =
            make_float2(m.beta[at] * first, m.beta[at + 1] * second);
    });
    store_floats(m.z + square, SQUARE_LD, dtransform);
    __syncthreads();
    {
        float column[ATTENTION_BLOCK], z[8][4] = {};
        const float *from = m.z + threadIdx.x;
        if (threadIdx.x < ATTENTION_BLOCK)
            solve<true>(column, m.m, [&](int i) { return from[i * SQUARE_LD]; });
        write_columns(m.z, column);
        add_floats(z, m.z, SQUARE_LD);
        multiply_kept<ROWS>(dgram, z, shift<ROWS>(m.s2, square));
    }
    negate(dgram);
    keep_lower(dgram, -1, square);
#pragma unroll
    for (int n = 0; n < share<D>::M; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            dbeta[e / 2] += dgram[n][e] * gram[n][e];
            dgram[n][e] *= m.beta[own_row(e / 2)];
        }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        dbeta[half] += __shfl_xor_sync(0xffffffffu, dbeta[half], 1);
        dbeta[half] += __shfl_xor_sync(0xffffffffu, dbeta[half], 2);
        parts[threadIdx.x / ATTENTION_THREADS * ATTENTION_BLOCK + own_row(half)] = dbeta[half];
    }
    store_tile(shift<COLUMNS>(m.s0, square), dgram); /* in the place of m, which the solve has read */
    __syncthreads();
    store_dbeta(call, at, m.z, parts, share<D>::COUNT);
    multiply<ROWS, COLUMNS, ATTENTION_BLOCK>(dw, m.s0, warp_row(), shift<COLUMNS>(m.w, wide));
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(dw, m.s0, warp_row(), shift<COLUMNS>(m.w, wide));
}

template <int E, int D>
static __global__ void __launch_bounds__(share<D>::THREADS)
    operators_backward_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int N = share<D>::N, M = share<D>::M;
    extern __shared__ float4 shared[];
    auto m = carve_memory<E, D>(reinterpret_cast<char *>(shared));
    struct place at = find_place(call);
    float dw[N][4] = {}, dtransform[M][4] = {};
    load_rows<share<D>::THREADS>(m.w, at.w, at.ldw, at.rows);
    load_beta(call, at, m.beta);
    __syncthreads();
    {
        float dupdate[N][4] = {}, dlocal[M][4] = {};
        edges_backward<E, D>(call, at, m, dw, dupdate, dlocal);
        transform_backward<E, D>(call, at, m, dw, dupdate, dlocal, dtransform);
    }
    inverse_backward<E, D>(call, at, m, dw, dtransform);
    store_slice(call.out.dw + token_offset(call, at.bk, call.K, at.first, at.ldw) + share<D>::wide(), at.ldw, dw,
                at.rows);
}

/* ---- launching ---- */

void cuda_path_operators(struct cuda_device *cuda, const struct attention_call *call)
{
    with_precision(cuda, "attention", call->D, [&](auto precision, auto width) {
        constexpr int P = decltype(precision)::P, D = decltype(width)::D;
        attention_launch(cuda, "attention", operators_kernel<P, D>, (size_t)call->B * call->K * call->blocks,
                         operators_shared<EXACT<P>, D>(), call, share<D>::THREADS);
    });
}

void cuda_path_operators_backward(struct cuda_device *cuda, const struct attention_call *call)
{
    with_precision(cuda, "attention backward", call->D, [&](auto precision, auto width) {
        constexpr int E = decltype(precision)::P, D = decltype(width)::D;
        attention_launch(cuda, "attention backward", operators_backward_kernel<E, D>,
                         (size_t)call->B * call->K * call->blocks, operators_backward_shared<E, D>(), call,
                         share<D>::THREADS);
    });
}
