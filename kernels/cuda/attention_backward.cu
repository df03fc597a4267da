/* Attention backward, without atomics: first queries (attention_rows.cu), then keys (attention_keys.cu), then path
 * inside the blocks. What goes from the first to the second grows with T^2, so queries are taken in slabs of at most
 * MAX_SLAB blocks, one after the other: memory is linear in T. */
#include "kernels/cuda/attention.cuh"

static const size_t MAX_SLAB = 16;                /* query blocks */
static const size_t SLAB_BYTES = (size_t)1 << 31; /* and of no more blocks than fit in this, but at least one */

/* Floats of what one slot (a query block with a key block) keeps. */
static size_t slot_size(const struct attention_call *call)
{
    size_t rows = call->path ? 2 * (size_t)call->D : call->kind == KIND_STICK ? 2 : 0;
    return rows * ATTENTION_BLOCK + (call->gate ? 4 : 0);
}

static int choose_slab(const struct attention_call *call)
{
    size_t blocks = (size_t)call->blocks, bytes = call->B * call->H * blocks * slot_size(call) * sizeof(float);
    if (bytes == 0)
        return call->blocks;
    size_t slab = SLAB_BYTES / bytes;
    slab = slab > MAX_SLAB ? MAX_SLAB : slab < 1 ? 1 : slab;
    return slab > blocks ? call->blocks : (int)slab;
}

static size_t carve_scratch(struct attention_call *call, float *scratch)
{
    size_t used = 0, D = (size_t)call->D, heads = (size_t)call->B * call->H, block = ATTENTION_BLOCK * D;
    size_t blocks = heads * call->blocks, path_blocks = call->path ? blocks : 0;
    size_t key_blocks = call->path ? (size_t)call->B * call->K * call->blocks : 0;
    call->slab = choose_slab(call);
    size_t slots = heads * call->slab * call->blocks;
    size_t chain = call->path ? slots * block : call->kind == KIND_STICK ? slots * ATTENTION_BLOCK : 0;
    call->delta = attention_carve(scratch, &used, heads * call->T);
    call->queries = attention_carve(scratch, &used, call->path ? 0 : blocks * block);
    call->douts = attention_carve(scratch, &used, blocks * block);
    call->chain = attention_carve(scratch, &used, chain);
    call->dchain = attention_carve(scratch, &used, chain);
    call->before = attention_carve(scratch, &used, call->gate ? 4 * slots : 0);
    call->dkeys = attention_carve(scratch, &used, key_blocks * block);
    call->dchange = attention_carve(scratch, &used, key_blocks * D * D);
    call->dlogits = attention_carve(scratch, &used, path_blocks * SQUARE);
    call->dedge = attention_carve(scratch, &used, path_blocks * block);
    return used;
}

size_t cuda_attention_scratch(const struct device *device, const struct attention_shape *shape, bool backward)
{
    (void)device;
    struct attention_call call = attention_call_make(shape, nullptr, nullptr, nullptr);
    return backward ? carve_scratch(&call, nullptr) : 0;
}

void cuda_attention_backward(struct device *device, const struct attention_shape *shape,
                             const struct attention_inputs *in, const real *o, const real *dout, const real *saved,
                             const struct attention_gradients *gradients, real *scratch)
{
    struct cuda_device *cuda = cuda_enter(device);
    struct attention_call call = attention_call_make(shape, in, const_cast<float *>(saved), nullptr);
    call.o = const_cast<float *>(o); /* both only read */
    call.dout = dout;
    call.out = *gradients;
    carve_scratch(&call, scratch);
    for (call.slab_first = 0; call.slab_first < call.blocks; call.slab_first += call.slab) {
        int left = call.blocks - call.slab_first;
        call.slab_blocks = left < call.slab ? left : call.slab;
        cuda_attention_rows(cuda, &call);
        cuda_attention_keys(cuda, &call);
    }
    if (call.path)
        cuda_path_backward(cuda, &call);
}
