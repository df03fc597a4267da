/* PaTH inside one block of 64 tokens (arXiv 2505.16381, section 3.3), and the gradients of that: triangular inverse,
 * keys to the right edge, block product. Always fp32: errors here go into all later blocks. See
 * kernels/cpu/attention_path.c for the formulas; G = W W^T, C = tril(W K^T, -1), T = transform. */
#include "kernels/cuda/attention.cuh"

enum { P = PRECISION_FP32 };

/* The solves keep a column per thread in registers;
 * rows of m are read by all threads at once. */

/* Column c of x = (I + tril(m, -1))^-1 x. */
static __device__ void solve_lower(float *x, const float *m, int c)
{
    float column[ATTENTION_BLOCK];
#pragma unroll
    for (int i = 0; i < ATTENTION_BLOCK; i++) {
        float sums[4] = { x[i * SQUARE_LD + c], 0, 0, 0 };
#pragma unroll
        for (int l = 0; l < i; l++)
            sums[l % 4] -= m[i * SQUARE_LD + l] * column[l];
        column[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
#pragma unroll
    for (int i = 0; i < ATTENTION_BLOCK; i++)
        x[i * SQUARE_LD + c] = column[i];
}

/* Column c of x = (I + triu(m, 1))^-1 x. */
static __device__ void solve_upper(float *x, const float *m, int c)
{
    float column[ATTENTION_BLOCK];
#pragma unroll
    for (int i = ATTENTION_BLOCK - 1; i >= 0; i--) {
        float sums[4] = { x[i * SQUARE_LD + c], 0, 0, 0 };
#pragma unroll
        for (int l = i + 1; l < ATTENTION_BLOCK; l++)
            sums[l % 4] -= m[i * SQUARE_LD + l] * column[l];
        column[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
#pragma unroll
    for (int i = 0; i < ATTENTION_BLOCK; i++)
        x[i * SQUARE_LD + c] = column[i];
}

/* The block's place, and its tokens. */
struct place {
    int bk, block, first, rows;
    const float *w, *k, *beta;
    int ldw, ldbeta;
};

static __device__ inline struct place find_place(const struct attention_call &call)
{
    struct place p;
    p.bk = blockIdx.x / call.blocks;
    p.block = blockIdx.x % call.blocks;
    p.first = p.block * ATTENTION_BLOCK;
    p.rows = min(ATTENTION_BLOCK, call.T - p.first);
    p.ldw = call.K * call.D;
    p.ldbeta = call.K;
    p.w = call.in.w + token_offset(call, p.bk, call.K, p.first, p.ldw);
    p.k = call.in.k + token_offset(call, p.bk, call.K, p.first, call.in.ldk);
    p.beta = call.in.beta + ((size_t)(p.bk / call.K) * call.T + p.first) * call.K + p.bk % call.K;
    return p;
}

static __device__ inline void load_beta(float *beta, const struct place &p)
{
    if (threadIdx.x < ATTENTION_BLOCK)
        beta[threadIdx.x] = (int)threadIdx.x < p.rows ? p.beta[(size_t)threadIdx.x * p.ldbeta] : 0;
}

template <int D> static constexpr size_t prepare_shared()
{
    return 2 * ATTENTION_BLOCK * (D + 4) + 3 * SQUARE + ATTENTION_BLOCK;
}

template <int D>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    prepare_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int LD = D + 4, N = D / 8;
    extern __shared__ float4 shared[];
    float *w = reinterpret_cast<float *>(shared), *k = w + ATTENTION_BLOCK * LD, *m = k + ATTENTION_BLOCK * LD;
    float *c = m + SQUARE, *transform = c + SQUARE, *beta = transform + SQUARE;
    struct place p = find_place(call);
    struct path_block out = path_block_at(call, p.bk, p.block);
    load_tile<D>(w, LD, p.w, p.ldw, p.rows);
    load_tile<D>(k, LD, p.k, call.in.ldk, p.rows);
    load_beta(beta, p);
    loads_done();
    {
        float gram[8][4] = {}, cross[8][4] = {};
        multiply<P, ROWS, ROWS, D>(gram, own(w, LD), LD, w, LD);
        each_pair(gram, [&](int row, int, float &first, float &second) {
            first *= beta[row];
            second *= beta[row];
        });
        store_rows(m, SQUARE_LD, gram);
        multiply<P, ROWS, ROWS, D>(cross, own(w, LD), LD, k, LD);
        keep_lower(cross, -1);
        store_rows(c, SQUARE_LD, cross);
        each_pair(gram, [&](int row, int col, float &first, float &second) {
            first = col == row ? beta[row] : 0;
            second = col + 1 == row ? beta[row] : 0;
        });
        store_rows(transform, SQUARE_LD, gram);
    }
    __syncthreads();
    if (threadIdx.x < ATTENTION_BLOCK)
        solve_lower(transform, m, threadIdx.x);
    __syncthreads();
    float update[N][4] = {}, local[8][4] = {}, keys[N][4] = {}, copy[8][4] = {};
    add_rows(copy, transform, SQUARE_LD);
    store_rows(out.transform, ATTENTION_BLOCK, copy);
    multiply<P, ROWS, COLUMNS, ATTENTION_BLOCK>(update, own(transform, SQUARE_LD), SQUARE_LD, w, LD);
    store_rows(out.update, D, update);
    multiply<P, ROWS, COLUMNS, ATTENTION_BLOCK>(local, own(transform, SQUARE_LD), SQUARE_LD, c, SQUARE_LD);
    store_rows(out.local, ATTENTION_BLOCK, local);
    store_rows(m, SQUARE_LD, local);
    __syncthreads();
    multiply<P, COLUMNS, COLUMNS, ATTENTION_BLOCK>(keys, m + threadIdx.x / 32 * 16, SQUARE_LD, w, LD);
    negate(keys);
    add_rows(keys, k, LD);
    store_rows(out.keys, D, keys);
    __syncthreads();
    store_rows(k, LD, update);
    __syncthreads();
    for (int row = threadIdx.x / 32 * 16; row < D; row += ATTENTION_BLOCK) {
        float product[N][4] = {};
        multiply<P, COLUMNS, COLUMNS, ATTENTION_BLOCK>(product, w + row, LD, k, LD);
        int extra = row - row % ATTENTION_BLOCK;
        each_pair(product, [&](int r, int col, float &first, float &second) {
            first = (r + extra == col ? 1.0f : 0.0f) - first;
            second = (r + extra == col + 1 ? 1.0f : 0.0f) - second;
        });
        store_rows(out.product + (size_t)extra * D, D, product);
    }
}

template <int D> static constexpr size_t prepare_backward_shared()
{
    return 3 * ATTENTION_BLOCK * (D + 4) + 3 * SQUARE + ATTENTION_BLOCK;
}

template <int D>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    prepare_backward_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int LD = D + 4, N = D / 8;
    extern __shared__ float4 shared[];
    float *w = reinterpret_cast<float *>(shared), *k = w + ATTENTION_BLOCK * LD, *x = k + ATTENTION_BLOCK * LD;
    float *s0 = x + ATTENTION_BLOCK * LD, *s1 = s0 + SQUARE, *s2 = s1 + SQUARE, *beta = s2 + SQUARE;
    struct place p = find_place(call);
    struct path_block block = path_block_at(call, p.bk, p.block);
    size_t index = (size_t)p.bk * call.blocks + p.block;
    const float *dkeys = call.dkeys + index * ATTENTION_BLOCK * D, *dproduct = call.dproduct + index * D * D;
    bool keys = p.block < call.blocks - 1, product = keys && p.block > 0; /* do they meet a query? */
    float dw[N][4] = {}, dk[N][4] = {}, dupdate[N][4] = {}, dlocal[8][4] = {};
    /* product = I - W^T U. U lies in s0 and s1, dproduct in k and x. */
    load_tile<D>(w, LD, p.w, p.ldw, p.rows);
    load_beta(beta, p);
    if (product) {
        load_tile<D>(s0, LD, block.update, D, ATTENTION_BLOCK);
        load_tile<D, D>(k, LD, dproduct, D, D);
        loads_done();
        multiply<P, ROWS, ROWS, D>(dw, own(s0, LD), LD, k, LD);
        multiply<P, ROWS, COLUMNS, D>(dupdate, own(w, LD), LD, k, LD);
        __syncthreads();
    }
    /* keys = K - Y^T W. */
    if (keys) {
        load_tile<D>(x, LD, dkeys, D, ATTENTION_BLOCK);
        load_tile<ATTENTION_BLOCK>(s0, SQUARE_LD, block.local, ATTENTION_BLOCK, ATTENTION_BLOCK);
    }
    load_tile<D>(k, LD, p.k, call.in.ldk, p.rows);
    load_tile<ATTENTION_BLOCK>(s2, SQUARE_LD, block.transform, ATTENTION_BLOCK, ATTENTION_BLOCK);
    loads_done();
    if (keys) {
        multiply<P, ROWS, COLUMNS, ATTENTION_BLOCK>(dw, own(s0, SQUARE_LD), SQUARE_LD, x, LD);
        multiply<P, ROWS, ROWS, D>(dlocal, own(w, LD), LD, x, LD);
        add_rows(dk, x, LD);
        negate(dw);
        negate(dupdate);
        negate(dlocal);
    }
    for (int g = 0; g < call.group; g++) {
        int bh = p.bk / call.K * call.H + p.bk % call.K * call.group + g;
        struct path_diagonal diagonal = path_diagonal_at(call, bh, p.block);
        add_rows(dw, diagonal.dw, D);
        add_rows(dk, diagonal.dk, D);
        add_rows(dupdate, diagonal.dupdate, D);
        add_rows(dlocal, diagonal.dlocal, ATTENTION_BLOCK);
    }
    {
        float c[8][4] = {};
        multiply<P, ROWS, ROWS, D>(c, own(w, LD), LD, k, LD);
        keep_lower(c, -1);
        __syncthreads();
        store_rows(x, LD, dupdate);
        store_rows(s0, SQUARE_LD, dlocal);
        store_rows(s1, SQUARE_LD, c);
    }
    __syncthreads();
    /* U = T W and Y = T C. */
    float dtransform[8][4] = {}, dcross[8][4] = {}, gram[8][4] = {};
    multiply<P, ROWS, ROWS, D>(dtransform, own(x, LD), LD, w, LD);
    multiply<P, ROWS, ROWS, ATTENTION_BLOCK>(dtransform, own(s0, SQUARE_LD), SQUARE_LD, s1, SQUARE_LD);
    keep_lower(dtransform, 0);
    multiply<P, COLUMNS, COLUMNS, ATTENTION_BLOCK>(dw, s2 + threadIdx.x / 32 * 16, SQUARE_LD, x, LD);
    multiply<P, COLUMNS, COLUMNS, ATTENTION_BLOCK>(dcross, s2 + threadIdx.x / 32 * 16, SQUARE_LD, s0, SQUARE_LD);
    keep_lower(dcross, -1);
    __syncthreads();
    store_rows(s0, SQUARE_LD, dtransform);
    store_rows(s1, SQUARE_LD, dcross);
    __syncthreads();
    multiply<P, ROWS, COLUMNS, ATTENTION_BLOCK>(dw, own(s1, SQUARE_LD), SQUARE_LD, k, LD);
    multiply<P, COLUMNS, COLUMNS, ATTENTION_BLOCK>(dk, s1 + threadIdx.x / 32 * 16, SQUARE_LD, w, LD);
    store_slice(call.out.dk + token_offset(call, p.bk, call.K, p.first, call.in.ldk), call.in.ldk, dk, p.rows);
    /* T = M^-1 diag(beta), M = I + tril(diag(beta) G, -1): Z = M^-T dT, dM = -Z T^T. */
    multiply<P, ROWS, ROWS, D>(gram, own(w, LD), LD, w, LD);
    __syncthreads();
    each_pair(gram, [&](int row, int col, float &first, float &second) {
        s1[row * SQUARE_LD + col] = beta[col] * first;
        s1[row * SQUARE_LD + col + 1] = beta[col + 1] * second;
    });
    __syncthreads();
    if (threadIdx.x < ATTENTION_BLOCK)
        solve_upper(s0, s1, threadIdx.x);
    __syncthreads();
    float dgram[8][4] = {}, dbeta[2] = {};
    multiply<P, ROWS, ROWS, ATTENTION_BLOCK>(dgram, own(s0, SQUARE_LD), SQUARE_LD, s2, SQUARE_LD);
    negate(dgram);
    keep_lower(dgram, -1);
    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            dbeta[e / 2] += dgram[n][e] * gram[n][e];
            dgram[n][e] *= beta[row + e / 2 * 8];
        }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int r = row + 8 * e;
        dbeta[e] += __shfl_xor_sync(0xffffffffu, dbeta[e], 1);
        dbeta[e] += __shfl_xor_sync(0xffffffffu, dbeta[e], 2);
        if (threadIdx.x % 4 == 0 && r < p.rows)
            call.out.dbeta[((size_t)(p.bk / call.K) * call.T + p.first + r) * call.K + p.bk % call.K] =
                dbeta[e] + s0[r * SQUARE_LD + r];
    }
    store_rows(s1, SQUARE_LD, dgram);
    __syncthreads();
    multiply<P, ROWS, COLUMNS, ATTENTION_BLOCK>(dw, own(s1, SQUARE_LD), SQUARE_LD, w, LD);
    multiply<P, COLUMNS, COLUMNS, ATTENTION_BLOCK>(dw, s1 + threadIdx.x / 32 * 16, SQUARE_LD, w, LD);
    store_slice(call.out.dw + token_offset(call, p.bk, call.K, p.first, p.ldw), p.ldw, dw, p.rows);
}

void cuda_path_prepare(struct cuda_device *cuda, const struct attention_call *call)
{
    with_width(cuda, "attention", call->D, [&](auto width) {
        constexpr int D = decltype(width)::D;
        attention_launch(cuda, "attention", prepare_kernel<D>, (size_t)call->B * call->K * call->blocks,
                         prepare_shared<D>(), call);
    });
}

void cuda_path_prepare_backward(struct cuda_device *cuda, const struct attention_call *call)
{
    with_width(cuda, "attention", call->D, [&](auto width) {
        constexpr int D = decltype(width)::D;
        attention_launch(cuda, "attention", prepare_backward_kernel<D>, (size_t)call->B * call->K * call->blocks,
                         prepare_backward_shared<D>(), call);
    });
}
