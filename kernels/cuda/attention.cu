/* Attention forward: a block of threads takes 64 queries and scans the key blocks from the diagonal to the first, so
 * that path can move its queries on, q <- q P_j, and stick-breaking knows what is left. Memory is linear in T. */
#include "kernels/cuda/attention_stage.cuh"

/* ---- sums of gates: a warp for each head of a sequence ---- */

static __global__ void sum_gates_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    int lane = threadIdx.x, b = blockIdx.x / call.H, h = blockIdx.x % call.H;
    const float *gates = call.in.log_gate + (size_t)b * call.T * call.H + h;
    float2 *to = call.cumulative + (size_t)blockIdx.x * call.T;
    double before = 0;
    for (int first = 0; first < call.T; first += 32) {
        int t = first + lane;
        double sum = t < call.T ? gates[(size_t)t * call.H] : 0;
        for (int distance = 1; distance < 32; distance *= 2) {
            double other = __shfl_up_sync(0xffffffffu, sum, distance);
            sum += lane >= distance ? other : 0;
        }
        sum += before;
        before = __shfl_sync(0xffffffffu, sum, 31);
        float high = static_cast<float>(sum);
        if (t < call.T)
            to[t] = make_float2(high, static_cast<float>(sum - high));
    }
}

/* ---- keys and values become packed matrices; for path cuda_path does that ---- */

template <int P, int D>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    pack_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    int heads = call.B * call.K, index = blockIdx.x, block = index % call.blocks;
    bool keys = index / call.blocks >= heads;
    int bk = index / call.blocks % heads, first = block * ATTENTION_BLOCK, ld = keys ? call.in.ldk : call.in.ldv;
    const float *from = (keys ? call.in.k : call.in.v) + token_offset(call, bk, call.K, first, ld);
    pack_rows<P, D>(block_matrix(call, keys ? call.keys : call.values, bk, block, D), from, ld,
                    block_rows(call, block));
}

/* ---- the block loop ---- */

template <int P, int D, int KIND> static constexpr size_t forward_shared()
{
    return tile<P, D>::BYTES + stage_ring<P, D, KIND, false>::BYTES;
}

/* Where the block's 64 queries are. */
struct forward_place {
    int bh, bk, block, first, rows;
};

static __device__ inline struct forward_place find_place(const struct attention_call &call)
{
    struct forward_place at;
    int heads = call.B * call.H;
    at.bh = blockIdx.x % heads;
    at.block = call.blocks - 1 - blockIdx.x / heads; /* the longest first */
    at.bk = key_head(call, at.bh);
    at.first = at.block * ATTENTION_BLOCK;
    at.rows = block_rows(call, at.block);
    return at;
}

/* The last thing a row gets is what is left of its stick. */
template <int N>
static __device__ inline void stick_finish(const struct attention_call &call, const struct forward_place &at,
                                           float (&o)[N][4], const float (&left)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = own_row(half);
        if (row >= at.rows)
            continue;
        if (threadIdx.x % 4 == 0)
            call.row[(size_t)at.bh * call.T + at.first + row] = left[half];
        if (!call.remainder)
            continue;
        float rest = __expf(left[half]);
        const float *value = call.in.v + token_offset(call, at.bk, call.K, at.first + row, call.in.ldv);
#pragma unroll
        for (int n = 0; n < N; n++) {
            o[n][2 * half] += rest * value[own_column(n)];
            o[n][2 * half + 1] += rest * value[own_column(n) + 1];
        }
    }
}

template <int N>
static __device__ inline void softmax_finish(const struct attention_call &call, const struct forward_place &at,
                                             float (&o)[N][4], const float (&most)[2], const float (&sum)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = quad_sum(sum[half]), inverse = 1 / total;
        int row = own_row(half);
        if (threadIdx.x % 4 == 0 && row < at.rows)
            call.row[(size_t)at.bh * call.T + at.first + row] = most[half] + logf(total);
#pragma unroll
        for (int n = 0; n < N; n++) {
            o[n][2 * half] *= inverse;
            o[n][2 * half + 1] *= inverse;
        }
    }
}

template <int P, int D, int KIND>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    forward_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    constexpr int N = D / 8;
    constexpr bool PATH = KIND == KIND_PATH;
    extern __shared__ float4 shared[];
    char *base = reinterpret_cast<char *>(shared);
    auto queries = carve_tile<tile<P, D>>(base);
    struct forward_place at = find_place(call);
    struct stage_ring<P, D, KIND, false> ring = {
        base, at.bh, at.bk, at.block
    };
    float o[N][4] = {}, q[PATH ? N : 1][4], most[2] = { -INFINITY, -INFINITY }, sum[2] = {}, left[2] = {};
    float2 gates[2];
    if (call.gate)
        own_gates(gates, call.cumulative + (size_t)at.bh * call.T + at.first, at.rows);
    ring.start(call, at.block);
    if constexpr (PATH) {
        clear(q);
        add_floats(q, block_matrix(call, call.edge, at.bh, at.block, D), D);
        store_tile(queries, q);
    } else {
        load_rows(queries, call.in.q + token_offset(call, at.bh, call.H, at.first, call.in.ldq), call.in.ldq, at.rows);
    }
    for (int j = at.block; j >= 0; j--) {
        bool diagonal = j == at.block;
        auto here = ring.take(call, at.block - j, j - 1, j > 0);
        float s[8][4] = {};
        if (PATH && diagonal)
            add_floats(s, block_matrix(call, call.logits, at.bh, at.block, ATTENTION_BLOCK), ATTENTION_BLOCK);
        else
            multiply<ROWS, ROWS, D>(s, queries, warp_row(), here.k);
        if (KIND == KIND_STICK) {
            float rest[8][4];
            stick_rests<P>(rest, s, call, diagonal);
            stick_weights(s, rest, call, diagonal, left);
        } else {
            finish_logits(s, call, gates, here.gates, diagonal);
            softmax_step(s, most, sum, o);
        }
        multiply_kept<COLUMNS>(o, s, here.v);
        if constexpr (PATH)
            if (!diagonal && j > 0) {
                multiply<ROWS, COLUMNS, D>(q, queries, warp_row(), here.change);
                __syncwarp();
                store_tile(queries, q);
            }
        ring.release(call, at.block - j, j - 1, j > 0);
    }
    if (KIND == KIND_STICK)
        stick_finish(call, at, o, left);
    else
        softmax_finish(call, at, o, most, sum);
    int ldo = call.H * D;
    store_slice(call.o + token_offset(call, at.bh, call.H, at.first, ldo), ldo, o, at.rows);
}

template <int P, int D, int KIND>
static void launch_forward(struct cuda_device *cuda, const struct attention_call *call)
{
    attention_launch(cuda, "attention", forward_kernel<P, D, KIND>, (size_t)call->B * call->H * call->blocks,
                     forward_shared<P, D, KIND>(), call);
}

template <int P, int D> static void launch(struct cuda_device *cuda, const struct attention_call *call)
{
    if (call->kind != KIND_PATH)
        attention_launch(cuda, "attention", pack_kernel<P, D>, (size_t)2 * call->B * call->K * call->blocks, 0, call);
    if (call->kind == KIND_STICK)
        launch_forward<P, D, KIND_STICK>(cuda, call);
    else if (call->kind == KIND_PATH)
        launch_forward<P, D, KIND_PATH>(cuda, call);
    else
        launch_forward<P, D, KIND_SOFTMAX>(cuda, call);
}

/* ---- sizes ---- */

/* How many sequences lie together in one block: as many as fit and leave none over. */
static int sequences_together(const struct attention_shape *shape)
{
    int most = ATTENTION_BLOCK / shape->T;
    while (most > 1 && shape->B % most)
        most--;
    return most > 1 ? most : 1;
}

struct attention_call attention_call_make(const struct attention_shape *shape, const struct attention_inputs *in,
                                          float *saved, size_t *saved_size)
{
    struct attention_call call = {};
    int together = sequences_together(shape);
    call.B = shape->B / together;
    call.T = shape->T * together;
    call.span = together > 1 ? shape->T : ATTENTION_BLOCK;
    call.H = shape->H;
    call.K = shape->K;
    call.D = shape->D;
    call.group = shape->H / shape->K;
    call.blocks = (call.T + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
    call.kind = shape->weights == ATTENTION_STICK_BREAKING ? KIND_STICK : shape->path ? KIND_PATH : KIND_SOFTMAX;
    call.gate = shape->gate;
    call.path = shape->path;
    call.remainder = shape->remainder;
    call.scale = 1 / sqrtf(static_cast<float>(shape->D));
    if (in)
        call.in = *in;
    size_t used = 0, D = (size_t)call.D, heads = (size_t)call.B * call.H, rows = heads * call.T;
    size_t key_blocks = (size_t)call.B * call.K * call.blocks, path_blocks = shape->path ? key_blocks : 0;
    size_t query_blocks = shape->path ? heads * call.blocks : 0;
    call.row = attention_carve(saved, &used, rows);
    call.cumulative = reinterpret_cast<float2 *>(attention_carve(saved, &used, shape->gate ? 2 * rows : 0));
    call.keys = attention_carve(saved, &used, key_blocks * ATTENTION_BLOCK * D);
    call.values = attention_carve(saved, &used, key_blocks * ATTENTION_BLOCK * D);
    call.change = attention_carve(saved, &used, path_blocks * D * D);
    call.inverse = attention_carve(saved, &used, path_blocks * SQUARE);
    call.edge = attention_carve(saved, &used, query_blocks * ATTENTION_BLOCK * D);
    call.logits = attention_carve(saved, &used, query_blocks * SQUARE);
    if (saved_size)
        *saved_size = used;
    return call;
}

size_t cuda_attention_saved(const struct attention_shape *shape)
{
    size_t size;
    attention_call_make(shape, nullptr, nullptr, &size);
    return size;
}

void cuda_attention_forward(struct device *device, const struct attention_shape *shape,
                            const struct attention_inputs *in, real *o, real *saved, real *scratch)
{
    (void)scratch;
    struct cuda_device *cuda = cuda_enter(device);
    struct attention_call call = attention_call_make(shape, in, saved, nullptr);
    call.o = o;
    if (call.path)
        cuda_path(cuda, &call);
    if (call.gate)
        cuda_launch(cuda, "attention", sum_gates_kernel, (unsigned)(call.B * call.H), 32, 0, call);
    with_precision(cuda, "attention", call.D, [&](auto precision, auto width) {
        launch<decltype(precision)::P, decltype(width)::D>(cuda, &call);
    });
}
