/* Attention backward, queries: a block of threads takes 64 queries and finds dq; for path and stick-breaking it keeps
 * what attention_keys.cu needs of the way from the query to each key block. */
#include "kernels/cuda/attention_stage.cuh"

/* The block's 64 queries, and its memory. Path's queries are those that the ring brings. */
template <int P, int D, int KIND> struct rows_block {
    int bh, bk, block, first, rows;
    tile<P, D> queries, douts;
    stage_ring<P, D, KIND, true> ring;
};

/* What gate_own_block needs: a square, and a number for each row. */
enum { GATE_BYTES = SQUARE_BYTES + ATTENTION_BLOCK * (int)sizeof(float) };

template <int P, int D, int KIND> static constexpr size_t rows_shared()
{
    size_t ring = stage_ring<P, D, KIND, true>::BYTES;
    return (KIND == KIND_PATH ? 1 : 2) * tile<P, D>::BYTES + (ring > GATE_BYTES ? ring : (size_t)GATE_BYTES);
}

template <int P, int D, int KIND>
static __device__ inline struct rows_block<P, D, KIND> find_block(const struct attention_call &call, char *base) {
    struct rows_block<P, D, KIND> at;
    int heads = call.B * call.H;
    at.bh = blockIdx.x % heads;
    at.block = call.slab_first + call.slab_blocks - 1 - blockIdx.x / heads; /* the longest first */
    at.bk = key_head(call, at.bh);
    at.first = at.block * ATTENTION_BLOCK;
    at.rows = block_rows(call, at.block);
    at.douts = carve_tile<tile<P, D>>(base);
    at.queries = at.douts;
    if constexpr (KIND != KIND_PATH)
        at.queries = carve_tile<tile<P, D>>(base);
    at.ring = { base, at.bh, at.bk, at.block };
    return at;
}

/* delta of the thread's two rows: four lanes share one. */
template <int P, int D, int KIND>
static __device__ inline void find_statistics(const struct attention_call &call, const rows_block<P, D, KIND> &at,
                                              struct row_statistics &rows)
{
    int ldo = call.H * D;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = own_row(half), t = at.first + row;
        bool there = row < at.rows;
        float sum = 0;
        if (there && (KIND != KIND_STICK || call.remainder)) {
            const float *dout = call.dout + token_offset(call, at.bh, call.H, t, ldo);
            const float *other = KIND == KIND_STICK ? call.in.v + token_offset(call, at.bk, call.K, t, call.in.ldv)
                                                    : call.o + token_offset(call, at.bh, call.H, t, ldo);
#pragma unroll
            for (int d = threadIdx.x % 4 * 4; d < D; d += 16)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sum += dout[d + i] * other[d + i];
        }
        rows.delta[half] = quad_sum(sum);
        rows.row[half] = there ? call.row[(size_t)at.bh * call.T + t] : INFINITY;
        if (there && threadIdx.x % 4 == 0)
            call.delta[(size_t)at.bh * call.T + t] = rows.delta[half];
    }
    if (call.gate)
        own_gates(rows.gates, call.cumulative + (size_t)at.bh * call.T + at.first, at.rows);
}

/* ---- the gate ---- */

/* Sum over the warp's rows to the left of key block j, for keys_kernel; then `before` takes the tile in. */
static __device__ inline void gate_row_sums(const struct attention_call &call, size_t slot, float (&before)[2],
                                            const float (&ds)[8][4])
{
    float sum = warp_sum(before[0] + before[1]);
    if (threadIdx.x % 32 == 0)
        call.before[slot * 4 + threadIdx.x / 32] = sum;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            before[e / 2] += ds[n][e];
}

/* dlog_gate of the block's own tokens s from its own queries: dlogits of i >= s with keys j < s, all sums of what
 * counts and no differences. before: of each row, all key blocks to the left. square: GATE_BYTES. */
static __device__ inline void gate_own_block(const struct attention_call &call, float *square, int bh, int first,
                                             int rows, const float (&before)[2], float (&ds)[8][4])
{
    float *start = square + SQUARE_BYTES / sizeof(float);
    __syncthreads();
    store_floats(square, SQUARE_LD, ds);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = quad_sum(before[half]);
        if (threadIdx.x % 4 == 0)
            start[own_row(half)] = sum;
    }
    __syncthreads();
    if (threadIdx.x < ATTENTION_BLOCK) {
        float *row = square + threadIdx.x * SQUARE_LD, running = start[threadIdx.x];
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
            sum += square[i * SQUARE_LD + threadIdx.x];
        call.out.dlog_gate[((size_t)(bh / call.H) * call.T + first + threadIdx.x) * call.H + bh % call.H] =
            sum / call.scale;
    }
}

/* ---- ways from the diagonal to the first key block ---- */

/* Moves the queries, at the left edge of their block, on through all key blocks and keeps them at each right edge. */
template <int P, int D>
static __device__ inline void walk_queries(const struct attention_call &call, const rows_block<P, D, KIND_PATH> &at)
{
    constexpr int COUNT = at.ring.COUNT;
    tile<P, D> queries = at.ring.at(0).q;
    auto fetch = [&](int j) { load_packed(at.ring.at(j).change, block_matrix(call, call.change, at.bk, j, D, D)); };
    float q[D / 8][4] = {};
    add_floats(q, block_matrix(call, call.edge, at.bh, at.block, D), D);
    if (at.block > 1)
        fetch(at.block - 1);
    copies_commit();
    for (int j = at.block - 1; j >= 0; j--) {
        store_packed<P, D>(call.chain + slab_slot(call, at.bh, at.block, j) * ATTENTION_BLOCK * D, q);
        if (j == 0)
            break;
        if (COUNT == 2 && j > 1)
            fetch(j - 1);
        copies_commit();
        store_tile(queries, q);
        copies_wait<COUNT - 1>();
        multiply<ROWS, COLUMNS, D>(q, queries, warp_row(), at.ring.at(j).change);
        __syncthreads();
        if (COUNT == 1 && j > 1)
            fetch(j - 1);
    }
    __syncthreads();
}

/* Keeps the log of the stick that is left to the right of each key block. */
template <int P, int D>
static __device__ inline void walk_sticks(const struct attention_call &call, const rows_block<P, D, KIND_STICK> &at)
{
    constexpr int COUNT = at.ring.COUNT;
    auto fetch = [&](int j) { load_packed(at.ring.at(j).k, block_matrix(call, call.keys, at.bk, j, D)); };
    float left[2] = {};
    if (at.block > 0)
        fetch(at.block);
    copies_commit();
    for (int j = at.block; j >= 0; j--) {
        float *to = call.chain + slab_slot(call, at.bh, at.block, j) * ATTENTION_BLOCK;
        if (threadIdx.x % 4 == 0) {
            to[own_row(0)] = left[0];
            to[own_row(1)] = left[1];
        }
        if (j == 0)
            break;
        if (COUNT == 2 && j > 1)
            fetch(j - 1);
        copies_commit();
        copies_wait<COUNT - 1>();
        float s[8][4] = {}, rest[8][4];
        multiply<ROWS, ROWS, D>(s, at.queries, warp_row(), at.ring.at(j).k);
        stick_rests<P>(rest, s, call, j == at.block);
        stick_take(rest, left);
        __syncthreads();
        if (COUNT == 1 && j > 1)
            fetch(j - 1);
    }
    __syncthreads();
}

/* ---- the loop ---- */

/* Weights in s and scale * dlogits in dp, from raw products. sums: of stick-breaking. */
template <int P, int KIND>
static __device__ inline void tile_gradients(const struct attention_call &call, size_t slot, float (&s)[8][4],
                                             float (&dp)[8][4], const struct row_statistics &rows,
                                             const float2 *key_gates, bool own, float (&sums)[2])
{
    if constexpr (KIND == KIND_STICK) {
        float rest[8][4], left[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            size_t at = slot * ATTENTION_BLOCK + own_row(half);
            left[half] = call.chain[at];
            if (threadIdx.x % 4 == 0)
                call.dchain[at] = sums[half];
        }
        stick_rests<P>(rest, s, call, own);
        stick_weights(s, rest, call, own, left);
        stick_gradients(s, dp, rest, call, own, rows.delta, sums);
    } else {
        finish_logits(s, call, rows.gates, key_gates, own);
        softmax_backward(s, dp, call.scale, rows);
    }
}

/* Path: the gradient at the left edge of the key block goes to its right edge, dq <- dq P^T. */
template <int P, int D, typename Stage>
static __device__ inline void cross_back(const struct attention_call &call, size_t slot, const Stage &here,
                                         float (&dq)[D / 8][4])
{
    store_packed<P, D>(call.dchain + slot * ATTENTION_BLOCK * D, dq);
    __syncwarp();
    store_tile(here.q, dq); /* the warp's own rows: it has used the queries there */
    __syncwarp();
    multiply<ROWS, ROWS, D>(dq, here.q, warp_row(), here.change);
}

template <int P, int D, int KIND>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    rows_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr bool PATH = KIND == KIND_PATH;
    extern __shared__ float4 shared[];
    auto at = find_block<P, D, KIND>(call, reinterpret_cast<char *>(shared));
    struct row_statistics rows = {};
    float dq[D / 8][4] = {}, before[2] = {}, sums[2] = {};
    find_statistics(call, at, rows);
    load_rows(at.douts, call.dout + token_offset(call, at.bh, call.H, at.first, call.H * D), call.H * D, at.rows,
              block_matrix(call, call.douts, at.bh, at.block, D));
    if constexpr (!PATH)
        load_rows(at.queries, call.in.q + token_offset(call, at.bh, call.H, at.first, call.in.ldq), call.in.ldq,
                  at.rows, block_matrix(call, call.queries, at.bh, at.block, D));
    if constexpr (PATH)
        walk_queries<P, D>(call, at);
    __syncthreads();
    if constexpr (KIND == KIND_STICK)
        walk_sticks<P, D>(call, at);
    at.ring.start(call, 0);
    for (int j = 0; j <= at.block; j++) {
        bool own = j == at.block;
        size_t slot = slab_slot(call, at.bh, at.block, j);
        auto here = at.ring.take(call, j, j + 1, !own);
        float s[8][4] = {}, dp[8][4] = {};
        if (PATH && own)
            add_floats(s, block_matrix(call, call.logits, at.bh, at.block, ATTENTION_BLOCK), ATTENTION_BLOCK);
        else
            multiply<ROWS, ROWS, D>(s, PATH ? here.q : at.queries, warp_row(), here.k);
        multiply<ROWS, ROWS, D>(dp, at.douts, warp_row(), here.v);
        tile_gradients<P, KIND>(call, slot, s, dp, rows, here.gates, own, sums);
        if (call.gate && !own)
            gate_row_sums(call, slot, before, dp);
        if constexpr (PATH)
            if (!own && j > 0)
                cross_back<P, D>(call, slot, here, dq);
        if (!PATH || !own)
            multiply_kept<COLUMNS>(dq, dp, here.k);
        if (PATH && own)
            store_floats(block_matrix(call, call.dlogits, at.bh, at.block, ATTENTION_BLOCK), ATTENTION_BLOCK, dp);
        if (call.gate && own)
            gate_own_block(call, reinterpret_cast<float *>(at.ring.base), at.bh, at.first, at.rows, before, dp);
        at.ring.release(call, j, j + 1, !own);
    }
    if (PATH)
        store_floats(block_matrix(call, call.dedge, at.bh, at.block, D), D, dq);
    else
        store_slice(call.out.dq + token_offset(call, at.bh, call.H, at.first, call.in.ldq), call.in.ldq, dq, at.rows);
}

template <int P, int D, int KIND> static void launch_kind(struct cuda_device *cuda, const struct attention_call *call)
{
    attention_launch(cuda, "attention backward", rows_kernel<P, D, KIND>, (size_t)call->B * call->H * call->slab_blocks,
                     rows_shared<P, D, KIND>(), call);
}

template <int P, int D> static void launch(struct cuda_device *cuda, const struct attention_call *call)
{
    if (call->kind == KIND_STICK)
        launch_kind<P, D, KIND_STICK>(cuda, call);
    else if (call->kind == KIND_PATH)
        launch_kind<P, D, KIND_PATH>(cuda, call);
    else
        launch_kind<P, D, KIND_SOFTMAX>(cuda, call);
}

void cuda_attention_rows(struct cuda_device *cuda, const struct attention_call *call)
{
    with_precision(cuda, "attention backward", call->D,
                   [&](auto precision, auto width) { launch<decltype(precision)::P, decltype(width)::D>(cuda, call); });
}
