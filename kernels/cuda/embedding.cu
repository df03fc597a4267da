/* The embedding table: rows looked up, and gradients of equal tokens added in a fixed order without atomics. */
#include "kernels/cuda/device.cuh"

enum { WARPS = 8, TILE_WORDS = 384 }; /* shared memory: TILE_WORDS * 32 columns of float = 48 KB */

/* Vector: float4 where C allows it, else float; width: C in Vectors. A warp takes a row. */
template <typename Vector>
static __global__ void embedding_forward_kernel(Vector *x, const Vector *table, const int *tokens, int N, int width)
{
    cuda_wait();
    int n = blockIdx.x * WARPS + threadIdx.x / 32;
    if (n >= N)
        return;
    const Vector *row = table + (size_t)tokens[n] * width;
    for (int c = threadIdx.x % 32; c < width; c += 32)
        x[(size_t)n * width + c] = row[c];
}

static bool aligned16(const void *pointer)
{
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

void cuda_embedding_forward(struct device *device, real *x, const real *table, const int *tokens, int N, int C)
{
    struct cuda_device *cuda = cuda_enter(device);
    unsigned blocks = cuda_blocks((size_t)N, WARPS);
    if (C % 4 == 0 && aligned16(x) && aligned16(table))
        cuda_launch(cuda, "embedding_forward", embedding_forward_kernel<float4>, blocks, 32 * WARPS, 0,
                    reinterpret_cast<float4 *>(x), reinterpret_cast<const float4 *>(table), tokens, N, C / 4);
    else
        cuda_launch(cuda, "embedding_forward", embedding_forward_kernel<float>, blocks, 32 * WARPS, 0, x, table, tokens,
                    N, C);
}

/* Block (chunk, columns, words), one warp: adds the rows of one chunk, 32 columns of them, for up to TILE_WORDS
 * words into shared memory, a lane to a column, and writes them to partial [chunks, V, C]. */
static __global__ void embedding_chunk_kernel(float *partial, const float *dx, const int *tokens, int N, int C, int V,
                                              int chunk_rows)
{
    cuda_wait();
    extern __shared__ float shared[];
    float *table = shared; /* [words][32] */
    enum { AHEAD = 8 };
    int lane = threadIdx.x, column = blockIdx.y * 32 + lane;
    int first = blockIdx.x * chunk_rows, end = min(first + chunk_rows, N);
    int lowest = blockIdx.z * TILE_WORDS, words = min(V - lowest, (int)TILE_WORDS);
    for (int word = 0; word < words; word++)
        table[word * 32 + lane] = 0;
    for (int n = first; n < end; n += AHEAD) {
        float value[AHEAD];
        int word[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            bool inside = n + i < end;
            word[i] = inside ? tokens[n + i] - lowest : -1;
            value[i] = inside && column < C ? dx[(size_t)(n + i) * C + column] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (word[i] >= 0 && word[i] < words)
                table[word[i] * 32 + lane] += value[i];
    }
    if (column < C)
        for (int word = 0; word < words; word++)
            partial[((size_t)blockIdx.x * V + lowest + word) * C + column] = table[word * 32 + lane];
}

/* Chunks of at least 32 rows, and as many as the workspace has room for. */
static int choose_chunks(const struct cuda_device *cuda, int N, size_t table_size)
{
    size_t room = cuda->workspace_bytes / (table_size * sizeof(float));
    size_t wanted = cuda_blocks((size_t)N, 32);
    wanted = wanted < CUDA_PARTIAL_ROWS ? wanted : (size_t)CUDA_PARTIAL_ROWS;
    return (int)(wanted < room ? wanted : room);
}

void cuda_embedding_backward(struct device *device, real *dtable, const real *dx, const int *tokens, int N, int C,
                             int V)
{
    struct cuda_device *cuda = cuda_enter(device);
    size_t table_size = (size_t)V * C;
    int chunks = choose_chunks(cuda, N, table_size);
    /* A table larger than the workspace: one chunk, straight into dtable. */
    float *partial = chunks > 1 ? static_cast<float *>(cuda->workspace) : dtable;
    int chunk_rows = (int)cuda_blocks((size_t)N, chunks > 1 ? (size_t)chunks : 1);
    chunks = (int)cuda_blocks((size_t)N, (size_t)chunk_rows);
    size_t shared = (size_t)(V < TILE_WORDS ? V : TILE_WORDS) * 32 * sizeof(float);
    dim3 grid((unsigned)chunks, cuda_blocks((size_t)C, 32), cuda_blocks((size_t)V, TILE_WORDS));
    cuda_launch(cuda, "embedding_backward", embedding_chunk_kernel, grid, 32, shared, partial, dx, tokens, N, C, V,
                chunk_rows);
    if (partial != dtable)
        cuda_sum_rows(cuda, "embedding_backward", dtable, partial, chunks, table_size);
}
