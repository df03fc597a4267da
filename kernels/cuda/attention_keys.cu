/* Attention backward, keys: a block of threads takes 64 keys and finds dk and dv, and dlog_gate from later queries; for
 * path also the gradients of the block products. It reads what attention_rows.cu left in the slab. */
#include "kernels/cuda/attention_weights.cuh"

/* ---- what one query block brings, and the next one while this one is used ---- */

template <int P, int D> struct key_stage {
    static constexpr size_t BYTES = 2 * tile<P, D>::BYTES + ATTENTION_BLOCK * sizeof(float2);
    static constexpr int COUNT = STAGES<BYTES>;
    tile<P, D> q, dout;
    float2 *gates; /* of the keys; they differ between the query heads */
};

template <int P, int D> static __device__ inline struct key_stage<P, D> key_stage_at(char *base, int index) {
    char *next = base + index % key_stage<P, D>::COUNT * key_stage<P, D>::BYTES;
    struct key_stage<P, D> made;
    made.gates = carve_array<float2>(next, ATTENTION_BLOCK);
    made.q = carve_tile<tile<P, D>>(next);
    made.dout = carve_tile<tile<P, D>>(next);
    return made;
}

/* The keys of this block of threads, and the query blocks of this slab that meet them: `count` of each query head. */
struct keys_place {
    int bk, j, start, rows, from, count;
    bool fresh; /* otherwise earlier slabs have written */
};

static __device__ inline struct keys_place find_place(const struct attention_call &call)
{
    struct keys_place at;
    int heads = call.B * call.K;
    at.bk = blockIdx.x % heads;
    at.j = blockIdx.x / heads;
    at.start = at.j * ATTENTION_BLOCK;
    at.rows = block_rows(call, at.j);
    at.from = max(call.slab_first, at.j);
    at.count = call.slab_first + call.slab_blocks - at.from;
    at.fresh = at.j >= call.slab_first;
    return at;
}

template <int P, int D, int KIND>
static __device__ inline void fetch_queries(const struct attention_call &call, const struct keys_place &at, char *base,
                                            int index)
{
    struct key_stage<P, D> to = key_stage_at<P, D>(base, index);
    int bh = query_head(call, at.bk, index / at.count), block = at.from + index % at.count;
    load_packed(to.dout, block_matrix(call, call.douts, bh, block, D));
    if (KIND != KIND_PATH)
        load_packed(to.q, block_matrix(call, call.queries, bh, block, D));
    else if (block != at.j)
        load_packed(to.q, call.chain + slab_slot(call, bh, block, at.j) * ATTENTION_BLOCK * D);
    if (call.gate)
        load_gates(to.gates, call.cumulative + (size_t)bh * call.T + at.start, at.rows);
}

static __device__ inline void load_statistics(const struct attention_call &call, int bh, int block,
                                              struct row_statistics &rows)
{
    int first = block * ATTENTION_BLOCK, count = block_rows(call, block);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        size_t row = (size_t)bh * call.T + first + own_row(half);
        bool there = own_row(half) < count;
        rows.row[half] = there ? call.row[row] : INFINITY;
        rows.delta[half] = there ? call.delta[row] : 0;
    }
    if (call.gate)
        own_gates(rows.gates, call.cumulative + (size_t)bh * call.T + first, count);
}

/* ---- dk, dv ---- */

/* Weights in s and scale * dlogits in dp, from raw products. */
template <int P, int KIND>
static __device__ inline void tile_gradients(const struct attention_call &call, size_t slot, float (&s)[8][4],
                                             float (&dp)[8][4], const struct row_statistics &rows,
                                             const float2 *key_gates, bool own)
{
    if constexpr (KIND == KIND_STICK) {
        float rest[8][4], left[2], sums[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            left[half] = call.chain[slot * ATTENTION_BLOCK + own_row(half)];
            sums[half] = call.dchain[slot * ATTENTION_BLOCK + own_row(half)];
        }
        stick_rests<P>(rest, s, call, own);
        stick_weights(s, rest, call, own, left);
        stick_gradients(s, dp, rest, call, own, rows.delta, sums);
        if (own && call.remainder) /* v_i gets what is left of the stick of row i */
            each_pair(s, [&](int row, int col, float &first, float &second) {
                float left_over = rows.row[row != own_row(0)];
                if (row == col || row == col + 1)
                    (row == col ? first : second) = left_over < INFINITY ? __expf(left_over) : 0;
            });
    } else {
        finish_logits(s, call, rows.gates, key_gates, own);
        softmax_backward(s, dp, call.scale, rows);
    }
}

/* dlogits of later query blocks, summed over the queries, by column of this thread; and of keys to the left. */
struct gate_sums {
    float columns[8][2], before;
};

static __device__ inline void gate_add(const struct attention_call &call, size_t slot, struct gate_sums &sums,
                                       const float (&ds)[8][4])
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        sums.columns[n][0] += ds[n][0] + ds[n][2];
        sums.columns[n][1] += ds[n][1] + ds[n][3];
    }
    const float *parts = call.before + slot * 4;
    sums.before += (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

/* The sums of one query head become dlog_gate of this block's tokens, and begin again. parts: shared, free before and
 * after. */
static __device__ inline void gate_finish(const struct attention_call &call, const struct keys_place &at, int bh,
                                          struct gate_sums &sums, float (*parts)[ATTENTION_BLOCK])
{
    static_assert(ATTENTION_THREADS == 4 * 32, "four parts are added");
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float sum = sums.columns[n][e];
#pragma unroll
            for (int distance = 4; distance < 32; distance *= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, distance);
            if (threadIdx.x % 32 < 4)
                parts[threadIdx.x / 32][own_column(n) + e] = sum;
        }
    __syncthreads();
    if ((int)threadIdx.x < at.rows) {
        float sum = sums.before;
        for (int s = 0; s < (int)threadIdx.x; s++)
            sum += (parts[0][s] + parts[1][s]) + (parts[2][s] + parts[3][s]);
        call.out.dlog_gate[((size_t)(bh / call.H) * call.T + at.start + threadIdx.x) * call.H + bh % call.H] +=
            sum / call.scale;
    }
    __syncthreads();
    sums = {};
}

template <int P, int D, bool TIGHT> static constexpr size_t keys_shared()
{
    return 2 * tile<P, D>::BYTES + (TIGHT ? 1 : 2) * tile<P, ATTENTION_BLOCK>::BYTES +
           key_stage<P, D>::COUNT * key_stage<P, D>::BYTES;
}

/* dv += S^T dO and, unless the logits are given, dk += dS^T Q. TIGHT: ds lies where p does. Ends with all threads
 * together. */
template <bool TIGHT, int P, int D>
static __device__ inline void add_products(float (&dk)[D / 8][4], float (&dv)[D / 8][4], tile<P, ATTENTION_BLOCK> p,
                                           tile<P, ATTENTION_BLOCK> ds, float (&s)[8][4], float (&dp)[8][4],
                                           const key_stage<P, D> &here, bool given)
{
    store_tile(p, s);
    if (!TIGHT)
        store_tile(ds, dp);
    __syncthreads();
    multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(dv, p, warp_row(), here.dout);
    if (TIGHT) {
        __syncthreads();
        store_tile(ds, dp);
        __syncthreads();
    }
    if (!given)
        multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(dk, ds, warp_row(), here.q);
    __syncthreads();
}

template <int P, int D, int KIND, bool TIGHT>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    keys_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int N = D / 8, COUNT = key_stage<P, D>::COUNT;
    constexpr bool PATH = KIND == KIND_PATH;
    extern __shared__ float4 shared[];
    char *base = reinterpret_cast<char *>(shared);
    auto k = carve_tile<tile<P, D>>(base), v = carve_tile<tile<P, D>>(base);
    auto parts = reinterpret_cast<float(*)[ATTENTION_BLOCK]>(base); /* where p lies between the products */
    auto p = carve_tile<tile<P, ATTENTION_BLOCK>>(base), ds = TIGHT ? p : carve_tile<tile<P, ATTENTION_BLOCK>>(base);
    struct keys_place at = find_place(call);
    float *dkeys = PATH ? block_matrix(call, call.dkeys, at.bk, at.j, D)
                        : call.out.dk + token_offset(call, at.bk, call.K, at.start, call.in.ldk);
    float *dvalues = call.out.dv + token_offset(call, at.bk, call.K, at.start, call.in.ldv);
    int ldk = PATH ? D : call.in.ldk, total = call.group * at.count;
    float dk[N][4] = {}, dv[N][4] = {};
    struct gate_sums sums = {};
    load_packed(k, block_matrix(call, call.keys, at.bk, at.j, D));
    load_packed(v, block_matrix(call, call.values, at.bk, at.j, D));
    if (!at.fresh) {
        add_slice(dk, dkeys, ldk, at.rows);
        add_slice(dv, dvalues, call.in.ldv, at.rows);
    }
    fetch_queries<P, D, KIND>(call, at, base, 0);
    copies_commit();
    for (int index = 0; index < total; index++) {
        int bh = query_head(call, at.bk, index / at.count), block = at.from + index % at.count;
        bool own = block == at.j, given = PATH && own; /* are the logits given? */
        size_t slot = slab_slot(call, bh, block, at.j);
        struct row_statistics rows = {};
        load_statistics(call, bh, block, rows);
        if (COUNT == 2 && index + 1 < total)
            fetch_queries<P, D, KIND>(call, at, base, index + 1);
        copies_commit();
        copies_wait<COUNT - 1>();
        auto here = key_stage_at<P, D>(base, index);
        float s[8][4] = {}, dp[8][4] = {};
        if (given)
            add_floats(s, block_matrix(call, call.logits, bh, block, ATTENTION_BLOCK), ATTENTION_BLOCK);
        else
            multiply<ROWS, ROWS, D>(s, here.q, warp_row(), k);
        multiply<ROWS, ROWS, D>(dp, here.dout, warp_row(), v);
        tile_gradients<P, KIND>(call, slot, s, dp, rows, here.gates, own);
        if (call.gate && !own)
            gate_add(call, slot, sums, dp);
        add_products<TIGHT>(dk, dv, p, ds, s, dp, here, given);
        if (COUNT == 1 && index + 1 < total)
            fetch_queries<P, D, KIND>(call, at, base, index + 1);
        if (call.gate && index % at.count == at.count - 1)
            gate_finish(call, at, bh, sums, parts);
    }
    store_slice(dkeys, ldk, dk, at.rows);
    store_slice(dvalues, call.in.ldv, dv, at.rows);
}

/* ---- path: dP_j = sum of q^T dq over the queries that cross block j ---- */

/* A block of threads takes at most 64 rows of the product. */
template <int D> static constexpr int PARTS = (D + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;

template <int P, int D> static constexpr int CHANGE_STAGES = STAGES<2 * tile<P, D>::BYTES>;

template <int P, int D>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    change_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int COUNT = CHANGE_STAGES<P, D>;
    extern __shared__ float4 shared[];
    char *base = reinterpret_cast<char *>(shared);
    int part = blockIdx.x % PARTS<D>, heads = call.B * call.K, bk = blockIdx.x / PARTS<D> % heads;
    int j = blockIdx.x / PARTS<D> / heads + 1, row = warp_row() + part * ATTENTION_BLOCK;
    int from = max(call.slab_first, j + 1), count = call.slab_first + call.slab_blocks - from;
    int total = call.group * count;
    float *to = block_matrix(call, call.dchange, bk, j, D, D) + part * ATTENTION_BLOCK * D;
    float sum[D / 8][4] = {};
    bool working = row < D;
    if (working && j < call.slab_first - 1) /* an earlier slab has met this block */
        add_floats(sum, to, D);
    auto stage = [&](int index, int which) -> tile<P, D> {
        return { reinterpret_cast<typename tile<P, D>::element *>(base +
                                                                  (index % COUNT * 2 + which) * tile<P, D>::BYTES) };
    };
    auto fetch = [&](int index) {
        size_t slot = slab_slot(call, query_head(call, bk, index / count), from + index % count, j);
        load_packed(stage(index, 0), call.chain + slot * ATTENTION_BLOCK * D);
        load_packed(stage(index, 1), call.dchain + slot * ATTENTION_BLOCK * D);
    };
    fetch(0);
    copies_commit();
    for (int index = 0; index < total; index++) {
        if (COUNT == 2 && index + 1 < total)
            fetch(index + 1);
        copies_commit();
        copies_wait<COUNT - 1>();
        if (working)
            multiply<COLUMNS, COLUMNS, ATTENTION_BLOCK>(sum, stage(index, 0), row, stage(index, 1));
        __syncthreads();
        if (COUNT == 1 && index + 1 < total)
            fetch(index + 1);
    }
    if (working)
        store_floats(to, D, sum);
}

template <int P, int D, int KIND> static void launch_kind(struct cuda_device *cuda, const struct attention_call *call)
{
    size_t end = (size_t)call->slab_first + call->slab_blocks;
    with_room<keys_shared<P, D, false>()>(cuda, [&](auto room) {
        constexpr bool TIGHT = decltype(room)::TIGHT;
        attention_launch(cuda, "attention backward", keys_kernel<P, D, KIND, TIGHT>, (size_t)call->B * call->K * end,
                         keys_shared<P, D, TIGHT>(), call);
    });
}

template <int P, int D> static void launch(struct cuda_device *cuda, const struct attention_call *call)
{
    size_t end = (size_t)call->slab_first + call->slab_blocks, heads = (size_t)call->B * call->K;
    if (call->kind == KIND_STICK)
        return launch_kind<P, D, KIND_STICK>(cuda, call);
    if (call->kind == KIND_SOFTMAX)
        return launch_kind<P, D, KIND_SOFTMAX>(cuda, call);
    launch_kind<P, D, KIND_PATH>(cuda, call);
    if (end > 2)
        attention_launch(cuda, "attention backward", change_kernel<P, D>, heads * (end - 2) * PARTS<D>,
                         CHANGE_STAGES<P, D> * 2 * tile<P, D>::BYTES, call);
}

void cuda_attention_keys(struct cuda_device *cuda, const struct attention_call *call)
{
    with_precision(cuda, "attention backward", call->D,
                   [&](auto precision, auto width) { launch<decltype(precision)::P, decltype(width)::D>(cuda, call); });
}
