/* What the files of the CUDA device share: the device, kernel launches, and reductions of a fixed order.
 * A kernel launched by cuda_launch may start while the one before it ends: it calls cuda_wait() before it
 * touches memory. */
#ifndef STATELAB_KERNELS_CUDA_DEVICE_CUH
#define STATELAB_KERNELS_CUDA_DEVICE_CUH

#include <cuda_runtime.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include "kernels/cuda.h"
#include "kernels/ops.h"
}

enum { CUDA_PARTIAL_ROWS = 256 }; /* into how many partial sums, at most, an operation splits a sum over rows */

struct cublas; /* kernels/cuda/cublas.cu */

/* A second one, on a stream of its own, stands beside the one that was opened: see cuda_fork. */
struct cuda_device {
    struct device base;
    int ordinal;
    int multiprocessors;
    int shared_limit; /* bytes of shared memory that one block may ask for */
    bool overlap;     /* compute capability 9.0 and up: a kernel may start before the one ahead of it ends */
    bool meeting;     /* two streams meet before the next kernel, which has to wait for both */
    enum precision precision;
    cudaStream_t stream;
    struct cublas *cublas;
    void *workspace; /* free between operations: cuBLAS and partial sums */
    size_t workspace_bytes;
    unsigned *ticket; /* for cuda_last_block; 0 between kernels */
    struct cuda_device *beside;
    cudaEvent_t event; /* what is behind the streams' last fork or join */
    char name[256];
    struct error failure; /* the first one; message "" = none */
};

/* The CUDA device behind `device`, made current for the calling thread. */
static inline struct cuda_device *cuda_enter(struct device *device)
{
    struct cuda_device *cuda = reinterpret_cast<struct cuda_device *>(device);
    cudaSetDevice(cuda->ordinal);
    return cuda;
}

/* Keeps the first failure for ops->check(). */
void cuda_note(struct cuda_device *cuda, cudaError_t status, const char *operation);

/* What is issued to cuda->beside between the two runs beside what is issued to cuda. */
void cuda_fork(struct cuda_device *cuda);
void cuda_join(struct cuda_device *cuda);

/* Launches kernel(arguments...) on the device's stream. */
template <typename... Parameters, typename... Arguments>
static void cuda_launch(struct cuda_device *cuda, const char *operation, void (*kernel)(Parameters...), dim3 grid,
                        dim3 block, size_t shared, Arguments... arguments)
{
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = cuda->stream;
    config.attrs = &attribute;
    config.numAttrs = cuda->overlap && !cuda->meeting ? 1 : 0;
    cuda->meeting = false;
    cuda_note(cuda, cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), operation);
}

static inline unsigned cuda_blocks(size_t count, size_t per_block)
{
    return static_cast<unsigned>((count + per_block - 1) / per_block);
}

#ifdef __CUDACC__

/* Everything that earlier kernels wrote is visible after it. */
__device__ static inline void cuda_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

template <typename T> __device__ static inline T warp_sum(T value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

/* The sum over the block, in every thread; blockDim.x a multiple of 32. */
template <typename T> __device__ static inline T block_sum(T value)
{
    __shared__ T parts[32];
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = value;
    __syncthreads();
    T total = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; warp++)
        total += parts[warp];
    return total;
}

/* True in every thread of the block that gets there last, with all other blocks' writes visible.
 * The ticket is 0 again for the next kernel. */
__device__ static inline bool cuda_last_block(unsigned *ticket)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
        last = atomicAdd(ticket, 1) == blocks - 1;
        if (last)
            *ticket = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

#endif

/* sum [columns] = the sum of partial [rows, columns] over its rows, in an order that depends on `rows` only. */
void cuda_sum_rows(struct cuda_device *cuda, const char *operation, float *sum, const float *partial, int rows,
                   size_t columns);

/* ---- the operations, by file ---- */

/* c [M, N] = A B^T, or c += A B^T if add. A(m, k) is a[m*lda + k], or a[k*lda + m] if a_transposed; B [N, K] alike. */
struct product {
    void *c; /* float, as a and b are, unless it says bf16 below: __nv_bfloat16 */
    const void *a, *b;
    int ldc, lda, ldb, M, N, K;
    bool a_transposed, b_transposed, add;
    bool bf16_operands = false, bf16_result = false;
};

/* cublas.cu: opens the library, which belongs to the CUDA toolkit, at run time. */
int cuda_cublas_open(struct cuda_device *cuda, struct error *error);
void cuda_cublas_close(struct cuda_device *cuda);
void cuda_cublas_multiply(struct cuda_device *cuda, const struct product *product);

/* multiply.cu: small products of floats on tensor cores, tf32 and bf16 only. */
void cuda_small_multiply(struct cuda_device *cuda, const struct product *product);

/* linear.cu: cuda_multiply leaves the product to one of the two above; cuda_multiply_both takes two, neither of which
 * needs the other's result. */
void cuda_multiply(struct cuda_device *cuda, const struct product *product);
void cuda_multiply_both(struct cuda_device *cuda, const struct product *first, const struct product *second);
void cuda_linear_forward(struct device *device, real *y, int ldy, const real *x, int ldx, const real *w, int N, int I,
                         int O);
void cuda_linear_backward(struct device *device, real *dx, int lddx, real *dw, const real *dy, int lddy, const real *x,
                          int ldx, const real *w, int N, int I, int O, bool add);

/* norm.cu */
void cuda_rmsnorm_forward(struct device *device, real *sum, real *y, real *rstd, const real *x, const real *delta,
                          const real *weight, int N, int C, double epsilon);
void cuda_rmsnorm_backward(struct device *device, real *dx, real *dweight, const real *dy, const real *dsum,
                           const real *sum, const real *rstd, const real *weight, int N, int C, real *scratch);
size_t cuda_rmsnorm_scratch(int N, int C);
void cuda_head_norm_forward(struct device *device, real *x, int ld, real *saved, const real *weight, int N, int heads,
                            int D, double epsilon);
void cuda_head_norm_backward(struct device *device, real *dx, int ld, real *dweight, const real *saved,
                             const real *weight, int N, int heads, int D, real *scratch);

/* pointwise.cu */
void cuda_copy_rows(struct device *device, real *to, int ldto, const real *from, int ldfrom, int N, int C);
void cuda_rope(struct device *device, real *x, int ld, int B, int T, int first, int heads, int D, double base,
               int direction);
void cuda_gate_forward(struct device *device, real *out, const real *logit, int ld, const real *bias, int N, int H,
                       enum gate_function function, double scale);
void cuda_gate_backward(struct device *device, real *dlogit, real *dbias, const real *dout, const real *logit, int ld,
                        const real *bias, int N, int H, enum gate_function function, double scale);

/* feed_forward.cu */
size_t cuda_feed_forward_saved(const struct device *device, int N, int C, int F);
size_t cuda_feed_forward_scratch(const struct device *device, int N, int C, int F);
void cuda_feed_forward_forward(struct device *device, real *y, real *saved, const real *x, const real *w_gate_up,
                               const real *w_down, int N, int C, int F);
void cuda_feed_forward_backward(struct device *device, real *dx, real *dw_gate_up, real *dw_down, const real *dy,
                                const real *x, const real *w_gate_up, const real *w_down, const real *saved, int N,
                                int C, int F, real *scratch);

/* embedding.cu */
void cuda_embedding_forward(struct device *device, real *x, const real *table, const int *tokens, int N, int C);
void cuda_embedding_backward(struct device *device, real *dtable, const real *dx, const int *tokens, int N, int C,
                             int V);

/* householder.cu */
void cuda_householder_forward(struct device *device, real *w, const real *x, const real *conv, int width, int B, int T,
                              int K, int D);
void cuda_householder_backward(struct device *device, real *dx, real *dconv, const real *dw, const real *x,
                               const real *conv, int width, int B, int T, int K, int D, real *scratch);

/* attention*.cu */
size_t cuda_attention_saved(const struct attention_shape *shape);
size_t cuda_attention_scratch(const struct device *device, const struct attention_shape *shape, bool backward);
void cuda_attention_forward(struct device *device, const struct attention_shape *shape,
                            const struct attention_inputs *in, real *o, real *saved, real *scratch);
void cuda_attention_backward(struct device *device, const struct attention_shape *shape,
                             const struct attention_inputs *in, const real *o, const real *dout, const real *saved,
                             const struct attention_gradients *gradients, real *scratch);
size_t cuda_attention_cache(const struct attention_shape *shape);
void cuda_attention_decode(struct device *device, const struct attention_shape *shape,
                           const struct attention_inputs *in, int t, real *o, real *cache);

/* loss.cu */
void cuda_cross_entropy(struct device *device, struct train_state *state, real *losses, real *dlogits,
                        const real *logits, const int *targets, int N, int V);
void cuda_predict(struct device *device, int *prediction, real *log_prob, const real *logits, const int *targets, int N,
                  int V);

/* optimizer.cu */
void cuda_optimizer_step(struct device *device, struct train_state *state, real *parameters, const real *gradients,
                         real *moment1, real *moment2, size_t count, size_t decayed, const struct optimizer *optimizer,
                         real *scratch);
size_t cuda_optimizer_scratch(size_t count);

#endif
