/* What the attention kernels share: one call, tiles of 64 tokens in shared memory, and their products on tensor cores.
 * A warp owns 16 rows of a tile. fp32 is three tf32 products of the operands' upper and lower halves. */
#ifndef STATELAB_KERNELS_CUDA_ATTENTION_CUH
#define STATELAB_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/device.cuh"

enum { ATTENTION_BLOCK = 64, ATTENTION_THREADS = 128, SQUARE_LD = ATTENTION_BLOCK + 4 };
enum { SQUARE = ATTENTION_BLOCK * SQUARE_LD }; /* floats of a 64 x 64 tile in shared memory */

enum attention_kind { KIND_SOFTMAX, KIND_PATH, KIND_STICK };

/* Per sequence, key-value head and block (kernels/cpu/attention_path.h explains each): transform [64, 64],
 * local [64, 64], update [64, D], keys [64, D], product [D, D]. */
struct path_block {
    float *transform, *local, *update, *keys, *product;
};

/* What the diagonal block of one query head gives the gradients of path: [64, D] each, dlocal [64, 64]. */
struct path_diagonal {
    float *dk, *dw, *dv, *dupdate, *dlocal;
};

/* One call; passed to kernels by value. bh counts query heads of all sequences, bk key-value heads. */
struct attention_call {
    int B, T, H, K, D, blocks, group;
    enum attention_kind kind;
    bool gate, path, remainder;
    float scale;
    struct attention_inputs in;
    float *o;           /* forward writes it, backward reads it */
    float *row;         /* saved [B*H, T]: log-sum-exp of the row; stick-breaking: log of what is left of the stick */
    float2 *cumulative; /* saved [B*H, T]: sum of log_gate, as the sum of two floats */
    float *prepared;    /* saved: path_block of each block */
    /* backward */
    const float *dout;
    struct attention_gradients out;
    int slab_first, slab, slab_blocks; /* query blocks in this slab, from slab_first; slab = room */
    float *delta;                      /* [B*H, T]: dout . o; stick-breaking: dout . v_i if that gets the remainder */
    float *chain, *dchain;             /* path [B*H, slab, blocks, 64, D]: queries at the right edge of each key block
                                        * and the gradients of those at its left edge; the diagonal: at its left edge.
                                        * Stick-breaking [B*H, slab, blocks, 64]: log of the stick left to the right
                                        * of each key block, and sums of weight * gradient to its left. */
    float *before;                     /* gate [B*H, slab, blocks, 4]: sums of dlogits to the left of a key block */
    float *dkeys, *dproduct;           /* path, per block of a key-value head: [64, D], [D, D] */
    float *diagonal;                   /* path, per block of a query head */
};

static __host__ __device__ inline size_t path_block_size(int D)
{
    return (size_t)2 * ATTENTION_BLOCK * (ATTENTION_BLOCK + D) + (size_t)D * D;
}

static __host__ __device__ inline size_t path_diagonal_size(int D)
{
    return (size_t)ATTENTION_BLOCK * (4 * D + ATTENTION_BLOCK);
}

/* kernels/cuda/attention_path.cu */
void cuda_path_prepare(struct cuda_device *cuda, const struct attention_call *call);
void cuda_path_prepare_backward(struct cuda_device *cuda, const struct attention_call *call);

/* attention_rows.cu, attention_keys.cu: the two halves of backward for one slab. */
void cuda_attention_rows(struct cuda_device *cuda, const struct attention_call *call);
void cuda_attention_keys(struct cuda_device *cuda, const struct attention_call *call);

/* attention.cu: sizes and pointers of a call; saved and scratch NULL: only the sizes, in floats. */
struct attention_call attention_call_make(const struct attention_shape *shape, const struct attention_inputs *in,
                                          float *saved, size_t *saved_size);

/* attention.cu: launches a kernel of ATTENTION_THREADS threads that asks for `shared` floats. */
template <typename Kernel>
static void attention_launch(struct cuda_device *cuda, const char *operation, Kernel kernel, size_t blocks,
                             size_t shared, const struct attention_call *call)
{
    size_t bytes = shared * sizeof(float);
    if (bytes > (size_t)cuda->shared_limit) {
        error_set(&cuda->failure,
                  "%s with head_dim %d needs %zu KiB of shared memory in a block, CUDA device %d (%s) has %d; use a "
                  "smaller head_dim or another card",
                  operation, call->D, bytes / 1024, cuda->ordinal, cuda->name, cuda->shared_limit / 1024);
        return;
    }
    cuda_note(cuda, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), operation);
    cuda_launch(cuda, operation, kernel, (unsigned)blocks, ATTENTION_THREADS, bytes, *call);
}

/* Calls launch with a tag of D. */
template <int N> struct width_tag {
    static constexpr int D = N;
};
template <typename Launch> static void with_width(struct cuda_device *cuda, const char *operation, int D, Launch launch)
{
    switch (D) {
    case 16:
        return launch(width_tag<16>());
    case 32:
        return launch(width_tag<32>());
    case 64:
        return launch(width_tag<64>());
    case 128:
        return launch(width_tag<128>());
    default:
        error_set(&cuda->failure,
                  "%s on CUDA takes a head_dim of 16, 32, 64 or 128, not %d; choose one of these, or "
                  "--device cpu",
                  operation, D);
    }
}

/* The same with a tag of the device's precision before it. */
template <int N> struct precision_tag {
    static constexpr int P = N;
};
template <typename Launch>
static void with_precision(struct cuda_device *cuda, const char *operation, int D, Launch launch)
{
    with_width(cuda, operation, D, [&](auto width) {
        if (cuda->precision == PRECISION_FP32)
            launch(precision_tag<PRECISION_FP32>(), width);
        else if (cuda->precision == PRECISION_TF32)
            launch(precision_tag<PRECISION_TF32>(), width);
        else
            launch(precision_tag<PRECISION_BF16>(), width);
    });
}

#ifdef __CUDACC__

static __device__ inline struct path_block path_block_at(const struct attention_call &call, int bk, int block)
{
    int D = call.D;
    float *base = call.prepared + ((size_t)bk * call.blocks + block) * path_block_size(D);
    float *local = base + ATTENTION_BLOCK * ATTENTION_BLOCK, *update = local + ATTENTION_BLOCK * ATTENTION_BLOCK;
    return { base, local, update, update + ATTENTION_BLOCK * D, update + 2 * ATTENTION_BLOCK * D };
}

static __device__ inline struct path_diagonal path_diagonal_at(const struct attention_call &call, int bh, int block)
{
    size_t size = (size_t)ATTENTION_BLOCK * call.D;
    float *base = call.diagonal + ((size_t)bh * call.blocks + block) * path_diagonal_size(call.D);
    return { base, base + size, base + 2 * size, base + 3 * size, base + 4 * size };
}

/* The key-value head of all sequences that query head bh reads. */
static __device__ inline int key_head(const struct attention_call &call, int bh)
{
    return bh / call.H * call.K + bh % call.H / call.group;
}

/* Token `first` of head `head` (of all `heads` of a sequence, counted through sequences) in rows ld apart. */
static __device__ inline size_t token_offset(const struct attention_call &call, int head, int heads, int first, int ld)
{
    return ((size_t)(head / heads) * call.T + first) * ld + (size_t)(head % heads) * call.D;
}

/* ---- tiles ---- */

/* Starts copying `rows` rows of WIDTH floats to a tile with rows `stride` apart; the other rows of 64 become 0. */
template <int WIDTH, int ROWS = ATTENTION_BLOCK>
static __device__ inline void load_tile(float *tile, int stride, const float *from, int ld, int rows)
{
    bool vector = ld % 4 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
    for (int chunk = threadIdx.x; chunk < ROWS * WIDTH / 4; chunk += ATTENTION_THREADS) {
        int row = chunk / (WIDTH / 4), col = chunk % (WIDTH / 4) * 4;
        unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(tile + row * stride + col));
        const float *source = row < rows ? from + (size_t)row * ld + col : from;
        int bytes = row < rows ? 16 : 0;
        if (vector) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(source), "r"(bytes) : "memory");
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + 4 * i),
                             "l"(bytes ? source + i : source), "r"(bytes / 4)
                             : "memory");
        }
    }
}

/* All copies of the block have arrived. */
static __device__ inline void loads_done()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

/* ---- products ---- */

static __device__ inline uint32_t to_tf32(float x)
{
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

static __device__ inline uint32_t to_bf16x2(float low, float high)
{
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

static __device__ inline void mma_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* How an operand lies in shared memory: x(row, depth) at x[row*ld + depth], or at x[depth*ld + row]. */
enum layout { ROWS, COLUMNS };

template <enum layout LAYOUT> static __device__ inline float element(const float *x, int ld, int row, int depth)
{
    return LAYOUT == ROWS ? x[row * ld + depth] : x[depth * ld + row];
}

template <enum layout LAYOUT, int COUNT>
static __device__ inline void split(uint32_t (&high)[COUNT], uint32_t (&low)[COUNT], const float *x, int ld, int row,
                                    int depth)
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        /* The A fragment has rows g, g + 8; both have depths t, t + 4. */
        int r = COUNT == 4 ? row + i % 2 * 8 : row, d = depth + (COUNT == 4 ? i / 2 : i) * 4;
        float value = element<LAYOUT>(x, ld, r, d);
        high[i] = to_tf32(value);
        low[i] = to_tf32(value - __uint_as_float(high[i]));
    }
}

/* sum [16, 8*COLUMNS_8] += A [16, DEPTH] B^T, B [8*COLUMNS_8, DEPTH]. Element sum[n][e] of lane (g, t) is row
 * g + e/2*8, column 8n + 2t + e%2. */
template <int P, enum layout LEFT, enum layout RIGHT, int DEPTH, int COLUMNS_8>
static __device__ inline void multiply(float (&sum)[COLUMNS_8][4], const float *a, int lda, const float *b, int ldb)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if constexpr (P == PRECISION_BF16) {
#pragma unroll 2
        for (int k = 0; k < DEPTH; k += 16) {
            uint32_t left[4], right[2];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int r = g + i % 2 * 8, d = k + i / 2 * 8 + 2 * t;
                left[i] = to_bf16x2(element<LEFT>(a, lda, r, d), element<LEFT>(a, lda, r, d + 1));
            }
#pragma unroll
            for (int n = 0; n < COLUMNS_8; n++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int r = 8 * n + g, d = k + i * 8 + 2 * t;
                    right[i] = to_bf16x2(element<RIGHT>(b, ldb, r, d), element<RIGHT>(b, ldb, r, d + 1));
                }
                mma_bf16(sum[n], left, right);
            }
        }
    } else {
#pragma unroll 2
        for (int k = 0; k < DEPTH; k += 8) {
            uint32_t left[4], left_low[4], right[2], right_low[2];
            split<LEFT>(left, left_low, a, lda, g, k + t);
#pragma unroll
            for (int n = 0; n < COLUMNS_8; n++) {
                split<RIGHT>(right, right_low, b, ldb, 8 * n + g, k + t);
                if constexpr (P == PRECISION_FP32) {
                    /* The tensor core's own additions cut off: long sums are rounded outside it. */
                    float part[4] = {};
                    mma_tf32(part, left_low, right);
                    mma_tf32(part, left, right_low);
                    mma_tf32(part, left, right);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sum[n][e] += part[e];
                } else {
                    mma_tf32(sum[n], left, right);
                }
            }
        }
    }
}

/* ---- a warp's part of a tile, between registers and memory: rows from row0, `ld` apart ---- */

/* f(row, column, first, second) for each pair of neighbours; row within the 64. */
template <int COLUMNS_8, typename F> static __device__ inline void each_pair(float (&x)[COLUMNS_8][4], F f)
{
    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < COLUMNS_8; n++) {
        f(row, col + 8 * n, x[n][0], x[n][1]);
        f(row + 8, col + 8 * n, x[n][2], x[n][3]);
    }
}

/* The warp's own rows of a 64-row tile; ld even. */
template <int COLUMNS_8>
static __device__ inline void store_rows(float *to, int ld, float (&x)[COLUMNS_8][4], int rows = ATTENTION_BLOCK)
{
    each_pair(x, [&](int row, int col, float &first, float &second) {
        if (row < rows)
            *reinterpret_cast<float2 *>(to + (size_t)row * ld + col) = make_float2(first, second);
    });
}

/* The same where ld may be odd. */
template <int COLUMNS_8>
static __device__ inline void store_slice(float *to, int ld, float (&x)[COLUMNS_8][4], int rows)
{
    each_pair(x, [&](int row, int col, float &first, float &second) {
        if (row >= rows)
            return;
        to[(size_t)row * ld + col] = first;
        to[(size_t)row * ld + col + 1] = second;
    });
}

/* x += from */
template <int COLUMNS_8>
static __device__ inline void add_rows(float (&x)[COLUMNS_8][4], const float *from, int ld, int rows = ATTENTION_BLOCK)
{
    each_pair(x, [&](int row, int col, float &first, float &second) {
        if (row >= rows)
            return;
        first += from[(size_t)row * ld + col];
        second += from[(size_t)row * ld + col + 1];
    });
}

template <int COLUMNS_8> static __device__ inline void negate(float (&x)[COLUMNS_8][4])
{
#pragma unroll
    for (int n = 0; n < COLUMNS_8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[n][e] = -x[n][e];
}

/* Zeroes what lies above the diagonal of a square tile, and with offset -1 the diagonal too. */
static __device__ inline void keep_lower(float (&x)[8][4], int offset)
{
    each_pair(x, [&](int row, int col, float &first, float &second) {
        first = col <= row + offset ? first : 0;
        second = col + 1 <= row + offset ? second : 0;
    });
}

/* Where a warp's own rows begin. */
static __device__ inline float *own(float *tile, int ld)
{
    return tile + threadIdx.x / 32 * 16 * ld;
}

#endif
#endif
