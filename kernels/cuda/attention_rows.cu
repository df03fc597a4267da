/* Attention backward, queries: a block of threads takes 64 queries and finds dq; for path and stick-breaking it keeps
 * what attention_keys.cu needs of the way from the query to each key block. */
#include "kernels/cuda/attention_backward.cuh"

/* delta of a query block: two threads to a row. */
template <int D, int KIND>
static __device__ inline void find_delta(const struct attention_call &call, int bh, int first, int rows)
{
    int row = threadIdx.x / 2, half = threadIdx.x % 2, ldo = call.H * D;
    float sum = 0;
    if (row < rows && (KIND != KIND_STICK || call.remainder)) {
        const float *dout = call.dout + token_offset(call, bh, call.H, first + row, ldo);
        const float *other = KIND == KIND_STICK
                                 ? call.in.v + token_offset(call, key_head(call, bh), call.K, first + row, call.in.ldv)
                                 : call.o + token_offset(call, bh, call.H, first + row, ldo);
#pragma unroll 8
        for (int d = half; d < D; d += 2)
            sum += dout[d] * other[d];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    if (half == 0 && row < rows)
        call.delta[(size_t)bh * call.T + first + row] = sum;
}

/* ---- the gate ---- */

/* Sum over the warp's rows to the left of key block j, for keys_kernel; then `before` takes the tile in. */
static __device__ inline void gate_row_sums(const struct attention_call &call, int bh, int block, int j,
                                            float (&before)[2], const float (&ds)[8][4])
{
    float sum = warp_sum(before[0] + before[1]);
    if (threadIdx.x % 32 == 0)
        call.before[slab_slot(call, bh, block, j) * 4 + threadIdx.x / 32] = sum;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            before[e / 2] += ds[n][e];
}

/* dlog_gate of the block's own tokens s from its own queries: dlogits of i >= s with keys j < s, all sums of what
 * counts and no differences. before: of each row, all key blocks to the left. The diagonal tile ds is spoiled. */
static __device__ inline void gate_diagonal(const struct attention_call &call, const struct backward_memory &m, int bh,
                                            int first, int rows, const float (&before)[2])
{
    float *start = m.row;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = quad_sum(before[half]);
        if (threadIdx.x % 4 == 0)
            start[own_row(half)] = sum;
    }
    __syncthreads();
    if (threadIdx.x < ATTENTION_BLOCK) {
        float *row = m.ds + threadIdx.x * SQUARE_LD, running = start[threadIdx.x];
        for (int s = 0; s < ATTENTION_BLOCK; s++) {
            float here = row[s];
            row[s] = running;
            running += here;
        }
    }
    __syncthreads();
    if ((int)threadIdx.x < rows) {
        float sum = 0;
        for (int i = threadIdx.x; i < rows; i++)
            sum += m.ds[i * SQUARE_LD + threadIdx.x];
        call.out.dlog_gate[((size_t)(bh / call.H) * call.T + first + threadIdx.x) * call.H + bh % call.H] =
            sum / call.scale;
    }
}

/* ---- rows: dq, and for path and stick-breaking what keys_kernel needs ---- */

/* Moves the queries, at the left edge of their block, on through all key blocks and keeps them at each right edge. */
template <int P, int D>
static __device__ inline void walk_queries(const struct attention_call &call, const struct backward_memory &m, int bh,
                                           int block, int rows)
{
    constexpr int LD = D + 4, N = D / 8;
    int bk = key_head(call, bh), first = block * ATTENTION_BLOCK, ldw = call.K * D;
    float along[8][4] = {};
    load_tile<D>(m.k, LD, call.in.w + token_offset(call, bk, call.K, first, ldw), ldw, rows);
    load_tile<D>(m.v, LD, path_block_at(call, bk, block).update, D, ATTENTION_BLOCK);
    loads_done();
    multiply<P, ROWS, ROWS, D>(along, own(m.q, LD), LD, m.k, LD);
    keep_lower(along, 0);
    negate(along);
    store_rows(m.p, SQUARE_LD, along);
    __syncwarp();
    float q[N][4] = {};
    multiply<P, ROWS, COLUMNS, ATTENTION_BLOCK>(q, own(m.p, SQUARE_LD), SQUARE_LD, m.v, LD);
    add_rows(q, m.q, LD);
    for (int j = block - 1; j >= 0; j--) {
        store_rows(call.chain + slab_slot(call, bh, block, j) * ATTENTION_BLOCK * D, D, q);
        if (j == 0)
            break;
        __syncthreads();
        load_tile<D, D>(m.k, LD, path_block_at(call, bk, j).product, D, D);
        store_rows(m.q, LD, q);
        loads_done();
#pragma unroll
        for (int n = 0; n < N; n++)
            q[n][0] = q[n][1] = q[n][2] = q[n][3] = 0;
        multiply<P, ROWS, COLUMNS, D>(q, own(m.q, LD), LD, m.k, LD);
    }
    __syncthreads();
}

/* Keeps the log of the stick that is left to the right of each key block. */
template <int P, int D>
static __device__ inline void walk_sticks(const struct attention_call &call, const struct backward_memory &m, int bh,
                                          int block, int rows)
{
    constexpr int LD = D + 4;
    struct head_rows head = find_rows(call, bh);
    float left = 0;
    for (int j = block; j >= 0; j--) {
        if (threadIdx.x % 2 == 0)
            call.chain[slab_slot(call, bh, block, j) * ATTENTION_BLOCK + stick_row()] = left;
        if (j == 0)
            break;
        float s[8][4] = {};
        load_tile<D>(m.k, LD, head.k + (size_t)j * ATTENTION_BLOCK * call.in.ldk, call.in.ldk,
                     j == block ? rows : ATTENTION_BLOCK);
        loads_done();
        multiply<P, ROWS, ROWS, D>(s, own(m.q, LD), LD, m.k, LD);
        store_rows(m.p, SQUARE_LD, s);
        __syncwarp();
        left += stick_taken(m.p, call.scale, j == block);
        __syncthreads();
    }
    __syncthreads();
}

/* Path's diagonal block. dq holds the gradient at the left edge; what comes out is that of the queries themselves and,
 * in path_diagonal, what the block's own keys, values and operators get from them. */
template <int P, int D>
static __device__ inline void path_diagonal_backward(const struct attention_call &call, const struct backward_memory &m,
                                                     float (&dq)[D / 8][4], int bh, int block, int rows,
                                                     float (&before)[2])
{
    constexpr int LD = D + 4, N = D / 8, EXACT = P == PRECISION_BF16 ? PRECISION_TF32 : P;
    int bk = key_head(call, bh), first = block * ATTENTION_BLOCK, ldw = call.K * D, column = threadIdx.x / 32 * 16;
    struct head_rows head = find_rows(call, bh);
    struct path_block prepared = path_block_at(call, bk, block);
    struct path_diagonal out = path_diagonal_at(call, bh, block);
    const float *q = head.q + (size_t)first * call.in.ldq, *k = head.k + (size_t)first * call.in.ldk;
    const float *w = call.in.w + token_offset(call, bk, call.K, first, ldw);
    store_rows(call.dchain + slab_slot(call, bh, block, block) * ATTENTION_BLOCK * D, D, dq);
    float s[8][4] = {}, dp[8][4] = {}, x[8][4] = {};
    load_tile<D>(m.q, LD, q, call.in.ldq, rows);
    load_tile<D>(m.k, LD, w, ldw, rows);
    load_tile<D>(m.v, LD, k, call.in.ldk, rows);
    if (call.gate)
        load_gates(m.gate_k, head.gates + first, rows);
    loads_done();
    /* p = -A, A = tril(Q W^T); s = Q K^T - A Y */
    multiply<EXACT, ROWS, ROWS, D>(x, own(m.q, LD), LD, m.k, LD);
    keep_lower(x, 0);
    negate(x);
    store_rows(m.p, SQUARE_LD, x);
    multiply<EXACT, ROWS, ROWS, D>(s, own(m.q, LD), LD, m.v, LD);
    __syncthreads();
    load_tile<ATTENTION_BLOCK>(m.k, SQUARE_LD, prepared.local, ATTENTION_BLOCK, ATTENTION_BLOCK);
    loads_done();
    multiply<EXACT, ROWS, COLUMNS, ATTENTION_BLOCK>(s, own(m.p, SQUARE_LD), SQUARE_LD, m.k, SQUARE_LD);
    __syncthreads();
    load_tile<D>(m.k, LD, prepared.update, D, ATTENTION_BLOCK);
    load_tile<D>(m.v, LD, head.v + (size_t)first * call.in.ldv, call.in.ldv, rows);
    loads_done();
    multiply<P, ROWS, ROWS, D>(dp, own(m.dout, LD), LD, m.v, LD);
    softmax_backward(s, dp, call, m, true);
    store_rows(m.ds, SQUARE_LD, s);
    __syncthreads();
    {
        float dv[N][4] = {};
        multiply<P, COLUMNS, COLUMNS, ATTENTION_BLOCK>(dv, m.ds + column, SQUARE_LD, m.dout, LD);
        store_rows(out.dv, D, dv);
    }
    __syncthreads();
    store_rows(m.ds, SQUARE_LD, dp);
    __syncthreads();
    {
        float dlocal[8][4] = {}, dk[N][4] = {};
        multiply<EXACT, COLUMNS, COLUMNS, ATTENTION_BLOCK>(dlocal, m.p + column, SQUARE_LD, m.ds, SQUARE_LD);
        store_rows(out.dlocal, ATTENTION_BLOCK, dlocal);
        multiply<EXACT, COLUMNS, COLUMNS, ATTENTION_BLOCK>(dk, m.ds + column, SQUARE_LD, m.q, LD);
        store_rows(out.dk, D, dk);
    }
    __syncthreads();
    store_rows(m.q, LD, dq); /* in the place of Q: the gradient at the left edge */
    __syncthreads();
    {
        float dupdate[N][4] = {};
        multiply<EXACT, COLUMNS, COLUMNS, ATTENTION_BLOCK>(dupdate, m.p + column, SQUARE_LD, m.q, LD);
        store_rows(out.dupdate, D, dupdate);
    }
    /* p = dA = -tril(dedge U^T + dS Y^T) */
#pragma unroll
    for (int n = 0; n < 8; n++)
        x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
    multiply<EXACT, ROWS, ROWS, D>(x, own(m.q, LD), LD, m.k, LD);
    __syncthreads();
    load_tile<ATTENTION_BLOCK>(m.k, SQUARE_LD, prepared.local, ATTENTION_BLOCK, ATTENTION_BLOCK);
    loads_done();
    multiply<EXACT, ROWS, ROWS, ATTENTION_BLOCK>(x, own(m.ds, SQUARE_LD), SQUARE_LD, m.k, SQUARE_LD);
    keep_lower(x, 0);
    negate(x);
    store_rows(m.p, SQUARE_LD, x);
    __syncthreads();
    load_tile<D>(m.q, LD, q, call.in.ldq, rows);
    load_tile<D>(m.k, LD, k, call.in.ldk, rows);
    load_tile<D>(m.v, LD, w, ldw, rows);
    loads_done();
    {
        float dw[N][4] = {};
        multiply<EXACT, COLUMNS, COLUMNS, ATTENTION_BLOCK>(dw, m.p + column, SQUARE_LD, m.q, LD);
        store_rows(out.dw, D, dw);
    }
    multiply<EXACT, ROWS, COLUMNS, ATTENTION_BLOCK>(dq, own(m.ds, SQUARE_LD), SQUARE_LD, m.k, LD);
    multiply<EXACT, ROWS, COLUMNS, ATTENTION_BLOCK>(dq, own(m.p, SQUARE_LD), SQUARE_LD, m.v, LD);
    __syncthreads();
    if (call.gate)
        gate_diagonal(call, m, bh, first, rows, before);
}

template <int P, int D, int KIND>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    rows_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int LD = D + 4, N = D / 8, EXACT = P == PRECISION_BF16 ? PRECISION_TF32 : P;
    extern __shared__ float4 shared[];
    struct backward_memory m = backward_memory_find<D>(reinterpret_cast<float *>(shared));
    int heads = call.B * call.H, bh = blockIdx.x % heads;
    int block = call.slab_first + call.slab_blocks - 1 - blockIdx.x / heads, bk = key_head(call, bh);
    int first = block * ATTENTION_BLOCK, rows = min(ATTENTION_BLOCK, call.T - first);
    struct head_rows head = find_rows(call, bh);
    float dq[N][4] = {}, before[2] = {}, sum = 0;
    find_delta<D, KIND>(call, bh, first, rows);
    __syncthreads();
    load_statistics(call, m, bh, first, rows);
    load_tile<D>(m.dout, LD, head.dout + (size_t)first * call.H * D, call.H * D, rows);
    load_tile<D>(m.q, LD, head.q + (size_t)first * call.in.ldq, call.in.ldq, rows);
    if (call.gate)
        load_gates(m.gate_q, head.gates + first, rows);
    loads_done();
    if (KIND == KIND_PATH)
        walk_queries<EXACT, D>(call, m, bh, block, rows);
    if (KIND == KIND_STICK)
        walk_sticks<P, D>(call, m, bh, block, rows);
    for (int j = 0; j < block + (KIND != KIND_PATH); j++) {
        bool diagonal = KIND != KIND_PATH && j == block;
        int start = j * ATTENTION_BLOCK, count = diagonal ? rows : ATTENTION_BLOCK;
        size_t slot = slab_slot(call, bh, block, j);
        if (KIND == KIND_PATH) {
            load_tile<D>(m.k, LD, path_block_at(call, bk, j).keys, D, ATTENTION_BLOCK);
            load_tile<D>(m.q, LD, call.chain + slot * ATTENTION_BLOCK * D, D, ATTENTION_BLOCK);
        } else {
            load_tile<D>(m.k, LD, head.k + (size_t)start * call.in.ldk, call.in.ldk, count);
        }
        load_tile<D>(m.v, LD, head.v + (size_t)start * call.in.ldv, call.in.ldv, count);
        if (call.gate)
            load_gates(m.gate_k, head.gates + start, count);
        loads_done();
        float s[8][4] = {}, dp[8][4] = {};
        multiply<P, ROWS, ROWS, D>(s, own(m.q, LD), LD, m.k, LD);
        multiply<P, ROWS, ROWS, D>(dp, own(m.dout, LD), LD, m.v, LD);
        if (KIND == KIND_STICK) {
            store_rows(m.p, SQUARE_LD, s);
            store_rows(m.ds, SQUARE_LD, dp);
            size_t at = slot * ATTENTION_BLOCK + stick_row();
            if (threadIdx.x % 2 == 0)
                call.dchain[at] = sum;
            stick_backward(m.p, m.ds, call.scale, diagonal, call.chain[at], m.delta[stick_row()], sum);
        } else {
            softmax_backward(s, dp, call, m, diagonal);
            store_rows(m.ds, SQUARE_LD, dp);
            if (call.gate && !diagonal)
                gate_row_sums(call, bh, block, j, before, dp);
            __syncwarp();
        }
        if (KIND == KIND_PATH && j > 0) {
            store_rows(call.dchain + slot * ATTENTION_BLOCK * D, D, dq);
            store_rows(m.q, LD, dq);
#pragma unroll
            for (int n = 0; n < N; n++)
                dq[n][0] = dq[n][1] = dq[n][2] = dq[n][3] = 0;
        }
        multiply<P, ROWS, COLUMNS, ATTENTION_BLOCK>(dq, own(m.ds, SQUARE_LD), SQUARE_LD, m.k, LD);
        __syncthreads();
        if (KIND == KIND_PATH && j > 0) {
            load_tile<D, D>(m.k, LD, path_block_at(call, bk, j).product, D, D);
            loads_done();
            multiply<EXACT, ROWS, ROWS, D>(dq, own(m.q, LD), LD, m.k, LD);
            __syncthreads();
        }
    }
    if (KIND == KIND_PATH)
        path_diagonal_backward<P, D>(call, m, dq, bh, block, rows, before);
    else if (call.gate)
        gate_diagonal(call, m, bh, first, rows, before);
    store_slice(call.out.dq + token_offset(call, bh, call.H, first, call.in.ldq), call.in.ldq, dq, rows);
}

template <int P, int D> static void launch(struct cuda_device *cuda, const struct attention_call *call)
{
    size_t blocks = (size_t)call->B * call->H * call->slab_blocks, shared = backward_shared<D>();
    if (call->kind == KIND_STICK)
        attention_launch(cuda, "attention backward", rows_kernel<P, D, KIND_STICK>, blocks, shared, call);
    else if (call->kind == KIND_PATH)
        attention_launch(cuda, "attention backward", rows_kernel<P, D, KIND_PATH>, blocks, shared, call);
    else
        attention_launch(cuda, "attention backward", rows_kernel<P, D, KIND_SOFTMAX>, blocks, shared, call);
}

void cuda_attention_rows(struct cuda_device *cuda, const struct attention_call *call)
{
    with_precision(cuda, "attention backward", call->D,
                   [&](auto precision, auto width) { launch<decltype(precision)::P, decltype(width)::D>(cuda, call); });
}
