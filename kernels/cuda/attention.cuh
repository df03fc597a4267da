/* What the attention kernels share: the call, where its buffers lie, and how kernels are chosen and launched.
 * Tiles and their products: attention_tile.cuh. Logits and weights: attention_weights.cuh. */
#ifndef STATELAB_KERNELS_CUDA_ATTENTION_CUH
#define STATELAB_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/device.cuh"

enum { ATTENTION_BLOCK = 64, ATTENTION_THREADS = 128, SQUARE = ATTENTION_BLOCK * ATTENTION_BLOCK };

enum attention_kind { KIND_SOFTMAX, KIND_PATH, KIND_STICK };

/* One call; passed to kernels by value. Short sequences lie together in one of T tokens, each of `span` of them, and
 * see only themselves; a long one has a span of more than a block. bh counts query heads of all sequences, bk key-value
 * heads; "per block" means for each block of 64 tokens of each such head. Packed matrices have a tile's format
 * (attention_tile.cuh); all others are floats. Formulas of path: kernels/cpu/attention_path.h. */
struct attention_call {
    int B, T, span, H, K, D, blocks, group;
    enum attention_kind kind;
    bool gate, path, remainder;
    float scale;
    struct attention_inputs in;
    float *o; /* forward writes it, backward reads it */

    /* saved by forward */
    float *row;           /* [B*H, T]: log-sum-exp of the row; stick-breaking: log of what is left of the stick */
    float2 *cumulative;   /* [B*H, T]: sum of log_gate, as the sum of two floats */
    float *keys, *values; /* per block of bk, packed [64, D]; path: keys at the right edge of their block */
    float *change;        /* path, per block of bk, packed [D, D]: block product minus identity */
    float *inverse;       /* path, per block of bk [64, 64]: of M = I + tril(diag(beta) W W^T, -1) */
    float *edge;          /* path, per block of bh [64, D]: queries at the left edge of their block */
    float *logits;        /* path, per block of bh [64, 64]: the block's own, not scaled */

    /* backward */
    const float *dout;
    struct attention_gradients out;
    int slab_first, slab, slab_blocks; /* query blocks in this slab, from slab_first; slab = room */
    float *delta;                      /* [B*H, T]: dout . o; stick-breaking: dout . v_i if that gets the remainder */
    float *queries, *douts;            /* per block of bh, packed [64, D]; queries not for path */
    float *chain, *dchain;             /* path, per slot, packed [64, D]: queries at the right edge of the key block and
                                        * the gradients of those at its left edge. Stick-breaking, per slot [64]: log of
                                        * the stick left to the right of the key block, and sums of weight * gradient to
                                        * its left. A slot is a query block of the slab with a key block. */
    float *before;                     /* gate, per slot [4]: sums of dlogits to the left of the key block */
    float *dkeys, *dchange;            /* path, per block of bk [64, D], [D, D] */
    float *dlogits, *dedge;            /* path, per block of bh [64, 64], [64, D]; dlogits scaled */
};

/* attention_path.cu, attention_path_backward.cu: path inside the blocks. */
void cuda_path(struct cuda_device *cuda, const struct attention_call *call);
void cuda_path_backward(struct cuda_device *cuda, const struct attention_call *call);

/* attention_rows.cu, attention_keys.cu: the two halves of backward for one slab. */
void cuda_attention_rows(struct cuda_device *cuda, const struct attention_call *call);
void cuda_attention_keys(struct cuda_device *cuda, const struct attention_call *call);

/* attention.cu: sizes and pointers of a call; saved and scratch NULL: only the sizes, in floats. */
struct attention_call attention_call_make(const struct attention_shape *shape, const struct attention_inputs *in,
                                          float *saved, size_t *saved_size);

/* The next `count` floats from *used on, aligned to 256 bytes. */
static inline float *attention_carve(float *base, size_t *used, size_t count)
{
    size_t at = *used;
    *used += (count + 63) / 64 * 64;
    return base ? base + at : nullptr;
}

/* Launches blocks of `threads` threads that ask for `bytes` of shared memory. */
template <typename Kernel>
static void attention_launch(struct cuda_device *cuda, const char *operation, Kernel kernel, size_t blocks,
                             size_t bytes, const struct attention_call *call, int threads = ATTENTION_THREADS)
{
    if (bytes > (size_t)cuda->shared_limit) {
        if (!cuda->failure.message[0])
            error_set(&cuda->failure,
                      "%s with head_dim %d needs %zu KiB of shared memory in a block, CUDA device %d (%s) has %d; use "
                      "a smaller head_dim%s or another card",
                      operation, call->D, (bytes + 1023) / 1024, cuda->ordinal, cuda->name, cuda->shared_limit / 1024,
                      cuda->precision == PRECISION_BF16 ? "" : ", precision bf16");
        return;
    }
    cuda_note(cuda, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), operation);
    cuda_launch(cuda, operation, kernel, (unsigned)blocks, threads, bytes, *call);
}

/* Calls launch(room_tag<TIGHT>): TIGHT where the card has less than ROOMY bytes of shared memory for a block, in which
 * tiles take turns in one place. All cards have LEAST_SHARED. */
enum { LEAST_SHARED = 99 * 1024 };
template <bool T> struct room_tag {
    static constexpr bool TIGHT = T;
};
template <size_t ROOMY, typename Launch> static void with_room(const struct cuda_device *cuda, Launch launch)
{
    if constexpr (ROOMY > LEAST_SHARED)
        if (ROOMY > (size_t)cuda->shared_limit)
            return launch(room_tag<true>());
    launch(room_tag<false>());
}

/* Calls launch with tags of the device's precision and of D. */
template <int N> struct precision_tag {
    static constexpr int P = N;
};
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
        if (!cuda->failure.message[0])
            error_set(&cuda->failure,
                      "%s on CUDA takes a head_dim of 16, 32, 64 or 128, not %d; choose one of these, or "
                      "--device cpu",
                      operation, D);
    }
}
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

/* The key-value head of all sequences that query head bh reads. */
static __device__ inline int key_head(const struct attention_call &call, int bh)
{
    return bh / call.H * call.K + bh % call.H / call.group;
}

/* Query head `g` of those that read key-value head bk. */
static __device__ inline int query_head(const struct attention_call &call, int bk, int g)
{
    return bk / call.K * call.H + bk % call.K * call.group + g;
}

/* Token `first` of head `head` (of all `heads` of a sequence, counted through sequences) in rows ld apart. */
static __device__ inline size_t token_offset(const struct attention_call &call, int head, int heads, int first, int ld)
{
    return ((size_t)(head / heads) * call.T + first) * ld + (size_t)(head % heads) * call.D;
}

/* The matrix [64, width] of one block in a buffer that has one per block; path's [D, D] likewise with `height`. */
static __device__ inline float *block_matrix(const struct attention_call &call, float *buffer, int head, int block,
                                             int width, int height = ATTENTION_BLOCK)
{
    return buffer + ((size_t)head * call.blocks + block) * height * width;
}

/* Slot of query block `block` (of this slab) and key block j. */
static __device__ inline size_t slab_slot(const struct attention_call &call, int bh, int block, int j)
{
    return ((size_t)bh * call.slab + (block - call.slab_first)) * call.blocks + j;
}

/* The first token of the block that the sequence of token `row` of it has in it. */
static __device__ inline int span_start(const struct attention_call &call, int row)
{
    return row - row % call.span;
}

/* How many of the block's 64 tokens there are. */
static __device__ inline int block_rows(const struct attention_call &call, int block)
{
    return min((int)ATTENTION_BLOCK, call.T - block * ATTENTION_BLOCK);
}

#endif
#endif
