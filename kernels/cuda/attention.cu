/* Attention forward: a block of threads takes 64 queries and scans the key blocks from the diagonal to the first, so
 * that path can move its queries on, q <- q P_j, and stick-breaking knows what is left. Memory is linear in T. */
#include "kernels/cuda/attention_tile.cuh"

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

/* ---- the block loop ---- */

template <int D> static constexpr size_t forward_shared()
{
    constexpr int pair = 2 * ATTENTION_BLOCK * (D + 4);
    return ATTENTION_BLOCK * (D + 4) + (pair > SQUARE ? pair : SQUARE) + SQUARE + 4 * ATTENTION_BLOCK;
}

/* The memory of a block of threads. k and v also hold one tile of 64 x 64 or D x D. */
struct forward_memory {
    float *q, *k, *v, *s;
    float2 *gate_q, *gate_k;
};

template <int D> static __device__ inline struct forward_memory forward_memory_find(float *base)
{
    constexpr int tile = ATTENTION_BLOCK * (D + 4), pair = 2 * tile > SQUARE ? 2 * tile : SQUARE;
    float *k = base + tile, *s = k + pair;
    float2 *gates = reinterpret_cast<float2 *>(s + SQUARE);
    return { base, k, k + tile, s, gates, gates + ATTENTION_BLOCK };
}

/* Path, diagonal block: raw logits s = Q K^T - tril(Q W^T) Y, and Q moved to its left edge, Q - tril(Q W^T) U. */
template <int P, int D>
static __device__ inline void path_diagonal_block(const struct attention_call &call, const struct forward_memory &m,
                                                  float (&s)[8][4], int bk, int block, int rows)
{
    constexpr int LD = D + 4, N = D / 8;
    int first = block * ATTENTION_BLOCK, ldw = call.K * D;
    struct path_block prepared = path_block_at(call, bk, block);
    float along[8][4] = {}, edge[N][4] = {};
    load_tile<D>(m.k, LD, call.in.w + token_offset(call, bk, call.K, first, ldw), ldw, rows);
    load_tile<D>(m.v, LD, call.in.k + token_offset(call, bk, call.K, first, call.in.ldk), call.in.ldk, rows);
    loads_done();
    multiply<P, ROWS, ROWS, D>(along, own(m.q, LD), LD, m.k, LD);
    keep_lower(along, 0);
    negate(along);
    store_rows(m.s, SQUARE_LD, along);
    multiply<P, ROWS, ROWS, D>(s, own(m.q, LD), LD, m.v, LD);
    __syncthreads();
    load_tile<ATTENTION_BLOCK>(m.k, SQUARE_LD, prepared.local, ATTENTION_BLOCK, ATTENTION_BLOCK);
    loads_done();
    multiply<P, ROWS, COLUMNS, ATTENTION_BLOCK>(s, own(m.s, SQUARE_LD), SQUARE_LD, m.k, SQUARE_LD);
    __syncthreads();
    load_tile<D>(m.k, LD, prepared.update, D, ATTENTION_BLOCK);
    loads_done();
    multiply<P, ROWS, COLUMNS, ATTENTION_BLOCK>(edge, own(m.s, SQUARE_LD), SQUARE_LD, m.k, LD);
    add_rows(edge, m.q, LD);
    __syncwarp();
    store_rows(m.q, LD, edge);
    __syncthreads();
}

/* The warp's queries cross key block j: q <- q P_j. */
template <int P, int D>
static __device__ inline void path_cross(const struct attention_call &call, const struct forward_memory &m, int bk,
                                         int j)
{
    constexpr int LD = D + 4;
    float moved[D / 8][4] = {};
    __syncthreads();
    load_tile<D, D>(m.k, LD, path_block_at(call, bk, j).product, D, D);
    loads_done();
    multiply<P, ROWS, COLUMNS, D>(moved, own(m.q, LD), LD, m.k, LD);
    __syncwarp();
    store_rows(m.q, LD, moved);
}

template <int P, int D, int KIND>
static __global__ void __launch_bounds__(ATTENTION_THREADS)
    forward_kernel(const __grid_constant__ struct attention_call call)
{
    cuda_wait();
    /* Operators of path are applied one after the other: they are never rounded to bf16. */
    constexpr int LD = D + 4, N = D / 8, EXACT = P == PRECISION_BF16 ? PRECISION_TF32 : P;
    extern __shared__ float4 shared[];
    struct forward_memory m = forward_memory_find<D>(reinterpret_cast<float *>(shared));
    int heads = call.B * call.H, bh = blockIdx.x % heads, block = call.blocks - 1 - blockIdx.x / heads;
    int bk = key_head(call, bh), first = block * ATTENTION_BLOCK, rows = min(ATTENTION_BLOCK, call.T - first);
    const float *keys = call.in.k + token_offset(call, bk, call.K, 0, call.in.ldk);
    const float *values = call.in.v + token_offset(call, bk, call.K, 0, call.in.ldv);
    const float2 *gates = call.cumulative + (size_t)bh * call.T;
    float o[N][4] = {}, most[2] = { -INFINITY, -INFINITY }, sum[2] = {}, left = 0;
    load_tile<D>(m.q, LD, call.in.q + token_offset(call, bh, call.H, first, call.in.ldq), call.in.ldq, rows);
    if (call.gate)
        load_gates(m.gate_q, gates + first, rows);
    for (int j = block; j >= 0; j--) {
        bool diagonal = j == block;
        int start = j * ATTENTION_BLOCK, count = diagonal ? rows : ATTENTION_BLOCK;
        float s[8][4] = {};
        if (KIND == KIND_PATH && diagonal)
            path_diagonal_block<EXACT, D>(call, m, s, bk, block, rows);
        else if (KIND == KIND_PATH)
            load_tile<D>(m.k, LD, path_block_at(call, bk, j).keys, D, ATTENTION_BLOCK);
        else
            load_tile<D>(m.k, LD, keys + (size_t)start * call.in.ldk, call.in.ldk, count);
        load_tile<D>(m.v, LD, values + (size_t)start * call.in.ldv, call.in.ldv, count);
        if (call.gate)
            load_gates(m.gate_k, gates + start, count);
        loads_done();
        if (KIND != KIND_PATH || !diagonal)
            multiply<P, ROWS, ROWS, D>(s, own(m.q, LD), LD, m.k, LD);
        if (KIND == KIND_STICK) {
            store_rows(m.s, SQUARE_LD, s);
            stick_forward(m.s, call.scale, diagonal, left);
        } else {
            finish_logits(s, call.scale, call.gate, m.gate_q, m.gate_k, diagonal);
            softmax_step(s, most, sum, o);
            store_rows(m.s, SQUARE_LD, s);
            __syncwarp();
        }
        multiply<P, ROWS, COLUMNS, ATTENTION_BLOCK>(o, own(m.s, SQUARE_LD), SQUARE_LD, m.v, LD);
        if (KIND == KIND_PATH && !diagonal && j > 0)
            path_cross<EXACT, D>(call, m, bk, j);
        __syncthreads();
    }
    float *saved = call.row + (size_t)bh * call.T + first;
    if (KIND == KIND_STICK) {
        float *rest = m.s; /* what is left of each row's stick */
        if (threadIdx.x % 2 == 0) {
            rest[stick_row()] = call.remainder ? __expf(left) : 0;
            if (stick_row() < rows)
                saved[stick_row()] = left;
        }
        __syncwarp();
        each_pair(o, [&](int row, int col, float &a, float &b) {
            const float *value = values + (size_t)(first + row) * call.in.ldv + col;
            if (row < rows) {
                a += rest[row] * value[0];
                b += rest[row] * value[1];
            }
        });
    } else {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = quad_sum(sum[half]), inverse = 1 / total;
            int row = own_row(half);
            if (threadIdx.x % 4 == 0 && row < rows)
                saved[row] = most[half] + logf(total);
#pragma unroll
            for (int n = 0; n < N; n++) {
                o[n][2 * half] *= inverse;
                o[n][2 * half + 1] *= inverse;
            }
        }
    }
    int ldo = call.H * D;
    store_rows(call.o + token_offset(call, bh, call.H, first, ldo), ldo, o, rows);
}

template <int P, int D> static void launch(struct cuda_device *cuda, const struct attention_call *call)
{
    size_t blocks = (size_t)call->B * call->H * call->blocks, shared = forward_shared<D>();
    if (call->kind == KIND_STICK)
        attention_launch(cuda, "attention", forward_kernel<P, D, KIND_STICK>, blocks, shared, call);
    else if (call->kind == KIND_PATH)
        attention_launch(cuda, "attention", forward_kernel<P, D, KIND_PATH>, blocks, shared, call);
    else
        attention_launch(cuda, "attention", forward_kernel<P, D, KIND_SOFTMAX>, blocks, shared, call);
}

/* ---- sizes ---- */

static size_t carve(size_t *used, size_t count)
{
    size_t at = *used;
    *used += (count + 63) / 64 * 64;
    return at;
}

struct attention_call attention_call_make(const struct attention_shape *shape, const struct attention_inputs *in,
                                          float *saved, size_t *saved_size)
{
    struct attention_call call = {};
    size_t used = 0, rows = (size_t)shape->B * shape->H * shape->T;
    call.B = shape->B;
    call.T = shape->T;
    call.H = shape->H;
    call.K = shape->K;
    call.D = shape->D;
    call.group = shape->H / shape->K;
    call.blocks = (shape->T + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
    call.kind = shape->weights == ATTENTION_STICK_BREAKING ? KIND_STICK : shape->path ? KIND_PATH : KIND_SOFTMAX;
    call.gate = shape->gate;
    call.path = shape->path;
    call.remainder = shape->remainder;
    call.scale = 1 / sqrtf(static_cast<float>(shape->D));
    if (in)
        call.in = *in;
    call.row = saved + carve(&used, rows);
    call.cumulative = reinterpret_cast<float2 *>(saved + carve(&used, shape->gate ? 2 * rows : 0));
    size_t blocks = (size_t)shape->B * shape->K * call.blocks;
    call.prepared = saved + carve(&used, shape->path ? blocks * path_block_size(shape->D) : 0);
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
        cuda_path_prepare(cuda, &call);
    if (call.gate)
        cuda_launch(cuda, "attention", sum_gates_kernel, (unsigned)(call.B * call.H), 32, 0, call);
    with_precision(cuda, "attention", call.D, [&](auto precision, auto width) {
        launch<decltype(precision)::P, decltype(width)::D>(cuda, &call);
    });
}
