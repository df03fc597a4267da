/* Attention backward, keys: a block of threads takes 64 keys and finds dk and dv, and dlog_gate from later queries; for
 * path also the gradients of the block products. It reads what attention_rows.cu left in the slab. */
#include "kernels/cuda/attention_backward.cuh"

/* ---- keys: dk, dv, and dlog_gate of the block's tokens from later query blocks ---- */

/* Column sums of ds over later query blocks, and what lies to the left of this key block, become dlog_gate. */
static __device__ inline void gate_columns(const struct attention_call &call, const struct backward_memory &m, int bh,
                                           int j, float columns, float before)
{
    int first = j * ATTENTION_BLOCK;
    __syncthreads();
    if (threadIdx.x < ATTENTION_BLOCK)
        m.p[threadIdx.x] = columns;
    __syncthreads();
    if (threadIdx.x < ATTENTION_BLOCK && first + (int)threadIdx.x < call.T) {
        float sum = before;
        for (int s = 0; s < (int)threadIdx.x; s++)
            sum += m.p[s];
        call.out.dlog_gate[((size_t)(bh / call.H) * call.T + first + threadIdx.x) * call.H + bh % call.H] +=
            sum / call.scale;
    }
    __syncthreads();
}

template <int P, int D, int KIND>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    keys_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int LD = D + 4, N = D / 8;
    extern __shared__ float4 shared[];
    struct backward_memory m = backward_memory_find<D>(reinterpret_cast<float *>(shared));
    int heads = call.B * call.K, bk = blockIdx.x % heads, j = blockIdx.x / heads, column = threadIdx.x / 32 * 16;
    int start = j * ATTENTION_BLOCK, count = min(ATTENTION_BLOCK, call.T - start);
    int end = call.slab_first + call.slab_blocks, from = max(call.slab_first, KIND == KIND_PATH ? j + 1 : j);
    bool fresh = j >= call.slab_first; /* otherwise earlier slabs have written */
    size_t index = (size_t)bk * call.blocks + j;
    float *dkeys = KIND == KIND_PATH ? call.dkeys + index * ATTENTION_BLOCK * D
                                     : call.out.dk + token_offset(call, bk, call.K, start, call.in.ldk);
    float *dvalues = call.out.dv + token_offset(call, bk, call.K, start, call.in.ldv);
    int ldk = KIND == KIND_PATH ? D : call.in.ldk;
    float dk[N][4] = {}, dv[N][4] = {};
    if (KIND == KIND_PATH)
        load_tile<D>(m.k, LD, path_block_at(call, bk, j).keys, D, ATTENTION_BLOCK);
    else
        load_tile<D>(m.k, LD, call.in.k + token_offset(call, bk, call.K, start, ldk), ldk, count);
    load_tile<D>(m.v, LD, call.in.v + token_offset(call, bk, call.K, start, call.in.ldv), call.in.ldv, count);
    if (!fresh) {
        add_rows(dk, dkeys, ldk, count);
        add_rows(dv, dvalues, call.in.ldv, count);
    }
    for (int g = 0; g < call.group; g++) {
        int bh = bk / call.K * call.H + bk % call.K * call.group + g;
        struct head_rows head = find_rows(call, bh);
        float columns = 0, before = 0;
        if (KIND == KIND_PATH && fresh)
            add_rows(dv, path_diagonal_at(call, bh, j).dv, D);
        if (call.gate)
            load_gates(m.gate_k, head.gates + start, count);
        for (int block = from; block < end; block++) {
            bool diagonal = block == j;
            int first = block * ATTENTION_BLOCK, rows = min(ATTENTION_BLOCK, call.T - first);
            size_t slot = slab_slot(call, bh, block, j);
            if (KIND == KIND_PATH)
                load_tile<D>(m.q, LD, call.chain + slot * ATTENTION_BLOCK * D, D, ATTENTION_BLOCK);
            else
                load_tile<D>(m.q, LD, head.q + (size_t)first * call.in.ldq, call.in.ldq, rows);
            load_tile<D>(m.dout, LD, head.dout + (size_t)first * call.H * D, call.H * D, rows);
            load_statistics(call, m, bh, first, rows);
            if (call.gate)
                load_gates(m.gate_q, head.gates + first, rows);
            loads_done();
            float s[8][4] = {}, dp[8][4] = {};
            multiply<P, ROWS, ROWS, D>(s, own(m.q, LD), LD, m.k, LD);
            multiply<P, ROWS, ROWS, D>(dp, own(m.dout, LD), LD, m.v, LD);
            if (KIND != KIND_STICK)
                softmax_backward(s, dp, call, m, diagonal);
            store_rows(m.p, SQUARE_LD, s);
            store_rows(m.ds, SQUARE_LD, dp);
            if (KIND == KIND_STICK) {
                size_t at = slot * ATTENTION_BLOCK + stick_row();
                float sum = call.dchain[at];
                stick_backward(m.p, m.ds, call.scale, diagonal, call.chain[at], m.delta[stick_row()], sum);
                if (diagonal && call.remainder && threadIdx.x % 2 == 0)
                    m.p[stick_row() * SQUARE_LD + stick_row()] = stick_row() < rows ? __expf(m.row[stick_row()]) : 0;
            }
            __syncthreads();
            multiply<P, COLUMNS, COLUMNS, ATTENTION_BLOCK>(dv, m.p + column, SQUARE_LD, m.dout, LD);
            multiply<P, COLUMNS, COLUMNS, ATTENTION_BLOCK>(dk, m.ds + column, SQUARE_LD, m.q, LD);
            if (call.gate && !diagonal) {
                if (threadIdx.x < ATTENTION_BLOCK)
                    for (int i = 0; i < ATTENTION_BLOCK; i++)
                        columns += m.ds[i * SQUARE_LD + threadIdx.x];
                const float *parts = call.before + slot * 4;
                before += (parts[0] + parts[1]) + (parts[2] + parts[3]);
            }
            __syncthreads();
        }
        if (call.gate)
            gate_columns(call, m, bh, j, columns, before);
    }
    store_slice(dkeys, ldk, dk, count);
    store_slice(dvalues, call.in.ldv, dv, count);
}

/* ---- path: dP_j = sum of q^T dq over the queries that cross block j ---- */

/* A block of threads takes at most 64 rows of the product. */
template <int D> static constexpr int PARTS = (D + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;

template <int D> static constexpr size_t product_shared()
{
    return 2 * ATTENTION_BLOCK * (D + 4);
}

template <int P, int D>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    product_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int LD = D + 4, N = D / 8;
    extern __shared__ float4 shared[];
    float *q = reinterpret_cast<float *>(shared), *dq = q + ATTENTION_BLOCK * LD;
    int part = blockIdx.x % PARTS<D>, heads = call.B * call.K, bk = blockIdx.x / PARTS<D> % heads;
    int j = blockIdx.x / PARTS<D> / heads + 1, row = threadIdx.x / 32 * 16;
    int end = call.slab_first + call.slab_blocks, from = max(call.slab_first, j + 1);
    float *to = call.dproduct + ((size_t)bk * call.blocks + j) * D * D + (size_t)part * ATTENTION_BLOCK * D;
    float sum[N][4] = {};
    bool working = row + part * ATTENTION_BLOCK < D;
    if (working && j < call.slab_first - 1) /* an earlier slab has met this block */
        add_rows(sum, to, D);
    for (int g = 0; g < call.group; g++) {
        int bh = bk / call.K * call.H + bk % call.K * call.group + g;
        for (int block = from; block < end; block++) {
            size_t slot = slab_slot(call, bh, block, j) * ATTENTION_BLOCK * D;
            load_tile<D>(q, LD, call.chain + slot, D, ATTENTION_BLOCK);
            load_tile<D>(dq, LD, call.dchain + slot, D, ATTENTION_BLOCK);
            loads_done();
            if (working)
                multiply<P, COLUMNS, COLUMNS, ATTENTION_BLOCK>(sum, q + part * ATTENTION_BLOCK + row, LD, dq, LD);
            __syncthreads();
        }
    }
    if (working)
        store_rows(to, D, sum);
}

template <int P, int D> static void launch(struct cuda_device *cuda, const struct attention_call *call)
{
    constexpr int EXACT = P == PRECISION_BF16 ? PRECISION_TF32 : P;
    size_t end = (size_t)call->slab_first + call->slab_blocks, heads = (size_t)call->B * call->K;
    size_t shared = backward_shared<D>();
    if (call->kind == KIND_STICK)
        attention_launch(cuda, "attention backward", keys_kernel<P, D, KIND_STICK>, heads * end, shared, call);
    else if (call->kind == KIND_PATH)
        attention_launch(cuda, "attention backward", keys_kernel<P, D, KIND_PATH>, heads * end, shared, call);
    else
        attention_launch(cuda, "attention backward", keys_kernel<P, D, KIND_SOFTMAX>, heads * end, shared, call);
    if (call->kind == KIND_PATH && end > 2)
        attention_launch(cuda, "attention backward", product_kernel<EXACT, D>, heads * (end - 2) * PARTS<D>,
                         product_shared<D>(), call);
}

void cuda_attention_keys(struct cuda_device *cuda, const struct attention_call *call)
{
    with_precision(cuda, "attention backward", call->D,
                   [&](auto precision, auto width) { launch<decltype(precision)::P, decltype(width)::D>(cuda, call); });
}
