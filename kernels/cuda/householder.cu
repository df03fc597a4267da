/* Householder vectors (PaTH, section 3.1): causal depthwise convolution, SiLU and L2 norm in one kernel; backward in
 * two, since a token's gradient also comes from the tokens after it. */
#include "kernels/cuda/device.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, MAX_HEAD_DIM = 256, CHUNK_THREADS = 64 };

struct convolution {
    int width, T, K, D;
    size_t rows; /* B*T*K: vectors */
};

static __device__ inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The convolution's output for channel c of token n, which stands at position t of its sequence. */
static __device__ inline float convolve(const float *x, const float *conv, const struct convolution &shape, size_t n,
                                        int t, int c)
{
    int channels = shape.K * shape.D;
    float sum = 0;
    for (int j = max(shape.width - 1 - t, 0); j < shape.width; j++)
        sum += conv[c * shape.width + j] * x[(n + j - (shape.width - 1)) * channels + c];
    return sum;
}

/* A warp per vector, VALUES channels per lane. */
template <int VALUES>
static __global__ void householder_forward_kernel(float *w, const float *x, const float *conv,
                                                  const struct convolution shape)
{
    cuda_wait();
    int lane = threadIdx.x % 32;
    size_t r = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (r >= shape.rows)
        return;
    size_t n = r / shape.K;
    int first = (int)(r % shape.K) * shape.D, t = (int)(n % shape.T);
    float u[VALUES], squares = 0;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        int d = lane + 32 * i;
        u[i] = 0;
        if (d < shape.D && shape.width > 0) {
            float s = convolve(x, conv, shape, n, t, first + d);
            u[i] = s * sigmoid(s);
        } else if (d < shape.D) {
            u[i] = x[r * shape.D + d];
        }
        squares += u[i] * u[i];
    }
    float scale = 1.0f / sqrtf(warp_sum(squares) + 1e-12f);
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        if (lane + 32 * i < shape.D)
            w[r * shape.D + lane + 32 * i] = u[i] * scale;
}

/* ds [N, K*D]: the gradient of the convolution's output (of x itself when width is 0). */
template <int VALUES>
static __global__ void householder_norm_backward_kernel(float *ds, const float *dw, const float *x, const float *conv,
                                                        const struct convolution shape)
{
    cuda_wait();
    int lane = threadIdx.x % 32;
    size_t r = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (r >= shape.rows)
        return;
    size_t n = r / shape.K;
    int first = (int)(r % shape.K) * shape.D, t = (int)(n % shape.T);
    float u[VALUES], slope[VALUES], gradient[VALUES], squares = 0, product = 0;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        int d = lane + 32 * i;
        u[i] = gradient[i] = 0;
        slope[i] = 1;
        if (d < shape.D) {
            float s = shape.width > 0 ? convolve(x, conv, shape, n, t, first + d) : x[r * shape.D + d];
            float sigma = sigmoid(s);
            u[i] = shape.width > 0 ? s * sigma : s;
            slope[i] = shape.width > 0 ? sigma * (1.0f + s * (1.0f - sigma)) : 1.0f;
            gradient[i] = dw[r * shape.D + d];
        }
        squares += u[i] * u[i];
        product += u[i] * gradient[i];
    }
    float scale = 1.0f / sqrtf(warp_sum(squares) + 1e-12f);
    product = warp_sum(product) * scale * scale;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        if (lane + 32 * i < shape.D)
            ds[r * shape.D + lane + 32 * i] = scale * (gradient[i] - u[i] * product) * slope[i];
}

/* Block x: a chunk of tokens; block y: CHUNK_THREADS channels, a thread to each. Writes dx, and the chunk's part of
 * dconv to partial [chunks, K*D*width]. */
static __global__ void householder_conv_backward_kernel(float *dx, float *partial, const float *ds, const float *x,
                                                        const float *conv, const struct convolution shape, int N,
                                                        int chunk)
{
    cuda_wait();
    int channels = shape.K * shape.D, width = shape.width, c = blockIdx.y * CHUNK_THREADS + threadIdx.x;
    int first = blockIdx.x * chunk, end = min(first + chunk, N);
    for (int j = 0; j < width && c < channels; j++) {
        float tap = conv[c * width + j], dtap = 0;
        int back = width - 1 - j; /* tap j meets the token that far back */
#pragma unroll 4
        for (int n = first; n < end; n++) {
            int t = n % shape.T;
            float ahead = t + back < shape.T ? tap * ds[(size_t)(n + back) * channels + c] : 0.0f;
            float *out = &dx[(size_t)n * channels + c];
            *out = j == 0 ? ahead : *out + ahead;
            if (t >= back)
                dtap += ds[(size_t)n * channels + c] * x[(size_t)(n - back) * channels + c];
        }
        partial[(size_t)blockIdx.x * channels * width + c * width + j] = dtap;
    }
}

template <int N> struct values_tag {
    static constexpr int count = N;
};

/* Calls launch with a tag of the number of channels per lane. */
template <typename Launch> static void with_values(struct cuda_device *cuda, int D, Launch launch)
{
    if (D <= 32)
        launch(values_tag<1>());
    else if (D <= 64)
        launch(values_tag<2>());
    else if (D <= 128)
        launch(values_tag<4>());
    else if (D <= MAX_HEAD_DIM)
        launch(values_tag<8>());
    else
        error_set(&cuda->failure, "householder on CUDA takes a head_dim of at most %d, not %d", (int)MAX_HEAD_DIM, D);
}

static struct convolution make_shape(int width, int B, int T, int K, int D)
{
    return { width, T, K, D, (size_t)B * T * K };
}

void cuda_householder_forward(struct device *device, real *w, const real *x, const real *conv, int width, int B, int T,
                              int K, int D)
{
    struct cuda_device *cuda = cuda_enter(device);
    struct convolution shape = make_shape(width, B, T, K, D);
    with_values(cuda, D, [&](auto values) {
        cuda_launch(cuda, "householder_forward", householder_forward_kernel<decltype(values)::count>,
                    cuda_blocks(shape.rows, WARPS), THREADS, 0, w, x, conv, shape);
    });
}

/* Chunks of at least 32 tokens, and as many as the workspace has room for. */
static int choose_chunks(const struct cuda_device *cuda, int N, size_t taps)
{
    size_t room = cuda->workspace_bytes / (taps * sizeof(float)), wanted = cuda_blocks((size_t)N, 32);
    wanted = wanted < CUDA_PARTIAL_ROWS ? wanted : (size_t)CUDA_PARTIAL_ROWS;
    return (int)(wanted < room ? wanted : room);
}

void cuda_householder_backward(struct device *device, real *dx, real *dconv, const real *dw, const real *x,
                               const real *conv, int width, int B, int T, int K, int D, real *scratch)
{
    struct cuda_device *cuda = cuda_enter(device);
    struct convolution shape = make_shape(width, B, T, K, D);
    float *ds = width > 0 ? scratch : dx;
    with_values(cuda, D, [&](auto values) {
        cuda_launch(cuda, "householder_backward", householder_norm_backward_kernel<decltype(values)::count>,
                    cuda_blocks(shape.rows, WARPS), THREADS, 0, ds, dw, x, conv, shape);
    });
    if (width == 0)
        return;
    int N = B * T, chunk = (int)cuda_blocks((size_t)N, (size_t)choose_chunks(cuda, N, (size_t)K * D * width));
    float *partial = static_cast<float *>(cuda->workspace);
    dim3 grid(cuda_blocks((size_t)N, (size_t)chunk), cuda_blocks((size_t)K * D, CHUNK_THREADS));
    cuda_launch(cuda, "householder_backward", householder_conv_backward_kernel, grid, CHUNK_THREADS, 0, dx, partial, ds,
                x, conv, shape, N, chunk);
    cuda_sum_rows(cuda, "householder_backward", dconv, partial, (int)grid.x, (size_t)K * D * width);
}
