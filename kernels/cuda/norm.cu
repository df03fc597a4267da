/* RMSNorm of the residual stream and of query and key heads. A warp takes a row and keeps it in registers;
 * kernels/cpu/ has the formulas. */
#include "kernels/cuda/device.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, MAX_WIDTH = 4096 };

/* Where row r lies: `heads` rows of `width` side by side, ld apart. heads = 1: a plain matrix. */
struct rows {
    int count, width, heads, ld;
};

static __device__ inline size_t row_offset(const struct rows &rows, int r)
{
    return (size_t)(r / rows.heads) * rows.ld + (size_t)(r % rows.heads) * rows.width;
}

/* VALUES per lane: element lane + 32*i. */
template <int VALUES>
static __device__ inline void load_row(float (&row)[VALUES], const float *from, int width, int lane)
{
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        row[i] = lane + 32 * i < width ? from[lane + 32 * i] : 0.0f;
}

template <int VALUES>
static __device__ inline void store_row(float *to, const float (&row)[VALUES], int width, int lane)
{
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        if (lane + 32 * i < width)
            to[lane + 32 * i] = row[i];
}

/* y = norm(x + delta); `kept` [count, width] receives x + delta, unless NULL. y may be x. */
template <int VALUES>
static __global__ void norm_forward_kernel(struct rows rows, float *kept, float *y, float *rstd, const float *x,
                                           const float *delta, const float *weight, float epsilon)
{
    cuda_wait();
    int lane = threadIdx.x % 32, r = blockIdx.x * WARPS + threadIdx.x / 32;
    if (r >= rows.count)
        return;
    float row[VALUES], gain[VALUES], squares = 0;
    size_t offset = row_offset(rows, r), contiguous = (size_t)r * rows.width;
    load_row(row, x + offset, rows.width, lane);
    load_row(gain, weight, rows.width, lane);
    if (delta) {
        float other[VALUES];
        load_row(other, delta + offset, rows.width, lane);
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            row[i] += other[i];
    }
    if (kept)
        store_row(kept + contiguous, row, rows.width, lane);
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        squares += row[i] * row[i];
    float scale = 1.0f / sqrtf(warp_sum(squares) / (float)rows.width + epsilon);
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        row[i] *= scale * gain[i];
    store_row(y + offset, row, rows.width, lane);
    if (lane == 0)
        rstd[r] = scale;
}

/* dx = dsum + rstd * (weight*dy - n * mean(weight*dy*n)), n = kept * rstd; dweight = sum over rows of dy*n.
 * dx may be dy or dsum: a lane reads its elements before it writes them. Blocks walk over the rows and leave their
 * parts of dweight in partial [blocks, width]. */
template <int VALUES>
static __global__ void norm_backward_kernel(struct rows rows, float *dx, float *partial, const float *dy,
                                            const float *dsum, const float *kept, const float *rstd,
                                            const float *weight)
{
    cuda_wait();
    __shared__ float sums[WARPS][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float gain[VALUES], dgain[VALUES] = {};
    load_row(gain, weight, rows.width, lane);
    for (int r = blockIdx.x * WARPS + warp; r < rows.count; r += gridDim.x * WARPS) {
        float row[VALUES], gradient[VALUES], arriving[VALUES] = {}, product = 0, scale = rstd[r];
        size_t offset = row_offset(rows, r);
        load_row(row, kept + (size_t)r * rows.width, rows.width, lane);
        load_row(gradient, dy + offset, rows.width, lane);
        if (dsum)
            load_row(arriving, dsum + offset, rows.width, lane);
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            row[i] *= scale;
            dgain[i] += gradient[i] * row[i];
            gradient[i] *= gain[i];
            product += gradient[i] * row[i];
        }
        float mean = warp_sum(product) / (float)rows.width;
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            arriving[i] += scale * (gradient[i] - row[i] * mean);
        store_row(dx + offset, arriving, rows.width, lane);
    }
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        sums[warp][lane] = dgain[i];
        __syncthreads();
        if (warp == 0 && lane + 32 * i < rows.width) {
            float total = 0;
            for (int other = 0; other < WARPS; other++)
                total += sums[other][lane];
            partial[(size_t)blockIdx.x * rows.width + lane + 32 * i] = total;
        }
        __syncthreads();
    }
}

/* Calls launch with a tag of the number of values per lane. */
template <int N> struct values_tag {
    static constexpr int count = N;
};

template <typename Launch>
static void with_values(struct cuda_device *cuda, const char *operation, int width, Launch launch)
{
    if (width <= 32)
        launch(values_tag<1>());
    else if (width <= 64)
        launch(values_tag<2>());
    else if (width <= 128)
        launch(values_tag<4>());
    else if (width <= 256)
        launch(values_tag<8>());
    else if (width <= 512)
        launch(values_tag<16>());
    else if (width <= 1024)
        launch(values_tag<32>());
    else if (width <= MAX_WIDTH)
        launch(values_tag<MAX_WIDTH / 32>());
    else
        error_set(&cuda->failure, "%s on CUDA takes a width of at most %d, not %d; lower the model's width", operation,
                  (int)MAX_WIDTH, width);
}

static void norm_forward(struct cuda_device *cuda, const char *operation, struct rows rows, float *kept, float *y,
                         float *rstd, const float *x, const float *delta, const float *weight, double epsilon)
{
    with_values(cuda, operation, rows.width, [&](auto values) {
        cuda_launch(cuda, operation, norm_forward_kernel<decltype(values)::count>,
                    cuda_blocks((size_t)rows.count, WARPS), THREADS, 0, rows, kept, y, rstd, x, delta, weight, epsilon);
    });
}

static unsigned partial_rows(int count)
{
    return min(cuda_blocks((size_t)count, WARPS), (unsigned)CUDA_PARTIAL_ROWS);
}

static void norm_backward(struct cuda_device *cuda, const char *operation, struct rows rows, float *dx, float *dweight,
                          const float *dy, const float *dsum, const float *kept, const float *rstd, const float *weight,
                          float *scratch)
{
    with_values(cuda, operation, rows.width, [&](auto values) {
        cuda_launch(cuda, operation, norm_backward_kernel<decltype(values)::count>, partial_rows(rows.count), THREADS,
                    0, rows, dx, scratch, dy, dsum, kept, rstd, weight);
    });
    cuda_sum_rows(cuda, operation, dweight, scratch, (int)partial_rows(rows.count), (size_t)rows.width);
}

void cuda_rmsnorm_forward(struct device *device, real *sum, real *y, real *rstd, const real *x, const real *delta,
                          const real *weight, int N, int C, double epsilon)
{
    norm_forward(cuda_enter(device), "rmsnorm_forward", { N, C, 1, C }, delta ? sum : nullptr, y, rstd, x, delta,
                 weight, epsilon);
}

size_t cuda_rmsnorm_scratch(int N, int C)
{
    return (size_t)partial_rows(N) * C;
}

void cuda_rmsnorm_backward(struct device *device, real *dx, real *dweight, const real *dy, const real *dsum,
                           const real *sum, const real *rstd, const real *weight, int N, int C, real *scratch)
{
    norm_backward(cuda_enter(device), "rmsnorm_backward", { N, C, 1, C }, dx, dweight, dy, dsum, sum, rstd, weight,
                  scratch);
}

/* saved: N*heads rows of D, then their N*heads rstd. */
void cuda_head_norm_forward(struct device *device, real *x, int ld, real *saved, const real *weight, int N, int heads,
                            int D, double epsilon)
{
    norm_forward(cuda_enter(device), "head_norm_forward", { N * heads, D, heads, ld }, saved, x,
                 saved + (size_t)N * heads * D, x, nullptr, weight, epsilon);
}

void cuda_head_norm_backward(struct device *device, real *dx, int ld, real *dweight, const real *saved,
                             const real *weight, int N, int heads, int D, real *scratch)
{
    norm_backward(cuda_enter(device), "head_norm_backward", { N * heads, D, heads, ld }, dx, dweight, dx, nullptr,
                  saved, saved + (size_t)N * heads * D, weight, scratch);
}
